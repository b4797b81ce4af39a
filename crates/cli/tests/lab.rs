//! `terrace lab` as its guide describes it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

fn terrace(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_terrace")).args(args).output();
    String::from_utf8(out.expect("terrace runs").stdout).expect("text")
}

fn file(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(name)).expect("a file of the tree")
}

/// Every `--option` in a text.
fn options(text: &str) -> BTreeSet<String> {
    let of_option = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.match_indices("--")
        .filter(|(at, _)| !text[..*at].ends_with(|c: char| of_option(c) || c.is_ascii_uppercase()))
        .map(|(at, _)| text[at..].chars().take_while(|c| of_option(*c)).collect::<String>())
        .map(|option| option.trim_end_matches('-').to_owned())
        .filter(|option| option.len() > 2)
        .collect()
}

#[test]
fn the_guide_names_options_that_exist() {
    let mut known: BTreeSet<String> = ["setup", "run", "compare"]
        .iter()
        .flat_map(|command| options(&terrace(&["lab", command, "--help"])))
        .collect();
    assert!(known.contains("--machine") && known.contains("--stdin"), "{known:?}");
    // Those of cargo and of `terrace run`, and of the examples that the guide names.
    known.extend(["--release", "--example"].map(String::from));
    known.extend(options(&terrace(&["run", "--help"])));
    for example in ["lab", "sweep"] {
        let source = file(&format!("crates/lab/examples/{example}.rs"));
        known.extend(options(&source));
    }
    let named = options(&file("lab/README.md"));
    assert!(named.contains("--dir") && named.contains("--journals"), "{named:?}");
    let unknown: Vec<&String> = named.difference(&known).collect();
    assert!(unknown.is_empty(), "lab/README.md names {unknown:?}, which no command has");
}

#[test]
fn what_a_command_needs_is_checked_before_anything_runs() {
    for (option, value) in [
        ("--file", "no-such-file"),
        ("--dir", "no-such-dir"),
        ("--stdin", "no-such"),
        ("--env", "X"),
    ] {
        let out = Command::new(env!("CARGO_BIN_EXE_terrace"))
            .args(["lab", "run", option, value, "--", "true"])
            .env("TERRACE_LAB_DIR", "/no/such/lab")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{option}: {text}");
        assert!(text.contains(value) && text.lines().count() == 1, "{option}: {text}");
    }
}
