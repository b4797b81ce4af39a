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
const MAGIC: u64 = 0x0343_4150_4152_5254;
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
    pub const CLAIMED: usize = 40;
    pub const LARGE: usize = 44;
    pub const SMALL_WORDS: usize = 48;
    pub const BEAT: usize = 52;
    pub const NAMESPACE: usize = 56;
    pub const BEGIN_AT: (usize, usize) = (64, 256);
    pub const END_AT: (usize, usize) = (320, 256);
    pub const EMULATOR: (usize, usize) = (576, 1024);
    pub const PLUGIN: (usize, usize) = (1600, 1024);
    pub const AREA: (usize, usize) = (2624, 256);
    pub const CLAIMS: usize = 2880;
}
/// Offsets in a slot.
mod slot {
    pub const STATE: usize = 0;
    pub const PID: usize = 4;
    pub const TID: usize = 8;
    pub const CLEARED: usize = 24;
    pub const NAMESPACE: usize = 32;
    pub const CLAIM: usize = 40;
    pub const HEAD: usize = 64;
    pub const TAIL: usize = 128;
}
/// Words taken at a time.
const MOST_TAKEN: u64 = 16_384;
/// States of a slot.
const FREE: u32 = 0;
const IN_USE: u32 = 1;
const ALL_WRITTEN: u32 = 2;

/// What the programs are given.
#[derive(Debug, Clone, Default)]
pub struct CaptureOptions {
    /// Threads that can be recorded at once.
    pub slots: u32,
    /// So many of the slots, from the first, have large rings.
    pub large_slots: u32,
    /// Words of a large ring; a power of two, 4096 at least.
    pub ring_words: u32,
    /// Words of each other ring; a power of two, 4096 at least.
    pub small_ring_words: u32,
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

/// Whose slot it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotOwner {
    /// Process and thread, as the process's own PID namespace numbers them.
    pub pid: Pid,
    /// See `pid`.
    pub tid: i32,
    /// Inode of that namespace; 0 where it is the recorder's, 1 where the thread could not tell.
    pub namespace: u64,
}

/// What is new in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotWords {
    /// Who wrote it.
    pub owner: SlotOwner,
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
    large_slots: u32,
    ring_words: u32,
    small_ring_words: u32,
}

impl CaptureArea {
    /// Makes the memory; pages are taken only as they are written.
    ///
    /// # Errors
    /// [`SysError`] when the kernel refuses, or a text of the options is too long.
    pub fn create(options: &CaptureOptions) -> Result<Self, SysError> {
        const TARGET: &str = "shared memory for recording";
        const FREE_SOME: &str = "free memory, or raise the limits of memory and file size (ulimit)";
        let words = |asked: u32| asked.next_power_of_two().max(4096);
        let (ring_words, small_ring_words) =
            (words(options.ring_words), words(options.small_ring_words));
        let large_slots = options.large_slots.min(options.slots);
        let headers = (CONTROL_BYTES + options.slots as usize * SLOT_BYTES).next_multiple_of(4096);
        let small_slots = options.slots - large_slots;
        let bytes = headers
            + large_slots as usize * ring_words as usize * 8
            + small_slots as usize * small_ring_words as usize * 8;
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
        let slots = options.slots;
        let area = Self { fd, base, bytes, slots, large_slots, ring_words, small_ring_words };
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
        for ((at, space), text) in texts {
            if text.len() >= space {
                let target = String::from_utf8_lossy(text).into_owned();
                let remedy = "use a shorter name";
                return Err(SysError::from_errno("recording", target, libc::ENAMETOOLONG, remedy));
            }
            // SAFETY: `at + space` lies within the control page, and no program holds the memory
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
            (control::LARGE, self.large_slots),
            (control::SMALL_WORDS, self.small_ring_words),
        ] {
            self.word32(at).store(value, Ordering::Relaxed);
        }
        use std::os::unix::fs::MetadataExt;
        let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino());
        self.word64(control::NAMESPACE).store(namespace, Ordering::Relaxed);
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

    /// Slots from this one on have never been used.
    #[must_use]
    pub fn claimed(&self) -> u32 {
        self.word32(control::CLAIMED).load(Ordering::Acquire).min(self.slots)
    }

    /// Times that a thread has taken a slot.
    #[must_use]
    pub fn claims(&self) -> u64 {
        self.word64(control::CLAIMS).load(Ordering::Acquire)
    }

    /// How many times slots were taken before this one was; `None` for a slot that nobody uses. A
    /// slot that was in use before [`CaptureArea::claims`] was asked has a smaller number than that
    /// said.
    #[must_use]
    pub fn claim(&self, index: u32) -> Option<u64> {
        if index >= self.slots {
            return None;
        }
        let at = slot_offset(index);
        let state = self.word32(at + slot::STATE).load(Ordering::Acquire);
        let used = state == IN_USE || state == ALL_WRITTEN;
        used.then(|| self.word64(at + slot::CLAIM).load(Ordering::Relaxed))
    }

