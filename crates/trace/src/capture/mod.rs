//! From the words of the capture plugin (`capture/plugin.c` defines them) or of the compiler's
//! hooks (`capture/hooks`) to a trace. Pure: whoever has the words hands them in, slot by slot.
//!
//! A program can write anything into its ring, so words are not trusted: nonsense is counted and
//! stepped over.

mod code;
mod filter;
mod growth;
mod message;
mod paths;
mod threads;

pub use filter::Filter;

use crate::error::TraceError;
use crate::event::{Access, CacheOperation, EventKind, TraceEvent};
use crate::write::TraceWriter;
use code::{BlockSpan, CapturedCode};
use message::{mapping, words_as_text};
use paths::Paths;
use std::collections::HashMap;
use std::io::Write;
use threads::{CaptureThread, Pending};

const IS_WORD: u64 = 1 << 63;

/// Whether a word says that a block begins.
#[inline]
fn is_block(word: u64) -> bool {
    word >> 60 == IS_WORD >> 60
}

/// Blocks beyond this number are not remembered: their accesses have neither program counter nor
/// dependence.
const MAX_BLOCKS: usize = 1 << 22;
/// A message longer than this is nonsense.
const MAX_CONTENT: usize = 4096;

/// What was seen and kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CaptureTotals {
    /// Loads and stores the program made, filters aside. What an instruction reads or writes in one
    /// piece is one access.
    pub loads: u64,
    /// See `loads`.
    pub stores: u64,
    /// Accesses that went into the trace.
    pub kept: u64,
    /// Instructions executed.
    pub instructions: u64,
    /// Processes and threads seen.
    pub processes: u32,
    /// See `processes`.
    pub threads: u32,
    /// Words that meant nothing.
    pub nonsense: u64,
    /// Times the function was entered at which recording begins.
    pub begun: u64,
}

/// Turns words into a trace.
#[derive(Debug)]
pub struct Capture<W: Write> {
    writer: TraceWriter<W>,
    filter: Filter,
    values: bool,
    recording: bool,
    /// Nothing is filtered.
    all: bool,
    code: CapturedCode,
    paths: Paths,
    /// Words are looked at a path or a run at a time where that is possible.
    by_path: bool,
    slots: HashMap<u32, CaptureThread>,
    processes: HashMap<u64, u32>,
    totals: CaptureTotals,
}

impl<W: Write> Capture<W> {
    /// Writes to `writer` what passes the filter. `values`: the plugin sends the values stored.
    pub fn new(writer: TraceWriter<W>, filter: Filter, values: bool) -> Self {
        let recording = !filter.begins_later;
        let all = filter.notes().is_empty();
        let by_path = all;
        Self {
            all,
            by_path,
            paths: Paths::new(values),
            writer,
            filter,
            values,
            recording,
            code: CapturedCode::default(),
            slots: HashMap::new(),
            processes: HashMap::new(),
            totals: CaptureTotals::default(),
        }
    }

    /// Looks at each word by itself, which gives the same trace, slower: for tests that compare.
    #[must_use]
    pub fn without_paths(self) -> Self {
        Self { by_path: false, ..self }
    }

    /// What was seen so far.
    pub fn totals(&self) -> CaptureTotals {
        self.totals
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.writer.written()
    }

    /// Says in one sentence what the recording lacks: see [`TraceWriter::omit`].
    pub fn omit(&mut self, sentence: &str) {
        self.writer.omit(sentence);
    }

