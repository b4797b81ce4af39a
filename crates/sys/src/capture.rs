//! Shared memory between a recorder and the programs that the capture plugin watches
//! (`capture/plugin.c`): a control page, a slot for each running thread, a ring of words for each
//! slot. The plugin writes words and moves `head`; the recorder takes them and moves `tail`.

use crate::SysError;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use terrace_types::Pid;

/// As in `plugin.c`; the version is in it.
const MAGIC: u64 = 0x0143_4150_4152_5254;
const CONTROL_BYTES: usize = 4096;
const SLOT_BYTES: usize = 256;
/// Offsets in the control page.
mod control {
    pub const SLOTS: usize = 8;
    pub const RING_WORDS: usize = 12;
    pub const RECORDER: usize = 16;
    pub const STOPPED: usize = 20;
    pub const UNPLACED: usize = 28;
    pub const OPTIONS: usize = 32;
    pub const ESCAPED: usize = 36;
    pub const BEGIN_AT: (usize, usize) = (64, 256);
    pub const END_AT: (usize, usize) = (320, 256);
    pub const EMULATOR: (usize, usize) = (576, 1024);
    pub const PLUGIN: (usize, usize) = (1600, 1024);
    pub const AREA: (usize, usize) = (2624, 256);
}
/// Offsets in a slot.
mod slot {
    pub const STATE: usize = 0;
    pub const PID: usize = 4;
    pub const TID: usize = 8;
    pub const HEAD: usize = 64;
    pub const TAIL: usize = 128;
}
/// Words taken at a time.
const MOST_TAKEN: u64 = 16_384;
/// States of a slot.
const FREE: u32 = 0;
const IN_USE: u32 = 1;
const ALL_WRITTEN: u32 = 2;

/// What the programs are told.
#[derive(Debug, Clone, Default)]
pub struct CaptureOptions {
    /// Threads that can be recorded at once.
    pub slots: u32,
    /// Words of each ring; a power of two, 4096 at least.
    pub ring_words: u32,
    /// Send the values stored.
    pub values: bool,
    /// Tell when this function is entered.
    pub begin_at: String,
    /// Tell when this function is entered.
    pub end_at: String,
    /// The emulator's path, for programs that are started by the program.
    pub emulator: PathBuf,
    /// The plugin's path, for the same.
    pub plugin: PathBuf,
}

/// What is new in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Process and thread that wrote it.
    pub pid: Pid,
    /// See `pid`.
    pub tid: i32,
    /// The thread has written its last: nothing will follow in this slot until another thread takes
    /// it.
    pub ended: bool,
}

/// The memory. Dropping it unmaps it here; programs that still hold it are told to stop writing
/// first.
#[derive(Debug)]
pub struct CaptureArea {
    fd: OwnedFd,
    base: NonNull<u8>,
    bytes: usize,
    slots: u32,
    ring_words: u32,
}

impl CaptureArea {
    /// Makes the memory; pages are taken only as they are written.
    ///
    /// # Errors
    /// [`SysError`] when the kernel refuses, or a text of the options is too long.
    pub fn create(options: &CaptureOptions) -> Result<Self, SysError> {
        const TARGET: &str = "shared memory for recording";
        const FREE_SOME: &str = "free memory or raise its limit";
        let ring_words = options.ring_words.next_power_of_two().max(4096);
        let headers = (CONTROL_BYTES + options.slots as usize * SLOT_BYTES).next_multiple_of(4096);
        let bytes = headers + options.slots as usize * ring_words as usize * 8;
        // SAFETY: the name is a C string; the call returns a new descriptor or -1.
        let fd = unsafe { libc::memfd_create(c"terrace-capture".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(SysError::last("memfd_create", TARGET, FREE_SOME));
        }
        // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the descriptor is ours; the length is a plain number.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) } != 0 {
            return Err(SysError::last("ftruncate", TARGET, FREE_SOME));
        }
        let (rights, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping of `bytes` bytes of our descriptor at an address the kernel
        // chooses.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, shared, fd.as_raw_fd(), 0) };
        let base = NonNull::new(base.cast::<u8>()).filter(|_| base != libc::MAP_FAILED);
        let base = base.ok_or_else(|| SysError::last("mmap", TARGET, FREE_SOME))?;
        let area = Self { fd, base, bytes, slots: options.slots, ring_words };
        area.fill_control(options)?;
        Ok(area)
    }

    fn fill_control(&self, options: &CaptureOptions) -> Result<(), SysError> {
        use std::os::unix::ffi::OsStrExt;
        let path = self.path();
        let texts: [((usize, usize), &[u8]); 5] = [
            (control::BEGIN_AT, options.begin_at.as_bytes()),
            (control::END_AT, options.end_at.as_bytes()),
            (control::EMULATOR, options.emulator.as_os_str().as_bytes()),
            (control::PLUGIN, options.plugin.as_os_str().as_bytes()),
            (control::AREA, path.as_os_str().as_bytes()),
        ];
        for ((at, room), text) in texts {
            if text.len() >= room {
                let target = String::from_utf8_lossy(text).into_owned();
                let remedy = "use a shorter name";
                return Err(SysError::from_errno("recording", target, libc::ENAMETOOLONG, remedy));
            }
            // SAFETY: `at + room` lies within the control page, and no program holds the memory
            // yet.
            unsafe {
                std::ptr::copy_nonoverlapping(text.as_ptr(), self.base.as_ptr().add(at), text.len())
            };
        }
        for (at, value) in [
            (control::SLOTS, self.slots),
            (control::RING_WORDS, self.ring_words),
            (control::RECORDER, std::process::id()),
            (control::OPTIONS, u32::from(options.values)),
        ] {
            self.word32(at).store(value, Ordering::Relaxed);
        }
        self.word64(0).store(MAGIC, Ordering::Release);
        Ok(())
    }

    /// Where programs of the same user find it while this process lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new("/proc")
            .join(std::process::id().to_string())
            .join("fd")
            .join(self.fd.as_raw_fd().to_string())
    }

