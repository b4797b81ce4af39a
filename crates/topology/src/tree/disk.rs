//! A tree on disk.

use super::{FileKind, FileTree, MAX_FILE, MAX_NAMES};
use crate::error::TopologyError;
use std::fs;
use std::io::Read;
use std::path::PathBuf;

/// The tree below a folder; `/` is the live system.
#[derive(Debug, Clone)]
pub struct DiskTree {
    root: PathBuf,
}

impl DiskTree {
    /// The live system.
    #[must_use]
    pub fn live() -> Self {
        Self::new("/")
    }

    /// The tree below `root`.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }
}

impl FileTree for DiskTree {
    fn entry(&self, path: &str) -> FileKind {
        let full = self.path(path);
        if path.is_empty() {
            // The root itself may be reached through a link: it is the caller's word.
            return if full.is_dir() { FileKind::Folder } else { FileKind::Missing };
        }
        let Ok(data) = fs::symlink_metadata(&full) else {
            return FileKind::Missing;
        };
        let kind = data.file_type();
        if kind.is_symlink() {
            match fs::read_link(&full).ok().and_then(|t| t.into_os_string().into_string().ok()) {
                Some(target) => FileKind::Link(target),
                None => FileKind::Other,
            }
        } else if kind.is_dir() {
            FileKind::Folder
        } else if kind.is_file() {
            FileKind::File
        } else {
            FileKind::Other
        }
    }

    fn read(&self, path: &str) -> Result<Vec<u8>, TopologyError> {
        let fail = |error: std::io::Error| TopologyError::io("read", path, &error);
        let file = fs::File::open(self.path(path)).map_err(fail)?;
        let mut bytes = Vec::new();
        file.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes).map_err(fail)?;
        if bytes.len() > MAX_FILE {
            return Err(TopologyError::TooLarge {
                path: path.to_owned(),
                limit: MAX_FILE,
                unit: "bytes",
            });
        }
        Ok(bytes)
    }

    fn list(&self, path: &str) -> Result<Vec<String>, TopologyError> {
        let folder = fs::read_dir(self.path(path))
            .map_err(|error| TopologyError::io("list", path, &error))?;
        let mut names = Vec::new();
        // Names that are not text are none of the kernel's.
        for name in folder.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            if names.len() >= MAX_NAMES {
                return Err(TopologyError::TooLarge {
                    path: path.to_owned(),
                    limit: MAX_NAMES,
                    unit: "names",
                });
            }
            names.push(name);
        }
        names.sort_unstable();
        Ok(names)
    }
}
