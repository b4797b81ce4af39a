//! `terrace run --dram --far`: the command's output and status are its own, and one line says what
//! it took.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The library, built for this profile; `None`, and a word, where it cannot be.
fn library() -> Option<PathBuf> {
    let terrace = Path::new(env!("CARGO_BIN_EXE_terrace"));
    let library = terrace.with_file_name("libterrace_far_preload.so");
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    build
        .args(["build", "--quiet", "-p", "terrace-far-preload"])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if terrace.parent().is_some_and(|p| p.ends_with("release")) {
        build.arg("--release");
    }
    let built =
        if std::env::var_os("TERRACE_FAR_BUILT").is_none() { Some(build.status()) } else { None };
    if library.is_file() {
        return Some(library);
    }
    println!("skipped: {} cannot be built: {built:?}", library.display());
    None
}

fn run(options: &[&str], library: &Path, script: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace"))
        .arg("run")
        .args(options)
        .args(["--", "sh", "-c", script])
        .env("TERRACE_FAR_PRELOAD", library)
        .output()
        .unwrap()
}

/// Sorts more than fits, in the order of nothing.
const SORT: &str =
    "seq 300000 | awk '{print ($1 * 7919) % 300007, $1}' | sort -S 48M -k2,2n | cksum; exit 7";

#[test]
fn a_command_runs_with_its_memory_far() {
    let Some(library) = library() else { return };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let summary = folder.join("far-summary.json");
    let plain = Command::new("sh").args(["-c", SORT]).output().unwrap();
    let far = folder.to_string_lossy();
    let journal = folder.join("far-journal.jsonl");
    let files = [summary.to_str().unwrap(), journal.to_str().unwrap()];
    let options =
        ["--dram", "8M", "--far", far.as_ref(), "--summary", files[0], "--journal", files[1]];
    let ran = run(&options, &library, SORT);
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    if ran.status.code() == Some(125) && said.contains("userfaultfd") {
        return println!("skipped: {said}");
    }
    assert_eq!((ran.status.code(), ran.stdout), (Some(7), plain.stdout), "{said}");
    assert!(said.starts_with("terrace: far memory: ") && said.lines().count() == 1, "{said}");
    let reported: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&summary).unwrap()).unwrap();
    let number = |name: &str| reported[name].as_u64().unwrap();
    assert!(number("faults") > 0 && number("written_bytes") > 1 << 20, "{reported}");
    assert!(number("most_resident_bytes") <= 8 << 20, "{reported}");
    let text = std::fs::read_to_string(&journal).unwrap();
    let end: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&end["faults"], &end["written_bytes"]),
        (&reported["faults"], &reported["written_bytes"]),
        "{text}"
    );
    let shown = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["report", files[1], "--json"])
        .output()
        .unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["end"]["misses"], reported["misses"]);
    let quiet = run(
        &["--quiet", "--dram", "8M", "--far", "compressed"],
        &library,
        "echo out; echo err >&2; kill -9 $$",
    );
    assert_eq!((quiet.stdout, quiet.stderr), (b"out\n".to_vec(), b"err\n".to_vec()));
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&quiet.status), Some(9));
}

#[test]
fn what_is_asked_wrongly_ends_before_the_command() {
    let Some(library) = library() else { return };
    for (options, why) in [
        (["--dram", "much", "--far", "compressed"], "--dram much"),
        (["--dram", "1M", "--far", "compressed"], "at least 4 MiB"),
        (["--dram", "101%", "--far", "compressed"], "--dram 101%"),
        (["--dram", "64M", "--far", "/no/such/folder"], "/no/such/folder"),
    ] {
        let ran = run(&options, &library, "echo ran");
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        if ran.status.code() == Some(125) && said.contains("userfaultfd") {
            println!("skipped: {said}");
            continue;
        }
        assert_eq!((ran.status.code(), ran.stdout.len()), (Some(125), 0), "{said}");
        assert!(said.contains(why) && said.lines().count() == 1, "{said}");
    }
    let alone = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["run", "--dram", "8M", "--", "true"])
        .output()
        .unwrap();
    // As env(1), whose own failures are 125 whatever they are.
    assert_eq!(alone.status.code(), Some(125));
}

#[test]
fn where_userfaultfd_is_refused_the_status_is_125_and_says_what_to_set() {
    let allowed =
        std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    if allowed.trim() != "0" {
        return println!("skipped: vm.unprivileged_userfaultfd is not 0 here");
    }
    let command = |program: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--clear-groups", "--inh-caps=-all", program]);
        command
    };
    if !command("true").status().is_ok_and(|s| s.success()) {
        return println!("skipped: setpriv cannot become another user here");
    }
    if !command(env!("CARGO_BIN_EXE_terrace"))
        .arg("--version")
        .output()
        .is_ok_and(|o| o.status.success())
    {
        return println!("skipped: other users cannot reach the program");
    }
    let mut refused = command(env!("CARGO_BIN_EXE_terrace"));
    let ran = refused
        .args(["run", "--dram", "8M", "--far", "compressed", "--", "echo", "ran"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!((ran.status.code(), ran.stdout.len()), (Some(125), 0), "{said}");
    assert!(said.contains("vm.unprivileged_userfaultfd=1"), "{said}");
}
