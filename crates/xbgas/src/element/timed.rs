//! Elements in simulated time.
//!
//! The running element whose clock is earliest goes on, at most until another element's next
//! request could arrive, which takes the network's least latency. A request is answered at its
//! arrival, when all running elements' clocks are there. So accesses happen in the order of time;
//! an element that computes ahead of a request sees it late by no more than a step of
//! [`STEP_INSTRUCTIONS`] and the request's time in queues.

use super::access::IssuedInstruction;
use super::issued::{IssuedAccess, ReplyTarget};
use super::observe::{ClockedObserver, ElementsObserver, IssuingInstruction};
use super::{ElementFault, ElementMachine, ElementState, ElementsEnd, TimingError, TurnEnd};
use crate::clock::{ElementClock, ElementCore, RequestsUnderWay, SimulatedClock, StepAccess};
use crate::execute::TargetRegister;
use crate::lookaside::ObjectMemory;
use crate::network::ElementNetwork;
use crate::protocol::RemoteReply;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use terrace_fabric::{FabricReservations, VertexId};
use terrace_riscv::decode::{Instruction, Op};
use terrace_riscv::linux::Host;
use terrace_riscv::operands::IntegerOperands;

/// Instructions of an element between two looks at its clock, while no request is under way. More
/// make remote stores visible later, by what their misses take; fewer cost speed.
const STEP_INSTRUCTIONS: u64 = 16;
/// How far an element goes on that nobody else can reach, picoseconds: a millisecond.
const ALONE_PS: u64 = 1_000_000_000;

/// A request under way.
#[derive(Debug)]
struct SentRequest {
    /// The instruction that sent it.
    issuer: IssuingInstruction,
    access: IssuedAccess,
}

/// What the clock has to know of an instruction of the base.
#[derive(Debug, Clone, Copy)]
struct StepOperands {
    registers: IntegerOperands,
    /// A fence or an atomic operation: what went before has to be complete.
    orders: bool,
    /// Of a load or a store: base register, offset, and whether it stores.
    access: Option<(u8, i32, bool)>,
}

/// The network, and what is under way on it.
#[derive(Debug)]
pub(super) struct NetworkState {
    fabric: FabricReservations,
    lookahead_ps: u64,
    service_ps: u64,
    arrivals: BinaryHeap<Reverse<(u64, u64)>>,
    requests: HashMap<u64, SentRequest>,
    next_number: u64,
    /// No message is sent before this any more, but by requests that resume.
    settled_ps: u64,
    operands: HashMap<u32, StepOperands>,
}

impl NetworkState {
    fn send(
        &mut self,
        (from, to): (usize, usize),
        data_bytes: u64,
        sent_ps: u64,
    ) -> Result<u64, TimingError> {
        let ends = (VertexId(from as u32), VertexId(to as u32));
        let bytes = ElementNetwork::message_bytes(data_bytes);
        Ok(self.fabric.pass(ends, bytes, sent_ps, self.settled_ps)?)
    }

    fn operands(&mut self, word: u32) -> StepOperands {
        *self.operands.entry(word).or_insert_with(|| {
            let instruction = Instruction::decode(word);
            let name = instruction.op.name();
            let atomic = ["amo", "lr.", "sc."].iter().any(|start| name.starts_with(start));
            let mut registers = instruction.integer_operands();
            if instruction.op == Op::Ecall {
                registers.read = !1;
            }
            let orders = atomic || matches!(instruction.op, Op::Fence | Op::FenceI);
            let access = match instruction.op {
                Op::Lb | Op::Lh | Op::Lw | Op::Ld | Op::Lbu | Op::Lhu | Op::Lwu => Some(false),
                Op::Sb | Op::Sh | Op::Sw | Op::Sd => Some(true),
                _ => None,
            };
            let access = access.map(|store| (instruction.rs1, instruction.immediate, store));
            StepOperands { registers, orders, access }
        })
    }
}

/// The running elements' clocks.
struct RunningClocks {
    /// The earliest, and whose it is.
    first: Option<(u64, usize)>,
    /// The earliest of the others.
    second_ps: u64,
}

impl<H: Host> ElementMachine<H> {
    /// From now on elements have clocks, which their programs see on `shown`, and reach each other
    /// over a network.
    ///
    /// # Errors
    /// [`TimingError`].
    pub fn with_time(
        mut self,
        core: &ElementCore,
        network: &ElementNetwork,
        shown: &[SimulatedClock],
    ) -> Result<Self, TimingError> {
        let fabric = network.build(self.elements.len() as u32)?;
        for (index, element) in self.elements.iter_mut().enumerate() {
            let shown = shown.get(index).cloned().unwrap_or_default();
            element.clock = Some(ElementClock::new(core, shown)?);
        }
        self.network = Some(NetworkState {
            lookahead_ps: fabric.topology().least_latency_ps().unwrap_or(ALONE_PS),
            service_ps: core.service_ps(),
            fabric,
            arrivals: BinaryHeap::new(),
            requests: HashMap::new(),
            next_number: 0,
            settled_ps: 0,
            operands: HashMap::new(),
        });
        Ok(self)
    }

