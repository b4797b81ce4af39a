//! Accesses by region as DAMON sees them, after `mm/damon/core.c` and `vaddr.c` of Linux 6.12.
//!
//! Memory is cut into regions that are taken to be alike inside. Each sampling interval one page of
//! each, chosen by chance, is sampled: its accessed bit is cleared and, an interval later, asked
//! for. After an aggregation interval neighbours whose counts differ by at most a tenth of the
//! highest possible are joined, what was counted is reported, and regions are cut in two at a
//! random tenth, while there are fewer than half of the maximum. Intervals and bounds are those
//! that the live tracker asks for (`crates/track/src/damon.rs`). Two differences: regions rest
//! between intervals, where a live kdamond goes on; and new mappings join at the next interval, not
//! at an update interval.

use super::{Shared, PID};
use crate::costs::times;
use crate::costs::EngineInput;
use crate::memory::{ABSENT, ACCESSED};
use crate::world::World;
use terrace_engine::{
    Mapping, Observation, RangeObservation, SampleRequest, TrackError, Tracker, TrackerInfo,
};
use terrace_types::{
    BitSource, Bytes, Nanos, Request, Seed, Tick, TrackerVisibility, Vpn, VpnRange,
};

/// Sampling and aggregation intervals; while relaxed.
const COARSE: (Nanos, Nanos) = (Nanos::millis(5), Nanos::millis(100));
const RELAXED: (Nanos, Nanos) = (Nanos::millis(100), Nanos::secs(1));
/// Bytes of kernel memory that one region holds.
const REGION_BYTES: u64 = 96;

/// A stretch of pages that is taken to be alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Region {
    start: u64,
    end: u64,
    /// The page that is sampled.
    sampled: u64,
    hits: u32,
}

impl Region {
    fn new(start: u64, end: u64) -> Self {
        Self { start, end, sampled: start, hits: 0 }
    }

    fn pages(&self) -> u64 {
        self.end - self.start
    }
}

/// The regions of a target, ascending.
#[derive(Debug, Clone, Default)]
struct Regions {
    list: Vec<Region>,
    most: usize,
    least: usize,
    before: usize,
}

impl Regions {
    /// Areas cut evenly into about `least` regions.
    fn new(areas: &[(u64, u64)], least: usize, most: usize) -> Self {
        let all: u64 = areas.iter().map(|a| a.1 - a.0).sum();
        let each = (all / least.max(1) as u64).max(1);
        let mut list = Vec::new();
        for (start, end) in areas {
            let pieces = ((end - start) / each).max(1);
            let size = (end - start) / pieces;
            for piece in 0..pieces {
                let from = start + piece * size;
                list.push(Region::new(from, if piece + 1 == pieces { *end } else { from + size }));
            }
        }
        Self { before: list.len(), list, most, least }
    }

    /// `kdamond_merge_regions`: neighbours within `threshold` of each other become one, up to a
    /// size; ever more tolerantly while there are too many.
    fn merge(&mut self, highest: u32) {
        let all: u64 = self.list.iter().map(Region::pages).sum();
        let largest = (all / self.least.max(1) as u64).max(1);
        let mut threshold = (highest / 10).max(1);
        loop {
            let mut merged: Vec<Region> = Vec::with_capacity(self.list.len());
            for region in &self.list {
                match merged.last_mut() {
                    Some(last)
                        if last.end == region.start
                            && last.hits.abs_diff(region.hits) <= threshold
                            && last.pages() + region.pages() <= largest =>
                    {
                        let hits = u64::from(last.hits) * last.pages()
                            + u64::from(region.hits) * region.pages();
                        last.hits = (hits / (last.pages() + region.pages())) as u32;
                        last.end = region.end;
                    }
                    _ => merged.push(*region),
                }
            }
            self.list = merged;
            if self.list.len() <= self.most || threshold > highest {
                return;
            }
            threshold *= 2;
        }
    }

