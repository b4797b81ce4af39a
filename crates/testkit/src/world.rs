//! A machine in miniature: pages, nodes, and a workload given as a rate for each page and time.
//!
//! Trackers draw their findings from the true rates; moves cost time and change where pages are;
//! the score is the true share of accesses that the fast node served. Seeded: a failing test
//! prints its seed and repeats.

use std::cell::RefCell;
use std::rc::Rc;
use terrace_engine::MoveFailure;
use terrace_machine::Machine;
use terrace_types::{
    Bytes, BytesPerSec, Nanos, NodeId, Pid, ThroughputSource, Tick, TierState, Vpn, VpnRange,
};

/// The only process of a world.
pub const PID: Pid = Pid(100);
/// Its first page.
pub const START: Vpn = Vpn(0x10_000);

/// True accesses a second of one page.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PageAccessRate {
    /// Reads.
    pub reads: f64,
    /// Writes.
    pub writes: f64,
}

impl PageAccessRate {
    /// Both.
    #[must_use]
    pub fn rate(self) -> f64 {
        self.reads + self.writes
    }
}

/// A small seeded generator.
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Below `n`; 0 when `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        (self.unit() * n as f64) as u64
    }

    /// How many of `n` tries succeed at probability `p`.
    pub fn successes(&mut self, n: u16, p: f64) -> u16 {
        (0..n).filter(|_| self.unit() < p).count() as u16
    }
}

/// What a world is made of.
pub struct WorldSpec {
    /// The machine; its nodes in `tiers` hold pages.
    pub machine: Machine,
    /// Nodes by tier, best first.
    pub tiers: Vec<Vec<NodeId>>,
    /// User pages each node can hold, by node index.
    pub node_pages: Vec<u64>,
    /// Pages of the process, and the node each was first touched on.
    pub first_touch: Vec<NodeId>,
    /// The workload: true rates of page `i` at a time.
    pub access: Box<dyn Fn(usize, Tick) -> PageAccessRate>,
    /// Seed of all chance.
    pub seed: u64,
}

/// The world. Shared by its ports.
pub struct ClosedLoopWorld {
    pub(crate) spec: WorldSpec,
    pub(crate) now: Tick,
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) rng: Rng,
    pub(crate) ends: Option<Tick>,
    pub(crate) cpu: Nanos,
    /// Pages that cannot be moved.
    pub pinned: Vec<bool>,
    /// Share of page moves that fail as busy.
    pub busy_share: f64,
    /// Pages unmapped at the end of the range.
    pub vanished: usize,
    /// Pages from this one on are mapped, and there from this time on.
    pub untouched: Option<(usize, Tick)>,
    /// Time between two faults of untouched pages, each placed on the best tier with free space;
    /// zero: all are touched at once, on the nodes of [`WorldSpec::first_touch`].
    pub fault_interval: Nanos,
    /// Base pages of a huge page, each aligned to that; 0: there are none.
    pub huge: usize,
    /// Tiers' write throughput is counted by hardware.
    pub counters: bool,
    /// Moves made, by page.
    pub moves: Vec<u32>,
    fast_served: f64,
    served: f64,
    extra: f64,
}

impl ClosedLoopWorld {
    /// A world at time zero.
    #[must_use]
    pub fn new(spec: WorldSpec) -> Rc<RefCell<Self>> {
        let pages = spec.first_touch.len();
        Rc::new(RefCell::new(Self {
            nodes: spec.first_touch.clone(),
            rng: Rng(spec.seed),
            spec,
            now: Tick(0),
            ends: None,
            cpu: Nanos::ZERO,
            pinned: vec![false; pages],
            busy_share: 0.0,
            vanished: 0,
            untouched: None,
            fault_interval: Nanos::ZERO,
            huge: 0,
            counters: false,
            moves: vec![0; pages],
            fast_served: 0.0,
            served: 0.0,
            extra: 0.0,
        }))
    }

    /// The machine it is on.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.spec.machine
    }

    /// Ends the process at this time.
    pub fn end_at(&mut self, tick: Tick) {
        self.ends = Some(tick);
    }

    /// Pages still mapped.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.nodes.len() - self.vanished.min(self.nodes.len())
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Tick {
        self.now
    }

    /// Whether page `i` was touched.
    #[must_use]
    pub fn is_there(&self, i: usize) -> bool {
        self.untouched.is_none_or(|(first, since)| {
            let later = i.saturating_sub(first) as u64;
            let later = later - later % self.huge.max(1) as u64;
            let wait = Nanos(self.fault_interval.get().saturating_mul(later));
            i < first || self.now >= since.after(wait)
        })
    }

    /// Where page `i` is.
    #[must_use]
    pub fn node_of(&self, i: usize) -> NodeId {
        self.nodes[i]
    }

    /// Pages on a node.
    #[must_use]
    pub fn used(&self, node: NodeId) -> u64 {
        (0..self.pages()).filter(|i| self.nodes[*i] == node && self.is_there(*i)).count() as u64
    }

    /// Moves made in all.
    #[must_use]
    pub fn total_moves(&self) -> u64 {
        self.moves.iter().map(|n| u64::from(*n)).sum()
    }

    /// Share of the true accesses now that the best tier serves.
    #[must_use]
    pub fn fast_share_now(&self) -> f64 {
        let (mut fast, mut all) = (0.0, 0.0);
        for i in 0..self.pages() {
            let rate = (self.spec.access)(i, self.now).rate();
            all += rate;
            if self.spec.tiers[0].contains(&self.nodes[i]) {
                fast += rate;
            }
        }
        if all > 0.0 {
            fast / all
        } else {
            1.0
        }
    }

    /// Share of all true accesses since the start that the best tier served.
    #[must_use]
    pub fn fast_share(&self) -> f64 {
        if self.served > 0.0 {
            self.fast_served / self.served
        } else {
            1.0
        }
    }

    /// True accesses since the start that the best tier served because of moves; negative where
    /// first touch would have had more of them there.
    #[must_use]
    pub fn extra_fast(&self) -> f64 {
        self.extra
    }

    /// Accesses a second that the best tier serves now because of moves.
    fn extra_now(&self) -> f64 {
        let fast = |node: &NodeId| f64::from(u8::from(self.spec.tiers[0].contains(node)));
        let moved = self.nodes.iter().zip(&self.spec.first_touch).enumerate();
        let moved = moved.take(self.pages()).filter(|(_, (now, first))| now != first);
        moved
            .map(|(i, (now, first))| {
                (fast(now) - fast(first)) * (self.spec.access)(i, self.now).rate()
            })
            .sum()
    }

    /// Lets time pass, in slices so that shifting workloads are scored as they shift.
    pub(crate) fn pass(&mut self, span: Nanos) {
        let mut left = span;
        while left > Nanos::ZERO {
            let faults = self.fault_interval > Nanos::ZERO;
            let slice = left.min(Nanos::millis(if faults { 1 } else { 100 }));
            let before = self.now;
            let share = self.fast_share_now();
            self.fast_served += share * slice.as_secs_f64();
            self.served += slice.as_secs_f64();
            self.extra += self.extra_now() * slice.as_secs_f64();
            self.now = self.now.after(slice);
            if faults {
                self.place_newly_faulted(before);
            }
            left = left.saturating_sub(slice);
        }
    }

    /// Places the pages that were touched since `before`, each on the best node with free space.
    fn place_newly_faulted(&mut self, before: Tick) {
        let nodes: Vec<NodeId> = self.spec.tiers.iter().flatten().copied().collect();
        let now = std::mem::replace(&mut self.now, before);
        let there: Vec<bool> = (0..self.pages()).map(|i| self.is_there(i)).collect();
        let used = |node: &NodeId| self.used(*node);
        let mut used: Vec<u64> = nodes.iter().map(used).collect();
        self.now = now;
        for i in (0..self.pages()).filter(|i| !there[*i]) {
            let space = |at: &usize| used[*at] < self.spec.node_pages[usize::from(nodes[*at].0)];
            let Some(at) = (0..nodes.len()).find(space).filter(|_| self.is_there(i)) else {
                continue;
            };
            self.nodes[i] = nodes[at];
            used[at] += 1;
        }
    }

    pub(crate) fn range(&self) -> VpnRange {
        VpnRange::new(START, Vpn(START.0 + self.pages() as u64))
    }

    pub(crate) fn tier_states(&self) -> Vec<TierState> {
        let page = self.spec.machine.page_size.get();
        let tier = |nodes: &Vec<NodeId>| {
            let capacity: u64 = nodes.iter().map(|n| self.spec.node_pages[n.0 as usize]).sum();
            let used: u64 = nodes.iter().map(|n| self.used(*n)).sum();
            let on = (0..self.pages()).filter(|i| nodes.contains(&self.nodes[*i]));
            let written = || on.map(|i| (self.spec.access)(i, self.now).writes).sum::<f64>() * 64.0;
            TierState {
                nodes: nodes.clone(),
                capacity: Bytes(capacity * page),
                free: Bytes(capacity.saturating_sub(used) * page),
                unused: Bytes(capacity.saturating_sub(used) * page),
                write_throughput: self.counters.then(|| BytesPerSec(written() as u64)),
                throughput_source: if self.counters {
                    ThroughputSource::Hardware
                } else {
                    ThroughputSource::Unknown
                },
            }
        };
        self.spec.tiers.iter().map(tier).collect()
    }

    /// Moves page `i`; `space` is what is left on the node asked for.
    pub(crate) fn move_page(
        &mut self,
        i: usize,
        to: NodeId,
        space: u64,
    ) -> Result<(), MoveFailure> {
        if i >= self.pages() {
            return Err(MoveFailure::Gone);
        }
        if self.pinned[i] {
            return Err(MoveFailure::Busy);
        }
        if self.nodes[i] == to {
            return Err(MoveFailure::AlreadyThere);
        }
        if space == 0 {
            return Err(MoveFailure::NodeFull);
        }
        if self.busy_share > 0.0 && self.rng.unit() < self.busy_share {
            return Err(MoveFailure::Busy);
        }
        self.nodes[i] = to;
        self.moves[i] += 1;
        Ok(())
    }
}
