//! The clock of a processing element: one core with its caches and memory, by `terrace-model`,
//! and the requests that it has under way.
//!
//! Local memory is the model's: misses overlap as its core has it. For answers of other elements
//! the clock follows registers, and words that they are stored to: each has the time at which its
//! value is there. An in-order core
//! waits where it first reads such a register. An out-of-order core waits only when its window or
//! its miss registers are full; what depends on the register is as late as it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use terrace_machine::Machine;
use terrace_model::{MemoryAccess, MemorySystem, ModelError, ModelOptions, ModelParams, LINE, PS};
use terrace_riscv::execute::{AccessObserver, ObservedAccess};
use terrace_riscv::linux::{ProcessEvent, ProcessObserver};
use terrace_riscv::operands::IntegerOperands;
use terrace_types::Nanos;

/// Bytes of a page of an element's memory.
const PAGE: u64 = 4096;
/// Quantum of the model's buses, as the lab and the simulator have it.
const QUANTUM_PS: u64 = 10_000_000;

/// How a core waits for values from other elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CoreOrder {
    /// When its window or its miss registers are full.
    #[default]
    OutOfOrder,
    /// Where it first uses the value; for local memory, at each miss.
    InOrder,
}

/// What a node of the machine is made of, for elements.
#[derive(Debug, Clone)]
pub struct ElementCore {
    params: ModelParams,
    order: CoreOrder,
    lookaside_miss_ps: u64,
}

impl ElementCore {
    /// One core of a machine for each element. A translation that the look-aside buffer misses
    /// takes `lookaside_miss`; `None`: as long as a load from memory, where the table lies.
    ///
    /// # Errors
    /// [`ModelError`]: the machine cannot be modelled.
    pub fn new(
        machine: &Machine,
        order: CoreOrder,
        lookaside_miss: Option<Nanos>,
    ) -> Result<Self, ModelError> {
        let options =
            ModelOptions { vcpus: 1, all_fast: false, memory_mode: false, outstanding: None };
        let mut params = ModelParams::from_machine(machine, options)?;
        if order == CoreOrder::InOrder {
            params.window = 0;
        }
        let mut core = Self { params, order, lookaside_miss_ps: 0 };
        core.lookaside_miss_ps =
            lookaside_miss.map_or(core.service_ps(), |time| time.get().saturating_mul(PS));
        Ok(core)
    }

    /// What an element's memory takes for a request of another, picoseconds: its nearest node's
    /// latency.
    #[must_use]
    pub fn service_ps(&self) -> u64 {
        let links = self.params.links.first().and_then(|row| row.get(self.params.fast));
        links.map_or(0, |link| link.read_latency)
    }
}

/// Where an element's time went, picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ElementTime {
    /// Until its end.
    pub total_ps: u64,
    /// Of that, its core stood still for requests to other elements.
    pub remote_ps: u64,
    /// Of that, all its threads waited for other elements' stores.
    pub waiting_ps: u64,
}

impl ElementTime {
    /// What it computed and waited for its own memory.
    #[must_use]
    pub const fn local_ps(&self) -> u64 {
        self.total_ps - self.remote_ps - self.waiting_ps
    }
}

/// A request under way.
#[derive(Debug, Clone, Copy)]
struct RequestFlight {
    number: u64,
    /// When its answer is back; `None` while the request is under way.
    ends_ps: Option<u64>,
    /// Instructions of the element past which an out-of-order core waits for it.
    must_end_by: u64,
}

/// The clock of one element.
#[derive(Debug)]
pub struct ElementClock {
    memory: MemorySystem,
    order: CoreOrder,
    lookaside_miss_ps: u64,
    outstanding: usize,
    window: u64,
    pages: HashMap<u64, u64>,
    last_page: (u64, u64),
    thread: u32,
    /// Instructions of each thread that are in the time already.
    seen: Vec<u64>,
    /// Instructions in the time, and those of them that belong to no thread yet.
    executed: u64,
    unassigned: u64,
    flights: VecDeque<RequestFlight>,
    /// When each integer register has its value; what is past does not count.
    ready_ps: [u64; 32],
    /// When words of memory have theirs, which were stored while an answer was to come: by address
    /// divided by 8.
    stored_ps: HashMap<u64, u64>,
    remote_ps: u64,
    waiting_ps: u64,
    shown: SimulatedClock,
}

/// The time that an element's program sees, in place of the host's: shared by the machine, which
/// sets it, and the element's host, which shows it.
#[derive(Debug, Clone, Default)]
pub struct SimulatedClock(Arc<SimulatedTimes>);

#[derive(Debug, Default)]
struct SimulatedTimes {
    now_ns: AtomicU64,
    slept_ns: AtomicU64,
}

