//! The command line as people expect it: no `--` before a command, help without arguments, lists,
//! old names of options, the width of the terminal, and each documented exit status.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn terrace(arguments: &[&str]) -> Output {
    with(arguments, &[])
}

fn with(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command.args(arguments).env("TERRACE_LAB_DIR", "/nonexistent").env_remove("COLUMNS");
    command.envs(environment.iter().copied());
    command.stdin(Stdio::null()).output().expect("terrace runs")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = terrace(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", err(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("terrace-line-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a folder to write to");
    path
}

#[test]
fn a_command_needs_no_dashes_before_it_and_keeps_its_own_options() {
    let words = ["sh", "-c", "echo \"$@\"; exit 9", "x", "--quiet", "-j", "--", "--policy"];
    for before in [&["run", "--quiet"][..], &["run", "--quiet", "--"]] {
        let all: Vec<&str> = before.iter().chain(&words).copied().collect();
        let output = terrace(&all);
        assert_eq!(output.status.code(), Some(9), "{all:?}: {}", err(&output));
        assert_eq!(out(&output), "--quiet -j -- --policy\n", "{all:?}");
    }
    // An option that is none of ours is a mistake, not a command.
    let output = terrace(&["run", "--polcy", "terrace", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(err(&output).contains("--polcy"), "{}", err(&output));
}

#[test]
fn without_arguments_there_is_help() {
    for arguments in [&[][..], &["lab"], &["trace"]] {
        let output = terrace(arguments);
        assert_eq!((output.status.code(), err(&output)), (Some(0), String::new()), "{arguments:?}");
        assert!(out(&output).contains("Usage: "), "{}", out(&output));
    }
}

#[test]
fn lists_have_what_commands_take() {
    let names = |topic| out(&terrace(&["list", topic, "--names"]));
    for (topic, some) in [
        ("policies", &["terrace", "bound:all-fast", "kernel:damos"][..]),
        ("workloads", &["skew", "npb-cg"]),
        ("machines", &["lab-cxl", "grace-hopper"]),
        ("trackers", &["page-table", "pebs"]),
        ("commands", &["lab compare", "run"]),
    ] {
        let all = names(topic);
        for name in some {
            assert!(all.lines().any(|line| line == *name), "{topic}: {all}");
        }
        let reported = json(&["list", topic, "--json"]);
        assert_eq!(reported["version"], 1);
        assert!(
            reported[topic].as_array().is_some_and(|a| a.len() == all.lines().count()),
            "{reported}"
        );
    }
    let workloads = json(&["list", "workloads", "--json"]);
    assert!(workloads["parameters"].to_string().contains("hot_share"), "{workloads}");
    for machine in names("machines").lines() {
        assert!(terrace(&["tiers", "--machine", machine]).status.success(), "{machine}");
    }
}

#[test]
fn completions_know_names_and_keys() {
    for shell in ["bash", "zsh", "fish"] {
        let text = out(&terrace(&["completions", shell]));
        // Each shell has its own way to write a colon or a comma.
        let text = text.replace('\\', "");
        for name in ["histogram", "bound:all-fast", "grace-hopper", "damon-page", "shift,pages="] {
            assert!(text.contains(name), "{shell}: {name}");
        }
    }
}

#[test]
fn old_names_of_options_are_accepted_and_said() {
    let trace = folder("old").join("x.trace");
    let file = trace.to_str().expect("UTF-8");
    let lines = trace.with_extension("lackey");
    std::fs::write(&lines, "I  0400d7d4,8\n L 1ffeffe7e,1\n S 1ffeffe80,8\n").expect("written");
    let lines = lines.to_str().expect("UTF-8");
    let made = terrace(&["trace", "import", lines, "--from", "lackey", "-o", file]);
    assert!(made.status.success(), "{}", err(&made));
    let cases: [(&[&str], &str); 3] = [
        (&["tiers", "--from", "preset:lab-cxl"], "--from is now called --machine"),
        (&["run", "--trackers", "damon", "true"], "--trackers is now called --tracker"),
        (&["trace", "cat", file, "--limit", "1"], "--limit is now called --lines"),
    ];
    for (arguments, note) in cases {
        assert!(err(&terrace(arguments)).contains(note), "{arguments:?}");
    }
    let tiers = json(&["tiers", "--json", "--from", "preset:lab-cxl"]);
    assert!(tiers["notes"].to_string().contains("now called --machine"), "{tiers}");
    assert_eq!(terrace(&["tiers", "--from", "x", "--machine", "y"]).status.code(), Some(2));
    std::fs::remove_dir_all(trace.parent().expect("a folder")).expect("removed");
}

#[test]
fn output_is_as_wide_as_asked() {
    for arguments in [&["doctor"][..], &["list", "policies"], &["run", "--help"], &["--help"]] {
        let widest = |columns: &str| {
            let text = out(&with(arguments, &[("COLUMNS", columns)]));
            let prose = text.lines().filter(|l| !l.contains("sudo ") && !l.contains("Example: "));
            prose.map(|line| line.chars().count()).max().expect("text")
        };
        assert!(widest("60") <= 60, "{arguments:?}");
        assert!(widest("100") <= 100 && widest("100") > 60, "{arguments:?}");
    }
}

#[test]
fn json_has_a_version_and_the_notes_of_the_text() {
    let tiers = json(&["tiers", "--json"]);
    let text = out(&terrace(&["tiers"]));
    let notes = tiers["notes"].as_array().expect("notes");
    assert_eq!(tiers["version"], 1);
    assert_eq!(notes.len(), text.lines().filter(|l| l.starts_with("- ")).count(), "{text}");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for note in notes {
        let words: Vec<&str> = note.as_str().expect("text").split_whitespace().collect();
        assert!(text.contains(&words.join(" ")), "{note} in {text}");
    }
    let sim = ["sim", "--machine", "lab-cxl", "--policy", "first-touch", "--json"];
    let sim = json(&[&sim[..], &["--workload", "skew,accesses=20k"]].concat());
    assert_eq!(sim["version"], 1);
    let doctor: serde_json::Value =
        serde_json::from_slice(&terrace(&["doctor", "--json"]).stdout).expect("JSON");
    assert_eq!(doctor["version"], 1);
}

#[test]
fn report_without_a_file_takes_what_was_written_last() {
    let here = folder("latest");
    let terrace = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
        command.current_dir(&here).args(arguments).stdin(Stdio::null());
        command.output().expect("terrace runs")
    };
    let output = terrace(&["report"]);
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    let sim = ["sim", "--machine", "lab-cxl", "--policy", "terrace", "--journal", "a.jsonl"];
    let sim = terrace(&[&sim[..], &["--workload", "skew,accesses=20k"]].concat());
    assert!(sim.status.success(), "{}", err(&sim));
    let output = terrace(&["report"]);
    assert!(output.status.success(), "{}", err(&output));
    assert_eq!(err(&output), "terrace: report: a.jsonl, written last in this folder\n");
    assert!(here.join("a.html").is_file());
    std::fs::remove_dir_all(here).expect("removed");
}

/// README and manual pages: 0 done, 1 failed, 2 wrong usage, 3 the machine lacks what was asked;
/// commands that run a program have its status, and 125 to 127 for what is wrong before.
#[test]
fn each_documented_exit_status() {
    let cases: [(i32, &[&str]); 20] = [
        (0, &["tiers", "--machine", "lab-cxl"]),
        (0, &["list"]),
        (0, &["--version"]),
        (0, &["run", "--quiet", "true"]),
        (1, &["report", "/no/such/file"]),
        (1, &["trace", "info", "/etc/passwd"]),
        (1, &["gather", "-o", "/no/such/folder/x.tar"]),
        (1, &["attach", "-p", "2147483647"]),
        (1, &["record", "-o", "/no/such/folder/x.trace", "--source", "hooks", "true"]),
        (2, &["tiers", "--machine", "/no/such/file"]),
        (2, &["sim", "--machine", "lab-cxl", "--policy", "nosuch", "--workload", "skew"]),
        (2, &["sim", "--machine", "lab-cxl", "--policy", "terrace", "--workload", "nosuch"]),
        (2, &["record", "--period", "0", "true"]),
        (2, &["degrade", "0", "true"]),
        (2, &["lab", "setup", "--machine", "/no/such/file"]),
        (3, &["lab", "setup", "--machine", "lab-cxl"]),
        (7, &["run", "--quiet", "sh", "-c", "exit 7"]),
        (125, &["run", "--cpu", "0", "true"]),
        (126, &["run", "/"]),
        (127, &["run", "/no/such/program"]),
    ];
    for (status, arguments) in cases {
        let output = terrace(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", err(&output));
        let ours = err(&output);
        assert!(status == 0 || status == 7 || ours.lines().count() == 1, "{arguments:?}: {ours}");
    }
    let doctor = terrace(&["doctor", "--json"]);
    let reported: serde_json::Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
    assert_eq!(doctor.status.code(), Some(if reported["manages"] == true { 0 } else { 3 }));
}
