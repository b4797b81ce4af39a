//! What host and guest say to each other through the shared memory ("the mailbox").
//!
//! One source file for both sides: `terrace-guest` compiles it as its own module, `terrace-lab`
//! includes it by path (ADR 0020), so that the two can never disagree. It is pure: bytes in, values
//! out. Everything read from the other side is treated as hostile: lengths are checked before they
//! are used, checksums before parsing.
//!
//! ```text
//! offset 0     header of 64 bytes, of which 32 are used: magic, version, state, length and
//!              checksum of the archive
//! offset 4096  one archive: first the job (written by the host), later the reply (by the guest)
//! end - 16 MiB the sampling unit's region (`terrace_sampling`), never part of an archive
//! ```

// Named by path, for one crate includes this file by path and the other by its name.
#[path = "wire/job.rs"]
mod job;

pub use job::*;
use serde::{Deserialize, Serialize};

/// First eight bytes of a mailbox.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TERRLAB\x01");
/// Version of everything in this file; both sides refuse another one.
pub const VERSION: u32 = 3;
/// Where the archive begins.
pub const BODY_OFFSET: usize = 4096;
/// Bytes left for an archive in a mailbox of `mailbox_bytes`, whose end is the sampling unit's.
#[must_use]
pub const fn archive_capacity(mailbox_bytes: u64) -> u64 {
    mailbox_bytes.saturating_sub(BODY_OFFSET as u64 + terrace_sampling::UNIT_REGION_BYTES)
}

/// Bytes of the header, unused ones included.
pub const HEADER_LEN: usize = 64;
/// Most files in one archive; a count above it is damage, not a job.
pub const MAX_ENTRIES: usize = 65_536;
/// Longest name of a file in an archive.
pub const MAX_NAME: usize = 4096;

/// Name of the job description (JSON, [`GuestJob`]) in the archive that the host writes.
pub const JOB_NAME: &str = "@job";
/// Name of the ranking of pages ([`decode_pages`]) in the archive that the host writes.
pub const PAGES_NAME: &str = "@pages";
/// Name of the reply (JSON, [`Reply`]) in the archive that the guest writes.
pub const REPLY_NAME: &str = "@reply";
/// Name of the command's standard output in the reply.
pub const STDOUT_NAME: &str = "@stdout";
/// Name of the command's standard error in the reply.
pub const STDERR_NAME: &str = "@stderr";

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MailboxState {
    /// Fresh file, nobody has written.
    Empty,
    /// The guest has booted and polls for a job.
    Ready,
    /// The host has put a job.
    Job,
    /// The guest has put the reply and is powering off.
    Done,
    /// The guest could not use what it found; the archive holds a reply with the reason.
    Refused,
}

impl MailboxState {
    fn code(self) -> u32 {
        match self {
            MailboxState::Empty => 0,
            MailboxState::Ready => 1,
            MailboxState::Job => 2,
            MailboxState::Done => 3,
            MailboxState::Refused => 4,
        }
    }

    fn from_code(code: u32) -> Result<Self, WireError> {
        Ok(match code {
            0 => MailboxState::Empty,
            1 => MailboxState::Ready,
            2 => MailboxState::Job,
            3 => MailboxState::Done,
            4 => MailboxState::Refused,
            other => return Err(WireError::UnknownState(other)),
        })
    }
}

/// Why a mailbox or an archive cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WireError {
    /// The first bytes are not those of a mailbox.
    NotAMailbox,
    /// Written by another version of this file.
    OtherVersion(u32),
    /// A state that this version does not know.
    UnknownState(u32),
    /// The bytes end before what they announce.
    Truncated {
        /// What was being read.
        what: &'static str,
    },
    /// The archive's bytes do not match its checksum.
    BadChecksum,
    /// A count or length beyond any sensible one.
    TooLarge {
        /// What was being read.
        what: &'static str,
    },
    /// A file name that is not UTF-8 or not a name.
    BadName,
    /// The archive lacks a file that must be there.
    Missing(&'static str),
    /// The JSON inside does not parse.
    BadJson(String),
}

