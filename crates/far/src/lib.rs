//! Far memory: a range larger than the memory given to it, the rest of it compressed or on an SSD.
//!
//! [`FarMap`] is what programs use. Behind it are a pager that is pure ([`pager`], of
//! `terrace-policy`, so that the simulator has the same), the fault loop that does what the pager
//! decides, over `userfaultfd`, and the stores ([`store`]). The machinery that touches memory and
//! kernel is in `terrace-sys`.
//!
//! ```no_run
//! use std::sync::atomic::Ordering::Relaxed;
//! use terrace_far::{store::Compressed, FarMap};
//! use terrace_types::Bytes;
//!
//! let map = FarMap::new(Bytes::gib(8), Bytes::gib(2), Box::new(Compressed::new(Bytes::gib(4))))?;
//! map.words()[1 << 20].store(42, Relaxed);
//! # Ok::<(), terrace_far::FarError>(())
//! ```
#![forbid(unsafe_code)]

mod command;
mod contents;
mod error;
mod listeners;
mod map;
mod pager_affinity;
mod pressure;
mod service;
pub mod store;
mod takeover;
pub mod tally;
mod wake_affinity;

pub use command::Occupancy;
pub use error::FarError;
pub use listeners::{LostBytes, OnCounts, OnLost, StallClock};
pub use map::{stalls, FarMap, FarOptions, FileMapMode, Statistics};
pub use pager::{Advice, DiscardedContents};

pub use takeover::{InUse, Takeover};
pub use terrace_policy::far::{geometry, pager, FarCounts};

/// The guide's examples, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/far.md")]
struct Guide;
