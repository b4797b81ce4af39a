//! What is counted of a host, window by window, and what it is told between two of them.

use crate::account::FrameAccount;
use crate::contention::{HostQueues, HostWindow};
use crate::error::AccessRefusal;
use crate::file_use::FileTouch;
use crate::host::HostPlan;
use crate::outcome::{HostOutcome, PoolTraffic, ShootdownTotals, SwapTotals, TranslationTotals};
use crate::shootdown::MoveOrder;
use crate::spread::{LatencyHistogram, LatencySpread};
use terrace_fabric::loads::SAME_TRAFFIC;
use terrace_model::channel::BusDemand;
use terrace_model::engine::BusBytes;
use terrace_sim::memory::DIRTY;
use terrace_sim::world::{ShootdownMode, World};
use terrace_sim::{SimError, SimRun};
use terrace_types::{Bytes, Nanos};

/// What a host is told when a window begins.
#[derive(Debug, Clone, Default)]
pub(crate) struct WindowOrder {
    /// By pool: what other hosts wanted of it in the last window.
    pub rivals: Vec<BusDemand>,
    /// By pool: frames that the host may have to itself all in all.
    pub limits: Vec<u64>,
    /// What it waits for, and what full links leave it.
    pub queues: HostQueues,
    /// Pages of files that move.
    pub moves: MoveOrder,
    /// It reached for a page that it may not have: its program ends.
    pub refusal: Option<AccessRefusal>,
}

/// What a host reports when a window ends.
#[derive(Debug, Clone)]
pub(crate) struct WindowReport {
    pub host: usize,
    pub demands: Vec<BusDemand>,
    /// Frames that it has to itself by pool, first of local memory.
    pub taken: Vec<u64>,
    pub window: HostWindow,
    /// Shootdowns of other hosts' that it acknowledged.
    pub acknowledged: u64,
    /// Pages of files that it touched for the first time.
    pub touched: Vec<FileTouch>,
    /// Of a host that has ended: pages of files that it wrote.
    pub written: Vec<(u32, u64)>,
    pub ended: bool,
}

impl WindowReport {
    /// Of a host that has done nothing yet.
    pub fn new(host: usize, pools: usize) -> Self {
        Self {
            host,
            demands: vec![BusDemand::default(); pools],
            taken: vec![0; pools + 1],
            window: HostWindow::default(),
            acknowledged: 0,
            touched: Vec::new(),
            written: Vec::new(),
            ended: false,
        }
    }
}

const PAGE: u64 = 4096;
/// Bytes of a cache line.
const LINE: u64 = 64;
/// Picoseconds in a nanosecond.
const PS: u64 = 1000;

/// A host's counts.
#[derive(Debug)]
pub(crate) struct HostRecord {
    account: FrameAccount,
    local_nodes: usize,
    /// Frames of each local node that programs can have.
    local_frames: Vec<u64>,
    /// What a read takes without waits, by pool, picoseconds.
    bare_ps: Vec<u64>,
    /// What is in force in this window.
    order: WindowOrder,
    /// Bytes by pool when the last window ended.
    bytes: Vec<BusBytes>,
    /// Requests to the manager when the last window ended.
    requests: u64,
    /// By pool: waits of all misses times their bytes, picoseconds.
    waited_ps: Vec<u128>,
    /// By pool: how long lines took.
    latencies: Vec<LatencyHistogram>,
    /// Shootdowns of other hosts' that it acknowledged since it last reported.
    acknowledged: u64,
}

/// What a host did, without what `terrace-sim` tells of it.
#[derive(Debug)]
pub(crate) struct HostFigures {
    instructions: u64,
    ipc: f64,
    pools: Vec<PoolTraffic>,
    page_table_pages: u64,
    manager_requests: u64,
    shootdowns: ShootdownTotals,
    swap: Option<SwapTotals>,
    translation: Option<TranslationTotals>,
    refused: u64,
    refusal: Option<AccessRefusal>,
}