    /// Shows programs that cannot ask for our process that we are there. Call it at least once in a
    /// second.
    pub fn beat(&self) {
        self.word32(control::BEAT).fetch_add(1, Ordering::Relaxed);
    }

    /// Whether programs write no more: told by [`CaptureArea::stop`], or because one of them took
    /// the recorder for gone.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.word32(control::STOPPED).load(Ordering::Acquire) != 0
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
    pub fn take(&self, index: u32, words: &mut Vec<u64>) -> Option<SlotWords> {
        if index >= self.slots {
            return None;
        }
        let at = slot_offset(index);
        // The state first: once it says that all is written, `head` moves no more.
        let state = self.word32(at + slot::STATE).load(Ordering::Acquire);
        if state != IN_USE && state != ALL_WRITTEN {
            return None;
        }
        let head = self.word64(at + slot::HEAD).load(Ordering::Acquire);
        let tail = self.word64(at + slot::TAIL).load(Ordering::Relaxed);
        // A program can write anything here; more than a ring cannot be meant.
        let new = head.wrapping_sub(tail).min(u64::from(self.ring(index).1));
        let count = new.min(MOST_TAKEN);
        self.copy(index, tail, count, words);
        self.word64(at + slot::TAIL).store(head.wrapping_sub(new - count), Ordering::Release);
        let owner = SlotOwner {
            pid: Pid(self.word32(at + slot::PID).load(Ordering::Relaxed) as i32),
            tid: self.word32(at + slot::TID).load(Ordering::Relaxed) as i32,
            namespace: self.word64(at + slot::NAMESPACE).load(Ordering::Relaxed),
        };
        Some(SlotWords { owner, ended: state == ALL_WRITTEN && count == new })
    }

    /// Puts the words that a thread wrote and did not hand over before it was killed at the end of
    /// `words`. Call it once [`CaptureArea::take`] finds nothing more, for threads that have ended.
    /// Writers clear a chunk of their ring before they write to it, so the last word that is not
    /// zero is the last they wrote. `false` where the writer clears nothing (compilers' hooks): how
    /// much is missing is not known then, at most 1024 words.
    pub fn recover(&self, index: u32, words: &mut Vec<u64>) -> bool {
        if index >= self.slots {
            return true;
        }
        let at = slot_offset(index);
        let head = self.word64(at + slot::HEAD).load(Ordering::Acquire);
        let cleared = self.word64(at + slot::CLEARED).load(Ordering::Acquire);
        let left = cleared.wrapping_sub(head);
        if cleared == 0 || left > u64::from(self.ring(index).1) {
            return false;
        }
        let before = words.len();
        self.copy(index, head, left, words);
        while words.len() > before && words.last() == Some(&0) {
            words.pop();
        }
        let next = head.wrapping_add((words.len() - before) as u64);
        self.word64(at + slot::HEAD).store(next, Ordering::Relaxed);
        self.word64(at + slot::TAIL).store(next, Ordering::Release);
        true
    }

    /// Where a slot's ring begins, in bytes of the mapping, and its words.
    fn ring(&self, index: u32) -> (usize, u32) {
        let headers = (CONTROL_BYTES + self.slots as usize * SLOT_BYTES).next_multiple_of(4096);
        let (large, small) = (self.ring_words as usize * 8, self.small_ring_words as usize * 8);
        match index.checked_sub(self.large_slots) {
            None => (headers + index as usize * large, self.ring_words),
            Some(behind) => {
                let start = headers + self.large_slots as usize * large + behind as usize * small;
                (start, self.small_ring_words)
            }
        }
    }

    /// Appends `count` words of a slot's ring, at most all of them, from this position on.
    fn copy(&self, index: u32, position: u64, count: u64, words: &mut Vec<u64>) {
        let (ring, ring_words) = self.ring(index);
        let count = count.min(u64::from(ring_words)) as usize;
        let start = (position % u64::from(ring_words)) as usize;
        let first = count.min(ring_words as usize - start);
        for (from, count) in [(start, first), (0, count - first)] {
            words.reserve(count);
            // SAFETY: the words lie within the mapping (`from + count` is at most the ring's words,
            // `index` below `slots`) and `words` has space for them. The program wrote them before
            // it moved `head`, which was read with acquire, and does not write there again before
            // `tail` has moved; or the program has ended. A program that breaks this can garble
            // what is recorded of it, which is read as untrusted.
            unsafe {
                let source = self.base.as_ptr().add(ring + from * 8).cast::<u64>();
                std::ptr::copy_nonoverlapping(source, words.as_mut_ptr().add(words.len()), count);
                words.set_len(words.len() + count);
            }
        }
    }

