//! The memory behind far memory: an area whose missing pages a pager fills ([`FarArea`]), and
//! buffers of one unit each that carry data between it and a store ([`ChunkFrame`]).
//!
//! ```text
//!   FarArea   [ page | page | ----- | page | ----- ]     what the program sees; ----- is missing
//!                 |  extract             ^ install
//!                 v                      |
//!   SlotPool  [ slot 0 ][ slot 1 ][ slot 2 ] ...         one owner a slot: the pager, or an I/O under way
//! ```
//!
//! The contract of every call that changes what lies in a [`FarArea`] (`install`, `drop_pages`,
//! `extract`, `protect`): seen by the program, a page's bytes change by the program's own writes
//! alone. A page is taken away only when its bytes are kept elsewhere, and comes back with those
//! bytes. Upholding it is what a pager is for; a caller that does not gives programs wrong data.

mod mapping;

use crate::{SysError, Uffd};
use mapping::Mapping;
pub use mapping::{ChunkFrame, ReservedMemory};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;

/// How [`FarArea::extract`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extracted {
    /// Bytes, from the start, that are now in the slot and no longer in the area.
    pub bytes: usize,
    /// Why it ended before all were: the kernel's number; 0 when all were.
    pub errno: i32,
}

/// An address range whose missing pages are asked for through a userfaultfd.
#[derive(Debug)]
pub struct FarArea {
    map: Mapping,
    uffd: Uffd,
    zeros: Mapping,
    page: usize,
}

impl FarArea {
    /// Maps `len` bytes, rounded up to whole pages, and asks for the faults in them. `unit` bounds
    /// the parts that the other calls take.
    ///
    /// # Errors
    /// No memory, or a kernel that cannot write-protect pages (before Linux 5.7).
    pub fn map(uffd: Uffd, len: usize, unit: usize) -> Result<Self, SysError> {
        let map = Mapping::new(len)?;
        let whole = 0..map.len;
        Self::with(uffd, map, &[whole], unit)
    }

    /// As [`FarArea::map`], over memory that is there and in use, for the faults in these parts of
    /// it (offsets). Their pages that are there stay as they are; only missing ones are asked for
    /// from now on.
    ///
    /// # Errors
    /// As there.
    pub fn take_over(
        uffd: Uffd,
        ground: ReservedMemory,
        parts: &[Range<usize>],
        unit: usize,
    ) -> Result<Self, SysError> {
        let base = NonNull::new(ground.start as *mut u8);
        let Some(base) = base else {
            return Err(SysError::from_errno(
                "UFFDIO_REGISTER",
                "no memory",
                libc::EINVAL,
                "report this",
            ));
        };
        Self::with(uffd, Mapping { base, len: ground.len, stays: true }, parts, unit)
    }

    fn with(
        uffd: Uffd,
        map: Mapping,
        parts: &[Range<usize>],
        unit: usize,
    ) -> Result<Self, SysError> {
        if !uffd.features().write_protect {
            let remedy = "Linux 5.7 or later is needed";
            return Err(SysError::from_errno(
                "UFFDIO_API",
                "write protection",
                libc::EOPNOTSUPP,
                remedy,
            ));
        }
        let zeros = Mapping::new(unit)?;
        for part in parts {
            assert!(part.end <= map.len, "a part beyond the area");
            uffd.register(map.address() + part.start as u64, part.len() as u64, true, true)?;
        }
        Ok(Self { map, uffd, zeros, page: crate::page_size().get() as usize })
    }

    /// Asks for the faults of a part that was mapped anew, or [`FarArea::detach`]ed.
    ///
    /// # Errors
    /// What the kernel said: no private anonymous memory, mostly.
    pub fn attach(&self, part: &Range<usize>) -> Result<(), SysError> {
        assert!(part.end <= self.map.len, "attach beyond the area");
        self.uffd.register(self.map.address() + part.start as u64, part.len() as u64, true, true)
    }

    /// Asks no longer for faults of a part: ordinary memory from here on, zeros where no page is.
    pub fn detach(&self, part: &Range<usize>) {
        assert!(part.end <= self.map.len, "detach beyond the area");
        let at = |offset: usize| self.map.address() + offset as u64;
        if self.uffd.unregister(at(part.start), part.len() as u64).is_err() {
            // Something else lies in it, of which nothing was asked for: page by page, then.
            for page in part.clone().step_by(self.page) {
                let _not_ours = self.uffd.unregister(at(page), self.page as u64);
            }
        }
    }

