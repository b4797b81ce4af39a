//! All hosts of a system side by side.
//!
//! Time passes in windows, one quantum of `terrace-sim` long. In a window each host runs by itself;
//! when it ends the hosts learn how busy the others kept each pool, how long messages wait in the
//! fabric, in pools and at the manager, and how many frames are left.
//! So what a host sees of another is one window old, and results are the same for any number of
//! threads.

use crate::contention::{HostQueues, HostWindow, QueueUse, SystemQueues};
use crate::host::{FrameAccount, HostPlan};
use crate::system::SystemDescription;
use crate::PoolError;
use serde::Serialize;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use terrace_fabric::loads::SAME_TRAFFIC;
use terrace_machine::Machine;
use terrace_model::channel::BusDemand;
use terrace_model::engine::BusBytes;
use terrace_sim::build::{FirstTouchPlacement, MachineMode};
use terrace_sim::world::World;
use terrace_sim::{conclude, SimError, SimInput, SimRun};
use terrace_types::{Bytes, Contender, Nanos, Seed};

const PAGE: u64 = 4096;
/// Picoseconds in a nanosecond.
const PS: u64 = 1000;

/// What a host did with one pool, or with its local memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PoolTraffic {
    /// Frames that it got.
    pub frames: u64,
    /// Misses of its last-level cache that went there.
    pub accesses: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Mean time that a miss waited in the queues of fabric and pool, nanoseconds.
    pub mean_wait_ns: f64,
}

/// A system with what runs on it.
#[derive(Debug, Clone)]
pub struct SystemPlan {
    /// The hosts, in the order of the system file.
    pub hosts: Vec<HostPlan>,
    queues: SystemQueues,
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
        let hosts = HostPlan::of_system(system, file, machines, inputs, seed)?;
        Ok(Self { hosts, queues: SystemQueues::new(system, file)? })
    }
}

/// What became of a system.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SystemOutcome {
    /// The hosts, in the order of the system file.
    pub hosts: Vec<HostOutcome>,
    /// Directions of links, and switches, that messages passed.
    pub queues: Vec<QueueUse>,
    /// Modelled time of each point of their use over time.
    pub point: Nanos,
}

/// What became of a host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostOutcome {
    /// Its name.
    pub host: String,
    /// Instructions of the phase that counts.
    pub instructions: u64,
    /// Instructions a cycle, by core that the program uses.
    pub ipc: f64,
    /// Local memory, then each pool.
    pub pools: Vec<PoolTraffic>,
    /// What `terrace sim` shows of a machine.
    #[serde(flatten)]
    pub run: SimRun,
}

/// What a host is told when a window begins.
#[derive(Debug, Clone, Default)]
struct WindowOrder {
    /// By pool: what other hosts wanted of it in the last window.
    rivals: Vec<BusDemand>,
    /// By pool: frames that the host may have all in all.
    limits: Vec<u64>,
    /// What it waits for, and what full links leave it.
    queues: HostQueues,
}

/// What a host reports when a window ends.
#[derive(Debug, Clone)]
struct WindowReport {
    host: usize,
    demands: Vec<BusDemand>,
    taken: Vec<u64>,
    window: HostWindow,
    ended: bool,
}

/// Runs all hosts to their ends on `threads` threads.
///
/// # Errors
/// [`PoolError::Host`], of the first host in order that failed, when all others have ended.
pub fn simulate_system(plan: &SystemPlan, threads: usize) -> Result<SystemOutcome, PoolError> {
    let hosts = &plan.hosts[..];
    let mut queues = plan.queues.clone();
    let mut coordinated = Ok(());
    let workers = threads.clamp(1, hosts.len().max(1));
    let mut outcomes: Vec<Option<Result<HostOutcome, PoolError>>> = Vec::new();
    outcomes.resize_with(hosts.len(), || None);
    std::thread::scope(|scope| {
        let (report_to, reports) = channel();
        let mut orders_to = Vec::new();
        let mut running = Vec::new();
        for worker in 0..workers {
            let (order_to, orders) = channel();
            orders_to.push(order_to);
            let report_to = report_to.clone();
            let mine: Vec<usize> = (worker..hosts.len()).step_by(workers).collect();
            running.push(scope.spawn(move || drive_hosts(hosts, &mine, &orders, &report_to)));
        }
        drop(report_to);
        coordinated = coordinate(hosts, &mut queues, &orders_to, &reports);
        // Without orders the threads conclude.
        drop(orders_to);
        for thread in running {
            for (host, outcome) in thread.join().unwrap_or_default() {
                outcomes[host] = Some(outcome);
            }
        }
    });
    coordinated?;
    let outcomes =
        outcomes.into_iter().map(|outcome| outcome.unwrap_or(Err(PoolError::ThreadLost)));
    let point = hosts.first().map_or(Nanos::ZERO, |host| queues.point(host.plan.quantum));
    Ok(SystemOutcome { hosts: outcomes.collect::<Result<_, _>>()?, queues: queues.uses(), point })
}

