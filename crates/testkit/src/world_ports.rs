//! The engine's ports onto a [`ClosedLoopWorld`].

use crate::world::{ClosedLoopWorld, PID, START};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use terrace_engine::{
    Clock, Mapping, MappingKind, MoveFailure, MoveLimits, MoveOutcome, Mover, Observation,
    PageSamples, Prescan, RangeObservation, SampleRequest, SpotCheck, Target, TargetChange,
    TargetError, TrackError, Tracker, TrackerInfo,
};
use terrace_types::{
    Area, BitSource, Bytes, Move, Nanos, NodeId, PageFlags, Pid, Request, Tick, TierState,
    TrackerVisibility, Vpn, VpnRange,
};

type Shared = Rc<RefCell<ClosedLoopWorld>>;

/// The world's time.
pub struct WorldClock(pub Shared);

impl Clock for WorldClock {
    fn now(&self) -> Tick {
        self.0.borrow().now
    }

    fn wait(&mut self, span: Nanos) {
        self.0.borrow_mut().pass(span);
    }
}

/// The world's process.
pub struct WorldTarget {
    world: Shared,
    mappings: Vec<Mapping>,
    /// Times pages were located.
    pub located: Rc<RefCell<u64>>,
}

impl WorldTarget {
    /// Of this world.
    #[must_use]
    pub fn new(world: Shared) -> Self {
        Self { world, mappings: Vec::new(), located: Rc::default() }
    }
}

impl Target for WorldTarget {
    fn refresh(&mut self) -> Result<TargetChange, TargetError> {
        let world = self.world.borrow();
        if world.ends.is_some_and(|end| world.now >= end) {
            return Err(TargetError::Ended);
        }
        let range = world.range();
        let fresh = vec![Mapping { pid: PID, range, kind: MappingKind::Anonymous, writable: true }];
        let mappings_changed = fresh != self.mappings;
        self.mappings = fresh;
        Ok(TargetChange { mappings_changed, ..TargetChange::default() })
    }

    fn gets_huge_pages(&self) -> bool {
        self.world.borrow().huge > 0
    }

    fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    fn locate(&mut self, areas: &mut [Area]) -> Result<(), TargetError> {
        *self.located.borrow_mut() += 1;
        let world = self.world.borrow();
        for area in areas.iter_mut() {
            let start = area.start.0;
            for (i, page) in area.pages.iter_mut().enumerate() {
                let index = (start + i as u64).checked_sub(START.0).map(|i| i as usize);
                let huge = PageFlags::HUGE_HEAD.with(PageFlags::HUGE_TAIL);
                let gone = PageFlags::PRESENT.with(PageFlags::PINNED).with(huge);
                page.flags = page.flags.without(gone);
                let there = |i: &usize| area.pid == PID && *i < world.pages() && world.is_there(*i);
                let Some(index) = index.filter(there) else { continue };
                page.node = world.nodes[index].0 as u8;
                page.flags = page.flags.with(PageFlags::PRESENT);
                page.flags = page.flags.with(match index.checked_rem(world.huge) {
                    None => PageFlags::default(),
                    Some(0) => PageFlags::HUGE_HEAD,
                    Some(_) => PageFlags::HUGE_TAIL,
                });
                if world.pinned[index] {
                    page.flags = page.flags.with(PageFlags::PINNED);
                }
            }
        }
        Ok(())
    }

    fn tiers(&mut self) -> Result<Vec<TierState>, TargetError> {
        Ok(self.world.borrow().tier_states())
    }
}

/// Moves the world's pages, at the machine's cost, within the limits.
pub struct WorldMover(pub Shared);

