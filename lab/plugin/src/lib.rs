//! C interface of `terrace-model` for the QEMU timing plugin (`lab/plugin/plugin.c`).
//!
//! The C side owns what touches QEMU (callbacks, clock, slices); this side owns the machine, the
//! counts and the files that are written. Calls come from QEMU's one vCPU thread, except the three
//! `lab_*_ns` readers, which the main loop may call while every vCPU is idle (so none is
//! executing), and `lab_new` and `lab_finish`, which come before and after all others.

mod arguments;
mod decode;
mod placed;
mod profile;
mod record;
mod translations;

use arguments::Arguments;
use decode::{kind, InstructionKind};
use placed::PluginPlacement;
use profile::AccessProfile;
use record::SpanRecorder;
use std::ffi::{c_char, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};
use terrace_model::{MemoryAccess, MemorySystem, LINE, PS};
use translations::Translations;

/// `lab_block`: the vCPU has run its quantum.
const QUANTUM_DONE: u32 = 1;
/// `lab_block`: QEMU's translations of this vCPU are due to be dropped.
const FLUSH_DUE: u32 = 2;

#[cfg(not(test))]
extern "C" {
    /// Physical address of the access being reported; all ones for devices. In `plugin.c`.
    fn lab_host_translate(info: u32, address: u64) -> u64;
    /// The value that the access being reported loaded, if it is of 32 or 64 bits. In `plugin.c`.
    fn lab_host_value(info: u32, value: *mut u64) -> bool;
}

/// In place of `plugin.c`, which tests are not linked with.
#[cfg(test)]
unsafe fn lab_host_translate(_info: u32, address: u64) -> u64 {
    address
}

/// In place of `plugin.c`.
#[cfg(test)]
unsafe fn lab_host_value(_info: u32, _value: *mut u64) -> bool {
    false
}

/// Everything behind the plugin's one pointer.
pub struct PluginState {
    engine: MemorySystem,
    translations: Vec<Translations>,
    next_flush: Vec<u64>,
    flush_every: u64,
    recorder: SpanRecorder,
    profile: AccessProfile,
    placed: Option<PluginPlacement>,
    arguments: Arguments,
}

impl PluginState {
    fn new(texts: &[String], vcpus: u32) -> Result<Self, String> {
        let (machine, arguments) = Arguments::parse(texts)?.with_machine()?;
        let params = arguments.params(&machine, vcpus)?;
        let flush_every = if arguments.count_only { 0 } else { params.tlb_flush };
        let nodes = params.sizes.len();
        let placed =
            arguments.placed.as_ref().map(|path| PluginPlacement::read(path, nodes)).transpose()?;
        let engine = MemorySystem::new(params, arguments.quantum_us * 1000 * PS)
            .map_err(|e| e.to_string())?;
        Ok(Self {
            engine,
            translations: (0..vcpus).map(|_| Translations::new()).collect(),
            next_flush: vec![flush_every; vcpus as usize],
            flush_every,
            recorder: SpanRecorder::new(arguments.stats.clone()),
            profile: AccessProfile::new(
                arguments.profile.clone(),
                arguments.profile_window_ms,
                arguments.profile_all,
            ),
            placed,
            arguments,
        })
    }

    #[inline(always)]
    fn access<const WRITE: bool>(&mut self, vcpu: usize, address: u64, info: u32) {
        if self.profile.every() {
            self.note::<WRITE>(vcpu, address);
        }
        let unit = &mut self.engine.units[vcpu];
        if WRITE {
            unit.counters.stores += 1;
        } else {
            unit.counters.loads += 1;
        }
        let Some(physical) = self.translations[vcpu].get(address) else {
            return self.translate::<WRITE>(vcpu, address, info);
        };
        if !unit.l1.hit(physical / LINE, WRITE) {
            self.miss::<WRITE>(vcpu, address, physical, info);
        }
    }

    #[inline(never)]
    fn translate<const WRITE: bool>(&mut self, vcpu: usize, address: u64, info: u32) {
        let physical = self.find_physical(vcpu, address, info);
        if physical == u64::MAX {
            return;
        }
        if !self.engine.units[vcpu].l1.hit(physical / LINE, WRITE) {
            self.miss::<WRITE>(vcpu, address, physical, info);
        }
    }

    /// Physical address behind the access being reported, remembered; all ones for devices.
    fn find_physical(&mut self, vcpu: usize, address: u64, info: u32) -> u64 {
        // SAFETY: called within the callback that QEMU handed `info` to, as QEMU asks.
        let physical = unsafe { lab_host_translate(info, address) };
        if physical != u64::MAX {
            self.translations[vcpu].put(address, physical);
            if let Some(node) = self.placed.as_ref().and_then(|placed| placed.node_of(address)) {
                self.engine.serve_from(physical >> 12, node);
            }
        }
        physical
    }

