//! A machine of several memory tiers, simulated, with a program on it and the engine over it.
//!
//! The physics (cores with misses in flight, caches, buses, memory mode) are `terrace-model`'s,
//! which the lab's timing plugin uses too. What is added here is what the lab has from a real
//! kernel: page tables, first touch, faults, page moves, and what trackers see and cost. The engine
//! and the policies are the live ones, unchanged: see [`ports`].
//!
//! From the bottom up: [`event`] one access, [`batch`] many; [`feed`] where accesses come from (a
//! workload; [`recording`]); [`pool`] a node's frames; [`memory`] pages and the kernel's part;
//! [`mmu`] a core's translations, [`tlb`] as many as hardware keeps; [`sampler`] the processor's
//! samples; `kernel` what going over pages takes; [`far`] what lies behind memory; [`world`] all of
//! them and time; [`ports`] the engine's view; [`build`] from a machine file; [`bounds`] what no
//! policy can know; [`run`] from start to end.
//!
//! Times inside are picoseconds where they are `u64`; outside they are [`terrace_types::Nanos`].
//! Deterministic: equal machine, input, policy and seed give equal results, whatever the host does.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod batch;
pub mod bounds;
pub mod build;
mod costs;
mod decoded;
mod error;
pub mod event;
pub mod far;
pub mod feed;
mod hot;
mod kernel;
pub mod memory;
pub mod mmu;
pub mod percpu;
pub mod pool;
pub mod ports;
pub mod recording;
pub mod run;
mod sampled;
pub mod sampler;
pub mod tlb;
pub mod world;

pub use build::{FirstTouchPlacement, MachineMode, SimInput, SimSetup};
pub use error::SimError;
pub use far::FarCount;
pub use ports::PebsSettings;
pub use recording::Recording;
pub use run::{
    all, conclude, is_simulated, placement_of, profile_misses, simulate, simulate_custom,
    simulate_in_slow_memory, simulate_placement, simulate_with, CacheCount, NodeEnergy, RunOptions,
    SimRun, SlowMemoryRun, TrackerKind,
};
pub use sampled::{sample_program, IntervalPeak, SampledProgram};
pub use sampler::BufferDrain;
