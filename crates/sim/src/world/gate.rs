//! Windows of a world's time: between two of them somebody else may look at it and change it, for
//! example the hosts beside it.

use super::{ProgramState, World};
use terrace_model::PS;
use terrace_types::Nanos;

/// Who has to do with a world from window to window of its time: hosts beside it, for example.
pub trait WindowGate: std::fmt::Debug {
    /// The program has come to the begin of the next window; it goes on when this returns.
    fn reach(&mut self, world: &mut World);
}

/// A gate, when it comes next and after how long again, picoseconds.
#[derive(Debug)]
pub(super) struct TimedGate {
    gate: Box<dyn WindowGate>,
    next: u64,
    window: u64,
}

impl World {
    /// The program never goes on: nothing passes from now on.
    pub fn halt(&mut self) {
        self.stops.state = ProgramState::Halted;
    }

    /// Whether [`Self::halt`] was called.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.stops.state == ProgramState::Halted
    }

    /// `gate` is reached when the program begins, and then every `window`.
    pub fn set_gate(&mut self, window: Nanos, gate: Box<dyn WindowGate>) {
        let window = window.get().max(1).saturating_mul(PS);
        self.gate = Some(TimedGate { gate, next: self.engine.lockstep().start(), window });
    }

    pub(super) fn pass_gate(&mut self) {
        while let Some(mut timed) =
            self.gate.take_if(|timed| timed.next <= self.engine.lockstep().start())
        {
            timed.gate.reach(self);
            timed.next += timed.window;
            self.gate = Some(timed);
        }
    }
}
