//! C interface of `terrace-model` for the QEMU timing plugin (`lab/plugin/plugin.c`).
//!
//! The C side owns what touches QEMU (callbacks, clock, slices); this side owns the machine, the
//! counts and the files that are written. Calls come from QEMU's one vCPU thread, except the three
//! `lab_*_ns` readers, which the main loop may call while every vCPU is idle (so none is
//! executing), and `lab_new` and `lab_finish`, which come before and after all others.

mod arguments;
mod decode;
mod host;
mod placed;
mod profile;
mod record;
mod sampled;
mod translations;
mod unit;

use arguments::Arguments;
use decode::{kind, InstructionKind};
use host::{lab_host_translate, lab_host_value};
use placed::PluginPlacement;
use profile::AccessProfile;
use record::SpanRecorder;
use sampled::{level_of, ServedBy};
use std::ffi::{c_char, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};
use terrace_model::{MemoryAccess, MemorySystem, LINE, PS};
use terrace_sampling::{MemoryLevel, UNIT_MARK};
use translations::Translations;
use unit::SamplingUnit;

/// `lab_block`: the vCPU has run its quantum.
const QUANTUM_DONE: u32 = 1;
/// `lab_block`: QEMU's translations of this vCPU are due to be dropped.
const FLUSH_DUE: u32 = 2;