    fn running_clocks(&self) -> RunningClocks {
        let mut clocks = RunningClocks { first: None, second_ps: u64::MAX };
        for (index, element) in self.elements.iter().enumerate() {
            let Some(clock) = element.clock.as_ref() else { continue };
            if element.state != ElementState::Running {
                continue;
            }
            let now = clock.now_ps();
            match clocks.first {
                Some((first, _)) if first <= now => clocks.second_ps = clocks.second_ps.min(now),
                first => {
                    clocks.second_ps = first.map_or(u64::MAX, |(time, _)| time);
                    clocks.first = Some((now, index));
                }
            }
        }
        clocks
    }

    pub(super) fn run_in_time<O: ElementsObserver>(
        &mut self,
        observer: &mut O,
        end_at: u64,
    ) -> ElementsEnd {
        loop {
            let clocks = self.running_clocks();
            let Some(network) = self.network.as_mut() else { return ElementsEnd::Budget };
            let arrival = network.arrivals.peek().map(|Reverse((time, _))| *time);
            let end = match (clocks.first, arrival) {
                (None, None) => return self.end_without_progress(),
                (Some((now, index)), arrival) if arrival.is_none_or(|time| time > now) => {
                    network.settled_ps = now.saturating_sub(network.lookahead_ps);
                    let others = clocks.second_ps.saturating_add(network.lookahead_ps);
                    let limit = arrival.unwrap_or(u64::MAX).min(others);
                    self.go_on(index, limit.min(now.saturating_add(ALONE_PS)), observer)
                }
                _ => self.deliver(observer),
            };
            if let Some(end) = end {
                return end;
            }
            if self.instructions() >= end_at {
                return ElementsEnd::Budget;
            }
        }
    }

    /// Lets an element run until its clock is at `limit_ps`, or it cannot go on.
    fn go_on<O: ElementsObserver>(
        &mut self,
        index: usize,
        limit_ps: u64,
        observer: &mut O,
    ) -> Option<ElementsEnd> {
        observer.enter_element(index as u32);
        loop {
            let element = &mut self.elements[index];
            let (clock, network) = (element.clock.as_mut()?, self.network.as_mut()?);
            if element.state != ElementState::Running || clock.now_ps() >= limit_ps {
                return None;
            }
            let mut budget = STEP_INSTRUCTIONS;
            if clock.has_flights() {
                budget = 1;
                let hart = element.process.hart_mut(clock.thread());
                let (pc, x) = hart.map_or((0, [0; 32]), |hart| (hart.pc, hart.x));
                let word = element.process.memory_mut().fetch(pc).unwrap_or(0);
                let operands = network.operands(word);
                let access = operands.access.map(|(base, offset, store)| {
                    let address = x[usize::from(base) & 31].wrapping_add(offset as i64 as u64);
                    if store {
                        StepAccess::Store(address)
                    } else {
                        StepAccess::Load(address)
                    }
                });
                let ready = if operands.orders {
                    clock.await_all()
                } else {
                    clock.step(operands.registers, access)
                };
                if ready == Err(RequestsUnderWay) {
                    element.state = ElementState::Suspended { until: None };
                    return None;
                }
            }
            let end = element.process.run(&mut ClockedObserver { clock, observer }, budget);
            clock.catch_up(element.process.instructions());
            match element.settle(end) {
                TurnEnd::Over => {
                    // What others stored during the turn may be what a thread waits for.
                    if element.state == ElementState::Waiting && element.process.wake_changed() {
                        element.state = ElementState::Running;
                        observer.resume();
                    }
                }
                TurnEnd::Run(end) => return Some(end),
                TurnEnd::Extended { thread, word } => {
                    let pc = self.elements[index].process.hart_mut(thread).map_or(0, |h| h.pc);
                    if let Err(fault) = self.execute_in_time(index, thread, word, observer) {
                        let element = index as u32;
                        return Some(ElementsEnd::Fault { element, thread, pc, fault });
                    }
                }
            }
        }
    }

    /// Executes an extended instruction of an element, or suspends the element before it.
    fn execute_in_time<O: ElementsObserver>(
        &mut self,
        index: usize,
        thread: u32,
        word: u32,
        observer: &mut O,
    ) -> Result<(), ElementFault> {
        let instruction = self.space.decode(word)?;
        let element = &mut self.elements[index];
        let Some(clock) = element.clock.as_mut() else { return Ok(()) };
        let read = instruction.base_registers_read();
        let Ok(ready_ps) = clock.make_space(read) else {
            element.state = ElementState::Suspended { until: None };
            return Ok(());
        };
        let misses = element.lookaside.misses;
        let issued = element.issue(&self.space, thread, &instruction)?;
        let Some(clock) = element.clock.as_mut() else { return Ok(()) };
        clock.miss_lookaside(element.lookaside.misses - misses);
        match issued {
            IssuedInstruction::Set { register, value } => {
                if let TargetRegister::Base(register) = register {
                    let written = 1_u32 << (register & 31) & !1;
                    // Room was made: nothing is waited for any more.
                    let stepped = clock.step(IntegerOperands { read, written }, None);
                    debug_assert!(stepped.is_ok());
                }
                element.set_register(thread, register, value);
            }
            IssuedInstruction::Access(access) if access.server == index => {
                if let ReplyTarget::Register(TargetRegister::Base(register)) = access.target {
                    clock.depend(register, ready_ps);
                }
                self.access_own(index, thread, &access, observer)?;
            }
            IssuedInstruction::Access(access) => {
                let sent_ps = clock.now_ps().max(ready_ps);
                let issuer = element.issuing(thread);
                self.send(issuer, access, sent_ps)?;
            }
        }
        let element = &mut self.elements[index];
        element.retire(thread);
        if let Some(clock) = element.clock.as_mut() {
            clock.catch_up(element.process.instructions());
        }
        Ok(())
    }

