//! From the accesses of a guest, or of elements, to a trace.

use std::collections::BTreeMap;
use std::io::Write;
use terrace_riscv::execute::{AccessObserver, ObservedAccess};
use terrace_riscv::linux::{ProcessEvent, ProcessObserver};
use terrace_trace::capture::Filter;
use terrace_trace::{Access, EventKind, TraceError, TraceEvent, TraceWriter};
use terrace_xbgas::element::{ElementsObserver, ServedAccess};

/// `MAP_PRIVATE | MAP_ANONYMOUS`: what all of a guest's mappings are to a recording.
const PRIVATE_ANONYMOUS: u32 = 0x22;
/// Numbers of the process and of its first thread, as the guest sees them.
const PID: i32 = 1000;
/// Between the process numbers of two elements, which all see [`PID`]: more than a process has
/// threads.
const PIDS_APART: i32 = 1 << 12;

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

/// What the recording knows of an element; a program without elements is one.
#[derive(Debug, Clone, Default)]
struct RecordedElement {
    /// The recording's numbers of its threads.
    threads: Vec<u32>,
    /// The thread of another element that stored there last.
    stored_by: Option<u32>,
}

/// Writes what it is shown. Each element is a process. What an element reaches in another's memory
/// belongs to that process, on a thread that stands for the element that reaches it and has its
/// time.
#[derive(Debug)]
pub struct TraceObserver<W: Write> {
    writer: TraceWriter<W>,
    filter: Filter,
    /// By the recording's numbers of threads.
    clocks: Vec<ThreadClock>,
    elements: Vec<RecordedElement>,
    /// By server and initiator.
    agents: BTreeMap<(u32, u32), u32>,
    element: u32,
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
            clocks: Vec::new(),
            elements: vec![RecordedElement::default()],
            agents: BTreeMap::new(),
            element: 0,
            thread: 0,
            before: 0,
            seen: RecordedAccesses::default(),
            error: None,
        }
    }

    fn add_thread(&mut self) -> u32 {
        self.clocks.push(ThreadClock::default());
        self.clocks.len() as u32 - 1
    }

    /// Time of the current thread after so many of its instructions.
    fn time_at(&self, instret: u64) -> u64 {
        let last = self.clocks.get(self.thread as usize).map_or(0, |clock| clock.last);
        self.writer.time(self.thread) + instret.saturating_sub(last)
    }

    /// The thread that stands for the current element in another one; it begins where it is new.
    fn agent(&mut self, server: u32, time: u64) -> u32 {
        if let Some(&agent) = self.agents.get(&(server, self.element)) {
            return agent;
        }
        let agent = self.add_thread();
        self.agents.insert((server, self.element), agent);
        let begun = self.writer.advance(server, agent, time);
        self.keep(begun);
        let pid = PID + server as i32 * PIDS_APART;
        let tid = pid + PIDS_APART / 2 + self.element as i32;
        let what = EventKind::ThreadStart { pid, tid };
        let begun = self.writer.event(&TraceEvent { time, process: server, thread: agent, what });
        self.keep(begun);
        agent
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
        let result = self.writer.advance(self.element, self.thread, wait);
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
        let result = self.writer.access(self.element, self.thread, &access);
        self.keep(result);
    }
}

impl<W: Write + Send + 'static> ProcessObserver for TraceObserver<W> {
    fn enter(&mut self, thread: u32) {
        let known = self.elements.get(self.element as usize).map_or(0, |e| e.threads.len());
        // Threads are entered as they begin, so that numbers have no gaps.
        for _ in known..=thread as usize {
            let number = self.add_thread();
            if let Some(element) = self.elements.get_mut(self.element as usize) {
                element.threads.push(number);
            }
        }
        let element = self.elements.get(self.element as usize);
        let number = element.and_then(|e| e.threads.get(thread as usize)).copied();
        self.before = std::mem::replace(&mut self.thread, number.unwrap_or(0));
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
                let pid = PID + self.element as i32 * PIDS_APART;
                let threads = self.elements.get(self.element as usize).map(|e| &e.threads);
                let own = threads.and_then(|t| t.iter().position(|n| *n == self.thread));
                EventKind::ThreadStart { pid, tid: pid + own.unwrap_or(0) as i32 }
            }
            ProcessEvent::Resume { by } => {
                let threads = self.elements.get(self.element as usize).map(|e| &e.threads);
                let by = threads.and_then(|t| t.get(by as usize)).copied();
                return by.map_or((), |by| self.advance_to(by));
            }
            ProcessEvent::ThreadExit => {
                let result = self.writer.flush_thread(self.thread);
                self.keep(result);
                EventKind::ThreadExit
            }
        };
        let time = match what {
            EventKind::ThreadStart { .. } => self.writer.time(self.thread),
            _ => self.time_at(instret),
        };
        let (process, thread) = (self.element, self.thread);
        let result = self.writer.event(&TraceEvent { time, process, thread, what });
        self.keep(result);
    }
}

impl<W: Write + Send + 'static> ElementsObserver for TraceObserver<W> {
    fn enter_element(&mut self, element: u32) {
        self.element = element;
        if self.elements.len() <= element as usize {
            self.elements.resize(element as usize + 1, RecordedElement::default());
        }
    }

    fn served(&mut self, ServedAccess { server, access }: ServedAccess) {
        self.seen.loads += u64::from(!access.store);
        self.seen.stores += u64::from(access.store);
        if self.error.is_some() {
            return;
        }
        let now = access.instret + 1;
        let time = self.time_at(now);
        let agent = self.agent(server, time);
        if let (true, Some(element)) = (access.store, self.elements.get_mut(server as usize)) {
            element.stored_by = Some(self.thread);
        }
        let Some(clock) = self.clocks.get_mut(agent as usize) else { return };
        let (size, address) = (u32::from(access.size), access.address);
        if !self.filter.keeps(&mut clock.seen, address, size, now) {
            return;
        }
        self.seen.kept += 1;
        // A bulk transfer's elements come at once.
        let gap = time.saturating_sub(self.writer.time(agent));
        let gap = u32::try_from(gap).unwrap_or(u32::MAX);
        let (store, pc) = (access.store, access.pc);
        let access = Access { address, size, store, depends: 0, gap, pc };
        let result = self.writer.access(server, agent, &access);
        self.keep(result);
    }

    fn resume(&mut self) {
        let Some(element) = self.elements.get(self.element as usize) else { return };
        let Some(by) = element.stored_by else { return };
        // All its threads waited; those that wait on will do so at a later time.
        for thread in element.threads.clone() {
            self.thread = thread;
            self.advance_to(by);
        }
    }
}
