//! Processing elements: copies of one program, each with memory of its own, that reach each other
//! by extended loads and stores.
//!
//! Elements take turns of whole instructions in one thread of the host. Without a model of time
//! memory is sequentially consistent, which RVWMO allows, and a run repeats exactly from its
//! schedule. With one, each element has a clock, requests travel over a network, and elements run
//! in the order of their clocks. An element that waits at a futex goes on when another element's
//! store changes the word.

mod access;
mod debug;
mod distributed;
mod end;
mod issued;
mod observe;
mod timed;

pub use crate::statistics::ElementStatistics;
pub use distributed::{DistributedElement, DistributedEnd};
pub use end::{ElementFault, ElementsEnd, TimingError};
pub use observe::{ElementsObserver, ServedAccess};

use crate::clock::ElementClock;
use crate::decode::Dialect;
use crate::lookaside::{LookasideSize, ObjectLookasideBuffer, ObjectTable};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use terrace_riscv::linux::{Host, Process, ProcessEnd};
use terrace_riscv::memory::{GuestMemory, PAGE_BYTES, READ, WRITE};

/// Names of the environment variables by which a program learns its element and how many there
/// are.
pub const ELEMENT_VARIABLE: &str = "XBGAS_PE";
/// See [`ELEMENT_VARIABLE`].
pub const ELEMENTS_VARIABLE: &str = "XBGAS_PES";
/// Elements at most, as the published run-time library has it.
pub const MOST_ELEMENTS: u32 = 1024;

/// In which order elements run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElementSchedule {
    /// Instructions of a turn at most; each turn has a random number up to it. Fewer make remote
    /// stores visible sooner and cost switches; more make elements that spin for each other slow.
    pub quantum: u64,
    /// What the random numbers begin from.
    pub seed: u64,
}

impl ElementSchedule {
    /// Turns of up to 10,000 instructions, a few percent of the time in switches.
    #[must_use]
    pub const fn from_seed(seed: u64) -> Self {
        Self { quantum: 10_000, seed }
    }
}

/// What elements run with.
#[derive(Debug, Clone)]
pub struct ElementSetup {
    /// What object ids name.
    pub objects: ObjectTable,
    /// The files that are objects, by their number in [`ObjectTable`].
    pub files: Vec<ObjectFile>,
    /// How their extended instructions are encoded.
    pub dialect: Dialect,
    /// In which order they run without a model of time.
    pub schedule: ElementSchedule,
    /// The size of their look-aside buffers.
    pub lookaside: LookasideSize,
}

/// A file that an object id names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectFile {
    /// What it holds.
    pub bytes: Vec<u8>,
    /// The element that serves it.
    pub element: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ElementState {
    Running,
    /// Until a request of it arrives: this one, or all of them.
    Suspended {
        until: Option<u64>,
    },
    /// At futexes, until a store of another element.
    Waiting,
    Exited(u8),
}

#[derive(Debug)]
struct ProcessingElement<H> {
    /// From 0.
    number: u32,
    process: Process<H>,
    state: ElementState,
    /// e0 to e31 by thread; those of a new thread are zero.
    registers: BTreeMap<u32, [u64; 32]>,
    lookaside: ObjectLookasideBuffer,
    statistics: ElementStatistics,
    clock: Option<ElementClock>,
}

impl<H: Host> ProcessingElement<H> {
    fn new(number: u32, mut process: Process<H>, setup: &ElementSetup) -> Self {
        process.pause_at_unknown();
        Self {
            number,
            process,
            state: ElementState::Running,
            registers: BTreeMap::new(),
            lookaside: ObjectLookasideBuffer::new(setup.lookaside),
            statistics: ElementStatistics::default(),
            clock: None,
        }
    }

    /// What it did until now.
    fn statistics(&self) -> ElementStatistics {
        ElementStatistics {
            instructions: self.process.instructions(),
            lookaside_hits: self.lookaside.hits,
            lookaside_misses: self.lookaside.misses,
            time: self.clock.as_ref().map(ElementClock::split),
            ..self.statistics
        }
    }

    /// What the end of a process's turn means for its element and for the run.
    fn settle(&mut self, end: ProcessEnd) -> TurnEnd {
        match end {
            ProcessEnd::Budget => {}
            ProcessEnd::Exit(status) => self.state = ElementState::Exited(status),
            ProcessEnd::Deadlock => {
                self.state = ElementState::Waiting;
                self.statistics.waits += 1;
            }
            ProcessEnd::Signal { signal, thread, pc, trap } => {
                let element = self.number;
                return TurnEnd::Run(ElementsEnd::Signal { element, thread, pc, signal, trap });
            }
            ProcessEnd::UnknownInstruction { thread, word } => {
                return TurnEnd::Extended { thread, word };
            }
            ProcessEnd::Breakpoint { thread } => {
                let element = self.number;
                return TurnEnd::Run(ElementsEnd::Breakpoint { element, thread });
            }
        }
        TurnEnd::Over
    }
}

impl ElementSetup {
    fn space(&self, elements: u32) -> access::ObjectSpace {
        access::ObjectSpace {
            dialect: self.dialect,
            objects: self.objects.clone(),
            file_servers: self.files.iter().map(|file| file.element).collect(),
            elements,
        }
    }
}

/// A file's bytes as memory.
#[derive(Debug)]
struct FileMemory {
    memory: GuestMemory,
    length: usize,
}

