//! Anonymous memory with a say in its pages: size, node, protection (kernel: `mm/mmap.c`,
//! `mm/mempolicy.c`, `mm/madvise.c`). The bytes are reached through a raw pointer; who reads and
//! writes them proves it sound there.

use crate::{zones, Root, SysError};
use std::ops::Range;
use std::ptr::NonNull;
use terrace_types::{Bytes, NodeId};

/// Which pages a mapping should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MappingPages {
    /// Base pages, whatever the system's default.
    Base,
    /// Transparent huge pages, where the kernel gives them; [`AnonymousMapping::huge_bytes`] tells
    /// what it gave.
    Huge,
}

/// Bytes of a huge page that one table entry maps.
const HUGE: usize = 2 << 20;

// `include/uapi/linux/mempolicy.h`
const MPOL_BIND: libc::c_long = 2;
const MPOL_MF_MOVE: libc::c_long = 1 << 1;
/// Bits of a node mask; nodes above have no bit and are refused.
const MASK_BITS: usize = 1024;

fn mask(node: NodeId) -> [u64; MASK_BITS / 64] {
    let mut mask = [0; MASK_BITS / 64];
    if let Some(word) = mask.get_mut(usize::from(node.0) / 64) {
        *word = 1 << (node.0 % 64);
    }
    mask
}

/// An anonymous private mapping of zero bytes, its start aligned to 2 MiB; unmapped when dropped.
#[derive(Debug)]
pub struct AnonymousMapping {
    base: NonNull<u8>,
    mapped: usize,
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is owned by this value alone; nothing here reads or writes its bytes but by
// system calls, which the kernel orders. What others do through the pointer they prove themselves.
unsafe impl Send for AnonymousMapping {}
// SAFETY: as above; every method takes `&self` and makes system calls only.
unsafe impl Sync for AnonymousMapping {}

impl AnonymousMapping {
    /// Maps `bytes`, rounded up to whole pages, none of them touched.
    ///
    /// # Errors
    /// What the kernel said, for want of address space or under a limit.
    pub fn new(bytes: Bytes, pages: MappingPages) -> Result<Self, SysError> {
        let grain =
            if pages == MappingPages::Huge { HUGE } else { crate::page_size().get() as usize };
        let target = || format!("{bytes} of memory");
        let no_room = |errno| SysError::from_errno("mmap", target(), errno, "ask for less");
        let bytes = usize::try_from(bytes.get().max(1)).map_err(|_| no_room(libc::ENOMEM))?;
        let bytes = bytes.checked_next_multiple_of(grain).ok_or_else(|| no_room(libc::ENOMEM))?;
        let mapped = bytes.checked_add(HUGE).ok_or_else(|| no_room(libc::ENOMEM))?;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no memory
        // of ours; the result is checked before use.
        let raw = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let failed = raw == libc::MAP_FAILED;
        let Some(base) = NonNull::new(raw.cast::<u8>()).filter(|_| !failed) else {
            return Err(SysError::last(
                "mmap",
                target(),
                "ask for less, or raise the limit on address space",
            ));
        };
        let skip = (raw as usize).next_multiple_of(HUGE) - raw as usize;
        // SAFETY: skip < HUGE and mapped = bytes + HUGE, so the start and `bytes` bytes after it
        // lie in the mapping.
        let first = unsafe { base.byte_add(skip) };
        let mapping = Self { base, mapped, first, bytes };
        let advice =
            if pages == MappingPages::Huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        // Kernels without transparent huge pages refuse both; the pages are base pages then, as
        // `huge_bytes` tells.
        let _refused = mapping.advise(0..bytes, advice);
        Ok(mapping)
    }

    /// Its first byte; valid for reads and writes of [`AnonymousMapping::len`] bytes while the
    /// mapping lives.
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.first.as_ptr()
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Never: a mapping has a page at least.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Offsets cut to the mapping, as address and length.
    fn part(&self, range: Range<usize>) -> (*mut libc::c_void, usize) {
        let start = range.start.min(self.bytes);
        let end = range.end.clamp(start, self.bytes);
        // SAFETY: `start` is at most the mapping's length, so the address is in it or one past its
        // end.
        (unsafe { self.first.as_ptr().add(start) }.cast(), end - start)
    }

    fn advise(&self, range: Range<usize>, advice: libc::c_int) -> i32 {
        let (at, len) = self.part(range);
        // SAFETY: `part` gives a range of this mapping; the advice used here (huge pages or not,
        // populate) leaves its bytes as they are, and DONTNEED, used by `release`, makes bytes zero
        // that nobody borrows: they are raw.
        let result = unsafe { libc::madvise(at, len, advice) };
        if result == 0 {
            0
        } else {
            std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
        }
    }

    /// Pages touched from now on lie on `node` and nowhere else. Before any is touched: none is
    /// moved.
    ///
    /// # Errors
    /// What the kernel said: no such node, or outside the cpuset.
    pub fn bind(&self, node: NodeId) -> Result<(), SysError> {
        self.mbind(0..self.bytes, node, 0)
    }

