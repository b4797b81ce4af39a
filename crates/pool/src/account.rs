//! The account of a host's frames: which it gets next, how many it has of each pool, and the pages
//! of its page tables.

use crate::allocation::{AllocationSequence, ProfileRank};
use crate::file_use::FileTouch;
use crate::manager::PoolFrame;
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use terrace_sim::memory::{FrameChoice, FrameChooser};

/// Pages of a host that belong to a file of the pools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SharedRange {
    /// The file.
    pub file: u32,
    /// The first page.
    pub first: u64,
    /// Where each page lies.
    pub frames: Vec<PoolFrame>,
}

/// Entries of a page of a page table, as a shift (x86-64, Arm with pages of 4 KiB).
const ENTRIES: u32 = 9;
/// Levels of page tables.
const LEVELS: u32 = 4;

#[derive(Debug)]
struct FrameCounts {
    sequence: AllocationSequence,
    local_nodes: usize,
    /// Frames that the host has to itself by pool, first of local memory.
    taken: Vec<u64>,
    /// Frames of each shared pool that it may have until the window ends.
    limits: Vec<u64>,
    manager_ps: u64,
    manager_wait_ps: u64,
    /// Requests to the manager: one may be for many frames.
    requests: u64,
    shared: Vec<SharedRange>,
    /// Pages of files that it has touched, by shared pool.
    mapped: Vec<u64>,
    /// The page that was asked for last belongs to a file.
    asked_shared: bool,
    /// Pages of files that it has touched since it last reported.
    touched: Vec<FileTouch>,
    hot: Option<HashSet<u64>>,
    /// Pages of page tables, by level and the part of the address that they stand for.
    tables: HashSet<(u32, u64)>,
    /// How many of them each local node has.
    table_pages: Vec<u64>,
}

/// Which frames a host has, and which it gets next; shared by its world and by whoever runs it.
#[derive(Debug, Clone)]
pub(crate) struct FrameAccount(Rc<RefCell<FrameCounts>>);

impl FrameAccount {
    /// Before the first frame; `manager_ps`: to the manager and back.
    pub fn new(sequence: AllocationSequence, local_nodes: usize, manager_ps: u64) -> Self {
        let pools = sequence.shared_pools();
        Self(Rc::new(RefCell::new(FrameCounts {
            sequence,
            local_nodes,
            taken: vec![0; pools + 1],
            limits: vec![0; pools],
            manager_ps,
            manager_wait_ps: 0,
            requests: 0,
            shared: Vec::new(),
            mapped: vec![0; pools],
            asked_shared: false,
            touched: Vec::new(),
            hot: None,
            tables: HashSet::new(),
            table_pages: vec![0; local_nodes],
        })))
    }

    /// These pages belong to files.
    pub fn share(&mut self, ranges: Vec<SharedRange>) {
        self.0.borrow_mut().shared = ranges;
    }

    /// A profile says that these pages should be in local memory and no others.
    pub fn prefer_local(&mut self, hot: HashSet<u64>) {
        self.0.borrow_mut().hot = Some(hot);
    }

    /// Frames that the host has to itself by pool, first of local memory.
    pub fn used_pages(&self) -> Vec<u64> {
        self.0.borrow().taken.clone()
    }

    /// Pages of files that it has touched, by shared pool.
    pub fn mapped_pages(&self) -> Vec<u64> {
        self.0.borrow().mapped.clone()
    }

    /// Pages of files that it has touched since this was last asked.
    pub fn take_touched(&self) -> Vec<FileTouch> {
        std::mem::take(&mut self.0.borrow_mut().touched)
    }

    /// Its pages that belong to files: each with the file and the page there.
    pub fn list_shared(&self) -> Vec<(u64, (u32, u64))> {
        let pages = |range: &SharedRange| {
            let (file, first) = (range.file, range.first);
            (0..range.frames.len() as u64).map(move |page| (first + page, (file, page)))
        };
        self.0.borrow().shared.iter().flat_map(pages).collect()
    }

