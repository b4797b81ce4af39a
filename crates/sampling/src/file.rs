//! `perf.data`: the file that `perf record` writes
//! (`tools/perf/Documentation/perf.data-file-format.txt`).

mod features;

use crate::attribute::{sample_type, EventAttributes};
use crate::bytes::ByteCursor;
use crate::record::{
    kind, split_header, PerfRecord, RecordDamage, MOST_RECORD_BYTES, RECORD_HEADER_BYTES,
};
use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};

const MAGIC: &[u8; 8] = b"PERFILE2";
const SWAPPED_MAGIC: &[u8; 8] = b"2ELIFREP";
const HEADER_BYTES: u64 = 104;
/// Header of a file that was written to a pipe.
const PIPE_HEADER_BYTES: u64 = 16;
/// Bytes of the list of events that are believed; one event has some 150.
const MOST_ATTRIBUTE_BYTES: u64 = 16 << 20;
/// Event numbers that are believed: 512 CPUs, 64 events, ten times over.
const MOST_IDS: usize = 1 << 18;
/// Bytes that are read from the file at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Records that only files have (`enum perf_user_event_type`).
mod user_kind {
    pub const ATTRIBUTE: u32 = 64;
    pub const TRACING_DATA: u32 = 66;
    pub const AUXTRACE: u32 = 71;
    pub const COMPRESSED: u32 = 81;
    pub const COMPRESSED2: u32 = 83;
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PerfDataError {
    /// The system's answer.
    #[error("cannot read it: {0}")]
    Read(#[from] io::Error),
    /// It does not begin as such a file does.
    #[error("it is no perf.data file; record one with perf record")]
    Foreign,
    /// Written on a machine of the other byte order.
    #[error("it was written on a big-endian machine; use perf script there and import its text")]
    ByteOrder,
    /// Header or list of events are not as they must be.
    #[error("its {part} is damaged; record it again")]
    Damaged {
        /// Which part.
        part: &'static str,
    },
    /// Records are compressed.
    #[error("its records are compressed; record without -z")]
    Compressed,
}

/// An event of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecordedEvent {
    /// What it is and which fields its samples have.
    pub attributes: EventAttributes,
    /// As the command line named it; empty: the file does not say.
    pub name: String,
    ids: Vec<u64>,
}

/// How many records of which kind a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct RecordCounts {
    /// Samples.
    pub samples: u64,
    /// Samples with a data address.
    pub addressed: u64,
    /// Records that found the ring full, and samples that found the processor's buffer full.
    pub lost: u64,
    /// How often the kernel stopped an event that interrupted too often.
    pub throttled: u64,
    /// How often such an event went on.
    pub unthrottled: u64,
    /// Mappings.
    pub mappings: u64,
    /// Damaged records, which were left out.
    pub damaged: u64,
    /// Whether the file ends before its records do.
    pub cut_off: bool,
}

/// Reads a file: events at once, records when asked, as often as wanted.
#[derive(Debug)]
pub struct PerfDataFile<R> {
    input: R,
    events: Vec<RecordedEvent>,
    by_id: HashMap<u64, usize>,
    /// The command line, one word an item; empty: the file does not say.
    pub command: Vec<String>,
    /// Node of each CPU, where the file says.
    pub cpu_nodes: HashMap<u32, u16>,
    data: std::ops::Range<u64>,
    /// Whether the header says that there are more records than the file has space for.
    cut_off: bool,
}

impl<R: Read + Seek> PerfDataFile<R> {
    /// Reads the header and the list of events.
    ///
    /// # Errors
    /// [`PerfDataError`].
    pub fn open(mut input: R) -> Result<Self, PerfDataError> {
        let length = input.seek(SeekFrom::End(0))?;
        let head = read_span(&mut input, 0, PIPE_HEADER_BYTES.min(length), HEADER_BYTES)?;
        let mut fields = ByteCursor(&head);
        match fields.take(8) {
            Some(magic) if magic == MAGIC => {}
            Some(magic) if magic == SWAPPED_MAGIC => return Err(PerfDataError::ByteOrder),
            _ => return Err(PerfDataError::Foreign),
        }
        let damaged = |part| PerfDataError::Damaged { part };
        let size = fields.u64().ok_or(damaged("header"))?;
        let mut file = Self {
            input,
            events: Vec::new(),
            by_id: HashMap::new(),
            command: Vec::new(),
            cpu_nodes: HashMap::new(),
            data: PIPE_HEADER_BYTES..length,
            cut_off: false,
        };
        match size {
            PIPE_HEADER_BYTES => file.read_piped_events()?,
            HEADER_BYTES => file.read_events(length)?,
            _ => return Err(damaged("header")),
        }
        if file.events.is_empty() {
            return Err(damaged("list of events"));
        }
        for (index, event) in file.events.iter().enumerate() {
            file.by_id.extend(event.ids.iter().map(|id| (*id, index)));
        }
        Ok(file)
    }

