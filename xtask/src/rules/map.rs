//! The map of rooms in ARCHITECTURE.md against the tree: neither may know what the other lacks.

use super::{lines, Finding};
use crate::tree::Tree;

const MAP: &str = "ARCHITECTURE.md";

/// Compares the first column of the map's table with the packages there are.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.get(MAP) else {
        return vec![Finding::error(MAP, "the map is missing")];
    };
    // A row of the map begins with a folder: | `crates/types` | ... |
    let rows: Vec<(usize, &str)> = lines(text)
        .filter_map(|(number, line)| {
            let folder = line.strip_prefix("| `")?.split('`').next()?;
            let room = folder.starts_with("crates/")
                || ["lab/plugin", "xtask", "fuzz", "python", "bench/alloc", "capture/translator"]
                    .contains(&folder);
            room.then_some((number, folder))
        })
        .collect();
    let mut findings = Vec::new();
    for package in tree.packages() {
        if !rows.iter().any(|(_, folder)| *folder == package) {
            findings.push(Finding::error(MAP, format!("the map has no row for `{package}`")));
        }
    }
    for (number, folder) in rows {
        if !tree.packages().any(|package| package == folder) {
            let what = format!("`{folder}` is on the map and not in the tree");
            findings.push(Finding::error(format!("{MAP}:{number}"), what));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::describe;
    use super::*;

    #[test]
    fn crates_off_the_map_and_rows_without_crate_are_found() {
        let found = describe(&check(&Tree::with(&[
            (MAP, "# Map\n| `crates/types` | ids |\n| `crates/attic` | gone |\n"),
            ("crates/types/Cargo.toml", ""),
            ("crates/cellar/Cargo.toml", ""),
        ])));
        assert!(found.contains("no row for `crates/cellar`"), "{found}");
        assert!(found.contains("ARCHITECTURE.md:3: `crates/attic`"), "{found}");
        assert!(!found.contains("crates/types"), "{found}");
    }

    #[test]
    fn a_missing_map_is_found() {
        assert_eq!(check(&Tree::with(&[])).len(), 1);
    }
}
