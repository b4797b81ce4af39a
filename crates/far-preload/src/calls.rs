//! `mmap(2)`, `munmap(2)`, `mprotect(2)`, `madvise(2)` and their kin, as programs call them: large
//! anonymous private mappings come from the ground, and what a call changes of the ground is
//! followed ([`crate::space`]). Everything else is passed on.

use crate::layout::Kind;
use crate::raw::{call, fail};
use crate::space::{
    beside, discard, drop_far, grown, hand_out, is_followed, on_ground, open, real_advise, reserve,
    unmap, with, Change, PAGE,
};
use crate::{map, offsets, RUN};
use libc::{c_int, c_void, off_t, size_t};
use std::ops::Range;
use terrace_far::Advice;
use terrace_preload::far as threads;

/// Smaller mappings stay where they are.
const LEAST: usize = 128 << 10;
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
/// All that a mapping at a fixed address may ask for to become far.
const PLAIN: c_int = libc::MAP_PRIVATE
    | libc::MAP_ANONYMOUS
    | libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_NORESERVE
    | libc::MAP_STACK
    | libc::MAP_POPULATE;
/// Advice since Linux 6.13 (`include/uapi/asm-generic/mman-common.h`).
const MADV_DONTNEED_LOCKED: c_int = 24;

/// What `mmap(2)` is asked for.
#[derive(Clone, Copy)]
struct Wanted {
    at: *mut c_void,
    len: size_t,
    rights: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
}

impl Wanted {
    /// The call itself.
    unsafe fn map(self) -> *mut c_void {
        let Self { at, len, rights, flags, fd, offset } = self;
        let (flags, fd) = (flags as usize, fd as isize as usize);
        let arguments = [at as usize, len, rights as usize, flags, fd, offset as usize];
        // SAFETY: the caller's contract is the call's.
        unsafe { call(libc::SYS_mmap, arguments) as *mut c_void }
    }

    /// Whether it becomes far at an address of this library's choice.
    fn is_eligible(self) -> bool {
        let plain = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        self.len >= LEAST && self.flags & (plain | OTHERS) == plain && self.rights == rights
    }
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
    let wanted = Wanted { at, len, rights: prot, flags, fd, offset };
    if is_followed() {
        let part = on_ground(at as usize, len);
        if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 {
            if let Some(part) = part.filter(|_| at as usize % PAGE == 0) {
                // SAFETY: handed on.
                return unsafe { fixed(&part, wanted) };
            }
        } else if wanted.is_eligible() {
            if let Some(start) = new_mapping(part, len) {
                threads::settle();
                return start as *mut c_void;
            }
        }
    }
    // SAFETY: handed on.
    unsafe { wanted.map() }
}

/// A new far mapping, at the hint if that is free.
fn new_mapping(hint: Option<Range<usize>>, len: usize) -> Option<usize> {
    let _no_fork = Change::begin();
    let hinted =
        hint.filter(|h| h.start % PAGE == 0 && h.len() >= len && with(|l| l.take_at(h.clone())));
    let part = hinted.or_else(|| with(|l| l.take(len)))?;
    if !open(&part, libc::PROT_READ | libc::PROT_WRITE) {
        with(|l| l.set(part, Kind::Free));
        return None;
    }
    grown(part.end);
    Some(part.start)
}

