//! A request of an element as its instruction makes it.

use crate::execute::TargetRegister;
use crate::lookaside::ObjectMemory;
use crate::protocol::RemoteRequest;

/// Where an answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyTarget {
    Nowhere,
    Register(TargetRegister),
    /// Elements of so many bytes, so many bytes apart.
    Memory {
        address: u64,
        bytes: u8,
        step: i64,
    },
}

/// A request of an element, addressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IssuedAccess {
    pub memory: ObjectMemory,
    /// The element that serves it.
    pub server: usize,
    pub request: RemoteRequest,
    pub target: ReplyTarget,
    /// A bulk transfer's first element in the memory of whoever issues it.
    pub local: Option<u64>,
}
