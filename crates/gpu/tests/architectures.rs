//! Benchmark kernels compile for GPUs of three generations: each source for all three, each of its
//! variants for one of them in turn.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use terrace_gpu::benchmark::BENCHMARKS;
use terrace_gpu::measure::{hopper_limits, CompileUnit};
use terrace_gpu::variant::list_variants;
use terrace_sys::compute::{CompileError, KernelCompiler};

/// Volta, Ampere and Hopper.
const ARCHITECTURES: [&str; 3] = ["sm_70", "sm_80", "sm_90"];

#[test]
fn kernels_and_variants_compile_for_three_generations() {
    let compiler = match KernelCompiler::load() {
        Ok(compiler) => compiler,
        Err(why) => return println!("skipped: {why}"),
    };
    let (mut compiled, mut seen) = (0, BTreeSet::new());
    for benchmark in BENCHMARKS {
        let kernel = benchmark.signature().unwrap();
        let problem = (benchmark.problem)(benchmark.sizes[0]);
        let block = benchmark.check_block();
        for variant in list_variants(&kernel, &problem.elements(&kernel), &hopper_limits()) {
            let unit = CompileUnit::of_variant(benchmark, &kernel, &problem, block, &variant);
            let all = variant.moved().next().is_none();
            for architecture in ARCHITECTURES {
                if !all && architecture != ARCHITECTURES[compiled % ARCHITECTURES.len()] {
                    continue;
                }
                // Placements that leave the source alone are the same unit.
                if !seen.insert(unit.file_name(architecture)) {
                    continue;
                }
                let (text, defines) = (&unit.source.text, &unit.defines);
                match compiler.compile(&unit.name, text, architecture, defines) {
                    Ok(code) => assert_eq!(code[..4], *b"\x7fELF", "{variant} of {}", unit.name),
                    // NVRTC 13 has left Volta behind.
                    Err(CompileError::Refused { log, .. })
                        if log.contains("--gpu-architecture") && architecture == "sm_70" => {}
                    Err(why) => panic!("{variant} for {architecture}: {why}"),
                }
                compiled += 1;
                if !all {
                    break;
                }
            }
        }
    }
    println!("{compiled} units for {}", ARCHITECTURES.join(", "));
    assert!(compiled > 3 * BENCHMARKS.len(), "{compiled} units");
}
