//! What is chance and what is heat: drawing estimates together by the spread of all of them.
//!
//! The hottest of many alike pages only *seem* hotter. Before any page is compared with another,
//! its value is replaced by the value expected given all pages seen (empirical Bayes): which true
//! values there are, and how many pages have each, is what makes the estimates of all pages most
//! likely (Kiefer and Wolfowitz, Annals of Mathematical Statistics 27, 1956), found by expectation
//! and maximisation over a grid (Laird, JASA 73, 1978). Alike pages all shrink to their mean, so
//! nothing is moved; two groups are distinguished as soon as the spread of all pages shows that
//! there are two, long before any one page is sure, and a page between them is rated by its
//! chances. There is no threshold that someone would have to tune.
//!
//! Estimates stand on counts `c = value / unit x evidence`, Poisson by nature and `caution` times
//! as wide; on the scale of `y = 2 sqrt(c)` their spread is the same everywhere, so the grid is
//! even there. Order is kept by pooling neighbours that would change places.

use super::tuning::TerraceTuning;

/// Bins a unit of `y`.
const PER_UNIT: f64 = 4.0;
/// Estimates beyond are so sure that chance does not matter.
const BINS: usize = 8192;
/// Bins from one true value to the next.
const SPACING: usize = 2;

/// From an estimated value to the expected one.
pub(super) struct ValueShrinkage {
    scale: f64,
    expected: Vec<f64>,
}

impl ValueShrinkage {
    /// From all estimates with the number of pages that have each. `caution` is how much more than
    /// Poisson chance is computed with.
    pub fn new(
        tuning: &TerraceTuning,
        estimates: impl Iterator<Item = (f64, u64)>,
        unit: f64,
        evidence: f64,
        caution: f64,
    ) -> Self {
        let scale = if unit > 0.0 { evidence / unit } else { 0.0 };
        let mut counts = vec![0u64; BINS];
        let mut top = 0;
        for (value, n) in estimates {
            let bin = bin_of(value, scale);
            if bin < BINS {
                counts[bin] += n;
                top = top.max(bin + 1);
            }
        }
        counts.truncate(top);
        let expected = pooled(&counts, &expected(tuning, &counts, caution.max(0.01)));
        Self { scale, expected }
    }

    /// The expected value of a page with this estimate.
    pub fn value(&self, estimate: f64) -> f64 {
        match self.expected.get(bin_of(estimate, self.scale)) {
            Some(y) if self.scale > 0.0 => y * y / 4.0 / self.scale,
            _ => estimate,
        }
    }
}

fn bin_of(value: f64, scale: f64) -> usize {
    (2.0 * (value * scale).max(0.0).sqrt() * PER_UNIT) as usize
}

/// The middle of a bin on the scale of `y`; of the first, its beginning: nothing was seen.
fn middle(bin: usize) -> f64 {
    if bin == 0 {
        0.0
    } else {
        (bin as f64 + 0.5) / PER_UNIT
    }
}

/// A bin with pages in it, and how likely its estimate is at each true value within reach.
struct ObservedBin {
    bin: usize,
    pages: f64,
    from: usize,
    likely: Vec<f32>,
}

/// The root of the mean square of `y`, expected for every bin.
fn expected(tuning: &TerraceTuning, counts: &[u64], caution: f64) -> Vec<f64> {
    let truths = counts.len() / SPACING + 1;
    let truth = |at: usize| (at * SPACING) as f64 / PER_UNIT;
    let reach = tuning.shrink_reach * caution.sqrt();
    let reach = (reach * PER_UNIT / SPACING as f64).ceil() as usize;
    let seen: Vec<ObservedBin> = (0..counts.len())
        .filter(|bin| counts[*bin] > 0)
        .map(|bin| {
            let from = (bin / SPACING).saturating_sub(reach);
            let to = (bin / SPACING + reach + 1).min(truths);
            let likely = (from..to).map(|at| likelihood(middle(bin), truth(at), caution)).collect();
            ObservedBin { bin, pages: counts[bin] as f64, from, likely }
        })
        .collect();
    let mut share = vec![1.0f32; truths];
    for _ in 0..tuning.shrink_rounds {
        let mut next = vec![0.0f32; truths];
        for one in &seen {
            let prior = &share[one.from..one.from + one.likely.len()];
            let all: f32 = prior.iter().zip(&one.likely).map(|(p, l)| p * l).sum();
            if all > 0.0 {
                let weight = one.pages as f32 / all;
                let next = &mut next[one.from..one.from + one.likely.len()];
                for ((next, p), l) in next.iter_mut().zip(prior).zip(&one.likely) {
                    *next += weight * p * l;
                }
            }
        }
        share = next;
    }
    let mut expected: Vec<f64> = (0..counts.len()).map(middle).collect();
    for one in &seen {
        let (mut sum, mut squares) = (0.0, 0.0);
        for (i, l) in one.likely.iter().enumerate() {
            let chance = f64::from(share[one.from + i] * l);
            sum += chance;
            squares += chance * truth(one.from + i).powi(2);
        }
        if sum > 0.0 {
            expected[one.bin] = (squares / sum).sqrt();
        }
    }
    expected
}

