//! What samples one interval say of how often pages are written: for trackers of dirty bits, live
//! and simulated alike (ADR 0043).
//!
//! A page written a million times in an interval is one dirty page. So each interval is sampled
//! three times, 2 and 6 ms after it began and at its end: the bits only accumulate, further samples
//! cost no faults, and when a page was first found dirty tells rates up to some hundred writes a
//! second apart, where one sample of 50 ms tells twenty at most. A target that writes many pages
//! spends the first milliseconds in faults, not in writing; the time that its faults took by
//! [`WRITE_FAULT`] is left out of what the samples count as observed. An interval that went in
//! faults is left open ([`WriteSamples::ripe`]): pages not come to by then would seem unwritten.
//! What a page is reported by when it was found, the others of its interval decide with it
//! (`write_rate`).

use crate::write_rate;
use std::convert::Infallible;
use terrace_engine::{PageWrites, WRITE_FAULT};
use terrace_types::{Nanos, Pid, VpnRange};

/// Shortest interval: below it the target mostly takes faults (26-29 ms with 16 k hot pages,
/// measured in the lab).
pub const SHORTEST: Nanos = Nanos::millis(25);
/// Longest: by then it is sampled, whatever the target did.
pub const LONGEST: Nanos = Nanos::millis(150);
/// Samples of an interval soon after it began.
pub const EARLY: [Nanos; 2] = [Nanos::millis(2), Nanos::millis(6)];
/// A stretch counts for at least this part of its length, however many faults fell into it.
const LEAST_PART: u64 = 8;

/// Fewer pages at once are no reason to doubt them.
const DOUBTFUL: usize = 64;
/// In place of a sample: the page came after the interval began, or nothing can be notified of it.
const LEFT_OUT: u8 = u8::MAX;

/// What samples of an interval under way found, a byte a page: a list of the runs that are dirty
/// would take sixteen where writes are scattered, three times over.
#[derive(Debug)]
pub struct WriteSamples {
    ranges: Vec<VpnRange>,
    /// By range and page: the first sample that found it dirty, counted from one; zero for none so
    /// far; or [`LEFT_OUT`].
    first: Vec<Vec<u8>>,
    samples: Vec<WriteSample>,
}

/// One sample of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WriteSample {
    /// Since the interval began.
    at: Nanos,
    /// Pages dirty by then.
    pages: u64,
}

impl WriteSamples {
    /// Over these ranges.
    #[must_use]
    pub fn new(ranges: Vec<VpnRange>) -> Self {
        let first = ranges.iter().map(|r| vec![0; r.len() as usize]).collect();
        Self { ranges, first, samples: Vec::new() }
    }

    /// Leaves out the pages that are not there yet when the interval begins: `there` tells the runs
    /// of pages of a range that are. What fills a page is no sign of how often it is written.
    ///
    /// # Errors
    /// That of `there`.
    pub fn leave_out_absent<E>(
        &mut self,
        mut there: impl FnMut(VpnRange, &mut dyn FnMut(VpnRange)) -> Result<(), E>,
    ) -> Result<(), E> {
        for (range, first) in self.ranges.iter().zip(&mut self.first) {
            first.fill(LEFT_OUT);
            there(*range, &mut |run| {
                if let Some(run) = run.intersect(*range) {
                    first[(run.start.0 - range.start.0) as usize
                        ..(run.end.0 - range.start.0) as usize]
                        .fill(0);
                }
            })?;
        }
        Ok(())
    }