impl Mover for WorldMover {
    fn apply(&mut self, moves: &[Move], _exchange: bool, limits: &MoveLimits) -> MoveOutcome {
        let mut world = self.0.borrow_mut();
        let cost = world.spec.machine.migration;
        let mut outcome = MoveOutcome::default();
        let mut failed: BTreeMap<MoveFailure, u64> = BTreeMap::new();
        let mut moved: BTreeMap<NodeId, u64> = BTreeMap::new();
        // As the real mover: a call takes a batch of pages, and time passes with each.
        let mut batch = Batch { pages: limits.batch, spent: Nanos::ZERO };
        for m in moves {
            let mut space = world.spec.node_pages[m.to.0 as usize].saturating_sub(world.used(m.to));
            for vpn in m.start.0..m.range().end.0 {
                if batch.pages >= limits.batch {
                    batch.end(&mut world, &mut outcome, limits);
                    batch.spent = cost.call;
                    outcome.calls += 1;
                }
                if outcome.cost + batch.spent > limits.total {
                    *failed.entry(MoveFailure::OutOfTime).or_default() += 1;
                    continue;
                }
                outcome.tried += 1;
                batch.pages += 1;
                let index = vpn.wrapping_sub(START.0) as usize;
                match world.move_page(index, m.to, space) {
                    Ok(()) => {
                        space -= 1;
                        batch.spent += cost.page;
                        *moved.entry(m.to).or_default() += 1;
                        join(&mut outcome.done, m, vpn);
                    }
                    Err(why) => *failed.entry(why).or_default() += 1,
                }
            }
        }
        batch.end(&mut world, &mut outcome, limits);
        outcome.moved = moved.into_iter().collect();
        outcome.failed = failed.into_iter().collect();
        outcome
    }
}

/// Pages handed over in one call.
struct Batch {
    pages: u32,
    spent: Nanos,
}

impl Batch {
    /// The call returns: its time passes.
    fn end(&mut self, world: &mut ClosedLoopWorld, outcome: &mut MoveOutcome, limits: &MoveLimits) {
        outcome.longest_call = outcome.longest_call.max(self.spent.min(limits.longest_call));
        outcome.cost += self.spent;
        world.pass(self.spent);
        *self = Self { pages: 0, spent: Nanos::ZERO };
    }
}

fn join(done: &mut Vec<Move>, m: &Move, vpn: u64) {
    match done.last_mut() {
        Some(last) if last.to == m.to && last.range().end.0 == vpn => last.pages += 1,
        _ => done.push(Move { start: Vpn(vpn), pages: 1, ..*m }),
    }
}

/// Charges CPU time to a reply, and to the world's account.
fn charge(world: &mut ClosedLoopWorld, observation: &mut Observation, ns: f64) {
    observation.cpu = Nanos(ns as u64);
    world.cpu += observation.cpu;
}

/// Page-exact samples of reads and writes alike, every 5 ms, at a cost of 0.5 us a page and sample
/// unless said otherwise.
/// Limited to the ranges asked for when `only_asked`.
pub struct PageTracker {
    /// The world.
    pub world: Shared,
    /// Samples only where `SampleRequest::fine` says.
    pub only_asked: bool,
    /// Nanoseconds a page and sample.
    pub cost_ns: f64,
    /// Length of a sample.
    sample: Nanos,
    /// The length follows the share of pages found touched, as the live tracker's does.
    adapts: bool,
    ask: Option<SampleRequest>,
    ranges: Vec<(Pid, VpnRange)>,
    begun: Tick,
    /// When the bits of all pages were last cleared.
    cleared: Tick,
}

impl PageTracker {
    /// Samples all pages.
    #[must_use]
    pub fn new(world: Shared) -> Self {
        Self {
            world,
            only_asked: false,
            cost_ns: 500.0,
            sample: SAMPLE_LENGTH,
            adapts: false,
            ask: None,
            ranges: Vec::new(),
            begun: Tick(0),
            cleared: Tick(0),
        }
    }

    /// As page tables are read live: at 1.1 ms a sample of 41,000 pages (the lab), and in bursts of
    /// samples whose length follows the share of pages found touched.
    #[must_use]
    pub fn as_page_tables(world: Shared) -> Self {
        Self { cost_ns: 27.0, adapts: true, ..Self::new(world) }
    }

    /// Samples only where it is asked to.
    #[must_use]
    pub fn where_asked(world: Shared) -> Self {
        Self { only_asked: true, ..Self::new(world) }
    }
}

const READS: TrackerVisibility = TrackerVisibility {
    reads: true,
    writes: false,
    cells: false,
    bits: BitSource::None,
    pages: false,
    sampled: false,
};
const SAMPLE_LENGTH: Nanos = Nanos::millis(5);

/// Samples that fit an interval: 20 at most, 4 where thrifty.
fn samples(span: Nanos, relaxed: bool) -> u16 {
    let fit = (span.get() / SAMPLE_LENGTH.get()).max(1);
    fit.min(if relaxed { 10 } else { 40 }) as u16
}

