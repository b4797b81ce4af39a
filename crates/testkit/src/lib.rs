//! Test helpers, a dev-dependency only: machines to test with, fakes of the engine's five ports,
//! a small closed-loop machine ([`ClosedLoopWorld`]) on which engine and policies run end to end
//! without a kernel, and riscv64 programs.
#![forbid(unsafe_code)]

mod fakes;
mod machines;
mod riscv;
mod world;
mod world_ports;

pub use fakes::{FailingJournal, MemoryJournal, ScriptedTracker, StoppingTracker};
pub use machines::{cxl, dcpmm, hbm, machine, numa, tier, NodeSpec};
pub use riscv::{compile_xbgas_program, run_riscv_compiler, RISCV_COMPILER};
pub use world::{ClosedLoopWorld, PageAccessRate, Rng, WorldSpec, PID, START};
pub use world_ports::{
    BitTracker, PageTracker, RegionTracker, WorldClock, WorldMover, WorldTarget, WriteTracker,
};
