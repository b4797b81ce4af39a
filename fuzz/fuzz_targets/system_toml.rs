//! System files: no input panics, and what is read has pools and a fabric.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_pool::SystemDescription;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        if let Ok(system) = SystemDescription::from_toml(text, "fuzz.toml") {
            assert!(system.list_pools("fuzz.toml").is_ok());
            assert!(system.fabric("fuzz.toml").is_ok());
        }
    }
});
