//! The learners beside scikit-learn's, where `python3` (or `TERRACE_PYTHON`) has it.
#![allow(clippy::unwrap_used)]

use super::tree::BinnedRows;
use super::{train, LearnerKind, RegressionTree, TrainingSet, TreeLimits};
use crate::benchmark::SplitMix;
use crate::dataset::{read_dataset, recorded_devices, PlacementDataset};
use crate::placement::ArrayPlacement;
use serde_json::{json, Value};
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Reads cases of rows and targets; writes each learner's predictions for `test`.
const SCRIPT: &str = r"
import json, sys
try:
    from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
except ImportError as error:
    sys.exit(str(error))
learners = {
    'tree': lambda: DecisionTreeRegressor(max_depth=5, min_samples_leaf=4),
    'forest': lambda: RandomForestRegressor(
        n_estimators=60, max_depth=9, min_samples_leaf=4, max_features=1 / 3, random_state=1),
    'boosted': lambda: GradientBoostingRegressor(
        n_estimators=120, max_depth=4, min_samples_leaf=4, learning_rate=0.08, subsample=0.5,
        max_features=0.5, random_state=1),
    'classes': lambda: DecisionTreeClassifier(max_depth=4, min_samples_leaf=6, random_state=1),
}
out = []
for case in json.load(sys.stdin):
    model = learners[case['learner']]().fit(case['rows'], case['targets'])
    out.append([float(v) for v in model.predict(case['test'])])
json.dump(out, sys.stdout)
";

fn ask(cases: &[Value]) -> Option<Vec<Vec<f64>>> {
    let python = std::env::var("TERRACE_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let mut child = Command::new(python)
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| println!("skipped: python3 cannot be started: {e}"))
        .ok()?;
    // A script without its library ends before it reads.
    let _written = child.stdin.take().unwrap().write_all(json!(cases).to_string().as_bytes());
    let output = child.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && words.contains("No module named") {
        println!("skipped: scikit-learn: {}", words.trim());
        return None;
    }
    assert!(output.status.success(), "{words}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

fn case(learner: &str, set: &TrainingSet, test: &[Vec<f64>]) -> Value {
    json!({ "learner": learner, "rows": set.rows, "targets": set.targets, "test": test })
}

#[test]
fn a_tree_splits_as_scikit_learns_does() {
    let mut random = SplitMix(11);
    let mut set = TrainingSet::default();
    for _ in 0..400 {
        // Few values, each exact in single precision: no bin holds two of them.
        let row: Vec<f64> = (0..5).map(|_| random.below(48) as f64 / 16.0).collect();
        let step = if row[1] > 1.0 { 2.0 } else { -1.0 };
        set.targets.push(row[0] * row[2] + step + f64::from(random.unit()));
        set.rows.push(row);
    }
    let Some(theirs) = ask(&[case("tree", &set, &set.rows)]) else { return };
    let limits = TreeLimits { depth: 5, leaf_rows: 4, features: 5 };
    let binned = BinnedRows::from_set(&set);
    let all = (0..set.rows.len()).collect();
    let tree = RegressionTree::grow(&set, &binned, all, &limits, &mut random);
    assert!(tree.nodes.len() > 20, "{} nodes", tree.nodes.len());
    for (row, their) in set.rows.iter().zip(&theirs[0]) {
        let our = tree.predict(row);
        assert!((our - their).abs() < 1e-6, "{row:?}: {our}, scikit-learn {their}");
    }
}

/// Root mean square of the errors.
fn error(predicted: &[f64], targets: &[f64]) -> f64 {
    let squares = predicted.iter().zip(targets).map(|(p, t)| (p - t) * (p - t));
    (squares.sum::<f64>() / targets.len() as f64).sqrt()
}

/// Recorded gains of a placement: every fourth family is left out of the training.
fn recorded(dataset: &PlacementDataset, placement: ArrayPlacement) -> (TrainingSet, TrainingSet) {
    let mut families: Vec<&str> = dataset.samples.iter().map(|s| s.family).collect();
    families.sort_unstable();
    families.dedup();
    let (mut learn, mut test) = (TrainingSet::default(), TrainingSet::default());
    for sample in &dataset.samples {
        let Some(gain) = sample.gains.get(&placement) else { continue };
        let family = families.iter().position(|f| *f == sample.family).unwrap();
        let set = if family % 4 == 1 { &mut test } else { &mut learn };
        set.rows.push(sample.features.clone());
        set.targets.push(gain.clamp(-2.0, 2.0));
    }
    (learn, test)
}

#[test]
fn forests_boosting_and_rules_err_no_more_than_scikit_learns() {
    let placements = [ArrayPlacement::Shared, ArrayPlacement::Constant, ArrayPlacement::Texture];
    let dataset = read_dataset(&recorded_devices()).unwrap();
    let sets = placements.map(|placement| recorded(&dataset, placement));
    let gains = |set: &TrainingSet| -> Vec<f64> {
        set.targets.iter().map(|t| f64::from(u8::from(*t > super::rules::POSITIVE))).collect()
    };
    let mut cases = Vec::new();
    for (learn, test) in &sets {
        cases.push(case("forest", learn, &test.rows));
        cases.push(case("boosted", learn, &test.rows));
        let classes = TrainingSet { rows: learn.rows.clone(), targets: gains(learn) };
        cases.push(case("classes", &classes, &test.rows));
    }
    let Some(theirs) = ask(&cases) else { return };
    let mut sums = [[0.0; 2]; 3];
    for ((placement, (learn, test)), theirs) in
        placements.iter().zip(&sets).zip(theirs.chunks_exact(3))
    {
        let kinds = [LearnerKind::Forest, LearnerKind::Boosted, LearnerKind::Rules];
        for (at, kind) in kinds.into_iter().enumerate() {
            let model = train(kind, learn, 1);
            let ours: Vec<f64> = test.rows.iter().map(|row| model.predict(row)).collect();
            let [our, their] = match kind {
                // Rules are for whether there is a gain: the share of wrong answers.
                LearnerKind::Rules => {
                    let truth = gains(test);
                    let ours = gains(&TrainingSet { rows: Vec::new(), targets: ours });
                    [error(&ours, &truth).powi(2), error(&theirs[at], &truth).powi(2)]
                }
                _ => [error(&ours, &test.targets), error(&theirs[at], &test.targets)],
            };
            println!("{} {}: {our:.3}, scikit-learn {their:.3}", placement.name(), kind.name());
            sums[at][0] += our;
            sums[at][1] += their;
        }
    }
    for ([our, their], name) in sums.iter().zip(["forest", "boosted", "rules"]) {
        assert!(*our <= 1.1 * their, "{name}: {our:.3}, scikit-learn {their:.3}");
    }
}