    #[inline(never)]
    fn miss<const WRITE: bool>(&mut self, vcpu: usize, address: u64, physical: u64, info: u32) {
        let access = MemoryAccess { physical, virtual_: address, write: WRITE };
        let missed = self.engine.miss(vcpu, access, || {
            let mut value = 0;
            // SAFETY: called within the callback that QEMU handed `info` to; `value` is writable.
            unsafe { lab_host_value(info, &mut value) }.then_some(value)
        });
        if missed.is_some() && !self.profile.every() {
            self.note::<WRITE>(vcpu, address);
        }
    }

    /// A store past the caches.
    #[inline(never)]
    fn past(&mut self, vcpu: usize, address: u64, info: u32) {
        if self.profile.every() {
            self.note::<true>(vcpu, address);
        }
        self.engine.units[vcpu].counters.stores += 1;
        let known = self.translations[vcpu].get(address);
        let physical = known.unwrap_or_else(|| self.find_physical(vcpu, address, info));
        if physical != u64::MAX && self.engine.store_past(vcpu, physical) && !self.profile.every() {
            self.note::<true>(vcpu, address);
        }
    }

    #[inline(never)]
    fn note<const WRITE: bool>(&mut self, vcpu: usize, address: u64) {
        let engine = &self.engine;
        self.profile.note(address, WRITE, engine.units[vcpu].core.time / PS, || written(engine));
    }
}

/// Bytes written on the bus to each node so far.
fn written(engine: &MemorySystem) -> Vec<u64> {
    let mut sum = Vec::new();
    for vcpu in 0..engine.units.len() {
        let counters = engine.counters(vcpu);
        sum.resize(counters.write_bytes.len(), 0);
        for (all, one) in sum.iter_mut().zip(&counters.write_bytes) {
            *all += one;
        }
    }
    sum
}

/// Read the arguments and the machine file. On failure returns null and leaves one line in `error`.
///
/// # Safety
/// `argv` must point to `argc` C strings and `error` to `room` writable bytes.
#[no_mangle]
pub unsafe extern "C" fn lab_new(
    argv: *const *const c_char,
    argc: usize,
    vcpus: u32,
    error: *mut c_char,
    room: usize,
) -> *mut PluginState {
    let texts: Vec<String> = (0..argc)
        // SAFETY: the caller passes `argc` valid C strings.
        .map(|i| unsafe { CStr::from_ptr(*argv.add(i)) }.to_string_lossy().into_owned())
        .collect();
    let made = catch_unwind(|| PluginState::new(&texts, vcpus))
        .unwrap_or_else(|_| Err("internal error while reading the arguments".into()));
    match made {
        Ok(lab) => Box::into_raw(Box::new(lab)),
        Err(text) => {
            let bytes: Vec<u8> =
                text.bytes().filter(|b| *b != 0).take(room.saturating_sub(1)).collect();
            if room > 0 {
                // SAFETY: `error` has `room` writable bytes, and `bytes` is at least one shorter.
                unsafe {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), error, bytes.len());
                    error.add(bytes.len()).write(0);
                }
            }
            std::ptr::null_mut()
        }
    }
}

/// Guest time to start from, nanoseconds.
///
/// # Safety
/// `lab` must come from [`lab_new`]; the same holds for all functions below, none of which may run
/// while another does.
#[no_mangle]
pub unsafe extern "C" fn lab_clock0_ns(lab: *const PluginState) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { (*lab).arguments.clock0_ns }
}

/// Whether only instructions take time.
///
/// # Safety
/// As [`lab_clock0_ns`].
#[no_mangle]
pub unsafe extern "C" fn lab_count_only(lab: *const PluginState) -> bool {
    // SAFETY: as the caller promises.
    unsafe { (*lab).arguments.count_only }
}

/// What the instruction of these bytes is: bit 8 for a mark, which is in the lowest byte then, 9
/// for what may change translations, 10 for a store past the caches; zero for all others.
///
/// # Safety
/// `bytes` points to `length` of them.
#[no_mangle]
pub unsafe extern "C" fn lab_kind(bytes: *const u8, length: usize) -> u32 {
    // SAFETY: as the caller promises.
    match kind(unsafe { std::slice::from_raw_parts(bytes, length) }) {
        InstructionKind::Plain => 0,
        InstructionKind::Mark(mark) => 1 << 8 | u32::from(mark),
        InstructionKind::ChangesTranslations => 1 << 9,
        InstructionKind::StoresPast => 1 << 10,
    }
}

