//! The live clock: monotonic time, and waits that end with the target.

use std::cell::RefCell;
use std::rc::Rc;
use terrace_engine::Clock;
use terrace_sys::{now, open_pidfd, sleep, take_turn, wait_for_end, PidFd, Runner, SysError};
use terrace_types::{Nanos, Pid, Tick};

/// Lets time pass with one eye on the target.
pub trait Waiter {
    /// Lets up to `span` pass; true once the target has ended.
    fn wait(&mut self, span: Nanos) -> bool;
}

/// The command that `terrace run` started: signals are passed on while waiting.
impl Waiter for Rc<RefCell<Runner>> {
    fn wait(&mut self, span: Nanos) -> bool {
        self.borrow_mut().wait(span).is_some()
    }
}

/// A process that `terrace attach` was pointed at.
#[derive(Debug)]
pub struct AttachedProcess {
    handle: PidFd,
    ended: bool,
}

impl AttachedProcess {
    /// Takes hold of it.
    ///
    /// # Errors
    /// [`SysError::Gone`] for no such process.
    pub fn new(pid: Pid) -> Result<Self, SysError> {
        Ok(Self { handle: open_pidfd(pid)?, ended: false })
    }
}

impl Waiter for AttachedProcess {
    fn wait(&mut self, span: Nanos) -> bool {
        if self.ended {
            // Its children may run on; time still has to pass.
            sleep(span);
        } else {
            self.ended = wait_for_end(&self.handle, span);
        }
        self.ended
    }
}

/// The engine's clock on a live machine.
#[derive(Debug)]
pub struct LiveClock<W> {
    waiter: W,
    ended: bool,
}

impl<W: Waiter> LiveClock<W> {
    /// A clock whose waits end early with the target.
    pub const fn new(waiter: W) -> Self {
        Self { waiter, ended: false }
    }

    /// Whether the target was seen to end.
    pub const fn ended(&self) -> bool {
        self.ended
    }
}

impl<W: Waiter> Clock for LiveClock<W> {
    fn now(&self) -> Tick {
        now()
    }

    fn wait(&mut self, span: Nanos) {
        self.ended |= self.waiter.wait(span);
        take_turn();
    }
}
