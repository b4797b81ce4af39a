//! Models of GPU placements from anywhere: read or refused, and a choice always ends.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_gpu::model::PlacementModel;
use terrace_gpu::placement::ArrayPlacement;

fuzz_target!(|text: &str| {
    if let Ok(model) = PlacementModel::read(text) {
        let row = vec![1.0; model.features.len()];
        let choice = model.choose(&row, &ArrayPlacement::ALL);
        let _rule = model.rule_text(&row, choice.placement);
    }
});
