//! Models of memory devices: from a description of a part to the figures of a machine file.
//!
//! Each family of devices is a module. A model states its equations, units, sources and range of
//! validity where it is defined; a figure without a published source says `ours` and why. Nothing
//! here reads a file, a clock or chance that is not an argument.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod hbm;