/// What is reported of an access.
#[derive(Debug, Clone, Copy)]
pub struct ReportedAccess {
    address: u64,
    /// Address of the instruction.
    instruction: u64,
    /// QEMU's word about it.
    info: u32,
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
    sampling: SamplingUnit,
    /// Level that a record names for each node.
    levels: Vec<MemoryLevel>,
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
            sampling: SamplingUnit::new(vcpus, &machine.kernel),
            levels: machine.nodes.iter().map(|node| level_of(node.kind)).collect(),
            arguments,
        })
    }

    #[inline(always)]
    fn access<const WRITE: bool>(&mut self, vcpu: usize, a: ReportedAccess) {
        if self.profile.every() {
            self.note::<WRITE>(vcpu, a.address);
        }
        let unit = &mut self.engine.units[vcpu];
        if WRITE {
            unit.counters.stores += 1;
        } else {
            unit.counters.loads += 1;
        }
        let Some(physical) = self.translations[vcpu].get(a.address) else {
            return self.translate::<WRITE>(vcpu, a);
        };
        self.look_up::<WRITE>(vcpu, a, physical);
    }

    #[inline(always)]
    fn look_up<const WRITE: bool>(&mut self, vcpu: usize, a: ReportedAccess, physical: u64) {
        if !self.engine.units[vcpu].l1.hit(physical / LINE, WRITE) {
            self.miss::<WRITE>(vcpu, a, physical);
        } else if self.sampling.every() {
            self.sample::<WRITE>(vcpu, a, ServedBy::Cache(MemoryLevel::L1));
        }
    }

    #[inline(never)]
    fn translate<const WRITE: bool>(&mut self, vcpu: usize, a: ReportedAccess) {
        let physical = self.find_physical(vcpu, a);
        if physical != u64::MAX {
            self.look_up::<WRITE>(vcpu, a, physical);
        }
    }

    /// Physical address behind the access being reported, remembered; all ones for devices.
    fn find_physical(&mut self, vcpu: usize, a: ReportedAccess) -> u64 {
        // SAFETY: called within the callback that QEMU handed `info` to, as QEMU asks.
        let physical = unsafe { lab_host_translate(a.info, a.address) };
        if physical != u64::MAX {
            self.translations[vcpu].put(a.address, physical);
            if let Some(node) = self.placed.as_ref().and_then(|placed| placed.node_of(a.address)) {
                self.engine.serve_from(physical >> 12, node);
            }
        }
        physical
    }

    #[inline(never)]
    fn miss<const WRITE: bool>(&mut self, vcpu: usize, a: ReportedAccess, physical: u64) {
        let access = MemoryAccess { physical, virtual_: a.address, write: WRITE };
        let second = self.engine.units[vcpu].counters.l2_hits;
        let missed = self.engine.miss(vcpu, access, || {
            let mut value = 0;
            // SAFETY: called within the callback that QEMU handed `info` to; `value` is writable.
            unsafe { lab_host_value(a.info, &mut value) }.then_some(value)
        });
        if missed.is_some() && !self.profile.every() {
            self.note::<WRITE>(vcpu, a.address);
        }
        if self.sampling.on() {
            let cached = if self.engine.units[vcpu].counters.l2_hits > second {
                MemoryLevel::L2
            } else {
                MemoryLevel::L3
            };
            // Memory that host and guest share lies on no node, and is no memory of the program.
            if self.engine.params().layout.node_of(physical).is_some() {
                self.sample::<WRITE>(
                    vcpu,
                    a,
                    missed.map_or(ServedBy::Cache(cached), ServedBy::Node),
                );
            }
        }
    }

    /// A store past the caches.
    #[inline(never)]
    fn past(&mut self, vcpu: usize, a: ReportedAccess) {
        if self.profile.every() {
            self.note::<true>(vcpu, a.address);
        }
        self.engine.units[vcpu].counters.stores += 1;
        let known = self.translations[vcpu].get(a.address);
        let physical = known.unwrap_or_else(|| self.find_physical(vcpu, a));
        if physical != u64::MAX && self.engine.store_past(vcpu, physical) && !self.profile.every() {
            self.note::<true>(vcpu, a.address);
        }
        if self.sampling.on() {
            if let Some(node) = self.engine.params().layout.node_of(physical) {
                self.sample::<true>(vcpu, a, ServedBy::Node(node));
            }
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
/// `argv` must point to `argc` C strings and `error` to `space` writable bytes.
#[no_mangle]
pub unsafe extern "C" fn lab_new(
    argv: *const *const c_char,
    argc: usize,
    vcpus: u32,
    error: *mut c_char,
    space: usize,
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
                text.bytes().filter(|b| *b != 0).take(space.saturating_sub(1)).collect();
            if space > 0 {
                // SAFETY: `error` has `space` writable bytes, and `bytes` is at least one shorter.
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
pub unsafe extern "C" fn lab_load(
    lab: *mut PluginState,
    vcpu: u32,
    address: u64,
    info: u32,
    instruction: u64,
) {
    // SAFETY: as the caller promises.
    unsafe { &mut *lab }
        .access::<false>(vcpu as usize, ReportedAccess { address, instruction, info });
}

/// A store is reported.
///
/// # Safety
/// As [`lab_load`].
#[no_mangle]
pub unsafe extern "C" fn lab_store(
    lab: *mut PluginState,
    vcpu: u32,
    address: u64,
    info: u32,
    instruction: u64,
) {
    // SAFETY: as the caller promises.
    unsafe { &mut *lab }
        .access::<true>(vcpu as usize, ReportedAccess { address, instruction, info });
}

/// A store past the caches (`movnt*`) is reported.
///
/// # Safety
/// As [`lab_load`].
#[no_mangle]
pub unsafe extern "C" fn lab_store_past(
    lab: *mut PluginState,
    vcpu: u32,
    address: u64,
    info: u32,
    instruction: u64,
) {
    // SAFETY: as the caller promises.
    unsafe { &mut *lab }.past(vcpu as usize, ReportedAccess { address, instruction, info });
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
/// ends, 0x21 the sampling unit has new settings.
///
/// # Safety
/// As [`lab_clock0_ns`].
#[no_mangle]
pub unsafe extern "C" fn lab_mark(lab: *mut PluginState, mark: u32, now_ns: i64) {
    // SAFETY: as the caller promises.
    let lab = unsafe { &mut *lab };
    if mark == UNIT_MARK & 0xff {
        return lab.control_sampling();
    }
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
            lab_load(lab, 0, 256 << 20, 0, 0x40_1000);
            lab_store(lab, 0, 256 << 20, 0, 0x40_1000);
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
            lab_store_past(lab, 0, 300 << 20, 0, 0x40_1000);
            lab_store_past(lab, 0, (300 << 20) + 8, 0, 0x40_1000);
            let counters = (*lab).engine.counters(0);
            assert_eq!(
                (counters.stores, counters.llc_misses(), counters.writebacks),
                (3, vec![0, 1], vec![0, 1])
            );
            drop(Box::from_raw(lab));
        }
        let _ = std::fs::remove_file(path);
    }

    /// Loads of one vCPU from both nodes: which are sampled, what the records say, and what they
    /// cost. Accesses of the kernel's do not count.
    #[test]
    fn misses_of_user_mode_are_sampled_and_charged() {
        use terrace_sampling::{
            records, ring_offset, AccessLocality, EventAttributes, MemoryOperation, PerfRecord,
            UnitSettings, RING_SAMPLE_TYPE, UNIT_PAGE_BYTES, UNIT_REGION_BYTES,
        };
        const USER: u64 = 0x40_1000;
        const KERNEL: u64 = 0xffff_ffff_8100_0000;
        let mut lab = PluginState::new(&arguments_of_lab_cxl(), 2).unwrap();
        let mut region = vec![0_u64; UNIT_REGION_BYTES as usize / 8];
        let settings =
            UnitSettings { periods: [2, 0, 1], buffer_bytes: 8 << 10, ..UnitSettings::default() };
        region[..7].copy_from_slice(&settings.encode());
        // SAFETY: the vector's buffer outlives the unit, and is read below after the last call.
        let memory =
            unsafe { unit::UnitRegion::at_end(region.as_mut_ptr().cast(), UNIT_REGION_BYTES) };
        lab.sampling.control(memory.unwrap());
        let mut load = |address: u64, instruction| {
            lab.access::<false>(0, ReportedAccess { address, instruction, info: 0 });
        };
        load(0x10_0000, USER);
        load(0x10_0000, USER); // a hit
        load(0x20_0000, KERNEL);
        let slow = 256 << 20;
        load(slow, USER); // the second miss
        lab.access::<true>(0, ReportedAccess { address: 0x10_0000, instruction: USER, info: 0 });
        let time = lab.engine.units[0].core.time;
        let mut plain = PluginState::new(&arguments_of_lab_cxl(), 2).unwrap();
        for (address, instruction) in
            [(0x10_0000, USER), (0x10_0000, USER), (0x20_0000, KERNEL), (slow, USER)]
        {
            plain.access::<false>(0, ReportedAccess { address, instruction, info: 0 });
        }
        plain.access::<true>(0, ReportedAccess { address: 0x10_0000, instruction: USER, info: 0 });
        let costs = terrace_machine::KernelCosts::default();
        assert_eq!(time - plain.engine.units[0].core.time, 2 * costs.sample_record.0);
        lab.sampling.control(memory.unwrap());
        let bytes: Vec<u8> = region.iter().flat_map(|word| word.to_le_bytes()).collect();
        let records_at = ring_offset(0) + UNIT_PAGE_BYTES;
        let event = EventAttributes { sample_type: RING_SAMPLE_TYPE, ..EventAttributes::default() };
        let found: Vec<_> = records(&bytes[records_at..records_at + 144], &event)
            .map(|record| match record.unwrap() {
                PerfRecord::Sample(s) => {
                    (s.address, s.source.operation(), s.source.level(), s.source.locality(), s.cpu)
                }
                other => panic!("{other:?}"),
            })
            .collect();
        let remote = Some(AccessLocality::Remote);
        assert_eq!(
            found,
            [
                (slow, MemoryOperation::Load, MemoryLevel::CxlMemory, remote, Some(0)),
                (
                    0x10_0000,
                    MemoryOperation::Store,
                    MemoryLevel::L1,
                    Some(AccessLocality::Local),
                    Some(0)
                ),
            ]
        );
    }

    fn arguments_of_lab_cxl() -> Vec<String> {
        let path = std::env::temp_dir().join(format!("terrace-plain-{}.toml", std::process::id()));
        std::fs::write(&path, terrace_machine::preset_text("lab-cxl").unwrap()).unwrap();
        vec![format!("machine={}", path.display())]
    }
}