impl SimulatedClock {
    /// What it shows, nanoseconds, sleep that is not in the element's clock yet included.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.0.now_ns.load(Ordering::Relaxed) + self.0.slept_ns.load(Ordering::Relaxed)
    }

    /// The program sleeps.
    pub fn sleep_ns(&self, ns: u64) {
        self.0.slept_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

/// An access of an instruction of the base, at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepAccess {
    Load(u64),
    Store(u64),
}

/// Why an element cannot go on yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestsUnderWay;

impl ElementClock {
    /// A clock at zero, which the program sees on `shown`.
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn new(core: &ElementCore, shown: SimulatedClock) -> Result<Self, ModelError> {
        Ok(Self {
            memory: MemorySystem::new(core.params.clone(), QUANTUM_PS)?,
            order: core.order,
            lookaside_miss_ps: core.lookaside_miss_ps,
            outstanding: core.params.outstanding,
            window: core.params.window,
            pages: HashMap::new(),
            last_page: (u64::MAX, 0),
            thread: 0,
            seen: Vec::new(),
            executed: 0,
            unassigned: 0,
            flights: VecDeque::new(),
            ready_ps: [0; 32],
            stored_ps: HashMap::new(),
            remote_ps: 0,
            waiting_ps: 0,
            shown,
        })
    }

    /// The element's time, picoseconds.
    #[must_use]
    pub fn now_ps(&self) -> u64 {
        self.memory.units[0].core.time
    }

    /// Where its time went.
    #[must_use]
    pub fn split(&self) -> ElementTime {
        ElementTime {
            total_ps: self.now_ps(),
            remote_ps: self.remote_ps,
            waiting_ps: self.waiting_ps,
        }
    }

    /// All instructions until now are in the time: those that made no access, too.
    pub(crate) fn catch_up(&mut self, instructions: u64) {
        let missing = instructions.saturating_sub(self.executed);
        self.memory.units[0].core.execute(missing);
        self.executed += missing;
        self.unassigned += missing;
        self.memory.advance(|_| false);
        let slept = self.shown.0.slept_ns.swap(0, Ordering::Relaxed);
        self.wake_at(self.now_ps().saturating_add(slept.saturating_mul(PS)));
        self.shown.0.now_ns.store(self.now_ps() / PS, Ordering::Relaxed);
    }

    /// The thread whose instructions follow.
    pub(crate) const fn thread(&self) -> u32 {
        self.thread
    }

    /// Sleeps until a time, and counts it as waiting for other elements.
    pub(crate) fn wake_at(&mut self, time_ps: u64) {
        let now = self.now_ps();
        if time_ps > now {
            self.waiting_ps += time_ps - now;
            self.memory.units[0].core.time = time_ps;
        }
    }

    fn wait_for_answer(&mut self, time_ps: u64) {
        let now = self.now_ps();
        if time_ps > now {
            self.remote_ps += time_ps - now;
            self.memory.units[0].core.time = time_ps;
        }
    }

    /// The look-aside buffer went to its table so many times.
    pub(crate) fn miss_lookaside(&mut self, times: u64) {
        self.wait_for_answer(self.now_ps() + times * self.lookaside_miss_ps);
    }

    /// Whether an answer is still to come, so that each instruction has to be looked at.
    pub(crate) fn has_flights(&mut self) -> bool {
        let now = self.now_ps();
        self.flights.retain(|flight| flight.ends_ps.is_none_or(|ends| ends > now));
        if self.flights.is_empty() {
            self.stored_ps.clear();
        }
        !self.flights.is_empty()
    }

    /// Before a fence or an atomic operation: all answers are there.
    pub(crate) fn await_all(&mut self) -> Result<(), RequestsUnderWay> {
        for flight in &self.flights {
            flight.ends_ps.ok_or(RequestsUnderWay)?;
        }
        let last = self.flights.iter().filter_map(|flight| flight.ends_ps).max();
        self.flights.clear();
        self.wait_for_answer(last.unwrap_or(0));
        Ok(())
    }

    fn latest(&self, registers: u32) -> u64 {
        let read = (0..32).filter(|register| registers >> register & 1 == 1);
        read.map(|register| self.ready_ps[register]).max().unwrap_or(0)
    }

    /// Before an instruction with these operands: what it waits for is there, and what it writes
    /// is as late as what it reads.
    pub(crate) fn step(
        &mut self,
        operands: IntegerOperands,
        access: Option<StepAccess>,
    ) -> Result<(), RequestsUnderWay> {
        let mut ready = self.reach_operands(operands.read)?;
        match access {
            Some(StepAccess::Load(address)) => {
                ready = ready.max(self.stored_ps.get(&(address / 8)).copied().unwrap_or(0));
                if self.order == CoreOrder::InOrder {
                    self.wait_for_answer(ready);
                }
            }
            Some(StepAccess::Store(address)) if ready > self.now_ps() => {
                self.stored_ps.insert(address / 8, ready);
            }
            Some(StepAccess::Store(address)) => {
                self.stored_ps.remove(&(address / 8));
            }
            None => {}
        }
        for register in (0..32).filter(|register| operands.written >> register & 1 == 1) {
            self.ready_ps[register] = ready;
        }
        Ok(())
    }

