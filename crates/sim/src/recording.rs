//! A recording as a source of accesses.
//!
//! The whole recording is the phase that counts. Its threads run each on its own, as fast as the
//! machine lets them; where a thread waited when it was recorded, or began later, it goes on when
//! the others have come to that time of the recording. That an address depends on a value loaded
//! before is handed to the core as what that load brings.

use crate::batch::{Batch, BlockPart, Places};
use crate::decoded::{Columns, Member, Sharing};
use crate::event::KEPT;
use crate::feed::{Feed, ThreadSupply};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{Read, Seek};
use std::ops::Range;
use std::sync::Arc;
use terrace_trace::{Block, BlockKind, TraceError, TraceReader};
use terrace_types::Nanos;

/// Something a recording can be read from.
pub trait RecordingSource: Read + Seek + Send {}
impl<T: Read + Seek + Send> RecordingSource for T {}

/// Opens a recording anew, for each run.
pub type OpenRecording = dyn Fn() -> std::io::Result<Box<dyn RecordingSource>> + Send + Sync;

/// A recording that can be run any number of times.
#[derive(Clone)]
pub struct Recording {
    open: Arc<OpenRecording>,
    /// Threads in it that make accesses, each with its blocks' positions in the file.
    threads: Arc<Vec<Vec<usize>>>,
    /// Their numbers in the recording.
    numbers: Arc<Vec<u32>>,
    /// Of each, the lines that it writes back, ascending in time.
    flushes: Arc<Vec<Vec<RecordedFlush>>>,
    accesses: u64,
    start: u64,
    /// What the file says of itself, and what is wrong with it at first sight.
    notes: Arc<Vec<String>>,
    /// All copies of it that are run at the same time decode each block once.
    sharing: Arc<Sharing>,
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording")
            .field("threads", &self.threads.len())
            .field("accesses", &self.accesses)
            .finish()
    }
}

/// Why a recording cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// It cannot be opened.
    #[error("{0}")]
    Open(#[from] std::io::Error),
    /// It is no recording, or damaged.
    #[error("{0}")]
    Trace(#[from] TraceError),
    /// Nothing can be concluded from it.
    #[error("{0}")]
    Useless(&'static str),
    /// Accesses are missing by design: of what is left, no time can be computed.
    #[error("it holds {0}, not all accesses; record all with `terrace record` to simulate")]
    Partial(String),
}

impl Recording {
    /// Reads the recording's head and index.
    ///
    /// # Errors
    /// [`RecordingError`].
    pub fn new(open: Arc<OpenRecording>) -> Result<Self, RecordingError> {
        Self::part(open, 0..u64::MAX)
    }

    /// A part of a recording: whole blocks in the order in which they were written, from the one
    /// with the first of these accesses to the one with the last.
    ///
    /// # Errors
    /// [`RecordingError`].
    pub fn part(open: Arc<OpenRecording>, part: Range<u64>) -> Result<Self, RecordingError> {
        let reader = TraceReader::open(open()?)?;
        if let Some(missing) = reader.header().describe_missing() {
            return Err(RecordingError::Partial(missing));
        }
        let mut threads: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let (mut accesses, mut start, mut passed) = (0, u64::MAX, 0);
        for (position, block) in reader.blocks().iter().enumerate() {
            if block.kind != BlockKind::Accesses {
                continue;
            }
            let before = passed;
            passed += u64::from(block.count);
            if before.max(part.start) < passed.min(part.end) {
                threads.entry(block.thread).or_default().push(position);
                accesses += u64::from(block.count);
                start = start.min(block.first_time);
            }
        }
        if accesses == 0 {
            return Err(RecordingError::Useless("it holds no accesses"));
        }
        let numbers: Vec<u32> = threads.keys().copied().collect();
        let flushes = Arc::new(vec![Vec::new(); numbers.len()]);
        let (threads, numbers) = (Arc::new(threads.into_values().collect()), Arc::new(numbers));
        let mut notes = reader.shortcomings();
        notes.extend(reader.header().notes.iter().cloned());
        let (notes, sharing) = (Arc::new(notes), Arc::new(Sharing::default()));
        Ok(Self { open, threads, numbers, flushes, accesses, start, notes, sharing })
    }

    /// The same, where threads write lines back besides: recordings have such operations as events,
    /// which a simulation leaves out by itself.
    #[must_use]
    pub fn with_flushes(mut self, flushes: impl IntoIterator<Item = RecordedFlush>) -> Self {
        let mut by_thread = vec![Vec::new(); self.numbers.len()];
        for flush in flushes {
            if let Ok(index) = self.numbers.binary_search(&flush.thread) {
                by_thread[index].push(flush);
            }
        }
        by_thread.iter_mut().for_each(|own| own.sort_by_key(|flush| flush.time));
        self.flushes = Arc::new(by_thread);
        self
    }

    /// Threads that make accesses.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Accesses in all.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    pub(crate) fn feed(&self) -> Result<RecordingFeed, RecordingError> {
        let reader = TraceReader::open((self.open)()?)?;
        let thread = || Cursor { next: 0, flushed: 0, reached: self.start, waiting: Vec::new() };
        Ok(RecordingFeed {
            cursors: self.threads.iter().map(|_| thread()).collect(),
            recording: self.clone(),
            reader,
            block: Block::new()?,
            folds: AddressFolds::default(),
            notes: self.notes.to_vec(),
            left_out: 0,
            member: self.sharing.member(),
        })
    }

    /// Blocks decoded so far, by all runs together.
    #[must_use]
    pub fn blocks_decoded(&self) -> u64 {
        self.sharing.decoded()
    }
}

/// Lines that a thread writes back at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedFlush {
    /// Its process, as the recording numbers it.
    pub process: u32,
    /// The thread, as the recording numbers it.
    pub thread: u32,
    /// When, in the recording's ticks: behind accesses of this time.
    pub time: u64,
    /// Addresses in the lines.
    pub addresses: Vec<u64>,
}

