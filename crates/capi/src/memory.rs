//! The handle that allocates, frees and commits.

use crate::attributes::{terrace_attr, TERRACE_CLASS_CUDA_MANAGED};
use crate::codes::{fail, failed, guard, invalid, TERRACE_E_NO_ROOM, TERRACE_OK};
use crate::report::terrace_report;
use std::ffi::{c_char, c_int, c_void};
use terrace_alloc::commit::Scope;
use terrace_alloc::memory::Memory;
use terrace_alloc::types::Bytes;

/// Places the allocations since the last commit.
pub const TERRACE_COMMIT_EPOCH: c_int = 0;
/// Places all allocations that are bound on commit.
pub const TERRACE_COMMIT_ALL: c_int = 1;

/// The memory of this machine by class. Several threads may call all functions on it at once.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct terrace_memory {
    inner: Memory,
}

/// Reads the machine and makes a handle. The variables TERRACE_MACHINE, TERRACE_CLASSES and
/// TERRACE_RANK_BY can replace what it reads.
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

/// Destroys the handle and frees all memory allocated through it. Null is accepted.
///
/// # Safety
/// `memory` is null or comes from `terrace_memory_create`; the caller uses neither it nor its
/// memory afterwards.
#[no_mangle]
pub unsafe extern "C" fn terrace_memory_destroy(memory: *mut terrace_memory) {
    if !memory.is_null() {
        // SAFETY: made by Box::into_raw in `terrace_memory_create`; given back once by the caller's
        // promise.
        drop(unsafe { Box::from_raw(memory) });
    }
}

/// Runs `call` on the handle.
///
/// # Safety
/// `memory` is null or comes from `terrace_memory_create` and not destroyed.
unsafe fn with(memory: *const terrace_memory, call: impl FnOnce(&Memory) -> c_int) -> c_int {
    guard(|| {
        // SAFETY: null or alive by the caller's promise; shared references only.
        match unsafe { memory.as_ref() } {
            Some(memory) => call(&memory.inner),
            None => invalid("memory is null; create it with terrace_memory_create"),
        }
    })
}

/// Returns the number of classes in the ranking of this machine; a negative code on error.
///
/// # Safety
/// `memory` comes from `terrace_memory_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_memory_class_count(memory: *const terrace_memory) -> c_int {
    // SAFETY: passed on.
    unsafe { with(memory, |m| m.classes().list.len() as c_int) }
}

/// Returns the number of nodes of a class, which bounds its indices; for TERRACE_CLASS_CUDA_MANAGED
/// the number of GPUs; a negative code on error. Without CUDA, `terrace_last_error` says why.
///
/// # Safety
/// `memory` comes from `terrace_memory_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_memory_class_nodes(
    memory: *const terrace_memory,
    class_id: c_int,
) -> c_int {
    let count = |m: &Memory| match usize::try_from(class_id)
        .ok()
        .and_then(|c| m.classes().list.get(c))
    {
        Some(class) => class.nodes.len() as c_int,
        None if class_id == TERRACE_CLASS_CUDA_MANAGED => match m.gpus() {
            Ok(gpus) => gpus.members().count() as c_int,
            Err(error) => failed(&error),
        },
        None => fail(crate::TERRACE_E_NO_CLASS, "no such class; see terrace_memory_class_count"),
    };
    // SAFETY: passed on.
    unsafe { with(memory, count) }
}

/// The use of a GPU, as terrace_memory_gpu reports it.
#[repr(C)]
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct terrace_gpu {
    /// The driver's name of it.
    pub name: [c_char; 96],
    /// Its number in the driver's order.
    pub number: c_int,
    /// The node it is attached to; -1 if firmware does not say.
    pub node: c_int,
    /// Its memory in all.
    pub total_bytes: u64,
    /// Its free memory, with all processes counted.
    pub free_bytes: u64,
    /// Bytes of this handle whose home it is.
    pub bound_bytes: u64,
    /// Number of allocations with these bytes.
    pub blocks: u64,
    /// Bit N is set if GPU N of the first 64 can access its memory.
    pub peers: u64,
}

/// Reports the use of the GPU with this index of TERRACE_CLASS_CUDA_MANAGED. The driver initialises
/// the GPU for this, which takes some hundred megabytes of its memory.
///
/// # Safety
/// `memory` comes from `terrace_memory_create`; `out` points to a writable structure.
#[no_mangle]
pub unsafe extern "C" fn terrace_memory_gpu(
    memory: *const terrace_memory,
    index: c_int,
    out: *mut terrace_gpu,
) -> c_int {
    let tell = |m: &Memory| {
        if out.is_null() {
            return invalid("out is null");
        }
        let Ok(index) = u16::try_from(index) else { return invalid("an index counts from 0") };
        let usage = match m.gpu_use(index) {
            Ok(usage) => usage,
            Err(error) => return failed(&error),
        };
        let mut name = [0; 96];
        // The last byte stays zero.
        for (to, from) in name.iter_mut().zip(usage.device.name.bytes()).take(95) {
            *to = from as c_char;
        }
        let shown = terrace_gpu {
            name,
            number: c_int::from(usage.number),
            node: usage.device.node.map_or(-1, |n| c_int::from(n.0)),
            total_bytes: usage.device.total.get(),
            free_bytes: usage.free.get(),
            bound_bytes: usage.bound.get(),
            blocks: usage.blocks as u64,
            peers: usage.device.peers.iter().filter(|p| **p < 64).fold(0, |bits, p| bits | 1 << p),
        };
        // SAFETY: not null, and writable by the caller's promise.
        unsafe { out.write(shown) };
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { with(memory, tell) }
}

/// Allocates `size` zeroed bytes by the attributes `attr` (null: the defaults). They begin at a
/// page, and from 2 MiB on at a huge page. CUDA managed memory is not cleared: its driver promises
/// no zeros. On error `*out` is null.
///
/// # Safety
/// `memory` comes from `terrace_memory_create`, `attr` is null or comes from `terrace_attr_create`;
/// `out` points to a writable pointer.
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

/// Frees memory. Null is accepted.
///
/// # Safety
/// `memory` comes from `terrace_memory_create`. The caller does not use the memory at `address`
/// afterwards.
#[no_mangle]
pub unsafe extern "C" fn terrace_memory_free(
    memory: *const terrace_memory,
    address: *mut c_void,
) -> c_int {
    let free = |m: &Memory| match m.free(address as usize) {
        Ok(()) => TERRACE_OK,
        Err(_) if address.is_null() => TERRACE_OK,
        Err(error) => failed(&error),
    };
    // SAFETY: passed on.
    unsafe { with(memory, free) }
}

/// Places the allocations that are bound on commit: TERRACE_COMMIT_EPOCH or TERRACE_COMMIT_ALL. If
/// `report` is not null, `*report` says what each got; destroy it with `terrace_report_destroy`. If
/// strict allocations are refused, the others are placed, the report is made, and the call returns
/// TERRACE_E_NO_ROOM.
///
/// # Safety
/// `memory` comes from `terrace_memory_create`; `report` is null or points to a writable pointer.
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
                let refused =
                    done.rows.iter().find(|r| r.refused).map(|r| format!("{}: {}", r.name, r.why));
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

/// Reports where the bytes of one allocation are, as a report of one row.
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

/// Returns the address of the allocation that contains `address`; null if there is none.
///
/// # Safety
/// `memory` comes from `terrace_memory_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_memory_lookup(
    memory: *const terrace_memory,
    address: *const c_void,
) -> *mut c_void {
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
