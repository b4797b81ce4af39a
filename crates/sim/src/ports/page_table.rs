//! Accesses page by page from accessed bits, as the live tracker of page tables sees them (`crates/track`, ADR 0040):
//! bursts of short looks whose length follows the share of pages found accessed, or one look over the engine's window.
//! Blind to accesses through translations that were there before the look, since clearing the bits drops none.

use super::{costs, Shared, Work, PID};
use crate::memory::{ABSENT, ACCESSED};
use crate::world::World;
use terrace_engine::aim::{Aim, Found, Group, Tally};
use terrace_engine::{Ask, Mapping, Observation, PageLooks, Skim, TrackError, Tracker, TrackerInfo};
use terrace_types::{BitSource, Bytes, Nanos, Request, Sees, Tick, VpnRange};

/// The tracker.
#[derive(Debug)]
pub struct PageTableScan {
    world: Shared,
    aim: Aim,
    ask: Option<Ask>,
    ranges: Vec<VpnRange>,
    tallies: Vec<Vec<Tally>>,
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
            aim: Aim::default(),
            ask: None,
            ranges: Vec::new(),
            tallies: Vec::new(),
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

    fn charge(&mut self, world: &mut World, span: Nanos) {
        self.cpu += span;
        world.charge(span);
    }

    /// Tables are there once the program has touched something.
    fn find(&mut self, world: &mut World, mappings: &[Mapping]) {
        self.ranges = mappings.iter().map(|m| m.range).collect();
        if !self.found && world.memory.pools.iter().any(|p| p.free() < p.frames()) {
            self.charge(world, costs::FINDING_TABLES);
            self.found = true;
        }
    }

    /// Pages present, and of those the accessed.
    fn count(&mut self, world: &mut World) -> (u64, u64) {
        self.charge(world, costs::reading(self.pages()));
        let (mut present, mut accessed, mut hint) = (0, 0, 0);
        for vpn in self.ranges.iter().flat_map(|r| r.start.0..r.end.0) {
            let Some(index) = world.memory.index(vpn, &mut hint) else { continue };
            if world.memory.pages[index].frame != ABSENT {
                present += 1;
                accessed += u64::from(world.memory.pages[world.memory.head(index)].bits & ACCESSED != 0);
            }
        }
        (present, accessed)
    }

    fn clear(&mut self, world: &mut World) {
        self.charge(world, costs::clearing(self.pages()));
        world.memory.pages.iter_mut().for_each(|p| p.bits &= !ACCESSED);
        self.cleared = world.now();
    }

    /// Reads the bits into the tallies; pages found present and accessed.
    fn read(&mut self, world: &mut World) -> (u64, u64) {
        self.waited += world.now().since(self.cleared);
        self.charge(world, costs::reading(self.pages()));
        let (mut present, mut accessed, mut hint) = (0, 0, 0);
        for (range, tallies) in self.ranges.iter().zip(&mut self.tallies) {
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

    /// Looks of one length, reported.
    fn group(&mut self, world: &mut World, group: Group, seen: &mut Observation, slept: &mut Nanos) -> Found {
        let mut found = Found::default();
        self.begin_group();
        for _ in 0..group.looks {
            self.clear(world);
            let before = world.now();
            world.pass(group.length);
            *slept += world.now().since(before);
            let (present, accessed) = self.read(world);
            found.present += present;
            found.accessed += accessed;
        }
        found.tally(group.looks, self.tallies.iter().flatten());
        self.report(group.looks, seen);
        found
    }

    fn begin_group(&mut self) {
        self.waited = Nanos::ZERO;
        self.tallies = self.ranges.iter().map(|r| vec![Tally::default(); r.len() as usize]).collect();
    }

    fn report(&mut self, looks: u8, seen: &mut Observation) {
        let window = Nanos((self.waited.0 / u64::from(looks.max(1))).max(1));
        for (range, tallies) in self.ranges.iter().zip(self.tallies.drain(..)) {
            let hits: Vec<u8> = tallies.into_iter().map(|t| t.reported(looks)).collect();
            seen.memory += Bytes(hits.len() as u64);
            seen.looks.push(PageLooks {
                pid: PID,
                start: range.start,
                windows: looks,
                window,
                each: 1,
                at_random: false,
                hits,
            });
        }
    }
}

impl Tracker for PageTableScan {
    fn info(&self) -> TrackerInfo {
        TrackerInfo {
            name: "page-table",
            sees: Sees { reads: true, pages: true, bits: BitSource::Approximate, ..Sees::default() },
            blind_to: "reads told from writes; accesses served by a translation cached before the look",
        }
    }

    fn begin(&mut self, mappings: &[Mapping], ask: &Ask) -> Result<(), TrackError> {
        let shared = self.world.clone();
        let mut world = shared.borrow_mut();
        self.ask = Some(ask.clone());
        self.find(&mut world, mappings);
        self.begin_group();
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
            let (present, accessed) = self.read(&mut world);
            self.report(1, &mut seen);
            let found = Found { present, accessed, ..Found::default() };
            self.aim.learn(Group { length: ask.window, looks: 1, sharp: false }, found, &ask);
        } else {
            let (start, mut slept, mut looks) = (world.now(), Nanos::ZERO, 0);
            for group in self.aim.groups(&ask) {
                let found = self.group(&mut world, group, &mut seen, &mut slept);
                self.aim.learn(group, found, &ask);
                looks += group.looks;
            }
            self.aim.took(world.now().since(start).saturating_sub(slept), looks);
        }
        world.show(if ask.glance { Work::Foresee } else { Work::Decide });
        seen.cpu = std::mem::take(&mut self.cpu);
        Ok(seen)
    }

    fn skim(&mut self, mappings: &[Mapping]) -> Result<Option<Skim>, TrackError> {
        let shared = self.world.clone();
        let mut world = shared.borrow_mut();
        self.find(&mut world, mappings);
        self.begin_group();
        let mut skim = Skim::default();
        for touched in &mut skim.touched {
            self.clear(&mut world);
            world.pass(Skim::LOOK);
            (skim.present, *touched) = self.read(&mut world);
        }
        skim.both = self.tallies.drain(..).flatten().filter(|t| t.hits() == 2).count() as u64;
        for at in Skim::LATER {
            if skim.verdict().is_some() {
                break;
            }
            let gone = world.now().since(self.cleared);
            world.pass(at.saturating_sub(gone));
            let read = world.now().since(self.cleared);
            let (_, touched) = self.count(&mut world);
            skim.later.push((read, touched));
        }
        skim.cpu = std::mem::take(&mut self.cpu);
        Ok(Some(skim))
    }

    fn request(&mut self, _request: &Request) -> Result<(), TrackError> {
        Ok(())
    }
}