impl std::fmt::Display for WireError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WireError::NotAMailbox => write!(f, "not a mailbox"),
            WireError::OtherVersion(v) => {
                write!(f, "mailbox of version {v}, this is version {VERSION}")
            }
            WireError::UnknownState(s) => write!(f, "mailbox in unknown state {s}"),
            WireError::Truncated { what } => write!(f, "truncated {what}"),
            WireError::BadChecksum => write!(f, "checksum does not match"),
            WireError::TooLarge { what } => write!(f, "{what} too large"),
            WireError::BadName => write!(f, "bad file name in archive"),
            WireError::Missing(what) => write!(f, "archive lacks {what}"),
            WireError::BadJson(why) => write!(f, "bad JSON: {why}"),
        }
    }
}

impl std::error::Error for WireError {}

/// The head of the mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MailboxHeader {
    /// Whose turn it is.
    pub state: MailboxState,
    /// Bytes in the archive that belongs to `state`.
    pub len: u64,
    /// [`checksum`] of those bytes.
    pub sum: u64,
}

impl MailboxHeader {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0u8; HEADER_LEN];
        out[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&self.state.code().to_le_bytes());
        out[16..24].copy_from_slice(&self.len.to_le_bytes());
        out[24..32].copy_from_slice(&self.sum.to_le_bytes());
        out
    }

    /// Read a header; an all-zero one (a fresh file) is `Empty`.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() < HEADER_LEN {
            return Err(WireError::Truncated { what: "header" });
        }
        let mut at = Reader { bytes, pos: 0 };
        let magic = at.u64("header")?;
        if magic == 0 {
            return Ok(MailboxHeader { state: MailboxState::Empty, len: 0, sum: 0 });
        }
        if magic != MAGIC {
            return Err(WireError::NotAMailbox);
        }
        let version = at.u32("header")?;
        if version != VERSION {
            return Err(WireError::OtherVersion(version));
        }
        let state = MailboxState::from_code(at.u32("header")?)?;
        Ok(MailboxHeader { state, len: at.u64("header")?, sum: at.u64("header")? })
    }
}

/// A 64-bit sum over 8-byte words: cheap in the emulated guest, and enough to notice a torn or
/// foreign archive.
pub fn checksum(bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mut sum: u64 = 0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let mut eight = [0u8; 8];
        eight.copy_from_slice(word);
        sum = (sum ^ u64::from_le_bytes(eight)).wrapping_mul(PRIME).rotate_left(23);
    }
    for &byte in words.remainder() {
        sum = (sum ^ u64::from(byte)).wrapping_mul(PRIME);
    }
    sum
}

/// One file in an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveEntry<'a> {
    /// Absolute path in the guest, or one of the `@` names.
    pub name: &'a str,
    /// Permission bits, and for what is no regular file [`S_IFDIR`] or [`S_IFLNK`].
    pub mode: u32,
    /// When the file was last changed, seconds since 1970; 0 leaves it to the guest's clock.
    pub changed_s: u64,
    /// Contents; the target of a symbolic link; nothing for a folder.
    pub data: &'a [u8],
}

/// What kind of file an entry is: these bits of its mode, as stat(2) has them.
pub const S_IFMT: u32 = 0o170_000;
/// A folder.
pub const S_IFDIR: u32 = 0o040_000;
/// A symbolic link.
pub const S_IFLNK: u32 = 0o120_000;

/// Builds an archive.
#[derive(Debug, Default)]
pub struct ArchiveWriter {
    bytes: Vec<u8>,
    count: u32,
}

impl ArchiveWriter {
    /// An empty archive.
    pub fn new() -> Self {
        ArchiveWriter { bytes: vec![0; 8], count: 0 }
    }

    /// Adds a file whose time of change is left to the guest's clock.
    pub fn add(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.put(&ArchiveEntry { name, mode, changed_s: 0, data });
    }

