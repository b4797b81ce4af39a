//! Last-level misses by the guest's virtual page, between the marks of a phase: what an ideal
//! placement would know. A job that begins no phase is profiled whole.
//!
//! The file has one line a page, ascending: page number in hex, loads that missed, stores that
//! missed. With windows, a line `window NS BYTES...` (modelled time at which it began, and the
//! bytes that were written on the bus to each node while it lasted) comes before each window's
//! pages. A first line `job` says that it is of a whole job. Only user addresses are counted, those
//! of all processes together.
//!
//! With `profile_all` every access counts, served by a cache or not: what a page's accessed and
//! dirty bits are about. A word that is read and then written is a load that misses and a store
//! that hits; misses alone call its page read.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{BuildHasherDefault, Hasher};
use std::path::PathBuf;

/// User addresses end here on x86-64.
const USER_END: u64 = 1 << 47;
const PHASE_BEGIN: u32 = 1;
const PHASE_END: u32 = 2;
const JOB_BEGIN: u32 = 0x11;
const JOB_END: u32 = 0x12;

/// Page numbers need no strong hash, only a fast one.
#[derive(Default)]
struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

/// Loads and stores that missed, by page number.
type Pages = HashMap<u64, [u64; 2], BuildHasherDefault<PageHasher>>;

/// The profile: one window after the other, of modelled time since the phase began.
pub struct AccessProfile {
    path: Option<PathBuf>,
    window_ns: u64,
    every: bool,
    on: bool,
    /// What is profiled is a job in which no phase has begun.
    of_job: bool,
    window_start: Option<u64>,
    /// Bytes written to each node up to the window's begin.
    written: Vec<u64>,
    pages: Pages,
    text: String,
}

impl AccessProfile {
    /// A profile that goes to `path`, in windows of this length (zero: a single one), of every
    /// access or of misses.
    pub fn new(path: Option<PathBuf>, window_ms: u64, every: bool) -> Self {
        let window_ns = if window_ms == 0 { u64::MAX } else { window_ms.saturating_mul(1_000_000) };
        let every = every && path.is_some();
        Self {
            path,
            window_ns,
            every,
            on: false,
            of_job: false,
            window_start: None,
            written: Vec::new(),
            pages: Pages::default(),
            text: String::new(),
        }
    }

    /// Whether accesses count that a cache serves.
    #[inline(always)]
    pub const fn every(&self) -> bool {
        self.every
    }

    /// An access at this modelled time; `written` tells the bytes written to each node so far,
    /// asked when a window ends.
    #[inline]
    pub fn note(
        &mut self,
        address: u64,
        write: bool,
        now_ns: u64,
        written: impl FnOnce() -> Vec<u64>,
    ) {
        if !self.on || address >= USER_END {
            return;
        }
        let start = *self.window_start.get_or_insert(now_ns);
        if now_ns.saturating_sub(start) >= self.window_ns {
            self.close_window(written());
            self.window_start = Some(now_ns - (now_ns - start) % self.window_ns);
        }
        self.pages.entry(address >> 12).or_default()[usize::from(write)] += 1;
    }

    fn close_window(&mut self, written: Vec<u64>) {
        let mut pages: Vec<_> = self.pages.drain().collect();
        pages.sort_unstable();
        if self.window_ns < u64::MAX {
            let _ = write!(self.text, "window {}", self.window_start.unwrap_or(0));
            for (now, before) in written.iter().zip(&self.written) {
                let _ = write!(self.text, " {}", now.saturating_sub(*before));
            }
            self.text.push('\n');
        }
        self.written = written;
        for (page, [reads, writes]) in pages {
            let _ = writeln!(self.text, "{page:x} {reads} {writes}");
        }
    }

    /// A mark: the begin of a phase or of a job starts the profile anew, its end writes it. A job's
    /// is given up when a phase begins. `written` as in [`Self::note`].
    pub fn mark(&mut self, mark: u32, written: Vec<u64>) -> Result<(), String> {
        let Some(path) = &self.path else { return Ok(()) };
        match mark {
            PHASE_BEGIN | JOB_BEGIN => {
                self.on = true;
                self.of_job = mark == JOB_BEGIN;
                self.window_start = None;
                self.written = written;
                self.pages.clear();
                self.text.clear();
                if self.of_job {
                    self.text.push_str("job\n");
                }
                Ok(())
            }
            PHASE_END | JOB_END if self.on && self.of_job == (mark == JOB_END) => {
                let path = path.clone();
                self.on = false;
                self.close_window(written);
                let text = std::mem::take(&mut self.text);
                std::fs::write(&path, text)
                    .map_err(|e| format!("writing the profile {}: {e}", path.display()))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_hold_what_fell_into_them() {
        let path = std::env::temp_dir().join(format!("terrace-profile-{}", std::process::id()));
        let mut p = AccessProfile::new(Some(path.clone()), 1, false);
        p.note(0x5000, false, 1, Vec::new);
        assert_eq!(p.mark(1, vec![10, 100]), Ok(()));
        p.note(0x2000, false, 5, Vec::new);
        p.note(0x1fff, true, 6, Vec::new);
        p.note(1 << 63, true, 7, Vec::new);
        p.note(0x1000, false, 2_000_007, || vec![10, 164]);
        assert_eq!(p.mark(2, vec![74, 164]), Ok(()));
        let text = std::fs::read_to_string(&path).unwrap();
        let _ = std::fs::remove_file(path);
        assert_eq!(text, "window 5 0 64\n1 0 1\n2 1 0\nwindow 2000005 64 0\n1 1 0\n");
    }

    #[test]
    fn a_job_is_profiled_where_it_has_no_phase() {
        let path = std::env::temp_dir().join(format!("terrace-profile2-{}", std::process::id()));
        let mut p = AccessProfile::new(Some(path.clone()), 0, false);
        assert_eq!(p.mark(0x11, vec![]), Ok(()));
        p.note(0x5000, false, 1, Vec::new);
        assert_eq!(p.mark(2, vec![]), Ok(()), "the end of a phase that did not begin");
        assert_eq!(p.mark(0x12, vec![]), Ok(()));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "job\n5 1 0\n");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(p.mark(0x11, vec![]), Ok(()));
        p.note(0x5000, false, 1, Vec::new);
        assert_eq!(p.mark(1, vec![]), Ok(()));
        p.note(0x6000, false, 2, Vec::new);
        assert_eq!(p.mark(2, vec![]), Ok(()));
        assert_eq!(p.mark(0x12, vec![]), Ok(()));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "6 1 0\n");
        let _ = std::fs::remove_file(path);
    }

    #[test]
    fn without_windows_there_are_only_pages() {
        let path = std::env::temp_dir().join(format!("terrace-profile1-{}", std::process::id()));
        let mut p = AccessProfile::new(Some(path.clone()), 0, true);
        assert!(p.every() && !AccessProfile::new(None, 0, true).every());
        assert_eq!(p.mark(1, vec![0]), Ok(()));
        p.note(0xabc_d000, false, 5, Vec::new);
        assert_eq!(p.mark(2, vec![64]), Ok(()));
        let text = std::fs::read_to_string(&path).unwrap();
        let _ = std::fs::remove_file(path);
        assert_eq!(text, "abcd 1 0\n");
    }
}