/// Window after window, until all hosts have ended or a thread is lost.
fn coordinate(
    hosts: &[HostPlan],
    queues: &mut SystemQueues,
    orders_to: &[Sender<Arc<Vec<WindowOrder>>>],
    reports: &Receiver<Vec<WindowReport>>,
) -> Result<(), PoolError> {
    let Some(first) = hosts.first() else { return Ok(()) };
    let pools = first.local_nodes..first.plan.machine.nodes.len();
    let capacities: Vec<u64> = pools.map(|node| first.plan.usable(node) / PAGE).collect();
    let mut state: Vec<WindowReport> = (0..hosts.len())
        .map(|host| WindowReport {
            host,
            demands: vec![BusDemand::default(); capacities.len()],
            taken: vec![0; capacities.len() + 1],
            window: HostWindow::default(),
            ended: false,
        })
        .collect();
    while state.iter().any(|report| !report.ended) {
        let windows: Vec<HostWindow> =
            state.iter_mut().map(|report| std::mem::take(&mut report.window)).collect();
        let found = queues.pass(first.plan.quantum, &windows)?;
        let orders = Arc::new(give_orders(&state, &capacities, found));
        if orders_to.iter().any(|to| to.send(orders.clone()).is_err()) {
            return Ok(());
        }
        for _ in orders_to {
            let Ok(reported) = reports.recv() else { return Ok(()) };
            for report in reported {
                let host = report.host;
                state[host] = report;
            }
        }
    }
    Ok(())
}

/// What each host is told. Frames that are left in a pool are divided among the hosts that run.
fn give_orders(
    state: &[WindowReport],
    capacities: &[u64],
    queues: Vec<HostQueues>,
) -> Vec<WindowOrder> {
    let order = |queues| WindowOrder { queues, ..WindowOrder::default() };
    let mut orders: Vec<WindowOrder> = queues.into_iter().map(order).collect();
    let running = state.iter().filter(|report| !report.ended).count().max(1) as u64;
    for (pool, capacity) in capacities.iter().enumerate() {
        let all = state.iter().fold(BusDemand::default(), |sum, r| sum.plus(r.demands[pool]));
        let left = capacity - state.iter().map(|r| r.taken[pool + 1]).sum::<u64>().min(*capacity);
        let mut odd = left % running;
        for (order, report) in orders.iter_mut().zip(state) {
            let more = u64::from(!report.ended && odd > 0);
            odd -= more;
            order.rivals.push(all.minus(report.demands[pool]));
            order.limits.push(report.taken[pool + 1] + left / running + more);
        }
    }
    orders
}

/// A host that runs, or why it does not.
type HostState = Result<RunningHost, SimError>;

/// A host's world, and what was counted of it in earlier windows.
struct RunningHost {
    world: World,
    account: FrameAccount,
    /// Bytes by pool when the last window ended.
    bytes: Vec<BusBytes>,
    /// Frames of pools when the last window ended.
    frames: u64,
    /// By pool: waits of all misses times their bytes, picoseconds.
    waited_ps: Vec<u128>,
}

/// Runs the hosts `mine`, a window an order, until there are no more orders.
fn drive_hosts(
    hosts: &[HostPlan],
    mine: &[usize],
    orders: &Receiver<Arc<Vec<WindowOrder>>>,
    report_to: &Sender<Vec<WindowReport>>,
) -> Vec<(usize, Result<HostOutcome, PoolError>)> {
    let mut states: Vec<HostState> = mine.iter().map(|host| start_host(&hosts[*host])).collect();
    while let Ok(window) = orders.recv() {
        let run_one = |(host, state): (&usize, &mut HostState)| {
            run_window(&hosts[*host], *host, state, &window[*host])
        };
        let reports = mine.iter().zip(&mut states).map(run_one).collect();
        if report_to.send(reports).is_err() {
            break;
        }
    }
    let conclude_one = |(host, state): (&usize, HostState)| {
        let plan = &hosts[*host];
        let outcome = state.and_then(|mut running| sum_up(plan, &mut running));
        (*host, outcome.map_err(|why| PoolError::Host { host: plan.name.clone(), why }))
    };
    mine.iter().zip(states).map(conclude_one).collect()
}

fn start_host(host: &HostPlan) -> HostState {
    let mut world = host.plan.world(MachineMode::Plain, FirstTouchPlacement::Nearest)?;
    let account = host.frame_account();
    world.memory.set_frame_chooser(Box::new(account.clone()));
    let pools = host.plan.machine.nodes.len() - host.local_nodes;
    Ok(RunningHost {
        world,
        account,
        bytes: vec![BusBytes::default(); pools],
        frames: 0,
        waited_ps: vec![0; pools],
    })
}

