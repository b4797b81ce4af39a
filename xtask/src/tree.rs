//! The repository as data: path to text. Rules see nothing else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tracked text files by path.
#[derive(Debug, Default)]
pub struct Tree(BTreeMap<String, String>);

impl Tree {
    /// Files under git's care and new ones that it does not ignore; without git, all that is
    /// not a build product.
    pub fn of_repository() -> Result<Self, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .ok_or_else(|| "xtask lies in no workspace".to_owned())?;
        let listed = Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
            .current_dir(root)
            .output();
        let paths = match listed {
            Ok(output) if output.status.success() => {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                text.split('\0').filter(|p| !p.is_empty()).map(ToOwned::to_owned).collect()
            }
            _ => walk(root),
        };
        let mut files = BTreeMap::new();
        for path in paths {
            // Files that are no text, and those deleted but still listed, are not ours to check.
            if let Ok(text) = std::fs::read_to_string(root.join(&path)) {
                files.insert(path, text);
            }
        }
        if files.contains_key("Cargo.toml") {
            Ok(Self(files))
        } else {
            Err(format!("no Cargo.toml in {}", root.display()))
        }
    }

    /// A made-up tree, for tests of rules.
    #[cfg(test)]
    pub fn with(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(p, t)| ((*p).to_owned(), (*t).to_owned())).collect())
    }

    /// Number of files.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// One file's text.
    pub fn get(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }

    /// Files, by path.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(p, t)| (p.as_str(), t.as_str()))
    }

    /// Whether there is such a file, or a folder with a file in it.
    pub fn holds(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        self.0.contains_key(path) || self.0.keys().any(|p| p.starts_with(&folder))
    }

    /// Folders of the workspace's packages, such as `crates/types`.
    pub fn packages(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|p| p.strip_suffix("/Cargo.toml"))
    }
}

fn skipped(folder: &str) -> bool {
    folder.starts_with("target") || folder.starts_with(".git") || folder == ".lab"
}

fn walk(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(folder) = open.pop() {
        let Ok(entries) = std::fs::read_dir(root.join(&folder)) else {
            continue;
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = folder.join(&name);
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !skipped(&name) => open.push(path),
                Ok(kind) if kind.is_file() => found.push(path.to_string_lossy().into_owned()),
                _ => {}
            }
        }
    }
    found
}
