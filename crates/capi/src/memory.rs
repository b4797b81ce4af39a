//! The handle that allocates, frees and commits.

use crate::attributes::terrace_attr;
use crate::codes::{fail, failed, guard, invalid, TERRACE_E_NO_ROOM, TERRACE_OK};
use crate::report::terrace_report;
use std::ffi::{c_int, c_void};
use terrace_alloc::commit::Scope;
use terrace_alloc::memory::Memory;
use terrace_alloc::types::Bytes;

/// Weighs allocations since the last commit.
pub const TERRACE_COMMIT_EPOCH: c_int = 0;
/// Weighs all allocations that are bound on commit.
pub const TERRACE_COMMIT_ALL: c_int = 1;

/// Memory of this machine by class. All functions on it may be called by several threads at once.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct terrace_memory {
    inner: Memory,
}

/// Reads the machine (or what TERRACE_MACHINE, TERRACE_CLASSES and TERRACE_RANK_BY say) and makes a handle.
///
/// # Safety
/// `out` points to a writable pointer.
#[no_mangle]
pub unsafe extern "C" fn terrace_memory_create(out: *mut *mut terrace_memory) -> c_int {
    guard(|| {
        if out.is_null() {
            return invalid("out is null");
        }
        match Memory::live(&|name| std::env::var(name).ok()) {
            Ok(inner) => {
                // SAFETY: not null, and writable by the caller's promise.
                unsafe { out.write(Box::into_raw(Box::new(terrace_memory { inner }))) };
                TERRACE_OK
            }
            Err(error) => failed(&error),
        }
    })
}

/// Gives the handle and all memory allocated through it back; null is fine.
///
/// # Safety
/// `memory` is null or of `terrace_memory_create`; neither it nor memory of it is used afterwards.
#[no_mangle]
pub unsafe extern "C" fn terrace_memory_destroy(memory: *mut terrace_memory) {
    if !memory.is_null() {
        // SAFETY: made by Box::into_raw in `terrace_memory_create`; given back once by the caller's promise.
        drop(unsafe { Box::from_raw(memory) });
    }
}

/// Runs `call` on the handle.
///
/// # Safety
/// `memory` is null or of `terrace_memory_create` and not destroyed.
unsafe fn with(memory: *const terrace_memory, call: impl FnOnce(&Memory) -> c_int) -> c_int {
    guard(|| {
        // SAFETY: null or alive by the caller's promise; shared references only.
        match unsafe { memory.as_ref() } {
            Some(memory) => call(&memory.inner),
            None => invalid("memory is null; create it with terrace_memory_create"),
        }
    })
}

/// Number of classes of this machine; a negative code on error.
///
/// # Safety
/// `memory` is of `terrace_memory_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_memory_class_count(memory: *const terrace_memory) -> c_int {
    // SAFETY: passed on.
    unsafe { with(memory, |m| m.classes().list.len() as c_int) }
}

/// Number of nodes of a class (its indices count up to it); a negative code on error.
///
/// # Safety
/// `memory` is of `terrace_memory_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_memory_class_nodes(memory: *const terrace_memory, class_id: c_int) -> c_int {
    let count = |m: &Memory| match usize::try_from(class_id).ok().and_then(|c| m.classes().list.get(c)) {
        Some(class) => class.nodes.len() as c_int,
        None => fail(crate::TERRACE_E_NO_CLASS, "no such class; see terrace_memory_class_count"),
    };
    // SAFETY: passed on.
    unsafe { with(memory, count) }
}

