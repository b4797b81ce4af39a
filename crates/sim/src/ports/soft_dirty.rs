//! Writes page by page from soft-dirty bits, as the live tracker sees them (`crates/track`): all pages are
//! write-protected, the first write to each costs the program a fault, and after 25 ms at least it is asked which.

use super::runs::{join, Looks};
use super::{costs, Shared};
use crate::memory::{ABSENT, WATCHED};
use terrace_engine::{Ask, Mapping, Observation, TrackError, Tracker, TrackerInfo};
use terrace_policy::quota::Bucket;
use terrace_types::{BitSource, Bytes, Nanos, Request, Sees, Tick, VpnRange};

/// Shortest window, as live.
const SHORTEST: Nanos = Nanos::millis(25);
/// What a write fault is taken to cost the program, as live: the cautious end of what was measured.
const FAULT: Nanos = Nanos::micros(2);
/// The faults' budget: saved up over this long.
const SAVED_OVER: Nanos = Nanos::secs(60);

/// The tracker.
#[derive(Debug)]
pub struct SoftDirtyScan {
    world: Shared,
    budget: Bucket,
    last_cost: Nanos,
    open: Option<Open>,
}

/// A window under way.
#[derive(Debug)]
struct Open {
    since: Tick,
    ranges: Vec<VpnRange>,
    cpu: Nanos,
}

impl SoftDirtyScan {
    /// Over this world; tracker and faults together cost no more than `share` of a core.
    #[must_use]
    pub fn new(world: Shared, share: f64) -> Self {
        Self { world, budget: Bucket::new(share, SAVED_OVER), last_cost: Nanos::ZERO, open: None }
    }
}

fn pages(ranges: &[VpnRange]) -> u64 {
    ranges.iter().map(|r| r.len()).sum()
}

impl Tracker for SoftDirtyScan {
    fn info(&self) -> TrackerInfo {
        TrackerInfo {
            name: "soft-dirty",
            sees: Sees { writes: true, bits: BitSource::Approximate, ..Sees::default() },
            blind_to: "reads; and how often a page is written within one window",
        }
    }

    fn begin(&mut self, mappings: &[Mapping], ask: &Ask) -> Result<(), TrackError> {
        let mut world = self.world.borrow_mut();
        self.budget.advance(world.now());
        if self.open.is_some() || !ask.writes || self.budget.level() < self.last_cost.as_secs_f64() {
            return Ok(());
        }
        let ranges: Vec<VpnRange> = mappings.iter().map(|m| m.range).collect();
        let cpu = costs::clearing_soft_dirty(pages(&ranges));
        world.charge(cpu);
        for index in 0..world.memory.pages.len() {
            if world.memory.pages[index].frame != ABSENT {
                let head = world.memory.head(index);
                world.memory.pages[head].bits |= WATCHED;
            }
        }
        world.flush_translations();
        world.interrupt(costs::SHOOT_DOWN);
        self.open = Some(Open { since: world.now(), ranges, cpu });
        Ok(())
    }

    fn finish(&mut self, now: Tick) -> Result<Observation, TrackError> {
        let mut seen = Observation::default();
        let Some(open) = self.open.take_if(|o| now.since(o.since) >= SHORTEST) else {
            return Ok(seen);
        };
        let mut world = self.world.borrow_mut();
        let window = world.now().since(open.since);
        let cpu = costs::scanning(pages(&open.ranges));
        world.charge(cpu);
        let how = Looks { windows: 1, window, writes_only: true };
        let (mut hint, mut written) = (0, 0);
        for range in &open.ranges {
            // A page that was never protected, because it came later, counts as written: so it does live.
            let hits = (range.start.0..range.end.0).map(|vpn| {
                let clean = world.memory.index(vpn, &mut hint).is_none_or(|index| {
                    world.memory.pages[index].frame == ABSENT
                        || world.memory.pages[world.memory.head(index)].bits & WATCHED != 0
                });
                written += u64::from(!clean);
                Some(u16::from(!clean))
            });
            join(how, range.start, hits, &mut seen.sightings);
        }
        seen.cpu = open.cpu + cpu;
        seen.memory = Bytes(std::mem::size_of_val(seen.sightings.as_slice()) as u64);
        self.last_cost = seen.cpu + Nanos(FAULT.0 * written);
        self.budget.spend(self.last_cost.as_secs_f64());
        Ok(seen)
    }

    fn request(&mut self, _request: &Request) -> Result<(), TrackError> {
        Ok(())
    }
}
