//! Blocks of one size, and which of them are free: two levels of bits beside the memory, never in
//! it.
//!
//! ```text
//! summary  1 bit a word      free[0..64]  1 bit a block, owner only      remote[0..64]  others' frees, atomic
//! ```
//! The owner takes the lowest free block, so memory is touched from the bottom up, and a block that
//! is freed twice shows as a bit that is set already. All fields are atomics, because a program
//! that frees twice may race; the owner reads and writes them without atomic steps.

use super::sizes::{block_size, divisor, index_of, SLICE};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering::*};

/// A slab's place among its owner's.
pub(crate) mod state {
    /// Its bin hands out from it.
    pub(crate) const CURRENT: u8 = 0;
    /// In the bin's list: it has free blocks.
    pub(crate) const LISTED: u8 = 1;
    /// No free block; in no list.
    pub(crate) const FULL: u8 = 2;
    /// One block of whole slices; has no owner.
    pub(crate) const LARGE: u8 = 3;
    /// Not a slab now.
    pub(crate) const NONE: u8 = 4;
}

/// Record of a slab. The first word is where the pool keeps its link.
#[repr(C, align(64))]
pub(crate) struct Slab {
    pub(crate) next: AtomicPtr<Slab>,
    pub(crate) previous: AtomicPtr<Slab>,
    pub(crate) start: AtomicUsize,
    summary: AtomicU64,
    inverse: AtomicU64,
    /// What freeing asks for, in one word: see [`Shape`].
    shape: AtomicU64,
    /// Bytes of a block; of the whole for a large one.
    pub(crate) size: AtomicUsize,
    /// The [`super::heap::Cache`] that owns it; null: large.
    pub(crate) cache: AtomicUsize,
    blocks: AtomicU32,
    used: AtomicU32,
    pub(crate) slices: AtomicU32,
    pub(crate) state: AtomicU8,
    pub(crate) class: AtomicU8,
    // Second line: what others write.
    remote_words: AtomicU64,
    in_flight: AtomicU32,
    pub(crate) mail: AtomicPtr<Slab>,
    /// The [`super::space::Segment`] it lies in.
    pub(crate) segment: AtomicUsize,
    free: [AtomicU64; 64],
    remote: [AtomicU64; 64],
}

/// How often 2 divides the size of a slab's blocks (bits 0 to 7), where their class's bin is in a
/// cache, in bytes (8 to 31), and how many of them were handed out at least once, all below the
/// highest (32 to 63).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape(u64);

impl Shape {
    fn new(twos: u32, bin: u32) -> Self {
        Self(u64::from(twos) | u64::from(bin) << 8)
    }

    #[inline(always)]
    fn twos(self) -> u32 {
        self.0 as u32 & 0x3f
    }

    #[inline(always)]
    pub(crate) fn bin(self) -> usize {
        (self.0 as u32 >> 8) as usize
    }

    #[inline(always)]
    fn handed(self) -> usize {
        (self.0 >> 32) as usize
    }

    fn with_handed(self, handed: usize) -> Self {
        Self(self.0 & 0xffff_ffff | (handed as u64) << 32)
    }
}

/// What a pointer into a slab is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The start of this block.
    Block(usize),
    /// Inside a block, or behind the last.
    Inside,
}

/// What freeing came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freed {
    /// Done.
    Done,
    /// It is free already.
    Twice,
}

impl Slab {
    /// What stands where a bin has no slab: nothing to take.
    pub(crate) const fn empty() -> Slab {
        Slab {
            next: AtomicPtr::new(null_mut()),
            start: AtomicUsize::new(0),
            summary: AtomicU64::new(0),
            inverse: AtomicU64::new(0),
            shape: AtomicU64::new(0),
            size: AtomicUsize::new(0),
            cache: AtomicUsize::new(0),
            blocks: AtomicU32::new(0),
            used: AtomicU32::new(0),
            slices: AtomicU32::new(0),
            state: AtomicU8::new(state::NONE),
            class: AtomicU8::new(0),
            remote_words: AtomicU64::new(0),
            in_flight: AtomicU32::new(0),
            mail: AtomicPtr::new(null_mut()),
            previous: AtomicPtr::new(null_mut()),
            segment: AtomicUsize::new(0),
            free: [const { AtomicU64::new(0) }; 64],
            remote: [const { AtomicU64::new(0) }; 64],
        }
    }

