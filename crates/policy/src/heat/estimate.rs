//! From "touched in `hits` of `sample_count` samples" to accesses a second.
//!
//! Accesses are taken as a Poisson stream of rate `r`: a sample of length `w` finds the page
//! touched with probability `1 - exp(-r w)`, so `r = -ln(1 - hits/sample_count) / w`. That formula
//! alone fails twice: at `hits == sample_count` it is infinite, and it forgets everything seen
//! before. So a page keeps a rate and the time behind it (a Gamma distribution's `events / time`),
//! and new samples are joined to it:
//!
//! * a sample that finds nothing adds its time and no events: exact for a Gamma prior;
//! * a sample that finds the page touched adds its time and the *expected* number of events given
//!   at least one, `r w / (1 - exp(-r w))` (the expectation step of EM).
//!
//! A page found touched in every sample therefore climbs slowly towards what longer evidence
//! allows, never to infinity: it is *saturated*, its true rate is at least what is shown.

use super::HeatTuning;

/// Samples of one length at one page, or at a sample of alike pages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleHits {
    /// Samples that found it touched.
    pub hits: f32,
    /// All samples.
    pub samples: f32,
    /// Seconds a sample.
    pub interval: f32,
    /// Share of the evidence that counts for one page (less than 1 for samples of a region).
    pub weight: f32,
    /// Rate by the formula alone, half a sample short of saturation.
    pub direct: f32,
}

/// What samples tell of a page with so many accesses expected in each: a table, because an
/// exponential for each page at each sample would be half of what deciding costs. Steps are 1.6%
/// wide.
#[derive(Debug, Clone)]
pub struct HitCurve {
    points: Vec<CurvePoint>,
}

/// Accesses expected in a sample beyond which it tells a bound, and no estimate.
pub(super) const MOST_EXPECTED: f32 = 3.0;

/// One point of the curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CurvePoint {
    /// Chance of finding the page untouched.
    pub missed: f32,
    /// Accesses expected, given that it was found touched.
    pub given_hit: f32,
}

/// Upper bits of a float kept: 6 of its fraction.
const STEP: u32 = 17;
/// The table reaches from 2^-14 to 2^5 accesses a sample.
const LEAST: u32 = (127 - 14) << 6;
const POINTS: usize = 19 << 6;

impl Default for HitCurve {
    fn default() -> Self {
        let middle = |at: usize| f32::from_bits((at as u32 + LEAST) << STEP | 1 << (STEP - 1));
        let point = |x: f32| CurvePoint { missed: (-x).exp(), given_hit: x / -(-x).exp_m1() };
        Self { points: (0..POINTS).map(|at| point(middle(at))).collect() }
    }
}

impl HitCurve {
    /// At `x` accesses a sample, not negative.
    #[must_use]
    pub fn at(&self, x: f32) -> CurvePoint {
        let step = x.to_bits() >> STEP;
        if step < LEAST {
            return CurvePoint { missed: 1.0 - x, given_hit: 1.0 };
        }
        let beyond = CurvePoint { missed: 0.0, given_hit: x };
        self.points.get((step - LEAST) as usize).copied().unwrap_or(beyond)
    }
}

impl SampleHits {
    /// Sums up samples; `None` when nothing was sampled.
    #[must_use]
    pub fn new(hits: u16, samples: u16, interval_s: f32, weight: f32) -> Option<Self> {
        if samples == 0 || interval_s.is_nan() || interval_s <= 0.0 {
            return None;
        }
        let samples = f32::from(samples);
        let hits = f32::from(hits).min(samples);
        let direct = -(1.0 - hits.min(samples - 0.5) / samples).ln() / interval_s;
        Some(Self { hits, samples, interval: interval_s, weight, direct })
    }

    /// Accesses taken for a sample's where so many all hit: half a sample short of it.
    #[must_use]
    pub fn all_hit(samples: u16) -> f32 {
        -(0.5 / f32::from(samples.max(1))).ln()
    }

