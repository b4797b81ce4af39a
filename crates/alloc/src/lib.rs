//! Memory by what it is for: by attributes, and in arenas.
//!
//! By attributes: which class of memory, how it is divided, when it is bound and what happens when
//! there is none, after "hexe" (Oden and Balaji, section IV-B). [`memory::Memory`] is the entry
//! point: it allocates, frees and commits. [`attributes`] says what can be asked for, [`classes`]
//! what a class is on this machine, [`kernel`] what is needed of the kernel, [`commit`] how many
//! requests are weighed together and what is reported. [`gpu`] is the class whose indices are GPUs.
//!
//! In arenas ([`arena`]): heaps whose pages lie on the nodes asked for and move together;
//! [`shared`]: heaps that several processes have. Unsafe code is allowed there; each block carries
//! its proof.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod arena;
pub mod attributes;
pub mod classes;
pub mod commit;
pub mod error;
pub mod gpu;
pub mod kernel;
mod layout;
pub mod live;
pub mod memory;
mod mover;
pub mod shared;
mod space;

#[cfg(test)]
mod fake;

pub use mover::{move_costs, stage_costs};
pub use terrace_types as types;
