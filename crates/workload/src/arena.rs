//! Zero pages straight from the kernel, untouched until an algorithm writes them: first touch is
//! what places a page, so nothing here may write ahead. One of the two modules with unsafe code.
#![allow(unsafe_code)]

use crate::memory::WORD;
use std::ffi::{c_int, c_ulong, c_void};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Which pages the data should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DataPageSize {
    /// Base pages of 4 KiB, whatever the system's default.
    #[default]
    Base,
    /// Transparent huge pages, where the kernel gives them.
    Huge,
}

/// Why there is no memory to work on.
#[derive(Debug, thiserror::Error)]
pub enum AlignedMappingError {
    /// The kernel refused the mapping.
    #[error("mmap of {bytes} bytes failed: {source}; give a smaller size= or fast=")]
    Map {
        /// Bytes asked for.
        bytes: usize,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

/// An anonymous private mapping, aligned to 2 MiB so that both page sizes see the same layout.
#[derive(Debug)]
pub struct AlignedMapping {
    mapping: NonNull<c_void>,
    mapped: usize,
    first: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping is owned by this value alone and reached only as `&[AtomicU64]`, which is
// itself free to send and share.
unsafe impl Send for AlignedMapping {}
// SAFETY: as above; all access through `&self` is atomic.
unsafe impl Sync for AlignedMapping {}

const HUGE: usize = 2 << 20;
const PROT_READ_WRITE: c_int = 1 | 2;
const MAP_PRIVATE_ANONYMOUS: c_int = 2 | 0x20;
const MADV_HUGEPAGE: c_int = 14;
const MADV_NOHUGEPAGE: c_int = 15;
const PR_SET_THP_DISABLE: c_int = 41;

extern "C" {
    fn mmap(
        addr: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        off: i64,
    ) -> *mut c_void;
    fn munmap(addr: *mut c_void, len: usize) -> c_int;
    fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int;
    fn prctl(option: c_int, arg2: c_ulong, arg3: c_ulong, arg4: c_ulong, arg5: c_ulong) -> c_int;
}

/// From now on all of this process lies in base pages, its own heap too, whatever the system says
/// of huge pages; where the kernel can be told that.
pub fn base_pages_only() {
    // SAFETY: this option sets a flag of this process's memory and takes no pointer.
    let _stays_as_the_system_says = unsafe { prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) };
}

impl AlignedMapping {
    /// Maps `words` words, none of them touched.
    ///
    /// # Errors
    /// [`AlignedMappingError::Map`] when the kernel refuses.
    pub fn new(words: usize, pages: DataPageSize) -> Result<Self, AlignedMappingError> {
        let bytes = words.saturating_mul(WORD);
        let mapped = bytes.max(1).saturating_add(HUGE);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no
        // memory of ours; the result is checked before use.
        let raw = unsafe {
            mmap(std::ptr::null_mut(), mapped, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, -1, 0)
        };
        let failed = raw as usize == usize::MAX;
        let Some(mapping) = NonNull::new(raw).filter(|_| !failed) else {
            return Err(AlignedMappingError::Map {
                bytes,
                source: std::io::Error::last_os_error(),
            });
        };
        let advice = match pages {
            DataPageSize::Base => MADV_NOHUGEPAGE,
            DataPageSize::Huge => MADV_HUGEPAGE,
        };
        // SAFETY: advice on pages that were mapped above; a refusal changes nothing.
        let _refused_where_unsupported = unsafe { madvise(raw, mapped, advice) };
        let skip = (raw as usize).next_multiple_of(HUGE) - raw as usize;
        // SAFETY: skip < HUGE and mapped >= bytes + HUGE, so the aligned start and `bytes` bytes
        // after it lie inside the mapping.
        let first = unsafe { mapping.byte_add(skip) }.cast::<AtomicU64>();
        Ok(Self { mapping, mapped, first, words })
    }

    /// The words.
    #[inline(always)]
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `first` is aligned to 2 MiB and `words` words after it lie inside the mapping,
        // which lives as long as `self`; zero bytes are a valid AtomicU64.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.words) }
    }
}

impl Drop for AlignedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, unmapped once; no borrow of it can outlive `self`.
        unsafe { munmap(self.mapping.as_ptr(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::WordMemory;

    #[test]
    fn an_arena_is_zero_aligned_and_writable_to_its_last_word() {
        let arena = AlignedMapping::new(1_000_003, DataPageSize::Base).expect("8 MB can be mapped");
        assert_eq!(arena.words().as_ptr() as usize % HUGE, 0);
        let words = arena.words();
        assert_eq!(words.load(1_000_002), 0);
        words.store(1_000_002, 5);
        words.add_own(1_000_002, 2);
        assert_eq!(words.load(1_000_002), 7);
    }

    #[test]
    fn an_impossible_size_is_an_error_that_says_what_to_do() {
        let error =
            AlignedMapping::new(usize::MAX / 16, DataPageSize::Base).expect_err("2^60 bytes");
        assert!(error.to_string().contains("smaller size="), "{error}");
    }
}
