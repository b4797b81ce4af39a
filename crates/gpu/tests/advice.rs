//! Advice from the recorded model, and what is refused.
#![allow(clippy::unwrap_used)]

use terrace_gpu::advise::{advise, apply_advice, recorded_model, AdviceRequest};
use terrace_gpu::analysis::LaunchNumbers;
use terrace_gpu::benchmark::Benchmark;
use terrace_gpu::counters::{
    longest_launch, read_profiler_page, write_recorded_run, CountersError,
};
use terrace_gpu::data::{read_timings, DataError};
use terrace_gpu::model::{LearnedModelError, PlacementModel};
use terrace_gpu::placement::ArrayPlacement;

fn request(kernel: &str, elements: &[(&str, u64)], scalars: &[(&str, i64)]) -> AdviceRequest {
    let name = |(name, value): &(&str, u64)| ((*name).to_owned(), *value);
    AdviceRequest {
        source: Benchmark::named(kernel).unwrap().source.to_owned(),
        elements: elements.iter().map(name).collect(),
        launch: LaunchNumbers {
            grid: [3907, 1, 1],
            block: [256, 1, 1],
            scalars: scalars.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect(),
            defines: [("BINS".to_owned(), 256)].into(),
        },
        gpu: "h100".to_owned(),
        ..AdviceRequest::default()
    }
}

#[test]
fn a_contended_histogram_goes_to_shared_memory() {
    let model = recorded_model().unwrap();
    let request = request(
        "histogram",
        &[("data", 16_000_000), ("count", 256)],
        &[("n", 16_000_000), ("bins", 256)],
    );
    let advice = advise(&request, &model).unwrap();
    assert_eq!(advice.arrays[1].placement, ArrayPlacement::Shared, "{advice:?}");
    assert!(advice.arrays[1].expected_speedup > 2.0, "{advice:?}");
    assert_eq!(apply_advice(&request, &advice).unwrap().tiles, ["count"]);
}

#[test]
fn arrays_too_large_for_constant_memory_are_not_offered_it() {
    let model = recorded_model().unwrap();
    let sizes = [("x", 1_000_000), ("coefficient", 20_000), ("out", 1_000_000)];
    let request = request("polynomial", &sizes, &[("n", 1_000_000), ("degree", 20_000)]);
    let advice = advise(&request, &model).unwrap();
    assert_ne!(advice.arrays[1].placement, ArrayPlacement::Constant);
    let why = advice.arrays[1].not_offered.join("\n");
    assert!(why.contains("constant memory takes 64 KiB"), "{why}");
}

#[test]
fn unknown_arrays_kernels_and_gpus_are_named() {
    let model = recorded_model().unwrap();
    let bad = request("fir", &[("taps", 32)], &[]);
    let why = advise(&bad, &model).unwrap_err().to_string();
    assert!(why.contains("no array taps") && why.contains("signal, tap, out"), "{why}");
    let other = AdviceRequest { gpu: "k40".to_owned(), ..request("fir", &[], &[]) };
    let why = advise(&other, &model).unwrap_err().to_string();
    assert!(why.contains("H100") && why.contains("H200"), "{why}");
    let none = AdviceRequest { source: "int main() {}".to_owned(), ..request("fir", &[], &[]) };
    assert!(advise(&none, &model).unwrap_err().to_string().contains("no __global__"));
}

#[test]
fn models_of_other_versions_and_broken_ones_are_refused() {
    let text = recorded_model().unwrap().write();
    assert_eq!(PlacementModel::read(&text).unwrap(), recorded_model().unwrap());
    let older = text.replacen("\"feature_version\":1", "\"feature_version\":0", 1);
    assert!(matches!(
        PlacementModel::read(&older),
        Err(LearnedModelError::Version { features: 0, .. })
    ));
    assert!(matches!(PlacementModel::read(&text[..999]), Err(LearnedModelError::Malformed { .. })));
}

#[test]
fn hostile_sources_end() {
    let model = recorded_model().unwrap();
    for part in ["{", "for(;;)", "if(a)", "a[", "(", "a?b:", "-"] {
        let body = part.repeat(50_000);
        let source = format!("__global__ void k(float *a, int n) {{ {body} }}");
        let request = AdviceRequest { source, ..request("fir", &[], &[]) };
        if let Ok(advice) = advise(&request, &model) {
            let _variant = apply_advice(&request, &advice);
        }
    }
}

#[test]
fn bad_measurements_are_named_by_line() {
    let header = "device,kernel,size,block_x,block_y,variant,median_ns,low_ns,high_ns\n";
    let bad = format!("{header}g,k,1,1,1,global,NaN,1,1\n");
    let found = read_timings("t.csv", &bad);
    assert!(matches!(found, Err(DataError::BadField { line: 2, .. })), "{found:?}");
    assert!(matches!(read_timings("t.csv", "a,b\n"), Err(DataError::NoColumn { .. })));
}

#[test]
fn the_profilers_refusal_is_understood() {
    let text = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n";
    assert_eq!(read_profiler_page(text), Err(CountersError::NoPermission));
    let page = "==PROF== x\n\"ID\",\"Kernel Name\",\"Block Size\",\"Grid \
        Size\",\"gpu__time_duration.sum\"\n\"\",\"\",\"\",\"\",\"ns\"\n\"0\",\"k\"\"1\",\"(1, 1, \
        1)\",\"(2, 1, 1)\",\"7,104\"\n";
    let launches = read_profiler_page(page).unwrap();
    assert_eq!((launches.len(), launches[0].kernel.as_str()), (1, "k\"1"));
    assert_eq!(launches[0].values.last(), Some(&Some(7104.0)));
    // What a run's file keeps of it.
    let file = write_recorded_run(&launches);
    let longest = longest_launch("run.csv", &file, "k\"1").unwrap();
    assert_eq!((longest.grid, longest.block), ([2, 1, 1], [1, 1, 1]));
    assert!((longest.duration_ns - 7104.0).abs() < 1e-9);
    let none = longest_launch("run.csv", &file, "other");
    assert!(matches!(none, Err(DataError::NoLaunch { .. })), "{none:?}");
}

#[test]
fn a_prediction_takes_less_than_a_millisecond() {
    let model = recorded_model().unwrap();
    let row = vec![0.5; model.features.len()];
    let legal = ArrayPlacement::ALL;
    // The least of several: other work on the machine only adds.
    let least = (0..20)
        .map(|_| {
            let start = std::time::Instant::now();
            std::hint::black_box(model.choose(std::hint::black_box(&row), &legal));
            start.elapsed()
        })
        .min()
        .unwrap();
    println!("a prediction takes {least:?}");
    assert!(least < std::time::Duration::from_millis(1), "{least:?}");
}
