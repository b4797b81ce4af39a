//! Staging: blocks of data in slow memory pass through fast memory while threads work on them.

use crate::codes::{fail, guard, invalid, TERRACE_OK};
use crate::{TERRACE_E_KERNEL, TERRACE_E_MACHINE};
use std::ffi::{c_char, c_int, c_void, CStr};
use std::ops::Range;
use std::panic::resume_unwind;
use terrace_alloc::stage_costs;
use terrace_migrate::staging::{
    check_blocks, stage_read, stage_update, StageError, StagingMode, StagingOptions, StagingReport,
    Threads,
};
use terrace_topology::{load_machine, MachineSource};
use terrace_types::{Bytes, CpuId, NodeId};

/// The kernel returned a value other than 0 for a block, or the function that gives blocks one
/// below 0. `failed_block` of the report is the block's number.
pub const TERRACE_E_STAGE: c_int = -18;

/// A model divides the threads and decides whether to stage at all. It adapts during the run.
pub const TERRACE_STAGE_AUTO: c_int = 0;
/// The given division, whether staging pays or not.
pub const TERRACE_STAGE_FIXED: c_int = 1;
/// All threads run the kernel in place.
pub const TERRACE_STAGE_IN_PLACE: c_int = 2;

/// Options for staging. Only one thread at a time may change them; any number may use them.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct terrace_stage {
    options: StagingOptions,
}

/// A block: `bytes` bytes from `offset` of the data.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct terrace_block {
    /// Its first byte.
    pub offset: usize,
    /// Its length; 0 is permitted.
    pub bytes: usize,
}

/// The outcome of a run.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct terrace_staged {
    /// 1 if blocks went through fast memory; 0 if the kernel ran in place, for the reason in `why`.
    pub staged: c_int,
    /// Threads in all.
    pub threads: u32,
    /// Copying threads at the end of the run.
    pub migrators: u32,
    /// Buffers.
    pub slots: u32,
    /// Bytes copied to fast memory.
    pub brought_bytes: u64,
    /// Bytes copied back.
    pub returned_bytes: u64,
    /// Number of times that a thread waited for a block.
    pub stalls: u64,
    /// Time that threads waited for blocks, summed over threads.
    pub stalled_ns: u64,
    /// Time of the whole run.
    pub took_ns: u64,
    /// The block whose kernel failed, with TERRACE_E_STAGE.
    pub failed_block: usize,
    /// With TERRACE_E_STAGE, 1 if that block is unchanged; 0 if the kernel worked in place, so that
    /// the block may be half done.
    pub intact: c_int,
    /// The reason for running in place; empty if blocks were staged. Longer texts are cut.
    pub why: [c_char; 160],
    /// Bytes that should have moved and did not. With `terrace_stage_keep_addresses` these are
    /// pages that the kernel refused to move and pages that a block shares with others.
    pub stayed_bytes: u64,
}

/// Works on block number `block`. Its `bytes` bytes are at `at` during the call: in the data
/// itself, or in a copy that begins at a page. Several threads call it at once, each with another
/// block. It returns 0 to continue; anything else ends the run. It must not unwind: a C++ exception
/// may not leave it.
#[allow(non_camel_case_types, reason = "its name in C")]
pub type terrace_stage_kernel = Option<
    unsafe extern "C" fn(block: usize, at: *mut c_void, bytes: usize, user: *mut c_void) -> c_int,
>;

/// Creates options for staging through memory of node `fast_node`, with two threads divided by the
/// model. Nothing is staged unless `terrace_stage_set_machine` gives the machine's figures.
///
/// # Safety
/// `out` points to a writable pointer.
#[no_mangle]
pub unsafe extern "C" fn terrace_stage_create(
    fast_node: u32,
    out: *mut *mut terrace_stage,
) -> c_int {
    guard(|| {
        let Ok(fast) = u16::try_from(fast_node) else {
            return invalid("fast_node is no number of a node");
        };
        if out.is_null() {
            return invalid("out is null");
        }
        let options = StagingOptions::new(NodeId(fast), Threads::Auto(2));
        // SAFETY: not null, and writable by the caller's promise.
        unsafe { out.write(Box::into_raw(Box::new(terrace_stage { options }))) };
        TERRACE_OK
    })
}

/// Destroys the options. Null is accepted.
///
/// # Safety
/// `stage` is null or comes from `terrace_stage_create`, and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn terrace_stage_destroy(stage: *mut terrace_stage) {
    if !stage.is_null() {
        // SAFETY: made by Box::into_raw in `terrace_stage_create`; given back once by the caller's
        // promise.
        drop(unsafe { Box::from_raw(stage) });
    }
}

