//! A lock between threads of one process.

use crate::sys;
use core::sync::atomic::{AtomicBool, Ordering};

/// Whoever holds it works a few microseconds, so others spin, and yield in between.
pub struct Lock(AtomicBool);

/// The lock is free again when this is dropped.
pub struct Held<'a>(&'a Lock);

impl Lock {
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    pub fn hold(&self) -> Held<'_> {
        while self.0.swap(true, Ordering::Acquire) {
            // SAFETY: gives the core to others.
            unsafe { sys::call3(sys::SCHED_YIELD, 0, 0, 0) };
        }
        Held(self)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0 .0.store(false, Ordering::Release);
    }
}
