//! Files with bytes changed, cut and doubled: read or refused, and what is read can be used.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use terrace_gpu::counters::longest_launch;
use terrace_gpu::data::{read_counters, read_profile, read_shapes, read_timings};
use terrace_gpu::managed::{read_managed_arrays, ManagedModel};
use terrace_gpu::model::PlacementModel;
use terrace_gpu::placement::ArrayPlacement;

/// A small model with each kind of learner.
const MODEL: &str = r#""labels":{"global":{"forest":[[[2,1.5,1,0.0],[-1,0.0,0,1.0],
[-1,0.0,0,0.5]]]},"shared":{"forest":[[[-1,0.0,0,0.6]]]}},
"gains":{"shared":{"forest":[[[0,1.5,1,0.0],[-1,0.0,0,1.0],[-1,0.0,0,2.0]]]},
"constant":{"boosted":{"start":0.5,"trees":[[[3,0.5,1,0.0],[-1,0.0,0,1.0],[-1,0.0,0,2.0]]]}},
"texture":{"rules":{"rules":[{"conditions":[{"feature":0,"above":true,"threshold":1.0}],
"value":0.5,"rows":6}],"otherwise":0.1}}},"rules":{"shared":{"rules":
[{"conditions":[{"feature":1,"above":false,"threshold":2.0}],"value":0.2,"rows":7}],
"otherwise":0.0}}}"#;

fn small_model() -> String {
    let whole = include_str!("../data/model.json");
    let head = &whole[..whole.find("\"labels\"").unwrap()];
    head.to_owned() + &MODEL.replace('\n', "")
}

const MANAGED: &str = "Benchmark,InputData,Kernel,Data,DataSize,Block Size,Grid Size,Threads,\
                       Registers Per Thread,Waves Per SM,Theoretical Occupancy,Launches,label\n\
                       b,i,k,a,8000000,512,1954,1000448,16,6.11,100,10,4\n\
                       b,i,k,c,1000000,512,1954,1000448,16,6.11,100,10,0\n";

const TABLES: [&str; 5] = [
    include_str!("../data/h100-timings.csv"),
    include_str!("../data/h100-profile.csv"),
    include_str!("../data/h100-counters.csv"),
    include_str!("../data/problems.csv"),
    MANAGED,
];
const RUN: &str = "kernel,block,grid,duration_ns\nk,(64  1  1),(10  1  1),900\nk,(8),(1),5\n";

/// Pieces that are put in: what parsers trip over.
const PIECES: [&str; 14] = [
    "-1",
    "4294967295",
    "18446744073709551616",
    "1e999",
    "NaN",
    "-0",
    ",",
    "\n",
    "\"",
    "[",
    "}",
    "\u{0}",
    "é",
    "null",
];

#[derive(Debug, Clone)]
struct Edit {
    at: prop::sample::Index,
    remove: usize,
    piece: usize,
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = (any::<prop::sample::Index>(), 0..20_usize, 0..PIECES.len() + 1)
        .prop_map(|(at, remove, piece)| Edit { at, remove, piece });
    prop::collection::vec(edit, 1..6)
}

fn change(text: &str, edits: &[Edit]) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    for edit in edits {
        let at = edit.at.index(characters.len() + 1);
        let end = (at + edit.remove).min(characters.len());
        let piece = PIECES.get(edit.piece).copied().unwrap_or_default();
        characters.splice(at..end, piece.chars());
    }
    characters.into_iter().collect()
}

proptest! {
    #[test]
    fn models_are_refused_or_choose(edits in edits()) {
        if let Ok(model) = PlacementModel::read(&change(&small_model(), &edits)) {
            let row = vec![1.0; model.features.len()];
            let choice = model.choose(&row, &ArrayPlacement::ALL);
            prop_assert!(choice.speedup.is_finite());
            let _rule = model.rule_text(&row, choice.placement);
        }
    }

    #[test]
    fn tables_are_refused_or_read(edits in edits(), lines in 1..12_usize) {
        for table in TABLES.iter().chain([&RUN]) {
            let few = table.lines().take(lines).collect::<Vec<_>>().join("\n");
            let text = change(&few, &edits);
            let _timings = read_timings("t.csv", &text);
            let _profile = read_profile("t.csv", &text);
            let _counters = read_counters("t.csv", &text);
            let _shapes = read_shapes("t.csv", &text);
            let _launch = longest_launch("t.csv", &text, "k");
            let _arrays = read_managed_arrays("t.csv", &text);
        }
    }

    #[test]
    fn any_numbers_of_an_array_are_advised(features in prop::collection::vec(any::<f64>(), 0..9)) {
        let few = read_managed_arrays("few.csv", MANAGED).unwrap();
        let choice = ManagedModel::train(&few, 1).choose(&features);
        prop_assert!((0.0..=1.0).contains(&choice.confidence), "{choice:?}");
    }
}

#[test]
fn the_small_model_is_read() {
    let model = PlacementModel::read(&small_model()).unwrap();
    assert_eq!((model.labels.len(), model.gains.len()), (2, 3));
}
