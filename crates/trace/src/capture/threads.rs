//! What is known of a thread while its words come in.

use super::code::Values;

/// So often may a thread wait for the code of a block to become known.
pub const PATIENCE: u32 = 10_000;
/// Bytes of an access at most.
const WIDEST: usize = 64;

/// Whether an access word is a store.
pub fn is_store(word: u64) -> bool {
    word >> 51 & 1 == 1
}

/// An access that may not be complete: QEMU does wide ones in pieces of eight bytes.
#[derive(Debug)]
pub struct Pending {
    pub address: u64,
    pub size: u32,
    pub store: bool,
    pub index: usize,
    pub value: [u8; WIDEST],
}

impl Pending {
    #[inline]
    pub fn new(word: u64, value: u64) -> Self {
        let mut bytes = [0; WIDEST];
        bytes[..8].copy_from_slice(&value.to_le_bytes());
        // Three bits can say up to 128 bytes; the plugin never does.
        let size = (1 << (word >> 48 & 7)).min(WIDEST as u32);
        let index = (word >> 52 & 0x1ff) as usize;
        Self { address: word & 0xffff_ffff_ffff, size, store: is_store(word), index, value: bytes }
    }

    /// Joins the next piece on, if it is one.
    #[inline]
    pub fn absorb(&mut self, next: &Self) -> bool {
        let joins = next.index == self.index
            && next.store == self.store
            && next.size == 8
            && self.size % 8 == 0
            && next.address == self.address + u64::from(self.size)
            && self.size as usize + 8 <= WIDEST;
        if joins {
            let at = self.size as usize;
            self.value[at..at + 8].copy_from_slice(&next.value[..8]);
            self.size += 8;
        }
        joins
    }
}

/// A thread, or nobody while a slot has not said whose it is.
#[derive(Debug)]
pub struct Thread {
    /// Process and thread as the trace numbers them.
    pub number: Option<(u32, u32)>,
    /// Instructions executed before the current block.
    pub before: u64,
    /// Instructions of the current block.
    pub length: u64,
    /// The current block's number.
    pub block: usize,
    /// Position of the last access kept, in instructions.
    pub last: u64,
    /// Accesses seen, for sampling.
    pub seen: u64,
    pub pending: Option<Pending>,
    pub values: Values,
    pub patience: u32,
}

impl Thread {
    pub fn nobody() -> Self {
        Self {
            number: None,
            before: 0,
            length: 0,
            block: 0,
            last: 0,
            seen: 0,
            pending: None,
            values: Values::new(),
            patience: PATIENCE,
        }
    }

    pub fn numbered(process: u32, thread: u32) -> Self {
        Self { number: Some((process, thread)), ..Self::nobody() }
    }

    /// Instructions executed since the last access kept, as far as whole blocks tell.
    pub fn behind(&self) -> u64 {
        self.before.saturating_sub(self.last)
    }
}
