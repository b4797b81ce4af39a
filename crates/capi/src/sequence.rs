//! Staging of blocks that a function gives while others are worked on.

use crate::codes::{guard, invalid};
use crate::stage::{
    called, describe, present, terrace_block, terrace_stage, terrace_stage_kernel, terrace_staged,
};
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::panic::resume_unwind;
use terrace_migrate::staging::{stage_read, stage_update};
use terrace_types::Bytes;

/// Gives the next block. It fills `block` and returns 1, or returns 0 if there are no more. A value
/// below 0 ends the run with TERRACE_E_STAGE. One thread at a time calls it, not always the same
/// one, while kernels run. It is not called again after its end. It must not unwind.
#[allow(non_camel_case_types, reason = "its name in C")]
pub type terrace_stage_next =
    Option<unsafe extern "C" fn(block: *mut terrace_block, user: *mut c_void) -> c_int>;

/// Says what is known of the blocks that a function gives. `ahead` blocks are asked for before the
/// run starts (0: 64); if there are more, the others are taken to be similar. `expected` is their
/// number (0: as many as cover the data). `largest_bytes` is the size of the largest, if that may
/// come later (0: the largest of those asked for ahead). The kernel works in place on a block
/// larger than a buffer. The function may wait for the kernel of a block that it gave at least
/// `ahead` blocks before.
///
/// # Safety
/// As for `terrace_stage_set_threads`.
#[no_mangle]
pub unsafe extern "C" fn terrace_stage_set_sequence(
    stage: *mut terrace_stage,
    ahead: usize,
    expected: usize,
    largest_bytes: u64,
) -> c_int {
    let set = |o: &mut terrace_migrate::staging::StagingOptions| {
        let unless_zero = |n: u64| (n > 0).then_some(n);
        o.ahead = if ahead == 0 { 64 } else { ahead };
        o.expected = (expected > 0).then_some(expected);
        o.largest = unless_zero(largest_bytes).map(Bytes);
        crate::TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { crate::stage::change(stage, set) }
}

/// Like `terrace_stage_update`, for blocks that `next` gives when a buffer is free. A block that
/// overlaps an earlier one or leaves the data ends the run with TERRACE_E_INVALID; the blocks
/// before it are unchanged or complete.
///
/// # Safety
/// As for `terrace_stage_update`; `next` may be called from other threads with `giver`.
#[no_mangle]
#[allow(clippy::too_many_arguments, reason = "C has no slices")]
pub unsafe extern "C" fn terrace_stage_update_from(
    stage: *const terrace_stage,
    data: *mut c_void,
    bytes: usize,
    next: terrace_stage_next,
    giver: *mut c_void,
    kernel: terrace_stage_kernel,
    user: *mut c_void,
    report: *mut terrace_staged,
) -> c_int {
    guard(|| {
        // SAFETY: passed on.
        let (options, call) = match unsafe { called(stage, data, bytes, kernel, user) } {
            Ok(all) => all,
            Err(code) => return code,
        };
        let Some(next) = next else { return invalid("next is null") };
        // SAFETY: `bytes` of memory that are the caller's to give, by his promise; not null unless
        // empty.
        let data = unsafe { std::slice::from_raw_parts_mut(present(data.cast()), bytes) };
        let on = |block, part: &mut [u8]| call.on(block, part.as_mut_ptr(), part.len());
        // SAFETY: passed on.
        unsafe { describe(stage_update(data, Given { next, giver }, options, on), report) }
    })
}

/// Like `terrace_stage_update_from`, but the kernel only reads, and nothing is copied back.
///
/// # Safety
/// As for `terrace_stage_update_from`; `kernel` writes nothing at `at`.
#[no_mangle]
#[allow(clippy::too_many_arguments, reason = "C has no slices")]
pub unsafe extern "C" fn terrace_stage_read_from(
    stage: *const terrace_stage,
    data: *const c_void,
    bytes: usize,
    next: terrace_stage_next,
    giver: *mut c_void,
    kernel: terrace_stage_kernel,
    user: *mut c_void,
    report: *mut terrace_staged,
) -> c_int {
    guard(|| {
        // SAFETY: passed on.
        let (options, call) = match unsafe { called(stage, data, bytes, kernel, user) } {
            Ok(all) => all,
            Err(code) => return code,
        };
        let Some(next) = next else { return invalid("next is null") };
        // SAFETY: `bytes` of memory that nobody writes meanwhile, by the caller's promise; not null
        // unless empty.
        let data = unsafe {
            std::slice::from_raw_parts(present(data.cast_mut().cast()).cast_const(), bytes)
        };
        let on = |block, part: &[u8]| call.on(block, part.as_ptr().cast_mut(), part.len());
        // SAFETY: passed on.
        unsafe { describe(stage_read(data, Given { next, giver }, options, on), report) }
    })
}

/// A function that gives blocks, with its user's pointer.
struct Given {
    next: unsafe extern "C" fn(*mut terrace_block, *mut c_void) -> c_int,
    giver: *mut c_void,
}

// SAFETY: the function and the pointer are promised to be usable from other threads
// (`terrace_stage_update_from`).
unsafe impl Send for Given {}

impl Iterator for Given {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let mut block = terrace_block { offset: 0, bytes: 0 };
        // SAFETY: `block` is writable for this call; what it may do with `giver` the caller
        // promised.
        let status = unsafe { (self.next)(&raw mut block, self.giver) };
        match status {
            0 => None,
            1.. => Some(block.range()),
            // The pipeline ends by a panic of its iterator. Resumed rather than begun: no hook
            // prints.
            _ => resume_unwind(Box::new(format!("it gave {status}"))),
        }
    }
}
