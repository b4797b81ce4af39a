//! Calls about mappings: large anonymous private ones come from the ground, and calls on parts of
//! it are answered as the kernel would, through the map. Everything else is passed on.
//!
//! The kernel's own functions are called by number, since their names in the C library are these
//! here.

use crate::ranges::Ranges;
use crate::{consider, map, offsets, MAPS_TOP, OFF, RUN, STATE};
use libc::{c_int, c_void, off_t, size_t};
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::Ordering::*;
use terrace_far::Advice;
use terrace_preload::far as threads;
use terrace_sys::Lock;

/// Smaller mappings stay where they are.
const LEAST: usize = 128 << 10;
const PAGE: usize = 4096;
/// Flags of mappings that are somebody's special concern. MAP_NORESERVE is among them: this
/// library's own have it.
const OTHERS: c_int = libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_HUGETLB
    | libc::MAP_GROWSDOWN
    | libc::MAP_STACK
    | libc::MAP_NORESERVE
    | libc::MAP_LOCKED
    | libc::MAP_32BIT;

struct Maps {
    lock: Lock,
    ranges: UnsafeCell<Ranges>,
}

// SAFETY: `ranges` is reached under `lock` alone.
unsafe impl Sync for Maps {}

static MAPS: Maps = Maps { lock: Lock::new(), ranges: UnsafeCell::new(Ranges::new()) };

fn with<T>(act: impl FnOnce(&mut Ranges) -> T) -> T {
    let _held = MAPS.lock.hold();
    // SAFETY: the lock is held, so this is the only reference.
    act(unsafe { &mut *MAPS.ranges.get() })
}

/// Mappings are handed out of this range from now on.
pub(crate) fn begin(all: Range<usize>) {
    with(|r| r.begin(all));
}

/// Around a fork the ranges stand still.
pub(crate) fn lock_for_fork() {
    MAPS.lock.lock();
}

/// Ends [`lock_for_fork`].
pub(crate) fn unlock_after_fork() {
    MAPS.lock.unlock();
}

fn set_errno(errno: c_int) {
    // SAFETY: the calling thread's own variable.
    unsafe { *libc::__errno_location() = errno };
}

/// The part of a range that lies on the ground, when this thread's calls are looked at.
fn on_ground(start: usize, len: usize) -> Option<Range<usize>> {
    if STATE.load(Relaxed) == OFF || threads::is_aside() {
        return None;
    }
    let ground = RUN.get()?.ground;
    let end = start.checked_add(len.checked_next_multiple_of(PAGE)?)?;
    let part = start.max(ground.start())..end.min(ground.start() + ground.len());
    (part.start < part.end).then_some(part)
}

unsafe fn real_mmap(
    at: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's contract is the call's.
    unsafe { libc::syscall(libc::SYS_mmap, at, len, prot, flags, fd, offset) as *mut c_void }
}

pub(crate) fn real_madvise(start: usize, len: usize, advice: c_int) -> c_int {
    // SAFETY: by callers: the program's own call, or pages that nothing uses.
    unsafe { libc::syscall(libc::SYS_madvise, start, len, advice) as c_int }
}

fn real_mprotect(part: &Range<usize>, prot: c_int) {
    // SAFETY: the part is of the ground, and rights are what the program asked for, or all.
    let _a_refusal_is_seen_at_the_access =
        unsafe { libc::syscall(libc::SYS_mprotect, part.start, part.len(), prot) };
}

/// Mappings reach to `end`.
fn grown(end: usize) {
    MAPS_TOP.fetch_max(end, SeqCst);
    consider();
    threads::settle();
}

/// `mmap(2)`.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let plain = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let looked_at = STATE.load(Relaxed) != OFF;
    if looked_at
        && len >= LEAST
        && flags & (plain | OTHERS) == plain
        && prot == rights
        && !threads::is_aside()
    {
        if let Some(part) = with(|r| r.take(len)) {
            grown(part.end);
            return part.start as *mut c_void;
        }
    }
    if flags & libc::MAP_FIXED != 0 && looked_at {
        if let Some(part) = on_ground(at as usize, len) {
            // SAFETY: handed on.
            return unsafe { fixed(&part, at, len, prot, flags, fd, offset) };
        }
    }
    // SAFETY: handed on.
    unsafe { real_mmap(at, len, prot, flags, fd, offset) }
}

/// A mapping over parts of the ground.
unsafe fn fixed(
    part: &Range<usize>,
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let whole = part.len() >= len && with(|r| r.holds(part));
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    crate::discard(part.start, part.len());
    if whole && flags & (private | libc::MAP_HUGETLB) == private {
        // Fresh memory in place of what was there: it may stay far.
        real_mprotect(part, prot);
        return at;
    }
    with(|r| r.lose(part.clone()));
    // SAFETY: handed on; the map has no pages there any more and is not asked for any.
    unsafe { real_mmap(at, len, prot, flags, fd, offset) }
}

/// `mmap64(2)`.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: handed on.
    unsafe { mmap(at, len, prot, flags, fd, offset) }
}

