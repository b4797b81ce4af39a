//! What one asks a pipeline for, and what one gets.

use super::model::{Costs, NoStagingReason, Threads};
use terrace_sys::SysError;
use terrace_types::{Bytes, CpuId, NodeId};

/// How to stage.
#[derive(Debug, Clone, PartialEq)]
pub struct StagingOptions {
    /// The node of the buffers.
    pub fast: NodeId,
    /// The node the data lies on, where known.
    pub slow: Option<NodeId>,
    /// Threads.
    pub threads: Threads,
    /// CPUs that threads are kept on, in turn; empty: anywhere.
    pub cpus: Vec<CpuId>,
    /// Buffers; `None`: as many as keep all threads busy.
    pub slots: Option<u32>,
    /// Fast memory that buffers may take.
    pub room: Bytes,
    /// Blocks that are asked for before anything runs, one at least. A sequence that ends within
    /// them is known as a whole when threads and buffers are chosen, and is refused, if it is,
    /// before anything runs. A longer one is taken to go on like these, and each further block is
    /// asked for when a buffer is free for it. An iterator may wait there for the kernel of a block
    /// that it gave this many blocks before, or earlier; then it must also end when that kernel
    /// fails.
    pub ahead: usize,
    /// Blocks that there will be, where there are more than `ahead`. `None`: as many as the
    /// iterator says there may be ([`Iterator::size_hint`]), or as go over all of the data.
    pub expected: Option<usize>,
    /// The largest block, where one beyond the first `ahead` may be larger than those. One that is
    /// larger than a buffer is worked on where it lies.
    pub largest: Option<Bytes>,
    /// How often the kernel goes over a block.
    pub passes: f64,
    /// Nanoseconds a thread computes on a byte in one pass, were memory infinitely fast; 0 where
    /// not known.
    pub compute_ns_per_byte: f64,
    /// What the machine can do, where known.
    pub costs: Option<Costs>,
    /// Blocks are worked on at their own addresses: their pages are moved to the fast node and home
    /// again (`move_pages`), which costs more than copies to buffers. Pages that a block shares
    /// with others stay where they are.
    pub keep_addresses: bool,
}

impl StagingOptions {
    /// On buffers of node `fast`, with so many threads and a kernel of one pass.
    #[must_use]
    pub fn new(fast: NodeId, threads: Threads) -> Self {
        Self {
            fast,
            slow: None,
            threads,
            cpus: Vec::new(),
            slots: None,
            room: Bytes::gib(1),
            ahead: 64,
            expected: None,
            largest: None,
            passes: 1.0,
            compute_ns_per_byte: 0.0,
            costs: None,
            keep_addresses: false,
        }
    }
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StagingMode {
    /// Blocks went through fast memory.
    Staged,
    /// The kernel ran where the data lies.
    InPlace(NoStagingReason),
}

/// How it went.
#[derive(Debug, Clone, PartialEq)]
pub struct StagingReport {
    /// Staged or not.
    pub mode: StagingMode,
    /// Threads in all.
    pub threads: u32,
    /// Threads that copied, at the end.
    pub migrators: u32,
    /// Buffers.
    pub slots: u32,
    /// Blocks.
    pub blocks: usize,
    /// Bytes copied, or moved, to fast memory.
    pub brought: Bytes,
    /// Bytes copied, or moved, back.
    pub returned: Bytes,
    /// Bytes that were worked on where they lay though they should have come: pages that the kernel
    /// did not move, and those that a block shares with others. Where blocks are copied, those that
    /// were larger than a buffer.
    pub stayed: Bytes,
    /// Times that a thread waited because no block was ready.
    pub stalls: u64,
    /// How long, all threads together, the wait for the first blocks included.
    pub stalled: terrace_types::Nanos,
    /// Changes of the number of copying threads.
    pub changes: u32,
    /// Until buffers were made and touched, by the threads, which are begun meanwhile. Part of
    /// `took`.
    pub prepared: terrace_types::Nanos,
    /// After threads ended: buffers were given back. Part of `took`; zero where a kernel keeps them
    /// ([`super::stage_held`]).
    pub released: terrace_types::Nanos,
    /// From begin to end.
    pub took: terrace_types::Nanos,
}

/// Why the data was not worked through.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// Two blocks share elements. Where the second is not among the first
    /// [`StagingOptions::ahead`], blocks before it are as they were or complete.
    #[error("blocks {first} and {second} overlap; give ranges that share no element")]
    Overlap {
        /// Number of a block.
        first: usize,
        /// Number of another, which came later.
        second: usize,
    },
    /// What gives the blocks panicked. Blocks before are as they were or complete.
    #[error("the iterator of blocks panicked after {after} blocks: {message}")]
    Sequence {
        /// Blocks that it had given.
        after: usize,
        /// What it said.
        message: String,
    },
    /// A block reaches beyond the data, or ends before it begins; of blocks before it see
    /// [`Self::Overlap`].
    #[error("block {block} is {start}..{end} of {length} elements; give ranges within the data")]
    OutOfBounds {
        /// Its number.
        block: usize,
        /// Where it begins.
        start: usize,
        /// Where it ends.
        end: usize,
        /// Elements there are.
        length: usize,
    },
    /// Addresses shall stay, and no page tells which node it is from.
    #[error(
        "no block has a whole page with memory, so that it is not known where pages go back \
        to; give `slow`, or touch the data first"
    )]
    NoHome,
    /// No thread to work.
    #[error("no threads were given; give one at least, and two to stage")]
    NoThreads,
    /// The kernel panicked. Blocks that were through before are whole, all others as they were, but
    /// for this one where `intact` is false.
    #[error("the kernel panicked at block {block}: \
        {message}{}", if *.intact { "" } else { " (the \
        block may be half done: it was worked on in place)" })]
    Panicked {
        /// The block's number.
        block: usize,
        /// What it said.
        message: String,
        /// Whether the block's source is as it was.
        intact: bool,
    },
    /// Buffers or threads could not be had.
    #[error(transparent)]
    Sys(#[from] SysError),
}