/// So many samples of so long of each page, as the program accesses it at that time.
fn sampled(
    world: &mut ClosedLoopWorld,
    range: VpnRange,
    (samples, interval): (u16, Nanos),
    at: Tick,
) -> PageSamples {
    let hits = |vpn: u64| {
        let page = (vpn - START.0) as usize;
        if !world.is_there(page) {
            return PageSamples::NOT_SAMPLED;
        }
        let rate = (world.spec.access)(page, at).rate();
        world.rng.successes(samples, 1.0 - (-rate * interval.as_secs_f64()).exp()) as u8
    };
    PageSamples {
        pid: PID,
        start: range.start,
        sample_count: samples as u8,
        interval,
        each: 1,
        at_random: false,
        hits: (range.start.0..range.end.0).map(hits).collect(),
    }
}

/// A block of every so many pages.
const BLOCK: u64 = 8;
const BLOCK_EVERY: u64 = 64;

impl Tracker for PageTracker {
    fn info(&self) -> TrackerInfo {
        let sees = TrackerVisibility { pages: !self.only_asked, ..READS };
        TrackerInfo { name: "pages", sees, blind_to: "writes as such" }
    }

    fn begin(&mut self, mappings: &[Mapping], ask: &SampleRequest) -> Result<(), TrackError> {
        self.begun = self.world.borrow().now;
        self.ask = Some(ask.clone());
        self.ranges = mappings.iter().map(|m| (m.pid, m.range)).collect();
        Ok(())
    }

    fn finish(&mut self, now: Tick) -> Result<Observation, TrackError> {
        let mut world = self.world.borrow_mut();
        let mut seen = Observation::default();
        let Some(ask) = self.ask.take() else {
            return Ok(seen);
        };
        let n = match (ask.quick_scan, self.adapts, ask.relaxed) {
            (true, ..) => 1,
            (_, true, true) => 3,
            (_, true, false) => 8,
            _ => samples(now.since(self.begun), ask.relaxed),
        };
        let ranges = if self.only_asked { &ask.fine } else { &self.ranges };
        let begun = self.begun;
        for (pid, range) in ranges {
            let Some(range) = world.range().intersect(*range).filter(|_| *pid == PID) else {
                continue;
            };
            seen.samples.push(sampled(&mut world, range, (n, self.sample), begun));
        }
        if self.adapts {
            let found = || {
                seen.samples
                    .iter()
                    .flat_map(|l| &l.hits)
                    .filter(|h| **h != PageSamples::NOT_SAMPLED)
            };
            let hits: u64 = found().map(|h| u64::from(*h)).sum();
            let all = found().count() as u64 * u64::from(n);
            self.sample = match hits * 1000 / all.max(1) {
                0..80 => Nanos(self.sample.get() * 2).min(Nanos::millis(50)),
                80..=350 => self.sample,
                _ => Nanos(self.sample.get() / 2).max(Nanos::micros(400)),
            };
        }
        // The kernel clears the bits of all pages, wherever they are read.
        let asked = seen.samples.iter().map(|l| l.hits.len()).sum();
        let pages = if self.only_asked { asked } else { world.pages() };
        let cost = pages as f64 * f64::from(n) * self.cost_ns;
        charge(&mut world, &mut seen, cost);
        self.cleared = world.now;
        Ok(seen)
    }

    fn accessed(&mut self, ranges: &[(Pid, VpnRange)]) -> Option<Vec<bool>> {
        let mut world = self.world.borrow_mut();
        let (now, all) = (world.now, world.range());
        let since = now.since(self.cleared);
        let any = |(_, range): &(Pid, VpnRange)| {
            let touched = |range| sampled(&mut world, range, (1, since), now).hits.contains(&1);
            range.intersect(all).is_some_and(touched)
        };
        self.adapts.then(|| ranges.iter().map(any).collect())
    }

