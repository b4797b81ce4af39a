//! The fault loop: one thread that reads many events at once, asks the [`Pager`] what to do, and
//! does it.

use crate::geometry::{PageMask, UnitNo};
use crate::pager::{
    Advice, DiscardedContents, PageFault, Pager, PagerAction, ReadOutcome, WriteOutcome,
};
use crate::pager_affinity::PagerAffinity;
use crate::pressure::{PressureResponse, EVERY};
use crate::store::{BackingStore, CompletedJob, JobPiece, StoreBuffer, StoreError, StoreJob};
use crate::takeover::Occupancy;
use crate::FarCounts;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use terrace_sys::{now, ChunkFrame, FarArea, OneShotReply, SysError, WakeDescriptor};
use terrace_types::{Bytes, Nanos, Tid};

/// Jobs that a store without a descriptor does before faults are looked for again.
const WRITES_AT_ONCE: usize = 2;
/// A store that cannot tell when it is done is asked so often.
const ASK_AGAIN: Nanos = Nanos::micros(50);
/// Of so many wakes for pages that are there, one is looked at.
const LOOKED_AT: u32 = 64;
/// Who is told of the counts is asked so often for a budget, though nothing happens.
const TELL_AGAIN: Nanos = Nanos::millis(200);

/// Bytes that could not be read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostBytes {
    /// Offsets in the map.
    pub range: Range<u64>,
    /// Address of its first byte.
    pub address: u64,
    /// The thread that asked for it, 0 when not known.
    pub thread: Tid,
    /// Why.
    pub why: String,
}

impl std::fmt::Display for LostBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (address, thread, why) = (self.address, self.thread, &self.why);
        let bytes = self.range.end - self.range.start;
        write!(f, "far memory: {bytes} bytes at {address:#x} cannot be read back ({why}); thread {thread} gets SIGBUS")
    }
}

/// Who is told of lost bytes, before the signal.
pub type OnLost = Arc<dyn Fn(&LostBytes) + Send + Sync>;

/// Told of the counts whenever they changed, with the memory that the store uses; what it returns
/// is the memory of the map from now on.
pub type OnCounts = Arc<dyn Fn(&FarCounts, Bytes) -> Option<Bytes> + Send + Sync>;

/// For how long programs have stalled for want of memory so far; none when that cannot be read.
pub type StallClock = Arc<dyn Fn() -> Option<Nanos> + Send + Sync>;

/// What the program asks of the thread.
#[derive(Debug)]
pub(crate) enum Command {
    Flush(Arc<OneShotReply>),
    Advise(Range<u64>, Advice, Arc<OneShotReply>),
    Pin(Range<u64>, bool, Arc<OneShotReply>),
    Detach(Range<u64>, DiscardedContents, Arc<OneShotReply>),
    /// The pages that are there are taken over too, where there may be some.
    Attach(Range<u64>, Occupancy, Arc<OneShotReply>),
    Budget(Bytes),
    /// Everything into memory, and no eviction until the next `Budget`.
    Gather(Arc<OneShotReply>),
    Stop,
}

/// What the thread and the map share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub area: FarArea,
    pub bell: WakeDescriptor,
    pub counts: Mutex<ServiceReport>,
}

/// What the thread tells of itself.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ServiceReport {
    pub counts: FarCounts,
    /// Memory in which the store keeps data, and all accounts together.
    pub store_memory: Bytes,
    pub metadata: Bytes,
}

#[derive(Debug)]
enum HeldFault {
    Mine(ChunkFrame),
    /// Pages were moved into it that were protected against writing, and still are: not to be
    /// written to.
    Protected(ChunkFrame),
    Shared(Arc<ChunkFrame>),
    /// A store fills it.
    Away,
}

pub(crate) struct Service {
    pub shared: Arc<Shared>,
    pub pager: Pager,
    pub store: Box<dyn BackingStore>,
    /// Free slots that keep their memory, and those that have none.
    pub free: Vec<ChunkFrame>,
    pub bare: Vec<ChunkFrame>,
    pub commands: Receiver<Command>,
    pub on_lost: OnLost,
    pub on_counts: Option<OnCounts>,
    pub stalls: Option<StallClock>,
    /// What the map may have without its slots, were there memory enough for all.
    pub set: Bytes,
    /// Memory that slots take of the map's.
    pub slot_bytes: Bytes,
    /// A checksum a grain, when asked for.
    pub sums: Option<Vec<u32>>,
    pub state: State,
}

