//! What the program asks for: prefetch, pin, flush, forget.

use super::busy::{BusyChunk, ExtractMethod};
use super::{BusyPhase, PageFault, Pager, PagerAction};
use crate::far::geometry::{ChunkNo, PageMask};
use std::collections::{HashMap, VecDeque};
use terrace_types::{Bytes, Tick, Tid};

/// What a program says of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// It will be needed: fetch it, as far as space allows.
    WillNeed,
    /// It is not needed for a while: evict it.
    Cold,
    /// Its content is of no use any more: it reads as zeros from now on.
    Discard,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PendingCommand {
    Fetch,
    /// As `Fetch`, and it is there when that is answered.
    Gather,
    Flush,
    Cold,
    Discard,
    /// The pager has no part in it any more; what it holds is mapped by then.
    DetachKept,
    /// The same, and it reads as zeros.
    DetachDropped,
}

/// What becomes of bytes that the pager gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscardedContents {
    /// They are brought into memory, whatever the budget, and stay there.
    Keep,
    /// They are of no use any more: zeros.
    Drop,
}

/// Wishes that wait for frames, space, or a chunk that is busy.
#[derive(Debug, Default)]
pub(super) struct CommandQueue {
    wishes: VecDeque<(u64, PendingCommand, ChunkNo, PageMask)>,
    /// Chunks being written for a command.
    writing: HashMap<ChunkNo, u64>,
    /// Parts left and whether all went well so far, by command.
    open: HashMap<u64, (u64, bool)>,
}

impl CommandQueue {
    pub fn is_idle(&self) -> bool {
        self.wishes.is_empty() && self.writing.is_empty()
    }
}

impl Pager {
    /// Writes everything dirty to the store; it stays mapped. Answered when the store has it all.
    pub fn flush(&mut self, command: u64, now: Tick) {
        let dirty = self
            .chunks
            .known()
            .filter(|(n, u)| u.dirty != 0 || self.busy.contains_key(n) || self.trials.has(*n));
        let wishes: Vec<_> = dirty.map(|(n, _)| (n, 0)).collect();
        self.ask(command, PendingCommand::Flush, wishes, now);
    }

    /// Follows an advice for a range of bytes. Answered when done; `WillNeed` once each part was
    /// asked for.
    pub fn advise(&mut self, command: u64, range: std::ops::Range<u64>, advice: Advice, now: Tick) {
        let wish = match advice {
            Advice::WillNeed => PendingCommand::Fetch,
            Advice::Cold => PendingCommand::Cold,
            Advice::Discard => PendingCommand::Discard,
        };
        let wishes = self.geometry.cover(range, wish != PendingCommand::Fetch).collect();
        self.ask(command, wish, wishes, now);
    }

    /// Gives up a range of bytes: nothing of it is fetched, mapped or taken out from then on, and
    /// it does not count against the budget. Whole pages within it. Answered when that is so.
    pub fn detach(
        &mut self,
        command: u64,
        range: std::ops::Range<u64>,
        contents: DiscardedContents,
        now: Tick,
    ) {
        let wish = match contents {
            DiscardedContents::Keep => PendingCommand::DetachKept,
            DiscardedContents::Drop => PendingCommand::DetachDropped,
        };
        let wishes = self.geometry.cover(range, true).collect();
        self.ask(command, wish, wishes, now);
    }

    /// Takes over a range of bytes that was detached, or has nothing in it yet: whole pages of it,
    /// none of which the store has. What is mapped there is reported by [`Pager::adopt`].
    pub fn attach(&mut self, range: std::ops::Range<u64>) {
        let end = self.geometry.page_of(range.end);
        if self.beyond.contains(&end.saturating_sub(1)) {
            let page = self.geometry.page_bytes() as u64;
            let before = self.beyond.start * page..range.start;
            self.beyond.start = end;
            if before.start < before.end {
                self.exclude(before);
            }
        }
        let parts: Vec<_> = self.geometry.cover(range, true).collect();
        for (chunk, mask) in parts {
            // A chunk on trial has nothing mapped, and is to have.
            self.end_trial(chunk);
            // Zeros ahead of an access stream, beyond what was mapped then.
            if self.chunks[chunk as usize].resident & mask != 0 {
                self.unmapped(chunk, mask);
            }
            if let Some(rest) = self.detached.get_mut(&chunk) {
                *rest &= !mask;
                if *rest == 0 {
                    self.detached.remove(&chunk);
                }
            }
        }
    }

