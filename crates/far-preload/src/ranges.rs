//! Which addresses of a range are handed out. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

/// Parts begin at multiples of this, as units do by default: two parts share no unit.
const GRAIN: usize = 64 << 10;

/// Parts in use and free.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    /// Start to end, apart and not touching.
    free: BTreeMap<usize, usize>,
    used: BTreeMap<usize, usize>,
    /// Mapped over by the program with something else; never handed out again.
    gone: BTreeMap<usize, usize>,
    /// End of what was ever handed out.
    pub(crate) top: usize,
}

impl Ranges {
    pub(crate) const fn new() -> Self {
        Self { free: BTreeMap::new(), used: BTreeMap::new(), gone: BTreeMap::new(), top: 0 }
    }

    /// Everything within is free.
    pub(crate) fn begin(&mut self, all: Range<usize>) {
        self.top = all.start;
        let start = all.start.next_multiple_of(GRAIN);
        self.free.insert(start, all.end);
    }

    /// Hands out `len` bytes, the lowest that fit.
    pub(crate) fn take(&mut self, len: usize) -> Option<Range<usize>> {
        let len = len.checked_next_multiple_of(4096)?;
        let (start, end) = self.free.iter().map(|(s, e)| (*s, *e)).find_map(|(start, end)| {
            let at = start.next_multiple_of(GRAIN);
            (at < end && end - at >= len).then_some((at, end)).map(|(at, _)| (start, at))
        })?;
        let free_end = self.free.remove(&start)?;
        if end > start {
            self.free.insert(start, end);
        }
        let taken = end..end + len;
        if taken.end < free_end {
            self.free.insert(taken.end, free_end);
        }
        self.used.insert(taken.start, taken.end);
        self.top = self.top.max(taken.end);
        Some(taken)
    }

    /// Makes a part longer at its end, in place, if it ends at `end` and the addresses after it are
    /// free.
    pub(crate) fn extend(&mut self, end: usize, more: usize) -> bool {
        let Some((&start, _)) = self.used.range(..end).next_back().filter(|(_, e)| **e == end)
        else {
            return false;
        };
        let Some(free_end) = self.free.get(&end).copied().filter(|f| f - end >= more) else {
            return false;
        };
        self.free.remove(&end);
        if end + more < free_end {
            self.free.insert(end + more, free_end);
        }
        self.used.insert(start, end + more);
        self.top = self.top.max(end + more);
        true
    }

    /// The parts of `range` that are in use.
    pub(crate) fn used(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let near =
            self.used.range(..range.end).map(|(s, e)| (*s).max(range.start)..(*e).min(range.end));
        near.filter(|p| p.start < p.end).collect()
    }

    /// Takes `range` out of what is in use; the parts that were.
    pub(crate) fn give(&mut self, range: Range<usize>) -> Vec<Range<usize>> {
        let cut = cut(&mut self.used, &range);
        for part in &cut {
            self.free_part(part.clone());
        }
        cut
    }

    fn free_part(&mut self, mut part: Range<usize>) {
        if let Some((&start, _)) =
            self.free.range(..part.start).next_back().filter(|(_, e)| **e == part.start)
        {
            self.free.remove(&start);
            part.start = start;
        }
        if let Some(end) = self.free.remove(&part.end) {
            part.end = end;
        }
        self.free.insert(part.start, part.end);
    }

    /// The program maps something else there: the parts that were in use.
    pub(crate) fn lose(&mut self, range: Range<usize>) -> Vec<Range<usize>> {
        let used = cut(&mut self.used, &range);
        let free = cut(&mut self.free, &range);
        for part in used.iter().chain(&free) {
            self.gone.insert(part.start, part.end);
        }
        used
    }

    /// The parts of `range` that the program has mapped something else over, which are its own to
    /// unmap.
    pub(crate) fn lost(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let near =
            self.gone.range(..range.end).map(|(s, e)| (*s).max(range.start)..(*e).min(range.end));
        near.filter(|p| p.start < p.end).collect()
    }

    /// Whether all of `range` is in use.
    pub(crate) fn holds(&self, range: &Range<usize>) -> bool {
        let part = self.used.range(..=range.start).next_back();
        part.is_some_and(|(_, end)| *end >= range.end)
    }
}

/// Cuts `range` out of parts; what was cut.
fn cut(parts: &mut BTreeMap<usize, usize>, range: &Range<usize>) -> Vec<Range<usize>> {
    let touched: Vec<(usize, usize)> = parts
        .range(..range.end)
        .filter(|(_, e)| **e > range.start)
        .map(|(s, e)| (*s, *e))
        .collect();
    touched
        .into_iter()
        .map(|(start, end)| {
            parts.remove(&start);
            if start < range.start {
                parts.insert(start, range.start);
            }
            if end > range.end {
                parts.insert(range.end, end);
            }
            start.max(range.start)..end.min(range.end)
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // lists of parts, of which some have one
mod tests {
    use super::*;
    use terrace_types::Seed;

    #[test]
    fn parts_never_overlap_and_come_back_whole() {
        let all = 1 << 20..1 << 26;
        let mut ranges = Ranges::new();
        ranges.begin(all.clone());
        let mut seed = Seed(3);
        let mut held: Vec<Range<usize>> = Vec::new();
        for _ in 0..4000 {
            let (r, next) = seed.next();
            seed = next;
            if r % 3 != 0 || held.is_empty() {
                if let Some(part) = ranges.take((r >> 8) as usize % (2 << 20) + 1) {
                    assert!(
                        part.start % GRAIN == 0 && part.start >= all.start && part.end <= all.end
                    );
                    assert!(
                        held.iter().all(|h| h.end <= part.start || h.start >= part.end),
                        "{part:?}"
                    );
                    held.push(part);
                }
                continue;
            }
            let at = (r >> 20) as usize % held.len();
            let part = held.swap_remove(at);
            let middle = part.start + (part.len() / 2).next_multiple_of(4096).min(part.len());
            assert!(ranges.holds(&part));
            assert_eq!(
                ranges.give(part.start..middle),
                if middle > part.start { vec![part.start..middle] } else { vec![] }
            );
            assert_eq!(
                ranges.give(part.clone()),
                if middle < part.end { vec![middle..part.end] } else { vec![] }
            );
            assert!(!ranges.holds(&part));
        }
        held.into_iter().for_each(|part| drop(ranges.give(part)));
        assert_eq!(ranges.free.into_iter().collect::<Vec<_>>(), [(all.start, all.end)]);
    }

    #[test]
    fn what_is_mapped_over_is_not_handed_out_again() {
        let mut ranges = Ranges::new();
        ranges.begin(0..10 * GRAIN);
        let part = ranges.take(4 * GRAIN).unwrap();
        assert_eq!(ranges.lose(GRAIN..2 * GRAIN), [GRAIN..2 * GRAIN]);
        assert_eq!(ranges.lost(&(0..10 * GRAIN)), [GRAIN..2 * GRAIN]);
        assert_eq!(ranges.give(part), [0..GRAIN, 2 * GRAIN..4 * GRAIN]);
        assert_eq!(ranges.take(2 * GRAIN), Some(2 * GRAIN..4 * GRAIN));
        assert!(
            ranges.extend(4 * GRAIN, GRAIN)
                && !ranges.extend(5 * GRAIN, 6 * GRAIN)
                && !ranges.extend(GRAIN, 1)
        );
        assert_eq!(ranges.top, 5 * GRAIN);
    }
}