    /// Samples once: `dirty` tells the runs of pages of a range that are dirty by now, `at` says
    /// when that was, once all ranges were gone through. No more than 254 samples count.
    ///
    /// # Errors
    /// That of `dirty`; the sample does not count.
    pub fn sample<E>(
        &mut self,
        mut dirty: impl FnMut(VpnRange, &mut dyn FnMut(VpnRange)) -> Result<(), E>,
        at: impl FnOnce() -> Nanos,
    ) -> Result<(), E> {
        let Some(number) = u8::try_from(self.samples.len() + 1).ok().filter(|n| *n < LEFT_OUT)
        else {
            return Ok(());
        };
        let mut pages = self.pages();
        for (range, first) in self.ranges.iter().zip(&mut self.first) {
            dirty(*range, &mut |run| {
                let Some(run) = run.intersect(*range) else {
                    return;
                };
                let (from, to) = (run.start.0 - range.start.0, run.end.0 - range.start.0);
                for page in first[from as usize..to as usize].iter_mut().filter(|page| **page == 0)
                {
                    *page = number;
                    pages += 1;
                }
            })?;
        }
        self.samples.push(WriteSample { at: at(), pages });
        Ok(())
    }

    /// [`WriteSamples::sample`] where looking cannot fail.
    pub fn force_sample(
        &mut self,
        mut dirty: impl FnMut(VpnRange, &mut dyn FnMut(VpnRange)),
        at: impl FnOnce() -> Nanos,
    ) {
        let Ok(()) = self.sample::<Infallible>(
            |range, report_pages| {
                dirty(range, report_pages);
                Ok(())
            },
            at,
        );
    }

