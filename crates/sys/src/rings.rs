//! Rings of bytes in memory that processes share, one from each endpoint to each other, and a bell
//! for each endpoint (`futex(2)`).

use crate::{SharedFile, SysError};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of a ring, a power of two. Twice as many let a writer be further ahead; half make it wait
/// for its reader more often. Small messages take tens of bytes.
const RING_BYTES: usize = 16 << 10;
/// Bytes between what two processes write, two cache lines: processors fetch lines in pairs.
const APART: usize = 128;
/// Head, tail and data of a ring.
const RING_STRIDE: usize = 2 * APART + RING_BYTES;
/// Endpoints at most: their rings then span a gigabyte, of which what is used takes memory.
const MOST_ENDPOINTS: u32 = 256;
/// Looks at the bell before the processor is given away, then before the kernel is asked to wait.
const SPINS: u32 = 64;
const YIELDS: u32 = 16;
/// A wait ends after this at the latest, so that its caller sees what rang no bell.
const WAIT: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// One endpoint of a mesh of rings. Bytes sent to another arrive there in order.
#[derive(Debug)]
pub struct RingEndpoint {
    file: SharedFile,
    own: u32,
    endpoints: u32,
}

/// Where an endpoint's words are: whether it is in use, its bell, and whether it sleeps.
#[derive(Debug, Clone, Copy)]
enum EndpointWord {
    Used = 0,
    Bell = 1,
    Sleeps = 2,
}

fn mesh_bytes(endpoints: u32) -> usize {
    let endpoints = endpoints.clamp(1, MOST_ENDPOINTS) as usize;
    endpoints * APART + endpoints * endpoints * RING_STRIDE
}

/// Memory for the rings of so many endpoints, at most 256; each is then opened once by the
/// memory's descriptor.
///
/// # Errors
/// What the kernel said; too many endpoints.
pub fn make_rings(endpoints: u32) -> Result<SharedFile, SysError> {
    if !(1..=MOST_ENDPOINTS).contains(&endpoints) {
        let target = format!("rings of {endpoints} endpoints");
        return Err(SysError::from_errno("ftruncate", target, libc::EINVAL, "take 1 to 256"));
    }
    SharedFile::unnamed(mesh_bytes(endpoints))
}

impl RingEndpoint {
    /// Endpoint `own` of the rings of [`make_rings`].
    ///
    /// # Errors
    /// Other memory, or an endpoint that there is not or that was opened before.
    pub fn open(fd: OwnedFd, own: u32, endpoints: u32) -> Result<Self, SysError> {
        let file = SharedFile::of_fd(fd, mesh_bytes(endpoints))?;
        let wrong = |errno| {
            let target = format!("endpoint {own} of {endpoints}");
            SysError::from_errno("mmap", target, errno, "open each endpoint once")
        };
        // Rings of another number of endpoints lie elsewhere in memory of another size.
        let fits = file.len() == mesh_bytes(endpoints);
        if own >= endpoints || endpoints > MOST_ENDPOINTS || !fits {
            return Err(wrong(libc::EINVAL));
        }
        let made = Self { file, own, endpoints };
        match made.word(own, EndpointWord::Used).swap(1, Ordering::AcqRel) {
            0 => Ok(made),
            _ => Err(wrong(libc::EBUSY)),
        }
    }

    /// Which endpoint it is.
    #[must_use]
    pub const fn own(&self) -> u32 {
        self.own
    }

    /// Endpoints that there are.
    #[must_use]
    pub const fn endpoints(&self) -> u32 {
        self.endpoints
    }

