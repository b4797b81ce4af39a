//! A tree of files laid out as `/`: on disk below some folder, or in memory from an archive.
//! Symbolic links are followed here, one component at a time, and never lead out of the tree: an
//! absolute target starts at the tree's own root, and `..` at the root stays there.

mod archive;
mod disk;
mod memory;

/// Where Linux shows nodes, CPUs and memory tiers.
pub(crate) const NODES: &str = "sys/devices/system/node";
pub(crate) const CPUS: &str = "sys/devices/system/cpu";
pub(crate) const TIERS: &str = "sys/devices/virtual/memory_tiering";
/// Written by [`crate::gather`]: what sysfs does not say.
pub(crate) const STAMP: &str = "terrace-gather";

pub use archive::{read_archive, Archive};
pub use disk::DiskTree;
pub use memory::MemoryTree;

use crate::error::{shorten, TopologyError};
use std::cell::RefCell;

/// Largest file that is read from a tree: sysfs never writes more than a page, or 64 KiB.
pub const MAX_FILE: usize = 64 << 10;
/// Most names that are read from one folder. A node's folder has one for each 128 MiB of memory.
pub const MAX_NAMES: usize = 262_144;
/// Facts that were left out and are named in notes; of more, only the number is noted.
const MAX_DOUBTS: usize = 16;
/// Most links followed for one path, as in Linux' `include/linux/namei.h` (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;

/// What a name stands for, its own link not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileKind {
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
pub trait FileTree {
    /// What the path stands for.
    fn entry(&self, path: &str) -> FileKind;
    /// All bytes of a regular file, at most [`MAX_FILE`].
    fn read(&self, path: &str) -> Result<Vec<u8>, TopologyError>;
    /// Names in a folder, at most [`MAX_NAMES`], sorted.
    fn list(&self, path: &str) -> Result<Vec<String>, TopologyError>;
}

/// A tree with links followed, as its readers see it.
pub struct View<'t> {
    tree: &'t dyn FileTree,
    /// Folder in the tree that stands for `/`, with a final slash, or nothing.
    base: String,
    /// Files that do not hold what the kernel writes there: what was left out, a sentence each.
    doubts: RefCell<Doubts>,
}

#[derive(Default)]
struct Doubts {
    sentences: Vec<String>,
    more: usize,
}

impl<'t> View<'t> {
    /// The view from the folder that holds `sys/devices/system`: the root, or the only folder in
    /// it.
    pub fn new(tree: &'t dyn FileTree, name: &str) -> Result<Self, TopologyError> {
        let view = Self { tree, base: String::new(), doubts: RefCell::default() };
        if view.resolve("sys/devices/system")?.is_some() {
            return Ok(view);
        }
        let folders: Vec<String> =
            tree.list("")?.into_iter().filter(|n| tree.entry(n) == FileKind::Folder).collect();
        if let [only] = folders.as_slice() {
            let view = Self { tree, base: format!("{only}/"), doubts: RefCell::default() };
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
                FileKind::Missing => return Ok(None),
                FileKind::Link(target) => {
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
                FileKind::File | FileKind::Other if !todo.is_empty() => return Ok(None),
                FileKind::File | FileKind::Folder | FileKind::Other => {}
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
        if self.tree.entry(&self.full(&real)) != FileKind::File {
            return Ok(None);
        }
        match self.tree.read(&self.full(&real)) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(TopologyError::Io { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The one number in a file; `None`, and a doubt, where it holds something else.
    pub fn number(&self, path: &str) -> Result<Option<i64>, TopologyError> {
        let Some(text) = self.text(path)? else {
            return Ok(None);
        };
        let number = text.trim().parse().ok();
        if number.is_none() {
            self.doubt(path, &text, "a whole number");
        }
        Ok(number)
    }

    /// Notes that a file does not hold what the kernel writes there, and is taken for absent. A
    /// machine on which Linux runs is never refused for one odd fact.
    pub fn doubt(&self, path: &str, found: &str, expected: &str) {
        self.remark(format!(
            "{path} holds {}, expected {expected}: taken as not known.",
            shorten(found)
        ));
    }

    /// Notes something that was left out.
    pub fn remark(&self, sentence: String) {
        let mut doubts = self.doubts.borrow_mut();
        if doubts.sentences.contains(&sentence) {
            return;
        }
        if doubts.sentences.len() < MAX_DOUBTS {
            doubts.sentences.push(sentence);
        } else {
            doubts.more += 1;
        }
    }

    /// All doubts so far.
    #[must_use]
    pub fn doubts(&self) -> Vec<String> {
        let doubts = self.doubts.borrow();
        let mut sentences = doubts.sentences.clone();
        if doubts.more > 0 {
            sentences.push(format!("{} more such facts were left out.", doubts.more));
        }
        sentences
    }

    /// Names in a folder, sorted; none where there is no folder.
    pub fn list(&self, path: &str) -> Result<Vec<String>, TopologyError> {
        let Some(real) = self.resolve(path)? else {
            return Ok(Vec::new());
        };
        if self.tree.entry(&self.full(&real)) != FileKind::Folder {
            return Ok(Vec::new());
        }
        match self.tree.list(&self.full(&real)) {
            Err(TopologyError::Io { .. }) => Ok(Vec::new()),
            other => other,
        }
    }

    /// Names `PREFIXnumber` in a folder, by number; those above `max` are left out, with a doubt.
    pub fn numbered(&self, path: &str, prefix: &str, max: u32) -> Result<Vec<u32>, TopologyError> {
        let (mut numbers, mut above) = (Vec::new(), 0);
        for name in self.list(path)? {
            let digits = name.strip_prefix(prefix).unwrap_or("");
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                continue;
            }
            match digits.parse::<u32>() {
                Ok(number) if number <= max => numbers.push(number),
                _ => above += 1,
            }
        }
        if above > 0 {
            let what = if above == 1 { "entry is" } else { "entries are" };
            self.remark(format!(
                "{above} {what} left out of {path}: {prefix} numbers above {max}."
            ));
        }
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    /// What a path stands for, its last link not followed, and where that is.
    pub(crate) fn bare(&self, path: &str) -> Result<Option<(String, FileKind)>, TopologyError> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let Some(folder) = self.resolve(folder)? else {
            return Ok(None);
        };
        let real = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
        match self.tree.entry(&self.full(&real)) {
            FileKind::Missing => Ok(None),
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
