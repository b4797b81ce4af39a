//! The fault loop: one thread that reads many events at once, asks the [`Pager`] what to do, and
//! does it.

mod actions;

use crate::command::{Command, ServiceReport, Shared};
use crate::geometry::{ChunkNo, PageMask};
use crate::listeners::{LostBytes, OnCounts, OnLost, StallClock};
use crate::pager::{PageFault, Pager, PagerAction, ReadOutcome, WriteOutcome};
use crate::pager_affinity::PagerAffinity;
use crate::pressure::{PressureResponse, EVERY};
use crate::store::{BackingStore, CompletedJob, JobPiece, StoreBuffer, StoreError, StoreJob};
use crate::FarCounts;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, PoisonError};
use terrace_sys::{now, ChunkFrame, OneShotReply, SysError};
use terrace_types::{Bytes, Nanos, Tid};

/// Jobs that a store without a descriptor does before faults are looked for again.
const WRITES_AT_ONCE: usize = 2;
/// A store that cannot tell when it is done is asked so often.
const ASK_AGAIN: Nanos = Nanos::micros(50);
/// Of so many wakes for pages that are there, one is looked at.
const WAKE_SAMPLE_INTERVAL: u32 = 64;
/// Listeners of the counts are asked so often for a budget, though nothing happens.
const TELL_AGAIN: Nanos = Nanos::millis(200);

#[derive(Debug)]
enum FrameState {
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
    /// Free frames that keep their memory, and those that have none.
    pub free: Vec<ChunkFrame>,
    pub bare: Vec<ChunkFrame>,
    pub commands: Receiver<Command>,
    pub on_lost: OnLost,
    pub on_counts: Option<OnCounts>,
    pub stalls: Option<StallClock>,
    /// What the map may have without its frames, were there memory enough for all.
    pub set: Bytes,
    /// Memory that frames take of the map's.
    pub frame_bytes: Bytes,
    /// A checksum a page, when asked for.
    pub sums: Option<Vec<u32>>,
    pub state: State,
}

/// What changes while it runs.
#[derive(Debug, Default)]
pub(crate) struct State {
    frame_states: HashMap<ChunkNo, FrameState>,
    /// Pages of the jobs under way.
    under_way: HashMap<ChunkNo, PageMask>,
    reads: Vec<StoreJob>,
    /// Jobs were begun of which some may have ended already, without a word on the store's
    /// descriptor.
    begun: bool,
    writes: Vec<StoreJob>,
    dropped: Vec<Range<usize>>,
    /// Chunks whose frame was [`FrameState::Protected`] before a store got it.
    protected: HashSet<ChunkNo>,
    answers: HashMap<u64, Arc<OneShotReply>>,
    number: u64,
    why: HashMap<ChunkNo, String>,
    /// Everything is in memory, whatever the budget.
    gathered: bool,
    pager_affinity: PagerAffinity,
    pressure: PressureResponse,
    /// Whether the threads that wait for what is installed is woken later, and what that is.
    together: bool,
    to_wake: Vec<Range<usize>>,
    /// Threads woken for what was there already.
    wakes: u32,
    stop: bool,
}

impl State {
    /// At the start. `beside`: threads may go on beside the pager.
    pub fn of(beside: bool) -> Self {
        Self { pager_affinity: PagerAffinity::new(beside), ..Self::default() }
    }
}

