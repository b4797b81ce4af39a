//! All hosts of a system side by side.
//!
//! Time passes in windows, one quantum of `terrace-sim` long. In a window each host runs by itself;
//! when it ends the hosts learn how busy the others kept each pool, and how many frames are left.
//! So what a host sees of another is one window old, and results are the same for any number of
//! threads.

use crate::host::{FrameAccount, HostPlan};
use crate::PoolError;
use serde::Serialize;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use terrace_model::channel::BusDemand;
use terrace_sim::build::{FirstTouchPlacement, MachineMode};
use terrace_sim::world::World;
use terrace_sim::{conclude, SimError, SimRun};
use terrace_types::{Bytes, Nanos};

const PAGE: u64 = 4096;
/// Picoseconds in a nanosecond.
const PS: u64 = 1000;

/// What a host did with one pool, or with its local memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PoolTraffic {
    /// Frames that it got.
    pub frames: u64,
    /// Misses of its last-level cache that went there.
    pub accesses: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
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
}

/// What a host reports when a window ends.
#[derive(Debug, Clone)]
struct WindowReport {
    host: usize,
    demands: Vec<BusDemand>,
    taken: Vec<u64>,
    ended: bool,
}

/// Runs all hosts to their ends on `threads` threads; outcomes in the order of hosts.
///
/// # Errors
/// [`PoolError::Host`], of the first host in order that failed, when all others have ended.
pub fn simulate_system(hosts: &[HostPlan], threads: usize) -> Result<Vec<HostOutcome>, PoolError> {
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
        coordinate(hosts, &orders_to, &reports);
        // Without orders the threads conclude.
        drop(orders_to);
        for thread in running {
            for (host, outcome) in thread.join().unwrap_or_default() {
                outcomes[host] = Some(outcome);
            }
        }
    });
    outcomes.into_iter().map(|outcome| outcome.unwrap_or(Err(PoolError::ThreadLost))).collect()
}

/// Window after window, until all hosts have ended or a thread is lost.
fn coordinate(
    hosts: &[HostPlan],
    orders_to: &[Sender<Arc<Vec<WindowOrder>>>],
    reports: &Receiver<Vec<WindowReport>>,
) {
    let Some(first) = hosts.first() else { return };
    let pools = first.local_nodes..first.plan.machine.nodes.len();
    let capacities: Vec<u64> = pools.map(|node| first.plan.usable(node) / PAGE).collect();
    let mut state: Vec<WindowReport> = (0..hosts.len())
        .map(|host| WindowReport {
            host,
            demands: vec![BusDemand::default(); capacities.len()],
            taken: vec![0; capacities.len() + 1],
            ended: false,
        })
        .collect();
    while state.iter().any(|report| !report.ended) {
        let orders = Arc::new(give_orders(&state, &capacities));
        if orders_to.iter().any(|to| to.send(orders.clone()).is_err()) {
            return;
        }
        for _ in orders_to {
            let Ok(reported) = reports.recv() else { return };
            for report in reported {
                let host = report.host;
                state[host] = report;
            }
        }
    }
}

/// What each host is told. Frames that are left in a pool are divided among the hosts that run.
fn give_orders(state: &[WindowReport], capacities: &[u64]) -> Vec<WindowOrder> {
    let mut orders = vec![WindowOrder::default(); state.len()];
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
type HostState = Result<(World, FrameAccount), SimError>;

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
        let outcome = state.and_then(|(mut world, account)| sum_up(plan, &mut world, &account));
        (*host, outcome.map_err(|why| PoolError::Host { host: plan.name.clone(), why }))
    };
    mine.iter().zip(states).map(conclude_one).collect()
}

fn start_host(host: &HostPlan) -> HostState {
    let mut world = host.plan.world(MachineMode::Plain, FirstTouchPlacement::Nearest)?;
    let account = host.frame_account();
    world.memory.choose_births(Box::new(account.clone()));
    Ok((world, account))
}

fn run_window(
    host: &HostPlan,
    index: usize,
    state: &mut HostState,
    order: &WindowOrder,
) -> WindowReport {
    let pools = order.limits.len();
    let idle = || vec![BusDemand::default(); pools];
    let Ok((world, account)) = state else {
        return WindowReport {
            host: index,
            demands: idle(),
            taken: vec![0; pools + 1],
            ended: true,
        };
    };
    if !world.ended() {
        account.set_limits(&order.limits);
        for (pool, rivals) in order.rivals.iter().enumerate() {
            world.set_bus_rivals(host.local_nodes + pool, *rivals);
        }
        world.pass(host.plan.quantum);
    }
    let demands = match world.ended() {
        true => idle(),
        false => (0..pools).map(|p| world.engine().bus_demand(host.local_nodes + p)).collect(),
    };
    let taken = account.taken();
    let ended = world.ended() || world.memory.refused > 0 || world.lacks_memory();
    let behind = world.engine().lockstep().start() < world.now().0 * PS;
    if !ended && behind {
        *state = Err(SimError::Wrong("the program came to a halt".to_owned()));
        return WindowReport { host: index, demands: idle(), taken, ended: true };
    }
    WindowReport { host: index, demands, taken, ended }
}

fn sum_up(
    host: &HostPlan,
    world: &mut World,
    account: &FrameAccount,
) -> Result<HostOutcome, SimError> {
    let name = policy_name(host);
    let (span, counters) = world.measured.result().unwrap_or((Nanos::ZERO, world.counters()));
    if world.memory.refused > 0 {
        // Local memory and what other hosts left of the pools: an operating system would end it.
        let have = Bytes(account.taken().iter().sum::<u64>() * PAGE);
        let need = Bytes(have.get() + world.memory.refused * PAGE);
        let (machine, input) = (host.plan.machine.name.clone(), host.plan.input.to_string());
        return Err(SimError::TooSmall { machine, input, have, need });
    }
    let run = conclude(&host.plan, name, world)?;
    let cycles = span.get() as f64 * f64::from(host.clock_mhz) / 1000.0;
    let misses = counters.llc_misses();
    let local = host.local_nodes;
    let sum = |by_node: &[u64], pool: usize| match pool {
        0 => by_node[..local].iter().sum(),
        _ => by_node[local + pool - 1],
    };
    let traffic = |(pool, frames): (usize, u64)| PoolTraffic {
        frames,
        accesses: sum(&misses, pool),
        read_bytes: sum(&counters.read_bytes, pool),
        write_bytes: sum(&counters.write_bytes, pool),
    };
    Ok(HostOutcome {
        host: host.name.clone(),
        instructions: counters.instructions,
        ipc: counters.instructions as f64 / (cycles * host.busy_cores() as f64).max(1.0),
        pools: account.taken().into_iter().enumerate().map(traffic).collect(),
        run,
    })
}

/// The name of the host's policy.
fn policy_name(host: &HostPlan) -> &'static str {
    let named = crate::AllocationPolicy::NAMED.iter().find(|(_, policy)| *policy == host.policy);
    named.map_or("1:N", |(name, _)| name)
}
