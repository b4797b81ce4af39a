//! A tree in memory: from an archive, or built by a test.

use super::{components, FileKind, FileTree, MAX_FILE, MAX_NAMES};
use crate::error::TopologyError;
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    /// `None` where the file was larger than is ever read.
    File(Option<Vec<u8>>),
    Link(String),
    Folder,
}

/// A tree in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryTree {
    items: BTreeMap<String, Item>,
}

impl MemoryTree {
    /// An empty tree.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file, and the folders on the way. Content above [`MAX_FILE`] is not kept, and refused
    /// when read.
    pub fn file(&mut self, path: &str, content: impl Into<Vec<u8>>) -> &mut Self {
        let content = content.into();
        self.add(path, Item::File((content.len() <= MAX_FILE).then_some(content)))
    }

    /// Adds a symbolic link, and the folders on the way.
    pub fn link(&mut self, path: &str, target: &str) -> &mut Self {
        self.add(path, Item::Link(target.to_owned()))
    }

    /// Adds a folder, and those on the way.
    pub fn folder(&mut self, path: &str) -> &mut Self {
        self.add(path, Item::Folder)
    }

    fn add(&mut self, path: &str, item: Item) -> &mut Self {
        // `..` in the name of an entry is no business of an honest archive: dropped.
        let parts: Vec<String> = components(path).filter(|p| p != "..").collect();
        for end in 1..parts.len() {
            self.items.entry(parts[..end].join("/")).or_insert(Item::Folder);
        }
        if !parts.is_empty() {
            self.items.insert(parts.join("/"), item);
        }
        self
    }
}

impl FileTree for MemoryTree {
    fn entry(&self, path: &str) -> FileKind {
        match self.items.get(path) {
            None if path.is_empty() => FileKind::Folder,
            None => FileKind::Missing,
            Some(Item::File(_)) => FileKind::File,
            Some(Item::Link(target)) => FileKind::Link(target.clone()),
            Some(Item::Folder) => FileKind::Folder,
        }
    }

    fn read(&self, path: &str) -> Result<Vec<u8>, TopologyError> {
        match self.items.get(path) {
            Some(Item::File(Some(content))) => Ok(content.clone()),
            Some(Item::File(None)) => Err(TopologyError::TooLarge {
                path: path.to_owned(),
                limit: MAX_FILE,
                unit: "bytes",
            }),
            _ => Err(TopologyError::Absent { path: path.to_owned() }),
        }
    }

    fn list(&self, path: &str) -> Result<Vec<String>, TopologyError> {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let below = self.items.range(prefix.clone()..).map(|(name, _)| name);
        let names: Vec<String> = below
            .take_while(|name| name.starts_with(&prefix))
            .filter_map(|name| name.get(prefix.len()..))
            .filter(|name| !name.is_empty() && !name.contains('/'))
            .map(str::to_owned)
            .take(MAX_NAMES + 1)
            .collect();
        if names.len() > MAX_NAMES {
            return Err(TopologyError::TooLarge {
                path: path.to_owned(),
                limit: MAX_NAMES,
                unit: "names",
            });
        }
        Ok(names)
    }
}
