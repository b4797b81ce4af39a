//! Records of a ring or file: `enum perf_event_type` of the kernel's `perf_event.h`.

use crate::attribute::{sample_type as has, EventAttributes};
use crate::bytes::ByteCursor;
use crate::source::DataSource;

/// Bytes before a record's fields: kind, flags, size.
pub const RECORD_HEADER_BYTES: usize = 8;
/// Largest record: its size has sixteen bits.
pub const MOST_RECORD_BYTES: usize = u16::MAX as usize;

/// `PERF_RECORD_*`.
pub(crate) mod kind {
    pub const MMAP: u32 = 1;
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
    pub const EXIT: u32 = 4;
    pub const THROTTLE: u32 = 5;
    pub const UNTHROTTLE: u32 = 6;
    pub const FORK: u32 = 7;
    pub const SAMPLE: u32 = 9;
    pub const MMAP2: u32 = 10;
    pub const LOST_SAMPLES: u32 = 13;
}

/// `PERF_RECORD_MISC_COMM_EXEC`.
const MISC_EXEC: u16 = 1 << 13;
/// Bytes of `MMAP2` between file offset and protection: device and inode, or a build's number.
const FILE_IDENTITY_BYTES: usize = 24;
/// `PERF_SAMPLE_BRANCH_HW_INDEX` and `PERF_SAMPLE_BRANCH_COUNTERS`.
const BRANCH_INDEX: u64 = 1 << 17;
const BRANCH_COUNTERS: u64 = 1 << 19;
const BRANCH_BYTES: u64 = 24;
/// `enum perf_event_read_format`.
mod read_format {
    pub const ENABLED: u64 = 1;
    pub const RUNNING: u64 = 2;
    pub const ID: u64 = 4;
    pub const GROUP: u64 = 8;
    pub const LOST: u64 = 16;
}

/// Why a record could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordDamage {
    /// Its size is below that of its header, or beyond the bytes that are there.
    #[error("a record of kind {kind} claims {bytes} bytes, which are not there")]
    Size {
        /// `PERF_RECORD_*`.
        kind: u32,
        /// Bytes claimed.
        bytes: u16,
    },
    /// It ends before its last field.
    #[error("a record of kind {kind} ends before its last field")]
    Short {
        /// `PERF_RECORD_*`.
        kind: u32,
    },
}

/// One sample. Fields that the event does not record are zero or `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PerfSample<'a> {
    /// Number of the event that was sampled.
    pub event_id: Option<u64>,
    /// Address of the instruction.
    pub instruction: u64,
    /// Process.
    pub pid: i32,
    /// Thread.
    pub tid: i32,
    /// Nanoseconds of the ring's clock.
    pub time_ns: u64,
    /// Data address; zero: none.
    pub address: u64,
    /// CPU.
    pub cpu: Option<u32>,
    /// Events since the sample before; zero: not recorded.
    pub period: u64,
    /// Latency in the processor's unit, core cycles on x86; zero: not recorded.
    pub latency_cycles: u32,
    /// What served it.
    pub source: DataSource,
    /// Physical data address; zero: not recorded.
    pub physical: u64,
    /// Call chain as it lies in the record, see [`PerfSample::callers`]: words of eight bytes,
    /// among them context marks (`PERF_CONTEXT_*`).
    pub callchain: &'a [u8],
}

impl PerfSample<'_> {
    /// Addresses of the program's part of the call chain, innermost first. Where the program keeps
    /// no frame pointers, the kernel's walk ends in zeros, which are no callers.
    pub fn program_callers(&self) -> impl Iterator<Item = u64> + '_ {
        // The upper half of all addresses is the kernel's.
        let program = self.callers().skip_while(|address| address >> 63 == 1);
        program.take_while(|address| *address != 0)
    }

    /// Addresses of the call chain, innermost first, without context marks.
    pub fn callers(&self) -> impl Iterator<Item = u64> + '_ {
        // `PERF_CONTEXT_MAX` is -4095: what lies above is a mark.
        const MARKS: u64 = -4095_i64 as u64;
        self.callchain
            .chunks_exact(8)
            .filter_map(|word| ByteCursor(word).u64())
            .filter(|address| *address < MARKS)
    }
}