impl HostRecord {
    /// Before the first window.
    pub fn new(host: &HostPlan, account: FrameAccount) -> Self {
        let pools = host.pool_count();
        let machine = &host.plan.machine;
        let bare = |pool: usize| {
            let (near, far) = (machine.nodes.first()?, machine.nodes.get(host.local_nodes + pool)?);
            Some(machine.link(near.id, far.id)?.read_latency?.value.get() * PS)
        };
        Self {
            account,
            local_nodes: host.local_nodes,
            local_frames: (0..host.local_nodes).map(|n| host.plan.usable(n) / PAGE).collect(),
            bare_ps: (0..pools).map(|pool| bare(pool).unwrap_or_default()).collect(),
            order: WindowOrder::default(),
            bytes: vec![BusBytes::default(); pools],
            requests: 0,
            waited_ps: vec![0; pools],
            latencies: vec![LatencyHistogram::default(); pools],
            acknowledged: 0,
        }
    }

    fn wait_ps(&self, pool: usize) -> u64 {
        self.order.queues.waits_ps.get(pool).copied().unwrap_or_default()
    }

    /// What the host did since this was last asked.
    pub fn report(&mut self, world: &World) -> WindowReport {
        let pools = self.bytes.len();
        let engine = world.engine();
        let mut bytes = Vec::with_capacity(pools);
        for pool in 0..pools {
            let now = engine.bus_bytes(self.local_nodes + pool);
            let before = std::mem::replace(&mut self.bytes[pool], now);
            let moved =
                BusBytes { read: now.read - before.read, written: now.written - before.written };
            let wait_ps = self.wait_ps(pool);
            self.waited_ps[pool] += u128::from(wait_ps) * u128::from(moved.read);
            self.latencies[pool].count(self.bare_ps[pool] + wait_ps, moved.read / LINE);
            bytes.push(moved);
        }
        let made = self.account.requests();
        let requests = made - std::mem::replace(&mut self.requests, made);
        let demand = |pool| engine.bus_demand(self.local_nodes + pool);
        WindowReport {
            host: 0,
            demands: (0..pools).map(demand).collect(),
            taken: self.account.used_pages(),
            window: HostWindow { bytes, requests },
            acknowledged: std::mem::take(&mut self.acknowledged),
            touched: self.account.take_touched(),
            written: Vec::new(),
            ended: false,
        }
    }

    /// Why its program must end, if it must.
    pub fn refusal(&self) -> Option<&AccessRefusal> {
        self.order.refusal.as_ref()
    }

    /// Pages of files that the program has written.
    pub fn list_written(&self, world: &World) -> Vec<(u32, u64)> {
        let pages = self.account.list_shared().into_iter();
        let written = |vpn| world.memory.page_of(vpn).is_some_and(|page| page.bits & DIRTY != 0);
        pages.filter(|(vpn, _)| written(*vpn)).map(|(_, page)| page).collect()
    }

    /// Pages of files move: whoever copies them waits for the others, who acknowledge.
    fn move_file_pages(&mut self, world: &mut World, order: &MoveOrder) {
        let pages = order.moves.len() as u64;
        if pages == 0 {
            return;
        }
        let span = Nanos(order.wait_ps.div_ceil(PS));
        for moved in order.moves.iter() {
            let (node, pool) = (self.local_nodes + moved.to.pool, moved.to.pool);
            let before = self.account.move_shared(moved.file, moved.page, moved.to);
            let Some((vpn, from)) = before else { continue };
            world.memory.pools[node].set_limit(u64::MAX);
            if let Some((old, new)) = world.move_pinned(vpn, node, span) {
                self.account.count_moved(from, pool);
                if order.copies.is_some() {
                    let took = world.copy(old, new, PAGE);
                    world.occupy(took);
                }
            }
        }
        world.shoot_down_pages(pages);
        match order.copies {
            Some(wait_ps) => world.occupy(Nanos(wait_ps.div_ceil(PS))),
            None if world.shootdowns.mode == ShootdownMode::PerPage => self.acknowledged += pages,
            None => self.acknowledged += 1,
        }
    }

    /// Sets what the order says of the next window.
    pub fn obey(&mut self, world: &mut World, order: WindowOrder) {
        self.move_file_pages(world, &order.moves);
        self.account.set_limits(&order.limits);
        self.account.set_manager_wait(order.queues.manager_wait_ps);
        self.account.set_waits(&order.queues.waits_ps);
        for (pool, rivals) in order.rivals.iter().enumerate() {
            let node = self.local_nodes + pool;
            let used = world.engine().bus_demand(node).parts;
            world.set_bus_rivals(node, *rivals);
            let wait_ps = order.queues.waits_ps.get(pool).copied().unwrap_or_default();
            world.set_queue_delay(node, wait_ps);
            // A limit is a share of the last window's bytes, of which the bus knows its own part.
            let limit = order.queues.limits.get(pool).copied().flatten();
            let parts = limit
                .map_or(u64::MAX, |limit| used.max(1).saturating_mul(limit).div_ceil(SAME_TRAFFIC));
            world.set_bus_limit(node, parts);
            // What placement policies find free. Pages of files come on top as they are touched.
            let files = self.account.file_pages(pool);
            world.memory.pools[node].set_limit(order.limits[pool] + files);
        }
        for (node, tables) in self.account.table_pages().into_iter().enumerate() {
            let left = self.local_frames[node].saturating_sub(tables);
            world.memory.pools[node].set_limit(left);
        }
        self.order = order;
    }

