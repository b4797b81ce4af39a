//! The vocabulary of Terrace: ids, units, half-open page ranges, the snapshot a policy
//! sees and the plan it returns; and how text is laid out for a terminal. No I/O, no dependency
//! on any other crate.
//!
//! Units live in types: [`Bytes`], [`Nanos`], [`BytesPerSec`], [`Heat`] (accesses per second).
//! Page numbers ([`Vpn`]) count *base pages* of the size the snapshot states.
#![forbid(unsafe_code)]

pub mod buckets;
mod heat;
mod ids;
mod page_move;
mod plan;
mod policy_id;
mod runs;
mod snapshot;
pub mod text;
mod units;

pub use heat::Heat;
pub use ids::{CpuId, NodeId, Pid, Tid, Vpn, VpnRange};
pub use page_move::{MoveCall, PageStatus};
pub use plan::{Decision, Move, MoveReason, Plan, PolicyWork, Request};
pub use policy_id::{
    BaselineId, BaselineKind, Contender, PolicyId, UnknownPolicyError, FAR_STORE_PREFIX,
};
pub use runs::run_length;
pub use snapshot::{
    Area, BitSource, CellCount, Confidence, PageFlags, PageStat, Snapshot, ThroughputSource,
    TierState, TrackerVisibility,
};
pub use units::{Bytes, BytesPerSec, Nanos, Seed, Tick};
