//! How the number of pages touched grows since their bits were cleared: whether touches are spread evenly, for a tenth
//! of what it costs to learn which pages are hot (ADR 0045).

use terrace_types::Nanos;

/// A page is found touched with probability 1 - exp(-rate x time): were all pages alike, what one reading found would
/// foretell the next. Hot pages are all touched soon and the rest late, so fewer are found than foretold; fewer by
/// this part,
const FEWER: f64 = 0.03;
/// and by more than so many deviations of a count.
const DEVIATIONS: f64 = 4.0;
/// From this share of pages on, nearly all are touched.
const NEARLY_ALL: f64 = 0.9;
/// A first reading above this share says nothing: all may be alike, or all hot.
const TOO_LATE: f64 = 0.8;

/// What touches looked like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evenness {
    /// Nearly all pages were touched, none much sooner than the rest.
    Even,
    /// Some pages are touched much sooner than others.
    Uneven,
    /// Neither was seen.
    Unclear,
}

/// Pages found touched at several times after their bits were cleared once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Growth {
    /// Pages present at the last reading.
    pub present: u64,
    /// (time since the bits were cleared, pages found touched), in order of time.
    pub readings: Vec<(Nanos, u64)>,
    /// CPU time that it took.
    pub cpu: Nanos,
}

impl Growth {
    /// When to read. What a mover could use shows between the first two; the last are for a program that goes through
    /// its memory in order.
    pub const TIMES: [Nanos; 4] = [Nanos::millis(1), Nanos::millis(4), Nanos::millis(16), Nanos::millis(40)];

    /// What can be said by now; none while another reading may tell more.
    #[must_use]
    pub fn verdict(&self) -> Option<Evenness> {
        let share = |touched: u64| touched as f64 / self.present.max(1) as f64;
        let (Some(first), Some(last)) = (self.readings.first(), self.readings.last()) else {
            return None;
        };
        if self.present == 0 || share(first.1) > TOO_LATE {
            return Some(Evenness::Unclear);
        }
        if self.readings.windows(2).any(|pair| self.fewer(pair[0], pair[1])) {
            return Some(Evenness::Uneven);
        }
        if share(last.1) >= NEARLY_ALL {
            return Some(Evenness::Even);
        }
        (self.readings.len() >= Self::TIMES.len()).then_some(Evenness::Unclear)
    }

    /// Whether the second reading found fewer pages than the first foretells.
    fn fewer(&self, (at, touched): (Nanos, u64), (later, found): (Nanos, u64)) -> bool {
        let present = self.present as f64;
        let untouched = 1.0 - (touched as f64 / present).min(1.0);
        let times = later.get() as f64 / at.get().max(1) as f64;
        let foretold = present * (1.0 - untouched.powf(times));
        // Each count deviates as draws do; the first one's deviation grows into what it foretells.
        let spread = |share: f64| (present * share * (1.0 - share)).max(1.0).sqrt();
        let grown = times * untouched.powf(times - 1.0);
        let deviation = grown * spread(1.0 - untouched) + spread(foretold / present);
        let missing = foretold - found as f64;
        missing > FEWER * foretold && missing > DEVIATIONS * deviation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What readings find of groups of (pages, touches a second of each), as far as they are made.
    fn seen(groups: &[(f64, f64)]) -> Option<Evenness> {
        let mut growth = Growth { present: groups.iter().map(|g| g.0 as u64).sum(), ..Growth::default() };
        for at in Growth::TIMES {
            let touched = |(pages, rate): &(f64, f64)| pages * (1.0 - (-rate * at.as_secs_f64()).exp());
            growth.readings.push((at, groups.iter().map(touched).sum::<f64>() as u64));
            if growth.verdict().is_some() {
                break;
            }
        }
        growth.verdict()
    }

    #[test]
    fn pages_alike_are_even_and_a_hot_set_is_not() {
        assert_eq!(seen(&[(40_000.0, 100.0)]), Some(Evenness::Even));
        assert_eq!(seen(&[(40_000.0, 1_000.0)]), Some(Evenness::Even));
        assert_eq!(seen(&[(10_000.0, 3_000.0), (30_000.0, 250.0)]), Some(Evenness::Uneven));
        assert_eq!(seen(&[(2_000.0, 3_000.0), (38_000.0, 80.0)]), Some(Evenness::Uneven), "a small hot set");
        assert_eq!(
            seen(&[(2_000.0, 6_400.0), (8_000.0, 400.0)]),
            Some(Evenness::Uneven),
            "nearly all are touched soon"
        );
        assert_eq!(seen(&[(10_000.0, 500.0), (30_000.0, 0.0)]), Some(Evenness::Uneven), "the rest is never touched");
    }

    #[test]
    fn what_is_touched_too_often_or_too_seldom_is_unclear() {
        assert_eq!(seen(&[(40_000.0, 20_000.0)]), Some(Evenness::Unclear));
        assert_eq!(seen(&[(40_000.0, 2.0)]), Some(Evenness::Unclear));
        assert_eq!(seen(&[(0.0, 0.0)]), Some(Evenness::Unclear));
        assert_eq!(Growth::default().verdict(), None, "nothing was read yet");
    }

    #[test]
    fn a_sweep_is_even_once_it_was_everywhere() {
        let sweep = |pages: f64, all: u64| {
            let readings = Growth::TIMES.map(|at| (at, ((pages * at.as_secs_f64()) as u64).min(all)));
            Growth { present: 40_000, readings: readings.to_vec(), cpu: Nanos::ZERO }.verdict()
        };
        assert_eq!(sweep(1.5e6, 40_000), Some(Evenness::Even));
        assert_eq!(sweep(1.5e6, 15_000), Some(Evenness::Uneven), "it goes through a part again and again");
        assert_eq!(sweep(3e5, 40_000), Some(Evenness::Unclear), "it was not everywhere yet");
    }

    #[test]
    fn chance_alone_is_not_uneven() {
        // 120 would be usual.
        let readings = vec![(Nanos::millis(1), 30), (Nanos::millis(4), 80)];
        assert_eq!(Growth { present: 100_000, readings, cpu: Nanos::ZERO }.verdict(), None);
    }
}
