//! The mover of pages: batches, limits, verification, exchange and back-off, over the port
//! [`MoveCalls`]. Live, `terrace-migrate` backs that port with the kernel; `terrace-sim` backs it
//! with a simulated process. Pure.
#![forbid(unsafe_code)]

mod account;
mod calls;
mod costs;
mod pages;
mod units;

pub use calls::{CallError, MoveCalls};
pub use costs::{MoveCosts, BIGGEST_BATCH};
pub use pages::MovePages;
pub use terrace_types::{MoveCall, PageStatus};
pub use units::HUGE_PAGES;
