//! Whether touches are spread evenly over pages, for a fifth of what it costs to learn which pages
//! are hot (ADR 0045).

use terrace_types::Nanos;

crate::tuning! {
    /// What two short samples must find to say something. Two samples of pages that are all touched
    /// alike find as many pages both times as chance gives; hot pages are found both times. The
    /// values were not measured at half and double.
    pub struct PrescanTuning:
    /// Part by which more pages than by chance must be found both times where some are hot.
    more: f64 = 0.10;
    /// Standard deviations of a count by which they must be more, beside that.
    deviations: f64 = 4.0;
    /// Pages expected both times by chance below which nothing is said.
    fewest: f64 = 30.0;
    /// Share of the pages found above which nothing is said: all may be alike, or all hot.
    too_many: f64 = 0.8;
    /// Share of the pages from which nearly all were touched.
    nearly_all: f64 = 0.9;
    /// Pages found both times, as a share of those by chance, below which memory is swept.
    swept_again: f64 = 0.05;
}

/// What touches sampled like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TouchEvenness {
    /// Nearly all pages were touched, and no more of them again and again than by chance.
    Even,
    /// Some pages are touched again and again.
    Uneven,
    /// Neither was seen.
    Unclear,
}

/// What two short samples found, and how many pages were touched in the time after.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prescan {
    /// Pages present.
    pub present: u64,
    /// Pages found touched by each sample.
    pub touched: [u64; 2],
    /// Pages found touched by both.
    pub both: u64,
    /// (time since the second sample began, pages touched by then), in order of time.
    pub later: Vec<(Nanos, u64)>,
    /// CPU time that it took.
    pub cpu: Nanos,
}

impl Prescan {
    /// Length of each sample.
    pub const SAMPLE_LENGTH: Nanos = Nanos::millis(1);
    /// When to read once more, after the second sample began: a program that goes through its
    /// memory in order has been everywhere by then, or has not.
    pub const LATER: [Nanos; 2] = [Nanos::millis(16), Nanos::millis(40)];

    /// What can be said by now, the two samples made; none while another reading may tell more.
    #[must_use]
    pub fn verdict(&self) -> Option<TouchEvenness> {
        let tuning = PrescanTuning::USUAL;
        let present = self.present.max(1) as f64;
        let [first, second] = self.touched.map(|t| t as f64);
        if self.present == 0 || first.max(second) > tuning.too_many * present {
            return Some(TouchEvenness::Unclear);
        }
        let chance = first * second / present;
        let more = self.both as f64 - chance;
        if more > tuning.more * chance && more > tuning.deviations * chance.max(1.0).sqrt() {
            return Some(TouchEvenness::Uneven);
        }
        if first.min(second) * first.min(second) < tuning.fewest * present {
            return Some(TouchEvenness::Unclear);
        }
        let all = |(_, touched): &(Nanos, u64)| *touched as f64 >= tuning.nearly_all * present;
        if self.later.iter().any(all) {
            return Some(TouchEvenness::Even);
        }
        (self.later.len() >= Self::LATER.len()).then_some(TouchEvenness::Unclear)
    }

    /// Whether the second sample found other pages than the first, which chance does not do: the
    /// program goes through its memory in order. A full sample shorter than one pass would take
    /// what was just passed for hot.
    #[must_use]
    pub fn sweeps(&self) -> bool {
        let tuning = PrescanTuning::USUAL;
        let [first, second] = self.touched.map(|t| t as f64);
        let chance = first * second / self.present.max(1) as f64;
        let both = self.both as f64;
        both < tuning.swept_again * chance && chance - both > tuning.deviations * chance.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a prescan comes to over groups of (pages, touches a second of each).
    fn seen(groups: &[(f64, f64)]) -> Option<TouchEvenness> {
        let sum = |of: &dyn Fn(f64) -> f64| {
            groups.iter().map(|(pages, rate)| pages * of(*rate)).sum::<f64>() as u64
        };
        let touched = |span: Nanos| move |rate: f64| 1.0 - (-rate * span.as_secs_f64()).exp();
        let sample = touched(Prescan::SAMPLE_LENGTH);
        let mut prescan = Prescan {
            present: sum(&|_| 1.0),
            touched: [sum(&sample); 2],
            both: sum(&|rate| sample(rate).powi(2)),
            ..Prescan::default()
        };
        for at in Prescan::LATER {
            if prescan.verdict().is_some() {
                break;
            }
            prescan.later.push((at, sum(&touched(at))));
        }
        prescan.verdict()
    }

    #[test]
    fn pages_alike_are_even_and_a_hot_set_is_not() {
        assert_eq!(seen(&[(40_000.0, 100.0)]), Some(TouchEvenness::Even));
        assert_eq!(seen(&[(40_000.0, 1_000.0)]), Some(TouchEvenness::Even));
        assert_eq!(seen(&[(10_000.0, 3_000.0), (30_000.0, 250.0)]), Some(TouchEvenness::Uneven));
        assert_eq!(seen(&[(2_000.0, 6_400.0), (8_000.0, 400.0)]), Some(TouchEvenness::Uneven));
        assert_eq!(
            seen(&[(1_500.0, 7_000.0), (30_800.0, 100.0)]),
            Some(TouchEvenness::Uneven),
            "a small hot set"
        );
        assert_eq!(
            seen(&[(16.0, 50_000.0), (262_000.0, 1.0)]),
            Some(TouchEvenness::Uneven),
            "a very small one"
        );
        assert_eq!(
            seen(&[(10_000.0, 500.0), (30_000.0, 0.0)]),
            Some(TouchEvenness::Uneven),
            "the rest is never touched"
        );
    }

    #[test]
    fn what_is_touched_too_often_or_too_seldom_is_unclear() {
        assert_eq!(seen(&[(40_000.0, 20_000.0)]), Some(TouchEvenness::Unclear));
        assert_eq!(seen(&[(40_000.0, 2.0)]), Some(TouchEvenness::Unclear));
        assert_eq!(seen(&[(0.0, 0.0)]), Some(TouchEvenness::Unclear));
    }

    #[test]
    fn a_sweep_is_even_once_it_was_everywhere() {
        // It touches other pages each time.
        let sweep = |all: u64| {
            let later = Prescan::LATER.map(|at| (at, ((1.5e6 * at.as_secs_f64()) as u64).min(all)));
            let prescan = Prescan { present: 40_000, touched: [1_500; 2], ..Prescan::default() };
            assert_eq!(prescan.verdict(), None);
            assert!(prescan.sweeps() && !Prescan { both: 20, ..prescan.clone() }.sweeps());
            Prescan { later: later.to_vec(), ..prescan }.verdict()
        };
        assert_eq!(sweep(40_000), Some(TouchEvenness::Even));
        assert_eq!(
            sweep(15_000),
            Some(TouchEvenness::Unclear),
            "it goes through a part again and again, or is slow"
        );
    }

    #[test]
    fn chance_alone_is_not_uneven() {
        // 100 expected.
        let prescan =
            |both| Prescan { present: 100_000, touched: [3_162; 2], both, ..Prescan::default() };
        assert_eq!(prescan(135).verdict(), None);
        assert_eq!(prescan(145).verdict(), Some(TouchEvenness::Uneven));
    }
}
