//! A host: its machine with the pools as nodes of memory, and the account of its frames.

use crate::account::{FrameAccount, SharedRange};
use crate::allocation::{AllocationPolicy, AllocationSequence, PlaceFigures};
use crate::manager::{ManagerError, MemoryManager};
use crate::system::{
    AccessDescription, AccessScheme, HostGroup, PoolDescription, ShootdownChoice, SwapDescription,
    SystemDescription,
};
use crate::PoolError;
use std::collections::HashSet;
use terrace_fabric::FabricTopology;
use terrace_machine::{Energy, Evidence, Figure, Link, Machine, MemoryKind, Node, MODELLED_LINE};
use terrace_model::TranslationUnit;
use terrace_sim::feed::BASE;
use terrace_sim::memory::SwapCosts;
use terrace_sim::recording::FIRST;
use terrace_sim::world::ShootdownMode;
use terrace_sim::{profile_misses, SimError, SimInput, SimSetup};
use terrace_types::{Bytes, BytesPerSec, Contender, Nanos, NodeId, PolicyId, Seed};

/// Picoseconds in a nanosecond.
const PS: u64 = 1000;
const PAGE: u64 = 4096;
/// Steps of a walk of a system page table of four levels.
const DEFAULT_STEPS: u32 = 4;

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
    /// Policy that moves its pages.
    pub placement: PolicyId,
    /// How translations of pages that move are dropped.
    pub shootdowns: ShootdownMode,
    /// Its translation unit, where it has one.
    pub translation: Option<TranslationUnit>,
    /// Its pages that belong to files of the pools, and where those lie.
    pub(crate) shared_pages: Vec<SharedRange>,
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
        Self::with_manager(system, file, machines, inputs, seed).map(|(plans, _)| plans)
    }

    /// The same, and the manager with what it has given out before anything runs: files.
    pub(crate) fn with_manager(
        system: &SystemDescription,
        file: &str,
        machines: &[Machine],
        inputs: &[SimInput],
        seed: Seed,
    ) -> Result<(Vec<Self>, MemoryManager), PoolError> {
        let (mut pools, fabric) = (system.list_pools(file)?, system.fabric(file)?);
        for pool in &mut pools {
            pool.check_ns = system.access.as_ref().and_then(|access| access.check_ns).unwrap_or(0);
        }
        let hosts: Vec<_> = system.list_hosts().collect();
        if inputs.len() != 1 && inputs.len() != hosts.len() {
            let why =
                format!("{} inputs; give one, or one for each of {}", inputs.len(), hosts.len());
            return Err(wrong_value(file, "hosts".to_owned(), why));
        }
        let capacities: Vec<u64> = pools.iter().map(|pool| pool.capacity.get() / PAGE).collect();
        let manager = MemoryManager::new(&capacities, hosts.len());
        let mut planner = HostPlanner { system, file, pools, fabric, manager, seed };
        let mut plans = Vec::with_capacity(hosts.len());
        for (index, (name, group)) in hosts.into_iter().enumerate() {
            let base = system.hosts.iter().position(|g| g.name == group.name);
            let Some(base) = base.and_then(|at| machines.get(at)) else {
                let key = format!("host {:?}, machine", group.name);
                let why = "has no machine; give one for each group".to_owned();
                return Err(wrong_value(file, key, why));
            };
            let mut input = inputs.get(index).or(inputs.first()).cloned();
            if let (1, Some(SimInput::Workload(spec))) = (inputs.len(), &mut input) {
                spec.seed = spec.seed.wrapping_add(index as u64);
            }
            plans.push(planner.plan_host(index, name, group, base, input)?);
        }
        Ok((plans, planner.manager))
    }

    /// Pools that it sees.
    pub(crate) fn pool_count(&self) -> usize {
        self.plan.machine.nodes.len() - self.local_nodes
    }

    /// The name of its allocation policy.
    pub(crate) fn policy_name(&self) -> &'static str {
        let named = AllocationPolicy::NAMED.iter().find(|(_, policy)| *policy == self.policy);
        named.map_or("1:N", |(name, _)| name)
    }

    /// What its result is called.
    pub(crate) fn contender(&self) -> Contender {
        Contender::Custom(self.policy_name().to_owned())
    }

    /// Whether a policy moves its pages: it has one, and there is where to move them.
    pub(crate) fn is_managed(&self) -> bool {
        self.placement != PolicyId::FirstTouch && self.plan.tiers.len() > 1
    }

    /// The name of the policy that moves its pages.
    pub(crate) fn placement_name(&self) -> Option<&'static str> {
        (self.placement != PolicyId::FirstTouch).then(|| self.placement.name())
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

    /// Its account before anything runs, and where a profile is asked for, after a run by itself.
    pub(crate) fn frame_account(&self) -> Result<FrameAccount, SimError> {
        let usable = |range: std::ops::Range<usize>| -> u64 {
            range.map(|node| self.plan.usable(node)).sum()
        };
        let nodes = self.plan.machine.nodes.len();
        let (local, shared) = (usable(0..self.local_nodes), usable(self.local_nodes..nodes));
        let places = self.place_figures();
        let sequence =
            AllocationSequence::new(self.policy, places, Bytes(local), Bytes(shared), self.seed);
        let manager_ps = self.manager_round_trip.get() * PS;
        let mut account = FrameAccount::new(sequence, self.local_nodes, manager_ps);
        account.share(self.shared_pages.clone());
        if self.policy == AllocationPolicy::ApplicationAware {
            account.prefer_local(self.find_hot_pages(local / PAGE)?);
        }
        Ok(account)
    }

    /// The pages that miss the caches most, as many as local memory has frames.
    fn find_hot_pages(&self, frames: u64) -> Result<HashSet<u64>, SimError> {
        let mut misses = profile_misses(&self.plan)?;
        misses.sort_by_key(|(vpn, m)| {
            (std::cmp::Reverse(u64::from(m.reads) + u64::from(m.writes)), *vpn)
        });
        Ok(misses.iter().take(frames as usize).map(|(vpn, _)| *vpn).collect())
    }
}

