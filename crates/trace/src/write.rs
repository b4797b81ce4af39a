//! Writes traces, block by block.

use crate::encode::{AccessRow, BlockBuilder, EncodedAccess};
use crate::error::TraceError;
use crate::event::{Access, SampleDetail, TraceClock, TraceEvent, TraceHeader};
use crate::events;
use crate::frame::{BlockKind, BLOCK_ACCESSES, BLOCK_EVENTS, MAGIC, MAX_HEADER, VERSION};
use crate::omissions::Omissions;
use crate::sink::{Content, Head, Sink};
use std::collections::HashMap;
use std::io::{Seek, SeekFrom, Write};

/// Threads with an unfinished block at most; beyond that, the one longest not used is closed early.
/// Bounds memory.
const MAX_OPEN: usize = 64;
/// Events are written out when their bytes exceed this, even if few.
const MAX_EVENT_BYTES: usize = 256 << 10;

/// Bytes of magic, version, length and checksum, which stand before the header's JSON.
const BEFORE_HEADER: usize = MAGIC.len() + 1 + 4 + 4;

/// A file's first bytes, up to the first block. The header's JSON takes `length(its own length)`
/// bytes, filled up with spaces, which JSON allows.
fn header_bytes(
    header: &TraceHeader,
    length: impl Fn(usize) -> usize,
) -> Result<Vec<u8>, TraceError> {
    let mut json = serde_json::to_vec(header)
        .map_err(|e| TraceError::Write { offset: 0, source: e.into() })?;
    let length = length(json.len());
    if length > MAX_HEADER as usize || length < json.len() {
        return Err(TraceError::Unfit("a header of more than 1 MiB, or than there is space for"));
    }
    json.resize(length, b' ');
    let mut head = MAGIC.to_vec();
    head.push(VERSION);
    head.extend_from_slice(&(json.len() as u32).to_le_bytes());
    head.extend_from_slice(&crc32fast::hash(&json).to_le_bytes());
    head.extend_from_slice(&json);
    Ok(head)
}

/// A thread as the writer sees it.
#[derive(Debug)]
struct Open {
    process: u32,
    builder: BlockBuilder,
    /// The thread's time, and its time when the block began.
    now: u64,
    began: u64,
    used: u64,
}

/// Writes a trace to `out`. Memory does not grow with its length: a block a thread, at most 64 of
/// them.
///
/// Events are written before the accesses that were handed over after them, so that a reader that
/// goes from begin to end knows a mapping before it is used. [`TraceWriter::finish`] must be
/// called; without it the last blocks are lost and the trace reads as cut off.
#[derive(Debug)]
pub struct TraceWriter<W: Write> {
    sink: Sink<W>,
    header: TraceHeader,
    /// Bytes of the header's JSON in the file, spaces at its end included.
    header_length: usize,
    threads: HashMap<u32, Open>,
    /// The thread used last, kept out of the map: nearly every access is of the same thread as the
    /// one before.
    current: Option<(u32, Open)>,
    spare: Vec<BlockBuilder>,
    clocks: HashMap<u32, u64>,
    pending: Vec<u8>,
    pending_count: u32,
    pending_span: Option<(u64, u64)>,
    scratch: Vec<u8>,
    uses: u64,
    omissions: Omissions,
}

