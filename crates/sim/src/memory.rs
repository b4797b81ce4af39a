//! The program's memory: which pages there are, in which frames, with which bits; and the kernel's
//! part in it (first touch, faults, page moves).

mod reclaim;
mod walk;

pub use reclaim::{SwapCosts, SwapCount};

use crate::pool::{FramePool, FrameUse, HUGE};
use reclaim::Reclaim;
use std::collections::HashMap;
use std::sync::Arc;
use terrace_machine::{KernelCosts, KernelMemoryModel};
use terrace_types::{Vpn, VpnRange};

/// Accessed since the bit was cleared, as a page walk sets it.
pub const ACCESSED: u8 = 1;
/// Written since the bit was cleared.
pub const DIRTY: u8 = 1 << 1;
/// Write-protected, so that the next write is noticed (soft-dirty).
pub const SOFT_CLEAN: u8 = 1 << 2;
/// Part of a huge page.
pub const PART_OF_HUGE: u8 = 1 << 3;
/// Being moved: whoever touches it waits.
pub const MOVING: u8 = 1 << 4;
/// When a page is there that is moving, and nobody knows yet when that will be.
pub const UNTIL_REPORTED: u64 = u64::MAX;

/// Mapped against writing, so that the first write is reported to a pager.
pub const PROTECTED: u8 = 1 << 5;

/// On the swap device.
pub const SWAPPED: u8 = 1 << 6;
/// Not to be moved: others have it mapped, too.
pub const PINNED: u8 = 1 << 7;

/// The time of a walk by someone who has to wait for a pager.
pub const WAITS: u64 = u64::MAX;

/// Regions that are mapped on demand at most: whole stretches of 2 MiB, 512 GiB of them, or pieces.
const MAX_REGIONS: usize = 1 << 18;

/// Stretches of 2 MiB that are found without a search.
const STRETCHES: usize = 1024;

/// Once so many stretches are mapped (1 GiB) and fewer than one in so many of their pages is
/// touched, the program's pages lie scattered: what it touches from then on is mapped in pieces of
/// so many pages. Whoever manages keeps some tens of bytes for every mapped page, so that whole
/// stretches would take a hundred times the memory of the pages themselves. Programs whose pages
/// lie together are mapped by the stretch, as the kernel's page tables have them.
const SCATTERED_FROM: usize = 512;
/// See [`SCATTERED_FROM`].
const SCATTERED_BELOW: u64 = 16;
/// See [`SCATTERED_FROM`]: 64 KiB.
const PIECE: u64 = 16;

/// Not backed by memory.
pub const ABSENT: u32 = u32::MAX;

/// One base page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BasePage {
    /// Physical frame, or [`ABSENT`].
    pub frame: u32,
    /// Index of its node.
    pub node: u8,
    /// The bits above.
    pub bits: u8,
    /// Which part of its huge page it is.
    pub part: u16,
}

/// A mapping: consecutive pages, kept consecutive in the list of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Region {
    start: u64,
    end: u64,
    first: u32,
}

/// Misses of one page in the last-level cache, for those who may know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Misses {
    /// By loads.
    pub reads: u32,
    /// By stores.
    pub writes: u32,
}

/// Where first touches go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstTouch {
    /// To these nodes (indexes), the first that has space: by the toucher's home node.
    Nearest(Vec<Vec<usize>>),
    /// Pages have their places, a node's index by page; the lists for those that have none, or
    /// whose node is full.
    Placed(Arc<HashMap<u64, u8>>, Vec<Vec<usize>>),
}

/// Who chooses the nodes of pages at their first touch, in place of [`FirstTouch`].
pub trait FrameChooser: std::fmt::Debug {
    /// Where the page `vpn` goes; `home` is the toucher's node. Asked once a first touch.
    fn choose_nodes(&mut self, home: usize, vpn: u64) -> FrameChoice;

    /// So many frames of `node` were taken for it.
    fn count_taken(&mut self, node: usize, frames: u64);

    /// So many pages left `node`, to another node or to the swap device.
    fn count_given_back(&mut self, node: usize, frames: u64);

    /// Whether `node` has a frame for a page that is to be moved there.
    fn may_move_to(&self, node: usize) -> bool;

    /// What it costs beside a fault or a move to ask for so many frames of `node` at once,
    /// picoseconds.
    fn request_cost(&mut self, node: usize, frames: u64) -> u64;
}

