//! Reads and writes of files through `io_uring`, with buffers that have one owner at a time: a
//! transfer owns its [`ChunkFrame`] until it is done, so nobody can look at memory that the kernel
//! is filling.

use crate::farmem::ChunkFrame;
use crate::{wait_readable, SysError};
use io_uring::{opcode, types, IoUring};
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use terrace_types::Nanos;

/// The memory of a transfer.
#[derive(Debug)]
pub enum TransferBuffer {
    /// Filled from a file.
    Fill(ChunkFrame),
    /// Written to a file; others may read it meanwhile.
    Send(Arc<ChunkFrame>),
}

impl TransferBuffer {
    fn slot(&self) -> &ChunkFrame {
        match self {
            Self::Fill(slot) => slot,
            Self::Send(slot) => slot,
        }
    }
}

/// A run of bytes of a slot and where it belongs in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferPiece {
    /// Which of the ring's files.
    pub file: usize,
    /// Offset in the file.
    pub offset: u64,
    /// Offset in the slot.
    pub start: usize,
    /// Bytes.
    pub len: usize,
}

/// Some pieces of one slot, done together.
#[derive(Debug)]
pub struct Transfer {
    /// The caller's number for it.
    pub tag: u64,
    /// The memory.
    pub buffer: TransferBuffer,
    /// What goes where.
    pub pieces: Vec<TransferPiece>,
}

#[derive(Debug)]
struct Flight {
    transfer: Transfer,
    left: usize,
    errno: i32,
}

/// A ring with its files. One thread uses it, from the first [`Ring::submit`] or [`Ring::wait`] on.
pub struct Ring {
    ring: IoUring,
    /// A ring begins to belong to a thread when that thread first gives it something.
    enabled: bool,
    files: Vec<File>,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// (flight, piece) that the submission queue had no space for.
    queue: VecDeque<(usize, usize)>,
    in_kernel: usize,
    /// Descriptors that the kernel watches for [`Ring::wait`], by their bits, and those of them
    /// that were readable since.
    watched: u64,
    heard: u64,
    /// Tags and results of pieces that the kernel has completed.
    ended: Vec<(u64, i32)>,
}

/// Set in the tag of a descriptor that is watched; its number is below.
const WATCH: u64 = 1 << 63;

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("files", &self.files.len())
            .field("in_kernel", &self.in_kernel)
            .finish()
    }
}

impl Ring {
    /// Sets up a ring with space for `depth` operations.
    ///
    /// # Errors
    /// [`SysError::NotPermitted`] or [`SysError::Absent`] where the kernel offers none.
    pub fn new(depth: u32, files: Vec<File>) -> Result<Self, SysError> {
        // From 6.1 on completions are taken in where they are waited for, by the one thread that
        // uses the ring, and not by interrupting whatever it does.
        let mut deferred = IoUring::builder();
        deferred
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_r_disabled();
        match deferred.build(depth) {
            Ok(ring) => Ok(Self::of(ring, false, files)),
            Err(_) => Self::plain(depth, files),
        }
    }

    /// Before 6.1.
    fn plain(depth: u32, files: Vec<File>) -> Result<Self, SysError> {
        let ring = IoUring::new(depth).map_err(|e| {
            SysError::from_io(
                "io_uring_setup",
                "this process",
                &e,
                "`sysctl kernel.io_uring_disabled=0` allows it",
            )
        })?;
        Ok(Self::of(ring, true, files))
    }

    fn of(ring: IoUring, enabled: bool, files: Vec<File>) -> Self {
        Self {
            ring,
            enabled,
            files,
            flights: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            in_kernel: 0,
            watched: 0,
            heard: 0,
            ended: Vec::new(),
        }
    }

    /// Transfers not yet told of.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// Gives the files back; what is under way is waited for and forgotten.
    #[must_use]
    pub fn into_files(mut self) -> Vec<File> {
        self.wait_for_all();
        std::mem::take(&mut self.files)
    }

    /// Takes a transfer in; [`Ring::submit`] starts it.
    pub fn begin(&mut self, transfer: Transfer) {
        for p in &transfer.pieces {
            let len = transfer.buffer.slot().bytes().len();
            assert!(
                p.file < self.files.len() && p.start + p.len <= len && p.len > 0,
                "a piece beyond its slot"
            );
        }
        let flight = Flight { left: transfer.pieces.len(), transfer, errno: 0 };
        let index = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        self.queue.extend((0..flight.left).map(|piece| (index, piece)));
        self.flights[index] = Some(flight);
    }