/// Where a thread is in the recording.
#[derive(Debug)]
struct Cursor {
    /// Of its blocks, the next to read.
    next: usize,
    /// Of its flushes, the next.
    flushed: usize,
    /// Time it has come to.
    reached: u64,
    /// What is left of its last block, backwards.
    waiting: Vec<ThreadSupply>,
}

/// A run of a recording.
pub(crate) struct RecordingFeed {
    recording: Recording,
    reader: TraceReader<Box<dyn RecordingSource>>,
    block: Block,
    cursors: Vec<Cursor>,
    folds: AddressFolds,
    notes: Vec<String>,
    /// Accesses of blocks that are damaged.
    left_out: u64,
    member: Member,
}

impl fmt::Debug for RecordingFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordingFeed")
            .field("recording", &self.recording)
            .field("notes", &self.notes)
            .finish()
    }
}

/// Where the GiB of a recording's first access begins in the simulated address space; the next that
/// is touched comes behind it.
pub const FIRST: u64 = 1 << KEPT;

/// Addresses of several processes, and of any width, in one space of 48 bits: each GiB that is
/// touched gets the next free GiB.
#[derive(Debug, Default)]
struct AddressFolds {
    places: HashMap<(u32, u64), u64>,
}

impl AddressFolds {
    /// Where a GiB of a process is: a GiB's number.
    fn place(&mut self, process: u32, gib: u64) -> u64 {
        let next = self.places.len() as u64 + 1;
        *self.places.entry((process, gib)).or_insert(next)
    }

    /// A flush at addresses of this space.
    fn flush(&mut self, flush: &RecordedFlush) -> ThreadSupply {
        let place = |address: &u64| {
            let gib = self.place(flush.process, address >> KEPT);
            gib << KEPT | address & ((1 << KEPT) - 1)
        };
        ThreadSupply::WriteBack(flush.addresses.iter().map(place).collect())
    }
}