/// Where a page goes at its first touch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FrameChoice {
    /// Nodes (indexes) in the order in which they are tried.
    pub nodes: Vec<usize>,
    /// It stays there: others have it mapped, too.
    pub pinned: bool,
}

/// The program's memory.
#[derive(Debug)]
pub struct ProgramMemory {
    regions: Vec<Region>,
    /// All pages of all regions.
    pub pages: Vec<BasePage>,
    /// Frames by node.
    pub pools: Vec<FramePool>,
    /// The CPU of whoever takes or frees pages now.
    pub cpu: usize,
    /// Misses by page, where wanted.
    pub misses: Option<Vec<Misses>>,
    /// Pages are mapped as they are touched.
    pub on_demand: bool,
    /// Use huge pages where a whole one fits.
    pub huge: bool,
    /// Pages that are not backed, and first writes to protected ones, are a pager's matter: who
    /// touches one waits ([`WAITS`]).
    pub paged: bool,
    first_touch: FirstTouch,
    chooser: Option<Box<dyn FrameChooser>>,
    /// Takes pages away where no node has a frame left.
    pub(crate) reclaim: Option<Reclaim>,
    /// When pages that are being moved are done, picoseconds.
    moving: HashMap<u32, u64>,
    /// The page whose move somebody has just found that he has to wait for.
    pub(crate) waited_for: Option<u32>,
    /// Until then (picoseconds) somebody else has the lock that a page fault needs.
    pub locked_until: u64,
    /// Pages asked for when no node had space.
    pub refused: u64,
    /// Pages touched for the first time so far.
    pub touched: u64,
    /// The host had no memory for the account of so many more pages, which are not mapped.
    pub unaccounted: u64,
    /// New mappings are pieces of stretches.
    scattered: bool,
    /// Writes to watched pages, so far.
    pub write_protect_faults: u64,
    /// What the kernel's part costs.
    pub kernel: KernelCosts,
    /// The frame of a page that was just touched first, whose zeros go through the caches
    /// ([`KernelMemoryModel::Modelled`]), until it is taken.
    pub born: Option<u32>,
    /// Where pages are mapped on demand, some of the stretches: number plus one, and its first
    /// page's index.
    stretches: Vec<(u64, usize)>,
}

/// What a walk found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalkResult {
    /// The frame.
    pub frame: u32,
    /// The core's time when the access can go on, picoseconds; [`WAITS`]: not known yet.
    pub time: u64,
    /// Writes need no notice any more.
    pub writable: bool,
}

impl ProgramMemory {
    /// No mappings yet.
    #[must_use]
    pub fn new(pools: Vec<FramePool>, first_touch: FirstTouch) -> Self {
        Self {
            regions: Vec::new(),
            pages: Vec::new(),
            pools,
            cpu: 0,
            misses: None,
            on_demand: false,
            huge: false,
            paged: false,
            first_touch,
            chooser: None,
            reclaim: None,
            moving: HashMap::new(),
            waited_for: None,
            locked_until: 0,
            refused: 0,
            touched: 0,
            unaccounted: 0,
            scattered: false,
            write_protect_faults: 0,
            kernel: KernelCosts { memory: KernelMemoryModel::Fixed, ..KernelCosts::default() },
            born: None,
            stretches: vec![(0, 0); STRETCHES],
        }
    }

    /// Adds a mapping of whole pages; nothing of it is touched. Where the host has no memory for
    /// its account there is none, and [`Self::unaccounted`] says so.
    pub fn map(&mut self, range: VpnRange) {
        let first = self.pages.len() as u32;
        let more = usize::try_from(range.len()).unwrap_or(usize::MAX);
        let reserved = self.misses.as_mut().map_or(Ok(()), |misses| misses.try_reserve(more));
        if reserved.is_err() || self.pages.try_reserve(more).is_err() {
            self.unaccounted = self.unaccounted.saturating_add(range.len());
            return;
        }
        self.pages.extend((0..range.len()).map(|_| BasePage {
            frame: ABSENT,
            node: 0,
            bits: 0,
            part: 0,
        }));
        if let Some(misses) = &mut self.misses {
            misses.resize(self.pages.len(), Misses::default());
        }
        let at = self.regions.partition_point(|r| r.start < range.start.0);
        self.regions.insert(at, Region { start: range.start.0, end: range.end.0, first });
    }

    /// Counts misses by page from now on.
    pub fn profile(&mut self) {
        self.misses = Some(vec![Misses::default(); self.pages.len()]);
    }

