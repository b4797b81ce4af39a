//! Files that hold far memory: without a name from the start, so that none is left however a
//! process ends, and for their owner only; and waiting on several descriptors.

use crate::SysError;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use terrace_types::Nanos;

/// A file without a name.
#[derive(Debug)]
pub struct StoreFile {
    /// The file, readable and writable.
    pub file: File,
    /// Its data goes past the page cache.
    pub direct: bool,
}

impl StoreFile {
    /// Makes a file of `len` bytes in `folder` and takes the space for it on the disk.
    ///
    /// `O_TMPFILE` where the file system has it, otherwise a file unlinked at once; `O_DIRECT`
    /// where possible.
    ///
    /// # Errors
    /// No such folder, no permission, or no space (`ENOSPC`).
    pub fn create(folder: &Path, len: u64) -> Result<Self, SysError> {
        Self::made(folder, len, true)
    }

    /// As [`StoreFile::create`], but space is taken only as it is written.
    ///
    /// # Errors
    /// No such folder, or no permission.
    pub fn sparse(folder: &Path, len: u64) -> Result<Self, SysError> {
        Self::made(folder, len, false)
    }

    /// Opens an ordinary file that is there, past the page cache where possible; the same file
    /// through the page cache; and its length.
    ///
    /// # Errors
    /// No such file, no permission, not an ordinary file, an empty one, or another one by that name
    /// a moment later.
    pub fn existing(path: &Path, writable: bool) -> Result<(Self, File, u64), SysError> {
        let target = || path.to_string_lossy().into_owned();
        let open = |flags: i32| {
            // Without waiting, should it be a pipe.
            let flags = flags | libc::O_CLOEXEC | libc::O_NONBLOCK;
            OpenOptions::new().read(true).write(writable).custom_flags(flags).open(path)
        };
        let (file, direct) = match open(libc::O_DIRECT) {
            Ok(file) => (file, true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                let file =
                    open(0).map_err(|e| SysError::from_io("open", target(), &e, "name a file"))?;
                (file, false)
            }
            Err(error) => {
                return Err(SysError::from_io(
                    "open",
                    target(),
                    &error,
                    "name a file that this user may use so",
                ))
            }
        };
        let meta = file
            .metadata()
            .map_err(|e| SysError::from_io("fstat", target(), &e, "name another file"))?;
        if !meta.is_file() || meta.len() == 0 {
            return Err(SysError::from_errno(
                "open",
                target(),
                libc::EINVAL,
                "name an ordinary file that is not empty",
            ));
        }
        let plain = open(0).map_err(|e| {
            SysError::from_io("open", target(), &e, "raise the limit on open files")
        })?;
        let again = plain
            .metadata()
            .map_err(|e| SysError::from_io("fstat", target(), &e, "name another file"))?;
        if (again.dev(), again.ino()) != (meta.dev(), meta.ino()) {
            let remedy = "it was replaced while it was opened: try again";
            return Err(SysError::from_errno("open", target(), libc::ESTALE, remedy));
        }
        Ok((Self { file, direct }, plain, meta.len()))
    }

