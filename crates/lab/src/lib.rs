//! The lab's host side: virtual machines with several memory nodes, in which placement policies are compared.
//!
//! Bottom up: [`shape`] turns a machine file into nodes and figures, [`qemu`] turns those into a command line,
//! [`vm`] starts and watches the process, [`snapshot`] keeps booted machines, [`job`] runs one command in one
//! of them. [`Lab`] and [`Bench`] hold it together. Nothing here prints; errors are [`LabError`].
#![forbid(unsafe_code)]

mod cpio;
mod error;
pub mod job;
mod lab;
mod monitor;
pub mod program;
pub mod qemu;
pub mod shape;
pub mod snapshot;
pub mod stats;
mod vm;
#[path = "../../guest/src/wire.rs"]
pub mod wire;

pub use error::{LabError, Result};
pub use job::{JobResult, JobSpec};
pub use lab::{Bench, Lab, Progress, Silent};