/// Who a record other than a sample is of, where the event records it (`sample_id_all`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordIdentity {
    /// Process.
    pub pid: i32,
    /// Thread.
    pub tid: i32,
    /// Nanoseconds.
    pub time_ns: u64,
    /// CPU.
    pub cpu: Option<u32>,
}

/// A mapping that a process made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappedFile {
    /// Process; -1 for the kernel.
    pub pid: i32,
    /// Thread.
    pub tid: i32,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// Where in the file the first byte lies.
    pub offset: u64,
    /// `PROT_*`; executable where the record does not say.
    pub protection: u32,
    /// `MAP_*`.
    pub flags: u32,
    /// File, or `//anon`, `[heap]`, `[stack]`.
    pub name: String,
}

/// A process or thread that began or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskChange {
    /// Process.
    pub pid: i32,
    /// Its parent.
    pub parent_pid: i32,
    /// Thread.
    pub tid: i32,
    /// The thread that made it.
    pub parent_tid: i32,
    /// Nanoseconds.
    pub time_ns: u64,
}

/// A record, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PerfRecord<'a> {
    /// An access, or another event, that was sampled.
    Sample(PerfSample<'a>),
    /// So many records found the ring full.
    Lost(u64, RecordIdentity),
    /// So many samples found the processor's own buffer full.
    LostSamples(u64, RecordIdentity),
    /// The kernel stopped an event that interrupts too often.
    Throttle(RecordIdentity),
    /// It goes on.
    Unthrottle(RecordIdentity),
    /// A mapping.
    Mapped(MappedFile, RecordIdentity),
    /// A thread has another name: thread, name, whether by `execve`.
    Renamed {
        /// Process.
        pid: i32,
        /// Thread.
        tid: i32,
        /// Its name.
        name: String,
        /// Whether a program was loaded.
        exec: bool,
        /// Who and when.
        identity: RecordIdentity,
    },
    /// A process or thread began.
    Forked(TaskChange),
    /// A process or thread ended.
    Exited(TaskChange),
    /// Something else.
    Other(u32),
}

impl<'a> PerfRecord<'a> {
    /// Decodes one record, header included.
    ///
    /// # Errors
    /// [`RecordDamage`]; the next record can be decoded all the same.
    pub fn decode(record: &'a [u8], event: &EventAttributes) -> Result<Self, RecordDamage> {
        let (kind, misc, body) = split_header(record)?;
        let short = RecordDamage::Short { kind };
        let mut fields = ByteCursor(body);
        if kind == kind::SAMPLE {
            return sample(fields, event).map(Self::Sample).ok_or(short);
        }
        let identity = || identity(body, event).ok_or(short);
        Ok(match kind {
            kind::LOST => {
                let (_id, lost) = (fields.u64().ok_or(short)?, fields.u64().ok_or(short)?);
                Self::Lost(lost, identity()?)
            }
            kind::LOST_SAMPLES => Self::LostSamples(fields.u64().ok_or(short)?, identity()?),
            kind::THROTTLE | kind::UNTHROTTLE => {
                let time_ns = fields.u64().ok_or(short)?;
                let identity = RecordIdentity { time_ns, ..identity()? };
                if kind == kind::THROTTLE {
                    Self::Throttle(identity)
                } else {
                    Self::Unthrottle(identity)
                }
            }
            kind::MMAP | kind::MMAP2 => {
                let trailer = identity_bytes(event).min(fields.0.len());
                fields.0 = &fields.0[..fields.0.len() - trailer];
                Self::Mapped(mapped(fields, kind).ok_or(short)?, identity()?)
            }
            kind::COMM => {
                let (pid, tid) = (fields.i32().ok_or(short)?, fields.i32().ok_or(short)?);
                let exec = misc & MISC_EXEC != 0;
                Self::Renamed { pid, tid, name: fields.string(), exec, identity: identity()? }
            }
            kind::FORK => Self::Forked(task(fields).ok_or(short)?),
            kind::EXIT => Self::Exited(task(fields).ok_or(short)?),
            other => Self::Other(other),
        })
    }
}

