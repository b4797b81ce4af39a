//! Hosts that share pools of memory behind a fabric: which frames a host gets, and what that costs.
//!
//! Pure: a system file's text, machines and inputs go in, results come out. Each host is a world of
//! `terrace-sim`, in which every pool is one more node of memory.
//!
//! - [`system`]: the system file: hosts, pools, fabric, manager; presets.
//! - [`allocation`]: which pool a host's next frame comes from.
//! - [`host`]: a host's machine with the pools as nodes, and the account of its frames.
//! - [`contention`]: queues of the fabric, of pools' banks and of the manager.
//! - [`run`]: all hosts side by side, in time windows, on any number of threads.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod allocation;
pub mod contention;
mod error;
pub mod host;
pub mod run;
pub mod system;

pub use allocation::{AllocationPolicy, AllocationSequence, PlaceFigures};
pub use contention::QueueUse;
pub use error::PoolError;
pub use host::HostPlan;
pub use run::{simulate_system, HostOutcome, PoolTraffic, SystemOutcome, SystemPlan};
pub use system::{system_preset_names, system_preset_text, SystemDescription};
