//! A recording as a source of accesses.
//!
//! The whole recording is the phase that counts. Its threads run each on its own, as fast as the machine lets them; where
//! a thread waited when it was recorded, or began later, it goes on when the others have come to that time of the
//! recording. That an address depends on a value loaded before is handed to the core as what that load brings.

use crate::decoded::{Columns, Member, Sharing};
use crate::event::{Batch, Event};
use crate::feed::{Feed, Supply};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{Read, Seek};
use std::sync::Arc;
use terrace_trace::{Block, BlockKind, TraceError, TraceReader};
use terrace_types::Nanos;

/// Something a recording can be read from.
pub trait Source: Read + Seek + Send {}
impl<T: Read + Seek + Send> Source for T {}

/// Opens a recording anew, for each run.
pub type Open = dyn Fn() -> std::io::Result<Box<dyn Source>> + Send + Sync;

/// A recording that can be run any number of times.
#[derive(Clone)]
pub struct Recording {
    open: Arc<Open>,
    /// Threads in it that make accesses, each with its blocks' positions in the file.
    threads: Arc<Vec<Vec<usize>>>,
    accesses: u64,
    start: u64,
    /// All copies of it that are run at the same time decode each block once.
    sharing: Arc<Sharing>,
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").field("threads", &self.threads.len()).field("accesses", &self.accesses).finish()
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
    /// Nothing can be told from it.
    #[error("{0}")]
    Useless(&'static str),
}

impl Recording {
    /// Reads the recording's head and index.
    ///
    /// # Errors
    /// [`RecordingError`].
    pub fn new(open: Arc<Open>) -> Result<Self, RecordingError> {
        let reader = TraceReader::open(open()?)?;
        if reader.header().period > 1 {
            return Err(RecordingError::Useless("it holds one access in many; record with --period 1 to simulate"));
        }
        let mut threads: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let (mut accesses, mut start) = (0, u64::MAX);
        for (position, block) in reader.blocks().iter().enumerate() {
            if block.kind == BlockKind::Accesses && block.count > 0 {
                threads.entry(block.thread).or_default().push(position);
                accesses += u64::from(block.count);
                start = start.min(block.first_time);
            }
        }
        if accesses == 0 {
            return Err(RecordingError::Useless("it holds no accesses"));
        }
        let threads = Arc::new(threads.into_values().collect());
        Ok(Self { open, threads, accesses, start, sharing: Arc::new(Sharing::default()) })
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
        let thread = || Cursor { next: 0, reached: self.start, waiting: Vec::new() };
        Ok(RecordingFeed {
            cursors: self.threads.iter().map(|_| thread()).collect(),
            recording: self.clone(),
            reader,
            block: Block::new()?,
            folds: Folds::default(),
            failed: None,
            member: self.sharing.member(),
            spare: Vec::new(),
        })
    }

    /// Blocks decoded so far, by all runs together.
    #[must_use]
    pub fn blocks_decoded(&self) -> u64 {
        self.sharing.decoded()
    }
}

/// Where a thread is in the recording.
#[derive(Debug)]
struct Cursor {
    /// Of its blocks, the next to read.
    next: usize,
    /// Time it has come to.
    reached: u64,
    /// What is left of its last block, backwards.
    waiting: Vec<Supply>,
}

/// A run of a recording.
pub(crate) struct RecordingFeed {
    recording: Recording,
    reader: TraceReader<Box<dyn Source>>,
    block: Block,
    cursors: Vec<Cursor>,
    folds: Folds,
    failed: Option<String>,
    member: Member,
    /// Batches that have been run.
    spare: Vec<Batch>,
}

impl fmt::Debug for RecordingFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordingFeed").field("recording", &self.recording).field("failed", &self.failed).finish()
    }
}

/// Bits of an address that stay as they are.
const KEPT: u32 = 30;

/// Where the GiB of a recording's first access begins in the simulated address space; the next that is touched comes behind it.
pub const FIRST: u64 = 1 << KEPT;