    /// All that was counted.
    pub fn sum_up(&self, host: &HostPlan, world: &World) -> HostFigures {
        let counted = world.measured.result();
        let (span, counters) = counted.unwrap_or((Nanos::ZERO, world.counters()));
        let cycles = span.get() as f64 * f64::from(host.clock_mhz) / 1000.0;
        let misses = counters.llc_misses();
        let local = self.local_nodes;
        let sum = |by_node: &[u64], pool: usize| match pool {
            0 => by_node[..local].iter().sum(),
            _ => by_node[local + pool - 1],
        };
        let mapped = self.account.mapped_pages();
        let traffic = |(pool, frames): (usize, u64)| {
            let shared = pool.checked_sub(1);
            PoolTraffic {
                frames,
                accesses: sum(&misses, pool),
                read_bytes: sum(&counters.read_bytes, pool),
                write_bytes: sum(&counters.write_bytes, pool),
                shared_frames: shared.map_or(0, |pool| mapped[pool]),
                mean_wait_ns: shared.map_or(0.0, |pool| self.mean_wait_ns(pool)),
                latency_ns: shared
                    .map_or(LatencySpread::default(), |pool| self.latencies[pool].spread()),
            }
        };
        let (drops, swapped) = (world.shootdowns(), world.memory.swapped());
        HostFigures {
            instructions: counters.instructions,
            ipc: counters.instructions as f64 / (cycles * host.busy_cores() as f64).max(1.0),
            pools: self.account.used_pages().into_iter().enumerate().map(traffic).collect(),
            page_table_pages: self.account.table_pages().iter().sum(),
            manager_requests: self.account.requests(),
            shootdowns: ShootdownTotals {
                rounds: drops.rounds,
                interrupts: drops.interrupts,
                pages: drops.pages,
            },
            swap: host
                .plan
                .swap
                .map(|_| SwapTotals { written_pages: swapped.written, read_pages: swapped.read }),
            translation: world
                .engine()
                .translation_count()
                .map(|count| TranslationTotals { lookups: count.lookups, walks: count.walks }),
            refused: world.memory.refused,
            refusal: self.order.refusal.clone(),
        }
    }

    fn mean_wait_ns(&self, pool: usize) -> f64 {
        let read = self.bytes[pool].read as f64;
        self.waited_ps[pool] as f64 / read.max(1.0) / PS as f64
    }
}

impl HostFigures {
    /// The access that its program ended with, where that was refused.
    pub fn refusal(&self) -> Option<&AccessRefusal> {
        self.refusal.as_ref()
    }

    /// Why the program would have been ended: local memory, and what other hosts left of the pools,
    /// were full.
    pub fn refused(&self, host: &HostPlan) -> Option<SimError> {
        let frames = |pool: &PoolTraffic| pool.frames + pool.shared_frames;
        let have = Bytes(self.pools.iter().map(frames).sum::<u64>() * PAGE);
        let need = Bytes(have.get() + self.refused * PAGE);
        let (machine, input) = (host.plan.machine.name.clone(), host.plan.input.to_string());
        (self.refused > 0).then_some(SimError::TooSmall { machine, input, have, need })
    }

    /// With what `terrace-sim` tells.
    pub fn with_run(self, host: &HostPlan, run: SimRun) -> HostOutcome {
        HostOutcome {
            host: host.name.clone(),
            instructions: self.instructions,
            ipc: self.ipc,
            pools: self.pools,
            placement: host.placement_name(),
            page_table_pages: self.page_table_pages,
            manager_requests: self.manager_requests,
            shootdowns: self.shootdowns,
            swap: self.swap,
            translation: self.translation,
            run,
        }
    }
}