/// # Safety
/// `stage` is null or comes from `terrace_stage_create`, not destroyed, and no other thread uses it
/// meanwhile.
pub(crate) unsafe fn change(
    stage: *mut terrace_stage,
    with: impl FnOnce(&mut StagingOptions) -> c_int,
) -> c_int {
    guard(|| {
        // SAFETY: null or alive and this thread's alone, by the caller's promise.
        match unsafe { stage.as_mut() } {
            Some(stage) => with(&mut stage.options),
            None => invalid("stage is null; create it with terrace_stage_create"),
        }
    })
}

/// Sets the threads: TERRACE_STAGE_AUTO or TERRACE_STAGE_IN_PLACE with `workers` threads in all
/// (and 0 migrators), or TERRACE_STAGE_FIXED with `workers` that run the kernel and `migrators`
/// that copy.
///
/// # Safety
/// `stage` comes from `terrace_stage_create` and no other thread uses it meanwhile.
#[no_mangle]
pub unsafe extern "C" fn terrace_stage_set_threads(
    stage: *mut terrace_stage,
    kind: c_int,
    workers: u32,
    migrators: u32,
) -> c_int {
    let set = |o: &mut StagingOptions| {
        o.threads = match (kind, migrators) {
            (TERRACE_STAGE_AUTO, 0) => Threads::Auto(workers),
            (TERRACE_STAGE_IN_PLACE, 0) => Threads::InPlace(workers),
            (TERRACE_STAGE_FIXED, _) => Threads::Fixed { workers, migrators },
            _ => {
                return invalid("no such kind of threads, or migrators without TERRACE_STAGE_FIXED")
            }
        };
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { change(stage, set) }
}

/// Sets the CPUs to which threads are bound, in turn. Without CPUs, threads run anywhere.
///
/// # Safety
/// As for `terrace_stage_set_threads`; `cpus` points to `count` numbers.
#[no_mangle]
pub unsafe extern "C" fn terrace_stage_set_cpus(
    stage: *mut terrace_stage,
    cpus: *const u32,
    count: usize,
) -> c_int {
    let set = |o: &mut StagingOptions| {
        if cpus.is_null() && count > 0 {
            return invalid("cpus is null");
        }
        let list: &[u32] = if count == 0 {
            &[]
        } else {
            // SAFETY: not null, and `count` numbers long by the caller's promise.
            unsafe { std::slice::from_raw_parts(cpus, count) }
        };
        o.cpus = list.iter().map(|cpu| CpuId(*cpu)).collect();
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { change(stage, set) }
}

/// Sets the fast memory for buffers, in bytes, and their number. 0 means 1 GiB, and as many as keep
/// all threads busy.
///
/// # Safety
/// As for `terrace_stage_set_threads`.
#[no_mangle]
pub unsafe extern "C" fn terrace_stage_set_buffers(
    stage: *mut terrace_stage,
    room_bytes: u64,
    slots: u32,
) -> c_int {
    let set = |o: &mut StagingOptions| {
        o.room = if room_bytes == 0 { Bytes::gib(1) } else { Bytes(room_bytes) };
        o.slots = (slots > 0).then_some(slots);
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { change(stage, set) }
}

/// Sets whether addresses stay the same (`keep` is not 0). Kernels then work in the data itself,
/// whose pages move to the fast node and back (`move_pages`). This costs more than copying; use it
/// for data that is full of pointers, or that others point to.
///
/// # Safety
/// As for `terrace_stage_set_threads`.
#[no_mangle]
pub unsafe extern "C" fn terrace_stage_keep_addresses(
    stage: *mut terrace_stage,
    keep: c_int,
) -> c_int {
    let set = |o: &mut StagingOptions| {
        o.keep_addresses = keep != 0;
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { change(stage, set) }
}

/// Describes the kernel: the number of passes over a block, and the nanoseconds that a thread
/// computes per byte in one pass with infinitely fast memory (0: unknown).
///
/// # Safety
/// As for `terrace_stage_set_threads`.
#[no_mangle]
pub unsafe extern "C" fn terrace_stage_set_work(
    stage: *mut terrace_stage,
    passes: f64,
    compute_ns_per_byte: f64,
) -> c_int {
    let set = |o: &mut StagingOptions| {
        let sane = |x: f64| x.is_finite() && x >= 0.0;
        if !sane(passes) || !sane(compute_ns_per_byte) {
            return invalid("passes and compute_ns_per_byte are numbers that are not negative");
        }
        (o.passes, o.compute_ns_per_byte) = (passes, compute_ns_per_byte);
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { change(stage, set) }
}

/// Sets the machine's figures for threads on CPUs of node `initiator` and data on node `slow`. They
/// come from `from`, which is a machine file (terrace probe writes one) or `preset:NAME`. If `from`
/// is null, they come from this machine's firmware.
///
/// # Safety
/// As for `terrace_stage_set_threads`; `from` is null or ends with a null byte.
#[no_mangle]
pub unsafe extern "C" fn terrace_stage_set_machine(
    stage: *mut terrace_stage,
    from: *const c_char,
    initiator: u32,
    slow: u32,
) -> c_int {
    // SAFETY: null, or a text with its end, by the caller's promise.
    let from =
        (!from.is_null()).then(|| unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned());
    let set = |o: &mut StagingOptions| {
        let (Ok(initiator), Ok(slow)) = (u16::try_from(initiator), u16::try_from(slow)) else {
            return invalid("initiator or slow is no number of a node");
        };
        let source = from.map_or(MachineSource::Live, |p| MachineSource::parse(&p));
        let machine = match load_machine(&source) {
            Ok(machine) => machine,
            Err(error) => return fail(TERRACE_E_MACHINE, &error.to_string()),
        };
        let (initiator, slow) = (NodeId(initiator), NodeId(slow));
        let Some(costs) = stage_costs(&machine, initiator, slow, o.fast) else {
            let what = format!(
                "{} does not tell latency and bandwidth of nodes {slow} and {} from node \
                    {initiator}; measure them with \
                 terrace probe -o FILE",
                machine.name, o.fast
            );
            return fail(TERRACE_E_MACHINE, &what);
        };
        (o.slow, o.costs) = (Some(slow), Some(costs));
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { change(stage, set) }
}

/// Runs `kernel` on every block of `data` (`bytes` long) and keeps the results. Data outside the
/// blocks is not touched. Blocks that overlap or leave the data are refused before anything runs,
/// however many there are. `report` may be null. It is also filled on TERRACE_E_STAGE, after which
/// every block except `failed_block` is unchanged or complete.
///
/// # Safety
/// `stage` comes from `terrace_stage_create`. `data` is initialised memory of `bytes` bytes that
/// nobody else touches meanwhile; `blocks` points to `count` blocks; `kernel` may be called from
/// other threads with `user`, and writes only the `bytes` at `at`; `report` is null or writable.
#[no_mangle]
#[allow(clippy::too_many_arguments, reason = "C has no slices")]
pub unsafe extern "C" fn terrace_stage_update(
    stage: *const terrace_stage,
    data: *mut c_void,
    bytes: usize,
    blocks: *const terrace_block,
    count: usize,
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
        // SAFETY: passed on.
        let ranges = match unsafe { listed(bytes, blocks, count) } {
            Ok(ranges) => ranges,
            Err(code) => return code,
        };
        // SAFETY: `bytes` of memory that are the caller's to give, by his promise; not null unless
        // empty.
        let data = unsafe { std::slice::from_raw_parts_mut(present(data.cast()), bytes) };
        let result = stage_update(data, ranges, options, |block, part| {
            call.on(block, part.as_mut_ptr(), part.len())
        });
        // SAFETY: passed on.
        unsafe { describe(result, report) }
    })
}

/// Like `terrace_stage_update`, but the kernel only reads, and nothing is copied back.
///
/// # Safety
/// As for `terrace_stage_update`; `kernel` writes nothing at `at`.
#[no_mangle]
#[allow(clippy::too_many_arguments, reason = "C has no slices")]
pub unsafe extern "C" fn terrace_stage_read(
    stage: *const terrace_stage,
    data: *const c_void,
    bytes: usize,
    blocks: *const terrace_block,
    count: usize,
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
        // SAFETY: passed on.
        let ranges = match unsafe { listed(bytes, blocks, count) } {
            Ok(ranges) => ranges,
            Err(code) => return code,
        };
        // SAFETY: `bytes` of memory that nobody writes meanwhile, by the caller's promise; not null
        // unless empty.
        let data = unsafe {
            std::slice::from_raw_parts(present(data.cast_mut().cast()).cast_const(), bytes)
        };
        let result = stage_read(data, ranges, options, |block, part| {
            call.on(block, part.as_ptr().cast_mut(), part.len())
        });
        // SAFETY: passed on.
        unsafe { describe(result, report) }
    })
}

/// The address, or for none one that an empty slice may have.
pub(crate) fn present(data: *mut u8) -> *mut u8 {
    if data.is_null() {
        std::ptr::NonNull::dangling().as_ptr()
    } else {
        data
    }
}

/// A kernel with its user's pointer.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    kernel: unsafe extern "C" fn(usize, *mut c_void, usize, *mut c_void) -> c_int,
    user: *mut c_void,
}

// SAFETY: the function and the pointer are promised to be usable from other threads
// (`terrace_stage_update`).
unsafe impl Send for Call {}
// SAFETY: as above.
unsafe impl Sync for Call {}

impl Call {
    pub(crate) fn on(&self, block: usize, at: *mut u8, bytes: usize) {
        // SAFETY: `at` is the block's memory for this call, as the kernel's contract has it; what
        // it may do with it and with `user` the caller promised.
        let status = unsafe { (self.kernel)(block, at.cast(), bytes, self.user) };
        if status != 0 {
            // The pipeline ends by a panic of its kernel. Resumed rather than begun: no hook
            // prints.
            resume_unwind(Box::new(format!("it gave {status}")));
        }
    }
}

impl terrace_block {
    /// Its bytes; one that no memory can have ends beyond all data.
    pub(crate) const fn range(&self) -> Range<usize> {
        self.offset..self.offset.saturating_add(self.bytes)
    }
}

/// What was asked for but for the blocks, checked.
///
/// # Safety
/// As for [`terrace_stage_update`].
pub(crate) unsafe fn called<'a>(
    stage: *const terrace_stage,
    data: *const c_void,
    bytes: usize,
    kernel: terrace_stage_kernel,
    user: *mut c_void,
) -> Result<(&'a StagingOptions, Call), c_int> {
    // SAFETY: null or alive by the caller's promise.
    let Some(stage) = (unsafe { stage.as_ref() }) else {
        return Err(invalid("stage is null; create it with terrace_stage_create"));
    };
    let Some(kernel) = kernel else { return Err(invalid("kernel is null")) };
    if data.is_null() && bytes > 0 {
        return Err(invalid("data is null"));
    }
    if bytes > isize::MAX as usize {
        return Err(invalid("data is larger than memory can be"));
    }
    Ok((&stage.options, Call { kernel, user }))
}

