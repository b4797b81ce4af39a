//! A Linux process: threads, memory, and the system calls that static programs make.
//!
//! Threads are harts that take turns of [`TURN`] instructions in a fixed order, so that a run is
//! the same each time as long as its input is. Numbers and structures: Linux
//! `include/uapi/asm-generic/unistd.h`, `stat.h`, and the riscv ABI.

mod calls;
mod debug;
mod files;
mod host;
mod mappings;
mod paths;
mod signals;
mod stack;
mod threads;

pub use host::{
    DuplicateNumber, Errno, FileTreeChange, GuestFileStatus, GuestFileTime, GuestFolderEntry, Host,
    LinkHandling, OpenFileChange,
};

use crate::elf::{self, ElfError};
use crate::execute::{AccessObserver, DecodeCache, Hart, Trap};
use crate::memory::{GuestMemory, MemoryFault, PAGE_BYTES, READ, USER_END, WRITE};
use std::collections::BTreeMap;

/// Instructions of a thread before the next has its turn. A tenth costs a few percent of speed in
/// switching; ten times as many make threads that spin for each other slow.
const TURN: u64 = 20_000;
/// Threads of a process at most.
const MOST_THREADS: usize = 1024;
/// Bytes of a dynamic loader at most; Debian's has a quarter of a million.
const MOST_LOADER: usize = 1 << 26;
/// Bytes of the main thread's stack, as `ulimit -s` has it by default.
const STACK_BYTES: u64 = 8 << 20;

/// Something of a process that a recording keeps besides accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEvent {
    /// Pages were mapped.
    Map {
        /// First byte.
        start: u64,
        /// Bytes.
        length: u64,
        /// `PROT_*` bits.
        protection: u8,
    },
    /// Pages were unmapped.
    Unmap {
        /// First byte.
        start: u64,
        /// Bytes.
        length: u64,
    },
    /// The heap's end moved.
    Break {
        /// First byte after the heap.
        end: u64,
    },
    /// This thread begins.
    ThreadStart,
    /// This thread waited, and goes on because of another one.
    Resume {
        /// The thread that woke it.
        by: u32,
    },
    /// This thread ends.
    ThreadExit,
}

/// Who is shown a process: its accesses, and what gives them meaning.
pub trait ProcessObserver: AccessObserver {
    /// What follows is of this thread, numbered from 0 as they begin.
    fn enter(&mut self, thread: u32);
    /// Something happened after so many instructions of the thread.
    fn event(&mut self, instret: u64, event: ProcessEvent);
}

impl ProcessObserver for () {
    fn enter(&mut self, _: u32) {}
    fn event(&mut self, _: u64, _: ProcessEvent) {}
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEnd {
    /// It exited with this status.
    Exit(u8),
    /// A signal ended it: by number, on a thread, at a program counter, and the trap behind it.
    Signal {
        /// Signal number.
        signal: u8,
        /// Thread, from 0.
        thread: u32,
        /// Where it was.
        pc: u64,
        /// What it did; `None` where it sent the signal to itself.
        trap: Option<Trap>,
    },
    /// All threads wait for each other.
    Deadlock,
    /// The instructions granted are used up.
    Budget,
    /// A word that the base does not have, where [`Process::pause_at_unknown`] asked for it. The
    /// caller executes it, advances the program counter and calls [`Process::run`] again.
    UnknownInstruction {
        /// Thread, from 0.
        thread: u32,
        /// The instruction at its program counter.
        word: u32,
    },
    /// A thread is at a breakpoint of [`Process::insert_breakpoint`].
    Breakpoint {
        /// Thread, from 0.
        thread: u32,
    },
}

/// Why a thread's turn ends before its time, though the thread can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnPause {
    Unknown(u32),
    Breakpoint,
}

impl TurnPause {
    fn end(self, index: usize) -> ProcessEnd {
        let thread = index as u32;
        match self {
            Self::Unknown(word) => ProcessEnd::UnknownInstruction { thread, word },
            Self::Breakpoint => ProcessEnd::Breakpoint { thread },
        }
    }
}

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    Running,
    /// Waits for a signal's handler.
    Paused,
    /// Waits at a futex, perhaps until a time of the given clock.
    Waiting {
        address: u64,
        /// What the word held when the wait began.
        expected: u32,
        mask: u32,
        deadline_ns: Option<u64>,
    },
    Ended,
}

#[derive(Debug)]
struct Thread {
    hart: Hart,
    activity: Activity,
    /// Who woke it since its last turn.
    woken_by: Option<u32>,
    /// Where to write zero when the thread ends.
    clear_at_exit: u64,
    signals: signals::ThreadSignals,
}

/// A guest process over its host.
#[derive(Debug)]
pub struct Process<H> {
    host: H,
    memory: GuestMemory,
    code: DecodeCache,
    threads: Vec<Thread>,
    heap_start: u64,
    heap_end: u64,
    mapping_top: u64,
    folders: BTreeMap<i32, files::OpenFolder>,
    working_folder: Vec<u8>,
    umask: u32,
    signals: signals::SignalTable,
    /// Segments and stack, which an observer is shown first.
    initial: Vec<ProcessEvent>,
    end: Option<ProcessEnd>,
    pauses_at_unknown: bool,
    /// The thread whose turn was interrupted, and at which of its instructions the turn ends.
    interrupted: Option<(usize, u64)>,
}

