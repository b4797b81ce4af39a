//! A store behind memory: the live pager over the simulated page tables.
//!
//! ```text
//!   core ── touches what is not mapped ──► waits          told after half a fault ──► pager ──► actions
//!     ▲                                                                                 ▲          │ map, take out: the pager's CPU
//!     └────── woken half a fault after it is mapped ◄───────────────────────────────────┼──────────┤
//!                                                                                  done │          │ read, write
//!                                                                                       └─ store ◄─┘ one queue, served in order
//! ```
//!
//! The pager's thread has a CPU of its own, which is busy for each page that it maps or takes out.
//! A device serves its requests one after the other and tells of each a latency later; compressed
//! memory is the pager's CPU at work. The program's bytes are not there, so no page is found to be
//! zeros when it goes: each written page is stored. What it costs to write to a page that came
//! clean is a fault like any other.

use crate::memory::{BasePage, ProgramMemory, ABSENT, PROTECTED};
use crate::pool::FrameUse;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use terrace_machine::FarStore;
use terrace_model::PS;
use terrace_policy::far::geometry::{runs, ChunkNo, FarPageNo, Geometry, PageMask};
use terrace_policy::far::pager::{
    PageFault, Pager, PagerAction, PagerSettings, PagerTuning, ReadOutcome, WriteOutcome,
};
use terrace_policy::far::FarCounts;
use terrace_types::{Bytes, Tick, Tid};

const PAGE_SHIFT: u32 = 12;
/// All addresses that a program can have.
const ADDRESSES: Bytes = Bytes(1 << 47);

/// What happens next, in the order of time and then of number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FarEvent {
    Reported {
        thread: usize,
        far_page: FarPageNo,
        write: bool,
    },
    Read(ChunkNo),
    Written(ChunkNo),
    /// The pager's CPU has time to store this.
    Store {
        chunk: ChunkNo,
        mask: PageMask,
    },
}

/// Memory with a store behind it.
#[derive(Debug)]
pub struct SimFarMemory {
    pager: Pager,
    store: FarStore,
    /// Where pages may lie, indexes of nodes.
    nodes: Vec<usize>,
    events: BinaryHeap<Reverse<(u64, u64, FarEvent)>>,
    number: u64,
    /// When the pager's CPU, and the store, have done what they were given, picoseconds.
    pager_free: u64,
    store_free: u64,
    /// The pager's CPU at work, picoseconds.
    worked: u64,
    /// Threads that wait, by page.
    waiting: HashMap<FarPageNo, Vec<usize>>,
    /// Threads that go on, and when.
    woken: Vec<(usize, u64)>,
    /// Pages whose translations are to be dropped.
    stale: Vec<u64>,
}

/// What a pager did, from the program's start on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FarCount {
    /// Memory that the program could have.
    pub dram_bytes: u64,
    /// Faults reported to the pager.
    pub faults: u64,
    /// Of them, those that waited for the store.
    pub misses: u64,
    /// Bytes read from the store.
    pub read_bytes: u64,
    /// Bytes written to it.
    pub written_bytes: u64,
    /// Bytes read ahead of need.
    pub prefetched_bytes: u64,
    /// Of them, bytes thrown away untouched.
    pub wasted_bytes: u64,
}

impl FarCount {
    /// Of a run with so much memory.
    #[must_use]
    pub const fn from_counts(counts: &FarCounts, dram: Bytes) -> Self {
        Self {
            dram_bytes: dram.0,
            faults: counts.faults,
            misses: counts.misses,
            read_bytes: counts.read_bytes,
            written_bytes: counts.written_bytes,
            prefetched_bytes: counts.prefetched_bytes,
            wasted_bytes: counts.wasted_bytes,
        }
    }
}

/// Time of `bytes` at a bandwidth, picoseconds.
fn transfer(bytes: u64, rate: terrace_types::BytesPerSec) -> u64 {
    (u128::from(bytes) * 1_000_000_000_000 / u128::from(rate.0.max(1))) as u64
}