    /// Whether the last sample found so many pages of a range dirty at once that the kernel may
    /// have meant the mapping by it, not its pages: one that something was mapped beside, and that
    /// is one with it since, counts as dirty as a whole (`VM_SOFTDIRTY`, `mm/vma.c`). Then ask
    /// which mappings do, and [leave them out](Self::leave_out).
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        let last = self.samples.len() as u8;
        self.first.iter().any(|first| {
            let (mut there, mut new) = (0, 0);
            for page in first {
                there += usize::from(*page != LEFT_OUT);
                new += usize::from(*page == last);
            }
            new >= DOUBTFUL && 2 * new >= there
        })
    }

    /// Leaves out what lies in these ranges, from the samples so far as well.
    pub fn leave_out(&mut self, gone: &[VpnRange]) {
        for (range, first) in self.ranges.iter().zip(&mut self.first) {
            for part in gone.iter().filter_map(|gone| gone.intersect(*range)) {
                for page in &mut first
                    [(part.start.0 - range.start.0) as usize..(part.end.0 - range.start.0) as usize]
                {
                    if *page != 0 && *page != LEFT_OUT {
                        for sample in &mut self.samples[*page as usize - 1..] {
                            sample.pages -= 1;
                        }
                    }
                    *page = LEFT_OUT;
                }
            }
        }
    }

    /// Pages found dirty so far.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.samples.last().map_or(0, |l| l.pages)
    }

    /// Whether the interval may be ended: it is over [`SHORTEST`], and since the sample before the
    /// last the target spent less time in faults than out of them, so that most pages that it goes
    /// on to write are dirty by now; or it is over [`LONGEST`].
    #[must_use]
    pub fn ripe(&self, threads: u64) -> bool {
        let Some(last) = self.samples.last().filter(|l| l.at >= SHORTEST) else {
            return false;
        };
        let before = self
            .samples
            .iter()
            .rev()
            .nth(1)
            .copied()
            .unwrap_or(WriteSample { at: Nanos::ZERO, pages: 0 });
        let faults = (last.pages - before.pages) * WRITE_FAULT.0 / threads.max(1);
        last.at >= LONGEST || 2 * faults <= last.at.saturating_sub(before.at).0
    }

    /// For how long each sample had observed, the target's faults left out: `threads` of it can
    /// run.
    fn observed_times(&self, threads: u64) -> Vec<Nanos> {
        let (mut total, mut last, mut dirty) = (Nanos::ZERO, Nanos::ZERO, 0);
        self.samples
            .iter()
            .map(|sample| {
                let stretch = sample.at.saturating_sub(last);
                let faults =
                    Nanos(sample.pages.saturating_sub(dirty) * WRITE_FAULT.0 / threads.max(1));
                total +=
                    stretch.saturating_sub(faults).max(Nanos(stretch.0 / LEAST_PART)).max(Nanos(1));
                (last, dirty) = (sample.at, sample.pages);
                total
            })
            .collect()
    }

    /// What the samples say of the pages of process `pid`; `threads` of it can run.
    pub fn over(self, pid: Pid, threads: u64, into: &mut Vec<PageWrites>) {
        let times = self.observed_times(threads);
        let Some(interval) = times.first().copied() else {
            return;
        };
        let before = std::iter::once(0).chain(self.samples.iter().map(|l| l.pages));
        let first: Vec<(Nanos, u64)> = times
            .into_iter()
            .zip(self.samples.iter().zip(before))
            .map(|(t, (l, n))| (t, l.pages - n))
            .collect();
        let never = self.first.iter().flatten().filter(|page| **page == 0).count() as u64;
        let reported = write_rate::group_by_first_write(&first, never);
        for (range, found) in self.ranges.into_iter().zip(self.first) {
            into.push(PageWrites {
                pid,
                start: range.start,
                interval,
                reported: reported.clone(),
                found,
            });
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

    fn interval(all: VpnRange, samples: &[(u64, &[VpnRange])]) -> WriteSamples {
        let mut interval = WriteSamples::new(vec![all]);
        for (ms, runs) in samples {
            interval.force_sample(
                |_, report_pages| runs.iter().for_each(|run| report_pages(*run)),
                || Nanos::millis(*ms),
            );
        }
        interval
    }

    #[test]
    fn the_sooner_a_page_is_dirty_the_more_it_is_written() {
        let samples: [(u64, &[VpnRange]); 3] =
            [(2, &[range(10, 11)]), (6, &[range(8, 12)]), (50, &[range(10, 12), range(13, 14)])];
        let mut all = Vec::new();
        interval(range(10, 16), &samples).over(Pid(1), 1, &mut all);
        let runs: Vec<_> = all[0].runs().collect();
        let pages: Vec<_> = runs.iter().map(|(r, t)| (r.start.0, r.len(), t.dirty)).collect();
        assert_eq!(
            pages,
            [(10, 1, true), (11, 1, true), (12, 1, false), (13, 1, true), (14, 2, false)]
        );
        let rate = |at: usize| runs[at].1.per_second;
        assert!(
            rate(0) > rate(1) && rate(1) > rate(3) && rate(3) > rate(2) && rate(2) == rate(4),
            "{runs:?}"
        );
        assert!(all[0].interval < Nanos::millis(2));
    }

    #[test]
    fn time_in_faults_is_no_time_to_write() {
        let after = |samples: &[(u64, u64)], threads| {
            let runs: Vec<[VpnRange; 1]> =
                samples.iter().map(|(_, pages)| [range(0, *pages)]).collect();
            let samples: Vec<(u64, &[VpnRange])> =
                samples.iter().zip(&runs).map(|((ms, _), r)| (*ms, &r[..])).collect();
            interval(range(0, 5000), &samples).observed_times(threads)
        };
        // 500 faults of 2 us on one thread: one of the two milliseconds.
        assert_eq!(after(&[(2, 500)], 1), [Nanos::millis(1)]);
        assert_eq!(after(&[(2, 500)], 2), [Nanos::micros(1500)]);
        // However many there were, an eighth of the time is left; later stretches have their own.
        assert_eq!(after(&[(2, 5000), (6, 5000)], 1), [Nanos::micros(250), Nanos::micros(4250)]);
    }

    #[test]
    fn an_interval_spent_in_faults_stays_open() {
        let all = range(0, 50_000);
        // 2 us a fault: 10,000 pages are 20 ms of it on one thread.
        let after = |pages: [u64; 4], threads: u64, last: u64| {
            let runs = pages.map(|n| [range(0, n)]);
            let samples: Vec<(u64, &[VpnRange])> =
                [2, 6, 30, last].iter().zip(&runs).map(|(ms, r)| (*ms, &r[..])).collect();
            (interval(all, &samples[..3]).ripe(threads), interval(all, &samples).ripe(threads))
        };
        assert_eq!(
            after([800, 2_400, 12_000, 13_000], 1, 60),
            (false, true),
            "19 of 24 ms went in faults, then 2 of 30"
        );
        assert_eq!(after([800, 2_400, 7_000, 7_000], 1, 60), (true, true));
        assert_eq!(
            after([800, 2_400, 12_000, 24_000], 2, 50),
            (true, false),
            "two threads take faults side by side"
        );
        assert_eq!(
            after([800, 2_400, 12_000, 50_000], 1, 150),
            (false, true),
            "no longer than that"
        );
        let early: [(u64, &[VpnRange]); 2] = [(2, &[]), (6, &[])];
        assert!(
            !interval(all, &early).ripe(1) && !interval(all, &[]).ripe(1),
            "nothing written, but too short"
        );
    }

    #[test]
    fn what_fills_a_page_is_no_sign_of_how_often_it_is_written() {
        let mut interval = WriteSamples::new(vec![range(10, 16)]);
        let Ok(()) = interval.leave_out_absent::<Infallible>(|_, report_pages| {
            report_pages(range(8, 12));
            report_pages(range(14, 15));
            Ok(())
        });
        for ms in [2, 6, 50] {
            interval
                .force_sample(|_, report_pages| report_pages(range(11, 16)), || Nanos::millis(ms));
        }
        assert_eq!(interval.pages(), 2);
        let mut all = Vec::new();
        interval.over(Pid(1), 1, &mut all);
        let pages: Vec<_> = all[0].runs().map(|(r, t)| (r.start.0, r.len(), t.dirty)).collect();
        assert_eq!(pages, [(10, 1, false), (11, 1, true), (14, 1, true)]);
    }

    #[test]
    fn a_mapping_that_counts_as_dirty_as_a_whole_is_left_out() {
        let mut interval = WriteSamples::new(vec![range(0, 1000), range(2000, 3000)]);
        let sample = |interval: &mut WriteSamples, runs: &[VpnRange], ms| {
            interval.force_sample(
                |_, report_pages| runs.iter().for_each(|run| report_pages(*run)),
                || Nanos::millis(ms),
            );
            interval.is_doubtful()
        };
        assert!(!sample(&mut interval, &[range(10, 20), range(2000, 2100)], 2), "a tenth of them");
        assert!(
            !sample(&mut interval, &[range(10, 20), range(2000, 2100)], 6),
            "what was found before"
        );
        assert!(sample(&mut interval, &[range(0, 1000), range(2000, 2101)], 40));
        interval.leave_out(&[range(0, 500), range(400, 1500)]);
        assert_eq!(interval.samples.iter().map(|l| l.pages).collect::<Vec<_>>(), [100, 100, 101]);
        assert!(!interval.is_doubtful() && interval.pages() == 101);
        assert!(
            !sample(&mut interval, &[range(0, 1000), range(2000, 2101)], 50),
            "nothing is reported of it any more"
        );
        let mut all = Vec::new();
        interval.over(Pid(1), 1, &mut all);
        assert_eq!(all[0].runs().count(), 0);
        assert_eq!(
            all[1].runs().filter(|(_, reported)| reported.dirty).map(|(r, _)| r.len()).sum::<u64>(),
            101
        );
    }

    #[test]
    fn a_failed_sample_does_not_count() {
        let mut interval = interval(range(0, 4), &[(2, &[range(0, 1)])]);
        assert_eq!(interval.sample(|_, _| Err("gone"), || Nanos::millis(6)), Err("gone"));
        assert_eq!((interval.pages(), interval.observed_times(1).len()), (1, 1));
    }
}
