//! What a policy sees: tiers, mappings, and for each page where it is and how hot.

use crate::runs::run_length;
use crate::{Bytes, BytesPerSec, Heat, Nanos, NodeId, Pid, Tid, Vpn, VpnRange};
use serde::{Deserialize, Serialize};
use zerocopy::{Immutable, IntoBytes};

/// State of one tier at the time of the snapshot. Index in [`Snapshot::tiers`] is the rank; 0 is
/// best.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierState {
    /// Nodes that make up the tier, nearest first.
    pub nodes: Vec<NodeId>,
    /// Memory that user pages can occupy in all (reserves of the kernel already taken off).
    pub capacity: Bytes,
    /// Of `capacity`, what can be had now, above the kernel's own watermarks.
    pub free: Bytes,
    /// In nobody's use: `free`, and what lies on the CPUs' lists of free pages, of which a CPU has
    /// its own only. How full a tier is, this tells; what fits, `free` does.
    pub unused: Bytes,
    /// Bytes a second written to this tier over the interval; `None` when nothing can tell.
    pub write_throughput: Option<BytesPerSec>,
    /// How `write_throughput` was had.
    pub throughput_source: ThroughputSource,
}

/// How a tier's write throughput was had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThroughputSource {
    /// Counted by hardware.
    Hardware,
    /// Estimated from sampled page heat.
    Estimated,
    /// Nothing can tell.
    #[default]
    Unknown,
}

/// Where referenced and dirty bits come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BitSource {
    /// Page-table bits, exact for each page.
    Exact,
    /// Inferred from heat estimates over the interval.
    Approximate,
    /// No bits are given.
    #[default]
    None,
}

/// What the trackers behind a snapshot can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TrackerVisibility {
    /// Reads move a page's heat.
    pub reads: bool,
    /// Writes are distinguished from reads.
    pub writes: bool,
    /// Accesses are sampled page by page, not by samples of regions.
    pub pages: bool,
    /// Counts by cell and thread are present in [`Snapshot::by_cell`].
    pub cells: bool,
    /// Where the `REFERENCED` and `DIRTY` flags come from.
    pub bits: BitSource,
    /// Accesses are counted, one in so many of them: the time sampled is that part of the time
    /// that passed.
    #[serde(default)]
    pub sampled: bool,
}

/// How far a page's heat may be trusted, in samples behind it (saturating).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Confidence(pub u8);

/// Facts about one page, as bits.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, IntoBytes, Immutable,
)]
#[repr(transparent)]
#[serde(transparent)]
pub struct PageFlags(pub u8);

impl PageFlags {
    /// Backed by memory now.
    pub const PRESENT: Self = Self(1);
    /// First base page of a huge page that moves whole.
    pub const HUGE_HEAD: Self = Self(1 << 1);
    /// A later base page of a huge page.
    pub const HUGE_TAIL: Self = Self(1 << 2);
    /// Accessed since the last CLEAR.
    pub const REFERENCED: Self = Self(1 << 3);
    /// Written since the last CLEAR.
    pub const DIRTY: Self = Self(1 << 4);
    /// Must not be moved (locked, hugetlb, KSM, shared without leave, I/O).
    pub const PINNED: Self = Self(1 << 5);
    /// File-backed or shared between processes.
    pub const SHARED: Self = Self(1 << 6);
    /// The heat rests on enough samples to act on.
    pub const KNOWN: Self = Self(1 << 7);

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set less the other.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of `other` is set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// One base page: six bytes, so that a heat map costs about 0.15% of what it watches.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, IntoBytes, Immutable,
)]
#[repr(C)]
pub struct PageStat {
    /// Reads a second.
    pub reads: Heat,
    /// Writes a second.
    pub writes: Heat,
    /// Node the page is on (low 8 bits of the OS index; machines with more nodes are refused).
    pub node: u8,
    /// What else is known.
    pub flags: PageFlags,
}

impl PageStat {
    /// Neighbours that are alike, and how many. Base pages of a huge page mostly are, so that what
    /// goes by these costs a fraction of what goes by the page.
    pub fn runs(pages: &[Self]) -> impl Iterator<Item = (&Self, u64)> {
        let mut rest = pages;
        std::iter::from_fn(move || {
            let first = rest.first()?;
            let run = run_length(rest);
            rest = &rest[run..];
            Some((first, run as u64))
        })
    }

    /// Node the page is on.
    #[must_use]
    pub const fn node(self) -> NodeId {
        NodeId(self.node as u16)
    }

    /// Reads and writes together, a second.
    #[must_use]
    pub const fn rate(self) -> u64 {
        self.reads.rate() + self.writes.rate()
    }

    /// Present and free to move.
    #[must_use]
    pub const fn movable(self) -> bool {
        self.flags.has(PageFlags::PRESENT) && !self.flags.has(PageFlags::PINNED)
    }
}

/// One mapping of one process, with its pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Area {
    /// Process that maps it.
    pub pid: Pid,
    /// First page.
    pub start: Vpn,
    /// One entry a base page, in address order.
    pub pages: Vec<PageStat>,
}

