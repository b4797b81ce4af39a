//! Accesses page by page from accessed bits, as the live tracker of page tables sees them
//! (`crates/track`, ADR 0040): bursts of short samples whose length follows the share of pages
//! found accessed, or one sample over the engine's interval. Blind to accesses through translations
//! that were there before the sample, since clearing the bits drops none; not so where huge pages
//! are sampled by themselves (ADR 0188).

use super::{Shared, PID};
use crate::costs::EngineInput;
use crate::costs::Visit;
use crate::costs::{nanos, times};
use crate::memory::{ABSENT, ACCESSED};
use crate::pool::FramePool;
use crate::world::World;
use terrace_engine::{
    Mapping, Observation, PageSamples, Prescan, SampleRequest, SpotCheck, TrackError, Tracker,
    TrackerInfo,
};
use terrace_tracker::huge_pages::{
    at_once, by_bit, leave_out, order, together, HugePageSampling, AIMED, PAGES,
};
use terrace_tracker::sample_length::{
    reads_by_clear, CountHistogram, GroupObservation, PageSampleCount, SampleGroup,
    SampleLengthTuner,
};
use terrace_tracker::spots::spread;
use terrace_types::{
    BitSource, Bytes, Nanos, Pid, Request, Tick, TrackerVisibility, Vpn, VpnRange,
};

/// The tracker.
#[derive(Debug)]
pub struct PageTableScan {
    world: Shared,
    aim: SampleLengthTuner,
    large: HugePageSampling,
    ask: Option<SampleRequest>,
    ranges: Vec<VpnRange>,
    /// What each group of samples found.
    groups: Vec<FoundAccesses>,
    /// First pages of whole huge pages, in order.
    heads: Vec<Vpn>,
    /// The page tables are known.
    found: bool,
    whole: bool,
    cleared: Tick,
    cpu: Nanos,
}

/// What a group of samples found.
#[derive(Debug)]
struct FoundAccesses {
    waited: Nanos,
    /// By range, by page.
    tallies: Vec<Vec<PageSampleCount>>,
}

impl PageTableScan {
    /// Over this world.
    #[must_use]
    pub fn new(world: Shared) -> Self {
        Self {
            world,
            aim: SampleLengthTuner::default(),
            large: HugePageSampling::default(),
            ask: None,
            ranges: Vec::new(),
            groups: Vec::new(),
            heads: Vec::new(),
            found: false,
            whole: false,
            cleared: Tick::ZERO,
            cpu: Nanos::ZERO,
        }
    }

    fn charge(&mut self, world: &mut World, span: Nanos) {
        self.cpu += span;
        world.charge(span);
    }

    /// Goes over all pages that are observed.
    fn visit(&mut self, world: &mut World, visit: Visit) {
        self.cpu += world.visit(self.ranges.iter().flat_map(|r| r.start.0..r.end.0), visit);
    }

    /// Tables are there once the program has touched something.
    fn find(&mut self, world: &mut World, mappings: &[Mapping]) {
        self.ranges = mappings.iter().map(|m| m.range).collect();
        if !self.found && world.memory.pools.iter().any(FramePool::is_used) {
            self.charge(world, nanos(world.costs.kernel.find_page_tables));
            self.found = true;
        }
    }

    /// Pages present, and of those the accessed.
    fn count(&mut self, world: &mut World) -> (u64, u64) {
        self.visit(world, world.costs.count_accessed());
        let (mut present, mut accessed, mut hint) = (0, 0, 0);
        for vpn in self.ranges.iter().flat_map(|r| r.start.0..r.end.0) {
            let Some(index) = world.memory.index(vpn, &mut hint) else { continue };
            if world.memory.pages[index].frame != ABSENT {
                present += 1;
                accessed +=
                    u64::from(world.memory.pages[world.memory.head(index)].bits & ACCESSED != 0);
            }
        }
        (present, accessed)
    }

    fn clear(&mut self, world: &mut World) {
        let before = world.now();
        let clearing = world.costs.clear_accessed();
        self.cpu += world.visit_alone(&self.ranges, clearing);
        world.memory.pages.iter_mut().for_each(|p| p.bits &= !ACCESSED);
        self.cleared = midway(before, world.now());
    }

