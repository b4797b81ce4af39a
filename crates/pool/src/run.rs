//! All hosts of a system side by side.
//!
//! Time passes in windows. In a window each host runs by itself; when it ends the hosts learn how
//! busy the others kept each pool, how long messages wait in the fabric, in pools and at the
//! manager, and how many frames are left. So what a host sees of another is one window old, and
//! results are the same for any number of threads that run at a time.

use crate::contention::{HostQueues, HostWindow, QueueUse, StationUse, SystemQueues};
use crate::error::AccessRefusal;
use crate::file_use::{FileTouch, FileUseRecord, SharedFileUse};
use crate::gate::{run_managed, run_plain, HostPort, WorkerSlots};
use crate::host::HostPlan;
use crate::manager::MemoryManager;
use crate::outcome::HostOutcome;
use crate::record::{WindowOrder, WindowReport};
use crate::shootdown::{FileMoveTotals, FileMover, MoveOrder};
use crate::system::SystemDescription;
use crate::PoolError;
use serde::Serialize;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use terrace_machine::Machine;
use terrace_model::channel::BusDemand;
use terrace_sim::world::ShootdownMode;
use terrace_sim::SimInput;
use terrace_types::{Nanos, Seed};

/// A system with what runs on it.
#[derive(Debug, Clone)]
pub struct SystemPlan {
    /// The hosts, in the order of the system file.
    pub hosts: Vec<HostPlan>,
    queues: SystemQueues,
    manager: MemoryManager,
    mover: FileMover,
}

impl SystemPlan {
    /// The hosts of `system`, as [`HostPlan::of_system`] has them, and its queues.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn new(
        system: &SystemDescription,
        file: &str,
        machines: &[Machine],
        inputs: &[SimInput],
        seed: Seed,
    ) -> Result<Self, PoolError> {
        let (hosts, manager) = HostPlan::with_manager(system, file, machines, inputs, seed)?;
        let handler_ps = hosts.first().map_or(0, |host| host.plan.machine.kernel.tlb_shootdown.0);
        let mover = FileMover::new(system, &system.list_pools(file)?, handler_ps);
        Ok(Self { hosts, queues: SystemQueues::new(system, file)?, manager, mover })
    }
}

/// What became of a system.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SystemOutcome {
    /// The hosts, in the order of the system file.
    pub hosts: Vec<HostOutcome>,
    /// Directions of links, and switches, that messages passed.
    pub queues: Vec<QueueUse>,
    /// Waits at banks, checks and the manager.
    pub stations: Vec<StationUse>,
    /// Pages of files that moved between pools.
    pub file_moves: FileMoveTotals,
    /// Which of them hosts touched and wrote.
    pub file_use: SharedFileUse,
    /// Modelled time of each point of their use over time.
    pub point: Nanos,
}

/// Runs all hosts to their ends, `threads` of them at a time.
///
/// # Errors
/// [`PoolError::Host`], of the first host in order that failed, when all others have ended.
pub fn simulate_system(plan: &SystemPlan, threads: usize) -> Result<SystemOutcome, PoolError> {
    let hosts = &plan.hosts[..];
    let threads = threads.clamp(1, hosts.len().max(1));
    let slots = Arc::new(WorkerSlots::new(threads));
    let mut coordinator = Coordinator::new(plan);
    let mut coordinated = Ok(());
    let mut outcomes: Vec<Option<Result<HostOutcome, PoolError>>> = Vec::new();
    outcomes.resize_with(hosts.len(), || None);
    std::thread::scope(|scope| {
        let (report_to, reports) = channel();
        let mut orders_to = Vec::new();
        let mut running = Vec::new();
        let mut plain: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
        for (index, host) in hosts.iter().enumerate() {
            let (order_to, orders) = channel();
            orders_to.push(order_to);
            let port = HostPort::new((index, host.pool_count()), report_to.clone(), orders);
            if host.is_managed() {
                let slots = &slots;
                running.push(scope.spawn(move || vec![(index, run_managed(host, port, slots))]));
            } else {
                plain[index % threads].push((index, host, port));
            }
        }
        running.extend(plain.into_iter().map(|mine| scope.spawn(move || run_plain(mine))));
        drop(report_to);
        coordinated = coordinator.run(orders_to, &reports);
        for (index, outcome) in running.into_iter().flat_map(|t| t.join().unwrap_or_default()) {
            outcomes[index] = Some(outcome);
        }
    });
    coordinated?;
    let queues = &coordinator.queues;
    let point = hosts.first().map_or(Nanos::ZERO, |host| queues.point(host.plan.quantum));
    Ok(SystemOutcome {
        hosts: outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap_or(Err(PoolError::ThreadLost)))
            .collect::<Result<_, _>>()?,
        queues: queues.uses(),
        stations: queues.stations(),
        file_moves: coordinator.mover.totals,
        file_use: coordinator.files.sum_up(|host| hosts[host].name.clone()),
        point,
    })
}

/// Who tells hosts about each other, window by window.
struct Coordinator<'a> {
    hosts: &'a [HostPlan],
    queues: SystemQueues,
    manager: MemoryManager,
    mover: FileMover,
    files: FileUseRecord,
    state: Vec<WindowReport>,
}

impl<'a> Coordinator<'a> {
    fn new(plan: &'a SystemPlan) -> Self {
        let pools = plan.hosts.first().map_or(0, HostPlan::pool_count);
        let report = |host| WindowReport::new(host, pools);
        Self {
            hosts: &plan.hosts,
            queues: plan.queues.clone(),
            manager: plan.manager.clone(),
            mover: plan.mover.clone(),
            files: FileUseRecord::default(),
            state: (0..plan.hosts.len()).map(report).collect(),
        }
    }

