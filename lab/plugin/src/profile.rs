//! Last-level misses by the guest's virtual page, between the marks of a phase: what an ideal placement would know.
//!
//! The file has one line a page, ascending: page number in hex, loads that missed, stores that missed. With windows, a
//! line `window NS` (modelled time at which it began) comes before each window's pages. Only user addresses are
//! counted, those of all processes together.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{BuildHasherDefault, Hasher};
use std::path::PathBuf;

/// User addresses end here on x86-64.
const USER_END: u64 = 1 << 47;
const PHASE_BEGIN: u32 = 1;
const PHASE_END: u32 = 2;

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
pub struct Profile {
    path: Option<PathBuf>,
    window_ns: u64,
    on: bool,
    window_start: Option<u64>,
    pages: Pages,
    text: String,
}

impl Profile {
    /// A profile that goes to `path`, in windows of this length (zero: a single one).
    pub fn new(path: Option<PathBuf>, window_ms: u64) -> Self {
        let window_ns = if window_ms == 0 { u64::MAX } else { window_ms.saturating_mul(1_000_000) };
        Self { path, window_ns, on: false, window_start: None, pages: Pages::default(), text: String::new() }
    }

    /// A miss at this modelled time.
    #[inline]
    pub fn miss(&mut self, address: u64, write: bool, now_ns: u64) {
        if !self.on || address >= USER_END {
            return;
        }
        let start = *self.window_start.get_or_insert(now_ns);
        if now_ns.saturating_sub(start) >= self.window_ns {
            self.close_window();
            self.window_start = Some(now_ns - (now_ns - start) % self.window_ns);
        }
        self.pages.entry(address >> 12).or_default()[usize::from(write)] += 1;
    }

    fn close_window(&mut self) {
        let mut pages: Vec<_> = self.pages.drain().collect();
        pages.sort_unstable();
        if self.window_ns < u64::MAX {
            let _ = writeln!(self.text, "window {}", self.window_start.unwrap_or(0));
        }
        for (page, [reads, writes]) in pages {
            let _ = writeln!(self.text, "{page:x} {reads} {writes}");
        }
    }

    /// A mark: a phase's begin starts the profile anew, its end writes it.
    pub fn mark(&mut self, mark: u32) -> Result<(), String> {
        let Some(path) = &self.path else { return Ok(()) };
        match mark {
            PHASE_BEGIN => {
                self.on = true;
                self.window_start = None;
                self.pages.clear();
                self.text.clear();
                Ok(())
            }
            PHASE_END if self.on => {
                let path = path.clone();
                self.on = false;
                self.close_window();
                let text = std::mem::take(&mut self.text);
                std::fs::write(&path, text).map_err(|e| format!("writing the profile {}: {e}", path.display()))
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
        let mut p = Profile::new(Some(path.clone()), 1);
        p.miss(0x5000, false, 1);
        assert_eq!(p.mark(1), Ok(()));
        p.miss(0x2000, false, 5);
        p.miss(0x1fff, true, 6);
        p.miss(1 << 63, true, 7);
        p.miss(0x1000, false, 2_000_007);
        assert_eq!(p.mark(2), Ok(()));
        let text = std::fs::read_to_string(&path).unwrap();
        let _ = std::fs::remove_file(path);
        assert_eq!(text, "window 5\n1 0 1\n2 1 0\nwindow 2000005\n1 1 0\n");
    }

    #[test]
    fn without_windows_there_are_only_pages() {
        let path = std::env::temp_dir().join(format!("terrace-profile1-{}", std::process::id()));
        let mut p = Profile::new(Some(path.clone()), 0);
        assert_eq!(p.mark(1), Ok(()));
        p.miss(0xabc_d000, false, 5);
        assert_eq!(p.mark(2), Ok(()));
        let text = std::fs::read_to_string(&path).unwrap();
        let _ = std::fs::remove_file(path);
        assert_eq!(text, "abcd 1 0\n");
    }
}
