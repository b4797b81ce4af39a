//! Which unit goes: two rings and a hand, so that a scan cannot push out what is used again.
//!
//! Units that come while memory is short wait in the *probation* ring; those that are touched again
//! there, or come back soon after they went, move to the *main* ring. Hands pass over units touched
//! since they last came by (a second chance, as in CLOCK), and up to three times over those that
//! came back from trials (see `standby`). How much probation may hold adapts, as in ARC: a unit
//! that returns and would still be there had probation been larger makes it larger; one that was
//! taken from main makes it smaller. While memory is plenty all goes to main.
//!
//! Reads of mapped pages leave no trace that a user-space pager could see, so *touched* means:
//! faulted again in the unit (another grain, a first write, a rescue of what was being written
//! out). A sweep over mapped units is not seen, and that is what keeps most of a working set twice
//! the memory in place while its rest streams through probation.

use crate::far::geometry::UnitNo;
use std::collections::VecDeque;
use terrace_types::Seed;

/// Where a unit is listed.
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

/// What the rings know of a unit.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClockEntry {
    /// Evictions there had been when this unit was evicted, plus one; 0: never evicted.
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

/// Times that the hand passes over a unit, at most.
const MOST_CREDIT: u8 = 3;

/// The rings.
#[derive(Debug, Default)]
pub struct ClockRings {
    probation: VecDeque<UnitNo>,
    main: VecDeque<UnitNo>,
    evictions: u32,
    arrivals: u32,
    chance: Seed,
    /// Units that probation holds before it is preferred for victims.
    target: usize,
    /// Units that probation holds at least: what is fetched ahead must not go before it is used.
    pub least: usize,
    /// Units that walks of late had fetched ahead: a walk by strides has few grains in each of
    /// many.
    spanned: usize,
}

/// What to do with the unit under the hand.
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
    /// Memory for the rings.
    pub fn bytes(&self) -> usize {
        (self.probation.capacity() + self.main.capacity()) * std::mem::size_of::<UnitNo>()
    }

    /// A unit got its first page. `short`: memory is short, so newcomers must prove themselves.
    pub fn arrived(&mut self, unit: UnitNo, s: &mut ClockEntry, short: bool) {
        if s.listed != ClockList::No {
            self.touch(s);
            return;
        }
        self.arrivals = self.arrivals.wrapping_add(1);
        s.came = self.arrivals;
        let ring =
            if short && !self.returns_soon(s) { ClockList::Probation } else { ClockList::Main };
        (s.credit, s.proven) = (0, 0);
        self.list(unit, s, ring);
    }

    /// A unit was touched again. Touches soon after its arrival are the same use of it (2Q's
    /// correlated references): they say nothing of whether it will be used another time.
    pub fn touch(&self, s: &mut ClockEntry) {
        let since = self.arrivals.wrapping_sub(s.came) as usize;
        if since > (self.main.len() + self.probation.len()) / 8 {
            s.credit = s.credit.max(1);
        }
    }

    /// Main's hand falls at random: going round in order would, under a loop, always take what
    /// comes next. Not `at_random`: in order, so that all are seen when the first may not go.
    fn of_main(&mut self, at_random: bool) -> Option<UnitNo> {
        let len = self.main.len();
        if at_random && len > 0 {
            let (r, next) = self.chance.next();
            self.chance = next;
            self.main.swap(0, (r % len as u64) as usize);
        }
        self.main.pop_front()
    }

    fn list(&mut self, unit: UnitNo, s: &mut ClockEntry, ring: ClockList) {
        s.listed = ring;
        match ring {
            ClockList::Main => self.main.push_back(unit),
            _ => self.probation.push_back(unit),
        }
    }

    /// Whether a unit came back within as many evictions as there are units in main; adapts the
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

    /// A walk has so many units fetched ahead.
    pub fn ahead(&mut self, units: usize) {
        self.spanned = units.max(self.spanned - self.spanned.div_ceil(16));
    }

    /// Half of what probation must hold may be on its way in and not listed yet; main does not pay
    /// for that.
    fn least_now(&self) -> usize {
        let all = self.main.len() + self.probation.len();
        self.least.max(2 * self.spanned).max(all / 20).min(all / 2) / 2
    }

    /// A victim of main did not go: it was used.
    pub fn back(&mut self, unit: UnitNo, s: &mut ClockEntry) {
        s.proven = (s.proven + 1).min(MOST_CREDIT);
        s.credit = s.proven;
        if s.listed == ClockList::No {
            self.list(unit, s, ClockList::Main);
        }
    }

    /// A victim of main went at last.
    pub fn remove(&mut self, s: &mut ClockEntry) {
        self.evictions = self.evictions.wrapping_add(1);
        s.gone = self.evictions.wrapping_add(1).max(1);
        s.was = ClockList::Main;
    }

    /// The next victim; of main alone, for a trial, when `main`. `look` says what may become of a
    /// unit and gives its standing.
    pub fn victim<S>(
        &mut self,
        units: &mut S,
        main: bool,
        look: impl Fn(&S, UnitNo) -> ClockVerdict,
        standing: impl Fn(&mut S, UnitNo) -> &mut ClockEntry,
    ) -> Option<UnitNo> {
        let least = self.least_now();
        // Units passed over because they may not go now: in probation, in main.
        let mut stays = [0, 0];
        let all = self.main.len() + self.probation.len();
        let rounds = 2 + MOST_CREDIT as usize;
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
            let unit = if main {
                self.of_main(!in_order)
            } else if wanted || self.main.is_empty() || stays[1] > self.main.len() {
                self.probation.pop_front()
            } else {
                self.of_main(!in_order)
            };
            let unit =
                unit.or_else(|| self.of_main(false)).or_else(|| self.probation.pop_front())?;
            let verdict = look(units, unit);
            let s = standing(units, unit);
            let was = std::mem::take(&mut s.listed);
            match verdict {
                ClockVerdict::Empty => {}
                ClockVerdict::Stay => {
                    stays[usize::from(was == ClockList::Main)] += 1;
                    self.list(unit, s, was);
                }
                ClockVerdict::Wait => {
                    s.listed = was;
                    match was {
                        ClockList::Main => self.main.push_front(unit),
                        _ => self.probation.push_front(unit),
                    }
                    return None;
                }
                ClockVerdict::Free if s.credit > 0 && !last => {
                    s.credit -= 1;
                    self.list(unit, s, ClockList::Main);
                }
                ClockVerdict::Free if main => return Some(unit),
                ClockVerdict::Free => {
                    self.evictions = self.evictions.wrapping_add(1);
                    s.gone = self.evictions.wrapping_add(1).max(1);
                    s.was = was;
                    return Some(unit);
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
            let mut clock = ClockRings { chance: Seed(seed), ..ClockRings::default() };
            let mut units = [ClockEntry::default(); 5];
            for (n, s) in units.iter_mut().enumerate() {
                s.proven = MOST_CREDIT;
                clock.back(n as UnitNo, s);
            }
            let look = |_: &[ClockEntry; 5], unit| {
                if unit == 3 {
                    ClockVerdict::Free
                } else {
                    ClockVerdict::Stay
                }
            };
            let victim = clock.victim(&mut units, false, look, |units, u| &mut units[u as usize]);
            assert_eq!(victim, Some(3), "seed {seed}");
        }
    }
}
