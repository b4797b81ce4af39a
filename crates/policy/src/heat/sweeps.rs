//! How much of what is touched is swept through.
//!
//! An accessed bit tells that a page was touched, not whether one of its lines was read or all of
//! them. The two cost differently: a lone line costs a latency, a page swept through costs the bus
//! all its lines, while the prefetcher hides the latency. What tells them apart is the company a
//! page is in: a sweep touches neighbours in the same samples, and accesses that are independent of
//! each other do not.
//!
//! Over the pairs of neighbours in a group of `n` samples, found accessed in `a` and `b` of them,
//! the squared difference `(a - b)^2` is summed and set against what chance would give: with a
//! common probability `p` its expectation is `2np(1 - p)`, of which `s(2n - s) / (2n - 1)` with `s
//! = a + b` is the unbiased estimate. Independent touches give a ratio of one (more where
//! neighbours differ in heat), sweeps one near zero. Touched in all samples or in none, a pair says
//! nothing. A program that turns to one part of its memory after the other within a burst seems
//! partly like a sweep.

use super::{HeatTuning, PageSamples};

/// What bursts showed so far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SweepEstimator {
    differ: f32,
    chance: f32,
    /// What chance alone would give, by the bits sampled.
    reported: f32,
    tuning: HeatTuning,
}

impl SweepEstimator {
    /// One that knows nothing yet.
    #[must_use]
    pub fn new(tuning: HeatTuning) -> Self {
        Self { tuning, ..Self::default() }
    }

    /// Learns from one burst. What pages say that share a bit is said of as many pages; where they
    /// were touched at random, it is that they are no sweep.
    pub fn learn(&mut self, samples: &[PageSamples]) {
        let (mut differ, mut chance, mut reported) = (0.0, 0.0, 0.0);
        for group in samples.iter().filter(|g| g.sample_count > 1) {
            let each = group.each.max(1);
            let (d, c) = if each > 1 {
                let bits: Vec<u8> = group.hits.iter().step_by(usize::from(each)).copied().collect();
                pairs(&bits, group.sample_count)
            } else {
                pairs(&group.hits, group.sample_count)
            };
            reported += c;
            differ += f32::from(each) * if group.at_random { c } else { d };
            chance += f32::from(each) * c;
        }
        if chance > 0.0 {
            let kept = self.tuning.sweep_kept;
            self.reported = kept * self.reported + reported;
            (self.differ, self.chance) = (kept * self.differ + differ, kept * self.chance + chance);
        }
    }

    /// Part of the touches, from 0 to 1, that belong to sweeps. None while little is known.
    #[must_use]
    pub fn share(&self) -> f32 {
        if self.reported < self.tuning.sweep_least {
            return 0.0;
        }
        (1.0 - self.differ / self.chance).clamp(0.0, 1.0)
    }
}