    /// Where pages go at their first touch from now on, before they go to the nearest node.
    pub fn set_first_touch_nodes(&mut self, places: Arc<HashMap<u64, u8>>) {
        let (FirstTouch::Nearest(lists) | FirstTouch::Placed(_, lists)) = &self.first_touch;
        self.first_touch = FirstTouch::Placed(places, lists.clone());
    }

    /// Pages go at their first touch where `chooser` says, from now on.
    pub fn set_frame_chooser(&mut self, chooser: Box<dyn FrameChooser>) {
        self.chooser = Some(chooser);
    }

    /// `frames` of `node` were taken at a first touch: what that costs beside the fault.
    fn count_taken(&mut self, node: usize, frames: u64) -> u64 {
        let Some(chooser) = &mut self.chooser else { return 0 };
        chooser.count_taken(node, frames);
        chooser.request_cost(node, frames)
    }

    /// So many pages have left `node`.
    pub(crate) fn count_given_back(&mut self, node: usize, frames: u64) {
        if let Some(chooser) = &mut self.chooser {
            chooser.count_given_back(node, frames);
        }
    }

    /// So many pages are moved to `node` by one call: what that costs beside the move.
    pub(crate) fn move_request_cost(&mut self, node: usize, pages: u64) -> u64 {
        self.chooser.as_mut().map_or(0, |chooser| chooser.request_cost(node, pages))
    }

    /// The nodes to be tried for a page at its first touch, in order.
    fn first_touch_order(&mut self, vpn: u64, home: usize) -> FrameChoice {
        if let Some(chooser) = &mut self.chooser {
            return chooser.choose_nodes(home, vpn);
        }
        let (placed, lists) = match &self.first_touch {
            FirstTouch::Nearest(lists) => (None, lists),
            FirstTouch::Placed(nodes, lists) => (nodes.get(&vpn).map(|n| *n as usize), lists),
        };
        let list = lists.get(home).or(lists.first()).cloned().unwrap_or_default();
        FrameChoice { nodes: placed.into_iter().chain(list).collect(), pinned: false }
    }

    /// The node, by its index, on which whoever is at home on node `home` and is no part of the
    /// program would have its next page: the first with space, else the last.
    pub(crate) fn nearest_with_space(&self, home: usize) -> usize {
        let (FirstTouch::Nearest(lists) | FirstTouch::Placed(_, lists)) = &self.first_touch;
        let list = lists.get(home).or(lists.first()).map_or(&[][..], Vec::as_slice);
        let reserved = list.iter().find(|node| self.pools[**node].free() > 0);
        reserved.or(list.last()).copied().unwrap_or_default()
    }

    /// Takes the misses counted so far by page, in the order of addresses; counting begins anew.
    pub fn take_misses(&mut self) -> Vec<(u64, Misses)> {
        let Some(misses) = &mut self.misses else { return Vec::new() };
        let pages = self.regions.iter().flat_map(|r| (r.start..r.end).zip(r.first as usize..));
        let counted = pages
            .map(|(vpn, index)| (vpn, misses[index]))
            .filter(|(_, m)| *m != Misses::default())
            .collect();
        misses.fill(Misses::default());
        counted
    }

    /// Pages that are backed, in the order of addresses, and the index of each.
    pub fn present(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        let pages = self.regions.iter().flat_map(|r| (r.start..r.end).zip(r.first as usize..));
        pages.filter(|(_, index)| self.pages[*index].frame != ABSENT)
    }

