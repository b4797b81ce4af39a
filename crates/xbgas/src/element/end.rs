//! How runs of elements end, and why extended instructions fault.

use crate::execute::ExtendedTrap;
use crate::network::NetworkError;
use crate::protocol::RequestRefusal;
use terrace_fabric::FabricError;
use terrace_model::ModelError;
use terrace_riscv::execute::Trap;
use terrace_riscv::memory::MemoryFault;

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
    /// An element's thread is at a breakpoint, which its process was given.
    Breakpoint {
        /// Element, from 0.
        element: u32,
        /// Its thread, from 0.
        thread: u32,
    },
    /// An element in another process ended the run.
    Reported {
        /// The status to end with.
        status: u8,
        /// Why, where not all elements exited.
        line: Option<String>,
    },
}

impl ElementsEnd {
    /// The end of a run whose elements all exited, with a status, or wait.
    pub(super) fn of_idle(elements: impl Iterator<Item = (u32, Option<u8>)>) -> Self {
        let mut waiting = Vec::new();
        let mut exited = Vec::new();
        for (element, status) in elements {
            match status {
                Some(status) => exited.push((element, status)),
                None => waiting.push(element),
            }
        }
        if waiting.is_empty() {
            return Self::Exit(exited.iter().map(|(_, status)| *status).max().unwrap_or(0));
        }
        // The one that failed, if one did, explains more than the others.
        let exited = exited.into_iter().max_by_key(|(element, status)| (*status, !*element));
        Self::Stranded { waiting, exited }
    }

    /// The status to end with, as a shell shows it, and where not all elements exited a line that
    /// names the one at fault.
    #[must_use]
    pub fn status(&self) -> (u8, Option<String>) {
        match self {
            Self::Exit(status) => (*status, None),
            Self::Fault { element, thread, pc, fault } => {
                let signal = fault.signal();
                let line = format!("element {element}, thread {thread}, at {pc:#x}: {fault}");
                (128 + signal, Some(line))
            }
            Self::Signal { element, thread, pc, signal, trap } => {
                let why = trap.map_or("the program sent it".to_owned(), |trap| trap.to_string());
                let line = format!(
                    "element {element}, thread {thread}, ended by signal {signal} at {pc:#x}: {why}"
                );
                (128 + signal, Some(line))
            }
            Self::Stranded { waiting, exited } => {
                let others = waiting.len();
                let (status, line) = match exited {
                    Some((element, status)) => (
                        (*status).max(1),
                        format!(
                            "element {element} exited with status {status} while {others} others \
                             wait; every element must call the same barriers"
                        ),
                    ),
                    None => (1, format!("all {others} elements wait for each other")),
                };
                (status, Some(line))
            }
            Self::Budget => (1, Some("the instructions granted are used up".to_owned())),
            Self::Breakpoint { element, thread } => {
                (1, Some(format!("element {element}, thread {thread}, is at a breakpoint")))
            }
            Self::Reported { status, line } => (*status, line.clone()),
        }
    }
}
