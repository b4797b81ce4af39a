//! Arenas: heaps whose blocks lie on the nodes asked for and move together.

use crate::codes::{fail, guard, invalid, TERRACE_E_INTERNAL, TERRACE_E_INVALID, TERRACE_OK};
use crate::{TERRACE_E_KERNEL, TERRACE_E_NOT_OURS, TERRACE_E_NO_ROOM, TERRACE_E_TOO_LARGE};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};
use terrace_alloc::arena::{
    self, Arena, ArenaAllocError, ArenaError, ArenaSpec, Devices, FreeError, MoveError, MoveReport,
    Moving, ReallocError, Strictness,
};
use terrace_alloc::types::{Bytes, NodeId};

/// The arena was destroyed before.
pub const TERRACE_E_DESTROYED: c_int = -11;
/// The arena is moving already, or the thread is inside the allocator already (a signal handler).
pub const TERRACE_E_BUSY: c_int = -12;
/// The move left pages behind. With TERRACE_MOVE_STRICT the moved pages were moved back.
pub const TERRACE_E_INCOMPLETE: c_int = -13;
/// The move was cancelled.
pub const TERRACE_E_CANCELLED: c_int = -14;
/// The move has not ended yet.
pub const TERRACE_E_AGAIN: c_int = -15;

/// These nodes while they have free memory, then the nearest. Without nodes, the policy of the
/// thread that touches a page decides.
pub const TERRACE_DEVICES_PREFER: c_int = 0;
/// These nodes and no others: a page touched when they are full gets the process killed.
pub const TERRACE_DEVICES_ONLY: c_int = 1;
/// These nodes in turn, page by page.
pub const TERRACE_DEVICES_INTERLEAVE: c_int = 2;
/// The first node until it is full, then the second, and so on.
pub const TERRACE_DEVICES_SPILL: c_int = 3;
/// Flag: ask for huge pages.
pub const TERRACE_ARENA_HUGE: u32 = 1;
/// Move every page that can be moved.
pub const TERRACE_MOVE_PARTIAL: c_int = 0;
/// Move all pages or none.
pub const TERRACE_MOVE_STRICT: c_int = 1;

/// An arena. Calls with the handle of a destroyed arena return TERRACE_E_DESTROYED.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct terrace_arena {
    arena: Arena,
}

/// A move under way. Only one thread at a time may use it.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct terrace_move {
    moving: Moving,
}

/// The outcome of a move, in base pages.
#[repr(C)]
#[derive(Debug, Default)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct terrace_moved {
    /// Pages of the arena that had memory.
    pub pages: u64,
    /// Pages that were on the right nodes before.
    pub already: u64,
    /// Pages that were moved.
    pub moved: u64,
    /// Pages that are still elsewhere.
    pub stayed: u64,
}

/// A handle that is never given back, so that C may hold it for ever: the one of this arena, or a
/// new one.
fn handle(arena: Arena) -> *mut terrace_arena {
    // By number: how often it was reused, and the handle. A few words for each arena there ever was
    // at one time are kept; those of destroyed ones stay as well, for C may still have them.
    static HANDLES: Mutex<BTreeMap<(u32, u64), usize>> = Mutex::new(BTreeMap::new());
    let mut handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    let made = || Box::into_raw(Box::new(terrace_arena { arena })) as usize;
    *handles.entry(arena.to_parts()).or_insert_with(made) as *mut terrace_arena
}

/// # Safety
/// `arena` is null or comes from a function that returns one.
unsafe fn of(arena: *const terrace_arena) -> Option<Arena> {
    // SAFETY: null, or a handle: they are never given back.
    unsafe { arena.as_ref() }.map(|a| a.arena)
}

fn null() -> c_int {
    invalid("arena is null; create it with terrace_arena_create")
}

fn not_made(error: &ArenaError) -> c_int {
    let code = match error {
        ArenaError::NoAddresses(_) | ArenaError::Bind(_) => TERRACE_E_KERNEL,
        ArenaError::TooMany(_) | ArenaError::TooManyClasses(_) => TERRACE_E_NO_ROOM,
        ArenaError::Devices(_) | ArenaError::NoNode(_) | ArenaError::Limit(_) => TERRACE_E_INVALID,
        ArenaError::Destroyed => TERRACE_E_DESTROYED,
    };
    fail(code, &error.to_string())
}

fn not_allocated(error: ArenaAllocError) -> c_int {
    let code = match error {
        ArenaAllocError::TooLarge => TERRACE_E_TOO_LARGE,
        ArenaAllocError::Alignment => TERRACE_E_INVALID,
        ArenaAllocError::Limit | ArenaAllocError::NoAddresses => TERRACE_E_NO_ROOM,
        ArenaAllocError::Destroyed => TERRACE_E_DESTROYED,
        ArenaAllocError::Reentered => TERRACE_E_BUSY,
    };
    fail(code, &error.to_string())
}