/// Kind, flags and fields of a record.
pub(crate) fn split_header(record: &[u8]) -> Result<(u32, u16, &[u8]), RecordDamage> {
    let Some((head, body)) = record.split_first_chunk::<RECORD_HEADER_BYTES>() else {
        return Err(RecordDamage::Short { kind: 0 });
    };
    let kind = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let misc = u16::from_le_bytes([head[4], head[5]]);
    let bytes = u16::from_le_bytes([head[6], head[7]]);
    match usize::from(bytes).checked_sub(RECORD_HEADER_BYTES).and_then(|n| body.get(..n)) {
        Some(body) => Ok((kind, misc, body)),
        None => Err(RecordDamage::Size { kind, bytes }),
    }
}

/// Goes over the records in `bytes`, as a ring holds them between tail and head. After a damaged
/// size nothing more can be distinguished: that is the last item.
pub fn records<'a, 'e>(
    bytes: &'a [u8],
    event: &'e EventAttributes,
) -> impl Iterator<Item = Result<PerfRecord<'a>, RecordDamage>> + use<'a, 'e> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        match split_header(rest) {
            Ok((_, _, body)) => {
                let (record, after) = rest.split_at(RECORD_HEADER_BYTES + body.len());
                rest = after;
                Some(PerfRecord::decode(record, event))
            }
            Err(damage) => {
                rest = &[];
                Some(Err(damage))
            }
        }
    })
}

/// `__event_sample_read`, in the order that `perf_event.h` gives.
fn sample<'a>(mut fields: ByteCursor<'a>, event: &EventAttributes) -> Option<PerfSample<'a>> {
    let mut sample = PerfSample::default();
    let has = |field: u64| event.has(field);
    if has(has::IDENTIFIER) {
        sample.event_id = Some(fields.u64()?);
    }
    if has(has::IP) {
        sample.instruction = fields.u64()?;
    }
    if has(has::TID) {
        (sample.pid, sample.tid) = (fields.i32()?, fields.i32()?);
    }
    if has(has::TIME) {
        sample.time_ns = fields.u64()?;
    }
    if has(has::ADDR) {
        sample.address = fields.u64()?;
    }
    if has(has::ID) {
        sample.event_id = Some(fields.u64()?);
    }
    if has(has::STREAM_ID) {
        fields.u64()?;
    }
    if has(has::CPU) {
        sample.cpu = Some(fields.u32()?);
        fields.u32()?;
    }
    if has(has::PERIOD) {
        sample.period = fields.u64()?;
    }
    if has(has::READ) {
        skip_counts(&mut fields, event.read_format)?;
    }
    if has(has::CALLCHAIN) {
        let depth = fields.u64()?;
        sample.callchain = fields.words(depth)?;
    }
    skip_large(&mut fields, event)?;
    if has(has::WEIGHT | has::WEIGHT_STRUCT) {
        // In three parts: 32 bits of cache latency, 16 each of two others; else one word.
        let weight = fields.u64()?;
        let parts = has(has::WEIGHT_STRUCT);
        let whole = u32::try_from(weight).unwrap_or(u32::MAX);
        sample.latency_cycles = if parts { weight as u32 } else { whole };
    }
    if has(has::DATA_SRC) {
        sample.source = DataSource(fields.u64()?);
    }
    if has(has::TRANSACTION) {
        fields.u64()?;
    }
    if has(has::REGS_INTR) {
        skip_registers(&mut fields, event.interrupt_registers)?;
    }
    if has(has::PHYS_ADDR) {
        sample.physical = fields.u64()?;
    }
    Some(sample)
}

