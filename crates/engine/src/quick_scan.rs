//! Quick scans: between full samples of a settled target, one short sample each. Where it differs
//! much from what the heat map foresees, heat has shifted, and that is reason for a full sample of
//! once. A quick scan costs a fifth of a full sample and decision, so shifts are noticed sooner for
//! the same share of a core.

use crate::EngineTuning;
use terrace_policy::heat::{ForecastCheck, TouchedPages};
use terrace_types::{Nanos, Tick};

fn chance(touched: &TouchedPages, tuning: &EngineTuning) -> f64 {
    (tuning.shift_deviations * touched.expected.sqrt()).max(tuning.shift_pages)
}

/// Tells a shift of heat from what samples usually find.
///
/// Of many pages thought to be touched seldom, some only were underrated, so a sample finds more of
/// them touched than foreseen although nothing shifted; how many more depends on the program. That
/// ratio is learned. An alarm after which nothing was worth moving was a false one, and its ratio
/// is usual from then on.
#[derive(Debug, Default)]
pub(crate) struct ShiftDetector {
    usual: Option<f64>,
    alarm: Option<f64>,
}

impl ShiftDetector {
    /// Why heat must have shifted, if it must. A program that goes faster touches all of its pages
    /// more often: that is no shift. `cooling`: that pages cool is a surprise, too.
    pub fn surprised_by(
        &mut self,
        seen: &ForecastCheck,
        cooling: bool,
        tuning: &EngineTuning,
    ) -> Option<String> {
        let faster = (seen.all.found / seen.all.expected.max(1.0)).max(1.0);
        let new = TouchedPages { expected: seen.new.expected * faster, ..seen.new };
        let ratio = new.found / new.expected.max(1.0);
        let usual = self.usual.unwrap_or_else(|| ratio.min(tuning.shift_first).max(1.0));
        if new.found
            > (tuning.shift_came * usual * new.expected).max(new.expected + chance(&new, tuning))
        {
            self.alarm = Some(ratio);
            return Some(format!(
                "{:.0} pages of the worse tiers that were thought cold were touched in a short \
                    sample, {:.0} were foreseen: heat has shifted",
                new.found, new.expected
            ));
        }
        // One that the next sample did not confirm counts as usual too.
        let seen_lately = [self.alarm.take(), Some(ratio)].into_iter().flatten();
        self.usual = Some(
            seen_lately
                .fold(usual, |usual, ratio| usual + tuning.shift_share * (ratio.max(1.0) - usual)),
        );
        let all = &seen.all;
        let went =
            all.found < (tuning.shift_went * all.expected).min(all.expected - chance(all, tuning));
        (cooling && went).then(|| {
            format!(
                "{:.0} pages were touched in a short sample, {:.0} were foreseen: heat has shifted",
                all.found, all.expected
            )
        })
    }

    /// Pages were moved: what was usual before says nothing now.
    pub fn moved(&mut self) {
        *self = Self::default();
    }

    /// Heat settled again, and nothing was worth moving.
    pub fn mark_steady(&mut self) {
        if let Some(ratio) = self.alarm.take() {
            self.usual = Some(self.usual.unwrap_or(1.0).max(ratio));
        }
    }
}

/// Until when quick scans take the place of full samples.
#[derive(Debug, Default)]
pub(crate) struct QuickScans {
    until: Option<Tick>,
    unsure: bool,
}

impl QuickScans {
    /// Full samples from now on.
    pub fn over(&mut self) {
        *self = Self::default();
    }

    /// Whether a surprise is the second in a row, and to be believed.
    pub fn confirmed(&mut self, surprised: bool) -> bool {
        let before = std::mem::replace(&mut self.unsure, surprised);
        surprised && before
    }

