//! Whether to sample huge pages separately from base pages, and how long each sample lasts.
//!
//! A huge page has one accessed bit for its 512 base pages. Ordinary samples
//! ([`crate::sample_length`]) last half a millisecond or more. In that time a program with random
//! accesses touches every one of its huge pages, hot or cold, so samples do not tell them apart.
//! Samples of huge pages alone can last a few microseconds: there are few bits to clear and read,
//! and if clearing a bit also flushes the TLB entry (`MADV_COLD`), the next access sets it at once.
//!
//! Pages that ordinary samples find untouched are not sampled again: in less time they would not be
//! found touched either (docs/adr/0365).
//!
//! What an accessed huge page says about its base pages depends on the access pattern. A program
//! with sequential accesses touches all of them; its huge pages are accessed in some ordinary
//! samples only, and each of those counts for every base page. Only if (nearly) every huge page is
//! accessed in every sample are accesses assumed to be random, with 1/512 of them for each base
//! page ([`PageSamples::at_random`]).

use crate::sample_length::{PageSampleCount, SampleGroup, SampleLengthTuner};
use terrace_engine::PageSamples;
use terrace_types::{Nanos, Pid, Vpn, VpnRange};

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

/// The stretches of base pages and of huge pages in `range`, in order, with the pages that share a
/// bit; `heads` are the first base pages of the huge pages, in ascending order.
#[must_use]
pub fn stretches(range: VpnRange, heads: &[Vpn]) -> Vec<(VpnRange, u16)> {
    let heads = &heads[heads.partition_point(|h| *h < range.start)..];
    let within = heads.partition_point(|h| *h < range.end);
    let (mut out, mut at) = (Vec::new(), range.start);
    for run in heads[..within].chunk_by(|a, b| a.0 + PAGES == b.0) {
        let (start, end) = (run[0], Vpn((run[run.len() - 1].0 + PAGES).min(range.end.0)));
        out.extend([(VpnRange::new(at, start), 1), (VpnRange::new(start, end), PAGES as u16)]);
        at = end;
    }
    out.push((VpnRange::new(at, range.end), 1));
    out.retain(|(part, _)| !part.is_empty());
    out
}

/// Splits ordinary samples by [`stretches`].
#[must_use]
pub fn by_bit(all: PageSamples, heads: &[Vpn]) -> Vec<PageSamples> {
    let range = all.range();
    let part = |(part, each): (VpnRange, u16)| {
        let from = (part.start.0 - range.start.0) as usize;
        let hits = all.hits[from..from + part.len() as usize].to_vec();
        PageSamples { start: part.start, each, hits, ..all }
    };
    stretches(range, heads).into_iter().map(part).collect()
}

/// Leaves out what ordinary samples told of huge pages of `pid` that were sampled by themselves;
/// `heads` are their first base pages, in ascending order.
pub fn leave_out(samples: &mut [PageSamples], pid: Pid, heads: &[Vpn]) {
    for one in samples.iter_mut().filter(|one| one.pid == pid && one.each > 1) {
        let range = one.range();
        let from = heads.partition_point(|head| head.0 + PAGES <= range.start.0);
        for head in heads[from..].iter().take_while(|head| **head < range.end) {
            let whole = VpnRange::new(*head, Vpn(head.0 + PAGES));
            if let Some(part) = whole.intersect(range) {
                let at = (part.start.0 - range.start.0) as usize;
                one.hits[at..at + part.len() as usize].fill(PageSamples::NOT_SAMPLED);
            }
        }
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
    fn what_was_sampled_by_itself_is_left_out_of_ordinary_samples() {
        let of = |pid: i32, start: u64, pages: usize| PageSamples {
            pid: Pid(pid),
            hits: vec![1; pages],
            ..samples(start, PAGES as u16, 0..0)
        };
        // The last huge page is cut off by the end of its mapping.
        let mut all =
            [of(2, 1024, 1024), of(1, 1024, 2000), PageSamples { each: 1, ..of(1, 0, 9) }];
        leave_out(&mut all, Pid(1), &[0, 1536, 2560].map(Vpn));
        let left = |one: &PageSamples| one.hits.iter().filter(|hits| **hits == 1).count();
        assert_eq!(all.each_ref().map(left), [1024, 1024, 9]);
        assert_eq!([511, 512, 1023, 1024, 1999].map(|at| all[1].hits[at]), [1, 255, 255, 1, 255]);
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
