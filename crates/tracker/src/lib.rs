//! What trackers have in common, live and simulated: how long accessed bits are sampled, when huge
//! pages are sampled by themselves, what samples of dirty bits say of writes, and pages from
//! samples of accesses. Reads no page table; `track` and the simulator do.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod huge_pages;
pub mod sample_length;
mod sample_map;
pub mod spots;
mod write_rate;
pub mod write_samples;

pub use sample_map::{SampleMap, SamplePeriods, SampledAccess};
