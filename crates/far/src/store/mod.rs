//! Where chunks go when they are not in memory: one small trait, one file a store.
//!
//! A store takes [`StoreJob`]s and gives each back as [`CompletedJob`]. A job owns its buffer while
//! it is under way. Offsets are those of the map, multiples of a page; a store is at least as large
//! as its map. Jobs on one chunk never overlap.

mod compressed;
mod existing;
mod faulty;
mod file;
mod mem;
mod pages;
mod slab;
mod spec;
mod tiered;
mod words;

pub use compressed::Compressed;
pub use existing::ExistingFile;
pub use faulty::{Faults, Faulty};
pub use file::FileStore;
pub use mem::Mem;
pub use spec::StoreSpec;
pub use tiered::Tiered;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use terrace_sys::{wait_readable, ChunkFrame, SysError};
use terrace_types::{Bytes, Nanos};

/// A job's memory.
#[derive(Debug)]
pub enum StoreBuffer {
    /// To be filled from the store.
    Fill(ChunkFrame),
    /// To be written to the store; others may read it meanwhile.
    Send(Arc<ChunkFrame>),
}

impl StoreBuffer {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Fill(frame) => frame.bytes(),
            Self::Send(frame) => frame.bytes(),
        }
    }
}

/// A run of bytes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobPiece {
    /// Where it is in the map, and so in the store.
    pub at: u64,
    /// Where it is in the buffer.
    pub start: usize,
    /// Bytes.
    pub len: usize,
}

/// Pieces of one chunk to read or write.
#[derive(Debug)]
pub struct StoreJob {
    /// The caller's number.
    pub tag: u64,
    /// What is read or written.
    pub buffer: StoreBuffer,
    /// Which parts of it.
    pub pieces: Vec<JobPiece>,
}

/// A job that has ended.
#[derive(Debug)]
pub struct CompletedJob {
    /// As it was given.
    pub job: StoreJob,
    /// How it ended.
    pub result: Result<(), StoreError>,
}

/// Why a store did not do a job, or could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The device or file system failed, or refused.
    #[error("{store}: {what} at offset {at:#x} failed (errno {errno})")]
    Io {
        /// Which store.
        store: &'static str,
        /// Reading or writing.
        what: &'static str,
        /// Where.
        at: u64,
        /// The kernel's number.
        errno: i32,
    },
    /// What came back is not what was written.
    #[error("{store}: the bytes at offset {at:#x} are not those that were written")]
    Altered {
        /// Which store.
        store: &'static str,
        /// Where.
        at: u64,
    },
    /// A bounded store has no free space left.
    #[error("{store} is full ({limit}); give it more, or a file behind it")]
    Full {
        /// Which store.
        store: &'static str,
        /// What it may hold.
        limit: Bytes,
    },
    /// It could not be set up.
    #[error(transparent)]
    Setup(#[from] terrace_sys::SysError),
}

/// A store. Called by one thread.
pub trait BackingStore: Send + std::fmt::Debug {
    /// Its name, for messages.
    fn name(&self) -> &'static str;
    /// Starts jobs, all of them.
    fn begin(&mut self, jobs: &mut Vec<StoreJob>);
    /// Takes the jobs that have ended since the last call.
    fn finished(&mut self, done: &mut Vec<CompletedJob>);
    /// Whether [`BackingStore::wait`] ends when [`BackingStore::finished`] has something to say;
    /// not for a store whose jobs end within `begin`.
    fn signals_completion(&self) -> bool {
        false
    }
    /// Waits until one of these descriptors, the same each time, is readable (its bit) or, with a
    /// store that tells, a job has ended (the bit after theirs), for `limit` at most.
    ///
    /// # Errors
    /// The kernel refuses to wait.
    fn wait(&mut self, others: &[BorrowedFd<'_>], limit: Option<Nanos>) -> Result<u64, SysError> {
        wait_readable(others, limit)
    }
    /// The bytes of a run will not be asked for before they are written again.
    fn forget(&mut self, at: u64, len: usize);
    /// Bytes from the first on that it has from the start, and keeps when the map is gone: a
    /// file's. Zeros are data then, and nothing of it is forgotten.
    fn holds(&self) -> Bytes {
        Bytes::ZERO
    }
    /// Bytes that are cheaper read with what lies around them than left out; a job's pieces that
    /// are no further apart are read as one.
    fn gap(&self) -> usize {
        0
    }
    /// Memory that it uses for data, for accounts; stores on disk use none.
    fn memory(&self) -> Bytes {
        Bytes::ZERO
    }
    /// Memory that it uses to find that data again.
    fn metadata(&self) -> Bytes {
        Bytes::ZERO
    }
    /// Something worth knowing about how it runs, if there is: slower ways taken since the machine
    /// lacks something.
    fn remark(&self) -> Option<String> {
        None
    }
}