    /// Makes this record one of a slab of free blocks, owned by `cache`.
    pub(crate) fn become_small(
        &self,
        start: usize,
        class: usize,
        bin: u32,
        slices: usize,
        cache: usize,
    ) {
        let size = block_size(class);
        let blocks = slices * SLICE / size;
        self.start.store(start, Relaxed);
        self.size.store(size, Relaxed);
        let (inverse, twos) = divisor(size);
        self.inverse.store(inverse, Relaxed);
        self.shape.store(Shape::new(twos, bin).0, Relaxed);
        self.cache.store(cache, Relaxed);
        self.blocks.store(blocks as u32, Relaxed);
        self.used.store(0, Relaxed);
        self.slices.store(slices as u32, Relaxed);
        self.class.store(class as u8, Relaxed);
        self.remote_words.store(0, Relaxed);
        self.in_flight.store(0, Relaxed);
        let words = blocks.div_ceil(64);
        self.summary.store(super::bits::mask(0, 0, words), Relaxed);
        for word in 0..64 {
            self.free[word].store(super::bits::mask(word, 0, blocks), Relaxed);
            self.remote[word].store(0, Relaxed);
        }
    }

    /// Makes this record one of a single block of whole slices.
    pub(crate) fn become_large(&self, start: usize, slices: usize) {
        self.start.store(start, Relaxed);
        self.size.store(slices * SLICE, Relaxed);
        self.shape.store(Shape::new(0, 0).0, Relaxed);
        self.cache.store(0, Relaxed);
        self.blocks.store(1, Relaxed);
        self.used.store(1, Relaxed);
        self.slices.store(slices as u32, Relaxed);
        self.state.store(state::LARGE, Relaxed);
        self.summary.store(0, Relaxed);
    }

    /// Blocks handed out and not yet seen freed.
    pub(crate) fn used(&self) -> u32 {
        self.used.load(Relaxed)
    }

    /// Frees by other threads that the owner has not taken back yet.
    pub(crate) fn pending(&self) -> u32 {
        self.remote.iter().map(|w| w.load(Relaxed).count_ones()).sum()
    }

    /// Takes the lowest free block; null when there is none. Owner only.
    #[inline(always)]
    pub(crate) fn take(&self) -> *mut u8 {
        let summary = self.summary.load(Relaxed);
        if summary == 0 {
            return null_mut();
        }
        let word = summary.trailing_zeros() as usize;
        let bits = self.free[word & 63].load(Relaxed);
        let rest = bits & bits.wrapping_sub(1);
        self.free[word & 63].store(rest, Relaxed);
        if rest == 0 {
            self.summary.store(summary & summary.wrapping_sub(1), Relaxed);
        }
        self.used.store(self.used.load(Relaxed) + 1, Relaxed);
        let block = (word << 6) + bits.trailing_zeros() as usize;
        let shape = self.shape();
        if block >= shape.handed() {
            self.shape.store(shape.with_handed(block + 1).0, Relaxed);
        }
        (self.start.load(Relaxed) + block * self.size.load(Relaxed)) as *mut u8
    }

    /// Whether a block is free.
    #[inline(always)]
    pub(crate) fn has_free(&self) -> bool {
        self.summary.load(Relaxed) != 0
    }

    #[inline(always)]
    pub(crate) fn shape(&self) -> Shape {
        Shape(self.shape.load(Relaxed))
    }

    /// Index of the block that begins at `at`, an address in the slab's slices; a number that is no
    /// index, when none does.
    #[inline(always)]
    fn index(&self, at: usize, shape: Shape) -> usize {
        let offset = at.wrapping_sub(self.start.load(Relaxed));
        index_of(offset, (self.inverse.load(Relaxed), shape.twos()))
    }

    /// Whether a block that was handed out, once at least, begins at `at`. `shape` is the slab's.
    #[inline(always)]
    pub(crate) fn was_handed(&self, at: usize, shape: Shape) -> bool {
        self.index(at, shape) < shape.handed()
    }

    /// Which block a pointer into the slab's slices is.
    pub(crate) fn place(&self, at: usize) -> Place {
        let block = self.index(at, self.shape());
        if block < self.blocks.load(Relaxed) as usize {
            Place::Block(block)
        } else {
            Place::Inside
        }
    }

