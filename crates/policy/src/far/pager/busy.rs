//! Chunks that have a frame: being read, fetched and not yet touched, or being written.

use super::{PageFault, Pager, PagerAction};
use crate::far::geometry::{ChunkNo, FarPageNo, PageMask};
use terrace_types::{Nanos, Tick};

/// What a chunk's frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BusyPhase {
    /// The store fills it.
    Reading,
    /// It holds what was fetched ahead; nothing waits.
    Parked,
    /// Asked for; [`Pager::extracted`] will tell.
    Extracting,
    /// The store takes it.
    Writing,
}

/// A chunk with a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct BusyChunk {
    pub phase: BusyPhase,
    /// Pages that the frame holds or will hold.
    pub mask: PageMask,
    /// Of them, those to map when they arrive.
    want: PageMask,
    /// Of them, those that somebody waits for.
    awaited: PageMask,
    /// Map them for writing.
    write: bool,
    /// The touch that caused it.
    pub touch: PageFault,
    /// While they are taken out: of `mask`, those that the store is to get.
    send: PageMask,
    /// Fetched ahead of need.
    ahead: bool,
    /// It is taken out for a trial.
    on_trial: bool,
    tries: u8,
    /// The order in which frames were taken.
    pub number: u64,
}

impl BusyChunk {
    /// A read; `want` is mapped on arrival, the rest waits in the frame to be touched. Somebody
    /// waits for `awaited`.
    pub fn reading(
        mask: PageMask,
        want: PageMask,
        awaited: PageMask,
        write: bool,
        touch: PageFault,
    ) -> Self {
        let ahead = awaited == 0;
        let phase = BusyPhase::Reading;
        Self {
            phase,
            mask,
            want,
            awaited,
            write,
            touch,
            send: 0,
            ahead,
            on_trial: false,
            tries: 1,
            number: 0,
        }
    }
}

/// How pages are taken into a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExtractMethod {
    /// They stay mapped.
    Copy,
    /// They go.
    Out,
    /// They go, and may be had back for a while.
    OnTrial,
}

/// How a read ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOutcome {
    /// All bytes are there.
    Done,
    /// It may go better another time.
    Failed,
    /// The bytes are not those that were written; another try would show the same.
    Altered,
}

/// How a write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The store has all of it.
    Done,
    /// It must be assumed that the store has none of it.
    Failed,
}

/// A store that fails is left alone for a while, longer each time.
#[derive(Debug, Default)]
pub(super) struct StoreBackoff {
    in_row: u32,
    until: Tick,
}

impl StoreBackoff {
    /// Whether writes had better wait.
    pub fn spared(&self, now: Tick) -> bool {
        self.in_row > 0 && now < self.until
    }

    /// Whether it failed so often that memory beyond the budget is the lesser evil.
    pub const fn gives_up(&self) -> bool {
        self.in_row >= 8
    }

    pub fn wait(&self, now: Tick) -> Option<Nanos> {
        (self.in_row > 0).then(|| self.until.since(now).max(Nanos::micros(100)))
    }

    fn note(&mut self, outcome: WriteOutcome, now: Tick) {
        match outcome {
            WriteOutcome::Done => self.in_row = 0,
            WriteOutcome::Failed => {
                self.in_row = self.in_row.saturating_add(1);
                self.until = now.after(Nanos::millis(1 << self.in_row.min(9)));
            }
        }
    }
}

impl Pager {
    pub(super) fn begin_read(&mut self, chunk: ChunkNo, mask: PageMask, busy: BusyChunk) {
        // Space is taken now, so that what arrives has it.
        let reserve = u64::from(busy.want.count_ones());
        self.used += reserve;
        self.take_frame(chunk, busy);
        self.counts.read_bytes += u64::from(mask.count_ones()) * self.geometry.page_bytes() as u64;
        // A read that a thread waits for goes to the front of the queue, before the evictions that
        // make room for it, unless no frame is free until an earlier action is done, or an earlier
        // action concerns the same chunk.
        let freed =
            self.actions.iter().filter(|a| matches!(a, PagerAction::Release { .. })).count();
        let own = self.actions.iter().any(|a| a.chunk() == Some(chunk));
        if busy.awaited != 0 && !own && self.busy.len() + freed <= self.settings.frames {
            self.actions.push_front(PagerAction::Read { chunk, mask });
        } else {
            self.actions.push_back(PagerAction::Read { chunk, mask });
        }
    }

    fn take_frame(&mut self, chunk: ChunkNo, mut busy: BusyChunk) {
        self.counts.frames_taken += 1;
        busy.number = self.counts.frames_taken;
        self.busy.insert(chunk, busy);
    }