/// Fields between call chain and weight: raw bytes, branches, registers, stack.
fn skip_large(fields: &mut ByteCursor<'_>, event: &EventAttributes) -> Option<()> {
    if event.has(has::RAW) {
        let bytes = fields.u32()?;
        fields.take(bytes as usize)?;
    }
    if event.has(has::BRANCH_STACK) {
        let count = fields.u64()?;
        if event.branch_sample_type & BRANCH_INDEX != 0 {
            fields.u64()?;
        }
        fields.words(count.checked_mul(BRANCH_BYTES / 8)?)?;
        if event.branch_sample_type & BRANCH_COUNTERS != 0 {
            fields.words(count)?;
        }
    }
    if event.has(has::REGS_USER) {
        skip_registers(fields, event.user_registers)?;
    }
    if event.has(has::STACK_USER) {
        let bytes = fields.u64()?;
        fields.take(usize::try_from(bytes).ok()?)?;
        if bytes > 0 {
            fields.u64()?;
        }
    }
    Some(())
}

fn skip_registers(fields: &mut ByteCursor<'_>, mask: u64) -> Option<()> {
    if fields.u64()? != 0 {
        fields.words(u64::from(mask.count_ones()))?;
    }
    Some(())
}

fn skip_counts(fields: &mut ByteCursor<'_>, format: u64) -> Option<()> {
    let on = |bit: u64| u64::from(format & bit != 0);
    let times = on(read_format::ENABLED) + on(read_format::RUNNING);
    let each = 1 + on(read_format::ID) + on(read_format::LOST);
    let words = if format & read_format::GROUP != 0 {
        let count = fields.u64()?;
        count.checked_mul(each)?.checked_add(times)?
    } else {
        each + times
    };
    fields.words(words).map(|_| ())
}

/// Bytes of the identity at the end of records other than samples.
fn identity_bytes(event: &EventAttributes) -> usize {
    if !event.identifies_all() {
        return 0;
    }
    let kinds = has::TID | has::TIME | has::ID | has::STREAM_ID | has::CPU | has::IDENTIFIER;
    8 * (event.sample_type & kinds).count_ones() as usize
}

fn identity(body: &[u8], event: &EventAttributes) -> Option<RecordIdentity> {
    let start = body.len().checked_sub(identity_bytes(event))?;
    let mut fields = ByteCursor(&body[start..]);
    let mut identity = RecordIdentity::default();
    if !event.identifies_all() {
        return Some(identity);
    }
    if event.has(has::TID) {
        (identity.pid, identity.tid) = (fields.i32()?, fields.i32()?);
    }
    if event.has(has::TIME) {
        identity.time_ns = fields.u64()?;
    }
    for field in [has::ID, has::STREAM_ID] {
        if event.has(field) {
            fields.u64()?;
        }
    }
    if event.has(has::CPU) {
        identity.cpu = Some(fields.u32()?);
    }
    Some(identity)
}

fn mapped(mut fields: ByteCursor<'_>, kind: u32) -> Option<MappedFile> {
    let (pid, tid) = (fields.i32()?, fields.i32()?);
    let (start, length, offset) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let (protection, flags) = if kind == kind::MMAP2 {
        fields.take(FILE_IDENTITY_BYTES)?;
        (fields.u32()?, fields.u32()?)
    } else {
        // Without the flag `mmap_data` only mappings with code are recorded.
        const PROT_READ_EXEC: u32 = 5;
        (PROT_READ_EXEC, 0)
    };
    let name = fields.string();
    Some(MappedFile { pid, tid, start, length, offset, protection, flags, name })
}

fn task(mut fields: ByteCursor<'_>) -> Option<TaskChange> {
    let (pid, parent_pid) = (fields.i32()?, fields.i32()?);
    let (tid, parent_tid) = (fields.i32()?, fields.i32()?);
    Some(TaskChange { pid, parent_pid, tid, parent_tid, time_ns: fields.u64()? })
}
