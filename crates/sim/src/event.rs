//! One access of the program, in sixteen bytes; and many of them.

use crate::decoded::Columns;
use std::sync::Arc;

/// A load or a store of one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordAccess {
    /// Bit 63: a store. Bits 48 to 62: instructions since the access before. Below: the virtual
    /// address.
    word: u64,
    /// What a load brings, for the core to tell dependent misses; anything for a store.
    pub value: u64,
}

/// Accesses of one thread, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Batch {
    /// As columns.
    Own {
        /// The first word of each [`WordAccess`].
        words: Vec<u64>,
        /// What each brings; empty: nothing that anybody depends on.
        values: Vec<u64>,
    },
    /// Of a recording's block, which others have too.
    Part(BlockPart),
}

impl Default for Batch {
    fn default() -> Self {
        Self::Own { words: Vec::new(), values: Vec::new() }
    }
}

/// Accesses, one by one.
pub(crate) trait Accesses {
    /// First words. An address may be told otherwise than where it is, by a name that is the same
    /// for all of its GiB and for no other in its space.
    fn words(&self) -> &[u64];
    /// Where an address of a word is.
    fn placed(&self, address: u64) -> u64;
    /// What the access brings, zero if nobody depends on that.
    fn value(&self, at: usize) -> u64;
    /// In what its addresses have their names: the same in two spaces mean different things.
    fn space(&self) -> u64;
}

/// Those of a program that is simulated as it runs: first words, and what each brings.
impl Accesses for (&[u64], &[u64]) {
    #[inline(always)]
    fn words(&self) -> &[u64] {
        self.0
    }

    #[inline(always)]
    fn placed(&self, address: u64) -> u64 {
        address
    }

    #[inline(always)]
    fn value(&self, at: usize) -> u64 {
        self.1.get(at).copied().unwrap_or(0)
    }

    fn space(&self) -> u64 {
        0
    }
}

impl Batch {
    /// Accesses in it.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Own { words, .. } => words.len(),
            Self::Part(part) => part.to - part.from,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The access of this index; `None` beyond the last.
    #[must_use]
    pub fn at(&self, index: usize) -> Option<WordAccess> {
        fn of(all: &impl Accesses, index: usize) -> Option<WordAccess> {
            let event = WordAccess::from_words([*all.words().get(index)?, all.value(index)]);
            let address = all.placed(event.address());
            Some(WordAccess { word: event.word & !((1 << ADDRESS_BITS) - 1) | address, ..event })
        }
        match self {
            Self::Own { words, values } => of(&(&words[..], &values[..]), index),
            Self::Part(part) => of(part, index),
        }
    }

    /// The accesses, one by one.
    pub fn iter(&self) -> impl Iterator<Item = WordAccess> + '_ {
        (0..self.len()).filter_map(|index| self.at(index))
    }
}

impl FromIterator<WordAccess> for Batch {
    fn from_iter<T: IntoIterator<Item = WordAccess>>(events: T) -> Self {
        let (words, values) = events.into_iter().map(|e| (e.word, e.value)).unzip();
        Self::Own { words, values }
    }
}

/// Bits of an address that are the same wherever a recording's GiB is put.
pub(crate) const KEPT: u32 = 30;

/// Some accesses of a recording's block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockPart {
    pub(crate) columns: Arc<Columns>,
    /// Where the block's GiBs are.
    pub(crate) places: Arc<Places>,
    /// Of the block's accesses, the first.
    pub(crate) from: usize,
    /// And the one behind the last.
    pub(crate) to: usize,
}

impl Accesses for BlockPart {
    #[inline(always)]
    fn words(&self) -> &[u64] {
        self.columns.words.get(self.from..self.to).unwrap_or_default()
    }

    #[inline(always)]
    fn placed(&self, address: u64) -> u64 {
        self.places.of(address >> KEPT) << KEPT | address & ((1 << KEPT) - 1)
    }

    /// The address of the first access that depends on it.
    #[inline(always)]
    fn value(&self, at: usize) -> u64 {
        let dependent = self.columns.dependents.get(self.from + at).copied().unwrap_or(0);
        if dependent == 0 {
            return 0;
        }
        let word = self.columns.words.get(usize::from(dependent));
        word.map_or(0, |word| self.placed(WordAccess::from_words([*word, 0]).address()))
    }

    fn space(&self) -> u64 {
        self.columns.space
    }
}

/// Places that are found without the list of them.
const NEAR: usize = 64;

/// Where each GiB of a block is, by its name: a GiB's number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    near: [(u64, u64); NEAR],
    all: Vec<(u64, u64)>,
}

impl FromIterator<(u64, u64)> for Places {
    fn from_iter<T: IntoIterator<Item = (u64, u64)>>(places: T) -> Self {
        let (mut near, all) = ([(u64::MAX, 0); NEAR], Vec::from_iter(places));
        all.iter().for_each(|(name, place)| near[*name as usize % NEAR] = (*name, *place));
        Self { near, all }
    }
}

impl Places {
    #[inline(always)]
    fn of(&self, name: u64) -> u64 {
        let (known, place) = self.near[name as usize % NEAR];
        if known == name {
            place
        } else {
            self.look_up(name)
        }
    }

    #[cold]
    fn look_up(&self, name: u64) -> u64 {
        self.all.iter().find(|place| place.0 == name).map_or(0, |place| place.1)
    }
}

const STORE: u64 = 1 << 63;
const ADDRESS_BITS: u32 = 48;
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

    /// The same access made anew by a thread that had to wait at it: its instructions have been
    /// executed.
    #[inline]
    #[must_use]
    pub const fn again(self) -> Self {
        Self { word: self.word & !(MAX_INSTRUCTIONS << ADDRESS_BITS), value: self.value }
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
        let again = WordAccess::new(4096, true, 10, 7).again();
        assert_eq!(
            (again.address(), again.store(), again.instructions(), again.value),
            (4096, true, 0, 7)
        );
        assert_eq!(WordAccess::new(0, false, 1 << 20, 0).instructions(), 32_767);
        assert_eq!(std::mem::size_of::<WordAccess>(), 16);
        let events = [WordAccess::new(8, true, 1, 0), WordAccess::new(16, false, 2, 5)];
        let batch: Batch = events.into_iter().collect();
        assert_eq!((batch.iter().collect::<Vec<_>>(), batch.len()), (events.to_vec(), 2));
    }
}
