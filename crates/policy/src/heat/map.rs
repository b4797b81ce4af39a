//! The heat map: rates and evidence of every base page of the target.

mod absorb;
mod readings;

pub use readings::{ForecastCheck, NodeTally, TouchedPages};

use super::estimate::{HitCurve, SampleHits};
use super::exact::{covers, parts, ExactRanges};
use super::round::{EvidencePages, SampleEvidence, SampleRound};
use super::span::LogDuration;
use super::{HeatTuning, PageEvidence, PageSamples, PageWrites, RangeObservation, SweepEstimator};
use terrace_types::{
    run_length, Area, Bytes, Move, Nanos, NodeId, PageFlags, PageStat, Pid, Tick, Vpn, VpnRange,
};

/// What the map may assume. The defaults need no tuning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeatParams {
    /// Evidence this old counts for a third. Changes are noticed sooner: see [`super::estimate`].
    pub memory: Nanos,
    /// A page sampled exactly this often may be acted on (2: of the four samples of a look two may
    /// be of another length, ADR 0360).
    pub known_sample_count: f32,
    /// A region sampled this often may be acted on.
    pub known_samples: f32,
    /// Share of a region sample's evidence that counts for each of its pages.
    pub region_weight: f32,
    /// For this long after exact samples of a page, samples of a region around it say nothing of
    /// it.
    pub exact_for: Nanos,
    /// Base pages observed at most; larger mappings are left out, largest first. Bounds memory
    /// when a target reserves address space it never fills.
    pub max_pages: u64,
    /// Bytes a write leaves on the bus.
    pub line: Bytes,
    /// Constants that need not be set.
    pub tuning: HeatTuning,
}

impl Default for HeatParams {
    fn default() -> Self {
        Self {
            memory: Nanos::secs(1),
            known_sample_count: 2.0,
            known_samples: 10.0,
            region_weight: 1.0,
            exact_for: Nanos::secs(1),
            max_pages: 16 << 20,
            line: Bytes(64),
            tuning: HeatTuning::USUAL,
        }
    }
}

/// What became of a round of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MergeResult {
    /// Page entries updated.
    pub pages: u64,
    /// Findings about pages that are not mapped (any more).
    pub stray: u64,
}

/// Whether samples are saturated: those of the length with most findings, of several samples each.
/// None where there are none such.
fn saturated(samples: &[PageSamples]) -> Option<bool> {
    let mut groups: Vec<(Nanos, usize, usize)> = Vec::new();
    for one in samples.iter().filter(|one| one.sample_count > 1) {
        let (touched, always) = (one.report_count() - one.count(0), one.count(one.sample_count));
        match groups.iter_mut().find(|group| group.0 == one.interval) {
            Some(group) => (group.1, group.2) = (group.1 + touched, group.2 + always),
            None => groups.push((one.interval, touched, always)),
        }
    }
    let reported = groups.iter().filter(|(_, touched, _)| *touched > 0);
    reported.map(|(_, touched, always)| always * 2 > *touched).min()
}

/// Rates and evidence of every base page. Eight bytes a page.
#[derive(Debug)]
pub struct HeatMap {
    params: HeatParams,
    areas: Vec<Area>,
    evidence: Vec<Vec<SampleEvidence>>,
    last: Option<Tick>,
    fade_left: f32,
    write_interval: f32,
    sample_interval: f32,
    /// Samples of a group at that.
    sample_count: u16,
    at_least: bool,
    saturated: bool,
    needs_access: bool,
    rounds: u32,
    left_out: u64,
    exact: ExactRanges,
    curve: HitCurve,
    sweeps: SweepEstimator,
}

impl HeatMap {
    /// An empty map.
    #[must_use]
    pub fn new(params: HeatParams) -> Self {
        Self {
            params,
            areas: Vec::new(),
            evidence: Vec::new(),
            last: None,
            fade_left: 0.0,
            write_interval: 0.05,
            sample_interval: 0.005,
            sample_count: 1,
            at_least: false,
            saturated: false,
            needs_access: false,
            rounds: 0,
            left_out: 0,
            exact: ExactRanges::default(),
            curve: HitCurve::default(),
            sweeps: SweepEstimator::new(params.tuning),
        }
    }