    /// Reads the bits into the tallies of a group; pages found present and accessed.
    fn read(&mut self, world: &mut World, group: usize) -> (u64, u64) {
        let before = world.now();
        self.visit(world, world.costs.read_accessed());
        let read = midway(before, world.now());
        let (mut present, mut accessed, mut hint) = (0, 0, 0);
        let found = &mut self.groups[group];
        found.waited += read.since(self.cleared);
        for (range, tallies) in self.ranges.iter().zip(&mut found.tallies) {
            for (vpn, tally) in (range.start.0..).zip(tallies) {
                let Some(index) = world.memory.index(vpn, &mut hint) else { continue };
                if world.memory.pages[index].frame == ABSENT {
                    continue;
                }
                let hit = world.memory.pages[world.memory.head(index)].bits & ACCESSED != 0;
                tally.add(hit);
                present += 1;
                accessed += u64::from(hit);
            }
        }
        (present, accessed)
    }

    /// Samples of all lengths, which share what is cleared, reported.
    fn burst(
        &mut self,
        world: &mut World,
        groups: &[SampleGroup],
        ask: &SampleRequest,
        seen: &mut Observation,
    ) {
        let (start, mut slept) = (world.now(), Nanos::ZERO);
        let mut found = vec![GroupObservation::default(); groups.len()];
        self.begin_groups(groups.len());
        let clears = reads_by_clear(groups);
        for reads in &clears {
            world.take_turn();
            self.clear(world);
            let cleared = world.now();
            for (at, length) in reads {
                let before = world.now();
                world.sleep(length.saturating_sub(before.since(cleared)));
                slept += world.now().since(before);
                let (present, accessed) = self.read(world, *at);
                found[*at].present += present;
                found[*at].accessed += accessed;
            }
        }
        self.heads = heads(world, &self.ranges);
        let mut touched = Vec::new();
        for (at, (group, mut found)) in groups.iter().zip(found).enumerate() {
            let mut counts = CountHistogram::default();
            counts.extend(self.groups[at].tallies.iter().flatten());
            found.tally(group.samples, &counts);
            if !group.sharp {
                let of = |head: &Vpn| Some((*head, self.tally_of(at, *head)?));
                let entries: Vec<(Vpn, PageSampleCount)> =
                    self.heads.iter().filter_map(of).collect();
                self.large.consider(*group, entries.iter().map(|(_, tally)| *tally));
                let hit = entries.into_iter().filter(|(_, tally)| tally.hits() > 0);
                touched = hit.map(|(head, _)| head).collect();
            }
            self.report(at, group.samples, seen);
            self.aim.learn(*group, found, ask);
        }
        self.aim.took(world.now().since(start).saturating_sub(slept), clears.len() as u8);
        // Those that no ordinary sample found touched are not sampled again.
        self.heads = touched;
    }

    fn begin_groups(&mut self, groups: usize) {
        let tallies = |r: &VpnRange| vec![PageSampleCount::default(); r.len() as usize];
        let found = || FoundAccesses {
            waited: Nanos::ZERO,
            tallies: self.ranges.iter().map(tallies).collect(),
        };
        self.groups = (0..groups).map(|_| found()).collect();
    }

    fn report(&mut self, group: usize, samples: u8, seen: &mut Observation) {
        let found = &mut self.groups[group];
        let interval = Nanos((found.waited.0 / u64::from(samples.max(1))).max(1));
        for (range, tallies) in self.ranges.iter().zip(found.tallies.drain(..)) {
            let hits: Vec<u8> = tallies.into_iter().map(|t| t.reported(samples)).collect();
            seen.memory += Bytes(hits.len() as u64);
            let all = PageSamples {
                pid: PID,
                start: range.start,
                sample_count: samples,
                interval,
                each: 1,
                at_random: false,
                hits,
            };
            seen.samples.extend(by_bit(all, &self.heads));
        }
    }