    /// Hands what waits to the kernel, as much as it takes.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn submit(&mut self) -> Result<(), SysError> {
        let space = self.ring.params().cq_entries() as usize;
        while let Some(&(index, number)) = self.queue.front() {
            if self.in_kernel >= space {
                break;
            }
            let Some(flight) = &self.flights[index] else {
                self.queue.pop_front();
                continue;
            };
            let piece = flight.transfer.pieces[number];
            let fd = types::Fd(self.files[piece.file].as_raw_fd());
            let at = flight.transfer.buffer.slot().at(piece.start);
            let len = u32::try_from(piece.len).unwrap_or(u32::MAX);
            let tag = (index as u64) << 32 | number as u64;
            let entry = match flight.transfer.buffer {
                TransferBuffer::Fill(_) => {
                    opcode::Read::new(fd, at, len).offset(piece.offset).build()
                }
                TransferBuffer::Send(_) => {
                    opcode::Write::new(fd, at, len).offset(piece.offset).build()
                }
            }
            .user_data(tag);
            // SAFETY: the buffer is `len` bytes of a slot that the flight owns (or shares,
            // read-only, for a write) until its completion was taken from the ring; the files live
            // as long as the ring.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                self.enter()?;
                continue;
            }
            self.in_kernel += 1;
            self.queue.pop_front();
        }
        self.enter()
    }

    fn enable(&mut self) -> Result<(), SysError> {
        if !self.enabled {
            let enabled = self.ring.submitter().register_enable_rings();
            enabled.map_err(|e| {
                SysError::from_io("io_uring_register", "a store", &e, "report this")
            })?;
            self.enabled = true;
        }
        Ok(())
    }

    fn enter(&mut self) -> Result<(), SysError> {
        loop {
            if self.ring.submission().is_empty() {
                return Ok(());
            }
            self.enable()?;
            match self.ring.submit() {
                Ok(_) => {}
                Err(e)
                    if matches!(
                        e.raw_os_error(),
                        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
                    ) =>
                {
                    // The kernel is short of something that completions give back.
                    std::thread::yield_now();
                }
                Err(e) => {
                    return Err(SysError::from_io("io_uring_enter", "a store", &e, "report this"))
                }
            }
        }
    }

    /// Waits until one of these descriptors, the same each time, is readable (its bit), or
    /// something has ended (the bit after theirs), for `limit` at most. One call into the kernel,
    /// which takes what was begun as well; before 5.11, whose rings know no limit to such a wait,
    /// one for each.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn wait(&mut self, fds: &[BorrowedFd<'_>], limit: Option<Nanos>) -> Result<u64, SysError> {
        if !self.ring.params().is_feature_ext_arg() {
            return self.wait_by_poll(fds, limit);
        }
        self.enable()?;
        for (n, fd) in fds.iter().enumerate() {
            let bit = 1 << n;
            if (self.watched | self.heard) & bit != 0 {
                continue;
            }
            let entry =
                opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), libc::POLLIN as u32).build();
            let entry = entry.user_data(WATCH | n as u64);
            // SAFETY: a poll has no memory of ours; the kernel holds the descriptor's file itself.
            while unsafe { self.ring.submission().push(&entry) }.is_err() {
                self.enter()?;
            }
            self.watched |= bit;
        }
        let ended = !(self.ended.is_empty() && self.ring.completion().is_empty());
        let limit = if ended || self.heard != 0 { Some(Nanos::ZERO) } else { limit };
        let span = limit.map(|l| {
            types::Timespec::new().sec(l.0 / 1_000_000_000).nsec((l.0 % 1_000_000_000) as u32)
        });
        let args = span
            .as_ref()
            .map_or(types::SubmitArgs::new(), |span| types::SubmitArgs::new().timespec(span));
        match self.ring.submitter().submit_with_args(1, &args) {
            Ok(_) => {}
            // The time is up; a signal; the kernel is short of something that completions give
            // back.
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY)
                ) => {}
            Err(e) => {
                return Err(SysError::from_io("io_uring_enter", "a store", &e, "report this"))
            }
        }
        self.take();
        let ended = u64::from(!self.ended.is_empty()) << fds.len();
        Ok(std::mem::take(&mut self.heard) | ended)
    }

    /// As [`Ring::wait`], of rings that are not deferred.
    fn wait_by_poll(
        &mut self,
        fds: &[BorrowedFd<'_>],
        limit: Option<Nanos>,
    ) -> Result<u64, SysError> {
        self.enter()?;
        // SAFETY: the ring's descriptor is open as long as the ring, and not kept beyond this call.
        let ring = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
        let all: Vec<BorrowedFd<'_>> = fds.iter().copied().chain([ring]).collect();
        wait_readable(&all, limit)
    }

    /// Takes in what the kernel has completed.
    fn take(&mut self) {
        if self.ring.submission().taskrun() {
            // Completions wait to be taken in by this thread. Should the kernel refuse, they still
            // do at the next call.
            let _at_the_next = self.ring.submit();
        }
        for c in self.ring.completion() {
            let tag = c.user_data();
            if tag & WATCH != 0 {
                let bit = 1 << (tag & !WATCH);
                self.watched &= !bit;
                self.heard |= bit;
            } else {
                self.in_kernel -= 1;
                self.ended.push((tag, c.result()));
            }
        }
    }

    /// Takes the transfers that are done, each with 0 or the errno of its first piece that failed.
    /// A piece cut short goes on; one beyond the end of its file is `ENODATA`.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn finished(&mut self, done: &mut Vec<(Transfer, i32)>) -> Result<(), SysError> {
        self.take();
        for (tag, result) in std::mem::take(&mut self.ended) {
            let (index, number) = ((tag >> 32) as usize, (tag & 0xffff_ffff) as usize);
            let Some(flight) = &mut self.flights[index] else {
                continue;
            };
            let piece = &mut flight.transfer.pieces[number];
            let got = usize::try_from(result).unwrap_or(0);
            if result == -libc::EINTR || result == -libc::EAGAIN || (got > 0 && got < piece.len) {
                piece.offset += got as u64;
                piece.start += got;
                piece.len -= got;
                self.queue.push_back((index, number));
                continue;
            }
            if result <= 0 && flight.errno == 0 {
                flight.errno = if result == 0 { libc::ENODATA } else { -result };
            }
            flight.left -= 1;
            if flight.left == 0 {
                if let Some(flight) = self.flights[index].take() {
                    self.free.push(index);
                    done.push((flight.transfer, flight.errno));
                }
            }
        }
        if self.queue.is_empty() {
            Ok(())
        } else {
            self.submit()
        }
    }
}

