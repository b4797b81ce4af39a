//! Hosts between two windows: each stops, reports what it did, and goes on with what it is told of
//! the others.

use crate::account::FrameAccount;
use crate::host::HostPlan;
use crate::outcome::HostOutcome;
use crate::record::{HostFigures, HostRecord, WindowOrder, WindowReport};
use crate::PoolError;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use terrace_sim::build::{FirstTouchPlacement, MachineMode};
use terrace_sim::world::{WindowGate, World};
use terrace_sim::{conclude, simulate_with, RunOptions, SimError, SimRun};

/// Picoseconds in a nanosecond.
const PS: u64 = 1000;

/// Hosts with threads of their own that may run at a time.
#[derive(Debug)]
pub(crate) struct WorkerSlots {
    free: Mutex<usize>,
    freed: Condvar,
}

impl WorkerSlots {
    pub fn new(count: usize) -> Self {
        Self { free: Mutex::new(count), freed: Condvar::new() }
    }

    fn acquire(&self) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
    }

    fn release(&self) {
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.freed.notify_one();
    }
}

/// A slot that a host has; given back when it is dropped.
struct WorkerSlot<'a>(&'a WorkerSlots);

impl Drop for WorkerSlot<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// A host's connection to whoever tells it of the others. When it is dropped the host has ended,
/// however that came: nobody waits for its reports any more.
#[derive(Debug)]
pub(crate) struct HostPort {
    report_to: Sender<WindowReport>,
    orders: Receiver<WindowOrder>,
    last: WindowReport,
}

impl HostPort {
    /// Of the host of this index, which sees so many pools.
    pub fn new(
        (host, pools): (usize, usize),
        report_to: Sender<WindowReport>,
        orders: Receiver<WindowOrder>,
    ) -> Self {
        Self { report_to, orders, last: WindowReport::new(host, pools) }
    }

    fn report(&self, report: WindowReport) {
        // Nobody may be there any more: then there is no order either.
        let _ = self.report_to.send(WindowReport { host: self.last.host, ..report });
    }

    /// Waits for what comes next; `None`: nobody tells any more.
    fn order(&self) -> Option<WindowOrder> {
        self.orders.recv().ok()
    }

    /// What it did in its last window.
    fn finish(&mut self, report: WindowReport, written: Vec<(u32, u64)>) {
        (self.last.window, self.last.acknowledged) = (report.window, report.acknowledged);
        (self.last.touched, self.last.written) = (report.touched, written);
    }
}

impl Drop for HostPort {
    /// An operating system takes back the frames of a program that has ended.
    fn drop(&mut self) {
        let report = WindowReport { ended: true, ..self.last.clone() };
        // Nobody may be there any more.
        let _ = self.report_to.send(report);
    }
}

/// Between two windows of a host's world.
#[derive(Debug)]
struct HostGate {
    record: Rc<RefCell<HostRecord>>,
    port: Rc<RefCell<HostPort>>,
    slots: Arc<WorkerSlots>,
}

impl WindowGate for HostGate {
    fn reach(&mut self, world: &mut World) {
        if world.memory.refused > 0 || world.lacks_memory() {
            return world.halt();
        }
        let report = self.record.borrow_mut().report(world);
        self.port.borrow().report(report);
        self.slots.release();
        let order = self.port.borrow().order();
        self.slots.acquire();
        if let Some(order) = order {
            self.record.borrow_mut().obey(world, order);
        }
        if self.record.borrow().refusal().is_some() {
            world.halt();
        }
    }
}

/// Sets in a world what the host's system file says.
fn prepare(host: &HostPlan, account: &FrameAccount, world: &mut World) {
    world.memory.set_frame_chooser(Box::new(account.clone()));
    world.shootdowns.mode = host.shootdowns;
    if let Some(unit) = &host.translation {
        world.set_translation_unit(unit.clone());
    }
}

/// The result of a host, or that memory was full.
fn finish(
    host: &HostPlan,
    figures: HostFigures,
    run: Result<SimRun, SimError>,
) -> Result<HostOutcome, PoolError> {
    if let Some(why) = figures.refusal() {
        return Err(PoolError::Access { host: host.name.clone(), why: why.clone() });
    }
    let run = match figures.refused(host) {
        Some(why) => Err(why),
        None => run,
    };
    run.map(|run| figures.with_run(host, run)).map_err(|why| failed(host, why))
}

