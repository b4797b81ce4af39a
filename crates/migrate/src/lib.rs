//! Moves pages with `move_pages`; chooses none. [`MovePages`] is the live backend of the engine's
//! [`terrace_engine::Mover`] port; [`MoveCalls`] is what it needs of the kernel, so that tests can
//! stand in for it.
#![forbid(unsafe_code)]

mod account;
mod calls;
mod mover;
mod units;

pub use calls::{KernelCalls, MoveCalls};
pub use mover::MovePages;