    /// Leaves a range of bytes alone from the start: it is somebody else's.
    pub fn exclude(&mut self, range: std::ops::Range<u64>) {
        let parts: Vec<_> = self.geometry.cover(range, false).collect();
        for (chunk, mask) in parts {
            *self.detached.entry(chunk).or_default() |= mask;
        }
    }

    /// As [`Pager::exclude`], of a long range that is to be attached from its start on.
    pub fn exclude_until_attached(&mut self, range: std::ops::Range<u64>) {
        self.beyond = self.geometry.page_of(range.start)..self.geometry.page_of(range.end);
    }

    /// Takes note of pages that are mapped already, from before there was a pager.
    pub fn adopt(&mut self, range: std::ops::Range<u64>) {
        let parts: Vec<_> = self.geometry.cover(range, false).collect();
        for (chunk, mask) in parts {
            self.record_mapped(chunk, mask, true);
        }
    }

    /// Brings everything into memory, whatever the budget, and evicts nothing until
    /// [`Pager::set_budget`]. Answered when all of it is mapped; false when some could not be read.
    pub fn gather(&mut self, command: u64, now: Tick) {
        let all = Bytes(self.geometry.bytes().saturating_mul(2));
        self.settings.budget = all;
        self.set_marks(all);
        let missing = self.chunks.known().filter(|(n, u)| {
            u.stored & !u.resident != 0 || self.busy.contains_key(n) || self.trials.has(*n)
        });
        let wishes: Vec<_> = missing.map(|(n, _)| (n, self.geometry.whole(n))).collect();
        self.ask(command, PendingCommand::Gather, wishes, now);
    }

    /// Keeps a range in memory, or no longer. False, and nothing done, when more than half of the
    /// budget would be pinned.
    pub fn pin(&mut self, command: u64, range: std::ops::Range<u64>, on: bool, now: Tick) -> bool {
        let per = u64::from(self.geometry.pages_per_chunk());
        let chunks: Vec<_> = self.geometry.cover(range, false).collect();
        let change = chunks.iter().filter(|(u, _)| self.chunks[*u as usize].pinned != on).count()
            as u64
            * per;
        if on && self.pinned + change > self.budget / 2 {
            return false;
        }
        self.pinned = if on { self.pinned + change } else { self.pinned - change };
        for (chunk, _) in &chunks {
            self.chunks[*chunk as usize].pinned = on;
        }
        self.set_marks(self.settings.budget);
        let wishes = if on { chunks } else { Vec::new() };
        self.ask(command, PendingCommand::Fetch, wishes, now);
        true
    }

    fn ask(
        &mut self,
        command: u64,
        wish: PendingCommand,
        parts: Vec<(ChunkNo, PageMask)>,
        now: Tick,
    ) {
        if parts.is_empty() {
            self.actions.push_back(PagerAction::Answer { command, ok: true });
            return;
        }
        self.commands.open.insert(command, (parts.len() as u64, true));
        self.commands
            .wishes
            .extend(parts.into_iter().map(|(chunk, mask)| (command, wish, chunk, mask)));
        self.pump(now);
    }

    fn part_done(&mut self, command: u64, ok: bool) {
        if let Some((left, all)) = self.commands.open.get_mut(&command) {
            *left -= 1;
            *all &= ok;
            if *left == 0 {
                let ok = *all;
                self.commands.open.remove(&command);
                self.actions.push_back(PagerAction::Answer { command, ok });
            }
        }
    }

