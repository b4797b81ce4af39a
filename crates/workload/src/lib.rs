//! The named workloads, each algorithm once, generic over the [`WordMemory`] it runs on: real
//! arrays in the lab and the benches, events in a simulator. Deterministic for a seed; knows no
//! policy.
//!
//! A workload is an [`Algorithm`]: it says how many words it needs, prepares them (this is the
//! *first touch* that a kernel places pages by), then runs in short steps on several threads, and
//! at the end checks what it computed. Time is an argument of each step, never asked for.
//!
//! ```
//! use terrace_workload::{run_serially, Heap, WorkloadSpec};
//! let spec = WorkloadSpec::parse("skew,accesses=10k,fast=1MiB,seed=7")?;
//! let first = run_serially(&spec, Heap::new)?;
//! assert_eq!(first.checksum, run_serially(&spec, Heap::new)?.checksum);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod algorithm;
mod arena;
mod chase;
mod drive;
mod graph;
mod kronecker;
mod memory;
mod npb;
mod pace;
mod pagerank;
mod random;
mod roi;
mod scan;
mod scatter;
mod shift;
mod skew;
mod spec;
mod stream;
mod team;

pub use algorithm::{Algorithm, ThreadStep, WorkloadResult, WrongResult};
pub use arena::{base_pages_only, AlignedMapping, AlignedMappingError, DataPageSize};
pub use drive::{
    conduct, run_serially, run_threads, PhaseHooks, Timing, WorkloadError, WorkloadRunner,
};
pub use memory::{Heap, WordMemory};
pub use pace::{InstructionPace, WorkloadPace};
pub use roi::{mark, RoiMarker};
pub use spec::{
    DataSize, HotAccess, HotLayout, WorkloadName, WorkloadParameter, WorkloadSpec,
    WorkloadSpecError,
};
