//! From how soon pages were first written to writes a second.
//!
//! A page first found written between two samples tells little by itself: of pages all written a
//! thousand times a second, a third is not written in the first millisecond. Told one by one, they
//! would seem to be written a hundred times apart, and every other of them would be moved. So the
//! pages of an interval are taken together: the mixture of rates under which what was found is
//! likeliest (nonparametric maximum likelihood by expectation and maximisation: Laird, J. Am. Stat.
//! Assoc. 73, 1978; for times known to intervals: Turnbull, J. R. Stat. Soc. B 38, 1976), and each
//! page's rate is what that mixture makes of when it was found (Robbins' empirical Bayes). Pages
//! that are alike are reported alike; two kinds of pages are distinguished as far as samples part
//! them.

use terrace_engine::PageEvidence;
use terrace_types::Nanos;

/// Rates tried, an octave.
const AN_OCTAVE: f64 = 3.0;
/// The highest is so many writes in the time to the first sample: more cannot be distinguished from
/// it.
const HIGHEST: f64 = 2.0;
/// The lowest but none, in the time of the whole interval.
const LOWEST: f64 = 1.0 / 64.0;
/// Steps of expectation and maximisation.
const STEPS: usize = 300;

/// What is notified of pages not found written in an interval, then of those first found so by its
/// first sample, its second, and so on. `samples` gives for each sample how long it had observed
/// since the interval began, and how many pages were first found written by it; the times grow.
/// `never` is how many pages were not found written.
pub(crate) fn group_by_first_write(samples: &[(Nanos, u64)], never: u64) -> Vec<PageEvidence> {
    let (Some((first, _)), Some((last, _))) = (samples.first(), samples.last()) else {
        return vec![PageEvidence::default()];
    };
    let (first, last) = (first.as_secs_f64().max(1e-9), last.as_secs_f64().max(1e-9));
    let rates = grid(LOWEST / last, HIGHEST / first);
    let counts: Vec<f64> =
        std::iter::once(never).chain(samples.iter().map(|l| l.1)).map(|n| n as f64).collect();
    let chances: Vec<Vec<f64>> = rates.iter().map(|rate| chances(*rate, samples)).collect();
    let shares = likeliest(&chances, &counts);
    let tell = |class: usize| {
        let weight = |k: usize| shares[k] * chances[k][class];
        let (mut all, mut mean, mut square) = (0.0, 0.0, 0.0);
        for (k, rate) in rates.iter().enumerate() {
            all += weight(k);
            mean += weight(k) * rate;
            square += weight(k) * rate * rate;
        }
        (mean, square) = if all > 0.0 { (mean / all, square / all) } else { (0.0, 0.0) };
        let spread = (square - mean * mean).max(1e-12);
        // Of a Gamma distribution, the time behind a rate is its mean by its variance. A page not
        // found was observed for all of it.
        let over = if class > 0 && mean > 0.0 { (mean / spread).clamp(first, last) } else { last };
        PageEvidence { per_second: mean as f32, over: Nanos((over * 1e9) as u64), dirty: class > 0 }
    };
    (0..counts.len()).map(tell).collect()
}

/// None, and from `least` to `most`.
fn grid(least: f64, most: f64) -> Vec<f64> {
    let steps = ((most / least).log2() * AN_OCTAVE).ceil().clamp(1.0, 1000.0) as usize;
    let at = |i: usize| most * (-((steps - i) as f64) / AN_OCTAVE).exp2();
    std::iter::once(0.0).chain((0..=steps).map(at)).collect()
}

/// Of a page written at `rate`: of not being found written, and of being so first by each sample.
fn chances(rate: f64, samples: &[(Nanos, u64)]) -> Vec<f64> {
    let unwritten = |time: Nanos| (-rate * time.as_secs_f64()).exp();
    let mut before = 1.0;
    let mut first: Vec<f64> = Vec::with_capacity(samples.len() + 1);
    first.push(0.0);
    for (time, _) in samples {
        let left = unwritten(*time);
        first.push((before - left).max(0.0));
        before = left;
    }
    first[0] = before;
    first
}

