//! Builds a simulated machine from a machine model and an input.

use crate::costs::{nanos, CostTable};
use crate::error::SimError;
use crate::far::SimFarMemory;
use crate::feed::{Feed, WorkloadFeed, BASE};
use crate::memory::{FirstTouch, ProgramMemory, SwapCosts};
use crate::mmu::Mmu;
use crate::percpu::ZoneLimits;
use crate::pool::FramePool;
use crate::recording::Recording;
use crate::world::World;
use std::collections::HashMap;
use std::sync::Arc;
use terrace_machine::{rank, Machine, RankAttribute};
use terrace_model::engine::Vcpu;
use terrace_model::{MemorySystem, ModelOptions, ModelParams, PS};
use terrace_policy::far::pager::PagerTuning;
use terrace_types::{Bytes, Nanos, NodeId, Vpn, VpnRange};
use terrace_workload::{DataPageSize, WorkloadSpec};

/// Length of a quantum, as the lab's plugin has it: 10 us.
const QUANTUM: Nanos = Nanos::micros(10);
/// Quantum of `MachineMode::Paged`: short against a page fault, since threads that wait for a page
/// are woken only at the start of a quantum.
const PAGED_QUANTUM: Nanos = Nanos::micros(2);
const PAGE: u64 = 4096;
const MAX_CORES: usize = 64;

/// How a machine is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MachineMode {
    /// As described in the machine file.
    #[default]
    Plain,
    /// Every node as fast as the fastest.
    AllFast,
    /// The fast node as a cache of the slow one.
    MemoryMode,
    /// Only the best tier is used as memory; pages that do not fit are in a far-memory store.
    Paged,
}

/// Where pages are put at their first touch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FirstTouchPlacement {
    /// On the nearest node with space: Linux's rule.
    #[default]
    Nearest,
    /// As `Nearest`, with huge pages where a whole one fits.
    Huge,
    /// On the worst tier first.
    Slow,
    /// Each page listed is put on the node of this index; others go to the nearest node.
    Placed(Arc<HashMap<u64, u8>>),
}

impl FirstTouchPlacement {
    /// Places the pages of a workload's data in order, from the first: for each page the index of
    /// the node on which it is allocated.
    #[must_use]
    pub fn in_order(nodes: impl IntoIterator<Item = u8>) -> Self {
        Self::in_order_from(BASE, nodes)
    }

    /// The same from the page at `address` on. In a recording, the first GiB that it touches begins
    /// at [`crate::recording::FIRST`].
    #[must_use]
    pub fn in_order_from(address: u64, nodes: impl IntoIterator<Item = u8>) -> Self {
        Self::Placed(Arc::new((address / PAGE..).zip(nodes).collect()))
    }
}

/// What runs.
#[derive(Debug, Clone)]
pub enum SimInput {
    /// A workload whose `fast` is set, so that its sizes are known.
    Workload(WorkloadSpec),
    /// A recording.
    Recording {
        /// Its name, for display only.
        name: String,
        /// The recording.
        recording: Recording,
    },
}

impl SimInput {
    fn threads(&self) -> usize {
        match self {
            Self::Workload(spec) => spec.threads as usize,
            Self::Recording { recording, .. } => recording.threads(),
        }
    }
}

impl std::fmt::Display for SimInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Workload(spec) => write!(f, "workload:{spec}"),
            Self::Recording { name, .. } => f.write_str(name),
        }
    }
}

/// A checked machine and input, from which any number of simulated runs ([`World`]) can start.
#[derive(Debug, Clone)]
pub struct SimSetup {
    /// The machine.
    pub machine: Machine,
    /// What runs on it.
    pub input: SimInput,
    /// Names of the nodes by index.
    pub ids: Vec<NodeId>,
    /// Indexes of nodes by tier, best first.
    pub tiers: Vec<Vec<usize>>,
    /// Length of a quantum: all cores simulate one before any begins the next. It must span several
    /// transfers per core, or bus sharing is modelled badly, and be shorter than the daemon waits.
    pub quantum: Nanos,
    /// Base pages of each node, by its index, that the program cannot have and that are otherwise
    /// unused: the daemon's own memory is allocated there first.
    pub spare_pages: Vec<u64>,
    /// Host memory that one run may use, if known. A workload computes on real data, which may be
    /// as large as the memory of the simulated machine.
    pub host_memory: Option<Bytes>,
    /// The swap device used when all memory is full. `None`: an input that needs more is refused.
    pub swap: Option<SwapCosts>,
    cores: u32,
}