/// A mapping at an address of which `part` lies on the ground.
unsafe fn fixed(part: &Range<usize>, wanted: Wanted) -> *mut c_void {
    let _no_fork = Change::begin();
    let whole = part.len() >= wanted.len;
    if wanted.flags & libc::MAP_FIXED_NOREPLACE != 0 && !(whole && with(|l| l.is(part, Kind::Free)))
    {
        return fail(libc::EEXIST) as *mut c_void;
    }
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    if whole && wanted.flags & anonymous == anonymous && wanted.flags & !PLAIN == 0 {
        drop_far(part);
        with(|l| l.set(part.clone(), Kind::Far));
        if !open(part, wanted.rights) {
            // As it was, but empty, and the pager has no part in it.
            with(|l| l.set(part.clone(), Kind::Ordinary));
            return libc::MAP_FAILED;
        }
        grown(part.end);
        return wanted.at;
    }
    let loose = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_POPULATE | libc::MAP_LOCKED;
    let tried = Wanted { at: std::ptr::null_mut(), flags: wanted.flags & !loose, ..wanted };
    // What cannot be mapped leaves what is there as it is: so it is mapped elsewhere first.
    // SAFETY: a new mapping where nothing is, and gone again.
    unsafe {
        let there = tried.map();
        if there == libc::MAP_FAILED {
            return there;
        }
        call(libc::SYS_munmap, [there as usize, wanted.len, 0, 0, 0, 0]);
    }
    drop_far(part);
    let flags = wanted.flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED;
    // SAFETY: handed on; the pager has no part in these pages any more.
    let done = unsafe { Wanted { flags, ..wanted }.map() };
    let kind = if done == libc::MAP_FAILED {
        reserve(part);
        Kind::Free
    } else {
        Kind::Ordinary
    };
    with(|l| l.set(part.clone(), kind));
    done
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

/// `munmap(2)`.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn munmap(at: *mut c_void, len: size_t) -> c_int {
    let start = at as usize;
    // SAFETY: handed on.
    let real = |start, len| unsafe { call(libc::SYS_munmap, [start, len, 0, 0, 0, 0]) as c_int };
    let Some(part) = on_ground(start, len).filter(|_| start % PAGE == 0) else {
        return real(start, len);
    };
    let _no_fork = Change::begin();
    if !unmap(&part) {
        return -1;
    }
    let rest = beside(start, len, &part).into_iter().filter(|rest| !rest.is_empty());
    rest.fold(0, |done, rest| done.min(real(rest.start, rest.len())))
}

/// Calls `mprotect(2)` or its kind, `more` its further arguments.
fn protect(number: libc::c_long, start: usize, len: usize, more: [usize; 2]) -> c_int {
    // SAFETY: the program's own call.
    let real = |len| unsafe { call(number, [start, len, more[0], more[1], 0, 0]) as c_int };
    let Some(part) = on_ground(start, len).filter(|_| start % PAGE == 0) else {
        return real(len);
    };
    let _no_fork = Change::begin();
    // As the kernel: what comes before the first gap is changed.
    match with(|l| l.of_kind(&part, Kind::Free)).first() {
        None => real(len),
        Some(gap) if gap.start > start && real(gap.start - start) != 0 => -1,
        Some(_) => fail(libc::ENOMEM) as c_int,
    }
}

/// `mprotect(2)`.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn mprotect(at: *mut c_void, len: size_t, prot: c_int) -> c_int {
    protect(libc::SYS_mprotect, at as usize, len, [prot as usize, 0])
}

/// `pkey_mprotect(2)`.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn pkey_mprotect(
    at: *mut c_void,
    len: size_t,
    prot: c_int,
    key: c_int,
) -> c_int {
    protect(libc::SYS_pkey_mprotect, at as usize, len, [prot as usize, key as isize as usize])
}

/// What an advice means for far memory.
enum Meaning {
    /// Its bytes are of no use any more.
    Discard,
    /// They are needed soon.
    Fetch,
    /// Huge pages, sharing of equal ones, and what the kernel may take first are the pager's affair
    /// here.
    Nothing,
    /// The kernel follows it, and the pager need not know.
    Kernel,
    /// The kernel follows it on ordinary memory alone.
    HandOut,
}

const fn meaning(advice: c_int) -> Meaning {
    match advice {
        libc::MADV_DONTNEED | libc::MADV_FREE | MADV_DONTNEED_LOCKED => Meaning::Discard,
        libc::MADV_WILLNEED => Meaning::Fetch,
        libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT
        | libc::MADV_COLLAPSE => Meaning::Nothing,
        libc::MADV_REMOVE
        | libc::MADV_DODUMP
        | libc::MADV_DONTDUMP
        | libc::MADV_POPULATE_READ
        | libc::MADV_POPULATE_WRITE => Meaning::Kernel,
        _ => Meaning::HandOut,
    }
}

