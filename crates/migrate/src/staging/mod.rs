//! Staging: blocks of data in slow memory are copied to fast memory ahead of the threads that work
//! on them, and back behind them, after section V of Perarnau et al., "Exploring Data Migration for
//! Future Deep-Memory Many-Core Systems".
//!
//! ```text
//!   slow  | k-1 | k | k+1 | k+2 | ...        one range for each block
//!            ^         |     |
//!     return |         | bring (non-temporal copies, by migrators)
//!            |         v     v
//!   fast  [ slot ] [ slot ] [ slot ] ...     workers run the kernel on whole slots
//! ```
//!
//! [`stage_update`] returns what the kernel made of each block, [`stage_read`] does not. How many
//! threads work and how many copy is chosen by [`model::decide`] from the machine's figures and
//! adapted while running by [`adapt::ThreadTuner`], both pure. Where addresses must not change
//! ([`StagingOptions::keep_addresses`]) pages are moved instead, by [`crate::Bulk`]. Where staging
//! cannot pay, the kernel runs in place and [`StagingReport::mode`] says why.

pub mod adapt;
mod api;
mod blocks;
mod copies;
mod copy;
mod divide;
mod fast;
mod in_place;
pub mod model;
mod pipeline;
mod places;
mod schedule;
mod touch;

pub use api::{StageError, StagingMode, StagingOptions, StagingReport};
pub use blocks::check_blocks;
pub use copy::{copy, past_caches};
pub use model::{
    copies_at_once, decide, expected, Costs, NoStagingReason, StagingDecision, StagingFigures,
    StagingWork, ThreadSplit, Threads,
};
pub use pipeline::{stage_held, stage_read, stage_update, Buffers};

#[cfg(test)]
mod pipeline_tests;
#[cfg(test)]
mod sequence_tests;
