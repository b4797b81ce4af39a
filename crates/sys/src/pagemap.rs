//! `/proc/PID/pagemap`, its `PAGEMAP_SCAN` ioctl and `/proc/PID/clear_refs`
//! (kernel: `fs/proc/task_mmu.c`, `include/uapi/linux/fs.h`).

use crate::{Root, SysError};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use terrace_types::{Pid, Vpn, VpnRange};

/// One 64-bit entry of pagemap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct PageEntry(pub u64);

impl PageEntry {
    /// In memory.
    #[must_use]
    pub const fn present(self) -> bool {
        self.0 >> 63 & 1 == 1
    }

    /// Swapped out.
    #[must_use]
    pub const fn swapped(self) -> bool {
        self.0 >> 62 & 1 == 1
    }

    /// Page of a file or shared memory.
    #[must_use]
    pub const fn file(self) -> bool {
        self.0 >> 61 & 1 == 1
    }

    /// Mapped once only.
    #[must_use]
    pub const fn exclusive(self) -> bool {
        self.0 >> 56 & 1 == 1
    }

    /// Written since soft-dirty bits were cleared.
    #[must_use]
    pub const fn soft_dirty(self) -> bool {
        self.0 >> 55 & 1 == 1
    }

    /// Frame number; 0 when absent or hidden from this user.
    #[must_use]
    pub const fn pfn(self) -> u64 {
        if self.present() {
            self.0 & ((1 << 55) - 1)
        } else {
            0
        }
    }
}

/// Categories of `PAGEMAP_SCAN`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Category(pub u64);

impl Category {
    /// Page of a file or shared memory.
    pub const FILE: Self = Self(1 << 2);
    /// In memory.
    pub const PRESENT: Self = Self(1 << 3);
    /// The zero page.
    pub const ZERO: Self = Self(1 << 5);
    /// Mapped by a huge entry.
    pub const HUGE: Self = Self(1 << 6);
    /// Written since soft-dirty bits were cleared.
    pub const SOFT_DIRTY: Self = Self(1 << 7);

    /// Both together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ScanRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 0xc060_6610;
/// Regions taken a call: 24 KiB of buffer.
const REGIONS: usize = 1024;

/// An open pagemap. It stays bound to the memory it was opened on: open anew after exec.
#[derive(Debug)]
pub struct PageMap {
    file: File,
    pid: Pid,
    page_shift: u32,
}

impl PageMap {
    /// Opens the pagemap of a process.
    ///
    /// # Errors
    /// [`SysError::Gone`] for no such process, [`SysError::NotPermitted`] without ptrace access.
    pub fn open(root: &Root, pid: Pid) -> Result<Self, SysError> {
        let path = format!("/proc/{pid}/pagemap");
        let file = open_of(root, pid, &path, false, "run as root (needs CAP_SYS_PTRACE)")?;
        Ok(Self { file, pid, page_shift: crate::page_size().get().trailing_zeros() })
    }

    /// Reads the entries of `range` into `entries`, which is resized to fit; what lies beyond
    /// the end of the address space, or all of it once the process has ended, reads as absent.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn read(&self, range: VpnRange, entries: &mut Vec<PageEntry>) -> Result<(), SysError> {
        let len = usize::try_from(range.len()).unwrap_or(usize::MAX >> 4);
        entries.clear();
        entries.resize(len, PageEntry::default());
        let mut at = 0;
        while at < len {
            let part = &mut entries[at..len.min(at + (1 << 16))];
            // SAFETY: PageEntry is a transparent u64, so the slice is `8 * part.len()` bytes of
            // initialised memory, valid for any bit pattern and borrowed mutably here alone.
            let bytes = unsafe {
                std::slice::from_raw_parts_mut(part.as_mut_ptr().cast::<u8>(), part.len() * 8)
            };
            let offset = (range.start.0 + at as u64).saturating_mul(8);
            let got = self.file.read_at(bytes, offset).map_err(|e| self.fail("pread", &e))?;
            if got < 8 {
                break;
            }
            at += got / 8;
        }
        Ok(())
    }