    /// A write ended that a command may wait for.
    pub(super) fn command_done(&mut self, chunk: ChunkNo, ok: bool) {
        if let Some(command) = self.commands.writing.remove(&chunk) {
            self.part_done(command, ok);
        }
    }

    /// Grants wishes as far as frames and space go.
    pub(super) fn pump(&mut self, now: Tick) {
        for _ in 0..self.commands.wishes.len() {
            let Some((command, wish, chunk, mask)) = self.commands.wishes.pop_front() else {
                return;
            };
            let granted = match wish {
                PendingCommand::Fetch => self.grant_fetch(chunk, mask, now),
                PendingCommand::Gather => self.grant_gather(chunk, mask, now),
                PendingCommand::Flush | PendingCommand::Cold => {
                    self.grant_write(command, wish, chunk, now)
                }
                PendingCommand::Discard => self.grant_discard(chunk, mask),
                PendingCommand::DetachKept => self.grant_detach(chunk, mask, now),
                PendingCommand::DetachDropped => {
                    self.grant_discard(chunk, mask).inspect(|_| self.leave(chunk, mask))
                }
            };
            match granted {
                Some(true) => self.part_done(command, true),
                Some(false) => {}
                None => {
                    self.commands.wishes.push_front((command, wish, chunk, mask));
                    if !self.rotate() {
                        return;
                    }
                }
            }
        }
    }

    /// The wish in front must wait: another may not have to. False when all are of one kind that
    /// waits for frames.
    fn rotate(&mut self) -> bool {
        match self.commands.wishes.front() {
            Some(&(_, _, chunk, _)) if self.busy.contains_key(&chunk) => {
                self.commands.wishes.rotate_left(1);
                true
            }
            _ => false,
        }
    }

    fn grant_fetch(&mut self, chunk: ChunkNo, mask: PageMask, now: Tick) -> Option<bool> {
        let touch = PageFault {
            tid: Tid(0),
            page: self.geometry.page_at(chunk, 0),
            write: false,
            protected: false,
        };
        self.end_trial(chunk);
        if let Some(b) = self.busy.get(&chunk).copied().filter(|b| b.phase == BusyPhase::Parked) {
            let parked = b.mask & !self.chunks[chunk as usize].resident;
            self.record_mapped(chunk, parked, false);
            self.actions.push_back(PagerAction::Install { chunk, mask: parked, protect: true });
            self.release(chunk);
        }
        if self.busy.contains_key(&chunk) {
            return None;
        }
        let u = &self.chunks[chunk as usize];
        let read = self.fetchable(chunk, mask & !u.resident & u.stored);
        if read == 0 {
            return Some(true);
        }
        let pages = u64::from(read.count_ones());
        if self.used + pages + self.low > self.budget && !u.pinned {
            // Space is not made for a wish: what does not fit is left out.
            return Some(true);
        }
        self.guarded = Some(chunk);
        let fits = self.make_space(pages, now);
        self.guarded = None;
        let half = self.settings.frames / 2;
        if !fits
            || (self.busy.len() >= half && !self.reserve_frame(self.settings.frames - half + 1))
        {
            return None;
        }
        self.begin_read(chunk, read, BusyChunk::reading(read, read, 0, false, touch));
        Some(true)
    }

    /// Asks again and again until nothing of the chunk is on its way.
    fn grant_gather(&mut self, chunk: ChunkNo, mask: PageMask, now: Tick) -> Option<bool> {
        self.grant_fetch(chunk, mask, now)?;
        (!self.busy.contains_key(&chunk)).then_some(true)
    }

