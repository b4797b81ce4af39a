//! What an element counts.

use crate::clock::ElementTime;

/// What an element did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ElementStatistics {
    /// Instructions of all its threads.
    pub instructions: u64,
    /// Extended loads and stores of its own memory.
    pub local_accesses: u64,
    /// Extended loads from other elements.
    pub remote_loads: u64,
    /// Extended stores to other elements.
    pub remote_stores: u64,
    /// Bytes of both.
    pub remote_bytes: u64,
    /// Times it waited for others.
    pub waits: u64,
    /// Translations answered by the look-aside buffer.
    pub lookaside_hits: u64,
    /// Translations that it missed.
    pub lookaside_misses: u64,
    /// Where its time went; `None` without a model of time.
    pub time: Option<ElementTime>,
}