/// What changes while it runs.
#[derive(Debug, Default)]
pub(crate) struct State {
    held: HashMap<UnitNo, HeldFault>,
    /// Grains of the jobs under way.
    under_way: HashMap<UnitNo, PageMask>,
    reads: Vec<StoreJob>,
    /// Jobs were begun of which some may have ended already, without a word on the store's
    /// descriptor.
    begun: bool,
    writes: Vec<StoreJob>,
    dropped: Vec<Range<usize>>,
    /// Units whose slot was [`HeldFault::Protected`] before a store got it.
    protected: HashSet<UnitNo>,
    answers: HashMap<u64, Arc<OneShotReply>>,
    number: u64,
    why: HashMap<UnitNo, String>,
    /// Everything is in memory, whatever the budget.
    gathered: bool,
    company: PagerAffinity,
    relief: PressureResponse,
    /// Whether who waits for what is installed is woken later, and what that is.
    together: bool,
    to_wake: Vec<Range<usize>>,
    /// Threads woken for what was there already.
    wakes: u32,
    stop: bool,
}

impl State {
    /// At the start. `beside`: threads may go on beside the pager.
    pub fn of(beside: bool) -> Self {
        Self { company: PagerAffinity::new(beside), ..Self::default() }
    }
}

impl Service {
    /// Serves until told to stop.
    ///
    /// # Errors
    /// When the kernel refuses what it must not: then nobody can be served any more.
    pub fn run(mut self) -> Result<(), SysError> {
        let (mut faults, mut done) = (Vec::new(), Vec::new());
        while !self.state.stop {
            if self.wait()? {
                self.shared.area.uffd().events(&mut faults)?;
            }
            let base = self.shared.area.address();
            if !faults.is_empty() {
                let g = self.pager.geometry();
                self.state.company.observe(&faults, |at| g.grain_of(at.wrapping_sub(base)), now());
            }
            for f in faults.drain(..) {
                let grain = self.pager.geometry().grain_of(f.address.wrapping_sub(base));
                let touch = PageFault { tid: f.tid, grain, write: f.write, protected: f.protected };
                self.pager.touch(touch, now());
                self.act()?;
            }
            self.obey()?;
            self.move_data(&mut done)?;
            self.pager.balance(now());
            self.act()?;
            self.publish()?;
        }
        Ok(())
    }

    /// Waits for faults, commands, or the store; whether there are faults.
    fn wait(&mut self) -> Result<bool, SysError> {
        let s = &self.state;
        let tells = self.store.signals_completion();
        let limit = if s.begun || !s.reads.is_empty() || !s.writes.is_empty() {
            Some(Nanos::ZERO)
        } else if !tells && !s.under_way.is_empty() {
            Some(ASK_AGAIN)
        } else {
            let reported = self
                .on_counts
                .is_some()
                .then_some(TELL_AGAIN)
                .or(self.stalls.is_some().then_some(EVERY));
            self.pager.deadline(now()).map_or(reported, |d| Some(reported.map_or(d, |t| t.min(d))))
        };
        let uffd = self.shared.area.uffd().as_fd();
        let bell = self.shared.bell.as_fd();
        let heard = self.store.wait(&[uffd, bell], limit)?;
        if heard & 2 != 0 {
            self.shared.bell.hush();
        }
        Ok(heard & 1 != 0)
    }

    /// Gives the store its jobs, those that somebody waits for first, and takes in what has ended.
    fn move_data(&mut self, done: &mut Vec<CompletedJob>) -> Result<(), SysError> {
        let sync = !self.store.signals_completion();
        if !self.state.reads.is_empty() {
            self.store.begin(&mut self.state.reads);
        }
        self.state.begun = false;
        self.store.finished(done);
        self.take_in(done)?;
        let count = if sync {
            WRITES_AT_ONCE.min(self.state.writes.len())
        } else {
            self.state.writes.len()
        };
        if count > 0 {
            let mut some: Vec<StoreJob> = self.state.writes.drain(..count).collect();
            self.store.begin(&mut some);
            self.store.finished(done);
            self.take_in(done)?;
        }
        Ok(())
    }

