//! `run` and `attach` as programs, on whatever machine this is: the command's streams, status and
//! signals are its own.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn terrace() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command.stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    terrace().args(arguments).output().expect("terrace runs")
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("terrace-manage-{}-{name}", std::process::id()))
}

/// Whether this machine has tiers and all that managing takes.
fn manages() -> bool {
    run(&["doctor", "--json"]).status.code() == Some(0)
}

#[test]
fn failures_before_the_command_have_the_status_of_env_and_one_line() {
    let cases: [(&[&str], i32); 6] = [
        (&["run"], 125),
        (&["run", "--cpu", "abc", "--", "true"], 125),
        (&["run", "--cpu", "0", "--", "true"], 125),
        (&["run", "--policy", "nosuch", "--", "true"], 125),
        (&["run", "--", "/no/such/program"], 127),
        (&["run", "--", "/"], 126),
    ];
    for (arguments, status) in cases {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", complaint(&output));
        assert_eq!(complaint(&output).lines().count(), 1, "{arguments:?}: {}", complaint(&output));
    }
}

#[test]
fn the_command_has_its_own_status_streams_and_signals() {
    let output = run(&["run", "--quiet", "--", "sh", "-c", "echo out; echo err >&2; exit 42"]);
    assert_eq!(output.status.code(), Some(42));
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (&b"out\n"[..], &b"err\n"[..])
    );
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(
        run(&["run", "--quiet", "--", "sh", "-c", "kill -KILL $$"]).status.signal(),
        Some(9)
    );
}

/// The runtime of the language ignores SIGPIPE and its library gives it back its default action:
/// neither is what the caller had.
#[test]
fn a_signal_that_the_caller_ignores_is_ignored_in_the_command() {
    let tool = env!("CARGO_BIN_EXE_terrace");
    let ignored = |before: &str| {
        let script = format!("{before} \"$0\" run --quiet -- grep SigIgn /proc/self/status");
        let output = Command::new("sh").args(["-c", &script, tool]).output().expect("sh runs");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let bit = |text: &str| {
        u64::from_str_radix(text.rsplit('\t').next().unwrap_or_default(), 16).expect("a mask") >> 12
            & 1
    };
    assert_eq!(bit(&ignored("trap '' PIPE;")), 1);
    assert_eq!(bit(&ignored("trap - PIPE;")), 0);
}

#[test]
fn a_run_that_is_not_managed_says_so_and_its_journal_too() {
    if manages() {
        return println!("skipped: this machine has tiers, so that runs are managed");
    }
    let (journal, summary) = (file("unmanaged.jsonl"), file("summary.json"));
    std::fs::write(&journal, "of an older run\n").expect("written");
    let output = terrace()
        .args(["run", "--journal"])
        .arg(&journal)
        .arg("--summary")
        .arg(&summary)
        .args(["true", "--flag", "-x"])
        .output()
        .expect("terrace runs");
    assert_eq!(output.status.code(), Some(0));
    assert!(complaint(&output).contains("ran unmanaged: "), "{}", complaint(&output));
    let name = journal.to_str().expect("UTF-8");
    let reported: serde_json::Value =
        serde_json::from_slice(&run(&["report", "--json", name]).stdout).expect("JSON");
    assert!(
        reported["header"]["command"] == "true --flag -x"
            || reported["command"] == "true --flag -x",
        "{reported}"
    );
    let reported = reported.to_string();
    assert!(reported.contains("ran unmanaged: ") && !reported.contains("older"), "{reported}");
    let reported: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&summary).expect("a summary")).expect("JSON");
    assert!(
        reported["managed"] == false && reported["unmanaged_because"].is_string(),
        "{reported}"
    );
    assert_eq!(reported["version"], 1);
    // A summary that cannot be written changes nothing of how the command ends; a journal is
    // opened before it starts.
    let output = run(&["run", "--summary", "/dev/full", "--", "sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    assert!(complaint(&output).contains("summary /dev/full: "), "{}", complaint(&output));
    let output = run(&["run", "--journal", "/no/such/file", "sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(125), "{}", complaint(&output));
    for path in [journal, summary] {
        std::fs::remove_file(path).expect("removed");
    }
}

#[test]
fn attach_refuses_what_it_cannot_do_with_one_line() {
    let me = std::process::id().to_string();
    let gone = i32::MAX.to_string();
    let mut cases: Vec<(Vec<&str>, i32)> = vec![
        (vec!["attach", "-p", &gone], 1),
        (vec!["attach", "-p", "2"], 1),
        (vec!["attach", "-p", &me, "--policy", "nosuch"], 2),
        (vec!["attach", "-p", &me, "--seconds=nan"], 2),
        (vec!["attach", "-p", &me, "--seconds=-1"], 2),
        (vec!["attach", "-p", &me, "--seconds=inf"], 2),
        (vec!["attach"], 2),
    ];
    if !manages() {
        cases.push((vec!["attach", "-p", &me, "--seconds=1"], 3));
    }
    for (arguments, status) in cases {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", complaint(&output));
        assert_eq!(complaint(&output).lines().count(), 1, "{arguments:?}: {}", complaint(&output));
    }
}
