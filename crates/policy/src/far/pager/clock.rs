//! Which chunk goes: two rings and a hand, so that a scan cannot push out what is used again.
//!
//! Chunks that come while memory is short wait in the *probation* ring; those that are touched
//! again there, or come back soon after they went, move to the *main* ring. Hands pass over chunks
//! touched since they last came by (a second chance, as in CLOCK), and up to three times over those
//! that came back from trials (see `standby`). How much probation may hold adapts, as in ARC: a
//! chunk that returns and would still be there had probation been larger makes it larger; one that
//! was taken from main makes it smaller. While memory is plenty all goes to main.
//!
//! Reads of mapped pages leave no trace that a user-space pager could see, so *touched* means:
//! faulted again in the chunk (another page, a first write, a rescue of what was being written
//! out). A sweep over mapped chunks is not seen, and that is what keeps most of a working set twice
//! the memory in place while its rest streams through probation.

use crate::far::geometry::ChunkNo;
use std::collections::VecDeque;
use terrace_types::Seed;

/// Where a chunk is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClockList {
    /// Nowhere.
    #[default]
    No,
    /// In the probation ring.
    Probation,
    /// In the main ring.
    Main,
}

/// What the rings know of a chunk.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClockEntry {
    /// Evictions there had been when this chunk was evicted, plus one; 0: never evicted.
    gone: u32,
    /// Where it is listed; after an eviction, where it was last.
    pub listed: ClockList,
    was: ClockList,
    /// Arrivals there had been when it arrived.
    came: u32,
    /// Times that the hand will pass over it.
    credit: u8,
    /// Trials that it came back from since it arrived.
    proven: u8,
}

/// The rings.
#[derive(Debug, Default)]
pub struct ClockRings {
    probation: VecDeque<ChunkNo>,
    main: VecDeque<ChunkNo>,
    evictions: u32,
    arrivals: u32,
    chance: Seed,
    /// Times that the hand passes over a chunk, at most.
    most_credit: u8,
    /// Chunks that probation holds before it is preferred for victims.
    target: usize,
    /// Chunks that probation holds at least: what is fetched ahead must not go before it is used.
    pub least: usize,
    /// Chunks that access streams of late had fetched ahead: an access stream by strides has few
    /// pages in each of many.
    spanned: usize,
}

/// What to do with the chunk under the hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockVerdict {
    /// Not there any more.
    Empty,
    /// May not go now: pinned or busy.
    Stay,
    /// May go, but not yet: nothing goes before it.
    Wait,
    /// May go.
    Free,
}

impl ClockRings {
    /// Empty rings, whose hand passes over a chunk so many times at most.
    pub fn new(most_credit: u8) -> Self {
        Self { most_credit, ..Self::default() }
    }

    /// Memory for the rings.
    pub fn bytes(&self) -> usize {
        (self.probation.capacity() + self.main.capacity()) * std::mem::size_of::<ChunkNo>()
    }

    /// A chunk got its first page. `short`: memory is short, so newcomers must prove themselves.
    pub fn arrived(&mut self, chunk: ChunkNo, s: &mut ClockEntry, short: bool) {
        if s.listed != ClockList::No {
            self.touch(s);
            return;
        }
        self.arrivals = self.arrivals.wrapping_add(1);
        s.came = self.arrivals;
        let ring =
            if short && !self.returns_soon(s) { ClockList::Probation } else { ClockList::Main };
        (s.credit, s.proven) = (0, 0);
        self.list(chunk, s, ring);
    }

    /// A chunk was touched again. Touches soon after its arrival are the same use of it (2Q's
    /// correlated references): they say nothing of whether it will be used another time.
    pub fn touch(&self, s: &mut ClockEntry) {
        let since = self.arrivals.wrapping_sub(s.came) as usize;
        if since > (self.main.len() + self.probation.len()) / 8 {
            s.credit = s.credit.max(1);
        }
    }

    /// Main's hand falls at random: going round in order would, under a loop, always take what
    /// comes next. Not `at_random`: in order, so that all are seen when the first may not go.
    fn of_main(&mut self, at_random: bool) -> Option<ChunkNo> {
        let len = self.main.len();
        if at_random && len > 0 {
            let (r, next) = self.chance.next();
            self.chance = next;
            self.main.swap(0, (r % len as u64) as usize);
        }
        self.main.pop_front()
    }

    fn list(&mut self, chunk: ChunkNo, s: &mut ClockEntry, ring: ClockList) {
        s.listed = ring;
        match ring {
            ClockList::Main => self.main.push_back(chunk),
            _ => self.probation.push_back(chunk),
        }
    }