impl<H: Host> Process<H> {
    /// Loads a program with its arguments and environment.
    ///
    /// # Errors
    /// [`ElfError`].
    pub fn new(
        file: &[u8],
        arguments: &[Vec<u8>],
        environment: &[Vec<u8>],
        limit_bytes: u64,
        mut host: H,
    ) -> Result<Self, ElfError> {
        let mut memory = GuestMemory::new(limit_bytes);
        let mut program = elf::load(file, &mut memory)?;
        let entry = match program.loader.take() {
            None => program.entry,
            Some(path) => load_loader(&path, &mut memory, &mut host, &mut program)?,
        };
        signals::map_return_page(&mut memory)?;
        let top = USER_END - PAGE_BYTES;
        memory.map(top - STACK_BYTES, top, READ | WRITE);
        let mut random = [0; 16];
        host.fill_random(&mut random);
        let mut hart = Hart::new(entry);
        hart.x[2] = stack::build(&mut memory, top, &program, arguments, environment, random)?;
        let mut initial: Vec<ProcessEvent> = program
            .segments
            .iter()
            .map(|s| ProcessEvent::Map {
                start: s.start,
                length: s.end - s.start,
                protection: s.protection,
            })
            .collect();
        let (start, protection) = (top - STACK_BYTES, READ | WRITE);
        initial.push(ProcessEvent::Map { start, length: STACK_BYTES, protection });
        let heap = program.end.next_multiple_of(PAGE_BYTES);
        Ok(Self {
            host,
            memory,
            code: DecodeCache::default(),
            threads: vec![Thread {
                hart,
                activity: Activity::Running,
                woken_by: None,
                clear_at_exit: 0,
                signals: signals::ThreadSignals::new(None),
            }],
            heap_start: heap,
            heap_end: heap,
            // A gap below the stack, as Linux leaves one.
            mapping_top: top - STACK_BYTES - (1 << 20),
            folders: BTreeMap::new(),
            working_folder: b"/".to_vec(),
            umask: 0o022,
            signals: signals::SignalTable::new(),
            initial,
            end: None,
            pauses_at_unknown: false,
            interrupted: None,
        })
    }

    /// Lets [`Process::run`] return at an instruction that the base does not have, instead of
    /// ending the process.
    pub fn pause_at_unknown(&mut self) {
        self.pauses_at_unknown = true;
    }

    /// A thread's hart, for whoever executes an instruction in the base's place.
    #[must_use]
    pub fn hart_mut(&mut self, thread: u32) -> Option<&mut Hart> {
        self.threads.get_mut(thread as usize).map(|thread| &mut thread.hart)
    }

    /// The memory, for accesses from outside the process.
    #[must_use]
    pub fn memory_mut(&mut self) -> &mut GuestMemory {
        &mut self.memory
    }

    /// Wakes the threads that wait at a futex whose word has changed since, as an access from
    /// outside the process changes it. Linux allows such a wake-up without cause.
    pub fn wake_changed(&mut self) -> bool {
        let mut any = false;
        for thread in &mut self.threads {
            if let Activity::Waiting { address, expected, .. } = thread.activity {
                if self.memory.load::<4>(address) != Ok(expected.to_le_bytes()) {
                    thread.activity = Activity::Running;
                    thread.hart.x[10] = 0;
                    any = true;
                }
            }
        }
        any
    }