impl Service {
    /// Serves until asked to stop.
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
                self.state.pager_affinity.observe(
                    &faults,
                    |at| g.page_of(at.wrapping_sub(base)),
                    now(),
                );
            }
            for f in faults.drain(..) {
                let page = self.pager.geometry().page_of(f.address.wrapping_sub(base));
                let touch = PageFault { tid: f.tid, page, write: f.write, protected: f.protected };
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

    /// Takes in jobs that have ended. Of several, the threads that wait is woken when all are
    /// there: it costs to wake a CPU, and the first thread that goes on there would be done before
    /// the next is woken.
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
            let chunk = d.job.tag as ChunkNo;
            let Some(mask) = self.state.under_way.remove(&chunk) else {
                continue;
            };
            match d.job.buffer {
                StoreBuffer::Fill(frame) => {
                    let result = d.result.and_then(|()| self.verify(chunk, mask, &frame));
                    self.state.frame_states.insert(chunk, FrameState::Mine(frame));
                    let outcome = match &result {
                        Ok(()) => ReadOutcome::Done,
                        Err(StoreError::Altered { .. }) => ReadOutcome::Altered,
                        Err(_) => ReadOutcome::Failed,
                    };
                    if let Err(error) = result {
                        self.state.why.insert(chunk, error.to_string());
                    }
                    self.pager.read_done(chunk, outcome, now());
                }
                StoreBuffer::Send(frame) => {
                    drop(frame);
                    let outcome =
                        if d.result.is_ok() { WriteOutcome::Done } else { WriteOutcome::Failed };
                    self.pager.write_done(chunk, outcome, now());
                }
            }
            self.act()?;
        }
        Ok(())
    }

    fn publish(&mut self) -> Result<(), SysError> {
        let sums = Bytes(self.sums.as_ref().map_or(0, |s| s.len() * 4) as u64);
        let metadata = self.pager.metadata() + self.store.metadata() + sums;
        let counts =
            FarCounts { woken_here: self.state.pager_affinity.woken_here, ..self.pager.counts() };
        let report = ServiceReport { counts, store_memory: self.store.memory(), metadata };
        *self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner) = report;
        let asked = self.on_counts.as_ref().and_then(|on| on(&report.counts, report.store_memory));
        if let Some(dram) = asked {
            self.set = dram - self.frame_bytes;
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
        let due = self.state.pressure.due(now);
        let total = self.stalls.as_ref().filter(|_| due).and_then(|stalls| stalls());
        total.is_some_and(|total| self.state.pressure.stalled(now, total))
    }

    /// What is left of the map's memory when it gave back what it should, but for as much as it
    /// cannot do without.
    fn left(&self) -> Bytes {
        let least = Bytes(16 * self.pager.geometry().chunk_bytes() as u64);
        self.state.pressure.left(self.set).max(least.min(self.set))
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
            if let PagerAction::Drop { chunk, mask } = action {
                self.state.dropped.extend(self.pager.geometry().parts(chunk, mask));
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

    /// Does what lets threads go on that wait for these pages.
    fn let_go_on(
        &mut self,
        action: PagerAction,
        chunk: ChunkNo,
        mask: PageMask,
    ) -> Result<(), SysError> {
        let g = self.pager.geometry();
        let mut pager_affinity = std::mem::take(&mut self.state.pager_affinity);
        // Who is to go on here is woken within `waking`.
        let together = self.state.together && !pager_affinity.is_awaited();
        let mut later = together.then(|| std::mem::take(&mut self.state.to_wake));
        let waits_here = |page| {
            let (its_chunk, bit) = g.split(page);
            its_chunk == chunk && mask & bit != 0
        };
        let result = pager_affinity.waking(waits_here, || match action {
            PagerAction::Install { protect, .. } => {
                self.install(chunk, mask, protect, later.as_mut())
            }
            PagerAction::Zeros { protect, .. } => g
                .parts(chunk, mask)
                .try_for_each(|part| patiently(|| self.shared.area.install_zeros(&part, protect))),
            PagerAction::Unprotect { .. } => {
                g.parts(chunk, mask).try_for_each(|part| self.shared.area.protect(&part, false))
            }
            _ => g.parts(chunk, mask).try_for_each(|part| self.shared.area.wake(&part)),
        });
        self.state.pager_affinity = pager_affinity;
        if let Some(later) = later {
            self.state.to_wake = later;
        }
        result
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
