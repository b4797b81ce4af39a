//! `terrace sim --system` as a user calls it.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn terrace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace")).args(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = terrace(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// One host with local-first on Opal's system, and its machine alone.
fn compare_with_machine(input: &str) {
    let system = json(&["sim", "--system=opal", "--json", input]);
    let machine =
        json(&["sim", "--machine=disaggregated", "--policy=first-touch", "--json", input]);
    let (host, alone) = (&system["runs"][0]["hosts"][0], &machine["runs"][0]);
    assert!(alone["seconds"].as_f64().unwrap() > 0.0);
    for key in ["seconds", "caches", "fast_access_share"] {
        assert_eq!(host[key], alone[key], "{key} of {input}");
    }
    assert_eq!(host["policy"], "local-first");
}

#[test]
fn one_host_with_local_first_is_the_machine_alone() {
    compare_with_machine("workload:skew,accesses=300k,fast=8MiB");
}

#[test]
fn a_recording_of_a_real_program_runs_on_hosts_that_share_pools() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/traces");
    let trace = folder.join("pennant.trace");
    if !trace.exists() {
        println!("skipped: {} is not there", trace.display());
        return;
    }
    compare_with_machine(trace.to_str().unwrap());
}

#[test]
fn policies_and_counts_are_taken_and_the_table_fits() {
    let input = "workload:skew,accesses=100k,fast=8MiB";
    let policy = "--policy=alternate,round-robin,proportional";
    let arguments = ["sim", "--system=opal", "--hosts=2", "--pools=4", policy, input];
    let answer = json(&[&arguments[..], &["--json"]].concat());
    assert_eq!((&answer["version"], answer["pools"].as_array().unwrap().len()), (&1.into(), 5));
    let runs = answer["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    for (run, parts) in runs.iter().zip([2.0, 5.0, 9.0]) {
        for host in run["hosts"].as_array().unwrap() {
            let frames = |pool: &Value| pool["frames"].as_f64().unwrap();
            let pools = host["pools"].as_array().unwrap();
            let local = frames(&pools[0]) / pools.iter().map(frames).sum::<f64>();
            assert!((local * parts - 1.0).abs() < 0.01, "{}: {local}", host["policy"]);
        }
    }
    let table = String::from_utf8(terrace(&arguments).stdout).unwrap();
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert_eq!(table.matches("node1").count(), 3, "{table}");
}

#[test]
fn what_is_wrong_is_said_in_one_line_with_status_2() {
    let input = "workload:skew,accesses=1k";
    for (arguments, expected) in [
        (&["--system=no-such-file", input][..], "system file no-such-file: "),
        (&["--system=opal", "--policy=best", input], "allocation policy \"best\" is unknown"),
        (&["--system=opal", "--hosts=65", input], "65 hosts; give 1 to 64"),
        (&["--system=opal", "--hosts=3", input, input], "2 inputs; give one, or one for each of 3"),
        (&["--system=opal", "--pools=3", input], "is no whole number of frames in each of 3"),
        (&["--system=opal", "--placement=best", input], "placement: no policy is called \"best\""),
        (&["--system=opal", "shared:line=1"], "\"line=1\": give lines, reads"),
        (&["--system=opal", "shared:lines=0"], "lines: 0; give 1 to"),
        (&["--machine=lab-cxl", "--policy=first-touch", input, input], "several inputs: give one"),
        (&["--system=opal", "--machine=lab-cxl", input], "--machine"),
        (&["--policy=first-touch", input], "--machine"),
    ] {
        let output = terrace(&[&["sim"], arguments].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(expected), "{arguments:?}: {errors}");
        assert_eq!(errors.trim_end().lines().count(), 1, "{errors}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn stale_reads_of_shared_memory_are_reported() {
    let run = |input: &str| json(&["sim", "--system=opal", "--hosts=1,4", "--json", input]);
    let (kept, broken) = (run("shared:"), run("shared:invalidate=no"));
    assert_eq!(kept["kind"], "shared_memory");
    for (run, hosts) in kept["runs"].as_array().unwrap().iter().zip([1, 4]) {
        assert_eq!((&run["hosts"], &run["stale_reads"]), (&hosts.into(), &0.into()));
    }
    assert_eq!(broken["runs"][0]["stale_reads"], 0, "one host alone");
    assert!(broken["runs"][1]["stale_reads"].as_u64().unwrap() > 0);
    let text = terrace(&["sim", "--system=opal", "--hosts=4", "shared:invalidate=no"]).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("4 hosts: the first stale read is of line"), "{text}");
}
