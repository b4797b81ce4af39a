//! A stated list of comparisons, gone through once: what was measured before with the same machine,
//! programs and settings is not measured again, and at the end stand the ratios and the worst case
//! of each claim (ADR 0070).

pub mod cases;
pub mod ratios;
pub mod run;
pub mod store;

pub use cases::{Case, List, ListError};
pub use ratios::Measured;
pub use run::{sweep, Done, Settings, Sweep};
pub use store::{Origin, Record, Store};
