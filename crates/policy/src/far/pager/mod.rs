//! The pager: what is in memory, what goes, what comes. Pure: events and ticks in, [`PagerAction`]s
//! out, in order; no I/O, no clock, no memory of its own to look at. The same code runs over
//! `userfaultfd` and in the simulation that its tests are.
//!
//! ```text
//!              fault              read              arrived
//!   far  ───────────────►  slot ◄──────── store   ───────────►  mapped, protected (clean)
//!    ▲                      ▲  │ write                             │ first write      │ victim
//!    │ written, or zeros    │  ▼                                   ▼                  ▼
//!    └───────────────────  slot ◄───────── extract ◄──── mapped, dirty              dropped: no I/O
//! ```
//!
//! A unit has at most one slot at a time ([`BusyChunk`]). What cannot be done now (no slot, no
//! room, unit busy) is deferred and tried again after each completion.

mod busy;
mod chunks;
mod clock;
mod commands;
mod fault_around;
mod fetch;
mod prefetch;
mod rewrites;
mod settings;
mod standby;

pub use busy::{ReadOutcome, WriteOutcome};
pub use commands::{Advice, DiscardedContents};
pub use settings::PagerSettings;

use crate::far::geometry::{ones, Geometry, GrainNo, PageMask, UnitNo};
use crate::far::stats::FarCounts;
use busy::{BusyChunk, BusyPhase, ExtractMethod};
use chunks::ChunkTable;
use clock::{ClockEntry, ClockRings, ClockVerdict};
use fault_around::FaultAround;
use fetch::StalledPrefetch;
use prefetch::FarPrefetcher;
use rewrites::RewritePredictor;
use std::collections::{BTreeSet, HashMap, VecDeque};
use terrace_types::{Bytes, Nanos, Tick, Tid};

/// What the pager wants done, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PagerAction {
    /// Take a slot for the unit and read these grains into it; answer with [`Pager::read_done`].
    Read {
        /// Which.
        unit: UnitNo,
        /// Grains.
        mask: PageMask,
    },
    /// Map grains from the unit's slot and wake who waits.
    Install {
        /// Which.
        unit: UnitNo,
        /// Grains.
        mask: PageMask,
        /// Against writing, so that the first write is told.
        protect: bool,
    },
    /// Map zeros and wake who waits.
    Zeros {
        /// Which.
        unit: UnitNo,
        /// Grains.
        mask: PageMask,
        /// As in [`PagerAction::Install`].
        protect: bool,
    },
    /// Give the unit's slot back.
    Release {
        /// Which.
        unit: UnitNo,
    },
    /// Allow writing, and wake the writers.
    Unprotect {
        /// Which.
        unit: UnitNo,
        /// Grains.
        mask: PageMask,
    },
    /// Unmap grains whose bytes the store has, or that are zeros.
    Drop {
        /// Which.
        unit: UnitNo,
        /// Grains.
        mask: PageMask,
    },
    /// Take a slot and move these grains out of the map into it; answer with [`Pager::extracted`].
    Extract {
        /// Which.
        unit: UnitNo,
        /// Grains.
        mask: PageMask,
        /// Of them, those that go to the store unless they are zeros.
        dirty: PageMask,
    },
    /// Take a slot, protect these grains and copy them into it; they stay mapped. Answer as for
    /// `ExtractMethod`.
    CopyOut {
        /// Which.
        unit: UnitNo,
        /// Grains.
        mask: PageMask,
    },
    /// Write grains from the unit's slot to the store; answer with [`Pager::write_done`].
    Write {
        /// Which.
        unit: UnitNo,
        /// Grains.
        mask: PageMask,
    },
    /// Wake who waits for these grains, which are there. If they are not, say so with
    /// [`Pager::vanished`].
    Wake {
        /// Which.
        unit: UnitNo,
        /// Grains.
        mask: PageMask,
        /// Who asked.
        tid: Tid,
    },
    /// These grains are lost: who touches them gets SIGBUS.
    Poison {
        /// Which.
        unit: UnitNo,
        /// Grains.
        mask: PageMask,
        /// Who asked.
        tid: Tid,
        /// The first time that it is said.
        first: bool,
    },
    /// The store need not keep these grains.
    Forget {
        /// Which.
        unit: UnitNo,
        /// Grains.
        mask: PageMask,
    },
    /// Lost grains may be filled anew.
    Cure {
        /// Which.
        unit: UnitNo,
        /// Grains.
        mask: PageMask,
    },
    /// The pager is not asked for these grains any more: faults there are the kernel's matter from
    /// now on. What is mapped stays mapped.
    Detach {
        /// Which.
        unit: UnitNo,
        /// Grains.
        mask: PageMask,
    },
    /// The command of this number is done; false: some of it failed.
    Answer {
        /// Number of the command.
        command: u64,
        /// All of it was done.
        ok: bool,
    },
}

