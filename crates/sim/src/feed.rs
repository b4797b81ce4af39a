//! Where a program's accesses come from; a workload driven step by step is one such source.
//!
//! A workload's steps can be as long as they like (filling 160 MiB is one), and the simulator wants
//! accesses a few microseconds at a time. So the workload runs on a thread of its own that hands
//! accesses over in batches and waits when it is a few batches ahead. It makes a step only when it
//! is asked to, with the simulated time: nothing that it does depends on the host.

use crate::batch::Batch;
use crate::event::WordAccess;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::Mutex;
use std::thread::JoinHandle;
use terrace_types::Nanos;
use terrace_workload::{
    conduct, Algorithm, InstructionPace, ThreadStep, WordMemory, WorkloadRunner, WorkloadSpec,
};

/// Accesses in a batch.
const BATCH: usize = 8192;
/// Batches that the workload may be ahead.
const AHEAD: usize = 4;
/// Virtual address of a workload's first word.
pub const BASE: u64 = 0x1000_0000_0000;
/// Virtual address of the first byte of its own heap, where that is reported.
pub const HEAP: u64 = 0x0800_0000_0000;
const WORD: u64 = 8;
const LINE: u64 = 64;

/// A program as a source of accesses. Its threads are asked for one step after another; a step must
/// be taken whole, until something other than accesses comes, before another thread is asked.
pub trait Feed: std::fmt::Debug {
    /// Bytes that are mapped from [`BASE`] on; `None`: pages are mapped as they are touched.
    fn bytes(&self) -> Option<u64>;
    /// Threads of the measured phase.
    fn threads(&self) -> usize;
    /// What the first thread does before the measured phase.
    fn prepare(&mut self) -> ThreadSupply;
    /// What thread `index` does at `now`, counted from the begin of the phase.
    fn step(&mut self, index: usize, now: Nanos) -> ThreadSupply;
    /// Checks the results once all threads are done: accesses as the program counts them.
    ///
    /// # Errors
    /// What is wrong, in one sentence.
    fn finish(&mut self) -> Result<u64, String>;
    /// The host had no memory for the program's data: nothing that it did counts.
    fn lacks_memory(&self) -> bool {
        false
    }
    /// What a reader of the results must know of the source, once it has ended: what was left out.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    /// Takes back what has been run, for its memory.
    fn recycle(&mut self, _batch: Batch) {}
}

/// What a thread of the program has next.
#[derive(Debug, PartialEq, Eq)]
pub enum ThreadSupply {
    /// Accesses, in order.
    Accesses(Batch),
    /// The step is over; ask for another.
    Continue,
    /// It writes the lines at these addresses back, one instruction each (CLWB); the step goes on.
    WriteBack(Vec<u64>),
    /// It waits until all threads have come to this point.
    Meet,
    /// Its heap has so many bytes from [`HEAP`] on; the step goes on.
    Allocated(u64),
    /// The step is over, at this time of the recording, in its ticks.
    Reached(u64),
    /// It waits until the other threads have come to this time of the recording.
    Until(u64),
    /// It has ended. Of the first thread while it prepares: the measured phase begins.
    Done,
}

/// Which step is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepRequest {
    Prepare,
    Step(usize, Nanos),
    Finish,
}

/// A workload as a source of accesses.
#[derive(Debug)]
pub struct WorkloadFeed {
    ask: Option<SyncSender<StepRequest>>,
    reply: Option<Receiver<StepReply>>,
    worker: Option<JoinHandle<()>>,
    words: u64,
    threads: usize,
    in_step: bool,
    out_of_memory: bool,
}

#[derive(Debug)]
enum StepReply {
    Words(u64),
    /// The host has no memory for them.
    NoMemory,
    Supply(ThreadSupply),
    Finished(Result<u64, String>),
}

impl WorkloadFeed {
    /// Starts the workload, which touches nothing yet.
    #[must_use]
    pub fn new(spec: &WorkloadSpec) -> Self {
        Self::start(spec, true)
    }

    /// The same, and its own heap is not reported: its data alone.
    #[must_use]
    pub fn without_heap(spec: &WorkloadSpec) -> Self {
        Self::start(spec, false)
    }