impl SimFarMemory {
    /// Nothing in memory yet, of which there is `dram` on `nodes`; `None` if that is less than a
    /// pager can do with.
    #[must_use]
    pub fn new(
        store: FarStore,
        dram: Bytes,
        nodes: Vec<usize>,
        tuning: PagerTuning,
    ) -> Option<Self> {
        let chunk = PagerSettings::chunk_for(dram);
        let geometry =
            Geometry::new(ADDRESSES, chunk, PAGE_SHIFT).filter(|_| dram >= Self::least())?;
        Some(Self {
            pager: Pager::new(
                geometry,
                PagerSettings { tuning, ..PagerSettings::new(dram, chunk) },
            ),
            store,
            nodes,
            events: BinaryHeap::new(),
            number: 0,
            pager_free: 0,
            store_free: 0,
            worked: 0,
            waiting: HashMap::new(),
            woken: Vec::new(),
            stale: Vec::new(),
        })
    }

    /// The least memory that it can do with.
    #[must_use]
    pub const fn least() -> Bytes {
        PagerSettings::least(Bytes::ZERO, PagerSettings::chunk_for(Bytes::ZERO))
    }

    /// What the pager did so far.
    #[must_use]
    pub fn counts(&self) -> FarCounts {
        self.pager.counts()
    }

    /// CPU time of the pager's thread so far.
    #[must_use]
    pub const fn worked(&self) -> terrace_types::Nanos {
        terrace_types::Nanos(self.worked / PS)
    }

    /// A thread touched page `vpn` at `time` (picoseconds), and waits: it is among those woken
    /// later.
    pub fn touch(&mut self, thread: usize, vpn: u64, write: bool, time: u64) {
        self.waiting.entry(vpn).or_default().push(thread);
        let reported = time + self.half_a_fault();
        self.then(reported, FarEvent::Reported { thread, far_page: vpn, write });
    }

    /// Threads woken since it was asked last, and when they go on, picoseconds.
    pub fn woken(&mut self) -> Vec<(usize, u64)> {
        std::mem::take(&mut self.woken)
    }

