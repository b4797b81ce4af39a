//! Marks that a thread is inside the allocator, or changes its cache, taken back when dropped.

use super::{Cache, Thread};
use std::sync::atomic::{compiler_fence, Ordering::*};

/// The calling thread is inside the allocator.
pub(super) struct InsideAllocator<'a>(&'a Thread);

impl<'a> InsideAllocator<'a> {
    pub(super) fn new(thread: &'a Thread) -> Self {
        thread.busy.set(true);
        // A signal handler on this thread must see the mark before anything is changed.
        compiler_fence(SeqCst);
        Self(thread)
    }
}

impl Drop for InsideAllocator<'_> {
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        self.0.busy.set(false);
    }
}

/// The calling thread is changing this cache of its own.
pub(super) struct ChangingCache(*const Cache);

impl ChangingCache {
    /// # Safety
    /// The cache is alive as long as this is.
    #[inline(always)]
    pub(super) unsafe fn new(cache: *const Cache) -> Self {
        // SAFETY: by the contract.
        unsafe { (*cache).busy.store(true, Relaxed) };
        compiler_fence(SeqCst);
        Self(cache)
    }
}

impl Drop for ChangingCache {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        // SAFETY: by the contract of `new`.
        unsafe { (*self.0).busy.store(false, Relaxed) };
    }
}
