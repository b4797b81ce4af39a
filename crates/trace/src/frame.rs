//! How bytes lie in the file.
//!
//! ```text
//! file    = "TERRTRC" version:u8  length:u32 crc32:u32 header:JSON  block*
//! block   = head payload
//! head    = 64 bytes: "TBLK" kind:u8 flags:u8 0:u16 payload_bytes:u32 count:u32 process:u32 thread:u32
//!           first_time:u64 last_time:u64 stores:u32 0:u32 0:u32 payload_crc32:u32 0:u32 head_crc32:u32
//! payload = sections:u8 { id:u8 codec:u8 raw_bytes:u32 stored_bytes:u32 bytes }*
//! ```
//!
//! All little-endian. A block stands for itself: nothing in it refers to another. So a file that
//! was cut off can be read up to its last whole block, and any block can be read alone. A file that
//! was finished ends with a block of kind END, whose payload names what the recording lacks.

use crate::error::TraceError;

/// First bytes of a trace; the version follows.
pub const MAGIC: &[u8; 7] = b"TERRTRC";
/// The version written here, and the latest that is read.
pub const VERSION: u8 = 1;
/// Accesses in a block at most.
pub const BLOCK_ACCESSES: usize = 32_768;
/// Bytes of a block's head.
pub(crate) const HEAD: usize = 64;
/// Largest payload that is believed, so that a damaged length cannot ask for all memory.
pub(crate) const MAX_PAYLOAD: u32 = 32 << 20;
/// Largest header that is believed.
pub(crate) const MAX_HEADER: u32 = 1 << 20;
/// Events in a block at most.
pub(crate) const BLOCK_EVENTS: usize = 4096;
/// Largest payload of an END block that is believed: [`MAX_OMISSIONS`] sentences fit many times.
///
/// [`MAX_OMISSIONS`]: crate::omissions::MOST_OMISSIONS
pub(crate) const MAX_END_PAYLOAD: u32 = 256 << 10;

const BLOCK_MAGIC: &[u8; 4] = b"TBLK";

/// What a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockKind {
    /// Accesses of one thread, in order.
    Accesses,
    /// Events of any threads, in the order they were written.
    Events,
    /// The trace was finished; `count` is zero. Its payload, if any, names what is missing.
    End,
}

impl BlockKind {
    fn code(self) -> u8 {
        match self {
            Self::Accesses => 1,
            Self::Events => 2,
            Self::End => 3,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        [Self::Accesses, Self::Events, Self::End].into_iter().find(|kind| kind.code() == code)
    }
}

/// A block as its head describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockInfo {
    /// Where it begins in the file.
    pub offset: u64,
    /// What it holds.
    pub kind: BlockKind,
    /// Process and thread of all its accesses; zero for events.
    pub process: u32,
    /// See `process`.
    pub thread: u32,
    /// Accesses or events in it.
    pub count: u32,
    /// How many of the accesses are stores.
    pub stores: u32,
    /// No access or event is earlier. Where time follows from `gap`, the thread's time before the
    /// first access.
    pub first_time: u64,
    /// No access or event is later.
    pub last_time: u64,
    pub(crate) payload_bytes: u32,
    pub(crate) payload_crc: u32,
}

