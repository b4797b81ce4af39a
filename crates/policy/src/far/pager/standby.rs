//! A second chance for what seems unused: chunks on trial.
//!
//! Reads of mapped pages leave no trace, so a victim from the main ring is a guess. Before it goes
//! it is unmapped and kept in its frame for a while, first in, first out: whoever touches it has
//! all of it back without I/O, and then it is known to be in use (the segmented FIFO of Turner and
//! Levy, "Segmented FIFO page replacement", SIGMETRICS 1981, as VMS's free and modified lists
//! were). Each time that happens the hand passes over it once more the next time. Who needs space
//! takes the oldest on trial. What streams by goes from the probation ring without a trial.
//!
//! Where all of main is in use each trial costs a fault and finds nothing, so an eviction pays for
//! one and no more.

use super::busy::ExtractMethod;
use super::{BusyPhase, ChunkTable, ClockVerdict, PageFault, Pager, PagerAction};
use crate::far::geometry::{ChunkNo, PageMask};
use std::collections::{HashMap, VecDeque};
use terrace_types::Tick;

/// A chunk on trial.
#[derive(Debug, Clone, Copy)]
struct StandbyChunk {
    /// What its frame holds.
    mask: PageMask,
    /// Of it, what the store does not have.
    dirty: PageMask,
    number: u64,
}

/// Chunks on trial. Nothing of them is mapped.
#[derive(Debug, Default)]
pub(super) struct StandbyList {
    chunks: HashMap<ChunkNo, StandbyChunk>,
    /// Oldest first; those that ended otherwise are still listed.
    order: VecDeque<(ChunkNo, u64)>,
    number: u64,
    /// Being taken out for a trial.
    coming: usize,
    /// Trials that may begin.
    paid: usize,
    /// Chunks that may be on trial.
    pub most: usize,
}

impl StandbyList {
    /// Whether a chunk is on trial.
    pub fn has(&self, chunk: ChunkNo) -> bool {
        self.chunks.contains_key(&chunk)
    }

    fn begin(&mut self, chunk: ChunkNo, mask: PageMask, dirty: PageMask) {
        self.number += 1;
        self.chunks.insert(chunk, StandbyChunk { mask, dirty, number: self.number });
        self.order.push_back((chunk, self.number));
    }

    fn end(&mut self, chunk: ChunkNo) -> Option<StandbyChunk> {
        let trial = self.chunks.remove(&chunk)?;
        let chunks = &self.chunks;
        let ended = |(chunk, number): &(ChunkNo, u64)| {
            chunks.get(chunk).is_none_or(|t| t.number != *number)
        };
        while self.order.front().is_some_and(ended) {
            self.order.pop_front();
        }
        // The oldest may stay for long while others come and go behind it.
        if self.order.len() > 2 * chunks.len() + 64 {
            self.order.retain(|entry| !ended(entry));
        }
        Some(trial)
    }

    /// Memory for the lists.
    pub fn bytes(&self) -> usize {
        self.chunks.capacity() * 40 + self.order.capacity() * 16
    }

    /// A chunk was evicted, on trial or without: `each` trials may begin.
    pub fn evicted(&mut self, each: usize) {
        self.paid = (self.paid + each).min(self.most);
    }
}

impl Pager {
    /// Puts victims on trial as long as there are too few, and memory is short.
    pub(super) fn stand_by(&mut self, now: Tick) {
        if self.used < self.budget / 8 * 7 {
            return;
        }
        for _ in 0..self.settings.tuning.trials_at_once.min(self.trials.paid) {
            let enough = self.trials.chunks.len() + self.trials.coming >= self.trials.most;
            if enough
                || self.busy.len() >= self.settings.frames / 2
                || self.clock.prefers_probation()
            {
                return;
            }
            let Some(chunk) = self.choose(now, true) else {
                return;
            };
            let u = self.chunks[chunk as usize];
            self.trials.coming += 1;
            self.trials.paid -= 1;
            self.begin_extract(chunk, u.resident, u.dirty, ExtractMethod::OnTrial);
            self.chunks[chunk as usize].went = u.resident;
            self.unmapped(chunk, u.resident);
        }
    }