    /// Takes in jobs that have ended. Of several, who waits is woken when all are there: it costs
    /// to wake a CPU, and the first thread that goes on there would be done before the next is
    /// woken.
    fn take_in(&mut self, done: &mut Vec<CompletedJob>) -> Result<(), SysError> {
        self.state.together = done.len() > 1;
        let result = self.take_in_all(done);
        self.state.together = false;
        for part in self.state.to_wake.drain(..) {
            self.shared.area.wake(&part)?;
        }
        result
    }

    fn take_in_all(&mut self, done: &mut Vec<CompletedJob>) -> Result<(), SysError> {
        for d in done.drain(..) {
            let unit = d.job.tag as UnitNo;
            let Some(mask) = self.state.under_way.remove(&unit) else {
                continue;
            };
            match d.job.buffer {
                StoreBuffer::Fill(slot) => {
                    let result = d.result.and_then(|()| self.verify(unit, mask, &slot));
                    self.state.held.insert(unit, HeldFault::Mine(slot));
                    let outcome = match &result {
                        Ok(()) => ReadOutcome::Done,
                        Err(StoreError::Altered { .. }) => ReadOutcome::Altered,
                        Err(_) => ReadOutcome::Failed,
                    };
                    if let Err(error) = result {
                        self.state.why.insert(unit, error.to_string());
                    }
                    self.pager.read_done(unit, outcome, now());
                }
                StoreBuffer::Send(slot) => {
                    drop(slot);
                    let outcome =
                        if d.result.is_ok() { WriteOutcome::Done } else { WriteOutcome::Failed };
                    self.pager.write_done(unit, outcome, now());
                }
            }
            self.act()?;
        }
        Ok(())
    }

