//! One name, one meaning: no two public types of the workspace share a name.

use super::{lines, Finding};
use crate::tree::Tree;
use std::collections::BTreeMap;

/// Names that stand more than once, each with its reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("Params", "each policy has its own, named by its module"),
    ("State", "each policy has its own, named by its module"),
    ("Cuda", "one type in two forms, of which a build has one"),
];

/// Checks the packages whose types others import. Those of `capture/translator`, `python` and
/// `xtask` are used nowhere else.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (path, text) in tree.files() {
        let library = path.starts_with("crates/") || path.starts_with("lab/plugin/");
        if !library || !path.contains("/src/") || !path.ends_with(".rs") {
            continue;
        }
        for (number, line) in lines(text) {
            if let Some(name) = public_type(line) {
                found.entry(name).or_default().push(format!("{path}:{number}"));
            }
        }
    }
    found.retain(|name, places| {
        places.len() > 1 && !EXCEPTIONS.iter().any(|(excused, _)| excused == name)
    });
    let clashes = found.iter().flat_map(|(name, places)| {
        places.iter().skip(1).map(move |place| {
            let what = format!("`{name}` is a type of {} too: name one of them anew", places[0]);
            Finding::error(place.clone(), what)
        })
    });
    clashes.collect()
}

/// The type that a line makes public.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let kinds = ["struct ", "enum ", "trait ", "type ", "union ", "unsafe trait "];
    let name = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    (end > 0).then(|| &name[..end])
}

#[cfg(test)]
mod tests {
    use super::super::describe;
    use super::*;

    #[test]
    fn a_second_type_of_a_name_is_found_and_names_the_first() {
        let found = describe(&check(&Tree::with(&[
            ("crates/a/src/lib.rs", "pub struct Plan<'a>(&'a str);\n"),
            ("crates/b/src/deep/down.rs", "\n    pub enum Plan {\n"),
            ("lab/plugin/src/lib.rs", "pub type Plan = u8;\n"),
        ])));
        assert_eq!(
            found,
            "crates/b/src/deep/down.rs:2: `Plan` is a type of crates/a/src/lib.rs:1 too: name one \
             of them anew\nlab/plugin/src/lib.rs:1: `Plan` is a type of crates/a/src/lib.rs:1 \
             too: name one of them anew\n"
        );
    }

    #[test]
    fn private_types_exceptions_and_other_packages_may_share() {
        let tree = Tree::with(&[
            ("crates/a/src/lib.rs", "pub struct Plan;\npub struct Params;\nstruct Own;\n"),
            ("crates/b/src/lib.rs", "pub struct Params;\npub(crate) struct Plan;\nstruct Own;\n"),
            ("crates/b/tests/all.rs", "pub struct Plan;\n"),
            ("python/src/lib.rs", "pub struct Plan;\n"),
        ]);
        assert_eq!(describe(&check(&tree)), "");
    }
}
