//! Hosts that share pools of memory behind a fabric: which frames a host gets, and what that costs.
//!
//! Pure: a system file's text, machines and inputs go in, results come out. Each host is a world of
//! `terrace-sim`, in which every pool is one more node of memory.
//!
//! - [`system`]: the system file: hosts, pools, fabric, manager; presets. `check`: its values.
//! - [`allocation`]: which pool a host's next frame comes from.
//! - [`manager`]: free frames of the pools, whose the others are, files that hosts share.
//! - [`host`]: a host's machine with the pools as nodes; `account`: its frames.
//! - [`contention`]: queues of the fabric, of pools' banks, of checks and of the manager.
//! - [`shootdown`]: pages of files that move between pools, with all hosts that have them mapped.
//! - [`sharing`]: written memory that hosts keep coherent by software; stale reads.
//! - `file_use`: who touches and writes files, and may not.
//! - `spread`: distributions of latencies.
//! - [`run`]: all hosts side by side, in time windows; `gate` and `record`: one of them.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod account;
pub mod allocation;
mod check;
pub mod contention;
mod error;
mod file_use;
mod gate;
pub mod host;
pub mod manager;
mod outcome;
mod record;
pub mod run;
pub mod sharing;
pub mod shootdown;
mod spread;
pub mod system;

pub use allocation::{AllocationPolicy, AllocationSequence, PlaceFigures, ProfileRank};
pub use contention::{QueueUse, StationUse};
pub use error::{AccessRefusal, PoolError};
pub use file_use::{SharedFileUse, UnguardedPage};
pub use host::HostPlan;
pub use manager::{FrameOwner, ManagerError, MemoryManager, PoolFrame};
pub use outcome::{HostOutcome, PoolTraffic, ShootdownTotals, SwapTotals, TranslationTotals};
pub use run::{simulate_system, SystemOutcome, SystemPlan};
pub use sharing::{simulate_sharing, SharingOutcome, SharingProgram, StaleRead};
pub use shootdown::{FileMoveTotals, ShootdownLatencies, ShootdownRound};
pub use spread::LatencySpread;
pub use system::{
    system_preset_names, system_preset_text, AccessDescription, AccessScheme, SharedFileEntry,
    ShootdownChoice, SwapDescription, SystemDescription,
};
