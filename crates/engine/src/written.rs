//! What looks into one window say of how often pages are written: for trackers of dirty bits, live and simulated alike
//! (ADR 0043).
//!
//! A page written a million times in a window is one dirty page. So each window is looked into three times, 2 and 6 ms
//! after it began and at its end: the bits only accumulate, further looks cost no faults, and when a page was first found
//! dirty tells rates up to some hundred writes a second apart, where one look at 50 ms tells twenty at most. A target that
//! writes many pages spends the first milliseconds in faults, not in writing; the time that its faults took by
//! [`FAULT`] is left out of what the looks count as watched.

use std::convert::Infallible;
use terrace_policy::heat::PageWrites;
use terrace_types::{Nanos, Pid, VpnRange};

/// Shortest window: below it the target mostly takes faults (26-29 ms with 16 k hot pages, measured in the lab).
pub const SHORTEST: Nanos = Nanos::millis(25);
/// What one write fault costs the target: 1-3 us measured; the cautious end.
pub const FAULT: Nanos = Nanos::micros(2);
/// Looks into a window soon after it began.
pub const EARLY: [Nanos; 2] = [Nanos::millis(2), Nanos::millis(6)];
/// A stretch counts for at least this part of its length, however many faults fell into it.
const LEAST_PART: u64 = 8;

/// What looks into a window under way found, a byte a page: a list of the runs that are dirty would take
/// sixteen where writes are scattered, three times over.
#[derive(Debug)]
pub struct Window {
    ranges: Vec<VpnRange>,
    /// By range and page: the first look that found it dirty, counted from one; zero for none so far.
    first: Vec<Vec<u8>>,
    looks: Vec<Look>,
}

/// One look into a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    /// Since the window began.
    at: Nanos,
    /// Pages dirty by then.
    pages: u64,
}

impl Window {
    /// Over these ranges.
    #[must_use]
    pub fn new(ranges: Vec<VpnRange>) -> Self {
        let first = ranges.iter().map(|r| vec![0; r.len() as usize]).collect();
        Self { ranges, first, looks: Vec::new() }
    }

    /// Looks once: `dirty` tells the runs of pages of a range that are dirty by now, `at` says when that was, once
    /// all ranges were gone through. No more than 255 looks count.
    ///
    /// # Errors
    /// That of `dirty`; the look does not count.
    pub fn look<E>(
        &mut self,
        mut dirty: impl FnMut(VpnRange, &mut dyn FnMut(VpnRange)) -> Result<(), E>,
        at: impl FnOnce() -> Nanos,
    ) -> Result<(), E> {
        let Ok(number) = u8::try_from(self.looks.len() + 1) else {
            return Ok(());
        };
        let mut pages = self.pages();
        for (range, first) in self.ranges.iter().zip(&mut self.first) {
            dirty(*range, &mut |run| {
                let Some(run) = run.intersect(*range) else {
                    return;
                };
                let (from, to) = (run.start.0 - range.start.0, run.end.0 - range.start.0);
                for page in first[from as usize..to as usize].iter_mut().filter(|page| **page == 0) {
                    *page = number;
                    pages += 1;
                }
            })?;
        }
        self.looks.push(Look { at: at(), pages });
        Ok(())
    }

    /// [`Window::look`] where looking cannot fail.
    pub fn surely_look(
        &mut self,
        mut dirty: impl FnMut(VpnRange, &mut dyn FnMut(VpnRange)),
        at: impl FnOnce() -> Nanos,
    ) {
        let Ok(()) = self.look::<Infallible>(
            |range, tell| {
                dirty(range, tell);
                Ok(())
            },
            at,
        );
    }