/// Allocates `size` bytes as `attr` asks (null: the defaults). They are zeroed, at a page's address, at a huge
/// page's for 2 MiB and more. On error `*out` is null.
///
/// # Safety
/// `memory` is of `terrace_memory_create`, `attr` null or of `terrace_attr_create`; `out` points to a writable pointer.
#[no_mangle]
pub unsafe extern "C" fn terrace_memory_alloc(
    memory: *const terrace_memory,
    size: usize,
    attr: *const terrace_attr,
    out: *mut *mut c_void,
) -> c_int {
    let allocate = |m: &Memory| {
        if out.is_null() {
            return invalid("out is null");
        }
        // SAFETY: null or alive by the caller's promise.
        let wish = unsafe { attr.as_ref() }.map(|a| a.inner.clone()).unwrap_or_default();
        let (address, code) = match m.allocate(Bytes(size as u64), wish) {
            Ok(address) => (address, TERRACE_OK),
            Err(error) => (0, failed(&error)),
        };
        // SAFETY: not null, and writable by the caller's promise.
        unsafe { out.write(address as *mut c_void) };
        code
    };
    // SAFETY: passed on.
    unsafe { with(memory, allocate) }
}

/// Gives memory back; null is fine.
///
/// # Safety
/// `memory` is of `terrace_memory_create`. What was allocated at `address` is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn terrace_memory_free(memory: *const terrace_memory, address: *mut c_void) -> c_int {
    let free = |m: &Memory| match m.free(address as usize) {
        Ok(()) => TERRACE_OK,
        Err(_) if address.is_null() => TERRACE_OK,
        Err(error) => failed(&error),
    };
    // SAFETY: passed on.
    unsafe { with(memory, free) }
}

/// Weighs allocations that are bound on commit and places them: TERRACE_COMMIT_EPOCH or TERRACE_COMMIT_ALL. With
/// `report` not null, `*report` says what each got; give it back with `terrace_report_destroy`. Where strict allocations
/// were refused the rest is placed, the report is made, and TERRACE_E_NO_ROOM is returned.
///
/// # Safety
/// `memory` is of `terrace_memory_create`; `report` is null or points to a writable pointer.
#[no_mangle]
pub unsafe extern "C" fn terrace_memory_commit(
    memory: *const terrace_memory,
    scope: c_int,
    report: *mut *mut terrace_report,
) -> c_int {
    let commit = |m: &Memory| {
        let scope = match scope {
            TERRACE_COMMIT_EPOCH => Scope::Epoch,
            TERRACE_COMMIT_ALL => Scope::All,
            _ => return invalid("no such scope; see TERRACE_COMMIT_*"),
        };
        match m.commit(scope) {
            Ok(done) => {
                let refused = done.rows.iter().find(|r| r.refused).map(|r| format!("{}: {}", r.name, r.why));
                // SAFETY: null or writable by the caller's promise.
                unsafe { give(report, terrace_report::new(done)) };
                refused.map_or(TERRACE_OK, |why| fail(TERRACE_E_NO_ROOM, &why))
            }
            Err(error) => failed(&error),
        }
    };
    // SAFETY: passed on.
    unsafe { with(memory, commit) }
}

/// Says where the bytes of one allocation are, as a report of one row.
///
/// # Safety
/// As for `terrace_memory_commit`.
#[no_mangle]
pub unsafe extern "C" fn terrace_memory_describe(
    memory: *const terrace_memory,
    address: *const c_void,
    report: *mut *mut terrace_report,
) -> c_int {
    let describe = |m: &Memory| match m.describe(address as usize) {
        Ok(row) => {
            // SAFETY: null or writable by the caller's promise.
            unsafe { give(report, terrace_report::of_row(row)) };
            TERRACE_OK
        }
        Err(error) => failed(&error),
    };
    // SAFETY: passed on.
    unsafe { with(memory, describe) }
}

/// The address of the allocation that holds `address`; null where there is none.
///
/// # Safety
/// `memory` is of `terrace_memory_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_memory_lookup(memory: *const terrace_memory, address: *const c_void) -> *mut c_void {
    let mut found = 0;
    let look = |m: &Memory| {
        found = m.lookup(address as usize).unwrap_or(0);
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { with(memory, look) };
    found as *mut c_void
}

/// # Safety
/// `out` is null or points to a writable pointer.
unsafe fn give(out: *mut *mut terrace_report, report: terrace_report) {
    if !out.is_null() {
        // SAFETY: not null, and writable by the caller's promise.
        unsafe { out.write(Box::into_raw(Box::new(report))) };
    }
}
