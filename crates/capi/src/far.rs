//! Far memory: a range larger than the memory given to it, the rest of it compressed or on a disk.

use crate::codes::{fail, guard, invalid, TERRACE_OK};
use crate::{TERRACE_E_KERNEL, TERRACE_E_NO_ROOM};
use ::terrace_far::store::StoreSpec;
use ::terrace_far::{Advice, FarError, FarMap, FarOptions, FileMapMode};
use std::ffi::{c_char, c_int, c_void, CStr, OsStr};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use terrace_types::Bytes;

/// The store of far memory cannot be made, or failed for a part. Data that it did not take stays in
/// memory.
pub const TERRACE_E_STORE: c_int = -19;

/// The range will be needed: fetch it, as far as possible without evicting anything.
pub const TERRACE_FAR_WILL_NEED: c_int = 0;
/// The range is not needed for a while: evict it.
pub const TERRACE_FAR_COLD: c_int = 1;
/// The content is not needed any more: the range reads as zeros from now on.
pub const TERRACE_FAR_DISCARD: c_int = 2;

/// A range of far memory. Any thread may use it and its memory.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct terrace_far {
    map: FarMap,
}

/// Counts of a range of far memory since it was made.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct terrace_far_counts {
    /// Faults reported by the kernel.
    pub faults: u64,
    /// Faults that waited for the store.
    pub misses: u64,
    /// Faults whose page had been fetched ahead, or was on its way.
    pub hits: u64,
    /// Bytes read from the store.
    pub read_bytes: u64,
    /// Bytes written to the store.
    pub written_bytes: u64,
    /// Bytes read ahead of need.
    pub ahead_bytes: u64,
    /// Bytes of these that were evicted untouched.
    pub wasted_bytes: u64,
    /// Writes that failed; their data stayed in memory.
    pub write_failures: u64,
    /// Bytes in memory now.
    pub resident_bytes: u64,
    /// Bytes that cannot be read back; touching them raises SIGBUS.
    pub lost_bytes: u64,
    /// Memory of the store's data, in addition to `resident_bytes`.
    pub store_bytes: u64,
}

fn failed(error: &FarError) -> c_int {
    let code = match error {
        FarError::Shape { .. }
        | FarError::TooLittle { .. }
        | FarError::Range { .. }
        | FarError::Kept { .. } => return invalid(&error.to_string()),
        FarError::Pinned { .. } => TERRACE_E_NO_ROOM,
        FarError::Partly { .. } | FarError::Store(_) => TERRACE_E_STORE,
        FarError::Kernel(_) => TERRACE_E_KERNEL,
    };
    fail(code, &error.to_string())
}

fn code_of(result: Result<(), FarError>) -> c_int {
    result.map_or_else(|error| failed(&error), |()| TERRACE_OK)
}

/// Maps `bytes` of zeros, of which at most `dram_bytes` are in memory, buffers included. The rest
/// goes to `store`: a folder, `compressed` (memory), or a folder and `+compressed` (memory first).
/// The file in the folder has no name, so nothing is left however the process ends.
/// `terrace_far_address` returns the range. Forked children do not have it.
///
/// Returns TERRACE_E_KERNEL if this user may not use userfaultfd; terrace_last_error() says what to
/// set.
///
/// # Safety
/// `store` ends with a null byte; `out` points to a writable pointer.
#[no_mangle]
pub unsafe extern "C" fn terrace_far_map(
    bytes: usize,
    dram_bytes: usize,
    store: *const c_char,
    out: *mut *mut terrace_far,
) -> c_int {
    guard(|| {
        if store.is_null() || out.is_null() {
            return invalid("store or out is null");
        }
        // SAFETY: not null, and a text with its end by the caller's promise.
        let name = unsafe { CStr::from_ptr(store) };
        let (bytes, dram) = (Bytes(bytes as u64), Bytes(dram_bytes as u64));
        let store = StoreSpec::parse(OsStr::from_bytes(name.to_bytes())).make(bytes, dram);
        match store.map_err(FarError::from).and_then(|store| FarMap::new(bytes, dram, store)) {
            Ok(map) => {
                // SAFETY: not null, and writable by the caller's promise.
                unsafe { out.write(Box::into_raw(Box::new(terrace_far { map }))) };
                TERRACE_OK
            }
            Err(error) => failed(&error),
        }
    })
}

