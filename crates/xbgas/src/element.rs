//! Processing elements: copies of one program, each with memory of its own, that reach each other
//! by extended loads and stores.
//!
//! Elements take turns of whole instructions in one thread of the host. Without a model of time
//! memory is sequentially consistent, which RVWMO allows, and a run repeats exactly from its
//! schedule. With one, each element has a clock, requests travel over a network, and elements run
//! in the order of their clocks. An element that waits at a futex goes on when another element's
//! store changes the word.

mod access;
mod observe;
mod timed;

pub use observe::{ElementsObserver, ServedAccess};

use crate::clock::{ElementClock, ElementTime};
use crate::decode::Dialect;
use crate::execute::ExtendedTrap;
use crate::lookaside::{LookasideSize, ObjectLookasideBuffer, ObjectTable};
use crate::network::NetworkError;
use crate::protocol::RequestRefusal;
use std::collections::BTreeMap;
use terrace_fabric::FabricError;
use terrace_model::ModelError;
use terrace_riscv::execute::Trap;
use terrace_riscv::linux::{Host, Process, ProcessEnd};
use terrace_riscv::memory::{GuestMemory, MemoryFault, PAGE_BYTES, READ, WRITE};

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

/// Why an extended instruction faulted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ElementFault {
    /// An instruction of neither the base nor the dialect.
    #[error("illegal instruction {0:#010x}; is it compiled for another dialect?")]
    Illegal(u32),
    /// Not executed.
    #[error(transparent)]
    Extended(#[from] ExtendedTrap),
    /// An object that is not mapped.
    #[error("no object {0}; objects are 0 for local memory, n + 1 for element n")]
    UnknownObject(u64),
    /// An access that the object's permissions exclude.
    #[error("object {object} may not be {}", if *.stored { "written" } else { "read" })]
    Forbidden {
        /// Object id.
        object: u64,
        /// Whether it was a store.
        stored: bool,
    },
    /// An access past the end of an object.
    #[error("object {object} has {length} bytes; {address:#x} is not in it")]
    Outside {
        /// Object id.
        object: u64,
        /// Its bytes.
        length: u64,
        /// Last byte of the access.
        address: u64,
    },
    /// The element that has the object refuses the access.
    #[error("element {element} refuses: {refusal}")]
    Refused {
        /// The element.
        element: u32,
        /// Its answer.
        refusal: RequestRefusal,
    },
    /// The element's own memory lacks a byte of a bulk transfer.
    #[error(transparent)]
    Local(#[from] MemoryFault),
    /// The network does not reach there.
    #[error(transparent)]
    Network(#[from] TimingError),
}

/// Why elements cannot have a model of time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// The machine cannot be modelled.
    #[error(transparent)]
    Machine(#[from] ModelError),
    /// The network cannot be built.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The network cannot carry a message.
    #[error(transparent)]
    Message(#[from] FabricError),
}

impl ElementFault {
    /// The signal that Linux would send.
    #[must_use]
    pub fn signal(&self) -> u8 {
        match self {
            Self::Illegal(_) | Self::Extended(_) => 4,
            _ => 11,
        }
    }
}

/// How a run of all elements ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElementsEnd {
    /// All exited; the highest status.
    Exit(u8),
    /// An extended instruction of an element faulted.
    Fault {
        /// Element, from 0.
        element: u32,
        /// Its thread, from 0.
        thread: u32,
        /// Where it was.
        pc: u64,
        /// What it did.
        fault: ElementFault,
    },
    /// A signal ended an element.
    Signal {
        /// Element, from 0.
        element: u32,
        /// Its thread, from 0.
        thread: u32,
        /// Where it was.
        pc: u64,
        /// The signal's number.
        signal: u8,
        /// The trap behind it; `None` where the program sent it.
        trap: Option<Trap>,
    },
    /// Elements wait, and none can wake them.
    Stranded {
        /// The waiting elements.
        waiting: Vec<u32>,
        /// The first element that exited, with its status.
        exited: Option<(u32, u8)>,
    },
    /// The instructions granted are used up.
    Budget,
}

/// What an element did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ElementStatistics {
    /// Instructions of all its threads.
    pub instructions: u64,
    /// Extended loads and stores of its own memory.
    pub local_accesses: u64,
    /// Extended loads from other elements.
    pub remote_loads: u64,
    /// Extended stores to other elements.
    pub remote_stores: u64,
    /// Bytes of both.
    pub remote_bytes: u64,
    /// Times it waited for others.
    pub waits: u64,
    /// Translations answered by the look-aside buffer.
    pub lookaside_hits: u64,
    /// Translations that it missed.
    pub lookaside_misses: u64,
    /// Where its time went; `None` without a model of time.
    pub time: Option<ElementTime>,
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
        let file = self.files.get_mut(file)?;
        let mut bytes = vec![0; file.length];
        file.memory.read(0, &mut bytes).ok()?;
        Some(bytes)
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
        let mut waiting = Vec::new();
        let mut exited = Vec::new();
        for (element, state) in (0..).zip(self.elements.iter().map(|element| element.state)) {
            match state {
                ElementState::Exited(status) => exited.push((element, status)),
                _ => waiting.push(element),
            }
        }
        if waiting.is_empty() {
            return ElementsEnd::Exit(exited.iter().map(|(_, status)| *status).max().unwrap_or(0));
        }
        // The one that failed, if one did, explains more than the others.
        let exited = exited.into_iter().max_by_key(|(element, status)| (*status, !*element));
        ElementsEnd::Stranded { waiting, exited }
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
            match element.settle(end) {
                TurnEnd::Over => return None,
                TurnEnd::Run(end) => return Some(end),
                TurnEnd::Extended { thread, word } => {
                    if let Err(fault) = self.execute(index, thread, word, observer) {
                        let hart = self.elements[index].process.hart_mut(thread);
                        let pc = hart.map_or(0, |hart| hart.pc);
                        let element = index as u32;
                        return Some(ElementsEnd::Fault { element, thread, pc, fault });
                    }
                }
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