    /// Binds `range` (bytes) to `node` and moves the pages there that are elsewhere, by `mbind`.
    ///
    /// # Errors
    /// What the kernel said; pages may have been moved in part.
    pub fn move_by_mbind(&self, range: Range<usize>, node: NodeId) -> Result<(), SysError> {
        self.mbind(range, node, MPOL_MF_MOVE)
    }

    fn mbind(
        &self,
        range: Range<usize>,
        node: NodeId,
        flags: libc::c_long,
    ) -> Result<(), SysError> {
        let (at, len) = self.part(range);
        let mask = mask(node);
        // SAFETY: the range lies in this mapping, whose bytes mbind leaves as they are; `mask` has
        // `MASK_BITS` bits and outlives the call (the kernel takes the count one higher, by its
        // convention).
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                at,
                len,
                MPOL_BIND,
                mask.as_ptr(),
                MASK_BITS as libc::c_long + 1,
                flags,
            )
        };
        if result == 0 {
            return Ok(());
        }
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        needless(
            SysError::from_errno(
                "mbind",
                format!("node {node}"),
                errno,
                "name a node with memory that the cpuset allows",
            ),
            node,
        )
    }

    /// Touches every page of `range` that was not, by writing nothing: its bytes stay.
    ///
    /// # Errors
    /// What the kernel said for want of memory on the node, where it can say so (Linux 5.14); older
    /// kernels end the process instead, so ask for no more than is free.
    pub fn prefault(&self, range: Range<usize>) -> Result<(), SysError> {
        const MADV_POPULATE_WRITE: libc::c_int = 23;
        match self.advise(range.clone(), MADV_POPULATE_WRITE) {
            0 => Ok(()),
            libc::EINVAL => {
                let page = crate::page_size().get() as usize;
                let (at, len) = self.part(range);
                for offset in (0..len).step_by(page) {
                    // SAFETY: the byte lies in this mapping, which is writable. An atomic addition
                    // of nothing faults the page in and loses no byte that another thread writes
                    // meanwhile.
                    unsafe {
                        (*at.cast::<std::sync::atomic::AtomicU8>().add(offset))
                            .fetch_add(0, RELAXED)
                    };
                }
                Ok(())
            }
            errno => Err(SysError::from_errno(
                "madvise",
                "fresh memory",
                errno,
                "free memory on that node, or ask for less",
            )),
        }
    }

    /// Writes a double other than zero to the first word of each 64 bytes. Memory that is all zeros
    /// is no fair memory to measure: processors write lines of zeros in less (AMD EPYC here:
    /// `memset` of zeros 67 GB/s, of other bytes 27).
    pub fn fill(&self) {
        self.fill_part(0..self.bytes);
    }

    /// [`AnonymousMapping::fill`] of the lines that lie in `range` as a whole.
    pub fn fill_part(&self, range: Range<usize>) {
        const LINE: usize = 64;
        let at = self.first.as_ptr();
        let (start, end) = (range.start.min(self.bytes), range.end.min(self.bytes));
        for offset in (start.next_multiple_of(LINE)..end / LINE * LINE).step_by(LINE) {
            let value = 1.0 + (offset / LINE % 1021) as f64;
            // SAFETY: the mapping begins at a page and is `bytes` long, so that the word lies in
            // it, which is writable, and is aligned; who else uses it meanwhile reads this number
            // or the one before.
            unsafe {
                (*at.add(offset).cast::<std::sync::atomic::AtomicU64>())
                    .store(value.to_bits(), RELAXED);
            }
        }
    }

    /// Gives the pages of `range` back; its bytes are zero from now on.
    pub fn release(&self, range: Range<usize>) {
        // It cannot fail on a range of an anonymous mapping that is not locked; if it did, the
        // pages stay, as allowed.
        let _stays = self.advise(range, libc::MADV_DONTNEED);
    }

    /// Allows or forbids writing to `range`: what makes other CPUs drop their translations.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn protect(&self, range: Range<usize>, writable: bool) -> Result<(), SysError> {
        let (at, len) = self.part(range);
        let rights = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: the range lies in this mapping. Whoever writes to it meanwhile gets a signal, not
        // undefined bytes.
        if unsafe { libc::mprotect(at, len, rights) } == 0 {
            return Ok(());
        }
        Err(SysError::last("mprotect", "own memory", "raise vm.max_map_count"))
    }

    /// Bytes of it that huge pages hold now (`AnonHugePages` of `/proc/self/smaps`).
    #[must_use]
    pub fn huge_bytes(&self, root: &Root) -> Bytes {
        let (start, end) =
            (self.first.as_ptr() as u64, self.first.as_ptr() as u64 + self.bytes as u64);
        let text = root
            .read("/proc/self/smaps", 64 << 20)
            .map(|b| String::from_utf8_lossy(&b).into_owned());
        huge_in(&text.unwrap_or_default(), start, end)
    }
}

const RELAXED: std::sync::atomic::Ordering = std::sync::atomic::Ordering::Relaxed;

impl Drop for AnonymousMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, unmapped once; a pointer into it is only valid while
        // it lives.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