impl FileMemory {
    fn new(file: &ObjectFile) -> Self {
        let length = file.bytes.len();
        let end = (length as u64).next_multiple_of(PAGE_BYTES);
        let mut memory = GuestMemory::new(end);
        if end > 0 {
            memory.map(0, end, READ | WRITE);
            // It has as many frames as that takes.
            let written = memory.write(0, &file.bytes);
            debug_assert!(written.is_ok());
        }
        Self { memory, length }
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.length];
        self.memory.read(0, &mut bytes).ok()?;
        Some(bytes)
    }
}

/// The processing elements of a program.
#[derive(Debug)]
pub struct ElementMachine<H> {
    elements: Vec<ProcessingElement<H>>,
    files: Vec<FileMemory>,
    space: access::ObjectSpace,
    quantum: u64,
    random: u64,
    network: Option<timed::NetworkState>,
}

impl<H: Host> ElementMachine<H> {
    /// Elements in order, one for each loaded process.
    #[must_use]
    pub fn new(processes: Vec<Process<H>>, setup: &ElementSetup) -> Self {
        let elements: Vec<_> = (0..)
            .zip(processes)
            .map(|(number, process)| ProcessingElement::new(number, process, setup))
            .collect();
        Self {
            space: setup.space(elements.len() as u32),
            elements,
            files: setup.files.iter().map(FileMemory::new).collect(),
            quantum: setup.schedule.quantum.max(1),
            random: setup.schedule.seed | 1 << 63,
            network: None,
        }
    }

    /// What each element did until now.
    #[must_use]
    pub fn statistics(&self) -> Vec<ElementStatistics> {
        self.elements.iter().map(ProcessingElement::statistics).collect()
    }

    /// What a file holds by now; `None` where there is no such file.
    pub fn file_bytes(&mut self, file: usize) -> Option<Vec<u8>> {
        self.files.get_mut(file)?.bytes()
    }

    /// Instructions of all elements.
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.elements.iter().map(|element| element.process.instructions()).sum()
    }

    /// Runs until all elements exit, one ends the run, or about `budget` instructions are used up.
    pub fn run(&mut self, budget: u64) -> ElementsEnd {
        self.run_observed(&mut (), budget)
    }

    /// The same, and shows an observer what elements do.
    pub fn run_observed<O: ElementsObserver>(
        &mut self,
        observer: &mut O,
        budget: u64,
    ) -> ElementsEnd {
        let end_at = self.instructions().saturating_add(budget);
        if self.instructions() == 0 {
            // All are made known before one reaches another.
            for element in &mut self.elements {
                observer.enter_element(element.number);
                element.process.run(observer, 0);
            }
        }
        if self.network.is_some() {
            return self.run_in_time(observer, end_at);
        }
        loop {
            let mut progress = false;
            for index in 0..self.elements.len() {
                let element = &mut self.elements[index];
                observer.enter_element(element.number);
                match element.state {
                    ElementState::Exited(_) => continue,
                    ElementState::Waiting if !element.process.wake_changed() => continue,
                    ElementState::Waiting => observer.resume(),
                    _ => {}
                }
                element.state = ElementState::Running;
                progress = true;
                if let Some(end) = self.take_turn(index, observer) {
                    return end;
                }
            }
            if !progress {
                return self.end_without_progress();
            }
            if self.instructions() >= end_at {
                return ElementsEnd::Budget;
            }
        }
    }

    fn end_without_progress(&self) -> ElementsEnd {
        let exited = |element: &ProcessingElement<H>| match element.state {
            ElementState::Exited(status) => (element.number, Some(status)),
            _ => (element.number, None),
        };
        ElementsEnd::of_idle(self.elements.iter().map(exited))
    }

    fn draw_turn(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        1 + (self.random >> 16) % self.quantum
    }

    fn take_turn<O: ElementsObserver>(
        &mut self,
        index: usize,
        observer: &mut O,
    ) -> Option<ElementsEnd> {
        let end_at = self.elements[index].process.instructions() + self.draw_turn();
        loop {
            let element = &mut self.elements[index];
            let left = end_at.saturating_sub(element.process.instructions());
            let end = element.process.run(observer, left);
            if let ControlFlow::Break(end) = self.follow(index, end, observer) {
                return end;
            }
        }
    }

    /// What follows from how an element's process stopped: its turn goes on after an extended
    /// instruction, is over, or ends the run.
    fn follow<O: ElementsObserver>(
        &mut self,
        index: usize,
        end: ProcessEnd,
        observer: &mut O,
    ) -> ControlFlow<Option<ElementsEnd>> {
        match self.elements[index].settle(end) {
            TurnEnd::Over => ControlFlow::Break(None),
            TurnEnd::Run(end) => ControlFlow::Break(Some(end)),
            TurnEnd::Extended { thread, word } => {
                let executed = self.execute(index, thread, word, observer);
                executed.map_or_else(
                    |fault| {
                        let hart = self.elements[index].process.hart_mut(thread);
                        let pc = hart.map_or(0, |hart| hart.pc);
                        let element = index as u32;
                        let end = ElementsEnd::Fault { element, thread, pc, fault };
                        ControlFlow::Break(Some(end))
                    },
                    |()| ControlFlow::Continue(()),
                )
            }
        }
    }
}

/// What follows the end of a turn.
enum TurnEnd {
    /// The next element's turn.
    Over,
    /// An extended instruction is to be executed.
    Extended { thread: u32, word: u32 },
    /// The run's end.
    Run(ElementsEnd),
}
