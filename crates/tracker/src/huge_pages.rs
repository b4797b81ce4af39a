//! Whether to sample huge pages separately from base pages, and how long each sample lasts.
//!
//! A huge page has one accessed bit for its 512 base pages. Ordinary samples
//! ([`crate::sample_length`]) last half a millisecond or more. In that time a program with random
//! accesses touches every one of its huge pages, hot or cold, so samples do not tell them apart.
//! Samples of huge pages alone can last a few microseconds: there are few bits to clear and read,
//! and if clearing a bit also flushes the TLB entry (`MADV_COLD`), the next access sets it at once.
//!
//! What an accessed huge page says about its base pages depends on the access pattern. A program
//! with sequential accesses touches all of them; its huge pages are accessed in some ordinary
//! samples only, and each of those counts for every base page. Only if (nearly) every huge page is
//! accessed in every sample are accesses assumed to be random, with 1/512 of them for each base
//! page ([`PageSamples::at_random`]).

use crate::sample_length::{PageSampleCount, SampleGroup, SampleLengthTuner};
use terrace_engine::PageSamples;
use terrace_types::{Nanos, Pid, Vpn};

/// Base pages of a huge page with one accessed bit (2 MiB, mapped by a PMD entry on x86-64).
pub const PAGES: u64 = 512;

/// Least number of touched huge pages from which the access pattern is judged.
const FEW: usize = 4;

/// Whether huge pages are sampled separately, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HugePageSampling {
    on: bool,
    /// How long to sample them.
    pub aim: SampleLengthTuner,
}

impl Default for HugePageSampling {
    fn default() -> Self {
        Self { on: false, aim: SampleLengthTuner::at_huge_pages() }
    }
}

impl HugePageSampling {
    /// Whether huge pages are to be sampled separately.
    #[must_use]
    pub const fn on(&self) -> bool {
        self.on
    }

    /// Decides from a group of ordinary samples: on if at least four fifths of the touched huge
    /// pages were touched in every sample, off if fewer than half of them were.
    pub fn consider(&mut self, group: SampleGroup, entries: impl Iterator<Item = PageSampleCount>) {
        if group.samples < 2 {
            return;
        }
        let (mut touched, mut always) = (0, 0);
        for entry in entries.filter(|e| e.present() == group.samples && e.hits() > 0) {
            touched += 1;
            always += usize::from(entry.hits() == group.samples);
        }
        if touched >= FEW {
            self.on = if self.on { always * 2 >= touched } else { always * 5 >= touched * 4 };
        }
    }
}

/// Time to clear one accessed bit: 0.5 to 1.3 us measured, including an interrupt (IPI) to the
/// program's CPUs.
const CLEARING: Nanos = Nanos::micros(1);
/// Single samples by which the length of others is found, at most: had all of a group found
/// everything touched, they would tell that all are alike.
pub const AIMED: u8 = 8;

/// How many huge pages are cleared in one batch before any is read. Each waits for the rest of the
/// batch, so it has no more than can be cleared in a third of a sample's length.
#[must_use]
pub fn at_once(length: Nanos) -> usize {
    usize::try_from(length.get() / CLEARING.get() / 3).unwrap_or(1).max(1)
}

/// The order in which `pages` huge pages are sampled. The first of a batch are sampled longest, so
/// the order is rotated by one from sample to sample.
#[must_use]
pub fn order(pages: usize, sample: u8) -> Vec<usize> {
    let mut order: Vec<usize> = (0..pages).collect();
    order.rotate_left(usize::from(sample) % pages.max(1));
    order
}

/// Results of separate samples of huge pages, with adjacent huge pages merged into one range;
/// `heads` are their first base pages, in ascending order.
#[must_use]
pub fn together(
    pid: Pid,
    heads: &[Vpn],
    tallies: &[PageSampleCount],
    samples: u8,
    interval: Nanos,
) -> Vec<PageSamples> {
    let mut out: Vec<PageSamples> = Vec::new();
    for (head, tally) in heads.iter().zip(tallies) {
        let hits = [tally.reported(samples); PAGES as usize];
        match out.last_mut().filter(|one| one.range().end == *head) {
            Some(one) => one.hits.extend_from_slice(&hits),
            None => out.push(PageSamples {
                pid,
                start: *head,
                sample_count: samples,
                interval,
                each: PAGES as u16,
                at_random: true,
                hits: hits.to_vec(),
            }),
        }
    }
    out
}

/// Splits ordinary samples into ranges of base pages and of huge pages; `heads` are the first base
/// pages of the huge pages, in ascending order.
#[must_use]
pub fn by_bit(all: PageSamples, heads: &[Vpn]) -> Vec<PageSamples> {
    let range = all.range();
    let heads = &heads[heads.partition_point(|h| *h < range.start)..];
    let within = heads.partition_point(|h| *h < range.end);
    if within == 0 {
        return vec![all];
    }
    let (mut out, mut at) = (Vec::new(), range.start);
    for run in heads[..within].chunk_by(|a, b| a.0 + PAGES == b.0) {
        let (start, end) = (run[0], Vpn((run[run.len() - 1].0 + PAGES).min(range.end.0)));
        for (from, to, each) in [(at, start, 1), (start, end, PAGES as u16)] {
            if from < to {
                let part = (from.0 - range.start.0) as usize..(to.0 - range.start.0) as usize;
                out.push(PageSamples { start: from, each, hits: all.hits[part].to_vec(), ..all });
            }
        }
        at = end;
    }
    if at < range.end {
        let from = (at.0 - range.start.0) as usize;
        out.push(PageSamples { start: at, hits: all.hits[from..].to_vec(), ..all });
    }
    out
}

