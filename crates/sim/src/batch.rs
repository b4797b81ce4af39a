//! Accesses of one thread, in order: a program's own, or those of a recording's block.

use crate::decoded::Columns;
use crate::event::{WordAccess, ADDRESS_BITS, KEPT};
use std::sync::Arc;

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
    /// First words. An address may be given otherwise than where it is, by a name that is the same
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
            Some(WordAccess::from_words([
                event.words()[0] & !((1 << ADDRESS_BITS) - 1) | address,
                event.value,
            ]))
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
        let (words, values) = events.into_iter().map(|e| e.words().into()).unzip();
        Self::Own { words, values }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_holds_its_accesses_in_order() {
        let events = [WordAccess::new(8, true, 1, 0), WordAccess::new(16, false, 2, 5)];
        let batch: Batch = events.into_iter().collect();
        assert_eq!((batch.iter().collect::<Vec<_>>(), batch.len()), (events.to_vec(), 2));
    }
}
