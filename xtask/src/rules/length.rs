//! Files that one can read at a sitting: about 500 lines without tests, 700 at most; and functions
//! of 60 lines, of which longer ones are counted in a note.

use super::Finding;
use crate::tree::Tree;

const NOTED: usize = 500;
const MOST: usize = 700;
/// Lines of a function, its signature and braces included.
const FUNCTION: usize = 60;

/// Longer files, each with its reason.
const EXCEPTIONS: &[(&str, &str)] = &[];

/// Checks Rust sources outside `tests/`.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let sources: Vec<(&str, &str)> = tree
        .files()
        .filter(|(path, _)| {
            path.ends_with(".rs") && !path.contains("/tests/") && !path.ends_with("/tests.rs")
        })
        .collect();
    let long: Vec<(usize, &str, String)> = sources
        .iter()
        .flat_map(|(path, text)| functions(text).map(|(name, lines)| (lines, *path, name)))
        .filter(|(lines, ..)| *lines > FUNCTION)
        .collect();
    let longest = long.iter().max().map(|(lines, path, name)| {
        let what = format!(
            "{} functions have more than {FUNCTION} lines, the longest is {name} with {lines}",
            long.len()
        );
        Finding::note(*path, what)
    });
    sources
        .iter()
        .filter_map(|(path, text)| {
            let lines = without_tests(text);
            let excused = EXCEPTIONS.iter().any(|(name, _)| name == path);
            if lines > MOST && !excused {
                let what = format!(
                    "{lines} lines without tests, {MOST} at most: split it, or \
                    list it with a reason"
                );
                Some(Finding::error(*path, what))
            } else if lines > NOTED {
                Some(Finding::note(*path, format!("{lines} lines without tests, aim for {NOTED}")))
            } else {
                None
            }
        })
        .chain(longest)
        .collect()
}

/// Functions outside the test module, each with its lines. A function ends with a brace at its own
/// depth; those without a body are left out.
fn functions(text: &str) -> impl Iterator<Item = (String, usize)> + '_ {
    let lines: Vec<&str> = text.lines().take(without_tests(text)).collect();
    (0..lines.len()).filter_map(move |at| {
        let line = lines[at].trim_start();
        let mut words = line.split(' ').skip_while(|word| {
            ["pub", "const", "unsafe", "extern", "\"C\""].contains(word) || word.starts_with("pub(")
        });
        let name = words.next().filter(|word| *word == "fn").and_then(|_| words.next())?;
        let name = name.split(['(', '<']).next().unwrap_or(name).to_owned();
        if line.ends_with('}') {
            return None;
        }
        let indent = &lines[at][..lines[at].len() - line.len()];
        let body =
            lines[at..].iter().position(|line| line.ends_with('{') || line.ends_with(';'))?;
        if lines[at + body].ends_with(';') {
            return None;
        }
        let end = format!("{indent}}}");
        let length = lines[at..].iter().position(|line| **line == end)?;
        Some((name, length + 1))
    })
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
    fn long_functions_are_counted_and_the_longest_is_named() {
        let body = |lines: usize| "        x();\n".repeat(lines);
        let (long, longer, short) = (body(59), body(70), body(58));
        let text = [
            "trait T {\n    fn declared(\n        a: u8,\n    );\n}\n",
            &format!("impl A {{\n    pub(crate) fn long(&self) {{\n{long}    }}\n\n"),
            &format!("    fn longer<T>(&self) {{\n{longer}    }}\n\n"),
            &format!("    fn one() -> u8 {{ 0 }}\n    fn short() {{\n{short}    }}\n}}\n"),
        ]
        .concat();
        let tree = Tree::with(&[("crates/a/src/b.rs", &text)]);
        let found = check(&tree);
        assert_eq!(found.len(), 1, "{}", describe(&found));
        assert_eq!(
            found[0].what,
            "2 functions have more than 60 lines, the longest is longer with 72"
        );
    }

    #[test]
    fn fairly_long_files_are_noted_only() {
        let tree = Tree::with(&[("crates/a/src/b.rs", &"x\n".repeat(501))]);
        assert!(check(&tree).iter().all(|f| !f.fails) && check(&tree).len() == 1);
    }
}