    /// What the process reaches the host through.
    #[must_use]
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Instructions of all threads.
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.threads.iter().map(|thread| thread.hart.instret).sum()
    }

    /// Threads that there were.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        self.threads.len()
    }

    /// Runs until the process ends or its threads have executed `budget` instructions together.
    pub fn run<O: ProcessObserver>(&mut self, observer: &mut O, budget: u64) -> ProcessEnd {
        let end_at = self.instructions().saturating_add(budget);
        observer.enter(0);
        if !self.initial.is_empty() {
            observer.event(0, ProcessEvent::ThreadStart);
            for event in std::mem::take(&mut self.initial) {
                observer.event(0, event);
            }
        }
        let (mut first, mut turn_end) = match self.interrupted.take() {
            Some((thread, end)) => (thread, Some(end)),
            None => (0, None),
        };
        loop {
            let mut progress = false;
            for index in std::mem::take(&mut first)..self.threads.len() {
                if self.threads[index].activity != Activity::Running {
                    continue;
                }
                progress = true;
                observer.enter(index as u32);
                let instret = self.threads[index].hart.instret;
                if let Some(by) = self.threads[index].woken_by.take() {
                    observer.event(instret, ProcessEvent::Resume { by });
                }
                let end = turn_end.take().unwrap_or(instret + TURN);
                let turn = end.saturating_sub(instret).min(TURN);
                let left = end_at.saturating_sub(self.instructions()).min(turn);
                let pause = self.take_turn(index, observer, left);
                if let Some(end) = self.end {
                    return end;
                }
                let stopped = match pause {
                    Some(pause) => pause.end(index),
                    None if self.instructions() >= end_at => ProcessEnd::Budget,
                    None => continue,
                };
                self.interrupted = Some((index, end));
                return stopped;
            }
            if !progress && !self.wake_first_timeout() {
                return ProcessEnd::Deadlock;
            }
        }
    }

    /// Runs a thread; what it pauses at.
    fn take_turn<O: ProcessObserver>(
        &mut self,
        index: usize,
        observer: &mut O,
        turn: u64,
    ) -> Option<TurnPause> {
        let end = self.threads[index].hart.instret + turn;
        while self.end.is_none() && self.threads[index].activity == Activity::Running {
            if self.has_signals(index) {
                self.take_signals(index);
                if self.end.is_some() {
                    return None;
                }
            }
            let hart = &mut self.threads[index].hart;
            let left = end.saturating_sub(hart.instret);
            match hart.run(&mut self.memory, &mut self.code, observer, left) {
                Trap::Budget => return None,
                Trap::EnvironmentCall => {
                    hart.pc += 4;
                    hart.instret += 1;
                    self.system_call(index, observer);
                }
                trap @ Trap::Illegal => match self.memory.fetch(hart.pc) {
                    Ok(word) if self.pauses_at_unknown => return Some(TurnPause::Unknown(word)),
                    _ => self.fault(index, trap),
                },
                Trap::Breakpoint if self.code.breakpoints().contains(&hart.pc) => {
                    return Some(TurnPause::Breakpoint);
                }
                trap => self.fault(index, trap),
            }
        }
        None
    }

    /// Where all threads wait, the one whose time is up first goes on after that time.
    fn wake_first_timeout(&mut self) -> bool {
        let first = self
            .threads
            .iter_mut()
            .filter_map(|thread| match thread.activity {
                Activity::Waiting { deadline_ns: Some(at), .. } => Some((at, thread)),
                _ => None,
            })
            .min_by_key(|(at, _)| *at);
        let Some((deadline, thread)) = first else { return false };
        thread.activity = Activity::Running;
        thread.hart.x[10] = -i64::from(calls::ETIMEDOUT.0) as u64;
        let now = self.host.now_ns(1);
        self.host.sleep_ns(deadline.saturating_sub(now));
        true
    }

    /// Wakes at most `most` threads at a futex, the one numbered least first.
    fn wake(&mut self, by: usize, at: u64, most: u64, bits: u32) -> u64 {
        let mut woken = 0;
        for thread in &mut self.threads {
            if let Activity::Waiting { address, mask, .. } = thread.activity {
                if woken < most && address == at && mask & bits != 0 {
                    thread.activity = Activity::Running;
                    thread.hart.x[10] = 0;
                    thread.woken_by = Some(by as u32);
                    woken += 1;
                }
            }
        }
        woken
    }

    fn end_thread<O: ProcessObserver>(&mut self, index: usize, status: u8, observer: &mut O) {
        let thread = &mut self.threads[index];
        thread.activity = Activity::Ended;
        observer.event(thread.hart.instret, ProcessEvent::ThreadExit);
        let clear = thread.clear_at_exit;
        // As the kernel: a bad address is nobody's fault by then.
        if clear != 0 && self.memory.store(clear, [0; 4]).is_ok() {
            self.wake(index, clear, 1, u32::MAX);
        }
        if self.threads.iter().all(|thread| thread.activity == Activity::Ended) {
            self.end = Some(ProcessEnd::Exit(status));
        }
    }
}

/// Loads the dynamic loader that a program names, which then loads its libraries.
fn load_loader(
    path: &[u8],
    memory: &mut GuestMemory,
    host: &mut impl Host,
    program: &mut elf::LoadedProgram,
) -> Result<u64, ElfError> {
    let missing = |_| ElfError::NeedsLoader(path.escape_ascii().to_string());
    let descriptor = host.open(path, 0, 0).map_err(missing)?;
    let mut file = Vec::new();
    let mut part = vec![0; 1 << 16];
    loop {
        let count = host.read(descriptor, &mut part).map_err(missing)?;
        match part.get(..count) {
            Some(bytes) if count > 0 && file.len() < MOST_LOADER => file.extend_from_slice(bytes),
            _ => break,
        }
    }
    host.close(descriptor).map_err(missing)?;
    let loader = elf::load_at(&file, memory, elf::LOADER_BASE)?;
    if loader.loader.is_some() {
        return Err(ElfError::Damaged("the loader needs a loader"));
    }
    program.loader_base = elf::LOADER_BASE;
    program.segments.extend(loader.segments);
    Ok(loader.entry)
}

impl From<MemoryFault> for Errno {
    /// `EFAULT`.
    fn from(_: MemoryFault) -> Self {
        calls::EFAULT
    }
}
