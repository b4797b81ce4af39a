//! Where this library's own Rust code allocates: glibc's heap, under the names that no preload
//! library replaces.

use libc::{c_void, size_t};
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::Ordering::Relaxed;
use terrace_preload::far::OWN_BYTES;

extern "C" {
    fn __libc_malloc(size: size_t) -> *mut c_void;
    fn __libc_calloc(count: size_t, size: size_t) -> *mut c_void;
    fn __libc_memalign(align: size_t, size: size_t) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, size: size_t) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
}

/// What glibc aligns to by itself.
const ALIGNED: usize = 16;

struct Ordinary;

#[global_allocator]
static ORDINARY: Ordinary = Ordinary;

// SAFETY: glibc's functions keep the contract of the trait: blocks of the size and alignment asked
// for, null on failure, freed by the family that made them.
unsafe impl GlobalAlloc for Ordinary {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        OWN_BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: any size is allowed; the alignment is a power of two.
        unsafe {
            if layout.align() <= ALIGNED {
                return __libc_malloc(layout.size()).cast();
            }
            __libc_memalign(layout.align(), layout.size()).cast()
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGNED {
            OWN_BYTES.fetch_add(layout.size(), Relaxed);
            // SAFETY: as above. Large blocks are fresh mappings, whose zeros cost nothing before
            // they are touched.
            return unsafe { __libc_calloc(1, layout.size()).cast() };
        }
        // SAFETY: as above; the block has the bytes that are written.
        unsafe {
            let block = self.alloc(layout);
            if !block.is_null() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() <= ALIGNED {
            OWN_BYTES.fetch_add(size, Relaxed);
            OWN_BYTES.fetch_sub(layout.size(), Relaxed);
            // SAFETY: a block of glibc's, by the contract.
            return unsafe { __libc_realloc(block.cast(), size).cast() };
        }
        // SAFETY: by the contract; both blocks have the bytes that are copied, and lie apart.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                new.copy_from_nonoverlapping(block, size.min(layout.size()));
                self.dealloc(block, layout);
            }
            new
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        OWN_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: a block of glibc's, by the contract.
        unsafe { __libc_free(block.cast()) };
    }
}
