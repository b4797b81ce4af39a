//! Every variant of every benchmark kernel computes what the CPU's reference does.
#![allow(clippy::unwrap_used)]

mod emulator;

use terrace_gpu::benchmark::{first_difference, BENCHMARKS};
use terrace_gpu::placement::{ArrayPlacement, PlacementLimits};
use terrace_gpu::variant::list_variants;
use terrace_types::Bytes;

/// A size whose arrays fit constant memory, so that each placement is legal.
fn small(kernel: &str) -> usize {
    match kernel {
        "mm" | "transpose" | "jacobi" | "scale_rows" => 33,
        "stencil27" => 11,
        "convolution_rows" | "convolution_columns" => 61,
        "histogram" => 7001,
        "attention" => 50,
        "gather" => 70,
        "md" | "matvec" => 30,
        _ => 301,
    }
}

#[test]
fn each_variant_computes_the_reference() {
    let limits = PlacementLimits {
        constant: Bytes(64 << 10),
        shared_per_block: Bytes(227 << 10),
        persisting_l2: Bytes(0),
        texture_elements: 1 << 27,
    };
    let folder = std::env::temp_dir().join(format!("terrace-gpu-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut checked = 0;
    for benchmark in BENCHMARKS {
        let kernel = benchmark.signature().unwrap();
        let size = small(benchmark.kernel);
        let problem = (benchmark.problem)(size);
        let elements = problem.elements(&kernel);
        let mut variants = list_variants(&kernel, &elements, &limits);
        // These do not change the source.
        variants.retain(|v| {
            v.moved().all(|(_, p)| p.changes_source())
                || v.placements.contains(&ArrayPlacement::Shared)
        });
        let block = benchmark.blocks[benchmark.blocks.len() / 2];
        let Some(results) =
            emulator::emulate(&folder, benchmark, &kernel, &problem, block, &variants)
        else {
            return;
        };
        for (variant, arrays) in variants.iter().zip(&results) {
            for (at, expected) in (benchmark.reference)(size, &problem) {
                let difference = first_difference(&arrays[at], &expected);
                assert_eq!(difference, None, "{} {variant}: array {at}", benchmark.kernel);
                checked += 1;
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(checked > 100, "only {checked} results");
}