    fn tally_of(&self, group: usize, page: Vpn) -> Option<PageSampleCount> {
        let at = self.ranges.partition_point(|r| r.end <= page);
        let first = self.ranges.get(at).filter(|r| r.start <= page)?.start;
        self.groups.get(group)?.tallies.get(at)?.get((page.0 - first.0) as usize).copied()
    }

    /// Samples of huge pages by themselves, as the live tracker does; what ordinary samples found
    /// of them is left out.
    fn sample_huge_pages(
        &mut self,
        world: &mut World,
        ask: &SampleRequest,
        seen: &mut Observation,
    ) {
        for number in 0..AIMED {
            let one = SampleGroup { length: self.large.aim.length(), samples: 1, sharp: false };
            let (mut found, mut tallies) =
                (GroupObservation::default(), vec![PageSampleCount::default(); self.heads.len()]);
            self.huge_page_sample(world, one.length, number, &mut tallies, &mut found);
            self.large.aim.learn(one, found, ask);
            if self.large.aim.length() == one.length {
                break;
            }
        }
        let groups = self.large.aim.groups(ask);
        if !groups.is_empty() {
            leave_out(&mut seen.samples, PID, &self.heads);
        }
        let (start, mut samples, mut lengths) = (world.now(), 0, Nanos::ZERO);
        for group in groups {
            let (mut found, mut tallies) =
                (GroupObservation::default(), vec![PageSampleCount::default(); self.heads.len()]);
            let mut waited = Nanos::ZERO;
            for number in 0..group.samples {
                waited +=
                    self.huge_page_sample(world, group.length, number, &mut tallies, &mut found);
            }
            let mut counts = CountHistogram::default();
            counts.extend(&tallies);
            found.tally(group.samples, &counts);
            let interval = Nanos((waited.get() / u64::from(group.samples)).max(1));
            let reported = together(PID, &self.heads, &tallies, group.samples, interval);
            seen.memory += Bytes(reported.iter().map(|one| one.hits.len() as u64).sum());
            seen.samples.extend(reported);
            self.large.aim.learn(group, found, ask);
            samples += group.samples;
            lengths += Nanos(group.length.get() * u64::from(group.samples));
        }
        self.large.aim.took(world.now().since(start).saturating_sub(lengths), samples);
    }

    /// Clears the bits of a block's pages, and drops their translations; when.
    fn clear_block(&mut self, world: &mut World, block: VpnRange) -> Tick {
        let (before, mut hint) = (world.now(), 0);
        for vpn in block.start.0..block.end.0 {
            let Some(index) = world.memory.index(vpn, &mut hint) else { continue };
            let head = world.memory.head(index);
            world.memory.pages[head].bits &= !ACCESSED;
            world.shoot_down(vpn);
        }
        let kernel = world.costs.kernel;
        self.charge(world, nanos(kernel.cool_block));
        world.interrupt(nanos(kernel.tlb_shootdown));
        midway(before, world.now())
    }

    /// What is found of a block that was cleared then.
    fn read_block(&mut self, world: &mut World, block: VpnRange, cleared: Tick) -> PageSamples {
        self.charge(world, nanos(world.costs.kernel.read_block));
        let (mut hint, mut huge) = (0, false);
        let hit = |vpn| {
            let index = world.memory.index(vpn, &mut hint)?;
            huge |= world.memory.span(index) > 1;
            let there = world.memory.pages[index].frame != ABSENT;
            let bits = world.memory.pages[world.memory.head(index)].bits;
            there.then_some(u8::from(bits & ACCESSED != 0))
        };
        let hits = (block.start.0..block.end.0).map(hit);
        let hits = hits.map(|hit| hit.unwrap_or(PageSamples::NOT_SAMPLED)).collect();
        PageSamples {
            pid: PID,
            start: block.start,
            sample_count: 1,
            interval: world.now().since(cleared).max(Nanos(1)),
            each: if huge { PAGES as u16 } else { 1 },
            at_random: false,
            hits,
        }
    }