    /// Pages of files that it has mapped in a shared pool, touched or not.
    pub fn file_pages(&self, pool: usize) -> u64 {
        let counts = self.0.borrow();
        let frames = counts.shared.iter().flat_map(|range| &range.frames);
        frames.filter(|at| at.pool == pool).count() as u64
    }

    /// A page of a file lies there from now on: its number in this host, where it has the file
    /// mapped, and the pool where it was.
    pub fn move_shared(&self, file: u32, page: u64, to: PoolFrame) -> Option<(u64, usize)> {
        let mut counts = self.0.borrow_mut();
        let range = counts.shared.iter_mut().find(|range| range.file == file)?;
        let before = std::mem::replace(range.frames.get_mut(page as usize)?, to);
        Some((range.first + page, before.pool))
    }

    /// A page of a file that the host has touched went from one shared pool to another.
    pub fn count_moved(&self, from: usize, to: usize) {
        let mut counts = self.0.borrow_mut();
        counts.mapped[from] = counts.mapped[from].saturating_sub(1);
        counts.mapped[to] += 1;
    }

    /// Requests to the manager so far.
    pub fn requests(&self) -> u64 {
        self.0.borrow().requests
    }

    /// Pages of page tables on each local node.
    pub fn table_pages(&self) -> Vec<u64> {
        self.0.borrow().table_pages.clone()
    }

    /// Misses wait so long on the way to each pool and in it from now on, picoseconds.
    pub fn set_waits(&self, waits_ps: &[u64]) {
        self.0.borrow_mut().sequence.set_waits(waits_ps);
    }

    /// A request waits so long for the manager from now on, picoseconds.
    pub fn set_manager_wait(&self, wait_ps: u64) {
        self.0.borrow_mut().manager_wait_ps = wait_ps;
    }

    /// The host may have so many frames of each shared pool to itself from now on.
    pub fn set_limits(&self, limits: &[u64]) {
        self.0.borrow_mut().limits.copy_from_slice(limits);
    }
}

impl FrameCounts {
    /// The pool of a node: 0 is local memory.
    fn pool_of(&self, node: usize) -> usize {
        (node + 1).saturating_sub(self.local_nodes)
    }

    /// Where the page lies, if it belongs to a file.
    fn find_shared(&self, vpn: u64) -> Option<FileTouch> {
        self.shared.iter().find_map(|range| {
            let page = vpn.checked_sub(range.first)?;
            let at = *range.frames.get(page as usize)?;
            Some(FileTouch { file: range.file, page, at })
        })
    }

    /// The pages of page tables that a page needs are local memory's, as Opal has it.
    fn count_tables(&mut self, home: usize, vpn: u64) {
        let home = home.min(self.local_nodes.saturating_sub(1));
        for level in 1..=LEVELS {
            if !self.tables.insert((level, vpn >> (ENTRIES * level))) {
                return;
            }
            if let Some(pages) = self.table_pages.get_mut(home) {
                *pages += 1;
            }
        }
    }
}

impl FrameChooser for FrameAccount {
    fn choose_nodes(&mut self, home: usize, vpn: u64) -> FrameChoice {
        let mut counts = self.0.borrow_mut();
        let local = counts.local_nodes;
        counts.count_tables(home, vpn);
        let shared = counts.find_shared(vpn);
        counts.asked_shared = shared.is_some();
        if let Some(touch) = shared {
            counts.touched.push(touch);
            return FrameChoice { nodes: vec![local + touch.at.pool], pinned: true };
        }
        let rank = match &counts.hot {
            Some(hot) if !hot.contains(&vpn) => ProfileRank::Cold,
            _ => ProfileRank::Hot,
        };
        let mut nodes = Vec::with_capacity(local + counts.limits.len());
        for pool in counts.sequence.next_order_of(rank) {
            if pool == 0 {
                nodes.push(home);
                nodes.extend((0..local).filter(|node| *node != home));
            } else if counts.taken[pool] < counts.limits[pool - 1] {
                nodes.push(local + pool - 1);
            }
        }
        FrameChoice { nodes, pinned: false }
    }

