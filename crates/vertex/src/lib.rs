//! A small language for graph algorithms, and a compiler of it for migratory threads.
//!
//! - [`syntax`]: the syntax tree; [`parse`] makes it from text, [`format`] text from it.
//! - [`build`]: trees from Rust, without text.
//! - [`check`]: names, and races between the threads of a parallel loop.
//! - [`graph`]: graphs; [`generate`] draws them, [`graph_file`] reads them.
//! - [`native`]: runs a program on host threads: the oracle. It can also report every access.
//! - [`record`]: a recording of that run for the simulator.
//! - [`compile`]: code for [`terrace_migratory`], with the data laid out by [`layout`].
//! - [`passes`]: transformations that keep the result and save migrations.
//! - [`optimize`]: picks transformations by predicted time.
//! - [`programs`]: the programs that come with it.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod build;
pub mod check;
pub mod compile;
mod error;
pub mod format;
pub mod generate;
pub mod graph;
pub mod graph_file;
pub mod layout;
mod lex;
pub mod native;
pub mod optimize;
pub mod parse;
pub mod passes;
pub mod programs;
pub mod record;
pub mod syntax;

pub use error::VertexError;
