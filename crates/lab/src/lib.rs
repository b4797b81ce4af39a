//! The lab's host side: virtual machines with several memory nodes, in which placement policies are
//! compared.
//!
//! Bottom up: [`shape`] turns a machine file into nodes and figures and [`fit`] says what is
//! missing in it, [`qemu`] turns those into a command line, [`vm`] starts and watches the process,
//! [`snapshot`] keeps booted machines, [`job`] runs one command in one of them, [`policies`] is the
//! table of what can be compared, [`mod@compare`] compares, [`sweep`] goes through a list of
//! comparisons and keeps the results. [`Lab`] and [`LabMachine`] hold it together. Nothing here
//! prints; errors are [`LabError`].
#![forbid(unsafe_code)]

mod account;
pub mod calibrate;
pub mod command;
pub mod compare;
mod cpio;
mod error;
pub mod files;
pub mod fit;
pub mod job;
mod lab;
mod monitor;
mod placement;
pub mod policies;
pub mod program;
pub mod qemu;
mod scratch;
pub mod shape;
pub mod snapshot;
pub mod stats;
mod stop;
pub mod sweep;
mod table;
mod vm;
#[path = "../../guest/src/wire.rs"]
pub mod wire;

pub use command::HostCommand;
pub use compare::{compare, CompareInput, CompareResult, CompareSpec};
pub use error::{LabError, Result};
pub use job::{JobResult, JobSpec};
pub use lab::{Lab, LabMachine, ProgressSink, Silent};
pub use stop::StopFlag;
pub use table::table;
