//! Reading `/proc` and `/sys` below a replaceable root, with bounded sizes.

use crate::SysError;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Largest text file of `/proc` that is read: a million mappings of 100 bytes each.
pub const TEXT_LIMIT: usize = 128 << 20;

/// A file-system root: `/` live, another folder for gathered trees and tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    prefix: PathBuf,
}

impl Default for Root {
    fn default() -> Self {
        Self::live()
    }
}

impl Root {
    /// The running system.
    #[must_use]
    pub fn live() -> Self {
        Self { prefix: PathBuf::from("/") }
    }

    /// A tree below `prefix`, laid out as the live one.
    #[must_use]
    pub fn with_prefix(prefix: impl Into<PathBuf>) -> Self {
        Self { prefix: prefix.into() }
    }

    /// Where `path` (absolute, as on a live system) lies.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.prefix.join(path.trim_start_matches('/'))
    }

    /// Whether `path` exists.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// All bytes of `path`, at most `limit`.
    ///
    /// # Errors
    /// [`SysError::TooLarge`] above the limit, otherwise what the kernel said.
    pub fn read(&self, path: &str, limit: usize) -> Result<Vec<u8>, SysError> {
        read_bounded(&self.path(path), limit)
    }

    /// The text of `path`, at most [`TEXT_LIMIT`]; bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    /// As [`Root::read`].
    pub fn text(&self, path: &str) -> Result<String, SysError> {
        Ok(String::from_utf8_lossy(&self.read(path, TEXT_LIMIT)?).into_owned())
    }

    /// The one unsigned number that `path` holds.
    ///
    /// # Errors
    /// As [`Root::read`]; [`SysError::Malformed`] when it is no number.
    pub fn number(&self, path: &str) -> Result<u64, SysError> {
        let text = String::from_utf8_lossy(&self.read(path, 4096)?).into_owned();
        text.trim().parse().map_err(|_| SysError::Malformed {
            target: path.to_owned(),
            what: "not a number",
            line: 1,
        })
    }

    /// Writes `text` to `path`, which must exist, in one call.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn write(&self, path: &str, text: &str) -> Result<(), SysError> {
        let full = self.path(path);
        let fail = |e: &std::io::Error| SysError::from_io("write", path, e, "run as root");
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(&full)
            .map_err(|e| fail(&e))?;
        let written = file.write(text.as_bytes()).map_err(|e| fail(&e))?;
        if written == text.len() {
            Ok(())
        } else {
            Err(SysError::from_errno("write", path, libc::EIO, "the kernel took part of it only"))
        }
    }

    /// Names in the folder `path`, sorted.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn list(&self, path: &str) -> Result<Vec<String>, SysError> {
        let dir = std::fs::read_dir(self.path(path))
            .map_err(|e| SysError::from_io("readdir", path, &e, "check the path"))?;
        let mut names: Vec<String> =
            dir.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort();
        Ok(names)
    }
}

fn read_bounded(path: &Path, limit: usize) -> Result<Vec<u8>, SysError> {
    let target = || path.to_string_lossy().into_owned();
    let fail =
        |e: &std::io::Error| SysError::from_io("read", target(), e, "run as the owner or as root");
    // O_NONBLOCK: a gathered tree may hold a pipe where a file is expected.
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
        .map_err(|e| fail(&e))?;
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(|e| fail(&e))?;
    if bytes.len() > limit {
        return Err(SysError::TooLarge { target: target(), limit });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_bounded_and_rooted() {
        let dir = std::env::temp_dir().join(format!("terrace-root-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("proc")).unwrap();
        std::fs::write(dir.join("proc/x"), "12\n").unwrap();
        let root = Root::with_prefix(&dir);
        assert_eq!(root.number("/proc/x"), Ok(12));
        assert!(matches!(root.read("/proc/x", 2), Err(SysError::TooLarge { .. })));
        assert!(matches!(root.text("/proc/y"), Err(SysError::Absent { .. })));
        root.write("/proc/x", "not").unwrap();
        assert!(matches!(root.number("/proc/x"), Err(SysError::Malformed { .. })));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
