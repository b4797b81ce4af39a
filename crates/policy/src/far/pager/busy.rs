//! Units that have a slot: being read, fetched and not yet touched, or being written.

use super::{PageFault, Pager, PagerAction};
use crate::far::geometry::{GrainNo, PageMask, UnitNo};
use terrace_types::{Nanos, Tick};

/// What a unit's slot is for.
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

/// A unit with a slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct BusyChunk {
    pub phase: BusyPhase,
    /// Grains that the slot holds or will hold.
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
    /// The order in which slots were taken.
    pub number: u64,
}

impl BusyChunk {
    /// A read; `want` is mapped on arrival, the rest waits in the slot to be touched. Somebody
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

/// How grains are taken into a slot.
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
    /// The store has none of it for sure.
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
    pub(super) fn begin_read(&mut self, unit: UnitNo, mask: PageMask, busy: BusyChunk) {
        // Room is taken now, so that what arrives has it.
        let reserve = u64::from(busy.want.count_ones());
        self.used += reserve;
        self.take_slot(unit, busy);
        self.counts.read_bytes += u64::from(mask.count_ones()) * self.geometry.grain_bytes() as u64;
        // What somebody waits for does not wait for the victims that make room for it; but for a
        // slot that is free only when what comes before is done, and for what concerns its own
        // unit.
        let freed =
            self.actions.iter().filter(|a| matches!(a, PagerAction::Release { .. })).count();
        let own = self.actions.iter().any(|a| a.unit() == Some(unit));
        if busy.awaited != 0 && !own && self.busy.len() + freed <= self.settings.slots {
            self.actions.push_front(PagerAction::Read { unit, mask });
        } else {
            self.actions.push_back(PagerAction::Read { unit, mask });
        }
    }

    fn take_slot(&mut self, unit: UnitNo, mut busy: BusyChunk) {
        self.counts.slots_taken += 1;
        busy.number = self.counts.slots_taken;
        self.busy.insert(unit, busy);
    }

    /// Takes grains of a unit into a slot, of which `dirty` go to the store.
    pub(super) fn begin_extract(
        &mut self,
        unit: UnitNo,
        mask: PageMask,
        dirty: PageMask,
        how: ExtractMethod,
    ) {
        let touch =
            PageFault { tid: terrace_types::Tid(0), grain: 0, write: false, protected: false };
        let (phase, on_trial) = (BusyPhase::Extracting, how == ExtractMethod::OnTrial);
        let plain = BusyChunk::reading(mask, 0, 0, false, touch);
        if how == ExtractMethod::Copy {
            // From here on a write is told, and makes it dirty again.
            self.units[unit as usize].dirty &= !mask;
        }
        self.take_slot(unit, BusyChunk { phase, send: dirty, ahead: false, on_trial, ..plain });
        self.actions.push_back(match how {
            ExtractMethod::Copy => PagerAction::CopyOut { unit, mask },
            ExtractMethod::Out | ExtractMethod::OnTrial => {
                PagerAction::Extract { unit, mask, dirty }
            }
        });
    }

    pub(super) fn release(&mut self, unit: UnitNo) {
        self.busy.remove(&unit);
        self.actions.push_back(PagerAction::Release { unit });
    }