    /// Runs of pages of `range` that have any of `wanted`, with those of `tell` that they have.
    ///
    /// # Errors
    /// [`SysError::Absent`] before Linux 6.7; otherwise what the kernel said.
    pub fn scan(
        &self,
        range: VpnRange,
        wanted: Category,
        tell: Category,
        mut each: impl FnMut(VpnRange, Category),
    ) -> Result<(), SysError> {
        let mut regions = [ScanRegion::default(); REGIONS];
        let mut start = range.start.0 << self.page_shift;
        let end = range.end.0 << self.page_shift;
        while start < end {
            let mut arg = ScanArg {
                size: std::mem::size_of::<ScanArg>() as u64,
                start,
                end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: REGIONS as u64,
                category_anyof_mask: wanted.0,
                return_mask: tell.0,
                ..ScanArg::default()
            };
            // SAFETY: the descriptor is open; `arg` has the size it states and lives across the
            // call; `vec` points to REGIONS writable regions of the kernel's layout.
            let found = unsafe {
                libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN as _, std::ptr::from_mut(&mut arg))
            };
            if found < 0 {
                let error = std::io::Error::last_os_error();
                if error.raw_os_error() == Some(libc::EINTR) {
                    continue;
                }
                return Err(self.fail("ioctl PAGEMAP_SCAN", &error));
            }
            for r in &regions[..(found as usize).min(REGIONS)] {
                let pages =
                    VpnRange::new(Vpn(r.start >> self.page_shift), Vpn(r.end >> self.page_shift));
                each(pages, Category(r.categories));
            }
            // A kernel that makes no headway would hold us here for ever.
            if arg.walk_end <= start {
                break;
            }
            start = arg.walk_end;
        }
        Ok(())
    }

    fn fail(&self, call: &'static str, error: &std::io::Error) -> SysError {
        let target = format!("pagemap of process {}", self.pid);
        SysError::from_io(call, target, error, "the kernel needs CONFIG_PROC_PAGE_MONITOR")
    }
}

/// What `/proc/PID/clear_refs` clears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clear {
    /// Accessed bits of all pages (`1`). The translations cached by CPUs are left alone.
    Accessed,
    /// Soft-dirty bits of all pages (`4`): writable pages become read-only until written.
    SoftDirty,
}

/// An open `clear_refs`.
#[derive(Debug)]
pub struct ClearRefs {
    file: File,
    pid: Pid,
}

impl ClearRefs {
    /// Opens it.
    ///
    /// # Errors
    /// [`SysError::Gone`] for no such process, [`SysError::NotPermitted`] for another user's.
    pub fn open(root: &Root, pid: Pid) -> Result<Self, SysError> {
        let path = format!("/proc/{pid}/clear_refs");
        Ok(Self { file: open_of(root, pid, &path, true, "run as the owner or as root")?, pid })
    }

    /// Clears. The kernel holds the target's mmap lock for writing during the whole walk.
    ///
    /// # Errors
    /// [`SysError::Gone`] once it has ended.
    pub fn clear(&self, what: Clear) -> Result<(), SysError> {
        let text: &[u8] = match what {
            Clear::Accessed => b"1",
            Clear::SoftDirty => b"4",
        };
        self.file.write_at(text, 0).map(|_| ()).map_err(|e| {
            let target = format!("clear_refs of process {}", self.pid);
            SysError::from_io("write", target, &e, "the kernel needs CONFIG_PROC_PAGE_MONITOR")
        })
    }
}

fn open_of(
    root: &Root,
    pid: Pid,
    path: &str,
    write: bool,
    remedy: &'static str,
) -> Result<File, SysError> {
    let opened = std::fs::OpenOptions::new()
        .read(!write)
        .write(write)
        .custom_flags(libc::O_CLOEXEC)
        .open(root.path(path));
    opened.map_err(|e| {
        if e.raw_os_error() == Some(libc::ENOENT) && !root.exists(&format!("/proc/{pid}/stat")) {
            return SysError::Gone { call: "open", target: format!("process {pid}") };
        }
        SysError::from_io("open", path, &e, remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_pages_are_seen() {
        let pid = Pid(std::process::id() as i32);
        let page = crate::page_size().get();
        let touched = vec![1_u8; 64 * page as usize];
        let first = touched.as_ptr() as u64 / page + 1;
        let range = VpnRange::new(Vpn(first), Vpn(first + 32));
        let map = PageMap::open(&Root::live(), pid).unwrap();
        let mut entries = Vec::new();
        map.read(range, &mut entries).unwrap();
        assert!(entries.iter().all(|e| e.present() && !e.file()));
        let mut seen = 0;
        match map.scan(range, Category::PRESENT, Category::PRESENT.with(Category::HUGE), |r, c| {
            assert!(c.has(Category::PRESENT));
            seen += r.len();
        }) {
            Ok(()) => assert_eq!(seen, 32),
            Err(e) => println!("skipped: {e}"),
        }
        drop(touched);
    }

    #[test]
    fn a_missing_process_is_gone() {
        let nobody = Pid(i32::MAX);
        assert!(PageMap::open(&Root::live(), nobody).unwrap_err().is_gone());
        assert!(ClearRefs::open(&Root::live(), nobody).unwrap_err().is_gone());
    }

    #[test]
    fn beyond_the_address_space_nothing_is_present() {
        let map = PageMap::open(&Root::live(), Pid(std::process::id() as i32)).unwrap();
        let mut entries = Vec::new();
        let far = 1 << 50;
        match map.read(VpnRange::new(Vpn(far), Vpn(far + 4)), &mut entries) {
            Ok(()) => assert!(entries.iter().all(|e| !e.present())),
            Err(e) => assert!(!e.is_gone()),
        }
    }
}
