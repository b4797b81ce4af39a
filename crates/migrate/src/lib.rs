//! Moves pages with `move_pages`, and data through fast memory ([`staging`]); chooses none.
//! [`Bulk`] is the mover that all share: `terrace run`, arenas and allocations, and staging where
//! addresses stay. [`MovePages`] is the live backend of the engine's [`terrace_engine::Mover`]
//! port; [`MoveCalls`] is what it needs of the kernel, so that tests can stand in for it.

mod account;
mod bulk;
mod calls;
mod mover;
mod units;
mod way;

pub mod staging;

pub use bulk::{batches, Bulk};
pub use calls::{KernelCalls, MoveCalls};
pub use mover::MovePages;
pub use way::MoveCosts;
