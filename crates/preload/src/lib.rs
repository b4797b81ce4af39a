//! `libterrace_preload.so`: the C library's allocation functions over arenas, for programs that
//! know nothing of them. `LD_PRELOAD` it, name a plan ([`terrace_alloc::arena::plan`]) in
//! `TERRACE_ALLOC`, or let `terrace run --alloc` do both. Without a plan all goes to one arena on
//! ordinary memory.
//!
//! `shm_open(3)` is passed on, and the segment that it made bound as the plan says, before anybody
//! can touch it.
//!
//! `TERRACE_ALLOC_REPORT` names a file to which each process appends, when it exits, what its
//! arenas held.
//!
//! What glibc promises is kept: `malloc(0)` is a block; `errno` is set on failure and left alone
//! otherwise, by `free` too; overflow is `ENOMEM`; `realloc(p, 0)` frees; memory from before this
//! library was there goes back to glibc. What is freed twice ends the program with a line that says
//! so, as with glibc.
//!
//! Allocation that comes while this library is starting, or from a signal handler that interrupted
//! the allocator, is served from a [`reserve`] of which only the last block is given back. What
//! finds no free space in arenas (`ulimit -v`) comes from glibc.
//!
//! Nothing here calls what may wait for a lock of the C library: whoever allocates may hold it
//! (`setlocale`, whose lock `strerror` takes). So errors are reported by their numbers.

pub mod far;
mod reserve;
mod route;
mod segment;
mod site;
mod statistics;

use libc::{c_int, c_void, size_t};
use std::ptr::{null_mut, NonNull};
use terrace_alloc::arena::{self, ArenaAllocError, FreeError, ReallocError};

extern "C" {
    fn __libc_malloc(size: size_t) -> *mut c_void;
    fn __libc_calloc(count: size_t, size: size_t) -> *mut c_void;
    fn __libc_memalign(align: size_t, size: size_t) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
    fn __libc_realloc(block: *mut c_void, size: size_t) -> *mut c_void;
}

const MIN_ALIGN: usize = 16;
const PAGE: usize = 4096;

fn set_errno(errno: c_int) {
    // SAFETY: the calling thread's own variable.
    unsafe { *libc::__errno_location() = errno };
}

fn errno() -> c_int {
    // SAFETY: the calling thread's own variable.
    unsafe { *libc::__errno_location() }
}

/// Allocates by the plan.
#[inline(always)]
fn allocate(size: usize, align: usize, zero: bool) -> Option<NonNull<u8>> {
    let before = errno();
    let block = match route::choose(size) {
        None if route::has_failed() => ordinary(size, align, zero),
        None => reserve::alloc(size, align).or_else(|| ordinary(size, align, zero)),
        Some((chosen, default)) => {
            let one = |arena: arena::Arena| match (align <= MIN_ALIGN, zero) {
                (true, false) => arena.alloc(size),
                (true, true) => arena.calloc(size, 1),
                (false, _) => arena.alloc_aligned(size, align),
            };
            match one(chosen) {
                Ok(block) => Some(block),
                Err(ArenaAllocError::Reentered) => reserve::alloc(size, align),
                // A plan may not make a program fail that would run without it.
                Err(_) if chosen != default => match one(default) {
                    Err(ArenaAllocError::Reentered) => reserve::alloc(size, align),
                    other => other.ok().or_else(|| ordinary(size, align, zero)),
                },
                Err(_) => ordinary(size, align, zero),
            }
        }
    };
    far::settle();
    set_errno(if block.is_some() { before } else { libc::ENOMEM });
    block
}

