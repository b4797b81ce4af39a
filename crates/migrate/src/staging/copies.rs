//! Copies under way, in parts that several threads take. Pure.
//!
//! Threads that each copy a block of their own end together: workers wait for the first block as
//! long as for all of them, and have all of the last ones still to do when nothing is left to copy
//! beside. In parts, block after block is there as soon as the buses allow.

use std::ops::Range;

/// A larger block is copied in parts of about this size. Above what [`super::copy::copy`] leaves in
/// the cache, and far above what a lock costs.
const PART: usize = 256 << 10;
/// Parts begin at pages.
const PAGE: usize = 4096;

/// Part of a block, for one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// The block's number.
    pub(super) block: usize,
    /// Its buffer.
    pub(super) slot: usize,
    /// From the buffer to the data; else the other way.
    pub(super) back: bool,
    /// Bytes of the block.
    pub(super) range: Range<usize>,
}

/// A copy under way.
#[derive(Debug, Clone)]
struct Copy {
    block: usize,
    slot: usize,
    back: bool,
    bytes: usize,
    /// What begins here was not taken yet.
    next: usize,
    /// Parts that were taken and are not there yet.
    taken: usize,
}

/// Copies that are not at their end.
#[derive(Debug, Default)]
pub(super) struct Copies {
    open: Vec<Copy>,
}

impl Copies {
    /// Begins a copy of `bytes`, of a block and a buffer that no other copy under way has. The
    /// first part is the caller's.
    pub(super) fn begin(&mut self, block: usize, slot: usize, back: bool, bytes: usize) -> Part {
        self.open.push(Copy { block, slot, back, bytes, next: 0, taken: 0 });
        let last = self.open.len() - 1;
        self.open[last].part()
    }

    /// A part that nobody has, of the copy that was begun first.
    pub(super) fn take(&mut self) -> Option<Part> {
        self.open.iter_mut().find(|copy| copy.next < copy.bytes).map(Copy::part)
    }

    /// Whether there is one.
    pub(super) fn has_parts(&self) -> bool {
        self.open.iter().any(|copy| copy.next < copy.bytes)
    }

    /// A part that nobody has, of a copy that goes back.
    pub(super) fn take_back(&mut self) -> Option<Part> {
        self.open.iter_mut().find(|copy| copy.back && copy.next < copy.bytes).map(Copy::part)
    }

    /// Whether there is one.
    pub(super) fn has_parts_back(&self) -> bool {
        self.open.iter().any(|copy| copy.back && copy.next < copy.bytes)
    }

    /// A part is there. Whether that was the last of its block.
    pub(super) fn part_done(&mut self, part: &Part) -> bool {
        let Some(at) = self.open.iter().position(|copy| copy.slot == part.slot) else {
            return false;
        };
        let copy = &mut self.open[at];
        copy.taken -= 1;
        let whole = copy.taken == 0 && copy.next >= copy.bytes;
        if whole {
            self.open.remove(at);
        }
        whole
    }
}

impl Copy {
    /// The next part: a fair share of what is left, so that the last is not a scrap.
    fn part(&mut self) -> Part {
        let left = self.bytes - self.next;
        let share = left.div_ceil(left.div_ceil(PART).max(1)).next_multiple_of(PAGE).min(left);
        let range = self.next..self.next + share;
        self.next = range.end;
        self.taken += 1;
        Part { block: self.block, slot: self.slot, back: self.back, range }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_whole_block_once_and_none_is_a_scrap() {
        for bytes in [0, 1, 4095, PART, PART + 1, 3 * PART - 5, (2 << 20) + 77] {
            let mut copies = Copies::default();
            let mut parts = vec![copies.begin(7, 3, true, bytes)];
            parts.extend(std::iter::from_fn(|| copies.take()));
            let mut end = 0;
            for part in &parts {
                assert_eq!((part.block, part.slot, part.back, part.range.start), (7, 3, true, end));
                end = part.range.end;
            }
            assert_eq!(end, bytes);
            assert_eq!(parts.len(), bytes.div_ceil(PART).max(1));
            assert!(
                parts.len() == 1 || parts.iter().all(|p| p.range.len() > PART / 3),
                "{parts:?}"
            );
            // In any order; the last one that is there completes it.
            for (i, part) in parts.iter().rev().enumerate() {
                assert_eq!(copies.part_done(part), i + 1 == parts.len());
            }
            assert!(!copies.has_parts() && copies.open.is_empty());
        }
    }

    #[test]
    fn what_was_begun_first_is_completed_first() {
        let mut copies = Copies::default();
        let first = copies.begin(0, 5, false, 3 * PART);
        let second = copies.begin(1, 6, false, 2 * PART);
        let blocks: Vec<usize> = std::iter::from_fn(|| copies.take()).map(|p| p.block).collect();
        assert_eq!(blocks, [0, 0, 1]);
        assert!(!copies.part_done(&first) && !copies.part_done(&second));
    }
}