/// Places that are found without the table.
const NEAR: usize = 64;

/// Addresses of several processes, and of any width, in one space of 48 bits: each GiB that is touched gets the next
/// free GiB.
#[derive(Debug)]
struct Folds {
    places: HashMap<(u32, u64), u64>,
    /// Of one process, some GiBs' places, by the GiB's number; never asked about another process.
    near: [(u64, u64); NEAR],
    process: Option<u32>,
}

impl Default for Folds {
    fn default() -> Self {
        Self { places: HashMap::new(), near: [(u64::MAX, 0); NEAR], process: None }
    }
}

impl Folds {
    /// What follows is about this process.
    fn turn_to(&mut self, process: u32) {
        if self.process != Some(process) {
            self.near.fill((u64::MAX, 0));
            self.process = Some(process);
        }
    }

    #[inline(always)]
    fn fold(&mut self, address: u64) -> u64 {
        let gib = address >> KEPT;
        let (known, place) = self.near[gib as usize % NEAR];
        let place = if known == gib { place } else { self.look_up(gib) };
        place | address & ((1 << KEPT) - 1)
    }

    #[inline(never)]
    fn look_up(&mut self, gib: u64) -> u64 {
        let next = self.places.len() as u64 + 1;
        let place = *self.places.entry((self.process.unwrap_or(0), gib)).or_insert(next) << KEPT;
        self.near[gib as usize % NEAR] = (gib, place);
        place
    }
}

impl RecordingFeed {
    /// Reads a thread's next block into its cursor; `false` at the end.
    fn read_on(&mut self, index: usize) -> bool {
        let cursor = &mut self.cursors[index];
        let Some(position) = self.recording.threads[index].get(cursor.next) else { return false };
        cursor.next += 1;
        let (reader, block) = (&mut self.reader, &mut self.block);
        let decode = |memory| match reader.read(*position, block) {
            Ok(()) => Ok(Columns::of(block, memory)),
            Err(error) => Err(error.to_string()),
        };
        let columns = match self.member.block(*position, decode) {
            Ok(columns) => columns,
            Err(why) => {
                self.failed = Some(why);
                return false;
            }
        };
        self.folds.turn_to(columns.process);
        let mut batch = self.spare.pop().unwrap_or_default();
        fill(&mut batch, &columns, &mut self.folds);
        // Backwards: what comes first is taken last.
        cursor.waiting.push(Supply::Reached(columns.last_time));
        for (at, before, after) in columns.waits.iter().rev() {
            cursor.waiting.push(Supply::Accesses(batch.split_off(*at)));
            cursor.waiting.push(Supply::Until(*after));
            cursor.waiting.push(Supply::Reached(*before));
        }
        cursor.waiting.push(Supply::Accesses(batch));
        if columns.first_time > cursor.reached {
            cursor.waiting.push(Supply::Until(columns.first_time));
        }
        cursor.reached = columns.last_time;
        true
    }
}

/// A block's accesses; a load that another address depends on brings that address.
fn fill(batch: &mut Batch, columns: &Columns, folds: &mut Folds) {
    let Batch { words, values } = batch;
    words.clear();
    values.clear();
    let accesses = columns.addresses.iter().zip(&columns.kinds).zip(&columns.gaps);
    words.extend(accesses.map(|((address, kind), gap)| {
        let [word, _] = Event::new(folds.fold(*address), kind.is_store(), u64::from(*gap), 0).words();
        word
    }));
    if columns.kinds.iter().fold(0, |all, kind| all | kind.depends()) == 0 {
        return;
    }
    values.resize(words.len(), 0);
    /// As far back as a dependence reaches.
    const LOADS: usize = 16;
    let (mut loads, mut count) = ([0usize; LOADS], 0usize);
    for (at, (kind, word)) in columns.kinds.iter().zip(words.iter()).enumerate() {
        let back = usize::from(kind.depends());
        if back > 0 && back <= count {
            let value = &mut values[loads[(count - back) % LOADS]];
            if *value == 0 {
                *value = Event::from_words([*word, 0]).address();
            }
        }
        // Written always and counted where it is a load: no branch, which could not be foreseen.
        loads[count % LOADS] = at;
        count += usize::from(!kind.is_store());
    }
}