    fn start(spec: &WorkloadSpec, heap: bool) -> Self {
        let (ask, asked) = sync_channel(1);
        let (sender, reply) = sync_channel(AHEAD);
        let (own, threads) = (spec.clone(), spec.threads as usize);
        let worker =
            std::thread::spawn(move || conduct(&own, Worker { asked, reply: sender, heap }));
        let words = match reply.recv() {
            Ok(StepReply::Words(words)) => words,
            _ => 0,
        };
        Self {
            ask: Some(ask),
            reply: Some(reply),
            worker: Some(worker),
            words,
            threads,
            in_step: false,
            out_of_memory: false,
        }
    }

    fn next(&mut self, ask: StepRequest) -> ThreadSupply {
        if !self.in_step && self.ask.as_ref().is_none_or(|a| a.send(ask).is_err()) {
            return ThreadSupply::Done;
        }
        match self.reply.as_ref().and_then(|r| r.recv().ok()) {
            Some(StepReply::Supply(supply)) => {
                self.in_step =
                    matches!(supply, ThreadSupply::Accesses(_) | ThreadSupply::Allocated(_));
                supply
            }
            Some(StepReply::NoMemory) => {
                self.out_of_memory = true;
                ThreadSupply::Done
            }
            // The worker is gone: only a bug of the workload's does that, and `finish` says so.
            _ => ThreadSupply::Done,
        }
    }
}

impl Feed for WorkloadFeed {
    fn bytes(&self) -> Option<u64> {
        Some(self.words * WORD)
    }

    fn threads(&self) -> usize {
        self.threads
    }

    fn prepare(&mut self) -> ThreadSupply {
        self.next(StepRequest::Prepare)
    }

    fn step(&mut self, index: usize, now: Nanos) -> ThreadSupply {
        self.next(StepRequest::Step(index, now))
    }

    fn lacks_memory(&self) -> bool {
        self.out_of_memory
    }

    fn finish(&mut self) -> Result<u64, String> {
        let asked = self.ask.as_ref().is_some_and(|a| a.send(StepRequest::Finish).is_ok());
        match self.reply.as_ref().filter(|_| asked).and_then(|r| r.recv().ok()) {
            Some(StepReply::Finished(outcome)) => outcome,
            _ => Err("the workload ended early".to_owned()),
        }
    }
}

impl Drop for WorkloadFeed {
    fn drop(&mut self) {
        // Without its channels the worker ends at the next batch.
        self.ask = None;
        self.reply = None;
        if let Some(worker) = self.worker.take() {
            let _ended = worker.join();
        }
    }
}

/// The thread that runs the workload.
struct Worker {
    asked: Receiver<StepRequest>,
    reply: SyncSender<StepReply>,
    heap: bool,
}

impl WorkloadRunner for Worker {
    type Out = ();

    fn conduct<A: Algorithm>(self, mut algorithm: A, spec: &WorkloadSpec) {
        let words = algorithm.words();
        if self.reply.send(StepReply::Words(words as u64)).is_err() {
            return;
        }
        let mut threads: Vec<A::Thread> = Vec::new();
        // Memory is taken when it is asked for: until then the program may turn out too large.
        let mut made = None;
        while let Ok(ask) = self.asked.recv() {
            if made.is_none() {
                made = Recorder::new(
                    words,
                    algorithm.pace().preparation,
                    self.reply.clone(),
                    self.heap,
                );
            }
            let Some(recorder) = &made else {
                let _gone = self.reply.send(StepReply::NoMemory);
                return;
            };
            let supply = match ask {
                StepRequest::Prepare => {
                    algorithm.prepare(recorder);
                    recorder.go_at(algorithm.pace().roi);
                    threads = (0..spec.threads).map(|i| algorithm.thread(i)).collect();
                    ThreadSupply::Done
                }
                StepRequest::Step(index, now) => match threads.get_mut(index) {
                    None => ThreadSupply::Done,
                    Some(thread) => match algorithm.step(recorder, thread, now) {
                        ThreadStep::More => ThreadSupply::Continue,
                        ThreadStep::Meet => ThreadSupply::Meet,
                        ThreadStep::Done => ThreadSupply::Done,
                    },
                },
                StepRequest::Finish => {
                    recorder.stop();
                    let outcome = algorithm
                        .finish(recorder, &threads)
                        .map(|o| o.accesses)
                        .map_err(|e| e.to_string());
                    let _gone = self.reply.send(StepReply::Finished(outcome));
                    return;
                }
            };
            if recorder.flush().is_break() || self.reply.send(StepReply::Supply(supply)).is_err() {
                return;
            }
        }
    }
}

