//! Files that a program maps by itself.

use crate::recording::visit_events;
use crate::study::StudyError;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use terrace_trace::{EventKind, TraceReader};

/// `MAP_SHARED`, which `MAP_SHARED_VALIDATE` contains, and `PROT_WRITE` (mmap(2)).
const SHARED: u32 = 1;
const WRITE: u32 = 2;

/// A mapping of a whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PersistentMapping {
    /// The process, as the recording numbers it.
    pub process: u32,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
}

impl PersistentMapping {
    /// Whether any byte of `length` from `start` on is in it.
    #[must_use]
    pub fn overlaps(&self, start: u64, length: u64) -> bool {
        start < self.address.saturating_add(self.bytes)
            && self.address < start.saturating_add(length)
    }
}

/// Where a recording's program maps this file, shared and writable.
///
/// # Errors
/// [`StudyError`], where that is nowhere or in several places.
pub fn find_mapping<R: Read + Seek>(
    reader: &mut TraceReader<R>,
    file: &Path,
) -> Result<PersistentMapping, StudyError> {
    let mut found = Vec::new();
    visit_events(reader, |event| {
        let EventKind::Map { start, length, protection, flags, name } = &event.what else { return };
        if flags & SHARED != 0 && protection & WRITE != 0 && Path::new(name) == file {
            found.push(PersistentMapping {
                process: event.process,
                address: *start,
                bytes: *length,
            });
        }
    })?;
    let file = file.file_name().map_or_else(|| file.to_owned(), PathBuf::from);
    match found.as_slice() {
        [] => Err(StudyError::NotMapped { file }),
        [one] => Ok(*one),
        several => Err(StudyError::SeveralMappings { file, count: several.len() }),
    }
}