    /// A chunk's pages `mask` are in its frame, for a trial; `dirty` of them the store does not
    /// have.
    pub(super) fn begin_trial(&mut self, chunk: ChunkNo, mask: PageMask, dirty: PageMask) {
        self.trials.coming -= 1;
        self.busy.remove(&chunk);
        self.used += u64::from(mask.count_ones());
        self.trials.begin(chunk, mask, dirty);
        if mask == 0 || self.chunks[chunk as usize].resident != 0 {
            // Some of it could not be taken: it is in use.
            self.take_back(chunk, 0);
        }
    }

    /// The oldest on trial goes; false when there is none, or it is dirty and cannot be written
    /// now.
    pub(super) fn let_oldest_go(&mut self, now: Tick) -> bool {
        self.trials.order.front().copied().is_some_and(|(chunk, _)| self.let_go(chunk, now))
    }

    fn let_go(&mut self, chunk: ChunkNo, now: Tick) -> bool {
        let dirty = self.trials.chunks.get(&chunk).is_some_and(|t| t.dirty != 0);
        if dirty && !self.may_write(now) {
            return false;
        }
        let Some(trial) = self.trials.end(chunk) else {
            return false;
        };
        self.used -= u64::from(trial.mask.count_ones());
        self.goes(chunk, trial.mask, trial.dirty);
        self.clock.remove(&mut self.chunks[chunk as usize].standing);
        self.counts.evictions += 1;
        self.trials.evicted(self.settings.tuning.trials_each);
        if dirty {
            self.begin_write(chunk, trial.dirty);
        } else {
            self.actions.push_back(PagerAction::Release { chunk });
        }
        true
    }

    /// Maps a chunk on trial again, `write` of it for writing; what its frame held.
    fn take_back(&mut self, chunk: ChunkNo, write: PageMask) -> PageMask {
        let Some(StandbyChunk { mask, dirty, .. }) = self.trials.end(chunk) else {
            return 0;
        };
        self.used -= u64::from(mask.count_ones());
        self.counts.rescues += 1;
        self.clock.back(chunk, &mut self.chunks[chunk as usize].standing);
        for (mask, dirty) in [(mask & (write | dirty), true), (mask & !(write | dirty), false)] {
            if mask != 0 {
                self.record_mapped(chunk, mask, dirty);
                self.actions.push_back(PagerAction::Install { chunk, mask, protect: !dirty });
            }
        }
        self.actions.push_back(PagerAction::Release { chunk });
        mask
    }

    /// Serves a touch of a chunk on trial: it is used, and all of it comes back. False: but not
    /// what was touched.
    pub(super) fn serve_trial(
        &mut self,
        chunk: ChunkNo,
        bit: PageMask,
        touch: PageFault,
        now: Tick,
    ) -> bool {
        let held = self.take_back(chunk, if touch.write { bit } else { 0 }) & bit != 0;
        if held {
            self.advance(touch, now);
        }
        held
    }

    /// Ends a trial, if the chunk is on one: it is mapped again.
    pub(super) fn end_trial(&mut self, chunk: ChunkNo) {
        if self.trials.has(chunk) {
            self.take_back(chunk, 0);
        }
    }

    /// The next victim: of all, or of the main ring for a trial.
    pub(super) fn choose(&mut self, now: Tick, main: bool) -> Option<ChunkNo> {
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
        let verdict_of = |chunks: &ChunkTable, chunk: ChunkNo| {
            let u = &chunks[chunk as usize];
            let at_work = busy.get(&chunk).is_some_and(|b| main || b.phase != BusyPhase::Parked);
            if u.resident == 0 {
                ClockVerdict::Empty
            } else if u.pinned || guarded == Some(chunk) || at_work {
                ClockVerdict::Stay
            } else if u.dirty != 0 {
                dirty
            } else {
                ClockVerdict::Free
            }
        };
        self.clock.victim(&mut self.chunks, main, verdict_of, |chunks, u| {
            &mut chunks[u as usize].standing
        })
    }
}