    /// Add an entry.
    pub fn put(&mut self, entry: &ArchiveEntry<'_>) {
        let ArchiveEntry { name, mode, changed_s, data } = *entry;
        self.bytes.extend_from_slice(&(name.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(&mode.to_le_bytes());
        self.bytes.extend_from_slice(&(data.len() as u64).to_le_bytes());
        self.bytes.extend_from_slice(&changed_s.to_le_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
        self.count += 1;
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        if self.bytes.is_empty() {
            self.bytes = vec![0; 8];
        }
        self.bytes[0..4].copy_from_slice(b"TARC");
        self.bytes[4..8].copy_from_slice(&self.count.to_le_bytes());
        self.bytes
    }

    fn pad(&mut self) {
        while self.bytes.len() % 8 != 0 {
            self.bytes.push(0);
        }
    }
}

/// Read an archive without copying its contents.
pub fn read_archive(bytes: &[u8]) -> Result<Vec<ArchiveEntry<'_>>, WireError> {
    let mut at = Reader { bytes, pos: 0 };
    if at.take(4, "archive")? != b"TARC" {
        return Err(WireError::NotAMailbox);
    }
    let count = at.u32("archive")? as usize;
    if count > MAX_ENTRIES {
        return Err(WireError::TooLarge { what: "number of files" });
    }
    let mut entries = Vec::new();
    for _ in 0..count {
        let name_len = at.u32("file name")? as usize;
        let mode = at.u32("file mode")?;
        let data_len = usize::try_from(at.u64("file length")?)
            .map_err(|_| WireError::TooLarge { what: "file" })?;
        let changed_s = at.u64("file time")?;
        if name_len > MAX_NAME {
            return Err(WireError::TooLarge { what: "file name" });
        }
        let name =
            std::str::from_utf8(at.take(name_len, "file name")?).map_err(|_| WireError::BadName)?;
        if name.is_empty() || name.contains('\0') {
            return Err(WireError::BadName);
        }
        at.align();
        let data = at.take(data_len, "file contents")?;
        at.align();
        entries.push(ArchiveEntry { name, mode, changed_s, data });
    }
    Ok(entries)
}

/// The entry of that name.
pub fn find<'a>(entries: &[ArchiveEntry<'a>], name: &'static str) -> Result<&'a [u8], WireError> {
    entries.iter().find(|e| e.name == name).map(|e| e.data).ok_or(WireError::Missing(name))
}

/// Page addresses, hottest first, as the `@pages` file.
pub fn encode_pages(pages: &[u64]) -> Vec<u8> {
    pages.iter().flat_map(|p| p.to_le_bytes()).collect()
}

/// The `@pages` file, read back; a trailing part of a word is damage.
pub fn decode_pages(bytes: &[u8]) -> Result<Vec<u64>, WireError> {
    if bytes.len() % 8 != 0 {
        return Err(WireError::Truncated { what: "page list" });
    }
    Ok(bytes
        .chunks_exact(8)
        .map(|word| {
            let mut eight = [0u8; 8];
            eight.copy_from_slice(word);
            u64::from_le_bytes(eight)
        })
        .collect())
}

struct Reader<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        let end = self.pos.checked_add(len).ok_or(WireError::TooLarge { what })?;
        let slice = self.bytes.get(self.pos..end).ok_or(WireError::Truncated { what })?;
        self.pos = end;
        Ok(slice)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        let mut word = [0u8; 4];
        word.copy_from_slice(self.take(4, what)?);
        Ok(u32::from_le_bytes(word))
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        let mut word = [0u8; 8];
        word.copy_from_slice(self.take(8, what)?);
        Ok(u64::from_le_bytes(word))
    }

    fn align(&mut self) {
        // The writer pads to words counted from the archive's start; a short tail is caught by the
        // next `take`.
        self.pos = self.pos.next_multiple_of(8);
    }
}

/// Parse JSON of the other side.
pub fn from_json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, WireError> {
    serde_json::from_slice(bytes).map_err(|e| WireError::BadJson(e.to_string()))
}

