//! A fabric between hosts and memory: endpoints, switches and links in a tree, with queues.
//!
//! Pure: messages go in with the time at which they are sent, deliveries come out with the time at
//! which they arrive. The crate does not know what a message means.
//!
//! - [`topology`]: names, links and switches; checks that they form one tree; routes.
//! - [`queues`]: messages in flight, one queue at each direction of a link and at each switch,
//!   service by arrival or by weight, caps by traffic class.
//! - [`reservations`]: arrivals known at once, for senders that run ahead of each other.
//! - [`loads`]: counts of messages in windows of time: waits in closed form, shares of full queues.
//! - [`analysis`]: closed forms for such queues, to judge results by.
//!
//! Store and forward: a message leaves a link or switch when its last byte does. Times inside are
//! `u64` picoseconds, as in `terrace-model`; descriptions use [`terrace_types::Nanos`].
//! Deterministic: equal messages give equal deliveries. The order in which messages are submitted
//! matters to capped classes only.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod analysis;
mod error;
pub mod loads;
pub mod queues;
pub mod reservations;
mod station;
pub mod topology;

pub use error::FabricError;
pub use loads::{FabricLoads, PairOutlook, PairTraffic, QueueLoad};
pub use queues::{ClassShare, FabricDelivery, FabricMessage, FabricQueues, TrafficClass};
pub use reservations::FabricReservations;
pub use station::{ServiceOrder, StationCounters};
pub use topology::{FabricTopology, LinkDescription, VertexDescription, VertexId, VertexKind};

/// Picoseconds in a nanosecond.
pub const PS_PER_NS: u64 = 1000;