    /// Pages found dirty so far.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.looks.last().map_or(0, |l| l.pages)
    }

    /// For how long each look had watched, the target's faults left out: `threads` of it can run.
    fn watched_for(&self, threads: u64) -> Vec<Nanos> {
        let (mut total, mut last, mut dirty) = (Nanos::ZERO, Nanos::ZERO, 0);
        self.looks
            .iter()
            .map(|look| {
                let stretch = look.at.saturating_sub(last);
                let faults = Nanos(look.pages.saturating_sub(dirty) * FAULT.0 / threads.max(1));
                total += stretch.saturating_sub(faults).max(Nanos(stretch.0 / LEAST_PART)).max(Nanos(1));
                (last, dirty) = (look.at, look.pages);
                total
            })
            .collect()
    }

    /// What the looks say of the pages of process `pid`, in units of the time to the first: a page first found dirty by
    /// look `j` was written once in the time to the middle between that look and the one before it. `threads` of
    /// the process can run.
    pub fn over(self, pid: Pid, threads: u64, into: &mut Vec<PageWrites>) {
        let times = self.watched_for(threads);
        let (Some(unit), Some(all)) = (times.first().copied(), times.last().copied()) else {
            return;
        };
        let units = |time: u64| (time / unit.0).clamp(1, u64::from(u16::MAX)) as u16;
        let middle = |n: usize| (times[n - 1].0 + times[n].0 + unit.0) / 2;
        let never = (0, units(all.0 + unit.0 / 2));
        let told: Vec<(u16, u16)> = std::iter::once(never)
            .chain((0..times.len()).map(|n| if n == 0 { (1, 1) } else { (1, units(middle(n))) }))
            .collect();
        for (range, first) in self.ranges.into_iter().zip(self.first) {
            into.push(PageWrites { pid, start: range.start, window: unit, told: told.clone(), found: first });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::Vpn;

    fn range(start: u64, end: u64) -> VpnRange {
        VpnRange::new(Vpn(start), Vpn(end))
    }

    fn window(all: VpnRange, looks: &[(u64, &[VpnRange])]) -> Window {
        let mut window = Window::new(vec![all]);
        for (ms, runs) in looks {
            window.surely_look(|_, tell| runs.iter().for_each(|run| tell(*run)), || Nanos::millis(*ms));
        }
        window
    }

    #[test]
    fn the_sooner_a_page_is_dirty_the_more_it_is_written() {
        let looks: [(u64, &[VpnRange]); 3] =
            [(2, &[range(10, 11)]), (6, &[range(8, 12)]), (50, &[range(10, 12), range(13, 14)])];
        let mut all = Vec::new();
        window(range(10, 16), &looks).over(Pid(1), 1, &mut all);
        let told: Vec<_> = all[0].sightings().map(|s| (s.range.start.0, s.range.len(), s.hits, s.windows)).collect();
        assert_eq!(told, [(10, 1, 1, 1), (11, 1, 1, 2), (12, 1, 0, 25), (13, 1, 1, 14), (14, 2, 0, 25)]);
        assert!(all[0].sightings().all(|s| s.writes_only && s.every_page && s.window < Nanos::millis(2)));
    }

    #[test]
    fn time_in_faults_is_no_time_to_write() {
        let after = |looks: &[(u64, u64)], threads| {
            let runs: Vec<[VpnRange; 1]> = looks.iter().map(|(_, pages)| [range(0, *pages)]).collect();
            let looks: Vec<(u64, &[VpnRange])> = looks.iter().zip(&runs).map(|((ms, _), r)| (*ms, &r[..])).collect();
            window(range(0, 5000), &looks).watched_for(threads)
        };
        // 500 faults of 2 us on one thread: one of the two milliseconds.
        assert_eq!(after(&[(2, 500)], 1), [Nanos::millis(1)]);
        assert_eq!(after(&[(2, 500)], 2), [Nanos::micros(1500)]);
        // However many there were, an eighth of the time is left; later stretches have their own.
        assert_eq!(after(&[(2, 5000), (6, 5000)], 1), [Nanos::micros(250), Nanos::micros(4250)]);
    }

    #[test]
    fn a_look_that_fails_does_not_count() {
        let mut window = window(range(0, 4), &[(2, &[range(0, 1)])]);
        assert_eq!(window.look(|_, _| Err("gone"), || Nanos::millis(6)), Err("gone"));
        assert_eq!((window.pages(), window.watched_for(1).len()), (1, 1));
    }
}
