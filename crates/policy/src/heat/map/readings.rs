//! What a heat map tells about all pages together.

use super::HeatMap;
use crate::heat::estimate::{SampleHits, MOST_EXPECTED};
use crate::heat::span::LogDuration;
use crate::heat::PageSamples;
use terrace_types::{run_length, Area, BytesPerSec, Nanos, NodeId, PageFlags, PageStat, Vpn};

/// What is on one node.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct NodeTally {
    /// Base pages present.
    pub pages: u64,
    /// Their accesses a second, writes included.
    pub accesses: f64,
    /// Their writes a second.
    pub writes: f64,
}

/// Pages touched in samples, beside those that were expected to be.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TouchedPages {
    /// Found touched.
    pub found: f64,
    /// Sum of the chances that they would be.
    pub expected: f64,
    /// Pages sampled.
    pub pages: f64,
}

impl TouchedPages {
    /// Accesses beside those expected, as a ratio: by the share of pages not touched, which falls
    /// exponentially with accesses. Infinite where none were expected, one where none were found
    /// either. A sample in which all were touched is taken to have missed half a page.
    #[must_use]
    pub fn pace(&self) -> f64 {
        let accesses = |touched: f64| -(-touched.min(self.pages - 0.5) / self.pages).ln_1p();
        if self.found == 0.0 && self.expected == 0.0 || self.pages < 1.0 {
            return 1.0;
        }
        accesses(self.found) / accesses(self.expected)
    }

    /// So many pages, each with this chance.
    fn add(&mut self, pages: f64, touched: bool, chance: f32) {
        self.pages += pages;
        self.found += if touched { pages } else { 0.0 };
        self.expected += pages * f64::from(chance);
    }
}

/// What samples found, beside what the map would have foreseen.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ForecastCheck {
    /// All pages present.
    pub all: TouchedPages,
    /// Those on the worse tiers that were thought to be touched seldom.
    pub new: TouchedPages,
}

/// Pages, what was found of each, and how many in a row are alike in both.
fn runs<'a>(
    pages: &'a [PageStat],
    hits: &'a [u8],
) -> impl Iterator<Item = (&'a PageStat, u8, u64)> {
    let (mut at, mut pages_end, mut hits_end) = (0, 0, 0);
    std::iter::from_fn(move || {
        let (page, found) = (pages.get(at)?, *hits.get(at)?);
        if at == pages_end {
            pages_end += run_length(&pages[at..]);
        }
        if at == hits_end {
            hits_end += run_length(&hits[at..]);
        }
        let end = pages_end.min(hits_end);
        let run = end - std::mem::replace(&mut at, end);
        Some((page, found, run as u64))
    })
}

impl HeatMap {
    /// Time sampled behind a typical known page: the harmonic mean over a sample. Policies take
    /// chance for what it is by it: `n` accesses expected in that time come as `n +- sqrt(n)`.
    ///
    /// Samples that nearly always hit tell less than counting would: an estimate from samples with
    /// `x` accesses each has `(e^x - 1) / x` times the variance, so their time counts for that much
    /// less. Beyond 3, and where samples are few beyond what is taken for the rate if all of them
    /// hit, `x` is a bound and no estimate. Where some pages
    /// were sampled much less than others, the seventh part sampled least sets the measure.
    #[must_use]
    pub fn evidence(&self) -> Nanos {
        let total: usize = self.areas.iter().map(|a| a.pages.len()).sum();
        let stride = (total / 1024).max(1);
        let all_hit = SampleHits::all_hit(self.sample_count).min(MOST_EXPECTED);
        let mut sum = 0.0f64;
        let mut spans: Vec<LogDuration> = Vec::new();
        let mut at = 0;
        for (area, evidence) in self.areas.iter().zip(&self.evidence) {
            while at < area.pages.len() {
                let span = if self.needs_access { evidence[at].access } else { evidence[at].write };
                let span = if span == LogDuration::NONE { evidence[at].access } else { span };
                if area.pages[at].flags.has(PageFlags::KNOWN) && span != LogDuration::NONE {
                    let x = f64::from(area.pages[at].rate() as f32 * self.sample_interval)
                        .clamp(1e-3, all_hit.into());
                    let worth = if self.needs_access { x / x.exp_m1() } else { 1.0 };
                    sum += 1.0 / (f64::from(span.seconds()) * worth);
                    spans.push(span);
                }
                at += stride;
            }
            at -= area.pages.len();
        }
        if spans.is_empty() {
            return Nanos::ZERO;
        }
        let n = spans.len() as f64;
        let plain: f64 = spans.iter().map(|s| 1.0 / f64::from(s.seconds())).sum();
        spans.sort_unstable();
        let least = f64::from(spans[spans.len() / 7].seconds());
        let uneven = (least * plain / n).min(1.0);
        Nanos((n / sum * uneven * 1e9) as u64)
    }