    /// Whether some tracker sees reads: then a page is known only once its accesses were sampled
    /// at, not by its write bits alone.
    pub fn expect_access(&mut self, sees_reads: bool) {
        self.needs_access = sees_reads;
    }

    /// Follows the target's mappings (ordered by process, then address, never overlapping). Pages
    /// still mapped keep their heat; new pages start unknown.
    pub fn remap(&mut self, mappings: &[(Pid, VpnRange)]) {
        if self.left_out == 0 && self.same(mappings) {
            return;
        }
        let wanted = self.fitting(mappings);
        let mut old_areas = std::mem::take(&mut self.areas);
        let mut old_evidence = std::mem::take(&mut self.evidence);
        for (pid, range) in wanted {
            let len = range.len() as usize;
            let reuse = old_areas.iter().position(|a| a.pid == pid && a.start == range.start);
            let (pages, evidence) = match reuse {
                Some(i) if old_areas[i].pages.len() <= len => {
                    let mut pages = std::mem::take(&mut old_areas[i].pages);
                    let mut evidence = std::mem::take(&mut old_evidence[i]);
                    let kept = VpnRange::new(range.start, Vpn(range.start.0 + pages.len() as u64));
                    pages.resize(len, PageStat::default());
                    evidence.resize(len, SampleEvidence::default());
                    let rest = VpnRange::new(kept.end, range.end);
                    keep(
                        &old_areas,
                        &old_evidence,
                        pid,
                        range.start,
                        rest,
                        &mut pages,
                        &mut evidence,
                    );
                    (pages, evidence)
                }
                _ => {
                    let mut pages = vec![PageStat::default(); len];
                    let mut evidence = vec![SampleEvidence::default(); len];
                    keep(
                        &old_areas,
                        &old_evidence,
                        pid,
                        range.start,
                        range,
                        &mut pages,
                        &mut evidence,
                    );
                    (pages, evidence)
                }
            };
            self.areas.push(Area { pid, start: range.start, pages });
            self.evidence.push(evidence);
        }
    }

    fn same(&self, mappings: &[(Pid, VpnRange)]) -> bool {
        let wanted = mappings.iter().filter(|(_, r)| !r.is_empty());
        wanted.clone().count() == self.areas.len()
            && wanted.zip(&self.areas).all(|((pid, range), a)| a.pid == *pid && a.range() == *range)
    }

    /// The mappings in order, less overlaps, less the largest until the rest fits the bound.
    fn fitting(&mut self, mappings: &[(Pid, VpnRange)]) -> Vec<(Pid, VpnRange)> {
        let mut all: Vec<_> = mappings.iter().copied().filter(|(_, r)| !r.is_empty()).collect();
        all.sort_unstable();
        let mut end: Option<(Pid, Vpn)> = None;
        all.retain_mut(|(pid, range)| {
            if let Some((last, stop)) = end {
                if last == *pid && range.start < stop {
                    *range = VpnRange::new(stop, range.end);
                }
            }
            end = Some((*pid, range.end.max(range.start)));
            !range.is_empty()
        });
        let mut total: u64 = all.iter().fold(0, |n, (_, r)| n.saturating_add(r.len()));
        self.left_out = 0;
        while total > self.params.max_pages {
            let Some(largest) = (0..all.len()).max_by_key(|i| all[*i].1.len()) else {
                break;
            };
            let (_, range) = all.remove(largest);
            self.left_out = self.left_out.saturating_add(range.len());
            total = all.iter().fold(0, |n, (_, r)| n.saturating_add(r.len()));
        }
        all
    }

    /// Base pages mapped but not observed, for want of memory.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Whether this page is observed.
    #[must_use]
    pub fn watches(&self, pid: Pid, page: Vpn) -> bool {
        let at = self.areas.partition_point(|a| (a.pid, a.range().end) <= (pid, page));
        self.areas.get(at).is_some_and(|a| a.pid == pid && a.start <= page)
    }