impl SimSetup {
    /// A workload on a machine. Where the specification gives no `fast`, sizes follow what the best
    /// tier has free.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn new(machine: &Machine, workload: &str) -> Result<Self, SimError> {
        let mut spec = WorkloadSpec::parse(workload)?;
        let given = workload.split(',').skip(1).any(|part| part.trim().starts_with("fast"));
        if !given {
            let tiers = tiers(machine)?;
            let free: u64 = tiers.first().into_iter().flatten().map(|n| usable(machine, *n)).sum();
            spec.fast = Bytes((free >> 20).max(1) << 20);
        }
        Self::from_machine(machine, SimInput::Workload(spec))
    }

    /// Any input on a machine: checks that the two go together.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn from_machine(machine: &Machine, input: SimInput) -> Result<Self, SimError> {
        let ids: Vec<NodeId> = machine.nodes.iter().map(|n| n.id).collect();
        let cpus: usize = machine.nodes.iter().map(|n| n.cpus.len()).sum();
        // One core per thread of the program and one for the daemon: more would only be idle.
        let cores = cpus.min(input.threads() + 1).clamp(1, MAX_CORES) as u32;
        let plan = Self {
            machine: machine.clone(),
            input,
            ids,
            tiers: tiers(machine)?,
            quantum: QUANTUM,
            spare_pages: vec![0; machine.nodes.len()],
            host_memory: None,
            swap: None,
            cores,
        };
        plan.params(MachineMode::Plain)?;
        Ok(plan)
    }

    /// Least host memory that a run uses: a workload's data, and the memory manager's state (about
    /// 24 bytes per page). Zero for a recording: its need is not known beforehand.
    #[must_use]
    pub fn host_bytes(&self) -> Bytes {
        let SimInput::Workload(spec) = &self.input else { return Bytes::ZERO };
        let data = spec.size.bytes(spec.fast) + spec.hot_size.bytes(spec.fast);
        Bytes(data.get().saturating_add(data.get() / PAGE * 24))
    }

    /// The error that the host has too little memory.
    pub(crate) fn too_little_memory(&self, need: Bytes) -> SimError {
        SimError::HostMemory {
            machine: self.machine.name.clone(),
            input: self.input.to_string(),
            need,
            have: self.host_memory.unwrap_or(Bytes::ZERO),
            remedy: match self.input {
                SimInput::Workload(_) => "give fast= or size=",
                SimInput::Recording { .. } => {
                    "give fewer policies at a time or a shorter recording"
                }
            },
        }
    }

    /// Bytes that programs can allocate on the node with this index.
    #[must_use]
    pub fn usable(&self, node: usize) -> u64 {
        usable(&self.machine, node)
    }

    /// Whether there is a private cache between the first and the last level.
    #[must_use]
    pub fn has_middle_cache(&self) -> bool {
        self.params(MachineMode::Plain).is_ok_and(|p| p.l2.is_some())
    }

    fn params(&self, mode: MachineMode) -> Result<ModelParams, SimError> {
        let options = ModelOptions {
            vcpus: self.cores,
            all_fast: mode == MachineMode::AllFast,
            memory_mode: mode == MachineMode::MemoryMode,
            outstanding: None,
        };
        ModelParams::from_machine(&self.machine, options)
            .map_err(|why| SimError::Machine { machine: self.machine.name.clone(), why })
    }

    /// A fresh machine with the workload about to start; `first_touch_placement` says where its
    /// pages are allocated.
    ///
    /// # Errors
    /// [`SimError::Machine`], [`SimError::TooSmall`].
    pub fn world(
        &self,
        mode: MachineMode,
        first_touch_placement: FirstTouchPlacement,
    ) -> Result<World, SimError> {
        // If it does not fit the simulated machine either, `TooSmall` is returned below instead.
        let machine_has = Bytes((0..self.ids.len()).map(|node| self.usable(node)).sum());
        let need = self.host_bytes();
        if need <= machine_has && self.host_memory.is_some_and(|have| need > have) {
            return Err(self.too_little_memory(need));
        }
        let params = self.params(mode)?;
        let feed = self.feed(mode)?;
        let costs = CostTable::new(&self.machine);
        let pools = self.pools(mode, &params, costs.models_kernel_memory());
        let have = pools.iter().map(|p| p.frames() * PAGE).sum();
        let bytes = feed.bytes();
        let bounded = mode != MachineMode::Paged && self.swap.is_none();
        if let Some(need) = bytes.filter(|bytes| *bytes > have && bounded) {
            return Err(SimError::TooSmall {
                machine: self.machine.name.clone(),
                input: self.input.to_string(),
                have: Bytes(have),
                need: Bytes(need),
            });
        }
        let memory = self.program_memory(mode, first_touch_placement, pools, bytes)?;
        let homes = params.homes.clone();
        let quantum =
            if mode == MachineMode::Paged { self.quantum.min(PAGED_QUANTUM) } else { self.quantum };
        let engine = MemorySystem::new(params, quantum.get() * PS)
            .map_err(|why| SimError::Machine { machine: self.machine.name.clone(), why })?;
        let mmu =
            |unit: &Vcpu| Mmu::new(self.machine.core.tlb_flush, &self.machine.tlb, unit.l1.sets());
        let mmus = engine.units.iter().map(mmu).collect();
        let mut world = World::new(engine, memory, mmus, homes, costs, feed);
        if matches!(self.input, SimInput::Workload(_)) {
            world.start_late(nanos(costs.kernel.exec));
        }
        Ok(world)
    }

    /// The accesses of the input.
    fn feed(&self, mode: MachineMode) -> Result<Box<dyn Feed>, SimError> {
        Ok(match &self.input {
            // A pager manages the program's data only, not its heap.
            SimInput::Workload(spec) if mode == MachineMode::Paged => {
                Box::new(WorkloadFeed::without_heap(spec))
            }
            SimInput::Workload(spec) => Box::new(WorkloadFeed::new(spec)),
            SimInput::Recording { name, recording } => {
                Box::new(recording.feed().map_err(|why| SimError::Recording {
                    name: name.clone(),
                    why: why.to_string(),
                })?)
            }
        })
    }

    /// Frames of each node, with per-CPU page lists where the kernel's memory is modelled.
    fn pools(
        &self,
        mode: MachineMode,
        params: &ModelParams,
        kernel_memory: bool,
    ) -> Vec<FramePool> {
        let frames = |node: usize| match mode {
            // In memory mode a node that caches others provides no memory of its own.
            MachineMode::MemoryMode if params.cached_by.iter().any(|(cache, _)| *cache == node) => {
                0
            }
            MachineMode::Paged if !self.best().contains(&node) => 0,
            _ => self.usable(node) / PAGE,
        };
        let others = |node: usize| match frames(node) {
            0 => 0,
            _ => self.machine.nodes[node].in_use.get() / PAGE,
        };
        let listed = kernel_memory && mode != MachineMode::Paged;
        let pool = |(node, zone)| {
            let pool =
                FramePool::new(node, frames(node), params.layout.clone()).beside(others(node));
            match Option::filter(zone, |_| listed && pool.frames() > 0) {
                Some(zone) => pool.with_lists(zone, self.cores as usize),
                None => pool,
            }
        };
        (0..).zip(self.zones()).map(pool).collect()
    }

    /// The program's memory, mapped where its size is known (`bytes`).
    fn program_memory(
        &self,
        mode: MachineMode,
        first_touch_placement: FirstTouchPlacement,
        pools: Vec<FramePool>,
        bytes: Option<u64>,
    ) -> Result<ProgramMemory, SimError> {
        let nearest: Vec<Vec<usize>> = (0..self.ids.len()).map(|home| self.nearest(home)).collect();
        let rank = |node: &usize| self.tiers.iter().position(|t| t.contains(node));
        let mut worst_first = nearest.clone();
        worst_first
            .iter_mut()
            .for_each(|list| list.sort_by_key(|node| std::cmp::Reverse(rank(node))));
        let asked =
            matches!(&self.input, SimInput::Workload(spec) if spec.pages == DataPageSize::Huge);
        let huge = asked || first_touch_placement == FirstTouchPlacement::Huge;
        let first_touch = match first_touch_placement {
            FirstTouchPlacement::Nearest | FirstTouchPlacement::Huge => {
                FirstTouch::Nearest(nearest)
            }
            FirstTouchPlacement::Slow => FirstTouch::Nearest(worst_first),
            FirstTouchPlacement::Placed(nodes) => FirstTouch::Placed(nodes, nearest),
        };
        let mut memory = ProgramMemory::new(pools, first_touch);
        memory.huge = huge;
        memory.kernel = self.machine.kernel;
        if let Some(costs) = self.swap.filter(|_| mode != MachineMode::Paged) {
            memory.swap_to(costs);
        }
        match bytes {
            Some(bytes) => {
                memory.map(VpnRange::new(Vpn(BASE / PAGE), Vpn((BASE + bytes).div_ceil(PAGE))))
            }
            None => memory.on_demand = true,
        }
        if memory.unaccounted > 0 {
            return Err(self.too_little_memory(self.host_bytes()));
        }
        Ok(memory)
    }

    /// As [`SimSetup::world`], with the best tier as local memory and the far-memory store of this
    /// name behind it.
    ///
    /// # Errors
    /// [`SimError::NoStore`], [`SimError::TooLittle`], [`SimError::Machine`].
    pub fn paged_world(&self, store: &str, tuning: PagerTuning) -> Result<World, SimError> {
        let machine = || self.machine.name.clone();
        let Some(found) = self.machine.far_store(store) else {
            let known: Vec<String> =
                self.machine.far_stores().into_iter().map(|s| s.name).collect();
            return Err(SimError::NoStore {
                machine: machine(),
                name: store.to_owned(),
                known: known.join(", "),
            });
        };
        let mut world = self.world(MachineMode::Paged, FirstTouchPlacement::Nearest)?;
        let have = Bytes(self.best().iter().map(|node| self.usable(*node) / PAGE * PAGE).sum());
        let need = SimFarMemory::least();
        let far = SimFarMemory::new(found, have, self.best().to_vec(), tuning);
        world.put_behind(far.ok_or_else(|| SimError::TooLittle {
            machine: machine(),
            have,
            need,
        })?);
        Ok(world)
    }

    /// The kernel's zone of each node, if the machine file says how much the kernel reserves there.
    /// On other nodes the watermarks are not known, and programs can use all memory.
    fn zones(&self) -> Vec<Option<ZoneLimits>> {
        let nodes = &self.machine.nodes;
        let free_pages = |node: usize| (self.usable(node) + nodes[node].in_use.get()) / PAGE;
        let sizes: Vec<(u64, u64)> =
            (0..nodes.len()).map(|n| (free_pages(n), nodes[n].cpus.len() as u64)).collect();
        let kept =
            |node: usize| nodes[node].reserved.saturating_sub(nodes[node].in_use).get() / PAGE;
        let zones = ZoneLimits::of_nodes(&sizes).into_iter().enumerate();
        zones
            .map(|(node, zone)| Some(zone).filter(|z| kept(node) >= z.high + z.max_at_once()))
            .collect()
    }

    fn best(&self) -> &[usize] {
        self.tiers.first().map_or(&[], Vec::as_slice)
    }

    /// Nodes in the order in which Linux tries them for a CPU of node `home`: `home` first, then by
    /// distance, then latency.
    fn nearest(&self, home: usize) -> Vec<usize> {
        let mut nodes: Vec<usize> = (0..self.ids.len()).filter(|n| self.usable(*n) > 0).collect();
        nodes.sort_by_key(|n| {
            let link = self.machine.link(self.ids[home], self.ids[*n]);
            let distance = link.and_then(|l| l.distance).unwrap_or(u32::MAX);
            (*n != home, distance, link.and_then(|l| l.read_latency).map(|f| f.value), *n)
        });
        nodes
    }
}

fn tiers(machine: &Machine) -> Result<Vec<Vec<usize>>, SimError> {
    let ranking = rank(machine, RankAttribute::Bandwidth, None)
        .map_err(|why| SimError::Ranking { machine: machine.name.clone(), why: why.to_string() })?;
    let index = |id: &NodeId| machine.nodes.iter().position(|n| n.id == *id);
    Ok(ranking.tiers.iter().map(|t| t.nodes.iter().filter_map(index).collect()).collect())
}

fn usable(machine: &Machine, node: usize) -> u64 {
    machine.nodes.get(node).map_or(0, |n| n.capacity.saturating_sub(n.reserved).get())
}
