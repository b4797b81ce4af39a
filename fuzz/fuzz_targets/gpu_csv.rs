//! Measurements and profilers' pages from anywhere: read or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_gpu::counters::{longest_launch, read_profiler_page, write_recorded_run};
use terrace_gpu::data::{read_counters, read_profile, read_shapes, read_timings};
use terrace_gpu::managed::read_managed_arrays;

fuzz_target!(|text: &str| {
    let _timings = read_timings("fuzz.csv", text);
    let _profile = read_profile("fuzz.csv", text);
    let _counters = read_counters("fuzz.csv", text);
    let _shapes = read_shapes("fuzz.csv", text);
    let _launch = longest_launch("fuzz.csv", text, "k");
    if let Ok(launches) = read_profiler_page(text) {
        // What was read is written so that it can be read again.
        let file = write_recorded_run(&launches);
        for launch in &launches {
            let _longest = longest_launch("fuzz.csv", &file, &launch.kernel);
        }
    }
    let _arrays = read_managed_arrays("fuzz.csv", text);
});
