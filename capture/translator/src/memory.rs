//! Memory for the translator's own tables: sizes rounded up to powers of two, freed ones kept in
//! lists.

use crate::lock::Lock;
use crate::sys;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::null_mut;

const STEP: u64 = 4 << 20;

struct State {
    /// By log2 of the size: the first free block, each pointing to the next.
    free: [u64; 48],
    at: u64,
    end: u64,
}

/// The allocator.
pub struct Memory {
    lock: Lock,
    state: UnsafeCell<State>,
}

// SAFETY: `state` is touched under `lock` only.
unsafe impl Sync for Memory {}

impl Memory {
    pub const fn new() -> Self {
        Self { lock: Lock::new(), state: UnsafeCell::new(State { free: [0; 48], at: 0, end: 0 }) }
    }

    /// Nobody takes or gives memory meanwhile; for a fork, whose child would find the lock taken
    /// for ever.
    pub fn quiet<T>(&self, work: impl FnOnce() -> T) -> T {
        let _held = self.lock.hold();
        work()
    }

    fn class(layout: Layout) -> usize {
        layout.size().max(layout.align()).max(16).next_power_of_two().trailing_zeros() as usize
    }
}

// SAFETY: blocks are of the size and alignment asked for (powers of two, cut from memory aligned
// alike) and disjoint.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let class = Self::class(layout);
        let bytes = 1u64 << class;
        let _held = self.lock.hold();
        // SAFETY: the lock is held.
        let state = unsafe { &mut *self.state.get() };
        let first = state.free[class];
        if first != 0 {
            // SAFETY: a free block's first word is the next one's address.
            state.free[class] = unsafe { *(first as *const u64) };
            return first as *mut u8;
        }
        if bytes >= STEP / 4 {
            return sys::map(0, bytes, 3, 0).map_or(null_mut(), |at| at as *mut u8);
        }
        let mut at = state.at.next_multiple_of(bytes.min(4096));
        if at + bytes > state.end {
            let Some(new) = sys::map(0, STEP, 3, 0) else { return null_mut() };
            (at, state.end) = (new.next_multiple_of(bytes.min(4096)), new + STEP);
        }
        state.at = at + bytes;
        at as *mut u8
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let class = Self::class(layout);
        let _held = self.lock.hold();
        // SAFETY: the lock is held, and the block is nobody's now.
        unsafe {
            let state = &mut *self.state.get();
            *(block as *mut u64) = state.free[class];
            state.free[class] = block as u64;
        }
    }
}

#[global_allocator]
pub static MEMORY: Memory = Memory::new();