/// A block of glibc's, for what finds no free space in arenas. Threads that must not wait for far
/// memory may have it: glibc's own heap never lies there.
#[cold]
fn ordinary(size: usize, align: usize, zero: bool) -> Option<NonNull<u8>> {
    // SAFETY: any size is allowed; the alignment is a power of two.
    unsafe {
        let block = match (align <= MIN_ALIGN, zero) {
            (true, false) => __libc_malloc(size),
            (true, true) => __libc_calloc(1, size),
            (false, _) => __libc_memalign(align, size),
        };
        let block = NonNull::new(block.cast::<u8>())?;
        if align > MIN_ALIGN && zero {
            block.as_ptr().write_bytes(0, size);
        }
        Some(block)
    }
}

/// Arenas and the plan are there before the program has locks to hold.
extern "C" fn loaded() {
    // The compiler would leave out a pair of which nobody sees the block.
    let block = std::hint::black_box(malloc(1));
    // SAFETY: just made, and nobody else's.
    unsafe { free(block) };
}

#[used]
#[link_section = ".init_array"]
static LOADED: extern "C" fn() = loaded;

fn pointer(block: Option<NonNull<u8>>) -> *mut c_void {
    block.map_or(null_mut(), |b| b.as_ptr().cast())
}

/// A block was freed that is none: the program is wrong, and going on would hide it.
#[cold]
fn wrong(what: &str, block: *const c_void, why: FreeError) -> ! {
    let mut line = reserve::Line::new();
    use std::fmt::Write as _;
    let _cut_if_too_long = writeln!(line, "terrace: {what}({block:p}): {why}");
    line.to_stderr();
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

/// `malloc(3)`.
#[no_mangle]
pub extern "C" fn malloc(size: size_t) -> *mut c_void {
    // What most calls are takes neither a rule nor `errno`.
    match route::at_once(size) {
        Some(block) => block.as_ptr().cast(),
        None => malloc_slow(size),
    }
}

#[inline(never)]
fn malloc_slow(size: size_t) -> *mut c_void {
    pointer(allocate(size, MIN_ALIGN, false))
}

/// `calloc(3)`.
#[no_mangle]
pub extern "C" fn calloc(count: size_t, size: size_t) -> *mut c_void {
    match count.checked_mul(size) {
        Some(bytes) => pointer(allocate(bytes, MIN_ALIGN, true)),
        None => {
            set_errno(libc::ENOMEM);
            null_mut()
        }
    }
}

/// `free(3)`.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn free(block: *mut c_void) {
    if far::DUE.load(std::sync::atomic::Ordering::Relaxed) && far::is_aside() {
        // SAFETY: by the contract of C.
        return unsafe { free_aside(block) };
    }
    // SAFETY: by the contract of C; null lies in no arena.
    if !unsafe { arena::free_cached(block.cast()) } {
        // SAFETY: as above.
        unsafe { free_slow(block) };
    }
}

/// As `free`, by a thread that must not wait for far memory, nor for a lock whose holder does: a
/// block of an arena stays allocated.
#[cold]
unsafe fn free_aside(block: *mut c_void) {
    // SAFETY: by the contract of C.
    unsafe {
        if !block.is_null() && !reserve::free(block.cast()) && arena::lookup(block.cast()).is_none()
        {
            __libc_free(block);
        }
    }
}

#[inline(never)]
unsafe fn free_slow(block: *mut c_void) {
    if block.is_null() {
        return;
    }
    let before = errno();
    // SAFETY: by the contract of C.
    match unsafe { arena::free(block.cast()) } {
        Ok(()) => {}
        Err(FreeError::Foreign) => {
            // SAFETY: by the contract of C; one not ours is from before this library was there, or
            // of glibc's inner parts.
            unsafe {
                if !reserve::free(block.cast()) {
                    __libc_free(block);
                }
            }
        }
        Err(why) => wrong("free", block, why),
    }
    set_errno(before);
}

/// `cfree`, of old programs.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn cfree(block: *mut c_void) {
    // SAFETY: handed on.
    unsafe { free(block) };
}

