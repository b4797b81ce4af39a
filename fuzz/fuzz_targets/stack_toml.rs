//! Stack files: no input panics, and what is read can be evaluated at its edges.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_device::hbm::file;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        if let Ok(design) = file::read(text, "fuzz.toml") {
            assert!(file::check(&design).is_ok());
        }
    }
});
