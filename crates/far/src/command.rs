//! What a map asks of the pager's thread, and what both share.

use crate::pager::{Advice, DiscardedContents};
use crate::FarCounts;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use terrace_sys::{FarArea, OneShotReply, WakeDescriptor};
use terrace_types::Bytes;

/// Whether pages may already be present in memory that is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occupancy {
    /// It was just mapped and has not been touched.
    Empty,
    /// Pages may be present; their contents are kept.
    Pages,
}

/// What the program asks of the thread.
#[derive(Debug)]
pub(crate) enum Command {
    Flush(Arc<OneShotReply>),
    Advise(Range<u64>, Advice, Arc<OneShotReply>),
    Pin(Range<u64>, bool, Arc<OneShotReply>),
    Detach(Range<u64>, DiscardedContents, Arc<OneShotReply>),
    /// The pages that are there are taken over too, where there may be some.
    Attach(Range<u64>, Occupancy, Arc<OneShotReply>),
    Budget(Bytes),
    /// Everything into memory, and no eviction until the next `Budget`.
    Gather(Arc<OneShotReply>),
    Stop,
}

/// What the thread and the map share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub area: FarArea,
    pub bell: WakeDescriptor,
    pub counts: Mutex<ServiceReport>,
}

/// What the thread tells of itself.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ServiceReport {
    pub counts: FarCounts,
    /// Memory in which the store keeps data, and all accounts together.
    pub store_memory: Bytes,
    pub metadata: Bytes,
}
