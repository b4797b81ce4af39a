//! Which nodes an arena's pages come from, and what is needed of the machine to make it so.

use super::error::{ArenaError, Nodes};
use crate::mover::mover;
use std::fmt;
use terrace_sys::{
    bind_range, query_pages, zones, Category, MoveCall, NodePolicy, PageMap, PageStatus, Root,
    SysError,
};
use terrace_types::{Bytes, Nanos, NodeId, Pid, Vpn, VpnRange};

/// Nodes of an arena, and how they share its pages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Devices {
    /// Wherever the touching thread's own policy says; nothing is bound.
    #[default]
    Anywhere,
    /// These nodes and no others. A page that is touched when all are full gets the process killed,
    /// as the kernel does for any bound memory: know the space before.
    Only(Vec<NodeId>),
    /// These nodes while they have space, then the nearest.
    Prefer(Vec<NodeId>),
    /// These nodes in turn, page by page.
    Interleave(Vec<NodeId>),
    /// The first node until it is full, then the second, and so on: segment by segment, by the
    /// space that a node has when a segment is begun. Nothing is killed: a page that finds its node
    /// full goes to the nearest.
    Spill(Vec<NodeId>),
}

impl Devices {
    /// The nodes named, in order.
    #[must_use]
    pub fn nodes(&self) -> &[NodeId] {
        match self {
            Self::Anywhere => &[],
            Self::Only(nodes)
            | Self::Prefer(nodes)
            | Self::Interleave(nodes)
            | Self::Spill(nodes) => nodes,
        }
    }

    /// What is bound, in the order it is filled.
    pub(crate) fn policies(&self) -> Vec<Policy> {
        let one = |mode, nodes: &[NodeId]| vec![Policy { mode, nodes: NodeSet::of(nodes) }];
        match self {
            Self::Anywhere => one(NodePolicy::Default, &[]),
            Self::Only(nodes) => one(NodePolicy::Bind, nodes),
            Self::Prefer(nodes) => one(NodePolicy::Preferred, nodes),
            Self::Interleave(nodes) => one(NodePolicy::Interleave, nodes),
            Self::Spill(nodes) => {
                nodes.iter().flat_map(|n| one(NodePolicy::Preferred, &[*n])).collect()
            }
        }
    }

    /// Whether the nodes make sense on a machine with `there`.
    pub(crate) fn check(&self, there: &[NodeId]) -> Result<(), ArenaError> {
        let nodes = self.nodes();
        if nodes.is_empty() && *self != Self::Anywhere {
            return Err(ArenaError::Devices("no node is named"));
        }
        if nodes.len() > MAX_SPILL && matches!(self, Self::Spill(_)) {
            return Err(ArenaError::Devices("a spill order has 16 nodes at most"));
        }
        for (at, node) in nodes.iter().enumerate() {
            if nodes[..at].contains(node) {
                return Err(ArenaError::Devices("a node is named twice"));
            }
            if !there.contains(node) || usize::from(node.0) >= NodeSet::MAX_NODES {
                return Err(ArenaError::NoNode(*node));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            Self::Anywhere => return f.write_str("anywhere"),
            Self::Only(_) => "only",
            Self::Prefer(_) => "prefer",
            Self::Interleave(_) => "interleave",
            Self::Spill(_) => "spill",
        };
        write!(f, "{word} {}", Nodes(self.nodes()))
    }
}

/// Entries of a spill order at most.
pub(crate) const MAX_SPILL: usize = 16;

/// A set of nodes without memory of its own: it is kept where nothing may allocate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NodeSet([u64; 16]);

impl NodeSet {
    /// Nodes are numbered below this (the kernel's `MAX_NUMNODES` at its largest).
    pub(crate) const MAX_NODES: usize = 1024;