/// Blocks that were given in a list, all of which are checked before anything runs.
///
/// # Safety
/// `blocks` is null or points to `count` blocks.
unsafe fn listed(
    bytes: usize,
    blocks: *const terrace_block,
    count: usize,
) -> Result<Vec<Range<usize>>, c_int> {
    if blocks.is_null() && count > 0 {
        return Err(invalid("blocks is null"));
    }
    let list: &[terrace_block] = if count == 0 {
        &[]
    } else {
        // SAFETY: not null, and `count` blocks long by the caller's promise.
        unsafe { std::slice::from_raw_parts(blocks, count) }
    };
    let ranges: Vec<Range<usize>> = list.iter().map(terrace_block::range).collect();
    check_blocks(bytes, ranges.iter().cloned()).map_err(|error| invalid(&error.to_string()))?;
    Ok(ranges)
}

/// # Safety
/// `out` is null or writable.
pub(crate) unsafe fn describe(
    result: Result<StagingReport, StageError>,
    out: *mut terrace_staged,
) -> c_int {
    let (row, code) = match result {
        Ok(report) => (staged(&report), TERRACE_OK),
        Err(error) => {
            let code = match &error {
                StageError::Panicked { .. } | StageError::Sequence { .. } => TERRACE_E_STAGE,
                StageError::Sys(_) => TERRACE_E_KERNEL,
                _ => return invalid(&error.to_string()),
            };
            let text = error.to_string().replace("the kernel panicked at", "the kernel failed at");
            let text =
                text.replace("the iterator of blocks panicked", "what gives the blocks failed");
            let mut row = EMPTY;
            match error {
                StageError::Panicked { block, intact, .. } => {
                    (row.failed_block, row.intact) = (block, c_int::from(intact));
                }
                StageError::Sequence { after, .. } => row.failed_block = after,
                _ => {}
            }
            (row, fail(code, &text))
        }
    };
    if !out.is_null() {
        // SAFETY: not null, and writable by the caller's promise.
        unsafe { out.write(row) };
    }
    code
}

const EMPTY: terrace_staged = terrace_staged {
    staged: 0,
    threads: 0,
    migrators: 0,
    slots: 0,
    brought_bytes: 0,
    returned_bytes: 0,
    stalls: 0,
    stalled_ns: 0,
    took_ns: 0,
    failed_block: 0,
    intact: 1,
    why: [0; 160],
    stayed_bytes: 0,
};

fn staged(report: &StagingReport) -> terrace_staged {
    let mut row = terrace_staged {
        staged: c_int::from(report.mode == StagingMode::Staged),
        threads: report.threads,
        migrators: report.migrators,
        slots: report.slots,
        brought_bytes: report.brought.get(),
        returned_bytes: report.returned.get(),
        stalls: report.stalls,
        stalled_ns: report.stalled.get(),
        took_ns: report.took.get(),
        stayed_bytes: report.stayed.get(),
        ..EMPTY
    };
    if let StagingMode::InPlace(why) = report.mode {
        // Reasons are of ASCII; the last byte stays zero.
        let text = why.to_string();
        for (to, from) in row.why.iter_mut().take(159).zip(text.bytes()) {
            *to = from as c_char;
        }
    }
    row
}