    /// Asks again and again until all of it is mapped, or lost.
    fn grant_detach(&mut self, chunk: ChunkNo, mask: PageMask, now: Tick) -> Option<bool> {
        self.end_trial(chunk);
        if self.busy.get(&chunk).is_some_and(|b| b.phase == BusyPhase::Parked) {
            self.release(chunk);
        }
        if self.busy.contains_key(&chunk) {
            return None;
        }
        let u = self.chunks[chunk as usize];
        let read = self.fetchable(chunk, mask & u.stored & !u.resident);
        if read == 0 {
            self.leave(chunk, mask);
            return Some(true);
        }
        self.guarded = Some(chunk);
        let fits = self.make_space(u64::from(read.count_ones()), now);
        self.guarded = None;
        if fits && self.reserve_frame(1) {
            let page = self.geometry.page_at(chunk, read.trailing_zeros());
            let touch = PageFault { tid: Tid(0), page, write: true, protected: false };
            // Awaited, so that what cannot be read is known to be lost, and not asked for for ever.
            self.begin_read(chunk, read, BusyChunk::reading(read, read, read, true, touch));
        }
        None
    }

    /// Pages that are mapped, zeros or lost are not the pager's any more.
    fn leave(&mut self, chunk: ChunkNo, mask: PageMask) {
        let stored = self.chunks[chunk as usize].stored & mask;
        if self.chunks[chunk as usize].resident & mask != 0 {
            self.unmapped(chunk, mask);
        }
        if stored != 0 {
            self.chunks[chunk as usize].stored &= !mask;
            self.actions.push_back(PagerAction::Forget { chunk, mask: stored });
        }
        let mask = mask & !self.detached(chunk);
        let first = self.geometry.page_at(chunk, 0);
        self.lost.retain(|g| !(*g >= first && *g < first + 64 && mask >> (*g - first) & 1 == 1));
        if mask != 0 {
            *self.detached.entry(chunk).or_default() |= mask;
            self.actions.push_back(PagerAction::Detach { chunk, mask });
        }
    }

    fn grant_write(
        &mut self,
        command: u64,
        wish: PendingCommand,
        chunk: ChunkNo,
        now: Tick,
    ) -> Option<bool> {
        if self.busy.get(&chunk).is_some_and(|b| b.phase == BusyPhase::Parked) {
            self.release(chunk);
        }
        self.end_trial(chunk);
        if self.busy.contains_key(&chunk) {
            return None;
        }
        let u = self.chunks[chunk as usize];
        if wish == PendingCommand::Cold {
            if u.pinned {
                return Some(true);
            }
            let clean = u.resident & !u.dirty;
            if clean != 0 {
                self.actions.push_back(PagerAction::Drop { chunk, mask: clean });
                self.unmapped(chunk, clean);
            }
        }
        if u.dirty == 0 {
            return Some(true);
        }
        if !self.may_write(now) {
            return None;
        }
        self.commands.writing.insert(chunk, command);
        let how =
            if wish == PendingCommand::Flush { ExtractMethod::Copy } else { ExtractMethod::Out };
        self.begin_extract(chunk, u.dirty, u.dirty, how);
        if wish == PendingCommand::Cold {
            self.unmapped(chunk, u.dirty);
        }
        Some(false)
    }

    fn grant_discard(&mut self, chunk: ChunkNo, mask: PageMask) -> Option<bool> {
        self.end_trial(chunk);
        if self.busy.get(&chunk).is_some_and(|b| b.phase == BusyPhase::Parked) {
            self.release(chunk);
        }
        if self.busy.contains_key(&chunk) {
            return None;
        }
        let mask = mask & !self.detached(chunk);
        let u = self.chunks[chunk as usize];
        if u.resident & mask != 0 {
            self.actions.push_back(PagerAction::Drop { chunk, mask: u.resident & mask });
            self.unmapped(chunk, mask);
        }
        if u.stored & mask != 0 {
            self.chunks[chunk as usize].stored &= !mask;
            self.actions.push_back(PagerAction::Forget { chunk, mask: u.stored & mask });
        }
        let lost = mask & !self.not_lost(chunk, mask);
        if lost != 0 {
            let first = self.geometry.page_at(chunk, 0);
            self.lost
                .retain(|g| !(*g >= first && *g < first + 64 && lost >> (*g - first) & 1 == 1));
            self.actions.push_back(PagerAction::Cure { chunk, mask: lost });
        }
        Some(true)
    }
}
