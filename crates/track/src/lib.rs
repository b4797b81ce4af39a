//! The live trackers and the live target.
//!
//! | tracker | sees | needs |
//! |---|---|---|
//! | [`PageTable`] | reads and writes alike, page by page | root, x86-64, `/proc/kcore` |
//! | [`PerfSamples`] | loads and stores apart, who made them, one in so many | hardware that samples, leave to use it |
//! | [`SoftDirty`] | writes, page by page | the target's owner, CONFIG_MEM_SOFT_DIRTY |
//! | [`ZappedMappings`] | reads and writes alike, page by page | shared memory of this process, userfaultfd, Linux 6.7 |
//! | [`Damon`] | reads and writes alike, by region (or page by page, dearly) | root, CONFIG_DAMON_VADDR, tracefs |
//!
//! [`LiveTrackers`] runs those that work and keeps them to a share of one core.
#![forbid(unsafe_code)]

mod budget;
mod clock;
mod damon;
mod large;
mod live;
mod page_table;
mod perf;
mod runs;
mod soft_dirty;
mod spots;
mod target;
mod tree;
mod written;
mod zapped;

pub use budget::Budget;
pub use clock::{AttachedProcess, LiveClock, Waiter};
pub use damon::{Damon, DamonMode};
pub use live::{LiveTracker, LiveTrackers, TrackerChoice};
pub use page_table::PageTable;
pub use perf::{KeptSample, KeptSamples, PerfSamples, PerfSettings, SampleLosses};
pub use soft_dirty::SoftDirty;
pub use target::{LiveTarget, TierNodes};
pub use tree::ProcessTree;
pub use written::TierWriteCounter;
pub use zapped::ZappedMappings;
