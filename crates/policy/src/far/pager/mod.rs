//! The pager: what is in memory, what goes, what comes. Pure: events and ticks in, [`PagerAction`]s
//! out, in order; no I/O, no clock, no memory of its own to look at. The same code runs over
//! `userfaultfd` and in the simulation that its tests are.
//!
//! ```text
//!              fault              read              arrived
//!   far  ───────────────►  frame ◄──────── store   ───────────►  mapped, protected (clean)
//!    ▲                      ▲  │ write                             │ first write      │ victim
//!    │ written, or zeros    │  ▼                                   ▼                  ▼
//!    └───────────────────  frame ◄───────── extract ◄──── mapped, dirty              dropped: no I/O
//! ```
//!
//! A chunk has at most one frame at a time ([`BusyChunk`]). What cannot be done now (no frame, no
//! space, chunk busy) is deferred and tried again after each completion.

mod action;
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
mod tuning;

pub use action::{PageFault, PagerAction};
pub use busy::{ReadOutcome, WriteOutcome};
pub use commands::{Advice, DiscardedContents};
pub use settings::PagerSettings;
pub use tuning::PagerTuning;

use crate::far::geometry::{ones, ChunkNo, FarPageNo, Geometry, PageMask};
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

#[derive(Debug, Clone, Copy, Default)]
struct ChunkState {
    /// Pages mapped, or reserved for a read under way.
    resident: PageMask,
    /// Mapped pages that the store must get before they go.
    dirty: PageMask,
    /// Pages that the store has; the others are zeros unless dirty.
    stored: PageMask,
    /// Pages that were mapped when it was last evicted.
    went: PageMask,
    /// Pages that were dirty when they went last.
    wrote: PageMask,
    standing: ClockEntry,
    pinned: bool,
}

/// The pager.
#[derive(Debug)]
pub struct Pager {
    geometry: Geometry,
    chunks: ChunkTable,
    busy: HashMap<ChunkNo, BusyChunk>,
    trials: standby::StandbyList,
    clock: ClockRings,
    prefetch: FarPrefetcher,
    neighbours: FaultAround,
    rewrites: RewritePredictor,
    settings: PagerSettings,
    /// Budget, low and high water marks, and use, in pages. Use counts what is mapped or reserved.
    budget: u64,
    low: u64,
    high: u64,
    used: u64,
    pinned: u64,
    deferred: VecDeque<PageFault>,
    /// Access streams for which less could be fetched than they want.
    stalled: VecDeque<StalledPrefetch>,
    lost: BTreeSet<FarPageNo>,
    /// Pages that are not the pager's: never fetched, mapped, or taken out.
    detached: HashMap<ChunkNo, PageMask>,
    /// Nor are these, which nobody has attached yet.
    beyond: std::ops::Range<FarPageNo>,
    commands: commands::CommandQueue,
    failing: busy::StoreBackoff,
    actions: VecDeque<PagerAction>,
    /// A chunk that must not be evicted while it is being fetched.
    guarded: Option<ChunkNo>,
    counts: FarCounts,
}

impl Pager {
    /// Everything far, all zeros but what the store has.
    #[must_use]
    pub fn new(geometry: Geometry, settings: PagerSettings) -> Self {
        let mut pager = Self {
            geometry,
            chunks: ChunkTable::new(geometry.chunks()),
            busy: HashMap::new(),
            trials: standby::StandbyList::default(),
            clock: ClockRings::new(settings.tuning.credit),
            prefetch: FarPrefetcher::new(0, 1, settings.tuning),
            neighbours: FaultAround::new(settings.tuning),
            rewrites: RewritePredictor::new(settings.tuning),
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
        let window = settings.window.0 / geometry.page_bytes() as u64;
        let most = if window == 0 { 0 } else { pager.window_for(settings.budget).max(2) };
        pager.prefetch =
            FarPrefetcher::new(most, geometry.pages_per_chunk().into(), settings.tuning);
        pager.set_marks(settings.budget);
        for (chunk, mask) in geometry.cover(0..settings.stored.get().min(geometry.bytes()), false) {
            pager.chunks[chunk as usize].stored = mask;
        }
        pager
    }

    fn window_for(&self, budget: Bytes) -> u64 {
        self.settings.window.0.min(budget.0 / 16) / self.geometry.page_bytes() as u64
    }

    /// Sizes of the map.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> FarCounts {
        let page = self.geometry.page_bytes() as u64;
        FarCounts {
            mapped_bytes: self.used * page,
            budget_bytes: self.budget * page,
            lost_bytes: self.lost.len() as u64 * page,
            ..self.counts
        }
    }

