//! A program on several processing elements that reach each other by xBGAS instructions.

use super::{start, RiscvError, RiscvProgram};
use std::time::Instant;
use terrace_types::Bytes;
use terrace_xbgas::element::{ElementMachine, ELEMENTS_VARIABLE, ELEMENT_VARIABLE};
pub use terrace_xbgas::element::{ElementSchedule, ElementStatistics, ElementsEnd, MOST_ELEMENTS};
pub use terrace_xbgas::lookaside::LookasideSize;
use terrace_xbgas::lookaside::ObjectTable;
pub use terrace_xbgas::Dialect;

/// The elements that run a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElementOptions {
    /// How many, 1 to [`MOST_ELEMENTS`].
    pub count: u32,
    /// How their extended instructions are encoded.
    pub dialect: Dialect,
    /// In which order they run.
    pub schedule: ElementSchedule,
    /// The size of their look-aside buffers.
    pub lookaside: LookasideSize,
}

/// A run of elements that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct ElementsRun {
    /// How.
    pub end: ElementsEnd,
    /// What each element did.
    pub elements: Vec<ElementStatistics>,
    /// Seconds it took.
    pub elapsed_s: f64,
}

impl ElementsRun {
    /// The status to end with, and where not all elements exited a line that names the one at
    /// fault.
    #[must_use]
    pub fn status(&self) -> (u8, Option<String>) {
        match &self.end {
            ElementsEnd::Exit(status) => (*status, None),
            ElementsEnd::Fault { element, thread, pc, fault } => {
                let signal = fault.signal();
                let line = format!("element {element}, thread {thread}, at {pc:#x}: {fault}");
                (128 + signal, Some(line))
            }
            ElementsEnd::Signal { element, thread, pc, signal, trap } => {
                let why = trap.map_or("the program sent it".to_owned(), |trap| trap.to_string());
                let line = format!(
                    "element {element}, thread {thread}, ended by signal {signal} at {pc:#x}: {why}"
                );
                (128 + signal, Some(line))
            }
            ElementsEnd::Stranded { waiting, exited } => {
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
            ElementsEnd::Budget => (1, Some("the instructions granted are used up".to_owned())),
        }
    }
}

/// Runs the program on elements to its end; they share its memory limit and this process's
/// streams.
///
/// # Errors
/// [`RiscvError`], before the program starts.
pub fn run_elements(
    program: &RiscvProgram,
    options: &ElementOptions,
) -> Result<ElementsRun, RiscvError> {
    let count = options.count.clamp(1, MOST_ELEMENTS);
    let mut processes = Vec::new();
    for element in 0..count {
        let environment = [(ELEMENT_VARIABLE, element), (ELEMENTS_VARIABLE, count)]
            .map(|(name, value)| format!("{name}={value}").into_bytes());
        let one = RiscvProgram {
            memory: Bytes(program.memory.0 / u64::from(count)),
            seed: program.seed.wrapping_add(u64::from(element) << 32),
            ..program.clone()
        };
        processes.push(start(&one, &environment)?);
    }
    let objects = ObjectTable::of_elements(count);
    let ElementOptions { dialect, schedule, lookaside, .. } = *options;
    let started = Instant::now();
    let mut machine = ElementMachine::new(processes, objects, dialect, schedule, lookaside);
    let end = machine.run(u64::MAX);
    let elapsed_s = started.elapsed().as_secs_f64();
    Ok(ElementsRun { end, elements: machine.statistics(), elapsed_s })
}
