//! What an algorithm runs on: words that can be loaded and stored.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a word.
pub const WORD: usize = 8;
/// Words of a 4 KiB page: the unit in which hot and cold data are interleaved.
pub const PAGE_WORDS: usize = 4096 / WORD;
/// Words of a cache line.
pub const LINE_WORDS: usize = 64 / WORD;

/// Words numbered from zero. Real memory or a recorder of accesses.
///
/// All methods are relaxed: an algorithm that shares words between threads uses only operations
/// whose result does not depend on their order.
pub trait WordMemory: Sync {
    /// Reads a word.
    fn load(&self, word: usize) -> u64;
    /// Writes a word.
    fn store(&self, word: usize, value: u64);
    /// Adds to a word that no other thread writes at the time.
    #[inline(always)]
    fn add_own(&self, word: usize, value: u64) {
        self.store(word, self.load(word).wrapping_add(value));
    }

    /// The algorithm's own heap holds `bytes` beside the words from now on to the end: lists that
    /// it makes its data of. Real memory has that heap anyhow; who models a program's memory wants
    /// to know of it.
    fn reserve_bytes(&self, bytes: u64) {
        let _real_heap_is_real = bytes;
    }

    /// Whether somebody wants to be told what the algorithm reads of its own heap.
    #[inline(always)]
    fn listens(&self) -> bool {
        false
    }

    /// So many bytes from this offset on of what is [`held`](Memory::held) are read, or written.
    /// Told only to those who [listen](Memory::listens).
    #[inline(always)]
    fn own(&self, offset: u64, bytes: u64, write: bool) {
        let _ = (offset, bytes, write);
    }

    /// `a[i] = b[i] + factor * c[i]` for `i` in `[0, count)`; `starts` are the first words.
    #[inline(always)]
    fn triad(&self, starts: [usize; 3], count: usize, factor: u64) {
        let [a, b, c] = starts;
        for i in 0..count {
            let scaled = self.load(c + i).wrapping_mul(factor);
            self.store(a + i, self.load(b + i).wrapping_add(scaled));
        }
    }
}

/// Words that are real memory. Relaxed atomics compile to the plain moves of hand-written code.
impl WordMemory for [AtomicU64] {
    #[inline(always)]
    fn load(&self, word: usize) -> u64 {
        self[word].load(Ordering::Relaxed)
    }
    #[inline(always)]
    fn store(&self, word: usize, value: u64) {
        self[word].store(value, Ordering::Relaxed);
    }
    /// Bounds are checked once for all elements.
    #[inline(always)]
    fn triad(&self, starts: [usize; 3], count: usize, factor: u64) {
        let [a, b, c] = starts.map(|start| &self[start..start + count]);
        for ((a, b), c) in a.iter().zip(b).zip(c) {
            let scaled = c.load(Ordering::Relaxed).wrapping_mul(factor);
            a.store(b.load(Ordering::Relaxed).wrapping_add(scaled), Ordering::Relaxed);
        }
    }
}

/// Ordinary heap memory, for tests and doc examples; all touched when made.
#[derive(Debug)]
pub struct Heap(Vec<AtomicU64>);

impl Heap {
    /// `words` zeroes.
    #[must_use]
    pub fn new(words: usize) -> Self {
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }
}

impl WordMemory for Heap {
    #[inline(always)]
    fn load(&self, word: usize) -> u64 {
        self.0.as_slice().load(word)
    }
    #[inline(always)]
    fn store(&self, word: usize, value: u64) {
        self.0.as_slice().store(word, value);
    }
}