/// Results of ordinary samples for huge pages, set aside while huge pages are sampled separately:
/// one byte per huge page instead of one per base page.
#[derive(Debug)]
pub struct SetAsideSamples(Vec<(PageSamples, usize)>);

impl SetAsideSamples {
    /// Moves the results for huge pages of `pid` out of `samples`.
    pub fn take(samples: &mut Vec<PageSamples>, pid: Pid) -> Self {
        let (aside, rest): (Vec<_>, _) =
            samples.drain(..).partition(|one| one.pid == pid && one.each > 1);
        *samples = rest;
        Self(aside.into_iter().map(Self::packed).collect())
    }

    fn packed(mut one: PageSamples) -> (PageSamples, usize) {
        let pages = one.hits.len();
        one.hits = one.hits.iter().step_by(PAGES as usize).copied().collect();
        (one, pages)
    }

    /// Appends them to `samples` again, with one byte per base page.
    pub fn put_back(self, samples: &mut Vec<PageSamples>) {
        samples.extend(self.0.into_iter().map(|(mut one, pages)| {
            let hits = one.hits.iter().flat_map(|hits| [*hits; PAGES as usize]);
            one.hits = hits.take(pages).collect();
            one
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(start: u64, each: u16, hits: std::ops::Range<u64>) -> PageSamples {
        PageSamples {
            pid: Pid(1),
            start: Vpn(start),
            sample_count: 8,
            interval: Nanos::millis(1),
            each,
            at_random: false,
            hits: hits.map(|i| (i / 300) as u8).collect(),
        }
    }

    #[test]
    fn ordinary_samples_of_huge_pages_are_distinguished() {
        let heads = [512, 1024, 2048, 9216].map(Vpn);
        let parts = by_bit(samples(500, 1, 0..2100), &heads);
        let expected = [
            (500, 1, 0..12),
            (512, 512, 12..1036),
            (1536, 1, 1036..1548),
            (2048, 512, 1548..2060),
            (2560, 1, 2060..2100),
        ];
        assert_eq!(parts, expected.map(|(start, each, hits)| samples(start, each, hits)));
        assert_eq!(by_bit(samples(100, 1, 0..300), &heads), [samples(100, 1, 0..300)]);
        assert_eq!(by_bit(samples(1024, 1, 0..512), &heads), [samples(1024, 512, 0..512)]);
    }

    #[test]
    fn samples_set_aside_come_back_unchanged() {
        let large = |pid: i32, start: u64, pages: u64| PageSamples {
            pid: Pid(pid),
            hits: (0..pages).map(|i| (i / PAGES) as u8).collect(),
            ..samples(start, PAGES as u16, 0..0)
        };
        // The last huge page is cut off by the end of its mapping.
        let all = vec![samples(0, 1, 0..700), large(2, 1024, 1024), large(1, 2048, 1000)];
        let mut left = all.clone();
        let aside = SetAsideSamples::take(&mut left, Pid(1));
        assert_eq!(left, all[..2]);
        assert_eq!(aside.0[0].0.hits, [0, 1]);
        aside.put_back(&mut left);
        assert_eq!(left, all);
    }

    #[test]
    fn neighbours_are_reported_together_without_pages_that_left() {
        let (mut seen, mut gone) = (PageSampleCount::default(), PageSampleCount::default());
        (0..4).for_each(|sample| seen.add(sample < 3));
        gone.add(true);
        let reported =
            together(Pid(1), &[0, 512, 2048].map(Vpn), &[seen, gone, seen], 4, Nanos::micros(9));
        let of = |one: &PageSamples| {
            (one.start.0, one.hits.len(), one.hits[0], one.hits[one.hits.len() - 1])
        };
        assert_eq!(
            reported.iter().map(of).collect::<Vec<_>>(),
            [(0, 1024, 3, PageSamples::NOT_SAMPLED), (2048, 512, 3, 3)]
        );
        assert_eq!(order(5, 7), [2, 3, 4, 0, 1]);
        assert!(order(0, 3).is_empty());
    }

    fn tallies(touched: usize, always: usize) -> Vec<PageSampleCount> {
        let tally = |hits: u8| {
            let mut tally = PageSampleCount::default();
            (0..8).for_each(|sample| tally.add(sample < hits));
            tally
        };
        (0..touched)
            .map(|i| tally(if i < always { 8 } else { 3 }))
            .chain([tally(0), tally(0)])
            .collect()
    }

    fn group(length: Nanos) -> SampleGroup {
        SampleGroup { length, samples: 8, sharp: false }
    }

    #[test]
    fn huge_pages_are_sampled_where_ordinary_samples_saturate() {
        let mut aim = HugePageSampling::default();
        let mut reported = |length, touched, always| {
            aim.consider(group(length), tallies(touched, always).into_iter());
            aim.on()
        };
        assert!(!reported(Nanos::millis(1), 10, 7));
        assert!(!reported(Nanos::millis(1), 3, 3), "too few to tell");
        assert!(reported(Nanos::millis(1), 10, 8));
        assert!(reported(Nanos::millis(1), 10, 6), "not at once off again");
        assert!(!reported(Nanos::millis(1), 10, 4));
        assert!(reported(Nanos::millis(9), 10, 10), "long samples do not tell them apart either");
    }
}