/// Memory that notes what is done to it. Only one thread uses it; atomics are there because
/// [`WordMemory`] asks for `Sync`.
struct Recorder {
    words: Vec<AtomicU64>,
    batch: Vec<[AtomicU64; 2]>,
    filled: AtomicUsize,
    /// 1024ths of an instruction a load, a store, a word of the heap, a line read of it and a zero
    /// stored where one is, and those left over.
    paces: [AtomicU64; 5],
    rest: AtomicU64,
    /// Nobody listens (any more).
    silent: AtomicUsize,
    /// Bytes of the heap so far; `None`: it is not reported.
    allocated: Option<AtomicU64>,
    reply: Mutex<SyncSender<StepReply>>,
}

impl Recorder {
    /// `None`: the host has no memory for so many words.
    fn new(
        words: usize,
        pace: InstructionPace,
        reply: SyncSender<StepReply>,
        heap: bool,
    ) -> Option<Self> {
        let mut data = Vec::new();
        data.try_reserve_exact(words).ok()?;
        data.resize_with(words, AtomicU64::default);
        Some(Self {
            words: data,
            batch: (0..BATCH).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect(),
            filled: AtomicUsize::new(0),
            paces: [pace.load, pace.store, pace.heap, pace.own, pace.fill].map(AtomicU64::new),
            rest: AtomicU64::new(0),
            silent: AtomicUsize::new(0),
            allocated: heap.then(AtomicU64::default),
            reply: Mutex::new(reply),
        })
    }

    fn go_at(&self, pace: InstructionPace) {
        let [load, store, heap, own, fill] = &self.paces;
        load.store(pace.load, Ordering::Relaxed);
        store.store(pace.store, Ordering::Relaxed);
        heap.store(pace.heap, Ordering::Relaxed);
        own.store(pace.own, Ordering::Relaxed);
        fill.store(pace.fill, Ordering::Relaxed);
    }

    #[inline(always)]
    fn note_at(&self, address: u64, store: bool, value: u64, pace: &AtomicU64) {
        let at = self.filled.load(Ordering::Relaxed);
        let due = self.rest.load(Ordering::Relaxed) + pace.load(Ordering::Relaxed);
        self.rest.store(due & 1023, Ordering::Relaxed);
        let [a, b] = WordAccess::new(address, store, due >> 10, value).words();
        self.batch[at][0].store(a, Ordering::Relaxed);
        self.batch[at][1].store(b, Ordering::Relaxed);
        self.filled.store(at + 1, Ordering::Relaxed);
        if at + 1 == BATCH {
            let _reported_at_the_end_of_the_step = self.flush();
        }
    }

    #[cold]
    #[inline(never)]
    fn flush(&self) -> ControlFlow<()> {
        let filled = self.filled.swap(0, Ordering::Relaxed);
        if self.silent.load(Ordering::Relaxed) != 0 {
            return ControlFlow::Break(());
        }
        if filled == 0 {
            return ControlFlow::Continue(());
        }
        let read = |slot: &[AtomicU64; 2]| {
            WordAccess::from_words([0, 1].map(|i| slot[i].load(Ordering::Relaxed)))
        };
        let events: Batch = self.batch[..filled].iter().map(read).collect();
        let sent = self
            .reply
            .lock()
            .is_ok_and(|r| r.send(StepReply::Supply(ThreadSupply::Accesses(events))).is_ok());
        if sent {
            ControlFlow::Continue(())
        } else {
            self.stop();
            ControlFlow::Break(())
        }
    }

    /// Notes nothing from now on.
    fn stop(&self) {
        self.silent.store(1, Ordering::Relaxed);
    }
}

impl WordMemory for Recorder {
    #[inline(always)]
    fn load(&self, word: usize) -> u64 {
        let value = self.words[word].load(Ordering::Relaxed);
        self.note_at(BASE + word as u64 * WORD, false, value, &self.paces[0]);
        value
    }

    #[inline(always)]
    fn store(&self, word: usize, value: u64) {
        let fills = value == 0 && self.words[word].load(Ordering::Relaxed) == 0;
        self.words[word].store(value, Ordering::Relaxed);
        self.note_at(BASE + word as u64 * WORD, true, 0, &self.paces[if fills { 4 } else { 1 }]);
    }

