//! One round of findings, applied to the pages it is about.

use super::attribute::RegionShare;
use super::estimate::{HitCurve, SampleHits};
use super::span::LogDuration;
use super::{HeatTuning, PageSamples};
use terrace_types::{run_length, Heat, PageFlags, PageStat, Vpn};
use zerocopy::{Immutable, IntoBytes};

/// Evidence behind one page: time sampled for accesses, and for writes.
#[derive(Debug, Clone, Copy, PartialEq, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct SampleEvidence {
    pub access: LogDuration,
    pub write: LogDuration,
}

/// Base pages whose evidence is rounded the same way, so that those found alike stay alike: as many
/// as a huge page has (docs/adr/0370).
const DITHER_BLOCK: u64 = 512;

/// What holds for all findings of a round.
pub(super) struct SampleRound<'a> {
    pub curve: &'a HitCurve,
    pub tuning: &'a HeatTuning,
    pub write_interval: f32,
    /// Seconds of evidence from which a page is known.
    pub enough: f32,
    pub needs_access: bool,
    /// What earlier evidence counts for.
    pub prior: f32,
    pub salt: u64,
}

/// Pages, and the evidence behind each.
pub(super) type EvidencePages<'a> = (&'a mut [PageStat], &'a mut [SampleEvidence]);

/// What samples came to for one page.
#[derive(Debug, Clone, Copy, Default)]
struct MergedSamples {
    reads: Heat,
    writes: Heat,
    time: f32,
}

/// What samples came to for pages met before: of tens of thousands of pages, most begin with the
/// same few rates and are found touched equally often, so that looking it up takes a fifth of the
/// instructions.
struct MergeMemo {
    slots: Vec<(u64, MergedSamples)>,
    bits: u32,
}

impl MergeMemo {
    const MOST_BITS: u32 = 9;

    /// For so many pages: of few, few kinds are met.
    fn new(pages: usize) -> Self {
        let bits = (pages.max(2) as u64).ilog2().min(Self::MOST_BITS);
        Self { slots: vec![(u64::MAX, MergedSamples::default()); 1 << bits], bits }
    }

    /// `code`: which of the samples; `evidence`: all evidence that they are joined to.
    fn at(
        &mut self,
        page: &PageStat,
        evidence: [LogDuration; 2],
        code: u8,
        joined: impl FnOnce() -> MergedSamples,
    ) -> MergedSamples {
        let key = u64::from(page.reads.0)
            | u64::from(page.writes.0) << 16
            | u64::from(evidence[0].0) << 32
            | u64::from(evidence[1].0) << 40
            | u64::from(code) << 48;
        let at = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - self.bits)) as usize;
        let slot = &mut self.slots[at];
        if slot.0 != key {
            *slot = (key, joined());
        }
        slot.1
    }
}