    /// Takes words of a slot and says how many were used; the rest must come again, with what
    /// follows them. `last`: none will follow.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn feed(&mut self, slot: u32, words: &[u64], last: bool) -> Result<usize, TraceError> {
        // Taken out of the map while its words are worked on.
        let mut thread = self.slots.remove(&slot).unwrap_or_else(CaptureThread::nobody);
        let used = self.feed_thread(&mut thread, words, last);
        self.slots.insert(slot, thread);
        used
    }

    fn feed_thread(
        &mut self,
        thread: &mut CaptureThread,
        words: &[u64],
        last: bool,
    ) -> Result<usize, TraceError> {
        let mut at = 0;
        while let Some(&word) = words.get(at) {
            if word & IS_WORD == 0 && thread.hooked {
                let run = if self.by_path { self.hooked_run(thread, &words[at..])? } else { 0 };
                if run == 0 {
                    self.hooked_access(thread, word)?;
                }
                at += run.max(1);
            } else if word & IS_WORD == 0 {
                let value = if self.values && threads::is_store(word) {
                    let Some(value) = words.get(at + 1) else { break };
                    at += 1;
                    *value
                } else {
                    0
                };
                self.access(thread, word, value)?;
                at += 1;
            } else if is_block(word) {
                let passed = if self.by_path && !thread.hooked {
                    self.pass(thread, &words[at..])?
                } else {
                    0
                };
                if passed > 0 {
                    at += passed;
                    continue;
                }
                if !self.enter(thread, word, last)? {
                    break;
                }
                at += 1;
            } else {
                let length = (word >> 16 & 0xffff) as usize;
                if word >> 60 & 7 != 1 || length > MAX_CONTENT {
                    self.totals.nonsense += 1;
                    at += 1;
                    continue;
                }
                let Some(content) = words.get(at + 1..at + 1 + length) else { break };
                if !last && self.is_orphan(thread, word & 0xffff, content) {
                    break;
                }
                self.message(thread, word & 0xffff, content)?;
                at += 1 + length;
            }
        }
        Ok(at)
    }

    /// An access; what an instruction does in pieces of eight bytes becomes one.
    #[inline]
    fn access(
        &mut self,
        thread: &mut CaptureThread,
        word: u64,
        value: u64,
    ) -> Result<(), TraceError> {
        let joined = match &mut thread.pending {
            Some(pending) => pending.absorb(word),
            None => false,
        };
        if !joined {
            self.settle(thread)?;
            thread.pending = Some(Pending::new(word));
        }
        if self.values && threads::is_store(word) {
            let bytes = if joined { 8 } else { Pending::new(word).size.min(8) };
            thread.value.extend_from_slice(&value.to_le_bytes()[..bytes as usize]);
        }
        Ok(())
    }

    /// The same as `hooked_access` for as many of these words as can be taken together; how many.
    #[inline]
    fn hooked_run(
        &mut self,
        thread: &mut CaptureThread,
        words: &[u64],
    ) -> Result<usize, TraceError> {
        let Some((process, number)) = thread.number.filter(|_| self.recording) else {
            return Ok(0);
        };
        let Ok(first) = u32::try_from((thread.before + 1).saturating_sub(thread.last)) else {
            return Ok(0);
        };
        let (run, stores) = self.writer.hooked((process, number), words, first)?;
        thread.before += run as u64;
        thread.last = thread.before;
        self.totals.instructions += run as u64;
        self.totals.kept += run as u64;
        self.totals.stores += stores;
        self.totals.loads += run as u64 - stores;
        Ok(run)
    }

    /// An access that a compiler's hook reported: whole, without the code it stands in. It counts
    /// as one instruction.
    #[inline]
    fn hooked_access(&mut self, thread: &mut CaptureThread, word: u64) -> Result<(), TraceError> {
        let Some((process, number)) = thread.number else {
            self.totals.nonsense += 1;
            return Ok(());
        };
        let (reported, store) = (Pending::new(word), threads::is_store(word));
        let (address, size) = (reported.address(), reported.size);
        thread.before += 1;
        self.totals.instructions += 1;
        *(if store { &mut self.totals.stores } else { &mut self.totals.loads }) += 1;
        if !self.recording
            || !(self.all || self.filter.keeps(&mut thread.seen, address, size, thread.before))
        {
            return Ok(());
        }
        self.totals.kept += 1;
        let since = thread.behind();
        thread.last = thread.before;
        let gap = since.min(u64::from(u32::MAX));
        self.writer.advance(process, number, since - gap)?;
        // Which place of the code it is, not where: enough to predict the address from that place's
        // last.
        let pc = 1 + (word >> 52 & 0x7ff);
        self.writer.access(
            process,
            number,
            &Access { address, size, store, depends: 0, gap: gap as u32, pc },
        )
    }

    /// The pending access is complete.
    #[inline]
    fn settle(&mut self, thread: &mut CaptureThread) -> Result<(), TraceError> {
        let Some(pending) = thread.pending.take() else { return Ok(()) };
        let Some((process, number)) = thread.number else {
            self.totals.nonsense += 1;
            return Ok(());
        };
        let (index, store) = (pending.index(), pending.store());
        let (pc, depends) = thread.values.site(&self.code, thread.block, index);
        if store {
            self.totals.stores += 1;
        } else {
            self.totals.loads += 1;
            thread.values.load(index);
        }
        let position = thread.before + index as u64 + 1;
        let (address, size) = (pending.address(), pending.size);
        if !self.recording
            || !(self.all || self.filter.keeps(&mut thread.seen, address, size, position))
        {
            thread.value.clear();
            return Ok(());
        }
        self.totals.kept += 1;
        let since = position.saturating_sub(thread.last);
        thread.last = thread.last.max(position);
        let gap = since as u32;
        if since > u64::from(u32::MAX) {
            self.writer.advance(process, number, since - u64::from(gap))?;
        }
        let access = Access { address, size, store, depends, gap, pc };
        if self.values && store {
            // Pieces wider than a word do not occur; should they, what is not known reads as zero.
            thread.value.resize(size as usize, 0);
            self.writer.store(process, number, &access, &thread.value)?;
            thread.value.clear();
            return Ok(());
        }
        self.writer.access(process, number, &access)
    }

    /// A block begins, so the one before it was executed; `false` while its code is not known yet.
    #[inline]
    fn enter(
        &mut self,
        thread: &mut CaptureThread,
        word: u64,
        last: bool,
    ) -> Result<bool, TraceError> {
        let block = (word & 0xffff_ffff) as usize;
        let known = self.code.get(block);
        if known.is_none() && !last && block < MAX_BLOCKS && thread.patience > 0 {
            // Another thread translated it and its words have not been taken yet.
            thread.patience -= 1;
            return Ok(false);
        }
        self.leave(thread)?;
        thread.patience = threads::PATIENCE;
        thread.length = word >> 32 & 0xfff;
        thread.block = known.unwrap_or_default();
        Ok(true)
    }

    /// The block has been executed; the thread is between two.
    #[inline]
    fn leave(&mut self, thread: &mut CaptureThread) -> Result<(), TraceError> {
        self.settle(thread)?;
        thread.values.leave(&self.code, thread.block);
        thread.before = thread.before.saturating_add(thread.length);
        self.totals.instructions += thread.length;
        thread.length = 0;
        thread.block = BlockSpan::default();
        Ok(())
    }

    /// Takes a whole path, as often as it comes, if the words begin with one that is known and
    /// nothing speaks against it; how many words.
    #[inline]
    fn pass(&mut self, thread: &mut CaptureThread, words: &[u64]) -> Result<usize, TraceError> {
        let Some((process, number)) = thread.number.filter(|_| self.recording) else {
            return Ok(0);
        };
        let Some(head) = self.paths.head(&self.code, words) else { return Ok(0) };
        // The block is known, so it begins here, path or no path.
        if thread.length > 0 || thread.pending.is_some() {
            self.leave(thread)?;
        }
        let Some(path) = self.paths.find(head, &self.code, words) else { return Ok(0) };
        let (mut used, mut came) = (0, 0u32);
        // Loops go the same path again and again.
        loop {
            let after = path.pass(thread.values.ages());
            if path.row.len() > 0 {
                let since = (thread.before + path.first)
                    .checked_sub(thread.last)
                    .and_then(|gap| u32::try_from(gap).ok());
                let Some(gap) = since else { break };
                let (row, rest) = (&path.row, path.last - path.first);
                if !self.writer.row((process, number), &words[used..], row, gap, rest)? {
                    break;
                }
                thread.last = thread.before + path.last;
            }
            used += path.len();
            thread.before += path.instructions;
            thread.values.pass(after, u64::from(path.loads));
            self.totals.instructions += path.instructions;
            self.totals.loads += u64::from(path.loads);
            self.totals.stores += u64::from(path.stores);
            self.totals.kept += path.row.len() as u64;
            came += 1;
            if came >= 2 {
                let ages = *thread.values.ages();
                let turns = path.turns(&words[used..], &ages);
                if turns > 0 {
                    let (row, gap, rest) = (&path.row, path.between(), path.last - path.first);
                    let turn = &words[used..used + turns * path.len()];
                    let turns = self.writer.row_again(
                        (process, number),
                        turn,
                        path.len(),
                        row,
                        gap,
                        rest,
                    )?;
                    path.again.came(turns);
                    if turns > 0 {
                        let each = turns as u64;
                        used += turns * path.len();
                        thread.before += each * path.instructions;
                        thread.last = thread.before - path.instructions + path.last;
                        thread
                            .values
                            .pass(path.again.behind(&ages, turns), each * u64::from(path.loads));
                        self.totals.instructions += each * path.instructions;
                        self.totals.loads += each * u64::from(path.loads);
                        self.totals.stores += each * u64::from(path.stores);
                        self.totals.kept += each * path.row.len() as u64;
                    }
                }
            }
            if !path.is(&words[used..]) {
                break;
            }
        }
        if used > 0 {
            thread.patience = threads::PATIENCE;
        }
        Ok(used)
    }

    fn message(
        &mut self,
        thread: &mut CaptureThread,
        which: u64,
        content: &[u64],
    ) -> Result<(), TraceError> {
        let event =
            |capture: &mut Self, thread: &CaptureThread, what: EventKind| match thread.number {
                None => Ok(()),
                Some((process, number)) => {
                    let time = capture.writer.time(number).saturating_add(thread.behind());
                    capture.writer.event(&TraceEvent { time, process, thread: number, what })
                }
            };
        match (which, content) {
            (message::BLOCK, [number, pc, count, bytes, code @ ..]) => {
                self.settle(thread)?;
                self.translated(*number, *pc, *count, *bytes, code);
                Ok(())
            }
            (message::THREAD, [pid, tid, time, parent]) => {
                self.begin(thread, *pid, *tid, *time, *parent)
            }
            (message::EXIT, _) => self.end(thread),
            (message::JUMP, [ticks]) => {
                self.settle(thread)?;
                self.catch_up(thread)?;
                match thread.number {
                    Some((process, number)) => self.writer.advance(process, number, *ticks),
                    None => Ok(()),
                }
            }
            (message::SYSCALL, [number, result, a, b, c, d, _, _, text @ ..]) => {
                self.settle(thread)?;
                match mapping(*number, *result, [*a, *b, *c, *d], text) {
                    Some(what) => event(self, thread, what),
                    None => Ok(()),
                }
            }
            (message::MAP, [start, length, protection, flags, text @ ..]) => {
                let (protection, flags) = (*protection as u32, *flags as u32);
                event(
                    self,
                    thread,
                    EventKind::Map {
                        start: *start,
                        length: *length,
                        protection,
                        flags,
                        name: words_as_text(text),
                    },
                )
            }
            // Hooks do not know values, so whoever says this where they are kept is no hook.
            (message::HOOKS, _) if !self.values => {
                thread.hooked = true;
                Ok(())
            }
            (message::OBJECT, [start, length, text @ ..]) => event(
                self,
                thread,
                EventKind::Object { start: *start, length: *length, name: words_as_text(text) },
            ),
            (message::EXEC, text) => {
                event(self, thread, EventKind::Exec { name: words_as_text(text) })
            }
            (message::UNRECORDED, text) => {
                self.writer.omit(&format!("{} ran unrecorded", words_as_text(text)));
                Ok(())
            }
            (message::MARK, [id]) => {
                self.settle(thread)?;
                event(self, thread, EventKind::Mark { id: *id as u32 })
            }
            (message::CACHE, [code, address, pc]) => {
                self.settle(thread)?;
                match CacheOperation::from_code(*code) {
                    Some(operation) if self.recording => {
                        let (address, pc) = (*address, *pc);
                        event(self, thread, EventKind::Cache { operation, address, pc })
                    }
                    Some(_) => Ok(()),
                    None => {
                        self.totals.nonsense += 1;
                        Ok(())
                    }
                }
            }
            (message::BEGIN, _) => {
                self.settle(thread)?;
                self.recording = true;
                self.totals.begun += 1;
                Ok(())
            }
            (message::END, _) => {
                self.settle(thread)?;
                self.recording = false;
                Ok(())
            }
            _ => {
                self.totals.nonsense += 1;
                Ok(())
            }
        }
    }

    /// Whether a thread says that its process was forked from one that is not known yet: the words
    /// of that one were written before, into another slot, and will come. Not for long, in case it
    /// was never recorded.
    fn is_orphan(&self, thread: &mut CaptureThread, which: u64, content: &[u64]) -> bool {
        let (message::THREAD, [_, _, _, parent]) = (which, content) else { return false };
        let waits = *parent != 0 && !self.processes.contains_key(parent) && thread.kin > 0;
        thread.kin -= u32::from(waits);
        waits
    }

    fn translated(&mut self, number: u64, pc: u64, count: u64, bytes: u64, code: &[u64]) {
        let at = number as usize;
        let raw: Vec<u8> = code.iter().flat_map(|w| w.to_le_bytes()).take(bytes as usize).collect();
        if at >= MAX_BLOCKS || count > 4096 {
            self.totals.nonsense += 1;
            return;
        }
        if self.code.get(at).is_some() {
            self.paths.forget();
        }
        self.code.add(at, pc, &raw, count as usize);
    }

    fn begin(
        &mut self,
        thread: &mut CaptureThread,
        pid: u64,
        tid: u64,
        time: u64,
        parent: u64,
    ) -> Result<(), TraceError> {
        self.end(thread)?;
        let known = self.processes.get(&pid).copied().filter(|_| parent == 0);
        let process = known.unwrap_or(self.totals.processes);
        let number = self.totals.threads;
        self.totals.threads += 1;
        *thread = CaptureThread::numbered(process, number);
        self.writer.advance(process, number, time)?;
        let event = |what| TraceEvent { time, process, thread: number, what };
        if known.is_none() {
            self.totals.processes += 1;
            let from = self.processes.get(&parent).copied().filter(|_| parent != 0);
            self.processes.insert(pid, process);
            if let Some(parent) = from {
                self.writer.event(&event(EventKind::Fork { parent }))?;
            }
        }
        self.writer.event(&event(EventKind::ThreadStart { pid: pid as i32, tid: tid as i32 }))
    }

    /// The thread has written its last; its block is executed as far as it came.
    fn end(&mut self, thread: &mut CaptureThread) -> Result<(), TraceError> {
        self.settle(thread)?;
        let Some((process, number)) = thread.number else { return Ok(()) };
        thread.before = thread.before.saturating_add(thread.length);
        self.totals.instructions += thread.length;
        thread.length = 0;
        self.catch_up(thread)?;
        let time = self.writer.time(number);
        self.writer.flush_thread(number)?;
        self.writer.event(&TraceEvent {
            time,
            process,
            thread: number,
            what: EventKind::ThreadExit,
        })?;
        thread.number = None;
        Ok(())
    }

    /// Instructions since the last access become time of their own.
    fn catch_up(&mut self, thread: &mut CaptureThread) -> Result<(), TraceError> {
        let Some((process, number)) = thread.number else { return Ok(()) };
        let behind = thread.behind();
        thread.last += behind;
        self.writer.advance(process, number, behind)
    }

    /// No more words will come in this slot, whether its thread said so or died.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn close(&mut self, slot: u32) -> Result<(), TraceError> {
        match self.slots.remove(&slot) {
            Some(mut thread) => self.end(&mut thread),
            None => Ok(()),
        }
    }

    /// Writes nothing more: see [`TraceWriter::abandon`].
    pub fn abandon(self) {
        self.writer.abandon();
    }

    /// Ends the trace; what became of it, and where it was written.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn finish(mut self) -> Result<(CaptureTotals, W), TraceError> {
        let mut slots: Vec<u32> = self.slots.keys().copied().collect();
        slots.sort_unstable();
        for slot in slots {
            self.close(slot)?;
        }
        Ok((self.totals, self.writer.finish()?))
    }
}