    /// Runs of pages of a part (offsets) that have memory, be it in swap.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn present(&self, part: Range<usize>) -> Result<Vec<Range<usize>>, SysError> {
        ReservedMemory { start: self.map.address() as usize, len: self.map.len }.present(part)
    }

    /// Makes `count` slots of `unit` bytes, into which pages of this area can be moved.
    ///
    /// # Errors
    /// No memory.
    pub fn frames(&self, count: usize, unit: usize) -> Result<Vec<ChunkFrame>, SysError> {
        let pool = Arc::new(Mapping::new(count.max(1) * unit)?);
        if self.uffd.features().move_pages {
            // Only an area known to the userfaultfd can be moved to; its missing pages remain the
            // kernel's matter.
            self.uffd.register(pool.address(), pool.len as u64, false, true)?;
        }
        Ok((0..count)
            .map(|n| ChunkFrame { pool: Arc::clone(&pool), start: n * unit, len: unit })
            .collect())
    }

    /// From now on nobody may write to it: a SIGSEGV. Pages can still be filled.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn write_protected_for_good(&self) -> Result<(), SysError> {
        // SAFETY: the range is our own mapping, which stays mapped; who writes to it gets a signal,
        // nothing is changed.
        let status =
            unsafe { libc::mprotect(self.map.base.as_ptr().cast(), self.map.len, libc::PROT_READ) };
        if status != 0 {
            return Err(SysError::last("mprotect", "far memory", "report this"));
        }
        Ok(())
    }

    /// The userfaultfd.
    #[must_use]
    pub const fn uffd(&self) -> &Uffd {
        &self.uffd
    }

    /// Bytes mapped.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.map.len
    }

    /// Whether nothing is mapped: never.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.map.len == 0
    }

    /// First address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.map.address()
    }

    /// Start of the memory, for those who write through raw pointers.
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.map.base.as_ptr()
    }

    /// The memory as words that any thread may read and write.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, readable and writable and lives as long as `self`;
        // all bit patterns are valid; who has only atomics cannot race. A missing page is filled
        // before the access ends.
        unsafe { std::slice::from_raw_parts(self.map.base.as_ptr().cast(), self.map.len / 8) }
    }

    /// The memory, borrowed as a whole.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `words`, and `&mut self` excludes every other safe access.
        unsafe { std::slice::from_raw_parts_mut(self.map.base.as_ptr(), self.map.len) }
    }

    /// The memory, to be read.
    ///
    /// # Safety
    /// Nobody writes the part meanwhile, through [`FarArea::words`] or a pointer.
    #[must_use]
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: as in `words`; that nobody writes is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.map.base.as_ptr(), self.map.len) }
    }

    /// Fills missing pages from a slot, and wakes those who wait when asked to, as
    /// [`FarArea::wake`] does later. Pages that are there already are left as they are. `part` is
    /// of the area, `from` where its data begins in the slot.
    ///
    /// # Errors
    /// What the kernel said: out of memory, mostly.
    pub fn install(
        &self,
        part: &Range<usize>,
        slot: &ChunkFrame,
        from: usize,
        protect: bool,
        wake: bool,
    ) -> Result<(), SysError> {
        assert!(
            part.end <= self.map.len && from + part.len() <= slot.len,
            "install beyond the area or the slot"
        );
        self.fill(part, slot.at(from) as u64, protect, wake)
    }

    /// As [`FarArea::install`], with zeros.
    ///
    /// # Errors
    /// As there.
    pub fn install_zeros(&self, part: &Range<usize>, protect: bool) -> Result<(), SysError> {
        assert!(
            part.end <= self.map.len && part.len() <= self.zeros.len,
            "install beyond the area or the unit"
        );
        self.fill(part, self.zeros.address(), protect, true)
    }

    fn fill(
        &self,
        part: &Range<usize>,
        from: u64,
        protect: bool,
        wake: bool,
    ) -> Result<(), SysError> {
        let (mut done, end) = (0_u64, part.len() as u64);
        while done < end {
            let at = self.map.address() + part.start as u64 + done;
            let (more, errno) = self.uffd.copy(at, from + done, end - done, protect, wake);
            done += more;
            match errno {
                0 => {}
                // The next page is there: step over it.
                libc::EEXIST => {
                    done += self.page as u64;
                    self.uffd.wake(self.map.address() + part.start as u64, part.len() as u64)?;
                }
                // The part has several mappings (of different rights): page by page, then. A page
                // without one of ours was given away by the program, and nobody waits for it.
                libc::ENOENT | libc::EINVAL | libc::EFAULT if end - done > self.page as u64 => {
                    let next = part.start + done as usize;
                    self.fill(&(next..next + self.page), from + done, protect, wake)?;
                    done += self.page as u64;
                }
                libc::ENOENT | libc::EINVAL => done += self.page as u64,
                errno => {
                    let target = format!("far memory at {at:#x}");
                    return Err(SysError::from_errno(
                        "UFFDIO_COPY",
                        target,
                        errno,
                        "free some memory",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Takes pages that are there out of the area and into the slot, whose part is empty, as one
    /// step for each page: who touches one afterwards waits. Pages that a device reads or writes
    /// just now stay (`EBUSY`), and, of those that are `protected` against writing, those shared
    /// with a forked child. Protected ones are so in the slot as well: it is not to be written to
    /// before [`ChunkFrame::empty`].
    #[must_use]
    pub fn extract(
        &self,
        part: &Range<usize>,
        slot: &mut ChunkFrame,
        to: usize,
        protected: bool,
    ) -> Extracted {
        assert!(
            part.end <= self.map.len && to + part.len() <= slot.len,
            "extract beyond the area or the slot"
        );
        if self.uffd.features().move_pages {
            return self.move_out(part, slot, to, protected);
        }
        self.take_copy(part, slot, to)
    }

    fn move_out(
        &self,
        part: &Range<usize>,
        slot: &mut ChunkFrame,
        to: usize,
        protected: bool,
    ) -> Extracted {
        let from = self.map.address() + part.start as u64;
        let (mut done, mut shared) = (0, false);
        loop {
            let rest = part.start + done..part.end;
            let (more, errno) =
                self.uffd.move_to(slot.at(to + done) as u64, from + done as u64, rest.len() as u64);
            done += more as usize;
            let rest = part.start + done..part.end;
            match errno {
                // The slot was empty, so this is the kernel's own doing: it moved pages and did not
                // say so.
                libc::EEXIST => {
                    let moved = self.moved_untold(&rest, slot, to + done);
                    done += moved;
                    if moved == 0 || done >= part.len() {
                        return Extracted {
                            bytes: done,
                            errno: if done < part.len() { errno } else { 0 },
                        };
                    }
                }
                // Shared with a forked child, or at work in a device. A write that changes nothing
                // ends the former; of a protected page the caller itself would be notified, and
                // wait for itself.
                libc::EBUSY if !shared && !protected => {
                    shared = true;
                    self.own(&rest);
                }
                // Rights other than the slot's (mprotect), or several mappings.
                libc::EINVAL | libc::ENOENT if !rest.is_empty() => {
                    let one = rest.start..(rest.start + self.page).min(rest.end);
                    let copied = self.take_copy(&one, slot, to + done);
                    done += copied.bytes;
                    if copied.bytes < one.len() || done >= part.len() {
                        return Extracted { bytes: done, errno: copied.errno };
                    }
                }
                errno => return Extracted { bytes: done, errno },
            }
        }
    }

    /// Bytes from the start of `part` that are in the slot and not in the area any more. Linux 6.18
    /// forgets to count pages that it moved at the second attempt (`move_pages` in
    /// `mm/userfaultfd.c` keeps the first one's `-EAGAIN`), and then finds them in its own way. The
    /// first happens when a page's accessed bit changes just then, or it is being migrated.
    fn moved_untold(&self, part: &Range<usize>, slot: &ChunkFrame, to: usize) -> usize {
        let len = part.len();
        let runs = |at: *mut u8| ReservedMemory { start: at as usize, len }.present(0..len);
        let (Ok(here), Ok(there)) =
            (runs(self.map.base.as_ptr().wrapping_add(part.start)), runs(slot.at(to)))
        else {
            return 0;
        };
        let stayed_from = here.first().map_or(part.len(), |run| run.start);
        there.first().filter(|run| run.start == 0).map_or(0, |run| run.end.min(stayed_from))
    }

    /// Ends the sharing of pages with forked children: each is this process's alone afterwards.
    fn own(&self, part: &Range<usize>) {
        // Protected after a flush that failed, perhaps: the write would be told to the caller, who
        // would wait for itself.
        if self.protect(part, false).is_err() {
            return;
        }
        let at = self.map.base.as_ptr().wrapping_add(part.start);
        // SAFETY: the part lies in our mapping and its pages are there (the caller's promise), not
        // write-protected any more. Asks for write faults that change no byte; a refusal leaves
        // things as they are.
        unsafe { libc::madvise(at.cast(), part.len(), libc::MADV_POPULATE_WRITE) };
    }

    fn take_copy(&self, part: &Range<usize>, slot: &mut ChunkFrame, to: usize) -> Extracted {
        match self.copy_out(part, slot, to) {
            Ok(()) => {
                self.drop_pages(std::slice::from_ref(part));
                Extracted { bytes: part.len(), errno: 0 }
            }
            Err(error) => Extracted { bytes: 0, errno: error.errno() },
        }
    }

    /// Write-protects pages that are there and copies them into the slot.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn copy_out(
        &self,
        part: &Range<usize>,
        slot: &mut ChunkFrame,
        to: usize,
    ) -> Result<(), SysError> {
        assert!(
            part.end <= self.map.len && to + part.len() <= slot.len,
            "copy beyond the area or the slot"
        );
        self.protect(part, true)?;
        // Read as a debugger would: the program may have taken the right to read from these pages.
        use std::os::unix::fs::FileExt as _;
        let memory = std::fs::File::open("/proc/self/mem");
        let at = self.map.address() + part.start as u64;
        let copied =
            memory.and_then(|m| m.read_exact_at(&mut slot.bytes_mut()[to..to + part.len()], at));
        copied.map_err(|e| SysError::from_io("read", "/proc/self/mem", &e, "mount /proc"))
    }

    /// Frees pages whose bytes are kept elsewhere; who touches one afterwards waits.
    pub fn drop_pages(&self, parts: &[Range<usize>]) {
        let base = self.map.base.as_ptr();
        for some in parts.chunks(64) {
            let vectors: Vec<libc::iovec> = some
                .iter()
                .map(|p| {
                    assert!(p.end <= self.map.len, "drop beyond the area");
                    libc::iovec { iov_base: base.wrapping_add(p.start).cast(), iov_len: p.len() }
                })
                .collect();
            if vectors.len() > 1 && drop_many(&vectors) {
                continue;
            }
            for v in vectors {
                // SAFETY: the range lies in our mapping; that its bytes are kept is the caller's
                // contract (above).
                unsafe { libc::madvise(v.iov_base, v.iov_len, libc::MADV_DONTNEED) };
            }
        }
    }

    /// Protects pages that are there against writing, or allows it and wakes the writers.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn protect(&self, part: &Range<usize>, on: bool) -> Result<(), SysError> {
        let at = |offset: usize| self.map.address() + offset as u64;
        match self.uffd.protect(at(part.start), part.len() as u64, on) {
            // Something else was mapped over some of it: nobody waits there.
            Err(error) if error.errno() == libc::ENOENT && !on => {
                let one = |page| drop(self.uffd.protect(at(page), self.page as u64, on));
                part.clone().step_by(self.page).for_each(one);
                Ok(())
            }
            other => other,
        }
    }

    /// Wakes those who wait for these pages; they try again.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn wake(&self, part: &Range<usize>) -> Result<(), SysError> {
        self.uffd.wake(self.map.address() + part.start as u64, part.len() as u64)
    }

    /// Whether all of these pages have memory, be it in swap.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn is_there(&self, part: &Range<usize>) -> Result<bool, SysError> {
        Ok(self.present(part.clone())?.first() == Some(part))
    }

    /// Makes missing pages raise SIGBUS. Where the kernel cannot, the signal goes to `tid` now and
    /// again whenever it comes back.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn poison(&self, part: &Range<usize>, tid: terrace_types::Tid) -> Result<(), SysError> {
        if self.uffd.features().poison {
            return self.uffd.poison(self.map.address() + part.start as u64, part.len() as u64);
        }
        // SAFETY: takes numbers only; the thread is one of ours, which faulted in our mapping.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid.0, libc::SIGBUS) };
        Ok(())
    }

    /// Undoes [`FarArea::poison`] and drops whatever is there: the part is missing afterwards.
    pub fn cure(&self, part: &Range<usize>) {
        self.drop_pages(std::slice::from_ref(part));
    }
}

/// `process_madvise` on ourselves with several ranges: one flush of translations for all. False
/// where the kernel (before Linux 6.13) has no such thing for this advice.
fn drop_many(vectors: &[libc::iovec]) -> bool {
    /// `PIDFD_SELF_THREAD_GROUP`.
    const SELF: libc::c_int = -10_001;
    let wanted: usize = vectors.iter().map(|v| v.iov_len).sum();
    // SAFETY: the vectors name ranges of our own mapping; see `drop_pages`.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            SELF,
            vectors.as_ptr(),
            vectors.len(),
            libc::MADV_DONTNEED,
            0,
        )
    };
    // Part done is as good as none: dropping a page twice is harmless, since nothing filled it in
    // between.
    usize::try_from(done).is_ok_and(|d| d == wanted)
}

#[cfg(test)]
mod tests;