/// Maps an existing file, of which at most `dram_bytes` are in memory, buffers included. Zeros
/// follow to the end of the last page. If `writable` is not 0, changes go to the file when a page
/// leaves memory, by `terrace_far_flush`, and by `terrace_far_unmap`; otherwise writing is a
/// SIGSEGV. `out_bytes`, unless null, receives the file's length, which does not change.
/// TERRACE_FAR_DISCARD is refused.
///
/// # Safety
/// `path` ends with a null byte; `out` points to a writable pointer, and `out_bytes` to a size_t or
/// is null.
#[no_mangle]
pub unsafe extern "C" fn terrace_far_open(
    path: *const c_char,
    dram_bytes: usize,
    writable: c_int,
    out: *mut *mut terrace_far,
    out_bytes: *mut usize,
) -> c_int {
    guard(|| {
        if path.is_null() || out.is_null() {
            return invalid("path or out is null");
        }
        // SAFETY: not null, and a text with its end by the caller's promise.
        let path = unsafe { CStr::from_ptr(path) };
        let path = std::path::Path::new(OsStr::from_bytes(path.to_bytes()));
        let access = if writable == 0 { FileMapMode::ReadOnly } else { FileMapMode::ReadWrite };
        match FarMap::of_file(path, access, Bytes(dram_bytes as u64), &FarOptions::default()) {
            Ok(map) => {
                if !out_bytes.is_null() {
                    let bytes = map.file_bytes().map_or(map.len(), |b| b.get() as usize);
                    // SAFETY: not null, and writable by the caller's promise.
                    unsafe { out_bytes.write(bytes) };
                }
                // SAFETY: not null, and writable by the caller's promise.
                unsafe { out.write(Box::into_raw(Box::new(terrace_far { map }))) };
                TERRACE_OK
            }
            Err(error) => failed(&error),
        }
    })
}

/// Unmaps the range and discards its data, unless they belong to a file. Null is accepted.
///
/// # Safety
/// `far` is null or comes from `terrace_far_map`; the caller uses neither it nor its memory
/// afterwards.
#[no_mangle]
pub unsafe extern "C" fn terrace_far_unmap(far: *mut terrace_far) -> c_int {
    guard(|| {
        if !far.is_null() {
            // SAFETY: made by Box::into_raw in `terrace_far_map`; given back once by the caller's
            // promise.
            drop(unsafe { Box::from_raw(far) });
        }
        TERRACE_OK
    })
}

/// Returns the first byte of the range, at the start of a page; null for null.
///
/// # Safety
/// `far` is null or comes from `terrace_far_map` and is not unmapped.
#[no_mangle]
pub unsafe extern "C" fn terrace_far_address(far: *const terrace_far) -> *mut c_void {
    // SAFETY: null or alive by the caller's promise.
    unsafe { far.as_ref() }.map_or(std::ptr::null_mut(), |far| far.map.as_mut_ptr().cast())
}

/// # Safety
/// `far` is null or comes from `terrace_far_map` and is not unmapped.
unsafe fn with(far: *const terrace_far, call: impl FnOnce(&FarMap) -> c_int) -> c_int {
    guard(|| {
        // SAFETY: null or alive by the caller's promise.
        match unsafe { far.as_ref() } {
            Some(far) => call(&far.map),
            None => invalid("far is null; make it with terrace_far_map"),
        }
    })
}

fn range(offset: usize, bytes: usize) -> Range<usize> {
    // Beyond what can be addressed is beyond the range too, which the map says.
    offset..offset.saturating_add(bytes)
}