    /// Takes pages of a chunk into a frame, of which `dirty` go to the store.
    pub(super) fn begin_extract(
        &mut self,
        chunk: ChunkNo,
        mask: PageMask,
        dirty: PageMask,
        how: ExtractMethod,
    ) {
        let touch =
            PageFault { tid: terrace_types::Tid(0), page: 0, write: false, protected: false };
        let (phase, on_trial) = (BusyPhase::Extracting, how == ExtractMethod::OnTrial);
        let plain = BusyChunk::reading(mask, 0, 0, false, touch);
        if how == ExtractMethod::Copy {
            // From here on a write is reported, and makes it dirty again.
            self.chunks[chunk as usize].dirty &= !mask;
        }
        self.take_frame(chunk, BusyChunk { phase, send: dirty, ahead: false, on_trial, ..plain });
        self.actions.push_back(match how {
            ExtractMethod::Copy => PagerAction::CopyOut { chunk, mask },
            ExtractMethod::Out | ExtractMethod::OnTrial => {
                PagerAction::Extract { chunk, mask, dirty }
            }
        });
    }

    pub(super) fn release(&mut self, chunk: ChunkNo) {
        self.busy.remove(&chunk);
        self.actions.push_back(PagerAction::Release { chunk });
    }

    /// Serves a touch of a chunk that has a frame: whether it is served or on its way, or must be
    /// tried again when the frame is done. `None`: the frame does not matter to it (mapped, or the
    /// frame was given back).
    pub(super) fn serve_busy(
        &mut self,
        chunk: ChunkNo,
        bit: PageMask,
        touch: PageFault,
        phase: BusyPhase,
        now: Tick,
    ) -> Option<bool> {
        let resident = self.chunks[chunk as usize].resident;
        let b = self.busy.get_mut(&chunk)?;
        let in_frame = b.mask & bit != 0;
        match phase {
            BusyPhase::Reading if in_frame => {
                let marker = b.want & bit == 0;
                if marker {
                    self.used += 1;
                }
                b.want |= bit;
                b.awaited |= bit;
                // Mapped for writing as a whole: those who only read lose nothing but a needless
                // write-back.
                b.write = touch.write || (b.write && !marker);
                let protect = !b.write;
                if b.ahead {
                    self.counts.late_hits += 1;
                    b.ahead = false;
                }
                self.advance(touch, now);
                if protect {
                    self.prefetch.probed(touch.tid, touch.page);
                }
                Some(true)
            }
            BusyPhase::Parked if in_frame => {
                let mask = b.mask & !resident;
                self.counts.hits_bytes +=
                    u64::from(mask.count_ones()) * self.geometry.page_bytes() as u64;
                self.counts.soft_faults += 1;
                self.map_again(chunk, mask, touch.write);
                self.release(chunk);
                self.advance(touch, now);
                if !touch.write {
                    self.prefetch.probed(touch.tid, touch.page);
                }
                Some(true)
            }
            BusyPhase::Parked if resident & bit == 0 => {
                // Another page of the chunk: what is there is mapped, and the frame is free for a
                // read.
                let mask = b.mask & !resident;
                self.map_again(chunk, mask, false);
                self.release(chunk);
                None
            }
            BusyPhase::Writing if in_frame && resident & bit == 0 => {
                // A victim that is wanted back: from the frame, while the store still reads it.
                let mask = b.mask & !resident;
                self.counts.rescues += 1;
                self.record_mapped(chunk, mask, touch.write);
                self.actions.push_back(PagerAction::Install { chunk, mask, protect: !touch.write });
                Some(true)
            }
            BusyPhase::Reading | BusyPhase::Writing | BusyPhase::Extracting
                if resident & bit == 0 =>
            {
                Some(false)
            }
            _ => None,
        }
    }

    /// An access stream came by what had been fetched for it: fetch on.
    pub(super) fn advance(&mut self, touch: PageFault, now: Tick) {
        if let Some(ahead) = self.prefetch.touch(touch.tid, touch.page, false) {
            self.fetch_ahead(None, touch, ahead, now);
        }
    }

    /// The frame of `chunk` was filled, or not.
    pub fn read_done(&mut self, chunk: ChunkNo, outcome: ReadOutcome, now: Tick) {
        let Some(b) = self.busy.get_mut(&chunk).filter(|b| b.phase == BusyPhase::Reading) else {
            return;
        };
        if outcome == ReadOutcome::Failed && b.tries < self.settings.tries {
            b.tries += 1;
            let mask = b.mask;
            self.counts.read_retries += 1;
            self.actions.push_back(PagerAction::Read { chunk, mask });
            return;
        }
        let b = *b;
        self.used -= u64::from(b.want.count_ones());
        if outcome != ReadOutcome::Done {
            self.counts.read_failures += 1;
            self.release(chunk);
            self.lose(chunk, b);
            self.balance(now);
            return;
        }
        let resident = self.chunks[chunk as usize].resident;
        let want = b.want & !resident;
        if want != 0 {
            self.map_again(chunk, want, b.write);
            if b.ahead {
                self.counts.mapped_ahead_bytes +=
                    u64::from(want.count_ones()) * self.geometry.page_bytes() as u64;
            }
        }
        let rest = b.mask & !b.want & !resident;
        match self.busy.get_mut(&chunk) {
            Some(b) if rest != 0 => {
                b.phase = BusyPhase::Parked;
                b.mask = rest;
            }
            _ => self.release(chunk),
        }
        self.balance(now);
    }