    /// A slot whose thread has ended, or whose process has died, can be used by others.
    pub fn free(&self, index: u32) {
        if index < self.slots {
            let at = slot_offset(index);
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

/// Where a slot begins, in bytes of the mapping.
const fn slot_offset(index: u32) -> usize {
    CONTROL_BYTES + index as usize * SLOT_BYTES
}

/// Whether the thread that owns a slot has ended, be it reaped or not. `None` where its PID
/// namespace is not known, so that nothing can be said.
#[must_use]
pub fn has_thread_ended(owner: &SlotOwner) -> Option<bool> {
    match owner.namespace {
        // The thread, not its process: a process whose main thread has ended reads as a zombie
        // while others run.
        0 => Some(is_dead(&format!("/proc/{}/task/{}/stat", owner.pid, owner.tid))),
        1 => None,
        _ => Some(!exists_in_a_namespace(owner.pid)),
    }
}

/// Whether a `/proc/.../stat` file is gone, or is that of a zombie.
fn is_dead(stat: &str) -> bool {
    match std::fs::read_to_string(stat) {
        Ok(stat) => {
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']))
        }
        // ESRCH: it ended between opening and reading.
        Err(e) => e.kind() == std::io::ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH),
    }
}

/// Whether any process that lives has this number in a PID namespace below ours (`NSpid` of
/// proc_pid_status(5)). Two namespaces may use one number: then a process that has ended is taken
/// to live, which costs its slot and nothing else.
fn exists_in_a_namespace(pid: Pid) -> bool {
    let Ok(all) = std::fs::read_dir("/proc") else { return true };
    let numbered = |name: &str| name.bytes().all(|b| b.is_ascii_digit());
    let names = all.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| numbered(name)).any(|name| {
        let Ok(status) = std::fs::read_to_string(format!("/proc/{name}/status")) else {
            return false;
        };
        let field = |key| status.lines().find_map(|line: &str| line.strip_prefix(key));
        let numbers = field("NSpid:").unwrap_or_default();
        let matches = numbers.split_whitespace().count() > 1
            && numbers.split_whitespace().last() == Some(pid.to_string().as_str());
        // A zombie whose other threads run is alive.
        let threads = field("Threads:").and_then(|n| n.trim().parse().ok()).unwrap_or(0u32);
        matches && (!field("State:").unwrap_or_default().trim().starts_with('Z') || threads > 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area() -> CaptureArea {
        let options = CaptureOptions {
            slots: 2,
            large_slots: 1,
            ring_words: 8192,
            small_ring_words: 4096,
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
            let (start, words) = area.ring(index as u32);
            let ring = start + (head as usize + i) % words as usize * 8;
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
        assert_eq!(out.len(), 8192);
        assert!(area.take(0, &mut out).is_some());
        assert_eq!(out.len(), 8192, "the nonsense is passed over");
    }

    #[test]
    fn a_full_ring_is_taken_in_parts() {
        let options =
            CaptureOptions { slots: 1, large_slots: 1, ring_words: 1 << 16, ..Default::default() };
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
    fn what_a_killed_thread_wrote_is_recovered_up_to_its_last_word() {
        for index in [0, 1] {
            let (area, mut out) = (area(), Vec::new());
            let words: Vec<u64> = (1..=100).collect();
            write(&area, index, &words, IN_USE);
            while area.take(index as u32, &mut out).is_some() && out.len() < 100 {}
            let at = slot_offset(index as u32);
            let cleared = area.word64(at + slot::CLEARED);
            assert!(!area.recover(index as u32, &mut out), "a writer that clears nothing");
            cleared.store(1024, Ordering::Release);
            // Words behind the head, a zero among them, as a message's content may be.
            let (ring, _) = area.ring(index as u32);
            for (i, word) in [(100, 7), (101, 0), (102, 9)] {
                area.word64(ring + i * 8).store(word, Ordering::Relaxed);
            }
            assert!(area.recover(index as u32, &mut out));
            assert_eq!(out[100..], [7, 0, 9]);
            assert!(area.recover(index as u32, &mut out));
            assert_eq!(out.len(), 103, "once");
            cleared.store(u64::MAX / 2, Ordering::Release);
            assert!(!area.recover(index as u32, &mut out), "nonsense is not believed");
        }
    }

    #[test]
    fn threads_live_and_end() {
        // SAFETY: gettid takes nothing.
        let tid = unsafe { libc::gettid() };
        let pid = Pid(std::process::id() as i32);
        let owner = |tid, namespace| SlotOwner { pid, tid, namespace };
        assert_eq!(has_thread_ended(&owner(tid, 0)), Some(false));
        assert_eq!(has_thread_ended(&owner(i32::MAX, 0)), Some(true));
        assert_eq!(has_thread_ended(&owner(tid, 1)), None);
        let gone = SlotOwner { pid: Pid(i32::MAX), tid, namespace: 2 };
        assert_eq!(has_thread_ended(&gone), Some(true));
    }
}