/// A block of `instructions` begins: [`QUANTUM_DONE`] and [`FLUSH_DUE`], or zero.
///
/// # Safety
/// As [`lab_clock0_ns`].
#[no_mangle]
pub unsafe extern "C" fn lab_block(lab: *mut PluginState, vcpu: u32, instructions: u64) -> u32 {
    // SAFETY: as the caller promises.
    let lab = unsafe { &mut *lab };
    let vcpu = vcpu as usize;
    let end = lab.engine.lockstep().end();
    let core = &mut lab.engine.units[vcpu].core;
    core.execute(instructions);
    let mut what = 0;
    if core.time >= end {
        what |= QUANTUM_DONE;
        if lab.flush_every > 0 && core.time >= lab.next_flush[vcpu] {
            lab.next_flush[vcpu] = core.time + lab.flush_every;
            what |= FLUSH_DUE;
        }
    }
    what
}

/// A load is reported.
///
/// # Safety
/// As [`lab_clock0_ns`]; within the callback that was given `info`.
#[no_mangle]
pub unsafe extern "C" fn lab_load(lab: *mut PluginState, vcpu: u32, address: u64, info: u32) {
    // SAFETY: as the caller promises.
    unsafe { &mut *lab }.access::<false>(vcpu as usize, address, info);
}

/// A store is reported.
///
/// # Safety
/// As [`lab_load`].
#[no_mangle]
pub unsafe extern "C" fn lab_store(lab: *mut PluginState, vcpu: u32, address: u64, info: u32) {
    // SAFETY: as the caller promises.
    unsafe { &mut *lab }.access::<true>(vcpu as usize, address, info);
}

/// A store past the caches (`movnt*`) is reported.
///
/// # Safety
/// As [`lab_load`].
#[no_mangle]
pub unsafe extern "C" fn lab_store_past(lab: *mut PluginState, vcpu: u32, address: u64, info: u32) {
    // SAFETY: as the caller promises.
    unsafe { &mut *lab }.past(vcpu as usize, address, info);
}

/// Translations of a vCPU may have changed.
///
/// # Safety
/// As [`lab_clock0_ns`].
#[no_mangle]
pub unsafe extern "C" fn lab_forget_translations(lab: *mut PluginState, vcpu: u32) {
    // SAFETY: as the caller promises.
    unsafe { &mut *lab }.translations[vcpu as usize].forget();
}

/// Begin the next quantum if all vCPUs have run this one, but for those in the set `idle`; `true`
/// if it began.
///
/// # Safety
/// As [`lab_clock0_ns`].
#[no_mangle]
pub unsafe extern "C" fn lab_advance(lab: *mut PluginState, idle: u64) -> bool {
    // SAFETY: as the caller promises.
    unsafe { &mut *lab }.engine.advance(|vcpu| idle >> vcpu & 1 == 1)
}

/// Begin a quantum where the furthest vCPU stopped: all were idle.
///
/// # Safety
/// As [`lab_clock0_ns`].
#[no_mangle]
pub unsafe extern "C" fn lab_restart(lab: *mut PluginState) {
    // SAFETY: as the caller promises.
    unsafe { &mut *lab }.engine.restart();
}

/// Modelled time of a vCPU, nanoseconds.
///
/// # Safety
/// As [`lab_clock0_ns`].
#[no_mangle]
pub unsafe extern "C" fn lab_time_ns(lab: *const PluginState, vcpu: u32) -> u64 {
    // SAFETY: as the caller promises.
    let lab = unsafe { &*lab };
    lab.engine.units[vcpu as usize].core.time.max(lab.engine.lockstep().start()) / PS
}

/// Start of the quantum, nanoseconds of modelled time.
///
/// # Safety
/// As [`lab_clock0_ns`].
#[no_mangle]
pub unsafe extern "C" fn lab_start_ns(lab: *const PluginState) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { &*lab }.engine.lockstep().start() / PS
}

/// Modelled time of the vCPU that is furthest, nanoseconds.
///
/// # Safety
/// As [`lab_clock0_ns`]; every vCPU is idle or stopped.
#[no_mangle]
pub unsafe extern "C" fn lab_furthest_ns(lab: *const PluginState) -> u64 {
    // SAFETY: as the caller promises.
    let engine = unsafe { &(*lab).engine };
    engine.units.iter().map(|u| u.core.time).fold(engine.lockstep().start(), u64::max) / PS
}

