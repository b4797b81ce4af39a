//! What is needed of the kernel, so that tests can stand in for it with any number of nodes.

use std::fmt::Debug;
use std::ops::Range;
use terrace_sys::{MemPolicy, SysError};
use terrace_types::{Bytes, CpuId, NodeId, Tick};

/// Pages that are there, all on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRun {
    /// Their addresses.
    pub range: Range<usize>,
    /// Their node.
    pub node: NodeId,
}

/// What became of pages that should move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MoveCounts {
    /// Bytes that are on the node now.
    pub moved: Bytes,
    /// Bytes that the kernel left where they were.
    pub stayed: Bytes,
}

/// The kernel's side of allocating.
pub trait AllocatorKernel: Debug + Send + Sync {
    /// Bytes of a base page.
    fn page_size(&self) -> Bytes;
    /// Nodes with memory that this process may use.
    fn nodes(&self) -> Vec<NodeId>;
    /// Free memory by node, above the kernel's own reserves.
    fn free_memory(&self) -> Vec<(NodeId, Bytes)>;
    /// Bytes left below the memory limits of the process's cgroups; `None` without a limit.
    fn headroom(&self) -> Option<Bytes>;
    /// CPUs that the calling thread may run on.
    fn cpus(&self) -> Vec<CpuId>;
    /// The CPU that it runs on now.
    fn cpu(&self) -> Option<CpuId>;
    /// New address space: zeroed memory, mapped when touched.
    ///
    /// # Errors
    /// When there is none.
    fn reserve(&self, len: Bytes, align: Bytes) -> Result<Range<usize>, SysError>;
    /// Future pages of `part` come from where `policy` says.
    ///
    /// # Errors
    /// What the kernel said.
    fn bind(&self, part: &Range<usize>, policy: &MemPolicy) -> Result<(), SysError>;
    /// Huge pages are welcome in `part`, or are not.
    fn huge(&self, part: &Range<usize>, welcome: bool);
    /// Gives the pages of `part` back.
    ///
    /// # Errors
    /// What the kernel said.
    fn discard(&self, part: &Range<usize>) -> Result<(), SysError>;
    /// Makes the pages of `part` present, new ones from where `policy` says unless `part` is bound.
    ///
    /// # Errors
    /// What the kernel said.
    fn populate(&self, part: &Range<usize>, policy: &MemPolicy) -> Result<(), SysError>;
    /// Pages of `part` that are there, by ascending address.
    ///
    /// # Errors
    /// What the kernel said.
    fn resident(&self, part: &Range<usize>) -> Result<Vec<NodeRun>, SysError>;
    /// Moves present pages to a node.
    fn move_to(&self, parts: &[Range<usize>], to: NodeId) -> MoveCounts;
    /// Monotonic time.
    fn now(&self) -> Tick;
}
