//! Arenas that several processes share.

use crate::arena::devices;
use crate::codes::{fail, guard, invalid, TERRACE_E_INVALID, TERRACE_OK};
use crate::{
    TERRACE_ARENA_HUGE, TERRACE_E_BUSY, TERRACE_E_KERNEL, TERRACE_E_NOT_OURS, TERRACE_E_NO_ROOM,
    TERRACE_E_TOO_LARGE,
};
use std::ffi::{c_char, c_int, c_void, CStr};
use std::os::fd::{AsRawFd, BorrowedFd};
use terrace_alloc::arena::ArenaError;
use terrace_alloc::shared::{SharedArena, SharedError, SharedSpec};
use terrace_alloc::types::Bytes;

/// The file is no shared arena, or one of another version.
pub const TERRACE_E_NOT_SHARED: c_int = -16;
/// A process ended while it repaired a shared arena after another's death. Create the arena again.
pub const TERRACE_E_LOST: c_int = -17;
/// No offset.
pub const TERRACE_NO_OFFSET: u64 = u64::MAX;

/// This process's view of an arena that other processes share. Several threads may call all
/// functions on it at once.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct terrace_shared {
    arena: SharedArena,
}

/// Figures of a shared arena.
#[repr(C)]
#[derive(Debug, Default)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct terrace_shared_figures {
    /// Bytes for blocks.
    pub size_bytes: u64,
    /// Bytes of blocks, in steps of 64.
    pub used_bytes: u64,
    /// Blocks that are allocated.
    pub blocks: u64,
    /// Bytes that have memory.
    pub backed_bytes: u64,
    /// Number of times that a process died inside the arena.
    pub recovered: u64,
}

fn failed(error: &SharedError) -> c_int {
    let code = match error {
        SharedError::Name { .. } | SharedError::Alignment => TERRACE_E_INVALID,
        SharedError::Size(_) => TERRACE_E_TOO_LARGE,
        SharedError::NotShared { .. } => TERRACE_E_NOT_SHARED,
        SharedError::Devices(ArenaError::Bind(_)) | SharedError::Kernel(_) => TERRACE_E_KERNEL,
        SharedError::Devices(_) => TERRACE_E_INVALID,
        SharedError::Full { .. } => TERRACE_E_NO_ROOM,
        SharedError::Free(_) => TERRACE_E_NOT_OURS,
        SharedError::Reentered => TERRACE_E_BUSY,
        SharedError::Lost => TERRACE_E_LOST,
    };
    fail(code, &error.to_string())
}

/// # Safety
/// `out` is null or points to a writable pointer.
unsafe fn give(made: Result<SharedArena, SharedError>, out: *mut *mut terrace_shared) -> c_int {
    if out.is_null() {
        return invalid("out is null");
    }
    match made {
        Ok(arena) => {
            // SAFETY: not null, and writable by the caller's promise.
            unsafe { out.write(Box::into_raw(Box::new(terrace_shared { arena }))) };
            TERRACE_OK
        }
        Err(error) => failed(&error),
    }
}

/// # Safety
/// `name` is null or a C string that lives for `'a`.
unsafe fn text<'a>(name: *const c_char) -> Option<&'a str> {
    if name.is_null() {
        return None;
    }
    // SAFETY: a C string by the caller's promise.
    unsafe { CStr::from_ptr(name) }.to_str().ok()
}

/// Creates an arena of `size_bytes` bytes that other processes can open by `name` (as in
/// `shm_open`, without the slash), or with a null name by its descriptor only. Nodes and flags are
/// as for `terrace_arena_create`, without TERRACE_DEVICES_SPILL. Other processes see it complete or
/// not at all. A name that is taken returns TERRACE_E_KERNEL.
///
/// # Safety
/// `name` is null or a C string; `nodes` points to `count` numbers (null with 0); `out` points to a
/// writable pointer.
#[no_mangle]
pub unsafe extern "C" fn terrace_shared_create(
    name: *const c_char,
    size_bytes: u64,
    how: c_int,
    nodes: *const u32,
    count: usize,
    flags: u32,
    out: *mut *mut terrace_shared,
) -> c_int {
    guard(|| {
        if flags & !TERRACE_ARENA_HUGE != 0 {
            return invalid("no such flag; see TERRACE_ARENA_*");
        }
        // SAFETY: passed on.
        let (devices, text) = match unsafe { (devices(how, nodes, count), text(name)) } {
            (Ok(devices), text) if text.is_some() || name.is_null() => (devices, text),
            (Ok(_), _) => return invalid("the name is not UTF-8"),
            (Err(code), _) => return code,
        };
        let spec = SharedSpec {
            name: text.map(str::to_owned),
            size: Bytes(size_bytes),
            devices,
            huge_pages: flags & TERRACE_ARENA_HUGE != 0,
            ..SharedSpec::default()
        };
        // SAFETY: passed on.
        unsafe { give(SharedArena::create(&spec), out) }
    })
}

