//! The persistency model of x86: which images memory may hold if power fails, and which flushes and
//! fences are missing or idle.
//!
//! Stores to one line become persistent in program order, stores to different lines in any order
//! (Raad, Wickerson, Neiger and Vafeiadis, "Persistency Semantics of the Intel-x86 Architecture",
//! POPL 2020). A line's stores are persistent once the line was flushed and a fence follows, or at
//! once by CLFLUSH; non-temporal stores need the fence only.

mod changed;
mod collect;
mod engine;
mod findings;
mod mapped;
mod order;

pub use changed::ChangedBytes;
pub use collect::{collect_operations, ObservedSpan};
pub use engine::{enumerate_images, ImageSet, ReorderEngine};
pub use findings::{find_misuse, FlushMisuse, MisuseKind};
pub use mapped::{find_mapping, PersistentMapping};
pub use order::{PersistOrder, PersistStep};

/// Bytes of the lines that are flushed.
pub const LINE: u64 = 64;

/// What a program did to persistent memory, in program order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PersistentOperation {
    /// A store within one line.
    Store {
        /// First byte.
        address: u64,
        /// What it wrote.
        value: Vec<u8>,
        /// It bypasses the caches.
        non_temporal: bool,
        /// The instruction.
        pc: u64,
    },
    /// A line is flushed.
    Flush {
        /// An address in the line.
        address: u64,
        /// By CLFLUSH, which needs no fence.
        ordered: bool,
        /// The instruction.
        pc: u64,
    },
    /// SFENCE, MFENCE or a locked instruction.
    Fence {
        /// The instruction.
        pc: u64,
    },
}

impl PersistentOperation {
    /// A store, cut into parts of one line each.
    pub fn stores(
        address: u64,
        value: &[u8],
        non_temporal: bool,
        pc: u64,
    ) -> impl Iterator<Item = Self> + '_ {
        let mut done = 0;
        std::iter::from_fn(move || {
            if done >= value.len() {
                return None;
            }
            let at = address.wrapping_add(done as u64);
            let count = ((LINE - at % LINE) as usize).min(value.len() - done);
            let part = value[done..done + count].to_vec();
            done += count;
            Some(Self::Store { address: at, value: part, non_temporal, pc })
        })
    }
}
