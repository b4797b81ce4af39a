//! `terrace-translate AREA NAME PROGRAM ARGUMENTS...`: runs a program from a code cache and tells a
//! recorder's shared memory (`capture/ring.h`) every load and store. `AREA` is its path, or `-` for
//! none; `NAME` is what the program finds as its own. See the README beside it.
#![no_std]
#![no_main]

extern crate alloc;

mod access;
mod asm;
mod cache;
mod calls;
mod context;
mod elf;
mod exec;
mod glue;
mod leave;
mod lock;
mod make;
mod memory;
mod plan;
mod program;
mod ring;
mod runtime;
mod shown;
mod signal;
mod slow;
mod start;
mod sys;
mod waiting;
mod words;

use core::panic::PanicInfo;
use ring::Area;
// With `terrace_start` below, what the assembly in `glue` calls.
use runtime::{terrace_child, terrace_runtime};

static mut AREA: Option<Area> = None;

/// The recorder's memory, if there is one.
fn area() -> Option<&'static Area> {
    // SAFETY: written once, before there is a second thread.
    unsafe { (*core::ptr::addr_of!(AREA)).as_ref() }
}

/// Whether every store's word is followed by the value stored.
fn keeps_values() -> bool {
    area().is_some_and(|area| area.control().options & ring::KEEP_VALUES != 0)
}

/// Nothing can be done any more.
fn give_up(why: &str) -> ! {
    sys::say(&["terrace-translate: ", why]);
    sys::exit_group(125)
}

#[panic_handler]
fn panicked(info: &PanicInfo<'_>) -> ! {
    use alloc::string::ToString;
    let place = info.location().map(|l| l.to_string()).unwrap_or_default();
    sys::say(&[
        "terrace-translate: this is a bug in the translator, at ",
        &place,
        ": ",
        &info.message().to_string(),
    ]);
    sys::exit_group(125)
}

/// The precompiled library's tables name it; nothing unwinds here.
#[no_mangle]
extern "C" fn rust_eh_personality() {}
/// See `rust_eh_personality`.
#[no_mangle]
extern "C" fn _Unwind_Resume() -> ! {
    give_up("it tried to unwind")
}

/// The kernel's entry: `stack` points to the count of arguments.
unsafe extern "C" fn terrace_start(stack: *const u64) -> ! {
    // SAFETY: as the kernel left it.
    unsafe { start::run(stack) }
}
