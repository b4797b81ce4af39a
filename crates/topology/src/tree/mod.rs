//! A tree of files laid out as `/`: on disk below some folder, or in memory from an archive.
//! Symbolic links are followed here, one component at a time, and never lead out of the tree: an
//! absolute target starts at the tree's own root, and `..` at the root stays there.

mod archive;
mod disk;
mod memory;

pub use archive::{read_archive, Archive};
pub use disk::DiskTree;
pub use memory::MemoryTree;

use crate::error::{shorten, TopologyError};

/// Largest file that is read from a tree: sysfs never writes more than a page, or 64 KiB.
pub const MAX_FILE: usize = 64 << 10;
/// Most names that are read from one folder. A node's folder has one for each 128 MiB of memory.
pub const MAX_NAMES: usize = 262_144;
/// Most links followed for one path, as in Linux' `include/linux/namei.h` (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;

/// What a name stands for, its own link not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// Nothing.
    Missing,
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link to this target.
    Link(String),
    /// A device, pipe or socket: never opened.
    Other,
}

/// Files by path. Paths have no leading slash and no `.` or `..`; the empty path is the root.
/// Implementations follow no links: [`View`] has done that.
pub trait Tree {
    /// What the path stands for.
    fn entry(&self, path: &str) -> Entry;
    /// All bytes of a regular file, at most [`MAX_FILE`].
    fn read(&self, path: &str) -> Result<Vec<u8>, TopologyError>;
    /// Names in a folder, at most [`MAX_NAMES`], sorted.
    fn list(&self, path: &str) -> Result<Vec<String>, TopologyError>;
}

/// A tree with links followed, as its readers see it.
pub struct View<'t> {
    tree: &'t dyn Tree,
    /// Folder in the tree that stands for `/`, with a final slash, or nothing.
    base: String,
}

impl<'t> View<'t> {
    /// The view from the folder that holds `sys/devices/system`: the root, or the only folder in
    /// it.
    pub fn new(tree: &'t dyn Tree, name: &str) -> Result<Self, TopologyError> {
        let view = Self { tree, base: String::new() };
        if view.resolve("sys/devices/system")?.is_some() {
            return Ok(view);
        }
        let folders: Vec<String> =
            tree.list("")?.into_iter().filter(|n| tree.entry(n) == Entry::Folder).collect();
        if let [only] = folders.as_slice() {
            let view = Self { tree, base: format!("{only}/") };
            if view.resolve("sys/devices/system")?.is_some() {
                return Ok(view);
            }
        }
        Err(TopologyError::NotATree { path: name.to_owned() })
    }

    /// The folder in the tree that stands for `/`; empty for the tree's own root.
    #[must_use]
    pub fn base(&self) -> &str {
        self.base.trim_end_matches('/')
    }

    /// Where `path` really is, links followed; `None` where there is nothing.
    pub fn resolve(&self, path: &str) -> Result<Option<String>, TopologyError> {
        let mut links = 0;
        let mut todo: Vec<String> = components(path).rev().collect();
        let mut done: Vec<String> = Vec::new();
        while let Some(part) = todo.pop() {
            if part == ".." {
                done.pop();
                continue;
            }
            done.push(part);
            match self.tree.entry(&self.full(&done.join("/"))) {
                Entry::Missing => return Ok(None),
                Entry::Link(target) => {
                    links += 1;
                    if links > MAX_LINKS || todo.len() > 4096 {
                        return Err(TopologyError::LinkLoop { path: path.to_owned() });
                    }
                    done.pop();
                    if target.starts_with('/') {
                        done.clear();
                    }
                    todo.extend(components(&target).rev());
                }
                Entry::File | Entry::Other if !todo.is_empty() => return Ok(None),
                Entry::File | Entry::Folder | Entry::Other => {}
            }
        }
        Ok(Some(done.join("/")))
    }

    /// Text of a file; `None` where there is none, or where the kernel refuses to give it
    /// (attributes may).
    pub fn text(&self, path: &str) -> Result<Option<String>, TopologyError> {
        let Some(real) = self.resolve(path)? else {
            return Ok(None);
        };
        if self.tree.entry(&self.full(&real)) != Entry::File {
            return Ok(None);
        }
        match self.tree.read(&self.full(&real)) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(TopologyError::Io { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The one number in a file.
    pub fn number(&self, path: &str) -> Result<Option<i64>, TopologyError> {
        let Some(text) = self.text(path)? else {
            return Ok(None);
        };
        match text.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(malformed(path, &text, "a whole number")),
        }
    }

    /// Names in a folder, sorted; none where there is no folder.
    pub fn list(&self, path: &str) -> Result<Vec<String>, TopologyError> {
        let Some(real) = self.resolve(path)? else {
            return Ok(Vec::new());
        };
        if self.tree.entry(&self.full(&real)) != Entry::Folder {
            return Ok(Vec::new());
        }
        match self.tree.list(&self.full(&real)) {
            Err(TopologyError::Io { .. }) => Ok(Vec::new()),
            other => other,
        }
    }

    /// Names `PREFIXnumber` in a folder, by number; above `max` refused.
    pub fn numbered(&self, path: &str, prefix: &str, max: u32) -> Result<Vec<u32>, TopologyError> {
        let mut numbers = Vec::new();
        for name in self.list(path)? {
            let Some(digits) = name.strip_prefix(prefix) else {
                continue;
            };
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                continue;
            }
            match digits.parse::<u32>() {
                Ok(number) if number <= max => numbers.push(number),
                _ => {
                    let expected = "at most 255 nodes and 8192 CPUs, numbered from 0";
                    return Err(malformed(path, &name, expected));
                }
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    /// What a path stands for, its last link not followed, and where that is.
    pub(crate) fn bare(&self, path: &str) -> Result<Option<(String, Entry)>, TopologyError> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let Some(folder) = self.resolve(folder)? else {
            return Ok(None);
        };
        let real = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
        match self.tree.entry(&self.full(&real)) {
            Entry::Missing => Ok(None),
            entry => Ok(Some((real, entry))),
        }
    }

    fn full(&self, path: &str) -> String {
        if path.is_empty() {
            self.base.trim_end_matches('/').to_owned()
        } else {
            format!("{}{path}", self.base)
        }
    }
}

pub(crate) fn malformed(path: &str, found: &str, expected: &'static str) -> TopologyError {
    TopologyError::Malformed { path: path.to_owned(), found: shorten(found), expected }
}

fn components(path: &str) -> impl DoubleEndedIterator<Item = String> + '_ {
    path.split('/').filter(|part| !part.is_empty() && *part != ".").map(str::to_owned)
}