impl Ring {
    /// The kernel may still write into slots: they may be freed only when it is done with them.
    fn wait_for_all(&mut self) {
        self.queue.clear();
        while self.in_kernel > 0 {
            if self.ring.submit_and_wait(1).is_err() {
                std::thread::yield_now();
            }
            self.take();
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.wait_for_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{now, WakeDescriptor};
    use std::os::fd::AsFd;

    type Wait = fn(&mut Ring, &[BorrowedFd<'_>], Option<Nanos>) -> Result<u64, SysError>;

    #[test]
    fn one_wait_hears_descriptors_and_what_has_ended() {
        hears(Ring::new, Ring::wait);
    }

    #[test]
    fn so_does_that_of_older_kernels() {
        hears(Ring::plain, Ring::wait);
        hears(Ring::plain, Ring::wait_by_poll);
    }

    fn hears(make: fn(u32, Vec<File>) -> Result<Ring, SysError>, wait: Wait) {
        let folder = std::env::temp_dir();
        let made = crate::StoreFile::create(&folder, 1 << 20).unwrap();
        let mut ring = match make(4, vec![made.file]) {
            Ok(ring) => ring,
            Err(error) => return println!("skipped: {error}"),
        };
        let (a, b) = (WakeDescriptor::new().unwrap(), WakeDescriptor::new().unwrap());
        let fds = [a.as_fd(), b.as_fd()];
        let begun = now();
        assert_eq!(wait(&mut ring, &fds, Some(Nanos::millis(2))).unwrap(), 0, "nothing");
        assert!(now().since(begun) >= Nanos::millis(2), "and for as long as was said");
        b.ring();
        assert_eq!(wait(&mut ring, &fds, None).unwrap(), 2);
        assert_eq!(wait(&mut ring, &fds, None).unwrap(), 2, "it was not hushed");
        b.hush();
        // What was heard before was heard; what is said of it afterwards is that it is so no more.
        while wait(&mut ring, &fds, Some(Nanos::ZERO)).unwrap() != 0 {}
        let mut slots = ChunkFrame::pool(2, 1 << 20).unwrap();
        slots[0].bytes_mut()[..8192].fill(7);
        let piece = |offset, start| TransferPiece { file: 0, offset, start, len: 4096 };
        let written = TransferBuffer::Send(Arc::new(slots.remove(0)));
        let pieces = vec![piece(4096, 0), piece(16384, 4096)];
        ring.begin(Transfer { tag: 5, buffer: written, pieces });
        ring.submit().unwrap();
        let mut done = Vec::new();
        while done.is_empty() {
            let heard = wait(&mut ring, &fds, Some(Nanos::secs(20))).unwrap();
            assert!(heard & !0b100 == 0, "{heard:b}");
            ring.finished(&mut done).unwrap();
        }
        assert_eq!((done[0].0.tag, done[0].1, ring.in_flight()), (5, 0, 0));
        // Not waited for by this call, but asked again and again; and a bell meanwhile is not lost.
        let pieces = vec![piece(16384, 0)];
        ring.begin(Transfer { tag: 6, buffer: TransferBuffer::Fill(slots.remove(0)), pieces });
        ring.submit().unwrap();
        a.ring();
        done.clear();
        while done.is_empty() {
            ring.finished(&mut done).unwrap();
            std::thread::yield_now();
        }
        let TransferBuffer::Fill(slot) = &done[0].0.buffer else { panic!("it was to be filled") };
        assert!(done[0].1 == 0 && slot.bytes()[..4096].iter().all(|b| *b == 7));
        assert_eq!(wait(&mut ring, &fds, None).unwrap(), 1);
    }
}