fn failed(host: &HostPlan, why: SimError) -> PoolError {
    PoolError::Host { host: host.name.clone(), why }
}

/// Runs a host whose pages a policy moves to its end. The engine of the policy waits in its own
/// calls, so that such a host has a thread to itself.
///
/// # Errors
/// [`PoolError::Host`].
pub(crate) fn run_managed(
    host: &HostPlan,
    port: HostPort,
    slots: &Arc<WorkerSlots>,
) -> Result<HostOutcome, PoolError> {
    slots.acquire();
    let _slot = WorkerSlot(slots);
    let account = host.frame_account().map_err(|why| failed(host, why))?;
    let record = Rc::new(RefCell::new(HostRecord::new(host, account.clone())));
    let port = Rc::new(RefCell::new(port));
    let mut begin = |world: &mut World| {
        prepare(host, &account, world);
        let (record, port, slots) = (record.clone(), port.clone(), slots.clone());
        world.set_gate(host.plan.quantum, Box::new(HostGate { record, port, slots }));
    };
    let mut figures = None;
    let mut end = |world: &World| {
        let mut record = record.borrow_mut();
        port.borrow_mut().finish(record.report(world), record.list_written(world));
        figures = Some(record.sum_up(host, world));
    };
    let options = RunOptions { seed: host.seed, ..RunOptions::default() };
    let name = host.contender();
    let run = simulate_with(&host.plan, (&name, host.placement), options, (&mut begin, &mut end));
    match figures {
        Some(figures) => finish(host, figures, run),
        None => {
            let lost = || SimError::Inconsistent("the program did not begin".to_owned());
            Err(failed(host, run.err().unwrap_or_else(lost)))
        }
    }
}

/// A host in whose world nothing moves pages.
struct PlainHost<'a> {
    host: &'a HostPlan,
    port: HostPort,
    world: World,
    record: HostRecord,
}

impl<'a> PlainHost<'a> {
    fn start(host: &'a HostPlan, port: HostPort) -> Result<Self, SimError> {
        let account = host.frame_account()?;
        let mut world = host.plan.world(MachineMode::Plain, FirstTouchPlacement::Nearest)?;
        prepare(host, &account, &mut world);
        Ok(Self { host, port, world, record: HostRecord::new(host, account) })
    }

    fn has_ended(&self) -> bool {
        let memory = &self.world.memory;
        // A program that came to a halt makes no window end any more.
        let halted = self.world.engine().lockstep().start() < self.world.now().0 * PS;
        let refused = self.record.refusal().is_some();
        self.world.ended() || halted || refused || memory.refused > 0 || self.world.lacks_memory()
    }

    fn finish(mut self) -> Result<HostOutcome, PoolError> {
        self.port.finish(self.record.report(&self.world), self.record.list_written(&self.world));
        let figures = self.record.sum_up(self.host, &self.world);
        let run = conclude(&self.host.plan, &self.host.contender(), &mut self.world);
        finish(self.host, figures, run)
    }
}

/// Runs hosts whose pages stay to their ends, side by side in one thread.
pub(crate) fn run_plain(
    hosts: Vec<(usize, &HostPlan, HostPort)>,
) -> Vec<(usize, Result<HostOutcome, PoolError>)> {
    let mut running: Vec<(usize, PlainHost<'_>)> = Vec::with_capacity(hosts.len());
    let mut outcomes = Vec::new();
    for (index, host, port) in hosts {
        match PlainHost::start(host, port) {
            Ok(started) => running.push((index, started)),
            Err(why) => outcomes.push((index, Err(failed(host, why)))),
        }
    }
    while !running.is_empty() {
        if running.iter().any(|(_, host)| host.has_ended()) {
            let (ended, going): (Vec<_>, Vec<_>) =
                running.into_iter().partition(|(_, host)| host.has_ended());
            outcomes.extend(ended.into_iter().map(|(index, host)| (index, host.finish())));
            running = going;
        }
        for (_, host) in &mut running {
            host.port.report(host.record.report(&host.world));
        }
        for (_, host) in &mut running {
            if let Some(order) = host.port.order() {
                host.record.obey(&mut host.world, order);
            }
            host.world.pass(host.host.plan.quantum);
        }
    }
    outcomes
}