    /// Whether it was told of nearly all pages that may be moved how often they are written, be it
    /// never; by a sample. An interval begun while memory is filled says nothing of what came
    /// later. Of the page cache and of what others share nobody tells, and nothing depends on it.
    #[must_use]
    pub fn knows_writes(&self) -> bool {
        let total: usize = self.areas.iter().map(|a| a.pages.len()).sum();
        let pages = self
            .areas
            .iter()
            .zip(&self.evidence)
            .flat_map(|(a, evidence)| a.pages.iter().zip(evidence));
        let movable = pages.step_by((total / 1024).max(1)).filter(|(p, _)| p.movable());
        let (all, reported) = movable.fold((0, 0), |(all, reported), (_, b)| {
            (all + 1, reported + u32::from(b.write != LogDuration::NONE))
        });
        8 * reported > 7 * all
    }

    /// Present pages and their heat by node (index: the low 8 bits of the node's number), in one
    /// pass.
    #[must_use]
    pub fn by_node(&self) -> Vec<NodeTally> {
        let mut nodes = vec![NodeTally::default(); 256];
        let runs = self.areas.iter().flat_map(|area| PageStat::runs(&area.pages));
        for (page, count) in runs.filter(|(page, _)| page.flags.has(PageFlags::PRESENT)) {
            let node = &mut nodes[usize::from(page.node)];
            let writes = f64::from(page.writes.per_second());
            node.pages += count;
            node.writes += writes * count as f64;
            node.accesses += (f64::from(page.reads.per_second()) + writes) * count as f64;
        }
        nodes
    }

    /// Bytes a second written to these nodes, by [`Self::by_node`].
    #[must_use]
    pub fn write_throughput(&self, nodes: &[NodeId]) -> BytesPerSec {
        let tally = self.by_node();
        self.written(
            nodes.iter().filter_map(|n| tally.get(usize::from(n.0))).map(|n| n.writes).sum(),
        )
    }

    /// Bytes that so many writes leave on the bus, a line each. Of writes by page heat: a lower
    /// bound where pages are dirty in every interval (see [`super::estimate`]).
    #[must_use]
    pub fn written(&self, writes_a_second: f64) -> BytesPerSec {
        BytesPerSec((writes_a_second * self.params.line.get() as f64) as u64)
    }

    /// Pages that short samples found touched, beside those that the map would have foreseen.
    #[must_use]
    pub fn foreseen(&self, samples: &[PageSamples], worse: &[NodeId]) -> ForecastCheck {
        let mut on = [false; 256];
        worse.iter().for_each(|n| on[usize::from(n.0 as u8)] = true);
        let mut out = ForecastCheck::default();
        for one in samples {
            let time = one.seconds() * f32::from(one.sample_count);
            let seldom = self.params.tuning.seldom * f32::from(one.sample_count);
            // Pages that share a bit were found by one event.
            let events = 1.0 / f64::from(one.each.max(1));
            for (page, hits, pages) in self.sampled_runs(one) {
                let expected = (page.reads.per_second() + page.writes.per_second()) * time;
                let chance = 1.0 - self.curve.at(expected).missed;
                let (pages, touched) = (pages as f64 * events, hits > 0);
                out.all.add(pages, touched, chance);
                if on[usize::from(page.node)] && expected < seldom {
                    out.new.add(pages, touched, chance);
                }
            }
        }
        out
    }

