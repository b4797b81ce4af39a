//! xBGAS, the RISC-V extension whose extended registers say on which node an address lies.
//!
//! [`decode`] reads and prints its instructions in three published encodings; [`execute`] says
//! what each does; [`lookaside`] maps object ids to processing elements; [`element`] runs the
//! processing elements of a program and answers their remote accesses. [`message`] and
//! [`transport`] carry them between processes.
#![forbid(unsafe_code)]

pub mod clock;
pub mod decode;
pub mod element;
pub mod execute;
pub mod lookaside;
pub mod message;
pub mod network;
pub mod note;
pub mod protocol;
pub mod statistics;
pub mod transport;

pub use decode::{Dialect, ExtendedInstruction};