    /// Frees a block. Owner only.
    #[inline(always)]
    pub(crate) fn put(&self, block: usize) -> Freed {
        let (word, bit) = ((block >> 6) & 63, 1_u64 << (block & 63));
        let bits = self.free[word].load(Relaxed);
        let mut gone = bits;
        if self.remote_words.load(Relaxed) != 0 {
            gone |= self.remote[word].load(Relaxed);
        }
        if gone & bit != 0 {
            return Freed::Twice;
        }
        self.free[word].store(bits | bit, Relaxed);
        if bits == 0 {
            self.summary.store(self.summary.load(Relaxed) | 1 << word, Relaxed);
        }
        self.used.store(self.used.load(Relaxed).wrapping_sub(1), Relaxed);
        Freed::Done
    }

    /// Frees a block that another thread's cache owns. `tell` is called when the owner is to be
    /// told; only after [`Slab::landed`] may the owner give the slab back.
    pub(crate) fn put_remote(&self, block: usize, tell: impl FnOnce(&Slab)) -> Freed {
        let (word, bit) = ((block >> 6) & 63, 1_u64 << (block & 63));
        if self.free[word].load(Relaxed) & bit != 0 {
            return Freed::Twice;
        }
        // The block counts as used until its bit is seen, so the slab is alive here; once the bit
        // is set the owner may see the slab empty, and this count keeps it until all below is done.
        self.in_flight.fetch_add(1, AcqRel);
        let before = self.remote[word].fetch_or(bit, AcqRel);
        let freed = if before & bit != 0 {
            Freed::Twice
        } else {
            if self.remote_words.fetch_or(1 << word, AcqRel) == 0 {
                tell(self);
            }
            Freed::Done
        };
        self.in_flight.fetch_sub(1, Release);
        freed
    }

    /// Takes back what others freed. Owner only; the slab is in no mailbox any more. Returns how
    /// many were freed twice.
    pub(crate) fn collect(&self) -> u32 {
        let mut words = self.remote_words.swap(0, AcqRel);
        let mut twice = 0;
        while words != 0 {
            let word = words.trailing_zeros() as usize;
            words &= words - 1;
            let bits = self.remote[word].swap(0, AcqRel);
            let free = self.free[word].load(Relaxed);
            twice += (bits & free).count_ones();
            let fresh = bits & !free;
            if fresh != 0 {
                self.free[word].store(free | fresh, Relaxed);
                self.summary.store(self.summary.load(Relaxed) | 1 << word, Relaxed);
                self.used.store(self.used.load(Relaxed).wrapping_sub(fresh.count_ones()), Relaxed);
            }
        }
        twice
    }

    /// Whether nothing is used and nobody is in the midst of freeing. Owner only.
    pub(crate) fn landed(&self) -> bool {
        self.used.load(Relaxed) == 0
            && self.in_flight.load(Acquire) == 0
            && self.remote_words.load(Acquire) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::sizes::{block_size, slab_slices, CLASSES};
    use super::*;

    fn slab(class: usize) -> Box<Slab> {
        let slab = Box::new(Slab::empty());
        slab.become_small(1 << 20, class, 0, slab_slices(class), 1);
        slab
    }

    #[test]
    fn all_blocks_are_handed_out_once_from_the_bottom() {
        for class in 0..CLASSES {
            let slab = slab(class);
            let mut last = 0;
            let blocks = slab_slices(class) * SLICE / block_size(class);
            for _ in 0..blocks {
                let at = slab.take() as usize;
                assert!(
                    at > last && at + block_size(class) <= (1 << 20) + slab_slices(class) * SLICE
                );
                last = at;
            }
            assert!(slab.take().is_null() && slab.used() as usize == blocks);
        }
    }

    #[test]
    fn freed_twice_is_seen_from_any_thread() {
        let slab = slab(3);
        let at = slab.take() as usize;
        let Place::Block(block) = slab.place(at) else { panic!("{:?}", slab.place(at)) };
        assert_eq!(slab.place(at + 8), Place::Inside);
        let mut reported = 0;
        assert_eq!(slab.put_remote(block, |_| reported += 1), Freed::Done);
        assert_eq!((reported, slab.used(), slab.pending()), (1, 1, 1));
        assert_eq!(slab.put_remote(block, |_| reported += 1), Freed::Twice);
        assert_eq!(slab.put(block), Freed::Twice);
        assert_eq!(slab.collect(), 0);
        assert!(slab.landed());
        assert_eq!(slab.put(block), Freed::Twice);
        assert_eq!(slab.put_remote(block, |_| reported += 1), Freed::Twice);
        assert_eq!(reported, 1);
        assert_eq!(slab.take() as usize, at);
    }
}
