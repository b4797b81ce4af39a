//! A second chance for what seems unused: units on trial.
//!
//! Reads of mapped pages leave no trace, so a victim from the main ring is a guess. Before it goes
//! it is unmapped and kept in its slot for a while, first in, first out: whoever touches it has all
//! of it back without I/O, and then it is known to be in use (the segmented FIFO of Turner and
//! Levy, "Segmented FIFO page replacement", SIGMETRICS 1981, as VMS's free and modified lists
//! were). Each time that happens the hand passes over it once more the next time. Who needs room
//! takes the oldest on trial. What streams by goes from the probation ring without a trial.
//!
//! Where all of main is in use each trial costs a fault and finds nothing, so an eviction pays for
//! one and no more.

use super::busy::ExtractMethod;
use super::{BusyPhase, ChunkTable, ClockVerdict, PageFault, Pager, PagerAction};
use crate::far::geometry::{PageMask, UnitNo};
use std::collections::{HashMap, VecDeque};
use terrace_types::Tick;

/// Trials begun at a time: whoever waits for a page waits for them too.
const AT_ONCE: usize = 2;
/// Trials for each eviction. Four saved no more misses than one, and cost a quarter of the time
/// where all of main is in use.
const EACH: usize = 1;

/// A unit on trial.
#[derive(Debug, Clone, Copy)]
struct StandbyChunk {
    /// What its slot holds.
    mask: PageMask,
    /// Of it, what the store does not have.
    dirty: PageMask,
    number: u64,
}

/// Units on trial. Nothing of them is mapped.
#[derive(Debug, Default)]
pub(super) struct StandbyList {
    units: HashMap<UnitNo, StandbyChunk>,
    /// Oldest first; those that ended otherwise are still listed.
    order: VecDeque<(UnitNo, u64)>,
    number: u64,
    /// Being taken out for a trial.
    coming: usize,
    /// Trials that may begin.
    paid: usize,
    /// Units that may be on trial.
    pub most: usize,
}

impl StandbyList {
    /// Whether a unit is on trial.
    pub fn has(&self, unit: UnitNo) -> bool {
        self.units.contains_key(&unit)
    }

    fn begin(&mut self, unit: UnitNo, mask: PageMask, dirty: PageMask) {
        self.number += 1;
        self.units.insert(unit, StandbyChunk { mask, dirty, number: self.number });
        self.order.push_back((unit, self.number));
    }

    fn end(&mut self, unit: UnitNo) -> Option<StandbyChunk> {
        let trial = self.units.remove(&unit)?;
        let units = &self.units;
        let ended =
            |(unit, number): &(UnitNo, u64)| units.get(unit).is_none_or(|t| t.number != *number);
        while self.order.front().is_some_and(ended) {
            self.order.pop_front();
        }
        // The oldest may stay for long while others come and go behind it.
        if self.order.len() > 2 * units.len() + 64 {
            self.order.retain(|entry| !ended(entry));
        }
        Some(trial)
    }

    /// Memory for the lists.
    pub fn bytes(&self) -> usize {
        self.units.capacity() * 40 + self.order.capacity() * 16
    }

    /// A unit was evicted, on trial or without.
    pub fn evicted(&mut self) {
        self.paid = (self.paid + EACH).min(self.most);
    }
}

impl Pager {
    /// Puts victims on trial as long as there are too few, and memory is short.
    pub(super) fn stand_by(&mut self, now: Tick) {
        if self.used < self.budget / 8 * 7 {
            return;
        }
        for _ in 0..AT_ONCE.min(self.trials.paid) {
            let enough = self.trials.units.len() + self.trials.coming >= self.trials.most;
            if enough
                || self.busy.len() >= self.settings.slots / 2
                || self.clock.prefers_probation()
            {
                return;
            }
            let Some(unit) = self.choose(now, true) else {
                return;
            };
            let u = self.units[unit as usize];
            self.trials.coming += 1;
            self.trials.paid -= 1;
            self.begin_extract(unit, u.resident, u.dirty, ExtractMethod::OnTrial);
            self.units[unit as usize].went = u.resident;
            self.unmapped(unit, u.resident);
        }
    }