    /// Begins, unless begun; gives the time to the next quick scan, or none when a full sample is
    /// due.
    pub fn next(
        &mut self,
        now: Tick,
        whole: Nanos,
        every: Nanos,
        tuning: &EngineTuning,
    ) -> Option<Nanos> {
        if self.unsure {
            return Some(tuning.quick_scan_confirm);
        }
        let until = *self.until.get_or_insert(now.after(whole));
        let every = every.max(tuning.quick_scan_shortest);
        (now.after(every) < until).then_some(every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual() -> EngineTuning {
        EngineTuning::default()
    }

    fn seen(all: (f64, f64), new: (f64, f64)) -> ForecastCheck {
        let touched = |(found, expected)| TouchedPages { found, expected, ..Default::default() };
        ForecastCheck { all: touched(all), new: touched(new) }
    }

    #[test]
    fn chance_is_no_surprise_and_a_shift_is() {
        let surprises = |all, new| {
            ShiftDetector::default().surprised_by(&seen(all, new), true, &usual()).is_some()
        };
        assert!(!surprises((5_000.0, 5_000.0), (1_120.0, 1_000.0)));
        assert!(!surprises((30.0, 0.0), (30.0, 0.0)), "few pages");
        assert!(surprises((5_000.0, 5_000.0), (2_400.0, 1_000.0)), "heat came");
        assert!(surprises((350.0, 2_600.0), (300.0, 20.0)), "a hot set much smaller than the last");
        assert!(surprises((2_000.0, 5_000.0), (0.0, 0.0)), "heat went");
    }

    #[test]
    fn a_first_shift_is_found_where_less_than_was_foreseen_is_usual() {
        let mut tuning = usual();
        assert!(tuning.scale("shift_first", 0.5) && tuning.shift_first < 1.0);
        let came = seen((5_000.0, 5_000.0), (2_400.0, 1_000.0));
        assert!(ShiftDetector::default().surprised_by(&came, true, &tuning).is_some());
    }

    #[test]
    fn pages_that_cool_are_none_where_that_could_gain_nothing() {
        let cooled = seen((2_000.0, 5_000.0), (0.0, 0.0));
        assert_eq!(ShiftDetector::default().surprised_by(&cooled, false, &usual()), None);
        let came = seen((2_000.0, 5_000.0), (300.0, 20.0));
        assert!(
            ShiftDetector::default().surprised_by(&came, false, &usual()).is_some(),
            "but heat that comes is"
        );
    }

    #[test]
    fn a_program_that_goes_faster_is_no_surprise() {
        assert_eq!(
            ShiftDetector::default().surprised_by(
                &seen((8_000.0, 5_000.0), (1_600.0, 1_000.0)),
                true,
                &usual()
            ),
            None
        );
    }

    #[test]
    fn what_is_usual_is_learned_and_more_than_that_is_a_surprise() {
        let mut detector = ShiftDetector::default();
        let sample = |found| seen((5_000.0, 5_000.0), (found, 1_000.0));
        for _ in 0..20 {
            assert_eq!(detector.surprised_by(&sample(1_000.0), true, &usual()), None);
        }
        assert!(detector.surprised_by(&sample(1_400.0), true, &usual()).is_some());
        detector.mark_steady();
        assert_eq!(
            detector.surprised_by(&sample(1_400.0), true, &usual()),
            None,
            "once a false alarm, no alarm again"
        );
        assert!(detector.surprised_by(&sample(2_500.0), true, &usual()).is_some());
        detector.moved();
        assert_eq!(
            detector.surprised_by(&sample(1_400.0), true, &usual()),
            None,
            "nothing is known of what is usual"
        );
        for _ in 0..20 {
            assert_eq!(detector.surprised_by(&sample(1_000.0), true, &usual()), None);
        }
        assert!(
            detector.surprised_by(&sample(1_400.0), true, &usual()).is_some(),
            "what was usual is forgotten"
        );
    }

    #[test]
    fn quick_scans_end_when_a_full_sample_is_due() {
        let mut quick_scans = QuickScans::default();
        let at = |ms: u64| Tick(ms * 1_000_000);
        let (whole, every) = (Nanos::millis(400), Nanos::millis(150));
        assert_eq!(quick_scans.next(at(0), whole, every, &usual()), Some(every));
        assert_eq!(quick_scans.next(at(200), whole, every, &usual()), Some(every));
        assert_eq!(quick_scans.next(at(300), whole, every, &usual()), None);
        quick_scans.over();
        assert_eq!(
            quick_scans.next(at(500), whole, Nanos::ZERO, &usual()),
            Some(usual().quick_scan_shortest)
        );
    }

    #[test]
    fn a_surprise_is_confirmed_soon_or_forgotten() {
        let mut quick_scans = QuickScans::default();
        let (at, whole, every) = (Tick(0), Nanos::millis(400), Nanos::millis(150));
        assert!(!quick_scans.confirmed(true));
        assert_eq!(quick_scans.next(at, whole, every, &usual()), Some(usual().quick_scan_confirm));
        assert!(!quick_scans.confirmed(false));
        assert_eq!(quick_scans.next(at, whole, every, &usual()), Some(every));
        assert!(!quick_scans.confirmed(true) && quick_scans.confirmed(true));
    }
}