impl Feed for RecordingFeed {
    fn bytes(&self) -> Option<u64> {
        None
    }

    fn threads(&self) -> usize {
        self.recording.threads()
    }

    fn prepare(&mut self) -> Supply {
        Supply::Done
    }

    fn step(&mut self, index: usize, _now: Nanos) -> Supply {
        loop {
            match self.cursors[index].waiting.pop() {
                Some(supply) => return supply,
                None if self.read_on(index) => {}
                None => return Supply::Done,
            }
        }
    }

    fn recycle(&mut self, batch: Batch) {
        // As many as there are threads are on their way; pieces of blocks are not worth keeping.
        if self.spare.len() <= self.cursors.len() && batch.words.capacity() >= 1 << 12 {
            self.spare.push(batch);
        }
    }

    fn finish(&mut self) -> Result<u64, String> {
        match self.failed.take() {
            Some(why) => Err(why),
            None => Ok(self.recording.accesses),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor as Bytes;
    use terrace_trace::{Access, Header, TraceWriter};

    fn recording(write: impl FnOnce(&mut TraceWriter<Vec<u8>>)) -> Result<Recording, RecordingError> {
        let mut writer = TraceWriter::new(Vec::new(), &Header { dependence: true, ..Header::default() }).unwrap();
        write(&mut writer);
        let bytes = writer.finish().unwrap();
        Recording::new(Arc::new(move || Ok(Box::new(Bytes::new(bytes.clone())) as Box<dyn Source>)))
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
        assert_eq!(feed.prepare(), Supply::Done);
        let Supply::Accesses(events) = feed.step(0, Nanos::ZERO) else { panic!("accesses first") };
        let events: Vec<Event> = events.iter().collect();
        assert_eq!(events.len(), 3);
        assert_eq!(events[0].value, events[2].address());
        assert_eq!((events[1].value, events[1].instructions()), (0, 4));
        assert!(matches!(feed.step(0, Nanos::ZERO), Supply::Reached(_)));
        assert_eq!(feed.step(0, Nanos::ZERO), Supply::Done);
        assert_eq!(feed.finish(), Ok(4));
    }

    #[test]
    fn processes_do_not_share_addresses_and_wide_ones_fit() {
        let mut folds = Folds::default();
        let mut fold = |process: u32, address: u64| {
            folds.turn_to(process);
            folds.fold(address)
        };
        let a = fold(0, 0x7fff_ffff_f000);
        assert_eq!(a, fold(0, 0x7fff_ffff_f000));
        assert_ne!(a >> KEPT, fold(1, 0x7fff_ffff_f000) >> KEPT);
        assert!(fold(0, u64::MAX) < 1 << 48);
        assert_eq!(fold(0, 0x7fff_ffff_f000) & 0xfff_ffff, 0xfff_f000);
        // GiBs that share a slot.
        let places: Vec<u64> = (0..256u64).map(|gib| fold(7, gib << KEPT)).collect();
        assert!((0..256u64).all(|gib| fold(7, gib << KEPT) == places[gib as usize]));
        assert_eq!(places.iter().collect::<std::collections::HashSet<_>>().len(), 256);
    }

    #[test]
    fn a_recording_of_nothing_is_refused() {
        assert!(matches!(recording(|_| {}), Err(RecordingError::Useless(_))));
        let open: Arc<Open> = Arc::new(|| Ok(Box::new(Bytes::new(b"no trace".to_vec()))));
        assert!(matches!(Recording::new(open), Err(RecordingError::Trace(_))));
    }
}