    fn read_events(&mut self, length: u64) -> Result<(), PerfDataError> {
        let head = read_span(&mut self.input, 0, HEADER_BYTES, HEADER_BYTES)?;
        let word = |at: usize| ByteCursor(&head[at..]).u64().unwrap_or(0);
        let (each, attributes, data) = (word(16), (word(24), word(32)), (word(40), word(48)));
        let damaged = PerfDataError::Damaged { part: "list of events" };
        // An event and where the numbers of its counters lie.
        if !(80..=4096).contains(&each) {
            return Err(damaged);
        }
        let list = read_span(&mut self.input, attributes.0, attributes.1, MOST_ATTRIBUTE_BYTES)?;
        let mut ids = 0;
        for bytes in list.chunks_exact(each as usize) {
            let (attribute, span) = bytes.split_at(bytes.len() - 16);
            let Some(attributes) = EventAttributes::decode(attribute) else { continue };
            let mut span = ByteCursor(span);
            let (at, size) = (span.u64().unwrap_or(0), span.u64().unwrap_or(0));
            let words = read_span(&mut self.input, at, size, 8 * MOST_IDS as u64)?;
            ids += words.len() / 8;
            if ids > MOST_IDS {
                return Err(damaged);
            }
            let ids = words.chunks_exact(8).filter_map(|word| ByteCursor(word).u64()).collect();
            self.events.push(RecordedEvent { attributes, ids, name: String::new() });
        }
        // A recording that was killed has no size yet: its records go on to the end.
        let declared = if data.1 == 0 { length } else { data.0.saturating_add(data.1) };
        let end = declared.min(length);
        self.cut_off = declared > length;
        self.data = data.0.min(end)..end;
        if data.1 > 0 && end < length {
            features::read(self, &[word(72), word(80), word(88), word(96)], end);
        }
        Ok(())
    }

    /// Events of a file that was written to a pipe come as records.
    fn read_piped_events(&mut self) -> Result<(), PerfDataError> {
        let mut events = Vec::new();
        self.walk(|kind, record| {
            if kind == user_kind::ATTRIBUTE {
                let body = record.get(RECORD_HEADER_BYTES..).unwrap_or(&[]);
                let size = ByteCursor(body.get(4..).unwrap_or(&[])).u32().unwrap_or(0) as usize;
                let Some((attribute, ids)) = body.split_at_checked(size) else { return true };
                if let Some(attributes) = EventAttributes::decode(attribute) {
                    let ids = ids.chunks_exact(8).filter_map(|w| ByteCursor(w).u64()).collect();
                    events.push(RecordedEvent { attributes, ids, name: String::new() });
                }
            }
            // Events precede what they describe.
            kind >= user_kind::ATTRIBUTE && events.len() < MOST_IDS
        })?;
        self.events = events;
        Ok(())
    }

    /// Events, in the file's order.
    pub fn events(&self) -> &[RecordedEvent] {
        &self.events
    }