/// `realloc(3)`.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: size_t) -> *mut c_void {
    if block.is_null() {
        return malloc(size);
    }
    if size == 0 {
        // SAFETY: handed on.
        unsafe { free(block) };
        return null_mut();
    }
    let before = errno();
    if let Some(has) = reserve::size(block.cast()) {
        // SAFETY: a block of the reserve of `has` bytes.
        return unsafe { copied(block, has, size) };
    }
    // SAFETY: by the contract of C.
    match unsafe { arena::realloc(block.cast(), size) } {
        Ok(new) => {
            far::settle();
            set_errno(before);
            new.as_ptr().cast()
        }
        // SAFETY: as in `free`.
        Err(ReallocError::Free(FreeError::Foreign)) => unsafe { __libc_realloc(block, size) },
        Err(ReallocError::Free(why)) => wrong("realloc", block, why),
        Err(ReallocError::Alloc(_)) => match arena::usable_size(block.cast()) {
            // Its own arena is full: elsewhere, then.
            // SAFETY: a block of `has` bytes.
            Ok(has) => unsafe { copied(block, has, size) },
            Err(why) => wrong("realloc", block, why),
        },
    }
}

/// A new block with what the old one holds; the old one is freed.
unsafe fn copied(block: *mut c_void, has: usize, size: usize) -> *mut c_void {
    let new = malloc(size);
    if !new.is_null() {
        // SAFETY: both have so many bytes, and lie apart; the old one is the caller's to free.
        unsafe {
            new.cast::<u8>().copy_from_nonoverlapping(block.cast(), has.min(size));
            free(block);
        }
    }
    new
}

/// `reallocarray(3)`.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn reallocarray(
    block: *mut c_void,
    count: size_t,
    size: size_t,
) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: handed on.
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => {
            set_errno(libc::ENOMEM);
            null_mut()
        }
    }
}

/// `memalign(3)`: an alignment that is no power of two is rounded up, as glibc does.
#[no_mangle]
pub extern "C" fn memalign(align: size_t, size: size_t) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) => pointer(allocate(size, align.max(MIN_ALIGN), false)),
        None => {
            set_errno(libc::EINVAL);
            null_mut()
        }
    }
}

/// `aligned_alloc(3)`, as glibc's.
#[no_mangle]
pub extern "C" fn aligned_alloc(align: size_t, size: size_t) -> *mut c_void {
    memalign(align, size)
}

/// `posix_memalign(3)`; leaves `errno` alone.
///
/// # Safety
/// As in C: `out` is writable.
#[no_mangle]
pub unsafe extern "C" fn posix_memalign(
    out: *mut *mut c_void,
    align: size_t,
    size: size_t,
) -> c_int {
    if !align.is_power_of_two() || align % size_of::<*mut c_void>() != 0 {
        return libc::EINVAL;
    }
    let before = errno();
    let block = allocate(size, align.max(MIN_ALIGN), false);
    set_errno(before);
    match block {
        Some(block) => {
            // SAFETY: by the contract of C.
            unsafe { *out = block.as_ptr().cast() };
            0
        }
        None => libc::ENOMEM,
    }
}

/// `valloc(3)`.
#[no_mangle]
pub extern "C" fn valloc(size: size_t) -> *mut c_void {
    pointer(allocate(size, PAGE, false))
}

/// `pvalloc(3)`.
#[no_mangle]
pub extern "C" fn pvalloc(size: size_t) -> *mut c_void {
    match size.max(1).checked_next_multiple_of(PAGE) {
        Some(bytes) => pointer(allocate(bytes, PAGE, false)),
        None => {
            set_errno(libc::ENOMEM);
            null_mut()
        }
    }
}

/// `malloc_usable_size(3)`.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> size_t {
    if block.is_null() {
        return 0;
    }
    match reserve::size(block.cast()) {
        Some(size) => size,
        None => match arena::usable_size(block.cast()) {
            // SAFETY: by the contract of C, one not ours is glibc's.
            Err(FreeError::Foreign) => unsafe { statistics::glibc_usable_size(block) },
            size => size.unwrap_or(0),
        },
    }
}