impl RecordingFeed {
    /// Reads a thread's next block that can be read into its cursor; `false` at the end. What is
    /// damaged is left out and noted, as `terrace trace info` and `terrace report` do.
    fn read_on(&mut self, index: usize) -> bool {
        let cursor = &mut self.cursors[index];
        let next = self.recording.threads[index].get(cursor.next);
        let Some(position) = next.copied() else { return false };
        cursor.next += 1;
        let count = self.reader.blocks().get(position).map_or(0, |b| u64::from(b.count));
        let (reader, block) = (&mut self.reader, &mut self.block);
        let decode = |memory| match reader.read_packed(position, block) {
            Ok(()) => Ok(Columns::from_block(block, memory)),
            Err(error) => Err(error.to_string()),
        };
        let columns = match self.member.block(position, decode) {
            Ok(columns) => columns,
            Err(why) => {
                self.notes.push(format!("{why}; its {count} accesses are left out"));
                self.left_out += count;
                return true;
            }
        };
        let flushes = self.flushes_of(index, position, columns.last_time);
        let cursor = &mut self.cursors[index];
        let place = |(name, gib): &(u64, u64)| (*name, self.folds.place(columns.process, *gib));
        let places = Arc::new(columns.gibs.iter().map(place).collect::<Places>());
        let part = |from: usize, to: usize| {
            ThreadSupply::Accesses(Batch::Part(BlockPart {
                columns: columns.clone(),
                places: places.clone(),
                from,
                to,
            }))
        };
        // What the thread does before which access. Flushes come before waits.
        let mut cuts: Vec<(usize, Vec<ThreadSupply>)> = flushes;
        cuts.extend(columns.waits.iter().map(|(at, before, after)| {
            (*at, vec![ThreadSupply::Reached(*before), ThreadSupply::Until(*after)])
        }));
        cuts.sort_by_key(|(at, _)| *at);
        // Backwards: what comes first is taken last.
        cursor.waiting.push(ThreadSupply::Reached(columns.last_time));
        let mut end = columns.words.len();
        for (at, supplies) in cuts.into_iter().rev() {
            cursor.waiting.push(part(at, end));
            cursor.waiting.extend(supplies.into_iter().rev());
            end = at;
        }
        cursor.waiting.push(part(0, end));
        if columns.first_time > cursor.reached {
            cursor.waiting.push(ThreadSupply::Until(columns.first_time));
        }
        cursor.reached = columns.last_time;
        true
    }
}

impl RecordingFeed {
    /// What a thread flushes up to `last_time`, where its block at `position` ends: before which of
    /// the block's accesses.
    fn flushes_of(
        &mut self,
        index: usize,
        position: usize,
        last_time: u64,
    ) -> Vec<(usize, Vec<ThreadSupply>)> {
        let own = self.recording.flushes.get(index).map_or(&[][..], Vec::as_slice);
        let first = self.cursors[index].flushed.min(own.len());
        let due = own[first..].partition_point(|flush| flush.time <= last_time);
        self.cursors[index].flushed = first + due;
        let mut times = Vec::new();
        // A block that cannot be read was noted by who decoded it.
        if due > 0 && self.reader.read(position, &mut self.block).is_ok() {
            self.block.times_into(&mut times);
        }
        let mut cuts = Vec::new();
        for flush in &own[first..first + due] {
            let at = times.partition_point(|time| *time <= flush.time);
            cuts.push((at, vec![self.folds.flush(flush)]));
        }
        cuts
    }

    /// What a thread flushes behind its last access.
    fn last_flushes(&mut self, index: usize) -> Option<ThreadSupply> {
        let cursor = &mut self.cursors[index];
        let flush = self.recording.flushes.get(index)?.get(cursor.flushed)?;
        cursor.flushed += 1;
        Some(self.folds.flush(flush))
    }
}

impl Feed for RecordingFeed {
    fn bytes(&self) -> Option<u64> {
        None
    }

    fn threads(&self) -> usize {
        self.recording.threads()
    }

    fn prepare(&mut self) -> ThreadSupply {
        ThreadSupply::Done
    }

    fn step(&mut self, index: usize, _now: Nanos) -> ThreadSupply {
        loop {
            match self.cursors[index].waiting.pop() {
                Some(supply) => return supply,
                None if self.read_on(index) => {}
                None => return self.last_flushes(index).unwrap_or(ThreadSupply::Done),
            }
        }
    }

