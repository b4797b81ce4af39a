//! Runs a program on a machine: nodelets side by side in windows, messages in between.

use crate::code::{CodeAddress, MachineCode, REGISTERS};
use crate::counters::{MigratoryCounters, NodeletSample};
use crate::machine::MigratoryMachine;
use crate::memory::{MemoryImage, MemoryMap};
use crate::nodelet::{Costs, Environment, Message, Nodelet, Payload};
use crate::thread::ThreadContext;
use crate::MigratoryError;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard};
use terrace_fabric::{
    FabricDelivery, FabricMessage, FabricQueues, FabricTopology, LinkDescription, ServiceOrder,
    TrafficClass, VertexDescription, VertexId, VertexKind,
};
use terrace_types::Nanos;

/// Samples of queues over time at most; twice as many are merged by pairs.
const SAMPLES: usize = 128;
/// What a round's begin is where there is no further one.
const STOP: u64 = u64::MAX;

/// What a run is bounded by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulationLimits {
    /// Host threads; the result does not depend on it.
    pub host_threads: u32,
    /// Instructions, of all simulated threads.
    pub instructions: u64,
}

impl Default for SimulationLimits {
    fn default() -> Self {
        Self { host_threads: 1, instructions: u64::MAX }
    }
}

/// Runs `code` from its first instruction on nodelet 0, over `memory`, which it changes.
///
/// # Errors
/// [`MigratoryError`]: memory that does not fit, a fault, a limit.
pub fn simulate(
    machine: &MigratoryMachine,
    map: &MemoryMap,
    code: &MachineCode,
    memory: &mut MemoryImage,
    limits: SimulationLimits,
) -> Result<MigratoryCounters, MigratoryError> {
    machine.check()?;
    map.check(machine)?;
    if !code.is_valid() {
        let why = "a register or a target is out of range".to_owned();
        return Err(MigratoryError::Fault { instruction: 0, line: 0, why });
    }
    let environment = Environment { costs: Costs::new(machine), map, code };
    let nodelets: Vec<Mutex<Nodelet>> = std::mem::take(&mut memory.nodelets)
        .into_iter()
        .enumerate()
        .map(|(index, words)| {
            let (count, instructions) = (map.nodelets(), code.instructions().len());
            Mutex::new(Nodelet::new(index as u32, count, words, instructions))
        })
        .collect();
    lock(&nodelets[0]).begin(ThreadContext::new(CodeAddress(0), [0; REGISTERS], None));
    let mut exchange = Exchange::new(machine, limits.instructions)?;
    let workers = limits.host_threads.clamp(1, map.nodelets()) as usize;
    let outcome = run(&nodelets, &environment, &mut exchange, workers);
    let nodelets = nodelets.into_iter().map(|n| n.into_inner().unwrap_or_else(|e| e.into_inner()));
    let mut counters = exchange.counters();
    counters.migrations_at = vec![0; code.instructions().len()];
    counters.remote_at = vec![0; code.instructions().len()];
    for nodelet in nodelets {
        memory.nodelets.push(nodelet.memory);
        counters.nodelets.push(nodelet.counters);
        add(&mut counters.migrations_at, &nodelet.migrations_at);
        add(&mut counters.remote_at, &nodelet.remote_at);
    }
    counters.elapsed_ps = outcome?;
    Ok(counters)
}

fn add(sums: &mut [u64], counts: &[u64]) {
    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
}

fn lock(nodelet: &Mutex<Nodelet>) -> MutexGuard<'_, Nodelet> {
    nodelet.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Windows until the program ends; when that is.
fn run(
    nodelets: &[Mutex<Nodelet>],
    environment: &Environment,
    exchange: &mut Exchange,
    workers: usize,
) -> Result<u64, MigratoryError> {
    if workers == 1 {
        loop {
            let begin_ps = match exchange.next(nodelets)? {
                Round::Window(begin_ps) => begin_ps,
                Round::Finished(finished_ps) => return Ok(finished_ps),
            };
            for nodelet in nodelets {
                lock(nodelet).run_window(begin_ps, environment);
            }
        }
    }
    let barrier = Barrier::new(workers);
    let round = AtomicU64::new(STOP);
    std::thread::scope(|scope| {
        for worker in 1..workers {
            let (barrier, round) = (&barrier, &round);
            scope.spawn(move || loop {
                barrier.wait();
                let begin_ps = round.load(Ordering::SeqCst);
                if begin_ps == STOP {
                    return;
                }
                run_share(nodelets, environment, worker, workers, begin_ps);
                barrier.wait();
            });
        }
        loop {
            let next = exchange.next(nodelets);
            let begin_ps = match next {
                Ok(Round::Window(begin_ps)) => begin_ps,
                _ => STOP,
            };
            round.store(begin_ps, Ordering::SeqCst);
            barrier.wait();
            match next {
                Ok(Round::Window(_)) => {}
                Ok(Round::Finished(finished_ps)) => return Ok(finished_ps),
                Err(error) => return Err(error),
            }
            run_share(nodelets, environment, 0, workers, begin_ps);
            barrier.wait();
        }
    })
}