impl PagerAction {
    /// The unit that it concerns, if it is one.
    const fn unit(&self) -> Option<UnitNo> {
        match self {
            Self::Read { unit, .. }
            | Self::Install { unit, .. }
            | Self::Zeros { unit, .. }
            | Self::Release { unit }
            | Self::Unprotect { unit, .. }
            | Self::Drop { unit, .. }
            | Self::Extract { unit, .. }
            | Self::CopyOut { unit, .. }
            | Self::Write { unit, .. }
            | Self::Wake { unit, .. }
            | Self::Poison { unit, .. }
            | Self::Forget { unit, .. }
            | Self::Cure { unit, .. }
            | Self::Detach { unit, .. } => Some(*unit),
            Self::Answer { .. } => None,
        }
    }
}

/// Somebody touched a grain that was not mapped, or not for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageFault {
    /// Who; 0 when not known.
    pub tid: Tid,
    /// What.
    pub grain: GrainNo,
    /// To write.
    pub write: bool,
    /// It was mapped, and write-protected.
    pub protected: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct ChunkState {
    /// Grains mapped, or reserved for a read under way.
    resident: PageMask,
    /// Mapped grains that the store must get before they go.
    dirty: PageMask,
    /// Grains that the store has; the others are zeros unless dirty.
    stored: PageMask,
    /// Grains that were mapped when it was last evicted.
    went: PageMask,
    /// Grains that were dirty when they went last.
    wrote: PageMask,
    standing: ClockEntry,
    pinned: bool,
}

/// The share of the slots that writes may have: a third keeps a device busy, and more would make
/// reads wait behind them.
const SHARE: usize = 3;

/// The pager.
#[derive(Debug)]
pub struct Pager {
    geometry: Geometry,
    units: ChunkTable,
    busy: HashMap<UnitNo, BusyChunk>,
    trials: standby::StandbyList,
    clock: ClockRings,
    prefetch: FarPrefetcher,
    neighbours: FaultAround,
    rewrites: RewritePredictor,
    settings: PagerSettings,
    /// Budget, low and high water marks, and use, in grains. Use counts what is mapped or reserved.
    budget: u64,
    low: u64,
    high: u64,
    used: u64,
    pinned: u64,
    deferred: VecDeque<PageFault>,
    /// Walks for which less could be fetched than they want.
    stalled: VecDeque<StalledPrefetch>,
    lost: BTreeSet<GrainNo>,
    /// Grains that are not the pager's: never fetched, mapped, or taken out.
    detached: HashMap<UnitNo, PageMask>,
    /// Nor are these, which nobody has attached yet.
    beyond: std::ops::Range<GrainNo>,
    commands: commands::CommandQueue,
    failing: busy::StoreBackoff,
    actions: VecDeque<PagerAction>,
    /// A unit that must not be evicted while it is being fetched.
    guarded: Option<UnitNo>,
    counts: FarCounts,
}

impl Pager {
    /// Everything far, all zeros but what the store has.
    #[must_use]
    pub fn new(geometry: Geometry, settings: PagerSettings) -> Self {
        let mut pager = Self {
            geometry,
            units: ChunkTable::new(geometry.units()),
            busy: HashMap::new(),
            trials: standby::StandbyList::default(),
            clock: ClockRings::default(),
            prefetch: FarPrefetcher::new(0, 1),
            neighbours: FaultAround::default(),
            rewrites: RewritePredictor::default(),
            settings,
            budget: 0,
            low: 0,
            high: 0,
            used: 0,
            pinned: 0,
            deferred: VecDeque::new(),
            stalled: VecDeque::new(),
            lost: BTreeSet::new(),
            detached: HashMap::new(),
            beyond: 0..0,
            commands: commands::CommandQueue::default(),
            failing: busy::StoreBackoff::default(),
            actions: VecDeque::new(),
            guarded: None,
            counts: FarCounts::default(),
        };
        let window = settings.window.0 / geometry.grain_bytes() as u64;
        let most = if window == 0 { 0 } else { pager.window_for(settings.budget).max(2) };
        pager.prefetch = FarPrefetcher::new(most, geometry.grains_per_unit().into());
        pager.set_marks(settings.budget);
        for (unit, mask) in geometry.cover(0..settings.stored.get().min(geometry.bytes()), false) {
            pager.units[unit as usize].stored = mask;
        }
        pager
    }

    fn window_for(&self, budget: Bytes) -> u64 {
        self.settings.window.0.min(budget.0 / 16) / self.geometry.grain_bytes() as u64
    }