    /// Hands every record to `each`, with the position of its event in [`PerfDataFile::events`],
    /// in the order of the file, which is that of time only within a CPU.
    ///
    /// # Errors
    /// [`PerfDataError::Read`], [`PerfDataError::Compressed`]. Damaged records are counted.
    pub fn records(
        &mut self,
        mut each: impl FnMut(usize, &PerfRecord<'_>),
    ) -> Result<RecordCounts, PerfDataError> {
        let mut counts = RecordCounts::default();
        let mut compressed = false;
        let events = std::mem::take(&mut self.events);
        let by_id = std::mem::take(&mut self.by_id);
        let walked = self.walk(|kind, record| {
            if kind >= user_kind::ATTRIBUTE {
                compressed |= [user_kind::COMPRESSED, user_kind::COMPRESSED2].contains(&kind);
                return !compressed;
            }
            let index = event_of(kind, record, &events, &by_id);
            match PerfRecord::decode(record, &events[index].attributes) {
                Ok(record) => {
                    counts.add(&record);
                    each(index, &record);
                }
                Err(_) => counts.damaged += 1,
            }
            true
        });
        (self.events, self.by_id) = (events, by_id);
        counts.cut_off = walked? || self.cut_off;
        if compressed {
            return Err(PerfDataError::Compressed);
        }
        Ok(counts)
    }

    /// Hands kind and bytes of each record to `each` until it says no; whether the file ends within
    /// a record.
    fn walk(&mut self, mut each: impl FnMut(u32, &[u8]) -> bool) -> Result<bool, PerfDataError> {
        self.input.seek(SeekFrom::Start(self.data.start))?;
        let mut left = self.data.end - self.data.start;
        let mut buffer = vec![0; CHUNK_BYTES + MOST_RECORD_BYTES];
        let (mut start, mut end) = (0, 0);
        loop {
            if end - start < MOST_RECORD_BYTES && left > 0 {
                buffer.copy_within(start..end, 0);
                (start, end) = (0, end - start);
                let space = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len() - end);
                let got = read_up_to(&mut self.input, &mut buffer[end..end + space])?;
                end += got;
                left = if got == 0 { 0 } else { left - got as u64 };
            }
            if start == end {
                return Ok(false);
            }
            let record = match split_header(&buffer[start..end]) {
                Ok((_, _, body)) => &buffer[start..start + RECORD_HEADER_BYTES + body.len()],
                Err(RecordDamage::Size { .. } | RecordDamage::Short { .. }) => return Ok(true),
            };
            let kind = u32::from_le_bytes([record[0], record[1], record[2], record[3]]);
            if !each(kind, record) {
                return Ok(false);
            }
            let behind = bytes_behind(kind, record);
            start += record.len();
            if behind > 0 {
                // Not among the records, and perhaps long: stepped over.
                let inside = ((end - start) as u64).min(behind);
                start += inside as usize;
                let beyond = (behind - inside).min(left);
                self.input.seek_relative(i64::try_from(beyond).unwrap_or(i64::MAX))?;
                left -= beyond;
            }
        }
    }
}

/// Bytes behind a record that its size does not count.
fn bytes_behind(kind: u32, record: &[u8]) -> u64 {
    let body = record.get(RECORD_HEADER_BYTES..).unwrap_or(&[]);
    match kind {
        user_kind::AUXTRACE => ByteCursor(body).u64().unwrap_or(0),
        user_kind::TRACING_DATA => u64::from(ByteCursor(body).u32().unwrap_or(0)),
        _ => 0,
    }
}

/// Which event a record is of. perf lets all events of a file have the number at one place: first
/// in a sample and last in other records, or behind the fields that all of them have.
fn event_of(
    kind: u32,
    record: &[u8],
    events: &[RecordedEvent],
    by_id: &HashMap<u64, usize>,
) -> usize {
    if events.len() < 2 || kind != kind::SAMPLE {
        return 0;
    }
    let kinds = events[0].attributes.sample_type;
    let before = if kinds & sample_type::IDENTIFIER != 0 {
        0
    } else if kinds & sample_type::ID != 0 {
        let fields = sample_type::IP | sample_type::TID | sample_type::TIME | sample_type::ADDR;
        (kinds & fields).count_ones() as usize
    } else {
        return 0;
    };
    let at = RECORD_HEADER_BYTES + 8 * before;
    let id = record.get(at..).and_then(|rest| ByteCursor(rest).u64());
    id.and_then(|id| by_id.get(&id)).copied().unwrap_or(0)
}

impl RecordCounts {
    fn add(&mut self, record: &PerfRecord<'_>) {
        match record {
            PerfRecord::Sample(sample) => {
                self.samples += 1;
                self.addressed += u64::from(sample.address != 0);
            }
            PerfRecord::Lost(lost, _) | PerfRecord::LostSamples(lost, _) => {
                self.lost = self.lost.saturating_add(*lost);
            }
            PerfRecord::Throttle(_) => self.throttled += 1,
            PerfRecord::Unthrottle(_) => self.unthrottled += 1,
            PerfRecord::Mapped(..) => self.mappings += 1,
            _ => {}
        }
    }
}

/// Bytes at a place of the file: all of them, or an error; never more than `most`.
fn read_span<R: Read + Seek>(
    input: &mut R,
    at: u64,
    length: u64,
    most: u64,
) -> Result<Vec<u8>, PerfDataError> {
    if length > most {
        return Err(PerfDataError::Damaged { part: "header" });
    }
    input.seek(SeekFrom::Start(at))?;
    let mut bytes = Vec::new();
    input.by_ref().take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == length {
        Ok(bytes)
    } else {
        Err(PerfDataError::Damaged { part: "header" })
    }
}

fn read_up_to(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match input.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}