fn not_freed(error: FreeError) -> c_int {
    fail(TERRACE_E_NOT_OURS, &error.to_string())
}

fn count(report: &MoveReport) -> terrace_moved {
    let stayed = report.stayed.values().sum();
    terrace_moved { pages: report.pages, already: report.already, moved: report.moved, stayed }
}

/// # Safety
/// `out` is null or points to a writable `terrace_moved`.
unsafe fn ended(result: Result<MoveReport, MoveError>, out: *mut terrace_moved) -> c_int {
    let (code, report) = match result {
        Ok(report) if report.stayed.is_empty() => (TERRACE_OK, report),
        Ok(report) => (fail(TERRACE_E_INCOMPLETE, &report.to_string()), report),
        Err(error) => {
            let reported = error.to_string();
            let (code, report) = match error {
                MoveError::Arena(error) => return not_made(&error),
                MoveError::Moving => (TERRACE_E_BUSY, MoveReport::default()),
                MoveError::Incomplete(report) => (TERRACE_E_INCOMPLETE, *report),
                MoveError::Cancelled(report) => (TERRACE_E_CANCELLED, *report),
                MoveError::NoThread(_) => (TERRACE_E_INTERNAL, MoveReport::default()),
            };
            (fail(code, &reported), report)
        }
    };
    if !out.is_null() {
        // SAFETY: not null, and writable by the caller's promise.
        unsafe { out.write(count(&report)) };
    }
    code
}

/// # Safety
/// `nodes` is null or points to `count` numbers.
pub(crate) unsafe fn devices(
    how: c_int,
    nodes: *const u32,
    count: usize,
) -> Result<Devices, c_int> {
    if count > 1024 || (nodes.is_null() && count > 0) {
        return Err(invalid("nodes is null, or there are too many"));
    }
    // SAFETY: not null where there are any, and `count` numbers by the caller's promise.
    let nodes = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(nodes, count) } };
    let mut list = Vec::with_capacity(nodes.len());
    for node in nodes {
        let Ok(node) = u16::try_from(*node) else {
            return Err(invalid("no machine has a node of that number"));
        };
        list.push(NodeId(node));
    }
    match how {
        TERRACE_DEVICES_PREFER if list.is_empty() => Ok(Devices::Anywhere),
        TERRACE_DEVICES_PREFER => Ok(Devices::Prefer(list)),
        TERRACE_DEVICES_ONLY => Ok(Devices::Only(list)),
        TERRACE_DEVICES_INTERLEAVE => Ok(Devices::Interleave(list)),
        TERRACE_DEVICES_SPILL => Ok(Devices::Spill(list)),
        _ => Err(invalid("no such way to use nodes; see TERRACE_DEVICES_*")),
    }
}

fn strictness(strict: c_int) -> Result<Strictness, c_int> {
    match strict {
        TERRACE_MOVE_PARTIAL => Ok(Strictness::Partial),
        TERRACE_MOVE_STRICT => Ok(Strictness::Strict),
        _ => Err(invalid("no such strictness; see TERRACE_MOVE_*")),
    }
}

/// Creates an arena of at most `limit` bytes (0: as much memory as there is) on `count` nodes.
/// `how` is one of TERRACE_DEVICES_* and says how the nodes are used; `flags` takes
/// TERRACE_ARENA_*. `name` may be null.
///
/// # Safety
/// `nodes` points to `count` numbers (null with 0); `name` is null or a C string; `out` points to a
/// writable pointer.
#[no_mangle]
pub unsafe extern "C" fn terrace_arena_create(
    limit: u64,
    how: c_int,
    nodes: *const u32,
    count: usize,
    flags: u32,
    name: *const c_char,
    out: *mut *mut terrace_arena,
) -> c_int {
    guard(|| {
        if out.is_null() {
            return invalid("out is null");
        }
        if flags & !TERRACE_ARENA_HUGE != 0 {
            return invalid("no such flag; see TERRACE_ARENA_*");
        }
        // SAFETY: passed on.
        let devices = match unsafe { devices(how, nodes, count) } {
            Ok(devices) => devices,
            Err(code) => return code,
        };
        let name = match name.is_null() {
            true => String::new(),
            // SAFETY: a C string by the caller's promise.
            false => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
        };
        let limit = (limit > 0).then_some(Bytes(limit));
        let spec = ArenaSpec {
            name,
            limit,
            devices,
            huge_pages: flags & TERRACE_ARENA_HUGE != 0,
            ..ArenaSpec::default()
        };
        match Arena::create(&spec) {
            Ok(arena) => {
                // SAFETY: not null, and writable by the caller's promise.
                unsafe { out.write(handle(arena)) };
                TERRACE_OK
            }
            Err(error) => not_made(&error),
        }
    })
}

