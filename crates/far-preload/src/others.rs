//! The other calls that change an address space: shared memory segments, a userfaultfd of the
//! program's own, `syscall(2)` for all of these, and forks without the C library's handlers.

use crate::layout::Kind;
use crate::raw::{call, fail, kernel};
use crate::space::{
    drop_far, follow_no_more, hand_out, is_followed, on_ground, reserve, reserve_hole, with,
    Change, PAGE,
};
use crate::{before_fork, calls, in_child, in_parent, remap};
use libc::{c_int, c_long, c_ulong, c_void, pid_t, size_t};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// `UFFDIO_REGISTER` (`include/uapi/linux/userfaultfd.h`).
const UFFDIO_REGISTER: c_ulong = 0xc020_aa00;
/// `UFFDIO_MOVE`.
const UFFDIO_MOVE: c_ulong = 0xc028_aa05;
/// `mseal(2)`, since Linux 6.10.
const SYS_MSEAL: c_long = 462;
/// `PIDFD_SELF_THREAD` and `PIDFD_SELF_THREAD_GROUP` (`include/uapi/linux/pidfd.h`).
const PIDFD_SELF: [c_int; 2] = [-10_000, -10_001];
/// Ranges that one `process_madvise(2)` takes (`UIO_MAXIOV`).
const MAX_RANGES: usize = 1024;

/// Bytes of the segments attached on the ground, by address: `shmdt(2)` is not reported.
static ATTACHED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn attached() -> std::sync::MutexGuard<'static, BTreeMap<usize, usize>> {
    ATTACHED.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// `shmat(2)`.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn shmat(id: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
    // SAFETY: handed on.
    let real = |flags: c_int| unsafe {
        let arguments = [id as isize as usize, at as usize, flags as usize, 0, 0, 0];
        call(libc::SYS_shmat, arguments) as *mut c_void
    };
    let start = if flags & libc::SHM_RND != 0 { at as usize / PAGE * PAGE } else { at as usize };
    if start == 0 || start % PAGE != 0 || !is_followed() {
        return real(flags);
    }
    // SAFETY: all zeros is a record.
    let mut about: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: the record is writable.
    if unsafe { libc::shmctl(id, libc::IPC_STAT, &mut about) } != 0 {
        return real(flags);
    }
    let Some(part) = on_ground(start, about.shm_segsz.max(1)) else {
        return real(flags);
    };
    let _no_fork = Change::begin();
    if flags & libc::SHM_REMAP == 0 && !with(|l| l.is(&part, Kind::Free)) {
        return fail(libc::EINVAL) as *mut c_void;
    }
    drop_far(&part);
    let done = real(flags | libc::SHM_REMAP);
    let kind = if done as isize == -1 {
        let before = crate::raw::errno();
        reserve(&part);
        fail(before);
        Kind::Free
    } else {
        attached().insert(part.start, part.len());
        Kind::Ordinary
    };
    with(|l| l.set(part, kind));
    done
}

/// `shmdt(2)`.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn shmdt(at: *const c_void) -> c_int {
    let start = at as usize;
    let on_the_ground = on_ground(start, 1).is_some();
    let _no_fork = on_the_ground.then(Change::begin);
    // SAFETY: handed on.
    let done = unsafe { call(libc::SYS_shmdt, [start, 0, 0, 0, 0, 0]) as c_int };
    if done == 0 && on_the_ground {
        if let Some(len) = attached().remove(&start) {
            // Pages that something else was mapped over meanwhile stay.
            for page in (start..start + len).step_by(PAGE).map(|page| page..page + PAGE) {
                if with(|l| l.is(&page, Kind::Ordinary)) {
                    reserve_hole(&page);
                }
            }
        }
    }
    done
}

/// `ioctl(2)`: memory that a userfaultfd of the program's own is to tell of, or moves, is ordinary.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // The upper half of the number says nothing to the kernel.
    let number = request & 0xffff_ffff;
    if matches!(number, UFFDIO_REGISTER | UFFDIO_MOVE) && !argument.is_null() && is_followed() {
        let words = argument.cast::<u64>();
        // SAFETY: these requests take structures of four words and more: start and length, or
        // target, source and length.
        let (start, len) = unsafe {
            if number == UFFDIO_REGISTER {
                (words.read(), words.add(1).read())
            } else {
                (words.add(1).read(), words.add(2).read())
            }
        };
        if let Some(part) = on_ground(start as usize, len as usize) {
            let _no_fork = Change::begin();
            hand_out(&part);
        }
    }
    let arguments = [fd as isize as usize, request as usize, argument as usize, 0, 0, 0];
    // SAFETY: handed on.
    unsafe { call(libc::SYS_ioctl, arguments) as c_int }
}

/// Whether a `clone` is a fork that returns on the caller's stack.
const fn is_fork(flags: u64, stack: u64) -> bool {
    flags & libc::CLONE_VM as u64 == 0 && stack == 0
}

