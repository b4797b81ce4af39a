//! Arrays of words, spread over nodelets by views.

use crate::{MigratoryError, MigratoryMachine};

/// Bits of a pointer that hold the word; the nodelet is above them.
const POINTER_BITS: u32 = 40;

/// How an array lies on the nodelets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryView {
    /// All of it on one nodelet.
    Local {
        /// The nodelet.
        nodelet: u32,
    },
    /// A copy on each nodelet. Loads never migrate; stores change the nearest copy only.
    Replicated,
    /// Word by word in turn.
    Striped,
    /// Blocks of so many words in turn.
    Blocked {
        /// Words of a block, at least 1.
        words: u64,
    },
    /// Its indexes are pointers, see [`pointer`]; each nodelet has a part of its own length.
    Pointers,
}

/// A pointer to a word of a nodelet's part of an array with [`MemoryView::Pointers`].
#[must_use]
pub fn pointer(nodelet: u32, word: u64) -> i64 {
    (i64::from(nodelet) << POINTER_BITS) | word as i64
}

/// An array of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArrayId(pub u16);

#[derive(Debug, Clone)]
struct PlacedArray {
    name: String,
    view: MemoryView,
    words: u64,
    /// Where its part begins on each nodelet, and how long it is, words.
    parts: Vec<(u64, u64)>,
}

/// A word's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordPlace {
    /// The nodelet; of a replicated word the one that asks.
    pub nodelet: u32,
    /// The word there.
    pub word: u64,
}

/// All arrays of a program, placed.
#[derive(Debug, Clone)]
pub struct MemoryMap {
    nodelets: u32,
    /// Where the count of nodelets is a power of two: its logarithm.
    shift: Option<u32>,
    arrays: Vec<PlacedArray>,
    used: Vec<u64>,
}

impl MemoryMap {
    /// No arrays on so many nodelets.
    #[must_use]
    pub fn new(nodelets: u32) -> Self {
        let nodelets = nodelets.max(1);
        let shift = nodelets.is_power_of_two().then(|| nodelets.trailing_zeros());
        Self { nodelets, shift, arrays: Vec::new(), used: vec![0; nodelets as usize] }
    }

    /// Nodelets.
    #[must_use]
    pub fn nodelets(&self) -> u32 {
        self.nodelets
    }

    /// Adds an array of `words`; not for [`MemoryView::Pointers`].
    pub fn add(&mut self, name: &str, view: MemoryView, words: u64) -> ArrayId {
        let n = u64::from(self.nodelets);
        let lengths = (0..n)
            .map(|nodelet| match view {
                MemoryView::Local { nodelet: home } if u64::from(home) == nodelet => words,
                MemoryView::Local { .. } | MemoryView::Pointers => 0,
                MemoryView::Replicated => words,
                MemoryView::Striped => (words + n - 1 - nodelet) / n,
                MemoryView::Blocked { words: block } => {
                    let block = block.max(1);
                    let blocks = words.div_ceil(block);
                    (blocks + n - 1 - nodelet) / n * block
                }
            })
            .collect();
        self.place(name, view, words, lengths)
    }

    /// Adds an array of pointers' targets with so many words on each nodelet.
    pub fn add_parts(&mut self, name: &str, words: Vec<u64>) -> ArrayId {
        let all = words.iter().sum();
        self.place(name, MemoryView::Pointers, all, words)
    }

    fn place(&mut self, name: &str, view: MemoryView, words: u64, lengths: Vec<u64>) -> ArrayId {
        let parts = self.used.iter_mut().zip(lengths).map(|(used, length)| {
            let begin = *used;
            *used += length;
            (begin, length)
        });
        let parts = parts.collect();
        self.arrays.push(PlacedArray { name: name.to_owned(), view, words, parts });
        ArrayId((self.arrays.len() - 1) as u16)
    }

