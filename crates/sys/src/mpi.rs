//! Messages between the ranks of an MPI job (MPI 3.1, chapter 3: point-to-point communication).
//! MPI ends the job when one of its calls fails.

use crate::SysError;
use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

/// How long messages that nobody receives are waited for at the end; not measured.
const DRAIN: Duration = Duration::from_secs(10);

extern "C" {
    fn terrace_mpi_start(rank: *mut c_int, size: *mut c_int) -> c_int;
    fn terrace_mpi_send(bytes: *const u8, length: c_int, to: c_int) -> *mut c_void;
    fn terrace_mpi_sent(request: *mut c_void) -> c_int;
    fn terrace_mpi_probe(from: *mut c_int, length: *mut c_int) -> c_int;
    fn terrace_mpi_receive(bytes: *mut u8, length: c_int, from: c_int);
    fn terrace_mpi_stop();
    fn terrace_mpi_abort();
}

/// All ranks, as one of them sees them. It stays with the thread that started MPI, and MPI is
/// stopped when it is dropped, which waits for the messages under way.
#[derive(Debug)]
pub struct MpiWorld {
    rank: u32,
    size: u32,
    /// Bytes under way, and MPI's requests that have them.
    sending: Vec<(Vec<u8>, *mut c_void)>,
}

impl MpiWorld {
    /// Starts MPI, once in a process.
    ///
    /// # Errors
    /// It was started before, or cannot be.
    pub fn start() -> Result<Self, SysError> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: both live across the call.
        if unsafe { terrace_mpi_start(&mut rank, &mut size) } != 0 {
            let remedy = "start it once, by mpirun";
            return Err(SysError::from_errno("MPI_Init", "MPI", libc::EINVAL, remedy));
        }
        Ok(Self { rank: rank.unsigned_abs(), size: size.unsigned_abs(), sending: Vec::new() })
    }

    /// This rank.
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.rank
    }

    /// How many there are.
    #[must_use]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Sends bytes, at most 2 GiB; ranks that are not there get none.
    pub fn send(&mut self, to: u32, bytes: Vec<u8>) {
        self.forget_sent();
        if let (true, Ok(length)) = (to < self.size, c_int::try_from(bytes.len())) {
            // SAFETY: the bytes' heap memory stays where it is until MPI is done with it.
            let request = unsafe { terrace_mpi_send(bytes.as_ptr(), length, to as c_int) };
            if !request.is_null() {
                self.sending.push((bytes, request));
            }
        }
    }

    /// Drops the bytes that MPI is done with.
    fn forget_sent(&mut self) {
        // SAFETY: each request is tested until it is done, and never again.
        self.sending.retain(|(_, request)| unsafe { terrace_mpi_sent(*request) } == 0);
    }

    /// The next message and its sender, if one is there.
    pub fn receive(&mut self) -> Option<(u32, Vec<u8>)> {
        self.forget_sent();
        let (mut from, mut length) = (0, 0);
        // SAFETY: both live across the call.
        if unsafe { terrace_mpi_probe(&mut from, &mut length) } == 0 {
            return None;
        }
        let mut bytes = vec![0; length.unsigned_abs() as usize];
        // SAFETY: there are `length` bytes, as many as the message has; it comes from `from` and is
        // the one that was seen, since ranks receive in one thread (the type is not `Send`).
        unsafe { terrace_mpi_receive(bytes.as_mut_ptr(), length, from) };
        Some((from.unsigned_abs(), bytes))
    }
}

impl Drop for MpiWorld {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // SAFETY: MPI was started; it ends all ranks, which would wait for this one.
            unsafe { terrace_mpi_abort() };
        }
        let began = Instant::now();
        while !self.sending.is_empty() {
            if began.elapsed() > DRAIN {
                // SAFETY: MPI was started; a rank that receives no more would be waited for.
                unsafe { terrace_mpi_abort() };
            }
            self.forget_sent();
            std::thread::yield_now();
        }
        // SAFETY: MPI was started, and this value, which alone calls it, is gone.
        unsafe { terrace_mpi_stop() };
    }
}
