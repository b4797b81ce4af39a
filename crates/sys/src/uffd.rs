//! `userfaultfd(2)`: faults on missing and on write-protected pages, told to a program instead of
//! being resolved by the kernel (kernel: `fs/userfaultfd.c`, `include/uapi/linux/userfaultfd.h`).
//!
//! What this kernel can do is asked for, never inferred from its version ([`UffdFeatures`]).

use crate::SysError;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use terrace_types::Tid;

const UFFD_API: u64 = 0xAA;
const IOC_API: u64 = 0xc018_aa3f;
const IOC_REGISTER: u64 = 0xc020_aa00;
const IOC_UNREGISTER: u64 = 0x8010_aa01;
const IOC_WAKE: u64 = 0x8010_aa02;
const IOC_COPY: u64 = 0xc028_aa03;
const IOC_MOVE: u64 = 0xc028_aa05;
const IOC_WRITEPROTECT: u64 = 0xc018_aa06;
const IOC_POISON: u64 = 0xc020_aa08;
/// `USERFAULTFD_IOC_NEW` of `/dev/userfaultfd`.
const IOC_NEW: u64 = 0xaa00;

const FEATURE_WP: u64 = 1;
const FEATURE_THREAD_ID: u64 = 1 << 8;
const FEATURE_POISON: u64 = 1 << 14;
const FEATURE_MOVE: u64 = 1 << 16;

const USER_MODE_ONLY: libc::c_int = 1;
const EVENT_PAGEFAULT: u8 = 0x12;
const FAULT_WRITE: u64 = 1;
const FAULT_WP: u64 = 2;

const REMEDY: &str =
    "run as root, or `sysctl vm.unprivileged_userfaultfd=1`, or give this user /dev/userfaultfd";

/// What the opened userfaultfd can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UffdFeatures {
    /// Pages can be write-protected, so clean ones are known. Since Linux 5.7.
    pub write_protect: bool,
    /// Pages can be moved instead of copied. Since Linux 6.8.
    pub move_pages: bool,
    /// A page can be made to raise SIGBUS. Since Linux 6.6.
    pub poison: bool,
    /// Each event names the thread that faulted. Since Linux 4.14.
    pub thread_id: bool,
    /// System calls that touch a missing page wait for it too; without, they fail with EFAULT.
    pub kernel_faults: bool,
}

/// A fault that somebody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Faulting address, rounded down to a page.
    pub address: u64,
    /// The thread, 0 where the kernel does not tell.
    pub tid: Tid,
    /// The access was a write.
    pub write: bool,
    /// The page was there and write-protected.
    pub protected: bool,
}

#[repr(C)]
#[derive(Default)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `uffdio_copy` and `uffdio_move` have one layout.
#[repr(C)]
#[derive(Default)]
struct Transfer {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
}

#[repr(C)]
#[derive(Default)]
struct Protect {
    start: u64,
    len: u64,
    mode: u64,
}

#[repr(C)]
#[derive(Default)]
struct Poison {
    start: u64,
    len: u64,
    mode: u64,
    updated: i64,
}

/// `struct uffd_msg`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    tid: u32,
    rest: u32,
}

/// Events taken by one read.
const EVENTS: usize = 128;

/// An open userfaultfd.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    features: UffdFeatures,
}

impl Uffd {
    /// Opens one with all that this kernel can do of what Terrace uses.
    ///
    /// Tried in turn: the system call, `/dev/userfaultfd`, and the system call for faults of user
    /// code only, which needs no permission ([`UffdFeatures::kernel_faults`] is then false).
    ///
    /// # Errors
    /// [`SysError::NotPermitted`] with what to set; [`SysError::Absent`] where the kernel has none.
    pub fn open() -> Result<Self, SysError> {
        let (probe, _) = raw_open()?;
        let offered = handshake(&probe, 0)?;
        drop(probe);
        let wanted = offered & (FEATURE_WP | FEATURE_THREAD_ID | FEATURE_POISON | FEATURE_MOVE);
        let (fd, kernel_faults) = raw_open()?;
        handshake(&fd, wanted)?;
        let features = UffdFeatures {
            write_protect: wanted & FEATURE_WP != 0,
            move_pages: wanted & FEATURE_MOVE != 0,
            poison: wanted & FEATURE_POISON != 0,
            thread_id: wanted & FEATURE_THREAD_ID != 0,
            kernel_faults,
        };
        Ok(Self { fd, features })
    }

