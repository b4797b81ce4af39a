//! Honest scores: how often a model names a best placement, and how fast its choices are, on
//! samples that it did not learn from.

use crate::data::{DeviceFigures, LaunchKey};
use crate::dataset::{PlacementDataset, PlacementSample};
use crate::features::LEARNED;
use crate::learn::LearnerKind;
use crate::model::PlacementModel;
use crate::placement::ArrayPlacement;
use std::collections::BTreeMap;

/// The gain above which a placement is chosen, log2 of 1.06: twice the least difference, since a
/// wrong move costs more than a missed one.
pub const THRESHOLD: f64 = 0.085;

/// How samples are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleDivision {
    /// Ten parts at random, as in the paper.
    TenFold,
    /// One benchmark is left out at a time.
    Benchmark,
    /// One size is left out at a time.
    Size,
    /// One device is left out at a time.
    Device,
}

impl SampleDivision {
    /// All.
    pub const ALL: [Self; 4] = [Self::TenFold, Self::Benchmark, Self::Size, Self::Device];

    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TenFold => "ten-fold",
            Self::Benchmark => "leave one benchmark out",
            Self::Size => "leave one size out",
            Self::Device => "train on one GPU, predict the other",
        }
    }

    /// The part that a sample is in.
    fn part(self, at: usize, sample: &PlacementSample) -> String {
        match self {
            // A multiplicative hash of the position (Knuth), so that neighbours part.
            Self::TenFold => (((at as u64).wrapping_mul(2_654_435_761) >> 7) % 10).to_string(),
            Self::Benchmark => sample.family.to_owned(),
            Self::Size => sample.size_rank.to_string(),
            Self::Device => sample.key.device.clone(),
        }
    }
}

/// Which features a model sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureSet {
    /// Those without counters.
    Source,
    /// Counters only.
    Counters,
    /// Both.
    Both,
}

impl FeatureSet {
    /// A sample's row.
    #[must_use]
    pub fn row(self, sample: &PlacementSample) -> Vec<f64> {
        let counters = sample.counters.clone().unwrap_or_default();
        match self {
            Self::Source => sample.features.clone(),
            Self::Counters => counters,
            Self::Both => sample.features.iter().copied().chain(counters).collect(),
        }
    }
}

/// A sample's choice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleChoice {
    /// The sample's position.
    pub sample: usize,
    /// The placement.
    pub placement: ArrayPlacement,
}

/// A score.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PlacementScore {
    /// Samples.
    pub samples: usize,
    /// Share whose choice is a best one: none is better by more than noise.
    pub best: f64,
    /// Share whose choice is the label itself.
    pub exact: f64,
    /// Mean share of the best placement's speed.
    pub speed: f64,
}

/// Scores choices.
#[must_use]
pub fn score(samples: &[PlacementSample], choices: &[SampleChoice]) -> PlacementScore {
    let mut total = PlacementScore { samples: choices.len(), ..PlacementScore::default() };
    for choice in choices {
        let sample = &samples[choice.sample];
        total.best += f64::from(u8::from(sample.is_best(choice.placement)));
        total.exact += f64::from(u8::from(sample.label() == choice.placement));
        total.speed += (sample.gain(choice.placement) - sample.best_gain()).exp2();
    }
    let count = choices.len().max(1) as f64;
    total.best /= count;
    total.exact /= count;
    total.speed /= count;
    total
}

/// The choices of a learner for samples of parts that were left out in turn, and its models by
/// part.
#[must_use]
pub fn cross_validate(
    samples: &[PlacementSample],
    division: SampleDivision,
    kind: LearnerKind,
    set: FeatureSet,
    seed: u64,
) -> (Vec<SampleChoice>, BTreeMap<String, PlacementModel>) {
    let usable: Vec<usize> = (0..samples.len())
        .filter(|at| set == FeatureSet::Source || samples[*at].counters.is_some())
        .collect();
    let mut parts: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for at in usable.iter().copied() {
        parts.entry(division.part(at, &samples[at])).or_default().push(at);
    }
    let (mut choices, mut models) = (Vec::new(), BTreeMap::new());
    for (part, left_out) in &parts {
        let rest: Vec<&PlacementSample> = usable
            .iter()
            .filter(|at| division.part(**at, &samples[**at]) != *part)
            .map(|at| &samples[*at])
            .collect();
        let model = PlacementModel::train_on(kind, &rest, &|s| set.row(s), THRESHOLD, seed);
        for at in left_out {
            let legal: Vec<ArrayPlacement> = samples[*at].gains.keys().copied().collect();
            let chosen = model.choose(&set.row(&samples[*at]), &legal);
            choices.push(SampleChoice { sample: *at, placement: chosen.placement });
        }
        models.insert(part.clone(), model);
    }
    (choices, models)
}

