//! What a debugger asks of a process: which threads there are, breakpoints, and single steps.

use super::{Activity, Host, Process, ProcessEnd, ProcessObserver};
use std::collections::BTreeSet;

impl<H: Host> Process<H> {
    /// The threads that have not ended.
    pub fn live_threads(&self) -> impl Iterator<Item = u32> + '_ {
        let live = (0..).zip(&self.threads).filter(|(_, t)| t.activity != Activity::Ended);
        live.map(|(number, _)| number)
    }

    /// Whether a thread can execute its next instruction now.
    #[must_use]
    pub fn is_running(&self, thread: u32) -> bool {
        let thread = self.threads.get(thread as usize);
        self.end.is_none() && thread.is_some_and(|t| t.activity == Activity::Running)
    }

    /// Lets [`Process::run`] return before the instruction at an address; whether it did not so
    /// far. Memory keeps its bytes.
    pub fn insert_breakpoint(&mut self, address: u64) -> bool {
        let mut at = self.code.set_breakpoints(BTreeSet::new());
        let new = at.insert(address);
        self.code.set_breakpoints(at);
        new
    }

    /// Undoes [`Process::insert_breakpoint`]; whether there was one.
    pub fn remove_breakpoint(&mut self, address: u64) -> bool {
        let mut at = self.code.set_breakpoints(BTreeSet::new());
        let was = at.remove(&address);
        self.code.set_breakpoints(at);
        was
    }

    /// Undoes it for all addresses.
    pub fn clear_breakpoints(&mut self) {
        self.code.set_breakpoints(BTreeSet::new());
    }

    /// Whether there is a breakpoint at an address.
    #[must_use]
    pub fn has_breakpoint(&self, address: u64) -> bool {
        self.code.breakpoints().contains(&address)
    }

    /// Lets instructions that a debugger changed be decoded anew.
    pub fn forget_code(&mut self) {
        self.code.clear();
    }

    /// Executes one instruction of a thread that can, whatever breakpoint is there.
    pub fn step<O: ProcessObserver>(&mut self, observer: &mut O, thread: u32) -> ProcessEnd {
        if !self.is_running(thread) {
            return self.end.unwrap_or(ProcessEnd::Budget);
        }
        let breakpoints = self.code.set_breakpoints(BTreeSet::new());
        observer.enter(thread);
        let pause = self.take_turn(thread as usize, observer, 1);
        self.code.set_breakpoints(breakpoints);
        self.end.or(pause.map(|pause| pause.end(thread as usize))).unwrap_or(ProcessEnd::Budget)
    }
}