impl BlockInfo {
    /// Bytes that the block takes in the file.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        HEAD as u64 + u64::from(self.payload_bytes)
    }

    /// The head's bytes.
    pub(crate) fn to_bytes(self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(BLOCK_MAGIC);
        head[4] = self.kind.code();
        for (at, value) in [
            (8, self.payload_bytes),
            (12, self.count),
            (16, self.process),
            (20, self.thread),
            (40, self.stores),
        ] {
            head[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        head[24..32].copy_from_slice(&self.first_time.to_le_bytes());
        head[32..40].copy_from_slice(&self.last_time.to_le_bytes());
        head[52..56].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32fast::hash(&head[..60]);
        head[60..].copy_from_slice(&crc.to_le_bytes());
        head
    }

    /// From the head's bytes, found at `offset`.
    pub(crate) fn from_bytes(head: &[u8; HEAD], offset: u64) -> Result<Self, TraceError> {
        let damaged = |why| TraceError::Damaged { offset, why };
        if &head[..4] != BLOCK_MAGIC {
            return Err(damaged("no block begins here"));
        }
        if crc32fast::hash(&head[..60]) != word(head, 60) {
            return Err(damaged("the checksum of its head does not match"));
        }
        let kind =
            BlockKind::from_code(head[4]).ok_or(damaged("a kind of block that is not known"))?;
        let info = Self {
            offset,
            kind,
            process: word(head, 16),
            thread: word(head, 20),
            count: word(head, 12),
            stores: word(head, 40),
            first_time: u64::from(word(head, 24)) | u64::from(word(head, 28)) << 32,
            last_time: u64::from(word(head, 32)) | u64::from(word(head, 36)) << 32,
            payload_bytes: word(head, 8),
            payload_crc: word(head, 52),
        };
        let most = match kind {
            BlockKind::Accesses => BLOCK_ACCESSES,
            BlockKind::Events => BLOCK_EVENTS,
            BlockKind::End => 0,
        };
        if info.count as usize > most
            || info.stores > info.count
            || info.payload_bytes > MAX_PAYLOAD
            || (kind == BlockKind::End && info.payload_bytes > MAX_END_PAYLOAD)
        {
            return Err(damaged("it claims to be larger than any block is"));
        }
        Ok(info)
    }
}

/// Makes the checksums of a trace right, whatever else is wrong with it, so that tests get behind
/// them.
pub fn mend_checksums(bytes: &mut [u8]) {
    if bytes.len() < 16 {
        return;
    }
    let start = 16 + word(bytes, 8) as usize;
    if let Some(json) = bytes.get(16..start) {
        let crc = crc32fast::hash(json);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    }
    let mut at = start;
    while let Some(head) = bytes.get(at..at.saturating_add(HEAD)) {
        let end = (at + HEAD).saturating_add(word(head, 8) as usize);
        if let Some(payload) = bytes.get(at + HEAD..end) {
            let crc = crc32fast::hash(payload);
            bytes[at + 52..at + 56].copy_from_slice(&crc.to_le_bytes());
        }
        let crc = crc32fast::hash(&bytes[at..at + 60]);
        bytes[at + 60..at + 64].copy_from_slice(&crc.to_le_bytes());
        at = end;
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// What a section of a payload holds.
pub(crate) mod section {
    /// One byte an access: which line of `DICTIONARY`, or 255 for one of `ESCAPES`.
    pub const SHAPES: u8 = 1;
    /// Seven bytes a line: predictor (2), kind (1), gap (4).
    pub const DICTIONARY: u8 = 2;
    /// The same, for accesses whose line the dictionary had no space for.
    pub const ESCAPES: u8 = 3;
    /// Address differences of one byte.
    pub const NEAR: u8 = 4;
    /// Low bytes of differences of two bytes; the next section has the high ones.
    pub const MIDDLE: u8 = 5;
    /// Low bytes of differences of four bytes; the next three sections have the others.
    pub const FAR: u8 = 32;
    /// Low bytes of whole addresses; the seven sections that follow have the others.
    pub const WHOLE: u8 = 10;
    /// Jumps of time: pairs of position and ticks.
    pub const JUMPS: u8 = 20;
    /// Odd sizes: pairs of position and bytes.
    pub const ODD: u8 = 21;
    /// The program counters that occur, as differences.
    pub const PC_LIST: u8 = 22;
    /// Low bytes of positions in that list; the next section has the high ones.
    pub const PCS: u8 = 23;
    /// Values stored.
    pub const VALUES: u8 = 25;
    /// Times as differences, where they do not follow from `gap`.
    pub const TIMES: u8 = 26;
    /// Latencies of samples, a number each.
    pub const LATENCIES: u8 = 27;
    /// The data sources that occur, eight bytes each.
    pub const SOURCE_LIST: u8 = 28;
    /// Positions in that list, a number each.
    pub const SOURCES: u8 = 29;
    /// CPUs of samples plus one, a number each; zero: not known.
    pub const CPUS: u8 = 30;
    /// Events.
    pub const EVENTS: u8 = 40;
    /// What the recording lacks: sentences that end with a line feed.
    pub const OMISSIONS: u8 = 50;
}