    /// What comes to the heap is written word by word.
    fn reserve_bytes(&self, bytes: u64) {
        let Some(allocated) = &self.allocated else { return };
        let before = allocated.swap(bytes, Ordering::Relaxed);
        if self.flush().is_break() {
            return;
        }
        let reported = self
            .reply
            .lock()
            .is_ok_and(|r| r.send(StepReply::Supply(ThreadSupply::Allocated(bytes))).is_ok());
        if !reported {
            return self.stop();
        }
        for word in before.div_ceil(WORD)..bytes.div_ceil(WORD) {
            self.note_at(HEAP + word * WORD, true, 0, &self.paces[2]);
        }
    }

    fn listens(&self) -> bool {
        self.allocated.is_some()
    }

    /// A load or store of each line.
    fn own(&self, offset: u64, bytes: u64, write: bool) {
        let (mut at, end) = (HEAP + offset / WORD * WORD, HEAP + offset + bytes);
        while at < end {
            self.note_at(at, write, 0, &self.paces[3]);
            at = (at / LINE + 1) * LINE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All accesses of a whole run, and the accesses that the workload says it made.
    fn drain(text: &str) -> (Vec<WordAccess>, u64) {
        let spec = WorkloadSpec::parse(text).unwrap();
        let mut feed = WorkloadFeed::new(&spec);
        let mut all = Vec::new();
        loop {
            match feed.prepare() {
                ThreadSupply::Accesses(a) => all.extend(a.iter()),
                ThreadSupply::Allocated(_) => {}
                other => break assert_eq!(other, ThreadSupply::Done),
            }
        }
        let mut state = vec![true; feed.threads()];
        while state.iter().any(|s| *s) {
            for (i, running) in state.iter_mut().enumerate().filter(|s| *s.1) {
                loop {
                    match feed.step(i, Nanos::ZERO) {
                        ThreadSupply::Accesses(a) => all.extend(a.iter()),
                        ThreadSupply::Done => break *running = false,
                        _ => break,
                    }
                }
            }
        }
        (all, feed.finish().unwrap())
    }

    #[test]
    fn heap_accesses_are_reported_to_a_listener() {
        let spec = WorkloadSpec::parse("npb-cg,fast=1MiB,threads=1,accesses=1").unwrap();
        let reported = |mut feed: WorkloadFeed| {
            let (mut allocated, mut heap) = (0, Vec::new());
            loop {
                match feed.prepare() {
                    ThreadSupply::Accesses(a) => {
                        heap.extend(a.iter().filter(|e| e.address() < BASE))
                    }
                    ThreadSupply::Allocated(bytes) => allocated = bytes,
                    _ => return (allocated, heap),
                }
            }
        };
        let (allocated, heap) = reported(WorkloadFeed::new(&spec));
        assert!(
            allocated > 100_000 && heap.iter().all(|e| e.address() < HEAP + allocated),
            "{allocated}"
        );
        // Once word by word when it is filled.
        let later = &heap[allocated.div_ceil(WORD) as usize..];
        let pages: std::collections::HashSet<u64> =
            later.iter().map(|e| e.address() / 4096).collect();
        assert_eq!(pages.len() as u64, allocated.div_ceil(4096), "all of it is gone over");
        let written = later.iter().filter(|e| e.store()).count();
        assert!(
            written > later.len() / 4 && written < later.len() * 3 / 4,
            "{written} of {}",
            later.len()
        );
        let (allocated, heap) = reported(WorkloadFeed::without_heap(&spec));
        assert!(allocated == 0 && heap.is_empty());
    }

    #[test]
    fn a_graphs_table_of_chances_is_read_for_every_edge_drawn() {
        let spec = WorkloadSpec::parse("graph-bfs,fast=256KiB,threads=1,accesses=1").unwrap();
        let (mut feed, mut allocated, mut reads, mut stores) =
            (WorkloadFeed::new(&spec), 0, 0_u64, 0_u64);
        loop {
            match feed.prepare() {
                ThreadSupply::Accesses(a) => {
                    reads += a.iter().filter(|e| e.address() < HEAP + 65_536 && !e.store()).count()
                        as u64;
                    stores += a.iter().filter(|e| e.address() >= BASE && e.store()).count() as u64;
                }
                ThreadSupply::Allocated(bytes) => allocated = bytes,
                _ => break,
            }
        }
        assert_eq!(allocated, 65_536);
        // Eleven levels are drawn by threes, twice. Of each edge both ends are counted, and placed
        // with two stores each; its zeros are two; of each vertex three words are written.
        let (edges, vertices) = (reads / (2 * 4), 2048);
        assert_eq!(edges, 11 * vertices);
        assert!(stores.abs_diff(8 * edges + 3 * vertices) < 10, "{stores}");
        assert!(WorkloadFeed::without_heap(&spec).prepare() != ThreadSupply::Allocated(65_536));
    }

    #[test]
    fn all_accesses_come_and_the_results_are_right() {
        for text in [
            "skew,fast=256KiB,accesses=50k",
            "graph-bfs,fast=256KiB,accesses=1",
            "stream,fast=256KiB,accesses=9k",
        ] {
            let (events, accesses) = drain(text);
            assert!(events.len() as u64 > accesses && accesses > 0, "{text}");
            assert_eq!(drain(text), (events, accesses), "{text}");
        }
    }

    #[test]
    fn skew_is_filled_then_read_and_written() {
        let (events, accesses) = drain("skew,fast=64KiB,size=64KiB,hot_size=64KiB,accesses=10k");
        assert_eq!(accesses, 10_000);
        let filled = 2 * 65_536 / 8;
        assert!(events[..filled]
            .iter()
            .enumerate()
            .all(|(i, e)| e.store() && e.address() == BASE + 8 * i as u64));
        // Of 10,000 accesses 80% are a load and a store, the rest a load.
        let stores = events[filled..].iter().filter(|e| e.store()).count();
        assert_eq!(events.len() - filled, 10_000 + stores);
        assert!((7_800..8_200).contains(&stores), "{stores}");
        let instructions: u64 = events.iter().map(|e| e.instructions()).sum();
        assert!((9.7..9.9).contains(&(instructions as f64 / events.len() as f64)));
    }

    #[test]
    fn a_matrix_is_drawn_at_the_pace_that_was_counted() {
        let mut feed =
            WorkloadFeed::new(&WorkloadSpec::parse("npb-cg,fast=64MiB,accesses=1").unwrap());
        let (mut accesses, mut instructions) = (0u64, 0);
        loop {
            match feed.prepare() {
                ThreadSupply::Accesses(a) => {
                    accesses += a.len() as u64;
                    instructions += a.iter().map(|e| e.instructions()).sum::<u64>();
                }
                ThreadSupply::Allocated(_) => {}
                other => break assert_eq!(other, ThreadSupply::Done),
            }
        }
        // `callgrind_annotate --inclusive=yes` of `terrace-workload npb-cg,accesses=1M,fast=64MiB`:
        // `Cg::new` and `Cg::prepare`.
        let counted = 741_253_833 + 952_335_806;
        assert!(instructions.abs_diff(counted) < counted / 100, "{instructions} in {accesses}");
    }

    #[test]
    fn a_feed_can_be_left_in_the_middle() {
        let mut feed = WorkloadFeed::new(&WorkloadSpec::parse("skew,fast=8MiB").unwrap());
        assert!(matches!(feed.prepare(), ThreadSupply::Accesses(_)));
    }

    #[test]
    fn a_heap_is_written_as_it_grows() {
        let spec = WorkloadSpec::parse("npb-cg,fast=1MiB,accesses=1M").unwrap();
        let (mut feed, mut allocated, mut heap) =
            (WorkloadFeed::new(&spec), Vec::new(), Vec::new());
        loop {
            match feed.prepare() {
                ThreadSupply::Accesses(a) => heap.extend(a.iter().filter(|e| e.address() < BASE)),
                ThreadSupply::Allocated(bytes) => allocated.push((heap.len(), bytes)),
                other => break assert_eq!(other, ThreadSupply::Done),
            }
        }
        let [(before, bytes)] = allocated[..] else { panic!("{allocated:?}") };
        assert_eq!(before, 0);
        let filled = heap.iter().zip(0..bytes.div_ceil(WORD));
        assert!(filled.clone().all(|(e, word)| e.store() && e.address() == HEAP + word * WORD));
        assert_eq!(filled.count() as u64, bytes.div_ceil(WORD));
        let without = WorkloadFeed::without_heap(&spec).prepare();
        assert!(
            matches!(without, ThreadSupply::Accesses(a) if a.iter().all(|e| e.address() >= BASE))
        );
    }
}