    /// Accesses a second, by these samples alone, of pages on these nodes that may be moved.
    #[must_use]
    pub fn accesses_on(&self, samples: &[PageSamples], nodes: &[NodeId]) -> f64 {
        let parts = samples.iter().flat_map(|one| self.sampled_pages(one).map(move |of| (one, of)));
        parts.map(|(one, (pages, hits))| self.accesses_of(one, pages, hits, nodes)).sum()
    }

    /// The same of pages that were not there when the map's were last located: areas that were
    /// located since, and what was sampled of each.
    #[must_use]
    pub fn accesses_on_new(
        &self,
        samples: &[PageSamples],
        areas: &[Area],
        nodes: &[NodeId],
    ) -> f64 {
        let parts = samples.iter().zip(areas);
        parts.map(|(one, area)| self.accesses_of(one, &area.pages, &one.hits, nodes)).sum()
    }

    fn accesses_of(
        &self,
        one: &PageSamples,
        pages: &[PageStat],
        hits: &[u8],
        nodes: &[NodeId],
    ) -> f64 {
        if one.sample_count == 0 {
            return 0.0;
        }
        let there = |page: &PageStat| page.movable() && nodes.contains(&page.node());
        let there = runs(pages, hits).filter(|(page, ..)| there(page));
        let rate = |(page, hits, pages)| Some((self.rate_by(one, page, hits)?, pages));
        there.filter_map(rate).map(|(rate, pages)| f64::from(rate) * pages as f64).sum()
    }

    /// Samples of the pages that were not there when the map's were last located, those parts of
    /// which any was touched.
    #[must_use]
    pub fn samples_of_new(&self, samples: &[PageSamples]) -> Vec<PageSamples> {
        let mut out = Vec::new();
        let placed = |page: &PageStat| page.flags.has(PageFlags::PRESENT);
        for one in samples {
            let mut start = one.start;
            for (pages, hits) in self.sampled_pages(one) {
                let mut from = 0;
                for part in pages.chunk_by(|a, b| placed(a) == placed(b)) {
                    let hits = &hits[from..from + part.len()];
                    let touched = |hits: &u8| *hits > 0 && *hits != PageSamples::NOT_SAMPLED;
                    if !placed(&part[0]) && hits.iter().any(touched) {
                        let start = Vpn(start.0 + from as u64);
                        out.push(PageSamples { start, hits: hits.to_vec(), ..*one });
                    }
                    from += part.len();
                }
                start = Vpn(start.0 + pages.len() as u64);
            }
        }
        out
    }

    /// Accesses a second of a page by a short sample alone: found touched as often as what was
    /// known of it lets expect, or not at all. That one of many pages that share a bit was touched
    /// tells too little: what was known holds, and where nothing was, each may have been. That none
    /// was touched is the less likely the more was known of. None where it was not sampled.
    fn rate_by(&self, one: &PageSamples, page: &PageStat, hits: u8) -> Option<f32> {
        let known = || page.reads.per_second() + page.writes.per_second();
        match hits {
            0 if one.each > 1 && page.flags.has(PageFlags::KNOWN) => {
                let expected = known() * f32::from(one.each) * one.interval.as_secs_f64() as f32;
                Some(known() * (-expected).exp())
            }
            _ if one.each > 1 && page.flags.has(PageFlags::KNOWN) => Some(known()),
            0 => Some(0.0),
            _ if one.each > 1 => Some(1.0 / one.seconds()),
            PageSamples::NOT_SAMPLED => None,
            _ => {
                let accesses = self.curve.at(known() * one.seconds()).given_hit;
                Some(f32::from(hits) / f32::from(one.sample_count) * accesses / one.seconds())
            }
        }
    }