    /// Samples that come to this rate, found out otherwise, with so many seconds behind it.
    #[must_use]
    pub fn estimated(per_second: f32, evidence_s: f32, interval_s: f32) -> Option<Self> {
        let sound =
            per_second >= 0.0 && per_second.is_finite() && evidence_s > 0.0 && interval_s > 0.0;
        let samples = evidence_s / interval_s;
        let hits = samples * -(-per_second * interval_s).exp_m1();
        (sound && samples.is_finite()).then_some(Self {
            hits,
            samples,
            interval: interval_s,
            weight: 1.0,
            direct: per_second,
        })
    }

    /// Time sampled in all, seconds of evidence.
    #[must_use]
    pub fn time(&self) -> f32 {
        self.samples * self.interval * self.weight
    }

    /// Joins these samples to a rate with `evidence` seconds of evidence. Gives the new rate and
    /// the evidence behind it. When the old rate makes these samples most unlikely, the page
    /// changed: old evidence is dropped rather than averaged in.
    #[must_use]
    pub fn join(
        &self,
        curve: &HitCurve,
        tuning: &HeatTuning,
        rate: f32,
        evidence: f32,
    ) -> (f32, f32) {
        let time = self.time();
        if evidence <= 0.0 {
            return (self.expected(curve, self.direct, 0.0, 0.0), time);
        }
        let missed = curve.at(rate * self.interval).missed;
        let off = self.hits - self.samples * (1.0 - missed);
        let chance = self.samples * missed * (1.0 - missed) + 0.5;
        let changed = off * off > tuning.surprise * chance;
        let evidence = if changed { evidence * tuning.after_surprise } else { evidence };
        let events = rate * evidence;
        // Samples that could hardly have missed at a rate that shorter ones told take nothing from
        // it: the formula alone is a bound.
        let bound = self.saturated() && rate * self.interval >= MOST_EXPECTED;
        let direct = if bound { self.direct.max(rate) } else { self.direct };
        let start = (events + direct * time) / (evidence + time);
        (self.expected(curve, start, events, evidence), evidence + time)
    }

    /// One expectation step from `rate` with `events` in `evidence` seconds known before.
    fn expected(&self, curve: &HitCurve, rate: f32, events: f32, evidence: f32) -> f32 {
        if self.hits == 0.0 {
            return events / (evidence + self.time());
        }
        let given_hit = curve.at(rate * self.interval).given_hit;
        (events + self.hits * self.weight * given_hit) / (evidence + self.time())
    }

    /// Whether nearly every sample was a hit, so that the rate is a lower bound.
    #[must_use]
    pub fn saturated(&self) -> bool {
        self.hits + 1.0 > self.samples && self.samples >= 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small generator, so that the test needs no crate and prints what it did.
    fn random(state: &mut u64) -> f32 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((*state >> 40) as f32) / (1u64 << 24) as f32
    }

    #[test]
    fn the_curve_is_the_exponential_within_two_per_cent() {
        let curve = HitCurve::default();
        assert_eq!(curve.at(0.0), CurvePoint { missed: 1.0, given_hit: 1.0 });
        assert_eq!(curve.at(40.0), CurvePoint { missed: 0.0, given_hit: 40.0 });
        for i in 0..2_000 {
            let x = 1e-5 * 1.0075f32.powi(i);
            let at = curve.at(x);
            let exact = CurvePoint { missed: (-x).exp(), given_hit: x / -(-x).exp_m1() };
            assert!((at.missed - exact.missed).abs() < 0.01, "{x}: {at:?}");
            assert!((at.given_hit / exact.given_hit - 1.0).abs() < 0.01, "{x}: {at:?}");
        }
    }

    fn observe(rate: f32, interval: f32, samples: u16, rounds: usize, state: &mut u64) -> f32 {
        let curve = HitCurve::default();
        let (mut estimate, mut evidence) = (0.0, 0.0);
        for _ in 0..rounds {
            let p = 1.0 - (-rate * interval).exp();
            let hits = (0..samples).filter(|_| random(state) < p).count() as u16;
            let samples = SampleHits::new(hits, samples, interval, 1.0).unwrap();
            (estimate, evidence) =
                samples.join(&curve, &HeatTuning::USUAL, estimate, f32::min(evidence, 5.0));
        }
        estimate
    }

