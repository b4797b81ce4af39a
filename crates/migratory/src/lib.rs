//! A machine of migratory threads: a thread that reads remote memory moves to it.
//!
//! Nodes consist of nodelets: memory, cores without caches that interleave many threads, and a
//! migration engine. A load or a returning atomic on another nodelet moves the thread's context
//! there; stores and updates without a result are packets that are acknowledged. The architecture
//! is Emu's (Dysart et al., IA3 2016; Chatarasi and Sarkar, MCHPC 2018).
//!
//! - [`machine`]: the description of a machine, and presets.
//! - [`memory`]: arrays and the views that spread them over nodelets.
//! - [`code`]: instructions, and programs of them.
//! - [`simulation`]: runs a program and tells when what happened.
//! - [`count`]: runs a program without time, one thread after the other, and counts.
//! - [`micro`]: micro-benchmarks with closed forms.
//!
//! Deterministic for any number of host threads: nodelets run side by side in windows no longer
//! than the least latency between them, and exchange messages in the order of time, then sender.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod code;
pub mod count;
mod counters;
mod error;
pub mod machine;
pub mod memory;
pub mod micro;
mod nodelet;
mod semantics;
pub mod simulation;
mod thread;

pub use counters::{MigratoryCounters, NodeletCounters, NodeletSample};
pub use error::MigratoryError;
pub use machine::MigratoryMachine;

/// Picoseconds in a second.
pub(crate) const PS_PER_S: u64 = 1_000_000_000_000;
