//! A stated list of comparisons, gone through once: what was measured before with the same machine,
//! programs and settings is not measured again, and at the end stand the ratios and the worst case
//! of each claim (ADR 0070).

pub mod cases;
pub mod ratios;
pub mod run;
pub mod store;

pub use cases::{Case, CaseListError, List};
pub use ratios::CaseSeconds;
pub use run::{sweep, SweepResult, SweepRun, SweepSettings};
pub use store::{CaseRecord, Origin, RecordStore};
