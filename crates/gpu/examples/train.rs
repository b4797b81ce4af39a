//! Scores of all learners on the recorded measurements, and the model: `train`; the model alone:
//! `train model FILE`; one division with what went wrong: `train quick`.

use std::collections::BTreeMap;
use std::error::Error;
use terrace_gpu::dataset::{read_dataset, recorded_devices, PlacementSample};
use terrace_gpu::evaluate::{
    always_global, analytic, cross_validate, launch_speed, score, FeatureSet, PlacementScore,
    SampleChoice, SampleDivision, THRESHOLD,
};
use terrace_gpu::features::LEARNED;
use terrace_gpu::learn::LearnerKind;
use terrace_gpu::model::PlacementModel;
use terrace_gpu::placement::ArrayPlacement;

const SEED: u64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let dataset = read_dataset(&recorded_devices())?;
    let samples = &dataset.samples;
    if let [_, word, path] = std::env::args().collect::<Vec<_>>().as_slice() {
        if word == "model" {
            return write_model(samples, path);
        }
    }
    println!("{} samples of {} launches", samples.len(), dataset.launches.len());
    show("always global", &score(samples, &always_global(samples)));
    show("analytic (PORPLE)", &score(samples, &analytic(samples, &dataset.devices)));
    println!("launches, always global: {:.3}", launch_speed(&dataset, &|_, _| 0.0));
    if std::env::args().nth(1).as_deref() == Some("quick") {
        for kind in [LearnerKind::Forest, LearnerKind::Boosted] {
            let (choices, models) =
                cross_validate(samples, SampleDivision::Benchmark, kind, FeatureSet::Source, SEED);
            show(kind.name(), &score(samples, &choices));
            by_family(samples, &choices);
            let speed =
                launch_speed(&dataset, &|s, p| models[s.family].predict_gain(&s.features, p));
            println!("    launches: {speed:.3} of the fastest variant's speed");
            let mut wrong = std::collections::BTreeMap::new();
            for c in &choices {
                let s = &samples[c.sample];
                if !s.is_best(c.placement) {
                    let lost = s.best_gain() - s.gain(c.placement);
                    let key = (s.family, s.array, s.label().name(), c.placement.name());
                    let entry = wrong.entry(key).or_insert((0, 0.0));
                    entry.0 += 1;
                    entry.1 += lost;
                }
            }
            for (key, (count, lost)) in wrong {
                println!("{key:?}: {count}, lost {:.3}", lost / f64::from(count));
            }
        }
        return Ok(());
    }
    for division in SampleDivision::ALL {
        for kind in LearnerKind::ALL {
            let (choices, models) =
                cross_validate(samples, division, kind, FeatureSet::Source, SEED);
            show(&format!("{}, {}", division.name(), kind.name()), &score(samples, &choices));
            if division == SampleDivision::Benchmark {
                let speed =
                    launch_speed(&dataset, &|s, p| models[s.family].predict_gain(&s.features, p));
                println!("    launches: {speed:.3} of the fastest variant's speed");
                if kind == LearnerKind::Forest {
                    by_family(samples, &choices);
                }
            }
        }
    }
    for set in [FeatureSet::Source, FeatureSet::Counters, FeatureSet::Both] {
        let counted: Vec<PlacementSample> =
            samples.iter().filter(|s| s.counters.is_some()).cloned().collect();
        for division in [SampleDivision::TenFold, SampleDivision::Benchmark] {
            let (choices, _) = cross_validate(&counted, division, LearnerKind::Forest, set, SEED);
            show(&format!("{set:?}, {}", division.name()), &score(&counted, &choices));
        }
    }
    Ok(())
}

fn write_model(samples: &[PlacementSample], path: &str) -> Result<(), Box<dyn Error>> {
    let all: Vec<&PlacementSample> = samples.iter().collect();
    let row = |s: &PlacementSample| s.features.clone();
    let mut model = PlacementModel::train_on(LearnerKind::Boosted, &all, &row, THRESHOLD, SEED);
    model.learn_rules(&all, &row);
    model.errors = errors(samples);
    Ok(std::fs::write(path, model.write())?)
}

/// Errors of the gains on benchmarks that were left out, by placement.
fn errors(samples: &[PlacementSample]) -> BTreeMap<ArrayPlacement, f64> {
    let (division, set) = (SampleDivision::Benchmark, FeatureSet::Source);
    let (_, models) = cross_validate(samples, division, LearnerKind::Boosted, set, SEED);
    let mut sums: BTreeMap<ArrayPlacement, (f64, f64)> = BTreeMap::new();
    for sample in samples {
        for placement in LEARNED.into_iter().filter(|p| sample.gains.contains_key(p)) {
            let predicted = models[sample.family].predict_gain(&sample.features, placement);
            let error = predicted - sample.gain(placement).clamp(-2.0, 2.0);
            let sum = sums.entry(placement).or_default();
            *sum = (sum.0 + error * error, sum.1 + 1.0);
        }
    }
    sums.into_iter().map(|(p, (sum, n))| (p, (sum / n).sqrt())).collect()
}

fn by_family(samples: &[PlacementSample], choices: &[SampleChoice]) {
    let mut families: Vec<&str> = samples.iter().map(|s| s.family).collect();
    families.sort_unstable();
    families.dedup();
    for family in families {
        let own: Vec<SampleChoice> =
            choices.iter().filter(|c| samples[c.sample].family == family).copied().collect();
        show(&format!("    {family}"), &score(samples, &own));
    }
}

fn show(name: &str, s: &PlacementScore) {
    println!(
        "{name:<55} {:>5} samples, best {:.1}%, exact {:.1}%, speed {:.3}",
        s.samples,
        100.0 * s.best,
        100.0 * s.exact,
        s.speed
    );
}
