//! What is chance and what is heat: drawing estimates together by the spread of all of them.
//!
//! The hottest of many alike pages only *look* hotter. Before any page is compared with another,
//! its value is replaced by the value expected given all pages seen (Tweedie's formula, empirical
//! Bayes): with `y` the estimate on a scale where chance has variance one, and `f` the density of
//! all estimates, the expected truth is `y + f'(y) / f(y)`. Alike pages all shrink to their mean, so
//! nothing is moved; two clear groups keep their distance, so moving starts as soon as the groups
//! part, without a threshold that someone would have to tune.
//!
//! Estimates stand on counts `c = value / unit x evidence`, Poisson by nature; `y = 2 sqrt(c)` has
//! variance one. The density is a histogram smoothed by a Gaussian of the same width, whose
//! variance is counted in. Order is kept by pooling neighbours that would change places.

/// Bins a unit of `y`.
const PER_UNIT: f64 = 4.0;
/// Estimates beyond are so sure that chance does not matter.
const BINS: usize = 8192;
/// Reach of the smoothing Gaussian, in units of `y`.
const REACH: f64 = 5.0;

/// From an estimated value to the expected one.
pub(super) struct Shrink {
    scale: f64,
    expected: Vec<f64>,
}

impl Shrink {
    /// From all estimates with the number of pages that have each. `caution` is how much more than
    /// Poisson chance is reckoned with.
    pub fn new(estimates: impl Iterator<Item = (f64, u64)>, unit: f64, evidence: f64, caution: f64) -> Self {
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
        let expected = pooled(&counts, &tweedie(&counts, caution));
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

/// The middle of a bin on the scale of `y`.
fn middle(bin: usize) -> f64 {
    (bin as f64 + 0.5) / PER_UNIT
}

/// `y + (1 + h^2) f'/f` for every bin, `h` being the width of the smoothing (one).
fn tweedie(counts: &[u64], caution: f64) -> Vec<f64> {
    let reach = (REACH * PER_UNIT) as usize;
    let kernel: Vec<f64> = (0..=reach).map(|d| (-(d as f64 / PER_UNIT).powi(2) / 2.0).exp()).collect();
    let expected = |bin: usize| {
        let (mut f, mut slope) = (0.0, 0.0);
        let from = bin.saturating_sub(reach);
        let to = (bin + reach + 1).min(counts.len());
        for (other, n) in counts.iter().enumerate().take(to).skip(from).filter(|(_, n)| **n > 0) {
            let weight = *n as f64 * kernel[bin.abs_diff(other)];
            f += weight;
            slope += weight * (other as f64 - bin as f64) / PER_UNIT;
        }
        let y = middle(bin);
        if f > 0.0 {
            (y + caution * 2.0 * slope / f).max(0.0)
        } else {
            y
        }
    };
    (0..counts.len()).map(expected).collect()
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

    /// Estimates of pages whose true rates are given, looked at for 0.1 s.
    fn estimates(rates: &[f64], state: &mut u64) -> Vec<(f64, u64)> {
        let y = |rate: f64, state: &mut u64| 2.0 * (rate * 0.1).sqrt() + normal(state);
        rates.iter().map(|r| ((y(*r, state).max(0.0) / 2.0).powi(2) / 0.1, 1)).collect()
    }

    #[test]
    fn alike_pages_shrink_to_one_value() {
        for (n, seed) in [(100, 1u64), (8_000, 2), (80_000, 3)] {
            let seen = estimates(&vec![300.0; n], &mut seed.clone());
            let shrink = Shrink::new(seen.iter().copied(), 1.0, 0.1, 1.2);
            let (low, high) = seen.iter().fold((f64::MAX, 0.0f64), |(l, h), (v, _)| (l.min(*v), h.max(*v)));
            let ratio = shrink.value(high) / shrink.value(low).max(1.0);
            assert!(high / low > 1.5 && ratio < 1.15, "{n} pages, seed {seed}: {ratio}");
        }
    }

    #[test]
    fn two_groups_keep_their_distance() {
        let rates: Vec<f64> = (0..8_000).map(|i| if i % 4 == 0 { 740.0 } else { 160.0 }).collect();
        let seen = estimates(&rates, &mut 5);
        let shrink = Shrink::new(seen.into_iter(), 1.0, 0.1, 1.2);
        assert!((shrink.value(740.0) / 740.0 - 1.0).abs() < 0.1);
        assert!((shrink.value(160.0) / 160.0 - 1.0).abs() < 0.15, "{}", shrink.value(160.0));
        assert!(shrink.value(600.0) > 600.0 && shrink.value(250.0) < 250.0);
    }

    #[test]
    fn one_hot_page_among_many_stays_hot() {
        let mut rates = vec![10.0; 50_000];
        rates[7] = 2_000.0;
        let shrink = Shrink::new(estimates(&rates, &mut 9).into_iter(), 1.0, 0.1, 1.2);
        assert!(shrink.value(2_000.0) > 1_800.0);
    }

    #[test]
    fn nothing_seen_is_no_trouble() {
        let shrink = Shrink::new(std::iter::empty(), 0.0, 0.0, 1.2);
        assert!((shrink.value(5.0) - 5.0).abs() < 1e-9);
    }
}