    /// The mappings in order.
    pub fn mappings(&self) -> impl Iterator<Item = VpnRange> + '_ {
        self.regions.iter().map(|r| VpnRange::new(Vpn(r.start), Vpn(r.end)))
    }

    /// Index of a page in [`Self::pages`]; `None` where nothing is mapped. `hint`: the caller's
    /// last region.
    #[inline(always)]
    #[must_use]
    pub fn index(&self, vpn: u64, hint: &mut usize) -> Option<usize> {
        if let Some(r) = self.regions.get(*hint) {
            let offset = vpn.wrapping_sub(r.start);
            if offset < r.end - r.start {
                return Some(r.first as usize + offset as usize);
            }
        }
        self.index_elsewhere(vpn, hint)
    }

    /// As [`Self::index`]; where pages are mapped as they are touched, an aligned stretch around
    /// the page is mapped.
    #[inline(always)]
    pub fn index_or_map(&mut self, vpn: u64, hint: &mut usize) -> Option<usize> {
        if !self.on_demand {
            return self.index(vpn, hint);
        }
        let (stretch, offset) = (vpn / HUGE, (vpn % HUGE) as usize);
        let slot = stretch as usize % STRETCHES;
        let (known, first) = self.stretches[slot];
        if known == stretch + 1 {
            return Some(first + offset);
        }
        let index = match self.index(vpn, hint) {
            None => self.map_around(vpn, hint)?,
            Some(index) => index,
        };
        // No mapping is ever taken away.
        let whole = |r: &Region| r.end - r.start == HUGE;
        if !self.scattered || self.regions.get(*hint).is_some_and(whole) {
            self.stretches[slot] = (stretch + 1, index - offset);
        }
        Some(index)
    }

    /// As [`Self::index`], where that is quickly known; nothing is changed.
    #[inline(always)]
    #[must_use]
    pub fn index_near(&self, vpn: u64, hint: usize) -> Option<usize> {
        if self.on_demand {
            let (known, first) = self.stretches[(vpn / HUGE) as usize % STRETCHES];
            return (known == vpn / HUGE + 1).then_some(first + (vpn % HUGE) as usize);
        }
        let region = self.regions.get(hint)?;
        let offset = vpn.wrapping_sub(region.start);
        (offset < region.end - region.start).then(|| region.first as usize + offset as usize)
    }

    #[inline(never)]
    fn map_around(&mut self, vpn: u64, hint: &mut usize) -> Option<usize> {
        if self.regions.len() >= MAX_REGIONS {
            self.refused += 1;
            return None;
        }
        self.scattered |= !self.huge
            && self.regions.len() >= SCATTERED_FROM
            && self.touched * SCATTERED_BELOW < self.pages.len() as u64;
        let length = if self.scattered { PIECE } else { HUGE };
        let start = vpn - vpn % length;
        self.map(VpnRange::new(Vpn(start), Vpn(start + length)));
        self.index(vpn, hint)
    }

    /// The number of the page of this index.
    pub(crate) fn vpn_of(&self, index: usize) -> Option<u64> {
        let within = |r: &&Region| {
            (r.first as usize..r.first as usize + (r.end - r.start) as usize).contains(&index)
        };
        let region = self.regions.iter().find(within)?;
        Some(region.start + (index - region.first as usize) as u64)
    }

    /// A page by its number; `None` where nothing is mapped.
    #[must_use]
    pub fn page_of(&self, vpn: u64) -> Option<BasePage> {
        self.pages.get(self.index(vpn, &mut 0)?).copied()
    }

    /// The same, to be changed.
    pub fn page_of_mut(&mut self, vpn: u64) -> Option<&mut BasePage> {
        let index = self.index(vpn, &mut 0)?;
        self.pages.get_mut(index)
    }

    /// The same; where pages are mapped as they are touched, it is mapped.
    pub fn page_for(&mut self, vpn: u64) -> Option<&mut BasePage> {
        let index = self.index_or_map(vpn, &mut 0)?;
        self.pages.get_mut(index)
    }

    #[inline(never)]
    fn index_elsewhere(&self, vpn: u64, hint: &mut usize) -> Option<usize> {
        let at = self.regions.partition_point(|r| r.end <= vpn);
        let r = self.regions.get(at).filter(|r| r.start <= vpn)?;
        *hint = at;
        Some(r.first as usize + (vpn - r.start) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_machine::CostProfile;
    use terrace_model::layout::AddressLayout;

    fn memory(fast: u64, slow: u64) -> ProgramMemory {
        let layout = AddressLayout::q35(&[16 << 20, 64 << 20]);
        let pools = vec![FramePool::new(0, fast, layout.clone()), FramePool::new(1, slow, layout)];
        ProgramMemory::new(pools, FirstTouch::Nearest(vec![vec![0, 1]]))
    }

    fn walk(m: &mut ProgramMemory, vpn: u64, store: bool, time: u64) -> WalkResult {
        let index = m.index(vpn, &mut 0).unwrap();
        m.walk(index, vpn, store, 0, time)
    }

    #[test]
    fn first_touch_fills_the_nearest_node_first() {
        let mut m = memory(2, 10);
        m.map(VpnRange::new(Vpn(512), Vpn(520)));
        for vpn in 512..516 {
            assert!(walk(&mut m, vpn, true, 0).time > 0);
        }
        assert_eq!(m.on_nodes(), [2, 2]);
        assert_eq!(walk(&mut m, 512, false, 77).time, 77);
        assert_eq!(m.index(520, &mut 0), None);
    }

    #[test]
    fn regions_keep_their_indexes_when_more_come() {
        let mut m = memory(10, 10);
        m.map(VpnRange::new(Vpn(1000), Vpn(1010)));
        m.map(VpnRange::new(Vpn(10), Vpn(20)));
        let mut hint = 0;
        assert_eq!(
            (m.index(1003, &mut hint), m.index(12, &mut hint), m.index(500, &mut hint)),
            (Some(3), Some(12), None)
        );
    }

    #[test]
    fn a_soft_clean_page_faults_once_on_write() {
        for (profile, time) in [(CostProfile::Lab, 450_000), (CostProfile::Host, 850_000)] {
            let mut m = memory(10, 10);
            m.kernel = KernelCosts::profile(profile);
            m.map(VpnRange::new(Vpn(0), Vpn(4)));
            walk(&mut m, 0, true, 0);
            m.pages[0].bits = SOFT_CLEAN;
            assert!(!walk(&mut m, 0, false, 0).writable);
            assert_eq!(walk(&mut m, 0, true, 0), WalkResult { frame: 0, time, writable: true });
            assert_eq!((walk(&mut m, 0, true, 0).time, m.write_protect_faults), (0, 1));
        }
    }

    #[test]
    fn a_page_on_the_move_is_waited_for() {
        let mut m = memory(10, 10);
        m.map(VpnRange::new(Vpn(0), Vpn(4)));
        walk(&mut m, 1, true, 0);
        assert!(m.relocate(1, 1, 5_000));
        assert_eq!((m.on_nodes(), m.pools[0].free()), (vec![0, 1], 10));
        assert_eq!(walk(&mut m, 1, false, 1_000).time, 5_000);
        assert_eq!(walk(&mut m, 1, false, 1_000).time, 1_000);
        assert!(!m.relocate(1, 1, 0) && !m.relocate(2, 1, 0));
    }

    #[test]
    fn huge_pages_come_and_move_whole() {
        let mut m = memory(1024, 1024);
        m.huge = true;
        m.map(VpnRange::new(Vpn(500), Vpn(1600)));
        walk(&mut m, 600, true, 0);
        assert_eq!(m.on_nodes(), [512, 0]);
        let index = m.index(600, &mut 0).unwrap();
        assert_eq!((m.head(index), m.span(index)), (12, 512));
        assert_eq!(
            m.pages[12].bits & (ACCESSED | DIRTY),
            ACCESSED | DIRTY,
            "its first touch, too, is reported of the whole"
        );
        assert!(m.relocate(12, 1, 0));
        assert_eq!(m.on_nodes(), [0, 512]);
        // The ends of the mapping are no whole huge pages.
        walk(&mut m, 500, true, 0);
        walk(&mut m, 1599, true, 0);
        assert_eq!(m.on_nodes(), [2, 512]);
    }

    #[test]
    fn scattered_pages_take_memory_by_the_page_and_dense_ones_are_mapped_by_the_stretch() {
        let run = |pages: u64, apart: u64| {
            let layout = AddressLayout::q35(&[4 << 30]);
            let pools = vec![FramePool::new(0, 1 << 20, layout)];
            let mut m = ProgramMemory::new(pools, FirstTouch::Nearest(vec![vec![0]]));
            m.on_demand = true;
            let mut hint = 0;
            for page in 0..pages {
                let index = m.index_or_map(page * apart, &mut hint).unwrap();
                m.walk(index, page * apart, true, 0, 0);
            }
            // All are found again where they were put, by search and by table.
            for page in (0..pages).rev() {
                let index = m.index_or_map(page * apart, &mut hint).unwrap();
                assert_eq!(m.index(page * apart, &mut 0), Some(index));
                assert!(m.pages[index].frame != ABSENT, "page {page}, {apart} apart");
            }
            assert_eq!((m.touched, m.refused), (pages, 0));
            m.pages.len() as u64
        };
        let (few, many) = (run(4_000, 70_000), run(20_000, 70_000));
        assert_eq!((many - few) / 16_000, PIECE, "{few} and {many} pages");
        assert_eq!(run(600 * HUGE, 1), 600 * HUGE);
        // Half of a stretch's pages are not scattered.
        assert_eq!(run(600 * HUGE / 2, 2), 600 * HUGE);
    }

    #[test]
    fn a_program_too_large_is_reported() {
        let mut m = memory(1, 1);
        m.map(VpnRange::new(Vpn(0), Vpn(4)));
        for vpn in 0..4 {
            walk(&mut m, vpn, true, 0);
        }
        assert_eq!(m.refused, 2);
    }
}
