//! Arbitrary text as hwloc XML.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_machine::{explain_with, from_hwloc_xml, Machine};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    match from_hwloc_xml(&text, "fuzz") {
        Ok(survey) => {
            assert!(!explain_with(&survey.machine, &survey.surroundings).is_empty());
            let again = Machine::from_toml(&survey.machine.to_toml(), "fuzz");
            assert_eq!(again, Ok(survey.machine));
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
