//! What the persistent structures in Rust share, as pm.h does for those in C.
#![allow(dead_code)]

use crate::terrace_crash::cache_line_write_back;
use std::sync::atomic::{AtomicU64, Ordering};

const LINE: usize = 64;

/// Whether this defect is compiled in: `BUG` in rustc's environment.
pub const fn is_bug(number: u8) -> bool {
    match option_env!("BUG") {
        Some(text) => text.len() == 1 && text.as_bytes()[0] == b'0' + number,
        None => false,
    }
}

/// A word of persistent memory, whose stores the compiler neither moves nor joins.
#[repr(transparent)]
pub struct Cell(AtomicU64);

impl Cell {
    pub const fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
}

pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Flushes the lines of a value; it is persistent after the next fence.
pub fn flush<T>(value: &T) {
    let start = std::ptr::from_ref(value) as usize;
    for line in (start & !(LINE - 1)..start + std::mem::size_of::<T>()).step_by(LINE) {
        cache_line_write_back(line as *const u8);
    }
}

pub fn persist<T>(value: &T) {
    flush(value);
    fence();
}

/// Whether this run is a restart.
pub fn restarted() -> bool {
    std::env::var_os("TERRACE_CRASH_IMAGE").is_some()
}

pub fn checksum(a: u64, b: u64) -> u64 {
    let sum = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_add(0x7f4a_7c15);
    sum ^ sum >> 29
}