fn run_share(
    nodelets: &[Mutex<Nodelet>],
    environment: &Environment,
    worker: usize,
    workers: usize,
    begin_ps: u64,
) {
    for nodelet in nodelets.iter().skip(worker).step_by(workers) {
        lock(nodelet).run_window(begin_ps, environment);
    }
}

/// What comes next.
enum Round {
    /// A window that begins at this time, picoseconds.
    Window(u64),
    /// The program ended at this time, picoseconds.
    Finished(u64),
}

/// Takes messages from nodelet to nodelet between windows.
struct Exchange {
    window_ps: u64,
    nodelets_per_node: u32,
    context_bytes: u64,
    packet_bytes: u64,
    network: Option<Network>,
    most_instructions: u64,
    samples: Samples,
    last_ps: u64,
}

struct Network {
    fabric: FabricQueues,
    vertices: Vec<VertexId>,
    in_flight: HashMap<u64, Message>,
    next_id: u64,
    deliveries: Vec<FabricDelivery>,
}

impl Exchange {
    fn new(machine: &MigratoryMachine, most_instructions: u64) -> Result<Self, MigratoryError> {
        let network = if machine.nodes > 1 { Some(Network::new(machine)?) } else { None };
        Ok(Self {
            window_ps: machine.window_ps(),
            nodelets_per_node: machine.nodelets_per_node,
            context_bytes: machine.context.get(),
            packet_bytes: machine.packet.get(),
            network,
            most_instructions,
            samples: Samples::new(machine.window_ps()),
            last_ps: 0,
        })
    }

    fn next(&mut self, nodelets: &[Mutex<Nodelet>]) -> Result<Round, MigratoryError> {
        let mut guards: Vec<MutexGuard<Nodelet>> = nodelets.iter().map(lock).collect();
        let mut instructions = 0;
        let mut messages = Vec::new();
        for nodelet in &mut guards {
            if let Some(error) = nodelet.failure.take() {
                return Err(error);
            }
            if let Some(finished_ps) = nodelet.finished_ps {
                return Ok(Round::Finished(finished_ps));
            }
            instructions += nodelet.counters.instructions;
            messages.append(&mut nodelet.outbox);
        }
        if instructions > self.most_instructions {
            return Err(MigratoryError::Unfinished { instructions });
        }
        for message in messages {
            self.dispatch(message, &mut guards)?;
        }
        self.take_deliveries(&mut guards);
        self.samples.record(&guards, self.last_ps);
        let network = self.network.as_ref().and_then(|network| network.fabric.next_event_ps());
        let nodelets = guards.iter().filter_map(|nodelet| nodelet.next_ps()).min();
        let Some(next_ps) = [network, nodelets].into_iter().flatten().min() else {
            return Err(MigratoryError::Deadlock { now_ps: self.last_ps });
        };
        let begin_ps = (next_ps / self.window_ps * self.window_ps).max(self.last_ps);
        self.last_ps = begin_ps + self.window_ps;
        Ok(Round::Window(begin_ps))
    }

    fn dispatch(
        &mut self,
        message: Message,
        nodelets: &mut [MutexGuard<Nodelet>],
    ) -> Result<(), MigratoryError> {
        let nodes = [message.from, message.to].map(|n| n / self.nodelets_per_node);
        let Some(network) = self.network.as_mut().filter(|_| nodes[0] != nodes[1]) else {
            nodelets[message.to as usize].pending.push(message);
            return Ok(());
        };
        let bytes = match message.payload {
            Payload::Thread { .. } => self.context_bytes,
            _ => self.packet_bytes,
        };
        let [from, to] = nodes.map(|node| network.vertices[node as usize]);
        let id = network.next_id;
        network.next_id += 1;
        let carried = FabricMessage { id, class: TrafficClass(0), from, to, bytes };
        network.fabric.submit(carried, message.departs_ps.max(network.fabric.now_ps()))?;
        network.in_flight.insert(id, message);
        Ok(())
    }

