//! Recorded artifacts, shown: a journal of a managed run, or the JSON of a comparison, as one
//! self-contained HTML file, as text, or as JSON. Never reads live state; never asks the network.
//!
//! [`read`] takes the bytes of either; the [`Document`] it gives can be shown in three ways.
//! What a recording holds is another's word: all of it is escaped, bounded and never trusted.
#![forbid(unsafe_code)]

mod chart;
mod comparison;
mod document;
mod heatmap;
mod markup;
mod run;
mod steps;
mod timeline;

pub use comparison::{Calibration, Comparison, PolicyRun};
pub use document::{read, Document, ReportError};
pub use run::Figures;
