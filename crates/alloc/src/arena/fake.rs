//! Nodes that are not there, for tests on machines with one: pages have memory as the kernel says,
//! and lie on nodes as this table says.

use super::place::NodeOps;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use terrace_sys::{MoveCall, NodePolicy, PageMap, PageStatus, Root, SysError};
use terrace_types::{Bytes, NodeId, Pid, Vpn, VpnRange};

/// Made-up nodes. Leak one to have it for as long as arenas want:
/// `Box::leak(Box::new(FakeNodes::new(..)))`.
#[derive(Debug, Default)]
pub struct FakeNodes {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free_memory: BTreeMap<NodeId, u64>,
    bound: Vec<(VpnRange, NodePolicy, Vec<NodeId>)>,
    pages: BTreeMap<Vpn, NodeId>,
    stuck: BTreeSet<Vpn>,
    refuse_bind: bool,
    calls: u64,
    asked: u64,
    slow: Option<std::time::Duration>,
}

impl FakeNodes {
    /// Nodes with space for so many pages each.
    #[must_use]
    pub fn new(free_memory: &[(NodeId, u64)]) -> Self {
        let fake = Self::default();
        fake.state().free_memory = free_memory.iter().copied().collect();
        fake
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The page at this address will not move.
    pub fn stick(&self, address: *const u8) {
        let page = Vpn(address as u64 / terrace_sys::page_size().get());
        self.state().stuck.insert(page);
    }

    /// Pages that would not move do so again.
    pub fn unstick(&self) {
        self.state().stuck.clear();
    }

    /// Binding is refused from now on, or no longer.
    pub fn refuse_bind(&self, refuse: bool) {
        self.state().refuse_bind = refuse;
    }

    /// Each call that moves pages takes so long.
    pub fn slow_down(&self, time: std::time::Duration) {
        self.state().slow = Some(time);
    }

    /// Forgets where pages are, so that what ended arenas had takes no free space.
    pub fn forget_pages(&self) {
        self.state().pages.clear();
    }

    /// Calls that moved pages, and pages they were asked to move.
    #[must_use]
    pub fn calls(&self) -> (u64, u64) {
        let state = self.state();
        (state.calls, state.asked)
    }

    /// The node of the page at this address, once it has memory.
    #[must_use]
    pub fn node_of(&self, address: *const u8) -> Option<NodeId> {
        let page = Vpn(address as u64 / terrace_sys::page_size().get());
        match self.locate(&[page]).ok()?.first()? {
            PageStatus::On(node) => Some(*node),
            _ => None,
        }
    }
}

impl State {
    fn free(&self, node: NodeId) -> u64 {
        let used = self.pages.values().filter(|n| **n == node).count() as u64;
        self.free_memory.get(&node).map_or(0, |free_bytes| free_bytes.saturating_sub(used))
    }

    /// Where first touch puts a page.
    fn place(&mut self, page: Vpn) -> NodeId {
        if let Some(node) = self.pages.get(&page) {
            return *node;
        }
        let policy = self.bound.iter().rev().find(|(range, ..)| range.contains(page));
        let all: Vec<NodeId> = self.free_memory.keys().copied().collect();
        let mut order = match policy {
            Some((_, NodePolicy::Interleave, nodes)) => vec![nodes[page.0 as usize % nodes.len()]],
            Some((_, NodePolicy::Bind | NodePolicy::Preferred, nodes)) => nodes.clone(),
            _ => Vec::new(),
        };
        order.extend(all);
        let node = order.iter().copied().find(|n| self.free(*n) > 0).unwrap_or(order[0]);
        self.pages.insert(page, node);
        node
    }
}

impl NodeOps for FakeNodes {
    fn batch(&self, _span: terrace_types::Nanos) -> u64 {
        16_384
    }

    fn nodes(&self) -> Vec<NodeId> {
        self.state().free_memory.keys().copied().collect()
    }

    fn free_bytes(&self, node: NodeId) -> Option<Bytes> {
        let page = terrace_sys::page_size().get();
        Some(Bytes(self.state().free(node) * page))
    }

    fn bind(
        &self,
        start: usize,
        len: usize,
        policy: NodePolicy,
        nodes: &[NodeId],
    ) -> Result<(), SysError> {
        let mut state = self.state();
        if state.refuse_bind {
            return Err(SysError::from_errno("mbind", "a range", 1, "allow mbind in the sandbox"));
        }
        let page = terrace_sys::page_size().get();
        let range = VpnRange::new(Vpn(start as u64 / page), Vpn((start + len) as u64 / page));
        // What is covered counts no more.
        state.bound.retain(|(old, ..)| old.start < range.start || old.end > range.end);
        state.bound.push((range, policy, nodes.to_vec()));
        Ok(())
    }

    fn touched(&self, range: VpnRange) -> Vec<VpnRange> {
        let mut entries = Vec::new();
        let me = Pid(std::process::id() as i32);
        let read = PageMap::open(&Root::live(), me).and_then(|map| map.read(range, &mut entries));
        if read.is_err() {
            return vec![range];
        }
        let mut state = self.state();
        let mut runs: Vec<VpnRange> = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            let page = Vpn(range.start.0 + at as u64);
            // Bit 63 of pagemap: the page has memory.
            if entry.0 >> 63 == 0 {
                state.pages.remove(&page);
                continue;
            }
            state.place(page);
            match runs.last_mut() {
                Some(run) if run.end == page => run.end = Vpn(page.0 + 1),
                _ => runs.push(VpnRange::new(page, Vpn(page.0 + 1))),
            }
        }
        runs
    }

    fn locate(&self, pages: &[Vpn]) -> Result<Vec<PageStatus>, SysError> {
        Ok(pages
            .iter()
            .map(|page| {
                let present = !self.touched(VpnRange::new(*page, Vpn(page.0 + 1))).is_empty();
                let state = self.state();
                match state.pages.get(page) {
                    Some(node) if present => PageStatus::On(*node),
                    _ => PageStatus::Error(2),
                }
            })
            .collect())
    }

    fn move_to(&self, pages: &[Vpn], to: NodeId) -> MoveCall {
        let slow = self.state().slow;
        if let Some(time) = slow {
            std::thread::sleep(time);
        }
        let located = self.locate(pages).unwrap_or_default();
        let mut state = self.state();
        state.calls += 1;
        state.asked += pages.len() as u64;
        let mut left = state.free(to);
        let mut statuses = Vec::with_capacity(pages.len());
        for (page, at) in pages.iter().zip(located) {
            let status = match at {
                PageStatus::On(node) if node == to => at,
                PageStatus::On(_) if state.stuck.contains(page) => PageStatus::Error(16),
                PageStatus::On(_) if left == 0 => PageStatus::Error(12),
                PageStatus::On(_) => {
                    left -= 1;
                    state.pages.insert(*page, to);
                    PageStatus::On(to)
                }
                other => other,
            };
            statuses.push(status);
        }
        MoveCall { pages: statuses, not_migrated: 0, errno: 0 }
    }
}