    /// How many slots there are.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Threads that found no slot and so were not recorded.
    #[must_use]
    pub fn unplaced(&self) -> u32 {
        self.word32(control::UNPLACED).load(Ordering::Relaxed)
    }

    /// Threads that a translator could not go on with, and so went on unrecorded.
    #[must_use]
    pub fn escaped(&self) -> u32 {
        self.word32(control::ESCAPED).load(Ordering::Relaxed)
    }

    /// Tells all programs to write no more; they go on unrecorded.
    pub fn stop(&self) {
        self.word32(control::STOPPED).store(1, Ordering::Release);
    }

    /// Puts what is new in a slot at the end of `words`, at most 16,384 words at a time: what is
    /// taken should still be in the processor's cache when it is worked on. `None` for a slot that
    /// nobody uses.
    pub fn take(&self, index: u32, words: &mut Vec<u64>) -> Option<Taken> {
        let at = CONTROL_BYTES + index as usize * SLOT_BYTES;
        if index >= self.slots {
            return None;
        }
        // The state first: once it says that all is written, `head` moves no more.
        let state = self.word32(at + slot::STATE).load(Ordering::Acquire);
        if state != IN_USE && state != ALL_WRITTEN {
            return None;
        }
        let head = self.word64(at + slot::HEAD).load(Ordering::Acquire);
        let tail = self.word64(at + slot::TAIL).load(Ordering::Relaxed);
        let ring = u64::from(self.ring_words);
        // A program can write anything here; more than a ring cannot be meant.
        let new = head.wrapping_sub(tail).min(ring);
        let count = new.min(MOST_TAKEN) as usize;
        let start = (tail % ring) as usize;
        let first = count.min(self.ring_words as usize - start);
        for (from, count) in [(start, first), (0, count - first)] {
            let headers = (CONTROL_BYTES + self.slots as usize * SLOT_BYTES).next_multiple_of(4096);
            let byte = headers + (index as usize * self.ring_words as usize + from) * 8;
            words.reserve(count);
            // SAFETY: the words lie within the mapping (`from + count` is at most `ring_words`,
            // `index` below `slots`) and `words` has room for them. The program wrote them before
            // it moved `head`, which was read with acquire, and does not write there again before
            // `tail` has moved. A program that breaks this can garble what is recorded of it, which
            // is read as untrusted.
            unsafe {
                let source = self.base.as_ptr().add(byte).cast::<u64>();
                std::ptr::copy_nonoverlapping(source, words.as_mut_ptr().add(words.len()), count);
                words.set_len(words.len() + count);
            }
        }
        self.word64(at + slot::TAIL)
            .store(head.wrapping_sub(new - count as u64), Ordering::Release);
        let pid = Pid(self.word32(at + slot::PID).load(Ordering::Relaxed) as i32);
        let tid = self.word32(at + slot::TID).load(Ordering::Relaxed) as i32;
        Some(Taken { pid, tid, ended: state == ALL_WRITTEN && count as u64 == new })
    }