/// Bytes in huge pages of the mappings that touch `[start, end)`, from the text of smaps.
fn huge_in(text: &str, start: u64, end: u64) -> Bytes {
    let mut inside = false;
    let mut huge = 0_u64;
    for line in text.lines() {
        let word = line.split_ascii_whitespace().next().unwrap_or("");
        if let Some((from, to)) = word.split_once('-') {
            let number = |t| u64::from_str_radix(t, 16);
            if let (Ok(from), Ok(to)) = (number(from), number(to)) {
                inside = from < end && to > start;
            }
        } else if inside && word == "AnonHugePages:" {
            let kib = line.split_ascii_whitespace().nth(1).and_then(|w| w.parse::<u64>().ok());
            huge = huge.saturating_add(kib.unwrap_or(0).saturating_mul(1024));
        }
    }
    Bytes(huge)
}

/// Binding to the only node with memory changes nothing: that a kernel without NUMA or a
/// container's filter refuses it does not matter then.
fn needless(error: SysError, node: NodeId) -> Result<(), SysError> {
    if error.is_refusal() && zones::is_only_node(&Root::live(), node) {
        return Ok(());
    }
    Err(error)
}

/// From now on, pages that the calling thread touches first lie on `node`, where their mapping does
/// not say otherwise. Meant for a thread made for this; there is no way back.
///
/// # Errors
/// What the kernel said: no such node, or outside the cpuset.
pub fn bind_thread_memory(node: NodeId) -> Result<(), SysError> {
    let mask = mask(node);
    // SAFETY: `mask` has `MASK_BITS` bits and outlives the call; only the calling thread's policy
    // changes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_set_mempolicy,
            MPOL_BIND,
            mask.as_ptr(),
            MASK_BITS as libc::c_long + 1,
        )
    };
    if result == 0 {
        return Ok(());
    }
    needless(
        SysError::last(
            "set_mempolicy",
            format!("node {node}"),
            "name a node with memory that the cpuset allows",
        ),
        node,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_zeros_after_a_fill() {
        let mapping = AnonymousMapping::new(Bytes::mib(1), MappingPages::Base).unwrap();
        mapping.prefault(0..mapping.len()).unwrap();
        mapping.fill();
        for at in (0..mapping.len()).step_by(64) {
            // SAFETY: the word lies in the mapping, aligned, and nobody writes it.
            let value = unsafe { mapping.as_ptr().add(at).cast::<f64>().read() };
            assert!((1.0..1022.0).contains(&value), "{value} at {at}");
        }
    }

    #[test]
    fn a_mapping_is_aligned_zero_writable_and_can_be_given_back() {
        let mapping = AnonymousMapping::new(Bytes(5_000_000), MappingPages::Base).unwrap();
        assert_eq!(mapping.as_ptr() as usize % HUGE, 0);
        assert!(mapping.len() >= 5_000_000 && !mapping.is_empty());
        mapping.prefault(0..mapping.len()).unwrap();
        let last = mapping.len() - 1;
        // SAFETY: `last` lies in the mapping; nobody else has its pointer.
        unsafe {
            assert_eq!(mapping.as_ptr().add(last).read(), 0);
            mapping.as_ptr().add(last).write(7);
            mapping.prefault(0..mapping.len()).unwrap();
            assert_eq!(mapping.as_ptr().add(last).read(), 7);
        }
        mapping.protect(0..4096, false).unwrap();
        mapping.protect(0..4096, true).unwrap();
        mapping.release(0..mapping.len());
        // SAFETY: as above.
        assert_eq!(unsafe { mapping.as_ptr().add(last).read() }, 0);
    }

    #[test]
    fn binding_to_the_first_node_works_and_to_none_is_an_error() {
        let mapping = AnonymousMapping::new(Bytes(1 << 20), MappingPages::Base).unwrap();
        let nodes = crate::zones::nodes_with_memory(&Root::live());
        let Some(node) = nodes.first() else {
            return println!("skipped: no node with memory is reported");
        };
        match mapping.bind(*node) {
            Ok(()) => mapping.prefault(0..mapping.len()).unwrap(),
            Err(e) => println!("skipped: {e}"),
        }
        assert!(mapping.bind(NodeId(1000)).is_err());
        assert!(mapping.move_by_mbind(0..4096, NodeId(999)).is_err());
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        assert!(AnonymousMapping::new(Bytes(u64::MAX), MappingPages::Huge).is_err());
        assert!(AnonymousMapping::new(Bytes(1 << 62), MappingPages::Base).is_err());
    }

    #[test]
    fn huge_pages_are_read_from_smaps() {
        let text = "1000-3000 rw-p 0 00:00 0 \nAnonHugePages:   2048 kB\n3000-4000 rw-p 0 00:00 \
                0\nAnonHugePages: 4 kB\n";
        assert_eq!(huge_in(text, 0x1000, 0x2000), Bytes::mib(2));
        assert_eq!(huge_in(text, 0x3000, 0x3001), Bytes(4096));
        assert_eq!(huge_in("", 0, 1), Bytes::ZERO);
    }
}
