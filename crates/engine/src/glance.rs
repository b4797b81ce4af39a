//! Glances: between full looks at a settled target, one short look each. Where it differs much from what
//! the heat map foresees, heat has shifted, and that is reason for a full look at once. A glance costs a
//! fifth of a full look and decision, so shifts are noticed sooner for the same share of a core.

use terrace_policy::heat::{Foreseen, Touched};
use terrace_types::{Nanos, Tick};

/// Heat came: more pages of the worse tiers were touched than this factor times those expected,
const CAME: f64 = 1.3;
/// Heat went: fewer pages of all were touched than this part of those expected,
const WENT: f64 = 0.5;
/// each by more than so many deviations of a count,
const DEVIATIONS: f64 = 4.0;
/// and by more than so many pages.
const PAGES: f64 = 32.0;
/// Glances are not made closer together.
const SHORTEST: Nanos = Nanos::millis(50);

fn chance(touched: &Touched) -> f64 {
    (DEVIATIONS * touched.expected.sqrt()).max(PAGES)
}

/// Why heat must have shifted, if it must. A program that goes faster touches all of its pages more
/// often: that is no shift.
pub(crate) fn surprise(seen: &Foreseen) -> Option<String> {
    let faster = (seen.all.found / seen.all.expected.max(1.0)).max(1.0);
    let new = Touched { expected: seen.new.expected * faster, ..seen.new };
    if new.found > (CAME * new.expected).max(new.expected + chance(&new)) {
        return Some(format!(
            "{:.0} pages of the worse tiers that were thought cold were touched in a short look, {:.0} were foreseen: heat has shifted",
            new.found, new.expected
        ));
    }
    let all = &seen.all;
    (all.found < (WENT * all.expected).min(all.expected - chance(all))).then(|| {
        format!(
            "{:.0} pages were touched in a short look, {:.0} were foreseen: heat has shifted",
            all.found, all.expected
        )
    })
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

    fn seen(all: (f64, f64), new: (f64, f64)) -> Foreseen {
        let touched = |(found, expected)| Touched { found, expected };
        Foreseen { all: touched(all), new: touched(new) }
    }

    #[test]
    fn chance_is_no_surprise_and_a_shift_is() {
        let surprises = |all, new| surprise(&seen(all, new)).is_some();
        assert!(!surprises((5_000.0, 5_000.0), (1_120.0, 1_000.0)));
        assert!(!surprises((30.0, 0.0), (30.0, 0.0)), "few pages");
        assert!(surprises((5_000.0, 5_000.0), (1_400.0, 1_000.0)), "heat came");
        assert!(surprises((350.0, 2_600.0), (300.0, 20.0)), "a hot set much smaller than the last");
        assert!(surprises((2_000.0, 5_000.0), (0.0, 0.0)), "heat went");
    }

    #[test]
    fn a_program_that_goes_faster_is_no_surprise() {
        assert_eq!(surprise(&seen((8_000.0, 5_000.0), (1_600.0, 1_000.0))), None);
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