impl<W: Write> TraceWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// [`TraceError::Write`], or [`TraceError::Unfit`] for a header of more than 1 MiB.
    pub fn new(out: W, header: &TraceHeader) -> Result<Self, TraceError> {
        Self::with_header_space(out, header, 0)
    }

    /// As [`TraceWriter::new`], with `space` bytes more for what is found out while writing: see
    /// [`TraceWriter::finish_with_header`].
    ///
    /// # Errors
    /// As of [`TraceWriter::new`].
    pub fn with_header_space(
        mut out: W,
        header: &TraceHeader,
        space: usize,
    ) -> Result<Self, TraceError> {
        let head = header_bytes(header, |json| json + space)?;
        out.write_all(&head).map_err(|source| TraceError::Write { offset: 0, source })?;
        Ok(Self {
            sink: Sink::new(out, head.len() as u64)?,
            header: header.clone(),
            header_length: head.len() - BEFORE_HEADER,
            threads: HashMap::new(),
            current: None,
            spare: Vec::new(),
            clocks: HashMap::new(),
            pending: Vec::new(),
            pending_count: 0,
            pending_span: None,
            scratch: Vec::new(),
            uses: 0,
            omissions: Omissions::default(),
        })
    }

    /// Bytes written whole so far.
    pub fn written(&self) -> u64 {
        self.sink.written()
    }

    /// A thread's time as it follows from what was written.
    pub fn time(&self, thread: u32) -> u64 {
        match &self.current {
            Some((id, open)) if *id == thread => open.now,
            _ => self
                .threads
                .get(&thread)
                .map(|o| o.now)
                .or(self.clocks.get(&thread).copied())
                .unwrap_or(0),
        }
    }

    /// Adds an access; the thread's time goes on by its gap.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    #[inline(always)]
    pub fn access(&mut self, process: u32, thread: u32, access: &Access) -> Result<(), TraceError> {
        self.put(process, thread, &EncodedAccess::new(access), access.gap)
    }

    fn put(
        &mut self,
        process: u32,
        thread: u32,
        reported: &EncodedAccess,
        gap: u32,
    ) -> Result<(), TraceError> {
        let open = self.open(process, thread)?;
        open.builder.push(reported);
        open.now = open.now.saturating_add(u64::from(gap));
        Ok(())
    }

    /// Adds a row of accesses, as many calls of [`TraceWriter::access`] would: their addresses are
    /// in `words`. `first` is the first one's gap, `rest` the sum of the others'. `false`, and
    /// nothing is added, where the block has no space for all of them.
    #[inline]
    pub(crate) fn row(
        &mut self,
        (process, thread): (u32, u32),
        words: &[u64],
        row: &AccessRow,
        first: u32,
        rest: u64,
    ) -> Result<bool, TraceError> {
        let open = self.open(process, thread)?;
        if open.builder.len() + row.len() > BLOCK_ACCESSES {
            return Ok(false);
        }
        open.builder.push_row(words, row, first);
        open.now = open.now.saturating_add(u64::from(first)).saturating_add(rest);
        Ok(true)
    }

    /// Adds a row as often as it comes in `words`, a turn each `stride` words, each time with the
    /// gap `first` before its first access, as long as it is encoded as it was encoded last; how
    /// often that was. The row was the last to be added, twice.
    #[inline]
    pub(crate) fn row_again(
        &mut self,
        (process, thread): (u32, u32),
        words: &[u64],
        stride: usize,
        row: &AccessRow,
        first: u32,
        rest: u64,
    ) -> Result<usize, TraceError> {
        let open = self.open(process, thread)?;
        let turns = open.builder.push_again(words, stride, row, first);
        open.now = open.now.saturating_add(turns as u64 * (u64::from(first) + rest));
        Ok(turns)
    }

    /// Adds accesses as compilers' hooks tell them, one instruction each, as many as `words` begin
    /// with and the block has space for; how many, and how many of them are stores. `first` is the
    /// first one's gap.
    #[inline]
    pub(crate) fn hooked(
        &mut self,
        (process, thread): (u32, u32),
        words: &[u64],
        first: u32,
    ) -> Result<(usize, u64), TraceError> {
        let open = self.open(process, thread)?;
        let stores = open.builder.stores();
        let run = open.builder.push_hooked(words, first);
        let ticks = if run > 0 { u64::from(first) + (run as u64 - 1) } else { 0 };
        open.now = open.now.saturating_add(ticks);
        Ok((run, u64::from(open.builder.stores() - stores)))
    }

    /// Adds a store with the bytes it wrote; `value` must be `access.size` long. For traces whose
    /// header says `values`: there every store must come this way.
    ///
    /// # Errors
    /// [`TraceError::Write`]; [`TraceError::Unfit`] when the value does not fit the access.
    pub fn store(
        &mut self,
        process: u32,
        thread: u32,
        access: &Access,
        value: &[u8],
    ) -> Result<(), TraceError> {
        if !self.header.values || !access.store || value.len() != access.size as usize {
            return Err(TraceError::Unfit("a value that does not belong to a store of its size"));
        }
        self.access(process, thread, access)?;
        if let Some((_, open)) = &mut self.current {
            open.builder.push_value(value);
        }
        Ok(())
    }

    /// Adds an access whose time was recorded. For traces whose clock is
    /// [`TraceClock::Nanoseconds`]: there every access must come this way. Times may run backwards.
    ///
    /// # Errors
    /// [`TraceError::Write`]; [`TraceError::Unfit`] for another clock.
    pub fn access_at(
        &mut self,
        process: u32,
        thread: u32,
        access: &Access,
        time: u64,
    ) -> Result<(), TraceError> {
        if self.header.clock != TraceClock::Nanoseconds {
            return Err(TraceError::Unfit(
                "a time of its own where time is counted in instructions",
            ));
        }
        self.access(process, thread, access)?;
        if let Some((_, open)) = &mut self.current {
            open.builder.push_time(time);
            open.now = open.now.max(time);
        }
        Ok(())
    }

    /// Adds a sample. For traces whose header says `details`: there every access must come this
    /// way.
    ///
    /// # Errors
    /// As [`TraceWriter::access_at`]; [`TraceError::Unfit`] for a header without `details`.
    pub fn sample(
        &mut self,
        process: u32,
        thread: u32,
        access: &Access,
        time: u64,
        detail: &SampleDetail,
    ) -> Result<(), TraceError> {
        if !self.header.details {
            return Err(TraceError::Unfit("details of a sample where the header has none"));
        }
        self.access_at(process, thread, access, time)?;
        if let Some((_, open)) = &mut self.current {
            open.builder.push_detail(detail);
        }
        Ok(())
    }

    /// A thread's time goes on although it executes nothing.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn advance(&mut self, process: u32, thread: u32, ticks: u64) -> Result<(), TraceError> {
        if ticks > 0 {
            let open = self.open(process, thread)?;
            open.now = open.now.saturating_add(ticks);
            if open.builder.len() == 0 {
                open.began = open.now;
            } else {
                open.builder.push_jump(ticks);
            }
        }
        Ok(())
    }

    /// Adds an event.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn event(&mut self, event: &TraceEvent) -> Result<(), TraceError> {
        events::put(&mut self.pending, event, &mut self.scratch);
        self.pending_count += 1;
        let (first, last) = self.pending_span.unwrap_or((event.time, event.time));
        self.pending_span = Some((first.min(event.time), last.max(event.time)));
        if self.pending_count as usize >= BLOCK_EVENTS || self.pending.len() >= MAX_EVENT_BYTES {
            self.write_events()?;
        }
        Ok(())
    }

    /// Says in one sentence what the recording lacks; [`TraceWriter::finish`] writes it. A sentence
    /// that was said before is not repeated.
    pub fn omit(&mut self, sentence: &str) {
        self.omissions.add(sentence);
    }

    /// Writes out a thread's unfinished block, at its end or when it must be seen.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn flush_thread(&mut self, thread: u32) -> Result<(), TraceError> {
        if self.current.as_ref().is_some_and(|(id, _)| *id == thread) {
            self.park();
        }
        if let Some(mut open) = self.threads.remove(&thread) {
            self.write_accesses(thread, &mut open)?;
            self.clocks.insert(thread, open.now);
            self.spare.push(open.builder);
        }
        Ok(())
    }

    /// Writes out all unfinished blocks; the trace can be read up to here.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn flush(&mut self) -> Result<(), TraceError> {
        self.park();
        let mut threads: Vec<u32> = self.threads.keys().copied().collect();
        threads.sort_unstable();
        for thread in threads {
            self.flush_thread(thread)?;
        }
        self.write_events()?;
        self.sink.flush()
    }

    /// Writes what is left and the mark that the trace was written to its end, with what
    /// [`TraceWriter::omit`] was called.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn finish(mut self) -> Result<W, TraceError> {
        match self.write_end() {
            Ok(()) => self.sink.finish(),
            Err(error) => {
                self.abandon();
                Err(error)
            }
        }
    }

    /// Writes nothing more. What was written stays, and reads as cut off; when this returns, no
    /// thread writes to it.
    pub fn abandon(self) {
        self.sink.abandon();
    }

    fn write_end(&mut self) -> Result<(), TraceError> {
        self.flush()?;
        let head =
            Head { kind: BlockKind::End, process: 0, thread: 0, count: 0, stores: 0, span: (0, 0) };
        self.sink.write(head, Content::End(self.omissions.to_bytes()))
    }

    /// As [`TraceWriter::finish`], with another header in place of the first, whose clock and
    /// columns stay. `out` began with this trace.
    ///
    /// # Errors
    /// [`TraceError::Write`]; [`TraceError::Unfit`] for a header that does not fit the space of
    /// [`TraceWriter::with_header_space`], or with other columns.
    pub fn finish_with_header(self, header: &TraceHeader) -> Result<W, TraceError>
    where
        W: Seek,
    {
        let old = &self.header;
        let columns = |h: &TraceHeader| (h.clock, h.pcs, h.values, h.details);
        let alike = columns(old) == columns(header);
        if !alike {
            return Err(TraceError::Unfit("another clock or other columns at its end"));
        }
        let length = self.header_length;
        let head = header_bytes(header, |_| length)?;
        let mut out = self.finish()?;
        let written = out
            .seek(SeekFrom::Start(0))
            .and_then(|_| out.write_all(&head))
            .and_then(|()| out.seek(SeekFrom::End(0)));
        written.map_err(|source| TraceError::Write { offset: 0, source })?;
        Ok(out)
    }

    #[inline]
    fn open(&mut self, process: u32, thread: u32) -> Result<&mut Open, TraceError> {
        let ready =
            matches!(&self.current, Some((id, open)) if *id == thread && !open.builder.is_full());
        if !ready {
            self.make_current(process, thread)?;
        }
        match &mut self.current {
            Some((_, open)) => Ok(open),
            None => Err(TraceError::Unfit("an access of no thread")),
        }
    }

    #[cold]
    fn make_current(&mut self, process: u32, thread: u32) -> Result<(), TraceError> {
        self.park();
        self.uses += 1;
        let mut open = match self.threads.remove(&thread) {
            Some(open) => open,
            None => {
                self.make_space()?;
                let now = self.clocks.get(&thread).copied().unwrap_or(0);
                let pcs = self.header.pcs;
                let builder = self.spare.pop().unwrap_or_else(|| BlockBuilder::new(pcs));
                Open { process, builder, now, began: now, used: 0 }
            }
        };
        if open.builder.is_full() {
            self.write_accesses(thread, &mut open)?;
        }
        open.used = self.uses;
        self.current = Some((thread, open));
        Ok(())
    }

    fn park(&mut self) {
        if let Some((id, open)) = self.current.take() {
            self.threads.insert(id, open);
        }
    }

    fn make_space(&mut self) -> Result<(), TraceError> {
        if self.threads.len() >= MAX_OPEN {
            let oldest = self.threads.iter().min_by_key(|(_, open)| open.used).map(|(id, _)| *id);
            if let Some(thread) = oldest {
                self.flush_thread(thread)?;
            }
        }
        Ok(())
    }

    fn write_accesses(&mut self, thread: u32, open: &mut Open) -> Result<(), TraceError> {
        let count = open.builder.len() as u32;
        if count == 0 {
            return Ok(());
        }
        self.write_events()?;
        let columns = open.builder.take(self.sink.empty());
        let span = columns.time_range.unwrap_or((open.began, open.now));
        open.began = open.now;
        let (kind, process, stores) = (BlockKind::Accesses, open.process, columns.stores);
        self.sink
            .write(Head { kind, process, thread, count, stores, span }, Content::Accesses(columns))
    }

    fn write_events(&mut self) -> Result<(), TraceError> {
        let Some(span) = self.pending_span.take() else { return Ok(()) };
        let count = std::mem::take(&mut self.pending_count);
        let events = std::mem::take(&mut self.pending);
        let head = Head { kind: BlockKind::Events, process: 0, thread: 0, count, stores: 0, span };
        self.sink.write(head, Content::Events(events))
    }
}

impl<W: Write + Send + 'static> TraceWriter<W> {
    /// Leaves packing and writing to a thread of its own, for who has a processor to spare. The
    /// file is the same. An error is reported by one of the next calls instead of the one that made
    /// the block, at the latest by [`TraceWriter::flush`] and [`TraceWriter::finish`]. The thread
    /// is begun with the first block, by the thread that completes it, whose signal mask it has.
    #[must_use]
    pub fn with_thread(self) -> Self {
        Self { sink: self.sink.threaded(), ..self }
    }
}