    /// `kdamond_split_regions`: each in two, or in three where that did not change their number the
    /// last time.
    fn split(&mut self, chance: &mut Chance) {
        let count = self.list.len();
        if count > self.most / 2 {
            return;
        }
        let pieces = if self.before == count && count < self.most / 3 { 3 } else { 2 };
        self.before = count;
        let mut split = Vec::with_capacity(count * pieces);
        for region in &self.list {
            let mut rest = *region;
            for _ in 1..pieces {
                let size = rest.pages() * (1 + chance.below(9)) / 10;
                if size == 0 || size >= rest.pages() {
                    continue;
                }
                split.push(Region { end: rest.start + size, ..rest });
                rest.start += size;
            }
            split.push(rest);
        }
        self.list = split;
    }
}

/// Chance from a seed (xorshift).
#[derive(Debug, Clone)]
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n.max(1)
    }
}

/// The tracker.
#[derive(Debug)]
pub struct DamonScan {
    world: Shared,
    chance: Chance,
    regions: Regions,
    ranges: Vec<VpnRange>,
    plan: (Nanos, Nanos),
    interval: Nanos,
    /// Samples since the last aggregation.
    sampled: u64,
    prepared: bool,
}

impl DamonScan {
    /// Over this world.
    #[must_use]
    pub fn new(world: Shared, seed: Seed) -> Self {
        // Xorshift stays at zero for ever.
        let chance = Chance(seed.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Self {
            world,
            chance,
            regions: Regions::default(),
            ranges: Vec::new(),
            plan: COARSE,
            interval: Nanos::ZERO,
            sampled: 0,
            prepared: false,
        }
    }

    /// `damon_va_prepare_access_checks`: a page of each region, its bit cleared.
    fn prepare(&mut self, world: &mut World) {
        let mut hint = 0;
        for region in &mut self.regions.list {
            region.sampled = region.start + self.chance.below(region.pages());
            if let Some(index) = world.memory.index(region.sampled, &mut hint) {
                let head = world.memory.head(index);
                world.memory.pages[head].bits &= !ACCESSED;
            }
        }
        self.prepared = true;
    }

    /// `damon_va_check_accesses`.
    fn check(&mut self, world: &mut World) {
        let mut hint = 0;
        for region in &mut self.regions.list {
            let Some(index) = world.memory.index(region.sampled, &mut hint) else { continue };
            let page = world.memory.pages[world.memory.head(index)];
            region.hits += u32::from(page.frame != ABSENT && page.bits & ACCESSED != 0);
        }
        self.sampled += 1;
    }

    fn aggregate(&mut self, seen: &mut Observation) {
        let samples = self.sampled.clamp(1, u64::from(u16::MAX)) as u16;
        self.regions.merge(u32::from(samples));
        for region in &self.regions.list {
            seen.observations.push(RangeObservation {
                pid: PID,
                range: VpnRange::new(Vpn(region.start), Vpn(region.end)),
                hits: region.hits.min(u32::from(samples)) as u16,
                sample_count: samples,
                interval: self.plan.0,
                writes_only: false,
                every_page: region.pages() == 1,
            });
        }
        self.regions.list.iter_mut().for_each(|r| r.hits = 0);
        self.regions.split(&mut self.chance);
        self.sampled = 0;
    }
}

/// All mappings but for the two widest gaps between them: what DAMON takes as one process's areas.
fn areas(ranges: &[VpnRange]) -> Vec<(u64, u64)> {
    let mut gaps: Vec<(u64, usize)> = ranges
        .windows(2)
        .enumerate()
        .map(|(i, w)| (w[1].start.0 - w[0].end.0, i))
        .filter(|g| g.0 > 0)
        .collect();
    gaps.sort_unstable_by_key(|g| std::cmp::Reverse(g.0));
    gaps.truncate(2);
    let mut areas: Vec<(u64, u64)> = Vec::new();
    for (i, range) in ranges.iter().enumerate() {
        match areas.last_mut() {
            Some(last) if i > 0 && !gaps.iter().any(|g| g.1 == i - 1) => last.1 = range.end.0,
            _ => areas.push((range.start.0, range.end.0)),
        }
    }
    areas
}

impl Tracker for DamonScan {
    fn info(&self) -> TrackerInfo {
        TrackerInfo {
            name: "damon",
            sees: TrackerVisibility {
                reads: true,
                bits: BitSource::Approximate,
                ..TrackerVisibility::default()
            },
            blind_to: "reads as distinct from writes; hot pages scattered among cold ones",
        }
    }

