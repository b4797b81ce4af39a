//! What a crash leaves in memory: caches with values over a recording, images of data objects, and
//! how inconsistent they are. Pure: it starts no process and opens no file.
//!
//! - [`region`]: the data objects that a program names, as its region file and image files have
//!   them.
//! - [`memory`]: caches with values: what is coherent, what memory holds.
//! - [`recording`]: a recording's accesses and events, all threads in the order of time.
//! - [`points`]: where crashes happen.
//! - [`flushes`]: what a program is taken to flush besides.
//! - [`images`]: memory at each crash, as differences.
//! - [`study`]: all of this in one pass over a recording.
//! - [`outcome`]: what became of a restart, and rates of success.
//! - [`persist`]: all images that hardware may leave, and misused flushes and fences.
//!
//! Definitions follow Ren, Wu and Li, "Understanding Application Recomputability without Crash
//! Consistency in Non-Volatile Memory", MCHPC 2018, section 3.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod contents;
pub mod flushes;
mod hash;
pub mod images;
pub mod memory;
pub mod outcome;
pub mod persist;
mod phases;
pub mod points;
pub mod recording;
pub mod region;
pub mod setup;
mod span;
pub mod stack;
pub mod study;

pub use flushes::{FlushPlace, FlushPlan};
pub use images::{ImageChain, ImageCursor};
pub use memory::{CacheSetup, CachedMemory};
pub use outcome::{RestartOutcome, SuccessRate};
pub use points::CrashSchedule;
pub use region::{DataObject, ImageLayout, ObjectKind, RegionError, RegionFile};
pub use setup::CacheSetupError;
pub use study::{CrashPoint, CrashSet, StudyError, StudyOptions};

/// Marks of `terrace_crash.h` in a recording.
pub mod mark {
    /// `start_crash()`.
    pub const START: u32 = 0xc0;
    /// `end_crash()`.
    pub const END: u32 = 0xc1;
    /// `crash_phase(0)`, which is none: `crash_phase(n)` is so many more.
    pub const PHASE: u32 = 0xd0;
    /// Phases that can be marked.
    pub const MOST_PHASES: u32 = 15;

    /// The phase that a mark begins, from 1.
    #[must_use]
    pub fn phase(id: u32) -> Option<u32> {
        id.checked_sub(PHASE).filter(|phase| (1..=MOST_PHASES).contains(phase))
    }
}