    /// Window after window, until all hosts have ended. Hosts that get no orders any more go on
    /// alone, so that none waits for ever.
    fn run(
        &mut self,
        orders_to: Vec<Sender<WindowOrder>>,
        reports: &Receiver<WindowReport>,
    ) -> Result<(), PoolError> {
        let window = self.hosts.first().map_or(Nanos::ZERO, |host| host.plan.quantum);
        loop {
            let running: Vec<usize> =
                (0..self.state.len()).filter(|host| !self.state[*host].ended).collect();
            for _ in &running {
                let Ok(report) = reports.recv() else { return Ok(()) };
                let host = report.host;
                self.mover.totals.acknowledgements += report.acknowledged;
                self.state[host] = report;
            }
            self.settle_frames()?;
            let refusals = self.check_accesses();
            let windows: Vec<HostWindow> =
                self.state.iter_mut().map(|report| std::mem::take(&mut report.window)).collect();
            let found = self.queues.pass(window, &windows)?;
            if self.state.iter().all(|report| report.ended) {
                return Ok(());
            }
            let moves = self.plan_file_moves(window, &found);
            let orders = self.give_orders(found, moves).into_iter().zip(refusals);
            for (host, (order, refusal)) in orders.enumerate() {
                if !self.state[host].ended {
                    let order = WindowOrder { refusal, ..order };
                    // Who cannot be told has ended, and has said so.
                    let _ = orders_to[host].send(order);
                }
            }
        }
    }

    /// Takes from the manager what hosts took in the window, after what they gave back.
    fn settle_frames(&mut self) -> Result<(), PoolError> {
        let problem = |host: usize, why: crate::manager::ManagerError| PoolError::Manager {
            host: self.hosts[host].name.clone(),
            why,
        };
        let pools = self.state.first().map_or(0, |report| report.demands.len());
        for pool in 0..pools {
            let of = |manager: &MemoryManager, host| manager.frames_of(host, pool).len() as u64;
            for (host, report) in self.state.iter().enumerate() {
                let more = of(&self.manager, host).saturating_sub(report.taken[pool + 1]);
                self.manager.give_back(host, pool, more).map_err(|why| problem(host, why))?;
            }
            for (host, report) in self.state.iter().enumerate() {
                let fewer = report.taken[pool + 1] - of(&self.manager, host);
                self.manager.take(host, pool, fewer).map_err(|why| problem(host, why))?;
            }
        }
        Ok(())
    }

    /// Pages of files that hosts touched or wrote in the window; by host, one that it may not have.
    fn check_accesses(&mut self) -> Vec<Option<AccessRefusal>> {
        let mut refusals = vec![None; self.state.len()];
        for (host, report) in self.state.iter_mut().enumerate() {
            self.files.write(host, &std::mem::take(&mut report.written));
            for touch in std::mem::take(&mut report.touched) {
                let allowed = self.manager.allows(host, touch.at);
                let checker = self.queues.checker(host, touch.at.pool).filter(|_| !allowed);
                let Some(checker) = checker else {
                    self.files.touch(host, &touch, allowed);
                    continue;
                };
                let pool = self.queues.pool_name(touch.at.pool).to_owned();
                let FileTouch { file, page, at } = touch;
                let (checker, frame) = (checker.to_owned(), at.frame);
                refusals[host].get_or_insert(AccessRefusal { checker, file, page, pool, frame });
            }
        }
        refusals
    }

    /// Pages of files that move, as the waits of this window suggest.
    fn plan_file_moves(&mut self, window: Nanos, found: &[HostQueues]) -> Vec<MoveOrder> {
        let running =
            |host: usize| (!self.state[host].ended).then_some(self.hosts[host].shootdowns);
        let modes: Vec<Option<ShootdownMode>> = (0..self.hosts.len()).map(running).collect();
        let pools = self.state.first().map_or(0, |report| report.demands.len());
        let wait = |pool: usize| found.iter().map(|queues| queues.waits_ps[pool]).sum::<u64>();
        let waits: Vec<u64> = (0..pools).map(wait).collect();
        let window_ps = window.get() * 1000;
        self.mover.plan(window_ps, &waits, &mut self.manager, &modes)
    }

    /// What each host is told. Frames that are left in a pool are divided among the hosts that run.
    fn give_orders(&self, queues: Vec<HostQueues>, moves: Vec<MoveOrder>) -> Vec<WindowOrder> {
        let order = |(queues, moves)| WindowOrder { queues, moves, ..WindowOrder::default() };
        let mut orders: Vec<WindowOrder> = queues.into_iter().zip(moves).map(order).collect();
        let running = self.state.iter().filter(|report| !report.ended).count().max(1) as u64;
        let pools = self.state.first().map_or(0, |report| report.demands.len());
        for pool in 0..pools {
            let demands = self.state.iter().map(|report| report.demands[pool]);
            let all = demands.fold(BusDemand::default(), BusDemand::plus);
            let left = self.manager.free(pool);
            let mut odd = left % running;
            for (order, report) in orders.iter_mut().zip(&self.state) {
                let more = u64::from(!report.ended && odd > 0);
                odd -= more;
                order.rivals.push(all.minus(report.demands[pool]));
                order.limits.push(report.taken[pool + 1] + left / running + more);
            }
        }
        orders
    }
}
