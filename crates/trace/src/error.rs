//! What can be wrong with a trace.

use std::io;

/// Why a trace cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file does not begin as a trace does.
    #[error(
        "not a trace: it does not begin with TERRTRC; `terrace trace import` reads other formats"
    )]
    NotATrace,
    /// Written by a later version.
    #[error(
        "trace of version {found}, and this program reads version {known}; use a newer terrace"
    )]
    Version {
        /// What the file says.
        found: u8,
        /// What is known here.
        known: u8,
    },
    /// Its header cannot be read, so nothing after it means anything.
    #[error("the trace's header is damaged ({why}); record it again")]
    Header {
        /// What is wrong.
        why: String,
    },
    /// A block fails its checksum or contradicts itself; others may be whole.
    #[error("block at byte {offset} is damaged ({why}); the blocks before it can be used")]
    Damaged {
        /// Where the block begins.
        offset: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// Reading failed.
    #[error("cannot read the trace at byte {offset}: {source}")]
    Read {
        /// Where.
        offset: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// Writing failed: the disk is full, say. What was written before is a trace.
    #[error("cannot write the trace after byte {offset}: {source}; what lies before can be read")]
    Write {
        /// Bytes written whole.
        offset: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// Something was handed to the writer that a trace cannot hold.
    #[error("a trace cannot hold this: {0}")]
    Unfit(&'static str),
}
