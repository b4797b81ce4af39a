//! One element under a debugger, by gdb's remote serial protocol ("Debugging with GDB", appendix
//! E): registers, memory, breakpoints, single steps, threads. The other elements run whenever it
//! runs, and stand still while it does.

mod connection;
mod target;

pub use connection::DebugAddress;

use super::elements::{prepare, write_back, ElementOptions, ElementsRun, PreparedElements};
use super::{RiscvError, RiscvProgram};
use connection::DebuggerConnection;
use gdbstub::stub::{DisconnectReason, GdbStub};
use std::time::Instant;
use target::{DebugLoop, DebuggedElement};
use terrace_xbgas::element::{ElementMachine, ElementsEnd};

/// How a program is debugged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DebugOptions {
    /// Where a debugger connects.
    pub address: DebugAddress,
    /// The element that it sees.
    pub element: u32,
}

/// Why a debugger cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DebugError {
    /// Nobody can connect there.
    #[error("cannot wait for a debugger at {address}: {source}; give another port or path")]
    Listen {
        /// Where.
        address: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The debugger went away, or says what the protocol does not have.
    #[error("the debugger at {address} is gone: {why}; the program was ended")]
    Gone {
        /// Where.
        address: String,
        /// What is known of it.
        why: String,
    },
    /// An element that there is not.
    #[error("no element {element} of {count}; give one from 0 on")]
    Element {
        /// The one to be debugged.
        element: u32,
        /// How many there are.
        count: u32,
    },
}

/// Runs the program on elements in turns, one of them under a debugger, whose connection is waited
/// for. `None`: the debugger ended the program.
///
/// `announce` gets the address to connect to, as gdb's `target remote` takes it.
///
/// # Errors
/// [`RiscvError`], also [`DebugError`].
pub fn debug_elements(
    program: &RiscvProgram,
    options: &ElementOptions,
    debug: &DebugOptions,
    announce: &mut dyn FnMut(&str),
) -> Result<Option<ElementsRun>, RiscvError> {
    let (element, count) = (debug.element, options.count);
    if element >= count {
        return Err(DebugError::Element { element, count }.into());
    }
    let PreparedElements { processes, setup, .. } = prepare(program, options, 0..count)?;
    let mut target = DebuggedElement::new(ElementMachine::new(processes, &setup), element);
    let (connection, address) = DebuggerConnection::accept(&debug.address, announce)?;
    let started = Instant::now();
    let gone = |why: String| DebugError::Gone { address: address.clone(), why };
    let reason = GdbStub::new(connection)
        .run_blocking::<DebugLoop>(&mut target)
        .map_err(|error| gone(error.to_string()))?;
    if reason == DisconnectReason::Kill {
        return Ok(None);
    }
    // Detached, or the element has ended; the others may go on.
    let (mut machine, end) = target.into_machine();
    let end = match end {
        Some(end) => end,
        None => loop {
            match machine.run(u64::MAX) {
                // Removed with the debugger; nothing else sets one.
                ElementsEnd::Breakpoint { .. } => {}
                end => break end,
            }
        },
    };
    let elapsed_s = started.elapsed().as_secs_f64();
    write_back(|file| machine.file_bytes(file), &options.objects)?;
    Ok(Some(ElementsRun { end, elements: machine.statistics(), elapsed_s, recorded: None }))
}