/// A mark was executed at this guest time: 1 phase begins, 2 phase ends, 0x11 job begins, 0x12 job
/// ends.
///
/// # Safety
/// As [`lab_clock0_ns`].
#[no_mangle]
pub unsafe extern "C" fn lab_mark(lab: *mut PluginState, mark: u32, now_ns: i64) {
    // SAFETY: as the caller promises.
    let lab = unsafe { &mut *lab };
    let now = now_ns.max(0) as u64;
    let done = catch_unwind(AssertUnwindSafe(|| {
        let recorded = lab.recorder.mark(mark, now, &lab.engine);
        lab.profile.mark(mark, written(&lab.engine)).and(recorded)
    }));
    report(done);
}

/// QEMU ends: write the files for good.
///
/// # Safety
/// As [`lab_clock0_ns`].
#[no_mangle]
pub unsafe extern "C" fn lab_finish(lab: *mut PluginState, now_ns: i64) {
    // SAFETY: as the caller promises.
    let lab = unsafe { &mut *lab };
    report(catch_unwind(AssertUnwindSafe(|| lab.recorder.write(now_ns.max(0) as u64))));
}

fn report(done: std::thread::Result<Result<(), String>>) {
    match done {
        Ok(Ok(())) => {}
        Ok(Err(why)) => eprintln!("terrace plugin: {why}"),
        Err(_) => eprintln!("terrace plugin: internal error while recording a mark"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn made(texts: &[&str]) -> Result<*mut PluginState, String> {
        let texts: Vec<CString> = texts.iter().map(|t| CString::new(*t).unwrap()).collect();
        let pointers: Vec<*const c_char> = texts.iter().map(|t| t.as_ptr()).collect();
        let mut error = [0 as c_char; 200];
        // SAFETY: as many C strings as said, and a buffer of the length said.
        let lab = unsafe {
            lab_new(pointers.as_ptr(), pointers.len(), 2, error.as_mut_ptr(), error.len())
        };
        // SAFETY: `lab_new` leaves a C string where it fails, and the buffer was zeroed.
        let why = unsafe { CStr::from_ptr(error.as_ptr()) }.to_string_lossy().into_owned();
        if lab.is_null() {
            Err(why)
        } else {
            Ok(lab)
        }
    }

    fn machine_file() -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("terrace-plugin-{}.toml", std::process::id()));
        std::fs::write(&path, terrace_machine::preset_text("lab-cxl").unwrap()).unwrap();
        path
    }

    #[test]
    fn a_run_through_the_c_interface() {
        assert!(made(&["machine=/no/such/file"]).is_err_and(|why| why.contains("/no/such/file")));
        let path = machine_file();
        let lab = made(&[&format!("machine={}", path.display()), "clock0=7"]).unwrap();
        // SAFETY: `lab` comes from `lab_new`, this thread alone uses it, and it is not used after
        // it is freed.
        unsafe {
            assert_eq!(lab_clock0_ns(lab), 7);
            assert!(!lab_count_only(lab));
            lab_mark(lab, 1, 0);
            assert_eq!(lab_kind([0x66, 0x0f, 0xe7, 0x07].as_ptr(), 4), 1 << 10);
            assert_eq!(
                lab_kind([0x0f, 0x1f, 0x80, 0x02, 0xa0, 0x44, 0x7e].as_ptr(), 7),
                1 << 8 | 2
            );
            assert_eq!(lab_kind([0x90].as_ptr(), 1), 0);
            assert_eq!(lab_block(lab, 0, 4), 0);
            assert_eq!(lab_time_ns(lab, 0), 1);
            lab_load(lab, 0, 256 << 20, 0);
            lab_store(lab, 0, 256 << 20, 0);
            // The quantum of 10 us is 40,000 instructions; the miss of 300 ns is waited for on the
            // way.
            assert_eq!(lab_block(lab, 0, 40_000), QUANTUM_DONE);
            assert!(!lab_advance(lab, 0));
            assert!(lab_advance(lab, 0b10));
            assert_eq!(lab_start_ns(lab), 10_000);
            assert_eq!(lab_time_ns(lab, 1), 10_000);
            lab_forget_translations(lab, 0);
            lab_restart(lab);
            assert_eq!(lab_furthest_ns(lab), lab_start_ns(lab));
            let counters = (*lab).engine.counters(0);
            assert_eq!(
                (counters.loads, counters.stores, counters.llc_misses()),
                (1, 1, vec![0, 1])
            );
            lab_store_past(lab, 0, 300 << 20, 0);
            lab_store_past(lab, 0, (300 << 20) + 8, 0);
            let counters = (*lab).engine.counters(0);
            assert_eq!(
                (counters.stores, counters.llc_misses(), counters.writebacks),
                (3, vec![0, 1], vec![0, 1])
            );
            drop(Box::from_raw(lab));
        }
        let _ = std::fs::remove_file(path);
    }
}
