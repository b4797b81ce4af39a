//! Arbitrary bytes as the journal of a run in far memory: it is refused in one line, or all its
//! forms can be made.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_report::FarRun;

fuzz_target!(|data: &[u8]| {
    let _likely = FarRun::looks_like(data);
    match FarRun::read(data) {
        Ok(run) => {
            assert!(run.html().starts_with("<!DOCTYPE html>"));
            assert!(
                run.text(80).lines().all(|l| l.chars().count() <= 80),
                "lines of at most 80 columns"
            );
            assert!(run.json().is_object());
        }
        Err(why) => assert!(!why.contains('\n')),
    }
});
