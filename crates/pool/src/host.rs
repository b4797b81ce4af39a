//! A host: its machine with the pools as nodes of memory, and the account of its frames.

use crate::allocation::{AllocationPolicy, AllocationSequence, PlaceFigures};
use crate::system::{PoolDescription, SystemDescription};
use crate::PoolError;
use std::cell::RefCell;
use std::rc::Rc;
use terrace_fabric::FabricTopology;
use terrace_machine::{Energy, Evidence, Figure, Link, Machine, MemoryKind, Node, MODELLED_LINE};
use terrace_sim::memory::FrameChooser;
use terrace_sim::{SimError, SimInput, SimSetup};
use terrace_types::{Bytes, BytesPerSec, Nanos, NodeId, Seed};

/// Picoseconds in a nanosecond.
const PS: u64 = 1000;

/// A host, its input and its policy, from which its world is made.
#[derive(Debug, Clone)]
pub struct HostPlan {
    /// Its name.
    pub name: String,
    /// Its machine, whose last nodes are the pools, and what runs on it.
    pub plan: SimSetup,
    /// Where its frames come from.
    pub policy: AllocationPolicy,
    /// Clock of its cores.
    pub clock_mhz: u32,
    /// What a frame of a pool costs beside the page fault: to the manager and back.
    pub manager_round_trip: Nanos,
    /// Nodes of local memory; those of pools follow.
    pub local_nodes: usize,
    /// Its part of a full link against the weights of others.
    pub weight: u32,
    /// Seed of its policy.
    pub seed: Seed,
}

impl HostPlan {
    /// The hosts of `system`, each with its machine and input: `machines` are those of the groups
    /// of hosts, `inputs` one for each host, or one for all, of which workloads get different
    /// seeds.
    ///
    /// # Errors
    /// [`PoolError`]: a host without local memory or without a way to a pool, an input that does
    /// not go with the machine, another number of inputs.
    pub fn of_system(
        system: &SystemDescription,
        file: &str,
        machines: &[Machine],
        inputs: &[SimInput],
        seed: Seed,
    ) -> Result<Vec<Self>, PoolError> {
        let (pools, fabric) = (system.list_pools(file)?, system.fabric(file)?);
        let hosts: Vec<_> = system.list_hosts().collect();
        let wrong = |key: String, why: String| PoolError::Value {
            file: file.to_owned(),
            line: None,
            key,
            why,
        };
        if inputs.len() != 1 && inputs.len() != hosts.len() {
            let why =
                format!("{} inputs; give one, or one for each of {}", inputs.len(), hosts.len());
            return Err(wrong("hosts".to_owned(), why));
        }
        let mut plans = Vec::with_capacity(hosts.len());
        for (index, (name, group)) in hosts.into_iter().enumerate() {
            let base = system.hosts.iter().position(|g| g.name == group.name);
            let Some(base) = base.and_then(|at| machines.get(at)) else {
                let why = "has no machine; give one for each group".to_owned();
                return Err(wrong(format!("host {:?}, machine", group.name), why));
            };
            let (machine, local_nodes) = join_pools(base, &name, &pools, &fabric)
                .map_err(|why| wrong(format!("host {name:?}"), why))?;
            let mut input = inputs.get(index).or(inputs.first()).cloned();
            if let (1, Some(SimInput::Workload(spec))) = (inputs.len(), &mut input) {
                spec.seed = spec.seed.wrapping_add(index as u64);
            }
            let plan = input.map(|input| SimSetup::from_machine(&machine, input));
            let missing = || Err(SimError::Inconsistent("no input".to_owned()));
            let plan = plan
                .unwrap_or_else(missing)
                .map_err(|why| PoolError::Host { host: name.clone(), why })?;
            plans.push(Self {
                name,
                plan,
                policy: AllocationPolicy::from_name(&group.policy)?,
                clock_mhz: group.clock_mhz,
                manager_round_trip: Nanos(2 * system.manager.latency_ns),
                local_nodes,
                weight: group.weight,
                seed: Seed(seed.0.wrapping_add(index as u64)),
            });
        }
        Ok(plans)
    }

    /// Threads of the input that run at a time.
    #[must_use]
    pub fn busy_cores(&self) -> usize {
        let cpus: usize = self.plan.machine.nodes.iter().map(|node| node.cpus.len()).sum();
        let threads = match &self.plan.input {
            SimInput::Workload(spec) => spec.threads as usize,
            SimInput::Recording { recording, .. } => recording.threads(),
        };
        threads.clamp(1, cpus.max(1))
    }

    /// Local memory, all its nodes together, then each pool, as the first node with CPUs sees them.
    fn place_figures(&self) -> Vec<PlaceFigures> {
        let machine = &self.plan.machine;
        let Some(initiator) = machine.nodes.first().map(|node| node.id) else { return Vec::new() };
        let of = |node: &Node| {
            let link = machine.link(initiator, node.id);
            PlaceFigures {
                bandwidth: link.and_then(|l| l.read_bandwidth).map_or(1, |f| f.value.get()),
                latency_ps: link.and_then(|l| l.read_latency).map_or(1, |f| f.value.get() * PS),
            }
        };
        let local = machine.nodes[..self.local_nodes].iter().map(of).reduce(|a, b| PlaceFigures {
            bandwidth: a.bandwidth + b.bandwidth,
            latency_ps: a.latency_ps.min(b.latency_ps),
        });
        local.into_iter().chain(machine.nodes[self.local_nodes..].iter().map(of)).collect()
    }

