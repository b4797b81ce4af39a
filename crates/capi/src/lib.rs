//! The C interface: `libterrace`, with `include/terrace.h` generated from these declarations.
//!
//! Handles are opaque and are the first argument. Functions return 0 or a negative `TERRACE_E_*`,
//! and keep the text of a thread's last error. No panic crosses the boundary. Nothing is decided
//! here.

mod arena;
mod attributes;
mod codes;
mod far;
mod memory;
mod report;
mod sequence;
mod shared;
mod stage;

pub use arena::*;
pub use attributes::*;
pub use codes::*;
pub use far::*;
pub use memory::*;
pub use report::*;
pub use sequence::*;
pub use shared::*;
pub use stage::*;
