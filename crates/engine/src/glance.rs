//! Glances: between full looks at a settled target, one short look each at what the worse tiers serve. Much
//! more than the heat map foresees means that heat has shifted, and is reason for a full look at once.
//! A glance costs a fifth of a full look and decision, so shifts are noticed sooner for the same share
//! of a core.

use terrace_types::{Nanos, Tick};

/// A surprise is more than this factor,
const FACTOR: f64 = 1.3;
/// and more than so many deviations of a count,
const DEVIATIONS: f64 = 4.0;
/// and more than so many pages.
const PAGES: f64 = 32.0;
/// Glances are not made closer together.
const SHORTEST: Nanos = Nanos::millis(50);

/// What a glance saw of the worse tiers' pages, and what was foreseen.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Seen {
    pub touched: f64,
    pub expected: f64,
}

impl Seen {
    /// Whether heat must have shifted.
    pub fn surprises(&self) -> bool {
        let chance = DEVIATIONS * self.expected.sqrt();
        self.touched > (FACTOR * self.expected).max(self.expected + chance.max(PAGES))
    }

    pub fn why(&self) -> String {
        format!(
            "{:.0} pages of the worse tiers were touched in a short look, {:.0} were foreseen: heat has shifted",
            self.touched, self.expected
        )
    }
}

/// Until when glances take the place of full looks.
#[derive(Debug, Default)]
pub(crate) struct Glances {
    until: Option<Tick>,
}

impl Glances {
    /// Full looks from now on.
    pub fn over(&mut self) {
        self.until = None;
    }

    /// Begins, unless begun; gives the time to the next glance, or none when a full look is due.
    pub fn next(&mut self, now: Tick, whole: Nanos, every: Nanos) -> Option<Nanos> {
        let until = *self.until.get_or_insert(now.after(whole));
        let every = every.max(SHORTEST);
        (now.after(every) < until).then_some(every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_is_no_surprise_and_a_shift_is() {
        let seen = |touched, expected| Seen { touched, expected }.surprises();
        assert!(!seen(1_120.0, 1_000.0) && !seen(30.0, 0.0) && !seen(0.0, 500.0));
        assert!(seen(1_400.0, 1_000.0) && seen(350.0, 20.0));
    }

    #[test]
    fn glances_end_when_a_full_look_is_due() {
        let mut glances = Glances::default();
        let at = |ms: u64| Tick(ms * 1_000_000);
        let (whole, every) = (Nanos::millis(400), Nanos::millis(150));
        assert_eq!(glances.next(at(0), whole, every), Some(every));
        assert_eq!(glances.next(at(200), whole, every), Some(every));
        assert_eq!(glances.next(at(300), whole, every), None);
        glances.over();
        assert_eq!(glances.next(at(500), whole, Nanos::ZERO), Some(SHORTEST));
    }
}