    /// Whether a chunk came back within as many evictions as there are chunks in main; adapts the
    /// target.
    fn returns_soon(&mut self, s: &mut ClockEntry) -> bool {
        if s.gone == 0 {
            return false;
        }
        let away = self.evictions.wrapping_sub(s.gone - 1) as usize;
        let all = self.main.len() + self.probation.len();
        s.gone = 0;
        if away > self.main.len() {
            return false;
        }
        let step = (all / 1024).max(1);
        self.target = match s.was {
            ClockList::Probation => (self.target + step).min(all * 9 / 10),
            _ => self.target.saturating_sub(step),
        };
        true
    }

    /// Whether the next victim comes from probation.
    pub fn prefers_probation(&self) -> bool {
        self.main.is_empty() || self.probation.len() > self.target.max(self.least_now())
    }

    /// An access stream has so many chunks fetched ahead.
    pub fn ahead(&mut self, chunks: usize) {
        self.spanned = chunks.max(self.spanned - self.spanned.div_ceil(16));
    }

    /// Half of what probation must hold may be on its way in and not listed yet; main does not pay
    /// for that.
    fn least_now(&self) -> usize {
        let all = self.main.len() + self.probation.len();
        self.least.max(2 * self.spanned).max(all / 20).min(all / 2) / 2
    }

    /// A victim of main did not go: it was used.
    pub fn back(&mut self, chunk: ChunkNo, s: &mut ClockEntry) {
        s.proven = (s.proven + 1).min(self.most_credit);
        s.credit = s.proven;
        if s.listed == ClockList::No {
            self.list(chunk, s, ClockList::Main);
        }
    }

    /// A victim of main went at last.
    pub fn remove(&mut self, s: &mut ClockEntry) {
        self.evictions = self.evictions.wrapping_add(1);
        s.gone = self.evictions.wrapping_add(1).max(1);
        s.was = ClockList::Main;
    }

    /// The next victim; of main alone, for a trial, when `main`. `verdict_of` says what may become
    /// of a chunk and gives its standing.
    pub fn victim<S>(
        &mut self,
        chunks: &mut S,
        main: bool,
        verdict_of: impl Fn(&S, ChunkNo) -> ClockVerdict,
        standing: impl Fn(&mut S, ChunkNo) -> &mut ClockEntry,
    ) -> Option<ChunkNo> {
        let least = self.least_now();
        // Chunks passed over because they may not go now: in probation, in main.
        let mut stays = [0, 0];
        let all = self.main.len() + self.probation.len();
        let rounds = 2 + self.most_credit as usize;
        for n in 0..=rounds * all {
            // In the last round nobody is passed over for having been used, and the hand goes in
            // order: somebody goes.
            let last = n >= (rounds - 1) * all;
            let wanted =
                self.probation.len() > self.target.max(least) && stays[0] <= self.probation.len();
            if main && (self.main.is_empty() || stays[1] > self.main.len()) {
                return None;
            }
            let in_order = last || stays[1] > 0;
            let chunk = if main {
                self.of_main(!in_order)
            } else if wanted || self.main.is_empty() || stays[1] > self.main.len() {
                self.probation.pop_front()
            } else {
                self.of_main(!in_order)
            };
            let chunk =
                chunk.or_else(|| self.of_main(false)).or_else(|| self.probation.pop_front())?;
            let verdict = verdict_of(chunks, chunk);
            let s = standing(chunks, chunk);
            let was = std::mem::take(&mut s.listed);
            match verdict {
                ClockVerdict::Empty => {}
                ClockVerdict::Stay => {
                    stays[usize::from(was == ClockList::Main)] += 1;
                    self.list(chunk, s, was);
                }
                ClockVerdict::Wait => {
                    s.listed = was;
                    match was {
                        ClockList::Main => self.main.push_front(chunk),
                        _ => self.probation.push_front(chunk),
                    }
                    return None;
                }
                ClockVerdict::Free if s.credit > 0 && !last => {
                    s.credit -= 1;
                    self.list(chunk, s, ClockList::Main);
                }
                ClockVerdict::Free if main => return Some(chunk),
                ClockVerdict::Free => {
                    self.evictions = self.evictions.wrapping_add(1);
                    s.gone = self.evictions.wrapping_add(1).max(1);
                    s.was = was;
                    return Some(chunk);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_goes_though_all_were_used() {
        for seed in 0..2000 {
            let mut clock = ClockRings { chance: Seed(seed), ..ClockRings::new(3) };
            let mut chunks = [ClockEntry::default(); 5];
            for (n, s) in chunks.iter_mut().enumerate() {
                s.proven = 3;
                clock.back(n as ChunkNo, s);
            }
            let verdict_of = |_: &[ClockEntry; 5], chunk| {
                if chunk == 3 {
                    ClockVerdict::Free
                } else {
                    ClockVerdict::Stay
                }
            };
            let victim =
                clock.victim(&mut chunks, false, verdict_of, |chunks, u| &mut chunks[u as usize]);
            assert_eq!(victim, Some(3), "seed {seed}");
        }
    }
}