/// How likely the estimate `y` is where the truth is `t`, but for a factor of `y` alone: Poisson,
/// `caution` times as wide.
fn likelihood(y: f64, t: f64, caution: f64) -> f32 {
    let (count, mean) = (y * y / 4.0, (t * t / 4.0).max(0.01));
    // Less what it is at its best, so that nothing is too small for a float.
    let best = if count > 0.0 { count * count.ln() - count } else { 0.0 };
    ((count * mean.ln() - mean - best) / caution).exp() as f32
}

/// Makes `values` rise with their index: neighbours that fall are replaced by their mean, weighed
/// by the pages they stand for.
fn pooled(counts: &[u64], values: &[f64]) -> Vec<f64> {
    let mut pools: Vec<(f64, f64, usize)> = Vec::new();
    for (n, value) in counts.iter().zip(values) {
        let mut pool = (*value, (*n as f64).max(1e-9), 1);
        while let Some((before, weight, bins)) = pools.last().copied() {
            if before <= pool.0 {
                break;
            }
            pools.pop();
            let sum = weight + pool.1;
            pool = ((before * weight + pool.0 * pool.1) / sum, sum, bins + pool.2);
        }
        pools.push(pool);
    }
    pools.iter().flat_map(|(value, _, bins)| std::iter::repeat_n(*value, *bins)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of uniform chances: nearly normal, variance one.
    fn normal(state: &mut u64) -> f64 {
        let mut sum = 0.0;
        for _ in 0..12 {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            sum += (*state >> 11) as f64 / (1u64 << 53) as f64;
        }
        sum - 6.0
    }

    /// Estimates of pages whose true rates are given, sampled for 0.1 s.
    fn estimates(rates: &[f64], state: &mut u64) -> Vec<(f64, u64)> {
        let y = |rate: f64, state: &mut u64| 2.0 * (rate * 0.1).sqrt() + normal(state);
        rates.iter().map(|r| ((y(*r, state).max(0.0) / 2.0).powi(2) / 0.1, 1)).collect()
    }

    #[test]
    fn alike_pages_shrink_to_one_value() {
        for (n, seed) in [(100, 1u64), (8_000, 2), (80_000, 3)] {
            let seen = estimates(&vec![300.0; n], &mut seed.clone());
            let shrink =
                ValueShrinkage::new(&TerraceTuning::USUAL, seen.iter().copied(), 1.0, 0.1, 1.2);
            let (low, high) =
                seen.iter().fold((f64::MAX, 0.0f64), |(l, h), (v, _)| (l.min(*v), h.max(*v)));
            let ratio = shrink.value(high) / shrink.value(low).max(1.0);
            assert!(high / low > 1.5 && ratio < 1.15, "{n} pages, seed {seed}: {ratio}");
        }
    }

    #[test]
    fn two_groups_keep_their_distance() {
        let rates: Vec<f64> = (0..8_000).map(|i| if i % 4 == 0 { 740.0 } else { 160.0 }).collect();
        let seen = estimates(&rates, &mut 5);
        let shrink = ValueShrinkage::new(&TerraceTuning::USUAL, seen.into_iter(), 1.0, 0.1, 1.2);
        assert!((shrink.value(740.0) / 740.0 - 1.0).abs() < 0.1);
        assert!((shrink.value(160.0) / 160.0 - 1.0).abs() < 0.15, "{}", shrink.value(160.0));
        assert!(shrink.value(600.0) > 600.0 && shrink.value(250.0) < 250.0);
    }

    #[test]
    fn one_hot_page_among_many_stays_hot() {
        let mut rates = vec![10.0; 50_000];
        rates[7] = 2_000.0;
        let shrink = ValueShrinkage::new(
            &TerraceTuning::USUAL,
            estimates(&rates, &mut 9).into_iter(),
            1.0,
            0.1,
            1.2,
        );
        assert!(shrink.value(2_000.0) > 1_800.0);
    }

    #[test]
    fn nothing_seen_is_no_trouble() {
        let shrink = ValueShrinkage::new(&TerraceTuning::USUAL, std::iter::empty(), 0.0, 0.0, 1.2);
        assert!((shrink.value(5.0) - 5.0).abs() < 1e-9);
    }
}
