//! What is known of a thread while its words come in.

use super::code::{BlockSpan, Values};

/// So often may a thread wait for the code of a block to become known.
pub const PATIENCE: u32 = 10_000;
/// So often may a forked process wait for its parent to become known.
const KIN: u32 = 64;
/// Bytes of an access at most.
const WIDEST: usize = 64;

/// Whether an access word is a store.
pub fn is_store(word: u64) -> bool {
    word >> 51 & 1 == 1
}

/// An access that may not be complete: QEMU does wide ones in pieces of eight bytes.
#[derive(Debug, Clone, Copy)]
pub struct Pending {
    /// The word of its first piece.
    word: u64,
    pub size: u32,
}

impl Pending {
    #[inline]
    pub fn new(word: u64) -> Self {
        // Three bits can say up to 128 bytes; the plugin never does.
        Self { word, size: 1 << (word >> 48 & 7).min(6) }
    }

    #[inline]
    pub fn address(self) -> u64 {
        self.word & 0xffff_ffff_ffff
    }

    #[inline]
    pub fn index(self) -> usize {
        (self.word >> 52 & 0x1ff) as usize
    }

    #[inline]
    pub fn store(self) -> bool {
        is_store(self.word)
    }

    /// Whether a word of this kind could be its next piece, whatever its address: one of the same
    /// kind, or of the next, where the addresses end.
    pub fn may_absorb(&self, next: u64) -> bool {
        let kind = self.word >> 48;
        kind & 7 == 3
            && self.size as usize + 8 <= WIDEST
            && (next >> 48 == kind || next >> 48 == kind + 1)
    }

    /// Joins the next piece on, if it is one: same instruction, size and direction, and just
    /// behind.
    #[inline]
    pub fn absorb(&mut self, next: u64) -> bool {
        let joins = next == self.word + u64::from(self.size)
            && self.word >> 48 & 7 == 3
            && self.size as usize + 8 <= WIDEST;
        if joins {
            self.size += 8;
        }
        joins
    }
}

/// A thread, or nobody while a slot has not said whose it is.
#[derive(Debug)]
pub struct CaptureThread {
    /// Process and thread as the trace numbers them.
    pub number: Option<(u32, u32)>,
    /// Instructions executed before the current block.
    pub before: u64,
    /// Instructions of the current block.
    pub length: u64,
    /// The current block.
    pub block: BlockSpan,
    /// Position of the last access kept, in instructions.
    pub last: u64,
    /// Accesses seen, for sampling.
    pub seen: u64,
    pub pending: Option<Pending>,
    /// Values of the pending access's pieces.
    pub value: Vec<u8>,
    pub values: Values,
    pub patience: u32,
    /// So often may it still wait for its process's parent.
    pub kin: u32,
    /// Its words come from a compiler's hooks.
    pub hooked: bool,
}

impl CaptureThread {
    pub fn nobody() -> Self {
        Self {
            number: None,
            before: 0,
            length: 0,
            block: BlockSpan::default(),
            last: 0,
            seen: 0,
            pending: None,
            value: Vec::new(),
            values: Values::new(),
            patience: PATIENCE,
            kin: KIN,
            hooked: false,
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
