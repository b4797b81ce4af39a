//! `terrace probe` and `terrace degrade` as programs: an interrupt, wrong usage, what the machine
//! lacks.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn terrace() -> Command {
    Command::new(env!("CARGO_BIN_EXE_terrace"))
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("terrace-probe-{}-{name}", std::process::id()))
}

#[test]
fn an_interrupted_probe_ends_soon_and_leaves_a_partial_file() {
    let path = file("partial.toml");
    let mut child = terrace()
        .args(["probe", "-o"])
        .arg(&path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("terrace starts");
    std::thread::sleep(Duration::from_millis(1500));
    let asked = Instant::now();
    let killed =
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    assert!(killed.success());
    let mut status = None;
    while status.is_none() && asked.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
        status = child.try_wait().expect("it can be waited for");
    }
    let Some(status) = status else {
        child.kill().expect("it is killed");
        panic!("not gone a minute after SIGINT");
    };
    let output = child.wait_with_output().expect("its output");
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    if status.code() == Some(3) {
        return println!("skipped: {complaints}");
    }
    assert_eq!(status.code(), Some(130), "{complaints}");
    assert_eq!(complaints.lines().count(), 1, "silent in a pipe but for the end: {complaints}");
    let text = std::fs::read_to_string(&path).expect("the file is there");
    assert!(text.starts_with("# PARTIAL: interrupted after"), "{text}");
    let tiers = terrace().args(["tiers", "--from"]).arg(&path).output().expect("terrace runs");
    assert!(tiers.status.success() && String::from_utf8_lossy(&tiers.stdout).contains("PARTIAL"));
    std::fs::remove_file(&path).expect("removed");
}

#[test]
fn an_interrupted_degrade_is_gone_with_its_load_and_the_command_does_not_run() {
    let mark = file("degraded");
    let mut child = terrace()
        .args(["degrade", "0", "--to", "100MB/s", "--", "touch"])
        .arg(&mark)
        .stderr(Stdio::piped())
        .spawn()
        .expect("terrace starts");
    let tasks = format!("/proc/{}/task", child.id());
    let loads = || {
        let names = std::fs::read_dir(&tasks).into_iter().flatten().flatten();
        names
            .filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok())
            .any(|name| name.starts_with("terrace-load"))
    };
    // Until it searches, or says why it does not.
    while !loads() && child.try_wait().expect("it can be waited for").is_none() {
        std::thread::yield_now();
    }
    let _gone_already =
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    let output = child.wait_with_output().expect("its output");
    assert!(!mark.exists(), "the command does not run");
    assert!(!std::path::Path::new(&tasks).exists(), "nobody is left");
    match output.status.code() {
        // One CPU, or the search was at its end already.
        Some(3) => println!("skipped: {}", String::from_utf8_lossy(&output.stderr)),
        code => assert!(
            code.is_none() || code == Some(130),
            "{:?}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

#[test]
fn wrong_usage_and_what_is_lacking_have_their_status_and_the_command_does_not_run() {
    let mark = file("ran");
    let cases = [(["degrade", "0", "--to", "fast"], 2), (["degrade", "250", "--to", "1GB/s"], 3)];
    for (arguments, code) in cases {
        let output = terrace()
            .args(arguments)
            .args(["--", "touch"])
            .arg(&mark)
            .output()
            .expect("terrace runs");
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        assert!(!mark.exists());
    }
    for (list, code) in [("some", 2), ("8000", 3)] {
        let arguments = ["degrade", "0", "--to", "1GB/s", "--load-cpus", list, "--", "touch"];
        let output = terrace().args(arguments).arg(&mark).output().expect("terrace runs");
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        // Status 3 is also that of a machine of one CPU.
        assert_eq!(
            (output.status.code(), complaint.lines().count()),
            (Some(code), 1),
            "{complaint}"
        );
        assert!(!mark.exists());
    }
    let output = terrace()
        .args(["probe", "--quick", "-o", "/no/such/folder/m.toml"])
        .output()
        .expect("terrace runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("give another file"));
}
