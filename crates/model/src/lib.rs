//! How long memory takes. Pure: a machine file goes in, picoseconds come out.
//!
//! Used by the lab's timing plugin (and by the simulator), so that both tell time alike. From the
//! bottom up:
//!
//! - [`layout`]: which node a physical address belongs to.
//! - [`params`]: the machine file as integers, from one vCPU's point of view.
//! - [`core`]: one core: its own time, its misses in flight, its streams.
//! - [`channel`]: one node's bus: bytes take time, several cores share it.
//! - [`engine`]: caches and counters around them: one call an access.
//! - [`translation`]: a unit between the machine and memory that it shares with others.
//! - [`lockstep`]: the cores' times tied together, quantum by quantum.
//!
//! Units: times are `u64` picoseconds unless the name says otherwise; lines are physical addresses
//! divided by 64.
#![forbid(unsafe_code)]

pub mod channel;
mod combine;
pub mod core;
pub mod counters;
pub mod engine;
pub mod layout;
pub mod loaded;
pub mod lockstep;
pub mod memory_mode;
pub mod params;
pub mod translation;

pub use counters::Counters;
pub use engine::{MemoryAccess, MemorySystem, Uncore, Vcpu};
pub use lockstep::Lockstep;
pub use params::{ModelError, ModelOptions, ModelParams};
pub use translation::{TranslationUnit, TranslationUnitCount};

/// Bytes of a cache line; machine files with another line size are refused.
pub const LINE: u64 = terrace_machine::MODELLED_LINE.get();
/// Picoseconds in a nanosecond.
pub const PS: u64 = 1000;
