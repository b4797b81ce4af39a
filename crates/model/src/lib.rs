//! The physics of a tiered machine: caches in front of nodes, cores that overlap misses, nodes
//! whose bandwidth is shared. Pure and deterministic: time goes in and comes out, in picoseconds.
//!
//! * A core executes an instruction in `ns_per_instruction` and keeps up to `outstanding_misses`
//!   misses in flight within a window of [`WINDOW`] instructions, so an access costs
//!   max(compute, transfer), never their sum (interval model; Eyerman et al., TOCS 27(2), 2009).
//! * A miss whose address was loaded by an earlier miss waits for it: that is what makes a
//!   pointer chase read the full latency. Dependence through arithmetic is not seen.
//! * Lines of a detected sequential stream come at the node's bandwidth, without its latency.
//! * Node bandwidth is shared by all cores through a calendar of short buckets, so that cores
//!   simulated one after the other within a quantum contend as if they ran side by side.
#![forbid(unsafe_code)]

mod calendar;
mod core;
mod memory_mode;
mod physical;
mod system;

pub use crate::core::WINDOW;
pub use physical::PhysicalMap;
pub use system::{Access, Counters, Options, SetupError, System};
