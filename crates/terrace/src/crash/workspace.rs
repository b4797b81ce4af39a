//! The folder in which a study's files lie until it ends.

use super::CrashError;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes at an output's end in which its last line is looked for.
const TAIL: u64 = 4096;

/// A new folder; it goes with everything in it when this is dropped.
#[derive(Debug)]
pub struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Beneath `base`.
    pub fn create(base: &Path) -> Result<Self, CrashError> {
        let root = base.join(format!("terrace-crash-{}", std::process::id()));
        std::fs::create_dir_all(&root)
            .map_err(|source| CrashError::Work { path: root.clone(), source })?;
        // Absolute, for programs that start elsewhere.
        let root = root
            .canonicalize()
            .map_err(|source| CrashError::Work { path: root.clone(), source })?;
        Ok(Self { root })
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A new file in it.
    pub fn create_file(&self, name: &str) -> Result<File, CrashError> {
        let path = self.path(name);
        File::create(&path).map_err(|source| CrashError::Work { path, source })
    }

    /// A new folder in it that shows what the current folder holds, by links: programs that open
    /// their input by relative paths find it. There is no link of the name `own`.
    pub fn create_folder(&self, name: &str, own: Option<&OsString>) -> Result<PathBuf, CrashError> {
        let path = self.path(name);
        let failed = |source| CrashError::Work { path: path.clone(), source };
        std::fs::create_dir_all(&path).map_err(failed)?;
        let Ok(here) = std::env::current_dir() else { return Ok(path) };
        let entries = std::fs::read_dir(&here).map_err(failed)?.flatten();
        for entry in entries.filter(|e| Some(&e.file_name()) != own).take(MAX_LINKS) {
            let link = path.join(entry.file_name());
            // One that cannot be made is one that the program does not find.
            let _ = std::os::unix::fs::symlink(entry.path(), link);
        }
        Ok(path)
    }

    /// Removes what a program left in its folder, links excepted.
    pub fn tidy_folder(folder: &Path) {
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        for entry in entries.flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            // What cannot be removed goes with the whole folder.
            let _ = match (kind.is_symlink(), kind.is_dir()) {
                (true, _) => Ok(()),
                (false, true) => std::fs::remove_dir_all(entry.path()),
                (false, false) => std::fs::remove_file(entry.path()),
            };
        }
    }

    /// The last line of a file in it, for a message.
    pub fn last_line(&self, name: &str) -> String {
        let text = File::open(self.path(name)).and_then(|mut file| {
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
            let mut bytes = Vec::new();
            file.take(TAIL).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        });
        let text = text.unwrap_or_default();
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        let visible = |c: char| if c.is_control() { ' ' } else { c };
        last.map_or("(it said nothing)".to_owned(), |line| line.chars().map(visible).collect())
    }
}

/// Entries of the current folder that a restart sees at most.
const MAX_LINKS: usize = 1000;

impl Drop for Workspace {
    fn drop(&mut self) {
        // What is left is in a folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.root);
    }
}
