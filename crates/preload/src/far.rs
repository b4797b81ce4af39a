//! What far memory, where it is linked in, asks of the allocator: to begin on its ground, to tell
//! it when it is due, and to keep some threads off it.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};

/// Something is due ([`set_due`]), or a thread is set aside: allocations look.
pub static DUE: AtomicBool = AtomicBool::new(false);
/// Bytes of glibc's heap that far memory has for itself, which are none of the program's.
pub static OWN_BYTES: AtomicUsize = AtomicUsize::new(0);
static CALLED: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
/// Threads that are served from the reserve: they must never wait for far memory.
static ASIDE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Has `called` called, once, by the next thread that has allocated, outside every lock.
pub fn set_due(called: fn()) {
    CALLED.store(called as *mut (), Release);
    DUE.store(true, Release);
}

/// From now on the thread in this place (0 or 1) is served from the reserve; `None`: nobody.
/// [`DUE`] stays set meanwhile.
pub fn set_aside(place: usize, thread: Option<usize>) {
    ASIDE[place & 1].store(thread.unwrap_or(0), SeqCst);
    DUE.store(true, Release);
}

/// The calling thread, as [`set_aside`] takes it.
#[must_use]
pub fn this_thread() -> usize {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::pthread_self() as usize }
}

/// Whether the calling thread is one of those set aside.
#[must_use]
pub fn is_aside() -> bool {
    let here = this_thread();
    ASIDE.iter().any(|a| a.load(Relaxed) == here)
}

/// Whether the calling thread may allocate from arenas.
#[cold]
pub(crate) fn go_on() -> bool {
    !is_aside()
}

/// Calls what is due, if anything is. The calling thread holds no lock and changes no arena.
#[inline(always)]
pub fn settle() {
    if DUE.load(Relaxed) {
        call();
    }
}

#[cold]
fn call() {
    if CALLED.load(Relaxed).is_null() || is_aside() {
        return;
    }
    let called = CALLED.swap(std::ptr::null_mut(), AcqRel);
    if !called.is_null() {
        // SAFETY: `set_due` stored a function of this type.
        unsafe { std::mem::transmute::<*mut (), fn()>(called)() };
    }
}

/// Calls the beginning of far memory, if it is in this process and asked for.
pub(crate) fn begin() {
    // SAFETY: the name ends with zero; nobody changes the environment while the program starts.
    if unsafe { libc::getenv(c"TERRACE_FAR_STORE".as_ptr()).is_null() } {
        return;
    }
    // SAFETY: a look-up by a name that ends with zero; what it allocates is served from the
    // reserve, as this thread is starting.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"terrace_far_begin".as_ptr()) };
    if !found.is_null() {
        // SAFETY: the one symbol of this name is a function without arguments, of the library
        // beside this one.
        unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(found)() };
    }
}
