//! xBGAS, the RISC-V extension whose extended registers say on which node an address lies: its
//! instructions in three published encodings, decoded and printed.
#![forbid(unsafe_code)]

pub mod decode;

pub use decode::{Dialect, ExtendedInstruction};
