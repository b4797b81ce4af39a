//! A kernel of any number of nodes, for tests: pages, policies and mappings as Linux keeps them, no
//! memory behind.

use crate::kernel::{AllocatorKernel, MoveCounts, NodeRun};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use terrace_machine::Machine;
use terrace_sys::{MemPolicy, SysError};
use terrace_types::{Bytes, CpuId, NodeId, Tick};

const PAGE: usize = 4096;

#[derive(Debug, Default)]
struct State {
    free: BTreeMap<NodeId, u64>,
    headroom: Option<u64>,
    cpus: Vec<CpuId>,
    /// Mappings: start to end, policy, huge pages.
    mappings: BTreeMap<usize, (usize, MemPolicy, bool)>,
    pages: BTreeMap<usize, NodeId>,
    next: usize,
    tick: u64,
    /// Bytes that another process takes when a populate comes.
    thief: BTreeMap<NodeId, u64>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct FakeKernel(Mutex<State>);

impl FakeKernel {
    /// All nodes of a machine, all memory free; the thread may run on the CPUs of the first node
    /// with any.
    pub fn from_machine(machine: &Machine) -> Self {
        let nodes = machine.nodes.iter().filter(|n| n.capacity > Bytes::ZERO);
        let free = nodes.map(|n| (n.id, n.capacity.get())).collect();
        let cpus = machine
            .nodes
            .iter()
            .find(|n| !n.cpus.is_empty())
            .map(|n| n.cpus.clone())
            .unwrap_or_default();
        Self(Mutex::new(State { free, cpus, next: 1 << 40, ..State::default() }))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn run_on(&self, cpus: Vec<CpuId>) {
        self.state().cpus = cpus;
    }

    pub fn set_free(&self, node: u16, bytes: Bytes) {
        self.state().free.insert(NodeId(node), bytes.get());
    }

    pub fn set_headroom(&self, bytes: Bytes) {
        self.state().headroom = Some(bytes.get());
    }

    /// At the next populate another process is faster.
    pub fn steal(&self, node: u16, bytes: Bytes) {
        self.state().thief.insert(NodeId(node), bytes.get());
    }

    /// The node goes away, as `memory_hotplug` has it: its pages go to others, and it cannot be
    /// named any more.
    pub fn take_offline(&self, node: u16) {
        let mut state = self.state();
        state.free.remove(&NodeId(node));
        let homeless: Vec<usize> =
            state.pages.iter().filter(|(_, n)| n.0 == node).map(|(at, _)| *at).collect();
        for at in homeless {
            state.pages.remove(&at);
            state.fault(&(at..at + PAGE), &MemPolicy::Default);
        }
    }

    pub fn mappings(&self) -> usize {
        self.state().mappings.len()
    }

    /// Whether huge pages are welcome at this address.
    pub fn welcomes_huge(&self, at: usize) -> bool {
        self.state().mappings.range(..=at).next_back().is_some_and(|(_, m)| m.2)
    }

    /// What a program's touch of all of `part` does.
    pub fn touch(&self, part: Range<usize>) {
        self.state().fault(&part, &MemPolicy::Default);
    }

    /// Bytes of `part` by node.
    pub fn on(&self, part: Range<usize>, node: u16) -> u64 {
        let state = self.state();
        (state.pages.range(part).filter(|(_, n)| n.0 == node).count() * PAGE) as u64
    }
}

impl State {
    /// Linux leaves out the nodes that are not there, and refuses when none is left.
    fn may_name(&self, policy: &MemPolicy) -> Result<(), SysError> {
        match policy {
            MemPolicy::Prefer(nodes) | MemPolicy::Interleave(nodes)
                if !nodes.iter().any(|n| self.free.contains_key(n)) =>
            {
                Err(SysError::from_errno(
                    "mbind",
                    format!("{nodes:?}"),
                    22,
                    "give nodes that are there",
                ))
            }
            _ => Ok(()),
        }
    }

    fn policy(&self, at: usize) -> MemPolicy {
        self.mappings
            .range(..=at)
            .next_back()
            .filter(|(_, m)| at < m.0)
            .map_or(MemPolicy::Default, |(_, m)| m.1.clone())
    }

    fn fault(&mut self, part: &Range<usize>, thread: &MemPolicy) {
        for at in (part.start..part.end).step_by(PAGE) {
            if self.pages.contains_key(&at) {
                continue;
            }
            let policy = match self.policy(at) {
                MemPolicy::Default => thread.clone(),
                own => own,
            };
            let wished = match policy {
                MemPolicy::Default => Vec::new(),
                MemPolicy::Prefer(nodes) => nodes,
                MemPolicy::Interleave(mut nodes) => {
                    let first = (at / PAGE) % nodes.len();
                    nodes.rotate_left(first);
                    nodes
                }
            };
            let all: Vec<NodeId> = wished.into_iter().chain(self.free.keys().copied()).collect();
            let node =
                all.into_iter().find(|n| self.free.get(n).is_some_and(|f| *f >= PAGE as u64));
            if let Some(node) = node {
                self.pages.insert(at, node);
                *self.free.entry(node).or_default() -= PAGE as u64;
            }
        }
    }