    /// A slot whose thread has ended, or whose process has died, can be used by others.
    pub fn free(&self, index: u32) {
        if index < self.slots {
            let at = CONTROL_BYTES + index as usize * SLOT_BYTES;
            self.word32(at + slot::STATE).store(FREE, Ordering::Release);
        }
    }

    fn word32(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at % 4 == 0 && at + 4 <= self.bytes);
        // SAFETY: all callers give offsets of aligned words within the mapping, which lives as long
        // as `self`; both sides use such words atomically only.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    fn word64(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at % 8 == 0 && at + 8 <= self.bytes);
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }
}

impl Drop for CaptureArea {
    fn drop(&mut self) {
        self.stop();
        // SAFETY: the mapping was made by us with this length, and no reference into it outlives
        // `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Whether a process has ended, be it buried or not.
#[must_use]
pub fn has_ended(pid: Pid) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => {
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']))
        }
        Err(e) => e.kind() == std::io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area() -> CaptureArea {
        let options = CaptureOptions {
            slots: 2,
            ring_words: 4096,
            begin_at: "main".into(),
            ..Default::default()
        };
        CaptureArea::create(&options).unwrap()
    }

    /// Plays the program's part.
    fn write(area: &CaptureArea, index: usize, words: &[u64], state: u32) {
        let at = CONTROL_BYTES + index * SLOT_BYTES;
        let head = area.word64(at + slot::HEAD).load(Ordering::Relaxed);
        for (i, word) in words.iter().enumerate() {
            let ring = 8192 + (index * 4096 + (head as usize + i) % 4096) * 8;
            area.word64(ring).store(*word, Ordering::Relaxed);
        }
        area.word64(at + slot::HEAD).store(head + words.len() as u64, Ordering::Release);
        area.word32(at + slot::STATE).store(state, Ordering::Release);
    }

    #[test]
    fn words_come_out_as_they_went_in_round_and_round() {
        let area = area();
        let mut out = Vec::new();
        assert_eq!(area.take(1, &mut out), None);
        for round in 0..5u64 {
            let words: Vec<u64> = (0..3000).map(|i| round << 32 | i).collect();
            write(&area, 1, &words, IN_USE);
            out.clear();
            assert!(area.take(1, &mut out).is_some_and(|t| !t.ended));
            assert_eq!(out, words);
        }
        write(&area, 1, &[7], ALL_WRITTEN);
        out.clear();
        assert!(area.take(1, &mut out).is_some_and(|t| t.ended));
        area.free(1);
        assert_eq!(out, [7]);
        assert_eq!(area.take(1, &mut out), None);
        assert_eq!(area.take(9, &mut Vec::new()), None);
    }

    #[test]
    fn a_head_that_is_nonsense_gives_at_most_a_ring() {
        let area = area();
        write(&area, 0, &[1, 2], IN_USE);
        area.word64(CONTROL_BYTES + slot::HEAD).store(u64::MAX / 2, Ordering::Release);
        let mut out = Vec::new();
        assert!(area.take(0, &mut out).is_some());
        assert_eq!(out.len(), 4096);
        assert!(area.take(0, &mut out).is_some());
        assert_eq!(out.len(), 4096, "the nonsense is passed over");
    }

    #[test]
    fn a_full_ring_is_taken_in_parts() {
        let options = CaptureOptions { slots: 1, ring_words: 1 << 16, ..Default::default() };
        let area = CaptureArea::create(&options).unwrap();
        let at = CONTROL_BYTES + slot::HEAD;
        area.word64(at).store(40_000, Ordering::Release);
        area.word32(CONTROL_BYTES + slot::STATE).store(ALL_WRITTEN, Ordering::Release);
        let (mut out, mut parts) = (Vec::new(), Vec::new());
        loop {
            let taken = area.take(0, &mut out).unwrap();
            parts.push(out.len());
            if taken.ended {
                break;
            }
        }
        assert_eq!(parts, [16_384, 32_768, 40_000]);
    }

    #[test]
    fn names_that_do_not_fit_are_refused() {
        let options = CaptureOptions { slots: 1, begin_at: "x".repeat(256), ..Default::default() };
        assert!(CaptureArea::create(&options).is_err());
    }

    #[test]
    fn processes_live_and_end() {
        assert!(!has_ended(Pid(std::process::id() as i32)));
        assert!(has_ended(Pid(i32::MAX)));
    }
}
