//! Blocks freed lately: a short stack of them for each class.

use super::{computed_class, Cache};
use crate::arena::meta;
use crate::arena::sizes::{block_size, TABLED};
use crate::arena::slab::Slab;
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

/// Blocks on a bin's stack at most.
pub(super) const STACK: usize = 31;
/// Bytes on a bin's stack at most.
pub(super) const STACK_BYTES: usize = 16 << 10;
/// Bytes of a stack itself, and what it is aligned to.
pub(super) const STACK_SIZE: usize = (STACK + 1) * size_of::<*mut u8>();

/// Blocks of one class that were freed lately, and its slabs.
///
/// A stack begins with a null and ends where its addresses leave a multiple of its size: both ends
/// are seen without another word being read (ADR 0228). Where there is none, [`NO_STACK`] stands
/// for it, which is empty and full.
#[repr(C, align(64))]
pub(super) struct Bin {
    // The first 16 bytes of a line are left to what is used seldom: see `space::TABLE_AT`.
    pub(super) current: *const Slab,
    pub(super) listed: *mut Slab,
    /// The block freed last, or the null before the first. Written by its owner alone, and like
    /// `stack` read by whoever counts.
    pub(super) top: AtomicPtr<*mut u8>,
    /// Where the null is; null: there is no stack.
    pub(super) stack: AtomicPtr<*mut u8>,
}

/// Empty, since its last word is null; full, since that is the last.
#[repr(C, align(256))]
pub(super) struct NoStack([AtomicPtr<u8>; STACK + 1]);

// As stacks themselves are, whose records are aligned to their size.
const _: () = assert!(align_of::<NoStack>() == STACK_SIZE && meta::MAX_ALIGN >= STACK_SIZE);

pub(super) static NO_STACK: NoStack = NoStack([const { AtomicPtr::new(null_mut()) }; STACK + 1]);

impl NoStack {
    /// Its last word. Never written: there is no free space above it, and no block below.
    pub(super) const fn top() -> *mut *mut u8 {
        (&raw const NO_STACK.0[STACK]).cast::<*mut u8>().cast_mut()
    }
}

/// Whether there is no free space above this word of a stack.
#[inline(always)]
pub(super) fn is_last(top: *mut *mut u8) -> bool {
    top as usize & (STACK_SIZE - 1) == STACK_SIZE - size_of::<*mut u8>()
}

/// Where a class's bin is in a cache, in bytes.
pub(super) const fn bin_at(class: usize) -> u32 {
    (offset_of!(Cache, bins) + class * size_of::<Bin>()) as u32
}

/// Where the bin for a size is in a cache, in bytes, by sixteenths: the common sizes find it with
/// one load.
pub(super) const BIN_BY_SIXTEEN: [u16; TABLED / 16 + 1] = {
    let mut table = [0; TABLED / 16 + 1];
    let mut at = 0;
    while at < table.len() {
        table[at] = (offset_of!(Cache, bins) + computed_class(at * 16) * size_of::<Bin>()) as u16;
        at += 1;
    }
    table
};

/// Blocks on a class's stack at most.
pub(super) const fn stack_capacity(class: usize) -> usize {
    let fits = STACK_BYTES / block_size(class);
    if fits < STACK {
        fits
    } else {
        STACK
    }
}

/// What stands in a freed block's second word until it is handed out again: no program has it there
/// by chance, and a copy of it elsewhere means nothing.
#[inline(always)]
pub(super) fn mark(at: usize) -> usize {
    at.wrapping_add(0x9d5c_1f3a_b7e6_4820)
}

/// # Safety
/// `at` is a block.
#[inline(always)]
pub(super) unsafe fn is_marked(at: *mut u8) -> bool {
    // SAFETY: blocks have 16 bytes at least and are aligned to 16.
    unsafe { at.cast::<usize>().add(1).read() == mark(at as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_that_is_none_is_empty_and_full() {
        let top = NoStack::top();
        // SAFETY: a word of a static that nobody writes.
        assert!(is_last(top) && unsafe { (*top).is_null() });
    }
}
