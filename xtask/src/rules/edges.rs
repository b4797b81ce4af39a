//! Who may use whom. The table is the law; it is changed together with a record in `docs/adr`.

use super::Finding;
use crate::tree::Tree;
use toml::{Table, Value};

/// A space (folder of the package, less `crates/`) and the rooms it may use.
const LAW: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("machine", &["types"]),
    ("sampling", &["types"]),
    ("trace", &["types", "sampling"]),
    ("cache", &["types"]),
    ("crash", &["cache", "trace"]),
    ("device", &["types", "machine"]),
    ("fabric", &["types"]),
    ("migratory", &["types", "fabric"]),
    ("vertex", &["types", "trace", "migratory"]),
    ("riscv", &["types", "trace"]),
    ("xbgas", &["types", "machine", "model", "fabric", "riscv", "sys"]),
    ("model", &["types", "machine", "cache"]),
    ("policy", &["types", "machine"]),
    ("engine", &["types", "machine", "policy"]),
    ("workload", &["types"]),
    (
        "sim",
        &[
            "types", "machine", "cache", "model", "trace", "policy", "engine", "tracker", "mover",
            "workload",
        ],
    ),
    ("pool", &["types", "machine", "cache", "model", "workload", "sim", "fabric"]),
    ("sys", &["types"]),
    ("topology", &["types", "machine", "sys"]),
    ("tracker", &["types", "engine"]),
    ("track", &["types", "engine", "tracker", "sys", "sampling"]),
    ("mover", &["types", "engine"]),
    ("migrate", &["types", "engine", "mover", "sys"]),
    ("probe", &["types", "machine", "sys", "migrate"]),
    ("alloc", &["types", "machine", "policy", "sys", "topology", "migrate"]),
    ("far", &["types", "machine", "policy", "sys"]),
    ("gpu", &["types", "sys"]),
    ("report", &["types", "trace", "engine", "sampling"]),
    ("lab", &["types", "machine", "model", "report", "sampling"]),
    ("guest", &["types", "sys", "sampling"]),
    ("lab/plugin", &["types", "machine", "model", "sampling"]),
    (
        "terrace",
        &[
            "types",
            "machine",
            "trace",
            "cache",
            "model",
            "policy",
            "engine",
            "workload",
            "sim",
            "sys",
            "topology",
            "track",
            "migrate",
            "probe",
            "alloc",
            "far",
            "gpu",
            "report",
            "lab",
            "pool",
            "device",
            "riscv",
            "xbgas",
            "crash",
            "migratory",
            "vertex",
        ],
    ),
    ("cli", &["terrace"]),
    // A program that allocates or stages should not link the lab and the simulator (ADR 0104,
    // 0161).
    ("capi", &["terrace", "alloc", "far", "migrate", "topology", "types"]),
    // Loaded into every process of a run: it has the allocator and nothing else (ADR 0111).
    ("preload", &["alloc", "sys", "types"]),
    // The same with far memory beside it (ADR 0140).
    ("far-preload", &["preload", "alloc", "far", "sys", "types"]),
    // Lives inside a foreign process, without a standard library.
    ("capture/translator", &[]),
    ("bench/alloc", &["alloc", "sys", "types"]),
    ("python", &["terrace"]),
    ("testkit", &["types", "machine", "policy", "engine"]),
    ("xtask", &[]),
    (
        "fuzz",
        &[
            "types", "machine", "topology", "engine", "trace", "report", "workload", "alloc",
            "gpu", "device", "riscv", "vertex", "sampling", "pool", "xbgas", "crash",
        ],
    ),
];

/// Edges that tests and examples may have besides, each with its reason.
const FOR_TESTS: &[(&str, &str, &str)] = &[
    ("track", "migrate", "its example moves pages and sees whether the trackers follow"),
    ("vertex", "report", "its example draws the figures of a study"),
    ("pool", "trace", "an example simulates recordings that it makes"),
    ("pool", "vertex", "the same example makes them from graph programs"),
    ("pool", "migratory", "the same example runs them on migratory threads"),
    ("pool", "report", "the same example draws its figure"),
];

