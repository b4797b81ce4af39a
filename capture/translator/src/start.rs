//! From the kernel's entry to the program's first instruction.

use crate::cache::CACHE;
use crate::context::{Context, RSP};
use crate::elf::{self, Loaded};
use crate::glue;
use crate::ring::message;
use crate::shown;
use crate::sys;
use crate::{area, give_up};
use alloc::vec::Vec;
use core::ffi::CStr;

const AT_PHDR: u64 = 3;
const AT_PHENT: u64 = 4;
const AT_PHNUM: u64 = 5;
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;
const AT_EXECFN: u64 = 31;
const PR_SET_NAME: u64 = 15;

/// Up to a word of zero.
unsafe fn list(mut at: *const u64) -> Vec<u64> {
    let mut all = Vec::new();
    // SAFETY: the caller's list ends with a zero.
    unsafe {
        while *at != 0 {
            all.push(*at);
            at = at.add(1);
        }
    }
    all
}

/// The bytes of a string, its zero included.
unsafe fn text<'a>(at: u64) -> &'a [u8] {
    // SAFETY: strings of the kernel's stack end with a zero and stay.
    unsafe { CStr::from_ptr(at as *const core::ffi::c_char).to_bytes_with_nul() }
}

/// Runs the program that the arguments name.
///
/// # Safety
/// `stack` is the kernel's at entry: count, arguments, environment, auxiliary values.
pub unsafe fn run(stack: *const u64) -> ! {
    // SAFETY: the kernel's layout.
    let (count, arguments, environment, auxiliary) = unsafe {
        let count = *stack as usize;
        let arguments = list(stack.add(1));
        let environment = list(stack.add(count + 2));
        (count, arguments, environment, stack.add(count + 3 + (list(stack.add(count + 2))).len()))
    };
    if count < 4 {
        give_up("usage: terrace-translate AREA NAME PROGRAM ARGUMENTS...");
    }
    // SAFETY: arguments are strings.
    let (area_path, path) = unsafe { (text(arguments[1]), text(arguments[3])) };
    // Where it lies, the program's name will.
    let behind_path = arguments[3] + path.len() as u64;
    let path: &[u8] = path.to_vec().leak();
    open_area(area_path);
    if sys::read_word(stack as u64).is_none() {
        give_up("the system forbids process_vm_readv, by which code is read");
    }
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
    // SAFETY: the kernel reads up to 16 bytes of a string that ends with a zero.
    unsafe { sys::call3(sys::PRCTL, PR_SET_NAME, name.as_ptr() as u64, 0) };
    crate::program::remember_program(path);
    let loaded = elf::load(path).unwrap_or_else(|why| refuse(path, why));
    let linker =
        loaded.interpreter.as_ref().map(|p| elf::load(p).unwrap_or_else(|why| refuse(p, why)));
    CACHE.open(borders(path, &loaded)).unwrap_or_else(|why| give_up(why));
    for (start, bytes, protection) in linker.iter().flat_map(|l| &l.parts).chain(&loaded.parts) {
        CACHE.forget(*start, *bytes, *protection);
    }
    let Some(context) = Context::new() else { give_up("there is no memory for a thread") };
    let mut given = Vec::new();
    let mut at = auxiliary;
    // SAFETY: pairs up to one of zero.
    unsafe {
        while *at != 0 {
            given.push((*at, *at.add(1)));
            at = at.add(2);
        }
    }
    for (key, value) in &mut given {
        *value = match *key {
            AT_PHDR => loaded.headers.0,
            AT_PHENT => loaded.headers.1,
            AT_PHNUM => loaded.headers.2,
            AT_BASE => linker.as_ref().map_or(0, |l| l.bias),
            AT_ENTRY => loaded.entry,
            AT_EXECFN => path.as_ptr() as u64,
            _ => *value,
        };
    }
    // SAFETY: the translator's own arguments are used no more; the name is copied before.
    let own_name = unsafe {
        let name = text(arguments[2]).to_vec();
        shown::move_name(arguments[0], behind_path, &name).unwrap_or(arguments[2])
    };
    let mut words: Vec<u64> = Vec::new();
    words.push(count as u64 - 3);
    words.push(own_name);
    words.extend(&arguments[4..]);
    words.push(0);
    words.extend(&environment);
    words.push(0);
    given.iter().for_each(|(k, v)| words.extend([*k, *v]));
    words.extend([0, 0]);
    let ends = [arguments.last(), environment.last()].map(|last| {
        // SAFETY: strings, the program's name among them.
        last.map_or(0, |at| at + unsafe { text(*at) }.len() as u64)
    });
    let behind_arguments = if count > 4 { ends[0] } else { behind_path };
    let environment_at = environment.first().copied().unwrap_or(behind_arguments);
    let auxiliary_values: Vec<u64> =
        given.iter().flat_map(|(k, v)| [*k, *v]).chain([0, 0]).collect();
    // Below the kernel's own list and this function's frame: nobody comes back to them, but they
    // are in use until then.
    let bottom = (stack as u64 - (256 << 10) - words.len() as u64 * 8) & !15;
    // SAFETY: the stack grows when it is touched; nothing lies there.
    unsafe { core::ptr::copy_nonoverlapping(words.as_ptr(), bottom as *mut u64, words.len()) };
    shown::show(
        [own_name, behind_arguments],
        [environment_at, ends[1].max(environment_at)],
        &auxiliary_values,
        bottom,
    );
    context.registers[RSP] = bottom;
    context.rip = linker.as_ref().map_or(loaded.entry, |l| l.entry);
    // SAFETY: the only thread's.
    unsafe { context.adopt() };
    context.claim(area(), 0);
    report_mappings(context, &loaded, path);
    if let (Some(linker), Some(path)) = (&linker, &loaded.interpreter) {
        report_mappings(context, linker, path);
    }
    report_kernel_mappings(context);
    crate::signal::begin();
    context.jump = crate::runtime::entry(context);
    // SAFETY: the context is whole.
    unsafe { glue::terrace_resume() }
}

