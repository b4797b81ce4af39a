//! Far memory: a range larger than the memory given to it, its rest compressed or on an SSD.
#![forbid(unsafe_code)]

pub mod geometry;
pub mod pager;
mod stats;

pub use stats::Counts;
