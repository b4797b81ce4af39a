//! Giving memory back while others wait for some, after the kernel's account of stalls
//! (`Documentation/accounting/psi.rst`).

use terrace_types::{Bytes, Nanos, Tick};

/// Between two readings.
pub(crate) const EVERY: Nanos = Nanos::secs(1);
/// Stalled for more than this part of the time between them: memory is short.
const SHORT: f64 = 0.10;
/// For less than this part: it is not.
const ENOUGH: f64 = 0.01;
/// After so long without stalls some is taken again.
const CALM: Nanos = Nanos::secs(10);
/// Given back at a time, and at most, in parts of [`PARTS`].
const STEP: u64 = 1;
const MOST: u64 = 6;
const PARTS: u64 = 8;

/// How much of its memory a map does without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PressureResponse {
    given: u64,
    read: Option<(Tick, Nanos)>,
    calm: Nanos,
}

impl PressureResponse {
    /// Whether to read again.
    pub fn due(&self, now: Tick) -> bool {
        self.read.is_none_or(|(then, _)| now.since(then) >= EVERY)
    }

    /// Takes in for how long programs had stalled for memory by now, since the machine started;
    /// whether that changes what the map may have.
    pub fn stalled(&mut self, now: Tick, total: Nanos) -> bool {
        let Some((then, before)) = self.read.replace((now, total)) else {
            return false;
        };
        let span = now.since(then);
        let part = total.saturating_sub(before).as_secs_f64() / span.as_secs_f64().max(1e-9);
        let was = self.given;
        if part > SHORT {
            self.given = (self.given + STEP).min(MOST);
            self.calm = Nanos::ZERO;
        } else if part < ENOUGH {
            self.calm += span;
            if self.calm >= CALM {
                self.given = self.given.saturating_sub(STEP);
                self.calm = Nanos::ZERO;
            }
        }
        self.given != was
    }

    /// What is left of `memory`.
    pub fn left(&self, memory: Bytes) -> Bytes {
        Bytes(memory.get() / PARTS * (PARTS - self.given) + memory.get() % PARTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of 800 bytes after each of these seconds, stalled for so many milliseconds.
    fn left(seconds: &[u64]) -> Vec<u64> {
        let (mut pressure, mut total) = (PressureResponse::default(), Nanos::ZERO);
        pressure.stalled(Tick(0), total);
        let mut all = Vec::new();
        for (n, ms) in seconds.iter().enumerate() {
            total += Nanos::millis(*ms);
            pressure.stalled(Tick((n as u64 + 1) * 1_000_000_000), total);
            all.push(pressure.left(Bytes(800)).get());
        }
        all
    }

    #[test]
    fn memory_is_returned_under_pressure_and_regained_after_it() {
        assert_eq!(left(&[0, 500, 500, 50, 50]), [800, 700, 600, 600, 600]);
        assert_eq!(left(&[900; 9]).last(), Some(&200), "a fourth is kept");
        let calm: Vec<u64> = std::iter::once(900).chain([0; 20]).collect();
        assert_eq!(left(&calm)[9..12], [700, 800, 800]);
        let again: Vec<u64> = [900, 900].into_iter().chain([0; 9]).chain([900]).collect();
        assert_eq!(left(&again).last(), Some(&500), "stalls again before it was calm for long");
    }

    #[test]
    fn it_is_read_once_a_second_and_the_first_reading_says_nothing() {
        let mut pressure = PressureResponse::default();
        assert!(pressure.due(Tick(5)));
        assert!(!pressure.stalled(Tick(5), Nanos::secs(1000)));
        assert!(!pressure.due(Tick(6)) && pressure.due(Tick(1_000_000_006)));
        assert_eq!(pressure.left(Bytes(803)), Bytes(803));
    }
}
