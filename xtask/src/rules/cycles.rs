//! Modules of a crate do not use each other in cycles: each can be read, tested and moved with what
//! it uses. A module may use its parents, and they it. Paths are followed as they are written;
//! what a parent exports again counts as the parent's. Tests are left out.

use super::Finding;
use crate::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// Uses of siblings: parent, then the user, then whom it uses, with one file that shows it.
type Uses = BTreeMap<String, BTreeMap<String, BTreeMap<String, String>>>;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for package in tree.packages() {
        for (parent, uses) in uses_of(tree, package) {
            for members in groups(&uses) {
                found.push(Finding::error(&parent, describe(&uses, &members)));
            }
        }
    }
    found
}

fn describe(uses: &BTreeMap<String, BTreeMap<String, String>>, members: &[String]) -> String {
    let inside = members.iter().flat_map(|user| {
        let used = uses.get(user).into_iter().flatten();
        used.filter(|(name, _)| members.contains(name))
            .map(move |(name, file)| format!("{user} uses {name} in {file}"))
    });
    let edges: Vec<String> = inside.collect();
    format!(
        "modules {} use each other in a cycle: move what both need to a module of its own ({})",
        members.join(", "),
        edges.join("; ")
    )
}

/// Who uses whom among the modules of a package.
fn uses_of(tree: &Tree, package: &str) -> Uses {
    let source = format!("{package}/src/");
    let files: Vec<(Vec<String>, &str, &str)> = tree
        .files()
        .filter_map(|(path, text)| Some((module_of(path.strip_prefix(&source)?)?, path, text)))
        .collect();
    let modules: BTreeSet<&Vec<String>> = files.iter().map(|(module, _, _)| module).collect();
    let mut uses = Uses::new();
    for (module, file, text) in &files {
        for path in paths(&without_tests(text)) {
            let Some(mut target) = absolute(module, &path) else { continue };
            while !modules.contains(&target) && target.pop().is_some() {}
            let shared = module.iter().zip(&target).take_while(|(a, b)| a == b).count();
            let (Some(user), Some(used)) = (module.get(shared), target.get(shared)) else {
                continue;
            };
            let parent = [&[format!("{package}/src")], &module[..shared]].concat().join("/");
            let users = uses.entry(parent).or_default().entry(user.clone()).or_default();
            users.entry(used.clone()).or_insert_with(|| (*file).to_owned());
        }
    }
    uses
}

/// The module that a file below `src` is; none for tests and programs beside the main one.
fn module_of(path: &str) -> Option<Vec<String>> {
    let mut parts: Vec<String> =
        path.strip_suffix(".rs")?.split('/').map(ToOwned::to_owned).collect();
    if parts.iter().any(|part| part == "tests" || part.ends_with("_tests") || part == "bin") {
        return None;
    }
    if parts.last().is_some_and(|last| last == "mod")
        || ["lib", "main"].contains(&&*parts.join("/"))
    {
        parts.pop();
    }
    Some(parts)
}

/// A path as the modules see it from the root; none where it names another crate.
fn absolute(module: &[String], path: &[String]) -> Option<Vec<String>> {
    let mut at = module.to_vec();
    for (index, part) in path.iter().enumerate() {
        match part.as_str() {
            "crate" if index == 0 => at.clear(),
            "self" => {}
            "super" => {
                at.pop()?;
            }
            name => at.push(name.to_owned()),
        }
    }
    Some(at)
}

/// The text without items that are built for tests alone.
fn without_tests(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            kept.push_str(line.split("//").next().unwrap_or_default());
            kept.push('\n');
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let end = format!("{}}}", " ".repeat(indent));
        let mut first = true;
        for line in lines.by_ref() {
            // An item of one line, or one that ends with a brace at its own depth.
            if line == end || first && (line.ends_with(';') || line.ends_with('}')) {
                break;
            }
            first = first && line.trim_start().starts_with("#[");
        }
    }
    kept
}

