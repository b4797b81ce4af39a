//! Writes page by page from soft-dirty bits, as the live tracker sees them (`crates/track`, ADR
//! 0043): all pages are write-protected, the first write to each costs the program a fault, and it
//! is asked which were written 2 and 6 ms later and when the interval is over, after 25 ms at
//! least.

use super::{Shared, PID};
use crate::costs::nanos;
use crate::costs::EngineInput;
use crate::memory::{ABSENT, SOFT_CLEAN};
use crate::world::World;
use std::convert::Infallible;
use terrace_engine::{
    Mapping, Observation, SampleRequest, TrackError, Tracker, TrackerInfo, WRITE_FAULT,
};
use terrace_policy::quota::TokenBucket;
use terrace_tracker::write_samples::{WriteSamples, EARLY, SHORTEST};
use terrace_types::{BitSource, Bytes, Nanos, Request, Tick, TrackerVisibility, Vpn, VpnRange};

/// The faults' budget: saved up over this long.
const SAVED_OVER: Nanos = Nanos::secs(60);

/// The tracker.
#[derive(Debug)]
pub struct SoftDirtyScan {
    world: Shared,
    budget: TokenBucket,
    last_cost: Nanos,
    open: Option<SimInterval>,
}

/// An interval under way.
#[derive(Debug)]
struct SimInterval {
    since: Tick,
    ranges: Vec<VpnRange>,
    interval: WriteSamples,
    cpu: Nanos,
}

impl SimInterval {
    /// Samples which pages are dirty by now.
    fn sample(&mut self, world: &mut World) {
        let before = world.now();
        let pages = self.ranges.iter().flat_map(|range| range.start.0..range.end.0);
        let scan = world.costs.scan_written();
        self.cpu += world.visit(pages, scan);
        let (mut hint, since) = (0, self.since);
        // A page's bit was read somewhere on the way: the middle is least wrong.
        let middle = Nanos((before.since(since).0 + world.now().since(since).0) / 2);
        self.interval.force_sample(
            |range, report_pages| written(world, range, &mut hint, report_pages),
            || middle,
        );
    }
}

/// Tells the pages of `range` that are there.
fn there(world: &World, range: VpnRange, hint: &mut usize, report_pages: &mut dyn FnMut(VpnRange)) {
    for vpn in range.start.0..range.end.0 {
        let page = world.memory.index(vpn, hint).map(|index| world.memory.pages[index].frame);
        if page.is_some_and(|frame| frame != ABSENT) {
            report_pages(VpnRange::new(Vpn(vpn), Vpn(vpn + 1)));
        }
    }
}

/// Tells the pages of `range` that are dirty. One that was never protected, because it came later,
/// counts as written: so it does live.
fn written(
    world: &World,
    range: VpnRange,
    hint: &mut usize,
    report_pages: &mut dyn FnMut(VpnRange),
) {
    for vpn in range.start.0..range.end.0 {
        let clean = world.memory.index(vpn, hint).is_none_or(|index| {
            world.memory.pages[index].frame == ABSENT
                || world.memory.pages[world.memory.head(index)].bits & SOFT_CLEAN != 0
        });
        if !clean {
            report_pages(VpnRange::new(Vpn(vpn), Vpn(vpn + 1)));
        }
    }
}

impl SoftDirtyScan {
    /// Over this world; tracker and faults together cost no more than `share` of a core.
    #[must_use]
    pub fn new(world: Shared, share: f64) -> Self {
        Self {
            world,
            budget: TokenBucket::new(share, SAVED_OVER),
            last_cost: Nanos::ZERO,
            open: None,
        }
    }
}

impl Tracker for SoftDirtyScan {
    fn info(&self) -> TrackerInfo {
        TrackerInfo {
            name: "soft-dirty",
            sees: TrackerVisibility {
                writes: true,
                bits: BitSource::Approximate,
                ..TrackerVisibility::default()
            },
            blind_to: "reads; and writes to a page beyond some hundred a second",
        }
    }

    fn begin(&mut self, mappings: &[Mapping], ask: &SampleRequest) -> Result<(), TrackError> {
        let mut world = self.world.borrow_mut();
        self.budget.advance(world.now());
        if self.open.is_some() || !ask.writes || self.budget.level() < self.last_cost.as_secs_f64()
        {
            return Ok(());
        }
        let ranges: Vec<VpnRange> = mappings.iter().map(|m| m.range).collect();
        let all = || ranges.iter().flat_map(|range| range.start.0..range.end.0);
        let costs = world.costs;
        let cpu = world.visit(all(), costs.scan_written())
            + world.visit_alone(&ranges, costs.clear_soft_dirty());
        for index in 0..world.memory.pages.len() {
            if world.memory.pages[index].frame != ABSENT {
                let head = world.memory.head(index);
                world.memory.pages[head].bits |= SOFT_CLEAN;
            }
        }
        world.flush_translations();
        world.interrupt(nanos(costs.kernel.tlb_shootdown));
        let (mut interval, mut hint) = (WriteSamples::new(ranges.clone()), 0);
        let Ok(()) = interval.leave_out_absent::<Infallible>(|range, report_pages| {
            there(&world, range, &mut hint, report_pages);
            Ok(())
        });
        let mut open = SimInterval { since: world.now(), ranges, interval, cpu };
        for at in EARLY {
            let gone = world.now().since(open.since);
            world.sleep(at.saturating_sub(gone));
            open.sample(&mut world);
        }
        self.open = Some(open);
        Ok(())
    }

    fn finish(&mut self, now: Tick) -> Result<Observation, TrackError> {
        let mut seen = Observation::default();
        let Some(mut open) = self.open.take_if(|o| now.since(o.since) >= SHORTEST) else {
            seen.writes_to_come = self.open.is_some();
            return Ok(seen);
        };
        let mut world = self.world.borrow_mut();
        open.sample(&mut world);
        if !open.interval.ripe(world.running()) {
            drop(world);
            self.open = Some(open);
            seen.writes_to_come = true;
            return Ok(seen);
        }
        let written = open.interval.pages();
        open.interval.over(PID, world.running(), &mut seen.writes);
        world.show(EngineInput { writes: true, ..EngineInput::default() });
        seen.cpu = open.cpu;
        seen.memory = Bytes(seen.writes.iter().map(|w| w.found.len() as u64).sum());
        self.last_cost = seen.cpu + Nanos(WRITE_FAULT.0 * written);
        self.budget.spend(self.last_cost.as_secs_f64());
        Ok(seen)
    }

    fn request(&mut self, _request: &Request) -> Result<(), TrackError> {
        Ok(())
    }
}
