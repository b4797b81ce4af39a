//! Caches: one of them, or any number of levels with coherence between cores. Pure.
//!
//! Lines are numbers (address divided by the line size); what they address, and what a miss costs,
//! is the caller's business. [`Cache`] is the plain one that the timing model is built from;
//! [`Hierarchy`] has everything: replacement, inclusion, write policies, MESI, prefetch, flushes,
//! and which lines are dirty where.
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

// The only unsafe code here: the host's prefetch.
#[allow(unsafe_code)]
mod ahead;
mod hierarchy;
mod level;
mod lru;
mod prefetch;
mod sets;
mod spec;

pub use ahead::ahead;
pub use hierarchy::{Hierarchy, LevelCount, MemoryTraffic, Mesi};
pub use level::{CachedLine, LineFlags, Replacement, SetAssociativeCache};
pub use lru::{Cache, LruOutcome, Victim};
pub use prefetch::Prefetch;
pub use sets::{SetSlot, Sets, TagFetch, TagUse};
pub use spec::{HierarchyError, HierarchySpec, Inclusion, LevelSpec, WritePolicy};

/// Why a cache cannot be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GeometryError {
    /// No bytes, no ways, or a line size of zero.
    Empty,
    /// The size is not a whole number of sets of this many ways.
    Uneven,
    /// Tree-PLRU with a number of ways that is no power of two, or more than 64.
    NoTree,
}

impl std::fmt::Display for GeometryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty => f.write_str("a cache needs a size, a line size and at least one way"),
            Self::Uneven => {
                f.write_str("the cache's size is not a multiple of ways times line size")
            }
            Self::NoTree => f.write_str("tree-PLRU needs 1, 2, 4, ... or 64 ways"),
        }
    }
}

impl std::error::Error for GeometryError {}