/// `munmap(2)`. What is unmapped of the ground reads as zeros until it is handed out again, where
/// the kernel would raise SIGSEGV.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn munmap(at: *mut c_void, len: size_t) -> c_int {
    // SAFETY: handed on.
    let real =
        |start: usize, len: usize| unsafe { libc::syscall(libc::SYS_munmap, start, len) as c_int };
    let start = at as usize;
    let Some(part) = on_ground(start, len).filter(|_| start % PAGE == 0) else {
        return real(start, len);
    };
    let others = with(|r| r.lost(&part));
    for other in others {
        let _part_of_the_whole = real(other.start, other.len());
    }
    let used = with(|r| r.used(&part));
    for piece in used {
        // Gone before it can be handed out again.
        crate::discard(piece.start, piece.len());
        real_mprotect(&piece, libc::PROT_READ | libc::PROT_WRITE);
        with(|r| r.give(piece));
    }
    let end = start + len.next_multiple_of(PAGE);
    let before = if start < part.start { real(start, part.start - start) } else { 0 };
    let after = if end > part.end { real(part.end, end - part.end) } else { 0 };
    before.min(after)
}

/// `mremap(2)`. What moves is copied.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let Some(part) = on_ground(old as usize, old_len.max(1)) else {
        // SAFETY: handed on.
        return unsafe {
            libc::syscall(libc::SYS_mremap, old, old_len, new_len, flags, new) as *mut c_void
        };
    };
    let (old_len, new_len) = (old_len.next_multiple_of(PAGE), new_len.next_multiple_of(PAGE));
    let sound = old as usize % PAGE == 0
        && old_len > 0
        && new_len > 0
        && flags & !libc::MREMAP_MAYMOVE == 0;
    if !sound || !with(|r| r.holds(&part)) {
        set_errno(if sound { libc::EFAULT } else { libc::EINVAL });
        return libc::MAP_FAILED;
    }
    if new_len <= old_len {
        if new_len < old_len {
            // SAFETY: a part of the caller's mapping that it gives up.
            unsafe { munmap(old.byte_add(new_len), old_len - new_len) };
        }
        return old;
    }
    if with(|r| r.extend(part.end, new_len - old_len)) {
        grown(part.end + new_len - old_len);
        return old;
    }
    let moved = if flags & libc::MREMAP_MAYMOVE != 0 { with(|r| r.take(new_len)) } else { None };
    let Some(moved) = moved else {
        set_errno(libc::ENOMEM);
        return libc::MAP_FAILED;
    };
    grown(moved.end);
    // SAFETY: both parts are mapped, of `old_len` bytes at least, and apart; by the contract the
    // old one is the caller's.
    unsafe {
        (moved.start as *mut u8).copy_from_nonoverlapping(old.cast(), old_len);
        munmap(old, old_len);
    }
    moved.start as *mut c_void
}

/// `madvise(2)`.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn madvise(at: *mut c_void, len: size_t, advice: c_int) -> c_int {
    let start = at as usize;
    let Some(part) = on_ground(start, len) else {
        return real_madvise(start, len, advice);
    };
    match advice {
        libc::MADV_DONTNEED | libc::MADV_FREE if start % PAGE == 0 => {
            let end = start + len.next_multiple_of(PAGE);
            if start < part.start {
                real_madvise(start, part.start - start, advice);
            }
            if end > part.end {
                real_madvise(part.end, end - part.end, advice);
            }
            for other in with(|r| r.lost(&part)) {
                real_madvise(other.start, other.len(), advice);
            }
            crate::discard(part.start, part.len());
            0
        }
        libc::MADV_WILLNEED => {
            if let Some(map) = map() {
                let _as_far_as_there_is_room =
                    map.advise(offsets(part.start, part.len()), Advice::WillNeed);
            }
            0
        }
        // Huge pages, sharing of equal ones, and what the kernel may take first are the pager's
        // affair here.
        libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT
        | libc::MADV_COLLAPSE => 0,
        _ => real_madvise(start, len, advice),
    }
}

/// `posix_madvise(3)`: its DONTNEED keeps the bytes.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn posix_madvise(at: *mut c_void, len: size_t, advice: c_int) -> c_int {
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    // SAFETY: handed on.
    let done = unsafe { madvise(at, len, advice) };
    if done == 0 {
        return 0;
    }
    // SAFETY: the calling thread's own variable.
    unsafe { *libc::__errno_location() }
}

/// Far memory cannot be locked; the rest is passed on.
fn lock(start: usize, len: usize, call: impl FnOnce() -> c_int) -> c_int {
    if on_ground(start, len).is_some() {
        set_errno(libc::ENOMEM);
        return -1;
    }
    call()
}

/// `mlock(2)`: `ENOMEM` for far memory.
#[no_mangle]
pub extern "C" fn mlock(at: *const c_void, len: size_t) -> c_int {
    // SAFETY: takes numbers and changes no content.
    lock(at as usize, len, || unsafe { libc::syscall(libc::SYS_mlock, at, len) as c_int })
}

/// `mlock2(2)`, as [`mlock`].
#[no_mangle]
pub extern "C" fn mlock2(at: *const c_void, len: size_t, flags: libc::c_uint) -> c_int {
    // SAFETY: takes numbers and changes no content.
    lock(at as usize, len, || unsafe { libc::syscall(libc::SYS_mlock2, at, len, flags) as c_int })
}

/// `mlockall(2)`: `ENOMEM`, since far memory is part of all.
#[no_mangle]
pub extern "C" fn mlockall(flags: c_int) -> c_int {
    let ground = RUN.get().map_or((0, 0), |r| (r.ground.start(), r.ground.len()));
    // SAFETY: takes a number and changes no content.
    lock(ground.0, ground.1, || unsafe { libc::syscall(libc::SYS_mlockall, flags) as c_int })
}