    /// Memory for the records of chunks, which is what grows with the map.
    #[must_use]
    pub fn metadata(&self) -> Bytes {
        Bytes((self.chunks.bytes() + self.clock.bytes() + self.trials.bytes()) as u64)
    }

    /// Frames that are at work now; those of chunks on trial are not.
    #[must_use]
    pub fn at_work(&self) -> usize {
        self.busy.len()
    }

    /// Frames that may be at work.
    #[must_use]
    pub const fn frames(&self) -> usize {
        self.settings.frames
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
        let per = u64::from(self.geometry.pages_per_chunk());
        // What is pinned stays, and what is not must still have space to come and go.
        self.budget = (budget.0 / self.geometry.page_bytes() as u64).max(per).max(2 * self.pinned);
        let chunks = self.budget / per;
        self.low = (chunks / 64).clamp(1, 64).min(chunks / 2) * per;
        let window = self.window_for(budget) / per;
        self.clock.least = 2 * (window as usize).max(self.settings.frames / 4);
        self.trials.most = self.settings.standby.min(chunks as usize / 8);
        self.high = (2 * self.low / per).min(chunks / 2 + 1).max(1) * per;
    }

    /// Changes the budget while running.
    pub fn set_budget(&mut self, budget: Bytes, now: Tick) {
        self.settings.budget = budget;
        self.prefetch.limit(self.window_for(budget));
        self.set_marks(budget);
        self.balance(now);
    }

    /// Somebody waits for a page.
    pub fn touch(&mut self, touch: PageFault, now: Tick) {
        self.counts.faults += 1;
        if touch.page >= self.geometry.pages() {
            return;
        }
        if !self.serve(touch, now) {
            self.counts.deferred += 1;
            self.deferred.push_back(touch);
        }
    }

    /// Serves a touch; false when it must wait.
    fn serve(&mut self, touch: PageFault, now: Tick) -> bool {
        let (chunk, bit) = self.geometry.split(touch.page);
        if self.detached(chunk) & bit != 0 {
            // Told before it was detached: the access is tried again, and is the kernel's matter.
            self.actions.push_back(PagerAction::Wake { chunk, mask: bit, tid: touch.tid });
            return true;
        }
        if self.lost.contains(&touch.page) {
            self.actions.push_back(PagerAction::Poison {
                chunk,
                mask: bit,
                tid: touch.tid,
                first: false,
            });
            return true;
        }
        if self.trials.has(chunk) && self.serve_trial(chunk, bit, touch, now) {
            return true;
        }
        if let Some(phase) = self.busy.get(&chunk).map(|b| b.phase) {
            if let Some(done) = self.serve_busy(chunk, bit, touch, phase, now) {
                return done;
            }
        }
        if self.chunks[chunk as usize].resident & bit != 0 {
            self.serve_mapped(chunk, bit, touch);
            return true;
        }
        self.fetch(chunk, bit, touch, now)
    }

    /// A mapped page: a first write, or a fault that was served meanwhile.
    fn serve_mapped(&mut self, chunk: ChunkNo, bit: PageMask, touch: PageFault) {
        let u = &mut self.chunks[chunk as usize];
        if !(touch.write && touch.protected) {
            self.actions.push_back(PagerAction::Wake { chunk, mask: bit, tid: touch.tid });
            return;
        }
        // A second write next to one before: the rest of the chunk will follow.
        let neighbours = bit << 1 | bit >> 1;
        let sequential = self.prefetch.wrote(touch.tid, touch.page);
        let mask = if sequential || u.dirty & neighbours != 0 { u.resident } else { bit };
        u.dirty |= mask;
        if u.wrote & bit != 0 {
            self.rewrites.hit();
        }
        self.clock.touch(&mut u.standing);
        self.counts.first_writes += 1;
        self.actions.push_back(PagerAction::Unprotect { chunk, mask });
    }

    /// Pages of a chunk that are not the pager's.
    pub(super) fn detached(&self, chunk: ChunkNo) -> PageMask {
        let first = self.geometry.page_at(chunk, 0);
        let of_beyond = |page: FarPageNo| ones(page.saturating_sub(first).min(64) as u32);
        let beyond = of_beyond(self.beyond.end) & !of_beyond(self.beyond.start);
        self.detached.get(&chunk).copied().unwrap_or(0) | beyond
    }

