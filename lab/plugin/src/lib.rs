//! C interface of `terrace-model` for the QEMU timing plugin (`plugin.c`).
//!
//! The C side owns everything that touches QEMU: callbacks, the virtual clock, slices. This side
//! owns the machine, the counters and the files written. All calls come from QEMU's one vCPU
//! thread (icount runs vCPUs one after the other), setup and finish included.

mod arguments;
mod record;

use arguments::Arguments;
use record::Recorder;
use std::ffi::{c_char, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};
use terrace_model::{Access, System};

/// Everything behind the plugin's one pointer.
pub struct Plugin {
    system: System,
    recorder: Recorder,
    arguments: Arguments,
}

/// What the C side needs to keep time.
#[repr(C)]
pub struct Timing {
    /// Picoseconds an instruction.
    pub ps_per_instruction: u64,
    /// Guest time between two flushes of a vCPU's translations, in picoseconds; 0: never.
    pub tlb_flush_ps: u64,
    /// Guest time of the first instruction, in nanoseconds.
    pub clock0_ns: u64,
    /// Length of a quantum, in picoseconds.
    pub quantum_ps: u64,
    /// Nothing is modelled; only instructions take time.
    pub count_only: i32,
}

/// Reads the arguments and the machine file. On failure returns null and leaves one line in `why`.
///
/// # Safety
/// `argv` must point to `argc` C strings, `timing` to a writable [`Timing`], and `why` to `why_len`
/// writable bytes.
#[no_mangle]
pub unsafe extern "C" fn tp_setup(
    argv: *const *const c_char,
    argc: usize,
    cpus: usize,
    timing: *mut Timing,
    why: *mut c_char,
    why_len: usize,
) -> *mut Plugin {
    let texts: Vec<String> = (0..argc)
        // SAFETY: the caller passes `argc` valid C strings.
        .map(|i| unsafe { CStr::from_ptr(*argv.add(i)) }.to_string_lossy().into_owned())
        .collect();
    let made = catch_unwind(|| build(&texts, cpus))
        .unwrap_or_else(|_| Err("internal error while reading the arguments".into()));
    match made {
        Ok(plugin) => {
            // SAFETY: `timing` is writable, as the caller promises.
            unsafe { timing.write(plugin.arguments.timing()) };
            Box::into_raw(Box::new(plugin))
        }
        Err(text) => {
            let bytes: Vec<u8> = text.bytes().filter(|b| *b != 0).collect();
            let len = bytes.len().min(why_len.saturating_sub(1));
            if why_len > 0 {
                // SAFETY: `len + 1 <= why_len` bytes at `why` are writable, as the caller promises.
                unsafe {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), why, len);
                    why.add(len).write(0);
                }
            }
            std::ptr::null_mut()
        }
    }
}

fn build(texts: &[String], cpus: usize) -> Result<Plugin, String> {
    let arguments = Arguments::parse(texts)?;
    let system = System::new(&arguments.machine, cpus, arguments.options).map_err(|e| e.to_string())?;
    let recorder = Recorder::new(cpus, arguments.stats.clone(), arguments.profile.clone());
    Ok(Plugin { system, recorder, arguments })
}

/// Whether the access hits the first level (nothing more to do).
///
/// # Safety
/// `plugin` must come from [`tp_setup`] and not be in use by another call.
#[no_mangle]
pub unsafe extern "C" fn tp_hit(plugin: *mut Plugin, cpu: usize, physical: u64, store: i32) -> i32 {
    // SAFETY: as promised by the caller; vCPU callbacks are never concurrent.
    let plugin = unsafe { &mut *plugin };
    i32::from(plugin.system.hits_first_level(cpu, physical, store != 0))
}

/// Times an access that missed the first level; returns the vCPU's time after it, in picoseconds.
///
/// # Safety
/// As [`tp_hit`].
#[no_mangle]
pub unsafe extern "C" fn tp_miss(
    plugin: *mut Plugin,
    cpu: usize,
    virtual_address: u64,
    physical_address: u64,
    store: i32,
    value: u64,
    time: u64,
    instruction: u64,
) -> u64 {
    // SAFETY: as promised by the caller; vCPU callbacks are never concurrent.
    let plugin = unsafe { &mut *plugin };
    let access = Access {
        cpu,
        virtual_address,
        physical_address,
        store: store != 0,
        value: (store == 0).then_some(value),
        time,
        instruction,
    };
    let (time, node) = plugin.system.miss(&access);
    if node.is_some() {
        plugin.recorder.touch(virtual_address, store != 0);
    }
    time
}

/// Counts of one vCPU that the C side keeps.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Executed {
    /// Instructions.
    pub instructions: u64,
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
}

/// A mark was executed: 1 phase begins, 2 phase ends, 17 job begins, 18 job ends.
///
/// # Safety
/// As [`tp_hit`]; `executed` must point to one [`Executed`] a vCPU.
#[no_mangle]
pub unsafe extern "C" fn tp_mark(plugin: *mut Plugin, mark: u32, now_ns: u64, executed: *const Executed) {
    // SAFETY: as promised by the caller.
    let (plugin, executed) = unsafe {
        let plugin = &mut *plugin;
        let count = plugin.recorder.cpus();
        (plugin, std::slice::from_raw_parts(executed, count))
    };
    let done = catch_unwind(AssertUnwindSafe(|| {
        plugin.recorder.mark(mark, now_ns, &plugin.system, executed);
    }));
    if done.is_err() {
        eprintln!("terrace plugin: a mark could not be recorded");
    }
}

/// The end: writes the files for good.
///
/// # Safety
/// As [`tp_hit`].
#[no_mangle]
pub unsafe extern "C" fn tp_finish(plugin: *mut Plugin, now_ns: u64) {
    // SAFETY: as promised by the caller.
    let plugin = unsafe { &mut *plugin };
    let done = catch_unwind(AssertUnwindSafe(|| plugin.recorder.finish(now_ns)));
    if done.is_err() {
        eprintln!("terrace plugin: statistics could not be written");
    }
}