const fn shootdown_mode(choice: ShootdownChoice) -> ShootdownMode {
    match choice {
        ShootdownChoice::Batched => ShootdownMode::Batched,
        ShootdownChoice::PerPage => ShootdownMode::PerPage,
        ShootdownChoice::EarlyAcknowledge => ShootdownMode::EarlyAcknowledge,
    }
}

const fn swap_costs(swap: SwapDescription) -> SwapCosts {
    SwapCosts { read: swap.read_ns * PS, write: swap.write_ns * PS }
}

/// The translation unit of a host whose pools are the nodes from `first` on.
fn translation_unit(access: Option<&AccessDescription>, first: usize) -> Option<TranslationUnit> {
    let access = access.filter(|access| access.scheme == AccessScheme::Translation)?;
    let walk_ns = access.step_ns? * u64::from(access.steps.unwrap_or(DEFAULT_STEPS));
    let geometry = (access.entries?, access.ways?);
    TranslationUnit::new(first, geometry, access.hit_ns? * PS, walk_ns * PS).ok()
}

/// The pages of a host that belong to files.
fn map_files(
    system: &SystemDescription,
    group: &HostGroup,
    host: usize,
    input: &SimInput,
    manager: &mut MemoryManager,
) -> Result<Vec<SharedRange>, (String, ManagerError)> {
    let begin = match input {
        SimInput::Workload(_) => BASE / PAGE,
        SimInput::Recording { .. } => FIRST / PAGE,
    };
    let mut ranges = Vec::new();
    for file in &system.files {
        let Ok((offset, pages)) = file.range() else { continue };
        // Hosts do not know the addresses of frames behind a translation unit.
        let exposed = system.access.is_none_or(|a| a.scheme != AccessScheme::Translation);
        let frames = if file.may_reach(&group.name) {
            manager.map_file(file.id, pages, host)
        } else if exposed && file.trespassers.contains(&group.name) {
            manager.find_file(file.id, pages)
        } else {
            continue;
        };
        let frames = frames.map_err(|why| (format!("file \"{}\", size", file.id), why))?.to_vec();
        ranges.push(SharedRange { file: file.id, first: begin + offset, frames });
    }
    Ok(ranges)
}

/// The machine with so many of its cores, in even parts on its nodes with CPUs.
fn with_cores(base: &Machine, cores: Option<u32>) -> Result<Machine, String> {
    let mut machine = base.clone();
    let Some(cores) = cores.map(|cores| cores as usize) else { return Ok(machine) };
    let mut nodes: Vec<_> = machine.nodes.iter_mut().filter(|n| !n.cpus.is_empty()).collect();
    let all: usize = nodes.iter().map(|node| node.cpus.len()).sum();
    if cores > all || cores < nodes.len() {
        return Err(format!("{cores}; machine {} lets give {} to {all}", base.name, nodes.len()));
    }
    let count = nodes.len();
    let mut left = cores;
    for (index, node) in nodes.iter_mut().enumerate() {
        let part = left.div_ceil(count - index).min(node.cpus.len());
        node.cpus.truncate(part);
        left -= part;
    }
    Ok(machine)
}

fn wrong_value(file: &str, key: String, why: String) -> PoolError {
    PoolError::Value { file: file.to_owned(), line: None, key, why }
}

/// What the plans of hosts are made from.
struct HostPlanner<'a> {
    system: &'a SystemDescription,
    file: &'a str,
    pools: Vec<PoolDescription>,
    fabric: FabricTopology,
    manager: MemoryManager,
    seed: Seed,
}

impl HostPlanner<'_> {
    fn plan_host(
        &mut self,
        index: usize,
        name: String,
        group: &HostGroup,
        base: &Machine,
        input: Option<SimInput>,
    ) -> Result<HostPlan, PoolError> {
        let system = self.system;
        let wrong = |key: &str, why: String| {
            wrong_value(self.file, format!("host {:?}, {key}", group.name), why)
        };
        let base = with_cores(base, group.cores).map_err(|why| wrong("cores", why))?;
        let (machine, local_nodes) = join_pools(&base, &name, &self.pools, &self.fabric)
            .map_err(|why| wrong("machine", why))?;
        let plan = match input {
            Some(input) => SimSetup::from_machine(&machine, input),
            None => Err(SimError::Inconsistent("no input".to_owned())),
        };
        let mut plan = plan.map_err(|why| PoolError::Host { host: name.clone(), why })?;
        plan.quantum = Nanos(system.window_ns);
        plan.swap = group.swap.map(swap_costs);
        let placement = group.placement_policy().map_err(|why| wrong("placement", why))?;
        let shared_pages = map_files(system, group, index, &plan.input, &mut self.manager)
            .map_err(|(key, why)| wrong_value(self.file, key, why.to_string()))?;
        Ok(HostPlan {
            name,
            plan,
            policy: AllocationPolicy::from_name(&group.policy)?,
            clock_mhz: group.clock_mhz,
            manager_round_trip: Nanos(2 * system.manager.latency_ns),
            local_nodes,
            weight: group.weight,
            seed: Seed(self.seed.0.wrapping_add(index as u64)),
            placement,
            shootdowns: shootdown_mode(group.shootdowns),
            translation: translation_unit(system.access.as_ref(), local_nodes),
            shared_pages,
        })
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
        let fabric_ns = (there + back).div_ceil(PS) + pool.check_ns;
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
