//! Anonymous mappings for far memory: memory for a whole program ([`ReservedMemory`]), and frames
//! of a chunk each that carry data between an area and a store ([`ChunkFrame`]).

use crate::SysError;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// An anonymous mapping, unmapped when dropped, or one that stays for ever.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) base: NonNull<u8>,
    pub(super) len: usize,
    pub(super) stays: bool,
}

// SAFETY: a Mapping is an address range that it alone unmaps; it has no thread affinity.
unsafe impl Send for Mapping {}
// SAFETY: shared access hands out the address only.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(len: usize) -> Result<Self, SysError> {
        let page = crate::page_size().get() as usize;
        let len = len.max(1).next_multiple_of(page);
        // SAFETY: a new private anonymous mapping at an address of the kernel's choice touches
        // nothing of ours.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let base = (at != libc::MAP_FAILED).then(|| NonNull::new(at.cast::<u8>())).flatten();
        let Some(base) = base else {
            return Err(SysError::last(
                "mmap",
                format!("{len} bytes"),
                "ask for less, or raise the limits on memory",
            ));
        };
        let mapping = Self { base, len, stays: false };
        // Pages are managed one by one, so huge ones are of no use; and a forked child, whose
        // missing pages nobody would fill, must fault rather than read zeros.
        for advice in [libc::MADV_NOHUGEPAGE, libc::MADV_DONTFORK] {
            // SAFETY: the range is our own fresh mapping; neither advice changes its content.
            let status =
                unsafe { libc::madvise(mapping.base.as_ptr().cast(), mapping.len, advice) };
            if status != 0 && advice == libc::MADV_DONTFORK {
                return Err(SysError::last("madvise", "far memory", "report this"));
            }
        }
        Ok(mapping)
    }

    pub(super) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.stays {
            // SAFETY: the range is the mapping made in `new`; whoever borrowed from it borrowed
            // from us.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

/// Memory for a whole program, mapped once and never unmapped: ordinary memory until
/// [`FarArea::over`] takes it. A forked child does not have it unless its owner says so
/// (`MADV_DOFORK`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReservedMemory {
    pub(super) start: usize,
    pub(super) len: usize,
}

impl ReservedMemory {
    /// Maps `len` bytes, rounded up to whole pages; none is accounted before it is touched.
    ///
    /// # Errors
    /// No addresses.
    pub fn map(len: usize) -> Result<Self, SysError> {
        let mut mapping = Mapping::new(len)?;
        mapping.stays = true;
        Ok(Self { start: mapping.address() as usize, len: mapping.len })
    }

    /// First address.
    #[must_use]
    pub const fn start(self) -> usize {
        self.start
    }

    /// Bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether it is empty: never.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Runs of pages of `part` (offsets) that have memory, be it in swap.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn present(self, part: Range<usize>) -> Result<Vec<Range<usize>>, SysError> {
        let page = crate::page_size().get() as usize;
        let first = ((self.start + part.start) / page) as u64;
        let end = (self.start + part.end.min(self.len)).div_ceil(page) as u64;
        let map = crate::PageMap::open(
            &crate::Root::live(),
            terrace_types::Pid(std::process::id() as i32),
        )?;
        let mut entries = Vec::new();
        let range =
            terrace_types::VpnRange::new(terrace_types::Vpn(first), terrace_types::Vpn(end));
        map.read(range, &mut entries)?;
        let mut runs: Vec<Range<usize>> = Vec::new();
        for (n, _) in entries.iter().enumerate().filter(|(_, e)| e.present() || e.swapped()) {
            let at = (first as usize + n) * page - self.start;
            match runs.last_mut() {
                Some(last) if last.end == at => last.end = at + page,
                _ => runs.push(at..at + page),
            }
        }
        Ok(runs)
    }
}

/// A unit's worth of memory with one owner: the target of a read, the source of a write.
#[derive(Debug)]
pub struct ChunkFrame {
    pub(super) pool: Arc<Mapping>,
    pub(super) start: usize,
    pub(super) len: usize,
}

impl ChunkFrame {
    /// `count` slots of `unit` bytes that belong to no area.
    ///
    /// # Errors
    /// No memory.
    pub fn pool(count: usize, unit: usize) -> Result<Vec<Self>, SysError> {
        let pool = Arc::new(Mapping::new(count.max(1) * unit)?);
        Ok((0..count)
            .map(|n| Self { pool: Arc::clone(&pool), start: n * unit, len: unit })
            .collect())
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the pool hands out each range once, so `&self` guards it; the mapping is readable
        // and lives as long as the Arc; pages not yet there read as zeros.
        unsafe { std::slice::from_raw_parts(self.at(0), self.len) }
    }

    /// Its bytes, to be written.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` makes it the only access.
        unsafe { std::slice::from_raw_parts_mut(self.at(0), self.len) }
    }

    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: `start + offset` lies within the mapping: callers pass offsets within the slot.
        unsafe { self.pool.base.as_ptr().add(self.start + offset) }
    }

    /// Frees its memory, so that pages can be moved there; it reads as zeros afterwards, and has
    /// memory again once it is written to.
    pub fn empty(&mut self) {
        // SAFETY: the slot is ours alone (`&mut self`), page-aligned; afterwards it reads as zeros.
        unsafe { libc::madvise(self.at(0).cast(), self.len, libc::MADV_DONTNEED) };
    }
}