/// All paths of a text that begin with `crate`, `self` or `super`, braces spread out.
fn paths(text: &str) -> Vec<Vec<String>> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let begins = ["crate", "self", "super"].contains(&tokens[at]);
        // `a::super` and `$crate` begin elsewhere.
        let alone = at == 0 || tokens[at - 1] != "::";
        if begins && alone && tokens.get(at + 1) == Some(&"::") {
            at = spread(&tokens, at, &[], &mut found);
        } else {
            at += 1;
        }
    }
    found
}

/// Reads one path, which may branch, and gives where it ends.
fn spread(tokens: &[&str], from: usize, before: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = before.to_vec();
    let mut at = from;
    while let Some(token) = tokens.get(at) {
        if *token == "{" {
            at += 1;
            while tokens.get(at).is_some_and(|token| *token != "}") {
                at = if tokens[at] == "," {
                    at + 1
                } else {
                    spread(tokens, at, &path, found).max(at + 1)
                };
            }
            return at + 1;
        }
        if !token.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            break;
        }
        path.push((*token).to_owned());
        at += 1;
        if tokens.get(at) != Some(&"::") {
            break;
        }
        at += 1;
    }
    if path.len() > before.len() {
        found.push(path);
    }
    at
}

/// Words, `::`, and single characters.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let length = match first {
            c if word(c) => rest.find(|c: char| !word(c)).unwrap_or(rest.len()),
            ':' if rest.starts_with("::") => 2,
            c => c.len_utf8(),
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

/// Modules that reach each other, in groups of two and more, each in order.
fn groups(uses: &BTreeMap<String, BTreeMap<String, String>>) -> Vec<Vec<String>> {
    let reach = |from: &String| {
        let mut seen = BTreeSet::new();
        let mut left = vec![from];
        while let Some(user) = left.pop() {
            for used in uses.get(user).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(used.clone()) {
                    left.push(used);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> = uses.keys().map(|m| (m, reach(m))).collect();
    let mutual = |a: &String, b: &String| {
        reached.get(a).is_some_and(|r| r.contains(b))
            && reached.get(b).is_some_and(|r| r.contains(a))
    };
    let mut groups: Vec<Vec<String>> = Vec::new();
    for module in uses.keys() {
        if groups.iter().flatten().any(|known| known == module) {
            continue;
        }
        let group: Vec<String> = uses
            .keys()
            .filter(|other| *other == module || mutual(module, other))
            .cloned()
            .collect();
        if group.len() > 1 {
            groups.push(group);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::describe as all;

    #[test]
    fn siblings_that_use_each_other_are_named_with_their_files() {
        let tree = Tree::with(&[
            ("crates/a/Cargo.toml", ""),
            ("crates/a/src/lib.rs", "mod one; mod two; mod three;"),
            ("crates/a/src/one.rs", "use crate::{three, two::{deep::X, Y}};\nfn f() {}"),
            ("crates/a/src/two/mod.rs", "mod deep;"),
            ("crates/a/src/two/deep.rs", "fn g() { super::super::one::f() }"),
            (
                "crates/a/src/three.rs",
                "use crate::Z;\n#[cfg(test)]\nmod tests {\n    use crate::one;\n}\n",
            ),
        ]);
        let found = check(&tree);
        assert_eq!(found.len(), 1, "{}", all(&found));
        let what = &found[0].what;
        assert!(what.starts_with("modules one, two use each other"), "{what}");
        assert!(what.contains("two uses one in crates/a/src/two/deep.rs"), "{what}");
    }

    #[test]
    fn parents_tests_and_comments_make_no_cycle() {
        let tree = Tree::with(&[
            ("crates/a/Cargo.toml", ""),
            ("crates/a/src/lib.rs", "mod one;\npub use one::X;"),
            ("crates/a/src/one/mod.rs", "mod in_one;\nuse self::in_one::Y;\n// crate::two::Z\n"),
            ("crates/a/src/one/in_one.rs", "use super::X;\n#[cfg(test)]\nuse crate::two::T;\n"),
            ("crates/a/src/two.rs", "use crate::one::in_one::Y;"),
        ]);
        assert_eq!(check(&tree), []);
    }
}
