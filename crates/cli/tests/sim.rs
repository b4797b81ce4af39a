//! `terrace sim` as a user calls it: what it writes beside its table.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn terrace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace")).args(arguments).output().unwrap()
}

fn simulate(policies: &str, folder: &Path) -> Output {
    let (journal, report) = (folder.join("run.journal"), folder.join("run.html"));
    terrace(&[
        "sim",
        "--machine=lab-cxl",
        &format!("--policy={policies}"),
        "--journal",
        journal.to_str().unwrap(),
        "--report",
        report.to_str().unwrap(),
        "workload:skew,accesses=400k,fast=4MiB",
    ])
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("terrace-sim-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn journals_and_reports_are_those_of_a_live_run() {
    let folder = folder("files");
    let output = simulate("bound:static,terrace,hyplacer", &folder);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for policy in ["terrace", "hyplacer"] {
        let journal = folder.join(format!("run-{policy}.journal"));
        let text = std::fs::read_to_string(&journal).unwrap();
        assert!(
            text.starts_with("{\"terrace_journal\":1,") && text.contains("\"entry\":\"end\""),
            "{text}"
        );
        // `terrace report` makes of it what was written at once.
        let page = folder.join("again.html");
        let again = terrace(&["report", journal.to_str().unwrap(), "-o", page.to_str().unwrap()]);
        assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
        assert_eq!(
            std::fs::read(&page).unwrap(),
            std::fs::read(folder.join(format!("run-{policy}.html"))).unwrap()
        );
    }
    assert!(!folder.join("run-bound-static.journal").exists());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn without_a_journal_it_says_what_to_add() {
    let folder = folder("none");
    let output = simulate("bound:static", &folder);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("add one such as terrace to --policy"), "{said}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::remove_dir_all(folder).unwrap();
}