    pub(crate) fn frame_account(&self) -> FrameAccount {
        let usable = |range: std::ops::Range<usize>| -> u64 {
            range.map(|node| self.plan.usable(node)).sum()
        };
        let nodes = self.plan.machine.nodes.len();
        let (local, shared) = (usable(0..self.local_nodes), usable(self.local_nodes..nodes));
        let pools = nodes - self.local_nodes;
        let places = self.place_figures();
        let sequence =
            AllocationSequence::new(self.policy, places, Bytes(local), Bytes(shared), self.seed);
        FrameAccount(Rc::new(RefCell::new(FrameCounts {
            sequence,
            local_nodes: self.local_nodes,
            taken: vec![0; pools + 1],
            limits: vec![0; pools],
            manager_ps: self.manager_round_trip.get() * PS,
            manager_wait_ps: 0,
        })))
    }
}

/// The host's own machine without memory that has no CPUs, and every pool as one more node.
fn join_pools(
    base: &Machine,
    host: &str,
    pools: &[PoolDescription],
    fabric: &FabricTopology,
) -> Result<(Machine, usize), String> {
    let mut machine = base.clone();
    machine.nodes.retain(|node| !node.cpus.is_empty());
    let local: Vec<NodeId> = machine.nodes.iter().map(|node| node.id).collect();
    machine.links.retain(|link| local.contains(&link.initiator) && local.contains(&link.target));
    let usable = |node: &Node| node.capacity.saturating_sub(node.reserved).get();
    if machine.nodes.iter().map(usable).sum::<u64>() == 0 {
        return Err(format!("machine {} has no local memory; give one that has some", base.name));
    }
    let first = local.iter().map(|id| id.0).max().map_or(0, |id| id + 1);
    let from = fabric.find(host).ok_or("is not in the fabric")?;
    for (index, pool) in pools.iter().enumerate() {
        let to = fabric.find(&pool.name).ok_or_else(|| format!("{} has no link", pool.name))?;
        let there = fabric.latency_ps(from, to).map_err(|e| e.to_string())?;
        let back = fabric.latency_ps(to, from).map_err(|e| e.to_string())?;
        let fabric_ns = (there + back).div_ceil(PS);
        let id = NodeId(first + index as u16);
        machine.nodes.push(Node {
            id,
            kind: MemoryKind::Remote,
            cpus: Vec::new(),
            capacity: pool.capacity,
            reserved: Bytes::ZERO,
            in_use: Bytes::ZERO,
            block: MODELLED_LINE,
            package: None,
            energy: Energy::default(),
        });
        let latency = |medium: Nanos| Some(configured(Nanos(medium.get() + fabric_ns)));
        // What links leave of it is found window by window.
        let bandwidth = |medium: BytesPerSec| Some(configured(medium));
        machine.links.extend(local.iter().map(|initiator| Link {
            read_latency: latency(pool.read),
            write_latency: latency(pool.write),
            read_bandwidth: bandwidth(pool.read_bandwidth),
            write_bandwidth: bandwidth(pool.write_bandwidth),
            ..Link::unknown(*initiator, id)
        }));
    }
    Ok((machine, local.len()))
}

fn configured<T>(value: T) -> Figure<T> {
    Figure { value, evidence: Evidence::Config }
}

#[derive(Debug)]
struct FrameCounts {
    sequence: AllocationSequence,
    local_nodes: usize,
    /// Frames taken by pool, first of local memory.
    taken: Vec<u64>,
    /// Frames of each shared pool that this host may have until the window ends.
    limits: Vec<u64>,
    manager_ps: u64,
    manager_wait_ps: u64,
}

/// Which frames a host has, and which it gets next; shared by its world and by whoever runs it.
#[derive(Debug, Clone)]
pub(crate) struct FrameAccount(Rc<RefCell<FrameCounts>>);

impl FrameAccount {
    /// Frames taken by pool, first of local memory.
    pub fn used_pages(&self) -> Vec<u64> {
        self.0.borrow().taken.clone()
    }

    /// Misses wait so long on the way to each pool and in it from now on, picoseconds.
    pub fn set_waits(&self, waits_ps: &[u64]) {
        self.0.borrow_mut().sequence.set_waits(waits_ps);
    }

    /// A request waits so long for the manager from now on, picoseconds.
    pub fn set_manager_wait(&self, wait_ps: u64) {
        self.0.borrow_mut().manager_wait_ps = wait_ps;
    }

    /// The host may have so many frames of each shared pool from now on.
    pub fn set_limits(&self, limits: &[u64]) {
        self.0.borrow_mut().limits.copy_from_slice(limits);
    }
}

impl FrameChooser for FrameAccount {
    fn choose_nodes(&mut self, home: usize) -> Vec<usize> {
        let mut counts = self.0.borrow_mut();
        let local = counts.local_nodes;
        let mut nodes = Vec::with_capacity(local + counts.limits.len());
        for pool in counts.sequence.next_order() {
            if pool == 0 {
                nodes.push(home);
                nodes.extend((0..local).filter(|node| *node != home));
            } else if counts.taken[pool] < counts.limits[pool - 1] {
                nodes.push(local + pool - 1);
            }
        }
        nodes
    }

    fn count_taken(&mut self, node: usize, frames: u64) -> u64 {
        let mut counts = self.0.borrow_mut();
        let pool = (node + 1).saturating_sub(counts.local_nodes);
        counts.taken[pool] += frames;
        // The host's own kernel has local memory; a frame of a pool is the manager's to give.
        if pool > 0 {
            counts.manager_ps + counts.manager_wait_ps
        } else {
            0
        }
    }
}
