//! Measures memory: latency, bandwidth, latency under load, what moving pages costs. Everything
//! that can be decided is decided by pure functions ([`plan`], [`stats`], [`knees`], [`figures`])
//! that are tested on machines made up for it; what measures is an [`Instrument`], of which
//! [`LiveMachine`] is the real one.
//!
//! No figure stands alone: each has its spread, the number of runs, and whether it is noisy
//! ([`stats::MeasuredFigure`]).

pub mod chase;
pub mod degrade;
pub mod disk;
pub mod figures;
pub mod kernels;
pub mod knees;
mod live;
pub mod plan;
mod reach;
pub mod run;
pub mod stats;
pub mod task;
pub mod team;

pub use live::{situation, LiveMachine};
pub use plan::{plan, Depth, ProbePlan, Situation};
pub use run::{run, Measurements, ProbeProgress};
pub use stats::MeasuredFigure;
pub use task::{Instrument, Method, PageKind, Task, TaskOutcome, TaskRecord, Trouble};
