//! From a guest's accesses to a trace.

use std::io::Write;
use terrace_riscv::execute::{AccessObserver, ObservedAccess};
use terrace_riscv::linux::{ProcessEvent, ProcessObserver};
use terrace_trace::capture::Filter;
use terrace_trace::{Access, EventKind, TraceError, TraceEvent, TraceWriter};

/// `MAP_PRIVATE | MAP_ANONYMOUS`: what all of a guest's mappings are to a recording.
const PRIVATE_ANONYMOUS: u32 = 0x22;
/// Numbers of the process and of its first thread, as the guest sees them.
const PID: i32 = 1000;

/// What a recording saw and kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordedAccesses {
    /// Loads that the program made.
    pub loads: u64,
    /// Stores that it made.
    pub stores: u64,
    /// Of both, those in the file.
    pub kept: u64,
}

/// A thread as the recording sees it.
#[derive(Debug, Clone, Copy, Default)]
struct ThreadClock {
    /// Instructions at its last access that was kept.
    last: u64,
    /// Accesses that the filter counts.
    seen: u64,
}

/// Writes what it is shown.
#[derive(Debug)]
pub struct TraceObserver<W: Write> {
    writer: TraceWriter<W>,
    filter: Filter,
    clocks: Vec<ThreadClock>,
    thread: u32,
    before: u32,
    seen: RecordedAccesses,
    error: Option<TraceError>,
}

impl<W: Write + Send + 'static> TraceObserver<W> {
    pub fn new(writer: TraceWriter<W>, filter: Filter) -> Self {
        Self {
            writer,
            filter,
            clocks: vec![ThreadClock::default()],
            thread: 0,
            before: 0,
            seen: RecordedAccesses::default(),
            error: None,
        }
    }

    /// Ends the file.
    ///
    /// # Errors
    /// The first [`TraceError`] that there was; the program ran on after it.
    pub fn finish(self) -> Result<RecordedAccesses, TraceError> {
        if let Some(error) = self.error {
            self.writer.abandon();
            return Err(error);
        }
        self.writer.finish()?;
        Ok(self.seen)
    }

    fn keep(&mut self, result: Result<(), TraceError>) {
        if let Err(error) = result {
            self.error.get_or_insert(error);
        }
    }

    /// The current thread goes on no earlier than another's time.
    fn advance_to(&mut self, other: u32) {
        let wait = self.writer.time(other).saturating_sub(self.writer.time(self.thread));
        let result = self.writer.advance(0, self.thread, wait);
        self.keep(result);
    }
}

impl<W: Write + Send + 'static> AccessObserver for TraceObserver<W> {
    #[inline]
    fn access(&mut self, access: ObservedAccess) {
        let now = access.instret + 1;
        let (size, address) = (u32::from(access.size), access.address);
        self.seen.loads += u64::from(!access.store);
        self.seen.stores += u64::from(access.store);
        let Some(clock) = self.clocks.get_mut(self.thread as usize) else { return };
        if self.error.is_some() || !self.filter.keeps(&mut clock.seen, address, size, now) {
            return;
        }
        let gap = u32::try_from(now - clock.last).unwrap_or(u32::MAX);
        clock.last = now;
        self.seen.kept += 1;
        let (store, pc) = (access.store, access.pc);
        let access = Access { address, size, store, depends: 0, gap, pc };
        let result = self.writer.access(0, self.thread, &access);
        self.keep(result);
    }
}

impl<W: Write + Send + 'static> ProcessObserver for TraceObserver<W> {
    fn enter(&mut self, thread: u32) {
        self.before = std::mem::replace(&mut self.thread, thread);
        if self.clocks.len() <= thread as usize {
            self.clocks.resize(thread as usize + 1, ThreadClock::default());
        }
    }

    fn event(&mut self, instret: u64, event: ProcessEvent) {
        if self.error.is_some() {
            return;
        }
        let what = match event {
            ProcessEvent::Map { start, length, protection } => EventKind::Map {
                start,
                length,
                protection: protection.into(),
                flags: PRIVATE_ANONYMOUS,
                name: String::new(),
            },
            ProcessEvent::Unmap { start, length } => EventKind::Unmap { start, length },
            ProcessEvent::Break { end } => EventKind::Break { end },
            ProcessEvent::ThreadStart => {
                if self.thread != self.before {
                    self.advance_to(self.before);
                }
                EventKind::ThreadStart { pid: PID, tid: PID + self.thread as i32 }
            }
            ProcessEvent::Resume { by } => return self.advance_to(by),
            ProcessEvent::ThreadExit => {
                let result = self.writer.flush_thread(self.thread);
                self.keep(result);
                EventKind::ThreadExit
            }
        };
        let since = match (&what, self.clocks.get(self.thread as usize)) {
            (EventKind::ThreadStart { .. }, _) | (_, None) => 0,
            (_, Some(clock)) => instret.saturating_sub(clock.last),
        };
        let time = self.writer.time(self.thread) + since;
        let result = self.writer.event(&TraceEvent { time, process: 0, thread: self.thread, what });
        self.keep(result);
    }
}
