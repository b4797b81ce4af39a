//! Links between documents lead somewhere.

use super::{lines, Finding};
use crate::tree::Tree;

/// Checks relative links of Markdown files, `](target)`; web addresses are not followed.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".md")) {
        let mut fenced = false;
        for (number, line) in lines(text) {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            }
            if fenced {
                continue;
            }
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let target = target.split(['#', ' ']).next().unwrap_or_default();
                if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                let full = resolve(path, target);
                // Pictures are not text and so not in the tree as such; the file must exist.
                if !full.as_deref().is_some_and(|full| tree.holds(full) || on_disk(full)) {
                    let what = format!("links to {target}, which does not exist");
                    findings.push(Finding::error(format!("{path}:{number}"), what));
                }
            }
        }
    }
    findings
}

fn on_disk(path: &str) -> bool {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    root.is_some_and(|root| root.join(path).is_file())
}

/// The target's path from the root; `None` when it leaves the repository.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::super::describe;
    use super::*;

    #[test]
    fn dead_links_are_found() {
        let text =
            "[a](b.md) [c](../README.md#x) [d](gone.md)\n[e](https://example.com) [f](#here)\n\
                    ```\n[g](not-a-link.md)\n```\n[h](../../out.md)\n";
        let found = describe(&check(&Tree::with(&[
            ("docs/a.md", text),
            ("docs/b.md", ""),
            ("README.md", "[docs](docs/)"),
        ])));
        assert_eq!(found.lines().count(), 2, "{found}");
        assert!(found.contains("docs/a.md:1: links to gone.md"), "{found}");
        assert!(found.contains("docs/a.md:6: links to ../../out.md"), "{found}");
    }
}
