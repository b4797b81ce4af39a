//! Memory of the targets: on which node it is touched first, where it lies now, and what its owner
//! tells the driver.

use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::ptr;
use std::time::Duration;
use terrace_guest::kernel;

pub const PAGE: usize = 4096;
/// Nodes of the machine that the cases run in: DRAM with all CPUs, and memory without.
pub const FAST: i32 = 0;
pub const SLOW: u32 = 1;

/// Statuses by which a target says that the case does not test what it is meant to.
pub const NOT_AS_MEANT: i32 = 98;
pub const NEVER_MOVED: i32 = 99;

/// Pages of a range that are asked for to learn where it lies.
const SAMPLE: usize = 128;
/// Pages dirtied between two questions where pages are: one batch of moves is not missed.
const STIRRED_AT_ONCE: usize = 1024;
/// Guest time in which pages must begin to move.
const PATIENCE: Duration = Duration::from_secs(10);

/// A mapping of whole pages, unmapped when dropped.
pub struct PageMapping {
    base: *mut u8,
    len: usize,
}

/// How many of the pages asked for lie on the fast node, and how many were asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FastShare {
    pub pages: usize,
    pub of: usize,
}

impl PageMapping {
    fn of(len: usize, flags: i32, fd: i32) -> Self {
        // SAFETY: a fresh mapping at an address the kernel chooses aliases nothing.
        let base = unsafe {
            libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0)
        };
        assert!(
            base != libc::MAP_FAILED,
            "mmap of {len} bytes: {}",
            std::io::Error::last_os_error()
        );
        Self { base: base.cast(), len }
    }

    /// Anonymous memory, `flags` beside that.
    pub fn new(len: usize, flags: i32) -> Self {
        Self::of(len, flags | libc::MAP_ANONYMOUS, -1)
    }

    /// Private anonymous memory in base pages, touched first on the slow node.
    pub fn slow(len: usize) -> Self {
        Self::new(len, libc::MAP_PRIVATE).advised(libc::MADV_NOHUGEPAGE).placed_slow()
    }

    /// A file, privately.
    pub fn file(file: &File, len: usize) -> Self {
        Self::of(len, libc::MAP_PRIVATE, file.as_raw_fd())
    }

    /// Cold memory that takes all of the fast node and a little of the slow one. Children do not
    /// get it: to them and to their parent it would be shared, and that is never moved.
    pub fn filler() -> Self {
        let mut map = Self::new(128 << 20, libc::MAP_PRIVATE).advised(libc::MADV_DONTFORK);
        map.stir(0..map.pages());
        map
    }

    pub fn advised(self, advice: i32) -> Self {
        // SAFETY: the range is exactly this mapping; none of the kinds of advice used here changes
        // what it holds.
        unsafe { libc::madvise(self.base.cast(), self.len, advice) };
        self
    }

    /// What is touched from now on lies on the slow node.
    pub fn placed_slow(self) -> Self {
        const MPOL_PREFERRED: libc::c_long = 1;
        let mask: libc::c_ulong = 1 << SLOW;
        // SAFETY: mbind changes only the policy of this live mapping and reads 64 bits from `mask`.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base,
                self.len,
                MPOL_PREFERRED,
                &mask,
                65_usize,
                0_usize,
            )
        };
        assert!(rc == 0, "mbind: {}", std::io::Error::last_os_error());
        self
    }

    pub fn pages(&self) -> usize {
        self.len / PAGE
    }

    pub fn words(&mut self) -> &mut [u64] {
        // SAFETY: base is page-aligned, `len` bytes are mapped read-write for as long as `self`
        // lives, and the unique borrow of `self` makes the slice the only access of this process.
        unsafe { std::slice::from_raw_parts_mut(self.base.cast(), self.len / 8) }
    }

    pub fn lock(self) -> Self {
        // SAFETY: the range is exactly this mapping; locking changes no contents.
        let rc = unsafe { libc::mlock(self.base.cast(), self.len) };
        assert!(rc == 0, "mlock: {}", std::io::Error::last_os_error());
        self
    }

    pub fn unlock(self) -> Self {
        // SAFETY: the range is exactly this mapping; unlocking changes no contents.
        let rc = unsafe { libc::munlock(self.base.cast(), self.len) };
        assert!(rc == 0, "munlock: {}", std::io::Error::last_os_error());
        self
    }

    /// Moves the mapping to another address, of `len` bytes from then on.
    pub fn remap(&mut self, len: usize) {
        // SAFETY: a fresh reservation, which the next call replaces.
        let space = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert!(space != libc::MAP_FAILED, "no space for {len} bytes");
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the old range is exactly this mapping and no reference into it is live (unique
        // borrow); the new one is the reservation just made, of `len` bytes; the result replaces
        // base and len.
        let base = unsafe { libc::mremap(self.base.cast(), self.len, len, flags, space) };
        assert!(base != libc::MAP_FAILED, "mremap to {len} bytes failed");
        self.base = base.cast();
        self.len = len;
    }

    /// Gives the pages of the second half back to the kernel: they read as zeros again.
    pub fn discard_half(&mut self) {
        let half = self.len / 2 / PAGE * PAGE;
        // SAFETY: the range lies inside this private anonymous mapping, and no reference into it is
        // live.
        unsafe { libc::madvise(self.base.add(half).cast(), self.len - half, libc::MADV_DONTNEED) };
    }

    /// Unmaps the second half.
    pub fn cut_half(&mut self) {
        let half = self.len / 2 / PAGE * PAGE;
        // SAFETY: the range lies inside this mapping, no reference into it is live, and `len`
        // shrinks with it.
        unsafe { libc::munmap(self.base.add(half).cast(), self.len - half) };
        self.len = half;
    }

    /// Reads and writes back a word of each page of `pages`: they are dirty then, and hold what
    /// they held.
    pub fn stir(&mut self, pages: Range<usize>) {
        for page in pages {
            // SAFETY: the first word of a page of this live mapping, aligned; the unique borrow
            // makes it the only access of this process, and the volatile pair is not left out.
            unsafe {
                let word = self.base.add(page * PAGE).cast::<u64>();
                word.write_volatile(word.read_volatile());
            }
        }
    }

    /// Reads a word of each page of `pages`.
    pub fn touch_once(&self, pages: Range<usize>) {
        for page in pages {
            // SAFETY: the first word of a page of this live mapping, aligned; nothing is written.
            unsafe { self.base.add(page * PAGE).cast::<u64>().read_volatile() };
        }
    }

    /// Which of some of the pages lie on the fast node.
    pub fn fast(&self, pages: Range<usize>) -> FastShare {
        let step = (pages.len() / SAMPLE).max(1);
        let asked: Vec<u64> =
            pages.step_by(step).map(|page| (self.base as usize + page * PAGE) as u64).collect();
        let mut status = vec![-1; asked.len()];
        let known = kernel::move_pages(0, &asked, &[], &mut status);
        assert!(known.is_ok(), "move_pages does not tell: {known:?}");
        FastShare { pages: status.iter().filter(|node| **node == FAST).count(), of: asked.len() }
    }

    /// A number that depends on every page, and on a few of them where `brief`.
    pub fn sum(&mut self, brief: bool) -> u64 {
        let step = if brief { PAGE } else { LINE_WORDS };
        self.words().iter().step_by(step).fold(0, |sum, w| sum.rotate_left(5) ^ w)
    }

    pub fn fill(mut self, seed: u64) -> Self {
        fill(self.words(), seed);
        self
    }
}