    fn spot_check(
        &mut self,
        _: &[Mapping],
        asked: &[(Pid, VpnRange)],
        turn: u64,
    ) -> Result<Option<SpotCheck>, TrackError> {
        if !self.adapts {
            return Ok(None);
        }
        let mut world = self.world.borrow_mut();
        let (all, at) = (world.range(), world.now);
        let first = all.start.0 + turn * BLOCK % BLOCK_EVERY;
        let block = |start| VpnRange::new(Vpn(start), Vpn(start + BLOCK)).intersect(all);
        let blocks = (first..all.end.0).step_by(BLOCK_EVERY as usize).filter_map(block);
        let mut found =
            SpotCheck { share: BLOCK as f64 / BLOCK_EVERY as f64, ..SpotCheck::default() };
        found.spread =
            blocks.map(|block| sampled(&mut world, block, (1, self.sample), at)).collect();
        let asked = asked.iter().filter_map(|(_, range)| range.intersect(all));
        found.asked = asked.map(|range| sampled(&mut world, range, (1, self.sample), at)).collect();
        world.pass(self.sample);
        let pages: usize = found.spread.iter().chain(&found.asked).map(|one| one.hits.len()).sum();
        let mut seen = Observation::default();
        charge(&mut world, &mut seen, pages as f64 * self.cost_ns);
        found.cpu = seen.cpu;
        Ok(Some(found))
    }

    fn prescan(&mut self, _: &[Mapping]) -> Result<Option<Prescan>, TrackError> {
        if !self.adapts {
            return Ok(None);
        }
        let mut world = self.world.borrow_mut();
        let mut prescan = Prescan { present: world.pages() as u64, ..Prescan::default() };
        let sample = |world: &mut ClosedLoopWorld, touched: &mut [bool], span: Nanos| {
            // In steps, for programs that go on to other pages meanwhile.
            let until = world.now.after(span);
            while world.now < until {
                let step = until.since(world.now).min(Prescan::SAMPLE_LENGTH);
                let untouched = touched.iter_mut().enumerate().filter(|(_, touched)| !**touched);
                for (page, touched) in untouched {
                    let rate = (world.spec.access)(page, world.now).rate();
                    let missed = (-rate * step.as_secs_f64()).exp();
                    *touched = world.rng.successes(1, 1.0 - missed) > 0;
                }
                world.pass(step);
            }
            touched.iter().filter(|t| **t).count() as u64
        };
        let mut samples = [vec![false; world.pages()], vec![false; world.pages()]];
        for (touched, count) in samples.iter_mut().zip(&mut prescan.touched) {
            *count = sample(&mut world, touched, Prescan::SAMPLE_LENGTH);
        }
        let [first, second] = &mut samples;
        prescan.both = first.iter().zip(second.iter()).filter(|(a, b)| **a && **b).count() as u64;
        let mut last = Prescan::SAMPLE_LENGTH;
        for at in Prescan::LATER {
            if prescan.verdict().is_some() {
                break;
            }
            prescan.later.push((at, sample(&mut world, second, at.saturating_sub(last))));
            last = at;
        }
        prescan.cpu =
            Nanos((first.len() as f64 * (54.0 + 6.0 * prescan.later.len() as f64)) as u64);
        world.cpu += prescan.cpu;
        Ok(Some(prescan))
    }

    fn request(&mut self, _: &Request) -> Result<(), TrackError> {
        Ok(())
    }
}

fn range_observation(
    vpn: u64,
    pages: u64,
    hits: u16,
    n: u16,
    interval: Nanos,
    writes: bool,
) -> RangeObservation {
    RangeObservation {
        pid: PID,
        range: VpnRange::new(Vpn(vpn), Vpn(vpn + pages)),
        hits,
        sample_count: n,
        interval,
        writes_only: writes,
        every_page: false,
    }
}

/// DAMON in miniature: regions of equal size, one random page of each sampled every 5 ms.
pub struct RegionTracker {
    /// The world.
    pub world: Shared,
    /// Base pages a region.
    pub region: u64,
    begun: Tick,
    relaxed: bool,
}

impl RegionTracker {
    /// With regions of so many pages.
    #[must_use]
    pub fn new(world: Shared, region: u64) -> Self {
        Self { world, region, begun: Tick(0), relaxed: false }
    }
}

impl Tracker for RegionTracker {
    fn info(&self) -> TrackerInfo {
        TrackerInfo { name: "regions", sees: READS, blind_to: "pages hidden in larger regions" }
    }

    fn begin(&mut self, _: &[Mapping], ask: &SampleRequest) -> Result<(), TrackError> {
        self.begun = self.world.borrow().now;
        self.relaxed = ask.relaxed;
        Ok(())
    }

