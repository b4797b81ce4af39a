//! What far memory tells the program that has it, and what it asks.

use crate::FarCounts;
use std::ops::Range;
use std::sync::Arc;
use terrace_types::{Bytes, Nanos, Tid};

/// Bytes that could not be read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostBytes {
    /// Offsets in the map.
    pub range: Range<u64>,
    /// Address of its first byte.
    pub address: u64,
    /// The thread that asked for it, 0 when not known.
    pub thread: Tid,
    /// Why.
    pub why: String,
}

impl std::fmt::Display for LostBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (address, thread, why) = (self.address, self.thread, &self.why);
        let bytes = self.range.end - self.range.start;
        write!(
            f,
            "far memory: {bytes} bytes at {address:#x} cannot be read back ({why}); thread \
            {thread} gets SIGBUS"
        )
    }
}

/// Listeners that are notified of lost bytes, before the signal.
pub type OnLost = Arc<dyn Fn(&LostBytes) + Send + Sync>;

/// Told of the counts whenever they changed, with the memory that the store uses; what it returns
/// is the memory of the map from now on.
pub type OnCounts = Arc<dyn Fn(&FarCounts, Bytes) -> Option<Bytes> + Send + Sync>;

/// For how long programs have stalled for want of memory so far; none when that cannot be read.
pub type StallClock = Arc<dyn Fn() -> Option<Nanos> + Send + Sync>;