/// `madvise(2)`.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn madvise(at: *mut c_void, len: size_t, advice: c_int) -> c_int {
    let start = at as usize;
    // Nothing follows from an advice that the kernel does not know.
    let Some(part) =
        on_ground(start, len).filter(|_| start % PAGE == 0 && real_advise(start, 0, advice) == 0)
    else {
        return real_advise(start, len, advice);
    };
    let _no_fork = Change::begin();
    let mut errno = 0;
    for rest in beside(start, len, &part).into_iter().filter(|rest| !rest.is_empty()) {
        if real_advise(rest.start, rest.len(), advice) != 0 {
            errno = crate::raw::errno();
        }
    }
    for (piece, kind) in with(|l| l.pieces(&part)) {
        // As the kernel: what is not mapped is an error in the end, and the rest is done.
        let done = match kind {
            Kind::Free => {
                errno = libc::ENOMEM;
                continue;
            }
            Kind::Ordinary => real_advise(piece.start, piece.len(), advice) == 0,
            Kind::Far => advise_far(&piece, advice),
        };
        if !done {
            return -1;
        }
    }
    if errno == 0 {
        return 0;
    }
    fail(errno) as c_int
}

fn advise_far(piece: &Range<usize>, advice: c_int) -> bool {
    match meaning(advice) {
        Meaning::Discard => discard(piece),
        Meaning::Fetch => {
            if let Some(map) = map() {
                let _as_far_as_there_is_room =
                    map.advise(offsets(piece.start, piece.len()), Advice::WillNeed);
            }
            true
        }
        Meaning::Nothing => true,
        Meaning::Kernel => real_advise(piece.start, piece.len(), advice) == 0,
        Meaning::HandOut => {
            hand_out(piece);
            real_advise(piece.start, piece.len(), advice) == 0
        }
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
    let before = crate::raw::errno();
    // SAFETY: handed on.
    if unsafe { madvise(at, len, advice) } == 0 {
        return 0;
    }
    let errno = crate::raw::errno();
    fail(before);
    errno
}

/// Calls `mlock(2)` or its kind: what is to stay in memory is ordinary memory from then on.
fn lock(number: libc::c_long, start: usize, len: usize, flags: usize) -> c_int {
    let first = start / PAGE * PAGE;
    let Some(part) = on_ground(first, len.saturating_add(start - first)) else {
        // SAFETY: takes numbers and changes no content.
        return unsafe { call(number, [start, len, flags, 0, 0, 0]) as c_int };
    };
    let _no_fork = Change::begin();
    if with(|l| l.is(&part, Kind::Far)) && !terrace_sys::may_lock(len) {
        return fail(libc::ENOMEM) as c_int;
    }
    if !with(|l| l.of_kind(&part, Kind::Free)).is_empty() {
        return fail(libc::ENOMEM) as c_int;
    }
    hand_out(&part);
    // SAFETY: takes numbers and changes no content.
    unsafe { call(number, [start, len, flags, 0, 0, 0]) as c_int }
}

/// `mlock(2)`.
#[no_mangle]
pub extern "C" fn mlock(at: *const c_void, len: size_t) -> c_int {
    lock(libc::SYS_mlock, at as usize, len, 0)
}

/// `mlock2(2)`, as [`mlock`].
#[no_mangle]
pub extern "C" fn mlock2(at: *const c_void, len: size_t, flags: libc::c_uint) -> c_int {
    lock(libc::SYS_mlock2, at as usize, len, flags as usize)
}

/// `mlockall(2)`: `ENOMEM`, since far memory is part of all.
#[no_mangle]
pub extern "C" fn mlockall(flags: c_int) -> c_int {
    if is_followed() && RUN.get().is_some() {
        return fail(libc::ENOMEM) as c_int;
    }
    // SAFETY: takes a number and changes no content.
    unsafe { call(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) as c_int }
}

/// `mincore(2)`: what is far counts as absent.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn mincore(at: *mut c_void, len: size_t, into: *mut u8) -> c_int {
    if let Some(part) = on_ground(at as usize, len) {
        if !with(|l| l.of_kind(&part, Kind::Free)).is_empty() {
            return fail(libc::ENOMEM) as c_int;
        }
    }
    // SAFETY: handed on.
    unsafe { call(libc::SYS_mincore, [at as usize, len, into as usize, 0, 0, 0]) as c_int }
}
