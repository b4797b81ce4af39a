//! Repeated runs to one figure: median, spread, and whether to trust it. Pure.

use serde::{Deserialize, Serialize};
use terrace_types::Nanos;

/// A run whose threads had less than this share of their CPUs was disturbed by others.
pub const UNDISTURBED: f64 = 0.97;
/// A figure whose spread is above this share of it is called noisy.
pub const NOISY: f64 = 0.05;

/// One run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rep {
    /// From the first thread's start to the last one's end.
    pub span: Nanos,
    /// CPU time of the thread that had least, as a share of its own time: 1 where nobody else ran
    /// there.
    pub busy: f64,
    /// CPU time of the thread that ended last.
    pub cpu: Nanos,
}

/// A figure of several runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeasuredFigure {
    /// Median.
    pub value: f64,
    /// Half the distance between the quartiles, in the unit of the value.
    pub spread: f64,
    /// Runs that count.
    pub runs: u32,
    /// Runs that were left out because other work had the CPUs meanwhile.
    pub disturbed: u32,
    /// Spread above 5% of the value, or all runs disturbed: to be taken with care.
    pub noisy: bool,
}

impl MeasuredFigure {
    /// The same figure in another unit.
    #[must_use]
    pub fn scaled(self, by: f64) -> Self {
        Self { value: self.value * by, spread: self.spread * by, ..self }
    }
}

/// When to stop repeating.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StoppingRule {
    /// Runs at least.
    pub least: u32,
    /// Runs at most.
    pub most: u32,
    /// Spread, as a share of the median, that is good enough.
    pub enough: f64,
    /// No run begins after this.
    pub limit: Nanos,
}

impl StoppingRule {
    /// Whether to run again, `spent` after the first began.
    #[must_use]
    pub fn needs_repeat(&self, reps: &[Rep], spent: Nanos) -> bool {
        let done = reps.len() as u32;
        if done < self.least.min(2) {
            return true;
        }
        if spent >= self.limit || done >= self.most {
            return false;
        }
        let quiet = reps.iter().filter(|r| r.busy >= UNDISTURBED).count() as u32;
        if quiet < self.least {
            return true;
        }
        let now = judge(reps, |span| span.get() as f64);
        now.spread > self.enough * now.value
    }
}

/// The figure of these runs, each turned into a value by `value`. Disturbed runs are left out where
/// enough others are there; where none is, all count and the figure is noisy.
#[must_use]
pub fn judge(reps: &[Rep], value: impl Fn(Nanos) -> f64) -> MeasuredFigure {
    let values: Vec<(f64, f64)> = reps.iter().map(|r| (value(r.span), r.busy)).collect();
    judge_values(&values)
}

/// As [`judge`], for one thread that never waits: by its CPU time where that is finely told, so
/// that what other work took of the CPU does not count. What others did to the caches does, so that
/// disturbed runs stay disturbed.
#[must_use]
pub fn judge_alone(reps: &[Rep], fine: bool, value: impl Fn(Nanos) -> f64) -> MeasuredFigure {
    let time = |r: &Rep| if fine && r.cpu > Nanos::ZERO { r.cpu.min(r.span) } else { r.span };
    let values: Vec<(f64, f64)> = reps.iter().map(|r| (value(time(r)), r.busy)).collect();
    judge_values(&values)
}

/// As [`judge`], of values each with the share of a CPU its run had.
#[must_use]
pub fn judge_values(all: &[(f64, f64)]) -> MeasuredFigure {
    let quiet: Vec<f64> = all.iter().filter(|v| v.1 >= UNDISTURBED).map(|v| v.0).collect();
    let few = quiet.len() < 3.min(all.len());
    let mut values = if few { all.iter().map(|v| v.0).collect() } else { quiet };
    values.retain(|v| v.is_finite());
    values.sort_by(f64::total_cmp);
    let median = quantile(&values, 0.5);
    let spread = (quantile(&values, 0.75) - quantile(&values, 0.25)) / 2.0;
    MeasuredFigure {
        value: median,
        spread,
        runs: values.len() as u32,
        disturbed: (all.len() - values.len().min(all.len())) as u32,
        noisy: few || values.is_empty() || spread > NOISY * median.abs(),
    }
}

/// Of ascending values, interpolated; 0 of none.
#[must_use]
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = share.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    sorted[low] + (sorted[high.min(last)] - sorted[low]) * (at - low as f64)
}