    /// Merges findings, and lets older evidence fade by the time since the last call.
    pub fn absorb(
        &mut self,
        seen: &[RangeObservation],
        samples: &[PageSamples],
        writes: &[PageWrites],
        now: Tick,
    ) -> MergeResult {
        self.fade(now);
        self.rounds = self.rounds.wrapping_add(1);
        let mut absorbed = MergeResult::default();
        let sampled = |one: &&RangeObservation| !one.writes_only && !one.exact();
        self.exact.forget(self.params.exact_for, now);
        let before = self.exact.joined();
        for one in seen.iter().filter(|one| !sampled(one)) {
            if !one.writes_only && one.sample_count > 0 {
                self.exact.note(one.pid, one.range, now);
            }
            let first = !one.writes_only && !covers(&before, one.pid, one.range);
            let pages = self.absorb_one(one, first);
            absorbed.pages += pages;
            absorbed.stray += u64::from(pages == 0);
        }
        self.sweeps.learn(samples);
        if let Some(most) =
            samples.iter().filter(|one| one.sample_count > 0).max_by_key(|one| one.hits.len())
        {
            self.sample_interval = most.seconds();
            self.sample_count = most.sample_count.into();
            let pages = |shared: bool| {
                samples
                    .iter()
                    .filter(|one| one.at_random == shared)
                    .map(PageSamples::report_count)
                    .sum::<usize>()
            };
            self.at_least = samples.iter().any(|one| one.at_random) && pages(true) > pages(false);
        }
        self.saturated = saturated(samples).unwrap_or(self.saturated);
        for one in samples {
            let pages = self.merge_samples(one, &before, now);
            absorbed.pages += pages;
            absorbed.stray += u64::from(pages == 0);
        }
        // Last, for samples say how much there is space for.
        let sampled_ranges = if writes.is_empty() { Vec::new() } else { self.exact.joined() };
        for one in writes {
            let pages = self.absorb_writes(one, &sampled_ranges);
            absorbed.pages += pages;
            absorbed.stray += u64::from(pages == 0);
        }
        let exact = std::mem::take(&mut self.exact);
        for one in seen.iter().filter(sampled) {
            let mut pages = 0;
            exact.outside(one.pid, one.range, |range| {
                pages += self.absorb_one(&RangeObservation { range, ..*one }, false);
            });
            absorbed.pages += pages;
        }
        self.exact = exact;
        absorbed
    }

    fn fade(&mut self, now: Tick) {
        let elapsed = self.last.map_or(0.0, |last| now.since(last).as_secs_f64() as f32);
        self.last = Some(now);
        let memory = (self.params.memory.as_secs_f64() as f32).max(1e-3);
        // Rare samples are worth keeping longer: a round takes away no more than half a memory.
        self.fade_left += LogDuration::fading(elapsed.min(memory / 2.0), memory);
        let codes = self.fade_left.floor().clamp(0.0, 255.0);
        self.fade_left = (self.fade_left - codes).clamp(0.0, 1.0);
        if codes < 1.0 {
            return;
        }
        for (area, evidence) in self.areas.iter_mut().zip(&mut self.evidence) {
            // Apart, so that the first loop is of plain bytes.
            for b in evidence.iter_mut() {
                b.access = b.access.faded(codes as u8);
                b.write = b.write.faded(codes as u8);
            }
            let gone = |b: &SampleEvidence| *b == SampleEvidence::default();
            for (pages, evidence) in area.pages.chunks_mut(64).zip(evidence.chunks(64)) {
                if evidence.iter().fold(false, |any, b| any | gone(b)) {
                    for (page, _) in pages.iter_mut().zip(evidence).filter(|(_, b)| gone(b)) {
                        page.flags = page.flags.without(PageFlags::KNOWN);
                    }
                }
            }
        }
    }

    /// Heat has shifted: what was known of accesses counts for a sixteenth, so that the next
    /// samples say what is hot, and not what was.
    pub fn doubt(&mut self) {
        let steps = self.params.tuning.shift_steps;
        for b in self.evidence.iter_mut().flatten() {
            b.access = b.access.faded(steps).max(b.access.min(LogDuration::LEAST));
        }
    }

    /// Clears referenced and dirty bits of pages on these nodes (all when `None`).
    pub fn clear_bits(&mut self, nodes: Option<&[NodeId]>) {
        let bits = PageFlags::REFERENCED.with(PageFlags::DIRTY);
        for page in self.areas.iter_mut().flat_map(|a| &mut a.pages) {
            if nodes.is_none_or(|n| n.contains(&page.node())) {
                page.flags = page.flags.without(bits);
            }
        }
    }

    /// Clears referenced and dirty bits of these pages.
    pub fn clear_pages(&mut self, pid: Pid, range: VpnRange) {
        let bits = PageFlags::REFERENCED.with(PageFlags::DIRTY);
        self.each_in(pid, range, |page| page.flags = page.flags.without(bits));
    }