/// Writes all changes to the store and waits for that. The data stays in memory.
///
/// # Safety
/// `far` comes from `terrace_far_map` and is not unmapped.
#[no_mangle]
pub unsafe extern "C" fn terrace_far_flush(far: *const terrace_far) -> c_int {
    // SAFETY: passed on.
    unsafe { with(far, |map| code_of(map.flush())) }
}

/// Starts to fetch `bytes` from `offset`, as far as possible without evicting anything.
///
/// # Safety
/// As for `terrace_far_flush`.
#[no_mangle]
pub unsafe extern "C" fn terrace_far_prefetch(
    far: *const terrace_far,
    offset: usize,
    bytes: usize,
) -> c_int {
    // SAFETY: passed on.
    unsafe { with(far, |map| code_of(map.prefetch(range(offset, bytes)))) }
}

/// Brings `bytes` from `offset` into memory and keeps them there (`on` not 0), or releases them
/// (0). Pinning more than half of the memory returns TERRACE_E_NO_ROOM.
///
/// # Safety
/// As for `terrace_far_flush`.
#[no_mangle]
pub unsafe extern "C" fn terrace_far_pin(
    far: *const terrace_far,
    offset: usize,
    bytes: usize,
    on: c_int,
) -> c_int {
    // SAFETY: passed on.
    unsafe { with(far, |map| code_of(map.pin(range(offset, bytes), on != 0))) }
}

/// Advises about `bytes` from `offset`: TERRACE_FAR_WILL_NEED, TERRACE_FAR_COLD or
/// TERRACE_FAR_DISCARD. The latter two apply to whole pages only.
///
/// # Safety
/// As for `terrace_far_flush`.
#[no_mangle]
pub unsafe extern "C" fn terrace_far_advise(
    far: *const terrace_far,
    offset: usize,
    bytes: usize,
    advice: c_int,
) -> c_int {
    let said = |map: &FarMap| {
        let advice = match advice {
            TERRACE_FAR_WILL_NEED => Advice::WillNeed,
            TERRACE_FAR_COLD => Advice::Cold,
            TERRACE_FAR_DISCARD => Advice::Discard,
            _ => return invalid("no such advice; give one of TERRACE_FAR_*"),
        };
        code_of(map.advise(range(offset, bytes), advice))
    };
    // SAFETY: passed on.
    unsafe { with(far, said) }
}

/// Changes the memory that the range may use, in bytes. The program may use the range meanwhile.
///
/// # Safety
/// As for `terrace_far_flush`.
#[no_mangle]
pub unsafe extern "C" fn terrace_far_set_dram(far: *const terrace_far, dram_bytes: usize) -> c_int {
    // SAFETY: passed on.
    unsafe { with(far, |map| code_of(map.set_dram(Bytes(dram_bytes as u64)))) }
}

/// Reads the counts since the range was made.
///
/// # Safety
/// As for `terrace_far_flush`; `out` is writable.
#[no_mangle]
pub unsafe extern "C" fn terrace_far_stats(
    far: *const terrace_far,
    out: *mut terrace_far_counts,
) -> c_int {
    let reported = |map: &FarMap| {
        if out.is_null() {
            return invalid("out is null");
        }
        let statistics = map.statistics();
        let c = &statistics.counts;
        let counts = terrace_far_counts {
            faults: c.faults,
            misses: c.misses,
            hits: c.soft_faults + c.late_hits,
            read_bytes: c.read_bytes,
            written_bytes: c.written_bytes,
            ahead_bytes: c.prefetched_bytes,
            wasted_bytes: c.wasted_bytes,
            write_failures: c.write_failures,
            resident_bytes: c.mapped_bytes,
            lost_bytes: c.lost_bytes,
            store_bytes: statistics.store_memory.0,
        };
        // SAFETY: not null, and writable by the caller's promise.
        unsafe { out.write(counts) };
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { with(far, reported) }
}
