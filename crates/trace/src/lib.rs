//! The trace: every load and store of a program in a file, with what makes the addresses mean
//! something. Pure: it reads and writes formats, and never touches a live process.
//!
//! # Interface
//!
//! Writing: [`TraceWriter::new`]`(out, &TraceHeader)`, then [`TraceWriter::access`] for each
//! access, [`TraceWriter::event`] for what else happens, [`TraceWriter::advance`] where a thread
//! waited, and [`TraceWriter::finish`].
//!
//! Reading: [`TraceReader::open`] on anything that can seek, [`Block::new`] once, then either
//! [`TraceReader::next_block`] from begin to end, or [`TraceReader::select`] and
//! [`TraceReader::read`] for one thread or a span of time. A block of [`BlockKind::Accesses`] holds
//! up to 32,768 accesses of **one** thread as columns:
//!
//! | column | element |
//! |---|---|
//! | [`Block::addresses`] | `u64`, virtual address of the first byte |
//! | [`Block::kinds`] | [`AccessDescriptor`], one byte: size, store or load, how many loads ago the address was loaded |
//! | [`Block::gaps`] | `u32`, instructions since the thread's last access, this access's own included |
//! | [`Block::pcs`], [`Block::values`], [`Block::details`] | only where the header says so |
//!
//! Time is in ticks ([`TraceHeader::clock`], [`TraceHeader::ns_per_tick`]); of each access by
//! [`Block::times_into`]. To interleave threads, open a reader a thread, or select each thread's
//! blocks, and merge by time; [`Block::jumps`] tells where a thread waited. A block of
//! [`BlockKind::Events`] holds [`TraceEvent`]s; each stands in the file before the accesses that
//! came after it.
//!
//! A recording may lack something: the file was cut off, a block is damaged, or the recorder could
//! not follow a program. [`TraceReader::is_complete`] tells, [`TraceReader::shortcomings`] says why
//! in sentences. Whoever shows figures of a recording repeats them.
//!
//! ```
//! use terrace_trace::{Access, Block, TraceHeader, TraceReader, TraceWriter};
//! let mut writer = TraceWriter::new(Vec::new(), &TraceHeader::default())?;
//! for i in 0..1000 {
//!     let access = Access { address: 0x7000_0000 + 8 * i, size: 8, gap: 3, pc: 0x40_1000, ..Access::default() };
//!     writer.access(0, 0, &access)?;
//! }
//! let bytes = writer.finish()?;
//!
//! let mut reader = TraceReader::open(std::io::Cursor::new(bytes))?;
//! let mut block = Block::new()?;
//! let mut stores = 0;
//! while reader.next_block(&mut block)? {
//!     stores += block.kinds().iter().filter(|kind| kind.is_store()).count();
//! }
//! assert_eq!((stores, reader.blocks()[0].count), (0, 1000));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod calls;
pub mod capture;
mod decode;
mod encode;
mod error;
mod event;
mod events;
mod frame;
pub mod import;
mod info;
mod omissions;
mod pack;
mod read;
mod samples;
mod sink;
mod tasks;
mod text;
mod write;

pub use decode::Block;
pub use error::TraceError;
pub use event::{
    Access, AccessDescriptor, CacheOperation, CallFrame, EventKind, SampleDetail, TraceClock,
    TraceEvent, TraceHeader,
};
pub use frame::{mend_checksums, BlockInfo, BlockKind, BLOCK_ACCESSES, MAGIC, VERSION};
pub use info::Info;
pub use read::TraceReader;
pub use samples::{SampleTotals, SampleTraceWriter};
pub use text::{block_lines, printable};
pub use write::TraceWriter;
