//! `terrace run --alloc`: plans are checked before anything runs, and the command's output and
//! status are its own.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("alloc-{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The library, built for this profile; `None`, and a word, where it cannot be.
fn library() -> Option<PathBuf> {
    let terrace = Path::new(env!("CARGO_BIN_EXE_terrace"));
    let library = terrace.with_file_name("libterrace_preload.so");
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    build
        .args(["build", "--quiet", "-p", "terrace-preload"])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if terrace.parent().is_some_and(|p| p.ends_with("release")) {
        build.arg("--release");
    }
    let built = build.status();
    if library.is_file() {
        return Some(library);
    }
    println!("skipped: {} cannot be built: {built:?}", library.display());
    None
}

fn run(plan: &Path, library: &Path, script: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["run", "--alloc"])
        .arg(plan)
        .args(["--", "sh", "-c", script])
        .env("TERRACE_PRELOAD", library)
        .env("TERRACE_ALLOC_REPORT", plan.with_file_name("report"))
        .output()
        .unwrap()
}

#[test]
fn a_command_runs_with_its_allocations_placed() {
    let Some(library) = library() else { return };
    let folder = folder("runs");
    let (plan, report) = (folder.join("plan"), folder.join("report"));
    let _of_an_earlier_run = std::fs::remove_file(&report);
    std::fs::write(&plan, "arena all\ndefault all\n").unwrap();
    // A program of its own says "out": some shells end by _exit, at which no report is written.
    let ran = run(&plan, &library, "/bin/echo out; echo err >&2; exit 7");
    assert_eq!(ran.status.code(), Some(7));
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "out\n");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(said.starts_with("err\n") && said.contains("its allocations went where"), "{said}");
    let reported = std::fs::read_to_string(&report).unwrap_or_default();
    assert!(reported.contains(" all peak_bytes "), "{reported}");
}

#[test]
fn a_plan_that_cannot_be_followed_ends_before_the_command() {
    let folder = folder("wrong");
    let plan = folder.join("plan");
    for (text, why) in [("arena a only 999\n", "node 999"), ("size 1.. b\n", "line 1")] {
        std::fs::write(&plan, text).unwrap();
        let ran = run(&plan, Path::new("/nowhere"), "echo ran");
        assert_eq!((ran.status.code(), ran.stdout.len()), (Some(125), 0));
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(said.contains(why) && said.lines().count() == 1, "{said}");
    }
    let with_policy = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["run", "--alloc", "plan", "--policy", "terrace", "--", "true"])
        .output()
        .unwrap();
    // As env(1), whose own failures are 125 whatever they are.
    assert_eq!(with_policy.status.code(), Some(125));
}