    /// Serves a touch of a unit that has a slot. `None`: the slot does not matter to it (mapped, or
    /// the slot was given back).
    pub(super) fn serve_busy(
        &mut self,
        unit: UnitNo,
        bit: PageMask,
        touch: PageFault,
        phase: BusyPhase,
        now: Tick,
    ) -> Option<bool> {
        let resident = self.units[unit as usize].resident;
        let b = self.busy.get_mut(&unit)?;
        let held = b.mask & bit != 0;
        match phase {
            BusyPhase::Reading if held => {
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
                    self.prefetch.probed(touch.tid, touch.grain);
                }
                Some(true)
            }
            BusyPhase::Parked if held => {
                let mask = b.mask & !resident;
                self.counts.hits_bytes +=
                    u64::from(mask.count_ones()) * self.geometry.grain_bytes() as u64;
                self.counts.soft_faults += 1;
                self.map_again(unit, mask, touch.write);
                self.release(unit);
                self.advance(touch, now);
                if !touch.write {
                    self.prefetch.probed(touch.tid, touch.grain);
                }
                Some(true)
            }
            BusyPhase::Parked if resident & bit == 0 => {
                // Another grain of the unit: what is there is mapped, and the slot is free for a
                // read.
                let mask = b.mask & !resident;
                self.map_again(unit, mask, false);
                self.release(unit);
                None
            }
            BusyPhase::Writing if held && resident & bit == 0 => {
                // A victim that is wanted back: from the slot, while the store still reads it.
                let mask = b.mask & !resident;
                self.counts.rescues += 1;
                self.settle(unit, mask, touch.write);
                self.actions.push_back(PagerAction::Install { unit, mask, protect: !touch.write });
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

    /// A walk came by what had been fetched for it: fetch on.
    pub(super) fn advance(&mut self, touch: PageFault, now: Tick) {
        if let Some(ahead) = self.prefetch.touch(touch.tid, touch.grain, false) {
            self.fetch_ahead(None, touch, ahead, now);
        }
    }

    /// The slot of `unit` was filled, or not.
    pub fn read_done(&mut self, unit: UnitNo, outcome: ReadOutcome, now: Tick) {
        let Some(b) = self.busy.get_mut(&unit).filter(|b| b.phase == BusyPhase::Reading) else {
            return;
        };
        if outcome == ReadOutcome::Failed && b.tries < self.settings.tries {
            b.tries += 1;
            let mask = b.mask;
            self.counts.read_retries += 1;
            self.actions.push_back(PagerAction::Read { unit, mask });
            return;
        }
        let b = *b;
        self.used -= u64::from(b.want.count_ones());
        if outcome != ReadOutcome::Done {
            self.counts.read_failures += 1;
            self.release(unit);
            self.lose(unit, b);
            self.balance(now);
            return;
        }
        let resident = self.units[unit as usize].resident;
        let want = b.want & !resident;
        if want != 0 {
            self.map_again(unit, want, b.write);
            if b.ahead {
                self.counts.mapped_ahead_bytes +=
                    u64::from(want.count_ones()) * self.geometry.grain_bytes() as u64;
            }
        }
        let rest = b.mask & !b.want & !resident;
        match self.busy.get_mut(&unit) {
            Some(b) if rest != 0 => {
                b.phase = BusyPhase::Parked;
                b.mask = rest;
            }
            _ => self.release(unit),
        }
        self.balance(now);
    }

    /// What somebody waits for cannot be had: it is lost. What nobody waits for may be tried again
    /// when somebody does.
    fn lose(&mut self, unit: UnitNo, b: BusyChunk) {
        // A read of several grains fails as a whole: those waited for are tried alone before they
        // are given up.
        let awaited = b.awaited & b.mask;
        if awaited != 0 && awaited != b.mask {
            let again = BusyChunk { mask: awaited, want: awaited, ahead: false, tries: 1, ..b };
            self.begin_read(unit, awaited, again);
            return;
        }
        let mut rest = awaited;
        while rest != 0 {
            let bit = rest.trailing_zeros();
            rest &= rest - 1;
            self.lost.insert(self.geometry.grain_at(unit, bit));
        }
        if awaited != 0 {
            self.actions.push_back(PagerAction::Poison {
                unit,
                mask: awaited,
                tid: b.touch.tid,
                first: true,
            });
        }
    }

    /// What [`PagerAction::Extract`] or [`PagerAction::CopyOut`] came to: `got` is in the slot, of
    /// which `zeros` are nothing but zeros.
    pub fn extracted(&mut self, unit: UnitNo, got: PageMask, zeros: PageMask, now: Tick) {
        let Some(b) = self.busy.get(&unit).filter(|b| b.phase == BusyPhase::Extracting) else {
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
            self.settle(unit, missed & send, true);
            if stay != 0 {
                self.settle(unit, stay, false);
            }
        }
        let u = &mut self.units[unit as usize];
        let forget = zeros & u.stored;
        u.stored &= !sent;
        if forget != 0 {
            self.actions.push_back(PagerAction::Forget { unit, mask: forget });
        }
        self.counts.zero_bytes +=
            u64::from(zeros.count_ones()) * self.geometry.grain_bytes() as u64;
        if on_trial {
            self.begin_trial(unit, got, write);
        } else if write == 0 {
            self.release(unit);
            self.command_done(unit, true);
        } else {
            self.begin_write(unit, write);
        }
        if missed != 0 {
            self.balance(now);
        }
    }

    /// Gives what is in the unit's slot to the store.
    pub(super) fn begin_write(&mut self, unit: UnitNo, mask: PageMask) {
        let touch =
            PageFault { tid: terrace_types::Tid(0), grain: 0, write: false, protected: false };
        let number = self.busy.get(&unit).map_or(self.counts.slots_taken, |b| b.number);
        let plain = BusyChunk::reading(mask, 0, 0, false, touch);
        self.busy
            .insert(unit, BusyChunk { phase: BusyPhase::Writing, ahead: false, number, ..plain });
        self.counts.written_bytes +=
            u64::from(mask.count_ones()) * self.geometry.grain_bytes() as u64;
        self.actions.push_back(PagerAction::Write { unit, mask });
    }

    /// The slot of `unit` was written, or not.
    pub fn write_done(&mut self, unit: UnitNo, outcome: WriteOutcome, now: Tick) {
        let Some(b) = self.busy.get(&unit).copied().filter(|b| b.phase == BusyPhase::Writing)
        else {
            return;
        };
        self.failing.note(outcome, now);
        match outcome {
            WriteOutcome::Done => self.units[unit as usize].stored |= b.mask,
            WriteOutcome::Failed => {
                // The only copy is in the slot, or mapped: it goes back into the map, over the
                // budget if need be.
                self.counts.write_failures += 1;
                let back = b.mask & !self.units[unit as usize].resident;
                self.units[unit as usize].dirty |= b.mask & !back;
                if back != 0 {
                    self.settle(unit, back, true);
                    self.actions.push_back(PagerAction::Install {
                        unit,
                        mask: back,
                        protect: false,
                    });
                }
            }
        }
        self.release(unit);
        self.command_done(unit, outcome == WriteOutcome::Done);
        self.balance(now);
    }

    /// Whether a grain's bytes are lost.
    #[must_use]
    pub fn is_lost(&self, grain: GrainNo) -> bool {
        self.lost.contains(&grain)
    }
}
