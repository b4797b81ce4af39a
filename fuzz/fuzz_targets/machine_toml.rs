//! Arbitrary text as a machine file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_machine::{explain, rank, render_text, RankAttribute, Machine};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    match Machine::from_toml(&text, "fuzz") {
        Ok(machine) => {
            assert_eq!(machine.check(), Ok(()));
            if let Ok(ranking) = rank(&machine, RankAttribute::Bandwidth, None) {
                let _ = render_text(&machine, &ranking, "fuzz");
            }
            assert!(!explain(&machine).is_empty());
            assert_eq!(Machine::from_toml(&machine.to_toml(), "fuzz"), Ok(machine));
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