    /// Pages that short samples found touched on the other nodes and on these, beside those that
    /// the map would have foreseen.
    #[must_use]
    pub fn touched_by_side(&self, samples: &[PageSamples], nodes: &[NodeId]) -> [TouchedPages; 2] {
        let mut on = [false; 256];
        nodes.iter().for_each(|n| on[usize::from(n.0 as u8)] = true);
        let mut out = [TouchedPages::default(); 2];
        for one in samples.iter().filter(|one| one.each == 1 && one.sample_count > 0) {
            let time = one.seconds() * f32::from(one.sample_count);
            for (page, hits, pages) in self.sampled_runs(one) {
                let rate = page.reads.per_second() + page.writes.per_second();
                let chance = 1.0 - self.curve.at(rate * time).missed;
                out[usize::from(on[usize::from(page.node)])].add(pages as f64, hits > 0, chance);
            }
        }
        out
    }

    /// Pages present that samples are about, what was found of each, and how many in a row are
    /// alike.
    fn sampled_runs<'a>(
        &'a self,
        one: &'a PageSamples,
    ) -> impl Iterator<Item = (&'a PageStat, u8, u64)> {
        let runs = self.sampled_pages(one).flat_map(|(pages, hits)| runs(pages, hits));
        runs.filter(|(page, hits, _)| {
            page.flags.has(PageFlags::PRESENT) && *hits != PageSamples::NOT_SAMPLED
        })
    }

    /// What is known of the pages that samples are about.
    #[must_use]
    pub fn known_of(&self, samples: &[PageSamples]) -> Vec<Area> {
        let mut out = Vec::new();
        for one in samples {
            let mut start = one.start;
            for (pages, _) in self.sampled_pages(one) {
                out.push(Area { pid: one.pid, start, pages: pages.to_vec() });
                start = Vpn(start.0 + pages.len() as u64);
            }
        }
        out
    }

    /// The pages that samples are about, area by area, and what was found of them.
    fn sampled_pages<'a>(
        &'a self,
        one: &'a PageSamples,
    ) -> impl Iterator<Item = (&'a [PageStat], &'a [u8])> {
        let first = self.areas.partition_point(|a| (a.pid, a.range().end) <= (one.pid, one.start));
        self.areas[first..].iter().take_while(|a| a.pid == one.pid).map_while(|area| {
            let part = area.range().intersect(one.range())?;
            let from = |start: Vpn| (part.start.0 - start.0) as usize;
            let length = part.len() as usize;
            Some((
                &area.pages[from(area.start)..][..length],
                &one.hits[from(one.start)..][..length],
            ))
        })
    }

    /// Pages that samples found touched, and of which it is not known where they are: they came
    /// since pages were last located, or no node can be told of them.
    #[must_use]
    pub fn unplaced(&self, samples: &[PageSamples]) -> u64 {
        let touched = |hits: u8| hits > 0 && hits != PageSamples::NOT_SAMPLED;
        let new = |(page, hits): &(&PageStat, &u8)| {
            touched(**hits) && !page.flags.has(PageFlags::PRESENT)
        };
        let parts = samples.iter().flat_map(|one| self.sampled_pages(one));
        // Most pages were not touched: those are passed over many at once.
        let parts = parts.flat_map(|(pages, hits)| pages.chunks(64).zip(hits.chunks(64)));
        let some = parts.filter(|(_, hits)| hits.iter().fold(0, |any, hits| any | hits) != 0);
        some.map(|(pages, hits)| pages.iter().zip(hits).filter(new).count() as u64).sum()
    }
}