    /// Pages that went since it was asked last.
    pub fn stale(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.stale)
    }

    /// When something happens next, if anything is under way.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        self.events.peek().map(|e| e.0 .0)
    }

    /// Lets happen what does before `end`, picoseconds.
    pub fn pass(&mut self, memory: &mut ProgramMemory, end: u64) {
        while self.next().is_some_and(|time| time < end) {
            let Some(Reverse((time, _, next))) = self.events.pop() else { return };
            let begin = self.pager_free.max(time);
            self.pager_free = begin;
            let now = Tick(begin / PS);
            match next {
                FarEvent::Reported { thread, far_page, write } => {
                    let protected =
                        write && memory.page_of(far_page).is_some_and(|page| page.frame != ABSENT);
                    self.pager.touch(
                        PageFault { tid: Tid(thread as i32 + 1), page: far_page, write, protected },
                        now,
                    );
                }
                FarEvent::Read(chunk) => self.pager.read_done(chunk, ReadOutcome::Done, now),
                FarEvent::Written(chunk) => self.pager.write_done(chunk, WriteOutcome::Done, now),
                FarEvent::Store { chunk, mask } => {
                    self.work(self.asks(chunk, mask, true));
                    self.pager.write_done(chunk, WriteOutcome::Done, Tick(self.pager_free / PS));
                }
            }
            self.act(memory);
            self.pager.balance(Tick(self.pager_free / PS));
            self.act(memory);
        }
    }

    const fn half_a_fault(&self) -> u64 {
        self.store.fault.0 * PS / 2
    }

    fn then(&mut self, time: u64, next: FarEvent) {
        self.number += 1;
        self.events.push(Reverse((time, self.number, next)));
    }

    /// The pager's CPU is busy for so long, picoseconds.
    fn work(&mut self, span: u64) {
        self.pager_free += span;
        self.worked += span;
    }

    /// What reading or writing pages keeps the store busy, picoseconds.
    fn asks(&self, chunk: ChunkNo, mask: PageMask, write: bool) -> u64 {
        let bytes: usize = self.pager.geometry().parts(chunk, mask).map(|part| part.len()).sum();
        let rate = if write { self.store.write_bandwidth } else { self.store.read_bandwidth };
        runs(mask).count() as u64 * self.store.operation.0 * PS + transfer(bytes as u64, rate)
    }

    fn act(&mut self, memory: &mut ProgramMemory) {
        while let Some(action) = self.pager.next_action() {
            self.perform(memory, action);
        }
    }

    fn perform(&mut self, memory: &mut ProgramMemory, action: PagerAction) {
        match action {
            PagerAction::Read { chunk, mask } if self.store.on_cpu => {
                self.work(self.asks(chunk, mask, false));
                self.then(self.pager_free, FarEvent::Read(chunk));
            }
            PagerAction::Write { chunk, mask } if self.store.on_cpu => {
                self.then(self.pager_free, FarEvent::Store { chunk, mask })
            }
            PagerAction::Read { chunk, mask } => {
                let done = self.request(self.asks(chunk, mask, false), self.store.read_latency.0);
                self.then(done, FarEvent::Read(chunk));
            }
            PagerAction::Write { chunk, mask } => {
                let done = self.request(self.asks(chunk, mask, true), self.store.write_latency.0);
                self.then(done, FarEvent::Written(chunk));
            }
            PagerAction::Install { chunk, mask, protect }
            | PagerAction::Zeros { chunk, mask, protect } => {
                for far_page in self.far_pages(chunk, mask) {
                    self.work(self.store.page.0 * PS);
                    self.map(memory, far_page, protect);
                }
                self.wake(chunk, mask);
            }
            PagerAction::Unprotect { chunk, mask } => {
                for far_page in self.far_pages(chunk, mask) {
                    if let Some(page) = memory.page_of_mut(far_page) {
                        page.bits &= !PROTECTED;
                    }
                }
                self.wake(chunk, mask);
            }
            PagerAction::Wake { chunk, mask, .. } => self.wake(chunk, mask),
            PagerAction::Drop { chunk, mask } => self.unmap(memory, chunk, mask),
            PagerAction::Extract { chunk, mask, .. } => {
                self.unmap(memory, chunk, mask);
                self.pager.extracted(chunk, mask, 0, Tick(self.pager_free / PS));
            }
            // Of commands, which nobody gives here; of frames, whose memory is not simulated; and
            // of stores that fail.
            PagerAction::CopyOut { .. }
            | PagerAction::Release { .. }
            | PagerAction::Poison { .. }
            | PagerAction::Forget { .. }
            | PagerAction::Cure { .. }
            | PagerAction::Detach { .. }
            | PagerAction::Answer { .. } => {}
        }
    }

    /// When a request made now is done, picoseconds.
    fn request(&mut self, busy: u64, latency: u64) -> u64 {
        self.store_free = self.store_free.max(self.pager_free) + busy;
        self.store_free + latency * PS
    }

    fn far_pages(&self, chunk: ChunkNo, mask: PageMask) -> impl Iterator<Item = FarPageNo> {
        let geometry = self.pager.geometry();
        runs(mask)
            .flat_map(|(first, count)| first..first + count)
            .map(move |bit| geometry.page_at(chunk, bit))
    }

    fn map(&mut self, memory: &mut ProgramMemory, far_page: FarPageNo, protect: bool) {
        let frame = self
            .nodes
            .iter()
            .find_map(|node| Some((*node, memory.pools[*node].take(memory.cpu, FrameUse::Move)?)));
        // The pager keeps to its budget, which is less than all frames.
        let Some((node, frame)) = frame else {
            memory.refused += 1;
            return;
        };
        let bits = if protect { PROTECTED } else { 0 };
        match memory.page_for(far_page) {
            Some(page) if page.frame == ABSENT => {
                *page = BasePage { frame: frame as u32, node: node as u8, bits, part: 0 }
            }
            // Fetched ahead beyond what the program has mapped, or there already.
            _ => memory.pools[node].give_back(memory.cpu, frame, false),
        }
    }

    fn unmap(&mut self, memory: &mut ProgramMemory, chunk: ChunkNo, mask: PageMask) {
        for far_page in self.far_pages(chunk, mask) {
            self.work(self.store.page.0 * PS);
            let Some(page) = memory.page_of_mut(far_page).filter(|page| page.frame != ABSENT)
            else {
                continue;
            };
            let (frame, node) = (u64::from(page.frame), page.node as usize);
            *page = BasePage { frame: ABSENT, node: 0, bits: 0, part: 0 };
            memory.pools[node].give_back(memory.cpu, frame, false);
            self.stale.push(far_page);
        }
    }

    fn wake(&mut self, chunk: ChunkNo, mask: PageMask) {
        let time = self.pager_free + self.half_a_fault();
        for far_page in self.far_pages(chunk, mask) {
            for thread in self.waiting.remove(&far_page).unwrap_or_default() {
                self.woken.push((thread, time));
            }
        }
    }
}
