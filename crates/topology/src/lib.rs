//! From what a machine says about itself to the machine model: live sysfs with HMAT, gathered trees
//! and archives, and, through `terrace-machine`, machine files, hwloc XML and presets.
//!
//! Everything is read through a [`FileTree`], so that the live system, a folder and an archive are
//! one to the reader, and a tree that somebody sent in can be replayed as a test. Reads are bounded
//! and never leave the tree.
#![forbid(unsafe_code)]

mod devices;
mod error;
mod gather;
mod links;
mod models;
mod nodes;
mod source;
mod sysfs;
mod tree;

pub use error::TopologyError;
pub use gather::{gather, Gathered};
pub use source::{load, load_machine, MachineSource};
pub use sysfs::survey;
pub use tree::{
    read_archive, Archive, DiskTree, FileKind, FileTree, MemoryTree, View, MAX_FILE, MAX_NAMES,
};
