//! `shm_open(3)`: the C library's own, and then the segment's pages come from where the plan says.
//!
//! The kernel keeps such a policy with the file, so `mmap` needs no looking at, and it holds for
//! processes without this library too. Only empty segments are bound: whoever creates one decides,
//! not who comes later.

use crate::reserve::Line;
use crate::{errno, route, set_errno};
use libc::{c_char, c_int, mode_t};
use std::ffi::CStr;
use std::fmt::Write as _;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicPtr, Ordering::*};
use terrace_alloc::arena::KernelNodes;
use terrace_alloc::shared::place_segment;

type ShmOpen = unsafe extern "C" fn(*const c_char, c_int, mode_t) -> c_int;

static REAL: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The C library's function; before glibc 2.34 it is in `librt`, which whoever calls it has loaded.
fn real() -> Option<ShmOpen> {
    let mut found = REAL.load(Acquire);
    if found.is_null() {
        // SAFETY: the name ends with zero; what comes behind this library is asked for.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"shm_open".as_ptr()) };
        REAL.store(found, Release);
    }
    // SAFETY: null is `None`, and the one symbol of this name has this type.
    unsafe { std::mem::transmute::<*mut libc::c_void, Option<ShmOpen>>(found) }
}

/// `shm_open(3)`.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn shm_open(name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let Some(real) = real() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: by the contract of C.
    let fd = unsafe { real(name, flags, mode) };
    if fd >= 0 {
        let before = errno();
        // SAFETY: the C library opened that name, so it is a string; and the descriptor is open.
        let (name, fd) = unsafe { (CStr::from_ptr(name), BorrowedFd::borrow_raw(fd)) };
        place(name, fd);
        set_errno(before);
    }
    fd
}

/// Binds a segment that is still empty.
fn place(name: &CStr, fd: BorrowedFd<'_>) {
    use std::os::fd::AsRawFd as _;
    let bytes = name.to_bytes();
    let slashes = bytes.iter().take_while(|b| **b == b'/').count();
    let Some(devices) = route::of_segment(&bytes[slashes..]) else { return };
    // SAFETY: all zeros is a `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and `stat` writable.
    if unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } != 0 || stat.st_size != 0 {
        return;
    }
    if let Err(why) = place_segment(fd, devices, &KernelNodes) {
        let mut line = Line::new();
        let name = name.to_string_lossy();
        let _cut_if_too_long = writeln!(
            line,
            "terrace: shared memory {name}: {why}; it lies where the kernel puts it"
        );
        line.to_stderr();
    }
}