    fn count_taken(&mut self, node: usize, frames: u64) {
        let mut counts = self.0.borrow_mut();
        let pool = counts.pool_of(node);
        if std::mem::take(&mut counts.asked_shared) {
            counts.mapped[pool - 1] += frames;
        } else {
            counts.taken[pool] += frames;
        }
    }

    fn count_given_back(&mut self, node: usize, frames: u64) {
        let mut counts = self.0.borrow_mut();
        let pool = counts.pool_of(node);
        counts.taken[pool] = counts.taken[pool].saturating_sub(frames);
    }

    fn may_move_to(&self, node: usize) -> bool {
        let counts = self.0.borrow();
        let pool = counts.pool_of(node);
        pool == 0 || counts.taken[pool] < counts.limits[pool - 1]
    }

    fn request_cost(&mut self, node: usize, _: u64) -> u64 {
        let mut counts = self.0.borrow_mut();
        // The host's own kernel has local memory; frames of a pool are the manager's to give.
        if counts.pool_of(node) == 0 {
            return 0;
        }
        counts.requests += 1;
        counts.manager_ps + counts.manager_wait_ps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::{AllocationPolicy, PlaceFigures};
    use terrace_types::{Bytes, Seed};

    fn account(policy: AllocationPolicy) -> FrameAccount {
        let places = vec![PlaceFigures { bandwidth: 1, latency_ps: 1 }; 3];
        let sequence =
            AllocationSequence::new(policy, places, Bytes(1 << 30), Bytes(2 << 30), Seed(1));
        let account = FrameAccount::new(sequence, 1, 4_000_000);
        account.set_limits(&[2, 2]);
        account
    }

    #[test]
    fn page_tables_are_counted_level_by_level() {
        let mut account = account(AllocationPolicy::LocalFirst);
        for vpn in 0..1024 {
            account.choose_nodes(0, vpn);
        }
        // Two pages of the last level, one of each level above.
        assert_eq!(account.table_pages(), [5]);
        account.choose_nodes(0, 1 << 18);
        assert_eq!(account.table_pages(), [7], "another GiB: a page of two levels");
    }

    #[test]
    fn frames_are_counted_and_come_back() {
        let mut account = account(AllocationPolicy::RoundRobin);
        for vpn in 0..9 {
            let node = account.choose_nodes(0, vpn).nodes[0];
            account.count_taken(node, 1);
        }
        // Two of each pool at most.
        assert_eq!(account.used_pages(), [5, 2, 2]);
        assert!(!account.may_move_to(1) && account.may_move_to(0));
        account.count_given_back(1, 1);
        assert!(account.may_move_to(1));
        assert_eq!((account.request_cost(0, 1), account.request_cost(2, 512)), (0, 4_000_000));
        assert_eq!(account.requests(), 1, "one request for 512 frames");
    }

    #[test]
    fn pages_of_files_lie_where_the_file_does_and_are_nobodys_own() {
        let mut account = account(AllocationPolicy::LocalFirst);
        let frames = vec![PoolFrame { pool: 1, frame: 0 }, PoolFrame { pool: 0, frame: 0 }];
        account.share(vec![SharedRange { file: 1, first: 100, frames }]);
        let choice = account.choose_nodes(0, 100);
        assert_eq!(choice, FrameChoice { nodes: vec![2], pinned: true });
        account.count_taken(2, 1);
        assert_eq!((account.used_pages(), account.mapped_pages()), (vec![0; 3], vec![0, 1]));
        let touch = FileTouch { file: 1, page: 0, at: PoolFrame { pool: 1, frame: 0 } };
        assert_eq!((account.take_touched(), account.take_touched()), (vec![touch], vec![]));
        assert_eq!(account.list_shared(), [(100, (1, 0)), (101, (1, 1))]);
        assert_eq!(account.choose_nodes(0, 102).nodes[0], 0);
    }
}