    /// One sample of each huge page; how long each was sampled, in the mean.
    fn huge_page_sample(
        &mut self,
        world: &mut World,
        length: Nanos,
        number: u8,
        tallies: &mut [PageSampleCount],
        found: &mut GroupObservation,
    ) -> Nanos {
        let (mut waited, mut batches) = (Nanos::ZERO, 0);
        for batch in order(self.heads.len(), number).chunks(at_once(length)) {
            world.take_turn();
            let before = world.now();
            for i in batch {
                let vpn = self.heads[*i].0;
                if let Some(index) = world.memory.index(vpn, &mut 0) {
                    let head = world.memory.head(index);
                    world.memory.pages[head].bits &= !ACCESSED;
                    world.shoot_down(vpn);
                }
            }
            let kernel = world.costs.kernel;
            self.charge(world, times(kernel.cool_huge_page, batch.len() as u64));
            world.interrupt(nanos(kernel.tlb_shootdown));
            let cleared = (before.0 + world.now().0) / 2;
            self.charge(world, length);
            for i in batch {
                let Some(index) = world.memory.index(self.heads[*i].0, &mut 0) else { continue };
                if world.memory.pages[index].frame != ABSENT {
                    let hit = world.memory.pages[world.memory.head(index)].bits & ACCESSED != 0;
                    tallies[*i].add(hit);
                    found.present += 1;
                    found.accessed += u64::from(hit);
                }
            }
            waited += Nanos(world.now().0.saturating_sub(cleared));
            self.charge(world, nanos(kernel.read_huge_table));
            batches += 1;
        }
        Nanos(waited.get() / batches.max(1))
    }
}

/// Bits are cleared and read one after the other, so a sample begins and ends midway.
const fn midway(from: Tick, to: Tick) -> Tick {
    Tick(from.0.midpoint(to.0))
}

/// The parts that have page tables: those of 2 MiB with a page in memory.
fn with_tables(world: &World, ranges: &[VpnRange]) -> Vec<(Pid, VpnRange)> {
    let mut hint = 0;
    let mut present = |vpn| {
        let index = world.memory.index(vpn, &mut hint);
        index.is_some_and(|index| world.memory.pages[index].frame != ABSENT)
    };
    let mut parts = Vec::new();
    for range in ranges {
        let mut start = range.start.0;
        while start < range.end.0 {
            let end = ((start / PAGES + 1) * PAGES).min(range.end.0);
            if (start..end).any(&mut present) {
                parts.push((PID, VpnRange::new(Vpn(start), Vpn(end))));
            }
            start = end;
        }
    }
    parts
}

/// First pages of whole huge pages.
fn heads(world: &World, ranges: &[VpnRange]) -> Vec<Vpn> {
    let mut hint = 0;
    let first = |r: &VpnRange| r.start.0.next_multiple_of(PAGES);
    let all = ranges
        .iter()
        .flat_map(|r| (first(r)..r.end.0.saturating_sub(PAGES - 1)).step_by(PAGES as usize));
    let huge = |vpn: &u64| {
        let index = world.memory.index(*vpn, &mut hint);
        index.is_some_and(|i| world.memory.pages[i].frame != ABSENT && world.memory.span(i) > 1)
    };
    all.filter(huge).map(Vpn).collect()
}

impl Tracker for PageTableScan {
    fn info(&self) -> TrackerInfo {
        TrackerInfo {
            name: "page-table",
            sees: TrackerVisibility {
                reads: true,
                pages: true,
                bits: BitSource::Approximate,
                ..TrackerVisibility::default()
            },
            blind_to:
                "reads as distinct from writes; accesses served by a translation cached before \
                    the sample",
        }
    }

    fn begin(&mut self, mappings: &[Mapping], ask: &SampleRequest) -> Result<(), TrackError> {
        let shared = self.world.clone();
        let mut world = shared.borrow_mut();
        self.ask = Some(ask.clone());
        self.find(&mut world, mappings);
        self.begin_groups(1);
        self.whole = self.aim.groups(ask).is_empty();
        if self.whole {
            self.clear(&mut world);
        }
        Ok(())
    }

    fn lead(&self) -> Nanos {
        self.ask.as_ref().map_or(Nanos::ZERO, |ask| self.aim.lead(ask))
    }