impl Drop for PageMapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly this mapping and no reference outlives `self`.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// Words of a cache line: only its first word is used, which touches every page for little work.
pub const LINE_WORDS: usize = 8;

pub fn fill(words: &mut [u64], seed: u64) {
    for (i, w) in words.iter_mut().enumerate().step_by(LINE_WORDS) {
        *w = (i as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// What a managed target tells the driver, as files of a folder, and what it is told there. An
/// unmanaged one has none, and waits for nothing.
pub struct TargetFiles(Option<PathBuf>);

/// Names the folder.
pub const TOLD: &str = "TERRACE_CASE_TOLD";
/// Files in it: pages have begun to move; the driver is done.
pub const MOVING: &str = "moving";
pub const ENOUGH: &str = "enough";

impl TargetFiles {
    pub fn from_env() -> Self {
        Self(std::env::var_os(TOLD).map(PathBuf::from))
    }

    pub fn managed(&self) -> bool {
        self.0.is_some()
    }

    pub fn say(&self, what: &str) {
        if let Some(dir) = &self.0 {
            if let Err(e) = fs::write(dir.join(what), "") {
                give_up(NOT_AS_MEANT, &format!("cannot say {what}: {e}"));
            }
        }
    }

    pub fn heard(&self, what: &str) -> bool {
        self.0.as_ref().is_some_and(|dir| dir.join(what).exists())
    }

    /// Waits until somebody said so; unmanaged, not at all.
    pub fn wait_for(&self, what: &str) {
        let until = kernel::now() + PATIENCE.as_nanos() as u64;
        while self.managed() && !self.heard(what) {
            if kernel::now() > until {
                give_up(NEVER_MOVED, &format!("nobody said {what}"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Dirties `pages` until some of them, untouched by that, have come to the fast node: whatever
    /// the caller does next happens while the others are being moved.
    pub fn stir_until_moving(&self, map: &mut PageMapping, pages: Range<usize>) {
        self.stir_until(map, pages, |fast| fast.pages > 0);
    }

    /// Dirties `pages` until `done`; unmanaged, once.
    pub fn stir_until(
        &self,
        map: &mut PageMapping,
        pages: Range<usize>,
        done: impl Fn(FastShare) -> bool,
    ) {
        if !self.managed() {
            return map.stir(pages);
        }
        let began = map.fast(pages.clone());
        if began.pages > began.of / 2 {
            give_up(NOT_AS_MEANT, "the pages to be moved do not lie on the slow node");
        }
        let until = kernel::now() + PATIENCE.as_nanos() as u64;
        loop {
            for part in pages.clone().step_by(STIRRED_AT_ONCE) {
                map.stir(part..(part + STIRRED_AT_ONCE).min(pages.end));
                let fast = map.fast(pages.clone());
                if fast.pages > began.pages && done(fast) {
                    return self.say(MOVING);
                }
            }
            std::thread::sleep(Duration::from_millis(1));
            if kernel::now() > until {
                let now = map.fast(pages.clone()).pages;
                let what = format!(
                    "{} of {} pages were on the fast node, {now} are after {PATIENCE:?}",
                    began.pages, began.of
                );
                give_up(NEVER_MOVED, &what);
            }
        }
    }
}

/// Ends the target, which says why the case cannot be had.
pub fn give_up(status: i32, why: &str) -> ! {
    eprintln!("target: {why}");
    std::process::exit(status)
}
