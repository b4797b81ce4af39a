//! The cores' times tied together. An emulator that runs one core after the other must not add
//! their times up: each core runs a quantum of its own time, then the next core runs the *same*
//! quantum; when all have, the next one begins. A core that is idle is dragged along. What one core
//! sees of another is at most a quantum off.

/// The quantum that is being run: `start..start + length`, picoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lockstep {
    start: u64,
    length: u64,
}

impl Lockstep {
    /// Quanta of `length` picoseconds, from time zero.
    #[must_use]
    pub fn new(length: u64) -> Self {
        Self { start: 0, length: length.max(1) }
    }

    /// Where the quantum began.
    #[inline]
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Where it ends: a core at or past this waits for the others.
    #[inline]
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.length
    }

    /// Go on to the next quantum if every core that is not idle has run this one; `active`: their
    /// times. Says by how much the start moved (zero: somebody is still behind, or all are idle).
    pub fn advance(&mut self, active: impl Iterator<Item = u64>) -> u64 {
        match active.min() {
            Some(slowest) if slowest >= self.end() => {
                let quanta = (slowest - self.start) / self.length;
                self.start += quanta * self.length;
                quanta * self.length
            }
            _ => 0,
        }
    }

    /// All cores were idle for a while: a new quantum begins where the furthest core stopped.
    pub fn restart(&mut self, all: impl Iterator<Item = u64>) {
        self.start = all.fold(self.start, u64::max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_runs_ahead() {
        let mut l = Lockstep::new(10);
        assert_eq!(l.advance([10, 5].into_iter()), 0);
        assert_eq!(l.advance([10, 11].into_iter()), 10);
        assert_eq!((l.start(), l.end()), (10, 20));
    }

    #[test]
    fn an_idle_core_holds_nobody_up() {
        let mut l = Lockstep::new(10);
        assert_eq!(l.advance([12].into_iter()), 10);
        assert_eq!(l.advance(std::iter::empty()), 0);
    }

    #[test]
    fn long_stalls_skip_quanta() {
        let mut l = Lockstep::new(10);
        assert_eq!(l.advance([35, 50].into_iter()), 30);
        assert_eq!(l.start(), 30);
    }

    #[test]
    fn after_idleness_the_furthest_core_sets_the_time() {
        let mut l = Lockstep::new(10);
        l.restart([7, 3].into_iter());
        assert_eq!(l.start(), 7);
        l.restart([2, 3].into_iter());
        assert_eq!(l.start(), 7);
    }
}