/// The line `y = fixed + slope * x` through points, by least squares; neither below zero.
#[must_use]
pub fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let n = points.len() as f64;
    if points.len() < 2 {
        return None;
    }
    let (mx, my) =
        (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let sxx: f64 = points.iter().map(|p| (p.0 - mx).powi(2)).sum();
    let sxy: f64 = points.iter().map(|p| (p.0 - mx) * (p.1 - my)).sum();
    if sxx <= 0.0 {
        return None;
    }
    let slope = (sxy / sxx).max(0.0);
    Some(((my - slope * mx).max(0.0), slope))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reps(list: &[(u64, f64)]) -> Vec<Rep> {
        list.iter()
            .map(|(ns, busy)| Rep {
                span: Nanos(*ns),
                busy: *busy,
                cpu: Nanos((*ns as f64 * busy) as u64),
            })
            .collect()
    }

    #[test]
    fn disturbed_runs_are_left_out_and_counted() {
        let all = reps(&[(100, 1.0), (102, 0.99), (500, 0.4), (101, 1.0), (103, 1.0)]);
        let m = judge(&all, |s| s.get() as f64);
        assert_eq!((m.value, m.runs, m.disturbed, m.noisy), (101.5, 4, 1, false));
        assert!((m.spread - 0.75).abs() < 1e-9, "{}", m.spread);
    }

    #[test]
    fn one_thread_is_judged_by_its_own_time_and_still_marked() {
        let all = reps(&[(1000, 0.1), (500, 0.2), (250, 0.4)]);
        let m = judge_alone(&all, true, |s| s.get() as f64);
        assert_eq!((m.value, m.noisy), (100.0, true));
        assert_eq!(judge_alone(&all, false, |s| s.get() as f64).value, 500.0);
    }

    #[test]
    fn a_figure_of_disturbed_runs_says_so() {
        let m = judge(&reps(&[(100, 0.5), (101, 0.6), (100, 0.4)]), |s| s.get() as f64);
        assert!(m.noisy && m.runs == 3);
        assert!(judge(&[], |s| s.get() as f64).noisy);
        let scattered = judge(&reps(&[(100, 1.0), (150, 1.0), (200, 1.0)]), |s| s.get() as f64);
        assert!(scattered.noisy && scattered.disturbed == 0);
    }

    #[test]
    fn runs_are_repeated_until_they_agree_or_time_is_up() {
        let rule = StoppingRule { least: 3, most: 10, enough: 0.02, limit: Nanos::millis(100) };
        assert!(
            rule.needs_repeat(&[], Nanos::ZERO) && rule.needs_repeat(&[], Nanos::secs(9)),
            "two at least"
        );
        assert!(rule.needs_repeat(&reps(&[(100, 1.0), (100, 1.0)]), Nanos::ZERO));
        let agreed = reps(&[(100, 1.0), (101, 1.0), (100, 1.0)]);
        assert!(!rule.needs_repeat(&agreed, Nanos::ZERO));
        let apart = reps(&[(100, 1.0), (150, 1.0), (120, 1.0)]);
        assert!(
            rule.needs_repeat(&apart, Nanos::ZERO)
                && !rule.needs_repeat(&apart, Nanos::millis(100))
        );
        let disturbed = reps(&[(100, 0.2), (100, 0.2), (100, 0.2), (100, 0.2)]);
        assert!(
            rule.needs_repeat(&disturbed, Nanos::ZERO),
            "they agree with each other, and with nothing else"
        );
        assert!(!rule.needs_repeat(&apart.repeat(4), Nanos::ZERO));
    }

    #[test]
    fn a_line_is_found_and_never_negative() {
        let (fixed, slope) = line(&[(1.0, 12.0), (2.0, 14.0), (5.0, 20.0)]).unwrap();
        assert!((fixed - 10.0).abs() < 1e-9 && (slope - 2.0).abs() < 1e-9);
        assert_eq!(line(&[(1.0, 5.0)]), None);
        assert_eq!(line(&[(1.0, 5.0), (1.0, 6.0)]), None);
        let (fixed, slope) = line(&[(1.0, 1.0), (2.0, 5.0)]).unwrap();
        assert!(fixed == 0.0 && slope > 0.0);
    }
}