/// Checks every manifest against the law.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in tree.packages() {
        let path = format!("{package}/Cargo.toml");
        let Some(text) = tree.get(&path) else {
            continue;
        };
        let manifest = match text.parse::<Table>() {
            Ok(manifest) => manifest,
            Err(error) => {
                findings.push(Finding::error(&path, error.message().to_owned()));
                continue;
            }
        };
        let room = package.strip_prefix("crates/").unwrap_or(package);
        let Some((_, allowed)) = LAW.iter().find(|(name, _)| *name == room) else {
            let what = format!("room {room} is not in the table of xtask/src/rules/edges.rs");
            findings.push(Finding::error(&path, what));
            continue;
        };
        for (kind, used) in uses(&manifest) {
            let dev = kind == "dev-dependencies";
            let for_tests =
                || used == "testkit" || FOR_TESTS.iter().any(|(r, u, _)| (*r, *u) == (room, &used));
            if allowed.contains(&used.as_str()) || (dev && for_tests()) {
                continue;
            }
            let what = format!(
                "{room} may not use {used} ({kind}); it may use: {}",
                if allowed.is_empty() { "nothing of ours".to_owned() } else { allowed.join(", ") }
            );
            findings.push(Finding::error(&path, what));
        }
    }
    findings
}

/// Rooms that a manifest names, with the kind of dependency; targets' own tables included.
fn uses(manifest: &Table) -> Vec<(&'static str, String)> {
    let mut tables = vec![manifest];
    if let Some(Value::Table(targets)) = manifest.get("target") {
        tables.extend(targets.values().filter_map(Value::as_table));
    }
    let mut used = Vec::new();
    for table in tables {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(Value::Table(list)) = table.get(kind) else {
                continue;
            };
            for (key, value) in list {
                let package = value.get("package").and_then(Value::as_str).unwrap_or(key);
                if let Some(room) = package.strip_prefix("terrace-") {
                    let room = if room == "lab-plugin" { "lab/plugin" } else { room };
                    used.push((kind, room.to_owned()));
                }
            }
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::super::describe;
    use super::*;

    fn findings(package: &str, manifest: &str) -> String {
        describe(&check(&Tree::with(&[(&format!("{package}/Cargo.toml"), manifest)])))
    }

    #[test]
    fn allowed_edges_pass() {
        let manifest = "[dependencies]\nterrace-types.workspace = true\nserde = '1'\n\
                        [dev-dependencies]\nterrace-testkit.workspace = true\n";
        assert_eq!(findings("crates/policy", manifest), "");
    }

    #[test]
    fn a_policy_that_reaches_the_kernel_is_found_however_it_is_written() {
        for manifest in [
            "[dependencies]\nterrace-sys.workspace = true\n",
            "[dependencies]\nkernel = { package = 'terrace-sys', path = '../sys' }\n",
            "[dev-dependencies]\nterrace-sys.workspace = true\n",
            "[target.'cfg(unix)'.dependencies]\nterrace-sys.workspace = true\n",
            "[build-dependencies]\nterrace-sys = { path = '../sys' }\n",
        ] {
            let describe = findings("crates/policy", manifest);
            assert!(describe.contains("policy may not use sys"), "{manifest}: {describe}");
        }
    }

    #[test]
    fn testkit_is_for_tests_only() {
        let describe =
            findings("crates/engine", "[dependencies]\nterrace-testkit.workspace = true\n");
        assert!(describe.contains("engine may not use testkit"), "{describe}");
    }

    #[test]
    fn unknown_crates_and_broken_manifests_are_found() {
        assert!(findings("crates/attic", "").contains("not in the table"));
        assert!(!findings("crates/types", "[dependencies").is_empty());
    }

    #[test]
    fn the_law_has_no_circle() {
        for (room, allowed) in LAW {
            let mut reached: Vec<&str> = allowed.to_vec();
            let mut next = 0;
            while let Some(at) = reached.get(next) {
                let more = LAW.iter().find(|(name, _)| name == at).map_or(&[][..], |(_, a)| a);
                let new: Vec<&str> =
                    more.iter().filter(|r| !reached.contains(r)).copied().collect();
                reached.extend(new);
                next += 1;
            }
            assert!(!reached.contains(room), "{room} reaches itself");
        }
    }
}