    /// The memory's descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.fd()
    }

    fn word(&self, endpoint: u32, word: EndpointWord) -> &AtomicU32 {
        let at = endpoint.min(self.endpoints - 1) as usize * APART + word as usize * 4;
        // SAFETY: within the mapping, whose length was checked; aligned, since the mapping is; all
        // processes access it as an atomic word only. It lives as long as `self`.
        unsafe { &*self.file.as_ptr().add(at).cast::<AtomicU32>() }
    }

    /// Where the ring between two endpoints begins.
    fn ring(&self, from: u32, to: u32) -> usize {
        let n = self.endpoints as usize;
        let last = self.endpoints - 1;
        let (from, to) = (from.min(last) as usize, to.min(last) as usize);
        n * APART + (from * n + to) * RING_STRIDE
    }

    /// Bytes that were ever read from a ring (0), and written to it (1).
    fn count(&self, ring: usize, which: usize) -> &AtomicU64 {
        // SAFETY: as in `word`; rings begin at multiples of 128.
        unsafe { &*self.file.as_ptr().add(ring + which * APART).cast::<AtomicU64>() }
    }

    fn data(&self, ring: usize, count: u64) -> (*mut u8, usize) {
        let at = count as usize % RING_BYTES;
        // SAFETY: within the mapping, as `at` is below the ring's bytes.
        (unsafe { self.file.as_ptr().add(ring + 2 * APART + at) }, RING_BYTES - at)
    }

    /// Puts as many of the bytes on their way as fit; how many.
    pub fn write(&mut self, to: u32, bytes: &[u8]) -> usize {
        let ring = self.ring(self.own, to);
        let written = self.count(ring, 1).load(Ordering::Relaxed);
        let read = self.count(ring, 0).load(Ordering::Acquire);
        // A count that cannot be is somebody's damage: nothing fits then.
        let used = usize::try_from(written.wrapping_sub(read)).unwrap_or(RING_BYTES);
        let fits = bytes.len().min(RING_BYTES.saturating_sub(used));
        let (first, space) = self.data(ring, written);
        let split = fits.min(space);
        // SAFETY: the ring's free bytes, which its reader does not touch before the count below is
        // stored. This is its only writer: an endpoint is opened once, all
        // openers have as many endpoints, since the memory's size fixes them, and `self` is
        // exclusive. Other processes are trusted to follow the protocol.
        unsafe {
            first.copy_from_nonoverlapping(bytes.as_ptr(), split);
            let (start, _) = self.data(ring, 0);
            start.copy_from_nonoverlapping(bytes.as_ptr().add(split), fits - split);
        }
        if fits > 0 {
            self.count(ring, 1).store(written.wrapping_add(fits as u64), Ordering::Release);
            self.wake(to);
        }
        fits
    }

    /// Appends what has arrived; how many bytes.
    pub fn read(&mut self, from: u32, into: &mut Vec<u8>) -> usize {
        let ring = self.ring(from, self.own);
        let read = self.count(ring, 0).load(Ordering::Relaxed);
        let written = self.count(ring, 1).load(Ordering::Acquire);
        let there = usize::try_from(written.wrapping_sub(read)).unwrap_or(0).min(RING_BYTES);
        if there == 0 {
            return 0;
        }
        let (first, space) = self.data(ring, read);
        let (start, _) = self.data(ring, 0);
        let split = there.min(space);
        let before = into.len();
        into.reserve(there);
        // SAFETY: the ring's written bytes, which its writer does not touch before the count below
        // is stored; `into` has capacity for them, and they are initialized then.
        unsafe {
            let end = into.as_mut_ptr().add(before);
            end.copy_from_nonoverlapping(first, split);
            end.add(split).copy_from_nonoverlapping(start, there - split);
            into.set_len(before + there);
        }
        self.count(ring, 0).store(read.wrapping_add(there as u64), Ordering::Release);
        // Its writer may wait for space.
        self.wake(from);
        there
    }

    fn wake(&self, endpoint: u32) {
        let bell = self.word(endpoint, EndpointWord::Bell);
        bell.fetch_add(1, Ordering::SeqCst);
        if self.word(endpoint, EndpointWord::Sleeps).load(Ordering::SeqCst) != 0 {
            // SAFETY: the word outlives the call; waking nobody is no error.
            unsafe { libc::syscall(libc::SYS_futex, bell.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
        }
    }

    /// How often this endpoint's bell has rung: for reads and writes at its rings' other ends.
    #[must_use]
    pub fn rings(&self) -> u32 {
        self.word(self.own, EndpointWord::Bell).load(Ordering::SeqCst)
    }

    /// Waits until the bell has rung more often than `seen`, 50 ms at most.
    pub fn wait(&mut self, seen: u32) {
        for turn in 0..SPINS + YIELDS {
            if self.rings() != seen {
                return;
            }
            if turn < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        let sleeps = self.word(self.own, EndpointWord::Sleeps);
        sleeps.store(1, Ordering::SeqCst);
        if self.rings() == seen {
            let bell = self.word(self.own, EndpointWord::Bell).as_ptr();
            // SAFETY: word and time outlive the call; the caller looks again whatever comes of it.
            unsafe { libc::syscall(libc::SYS_futex, bell, libc::FUTEX_WAIT, seen, &WAIT) };
        }
        sleeps.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_in_order_between_threads_that_wait_for_each_other() {
        let memory = make_rings(2).unwrap();
        let open = |own| RingEndpoint::open(memory.fd().try_clone_to_owned().unwrap(), own, 2);
        let (mut here, mut there) = (open(0).unwrap(), open(1).unwrap());
        assert!(open(1).is_err() && open(2).is_err() && make_rings(257).is_err());
        let sent: Vec<u8> = (0..200_000_u32).map(|n| ((n * 7) >> 3) as u8).collect();
        let echo = std::thread::spawn(move || {
            let mut left = 200_000;
            while left > 0 {
                let (seen, mut bytes) = (there.rings(), Vec::new());
                left -= there.read(0, &mut bytes);
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let seen = there.rings();
                    match there.write(0, rest) {
                        0 => there.wait(seen),
                        count => rest = &rest[count..],
                    }
                }
                if bytes.is_empty() {
                    there.wait(seen);
                }
            }
        });
        let (mut back, mut rest) = (Vec::new(), &sent[..]);
        while back.len() < sent.len() {
            let seen = here.rings();
            let written = here.write(1, rest);
            rest = &rest[written..];
            if here.read(1, &mut back) + written == 0 {
                here.wait(seen);
            }
        }
        echo.join().unwrap();
        assert!(back == sent);
    }
}