impl SampleRound<'_> {
    pub fn accesses(
        &self,
        samples: &SampleHits,
        pages: &mut [PageStat],
        evidence: &mut [SampleEvidence],
        start: Vpn,
    ) {
        for (at, (page, b)) in (start.0..).zip(pages.iter_mut().zip(evidence)) {
            let known = self.joined(samples, page, b.access);
            self.access(samples, known, page, b, self.dither(at / DITHER_BLOCK));
        }
    }

    /// The same for pages with different hits; `table` has the samples for each number of hits.
    pub fn samples(
        &self,
        table: &[SampleHits],
        hits: &[u8],
        pages: &mut [PageStat],
        evidence: &mut [SampleEvidence],
        start: Vpn,
    ) {
        let mut memo = MergeMemo::new(pages.len());
        let (mut at, mut hits_end, mut pages_end, mut evidence_end) = (0, 0, 0, 0);
        while at < hits.len() {
            if at >= hits_end {
                hits_end = at + run_length(&hits[at..]);
            }
            let found = hits[at];
            let samples = table.get(usize::from(found));
            let Some(samples) = samples.filter(|_| found != PageSamples::NOT_SAMPLED) else {
                at = hits_end;
                continue;
            };
            if at >= pages_end {
                pages_end = at + run_length(&pages[at..]);
            }
            if at >= evidence_end {
                evidence_end = at + run_length(&evidence[at..]);
            }
            let first = start.0 + at as u64;
            let end = (first / DITHER_BLOCK + 1) * DITHER_BLOCK - start.0;
            let run = at..hits_end.min(pages_end).min(evidence_end).min(end as usize);
            let (mut page, mut b) = (pages[at], evidence[at]);
            let known = memo.at(&page, [b.access, LogDuration::NONE], found, || {
                self.joined(samples, &page, b.access)
            });
            let dither = self.dither(first / DITHER_BLOCK);
            self.access(samples, known, &mut page, &mut b, dither);
            pages[run.clone()].fill(page);
            evidence[run.clone()].fill(b);
            at = run.end;
        }
    }

    fn access(
        &self,
        samples: &SampleHits,
        known: MergedSamples,
        page: &mut PageStat,
        b: &mut SampleEvidence,
        dither: u32,
    ) {
        self.show(samples, known, page);
        b.access = LogDuration::from_seconds(known.time, dither);
    }

    /// What is known now of a page.
    fn show(&self, samples: &SampleHits, known: MergedSamples, page: &mut PageStat) {
        (page.reads, page.writes) = (known.reads, known.writes);
        if samples.hits > 0.0 {
            page.flags = page.flags.with(PageFlags::REFERENCED);
        }
        self.know(page, known.time >= self.enough);
    }

    /// What samples make of a page's heat and of the time sampled. They tell accesses, and not
    /// which of them are writes: that share stays as it was.
    fn joined(
        &self,
        samples: &SampleHits,
        page: &PageStat,
        evidence: LogDuration,
    ) -> MergedSamples {
        let mut page = *page;
        let had = evidence.seconds() * self.prior;
        let writes = page.writes.per_second();
        let rate = page.reads.per_second() + writes;
        let (new, time) =
            if samples.hits == 0.0 && rate * samples.time() <= self.tuning.few_expected {
                let time = had + samples.time();
                (rate * had / time, time)
            } else {
                samples.join(self.curve, self.tuning, rate, had)
            };
        if rate > 0.0 || new > 0.0 {
            let share = if rate > 0.0 { writes / rate } else { 0.0 };
            self.publish(&mut page, new, share * new);
        }
        MergedSamples { reads: page.reads, writes: page.writes, time }
    }

    pub fn sampled(
        &self,
        samples: &SampleHits,
        pages: &mut [PageStat],
        evidence: &mut [SampleEvidence],
        start: Vpn,
    ) {
        let dirty =
            |page: &PageStat| 1.0 - (-(page.writes.per_second()) * self.write_interval).exp();
        let share = RegionShare::from_pages(
            pages
                .iter()
                .zip(&*evidence)
                .map(|(p, b)| (dirty(p), b.write.seconds() / self.write_interval)),
            self.tuning,
        );
        let time = samples.time();
        for (i, (page, b)) in pages.iter_mut().zip(evidence).enumerate() {
            let (old, mut had) =
                ((page.reads.per_second() + page.writes.per_second()), b.access.seconds());
            let rate = samples.direct * share.of(dirty(page));
            let change = self.tuning.region_change;
            if rate > old * change || rate < old / change {
                had *= self.tuning.region_keeps;
            }
            let rate = (old * had + rate * time) / (had + time);
            b.access = LogDuration::from_seconds(had + time, self.dither(start.0 + i as u64));
            self.publish(page, rate, page.writes.per_second());
            self.know(page, had + time >= self.enough);
        }
    }

    pub fn writes(&self, samples: &SampleHits, pages: EvidencePages<'_>, start: Vpn, dirty: bool) {
        for (i, (page, b)) in pages.0.iter_mut().zip(pages.1).enumerate() {
            self.write(
                self.written(samples, page, b, false),
                page,
                b,
                dirty,
                self.dither(start.0 + i as u64),
            );
        }
    }

    /// The same for pages that differ; `table` has what `found` names, and whether such pages were
    /// found dirty. Returns the number of pages updated. `sampled`: samples of accesses were of
    /// each page, so that it is not written more often than they leave space for.
    pub fn page_writes(
        &self,
        table: &[(Option<SampleHits>, bool)],
        found: &[u8],
        pages: EvidencePages<'_>,
        start: Vpn,
        sampled: bool,
    ) -> u64 {
        let (mut memo, mut updated) = (MergeMemo::new(pages.0.len()), 0);
        for (i, ((page, b), code)) in pages.0.iter_mut().zip(pages.1).zip(found).enumerate() {
            let Some((Some(samples), dirty)) = table.get(usize::from(*code)) else { continue };
            let known = memo
                .at(page, [b.access, b.write], *code, || self.written(samples, page, b, sampled));
            self.write(known, page, b, *dirty, self.dither(start.0 + i as u64));
            updated += 1;
        }
        updated
    }

    fn write(
        &self,
        known: MergedSamples,
        page: &mut PageStat,
        b: &mut SampleEvidence,
        dirty: bool,
        dither: u32,
    ) {
        (page.reads, page.writes) = (known.reads, known.writes);
        b.write = LogDuration::from_seconds(known.time, dither);
        if dirty {
            page.flags = page.flags.with(PageFlags::DIRTY).with(PageFlags::REFERENCED);
        }
        if !self.needs_access {
            self.know(page, known.time >= self.enough);
        }
    }

    /// What samples writes make of a page's heat and of the time sampled.
    fn written(
        &self,
        samples: &SampleHits,
        page: &PageStat,
        b: &SampleEvidence,
        sampled: bool,
    ) -> MergedSamples {
        let mut page = *page;
        let (mut rate, time) =
            samples.join(self.curve, self.tuning, page.writes.per_second(), b.write.seconds());
        let accesses = page.reads.per_second() + page.writes.per_second();
        if sampled && b.access != LogDuration::NONE {
            rate = rate.min(accesses + self.tuning.write_margin / b.access.seconds());
        }
        self.publish(&mut page, accesses, rate);
        MergedSamples { reads: page.reads, writes: page.writes, time }
    }

    fn know(&self, page: &mut PageStat, enough: bool) {
        if enough {
            page.flags = page.flags.with(PageFlags::KNOWN);
        }
    }

    /// Below one step of a span, from the place (of a page or a block) and the round: the same
    /// input always rounds the same way.
    fn dither(&self, place: u64) -> u32 {
        let mixed = (place ^ self.salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (64 - LogDuration::DITHER_BITS)) as u32
    }

    /// Splits accesses into reads and writes.
    ///
    /// A page dirty in nearly every sample was written at least once a sample; how often in truth,
    /// the bit cannot say ("a page written a million times is one dirty page"). The access estimate
    /// bounds it from above. Between the bounds, half of the accesses are taken as writes.
    fn publish(&self, page: &mut PageStat, accesses: f32, writes: f32) {
        let HeatTuning { write_saturated, write_certain, .. } = *self.tuning;
        let writes = if writes * self.write_interval >= write_saturated {
            writes.min(write_certain / self.write_interval).max(accesses / 2.0)
        } else {
            writes
        };
        page.writes = heat(writes);
        page.reads = heat(accesses - writes);
    }
}

fn heat(rate: f32) -> Heat {
    if rate > 0.0 {
        Heat::from_per_second(rate + 0.5)
    } else {
        Heat::COLD
    }
}
