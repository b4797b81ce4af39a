//! The documents that manual pages of section 5 are made from name each key of what they describe.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn document(name: &str) -> String {
    std::fs::read_to_string(repository().join("docs").join(name)).expect(name)
}

/// Keys of all objects in a value, but for those of maps whose keys are names of anything.
fn keys(value: &serde_json::Value, found: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(object) => {
            for (key, value) in object {
                found.insert(key.clone());
                if !["params", "state", "evidence"].contains(&key.as_str()) {
                    keys(value, found);
                }
            }
        }
        serde_json::Value::Array(all) => all.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

#[test]
fn each_key_of_a_journal_is_documented() {
    let journal = std::env::temp_dir().join(format!("terrace-keys-{}.jsonl", std::process::id()));
    let ran = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["sim", "--machine", "lab-cxl", "--policy", "terrace", "--journal"])
        .arg(&journal)
        .args(["--workload", "skew,accesses=4M"])
        .output()
        .expect("terrace runs");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let mut found = BTreeSet::new();
    for line in std::fs::read_to_string(&journal).expect("the journal").lines() {
        keys(&serde_json::from_str(line).expect("JSON"), &mut found);
    }
    std::fs::remove_file(&journal).expect("removed");
    assert!(found.contains("promoted_pages") && found.contains("why"), "{found:?}");
    let text = document("journal.md");
    for key in found.iter().filter(|key| *key != "entry") {
        assert!(text.contains(&format!("`{key}`")), "docs/journal.md does not name {key}");
    }
}

#[test]
fn each_key_of_a_machine_file_is_documented() {
    let text = document("machine-file.md");
    let presets = std::fs::read_dir(repository().join("crates/machine/presets")).expect("presets");
    let mut seen = BTreeSet::new();
    for preset in presets {
        let preset = std::fs::read_to_string(preset.expect("a preset").path()).expect("text");
        let assigned = preset.lines().filter_map(|line| line.split_once(" = "));
        let named = assigned.map(|(key, _)| key.trim());
        let plain = |key: &&str| key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        seen.extend(named.filter(plain).map(str::to_owned));
    }
    assert!(seen.len() > 20, "{seen:?}");
    for key in &seen {
        assert!(text.contains(key.as_str()), "docs/machine-file.md does not name {key}");
    }
}

#[test]
fn manual_pages_are_made_of_documents_and_lose_no_section() {
    let script = repository().join("scripts/man-page.sh");
    for name in ["machine-file.md", "journal.md", "guide/preload.md"] {
        let path = repository().join("docs").join(name);
        let made = Command::new(&script).arg(&path).args(["page", "of a test"]).output();
        let page = String::from_utf8(made.expect("the script runs").stdout).expect("text");
        assert!(page.starts_with(".TH PAGE 5 "), "{name}");
        let sections = document(name).lines().filter(|line| line.starts_with("## ")).count();
        assert_eq!(page.matches("\n.SH ").count(), sections + 2, "{name}");
        assert_eq!(page.matches("\n.nf\n").count(), page.matches("\n.fi\n").count(), "{name}");
    }
}
