//! Rows of numbers that several processes write and one reads: a file in memory, without a name.

use crate::SysError;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A table of `ROWS` rows, all zero at first.
#[derive(Debug)]
pub struct SharedTable {
    base: NonNull<AtomicU64>,
    words: usize,
    /// Kept open by whoever made it, so that others can find it.
    file: Option<File>,
}

// SAFETY: what is shared is atomic words in a mapping that lives as long as the value.
unsafe impl Send for SharedTable {}
// SAFETY: as above.
unsafe impl Sync for SharedTable {}

impl SharedTable {
    /// Rows.
    pub const ROWS: usize = 256;

    /// Makes one with rows of `words` words.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub fn create(words: usize) -> Result<Self, SysError> {
        // SAFETY: a name that ends with zero, and flags; returns a new descriptor or -1.
        let fd = unsafe { libc::memfd_create(c"terrace-tally".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(SysError::last(
                "memfd_create",
                "this process",
                "raise the limit on open files",
            ));
        }
        // SAFETY: the kernel has just given us this descriptor; nobody else has it.
        let file = unsafe { File::from_raw_fd(fd) };
        let len = Self::ROWS * words * 8;
        file.set_len(len as u64).map_err(|e| {
            SysError::from_io("ftruncate", "shared numbers", &e, "free some memory")
        })?;
        let base = Self::map(&file, len)?;
        Ok(Self { base, words, file: Some(file) })
    }

    /// Where others of this user find it while this process lives.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        let fd = self.file.as_ref()?.as_raw_fd();
        Some(format!("/proc/{}/fd/{fd}", std::process::id()).into())
    }

    /// Opens another process's table with rows of `words` words.
    ///
    /// # Errors
    /// It is gone, or of another size.
    pub fn open(path: &Path, words: usize) -> Result<Self, SysError> {
        let target = || path.to_string_lossy().into_owned();
        let remedy = "run under terrace run";
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|e| SysError::from_io("open", target(), &e, remedy))?;
        let len = Self::ROWS * words * 8;
        if file.metadata().map_or(0, |m| m.len()) != len as u64 {
            return Err(SysError::from_errno("open", target(), libc::EINVAL, remedy));
        }
        Ok(Self { base: Self::map(&file, len)?, words, file: None })
    }

    fn map(file: &File, len: usize) -> Result<NonNull<AtomicU64>, SysError> {
        // SAFETY: a new shared mapping of a file of this length, at an address of the kernel's
        // choice.
        let at = unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), len, rights, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        let base = (at != libc::MAP_FAILED).then(|| NonNull::new(at.cast())).flatten();
        base.ok_or_else(|| SysError::last("mmap", "shared numbers", "raise the limits on memory"))
    }

    /// A row.
    #[must_use]
    pub fn row(&self, number: usize) -> &[AtomicU64] {
        let first = number % Self::ROWS * self.words;
        // SAFETY: within the mapping, which is page-aligned; all bit patterns are valid, and nobody
        // can make the file shorter but its owner, who does not.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(first), self.words) }
    }
}

impl Drop for SharedTable {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`, of this length; borrowers of rows borrowed from
        // `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), Self::ROWS * self.words * 8) };
    }
}

/// Whether a process of this number is there and not a zombie.
#[must_use]
pub fn is_running(pid: terrace_types::Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.0)).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn what_one_writes_the_other_reads() {
        let mine = SharedTable::create(8).unwrap();
        let path = mine.path().unwrap();
        let other = SharedTable::open(&path, 8).unwrap();
        other.row(3)[7].store(9, Relaxed);
        assert_eq!((mine.row(3)[7].load(Relaxed), mine.row(4)[0].load(Relaxed)), (9, 0));
        assert!(SharedTable::open(&path, 9).is_err());
        assert!(other.path().is_none());
        assert!(
            is_running(terrace_types::Pid(std::process::id() as i32))
                && !is_running(terrace_types::Pid(0))
        );
    }
}