    fn made(folder: &Path, len: u64, take: bool) -> Result<Self, SysError> {
        let mut last = None;
        for flags in [libc::O_TMPFILE | libc::O_DIRECT, libc::O_TMPFILE] {
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .mode(0o600)
                .custom_flags(flags | libc::O_CLOEXEC | libc::O_EXCL)
                .open(folder);
            match opened {
                Ok(file) => {
                    return Self::sized(file, flags & libc::O_DIRECT != 0, len, folder, take)
                }
                Err(error) => last = Some(error),
            }
        }
        let unsupported =
            last.is_some_and(|e| matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)));
        if !unsupported {
            return Err(SysError::last(
                "open",
                folder.to_string_lossy(),
                "name a folder that this user may write to",
            ));
        }
        Self::unlinked(folder, len, take)
    }

    fn unlinked(folder: &Path, len: u64, take: bool) -> Result<Self, SysError> {
        let fail = |e: &std::io::Error| {
            SysError::from_io(
                "open",
                folder.to_string_lossy(),
                e,
                "name a folder that this user may write to",
            )
        };
        for direct in [true, false] {
            let stamp = crate::now().0;
            let name = folder.join(format!(".terrace-far-{}-{stamp}", std::process::id()));
            let flags =
                libc::O_CLOEXEC | libc::O_NOFOLLOW | if direct { libc::O_DIRECT } else { 0 };
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .custom_flags(flags)
                .open(&name);
            match opened {
                Ok(file) => {
                    std::fs::remove_file(&name).map_err(|e| fail(&e))?;
                    return Self::sized(file, direct, len, folder, take);
                }
                Err(error) if direct && error.raw_os_error() == Some(libc::EINVAL) => {
                    // The file may have been made before O_DIRECT was refused.
                    let _none_is_fine = std::fs::remove_file(&name);
                }
                Err(error) => return Err(fail(&error)),
            }
        }
        Err(SysError::last("open", folder.to_string_lossy(), "name another folder"))
    }

    fn sized(
        file: File,
        direct: bool,
        len: u64,
        folder: &Path,
        take: bool,
    ) -> Result<Self, SysError> {
        // An inherited umask cannot widen the mode, and this narrows what a default ACL may have
        // added.
        let _best_effort = file.set_permissions(std::fs::Permissions::from_mode(0o600));
        if !take {
            let target = format!("{len} bytes in {}", folder.display());
            file.set_len(len)
                .map_err(|e| SysError::from_io("ftruncate", target, &e, "name another folder"))?;
            return Ok(Self { file, direct });
        }
        // SAFETY: takes a descriptor that is open and numbers.
        let status = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len.max(1) as i64) };
        if status != 0 {
            let error = std::io::Error::last_os_error();
            let target = format!("{len} bytes in {}", folder.display());
            match error.raw_os_error() {
                // No fallocate here: space is found, or not, when it is written.
                Some(libc::EOPNOTSUPP) => {
                    file.set_len(len).map_err(|e| {
                        SysError::from_io("ftruncate", target, &e, "free some space")
                    })?;
                }
                _ => {
                    return Err(SysError::from_io(
                        "fallocate",
                        target,
                        &error,
                        "free some space, or name another folder",
                    ))
                }
            }
        }
        Ok(Self { file, direct })
    }
}

/// Which of `fds` can be read, waiting at most `limit` (`None`: for ever). Bit `n` stands for
/// `fds[n]`.
///
/// # Errors
/// What the kernel said.
pub fn wait_readable(fds: &[BorrowedFd<'_>], limit: Option<Nanos>) -> Result<u64, SysError> {
    let mut polls: Vec<libc::pollfd> = fds
        .iter()
        .map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    let span = limit.map(|l| libc::timespec {
        tv_sec: (l.0 / 1_000_000_000) as i64,
        tv_nsec: (l.0 % 1_000_000_000) as i64,
    });
    let span = span.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `polls` is a slice of that length and lives across the call, as does `span`; no
    // signal mask is given.
    let got = unsafe { libc::ppoll(polls.as_mut_ptr(), polls.len() as _, span, std::ptr::null()) };
    if got < 0 {
        let error = std::io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::EINTR) {
            return Ok(0);
        }
        return Err(SysError::from_io("ppoll", "far memory's descriptors", &error, "report this"));
    }
    Ok(polls.iter().enumerate().fold(0, |bits, (n, p)| bits | u64::from(p.revents != 0) << n))
}

/// A descriptor that wakes a waiter.
#[derive(Debug)]
pub struct WakeDescriptor {
    fd: OwnedFd,
    /// Process and thread to signal, where the ringer does not have the descriptor.
    thread: Option<(libc::pid_t, libc::pid_t)>,
}

/// The signal of [`WakeDescriptor::of_this_thread`]: a real-time one, blocked in the thread it is
/// sent to, so that no handler of the program's runs. 64 and 63 are what programs take first.
const RING: libc::c_int = 62;

