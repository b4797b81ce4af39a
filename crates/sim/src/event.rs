//! One access of the program, in sixteen bytes.

/// A load or a store of one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordAccess {
    /// Bit 63: a store. Bits 48 to 62: instructions since the access before. Below: the virtual
    /// address.
    word: u64,
    /// What a load brings, for the core to tell dependent misses; anything for a store.
    pub value: u64,
}

/// Bits of an address that are the same wherever a recording's GiB is put.
pub(crate) const KEPT: u32 = 30;

const STORE: u64 = 1 << 63;
pub(crate) const ADDRESS_BITS: u32 = 48;
const MAX_INSTRUCTIONS: u64 = (1 << 15) - 1;

impl WordAccess {
    /// Packs an access; instructions beyond 32767 and address bits beyond 48 are cut off.
    #[inline]
    #[must_use]
    pub const fn new(address: u64, store: bool, instructions: u64, value: u64) -> Self {
        let instructions =
            if instructions > MAX_INSTRUCTIONS { MAX_INSTRUCTIONS } else { instructions };
        let word = address & ((1 << ADDRESS_BITS) - 1) | instructions << ADDRESS_BITS;
        Self { word: if store { word | STORE } else { word }, value }
    }

    /// From the two words of [`Self::words`].
    #[inline]
    #[must_use]
    pub const fn from_words(words: [u64; 2]) -> Self {
        Self { word: words[0], value: words[1] }
    }

    /// As two words.
    #[inline]
    #[must_use]
    pub const fn words(self) -> [u64; 2] {
        [self.word, self.value]
    }

    /// Virtual address.
    #[inline]
    #[must_use]
    pub const fn address(self) -> u64 {
        self.word & ((1 << ADDRESS_BITS) - 1)
    }

    /// Whether it is a store.
    #[inline]
    #[must_use]
    pub const fn store(self) -> bool {
        self.word & STORE != 0
    }

    /// Instructions executed since the access before, this one's own included.
    #[inline]
    #[must_use]
    pub const fn instructions(self) -> u64 {
        self.word >> ADDRESS_BITS & MAX_INSTRUCTIONS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        for (address, store, instructions) in
            [(0, false, 0), ((1 << 48) - 8, true, 32_767), (4096, true, 10)]
        {
            let e =
                WordAccess::from_words(WordAccess::new(address, store, instructions, 7).words());
            assert_eq!(
                (e.address(), e.store(), e.instructions(), e.value),
                (address, store, instructions, 7)
            );
        }
        assert_eq!(WordAccess::new(0, false, 1 << 20, 0).instructions(), 32_767);
        assert_eq!(std::mem::size_of::<WordAccess>(), 16);
    }
}
