//! Accesses page by page from accessed bits, as the live tracker of page tables sees them (`crates/track`, ADR 0040):
//! bursts of short looks whose length follows the share of pages found accessed, or one look over the engine's window.
//! Blind to accesses through translations that were there before the look, since clearing the bits drops none.

use super::runs::{join, Looks};
use super::{costs, Shared};
use crate::memory::{ABSENT, ACCESSED};
use crate::world::World;
use terrace_engine::{Ask, Mapping, Observation, TrackError, Tracker, TrackerInfo};
use terrace_types::{BitSource, Bytes, Nanos, Request, Sees, Tick, VpnRange};

/// Looks in one burst, and in one while relaxed.
const LOOKS: (u16, u16) = (8, 3);
/// Shortest and first window of a burst.
const SHORTEST: Nanos = Nanos::micros(400);
const FIRST: Nanos = Nanos::millis(2);
/// Share of pages seen in a window, in thousandths, between which its length is left alone.
const AIM: (u64, u64) = (80, 350);

/// One page in the looks of a burst.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    present: u8,
    hits: u8,
}

/// The tracker.
#[derive(Debug)]
pub struct PageTableScan {
    world: Shared,
    window: Nanos,
    overhead: Nanos,
    ask: Option<Ask>,
    ranges: Vec<VpnRange>,
    counts: Vec<Vec<Count>>,
    /// The page tables are known.
    found: bool,
    whole: bool,
    cleared: Tick,
    waited: Nanos,
    cpu: Nanos,
}

impl PageTableScan {
    /// Over this world.
    #[must_use]
    pub fn new(world: Shared) -> Self {
        Self {
            world,
            window: FIRST,
            overhead: Nanos::ZERO,
            ask: None,
            ranges: Vec::new(),
            counts: Vec::new(),
            found: false,
            whole: false,
            cleared: Tick::ZERO,
            waited: Nanos::ZERO,
            cpu: Nanos::ZERO,
        }
    }

    fn pages(&self) -> u64 {
        self.ranges.iter().map(|r| r.len()).sum()
    }

    /// Looks that fit half of the engine's window.
    fn looks(&self) -> u16 {
        let Some(ask) = &self.ask else { return 0 };
        let most = if ask.relaxed { LOOKS.1 } else { LOOKS.0 };
        let one = (self.window + self.overhead).0.max(1);
        most.min(u16::try_from(ask.window.0 / 2 / one).unwrap_or(most))
    }

    fn charge(&mut self, world: &mut World, span: Nanos) {
        self.cpu += span;
        world.charge(span);
    }

    fn clear(&mut self, world: &mut World) {
        self.charge(world, costs::clearing(self.pages()));
        world.memory.pages.iter_mut().for_each(|p| p.bits &= !ACCESSED);
        self.cleared = world.now();
    }

    /// Reads the bits into the counts; pages found present and accessed.
    fn read(&mut self, world: &mut World) -> (u64, u64) {
        self.waited += world.now().since(self.cleared);
        self.charge(world, costs::reading(self.pages()));
        let (mut present, mut accessed, mut hint) = (0, 0, 0);
        for (range, counts) in self.ranges.iter().zip(&mut self.counts) {
            for (vpn, count) in (range.start.0..).zip(counts) {
                let Some(index) = world.memory.index(vpn, &mut hint) else { continue };
                if world.memory.pages[index].frame == ABSENT {
                    continue;
                }
                let hit = world.memory.pages[world.memory.head(index)].bits & ACCESSED != 0;
                count.present += 1;
                count.hits += u8::from(hit);
                present += 1;
                accessed += u64::from(hit);
            }
        }
        (present, accessed)
    }

    /// Lengthens or shortens the window by the share of pages seen.
    fn aim(&mut self, present: u64, accessed: u64) {
        let share = accessed * 1000 / present.max(1);
        let longest = self.ask.as_ref().map_or(FIRST, |a| a.window);
        if present > 0 && share > AIM.1 {
            self.window = Nanos(self.window.0 / 2).max(SHORTEST);
        } else if present > 0 && share < AIM.0 {
            self.window = Nanos(self.window.0 * 2).min(longest);
        }
    }
}

impl Tracker for PageTableScan {
    fn info(&self) -> TrackerInfo {
        TrackerInfo {
            name: "page-table",
            sees: Sees { reads: true, writes: false, cells: false, bits: BitSource::Approximate },
            blind_to: "reads told from writes; accesses served by a translation cached before the look",
        }
    }

    fn begin(&mut self, mappings: &[Mapping], ask: &Ask) -> Result<(), TrackError> {
        let shared = self.world.clone();
        let mut world = shared.borrow_mut();
        self.ask = Some(ask.clone());
        self.ranges = mappings.iter().map(|m| m.range).collect();
        self.counts = self.ranges.iter().map(|r| vec![Count::default(); r.len() as usize]).collect();
        self.waited = Nanos::ZERO;
        // Tables are there once the program has touched something.
        if !self.found && world.memory.pools.iter().any(|p| p.free() < p.frames()) {
            let pages = world.memory.pools.iter().map(|p| p.frames()).sum();
            self.charge(&mut world, costs::finding_tables(pages));
            self.found = true;
        }
        self.whole = self.looks() < 2;
        if self.whole {
            self.clear(&mut world);
        }
        Ok(())
    }

    fn finish(&mut self, _now: Tick) -> Result<Observation, TrackError> {
        let shared = self.world.clone();
        let mut world = shared.borrow_mut();
        let looks = if self.whole { 1 } else { self.looks() };
        let (mut present, mut accessed) = (0, 0);
        if self.whole {
            (present, accessed) = self.read(&mut world);
        } else {
            let (start, mut slept) = (world.now(), Nanos::ZERO);
            for _ in 0..looks {
                self.clear(&mut world);
                let before = world.now();
                world.pass(self.window);
                slept += world.now().since(before);
                let (p, a) = self.read(&mut world);
                present += p;
                accessed += a;
            }
            self.overhead = Nanos((world.now().since(start) - slept).0 / u64::from(looks.max(1)));
        }
        self.aim(present, accessed);
        let window = Nanos((self.waited.0 / u64::from(looks.max(1))).max(1));
        let mut seen = Observation { cpu: std::mem::take(&mut self.cpu), ..Observation::default() };
        let how = Looks { windows: looks.max(1), window, writes_only: false };
        for (range, counts) in self.ranges.iter().zip(&self.counts) {
            // A page that came midway was not looked at throughout.
            let hits = counts.iter().map(|c| (u16::from(c.present) == how.windows).then_some(u16::from(c.hits)));
            join(how, range.start, hits, &mut seen.sightings);
        }
        seen.memory = Bytes(self.pages() * 2 + std::mem::size_of_val(seen.sightings.as_slice()) as u64);
        Ok(seen)
    }

    fn request(&mut self, _request: &Request) -> Result<(), TrackError> {
        Ok(())
    }
}
