//! Blocks as they are asked for, and as they come.

use super::api::StageError;
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::panic::{catch_unwind, AssertUnwindSafe};
use terrace_types::Bytes;

/// A block: its address and its bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) data: *mut u8,
    pub(super) bytes: usize,
}

/// What gives the blocks.
pub(super) type Ranges<'a> = Box<dyn Iterator<Item = Range<usize>> + Send + 'a>;

/// What an iterator said when it was asked once: a range, its end, or what it panicked with.
pub(super) type Answer = Result<Option<Range<usize>>, String>;

/// Blocks of one slice, asked for as they are needed: none beyond the data, and no two with an
/// element in common.
pub(super) struct Blocks<'a> {
    /// None once it has ended, and while somebody asks it.
    ranges: Option<Ranges<'a>>,
    ended: bool,
    /// Bytes of an element.
    size: usize,
    /// Elements of the data.
    length: usize,
    /// Those that came, as (offset, length) in bytes.
    known: Vec<(usize, usize)>,
    /// Those of them that have elements, by where they begin.
    starts: BTreeMap<usize, usize>,
}

/// What is known, or taken to be so, of all blocks before the last has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prospect {
    pub(super) blocks: usize,
    pub(super) largest: usize,
    pub(super) total: usize,
}

impl<'a> Blocks<'a> {
    /// Of a slice of `length` elements of type `T`.
    pub(super) fn new<T>(length: usize, ranges: Ranges<'a>) -> Self {
        let size = std::mem::size_of::<T>();
        Self {
            ranges: Some(ranges),
            ended: false,
            size,
            length,
            known: Vec::new(),
            starts: BTreeMap::new(),
        }
    }

    /// Blocks that came so far.
    pub(super) fn known(&self) -> &[(usize, usize)] {
        &self.known
    }

    /// Whether no more will come.
    pub(super) const fn ended(&self) -> bool {
        self.ended
    }

    /// Whether another can be asked for now: nobody does, and the last has not come.
    pub(super) const fn can_ask(&self) -> bool {
        self.ranges.is_some()
    }

    /// What gives the blocks, for one to ask without holding these; [`Self::answered`] takes it
    /// back.
    pub(super) fn lend(&mut self) -> Option<Ranges<'a>> {
        self.ranges.take()
    }

    /// Takes what [`ask`] said. Whether another block came.
    pub(super) fn answered(
        &mut self,
        ranges: Ranges<'a>,
        answer: Answer,
    ) -> Result<bool, StageError> {
        match answer {
            Ok(Some(range)) => {
                self.ranges = Some(ranges);
                self.admit(range)?;
                Ok(true)
            }
            Ok(None) => {
                self.ended = true;
                Ok(false)
            }
            Err(message) => {
                self.ended = true;
                Err(StageError::Sequence { after: self.known.len(), message })
            }
        }
    }

    /// Asks for one more. Whether it came.
    pub(super) fn next(&mut self) -> Result<bool, StageError> {
        match self.lend() {
            Some(mut ranges) => {
                let answer = ask(&mut ranges);
                self.answered(ranges, answer)
            }
            None => Ok(false),
        }
    }

    /// Asks until so many are known or the last has come.
    pub(super) fn fill_ahead(&mut self, ahead: usize) -> Result<(), StageError> {
        while self.known.len() < ahead && self.next()? {}
        Ok(())
    }

    fn admit(&mut self, range: Range<usize>) -> Result<(), StageError> {
        let (block, Range { start, end }) = (self.known.len(), range);
        if end > self.length || start > end {
            return Err(StageError::OutOfBounds { block, start, end, length: self.length });
        }
        let (offset, bytes) = (start * self.size, (end - start) * self.size);
        if bytes > 0 {
            let before = self
                .starts
                .range(..=offset)
                .next_back()
                .map(|(at, number)| (at + self.known[*number].1, *number));
            let after = self.starts.range(offset..).next().map(|(at, number)| (*at, *number));
            let first = match (before, after) {
                (Some((reaches, number)), _) if reaches > offset => Some(number),
                (_, Some((begins, number))) if begins < offset + bytes => Some(number),
                _ => None,
            };
            if let Some(first) = first {
                return Err(StageError::Overlap { first, second: block });
            }
            self.starts.insert(offset, block);
        }
        self.known.push((offset, bytes));
        Ok(())
    }

    /// All blocks, by those that came. Of more than those the mean size is taken, and the number is
    /// `expected`, or the most that the iterator says there may be, or else as many as go over all
    /// of the data; they have no element twice, so never more than that.
    pub(super) fn prospect(&self, expected: Option<usize>, largest: Option<Bytes>) -> Prospect {
        let sizes = self.known.iter().map(|block| block.1);
        let (known, sum, most) =
            (self.known.len(), sizes.clone().sum::<usize>(), sizes.max().unwrap_or(0));
        // Where none of those that came has elements, nothing can be said of the others: no buffer
        // would be of use.
        if self.ended || sum == 0 {
            return Prospect { blocks: known, largest: most, total: sum };
        }
        let largest = largest.map_or(most, |reported| {
            most.max(usize::try_from(reported.get()).unwrap_or(usize::MAX))
        });
        let (mean, all) = (sum.div_ceil(known.max(1)).max(1), self.length * self.size);
        let hinted = || {
            self.ranges
                .as_ref()
                .and_then(|r| r.size_hint().1)
                .map(|more| known.saturating_add(more))
        };
        let blocks =
            expected.or_else(hinted).unwrap_or(usize::MAX).min(all.div_ceil(mean)).max(known);
        Prospect { blocks, largest, total: blocks.saturating_mul(mean).min(all).max(sum) }
    }
}