/// The shares of pages by rate under which these counts are likeliest.
fn likeliest(chances: &[Vec<f64>], counts: &[f64]) -> Vec<f64> {
    let all = counts.iter().sum::<f64>().max(1.0);
    let mut shares = vec![1.0 / chances.len() as f64; chances.len()];
    let mut by_class = vec![0.0; counts.len()];
    for _ in 0..STEPS {
        for (class, (sum, count)) in by_class.iter_mut().zip(counts).enumerate() {
            let chance: f64 = shares.iter().zip(chances).map(|(share, of)| share * of[class]).sum();
            *sum = if chance > 0.0 { count / (all * chance) } else { 0.0 };
        }
        for (share, of) in shares.iter_mut().zip(chances) {
            *share *= of.iter().zip(&by_class).map(|(chance, part)| chance * part).sum::<f64>();
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: [u64; 4] = [300, 800, 5_000, 40_000];

    /// Counts as they come for so many pages at each rate.
    fn found(kinds: &[(f64, f64)]) -> (Vec<(Nanos, u64)>, u64) {
        let times: Vec<(Nanos, u64)> = TIMES.iter().map(|us| (Nanos::micros(*us), 0)).collect();
        let mut sums = vec![0.0; TIMES.len() + 1];
        for (pages, rate) in kinds {
            for (sum, chance) in sums.iter_mut().zip(chances(*rate, &times)) {
                *sum += pages * chance;
            }
        }
        let samples =
            times.iter().zip(&sums[1..]).map(|((at, _), n)| (*at, n.round() as u64)).collect();
        (samples, sums[0].round() as u64)
    }

    fn rates(kinds: &[(f64, f64)]) -> Vec<f64> {
        let (samples, never) = found(kinds);
        group_by_first_write(&samples, never).iter().map(|t| f64::from(t.per_second)).collect()
    }

    fn within(got: f64, want: f64, part: f64) -> bool {
        (got / want - 1.0).abs() < part
    }

    #[test]
    fn equally_written_pages_get_equal_rates_whenever_found() {
        let got = rates(&[(20_000.0, 1_150.0), (20_000.0, 0.0)]);
        assert!(got[1..=3].iter().all(|r| within(*r, 1_150.0, 0.25)), "{got:?}");
        assert!(got[0] < 1.0, "{got:?}");
    }

    #[test]
    fn pages_written_by_chance_are_not_reported_hot() {
        // One in ten seconds each: of 262,144 pages eight are found by the first sample.
        let got = rates(&[(262_144.0, 0.1)]);
        assert!(got.iter().all(|r| *r < 0.5), "{got:?}");
        // Sixteen that are hot stand out among as many.
        let got = rates(&[(16.0, 20_000.0), (262_128.0, 0.001)]);
        assert!(got[1] > 2_000.0 && got[4] < 5.0 && got[0] < 0.05, "{got:?}");
    }

    #[test]
    fn two_kinds_are_separated_as_far_as_samples_separate_them() {
        let got = rates(&[(2_000.0, 4_000.0), (20_000.0, 20.0)]);
        assert!(got[1] > 2_500.0 && got[4] < 60.0, "{got:?}");
        assert!(
            got.windows(2).skip(1).all(|pair| pair[0] >= pair[1]),
            "the sooner found, the hotter: {got:?}"
        );
    }

    #[test]
    fn reported_counts_add_up() {
        for kinds in [
            &[(5_000.0, 900.0), (9_000.0, 40.0)][..],
            &[(30_000.0, 3.0)],
            &[(2_000.0, 1_500.0), (70_000.0, 0.2)],
        ] {
            let (samples, never) = found(kinds);
            let reported = group_by_first_write(&samples, never);
            let counts = std::iter::once(never).chain(samples.iter().map(|l| l.1));
            let sum: f64 =
                reported.iter().zip(counts).map(|(t, n)| f64::from(t.per_second) * n as f64).sum();
            let want: f64 = kinds.iter().map(|(pages, rate)| pages * rate).sum();
            assert!(within(sum, want, 0.15), "{sum} for {want}: {reported:?}");
        }
    }

    #[test]
    fn nothing_found_or_sampled_is_reported_as_nothing() {
        assert_eq!(group_by_first_write(&[], 5), [PageEvidence::default()]);
        let none = group_by_first_write(&[(Nanos::millis(2), 0), (Nanos::millis(6), 0)], 1_000);
        assert!(none[0].per_second < 0.1 && none[0].over == Nanos::millis(6), "{none:?}");
        let all = group_by_first_write(&[(Nanos::millis(2), 1_000), (Nanos::millis(6), 0)], 0);
        assert!(
            within(f64::from(all[1].per_second), 1_000.0, 0.05),
            "twice before the first sample: {all:?}"
        );
        let nobody = group_by_first_write(&[(Nanos(1), 0), (Nanos(2), 0)], 0);
        assert!(nobody.iter().all(|t| t.per_second.is_finite()), "{nobody:?}");
    }
}
