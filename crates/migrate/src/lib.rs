//! Moves pages with `move_pages`, and data through fast memory ([`staging`]); chooses none. [`MovePages`] is the live backend of the engine's
//! [`terrace_engine::Mover`] port; [`MoveCalls`] is what it needs of the kernel, so that tests can
//! stand in for it.

mod account;
mod calls;
mod mover;
mod units;

pub mod staging;

pub use calls::{KernelCalls, MoveCalls};
pub use mover::MovePages;
