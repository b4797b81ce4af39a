//! The heat map: rates and evidence of every base page of the target.

use super::attribute::Share;
use super::estimate::Looks;
use super::exact::{covers, Exact};
use super::span::Span;
use super::Seen;
use terrace_types::{
    Area, Bytes, BytesPerSec, Heat, Move, Nanos, NodeId, PageFlags, PageStat, Pid, Tick, Vpn, VpnRange,
};

/// What the map may assume. The defaults need no tuning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeatParams {
    /// Evidence this old counts for a third. Changes are noticed sooner: see [`super::estimate`].
    pub memory: Nanos,
    /// A page looked at exactly this often may be acted on.
    pub known_looks: f32,
    /// A region sampled this often may be acted on.
    pub known_samples: f32,
    /// Share of a region sample's evidence that counts for each of its pages.
    pub region_weight: f32,
    /// For this long after exact looks at a page, samples of a region around it say nothing of it.
    pub exact_for: Nanos,
    /// Base pages watched at most; larger mappings are left out, largest first. Bounds memory
    /// when a target reserves address space it never fills.
    pub max_pages: u64,
    /// Bytes a write leaves on the bus.
    pub line: Bytes,
}

impl Default for HeatParams {
    fn default() -> Self {
        Self {
            memory: Nanos::secs(1),
            known_looks: 3.0,
            known_samples: 10.0,
            region_weight: 1.0,
            exact_for: Nanos::secs(1),
            max_pages: 16 << 20,
            line: Bytes(64),
        }
    }
}

/// Evidence behind one page: time looked at for accesses, and for writes.
#[derive(Debug, Clone, Copy, Default)]
struct Behind {
    access: Span,
    write: Span,
}

/// What became of a round of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Absorbed {
    /// Page entries updated.
    pub pages: u64,
    /// Findings about pages that are not mapped (any more).
    pub stray: u64,
}

/// Rates and evidence of every base page. Eight bytes a page.
#[derive(Debug)]
pub struct HeatMap {
    params: HeatParams,
    areas: Vec<Area>,
    behind: Vec<Vec<Behind>>,
    last: Option<Tick>,
    fade_left: f32,
    write_window: f32,
    look_window: f32,
    needs_access: bool,
    rounds: u32,
    left_out: u64,
    exact: Exact,
}

impl HeatMap {
    /// An empty map.
    #[must_use]
    pub fn new(params: HeatParams) -> Self {
        Self {
            params,
            areas: Vec::new(),
            behind: Vec::new(),
            last: None,
            fade_left: 0.0,
            write_window: 0.05,
            look_window: 0.005,
            needs_access: false,
            rounds: 0,
            left_out: 0,
            exact: Exact::default(),
        }
    }

