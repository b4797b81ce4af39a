//! Reads and writes of files through `io_uring`, with buffers that have one owner at a time: a transfer owns
//! its [`Slot`] until it is done, so nobody can look at memory that the kernel is filling.

use crate::farmem::Slot;
use crate::SysError;
use io_uring::{opcode, types, IoUring};
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

/// The memory of a transfer.
#[derive(Debug)]
pub enum Buffer {
    /// Filled from a file.
    Fill(Slot),
    /// Written to a file; others may read it meanwhile.
    Send(Arc<Slot>),
}

impl Buffer {
    fn slot(&self) -> &Slot {
        match self {
            Self::Fill(slot) => slot,
            Self::Send(slot) => slot,
        }
    }
}

/// A run of bytes of a slot and where it belongs in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
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
    pub buffer: Buffer,
    /// What goes where.
    pub pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Flight {
    transfer: Transfer,
    left: usize,
    errno: i32,
}

/// A ring with its files.
pub struct Ring {
    ring: IoUring,
    files: Vec<File>,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// (flight, piece) that the submission queue had no room for.
    queue: VecDeque<(usize, usize)>,
    in_kernel: usize,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("files", &self.files.len()).field("in_kernel", &self.in_kernel).finish()
    }
}

impl Ring {
    /// Sets up a ring with room for `depth` operations.
    ///
    /// # Errors
    /// [`SysError::NotPermitted`] or [`SysError::Absent`] where the kernel offers none.
    pub fn new(depth: u32, files: Vec<File>) -> Result<Self, SysError> {
        let ring = IoUring::new(depth).map_err(|e| {
            SysError::from_io("io_uring_setup", "this process", &e, "`sysctl kernel.io_uring_disabled=0` allows it")
        })?;
        Ok(Self { ring, files, flights: Vec::new(), free: Vec::new(), queue: VecDeque::new(), in_kernel: 0 })
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
            assert!(p.file < self.files.len() && p.start + p.len <= len && p.len > 0, "a piece beyond its slot");
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
        let room = self.ring.params().cq_entries() as usize;
        while let Some(&(index, number)) = self.queue.front() {
            if self.in_kernel >= room {
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
                Buffer::Fill(_) => opcode::Read::new(fd, at, len).offset(piece.offset).build(),
                Buffer::Send(_) => opcode::Write::new(fd, at, len).offset(piece.offset).build(),
            }
            .user_data(tag);
            // SAFETY: the buffer is `len` bytes of a slot that the flight owns (or shares, read-only, for a
            // write) until its completion was taken from the ring; the files live as long as the ring.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                self.enter()?;
                continue;
            }
            self.in_kernel += 1;
            self.queue.pop_front();
        }
        self.enter()
    }

    fn enter(&mut self) -> Result<(), SysError> {
        loop {
            if self.ring.submission().is_empty() {
                return Ok(());
            }
            match self.ring.submit() {
                Ok(_) => {}
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {
                    // The kernel is short of something that completions give back.
                    std::thread::yield_now();
                }
                Err(e) => return Err(SysError::from_io("io_uring_enter", "a store", &e, "report this")),
            }
        }
    }

    /// Takes the transfers that are done, each with 0 or the errno of its first piece that failed. A piece cut
    /// short goes on; one beyond the end of its file is `ENODATA`.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn finished(&mut self, done: &mut Vec<(Transfer, i32)>) -> Result<(), SysError> {
        let taken: Vec<(u64, i32)> = self.ring.completion().map(|c| (c.user_data(), c.result())).collect();
        for (tag, result) in taken {
            self.in_kernel -= 1;
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

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring's descriptor is open as long as the ring, from which this borrows.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
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
            let taken = self.ring.completion().count();
            self.in_kernel -= taken.min(self.in_kernel);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.wait_for_all();
    }
}
