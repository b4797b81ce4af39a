//! Unsafe code lives in few places; every other crate forbids it at its root.

use super::{lines, Finding};
use crate::tree::Tree;

/// Packages that may hold unsafe code, and, where that is narrower, in which files.
const ALLOWED: &[(&str, &[&str])] = &[
    ("crates/sys", &[]),
    ("crates/cache", &["src/ahead.rs"]),
    ("crates/migrate", &[]),
    ("crates/guest", &[]),
    ("crates/probe", &[]),
    ("crates/alloc", &[]),
    ("crates/preload", &[]),
    ("crates/far-preload", &[]),
    ("crates/capi", &[]),
    ("crates/workload", &["src/roi.rs", "src/arena.rs"]),
    ("lab/plugin", &[]),
    ("capture/translator", &[]),
    ("python", &["src/arena.rs", "src/stage.rs"]),
    ("bench/alloc", &["src/main.rs", "src/moves.rs", "src/peers.rs"]),
];

/// Checks crate roots, and the files of packages that keep unsafe code to some of them.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in tree.packages() {
        let allowed = ALLOWED.iter().find(|(name, _)| *name == package);
        let files = tree.files().filter(|(path, _)| {
            path.strip_prefix(package).is_some_and(|rest| rest.starts_with("/src/"))
        });
        for (path, text) in files {
            let within = &path[package.len() + 1..];
            let root =
                within == "src/lib.rs" || within == "src/main.rs" || within.starts_with("src/bin/");
            match allowed {
                None if root && !text.contains("#![forbid(unsafe_code)]") => {
                    findings.push(Finding::error(path, "begin with #![forbid(unsafe_code)]"));
                }
                Some((_, some)) if !some.is_empty() && !some.contains(&within) => {
                    for (number, line) in lines(text) {
                        let code = line.split("//").next().unwrap_or_default();
                        if ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"]
                            .iter()
                            .any(|u| code.contains(u))
                        {
                            let what =
                                format!("unsafe code of {package} belongs in {}", some.join(", "));
                            findings.push(Finding::error(format!("{path}:{number}"), what));
                        }
                    }
                }
                _ => {}
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::describe;
    use super::*;

    #[test]
    fn a_crate_that_does_not_forbid_unsafe_is_found() {
        let tree = |text| {
            describe(&check(&Tree::with(&[
                ("crates/policy/Cargo.toml", ""),
                ("crates/policy/src/lib.rs", text),
            ])))
        };
        assert!(tree("//! A space.\n").contains("crates/policy/src/lib.rs: begin with"));
        assert_eq!(tree("//! A space.\n#![forbid(unsafe_code)]\n"), "");
    }

    #[test]
    fn unsafe_outside_its_module_is_found() {
        let found = describe(&check(&Tree::with(&[
            ("crates/workload/Cargo.toml", ""),
            ("crates/workload/src/roi.rs", "unsafe { mark() }"),
            (
                "crates/workload/src/skew.rs",
                "// unsafe { in words }\nunsafe { slice.get_unchecked(0) }",
            ),
        ])));
        assert_eq!(found.lines().count(), 1);
        assert!(found.starts_with("crates/workload/src/skew.rs:2:"), "{found}");
    }

    #[test]
    fn the_door_to_the_kernel_may() {
        let tree = Tree::with(&[
            ("crates/sys/Cargo.toml", ""),
            ("crates/sys/src/lib.rs", "unsafe { open() }"),
        ]);
        assert!(check(&tree).is_empty());
    }
}