    fn finish(&mut self, _now: Tick) -> Result<Observation, TrackError> {
        let shared = self.world.clone();
        let mut world = shared.borrow_mut();
        let mut seen = Observation::default();
        let Some(ask) = self.ask.clone() else {
            return Ok(seen);
        };
        if self.whole {
            let (present, accessed) = self.read(&mut world, 0);
            self.report(0, 1, &mut seen);
            let found = GroupObservation { present, accessed, ..GroupObservation::default() };
            self.aim.learn(
                SampleGroup { length: ask.interval, samples: 1, sharp: false },
                found,
                &ask,
            );
        } else {
            self.burst(&mut world, &self.aim.groups(&ask), &ask, &mut seen);
            if self.large.on() && !self.heads.is_empty() {
                self.sample_huge_pages(&mut world, &ask, &mut seen);
            }
        }
        world.show(EngineInput {
            foreseen: ask.quick_scan,
            samples: !ask.quick_scan,
            ..EngineInput::default()
        });
        seen.cpu = std::mem::take(&mut self.cpu);
        Ok(seen)
    }

    fn prescan(&mut self, mappings: &[Mapping]) -> Result<Option<Prescan>, TrackError> {
        let shared = self.world.clone();
        let mut world = shared.borrow_mut();
        self.find(&mut world, mappings);
        self.begin_groups(1);
        let mut prescan = Prescan::default();
        for touched in &mut prescan.touched {
            self.clear(&mut world);
            world.sleep(Prescan::SAMPLE_LENGTH);
            (prescan.present, *touched) = self.read(&mut world, 0);
        }
        let tallies = self.groups.drain(..).flat_map(|found| found.tallies).flatten();
        prescan.both = tallies.filter(|t| t.hits() == 2).count() as u64;
        for at in Prescan::LATER {
            if prescan.verdict().is_some() {
                break;
            }
            let gone = world.now().since(self.cleared);
            world.sleep(at.saturating_sub(gone));
            let read = world.now().since(self.cleared);
            let (_, touched) = self.count(&mut world);
            prescan.later.push((read, touched));
        }
        prescan.cpu = std::mem::take(&mut self.cpu);
        Ok(Some(prescan))
    }

    fn spot_check(
        &mut self,
        mappings: &[Mapping],
        asked: &[(Pid, VpnRange)],
        turn: u64,
    ) -> Result<Option<SpotCheck>, TrackError> {
        let shared = self.world.clone();
        let mut world = shared.borrow_mut();
        self.find(&mut world, mappings);
        let Some((spread, share)) = spread(&with_tables(&world, &self.ranges), turn) else {
            return Ok(None);
        };
        let of = |(_, block): &(Pid, VpnRange)| {
            let block = *block;
            self.ranges.iter().filter_map(move |range| range.intersect(block))
        };
        let asked: Vec<VpnRange> = asked.iter().flat_map(of).collect();
        let blocks: Vec<VpnRange> = spread.iter().map(|(_, block)| *block).chain(asked).collect();
        let cleared: Vec<Tick> =
            blocks.iter().map(|block| self.clear_block(&mut world, *block)).collect();
        world.sleep(self.aim.length().min(Prescan::SAMPLE_LENGTH));
        let mut samples: Vec<PageSamples> = blocks
            .iter()
            .zip(cleared)
            .map(|(block, cleared)| self.read_block(&mut world, *block, cleared))
            .collect();
        let asked = samples.split_off(spread.len());
        Ok(Some(SpotCheck { spread: samples, share, asked, cpu: std::mem::take(&mut self.cpu) }))
    }

    fn accessed(&mut self, ranges: &[(Pid, VpnRange)]) -> Option<Vec<bool>> {
        let shared = self.world.clone();
        let (mut world, since) = (shared.borrow_mut(), self.cleared);
        let any = |(_, range): &(Pid, VpnRange)| {
            self.read_block(&mut world, *range, since).hits.contains(&1)
        };
        Some(ranges.iter().map(any).collect())
    }

    fn request(&mut self, _request: &Request) -> Result<(), TrackError> {
        Ok(())
    }
}
