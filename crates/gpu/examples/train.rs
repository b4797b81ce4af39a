//! Scores of all learners on the recorded measurements: `train`; the model alone: `train model
//! FILE`; one division with what went wrong: `train quick`; the samples as CSV, for other learners:
//! `train rows FILE`; the model of unified memory and its scores: `train managed OUT TABLE...`.

use std::collections::BTreeMap;
use std::error::Error;
use terrace_gpu::dataset::{read_dataset, recorded_devices, PlacementDataset, PlacementSample};
use terrace_gpu::evaluate::{
    always_global, analytic, cross_validate, launch_speed, score, FeatureSet, PlacementScore,
    SampleChoice, SampleDivision, THRESHOLD,
};
use terrace_gpu::features::FEATURE_NAMES;
use terrace_gpu::learn::LearnerKind;
use terrace_gpu::managed::{leave_one_input_out, merge_alike, read_managed_arrays, ManagedModel};
use terrace_gpu::model::PlacementModel;
use terrace_gpu::placement::ArrayPlacement;

const SEED: u64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    if let [_, word, out, tables @ ..] = std::env::args().collect::<Vec<_>>().as_slice() {
        if word == "managed" {
            return managed(out, tables);
        }
    }
    let dataset = read_dataset(&recorded_devices())?;
    let samples = &dataset.samples;
    if let [_, word, path] = std::env::args().collect::<Vec<_>>().as_slice() {
        match word.as_str() {
            "model" => return write_model(samples, path),
            "rows" => return write_rows(samples, path),
            _ => {}
        }
    }
    println!("{} samples of {} launches", samples.len(), dataset.launches.len());
    show("always global", &score(samples, &always_global(samples)));
    show("analytic (PORPLE)", &score(samples, &analytic(samples, &dataset.devices)));
    println!("launches, always global: {:.3}", launch_speed(&dataset, &|_, _| 0.0));
    if std::env::args().nth(1).as_deref() == Some("quick") {
        for kind in [LearnerKind::Labels, LearnerKind::Boosted] {
            let (choices, models) =
                cross_validate(samples, SampleDivision::Benchmark, kind, FeatureSet::Source, SEED);
            show(kind.name(), &score(samples, &choices));
            by_family(samples, &choices);
            show_launches(&dataset, &models);
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
            if division == SampleDivision::TenFold && kind == LearnerKind::Rules {
                by_label(samples, &choices);
            }
            if division == SampleDivision::Benchmark {
                show_launches(&dataset, &models);
                if kind == LearnerKind::Labels {
                    by_family(samples, &choices);
                }
            }
        }
    }
    for set in [FeatureSet::Source, FeatureSet::Counters, FeatureSet::Both] {
        let counted: Vec<PlacementSample> =
            samples.iter().filter(|s| s.counters.is_some()).cloned().collect();
        for division in [SampleDivision::TenFold, SampleDivision::Benchmark] {
            for kind in [LearnerKind::Forest, LearnerKind::SelectedForest] {
                let (choices, _) = cross_validate(&counted, division, kind, set, SEED);
                let name = format!("{set:?}, {}, {}", division.name(), kind.name());
                show(&name, &score(&counted, &choices));
            }
        }
    }
    Ok(())
}

/// Writes the model of unified memory, learned from these tables, and prints its scores.
fn managed(out: &str, tables: &[String]) -> Result<(), Box<dyn Error>> {
    let mut arrays = Vec::new();
    for table in tables {
        arrays.extend(read_managed_arrays(table, &std::fs::read_to_string(table)?)?);
    }
    let arrays = merge_alike(arrays);
    std::fs::write(out, serde_json::to_string(&ManagedModel::train(&arrays, SEED))? + "\n")?;
    for (benchmark, s) in leave_one_input_out(&arrays, SEED) {
        let percent = |launches: usize| 100.0 * launches as f64 / s.launches as f64;
        println!(
            "unified memory, {benchmark}, leave one input out: {:.1}% of {} launches, majority \
                {:.1}%",
            percent(s.right),
            s.launches,
            percent(s.majority)
        );
    }
    Ok(())
}

/// One line a sample; a gain is empty where the placement is not legal.
fn write_rows(samples: &[PlacementSample], path: &str) -> Result<(), Box<dyn Error>> {
    let mut text = format!("device,family,kernel,size,array,noise,{}", FEATURE_NAMES.join(","));
    ArrayPlacement::ALL.iter().for_each(|p| text.extend([",gain_", p.name()]));
    text.push('\n');
    for s in samples {
        let key = &s.key;
        let place = [&key.device, s.family, &key.kernel].join(",");
        text.push_str(&format!("{place},{},{},{}", key.size, s.array, s.noise));
        s.features.iter().for_each(|f| text.push_str(&format!(",{f}")));
        for placement in ArrayPlacement::ALL {
            let gain = s.gains.get(&placement).map_or(String::new(), f64::to_string);
            text.extend([",", &gain]);
        }
        text.push('\n');
    }
    Ok(std::fs::write(path, text)?)
}

fn write_model(samples: &[PlacementSample], path: &str) -> Result<(), Box<dyn Error>> {
    let all: Vec<&PlacementSample> = samples.iter().collect();
    let row = |s: &PlacementSample| s.features.clone();
    let [labels, mut model] = [LearnerKind::Labels, LearnerKind::Boosted]
        .map(|kind| PlacementModel::train_on(kind, &all, &row, THRESHOLD, SEED));
    model.labels = labels.labels;
    model.learn_rules(&all, &row);
    Ok(std::fs::write(path, model.write())?)
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

/// What whole launches gain; `models` are by the family that was left out.
fn show_launches(dataset: &PlacementDataset, models: &BTreeMap<String, PlacementModel>) {
    let gain = |s: &PlacementSample, placement| {
        let model = &models[s.family];
        if model.labels.is_empty() {
            return model.predict_gain(&s.features, placement);
        }
        let legal: Vec<ArrayPlacement> = s.gains.keys().copied().collect();
        let chosen = model.choose(&s.features, &legal).placement;
        if chosen == placement {
            1.0
        } else {
            -1.0
        }
    };
    let speed = launch_speed(dataset, &gain);
    println!("    launches: {speed:.3} of the fastest variant's speed");
}

/// The paper's figure 4: of the samples with a best placement, how many are given it.
fn by_label(samples: &[PlacementSample], choices: &[SampleChoice]) {
    for label in ArrayPlacement::ALL {
        let own: Vec<SampleChoice> =
            choices.iter().filter(|c| samples[c.sample].label() == label).copied().collect();
        if !own.is_empty() {
            show(&format!("    best in {}", label.name()), &score(samples, &own));
        }
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