    fn recycle(&mut self, batch: Batch) {
        if let Batch::Part(part) = batch {
            self.member.recycle(part.columns);
        }
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn finish(&mut self) -> Result<u64, String> {
        match self.recording.accesses - self.left_out {
            0 => Err(format!("nothing of it can be read: {}", self.notes.join("; "))),
            accesses => Ok(accesses),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::WordAccess;
    use std::io::Cursor as Bytes;
    use terrace_trace::{Access, TraceHeader, TraceWriter};

    fn recording(
        write: impl FnOnce(&mut TraceWriter<Vec<u8>>),
    ) -> Result<Recording, RecordingError> {
        let mut writer = TraceWriter::new(
            Vec::new(),
            &TraceHeader { dependence: true, ..TraceHeader::default() },
        )
        .unwrap();
        write(&mut writer);
        let bytes = writer.finish().unwrap();
        Recording::new(Arc::new(move || {
            Ok(Box::new(Bytes::new(bytes.clone())) as Box<dyn RecordingSource>)
        }))
    }

    fn access(address: u64, depends: u8) -> Access {
        Access { address, size: 8, gap: 4, depends, ..Access::default() }
    }

    #[test]
    fn accesses_come_thread_by_thread_with_what_they_depend_on() {
        let recording = recording(|w| {
            w.access(0, 0, &access(0x7000_0000, 0)).unwrap();
            w.access(0, 0, &access(0x7100_0000, 0)).unwrap();
            w.access(0, 0, &access(0x7200_0000, 2)).unwrap();
            w.access(0, 1, &Access { store: true, ..access(0x7000_0040, 0) }).unwrap();
        })
        .unwrap();
        assert_eq!((recording.threads(), recording.accesses()), (2, 4));
        let mut feed = recording.feed().unwrap();
        assert_eq!(feed.prepare(), ThreadSupply::Done);
        let ThreadSupply::Accesses(events) = feed.step(0, Nanos::ZERO) else {
            panic!("accesses first")
        };
        let events: Vec<WordAccess> = events.iter().collect();
        assert_eq!(events.len(), 3);
        assert_eq!(events[0].value, events[2].address());
        assert_eq!((events[1].value, events[1].instructions()), (0, 4));
        assert!(matches!(feed.step(0, Nanos::ZERO), ThreadSupply::Reached(_)));
        assert_eq!(feed.step(0, Nanos::ZERO), ThreadSupply::Done);
        assert_eq!(feed.finish(), Ok(4));
    }

    #[test]
    fn processes_do_not_share_addresses_and_wide_ones_fit() {
        let mut folds = AddressFolds::default();
        let a = folds.place(0, 0x1_ffff);
        assert_eq!(a, folds.place(0, 0x1_ffff));
        assert_ne!(a, folds.place(1, 0x1_ffff));
        let places: Vec<u64> = (0..256u64).map(|gib| folds.place(7, gib << 20)).collect();
        assert!((0..256u64).all(|gib| folds.place(7, gib << 20) == places[gib as usize]));
        assert_eq!(places.iter().collect::<std::collections::HashSet<_>>().len(), 256);
    }

    /// Blocks of several processes, some with addresses that a word has no free space for, more
    /// GiBs than are found quickly, gaps that are cut off, and waits.
    #[test]
    fn blocks_are_what_was_recorded() {
        let mut x = 88_172_645_463_325_252u64;
        let mut random = move |below: u64| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 8) % below
        };
        for round in 0..30u64 {
            let gibs = [1, 3, 200][round as usize % 3];
            let wide = if round % 4 == 3 { 1 << 50 } else { 0 };
            let accesses: Vec<(u32, Access)> = (0..2000)
                .map(|_| {
                    let gib = random(gibs) * if round % 2 == 0 { 64 } else { 1 };
                    let gap = if random(50) == 0 { 40_000 } else { random(9) as u32 };
                    let address = gib << KEPT | random(1 << 12) | wide;
                    let (store, depends) = (random(3) == 0, random(16).saturating_sub(8) as u8);
                    (random(2) as u32, Access { store, gap, ..access(address, depends) })
                })
                .collect();
            let recording = recording(|w| {
                for (at, (process, access)) in accesses.iter().enumerate() {
                    // A thread a process.
                    w.access(*process, *process, access).unwrap();
                    if at % 700 == 699 && round % 5 == 0 {
                        w.advance(*process, *process, 1000).unwrap();
                    }
                }
            })
            .unwrap();
            let mut feed = recording.feed().unwrap();
            let mut places = HashMap::new();
            for process in 0..2u32 {
                let of: Vec<&Access> =
                    accesses.iter().filter(|a| a.0 == process).map(|a| &a.1).collect();
                let mut expected: Vec<WordAccess> = Vec::new();
                let mut loads: Vec<usize> = Vec::new();
                for (at, a) in of.iter().enumerate() {
                    let next = places.len() as u64 + 1;
                    let place: u64 = *places.entry((process, a.address >> KEPT)).or_insert(next);
                    let address = place << KEPT | a.address & ((1 << KEPT) - 1);
                    let on =
                        loads.len().checked_sub(usize::from(a.depends)).filter(|_| a.depends > 0);
                    if let Some(load) =
                        on.map(|on| &mut expected[loads[on]]).filter(|load| load.value == 0)
                    {
                        load.value = address;
                    }
                    if !a.store {
                        loads.push(at);
                    }
                    expected.push(WordAccess::new(address, a.store, u64::from(a.gap), 0));
                }
                let mut got: Vec<WordAccess> = Vec::new();
                loop {
                    match feed.step(process as usize, Nanos::ZERO) {
                        ThreadSupply::Accesses(batch) => got.extend(batch.iter()),
                        ThreadSupply::Done => break,
                        _ => {}
                    }
                }
                assert_eq!(got, expected, "round {round}, process {process}");
            }
            assert_eq!(feed.finish(), Ok(2000));
        }
    }

    /// The bytes of a recording of three blocks of one thread.
    fn three_blocks() -> Vec<u8> {
        let mut writer = TraceWriter::new(Vec::new(), &TraceHeader::default()).unwrap();
        for i in 0..3 * 32_768u64 {
            writer.access(0, 0, &access(0x7000_0000 + i % 4096 * 8, 0)).unwrap();
        }
        writer.finish().unwrap()
    }

    fn run_through(bytes: Vec<u8>) -> (Result<u64, String>, Vec<String>) {
        let open: Arc<OpenRecording> = Arc::new(move || Ok(Box::new(Bytes::new(bytes.clone()))));
        let mut feed = Recording::new(open).unwrap().feed().unwrap();
        while feed.step(0, Nanos::ZERO) != ThreadSupply::Done {}
        (feed.finish(), feed.notes())
    }

    #[test]
    fn a_recording_that_is_cut_off_or_damaged_is_run_as_far_as_it_goes_and_says_so() {
        let whole = three_blocks();
        assert_eq!(run_through(whole.clone()), (Ok(3 * 32_768), vec![]));
        let bytes = whole.clone();
        let open: Arc<OpenRecording> = Arc::new(move || Ok(Box::new(Bytes::new(bytes.clone()))));
        let part = |part| Recording::part(open.clone(), part).map(|r| r.accesses()).ok();
        let blocks = |count: u64| Some(count * 32_768);
        assert_eq!([part(0..1), part(0..32_768), part(0..32_769)], [1, 1, 2].map(blocks));
        let late = [part(32_767..32_769), part(65_536..65_537), part(7..u64::MAX)];
        assert_eq!(late, [2, 1, 3].map(blocks));
        assert_eq!([part(5..5), part(3 * 32_768..u64::MAX)], [None, None]);
        let cursor = Bytes::new(whole.clone());
        let blocks: Vec<_> = TraceReader::open(cursor).unwrap().blocks().to_vec();
        assert_eq!(blocks.len(), 3);
        // Cut between blocks, and within one.
        let (end, notes) = run_through(whole[..blocks[2].offset as usize].to_vec());
        assert_eq!(
            (end, notes),
            (Ok(2 * 32_768), vec!["the recording was not written to its end".to_owned()])
        );
        let (end, notes) = run_through(whole[..blocks[2].offset as usize + 100].to_vec());
        assert!(end == Ok(2 * 32_768) && notes[0].contains("the file ends within it"), "{notes:?}");
        // One byte of the second block is another.
        let mut flipped = whole;
        flipped[blocks[1].offset as usize + 200] ^= 0x40;
        let (end, notes) = run_through(flipped);
        assert_eq!(end, Ok(2 * 32_768));
        let [note] = &notes[..] else { panic!("{notes:?}") };
        assert!(note.contains("is damaged") && note.contains("32768 accesses are left out"));
    }

    #[test]
    fn a_recording_of_nothing_is_refused() {
        assert!(matches!(recording(|_| {}), Err(RecordingError::Useless(_))));
        let open: Arc<OpenRecording> = Arc::new(|| Ok(Box::new(Bytes::new(b"no trace".to_vec()))));
        assert!(matches!(Recording::new(open), Err(RecordingError::Trace(_))));
    }
}