    /// An access of an element to what it has itself.
    fn access_own<O: ElementsObserver>(
        &mut self,
        index: usize,
        thread: u32,
        access: &IssuedAccess,
        observer: &mut O,
    ) -> Result<(), ElementFault> {
        let reply = self.serve(access.memory, access.server, &access.request)?;
        let value = if let RemoteReply::Value(value) = reply { value } else { 0 };
        self.touch_elements(index, access, value);
        let element = &mut self.elements[index];
        element.issuing(thread).show(access, observer);
        element.complete(thread, access.target, &reply)
    }

    /// What a request does to the caches of the element that has the memory.
    fn touch_elements(&mut self, index: usize, access: &IssuedAccess, value: u64) {
        // Files lie where no program's addresses do.
        let base = match access.memory {
            ObjectMemory::Element(_) => 0,
            ObjectMemory::File(file) => (u64::from(file) + 1) << 48,
        };
        let Some(clock) = self.elements[index].clock.as_mut() else { return };
        let (_, writes) = access.request.action.needs();
        let (_, count, step) = access.request.action.shape();
        for element in 0..count {
            let offset = element.wrapping_mul(step as u64);
            clock.touch(base ^ access.request.address.wrapping_add(offset), writes, value);
        }
    }

    /// Sends a request to another element; the sender waits in simulation, not in time, for what
    /// it loads.
    fn send(
        &mut self,
        issuer: IssuingInstruction,
        access: IssuedAccess,
        sent_ps: u64,
    ) -> Result<(), ElementFault> {
        let index = issuer.element as usize;
        let element = &mut self.elements[index];
        let (Some(clock), Some(network)) = (element.clock.as_mut(), self.network.as_mut()) else {
            return Ok(());
        };
        let number = network.next_number;
        network.next_number += 1;
        let (there, _) = access.request.action.data_bytes();
        let arrives_ps = network.send((index, access.server), there, sent_ps)?;
        clock.send(number);
        if access.request.action.needs().0 {
            element.state = ElementState::Suspended { until: Some(number) };
        }
        network.arrivals.push(Reverse((arrives_ps, number)));
        network.requests.insert(number, SentRequest { issuer, access });
        Ok(())
    }

    /// The next request arrives and is answered.
    fn deliver<O: ElementsObserver>(&mut self, observer: &mut O) -> Option<ElementsEnd> {
        let network = self.network.as_mut()?;
        let Reverse((time_ps, number)) = network.arrivals.pop()?;
        let sent = network.requests.remove(&number)?;
        let IssuingInstruction { element, thread, pc, .. } = sent.issuer;
        let answered = self.answer(&sent, number, time_ps, observer);
        answered.err().map(|fault| ElementsEnd::Fault { element, thread, pc, fault })
    }

    fn answer<O: ElementsObserver>(
        &mut self,
        sent: &SentRequest,
        number: u64,
        time_ps: u64,
        observer: &mut O,
    ) -> Result<(), ElementFault> {
        let IssuedAccess { memory, server, request, target, .. } = &sent.access;
        let source = sent.issuer.element as usize;
        let reply = self.serve(*memory, *server, request)?;
        sent.issuer.show(&sent.access, observer);
        let serving = &mut self.elements[*server];
        if serving.state == ElementState::Waiting && serving.process.wake_changed() {
            serving.state = ElementState::Running;
            observer.enter_element(serving.number);
            observer.resume();
            if let Some(clock) = serving.clock.as_mut() {
                clock.wake_at(time_ps);
            }
        }
        let Some(network) = self.network.as_mut() else { return Ok(()) };
        let (_, back) = request.action.data_bytes();
        let replied_ps = time_ps.saturating_add(network.service_ps);
        let answered_ps = network.send((*server, source), back, replied_ps)?;
        let source = &mut self.elements[source];
        if let Some(clock) = source.clock.as_mut() {
            let register = match target {
                ReplyTarget::Register(TargetRegister::Base(register)) => Some(*register),
                _ => None,
            };
            clock.answer(number, answered_ps, register);
            // What no base register follows is waited for.
            if register.is_none() && *target != ReplyTarget::Nowhere {
                clock.await_answer(answered_ps);
            }
        }
        match source.state {
            ElementState::Suspended { until: Some(other) } if other != number => {}
            ElementState::Suspended { .. } => source.state = ElementState::Running,
            _ => {}
        }
        source.complete(sent.issuer.thread, *target, &reply)
    }
}