    pub(crate) fn of(nodes: &[NodeId]) -> Self {
        let mut set = [0; 16];
        for node in nodes {
            if let Some(word) = set.get_mut(usize::from(node.0) / 64) {
                *word |= 1 << (node.0 % 64);
            }
        }
        Self(set)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = NodeId> {
        (0..Self::MAX_NODES as u16)
            .filter(move |n| self.0[usize::from(*n) / 64] >> (n % 64) & 1 == 1)
            .map(NodeId)
    }
}

/// What a range of addresses is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) mode: NodePolicy,
    pub(crate) nodes: NodeSet,
}

impl Policy {
    /// Binds a range; a default policy on a fresh range needs no call.
    pub(crate) fn apply(
        &self,
        ops: &dyn NodeOps,
        start: usize,
        len: usize,
    ) -> Result<(), SysError> {
        let mut nodes = [NodeId(0); NodeSet::MAX_NODES];
        let mut count = 0;
        for node in self.nodes.iter() {
            nodes[count] = node;
            count += 1;
        }
        ops.bind(start, len, self.mode, &nodes[..count])
    }
}

/// What arenas need of the machine's nodes; the kernel, or a stand-in.
pub trait NodeOps: Send + Sync {
    /// Nodes with memory.
    fn nodes(&self) -> Vec<NodeId>;
    /// Space on a node now; `None` where nobody can tell.
    fn free_bytes(&self, node: NodeId) -> Option<Bytes>;
    /// From where pages of a range shall come when they are first touched; pages there stay.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn bind(
        &self,
        start: usize,
        len: usize,
        policy: NodePolicy,
        nodes: &[NodeId],
    ) -> Result<(), SysError>;
    /// Runs of pages of `range` that have memory, in order; the whole range where nobody can tell.
    fn touched(&self, range: VpnRange) -> Vec<VpnRange>;
    /// Where each page is; untouched pages are errors.
    ///
    /// # Errors
    /// When the kernel refuses to tell.
    fn locate(&self, pages: &[Vpn]) -> Result<Vec<PageStatus>, SysError>;
    /// Asks to move each page; everything is a value.
    fn move_to(&self, pages: &[Vpn], to: NodeId) -> MoveCall;
    /// Base pages for a call that takes about `span`, by what the machine's file says that pages
    /// cost.
    fn batch(&self, span: Nanos) -> u64;
}

/// The running kernel.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelNodes;

/// One for all: it has no state.
pub(crate) static KERNEL: KernelNodes = KernelNodes;

fn me() -> Pid {
    Pid(std::process::id() as i32)
}

impl NodeOps for KernelNodes {
    fn nodes(&self) -> Vec<NodeId> {
        zones::nodes_with_memory(&Root::live())
    }

    fn free_bytes(&self, node: NodeId) -> Option<Bytes> {
        let zones = zones::zones(&Root::live()).ok()?;
        Some(zones::free_memory(&zones, node, terrace_sys::page_size()).sure)
    }

    fn bind(
        &self,
        start: usize,
        len: usize,
        policy: NodePolicy,
        nodes: &[NodeId],
    ) -> Result<(), SysError> {
        bind_range(start, len, policy, nodes)
    }

    fn touched(&self, range: VpnRange) -> Vec<VpnRange> {
        let mut runs = Vec::new();
        let scanned = PageMap::open(&Root::live(), me()).and_then(|map| {
            map.scan(range, Category::PRESENT, Category::PRESENT, |run, _| runs.push(run))
        });
        if scanned.is_err() {
            // Older kernels cannot scan: then every page is asked for, which is slower and still
            // right.
            return vec![range];
        }
        runs
    }

    fn locate(&self, pages: &[Vpn]) -> Result<Vec<PageStatus>, SysError> {
        query_pages(me(), pages)
    }

    fn move_to(&self, pages: &[Vpn], to: NodeId) -> MoveCall {
        mover().move_pages(me(), pages, to)
    }

    fn batch(&self, span: Nanos) -> u64 {
        mover().batch(span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_make_no_sense_are_named() {
        let there = [NodeId(0), NodeId(2)];
        assert_eq!(
            Devices::Only(vec![]).check(&there),
            Err(ArenaError::Devices("no node is named"))
        );
        assert_eq!(
            Devices::Spill(vec![NodeId(0), NodeId(0)]).check(&there),
            Err(ArenaError::Devices("a node is named twice"))
        );
        assert_eq!(
            Devices::Prefer(vec![NodeId(1)]).check(&there),
            Err(ArenaError::NoNode(NodeId(1)))
        );
        assert_eq!(Devices::Interleave(vec![NodeId(2), NodeId(0)]).check(&there), Ok(()));
        assert_eq!(Devices::Anywhere.check(&[]), Ok(()));
    }

    #[test]
    fn sets_keep_their_nodes() {
        let nodes = [NodeId(3), NodeId(255), NodeId(1023)];
        assert_eq!(NodeSet::of(&nodes).iter().collect::<Vec<_>>(), nodes);
        assert_eq!(Devices::Spill(nodes.to_vec()).policies().len(), 3);
        assert_eq!(Devices::Spill(nodes.to_vec()).to_string(), "spill 3,255,1023");
    }
}