    /// What it can do.
    #[must_use]
    pub const fn features(&self) -> UffdFeatures {
        self.features
    }

    /// Takes the events that wait, at most some hundred, without blocking.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn events(&self, into: &mut Vec<Fault>) -> Result<(), SysError> {
        let mut messages = [Message::default(); EVENTS];
        // SAFETY: the descriptor is open; the buffer is EVENTS plain structures of the kernel's
        // layout (32 bytes each), valid for any bit pattern, and lives across the call.
        let got = unsafe {
            libc::read(
                self.fd.as_raw_fd(),
                messages.as_mut_ptr().cast(),
                std::mem::size_of_val(&messages),
            )
        };
        if got < 0 {
            let error = std::io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(()),
                _ => Err(SysError::from_io("read", "userfaultfd", &error, "report this")),
            };
        }
        let count = usize::try_from(got).unwrap_or(0) / std::mem::size_of::<Message>();
        into.extend(messages[..count].iter().filter(|m| m.event == EVENT_PAGEFAULT).map(|m| {
            Fault {
                address: m.address & !0xfff,
                tid: Tid(i32::try_from(m.tid).unwrap_or(0)),
                write: m.flags & FAULT_WRITE != 0,
                protected: m.flags & FAULT_WP != 0,
            }
        }));
        Ok(())
    }

    /// Asks for the faults of `len` bytes from `start`: of missing pages, of protected ones, or
    /// both.
    pub(crate) fn register(
        &self,
        start: u64,
        len: u64,
        missing: bool,
        protected: bool,
    ) -> Result<(), SysError> {
        let mode = u64::from(missing) | u64::from(protected) << 1;
        let mut arg = Register { start, len, mode, ioctls: 0 };
        self.call(IOC_REGISTER, &mut arg).map_err(|e| self.fail("UFFDIO_REGISTER", e))
    }

    /// Asks no longer for the faults of `len` bytes from `start`: the kernel resolves them. Wakes
    /// those who wait, and ends the protection of pages that are there.
    pub(crate) fn unregister(&self, start: u64, len: u64) -> Result<(), SysError> {
        let mut arg = [start, len];
        self.call(IOC_UNREGISTER, &mut arg).map_err(|e| self.fail("UFFDIO_UNREGISTER", e))
    }

    /// Fills missing pages at `dst` from `src`. Wakes those who wait for them, if asked to.
    /// `protect` installs them write-protected. Returns the bytes done and the errno that ended it
    /// early.
    pub(crate) fn copy(
        &self,
        dst: u64,
        src: u64,
        len: u64,
        protect: bool,
        wake: bool,
    ) -> (u64, i32) {
        self.transfer(IOC_COPY, dst, src, len, u64::from(protect) << 1 | u64::from(!wake))
    }

    /// Moves present pages at `src` to missing ones at `dst`, for which nobody waits. As
    /// [`Uffd::copy`].
    pub(crate) fn move_to(&self, dst: u64, src: u64, len: u64) -> (u64, i32) {
        self.transfer(IOC_MOVE, dst, src, len, 1)
    }

    fn transfer(&self, request: u64, dst: u64, src: u64, len: u64, mode: u64) -> (u64, i32) {
        let mut done = 0;
        while done < len {
            let mut arg =
                Transfer { dst: dst + done, src: src + done, len: len - done, mode, done: 0 };
            match self.call(request, &mut arg) {
                Ok(()) => return (len, 0),
                Err(libc::EAGAIN) => {
                    // Part was done (or nothing, while mappings change); the rest is asked for
                    // anew.
                    done += u64::try_from(arg.done).unwrap_or(0);
                }
                Err(errno) => {
                    done += u64::try_from(arg.done).unwrap_or(0);
                    return (done, errno);
                }
            }
        }
        (done, 0)
    }

    /// Write-protects present pages, or allows writing and wakes the writers.
    pub(crate) fn protect(&self, start: u64, len: u64, on: bool) -> Result<(), SysError> {
        loop {
            let mut arg = Protect { start, len, mode: u64::from(on) };
            match self.call(IOC_WRITEPROTECT, &mut arg) {
                Ok(()) => return Ok(()),
                Err(libc::EAGAIN) => {}
                Err(errno) => return Err(self.fail("UFFDIO_WRITEPROTECT", errno)),
            }
        }
    }

    /// Wakes those who wait in a range; they try their access again.
    pub(crate) fn wake(&self, start: u64, len: u64) -> Result<(), SysError> {
        let mut arg = [start, len];
        self.call(IOC_WAKE, &mut arg).map_err(|e| self.fail("UFFDIO_WAKE", e))
    }

    /// Makes missing pages raise SIGBUS, and wakes those who wait for them.
    pub(crate) fn poison(&self, start: u64, len: u64) -> Result<(), SysError> {
        let mut done = 0;
        while done < len {
            let mut arg = Poison { start: start + done, len: len - done, mode: 0, updated: 0 };
            match self.call(IOC_POISON, &mut arg) {
                Ok(()) => return Ok(()),
                // Poisoned before: over the first page, which is as asked.
                Err(libc::EEXIST) => done += crate::page_size().get(),
                Err(libc::EAGAIN) => done += u64::try_from(arg.updated).unwrap_or(0),
                Err(errno) => return Err(self.fail("UFFDIO_POISON", errno)),
            }
        }
        Ok(())
    }

    fn call<T>(&self, request: u64, arg: &mut T) -> Result<(), i32> {
        ioctl(self.fd.as_raw_fd(), request, arg)
    }

    fn fail(&self, call: &'static str, errno: i32) -> SysError {
        SysError::from_errno(
            call,
            "userfaultfd",
            errno,
            "this range cannot be managed; report this",
        )
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An ioctl with a structure of the layout that `request` states; errno on failure.
fn ioctl<T>(fd: RawFd, request: u64, arg: &mut T) -> Result<(), i32> {
    // SAFETY: every caller passes the `repr(C)` structure whose size the request's number encodes;
    // it lives across the call. Ranges named in it are checked by the kernel against our mappings;
    // what they do to the memory behind is the contract of the callers in `farmem`.
    let status = unsafe { libc::ioctl(fd, request as _, std::ptr::from_mut(arg)) };
    if status < 0 {
        Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    } else {
        Ok(())
    }
}

fn raw_open() -> Result<(OwnedFd, bool), SysError> {
    let first = match new_by_call(0) {
        Ok(fd) => return Ok((fd, true)),
        Err(errno) => errno,
    };
    if let Ok(device) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/userfaultfd")
    {
        // SAFETY: the request takes flags by value and returns a new descriptor or -1.
        let fd = unsafe {
            libc::ioctl(device.as_raw_fd(), IOC_NEW as _, libc::O_CLOEXEC | libc::O_NONBLOCK)
        };
        if fd >= 0 {
            // SAFETY: the kernel has just given us this descriptor; nobody else has it.
            return Ok((unsafe { OwnedFd::from_raw_fd(fd) }, true));
        }
    }
    match new_by_call(USER_MODE_ONLY) {
        Ok(fd) => Ok((fd, false)),
        Err(_) => Err(SysError::from_errno("userfaultfd", "this process", first, REMEDY)),
    }
}

fn new_by_call(flags: libc::c_int) -> Result<OwnedFd, i32> {
    // SAFETY: the call takes flags by value and returns a new descriptor or -1.
    let fd =
        unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | flags) };
    match RawFd::try_from(fd) {
        // SAFETY: the kernel has just given us this descriptor; nobody else has it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
    }
}

fn handshake(fd: &OwnedFd, features: u64) -> Result<u64, SysError> {
    let mut api = Api { api: UFFD_API, features, ioctls: 0 };
    ioctl(fd.as_raw_fd(), IOC_API, &mut api)
        .map_err(|errno| SysError::from_errno("UFFDIO_API", "userfaultfd", errno, REMEDY))?;
    Ok(api.features)
}