/// Opens the shared arena of that name. Everyone who may open it may write to all of it.
///
/// # Safety
/// `name` is a C string; `out` points to a writable pointer.
#[no_mangle]
pub unsafe extern "C" fn terrace_shared_open(
    name: *const c_char,
    out: *mut *mut terrace_shared,
) -> c_int {
    // SAFETY: passed on.
    guard(|| match unsafe { text(name) } {
        // SAFETY: passed on.
        Some(name) => unsafe { give(SharedArena::open(name), out) },
        None => invalid("the name is null, or not UTF-8"),
    })
}

/// Opens a shared arena by a descriptor from `terrace_shared_fd`. The caller keeps the descriptor.
///
/// # Safety
/// `out` points to a writable pointer.
#[no_mangle]
pub unsafe extern "C" fn terrace_shared_open_fd(fd: c_int, out: *mut *mut terrace_shared) -> c_int {
    guard(|| {
        if fd < 0 {
            return invalid("the descriptor is negative");
        }
        // SAFETY: not -1; borrowed for the one call that makes a copy, which fails if it is not
        // open.
        match unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned() {
            // SAFETY: passed on.
            Ok(own) => unsafe { give(SharedArena::open_fd(own), out) },
            Err(error) => fail(TERRACE_E_KERNEL, &format!("descriptor {fd}: {error}")),
        }
    })
}

/// Closes the arena in this process; others keep it. Null is accepted.
///
/// # Safety
/// `shared` is null or comes from a function that returns one; this process uses neither it nor a
/// pointer into it afterwards.
#[no_mangle]
pub unsafe extern "C" fn terrace_shared_close(shared: *mut terrace_shared) {
    if !shared.is_null() {
        // SAFETY: made by Box::into_raw; given back once by the caller's promise.
        drop(unsafe { Box::from_raw(shared) });
    }
}

/// Removes a name. Nobody can open the arena by it any more, and its memory is freed with the last
/// process that has it open.
///
/// # Safety
/// `name` is a C string.
#[no_mangle]
pub unsafe extern "C" fn terrace_shared_remove(name: *const c_char) -> c_int {
    // SAFETY: passed on.
    guard(|| match unsafe { text(name) } {
        Some(name) => SharedArena::remove(name).map_or_else(|e| failed(&e), |()| TERRACE_OK),
        None => invalid("the name is null, or not UTF-8"),
    })
}

/// Runs `call` on the arena.
///
/// # Safety
/// `shared` is null or comes from a function that returns one, and not closed.
unsafe fn with<T>(
    shared: *const terrace_shared,
    otherwise: T,
    call: impl FnOnce(&SharedArena) -> T,
) -> T {
    // SAFETY: null or alive by the caller's promise; shared references only.
    match unsafe { shared.as_ref() } {
        Some(shared) => call(&shared.arena),
        None => {
            invalid("shared is null; create it with terrace_shared_create or open it");
            otherwise
        }
    }
}

/// Returns the arena's descriptor, for `terrace_shared_open_fd` in other processes. The arena keeps
/// it. A negative value is an error code.
///
/// # Safety
/// `shared` comes from a function that returns one.
#[no_mangle]
pub unsafe extern "C" fn terrace_shared_fd(shared: *const terrace_shared) -> c_int {
    // SAFETY: passed on.
    unsafe { with(shared, TERRACE_E_INVALID, |s| s.fd().as_raw_fd()) }
}