    /// A unit's grains `mask` are in its slot, for a trial; `dirty` of them the store does not
    /// have.
    pub(super) fn begin_trial(&mut self, unit: UnitNo, mask: PageMask, dirty: PageMask) {
        self.trials.coming -= 1;
        self.busy.remove(&unit);
        self.used += u64::from(mask.count_ones());
        self.trials.begin(unit, mask, dirty);
        if mask == 0 || self.units[unit as usize].resident != 0 {
            // Some of it could not be taken: it is in use.
            self.take_back(unit, 0);
        }
    }

    /// The oldest on trial goes; false when there is none, or it is dirty and cannot be written
    /// now.
    pub(super) fn let_oldest_go(&mut self, now: Tick) -> bool {
        self.trials.order.front().copied().is_some_and(|(unit, _)| self.let_go(unit, now))
    }

    fn let_go(&mut self, unit: UnitNo, now: Tick) -> bool {
        let dirty = self.trials.units.get(&unit).is_some_and(|t| t.dirty != 0);
        if dirty && !self.may_write(now) {
            return false;
        }
        let Some(trial) = self.trials.end(unit) else {
            return false;
        };
        self.used -= u64::from(trial.mask.count_ones());
        self.goes(unit, trial.mask, trial.dirty);
        self.clock.remove(&mut self.units[unit as usize].standing);
        self.counts.evictions += 1;
        self.trials.evicted();
        if dirty {
            self.begin_write(unit, trial.dirty);
        } else {
            self.actions.push_back(PagerAction::Release { unit });
        }
        true
    }

    /// Maps a unit on trial again, `write` of it for writing; what its slot held.
    fn take_back(&mut self, unit: UnitNo, write: PageMask) -> PageMask {
        let Some(StandbyChunk { mask, dirty, .. }) = self.trials.end(unit) else {
            return 0;
        };
        self.used -= u64::from(mask.count_ones());
        self.counts.rescues += 1;
        self.clock.back(unit, &mut self.units[unit as usize].standing);
        for (mask, dirty) in [(mask & (write | dirty), true), (mask & !(write | dirty), false)] {
            if mask != 0 {
                self.settle(unit, mask, dirty);
                self.actions.push_back(PagerAction::Install { unit, mask, protect: !dirty });
            }
        }
        self.actions.push_back(PagerAction::Release { unit });
        mask
    }

    /// Serves a touch of a unit on trial: it is used, and all of it comes back. False: but not what
    /// was touched.
    pub(super) fn serve_trial(
        &mut self,
        unit: UnitNo,
        bit: PageMask,
        touch: PageFault,
        now: Tick,
    ) -> bool {
        let held = self.take_back(unit, if touch.write { bit } else { 0 }) & bit != 0;
        if held {
            self.advance(touch, now);
        }
        held
    }

    /// Ends a trial, if the unit is on one: it is mapped again.
    pub(super) fn end_trial(&mut self, unit: UnitNo) {
        if self.trials.has(unit) {
            self.take_back(unit, 0);
        }
    }

    /// The next victim: of all, or of the main ring for a trial.
    pub(super) fn choose(&mut self, now: Tick, main: bool) -> Option<UnitNo> {
        let may_write = main || self.may_write(now);
        // While the store is busy with victims the next waits its turn; while it fails, clean ones
        // go first.
        let dirty = if may_write {
            ClockVerdict::Free
        } else if self.failing.spared(now) {
            ClockVerdict::Stay
        } else {
            ClockVerdict::Wait
        };
        let (busy, guarded) = (&self.busy, self.guarded);
        let look = |units: &ChunkTable, unit: UnitNo| {
            let u = &units[unit as usize];
            let at_work = busy.get(&unit).is_some_and(|b| main || b.phase != BusyPhase::Parked);
            if u.resident == 0 {
                ClockVerdict::Empty
            } else if u.pinned || guarded == Some(unit) || at_work {
                ClockVerdict::Stay
            } else if u.dirty != 0 {
                dirty
            } else {
                ClockVerdict::Free
            }
        };
        self.clock.victim(&mut self.units, main, look, |units, u| &mut units[u as usize].standing)
    }
}
