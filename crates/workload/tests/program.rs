//! The program: its output, its marks, its handshake.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output};

fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace-workload"))
        .args(arguments)
        .env_remove("TERRACE_MARK_LOG")
        .env_remove("TERRACE_MARK_FIFO")
        .env_remove("TERRACE_MARK_REPLY")
        .envs(environment.iter().copied())
        .output()
        .expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn output_is_the_same_each_time_and_holds_no_time() {
    let spec = "skew,fast=1MiB,accesses=100k,seed=7";
    let (first, second) = (run(&[spec], &[]), run(&[spec], &[]));
    assert!(first.status.success());
    assert_eq!(text(&first.stdout), text(&second.stdout));
    assert_eq!(text(&first.stdout).lines().count(), 1);
    assert!(text(&first.stderr).contains("\"seconds\":"), "{}", text(&first.stderr));
}

#[test]
fn a_misspelt_parameter_is_wrong_usage() {
    for arguments in [&["skew,acesses=1"][..], &["skwe"], &[], &["skew", "more"]] {
        let output = run(arguments, &[]);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}

#[test]
fn times_go_to_the_log_and_a_listener_is_notified_and_awaited() {
    let folder = std::env::temp_dir().join(format!("terrace-workload-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (log, fifo, reply) = (path("log"), path("fifo"), path("reply"));
    for name in [&fifo, &reply] {
        let made = Command::new("mkfifo").arg(name).status().expect("mkfifo starts");
        assert!(made.success());
    }
    let (heard, answer) = (fifo.clone(), reply.clone());
    let listener = std::thread::spawn(move || {
        let mut line = String::new();
        let file = std::fs::File::open(heard).expect("the program opens the other end");
        BufReader::new(file).read_line(&mut line).expect("a line comes");
        std::thread::sleep(std::time::Duration::from_millis(150));
        let mut file = std::fs::OpenOptions::new().write(true).open(answer).expect("awaited");
        file.write_all(b"go\n").expect("read");
        line
    });
    let output = run(
        &["skew,fast=1MiB,accesses=10k"],
        &[("TERRACE_MARK_LOG", &log), ("TERRACE_MARK_FIFO", &fifo), ("TERRACE_MARK_REPLY", &reply)],
    );
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    assert!(listener.join().expect("heard").starts_with("begin "));
    let logged = std::fs::read_to_string(&log).expect("a log");
    let seconds: f64 = logged
        .split("\"seconds\":")
        .nth(1)
        .and_then(|rest| rest.split(',').next())
        .and_then(|number| number.parse().ok())
        .expect("seconds are logged");
    assert!(seconds > 0.15, "the wait is part of the phase: {seconds}");
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn the_marks_are_in_the_program() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_terrace-workload")).expect("readable");
    if !cfg!(target_arch = "x86_64") {
        println!("skipped: marks exist on x86-64 only");
        return;
    }
    for last in [1, 2] {
        let mark = [0x0f, 0x1f, 0x80, last, 0xa0, 0x44, 0x7e];
        assert!(program.windows(mark.len()).any(|w| w == mark), "mark {last} is missing");
    }
}