    /// Whether some tracker sees reads: then a page is known only once its accesses were looked
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
        let mut old_behind = std::mem::take(&mut self.behind);
        for (pid, range) in wanted {
            let len = range.len() as usize;
            let reuse = old_areas.iter().position(|a| a.pid == pid && a.start == range.start);
            let (pages, behind) = match reuse {
                Some(i) if old_areas[i].pages.len() <= len => {
                    let mut pages = std::mem::take(&mut old_areas[i].pages);
                    let mut behind = std::mem::take(&mut old_behind[i]);
                    let kept = VpnRange::new(range.start, Vpn(range.start.0 + pages.len() as u64));
                    pages.resize(len, PageStat::default());
                    behind.resize(len, Behind::default());
                    let rest = VpnRange::new(kept.end, range.end);
                    keep(&old_areas, &old_behind, pid, range.start, rest, &mut pages, &mut behind);
                    (pages, behind)
                }
                _ => {
                    let mut pages = vec![PageStat::default(); len];
                    let mut behind = vec![Behind::default(); len];
                    keep(&old_areas, &old_behind, pid, range.start, range, &mut pages, &mut behind);
                    (pages, behind)
                }
            };
            self.areas.push(Area { pid, start: range.start, pages });
            self.behind.push(behind);
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

    /// Base pages mapped but not watched, for want of memory.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Merges findings, and lets older evidence fade by the time since the last call.
    pub fn absorb(&mut self, seen: &[Seen], now: Tick) -> Absorbed {
        self.fade(now);
        self.rounds = self.rounds.wrapping_add(1);
        let mut absorbed = Absorbed::default();
        let sampled = |one: &&Seen| !one.writes_only && !one.exact();
        self.exact.forget(self.params.exact_for, now);
        let before = self.exact.joined();
        for one in seen.iter().filter(|one| !sampled(one)) {
            if !one.writes_only && one.windows > 0 {
                self.exact.note(one.pid, one.range, now);
            }
            let first = !one.writes_only && !covers(&before, one.pid, one.range);
            let pages = self.absorb_one(one, first);
            absorbed.pages += pages;
            absorbed.stray += u64::from(pages == 0);
        }
        let exact = std::mem::take(&mut self.exact);
        for one in seen.iter().filter(sampled) {
            let mut pages = 0;
            exact.outside(one.pid, one.range, |range| {
                pages += self.absorb_one(&Seen { range, ..*one }, false);
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
        // Rare looks are worth keeping longer: a round takes away no more than half a memory.
        self.fade_left += Span::fading(elapsed.min(memory / 2.0), memory);
        let codes = self.fade_left.floor().clamp(0.0, 255.0);
        self.fade_left = (self.fade_left - codes).clamp(0.0, 1.0);
        if codes < 1.0 {
            return;
        }
        for (area, behind) in self.areas.iter_mut().zip(&mut self.behind) {
            for (page, b) in area.pages.iter_mut().zip(behind) {
                b.access = b.access.faded(codes as u8);
                b.write = b.write.faded(codes as u8);
                if b.access == Span::NONE && b.write == Span::NONE {
                    page.flags = page.flags.without(PageFlags::KNOWN);
                }
            }
        }
    }

    fn absorb_one(&mut self, seen: &Seen, first_exact: bool) -> u64 {
        let exact = seen.exact() && !seen.range.is_empty();
        let weight = if exact { 1.0 } else { self.params.region_weight };
        let window = seen.window.as_secs_f64() as f32;
        let Some(looks) = Looks::new(seen.hits, seen.windows, window, weight) else {
            return 0;
        };
        if seen.writes_only {
            self.write_window = window;
        } else {
            self.look_window = window;
        }
        let first = self.areas.partition_point(|a| (a.pid, a.range().end) <= (seen.pid, seen.range.start));
        let round = Round {
            looks,
            write_window: self.write_window,
            enough: weight * window * if exact { self.params.known_looks } else { self.params.known_samples },
            needs_access: self.needs_access,
            prior: if first_exact { FIRST_EXACT } else { 1.0 },
            salt: u64::from(self.rounds) << 32 | u64::from(seen.writes_only),
        };
        let mut updated = 0;
        for (area, behind) in self.areas.iter_mut().zip(&mut self.behind).skip(first) {
            let Some(part) = (area.pid == seen.pid).then(|| area.range().intersect(seen.range)).flatten() else {
                break;
            };
            let from = (part.start.0 - area.start.0) as usize;
            let to = (part.end.0 - area.start.0) as usize;
            let pages = &mut area.pages[from..to];
            let behind = &mut behind[from..to];
            match (seen.writes_only, exact) {
                (true, _) => round.writes(pages, behind, part.start, exact),
                (false, true) => round.accesses(pages, behind, part.start),
                (false, false) => round.sampled(pages, behind, part.start),
            }
            updated += part.len();
        }
        updated
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

    /// Follows moves that were made, without a new look at the target.
    pub fn moved(&mut self, done: &[Move]) {
        for m in done {
            self.each_in(m.pid, m.range(), |page| page.node = m.to.0 as u8);
        }
    }

    fn each_in(&mut self, pid: Pid, range: VpnRange, mut f: impl FnMut(&mut PageStat)) {
        let first = self.areas.partition_point(|a| (a.pid, a.range().end) <= (pid, range.start));
        for area in &mut self.areas[first..] {
            let Some(part) = (area.pid == pid).then(|| area.range().intersect(range)).flatten() else {
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
        let sound =
            areas.len() == self.behind.len() && areas.iter().zip(&self.behind).all(|(a, b)| a.pages.len() == b.len());
        self.areas = areas;
        if !sound {
            self.behind = self.areas.iter().map(|a| vec![Behind::default(); a.pages.len()]).collect();
        }
    }

    /// Time looked at behind a typical known page: the harmonic mean over a sample. Policies take
    /// chance for what it is by it: `n` accesses expected in that time come as `n +- sqrt(n)`.
    ///
    /// Looks that nearly always hit tell less than counting would: an estimate from looks with `x`
    /// accesses each has `(e^x - 1) / x` times the variance, so their time counts for that much
    /// less (`x` to 3 at most, beyond which the rate is a bound and no estimate). Where some pages
    /// were looked at much less than others, the seventh part looked at least sets the measure.
    #[must_use]
    pub fn evidence(&self) -> Nanos {
        let total: usize = self.areas.iter().map(|a| a.pages.len()).sum();
        let stride = (total / 1024).max(1);
        let mut sum = 0.0f64;
        let mut spans: Vec<Span> = Vec::new();
        let mut at = 0;
        for (area, behind) in self.areas.iter().zip(&self.behind) {
            while at < area.pages.len() {
                let span = if self.needs_access { behind[at].access } else { behind[at].write };
                let span = if span == Span::NONE { behind[at].access } else { span };
                if area.pages[at].flags.has(PageFlags::KNOWN) && span != Span::NONE {
                    let x = f64::from(area.pages[at].rate() as f32 * self.look_window).clamp(1e-3, 3.0);
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

    /// Bytes a second written to these nodes, by page heat times one line. A lower bound where
    /// pages are dirty in every window (see [`super::estimate`]).
    #[must_use]
    pub fn write_throughput(&self, nodes: &[NodeId]) -> BytesPerSec {
        let present = |p: &&PageStat| p.flags.has(PageFlags::PRESENT) && nodes.contains(&p.node());
        let writes = self.areas.iter().flat_map(|a| &a.pages).filter(present);
        let sum = writes.fold(0u64, |n, p| n.saturating_add(p.writes.rate()));
        BytesPerSec(sum.saturating_mul(self.params.line.get()))
    }

    /// Memory the map holds.
    #[must_use]
    pub fn memory(&self) -> Bytes {
        let pages: usize = self.behind.iter().map(Vec::capacity).sum();
        let page = size_of::<PageStat>() + size_of::<Behind>();
        Bytes((pages * page + self.areas.len() * size_of::<Area>()) as u64)
    }
}

/// Copies what survives of `part` from old areas of the same process.
fn keep(
    areas: &[Area],
    behind: &[Vec<Behind>],
    pid: Pid,
    start: Vpn,
    part: VpnRange,
    pages: &mut [PageStat],
    spans: &mut [Behind],
) {
    for (old, spans_old) in areas.iter().zip(behind).filter(|(a, _)| a.pid == pid) {
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

/// One finding, applied to the pages it is about.
struct Round {
    looks: Looks,
    write_window: f32,
    enough: f32,
    needs_access: bool,
    prior: f32,
    salt: u64,
}

/// What evidence from samples of a region is worth for one page of it, once that page is looked
/// at itself.
const FIRST_EXACT: f32 = 0.05;

impl Round {
    fn accesses(&self, pages: &mut [PageStat], behind: &mut [Behind], start: Vpn) {
        for (i, (page, b)) in pages.iter_mut().zip(behind).enumerate() {
            let had = b.access.seconds() * self.prior;
            let (rate, time) = self.looks.join(page.rate() as f32, had);
            b.access = Span::from_seconds(time, self.dither(start, i));
            publish(page, rate, page.writes.rate() as f32, self.write_window);
            if self.looks.hits > 0.0 {
                page.flags = page.flags.with(PageFlags::REFERENCED);
            }
            self.know(page, time >= self.enough);
        }
    }

    fn sampled(&self, pages: &mut [PageStat], behind: &mut [Behind], start: Vpn) {
        let dirty = |page: &PageStat| 1.0 - (-(page.writes.rate() as f32) * self.write_window).exp();
        let share =
            Share::over(pages.iter().zip(&*behind).map(|(p, b)| (dirty(p), b.write.seconds() / self.write_window)));
        let time = self.looks.time();
        for (i, (page, b)) in pages.iter_mut().zip(behind).enumerate() {
            let (old, mut had) = (page.rate() as f32, b.access.seconds());
            let rate = self.looks.direct * share.of(dirty(page));
            if rate > old * 4.0 || rate < old * 0.25 {
                had *= 0.25;
            }
            let rate = (old * had + rate * time) / (had + time);
            b.access = Span::from_seconds(had + time, self.dither(start, i));
            publish(page, rate, page.writes.rate() as f32, self.write_window);
            self.know(page, had + time >= self.enough);
        }
    }

    fn writes(&self, pages: &mut [PageStat], behind: &mut [Behind], start: Vpn, exact: bool) {
        for (i, (page, b)) in pages.iter_mut().zip(behind).enumerate() {
            let (rate, time) = self.looks.join(page.writes.rate() as f32, b.write.seconds());
            b.write = Span::from_seconds(time, self.dither(start, i));
            publish(page, page.rate() as f32, rate, self.write_window);
            if exact && self.looks.hits > 0.0 {
                page.flags = page.flags.with(PageFlags::DIRTY).with(PageFlags::REFERENCED);
            }
            if !self.needs_access {
                self.know(page, time >= self.enough);
            }
        }
    }

    fn know(&self, page: &mut PageStat, enough: bool) {
        if enough {
            page.flags = page.flags.with(PageFlags::KNOWN);
        }
    }

    /// In [0, 1), from the page and the round: the same input always rounds the same way.
    fn dither(&self, start: Vpn, i: usize) -> f32 {
        let mixed = ((start.0 + i as u64) ^ self.salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 40) as f32 / (1u64 << 24) as f32
    }
}

/// Splits accesses into reads and writes.
///
/// A page dirty in nearly every look was written at least once a look; how often in truth, the bit
/// cannot say ("a page written a million times is one dirty page"). The access estimate bounds it
/// from above. Between the bounds, half of the accesses are taken as writes.
fn publish(page: &mut PageStat, accesses: f32, writes: f32, write_window: f32) {
    let saturated = writes * write_window >= 2.0;
    let writes = if saturated { writes.min(4.0 / write_window).max(accesses / 2.0) } else { writes };
    page.writes = heat(writes);
    page.reads = heat(accesses - writes);
}

fn heat(rate: f32) -> Heat {
    if rate > 0.0 {
        Heat::from_rate((rate + 0.5) as u64)
    } else {
        Heat::COLD
    }
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
