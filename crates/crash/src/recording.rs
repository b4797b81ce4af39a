//! A recording's accesses and events, all threads of a process in the order of time.

use std::collections::VecDeque;
use std::io::{Read, Seek};
use std::ops::ControlFlow;
use terrace_trace::{Block, BlockKind, EventKind, TraceError, TraceEvent, TraceReader};

/// Threads of a process at most: each takes a megabyte.
const MOST_THREADS: usize = 1024;

/// What a recording is read into. `time` is in instructions.
pub trait RecordingVisitor {
    /// A load.
    fn load(&mut self, access: &AccessView<'_>) -> ControlFlow<()>;
    /// A store; [`AccessView::value`] is what it wrote.
    fn store(&mut self, access: &AccessView<'_>) -> ControlFlow<()>;
    /// Something else.
    fn event(&mut self, thread: u32, time: u64, what: &EventKind) -> ControlFlow<()>;
    /// A block of accesses was read when the recording had come to this time: some tens of
    /// thousands of accesses lie between two.
    fn reached(&mut self, _time: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// An access.
#[derive(Debug, Clone, Copy)]
pub struct AccessView<'a> {
    /// The thread, as the recording numbers it.
    pub thread: u32,
    /// Time.
    pub time: u64,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub size: u32,
    /// The instruction's address, or zero.
    pub pc: u64,
    /// What a store wrote; empty where that is not known.
    pub value: &'a [u8],
}

/// A thread's place in the recording.
#[derive(Debug)]
struct ThreadCursor {
    thread: u32,
    /// Positions of its blocks that are not read yet.
    blocks: VecDeque<usize>,
    block: Block,
    times: Vec<u64>,
    next: usize,
    value: usize,
    /// Positions of event blocks that are not read yet.
    event_blocks: VecDeque<usize>,
    events: VecDeque<TraceEvent>,
}

impl ThreadCursor {
    /// Reads on where what was read is used up: whether accesses were read.
    fn refill<R: Read + Seek>(
        &mut self,
        reader: &mut TraceReader<R>,
        process: u32,
        events: &mut Block,
    ) -> Result<bool, TraceError> {
        let mut has_read = false;
        while self.next >= self.times.len() {
            let Some(position) = self.blocks.pop_front() else { break };
            reader.read(position, &mut self.block)?;
            self.block.times_into(&mut self.times);
            (self.next, self.value) = (0, 0);
            has_read = true;
        }
        while self.events.is_empty() {
            let Some(position) = self.event_blocks.pop_front() else { break };
            reader.read(position, events)?;
            let own = |e: &&TraceEvent| e.thread == self.thread && e.process == process;
            self.events.extend(events.events().iter().filter(own).cloned());
        }
        Ok(has_read)
    }

    /// When it goes on, and whether with an event. An access at the time of an event comes before
    /// it.
    fn next_time(&self) -> Option<(u64, bool)> {
        let access = self.times.get(self.next).copied();
        let event = self.events.front().map(|e| e.time);
        match (access, event) {
            (Some(access), Some(event)) if event < access => Some((event, true)),
            (Some(access), _) => Some((access, false)),
            (None, Some(event)) => Some((event, true)),
            (None, None) => None,
        }
    }

    fn visit_event(&mut self, visitor: &mut impl RecordingVisitor) -> ControlFlow<()> {
        let Some(event) = self.events.pop_front() else { return ControlFlow::Continue(()) };
        visitor.event(event.thread, event.time, &event.what)
    }

    /// Accesses up to `until`, as far as the block goes.
    fn visit_accesses(
        &mut self,
        until: u64,
        visitor: &mut impl RecordingVisitor,
    ) -> ControlFlow<()> {
        let (addresses, kinds) = (self.block.addresses(), self.block.kinds());
        let (pcs, values) = (self.block.pcs(), self.block.values());
        while let Some(time) = self.times.get(self.next).copied().filter(|t| *t <= until) {
            let i = self.next;
            self.next += 1;
            let size = kinds[i].size().unwrap_or_else(|| self.block.size(i));
            let mut access = AccessView {
                thread: self.thread,
                time,
                address: addresses[i],
                size,
                pc: pcs.get(i).copied().unwrap_or(0),
                value: &[],
            };
            if kinds[i].is_store() {
                let end = self.value + size as usize;
                access.value = values.get(self.value..end).unwrap_or(&[]);
                self.value = end;
                visitor.store(&access)?;
            } else {
                visitor.load(&access)?;
            }
        }
        ControlFlow::Continue(())
    }
}

/// Shows a process's accesses and events to `visitor`, until it breaks off.
///
/// # Errors
/// [`TraceError`].
pub fn visit_process<R: Read + Seek>(
    reader: &mut TraceReader<R>,
    process: u32,
    visitor: &mut impl RecordingVisitor,
) -> Result<(), TraceError> {
    let blocks = reader.blocks();
    let mut threads: Vec<u32> = Vec::new();
    for info in blocks {
        let accesses = info.kind == BlockKind::Accesses && info.process == process;
        if accesses && !threads.contains(&info.thread) {
            threads.push(info.thread);
        }
    }
    if threads.len() > MOST_THREADS {
        return Err(TraceError::Unfit("more threads than can be brought into one order"));
    }
    let all_events: VecDeque<usize> =
        (0..blocks.len()).filter(|i| blocks[*i].kind == BlockKind::Events).collect();
    let unread = |error| TraceError::Read { offset: 0, source: error };
    let mut events = Block::new().map_err(unread)?;
    let mut cursors = Vec::new();
    for thread in threads {
        let mine = |i: &usize| {
            let info = &blocks[*i];
            info.kind == BlockKind::Accesses && (info.process, info.thread) == (process, thread)
        };
        cursors.push(ThreadCursor {
            thread,
            blocks: (0..blocks.len()).filter(mine).collect(),
            block: Block::new().map_err(unread)?,
            times: Vec::new(),
            next: 0,
            value: 0,
            event_blocks: all_events.clone(),
            events: VecDeque::new(),
        });
    }
    for cursor in &mut cursors {
        cursor.refill(reader, process, &mut events)?;
    }
    loop {
        // The earliest goes on until the next one's time.
        let mut first: Option<(u64, bool, usize)> = None;
        let mut until = u64::MAX;
        for (i, cursor) in cursors.iter().enumerate() {
            let Some((time, is_event)) = cursor.next_time() else { continue };
            match first {
                Some((earliest, ..)) if earliest <= time => until = until.min(time),
                Some((earliest, ..)) => {
                    until = until.min(earliest);
                    first = Some((time, is_event, i));
                }
                None => first = Some((time, is_event, i)),
            }
        }
        let Some((time, is_event, i)) = first else { return Ok(()) };
        let cursor = &mut cursors[i];
        let flow = if is_event {
            cursor.visit_event(visitor)
        } else {
            let event = cursor.events.front().map_or(u64::MAX, |e| e.time);
            cursor.visit_accesses(until.min(event), visitor)
        };
        if flow.is_break() {
            return Ok(());
        }
        if cursor.refill(reader, process, &mut events)? && visitor.reached(time).is_break() {
            return Ok(());
        }
    }
}

/// Shows all events of a recording, in the order of the file.
///
/// # Errors
/// [`TraceError`].
pub fn visit_events<R: Read + Seek>(
    reader: &mut TraceReader<R>,
    mut visit: impl FnMut(&TraceEvent),
) -> Result<(), TraceError> {
    let mut block = Block::new().map_err(|error| TraceError::Read { offset: 0, source: error })?;
    for position in 0..reader.blocks().len() {
        if reader.blocks()[position].kind == BlockKind::Events {
            reader.read(position, &mut block)?;
            block.events().iter().for_each(&mut visit);
        }
    }
    Ok(())
}