/// Returns a block of at least `size` bytes, at a multiple of `align` in every process, with
/// undefined content; null on error (see `terrace_last_error`). `align` is a power of two up to
/// 65536; blocks are aligned to 64 at least.
///
/// # Safety
/// `shared` comes from a function that returns one.
#[no_mangle]
pub unsafe extern "C" fn terrace_shared_alloc(
    shared: *mut terrace_shared,
    size: usize,
    align: usize,
) -> *mut c_void {
    let allocate = |s: &SharedArena| match s.alloc(size, align) {
        Ok(block) => block.as_ptr().cast(),
        Err(error) => {
            failed(&error);
            std::ptr::null_mut()
        }
    };
    // SAFETY: passed on.
    unsafe { with(shared, std::ptr::null_mut(), allocate) }
}

/// Frees a block that any process allocated. Null is accepted.
///
/// # Safety
/// `shared` comes from a function that returns one; no process uses `block` any more.
#[no_mangle]
pub unsafe extern "C" fn terrace_shared_free(
    shared: *mut terrace_shared,
    block: *mut c_void,
) -> c_int {
    if block.is_null() {
        return TERRACE_OK;
    }
    let free = |s: &SharedArena| {
        // SAFETY: by the caller's promise.
        let freed = unsafe { s.free(block.cast()) };
        freed.map_or_else(|e| failed(&e), |()| TERRACE_OK)
    };
    // SAFETY: passed on.
    unsafe { with(shared, TERRACE_E_INVALID, free) }
}

/// Returns the offset of an address, for other processes; TERRACE_NO_OFFSET if it is not in this
/// arena.
///
/// # Safety
/// `shared` comes from a function that returns one.
#[no_mangle]
pub unsafe extern "C" fn terrace_shared_offset(
    shared: *const terrace_shared,
    address: *const c_void,
) -> u64 {
    // SAFETY: passed on.
    unsafe {
        with(shared, TERRACE_NO_OFFSET, |s| s.offset(address.cast()).unwrap_or(TERRACE_NO_OFFSET))
    }
}

/// Returns the address of an offset in this process; null if it is beyond the arena.
///
/// # Safety
/// `shared` comes from a function that returns one.
#[no_mangle]
pub unsafe extern "C" fn terrace_shared_pointer(
    shared: *const terrace_shared,
    offset: u64,
) -> *mut c_void {
    let null = std::ptr::null_mut();
    // SAFETY: passed on.
    unsafe { with(shared, null, |s| s.pointer(offset).map_or(null, |p| p.as_ptr().cast())) }
}

/// Sets the root: one offset from which all processes can start (TERRACE_NO_OFFSET: none).
///
/// # Safety
/// `shared` comes from a function that returns one.
#[no_mangle]
pub unsafe extern "C" fn terrace_shared_set_root(
    shared: *mut terrace_shared,
    offset: u64,
) -> c_int {
    let keep = |s: &SharedArena| {
        s.set_root((offset != TERRACE_NO_OFFSET).then_some(offset));
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { with(shared, TERRACE_E_INVALID, keep) }
}

/// Returns the root that was set last; TERRACE_NO_OFFSET if there is none.
///
/// # Safety
/// `shared` comes from a function that returns one.
#[no_mangle]
pub unsafe extern "C" fn terrace_shared_root(shared: *const terrace_shared) -> u64 {
    // SAFETY: passed on.
    unsafe { with(shared, TERRACE_NO_OFFSET, |s| s.root().unwrap_or(TERRACE_NO_OFFSET)) }
}

/// Reads the arena's present figures.
///
/// # Safety
/// `shared` comes from a function that returns one; `out` is writable.
#[no_mangle]
pub unsafe extern "C" fn terrace_shared_stats(
    shared: *const terrace_shared,
    out: *mut terrace_shared_figures,
) -> c_int {
    let look = |s: &SharedArena| match s.stats() {
        Ok(_) if out.is_null() => invalid("out is null"),
        Ok(stats) => {
            let figures = terrace_shared_figures {
                size_bytes: stats.size.get(),
                used_bytes: stats.used.get(),
                blocks: stats.blocks,
                backed_bytes: stats.backed.get(),
                recovered: stats.recovered,
            };
            // SAFETY: not null, and writable by the caller's promise.
            unsafe { out.write(figures) };
            TERRACE_OK
        }
        Err(error) => failed(&error),
    };
    // SAFETY: passed on.
    unsafe { with(shared, TERRACE_E_INVALID, look) }
}
