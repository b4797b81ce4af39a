//! `tiers`, `doctor`, `gather`, `report`, `lab` and help as programs: what they print, their
//! statuses, one line for what is wrong.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn terrace(arguments: &[&str]) -> Output {
    // No lab here: what is wrong is to be said before one is looked for.
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command
        .args(arguments)
        .env("TERRACE_LAB_DIR", "/nonexistent")
        .stdin(Stdio::null())
        .output()
        .expect("terrace runs")
}

fn folder(name: &str) -> PathBuf {
    let name = format!("see-{}-{name}", std::process::id());
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&path).expect("a folder to write to");
    path
}

fn fixture(name: &str) -> String {
    format!("{}/../../fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// One line on standard error that has `words`, this status, and nothing on standard output.
fn refuses(arguments: &[&str], status: i32, words: &str) {
    let output = terrace(arguments);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {complaint}");
    assert_eq!(complaint.lines().count(), 1, "{arguments:?}: {complaint}");
    assert!(complaint.contains(words), "{arguments:?}: {complaint}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = terrace(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn tiers_of_presets_and_gathered_trees_have_the_keys_of_the_contract() {
    let tree = fixture("sysfs/gathered-lab-cxl");
    for from in ["preset:ddr-cxl", tree.as_str()] {
        let reported = json(&["tiers", "--json", "--machine", from]);
        for key in ["machine", "source", "nodes", "tiers", "initiator"] {
            assert!(!reported[key].is_null(), "{from}: {key}");
        }
        let best = &reported["tiers"][0];
        assert_eq!(best["rank"], 0);
        for key in [
            "kind",
            "nodes",
            "capacity_bytes",
            "read_bandwidth_bytes_per_s",
            "read_latency_ns",
            "evidence",
        ] {
            assert!(!best[key].is_null(), "{from}: {key}");
        }
        assert!(
            reported["nodes"][0]["cpus"].is_array()
                && reported["nodes"][0]["capacity_bytes"].is_u64()
        );
    }
}

#[test]
fn what_cannot_be_read_is_one_line_and_wrong_usage() {
    let damaged = folder("damaged").join("machine.toml");
    std::fs::write(&damaged, "name = \"x\"\n[[node]]\nid = \"seven\"\n").expect("written");
    let damaged = damaged.to_str().expect("a name in UTF-8");
    for command in ["tiers", "sim"] {
        let with = |machine: &str, words: &str| {
            let asked = match command {
                "tiers" => vec!["tiers", "--machine", machine],
                _ => vec![
                    "sim",
                    "--machine",
                    machine,
                    "--policy",
                    "first-touch",
                    "workload:skew,accesses=1",
                ],
            };
            refuses(&asked, 2, words);
        };
        with("preset:nosuch", "nosuch");
        with("/no/such/file.toml", "/no/such/file.toml");
        with(damaged, "machine.toml");
    }
    refuses(&["tiers", "--machine", "preset:ddr-cxl", "--initiator", "77"], 2, "77");
    refuses(&["tiers", "--by", "colour"], 2, "see terrace tiers --help");
    refuses(&["nosuch"], 2, "see terrace --help");
}

#[test]
fn doctor_says_what_works_and_each_command_is_one() {
    let output = terrace(&["doctor", "--json"]);
    assert!(matches!(output.status.code(), Some(0 | 3)));
    let reported: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(reported["manages"] == true, output.status.code() == Some(0));
    let items = reported["items"].as_array().expect("items");
    assert!(items.len() > 5);
    let programs = ["sudo", "make", "terrace", "cxl", "lsmem"];
    for item in items {
        if let Some(command) = item["command"].as_str() {
            let word = command.split(' ').next().unwrap_or_default();
            assert!(programs.contains(&word) && !command.contains("..."), "{command}");
            let known = word != "terrace"
                || !terrace(
                    &command.split(' ').skip(1).take(1).chain(["--help"]).collect::<Vec<_>>(),
                )
                .stdout
                .is_empty();
            assert!(known, "{command}");
        }
    }
}

#[test]
fn gathered_machines_can_be_read_again_and_half_of_one_is_not_left() {
    let here = folder("gather");
    let tree = here.join("machine.tar");
    let name = tree.to_str().expect("a name in UTF-8");
    assert!(json(&["gather", "--json", "-o", name])["files"]
        .as_u64()
        .is_some_and(|files| files > 3));
    let (gathered, live) =
        (json(&["tiers", "--json", "--machine", name]), json(&["tiers", "--json"]));
    assert_eq!(gathered["nodes"], live["nodes"]);
    refuses(&["gather", "-o", "/dev/full"], 1, "/dev/full");
    refuses(&["gather", "-o", "/no/such/folder/machine.tar"], 1, "/no/such/folder");
    std::fs::remove_dir_all(here).expect("removed");
}

#[test]
fn reports_keep_what_was_there_where_they_cannot_be_written() {
    let here = folder("report");
    let journal = here.join("run.jsonl");
    let page = here.join("page.html");
    let ran = terrace(&[
        "sim",
        "--machine",
        "lab-cxl",
        "--policy",
        "terrace",
        "--journal",
        journal.to_str().expect("UTF-8"),
        "workload:skew,accesses=200k",
    ]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let (journal, page) = (journal.to_str().expect("UTF-8"), page.to_str().expect("UTF-8"));
    let output = terrace(&["report", journal, "-o", page]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let html = std::fs::read_to_string(page).expect("a page");
    assert!(html[..40].to_lowercase().starts_with("<!doctype html>"), "{}", &html[..40]);
    let before = std::fs::read(journal).expect("the journal");
    refuses(&["report", journal, "-o", journal], 2, "take its place");
    refuses(&["report", journal, "-o", "/dev/full"], 1, "/dev/full");
    refuses(&["report", "/no/such.jsonl"], 1, "/no/such.jsonl");
    assert_eq!(std::fs::read(journal).expect("the journal"), before);
    std::fs::remove_dir_all(here).expect("removed");
}

#[test]
fn the_lab_says_what_is_wrong_before_it_is_set_up() {
    let compare = ["lab", "compare", "--machine", "lab-cxl", "--policy"];
    let with = |policy| compare.into_iter().chain([policy]).collect::<Vec<_>>();
    refuses(&with("first-touch,nosuch"), 2, "nosuch");
    refuses(&with("kernel:damos+nosuch=1"), 2, "nosuch");
    refuses(&with("first-touch"), 3, "scripts/lab-parts.sh");
    refuses(&["lab", "setup", "--machine", "/no/such.toml"], 2, "/no/such.toml");
}

#[test]
fn help_fits_eighty_columns_and_a_closed_pipe_is_no_failure() {
    let commands = [
        "tiers", "doctor", "gather", "probe", "degrade", "run", "attach", "record", "report",
        "sim", "trace", "lab", "list",
    ];
    for command in commands {
        let help = terrace(&[command, "--help"]);
        let text = String::from_utf8_lossy(&help.stdout).into_owned();
        assert!(help.status.success() && text.contains("Usage: "), "{command}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{command}: {text}");
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("terrace starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}
