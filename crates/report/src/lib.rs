//! Recorded artifacts, shown: a journal of a managed run, the JSON of a comparison, of a probe, of
//! stacked memory, of shared pools, of migratory threads or of crash tests, or a recording of loads
//! and stores, as one self-contained HTML file, as text, or as JSON. Never reads live state; never
//! asks the network.
//!
//! [`read`] takes the bytes of all but the last, [`read_recording`] a trace, which need not fit
//! into memory; the [`Document`] they give can be shown in three ways. What a recording holds is
//! another's word: all of it is escaped, bounded and never trusted.
#![forbid(unsafe_code)]

mod chart;
mod comparison;
mod crash;
mod document;
mod far;
pub mod figure;
mod heatmap;
mod markup;
mod migratory;
mod pools;
mod probe;
mod recording;
mod run;
mod stacked;
mod steps;
mod study;
mod timeline;

pub use comparison::{CalibrationFigure, Comparison, PolicyRun};
pub use crash::CrashStudies;
pub use document::{read, read_recording, Document, ReportError};
pub use far::{FarHeader, FarRun, FarSample};
pub use migratory::MigratoryStudy;
pub use pools::SharedPools;
pub use probe::ProbeReport;
pub use recording::{CallStudy, ObjectUses, RecordingSummary, SampleStudy, UseCounts};
pub use run::JournalFigures;
pub use stacked::StackedMemory;