    fn begin(&mut self, mappings: &[Mapping], ask: &SampleRequest) -> Result<(), TrackError> {
        let ranges: Vec<VpnRange> = mappings.iter().map(|m| m.range).collect();
        let plan = if ask.relaxed { RELAXED } else { COARSE };
        if ranges != self.ranges || plan != self.plan {
            let pages: u64 = ranges.iter().map(|r| r.len()).sum();
            let most = (pages / 512).clamp(20, 400) as usize;
            self.regions = Regions::new(&areas(&ranges), (most / 4).max(3), most);
            (self.ranges, self.plan, self.sampled, self.prepared) = (ranges, plan, 0, false);
        }
        self.interval = ask.interval;
        Ok(())
    }

    fn lead(&self) -> Nanos {
        self.interval
    }

    fn finish(&mut self, _now: Tick) -> Result<Observation, TrackError> {
        let shared = self.world.clone();
        let mut world = shared.borrow_mut();
        let mut seen = Observation::default();
        let rounds = (self.interval.get() / self.plan.0.get()).max(1);
        let per_report = (self.plan.1.get() / self.plan.0.get()).max(1);
        for _ in 0..rounds {
            if !self.prepared {
                self.prepare(&mut world);
            }
            world.pass(self.plan.0);
            self.check(&mut world);
            if self.sampled >= per_report {
                self.aggregate(&mut seen);
            }
            let cost = times(world.costs.kernel.sample_region, self.regions.list.len() as u64);
            world.charge(cost);
            seen.cpu += cost;
            self.prepare(&mut world);
            if world.ended() {
                break;
            }
        }
        world.show(EngineInput { samples: true, ..EngineInput::default() });
        seen.observations.sort_by_key(|s| s.range.start);
        seen.memory = Bytes(self.regions.list.len() as u64 * REGION_BYTES);
        Ok(seen)
    }

    fn request(&mut self, _request: &Request) -> Result<(), TrackError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(regions: &mut Regions, hot: std::ops::Range<u64>) {
        for region in &mut regions.list {
            region.hits = if hot.contains(&region.start) { 20 } else { 0 };
        }
    }

    #[test]
    fn areas_leave_out_the_two_widest_gaps() {
        let range = |a, b| VpnRange::new(Vpn(a), Vpn(b));
        assert_eq!(
            areas(&[range(0, 10), range(20, 30), range(31, 40), range(100, 110)]),
            [(0, 10), (20, 40), (100, 110)]
        );
        assert_eq!(areas(&[range(5, 6)]), [(5, 6)]);
        assert!(areas(&[]).is_empty());
    }

    #[test]
    fn regions_cover_all_and_stay_within_their_bounds() {
        let (mut chance, mut r) =
            (Chance(7), Regions::new(&[(0, 10_000), (20_000, 20_500)], 25, 100));
        for _ in 0..200 {
            hits(&mut r, 3_000..3_100);
            r.merge(20);
            r.split(&mut chance);
            assert!(
                r.list.len() <= 150 && r.list.iter().all(|x| x.start < x.end),
                "{}",
                r.list.len()
            );
            assert_eq!(r.list.iter().map(Region::pages).sum::<u64>(), 10_500);
        }
        // Nobody is joined across the gap.
        assert!(r
            .list
            .windows(2)
            .all(|w| w[0].end == w[1].start || (w[0].end, w[1].start) == (10_000, 20_000)));
    }

    #[test]
    fn what_differs_stays_apart_and_what_is_alike_joins() {
        let mut r = Regions::new(&[(0, 1000)], 10, 100);
        assert_eq!(r.list.len(), 10);
        r.split(&mut Chance(3));
        hits(&mut r, 0..500);
        r.merge(20);
        assert!(r.list.windows(2).any(|w| w[0].hits == 20 && w[1].hits == 0));
        assert!(r.list.iter().all(|x| x.pages() <= 100) && r.list.len() < 30);
    }
}