    /// Forgets what was known of pages that are not there, once pages were located: what comes at
    /// their addresses is other memory, of which nothing is known, and no evidence.
    pub fn forget_absent(&mut self) {
        for (area, evidence) in self.areas.iter_mut().zip(&mut self.evidence) {
            let mut at = 0;
            while at < area.pages.len() {
                let run = at..at + run_length(&area.pages[at..]);
                if !area.pages[at].flags.has(PageFlags::PRESENT) {
                    area.pages[run.clone()].fill(PageStat::default());
                    evidence[run.clone()].fill(SampleEvidence::default());
                }
                at = run.end;
            }
        }
    }

    /// Follows moves that were made, without a new sample of the target.
    pub fn moved(&mut self, done: &[Move]) {
        for m in done {
            self.each_in(m.pid, m.range(), |page| page.node = m.to.0 as u8);
        }
    }

    fn each_in(&mut self, pid: Pid, range: VpnRange, mut f: impl FnMut(&mut PageStat)) {
        let first = self.areas.partition_point(|a| (a.pid, a.range().end) <= (pid, range.start));
        for area in &mut self.areas[first..] {
            let Some(part) = (area.pid == pid).then(|| area.range().intersect(range)).flatten()
            else {
                break;
            };
            let from = (part.start.0 - area.start.0) as usize;
            area.pages[from..from + part.len() as usize].iter_mut().for_each(&mut f);
        }
    }

    /// The areas, with heat, for locating and for the snapshot.
    #[must_use]
    pub fn areas(&self) -> &[Area] {
        &self.areas
    }

    /// The areas, for the target to fill in where pages are.
    pub fn areas_mut(&mut self) -> &mut [Area] {
        &mut self.areas
    }

    /// Lends the areas to a snapshot, without a copy. Give them back before anything else.
    #[must_use]
    pub fn lend(&mut self) -> Vec<Area> {
        std::mem::take(&mut self.areas)
    }

    /// Takes lent areas back.
    pub fn give_back(&mut self, areas: Vec<Area>) {
        let sound = areas.len() == self.evidence.len()
            && areas.iter().zip(&self.evidence).all(|(a, b)| a.pages.len() == b.len());
        self.areas = areas;
        if !sound {
            self.evidence =
                self.areas.iter().map(|a| vec![SampleEvidence::default(); a.pages.len()]).collect();
        }
    }

    /// Part of the touches, from 0 to 1, that belong to sweeps: see [`SweepEstimator`].
    #[must_use]
    pub fn swept(&self) -> f32 {
        self.sweeps.share()
    }

    /// Whether most of what the last samples found is a lower bound: see
    /// [`terrace_types::Snapshot::at_least`].
    #[must_use]
    pub fn at_least(&self) -> bool {
        self.at_least
    }

    /// Whether the last samples found most of the pages that they found touched at all touched
    /// every time: rates of these are lower bounds, and so nothing is known of how they compare.
    #[must_use]
    pub fn saturated(&self) -> bool {
        self.saturated
    }

    /// Memory the map holds.
    #[must_use]
    pub fn memory(&self) -> Bytes {
        let pages: usize = self.evidence.iter().map(Vec::capacity).sum();
        let page = size_of::<PageStat>() + size_of::<SampleEvidence>();
        Bytes((pages * page + self.areas.len() * size_of::<Area>()) as u64)
    }
}

/// Copies what survives of `part` from old areas of the same process.
fn keep(
    areas: &[Area],
    evidence: &[Vec<SampleEvidence>],
    pid: Pid,
    start: Vpn,
    part: VpnRange,
    pages: &mut [PageStat],
    spans: &mut [SampleEvidence],
) {
    for (old, spans_old) in areas.iter().zip(evidence).filter(|(a, _)| a.pid == pid) {
        let Some(both) = old.range().intersect(part) else {
            continue;
        };
        let src = (both.start.0 - old.start.0) as usize;
        let dst = (both.start.0 - start.0) as usize;
        let len = both.len() as usize;
        pages[dst..dst + len].copy_from_slice(&old.pages[src..src + len]);
        spans[dst..dst + len].copy_from_slice(&spans_old[src..src + len]);
    }
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
