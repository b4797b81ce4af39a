//! Processing elements: copies of one program, each with memory of its own, that reach each other
//! by extended loads and stores.
//!
//! Elements take turns of whole instructions in one thread of the host. So memory is sequentially
//! consistent, which RVWMO allows, and a run repeats exactly from its schedule. An element that
//! waits at a futex goes on when another element's store changes the word.

use crate::decode::{Dialect, ExtendedInstruction};
use crate::execute::{ExtendedAddress, ExtendedEffect, ExtendedTrap, TargetRegister};
use crate::lookaside::{LookasideSize, ObjectLookasideBuffer, ObjectTable};
use std::collections::BTreeMap;
use terrace_riscv::execute::Trap;
use terrace_riscv::linux::{Host, Process, ProcessEnd};
use terrace_riscv::memory::{GuestMemory, MemoryFault, READ, WRITE};

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
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
    /// The element that has the object refuses the access.
    #[error("element {element} refuses: {fault}")]
    Refused {
        /// The element.
        element: u32,
        /// Its answer.
        fault: MemoryFault,
    },
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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ElementState {
    Running,
    Waiting,
    Exited(u8),
}

#[derive(Debug)]
struct ProcessingElement<H> {
    process: Process<H>,
    state: ElementState,
    /// e0 to e31 by thread; those of a new thread are zero.
    registers: BTreeMap<u32, [u64; 32]>,
    lookaside: ObjectLookasideBuffer,
    statistics: ElementStatistics,
}

/// The processing elements of a program.
#[derive(Debug)]
pub struct ElementMachine<H> {
    elements: Vec<ProcessingElement<H>>,
    objects: ObjectTable,
    dialect: Dialect,
    quantum: u64,
    random: u64,
}

fn load(memory: &mut GuestMemory, at: u64, bytes: u8, signed: bool) -> Result<u64, MemoryFault> {
    Ok(match (bytes, signed) {
        (1, true) => i8::from_le_bytes(memory.load(at)?) as u64,
        (1, false) => u8::from_le_bytes(memory.load(at)?).into(),
        (2, true) => i16::from_le_bytes(memory.load(at)?) as u64,
        (2, false) => u16::from_le_bytes(memory.load(at)?).into(),
        (4, true) => i32::from_le_bytes(memory.load(at)?) as u64,
        (4, false) => u32::from_le_bytes(memory.load(at)?).into(),
        _ => u64::from_le_bytes(memory.load(at)?),
    })
}

fn store(memory: &mut GuestMemory, at: u64, bytes: u8, value: u64) -> Result<(), MemoryFault> {
    match bytes {
        1 => memory.store(at, (value as u8).to_le_bytes()),
        2 => memory.store(at, (value as u16).to_le_bytes()),
        4 => memory.store(at, (value as u32).to_le_bytes()),
        _ => memory.store(at, value.to_le_bytes()),
    }
}

impl<H: Host> ElementMachine<H> {
    /// Elements in order, one for each loaded process.
    #[must_use]
    pub fn new(
        processes: Vec<Process<H>>,
        objects: ObjectTable,
        dialect: Dialect,
        schedule: ElementSchedule,
        lookaside: LookasideSize,
    ) -> Self {
        let element = |mut process: Process<H>| {
            process.pause_at_unknown();
            ProcessingElement {
                process,
                state: ElementState::Running,
                registers: BTreeMap::new(),
                lookaside: ObjectLookasideBuffer::new(lookaside),
                statistics: ElementStatistics::default(),
            }
        };
        Self {
            elements: processes.into_iter().map(element).collect(),
            objects,
            dialect,
            quantum: schedule.quantum.max(1),
            random: schedule.seed | 1 << 63,
        }
    }

    /// What each element did until now.
    #[must_use]
    pub fn statistics(&self) -> Vec<ElementStatistics> {
        let one = |element: &ProcessingElement<H>| ElementStatistics {
            instructions: element.process.instructions(),
            lookaside_hits: element.lookaside.hits,
            lookaside_misses: element.lookaside.misses,
            ..element.statistics
        };
        self.elements.iter().map(one).collect()
    }