impl fmt::Debug for Blocks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks")
            .field("known", &self.known)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// Asks an iterator once.
pub(super) fn ask(ranges: &mut Ranges<'_>) -> Answer {
    // An iterator that panicked is not asked again; what it holds is its own.
    catch_unwind(AssertUnwindSafe(|| ranges.next())).map_err(|panic| said(panic.as_ref()))
}

/// What a panic said.
pub(super) fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

/// Whether all of these may be given: none beyond `length` elements, no two with an element in
/// common. For those who have a whole list and want it refused before anything runs, however long
/// it is.
///
/// # Errors
/// [`StageError::OutOfBounds`] and [`StageError::Overlap`].
pub fn check_blocks(
    length: usize,
    blocks: impl IntoIterator<Item = Range<usize>>,
) -> Result<(), StageError> {
    let mut all = Blocks::new::<u8>(length, Box::new(std::iter::empty()));
    blocks.into_iter().try_for_each(|range| all.admit(range))
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::Seed;

    fn blocks<'a>(
        length: usize,
        ranges: impl Iterator<Item = Range<usize>> + Send + 'a,
    ) -> Blocks<'a> {
        Blocks::new::<u32>(length, Box::new(ranges))
    }

    #[test]
    fn an_overlap_is_found_whenever_it_comes() {
        for seed in 0..300 {
            let mut seed = Seed(seed);
            let mut random = |below: u64| {
                let (r, next) = seed.next();
                seed = next;
                (r % below) as usize
            };
            let mut given: Vec<Range<usize>> = Vec::new();
            let ranges: Vec<Range<usize>> = (0..20)
                .map(|_| {
                    let start = random(200);
                    start..start + random(6)
                })
                .collect();
            let mut all = blocks(300, ranges.clone().into_iter());
            for (number, range) in ranges.into_iter().enumerate() {
                let shares = |g: &Range<usize>| g.start.max(range.start) < g.end.min(range.end);
                let first: Vec<usize> = (0..number).filter(|n| shares(&given[*n])).collect();
                match all.next() {
                    Ok(true) => assert!(first.is_empty(), "{given:?} {range:?}"),
                    Err(StageError::Overlap { first: reported, second }) => {
                        assert!(
                            first.contains(&reported) && second == number,
                            "{given:?} {range:?} {reported}"
                        );
                        break;
                    }
                    other => panic!("{other:?}"),
                }
                given.push(range);
            }
        }
    }

    #[test]
    fn no_more_are_asked_for_than_are_wanted() {
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let counted = (0..10).map(|k| {
            asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            k * 5..k * 5 + 5
        });
        let mut all = blocks(50, counted);
        all.fill_ahead(3).unwrap();
        assert_eq!(
            (all.known(), all.ended(), all.can_ask()),
            (&[(0, 20), (20, 20), (40, 20)][..], false, true)
        );
        assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 3);
        all.fill_ahead(100).unwrap();
        assert_eq!((all.known().len(), all.ended(), all.can_ask()), (10, true, false));
        assert_eq!(
            (all.next(), asked.load(std::sync::atomic::Ordering::Relaxed)),
            (Ok(false), 10),
            "not asked after its end"
        );
    }

    #[test]
    fn unknown_figures_are_taken_from_blocks_seen() {
        let prospect = |length, hint: Option<usize>, expected, largest| {
            let mut at = 0;
            let mut endless = std::iter::from_fn(move || {
                at += 10;
                Some(at - 10..at)
            });
            let mut all = match hint {
                Some(hint) => blocks(length, endless.take(hint)),
                None => blocks(length, std::iter::from_fn(move || endless.next())),
            };
            all.fill_ahead(4).unwrap();
            let p = all.prospect(expected, largest);
            (p.blocks, p.largest, p.total)
        };
        assert_eq!(prospect(1000, Some(3), None, Some(Bytes(77))), (3, 40, 120), "all came");
        assert_eq!(prospect(1000, Some(50), None, None), (50, 40, 2000), "the iterator says so");
        assert_eq!(prospect(1000, Some(500), None, None), (100, 40, 4000), "no element twice");
        assert_eq!(prospect(1000, None, None, None), (100, 40, 4000), "all of the data");
        assert_eq!(prospect(1000, Some(50), Some(7), Some(Bytes(50))), (7, 50, 280), "as told");
        assert_eq!(
            prospect(1000, None, Some(1), Some(Bytes(1))),
            (4, 40, 160),
            "never less than came"
        );
        let mut empty = blocks(1000, std::iter::repeat_with(|| 3..3));
        empty.fill_ahead(4).unwrap();
        assert_eq!((empty.prospect(None, None).blocks, empty.prospect(None, None).total), (4, 0));
        assert_eq!(check_blocks(9, [0..9, 4..4]), Ok(()));
        assert_eq!(check_blocks(9, [0..5, 4..6]), Err(StageError::Overlap { first: 0, second: 1 }));
    }

    #[test]
    fn an_iterator_that_panics_is_asked_no_more() {
        let mut all = blocks(
            100,
            (0..5).map(
                |k| if k < 2 { k..k + 1 } else { std::panic::resume_unwind(Box::new("third")) },
            ),
        );
        let reported = all.fill_ahead(64);
        assert_eq!(reported, Err(StageError::Sequence { after: 2, message: "third".into() }));
        assert_eq!((all.ended(), all.next()), (true, Ok(false)));
    }
}