    /// Sizes of the map.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> FarCounts {
        let grain = self.geometry.grain_bytes() as u64;
        FarCounts {
            mapped_bytes: self.used * grain,
            budget_bytes: self.budget * grain,
            lost_bytes: self.lost.len() as u64 * grain,
            ..self.counts
        }
    }

    /// Memory for the records of units, which is what grows with the map.
    #[must_use]
    pub fn metadata(&self) -> Bytes {
        Bytes((self.units.bytes() + self.clock.bytes() + self.trials.bytes()) as u64)
    }

    /// Slots that are at work now; those of units on trial are not.
    #[must_use]
    pub fn at_work(&self) -> usize {
        self.busy.len()
    }

    /// Slots that may be at work.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.settings.slots
    }

    /// The next thing to do.
    pub fn next_action(&mut self) -> Option<PagerAction> {
        self.actions.pop_front()
    }

    /// Whether faults or commands wait for something.
    #[must_use]
    pub fn waiting(&self) -> bool {
        !self.deferred.is_empty() || !self.commands.is_idle()
    }

    fn set_marks(&mut self, budget: Bytes) {
        let per = u64::from(self.geometry.grains_per_unit());
        // What is pinned stays, and what is not must still have room to come and go.
        self.budget = (budget.0 / self.geometry.grain_bytes() as u64).max(per).max(2 * self.pinned);
        let units = self.budget / per;
        self.low = (units / 64).clamp(1, 64).min(units / 2) * per;
        let window = self.window_for(budget) / per;
        self.clock.least = 2 * (window as usize).max(self.settings.slots / 4);
        self.trials.most = self.settings.standby.min(units as usize / 8);
        self.high = (2 * self.low / per).min(units / 2 + 1).max(1) * per;
    }

    /// Changes the budget while running.
    pub fn set_budget(&mut self, budget: Bytes, now: Tick) {
        self.settings.budget = budget;
        self.prefetch.limit(self.window_for(budget));
        self.set_marks(budget);
        self.balance(now);
    }

    /// Somebody waits for a grain.
    pub fn touch(&mut self, touch: PageFault, now: Tick) {
        self.counts.faults += 1;
        if touch.grain >= self.geometry.grains() {
            return;
        }
        if !self.serve(touch, now) {
            self.counts.deferred += 1;
            self.deferred.push_back(touch);
        }
    }

    /// Serves a touch; false when it must wait.
    fn serve(&mut self, touch: PageFault, now: Tick) -> bool {
        let (unit, bit) = self.geometry.split(touch.grain);
        if self.detached(unit) & bit != 0 {
            // Told before it was detached: the access is tried again, and is the kernel's matter.
            self.actions.push_back(PagerAction::Wake { unit, mask: bit, tid: touch.tid });
            return true;
        }
        if self.lost.contains(&touch.grain) {
            self.actions.push_back(PagerAction::Poison {
                unit,
                mask: bit,
                tid: touch.tid,
                first: false,
            });
            return true;
        }
        if self.trials.has(unit) && self.serve_trial(unit, bit, touch, now) {
            return true;
        }
        if let Some(phase) = self.busy.get(&unit).map(|b| b.phase) {
            if let Some(done) = self.serve_busy(unit, bit, touch, phase, now) {
                return done;
            }
        }
        if self.units[unit as usize].resident & bit != 0 {
            self.serve_mapped(unit, bit, touch);
            return true;
        }
        self.fetch(unit, bit, touch, now)
    }

    /// A mapped grain: a first write, or a fault that was served meanwhile.
    fn serve_mapped(&mut self, unit: UnitNo, bit: PageMask, touch: PageFault) {
        let u = &mut self.units[unit as usize];
        if !(touch.write && touch.protected) {
            self.actions.push_back(PagerAction::Wake { unit, mask: bit, tid: touch.tid });
            return;
        }
        // A second write next to one before: the rest of the unit will follow.
        let neighbours = bit << 1 | bit >> 1;
        let walks = self.prefetch.wrote(touch.tid, touch.grain);
        let mask = if walks || u.dirty & neighbours != 0 { u.resident } else { bit };
        u.dirty |= mask;
        if u.wrote & bit != 0 {
            self.rewrites.hit();
        }
        self.clock.touch(&mut u.standing);
        self.counts.first_writes += 1;
        self.actions.push_back(PagerAction::Unprotect { unit, mask });
    }

    /// Grains of a unit that are not the pager's.
    pub(super) fn detached(&self, unit: UnitNo) -> PageMask {
        let first = self.geometry.grain_at(unit, 0);
        let of_beyond = |grain: GrainNo| ones(grain.saturating_sub(first).min(64) as u32);
        let beyond = of_beyond(self.beyond.end) & !of_beyond(self.beyond.start);
        self.detached.get(&unit).copied().unwrap_or(0) | beyond
    }

    /// A grain taken to be mapped is not: somebody else unmapped it. What the store has of it is
    /// fetched when it is touched next; what it does not have is lost, and who asked is told.
    /// Whether it is.
    pub fn vanished(&mut self, unit: UnitNo, bit: PageMask, tid: Tid) -> bool {
        let dirty = self.units[unit as usize].dirty & bit;
        self.unmapped(unit, bit);
        if dirty != 0 {
            self.lost.insert(self.geometry.grain_at(unit, dirty.trailing_zeros()));
            self.actions.push_back(PagerAction::Poison { unit, mask: dirty, tid, first: true });
        }
        dirty != 0
    }

    /// Accounts for grains that are mapped from now on.
    fn settle(&mut self, unit: UnitNo, mask: PageMask, dirty: bool) {
        let short = self.used >= self.budget / 8 * 7;
        let u = &mut self.units[unit as usize];
        self.used += u64::from((mask & !u.resident).count_ones());
        self.clock.arrived(unit, &mut u.standing, short);
        u.resident |= mask;
        if dirty {
            u.dirty |= mask;
        }
    }

    fn unmapped(&mut self, unit: UnitNo, mask: PageMask) {
        let u = &mut self.units[unit as usize];
        self.used -= u64::from((mask & u.resident).count_ones());
        u.resident &= !mask;
        u.dirty &= !mask;
    }

    /// Makes room for `grains` more; false when there is none now.
    fn make_room(&mut self, grains: u64, now: Tick) -> bool {
        while self.used + grains > self.budget {
            if !self.evict_one(now) {
                // A store that keeps failing must not stop the program: then memory is used beyond
                // the budget.
                return self.failing.gives_up();
            }
        }
        true
    }

    /// Keeps free memory between the marks, and lets what waits go on.
    pub fn balance(&mut self, now: Tick) {
        if self.used + self.low > self.budget {
            while self.used + self.high > self.budget && self.evict_one(now) {}
        }
        for _ in 0..self.deferred.len() {
            let Some(touch) = self.deferred.pop_front() else {
                break;
            };
            if !self.serve(touch, now) {
                self.deferred.push_back(touch);
            }
        }
        if self.deferred.is_empty() {
            self.resume(now);
        }
        self.pump(now);
        self.stand_by(now);
    }

    /// Evicts a unit: clean grains are dropped, dirty ones go to the store. False when none can go
    /// now.
    fn evict_one(&mut self, now: Tick) -> bool {
        if !self.clock.prefers_probation() && self.let_oldest_go(now) {
            return true;
        }
        let Some(unit) = self.choose(now, false) else {
            return self.let_oldest_go(now);
        };
        if self.busy.contains_key(&unit) {
            // Some of it had been fetched and not touched.
            self.release(unit);
        }
        let u = self.units[unit as usize];
        let clean = u.resident & !u.dirty;
        if clean != 0 {
            self.actions.push_back(PagerAction::Drop { unit, mask: clean });
            self.counts.dropped_bytes +=
                u64::from(clean.count_ones()) * self.geometry.grain_bytes() as u64;
        }
        if u.dirty != 0 {
            self.begin_extract(unit, u.dirty, u.dirty, ExtractMethod::Out);
        }
        self.units[unit as usize].went = u.resident;
        self.goes(unit, u.resident, u.dirty);
        self.unmapped(unit, u.resident);
        self.trials.evicted();
        self.counts.evictions += 1;
        true
    }

    /// Whether a dirty unit may be written out now: a slot is free within their share, and the
    /// store is not being spared.
    fn may_write(&mut self, now: Tick) -> bool {
        let writes = (self.settings.slots / SHARE).max(4);
        !self.failing.spared(now)
            && (self.busy.len() < writes || self.make_slot(self.settings.slots - writes + 1))
    }

    /// When to call [`Pager::balance`] again though nothing happens.
    #[must_use]
    pub fn deadline(&self, now: Tick) -> Option<Nanos> {
        self.failing.wait(now).filter(|_| self.waiting() || self.used + self.low > self.budget)
    }

    /// At least `count` free slots, by giving up what was fetched and not touched, oldest first.
    fn make_slot(&mut self, count: usize) -> bool {
        while self.busy.len() + count > self.settings.slots {
            let parked = self.busy.iter().filter(|(_, b)| b.phase == BusyPhase::Parked);
            let Some((&unit, b)) = parked.min_by_key(|(_, b)| b.number) else {
                return false;
            };
            self.prefetch
                .report_unused(b.touch.tid, self.geometry.grain_at(unit, b.mask.trailing_zeros()));
            self.counts.wasted_bytes +=
                u64::from(b.mask.count_ones()) * self.geometry.grain_bytes() as u64;
            self.release(unit);
        }
        true
    }
}

#[cfg(test)]
mod tests;