fn run_window(
    host: &HostPlan,
    index: usize,
    state: &mut HostState,
    order: &WindowOrder,
) -> WindowReport {
    let pools = order.limits.len();
    let mut report = WindowReport {
        host: index,
        demands: vec![BusDemand::default(); pools],
        taken: vec![0; pools + 1],
        window: HostWindow::default(),
        ended: true,
    };
    let Ok(running) = state else { return report };
    if !running.world.ended() {
        running.obey(host, order);
        running.world.pass(host.plan.quantum);
        report.window = running.count_window(host, order);
    }
    let world = &running.world;
    report.taken = running.account.used_pages();
    report.ended = world.ended() || world.memory.refused > 0 || world.lacks_memory();
    let behind = world.engine().lockstep().start() < world.now().0 * PS;
    if !report.ended && behind {
        *state = Err(SimError::Inconsistent("the program came to a halt".to_owned()));
        report.ended = true;
    } else if !world.ended() {
        let demand = |pool| world.engine().bus_demand(host.local_nodes + pool);
        report.demands = (0..pools).map(demand).collect();
    }
    report
}

impl RunningHost {
    /// Sets what the order says of the next window.
    fn obey(&mut self, host: &HostPlan, order: &WindowOrder) {
        self.account.set_limits(&order.limits);
        self.account.set_manager_wait(order.queues.manager_wait_ps);
        self.account.set_waits(&order.queues.waits_ps);
        for (pool, rivals) in order.rivals.iter().enumerate() {
            let node = host.local_nodes + pool;
            let used = self.world.engine().bus_demand(node).parts;
            self.world.set_bus_rivals(node, *rivals);
            let wait_ps = order.queues.waits_ps.get(pool).copied().unwrap_or_default();
            self.world.set_queue_delay(node, wait_ps);
            // A limit is a share of the last window's bytes, of which the bus knows its own part.
            let limit = order.queues.limits.get(pool).copied().flatten();
            let parts = limit
                .map_or(u64::MAX, |limit| used.max(1).saturating_mul(limit).div_ceil(SAME_TRAFFIC));
            self.world.set_bus_limit(node, parts);
        }
    }

    /// What the host did in the window that has just passed.
    fn count_window(&mut self, host: &HostPlan, order: &WindowOrder) -> HostWindow {
        let engine = self.world.engine();
        let mut bytes = Vec::with_capacity(self.bytes.len());
        for (pool, before) in self.bytes.iter_mut().enumerate() {
            let now = engine.bus_bytes(host.local_nodes + pool);
            let moved =
                BusBytes { read: now.read - before.read, written: now.written - before.written };
            let wait_ps = order.queues.waits_ps.get(pool).copied().unwrap_or_default();
            self.waited_ps[pool] += u128::from(wait_ps) * u128::from(moved.read);
            *before = now;
            bytes.push(moved);
        }
        let frames: u64 = self.account.used_pages()[1..].iter().sum();
        let got = frames - std::mem::replace(&mut self.frames, frames);
        HostWindow { bytes, frames: got }
    }
}

fn sum_up(host: &HostPlan, running: &mut RunningHost) -> Result<HostOutcome, SimError> {
    let RunningHost { world, account, bytes, waited_ps, .. } = running;
    let name = policy_name(host);
    let (span, counters) = world.measured.result().unwrap_or((Nanos::ZERO, world.counters()));
    if world.memory.refused > 0 {
        // Local memory and what other hosts left of the pools: an operating system would end it.
        let have = Bytes(account.used_pages().iter().sum::<u64>() * PAGE);
        let need = Bytes(have.get() + world.memory.refused * PAGE);
        let (machine, input) = (host.plan.machine.name.clone(), host.plan.input.to_string());
        return Err(SimError::TooSmall { machine, input, have, need });
    }
    let run = conclude(&host.plan, &Contender::Custom(name.to_owned()), world)?;
    let cycles = span.get() as f64 * f64::from(host.clock_mhz) / 1000.0;
    let misses = counters.llc_misses();
    let local = host.local_nodes;
    let sum = |by_node: &[u64], pool: usize| match pool {
        0 => by_node[..local].iter().sum(),
        _ => by_node[local + pool - 1],
    };
    let mean_wait_ns = |pool: usize| match pool {
        0 => 0.0,
        _ => waited_ps[pool - 1] as f64 / (bytes[pool - 1].read as f64).max(1.0) / PS as f64,
    };
    let traffic = |(pool, frames): (usize, u64)| PoolTraffic {
        frames,
        accesses: sum(&misses, pool),
        read_bytes: sum(&counters.read_bytes, pool),
        write_bytes: sum(&counters.write_bytes, pool),
        mean_wait_ns: mean_wait_ns(pool),
    };
    Ok(HostOutcome {
        host: host.name.clone(),
        instructions: counters.instructions,
        ipc: counters.instructions as f64 / (cycles * host.busy_cores() as f64).max(1.0),
        pools: account.used_pages().into_iter().enumerate().map(traffic).collect(),
        run,
    })
}

/// The name of the host's policy.
fn policy_name(host: &HostPlan) -> &'static str {
    let named = crate::AllocationPolicy::NAMED.iter().find(|(_, policy)| *policy == host.policy);
    named.map_or("1:N", |(name, _)| name)
}