/// Always global memory.
#[must_use]
pub fn always_global(samples: &[PlacementSample]) -> Vec<SampleChoice> {
    (0..samples.len())
        .map(|sample| SampleChoice { sample, placement: ArrayPlacement::Global })
        .collect()
}

/// An analytic model after PORPLE (Chen et al., MICRO 2014): accesses times the latency of the
/// memory that serves them, by the device's own chase latencies; a constant access takes as long
/// as it has different addresses, a whole array in shared memory is loaded first.
#[must_use]
pub fn analytic(
    samples: &[PlacementSample],
    devices: &BTreeMap<String, DeviceFigures>,
) -> Vec<SampleChoice> {
    let choose = |sample: &PlacementSample| {
        let figures = devices.get(&sample.key.device);
        let figure = |name: &str, otherwise: f64| {
            figures.and_then(|f| f.get(name)).copied().unwrap_or(otherwise)
        };
        let feature = |name: &str| {
            let at = crate::features::FEATURE_NAMES.iter().position(|n| *n == name);
            at.and_then(|at| sample.features.get(at)).copied().unwrap_or(0.0)
        };
        let bytes = feature("log2_bytes").exp2();
        let l1 = figure("chase_8192_global_ns", 29.0);
        let l2 = figure("chase_1048576_global_ns", 148.0);
        // Arrays of up to half of a multiprocessor's memory are taken to stay in its L1 cache.
        let near = bytes < figure("shared_per_multiprocessor_bytes", 233_472.0) / 2.0;
        let global = if near { l1 } else { l2 };
        let accesses = feature("loads") + feature("stores") + feature("atomics");
        let serial = feature("sectors").max(1.0);
        let shared = figure("chase_512_shared_ns", 21.0);
        let cost = |placement: ArrayPlacement| match placement {
            ArrayPlacement::Shared if feature("has_tile") > 0.0 => {
                accesses * shared + accesses.min(1.0) * l2
            }
            ArrayPlacement::Shared => {
                let staged = feature("staging_per_load") * feature("loads");
                accesses * shared + staged * (global + shared)
            }
            ArrayPlacement::Constant => {
                let addresses = 1.0 + 31.0 * (1.0 - feature("uniform"));
                accesses * addresses * figure("chase_512_constant_ns", 18.0)
            }
            ArrayPlacement::Texture => {
                let texture =
                    if near { "chase_8192_texture_ns" } else { "chase_1048576_texture_ns" };
                accesses * figure(texture, 53.0) * serial.sqrt()
            }
            _ => accesses * global * serial.sqrt(),
        };
        let legal = sample.gains.keys().copied().filter(|p| LEARNED.contains(p));
        legal.fold(ArrayPlacement::Global, |best, p| {
            // As with the learned models, a small gain is none.
            if cost(p) < cost(best) * 0.94 {
                p
            } else {
                best
            }
        })
    };
    let choices = samples.iter().enumerate();
    choices.map(|(at, s)| SampleChoice { sample: at, placement: choose(s) }).collect()
}

/// Mean share of the fastest measured variant's speed, over launches, when each launch takes the
/// measured variant with the greatest sum of predicted gains of its arrays.
#[must_use]
pub fn launch_speed(
    dataset: &PlacementDataset,
    gain: &dyn Fn(&PlacementSample, ArrayPlacement) -> f64,
) -> f64 {
    let mut by_launch: BTreeMap<&LaunchKey, Vec<&PlacementSample>> = BTreeMap::new();
    for sample in &dataset.samples {
        by_launch.entry(&sample.key).or_default().push(sample);
    }
    let (mut sum, mut count) = (0.0, 0.0);
    for (key, samples) in by_launch {
        let times = &dataset.launches[key].times;
        let predicted = |variant: &str| -> f64 {
            let parts = variant.split('+').filter_map(|part| {
                let (array, placement) = part.split_once('=')?;
                let array: usize = array.parse().ok()?;
                let placement = ArrayPlacement::from_name(placement)?;
                let sample = samples.iter().find(|s| s.array == array)?;
                let gain = gain(sample, placement);
                // A variant with an array that is better left alone is not taken.
                Some(if gain > THRESHOLD { gain } else { -1.0 })
            });
            parts.sum()
        };
        let fastest = times.values().map(|t| t.median_ns).fold(f64::INFINITY, f64::min);
        let global = predicted("global");
        let chosen = times.iter().map(|(name, t)| (predicted(name), t.median_ns)).fold(
            (global, times["global"].median_ns),
            |best, next| if next.0 > best.0 { next } else { best },
        );
        sum += fastest / chosen.1;
        count += 1.0;
    }
    sum / f64::max(count, 1.0)
}
