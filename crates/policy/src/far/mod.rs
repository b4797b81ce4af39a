//! Memory with something slow behind it: what is in memory, what goes, what comes ([`pager`]), in
//! which pieces ([`geometry`]).
//!
//! Not a policy of placement: nothing here sees a snapshot of a program. It learns of faults and
//! says what to do, over the live kernel (`terrace-far`) and over the simulator's page tables
//! (`terrace-sim`) alike.

pub mod geometry;
pub mod pager;
mod stats;

pub use stats::FarCounts;