    /// Checks that all arrays fit a machine.
    ///
    /// # Errors
    /// [`MigratoryError::MemoryFull`] with the first array that does not fit.
    pub fn check(&self, machine: &MigratoryMachine) -> Result<(), MigratoryError> {
        for array in &self.arrays {
            for (nodelet, (begin, length)) in array.parts.iter().enumerate() {
                let needed_bytes = (begin + length).saturating_mul(8);
                if needed_bytes > machine.memory.get() {
                    return Err(MigratoryError::MemoryFull {
                        machine: machine.name.clone(),
                        nodelet: nodelet as u32,
                        array: array.name.clone(),
                        needed_bytes,
                        capacity_bytes: machine.memory.get(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Words that each nodelet needs.
    #[must_use]
    pub fn used(&self) -> &[u64] {
        &self.used
    }

    /// An array's name; `?` where there is no such array.
    #[must_use]
    pub fn name(&self, array: ArrayId) -> &str {
        self.arrays.get(usize::from(array.0)).map_or("?", |array| &array.name)
    }

    /// Words of an array.
    #[must_use]
    pub fn words(&self, array: ArrayId) -> u64 {
        self.arrays.get(usize::from(array.0)).map_or(0, |array| array.words)
    }

    /// How many arrays there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.arrays.len()
    }

    /// There are no arrays.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.arrays.is_empty()
    }

    /// The place of a word, for a thread on nodelet `here`; `None` beyond the array's end.
    #[inline]
    #[must_use]
    pub fn locate(&self, array: ArrayId, index: i64, here: u32) -> Option<WordPlace> {
        let array = self.arrays.get(usize::from(array.0))?;
        let index = index as u64;
        let (nodelet, word) = match array.view {
            MemoryView::Pointers => {
                ((index >> POINTER_BITS) as u32, index & ((1 << POINTER_BITS) - 1))
            }
            _ if index >= array.words => return None,
            MemoryView::Local { nodelet } => (nodelet, index),
            MemoryView::Replicated => (here, index),
            MemoryView::Striped => self.divide(index),
            MemoryView::Blocked { words } => {
                let block = words.max(1);
                let (nodelet, turn) = self.divide(index / block);
                (nodelet, turn * block + index % block)
            }
        };
        let (begin, length) = array.parts.get(nodelet as usize)?;
        (word < *length).then_some(WordPlace { nodelet, word: begin + word })
    }

    #[inline]
    fn divide(&self, index: u64) -> (u32, u64) {
        match self.shift {
            Some(shift) => ((index & ((1 << shift) - 1)) as u32, index >> shift),
            None => {
                let n = u64::from(self.nodelets);
                ((index % n) as u32, index / n)
            }
        }
    }
}

/// Memory contents of all nodelets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryImage {
    /// Words by nodelet.
    pub(crate) nodelets: Vec<Vec<i64>>,
}

impl MemoryImage {
    /// Zeros for all arrays of a map.
    #[must_use]
    pub fn new(map: &MemoryMap) -> Self {
        Self { nodelets: map.used().iter().map(|words| vec![0; *words as usize]).collect() }
    }

    /// Reads a word; of a replicated array the copy of nodelet 0. `None` beyond the array's end.
    #[must_use]
    pub fn get(&self, map: &MemoryMap, array: ArrayId, index: i64) -> Option<i64> {
        let place = map.locate(array, index, 0)?;
        self.nodelets.get(place.nodelet as usize)?.get(place.word as usize).copied()
    }

    /// Writes a word, in all copies; beyond the array's end nothing.
    pub fn set(&mut self, map: &MemoryMap, array: ArrayId, index: i64, value: i64) {
        for here in 0..map.nodelets() {
            let Some(place) = map.locate(array, index, here) else { return };
            let words = self.nodelets.get_mut(place.nodelet as usize);
            if let Some(word) = words.and_then(|words| words.get_mut(place.word as usize)) {
                *word = value;
            }
            if place.nodelet != here {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_give_every_word_a_place_of_its_own() {
        for nodelets in [1, 3, 8] {
            let mut map = MemoryMap::new(nodelets);
            let views = [
                MemoryView::Local { nodelet: nodelets - 1 },
                MemoryView::Striped,
                MemoryView::Blocked { words: 4 },
                MemoryView::Striped,
            ];
            let arrays = views.map(|view| map.add("a", view, 29));
            let mut seen = std::collections::HashSet::new();
            for array in arrays {
                for index in 0..29 {
                    let place = map.locate(array, index, 0).unwrap();
                    assert!(place.word < map.used()[place.nodelet as usize]);
                    assert!(seen.insert((place.nodelet, place.word)), "{nodelets} {array:?}");
                }
                assert_eq!(map.locate(array, 29, 0), None);
                assert_eq!(map.locate(array, -1, 0), None);
            }
        }
    }

    #[test]
    fn blocks_go_round_and_copies_are_near() {
        let mut map = MemoryMap::new(4);
        let blocked = map.add("b", MemoryView::Blocked { words: 2 }, 16);
        let nodelets: Vec<u32> =
            (0..10).map(|i| map.locate(blocked, i, 0).unwrap().nodelet).collect();
        assert_eq!(nodelets, [0, 0, 1, 1, 2, 2, 3, 3, 0, 0]);
        let copies = map.add("r", MemoryView::Replicated, 5);
        assert_eq!(map.locate(copies, 3, 2).unwrap().nodelet, 2);
        let parts = map.add_parts("p", vec![1, 0, 2, 0]);
        assert_eq!(map.locate(parts, pointer(2, 1), 0).unwrap().nodelet, 2);
        assert_eq!(map.locate(parts, pointer(1, 0), 0), None);
        assert_eq!(map.locate(parts, pointer(9, 0), 0), None);
    }

    #[test]
    fn values_come_back_and_all_copies_are_written() {
        let mut map = MemoryMap::new(3);
        let striped = map.add("s", MemoryView::Striped, 7);
        let copies = map.add("r", MemoryView::Replicated, 2);
        let mut image = MemoryImage::new(&map);
        for index in 0..7 {
            image.set(&map, striped, index, 10 + index);
        }
        image.set(&map, copies, 1, 5);
        assert!((0..7).all(|index| image.get(&map, striped, index) == Some(10 + index)));
        for here in 0..3 {
            let place = map.locate(copies, 1, here).unwrap();
            assert_eq!(image.nodelets[here as usize][place.word as usize], 5);
        }
    }
}