/// Destroys an arena with all its blocks. A move under way is cancelled, and the call waits for it.
///
/// # Safety
/// The caller uses no block of it any more, and no other thread allocates from it or frees into it
/// meanwhile.
#[no_mangle]
pub unsafe extern "C" fn terrace_arena_destroy(arena: *mut terrace_arena) -> c_int {
    // SAFETY: a handle or null.
    guard(|| match unsafe { of(arena) } {
        // SAFETY: by the caller's promise.
        Some(arena) => unsafe { arena.destroy() }.map_or_else(|e| not_made(&e), |()| TERRACE_OK),
        None => null(),
    })
}

/// The block, or null with the code kept for `terrace_last_error`.
fn block(got: Result<NonNull<u8>, ArenaAllocError>) -> *mut c_void {
    match got {
        Ok(block) => block.as_ptr().cast(),
        Err(error) => {
            not_allocated(error);
            std::ptr::null_mut()
        }
    }
}

/// # Safety
/// `arena` is null or a handle.
unsafe fn allocate(
    arena: *mut terrace_arena,
    call: impl FnOnce(Arena) -> Result<NonNull<u8>, ArenaAllocError>,
) -> *mut c_void {
    // No panic guard: nothing here can panic, and it would cost what an allocation does.
    // SAFETY: a handle or null.
    match unsafe { of(arena) } {
        Some(arena) => block(call(arena)),
        None => {
            null();
            std::ptr::null_mut()
        }
    }
}

/// Returns a block of at least `size` bytes, aligned to 16, with undefined content; null on error
/// (see `terrace_last_error`).
///
/// # Safety
/// `arena` comes from `terrace_arena_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_arena_alloc(
    arena: *mut terrace_arena,
    size: usize,
) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { allocate(arena, |a| a.alloc(size)) }
}

/// Returns a block of at least `size` bytes at a multiple of `align`, a power of two; null on
/// error.
///
/// # Safety
/// `arena` comes from `terrace_arena_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_arena_aligned(
    arena: *mut terrace_arena,
    align: usize,
    size: usize,
) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { allocate(arena, |a| a.alloc_aligned(size, align)) }
}

/// Returns a zeroed block of `count` times `size` bytes; null on error, also when the product
/// overflows.
///
/// # Safety
/// `arena` comes from `terrace_arena_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_arena_calloc(
    arena: *mut terrace_arena,
    count: usize,
    size: usize,
) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { allocate(arena, |a| a.calloc(count, size)) }
}

/// Resizes a block within its own arena. Returns null on error and leaves the block as it was. With
/// a null `block`, allocates one from `arena`.
///
/// # Safety
/// `block` is null or a block that only the caller uses. It is freed when another pointer is
/// returned.
#[no_mangle]
pub unsafe extern "C" fn terrace_arena_realloc(
    arena: *mut terrace_arena,
    block: *mut c_void,
    size: usize,
) -> *mut c_void {
    if block.is_null() {
        // SAFETY: passed on.
        return unsafe { terrace_arena_alloc(arena, size) };
    }
    // SAFETY: by the caller's promise.
    match unsafe { arena::realloc(block.cast(), size) } {
        Ok(new) => new.as_ptr().cast(),
        Err(error) => {
            match error {
                ReallocError::Free(error) => not_freed(error),
                ReallocError::Alloc(error) => not_allocated(error),
            };
            std::ptr::null_mut()
        }
    }
}

/// Frees a block of any arena by its pointer. Null is accepted.
///
/// # Safety
/// The caller does not use `block` any more.
#[no_mangle]
pub unsafe extern "C" fn terrace_arena_free(block: *mut c_void) -> c_int {
    if block.is_null() {
        return TERRACE_OK;
    }
    // SAFETY: by the caller's promise.
    unsafe { arena::free(block.cast()) }.map_or_else(not_freed, |()| TERRACE_OK)
}

/// Returns the arena that an address lies in, whether a block is there or not; null if there is
/// none.
#[no_mangle]
pub extern "C" fn terrace_arena_lookup(address: *const c_void) -> *mut terrace_arena {
    arena::lookup(address.cast()).map_or(std::ptr::null_mut(), handle)
}