impl Area {
    /// The pages covered.
    #[must_use]
    pub fn range(&self) -> VpnRange {
        VpnRange::new(self.start, Vpn(self.start.0 + self.pages.len() as u64))
    }
}

/// Sampled accesses to one page from one cell (and thread, where known) in the interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellCount {
    /// Process and page.
    pub pid: Pid,
    /// The page.
    pub vpn: Vpn,
    /// Node of the CPU that made the accesses.
    pub cell: NodeId,
    /// Thread that made them, where known.
    pub thread: Option<Tid>,
    /// Loads counted.
    pub reads: u32,
    /// Stores counted.
    pub writes: u32,
}

/// All that a policy may decide from.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// Time since the previous snapshot, over which counts were taken.
    #[serde(rename = "window")]
    pub interval: Nanos,
    /// Bytes of a base page.
    pub page_size: Bytes,
    /// Tiers by rank, best first.
    pub tiers: Vec<TierState>,
    /// Mappings, ordered by process, then address; never overlapping within a process.
    pub areas: Vec<Area>,
    /// Who accessed, where trackers can say; ordered by process, page, cell.
    pub by_cell: Vec<CellCount>,
    /// What the trackers can and cannot see.
    pub sees: TrackerVisibility,
    /// Heat was seen to shift since the previous snapshot: what was known before counts for little.
    pub shifted: bool,
    /// Whether free memory went on shrinking while the last interval passed: the target may still
    /// be filling its own.
    pub filling: bool,
    /// Whether it was waited for since the previous snapshot, until its memory stood still.
    #[serde(default)]
    pub waited: bool,
    /// Part of the touches, from 0 to 1, that belong to sweeps: such a touch stands for all lines
    /// of its page, another for one. None while it is not known.
    #[serde(default)]
    pub swept: f32,
    /// Whether most of what is known of heat is a lower bound: pages share an accessed bit (a huge
    /// page's 512 do), which is found set however short the sample.
    #[serde(default)]
    pub at_least: bool,
    /// Whether most pages that were found touched were found so every time: how they compare, and
    /// what share of accesses a tier serves, is not known.
    #[serde(default)]
    pub saturated: bool,
    /// What moving a base page has taken so far, its part of each call included; zero while too few
    /// were moved to tell.
    #[serde(default)]
    pub move_cost: Nanos,
    /// What may be spent on moves now; none: as much as pays.
    #[serde(default)]
    pub spendable: Option<Nanos>,
    /// Bytes of the best tier that were freed for pages that the target has not faulted in yet.
    #[serde(default)]
    pub headroom: Bytes,
    /// Time after which the target is expected to fault in such pages, where there is headroom.
    #[serde(default)]
    pub next_growth: Nanos,
    /// The kernel gives the target huge pages without being asked. Told where headroom is planned,
    /// and false elsewhere.
    #[serde(default)]
    pub gets_huge_pages: bool,
}

impl Snapshot {
    /// Rank of the tier that holds `node`, if any does.
    #[must_use]
    pub fn rank_of(&self, node: NodeId) -> Option<usize> {
        self.tiers.iter().position(|t| t.nodes.contains(&node))
    }

    /// What is known of a page; areas are in order of process and address.
    #[must_use]
    pub fn page(&self, pid: Pid, vpn: Vpn) -> Option<&PageStat> {
        let after = self.areas.partition_point(|a| (a.pid, a.start) <= (pid, vpn));
        let area = after.checked_sub(1).and_then(|i| self.areas.get(i)).filter(|a| a.pid == pid)?;
        area.pages.get((vpn.0 - area.start.0) as usize)
    }

    /// Base pages in all areas.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        self.areas.iter().map(|a| a.pages.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_costs_six_bytes() {
        assert_eq!(std::mem::size_of::<PageStat>(), 6);
    }

    #[test]
    fn a_page_is_found_by_its_process_and_address() {
        let area = |pid: i32, start: u64, nodes: [u8; 2]| Area {
            pid: Pid(pid),
            start: Vpn(start),
            pages: nodes.map(|node| PageStat { node, ..PageStat::default() }).to_vec(),
        };
        let areas = vec![area(1, 10, [1, 2]), area(1, 20, [3, 4]), area(2, 5, [5, 6])];
        let snap = Snapshot { areas, ..Snapshot::default() };
        let node = |pid: i32, vpn: u64| snap.page(Pid(pid), Vpn(vpn)).map(|page| page.node);
        assert_eq!(
            [(1, 10), (1, 21), (2, 6)].map(|(pid, vpn)| node(pid, vpn)),
            [Some(1), Some(4), Some(6)]
        );
        assert_eq!(
            [(1, 9), (1, 12), (1, 22), (2, 4), (3, 10)].map(|(pid, vpn)| node(pid, vpn)),
            [None; 5]
        );
    }

    #[test]
    fn flags_combine() {
        let f = PageFlags::PRESENT.with(PageFlags::DIRTY);
        assert!(f.has(PageFlags::DIRTY) && !f.has(PageFlags::REFERENCED));
        assert_eq!(f.without(PageFlags::DIRTY), PageFlags::PRESENT);
    }
}
