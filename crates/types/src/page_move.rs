//! Answers of the `move_pages` call (kernel: `mm/migrate.c`).

use crate::NodeId;

/// What the kernel said about one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageStatus {
    /// It is on this node.
    On(NodeId),
    /// The kernel gave this error number for it.
    Error(i32),
    /// The call ended before it came to this page.
    Untouched,
}

/// What one call of `move_pages` did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MoveCall {
    /// One entry a page asked for, in order.
    pub pages: Vec<PageStatus>,
    /// Pages the kernel says it left behind without naming them (its positive result).
    pub not_migrated: u64,
    /// Error number of the call as a whole; 0: none.
    pub errno: i32,
}
