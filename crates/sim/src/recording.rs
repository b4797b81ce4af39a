//! A recording as a source of accesses.
//!
//! The whole recording is the phase that counts. Its threads run each on its own, as fast as the machine lets them; where
//! a thread waited when it was recorded, or began later, it goes on when the others have come to that time of the
//! recording. That an address depends on a value loaded before is handed to the core as what that load brings.

use crate::event::Event;
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
        Ok(Self { open, threads: Arc::new(threads.into_values().collect()), accesses, start })
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
        })
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
}

impl fmt::Debug for RecordingFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordingFeed").field("recording", &self.recording).field("failed", &self.failed).finish()
    }
}

/// Bits of an address that stay as they are.
const KEPT: u32 = 30;

/// Addresses of several processes, and of any width, in one space of 48 bits: each GiB that is touched gets the next
/// free GiB.
#[derive(Debug, Default)]
struct Folds {
    places: HashMap<(u32, u64), u64>,
    last: Option<((u32, u64), u64)>,
}

impl Folds {
    #[inline]
    fn fold(&mut self, process: u32, address: u64) -> u64 {
        let key = (process, address >> KEPT);
        let place = match self.last {
            Some((last, place)) if last == key => place,
            _ => {
                let next = self.places.len() as u64 + 1;
                let place = *self.places.entry(key).or_insert(next) << KEPT;
                self.last = Some((key, place));
                place
            }
        };
        place | address & ((1 << KEPT) - 1)
    }
}

impl RecordingFeed {
    /// Reads a thread's next block into its cursor; `false` at the end.
    fn read_on(&mut self, index: usize) -> bool {
        let cursor = &mut self.cursors[index];
        let Some(position) = self.recording.threads[index].get(cursor.next) else { return false };
        cursor.next += 1;
        if let Err(error) = self.reader.read(*position, &mut self.block) {
            self.failed = Some(error.to_string());
            return false;
        }
        let block = &self.block;
        let info = block.info();
        let events = events(block, info.process, &mut self.folds);
        let mut pieces = Vec::new();
        if info.first_time > cursor.reached {
            pieces.push(Supply::Until(info.first_time));
        }
        // Where it waited within the block.
        let mut times = Vec::new();
        if !block.jumps().is_empty() {
            block.times_into(&mut times);
        }
        let mut from = 0;
        for (at, _) in block.jumps().iter().filter(|j| j.0 > 0) {
            let at = *at as usize;
            pieces.push(Supply::Accesses(events[from..at].to_vec()));
            pieces.push(Supply::Reached(times[at - 1]));
            pieces.push(Supply::Until(times[at]));
            from = at;
        }
        pieces.push(Supply::Accesses(events[from..].to_vec()));
        pieces.push(Supply::Reached(info.last_time));
        cursor.reached = info.last_time;
        pieces.reverse();
        cursor.waiting = pieces;
        true
    }
}

/// A block's accesses; a load that another address depends on brings that address.
fn events(block: &Block, process: u32, folds: &mut Folds) -> Vec<Event> {
    /// As far back as a dependence reaches.
    const LOADS: usize = 16;
    let mut events: Vec<Event> = Vec::with_capacity(block.addresses().len());
    let (mut loads, mut count) = ([0usize; LOADS], 0usize);
    for ((address, kind), gap) in block.addresses().iter().zip(block.kinds()).zip(block.gaps()) {
        let address = folds.fold(process, *address);
        let back = usize::from(kind.depends());
        if back > 0 && back <= count.min(LOADS) {
            let load = &mut events[loads[(count - back) % LOADS]];
            if load.value == 0 {
                load.value = address;
            }
        }
        if !kind.is_store() {
            loads[count % LOADS] = events.len();
            count += 1;
        }
        events.push(Event::new(address, kind.is_store(), u64::from(*gap), 0));
    }
    events
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
        let a = folds.fold(0, 0x7fff_ffff_f000);
        assert_eq!(a, folds.fold(0, 0x7fff_ffff_f000));
        assert_ne!(a >> KEPT, folds.fold(1, 0x7fff_ffff_f000) >> KEPT);
        assert!(folds.fold(0, u64::MAX) < 1 << 48);
        assert_eq!(folds.fold(0, 0x7fff_ffff_f000) & 0xfff_ffff, 0xfff_f000);
    }

    #[test]
    fn a_recording_of_nothing_is_refused() {
        assert!(matches!(recording(|_| {}), Err(RecordingError::Useless(_))));
        let open: Arc<Open> = Arc::new(|| Ok(Box::new(Bytes::new(b"no trace".to_vec()))));
        assert!(matches!(Recording::new(open), Err(RecordingError::Trace(_))));
    }
}
