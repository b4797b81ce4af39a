//! Measurements and profilers' pages from anywhere: read or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_gpu::counters::read_profiler_page;
use terrace_gpu::data::{read_counters, read_profile, read_shapes, read_timings};

fuzz_target!(|text: &str| {
    let _timings = read_timings("fuzz.csv", text);
    let _profile = read_profile("fuzz.csv", text);
    let _counters = read_counters("fuzz.csv", text);
    let _shapes = read_shapes("fuzz.csv", text);
    let _page = read_profiler_page(text);
});
