//! The account of the ground: which of its addresses are free, which are far memory, and which
//! hold mappings of the program's own. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

const PAGE: usize = 4096;

/// What lies at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing, as the program sees it; really a mapping without rights, so that the kernel places
    /// nothing there.
    Free,
    /// Far memory, or, before there is a pager, what is to become far.
    Far,
    /// A mapping of the program's that the pager has no part in.
    Ordinary,
}

/// The parts of a range of addresses, without gaps, each of another kind than its neighbours.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Start to end and kind.
    parts: BTreeMap<usize, (usize, Kind)>,
    /// Mappings are handed out from here on.
    floor: usize,
}

impl Layout {
    pub(crate) const fn new() -> Self {
        Self { parts: BTreeMap::new(), floor: 0 }
    }

    /// All of the heap's part is far, all behind it free.
    pub(crate) fn begin(&mut self, heap: Range<usize>, end: usize) {
        self.floor = heap.end;
        self.parts.insert(heap.start, (heap.end, Kind::Far));
        self.parts.insert(heap.end, (end, Kind::Free));
    }

    /// The parts of `range`, in order.
    pub(crate) fn pieces(&self, range: &Range<usize>) -> Vec<(Range<usize>, Kind)> {
        let first = self.parts.range(..=range.start).next_back().map_or(range.start, |(s, _)| *s);
        self.parts
            .range(first..range.end)
            .map(|(s, (e, kind))| ((*s).max(range.start)..(*e).min(range.end), *kind))
            .filter(|(part, _)| part.start < part.end)
            .collect()
    }

    /// The parts of `range` of one kind.
    pub(crate) fn of_kind(&self, range: &Range<usize>, kind: Kind) -> Vec<Range<usize>> {
        let pieces = self.pieces(range).into_iter();
        pieces.filter(|(_, k)| *k == kind).map(|(part, _)| part).collect()
    }

    /// Calls `each` with each free part. Allocates nothing.
    pub(crate) fn each_free(&self, each: impl Fn(Range<usize>)) {
        let free = self.parts.iter().filter(|(_, (_, kind))| *kind == Kind::Free);
        free.for_each(|(start, (end, _))| each(*start..*end));
    }

    /// Whether all of `range` is of one kind.
    pub(crate) fn is(&self, range: &Range<usize>, kind: Kind) -> bool {
        self.pieces(range).iter().all(|(_, k)| *k == kind)
    }

    /// `range` is of this kind from now on.
    pub(crate) fn set(&mut self, range: Range<usize>, kind: Kind) {
        if range.start < self.floor && self.floor < range.end {
            self.set_within(range.start..self.floor, kind);
            self.set_within(self.floor..range.end, kind);
        } else if range.start < range.end {
            self.set_within(range, kind);
        }
    }

    /// As [`Layout::set`], of a range on one side of the floor.
    fn set_within(&mut self, mut range: Range<usize>, kind: Kind) {
        let first = self.parts.range(..=range.start).next_back().map_or(range.start, |(s, _)| *s);
        let touched: Vec<_> =
            self.parts.range(first..range.end).map(|(s, (e, k))| (*s, *e, *k)).collect();
        for (start, end, other) in touched {
            self.parts.remove(&start);
            if start < range.start {
                self.parts.insert(start, (range.start, other));
            }
            if end > range.end {
                self.parts.insert(range.end, (end, other));
            }
        }
        let before = self.parts.range(..range.start).next_back().map(|(s, p)| (*s, *p));
        if let Some((start, (_, other))) = before {
            if other == kind && range.start != self.floor {
                self.parts.remove(&start);
                range.start = start;
            }
        }
        if let Some((end, other)) = self.parts.get(&range.end).copied() {
            if other == kind && range.end != self.floor {
                self.parts.remove(&range.end);
                range.end = end;
            }
        }
        self.parts.insert(range.start, (range.end, kind));
    }

    /// Makes the lowest `len` free bytes far.
    pub(crate) fn take(&mut self, len: usize) -> Option<Range<usize>> {
        let len = len.checked_next_multiple_of(PAGE)?;
        let mut parts = self.parts.range(self.floor..).map(|(start, part)| (*start, *part));
        let fits = |start, (end, kind)| kind == Kind::Free && end - start >= len;
        let (start, _) = parts.find(|(start, part)| fits(*start, *part))?;
        let taken = start..start + len;
        self.set(taken.clone(), Kind::Far);
        Some(taken)
    }

    /// Makes exactly `range` far, if all of it is free and handed out at all.
    pub(crate) fn take_at(&mut self, range: Range<usize>) -> bool {
        let whole = range.start >= self.floor && self.is(&range, Kind::Free);
        if whole {
            self.set(range, Kind::Far);
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::Seed;

    const BASE: usize = 1 << 20;
    const PAGES: usize = 200;

    fn layout() -> Layout {
        let mut layout = Layout::new();
        layout.begin(BASE..BASE + 16 * PAGE, BASE + PAGES * PAGE);
        layout
    }

    #[test]
    fn every_address_has_the_kind_that_it_was_given_last() {
        let mut layout = layout();
        let mut truth = [Kind::Free; PAGES];
        truth[..16].fill(Kind::Far);
        let mut seed = Seed(5);
        for _ in 0..4000 {
            let (r, next) = seed.next();
            seed = next;
            let from = (r >> 8) as usize % PAGES;
            let end = (from + 1 + (r >> 20) as usize % 40).min(PAGES);
            let range = BASE + from * PAGE..BASE + end * PAGE;
            let kind = [Kind::Free, Kind::Far, Kind::Ordinary][(r >> 32) as usize % 3];
            match (r >> 40) % 4 {
                0 => {
                    let free = |at: usize| truth[at..].iter().take_while(|k| **k == Kind::Free);
                    let pages = end - from;
                    let first = (16..PAGES).find(|at| free(*at).count() >= pages);
                    let taken = layout.take(pages * PAGE);
                    assert_eq!(taken.map(|t| (t.start - BASE) / PAGE), first);
                    if let Some(first) = first {
                        truth[first..first + pages].fill(Kind::Far);
                    }
                }
                1 => {
                    let free = from >= 16 && truth[from..end].iter().all(|k| *k == Kind::Free);
                    assert_eq!(layout.take_at(range), free);
                    if free {
                        truth[from..end].fill(Kind::Far);
                    }
                }
                _ => {
                    layout.set(range, kind);
                    truth[from..end].fill(kind);
                }
            }
            let whole = BASE..BASE + PAGES * PAGE;
            let pieces = layout.pieces(&whole);
            let mut at = BASE;
            for (part, kind) in pieces {
                assert_eq!(part.start, at, "no gap");
                let pages = (part.start - BASE) / PAGE..(part.end - BASE) / PAGE;
                assert!(truth[pages].iter().all(|k| *k == kind));
                at = part.end;
            }
            assert_eq!(at, whole.end);
        }
    }

    #[test]
    fn the_heap_is_never_handed_out() {
        let mut layout = layout();
        layout.set(BASE..BASE + 8 * PAGE, Kind::Free);
        assert!(!layout.take_at(BASE..BASE + PAGE));
        assert_eq!(layout.take(PAGE), Some(BASE + 16 * PAGE..BASE + 17 * PAGE));
        assert_eq!(layout.take((PAGES - 16) * PAGE), None);
        assert_eq!(layout.of_kind(&(BASE..BASE + 9 * PAGE), Kind::Far).len(), 1);
    }
}
