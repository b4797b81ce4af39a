//! Scores of all learners on the recorded measurements, and the model: `train [MODEL]`.

use std::error::Error;
use terrace_gpu::dataset::{read_dataset, recorded_devices, PlacementSample};
use terrace_gpu::evaluate::{
    always_global, analytic, cross_validate, launch_speed, score, Choice, Division, FeatureSet,
    PlacementScore, THRESHOLD,
};
use terrace_gpu::learn::LearnerKind;
use terrace_gpu::model::PlacementModel;

const SEED: u64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let dataset = read_dataset(&recorded_devices())?;
    let samples = &dataset.samples;
    println!("{} samples of {} launches", samples.len(), dataset.launches.len());
    show("always global", &score(samples, &always_global(samples)));
    show("analytic (PORPLE)", &score(samples, &analytic(samples, &dataset.devices)));
    println!("launches, always global: {:.3}", launch_speed(&dataset, &|_, _| 0.0));
    for division in Division::ALL {
        for kind in LearnerKind::ALL {
            let (choices, models) =
                cross_validate(samples, division, kind, FeatureSet::Source, SEED);
            show(&format!("{}, {}", division.name(), kind.name()), &score(samples, &choices));
            if division == Division::Benchmark {
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
        for division in [Division::TenFold, Division::Benchmark] {
            let (choices, _) = cross_validate(&counted, division, LearnerKind::Forest, set, SEED);
            show(&format!("{set:?}, {}", division.name()), &score(&counted, &choices));
        }
    }
    if let Some(path) = std::env::args().nth(1) {
        let all: Vec<&PlacementSample> = samples.iter().collect();
        let row = |s: &PlacementSample| s.features.clone();
        let model = PlacementModel::train_on(LearnerKind::Forest, &all, &row, THRESHOLD, SEED);
        std::fs::write(path, model.write())?;
    }
    Ok(())
}

fn by_family(samples: &[PlacementSample], choices: &[Choice]) {
    let mut families: Vec<&str> = samples.iter().map(|s| s.family).collect();
    families.sort_unstable();
    families.dedup();
    for family in families {
        let own: Vec<Choice> =
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