/// Squared differences between neighbours, and what chance alone would give.
fn pairs(hits: &[u8], sample_count: u8) -> (f32, f32) {
    let n = u64::from(sample_count);
    let (mut differ, mut chance) = (0u64, 0u64);
    let mut last = None;
    // Not sampled: more than there were intervals.
    for run in hits.chunk_by(|a, b| a == b) {
        let (a, alike) = (u64::from(run[0]), run.len() as u64 - 1);
        let last = last.replace(a);
        if a > n {
            continue;
        }
        chance += alike * 4 * a * (n - a);
        if let Some(b) = last.filter(|b| *b <= n) {
            differ += a.abs_diff(b) * a.abs_diff(b);
            chance += (a + b) * (2 * n - a - b);
        }
    }
    (differ as f32, chance as f32 / (2 * n - 1) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::{Nanos, Pid, Seed, Vpn};

    const PAGES: usize = 8192;

    struct Chance(Seed);

    impl Chance {
        fn of(&mut self, p: f64) -> bool {
            let (drawn, next) = self.0.next();
            self.0 = next;
            (drawn >> 11) as f64 / (1u64 << 53) as f64 <= p
        }
    }

    fn burst(sample_count: u8, touched: impl FnMut(usize, u8) -> bool) -> PageSamples {
        let mut touched = touched;
        let hits = (0..PAGES)
            .map(|page| (0..sample_count).filter(|w| touched(page, *w)).count() as u8)
            .collect();
        PageSamples {
            pid: Pid(1),
            start: Vpn(0),
            sample_count,
            interval: Nanos::millis(2),
            each: 1,
            at_random: false,
            hits,
        }
    }

    fn share(samples: PageSamples) -> f32 {
        let mut sweeps = SweepEstimator::default();
        sweeps.learn(&[samples]);
        sweeps.share()
    }

    /// One sweep that goes through `part` of the pages in each sample.
    fn sweep(part: usize) -> PageSamples {
        burst(8, |page, sample| {
            let from = usize::from(sample) * part % PAGES;
            (from..from + part).contains(&page) || (from..from + part).contains(&(page + PAGES))
        })
    }

    #[test]
    fn sweeps_are_distinguished_from_independent_touches() {
        assert!(share(sweep(700)) > 0.95, "{}", share(sweep(700)));
        assert!(share(sweep(3000)) > 0.95, "{}", share(sweep(3000)));
        for (seed, p) in [(1, 0.02), (2, 0.3), (3, 0.9)] {
            let mut chance = Chance(Seed(seed));
            let independent = share(burst(8, |_, _| chance.of(p)));
            assert!(independent < 0.1, "{p}: {independent}");
        }
    }

    #[test]
    fn a_hot_set_is_no_sweep_scattered_or_together() {
        let mut chance = Chance(Seed(7));
        let together = share(burst(8, |page, _| chance.of(if page < 1000 { 0.8 } else { 0.05 })));
        let scattered =
            share(burst(8, |page, _| chance.of(if page % 8 == 3 { 0.8 } else { 0.05 })));
        assert!(together < 0.1 && scattered < 0.1, "{together} {scattered}");
    }

    #[test]
    fn pages_that_share_a_bit_are_no_sweep() {
        let huge = |samples: PageSamples, at_random| {
            let hits = samples.hits.iter().flat_map(|h| [*h; 512]).collect();
            PageSamples { each: 512, at_random, hits, ..samples }
        };
        let mut chance = Chance(Seed(5));
        assert!(share(huge(burst(8, |_, _| chance.of(0.4)), false)) < 0.1);
        assert!(share(huge(sweep(700), false)) > 0.95, "but those that one goes through are");
        assert_eq!(share(huge(sweep(700), true)), 0.0);
        // A few bits tell nothing, however many pages share them.
        let few = PageSamples { hits: vec![3; 12], ..burst(8, |_, _| false) };
        assert_eq!(share(huge(few, false)), 0.0);
    }

    #[test]
    fn half_and_half_is_between() {
        let mut chance = Chance(Seed(9));
        let swept = |page: usize, sample: u8| page / 512 == usize::from(sample);
        let mixed =
            share(burst(
                8,
                |page, sample| {
                    if page < PAGES / 2 {
                        swept(page, sample)
                    } else {
                        chance.of(0.125)
                    }
                },
            ));
        assert!((0.3..0.7).contains(&mixed), "{mixed}");
    }

    #[test]
    fn where_nothing_is_known_nothing_is_said() {
        assert_eq!(share(burst(8, |_, _| true)), 0.0);
        assert_eq!(share(burst(8, |_, _| false)), 0.0);
        assert_eq!(share(burst(1, |page, _| page < 4000)), 0.0, "one sample tells nothing");
        let few = PageSamples {
            hits: vec![1, 1, 1, 1, PageSamples::NOT_SAMPLED, 1],
            ..burst(8, |_, _| false)
        };
        assert_eq!(share(few), 0.0);
    }
}