    #[test]
    fn rates_come_back_within_a_fifth() {
        let mut state = 7;
        for (rate, interval, samples) in [
            (10.0, 0.005, 20),
            (160.0, 0.005, 20),
            (300.0, 0.005, 20),
            (20.0, 0.05, 1),
            (5.0, 0.05, 4),
        ] {
            let mean: f32 =
                (0..40).map(|_| observe(rate, interval, samples, 60, &mut state)).sum::<f32>()
                    / 40.0;
            assert!((mean / rate - 1.0).abs() < 0.2, "rate {rate}, read {mean}, seed 7");
        }
    }

    #[test]
    fn saturation_is_a_bound_not_infinity() {
        let curve = HitCurve::default();
        let all = SampleHits::new(20, 20, 0.005, 1.0).unwrap();
        let (rate, evidence) = all.join(&curve, &HeatTuning::USUAL, 0.0, 0.0);
        assert!(rate > 500.0 && rate < 1_500.0, "{rate}");
        assert!(all.saturated());
        let (more, _) = all.join(&curve, &HeatTuning::USUAL, rate, evidence);
        assert!(more >= rate * 0.95 && more < 2_000.0, "{more}");
    }

    /// Two short samples that hit give 2,000 a second and more; two of twelve times the length give
    /// a lower bound of a twelfth of that.
    #[test]
    fn long_saturated_samples_do_not_lower_the_rate_estimated_from_short_ones() {
        let (curve, tuning) = (HitCurve::default(), HeatTuning::USUAL);
        let [sharp, long] = [0.000_7, 0.008_4].map(|s| SampleHits::new(2, 2, s, 1.0).unwrap());
        let (told, evidence) = sharp.join(&curve, &tuning, 0.0, 0.0);
        assert!(told > 2_000.0, "{told}");
        let (both, _) = long.join(&curve, &tuning, told, evidence);
        assert!((both / told - 1.0).abs() < 0.02, "{told}, {both}");
        // Nor do they hold up a rate that they could well have missed.
        let (low, _) = long.join(&curve, &tuning, 20.0, evidence);
        assert!(low > 100.0, "{low}");
        let missed = SampleHits::new(0, 2, 0.008_4, 1.0).unwrap();
        let (gone, _) = missed.join(&curve, &tuning, told, evidence);
        assert!(gone < told / 10.0, "{gone}");
    }

    #[test]
    fn a_page_that_falls_silent_is_cold_at_once() {
        let curve = HitCurve::default();
        let silent = SampleHits::new(0, 20, 0.005, 1.0).unwrap();
        let (rate, _) = silent.join(&curve, &HeatTuning::USUAL, 740.0, 1.0);
        assert!(rate < 300.0, "{rate}");
        let (rate, _) = silent.join(&curve, &HeatTuning::USUAL, rate, 0.15);
        assert!(rate < 60.0, "{rate}");
    }

    #[test]
    fn a_rate_estimated_elsewhere_is_used_as_given() {
        let curve = HitCurve::default();
        for (rate, evidence) in [(1_150.0, 0.03), (3.0, 0.1), (4_000.0, 0.000_3), (0.0, 0.05)] {
            let samples = SampleHits::estimated(rate, evidence, 0.000_3).unwrap();
            let (got, time) = samples.join(&curve, &HeatTuning::USUAL, 0.0, 0.0);
            assert!(
                (got - rate).abs() <= 0.02 * rate && (time / evidence - 1.0).abs() < 1e-3,
                "{rate}: {got}, {time}"
            );
        }
        for (rate, evidence, interval) in
            [(f32::NAN, 1.0, 1.0), (-1.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, 0.0)]
        {
            assert_eq!(SampleHits::estimated(rate, evidence, interval), None);
        }
    }

    #[test]
    fn hostile_input_gives_nothing() {
        let curve = HitCurve::default();
        assert_eq!(SampleHits::new(5, 0, 0.1, 1.0), None);
        assert_eq!(SampleHits::new(5, 3, f32::NAN, 1.0), None);
        let more_hits_than_samples = SampleHits::new(9, 3, 0.1, 1.0).unwrap();
        assert!(more_hits_than_samples.join(&curve, &HeatTuning::USUAL, 0.0, 0.0).0.is_finite());
    }
}
