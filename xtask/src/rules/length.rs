//! Files that one can read at a sitting: about 500 lines without tests, 700 at most.

use super::Finding;
use crate::tree::Tree;

const NOTED: usize = 500;
const MOST: usize = 700;

/// Longer files, each with its reason.
const EXCEPTIONS: &[(&str, &str)] = &[];

/// Checks Rust sources outside `tests/`.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let sources = tree.files().filter(|(path, _)| {
        path.ends_with(".rs") && !path.contains("/tests/") && !path.ends_with("/tests.rs")
    });
    sources
        .filter_map(|(path, text)| {
            let lines = without_tests(text);
            let excused = EXCEPTIONS.iter().any(|(name, _)| *name == path);
            if lines > MOST && !excused {
                let what = format!(
                    "{lines} lines without tests, {MOST} at most: split it, or \
                    list it with a reason"
                );
                Some(Finding::error(path, what))
            } else if lines > NOTED {
                Some(Finding::note(path, format!("{lines} lines without tests, aim for {NOTED}")))
            } else {
                None
            }
        })
        .collect()
}

/// Lines before the test module, which stands last in a file of ours.
fn without_tests(text: &str) -> usize {
    let end = text.find("\n#[cfg(test)]\nmod ").unwrap_or(text.len());
    text[..end].lines().count()
}

#[cfg(test)]
mod tests {
    use super::super::describe;
    use super::*;

    #[test]
    fn long_files_are_found_and_tests_do_not_count() {
        let long = "let x = 1;\n".repeat(701);
        let tested = format!("fn f() {{}}\n\n#[cfg(test)]\nmod tests {{\n{long}}}\n");
        let tree = Tree::with(&[
            ("crates/a/src/long.rs", &long),
            ("crates/a/src/tested.rs", &tested),
            ("crates/a/tests/all.rs", &long),
        ]);
        let found = check(&tree);
        assert_eq!(found.len(), 1, "{}", describe(&found));
        assert!(found[0].fails && found[0].at == "crates/a/src/long.rs");
    }

    #[test]
    fn fairly_long_files_are_noted_only() {
        let tree = Tree::with(&[("crates/a/src/b.rs", &"x\n".repeat(501))]);
        assert!(check(&tree).iter().all(|f| !f.fails) && check(&tree).len() == 1);
    }
}
