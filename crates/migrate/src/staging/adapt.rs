//! The number of copying threads while running: one more where workers wait, one fewer where copies
//! do, and back again where that made it slower. Pure.

use terrace_types::{Bytes, Nanos};

/// What happened since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AdaptWindow {
    /// Time.
    pub span: Nanos,
    /// Bytes of blocks that were worked through.
    pub done: Bytes,
    /// Time that threads waited because no block was ready, all together.
    pub starved: Nanos,
    /// Time that threads could have copied but found no free buffer, all together.
    pub crowded: Nanos,
}

/// The state.
#[derive(Debug, Clone)]
pub struct ThreadTuner {
    threads: u32,
    migrators: u32,
    /// Before the last change: migrators and rate.
    before: Option<(u32, f64)>,
    /// Windows until the next change.
    rest: u32,
    /// Windows to rest after a change that did not help: doubles each time.
    patience: u32,
}

/// A stall below this share of the threads' time is none.
const STALL: f64 = 0.03;
/// A change must gain this much, or it is taken back.
const GAIN: f64 = 1.01;

impl ThreadTuner {
    /// Begins with so many of `threads` copying.
    #[must_use]
    pub fn new(threads: u32, migrators: u32) -> Self {
        let migrators = migrators.clamp(1, threads.saturating_sub(1).max(1));
        Self { threads, migrators, before: None, rest: 1, patience: 2 }
    }

    /// Threads that copy.
    #[must_use]
    pub const fn migrators(&self) -> u32 {
        self.migrators
    }

    /// Takes a window, gives the number of copying threads from now on.
    pub fn observe(&mut self, window: &AdaptWindow) -> u32 {
        let seconds = window.span.as_secs_f64();
        if seconds <= 0.0 {
            return self.migrators;
        }
        let rate = window.done.get() as f64 / seconds;
        if let Some((was, before)) = self.before.take() {
            if rate < before * GAIN {
                self.migrators = was;
                self.rest = self.patience;
                self.patience = (self.patience * 2).min(64);
                return self.migrators;
            }
            self.patience = 2;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return self.migrators;
        }
        let all = seconds * f64::from(self.threads);
        let starved = window.starved.as_secs_f64() / all;
        let crowded = window.crowded.as_secs_f64() / all;
        let next = if starved > STALL && starved >= crowded {
            (self.migrators + 1).min(self.threads.saturating_sub(1).max(1))
        } else if crowded > STALL {
            (self.migrators - 1).max(1)
        } else {
            self.migrators
        };
        if next != self.migrators {
            self.before = Some((self.migrators, rate));
            self.migrators = next;
            // The window of the change is mixed.
            self.rest = 0;
        }
        self.migrators
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose rate depends on the split; the best is at `best` migrators.
    fn run(best: u32, start: u32, threads: u32) -> u32 {
        let mut adapt = ThreadTuner::new(threads, start);
        for _ in 0..60 {
            let m = adapt.migrators();
            let off = f64::from(m.abs_diff(best));
            let done = Bytes((1e9 * (1.0 - 0.1 * off)).max(1e7) as u64);
            let stalled = Nanos((0.1 * off * 1e9) as u64 * u64::from(threads));
            let (starved, crowded) =
                if m < best { (stalled, Nanos::ZERO) } else { (Nanos::ZERO, stalled) };
            adapt.observe(&AdaptWindow { span: Nanos::secs(1), done, starved, crowded });
        }
        adapt.migrators()
    }

    #[test]
    fn it_finds_the_best_split_from_either_side() {
        for best in [1, 3, 5, 7] {
            for start in [1, 4, 7] {
                assert_eq!(run(best, start, 8), best, "from {start}");
            }
        }
    }

    #[test]
    fn what_does_not_help_is_taken_back_and_not_tried_at_once() {
        let mut adapt = ThreadTuner::new(8, 2);
        // Workers starve whatever is done: the slow node's bandwidth is the limit.
        let window = AdaptWindow {
            span: Nanos::secs(1),
            done: Bytes(1 << 30),
            starved: Nanos::secs(4),
            crowded: Nanos::ZERO,
        };
        let seen: Vec<u32> = (0..40).map(|_| adapt.observe(&window)).collect();
        let changed = seen.iter().filter(|m| **m == 3).count();
        assert!(changed > 0 && changed <= 5, "{seen:?}");
        assert!(seen.iter().all(|m| (2..=3).contains(m)));
    }

    #[test]
    fn a_worker_and_a_migrator_remain() {
        assert_eq!(ThreadTuner::new(2, 9).migrators(), 1);
        assert_eq!(ThreadTuner::new(1, 0).migrators(), 1);
        let mut adapt = ThreadTuner::new(2, 1);
        let window = AdaptWindow {
            span: Nanos::secs(1),
            done: Bytes(1),
            starved: Nanos::secs(2),
            crowded: Nanos::ZERO,
        };
        assert!((0..9).all(|_| adapt.observe(&window) == 1));
        assert_eq!(adapt.observe(&AdaptWindow::default()), 1);
    }
}
