//! What can go wrong, by situation.

use crate::store::StoreError;
use terrace_sys::SysError;
use terrace_types::Bytes;

/// Why there is no far memory, or it did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FarError {
    /// The size of a chunk is not one.
    #[error(
        "a map of {bytes} with chunks of {chunk}: chunks are powers of two from a page to 2 MiB, \
            and a map is not empty"
    )]
    Shape {
        /// Of the map.
        bytes: Bytes,
        /// Of a chunk.
        chunk: Bytes,
    },
    /// Too little memory to work with.
    #[error(
        "{dram} of memory is too little for chunks of {chunk}: give at least {least}, or make \
        chunks smaller"
    )]
    TooLittle {
        /// What was given.
        dram: Bytes,
        /// Of a chunk.
        chunk: Bytes,
        /// What would do.
        least: Bytes,
    },
    /// A range that is not within the map.
    #[error("bytes {start} to {end} are not within a map of {bytes}")]
    Range {
        /// First byte.
        start: u64,
        /// End, exclusive.
        end: u64,
        /// Of the map.
        bytes: Bytes,
    },
    /// More would be pinned than may be.
    #[error(
        "pinning {asked} more would pin more than half of {budget}; unpin some, or give more \
        memory"
    )]
    Pinned {
        /// What was asked.
        asked: Bytes,
        /// Memory of the map.
        budget: Bytes,
    },
    /// A file's bytes are kept.
    #[error("{what}: the map is a file's, whose bytes are kept; write zeros instead")]
    Kept {
        /// What was asked.
        what: &'static str,
    },
    /// A command was carried out in part: some chunks could not be written; their data is still in
    /// memory.
    #[error(
        "{what}: the store failed for some chunks, whose data stays in memory; see the \
        statistics, and try again"
    )]
    Partly {
        /// Which command.
        what: &'static str,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The kernel.
    #[error(transparent)]
    Kernel(#[from] SysError),
}