    /// Cuts mappings so that `part` is its own, changes them and joins equal neighbours, as the
    /// kernel does.
    fn change(&mut self, part: &Range<usize>, change: impl Fn(&mut (usize, MemPolicy, bool))) {
        for cut in [part.start, part.end] {
            if let Some((&start, whole)) = self.mappings.range(..cut).next_back() {
                let whole = whole.clone();
                if whole.0 > cut {
                    self.mappings.insert(start, (cut, whole.1.clone(), whole.2));
                    self.mappings.insert(cut, whole);
                }
            }
        }
        for (_, mapping) in self.mappings.range_mut(part.clone()) {
            change(mapping);
        }
        let mut joined: BTreeMap<usize, (usize, MemPolicy, bool)> = BTreeMap::new();
        for (start, m) in std::mem::take(&mut self.mappings) {
            match joined.last_entry() {
                Some(mut last)
                    if last.get().0 == start && last.get().1 == m.1 && last.get().2 == m.2 =>
                {
                    last.get_mut().0 = m.0;
                }
                _ => {
                    joined.insert(start, m);
                }
            }
        }
        self.mappings = joined;
    }
}

impl AllocatorKernel for FakeKernel {
    fn page_size(&self) -> Bytes {
        Bytes(PAGE as u64)
    }

    fn nodes(&self) -> Vec<NodeId> {
        self.state().free.keys().copied().collect()
    }

    fn free_memory(&self) -> Vec<(NodeId, Bytes)> {
        self.state().free.iter().map(|(n, f)| (*n, Bytes(*f))).collect()
    }

    fn headroom(&self) -> Option<Bytes> {
        self.state().headroom.map(Bytes)
    }

    fn cpus(&self) -> Vec<CpuId> {
        self.state().cpus.clone()
    }

    fn cpu(&self) -> Option<CpuId> {
        self.state().cpus.first().copied()
    }

    fn reserve(&self, len: Bytes, align: Bytes) -> Result<Range<usize>, SysError> {
        let mut state = self.state();
        let start = state.next.next_multiple_of(align.get() as usize);
        let end = start + len.get() as usize;
        state.next = end + PAGE;
        state.mappings.insert(start, (end, MemPolicy::Default, false));
        Ok(start..end)
    }

    fn bind(&self, part: &Range<usize>, policy: &MemPolicy) -> Result<(), SysError> {
        let mut state = self.state();
        state.may_name(policy)?;
        state.change(part, |m| m.1 = policy.clone());
        Ok(())
    }

    fn huge(&self, part: &Range<usize>, welcome: bool) {
        self.state().change(part, |m| m.2 = welcome);
    }

    fn discard(&self, part: &Range<usize>) -> Result<(), SysError> {
        let mut state = self.state();
        let gone: Vec<(usize, NodeId)> =
            state.pages.range(part.clone()).map(|(a, n)| (*a, *n)).collect();
        for (at, node) in gone {
            state.pages.remove(&at);
            *state.free.entry(node).or_default() += PAGE as u64;
        }
        Ok(())
    }

    fn populate(&self, part: &Range<usize>, policy: &MemPolicy) -> Result<(), SysError> {
        let mut state = self.state();
        state.may_name(policy)?;
        for (node, bytes) in std::mem::take(&mut state.thief) {
            let free = state.free.entry(node).or_default();
            *free = free.saturating_sub(bytes);
        }
        state.fault(part, policy);
        Ok(())
    }

    fn resident(&self, part: &Range<usize>) -> Result<Vec<NodeRun>, SysError> {
        let mut runs: Vec<NodeRun> = Vec::new();
        for (at, node) in self.state().pages.range(part.clone()) {
            match runs.last_mut() {
                Some(last) if last.range.end == *at && last.node == *node => last.range.end += PAGE,
                _ => runs.push(NodeRun { range: *at..at + PAGE, node: *node }),
            }
        }
        Ok(runs)
    }

    fn move_to(&self, parts: &[Range<usize>], to: NodeId) -> MoveCounts {
        let mut state = self.state();
        let mut done = MoveCounts::default();
        for at in parts.iter().flat_map(|p| p.clone().step_by(PAGE)) {
            let Some(from) = state.pages.get(&at).copied() else { continue };
            if state.free.get(&to).is_some_and(|f| *f >= PAGE as u64) {
                *state.free.entry(to).or_default() -= PAGE as u64;
                *state.free.entry(from).or_default() += PAGE as u64;
                state.pages.insert(at, to);
                done.moved += Bytes(PAGE as u64);
            } else {
                done.stayed += Bytes(PAGE as u64);
            }
        }
        done
    }

    fn now(&self) -> Tick {
        let mut state = self.state();
        state.tick += 1000;
        Tick(state.tick)
    }
}