    /// Instructions of all elements.
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.elements.iter().map(|element| element.process.instructions()).sum()
    }

    /// Runs until all elements exit, one ends the run, or about `budget` instructions are used up.
    pub fn run(&mut self, budget: u64) -> ElementsEnd {
        let end_at = self.instructions().saturating_add(budget);
        loop {
            let mut progress = false;
            for index in 0..self.elements.len() {
                let element = &mut self.elements[index];
                match element.state {
                    ElementState::Exited(_) => continue,
                    ElementState::Waiting if !element.process.wake_changed() => continue,
                    _ => element.state = ElementState::Running,
                }
                progress = true;
                if let Some(end) = self.take_turn(index) {
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

    fn take_turn(&mut self, index: usize) -> Option<ElementsEnd> {
        let end_at = self.elements[index].process.instructions() + self.draw_turn();
        let number = index as u32;
        loop {
            let element = &mut self.elements[index];
            let left = end_at.saturating_sub(element.process.instructions());
            match element.process.run(&mut (), left) {
                ProcessEnd::Budget => return None,
                ProcessEnd::Exit(status) => {
                    element.state = ElementState::Exited(status);
                    return None;
                }
                ProcessEnd::Deadlock => {
                    element.state = ElementState::Waiting;
                    element.statistics.waits += 1;
                    return None;
                }
                ProcessEnd::Signal { signal, thread, pc, trap } => {
                    return Some(ElementsEnd::Signal { element: number, thread, pc, signal, trap });
                }
                ProcessEnd::UnknownInstruction { thread, word } => {
                    if let Err(fault) = self.execute(index, thread, word) {
                        let hart = self.elements[index].process.hart_mut(thread);
                        let pc = hart.map_or(0, |hart| hart.pc);
                        return Some(ElementsEnd::Fault { element: number, thread, pc, fault });
                    }
                }
            }
        }
    }

    /// Executes an extended instruction of an element's thread, program counter included.
    fn execute(&mut self, index: usize, thread: u32, word: u32) -> Result<(), ElementFault> {
        let illegal = ElementFault::Illegal(word);
        let instruction = ExtendedInstruction::decode(self.dialect, word).ok_or(illegal)?;
        let element = &mut self.elements[index];
        let registers = *element.registers.entry(thread).or_insert([0; 32]);
        let hart = element.process.hart_mut(thread).ok_or(illegal)?;
        let set = match instruction.effect(&hart.x, &registers)? {
            ExtendedEffect::Set { register, value } => Some((register, value)),
            ExtendedEffect::Load { at, bytes, signed, register } => {
                let place = self.reach(index, at, bytes, false)?;
                let memory = self.elements[place].process.memory_mut();
                let refused = |fault| ElementFault::Refused { element: place as u32, fault };
                Some((register, load(memory, at.address, bytes, signed).map_err(refused)?))
            }
            ExtendedEffect::Store { at, bytes, value } => {
                let place = self.reach(index, at, bytes, true)?;
                let memory = self.elements[place].process.memory_mut();
                let refused = |fault| ElementFault::Refused { element: place as u32, fault };
                store(memory, at.address, bytes, value).map_err(refused)?;
                None
            }
        };
        let element = &mut self.elements[index];
        let hart = element.process.hart_mut(thread).ok_or(illegal)?;
        match set {
            Some((TargetRegister::Base(0), _)) | None => {}
            Some((TargetRegister::Base(register), value)) => {
                hart.x[usize::from(register)] = value;
            }
            Some((TargetRegister::Extended(register), value)) => {
                element.registers.entry(thread).or_insert([0; 32])[usize::from(register)] = value;
            }
        }
        hart.pc = hart.pc.wrapping_add(4);
        hart.instret += 1;
        Ok(())
    }

    /// The element that has an object, after the check of permissions; counts the access.
    fn reach(
        &mut self,
        index: usize,
        at: ExtendedAddress,
        bytes: u8,
        stored: bool,
    ) -> Result<usize, ElementFault> {
        let elements = self.elements.len();
        let ProcessingElement { lookaside, statistics, .. } = &mut self.elements[index];
        let object = at.object;
        if object == 0 {
            statistics.local_accesses += 1;
            return Ok(index);
        }
        let unknown = ElementFault::UnknownObject(object);
        let place = lookaside.translate(&self.objects, object).ok_or(unknown)?;
        let target = place.element as usize;
        if target >= elements {
            return Err(unknown);
        }
        if place.permissions & if stored { WRITE } else { READ } == 0 {
            return Err(ElementFault::Forbidden { object, stored });
        }
        if target == index {
            statistics.local_accesses += 1;
        } else {
            let count =
                if stored { &mut statistics.remote_stores } else { &mut statistics.remote_loads };
            *count += 1;
            statistics.remote_bytes += u64::from(bytes);
        }
        Ok(target)
    }
}
