//! What a debugger reaches of one element.

use super::{ElementMachine, ElementState, ElementsEnd};
use crate::execute::TargetRegister;
use std::ops::ControlFlow;
use terrace_riscv::linux::{Host, Process};

impl<H: Host> ElementMachine<H> {
    /// An element's process.
    pub fn process_mut(&mut self, element: u32) -> Option<&mut Process<H>> {
        self.elements.get_mut(element as usize).map(|element| &mut element.process)
    }

    /// What an element exited with; `None`: it did not.
    #[must_use]
    pub fn exit_status(&self, element: u32) -> Option<u8> {
        match self.elements.get(element as usize)?.state {
            ElementState::Exited(status) => Some(status),
            _ => None,
        }
    }

    /// e0 to e31 of an element's thread.
    #[must_use]
    pub fn extended_registers(&self, element: u32, thread: u32) -> [u64; 32] {
        let element = self.elements.get(element as usize);
        element.and_then(|e| e.registers.get(&thread)).copied().unwrap_or([0; 32])
    }

    /// Sets one of them.
    pub fn set_extended_register(&mut self, element: u32, thread: u32, register: u8, value: u64) {
        if let Some(element) = self.elements.get_mut(element as usize) {
            element.set_register(thread, TargetRegister::Extended(register), value);
        }
    }

    /// Executes one instruction of an element's thread that can go on, whatever breakpoint is
    /// there; how the run ended, if it did.
    pub fn step(&mut self, element: u32, thread: u32) -> Option<ElementsEnd> {
        let index = element as usize;
        let end = self.elements.get_mut(index)?.process.step(&mut (), thread);
        match self.follow(index, end, &mut ()) {
            ControlFlow::Continue(()) => None,
            ControlFlow::Break(end) => end,
        }
    }
}
