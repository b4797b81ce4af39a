//! One file a rule; each is a function from the tree to what is wrong in it.

mod columns;
mod cycles;
mod edges;
mod length;
mod links;
mod map;
mod names;
mod places;
mod unfinished;
mod unsafety;

use crate::tree::Tree;

/// Something that breaks a rule, or comes near to it.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// `file` or `file:line`.
    pub at: String,
    /// What is wrong and what to do.
    pub what: String,
    /// Whether tidy fails by it.
    pub fails: bool,
}

impl Finding {
    fn error(at: impl Into<String>, what: impl Into<String>) -> Self {
        Self { at: at.into(), what: what.into(), fails: true }
    }

    fn note(at: impl Into<String>, what: impl Into<String>) -> Self {
        Self { at: at.into(), what: what.into(), fails: false }
    }
}

/// A rule.
pub type Rule = fn(&Tree) -> Vec<Finding>;

/// All rules by name.
pub const ALL: [(&str, Rule); 10] = [
    ("dependency law", edges::check),
    ("unsafe code", unsafety::check),
    ("file length", length::check),
    ("columns", columns::check),
    ("cycles of modules", cycles::check),
    ("map of crates", map::check),
    ("foreign places", places::check),
    ("unfinished code", unfinished::check),
    ("links", links::check),
    ("names of types", names::check),
];

/// Lines of a file with their numbers, from 1.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(i, line)| (i + 1, line))
}

#[cfg(test)]
fn describe(findings: &[Finding]) -> String {
    findings.iter().map(|f| format!("{}: {}\n", f.at, f.what)).collect()
}