    /// Messages that have crossed the network still have the way to their nodelet before them.
    fn take_deliveries(&mut self, nodelets: &mut [MutexGuard<Nodelet>]) {
        let Some(network) = self.network.as_mut() else { return };
        network.fabric.advance(self.last_ps, &mut network.deliveries);
        for delivery in network.deliveries.drain(..) {
            if let Some(mut message) = network.in_flight.remove(&delivery.message.id) {
                let within_ps = message.arrives_ps - message.departs_ps;
                message.arrives_ps = delivery.arrived_ps + within_ps;
                nodelets[message.to as usize].pending.push(message);
            }
        }
    }

    fn counters(&self) -> MigratoryCounters {
        MigratoryCounters {
            sample_ps: self.samples.bucket_ps,
            samples: self.samples.means(),
            ..MigratoryCounters::default()
        }
    }
}

impl Network {
    /// A star: the nodes around one switch.
    fn new(machine: &MigratoryMachine) -> Result<Self, MigratoryError> {
        let switch = "switch".to_owned();
        let kind = VertexKind::Switch { latency: Nanos(0), bandwidth: None };
        let mut vertices = vec![VertexDescription { name: switch.clone(), kind }];
        let mut links = Vec::new();
        for node in 0..machine.nodes {
            let name = format!("node{node}");
            vertices.push(VertexDescription { name: name.clone(), kind: VertexKind::Endpoint });
            links.push(LinkDescription {
                ends: [name, switch.clone()],
                latency: machine.network_latency,
                bandwidth: Some(machine.network_bandwidth),
            });
        }
        let topology = FabricTopology::new(vertices, links)?;
        let vertices = topology.endpoints().collect();
        let fabric = FabricQueues::new(topology, ServiceOrder::FirstCome, Vec::new())?;
        let (in_flight, deliveries) = (HashMap::new(), Vec::new());
        Ok(Self { fabric, vertices, in_flight, next_id: 0, deliveries })
    }
}

/// Queue lengths over time, in intervals that double when there are too many of them.
struct Samples {
    window_ps: u64,
    bucket_ps: u64,
    /// By interval: sums over its windows by nodelet.
    sums: Vec<Vec<NodeletSample>>,
}

impl Samples {
    fn new(window_ps: u64) -> Self {
        Self { window_ps, bucket_ps: window_ps, sums: Vec::new() }
    }

    fn record(&mut self, nodelets: &[MutexGuard<Nodelet>], end_ps: u64) {
        if end_ps == 0 {
            return;
        }
        let begin_ps = end_ps - self.window_ps;
        while (begin_ps / self.bucket_ps) as usize >= 2 * SAMPLES {
            self.merge();
        }
        let bucket = (begin_ps / self.bucket_ps) as usize;
        while self.sums.len() <= bucket {
            self.sums.push(vec![NodeletSample::default(); nodelets.len()]);
        }
        for (sum, nodelet) in self.sums[bucket].iter_mut().zip(nodelets) {
            let queues = nodelet.queues();
            sum.threads += queues.threads as f64;
            sum.runnable += queues.runnable as f64;
            sum.arrivals += queues.arrivals as f64;
            sum.departures += queues.departures as f64;
        }
    }

    fn merge(&mut self) {
        self.bucket_ps *= 2;
        let sums = std::mem::take(&mut self.sums);
        for pair in sums.chunks(2) {
            let mut merged = pair[0].clone();
            for (sum, more) in merged.iter_mut().zip(pair.get(1).into_iter().flatten()) {
                sum.threads += more.threads;
                sum.runnable += more.runnable;
                sum.arrivals += more.arrivals;
                sum.departures += more.departures;
            }
            self.sums.push(merged);
        }
    }

    /// Means: windows in which nothing happened count as empty.
    fn means(&self) -> Vec<Vec<NodeletSample>> {
        let windows = (self.bucket_ps / self.window_ps) as f64;
        let mean = |sum: &NodeletSample| NodeletSample {
            threads: sum.threads / windows,
            runnable: sum.runnable / windows,
            arrivals: sum.arrivals / windows,
            departures: sum.departures / windows,
        };
        self.sums.iter().map(|sums| sums.iter().map(mean).collect()).collect()
    }
}