    fn publish(&mut self) -> Result<(), SysError> {
        let sums = Bytes(self.sums.as_ref().map_or(0, |s| s.len() * 4) as u64);
        let metadata = self.pager.metadata() + self.store.metadata() + sums;
        let counts = FarCounts { woken_here: self.state.company.woken_here, ..self.pager.counts() };
        let report = ServiceReport { counts, store_memory: self.store.memory(), metadata };
        *self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner) = report;
        let asked = self.on_counts.as_ref().and_then(|on| on(&report.counts, report.store_memory));
        if let Some(dram) = asked {
            self.set = dram - self.slot_bytes;
        }
        if (asked.is_some() | self.relieve()) && !self.state.gathered {
            self.pager.set_budget(self.left(), now());
            self.act()?;
        }
        Ok(())
    }

    /// Reads how short memory is, where that is wanted and due; whether the map may have more or
    /// less now.
    fn relieve(&mut self) -> bool {
        let now = now();
        let due = self.state.relief.due(now);
        let total = self.stalls.as_ref().filter(|_| due).and_then(|stalls| stalls());
        total.is_some_and(|total| self.state.relief.stalled(now, total))
    }

    /// What is left of the map's memory when it gave back what it should, but for as much as it
    /// cannot do without.
    fn left(&self) -> Bytes {
        let least = Bytes(16 * self.pager.geometry().unit_bytes() as u64);
        self.state.relief.left(self.set).max(least.min(self.set))
    }

    fn obey(&mut self) -> Result<(), SysError> {
        while let Ok(command) = self.commands.try_recv() {
            self.state.number += 1;
            let number = self.state.number;
            match command {
                Command::Stop => self.state.stop = true,
                Command::Budget(budget) => {
                    self.state.gathered = false;
                    self.set = budget;
                    self.pager.set_budget(self.left(), now());
                }
                Command::Gather(reply) => {
                    self.state.answers.insert(number, reply);
                    self.state.gathered = true;
                    self.pager.gather(number, now());
                }
                Command::Flush(reply) => {
                    self.state.answers.insert(number, reply);
                    self.pager.flush(number, now());
                }
                Command::Advise(range, advice, reply) => {
                    self.state.answers.insert(number, reply);
                    self.pager.advise(number, range, advice, now());
                }
                Command::Detach(range, contents, reply) => {
                    self.state.answers.insert(number, reply);
                    self.pager.detach(number, range, contents, now());
                }
                Command::Attach(range, occupancy, reply) => {
                    reply.give(self.attach(range, occupancy).is_ok());
                }
                Command::Pin(range, on, reply) => {
                    if self.pager.pin(number, range, on, now()) {
                        self.state.answers.insert(number, reply);
                    } else {
                        reply.give(false);
                    }
                }
            }
            self.act()?;
        }
        Ok(())
    }

    /// Does what the pager wants, in order. Drops are gathered: one call for many. Reads are under
    /// way before anything else that takes time.
    fn act(&mut self) -> Result<(), SysError> {
        while let Some(action) = self.pager.next_action() {
            if !matches!(action, PagerAction::Read { .. } | PagerAction::Release { .. })
                && !self.state.reads.is_empty()
            {
                self.store.begin(&mut self.state.reads);
                self.state.begun = true;
            }
            if let PagerAction::Drop { unit, mask } = action {
                self.state.dropped.extend(self.pager.geometry().parts(unit, mask));
                continue;
            }
            // Only those that change what is mapped must come after the drops before them.
            if !matches!(
                action,
                PagerAction::Read { .. } | PagerAction::Write { .. } | PagerAction::Release { .. }
            ) {
                self.drop_gathered();
            }
            self.perform(action)?;
        }
        self.drop_gathered();
        Ok(())
    }

    fn drop_gathered(&mut self) {
        if !self.state.dropped.is_empty() {
            self.shared.area.drop_pages(&self.state.dropped);
            self.state.dropped.clear();
        }
    }

    /// Does what lets threads go on that wait for these grains.
    fn let_go_on(
        &mut self,
        action: PagerAction,
        unit: UnitNo,
        mask: PageMask,
    ) -> Result<(), SysError> {
        let g = self.pager.geometry();
        let mut company = std::mem::take(&mut self.state.company);
        // Who is to go on here is woken within `waking`.
        let together = self.state.together && !company.is_awaited();
        let mut later = together.then(|| std::mem::take(&mut self.state.to_wake));
        let waits_here = |grain| {
            let (its_unit, bit) = g.split(grain);
            its_unit == unit && mask & bit != 0
        };
        let result = company.waking(waits_here, || match action {
            PagerAction::Install { protect, .. } => {
                self.install(unit, mask, protect, later.as_mut())
            }
            PagerAction::Zeros { protect, .. } => g
                .parts(unit, mask)
                .try_for_each(|part| patiently(|| self.shared.area.install_zeros(&part, protect))),
            PagerAction::Unprotect { .. } => {
                g.parts(unit, mask).try_for_each(|part| self.shared.area.protect(&part, false))
            }
            _ => g.parts(unit, mask).try_for_each(|part| self.shared.area.wake(&part)),
        });
        self.state.company = company;
        if let Some(later) = later {
            self.state.to_wake = later;
        }
        result
    }

    fn perform(&mut self, action: PagerAction) -> Result<(), SysError> {
        let g = self.pager.geometry();
        match action {
            PagerAction::Read { unit, mask } => self.begin_read(unit, mask),
            PagerAction::Write { unit, mask } => self.begin_write(unit, mask),
            PagerAction::Install { unit, mask, .. }
            | PagerAction::Zeros { unit, mask, .. }
            | PagerAction::Unprotect { unit, mask } => self.let_go_on(action, unit, mask)?,
            PagerAction::Wake { unit, mask, tid } => {
                self.look_after(unit, mask, tid);
                self.let_go_on(action, unit, mask)?;
            }
            PagerAction::Release { unit } => self.release(unit),
            PagerAction::Extract { unit, mask, dirty } => self.extract(unit, mask, dirty),
            PagerAction::CopyOut { unit, mask } => self.copy_out(unit, mask)?,
            PagerAction::Poison { unit, mask, tid, first } => {
                self.poison(unit, mask, tid, first)?
            }
            PagerAction::Forget { unit, mask } => {
                for part in g.parts(unit, mask) {
                    self.store.forget(part.start as u64, part.len());
                }
            }
            PagerAction::Cure { unit, mask } => {
                for part in g.parts(unit, mask) {
                    self.shared.area.cure(&part);
                }
            }
            PagerAction::Detach { unit, mask } => {
                g.parts(unit, mask).for_each(|part| self.shared.area.detach(&part));
            }
            PagerAction::Answer { command, ok } => {
                if let Some(reply) = self.state.answers.remove(&command) {
                    reply.give(ok);
                }
            }
            PagerAction::Drop { .. } => {}
        }
        Ok(())
    }

    /// Who is woken for a page that is not there comes back at once, for ever. Some of those that
    /// are woken are looked at: who comes back is, soon.
    fn look_after(&mut self, unit: UnitNo, mask: PageMask, tid: Tid) {
        self.state.wakes = self.state.wakes.wrapping_add(1);
        if self.state.wakes % LOOKED_AT != 0 {
            return;
        }
        let mut parts = self.pager.geometry().parts(unit, mask);
        // Where the kernel does not tell, nothing is known against it.
        let gone = parts.any(|part| self.shared.area.is_there(&part).is_ok_and(|there| !there));
        if gone && self.pager.vanished(unit, mask, tid) {
            self.state.why.insert(unit, "it was unmapped by somebody else".to_owned());
        }
    }

    fn take_slot(&mut self, unit: UnitNo) -> Option<ChunkFrame> {
        match self.state.held.remove(&unit) {
            Some(HeldFault::Mine(slot)) => Some(slot),
            Some(HeldFault::Protected(mut slot)) => {
                slot.empty();
                Some(slot)
            }
            _ => self.free.pop().or_else(|| self.bare.pop()),
        }
    }

    fn pieces(&self, unit: UnitNo, mask: PageMask) -> Vec<JobPiece> {
        let g = self.pager.geometry();
        let base = u64::from(unit) * g.unit_bytes() as u64;
        let piece = |p: Range<usize>| JobPiece {
            at: p.start as u64,
            start: p.start - base as usize,
            len: p.len(),
        };
        g.parts(unit, mask).map(piece).collect()
    }

    fn begin_read(&mut self, unit: UnitNo, mask: PageMask) {
        let Some(slot) = self.take_slot(unit) else {
            return;
        };
        let mut pieces = self.pieces(unit, mask);
        let gap = self.store.gap();
        // What lies between is read into the slot as well, and not looked at.
        pieces.dedup_by(|next, before| {
            let end = before.start + before.len;
            let near = next.start - end <= gap;
            if near {
                before.len = next.start + next.len - before.start;
            }
            near
        });
        self.state.held.insert(unit, HeldFault::Away);
        self.state.under_way.insert(unit, mask);
        self.state.reads.push(StoreJob {
            tag: u64::from(unit),
            buffer: StoreBuffer::Fill(slot),
            pieces,
        });
    }

    fn begin_write(&mut self, unit: UnitNo, mask: PageMask) {
        let (slot, protected) = match self.state.held.remove(&unit) {
            Some(HeldFault::Mine(slot)) => (slot, false),
            Some(HeldFault::Protected(slot)) => (slot, true),
            _ => return,
        };
        // One that was on trial is at work from here on: another slot's memory goes for it.
        while self.free.len() + self.pager.at_work() > self.pager.slots() {
            let Some(mut spare) = self.free.pop() else {
                break;
            };
            spare.empty();
            self.bare.push(spare);
        }
        let pieces = self.pieces(unit, mask);
        self.sum_up(unit, mask, &slot);
        let slot = Arc::new(slot);
        if protected {
            self.state.protected.insert(unit);
        }
        self.state.held.insert(unit, HeldFault::Shared(Arc::clone(&slot)));
        self.state.under_way.insert(unit, mask);
        self.state.writes.push(StoreJob {
            tag: u64::from(unit),
            buffer: StoreBuffer::Send(slot),
            pieces,
        });
    }

    fn release(&mut self, unit: UnitNo) {
        let (slot, protected) = match self.state.held.remove(&unit) {
            Some(HeldFault::Mine(slot)) => (Some(slot), false),
            Some(HeldFault::Protected(slot)) => (Some(slot), true),
            Some(HeldFault::Shared(slot)) => {
                (Arc::try_unwrap(slot).ok(), self.state.protected.remove(&unit))
            }
            Some(HeldFault::Away) | None => (None, false),
        };
        let Some(mut slot) = slot else {
            return;
        };
        // Together, those at work and those that keep their memory are what the map set aside for
        // slots.
        if !protected && self.free.len() + self.pager.at_work() < self.pager.slots() {
            self.free.push(slot);
        } else {
            slot.empty();
            self.bare.push(slot);
        }
    }

    /// Who waits is woken, or is to be woken `later`.
    fn install(
        &self,
        unit: UnitNo,
        mask: PageMask,
        protect: bool,
        mut later: Option<&mut Vec<Range<usize>>>,
    ) -> Result<(), SysError> {
        let slot: &ChunkFrame = match self.state.held.get(&unit) {
            Some(HeldFault::Mine(slot) | HeldFault::Protected(slot)) => slot,
            Some(HeldFault::Shared(slot)) => slot,
            Some(HeldFault::Away) | None => return Ok(()),
        };
        let g = self.pager.geometry();
        let base = unit as usize * g.unit_bytes();
        for part in g.parts(unit, mask) {
            patiently(|| {
                self.shared.area.install(&part, slot, part.start - base, protect, later.is_none())
            })?;
            if let Some(later) = &mut later {
                later.push(part);
            }
        }
        Ok(())
    }

    fn extract(&mut self, unit: UnitNo, mask: PageMask, dirty: PageMask) {
        // Emptied, for pages are moved there; and of a unit on trial only what its slot holds is
        // counted.
        let kept = self.free.pop().map(|mut slot| {
            slot.empty();
            slot
        });
        let Some(mut slot) = kept.or_else(|| self.bare.pop()) else {
            self.pager.extracted(unit, 0, 0, now());
            return;
        };
        let g = self.pager.geometry();
        let base = unit as usize * g.unit_bytes();
        let mut got = 0;
        let parts = g
            .parts(unit, mask & dirty)
            .map(|p| (p, false))
            .chain(g.parts(unit, mask & !dirty).map(|p| (p, true)));
        for (part, protected) in parts {
            let to = part.start - base;
            let out = self.shared.area.extract(&part, &mut slot, to, protected);
            let whole = if out.bytes == part.len() {
                out.bytes
            } else {
                out.bytes / g.grain_bytes() * g.grain_bytes()
            };
            if whole < out.bytes {
                // A grain of several pages of which some stay: all of it stays.
                let back = part.start + whole..part.start + out.bytes;
                let _mapped_already =
                    self.shared.area.install(&back, &slot, to + whole, protected, true);
            }
            for (_, m) in g.cover(part.start as u64..(part.start + whole) as u64, true) {
                got |= m;
            }
        }
        let zeros = self.zeros(unit, got & dirty, &slot);
        // What was clean was mapped against writing, and moves as it is.
        let held =
            if mask & !dirty == 0 { HeldFault::Mine(slot) } else { HeldFault::Protected(slot) };
        self.state.held.insert(unit, held);
        self.pager.extracted(unit, got, zeros, now());
    }

    fn copy_out(&mut self, unit: UnitNo, mask: PageMask) -> Result<(), SysError> {
        let Some(mut slot) = self.take_slot(unit) else {
            self.pager.extracted(unit, 0, 0, now());
            return Ok(());
        };
        let g = self.pager.geometry();
        let base = unit as usize * g.unit_bytes();
        for part in g.parts(unit, mask) {
            self.shared.area.copy_out(&part, &mut slot, part.start - base)?;
        }
        let zeros = self.zeros(unit, mask, &slot);
        self.state.held.insert(unit, HeldFault::Mine(slot));
        self.pager.extracted(unit, mask, zeros, now());
        Ok(())
    }

    fn poison(
        &mut self,
        unit: UnitNo,
        mask: PageMask,
        tid: Tid,
        first: bool,
    ) -> Result<(), SysError> {
        let why = self.state.why.remove(&unit);
        for part in self.pager.geometry().parts(unit, mask) {
            if first {
                let range = part.start as u64..part.end as u64;
                let address = self.shared.area.address() + range.start;
                let why = why.clone().unwrap_or_else(|| "its store failed".to_owned());
                (self.on_lost)(&LostBytes { range, address, thread: tid, why });
            }
            self.shared.area.poison(&part, tid)?;
        }
        Ok(())
    }
}

/// Tries again while the kernel is out of memory, for some seconds.
fn patiently(mut work: impl FnMut() -> Result<(), SysError>) -> Result<(), SysError> {
    for _ in 0..5_000 {
        match work() {
            // ENOMEM
            Err(error) if error.errno() == 12 => terrace_sys::sleep(Nanos::millis(1)),
            other => return other,
        }
    }
    work()
}