    /// A page taken to be mapped is not: somebody else unmapped it. What the store has of it is
    /// fetched when it is touched next; what it does not have is lost, and who asked is reported.
    /// Whether it is.
    pub fn vanished(&mut self, chunk: ChunkNo, bit: PageMask, tid: Tid) -> bool {
        let dirty = self.chunks[chunk as usize].dirty & bit;
        self.unmapped(chunk, bit);
        if dirty != 0 {
            self.lost.insert(self.geometry.page_at(chunk, dirty.trailing_zeros()));
            self.actions.push_back(PagerAction::Poison { chunk, mask: dirty, tid, first: true });
        }
        dirty != 0
    }

    /// Accounts for pages that are mapped from now on.
    fn record_mapped(&mut self, chunk: ChunkNo, mask: PageMask, dirty: bool) {
        let short = self.used >= self.budget / 8 * 7;
        let u = &mut self.chunks[chunk as usize];
        self.used += u64::from((mask & !u.resident).count_ones());
        self.clock.arrived(chunk, &mut u.standing, short);
        u.resident |= mask;
        if dirty {
            u.dirty |= mask;
        }
    }

    fn unmapped(&mut self, chunk: ChunkNo, mask: PageMask) {
        let u = &mut self.chunks[chunk as usize];
        self.used -= u64::from((mask & u.resident).count_ones());
        u.resident &= !mask;
        u.dirty &= !mask;
    }

    /// Frees space for `pages` more; false when there is none now.
    fn make_space(&mut self, pages: u64, now: Tick) -> bool {
        while self.used + pages > self.budget {
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

    /// Evicts a chunk: clean pages are dropped, dirty ones go to the store. False when none can go
    /// now.
    fn evict_one(&mut self, now: Tick) -> bool {
        if !self.clock.prefers_probation() && self.let_oldest_go(now) {
            return true;
        }
        let Some(chunk) = self.choose(now, false) else {
            return self.let_oldest_go(now);
        };
        if self.busy.contains_key(&chunk) {
            // Some of it had been fetched and not touched.
            self.release(chunk);
        }
        let u = self.chunks[chunk as usize];
        let clean = u.resident & !u.dirty;
        if clean != 0 {
            self.actions.push_back(PagerAction::Drop { chunk, mask: clean });
            self.counts.dropped_bytes +=
                u64::from(clean.count_ones()) * self.geometry.page_bytes() as u64;
        }
        if u.dirty != 0 {
            self.begin_extract(chunk, u.dirty, u.dirty, ExtractMethod::Out);
        }
        self.chunks[chunk as usize].went = u.resident;
        self.goes(chunk, u.resident, u.dirty);
        self.unmapped(chunk, u.resident);
        self.trials.evicted(self.settings.tuning.trials_each);
        self.counts.evictions += 1;
        true
    }

    /// Whether a dirty chunk may be written out now: a frame is free within their share, and the
    /// store is not being spared.
    fn may_write(&mut self, now: Tick) -> bool {
        let writes = (self.settings.frames / self.settings.tuning.write_part).max(4);
        !self.failing.spared(now)
            && (self.busy.len() < writes || self.reserve_frame(self.settings.frames - writes + 1))
    }

    /// When to call [`Pager::balance`] again though nothing happens.
    #[must_use]
    pub fn deadline(&self, now: Tick) -> Option<Nanos> {
        self.failing.wait(now).filter(|_| self.waiting() || self.used + self.low > self.budget)
    }

    /// At least `count` free frames, by giving up what was fetched and not touched, oldest first.
    fn reserve_frame(&mut self, count: usize) -> bool {
        while self.busy.len() + count > self.settings.frames {
            let parked = self.busy.iter().filter(|(_, b)| b.phase == BusyPhase::Parked);
            let Some((&chunk, b)) = parked.min_by_key(|(_, b)| b.number) else {
                return false;
            };
            self.prefetch
                .report_unused(b.touch.tid, self.geometry.page_at(chunk, b.mask.trailing_zeros()));
            self.counts.wasted_bytes +=
                u64::from(b.mask.count_ones()) * self.geometry.page_bytes() as u64;
            self.release(chunk);
        }
        true
    }
}

#[cfg(test)]
mod tests;
