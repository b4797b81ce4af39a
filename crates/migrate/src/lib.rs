//! Moves pages with `move_pages`, and data through fast memory ([`staging`]); chooses none.
//! [`Bulk`] is the mover that all share: `terrace run`, arenas and allocations, and staging where
//! addresses stay. [`live_mover`] makes the live backend of the engine's [`terrace_engine::Mover`]
//! port: the mover of `terrace-mover` over the kernel's calls.

mod bulk;
mod calls;

pub mod staging;

pub use bulk::{batches, Bulk};
pub use calls::{live_mover, KernelCalls};
pub use terrace_mover::{MoveCosts, MovePages};