    /// What somebody waits for cannot be had: it is lost. What nobody waits for may be tried again
    /// when somebody does.
    fn lose(&mut self, chunk: ChunkNo, b: BusyChunk) {
        // A read of several pages fails as a whole: those waited for are tried alone before they
        // are given up.
        let awaited = b.awaited & b.mask;
        if awaited != 0 && awaited != b.mask {
            let again = BusyChunk { mask: awaited, want: awaited, ahead: false, tries: 1, ..b };
            self.begin_read(chunk, awaited, again);
            return;
        }
        let mut rest = awaited;
        while rest != 0 {
            let bit = rest.trailing_zeros();
            rest &= rest - 1;
            self.lost.insert(self.geometry.page_at(chunk, bit));
        }
        if awaited != 0 {
            self.actions.push_back(PagerAction::Poison {
                chunk,
                mask: awaited,
                tid: b.touch.tid,
                first: true,
            });
        }
    }

    /// What [`PagerAction::Extract`] or [`PagerAction::CopyOut`] came to: `got` is in the frame, of
    /// which `zeros` are nothing but zeros.
    pub fn extracted(&mut self, chunk: ChunkNo, got: PageMask, zeros: PageMask, now: Tick) {
        let Some(b) = self.busy.get(&chunk).filter(|b| b.phase == BusyPhase::Extracting) else {
            return;
        };
        let missed = b.mask & !got;
        let (send, on_trial) = (b.send, b.on_trial);
        let (sent, stay) = (got & send, missed & !send);
        let (zeros, write) = (sent & zeros, sent & !zeros);
        if missed != 0 {
            // Still mapped: a device is at work on them, a child shares them, or the kernel had no
            // memory. Those that are clean are protected still, the others writable.
            self.counts.held_back += 1;
            self.record_mapped(chunk, missed & send, true);
            if stay != 0 {
                self.record_mapped(chunk, stay, false);
            }
        }
        let u = &mut self.chunks[chunk as usize];
        let forget = zeros & u.stored;
        u.stored &= !sent;
        if forget != 0 {
            self.actions.push_back(PagerAction::Forget { chunk, mask: forget });
        }
        self.counts.zero_bytes += u64::from(zeros.count_ones()) * self.geometry.page_bytes() as u64;
        if on_trial {
            self.begin_trial(chunk, got, write);
        } else if write == 0 {
            self.release(chunk);
            self.command_done(chunk, true);
        } else {
            self.begin_write(chunk, write);
        }
        if missed != 0 {
            self.balance(now);
        }
    }

    /// Gives what is in the chunk's frame to the store.
    pub(super) fn begin_write(&mut self, chunk: ChunkNo, mask: PageMask) {
        let touch =
            PageFault { tid: terrace_types::Tid(0), page: 0, write: false, protected: false };
        let number = self.busy.get(&chunk).map_or(self.counts.frames_taken, |b| b.number);
        let plain = BusyChunk::reading(mask, 0, 0, false, touch);
        self.busy
            .insert(chunk, BusyChunk { phase: BusyPhase::Writing, ahead: false, number, ..plain });
        self.counts.written_bytes +=
            u64::from(mask.count_ones()) * self.geometry.page_bytes() as u64;
        self.actions.push_back(PagerAction::Write { chunk, mask });
    }

    /// The frame of `chunk` was written, or not.
    pub fn write_done(&mut self, chunk: ChunkNo, outcome: WriteOutcome, now: Tick) {
        let Some(b) = self.busy.get(&chunk).copied().filter(|b| b.phase == BusyPhase::Writing)
        else {
            return;
        };
        self.failing.note(outcome, now);
        match outcome {
            WriteOutcome::Done => self.chunks[chunk as usize].stored |= b.mask,
            WriteOutcome::Failed => {
                // The only copy is in the frame, or mapped: it goes back into the map, over the
                // budget if need be.
                self.counts.write_failures += 1;
                let back = b.mask & !self.chunks[chunk as usize].resident;
                self.chunks[chunk as usize].dirty |= b.mask & !back;
                if back != 0 {
                    self.record_mapped(chunk, back, true);
                    self.actions.push_back(PagerAction::Install {
                        chunk,
                        mask: back,
                        protect: false,
                    });
                }
            }
        }
        self.release(chunk);
        self.command_done(chunk, outcome == WriteOutcome::Done);
        self.balance(now);
    }

    /// Whether a page's bytes are lost.
    #[must_use]
    pub fn is_lost(&self, page: FarPageNo) -> bool {
        self.lost.contains(&page)
    }
}
