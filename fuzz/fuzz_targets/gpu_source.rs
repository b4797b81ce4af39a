//! CUDA sources from anywhere: analysed and rewritten, or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_gpu::analysis::{analyze_kernel, LaunchNumbers};
use terrace_gpu::placement::ArrayPlacement;
use terrace_gpu::source::{find_kernels, rewrite_kernel, PlacedArray};

fuzz_target!(|source: &str| {
    let launch = LaunchNumbers { grid: [8; 3], block: [32, 4, 1], ..LaunchNumbers::default() };
    for kernel in find_kernels(source).unwrap_or_default() {
        let _access = analyze_kernel(source, &kernel, &launch);
        let placed: Vec<PlacedArray> = kernel
            .arrays
            .iter()
            .zip(ArrayPlacement::ALL.iter().cycle())
            .map(|(a, p)| PlacedArray { name: a.name.clone(), elements: 64, placement: *p })
            .collect();
        let _variant = rewrite_kernel(source, &kernel, &placed);
    }
});
