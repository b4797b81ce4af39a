//! One access of the program, in sixteen bytes.

/// A load or a store of one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Bit 63: a store. Bits 48 to 62: instructions since the access before. Below: the virtual address.
    word: u64,
    /// What a load brings, for the core to tell dependent misses; anything for a store.
    pub value: u64,
}

/// Accesses of one thread, in order, as columns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// The first word of each [`Event`].
    pub words: Vec<u64>,
    /// What each brings; empty: nothing that anybody depends on.
    pub values: Vec<u64>,
}

impl Batch {
    /// Accesses in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The accesses, one by one.
    pub fn iter(&self) -> impl Iterator<Item = Event> + '_ {
        let value = |at: usize| self.values.get(at).copied().unwrap_or(0);
        self.words.iter().enumerate().map(move |(at, word)| Event::from_words([*word, value(at)]))
    }

    /// Takes the accesses off from `at` on.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        let values = if self.values.is_empty() { Vec::new() } else { self.values.split_off(at) };
        Self { words: self.words.split_off(at), values }
    }
}

impl FromIterator<Event> for Batch {
    fn from_iter<T: IntoIterator<Item = Event>>(events: T) -> Self {
        let (words, values) = events.into_iter().map(|e| (e.word, e.value)).unzip();
        Self { words, values }
    }
}

const STORE: u64 = 1 << 63;
const ADDRESS_BITS: u32 = 48;
const MOST_INSTRUCTIONS: u64 = (1 << 15) - 1;

impl Event {
    /// Packs an access; instructions beyond 32767 and address bits beyond 48 are cut off.
    #[inline]
    #[must_use]
    pub const fn new(address: u64, store: bool, instructions: u64, value: u64) -> Self {
        let instructions = if instructions > MOST_INSTRUCTIONS { MOST_INSTRUCTIONS } else { instructions };
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

    /// The same access made anew by a thread that had to wait at it: its instructions have been executed.
    #[inline]
    #[must_use]
    pub const fn again(self) -> Self {
        Self { word: self.word & !(MOST_INSTRUCTIONS << ADDRESS_BITS), value: self.value }
    }

    /// Instructions executed since the access before, this one's own included.
    #[inline]
    #[must_use]
    pub const fn instructions(self) -> u64 {
        self.word >> ADDRESS_BITS & MOST_INSTRUCTIONS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        for (address, store, instructions) in [(0, false, 0), ((1 << 48) - 8, true, 32_767), (4096, true, 10)] {
            let e = Event::from_words(Event::new(address, store, instructions, 7).words());
            assert_eq!((e.address(), e.store(), e.instructions(), e.value), (address, store, instructions, 7));
        }
        let again = Event::new(4096, true, 10, 7).again();
        assert_eq!((again.address(), again.store(), again.instructions(), again.value), (4096, true, 0, 7));
        assert_eq!(Event::new(0, false, 1 << 20, 0).instructions(), 32_767);
        assert_eq!(std::mem::size_of::<Event>(), 16);
        let events = [Event::new(8, true, 1, 0), Event::new(16, false, 2, 5)];
        let mut batch: Batch = events.into_iter().collect();
        assert_eq!(batch.iter().collect::<Vec<_>>(), events);
        assert_eq!((batch.split_off(1).iter().next(), batch.len()), (Some(events[1]), 1));
    }
}