/// Calls the kernel for a fork.
unsafe fn forked(number: c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: as around any fork; the child runs on a copy of this stack.
    unsafe {
        before_fork();
        let pid = kernel(number, arguments);
        if pid == 0 {
            in_child();
            follow_no_more();
        } else {
            in_parent();
        }
        if pid < 0 {
            return fail(-pid as i32);
        }
        pid
    }
}

/// `syscall(2)`: those that change the address space are followed as if called by name.
///
/// # Safety
/// As in C.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[no_mangle]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let (at, three) = (a as *mut c_void, c as c_int);
    // SAFETY: handed on, each to the call of that number.
    unsafe {
        if is_followed() {
            match number {
                libc::SYS_mmap => {
                    return calls::mmap(at, b, three, d as c_int, e as c_int, f as i64) as c_long
                }
                libc::SYS_munmap => return c_long::from(calls::munmap(at, b)),
                libc::SYS_mremap => {
                    return remap::mremap(at, b, c, d as c_int, e as *mut c_void) as c_long
                }
                libc::SYS_mprotect => return c_long::from(calls::mprotect(at, b, three)),
                libc::SYS_pkey_mprotect => {
                    return c_long::from(calls::pkey_mprotect(at, b, three, d as c_int))
                }
                libc::SYS_madvise => return c_long::from(calls::madvise(at, b, three)),
                libc::SYS_process_madvise => {
                    return advise_ranges(a as c_int, b as *const libc::iovec, c, d as c_int, e)
                }
                libc::SYS_mlock => return c_long::from(calls::mlock(at, b)),
                libc::SYS_mlock2 => return c_long::from(calls::mlock2(at, b, c as u32)),
                libc::SYS_mlockall => return c_long::from(calls::mlockall(a as c_int)),
                libc::SYS_mincore => return c_long::from(calls::mincore(at, b, c as *mut u8)),
                libc::SYS_shmat => return shmat(a as c_int, b as *const c_void, three) as c_long,
                libc::SYS_shmdt => return c_long::from(shmdt(at)),
                libc::SYS_ioctl => {
                    return c_long::from(ioctl(a as c_int, b as c_ulong, c as *mut c_void))
                }
                SYS_MSEAL => {
                    if let Some(part) = on_ground(a, b) {
                        let _no_fork = Change::begin();
                        hand_out(&part);
                    }
                }
                libc::SYS_clone if is_fork(a as u64, b as u64) => {
                    return forked(number, [a, b, c, d, e, f]) as c_long
                }
                libc::SYS_clone3 if b >= 64 => {
                    // `struct clone_args`: flags first, the stack sixth.
                    let words = a as *const u64;
                    if is_fork(words.read(), words.add(5).read()) {
                        return forked(number, [a, b, c, d, e, f]) as c_long;
                    }
                }
                #[cfg(target_arch = "x86_64")]
                libc::SYS_fork => return forked(number, [0; 6]) as c_long,
                _ => {}
            }
        }
        call(number, [a, b, c, d, e, f]) as c_long
    }
}

/// `process_madvise(2)` of this process: each range as by `madvise(2)`.
unsafe fn advise_ranges(
    of: c_int,
    ranges: *const libc::iovec,
    count: size_t,
    advice: c_int,
    flags: usize,
) -> c_long {
    let arguments = [of as isize as usize, ranges as usize, count, advice as usize, flags, 0];
    if !PIDFD_SELF.contains(&of) || count > MAX_RANGES || ranges.is_null() {
        // SAFETY: handed on.
        return unsafe { call(libc::SYS_process_madvise, arguments) as c_long };
    }
    let mut done = 0;
    for n in 0..count {
        // SAFETY: by the contract so many ranges are there.
        let range = unsafe { ranges.add(n).read() };
        // SAFETY: handed on.
        if unsafe { calls::madvise(range.iov_base, range.iov_len, advice) } != 0 {
            return if done > 0 { done } else { -1 };
        }
        done += range.iov_len as c_long;
    }
    done
}

type Fork = unsafe extern "C" fn() -> pid_t;

/// `_Fork(3)`, which calls no handlers: what this library does around a fork is done all the same.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn _Fork() -> pid_t {
    // SAFETY: the name ends with zero; what comes behind this library is asked for, and null is
    // `None`.
    let real = unsafe {
        let found = libc::dlsym(libc::RTLD_NEXT, c"_Fork".as_ptr());
        std::mem::transmute::<*mut c_void, Option<Fork>>(found)
    };
    let Some(real) = real else {
        return fail(libc::ENOSYS) as pid_t;
    };
    // SAFETY: as around any fork.
    unsafe {
        before_fork();
        let pid = real();
        if pid == 0 {
            in_child();
            follow_no_more();
        } else {
            in_parent();
        }
        pid
    }
}