/// JSON for the other side.
pub fn to_json<T: Serialize>(value: &T) -> Result<Vec<u8>, WireError> {
    serde_json::to_vec(value).map_err(|e| WireError::BadJson(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive() -> Vec<u8> {
        let mut w = ArchiveWriter::new();
        w.add(JOB_NAME, 0o600, b"{}");
        w.add("/usr/bin/x", 0o755, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        w.put(&ArchiveEntry {
            name: "/link",
            mode: S_IFLNK | 0o777,
            changed_s: 7,
            data: b"usr/lib",
        });
        w.add("/empty", 0o644, b"");
        w.finish()
    }

    #[test]
    fn header_round_trips() {
        let h = MailboxHeader { state: MailboxState::Job, len: 77, sum: 99 };
        assert_eq!(MailboxHeader::decode(&h.encode()), Ok(h));
        assert_eq!(
            MailboxHeader::decode(&[0; HEADER_LEN]).map(|h| h.state),
            Ok(MailboxState::Empty)
        );
    }

    #[test]
    fn foreign_headers_are_refused() {
        let h = MailboxHeader { state: MailboxState::Done, len: 1, sum: 2 };
        let mut bytes = h.encode();
        bytes[0] ^= 1;
        assert_eq!(MailboxHeader::decode(&bytes), Err(WireError::NotAMailbox));
        let mut bytes = h.encode();
        bytes[8] = 9;
        assert_eq!(MailboxHeader::decode(&bytes), Err(WireError::OtherVersion(9)));
        let mut bytes = h.encode();
        bytes[12] = 200;
        assert_eq!(MailboxHeader::decode(&bytes), Err(WireError::UnknownState(200)));
        assert_eq!(
            MailboxHeader::decode(&bytes[..10]),
            Err(WireError::Truncated { what: "header" })
        );
    }

    #[test]
    fn archive_round_trips() {
        let bytes = archive();
        let entries = read_archive(&bytes).unwrap();
        assert_eq!(entries.len(), 4);
        assert_eq!(
            entries[1],
            ArchiveEntry {
                name: "/usr/bin/x",
                mode: 0o755,
                changed_s: 0,
                data: &[1, 2, 3, 4, 5, 6, 7, 8, 9]
            }
        );
        assert_eq!((entries[2].mode & S_IFMT, entries[2].changed_s), (S_IFLNK, 7));
        assert_eq!(find(&entries, JOB_NAME), Ok(&b"{}"[..]));
        assert_eq!(find(&entries, REPLY_NAME), Err(WireError::Missing(REPLY_NAME)));
    }

    #[test]
    fn every_truncation_is_an_error_not_a_panic() {
        let bytes = archive();
        // The last file is empty, so only its own head and name can be cut.
        for len in 0..bytes.len() - 2 {
            assert!(read_archive(&bytes[..len]).is_err(), "length {len} was accepted");
        }
    }

    #[test]
    fn every_flipped_byte_is_survived() {
        let bytes = archive();
        for i in 0..bytes.len() {
            for flip in [1u8, 0x80, 0xff] {
                let mut hurt = bytes.clone();
                hurt[i] ^= flip;
                let _ = read_archive(&hurt);
                assert_ne!(checksum(&hurt), checksum(&bytes));
            }
        }
    }

    #[test]
    fn huge_announcements_are_refused() {
        let mut bytes = archive();
        bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(read_archive(&bytes), Err(WireError::TooLarge { what: "number of files" }));
        let mut bytes = archive();
        bytes[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(read_archive(&bytes).is_err());
    }

    #[test]
    fn pages_round_trip() {
        let pages = [0x7000, 0x1000, 0xffff_f000];
        assert_eq!(decode_pages(&encode_pages(&pages)), Ok(pages.to_vec()));
        assert!(decode_pages(&[1, 2, 3]).is_err());
    }

    #[test]
    fn job_round_trips_as_json() {
        let job = GuestJob {
            argv: vec!["/bin/true".into()],
            env: vec![("A".into(), "b=c".into())],
            program: "/bin/true".into(),
            cwd: "/work".into(),
            stdin: Some("/data/in".into()),
            before: vec![Setting {
                path: "/proc/sys/kernel/numa_balancing".into(),
                value: "2".into(),
                required: true,
            }],
            after: vec![],
            memory_policy: Some(MemoryPolicy { mode: 6, nodes: vec![0, 1] }),
            at_mark: AtMark::Place { fast: 0, slow: 1, reserve_pages: 64, counts: true },
            reclaim: Some(Reclaim {
                node: 0,
                free_bytes: 8 << 20,
                step_bytes: 4 << 20,
                period_nanos: 50_000_000,
            }),
            limit_seconds: 100,
            cpu_of: vec!["kdamond".into()],
            fetch: vec![],
        };
        let bytes = to_json(&job).unwrap();
        assert_eq!(from_json::<GuestJob>(&bytes).unwrap(), job);
        assert!(from_json::<GuestJob>(&bytes[..bytes.len() / 2]).is_err());
    }
}
