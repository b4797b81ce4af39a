//! `terrace device hbm` as a user calls it.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn terrace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace")).args(arguments).output().unwrap()
}

fn describe(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_preset_becomes_a_machine_that_is_simulated() {
    let folder = std::env::temp_dir().join(format!("terrace-device-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("m.toml");
    let path = file.to_str().unwrap();
    let output = terrace(&["device", "hbm", "preset:hbm2", "-o", path]);
    let text = describe(&output);
    assert!(output.status.success() && text.contains("256 GB/s"), "{text}");
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    let workload = "workload:skew,accesses=100k,fast=4MiB";
    let run = terrace(&["sim", "--machine", path, "--policy", "first-touch", workload]);
    assert!(run.status.success() && describe(&run).contains("first-touch"), "{}", describe(&run));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_sweep_lists_all_designs_and_marks_impossible_ones() {
    let output = terrace(&[
        "device",
        "hbm",
        "hbm3",
        "--sweep",
        "dies=4..10:3",
        "--sweep",
        "bonding=microbump,hybrid",
        "--json",
    ]);
    assert!(output.status.success(), "{}", describe(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["version"], 1);
    let designs = json["designs"].as_array().unwrap();
    assert_eq!(designs.len(), 6);
    assert!(designs[0]["evaluation"]["sustained_bytes_per_s"]["mixed"].as_f64().unwrap() > 1e11);
    assert!(designs[2]["impossible"].as_str().unwrap().contains("7 dies of 4 channels"));
    assert!(designs.iter().any(|d| d["pareto"] == true));
}

#[test]
fn a_program_runs_on_stacks_with_temperature_in_the_loop() {
    let output = terrace(&[
        "sim",
        "--machine=stack:hbm2",
        "--sweep=dies=8",
        "--policy=bound:all-fast",
        "--json",
        "workload:stream,accesses=400k,fast=128MiB",
    ]);
    assert!(output.status.success(), "{}", describe(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 1);
    for run in runs {
        assert!(run["seconds"].as_f64().unwrap() > 0.0, "{run}");
        assert!(run["stack_bytes_per_s"].as_f64().unwrap() > 1e8, "{run}");
        assert!(run["hottest_c"].as_f64().unwrap() > 40.0, "{run}");
    }
}

#[test]
fn a_sweep_of_a_stacks_key_needs_no_more_than_a_program() {
    let output = terrace(&["sim", "--sweep=dies=4..8", "workload:stream,accesses=100k,fast=8MiB"]);
    let text = describe(&output);
    assert!(output.status.success() && text.contains("dies=8"), "{text}");
    for arguments in [&["sim", "--sweep=fast=10%..20%", "workload:skew"][..], &["sim", "x"][..]] {
        let output = terrace(arguments);
        assert_eq!(output.status.code(), Some(2), "{}", describe(&output));
        assert!(describe(&output).contains("--machine"), "{}", describe(&output));
    }
}

#[test]
fn what_is_wrong_is_one_line_and_a_status() {
    for (arguments, expected) in [
        (&["device", "hbm", "preset:hbm9"][..], "known: hbm1"),
        (&["device", "hbm", "/nowhere.toml"][..], "give a stack file or preset:NAME"),
        (&["device", "hbm", "hbm2", "--sweep", "dies=99"][..], "from 1 to 32"),
        (
            &["sim", "--machine=stack:x", "--policy=first-touch", "workload:skew"][..],
            "stack file x",
        ),
    ] {
        let output = terrace(arguments);
        let said = describe(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected) && said.trim_end().lines().count() == 1, "{said}");
    }
}