impl WakeDescriptor {
    /// Makes one.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new() -> Result<Self, SysError> {
        // SAFETY: takes numbers and returns a new descriptor or -1.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        Self::of(fd, "eventfd", None)
    }

    /// Makes one that wakes the calling thread alone, and can be rung by threads with other
    /// descriptors than its own. The thread's signals are blocked ([`SignalsBlocked`]).
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn of_this_thread() -> Result<Self, SysError> {
        // SAFETY: a signal set is plain numbers; all zeros is an empty one, and the set lives
        // across the calls.
        let fd = unsafe {
            let mut set = std::mem::zeroed();
            libc::sigaddset(&mut set, RING);
            libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        // SAFETY: both calls take and return numbers.
        let thread = unsafe { (libc::getpid(), libc::gettid()) };
        Self::of(fd, "signalfd", Some(thread))
    }

    fn of(
        fd: libc::c_int,
        call: &'static str,
        thread: Option<(libc::pid_t, libc::pid_t)>,
    ) -> Result<Self, SysError> {
        if fd < 0 {
            return Err(SysError::last(call, "this process", "raise the limit on open files"));
        }
        // SAFETY: the kernel has just given us this descriptor; nobody else has it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, thread })
    }

    /// Wakes whoever waits for it.
    pub fn ring(&self) {
        if let Some((process, thread)) = self.thread {
            // SAFETY: takes numbers; the signal is blocked there and read from the descriptor.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, RING) };
            return;
        }
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight readable bytes; a counter at its limit refuses, and then it is readable
        // already.
        unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes it silent again.
    pub fn hush(&self) {
        // A count, or signals of 128 bytes each: as many as there are.
        let mut taken = [0_u8; 16 * 128];
        loop {
            let wanted = if self.thread.is_some() { taken.len() } else { 8 };
            // SAFETY: so many writable bytes.
            let got = unsafe { libc::read(self.fd.as_raw_fd(), taken.as_mut_ptr().cast(), wanted) };
            if got < taken.len() as isize {
                return;
            }
        }
    }
}

/// Gives the calling thread descriptors of its own, and closes all that it had but standard error:
/// what it opens from now on no other thread of the program sees, closes or hands to its children.
///
/// # Errors
/// When the kernel refuses to part them.
pub fn own_descriptors() -> Result<(), SysError> {
    // SAFETY: takes a number. The calling thread's table is a copy from here on, so that what is
    // closed below stays open for every other thread.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return Err(SysError::last("unshare", "descriptors", "report this"));
    }
    for (first, last) in [(0, 1), (3, libc::c_uint::MAX)] {
        // SAFETY: closes descriptors of this thread's own table, of which nothing here holds one.
        unsafe { libc::syscall(libc::SYS_close_range, first as libc::c_uint, last, 0) };
    }
    Ok(())
}

impl std::os::fd::AsFd for WakeDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// While it lives, the calling thread, and threads that it starts, take no signals.
///
/// A pager's thread must not run the program's signal handlers: one that touches far memory would
/// wait for itself.
#[derive(Debug)]
pub struct SignalsBlocked {
    before: libc::sigset_t,
}

impl SignalsBlocked {
    /// Blocks all signals that can be blocked.
    #[must_use]
    pub fn new() -> Self {
        // SAFETY: a signal set is plain numbers; all zeros is an empty one.
        let (mut all, mut before) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: both sets are ours and live across the calls, which concern this thread's mask
        // alone.
        unsafe {
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        }
        Self { before }
    }
}

impl Default for SignalsBlocked {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set was filled by the kernel in `new`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_store_file_has_no_name_and_its_owner_only() {
        let folder = std::env::temp_dir().join(format!("terrace-storefile-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for made in [
            StoreFile::create(&folder, 1 << 16),
            StoreFile::unlinked(&folder, 1 << 16, true),
            StoreFile::sparse(&folder, 1 << 16),
        ] {
            let meta = made.unwrap().file.metadata().unwrap();
            assert_eq!((meta.len(), meta.mode() & 0o777, meta.nlink()), (1 << 16, 0o600, 0));
        }
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        std::fs::remove_dir(&folder).unwrap();
        assert!(StoreFile::create(&folder, 1).is_err());
    }

    #[test]
    fn a_bell_is_heard_until_hushed() {
        let (a, b) = (WakeDescriptor::new().unwrap(), WakeDescriptor::new().unwrap());
        let heard = || wait_readable(&[a.as_fd(), b.as_fd()], Some(Nanos::ZERO)).unwrap();
        assert_eq!(heard(), 0);
        b.ring();
        b.ring();
        assert_eq!(heard(), 2);
        b.hush();
        assert_eq!(heard(), 0);
    }

    #[test]
    fn a_threads_bell_is_rung_from_outside_and_its_descriptors_are_its_own() {
        let (tell, reported) = std::sync::mpsc::channel();
        let quiet = SignalsBlocked::new();
        let waiter = std::thread::spawn(move || {
            own_descriptors().unwrap();
            let bell = std::sync::Arc::new(WakeDescriptor::of_this_thread().unwrap());
            tell.send((std::sync::Arc::clone(&bell), bell.fd.as_raw_fd())).unwrap();
            let heard = wait_readable(&[bell.as_fd()], Some(Nanos::secs(20))).unwrap();
            bell.hush();
            (heard, wait_readable(&[bell.as_fd()], Some(Nanos::ZERO)).unwrap())
        });
        drop(quiet);
        let (bell, fd) = reported.recv().unwrap();
        let name = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        assert!(!name.to_string_lossy().contains("signalfd"), "{name:?}");
        bell.ring();
        bell.ring();
        assert_eq!(waiter.join().unwrap(), (1, 0));
        // Its number may be another descriptor's here: the thread's table is gone, and with it the
        // bell.
        std::mem::forget(bell);
    }
}