fn refuse(path: &[u8], why: &str) -> ! {
    let path = core::str::from_utf8(&path[..path.len() - 1]).unwrap_or("a program");
    sys::say(&["terrace-translate: ", path, ": ", why]);
    sys::exit_group(126)
}

fn open_area(path: &[u8]) {
    if path == b"-\0" {
        return;
    }
    match crate::exec::open_area(path) {
        // SAFETY: nobody else runs yet.
        Ok(area) => unsafe { *core::ptr::addr_of_mut!(crate::AREA) = Some(area) },
        Err(why) => refuse(path, why),
    }
}

/// Where the functions begin at which recording begins and ends.
fn borders(path: &[u8], loaded: &Loaded) -> [u64; 2] {
    let Some(area) = area() else { return [0; 2] };
    [&area.control().begin_at, &area.control().end_at].map(|name| {
        let name = name.split(|b| *b == 0).next().unwrap_or_default();
        let found = if name.is_empty() { None } else { elf::symbol(path, name) };
        found.map_or(0, |at| at + loaded.bias)
    })
}

fn report_mappings(context: &mut Context, loaded: &Loaded, path: &[u8]) {
    for (start, bytes, protection) in &loaded.parts {
        let numbers = [*start, *bytes, *protection, 2];
        context.text_message(message::MAP, &numbers, &path[..path.len() - 1]);
    }
}

/// What the kernel itself maps for a program.
fn report_kernel_mappings(context: &mut Context) {
    let mut all: Vec<u8> = Vec::new();
    let mut part = [0u8; 4096];
    // SAFETY: the path ends with a zero; the kernel writes into `part`.
    unsafe {
        let file = sys::call3(sys::OPEN, c"/proc/self/maps".as_ptr() as u64, 0o2000000, 0);
        if file < 0 {
            return;
        }
        loop {
            let n = sys::call3(sys::READ, file as u64, part.as_mut_ptr() as u64, part.len() as u64);
            if n <= 0 {
                break;
            }
            all.extend_from_slice(&part[..n as usize]);
        }
        sys::call3(sys::CLOSE, file as u64, 0, 0);
    }
    for line in all.split(|b| *b == b'\n') {
        let Some(at) = line.iter().position(|b| *b == b'[') else { continue };
        let name = &line[at..];
        if !matches!(name, b"[stack]" | b"[vdso]" | b"[vvar]" | b"[heap]") {
            continue;
        }
        let hex = |text: &[u8]| {
            text.iter()
                .map_while(|b| (*b as char).to_digit(16))
                .fold(0u64, |all, d| all << 4 | u64::from(d))
        };
        let dash = line.iter().position(|b| *b == b'-').unwrap_or(0);
        let (start, end) = (hex(line), hex(&line[dash + 1..]));
        let space = line.iter().position(|b| *b == b' ').unwrap_or(0);
        let bit = |i: usize, c: u8| u64::from(line.get(space + 1 + i) == Some(&c)) << i;
        let protection = bit(0, b'r') | bit(1, b'w') | bit(2, b'x');
        context.text_message(message::MAP, &[start, end - start, protection, 2], name);
    }
}