/// Writes the handles of at most `most` arenas to `out` and returns the number of arenas.
///
/// # Safety
/// `out` points to `most` writable pointers (null with 0).
#[no_mangle]
pub unsafe extern "C" fn terrace_arena_list(out: *mut *mut terrace_arena, most: usize) -> usize {
    let arenas = arena::list();
    if !out.is_null() {
        for (at, arena) in arenas.iter().take(most).enumerate() {
            // SAFETY: below `most`, and writable by the caller's promise.
            unsafe { out.add(at).write(handle(*arena)) };
        }
    }
    arenas.len()
}

/// Moves the whole arena to other nodes. Other threads may allocate and free meanwhile. `moved` may
/// be null.
///
/// # Safety
/// As for `terrace_arena_create`; `moved` is null or writable.
#[no_mangle]
pub unsafe extern "C" fn terrace_arena_set_device(
    arena: *mut terrace_arena,
    how: c_int,
    nodes: *const u32,
    count: usize,
    strict: c_int,
    moved: *mut terrace_moved,
) -> c_int {
    guard(|| {
        // SAFETY: a handle or null; nodes passed on.
        let (arena, devices) = match unsafe { (of(arena), devices(how, nodes, count)) } {
            (Some(arena), Ok(devices)) => (arena, devices),
            (None, _) => return null(),
            (_, Err(code)) => return code,
        };
        match strictness(strict) {
            // SAFETY: passed on.
            Ok(strict) => unsafe { ended(arena.set_device(&devices, strict), moved) },
            Err(code) => code,
        }
    })
}

/// Like `terrace_arena_set_device`, in a thread of its own. End `*out` with `terrace_move_wait`.
///
/// # Safety
/// As for `terrace_arena_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_arena_set_device_async(
    arena: *mut terrace_arena,
    how: c_int,
    nodes: *const u32,
    count: usize,
    strict: c_int,
    out: *mut *mut terrace_move,
) -> c_int {
    guard(|| {
        if out.is_null() {
            return invalid("out is null");
        }
        // SAFETY: a handle or null; nodes passed on.
        let (arena, devices) = match unsafe { (of(arena), devices(how, nodes, count)) } {
            (Some(arena), Ok(devices)) => (arena, devices),
            (None, _) => return null(),
            (_, Err(code)) => return code,
        };
        let strict = match strictness(strict) {
            Ok(strict) => strict,
            Err(code) => return code,
        };
        match arena.set_device_async(&devices, strict) {
            Ok(moving) => {
                // SAFETY: not null, and writable by the caller's promise.
                unsafe { out.write(Box::into_raw(Box::new(terrace_move { moving }))) };
                TERRACE_OK
            }
            // SAFETY: null is allowed.
            Err(error) => unsafe { ended(Err(error), std::ptr::null_mut()) },
        }
    })
}

/// Reports the progress of a move: base pages processed, and in all (0 until counted). Returns
/// TERRACE_OK when it has ended, else TERRACE_E_AGAIN.
///
/// # Safety
/// `moving` comes from `terrace_arena_set_device_async`; the pointers are null or writable.
#[no_mangle]
pub unsafe extern "C" fn terrace_move_poll(
    moving: *const terrace_move,
    done: *mut u64,
    total: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: null or alive by the caller's promise.
        let Some(moving) = (unsafe { moving.as_ref() }) else { return invalid("move is null") };
        let progress = moving.moving.progress();
        for (out, pages) in [(done, progress.done), (total, progress.total)] {
            if !out.is_null() {
                // SAFETY: not null, and writable by the caller's promise.
                unsafe { out.write(pages) };
            }
        }
        if progress.ended {
            TERRACE_OK
        } else {
            TERRACE_E_AGAIN
        }
    })
}

/// Asks a move to end after its present batch.
///
/// # Safety
/// `moving` comes from `terrace_arena_set_device_async`.
#[no_mangle]
pub unsafe extern "C" fn terrace_move_cancel(moving: *const terrace_move) -> c_int {
    // SAFETY: null or alive by the caller's promise.
    guard(|| match unsafe { moving.as_ref() } {
        Some(moving) => {
            moving.moving.cancel();
            TERRACE_OK
        }
        None => invalid("move is null"),
    })
}

/// Waits for the end of a move, frees its handle and returns the outcome, as
/// `terrace_arena_set_device` does.
///
/// # Safety
/// `moving` comes from `terrace_arena_set_device_async` and is not used afterwards; `moved` is null
/// or writable.
#[no_mangle]
pub unsafe extern "C" fn terrace_move_wait(
    moving: *mut terrace_move,
    moved: *mut terrace_moved,
) -> c_int {
    guard(|| {
        if moving.is_null() {
            return invalid("move is null");
        }
        // SAFETY: made by Box::into_raw; given back once by the caller's promise.
        let moving = unsafe { Box::from_raw(moving) };
        // SAFETY: passed on.
        unsafe { ended(moving.moving.wait(), moved) }
    })
}