    /// When an instruction that reads these registers can execute; an in-order core waits.
    fn reach_operands(&mut self, read: u32) -> Result<u64, RequestsUnderWay> {
        let ready = self.latest(read);
        match self.order {
            CoreOrder::InOrder => self.wait_for_answer(ready),
            CoreOrder::OutOfOrder => {
                while let Some(flight) = self.flights.front().copied() {
                    if flight.must_end_by >= self.executed {
                        break;
                    }
                    self.wait_for_answer(flight.ends_ps.ok_or(RequestsUnderWay)?);
                    self.flights.pop_front();
                }
            }
        }
        Ok(ready)
    }

    /// Before a request whose operands are these registers: there is space for it. When they are
    /// there.
    pub(crate) fn make_space(&mut self, read: u32) -> Result<u64, RequestsUnderWay> {
        let ready = self.reach_operands(read)?;
        self.has_flights();
        if self.flights.len() >= self.outstanding {
            let mut first = u64::MAX;
            for flight in &self.flights {
                first = first.min(flight.ends_ps.ok_or(RequestsUnderWay)?);
            }
            self.wait_for_answer(first);
            self.has_flights();
        }
        Ok(ready)
    }

    /// A request is under way from now on.
    pub(crate) fn send(&mut self, number: u64) {
        let must_end_by = self.executed + self.window;
        self.flights.push_back(RequestFlight { number, ends_ps: None, must_end_by });
    }

    /// A register is no earlier than what its value depends on.
    pub(crate) fn depend(&mut self, register: u8, ready_ps: u64) {
        self.ready_ps[usize::from(register) & 31] = if register == 0 { 0 } else { ready_ps };
    }

    /// The answer to a request is waited for.
    pub(crate) fn await_answer(&mut self, ends_ps: u64) {
        self.wait_for_answer(ends_ps);
    }

    /// The answer to a request, and the register that it goes to.
    pub(crate) fn answer(&mut self, number: u64, ends_ps: u64, register: Option<u8>) {
        if let Some(flight) = self.flights.iter_mut().find(|flight| flight.number == number) {
            flight.ends_ps = Some(ends_ps);
        }
        if let Some(register) = register.filter(|register| *register != 0) {
            self.ready_ps[usize::from(register) & 31] = ends_ps;
        }
    }

    /// Physical address of the page that is touched as the so-manieth: the best tier is filled
    /// first. Past the end of memory, pages share frames.
    fn frame(&self, number: u64) -> u64 {
        let params = self.memory.params();
        let total: u64 = params.sizes.iter().sum();
        let mut left = number * PAGE % (total / PAGE * PAGE).max(PAGE);
        let others = (0..params.sizes.len()).filter(|node| *node != params.fast);
        for node in std::iter::once(params.fast).chain(others) {
            let bytes = params.sizes[node] / PAGE * PAGE;
            if left < bytes {
                return params.layout.address(node, left).unwrap_or(left);
            }
            left -= bytes;
        }
        left
    }

    /// An access of the element to its own memory.
    pub(crate) fn touch(&mut self, address: u64, write: bool, value: u64) {
        let page = address / PAGE;
        if self.last_page.0 != page {
            let next = self.pages.len() as u64;
            let frame = match self.pages.get(&page) {
                Some(frame) => *frame,
                None => self.frame(next),
            };
            self.pages.insert(page, frame);
            self.last_page = (page, frame);
        }
        let physical = self.last_page.1 + address % PAGE;
        let unit = &mut self.memory.units[0];
        *(if write { &mut unit.counters.stores } else { &mut unit.counters.loads }) += 1;
        if !unit.l1.hit(physical / LINE, write) {
            let access = MemoryAccess { physical, virtual_: address, write };
            self.memory.miss(0, access, || Some(value));
        }
    }
}

impl AccessObserver for ElementClock {
    #[inline]
    fn access(&mut self, access: ObservedAccess) {
        let seen = &mut self.seen[self.thread as usize];
        let new = access.instret.saturating_sub(*seen);
        *seen = access.instret;
        let assigned = new.min(self.unassigned);
        self.unassigned -= assigned;
        self.executed += new - assigned;
        self.memory.units[0].core.execute(new - assigned);
        self.touch(access.address, access.store, access.value);
    }
}

impl ProcessObserver for ElementClock {
    fn enter(&mut self, thread: u32) {
        if thread as usize >= self.seen.len() {
            self.seen.resize(thread as usize + 1, 0);
        }
        if thread != self.thread {
            // The registers are another thread's: what they wait for is waited for.
            self.wait_for_answer(self.ready_ps.iter().copied().max().unwrap_or(0));
            self.thread = thread;
        }
    }

    fn event(&mut self, _: u64, _: ProcessEvent) {}
}