    fn finish(&mut self, now: Tick) -> Result<Observation, TrackError> {
        let mut world = self.world.borrow_mut();
        let mut seen = Observation::default();
        let n = samples(now.since(self.begun), self.relaxed);
        let range = world.range();
        let mut at = range.start.0;
        while at < range.end.0 {
            let pages = self.region.min(range.end.0 - at);
            let mut hits = 0;
            for _ in 0..n {
                let vpn = at + world.rng.below(pages);
                let rate = (world.spec.access)((vpn - START.0) as usize, self.begun).rate();
                hits += world.rng.successes(1, 1.0 - (-rate * SAMPLE_LENGTH.as_secs_f64()).exp());
            }
            seen.observations.push(range_observation(at, pages, hits, n, SAMPLE_LENGTH, false));
            at += pages;
        }
        let cost = seen.observations.len() as f64 * f64::from(n) * 500.0;
        charge(&mut world, &mut seen, cost);
        Ok(seen)
    }

    fn request(&mut self, _: &Request) -> Result<(), TrackError> {
        Ok(())
    }
}

/// Soft-dirty in miniature: which pages were written, in one sample an interval.
pub struct WriteTracker {
    /// The world.
    pub world: Shared,
    begun: Tick,
}

impl WriteTracker {
    /// Of this world.
    #[must_use]
    pub fn new(world: Shared) -> Self {
        Self { world, begun: Tick(0) }
    }
}

impl Tracker for WriteTracker {
    fn info(&self) -> TrackerInfo {
        let sees = TrackerVisibility { reads: false, writes: true, ..READS };
        TrackerInfo { name: "dirty", sees, blind_to: "reads" }
    }

    fn begin(&mut self, _: &[Mapping], _: &SampleRequest) -> Result<(), TrackError> {
        self.begun = self.world.borrow().now;
        Ok(())
    }

    fn finish(&mut self, now: Tick) -> Result<Observation, TrackError> {
        let mut world = self.world.borrow_mut();
        let mut seen = Observation::default();
        let interval = now.since(self.begun).max(Nanos(1));
        let mut faults = 0.0;
        for i in 0..world.pages() {
            let rate = (world.spec.access)(i, self.begun).writes;
            let p = 1.0 - (-rate * interval.as_secs_f64()).exp();
            let hits = world.rng.successes(1, p);
            faults += f64::from(hits);
            seen.observations.push(range_observation(
                START.0 + i as u64,
                1,
                hits,
                1,
                interval,
                true,
            ));
        }
        let cost = world.pages() as f64 * 40.0 + faults * 500.0;
        charge(&mut world, &mut seen, cost);
        Ok(seen)
    }

    fn request(&mut self, _: &Request) -> Result<(), TrackError> {
        Ok(())
    }
}

/// Page-table bits, exact for each page: what HyPlacer reads. Bits are those set since CLEAR; the
/// heat map joins intervals until then.
pub struct BitTracker {
    /// The world.
    pub world: Shared,
    begun: Tick,
}

impl BitTracker {
    /// Of this world.
    #[must_use]
    pub fn new(world: Shared) -> Self {
        Self { world, begun: Tick(0) }
    }
}

impl Tracker for BitTracker {
    fn info(&self) -> TrackerInfo {
        let sees = TrackerVisibility { writes: true, bits: BitSource::Exact, ..READS };
        TrackerInfo { name: "bits", sees, blind_to: "nothing" }
    }

    fn begin(&mut self, _: &[Mapping], _: &SampleRequest) -> Result<(), TrackError> {
        self.begun = self.world.borrow().now;
        Ok(())
    }

    fn finish(&mut self, now: Tick) -> Result<Observation, TrackError> {
        let mut world = self.world.borrow_mut();
        let interval = now.since(self.begun).max(Nanos(1));
        let mut seen = Observation { memory: Bytes(0), ..Observation::default() };
        for i in 0..world.pages() {
            let access = (world.spec.access)(i, self.begun);
            let p = |rate: f64| 1.0 - (-rate * interval.as_secs_f64()).exp();
            let written = world.rng.successes(1, p(access.writes));
            let touched = written.max(world.rng.successes(1, p(access.reads)));
            let vpn = START.0 + i as u64;
            seen.observations.push(range_observation(vpn, 1, touched, 1, interval, false));
            seen.observations.push(range_observation(vpn, 1, written, 1, interval, true));
        }
        let cost = world.pages() as f64 * 100.0;
        charge(&mut world, &mut seen, cost);
        Ok(seen)
    }

    fn request(&mut self, _: &Request) -> Result<(), TrackError> {
        Ok(())
    }
}
