//! Memory that several processes map: files of `/dev/shm` or without a name, and a lock that lies
//! in such memory and comes back when the process dies that holds it
//! (`pthread_mutexattr_setrobust(3)`, kernel: `kernel/futex/core.c`).

use crate::{reserve_range, SysError, Uffd};
use std::cell::UnsafeCell;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::ptr::NonNull;

/// Where `shm_open(3)` has its names.
const FOLDER: &str = "/dev/shm";
/// What a mapping's start is aligned to: a huge page.
const ALIGN: usize = 2 << 20;

fn path_of(name: &str) -> PathBuf {
    PathBuf::from(FOLDER).join(name)
}

/// A file in memory, mapped whole, readable and writable; unmapped when dropped.
#[derive(Debug)]
pub struct SharedFile {
    fd: OwnedFd,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned by this value alone; nothing here reads or writes its bytes but by
// system calls. Who does so through the pointer proves it there.
unsafe impl Send for SharedFile {}
// SAFETY: as above; every method takes `&self` and makes system calls only.
unsafe impl Sync for SharedFile {}

impl SharedFile {
    /// A file of `len` bytes without a name, for those who get its descriptor; it can never be cut,
    /// so that no access behind a new end kills anybody.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn unnamed(len: usize) -> Result<Self, SysError> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name ends with zero; the result is checked.
        let raw = unsafe { libc::memfd_create(c"terrace-shared".as_ptr(), flags) };
        if raw < 0 {
            return Err(SysError::last("memfd_create", "shared memory", "raise ulimit -n"));
        }
        // SAFETY: a descriptor of ours, just made.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let made = Self::sized(fd, len)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: takes a descriptor and numbers.
        if unsafe { libc::fcntl(made.fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(SysError::last("fcntl", "shared memory", "give it a name instead"));
        }
        Ok(made)
    }

    /// A file of `len` bytes that nobody sees before [`SharedFile::publish`]; it is gone if that
    /// never comes.
    ///
    /// # Errors
    /// What the kernel said; a system without `/dev/shm`.
    pub fn unpublished(len: usize) -> Result<Self, SysError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC)
            .open(FOLDER)
            .map_err(|e| {
                SysError::from_io("open", FOLDER, &e, "mount a tmpfs there, or share by descriptor")
            })?;
        Self::sized(file.into(), len)
    }

    fn sized(fd: OwnedFd, len: usize) -> Result<Self, SysError> {
        let file = File::from(fd);
        file.set_len(len as u64).map_err(|e| {
            SysError::from_io(
                "ftruncate",
                format!("{len} bytes of shared memory"),
                &e,
                "ask for less",
            )
        })?;
        Self::map(file.into(), len)
    }

    /// Gives the file its name, all at once: who opens it finds what was written before.
    ///
    /// # Errors
    /// The name is taken (`EEXIST`), or what the kernel said.
    pub fn publish(&self, name: &str) -> Result<(), SysError> {
        let target = path_of(name);
        let text = |path: String| std::ffi::CString::new(path).unwrap_or_default();
        let from = text(format!("/proc/self/fd/{}", self.fd.as_raw_fd()));
        let to = text(target.to_string_lossy().into_owned());
        // SAFETY: both strings end with zero and live across the call.
        let done = unsafe {
            libc::linkat(
                libc::AT_FDCWD,
                from.as_ptr(),
                libc::AT_FDCWD,
                to.as_ptr(),
                libc::AT_SYMLINK_FOLLOW,
            )
        };
        if done == 0 {
            return Ok(());
        }
        Err(SysError::last(
            "linkat",
            target.to_string_lossy(),
            "open the one that is there, or remove it first",
        ))
    }

    /// Opens and maps the file of that name, of `least` bytes or more.
    ///
    /// # Errors
    /// No such name, no permission, a file that is too short; what the kernel said.
    pub fn open(name: &str, least: usize) -> Result<Self, SysError> {
        let path = path_of(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(&path)
            .map_err(|e| {
                SysError::from_io(
                    "open",
                    path.to_string_lossy(),
                    &e,
                    "let its creator make it first",
                )
            })?;
        Self::of_fd(file.into(), least)
    }

    /// Maps the file of a descriptor, of `least` bytes or more.
    ///
    /// # Errors
    /// No file in memory, or one that is too short; what the kernel said.
    pub fn of_fd(fd: OwnedFd, least: usize) -> Result<Self, SysError> {
        let file = File::from(fd);
        let wrong = |errno| {
            SysError::from_errno(
                "fstat",
                "shared memory",
                errno,
                "give a file that was made for sharing",
            )
        };
        let meta = file.metadata().map_err(|e| wrong(e.raw_os_error().unwrap_or(0)))?;
        let len = usize::try_from(meta.len()).unwrap_or(0);
        if !meta.is_file() || len < least {
            return Err(wrong(libc::EINVAL));
        }
        Self::map(file.into(), len)
    }

    fn map(fd: OwnedFd, len: usize) -> Result<Self, SysError> {
        let at = reserve_range(len.next_multiple_of(crate::page_size().get() as usize), ALIGN)?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: replaces the range reserved just now, which nobody else knows of.
        let raw =
            unsafe { libc::mmap(at as *mut libc::c_void, len, rights, flags, fd.as_raw_fd(), 0) };
        match NonNull::new(raw.cast::<u8>()).filter(|_| raw != libc::MAP_FAILED) {
            Some(base) => Ok(Self { fd, base, len }),
            None => {
                let error = SysError::last(
                    "mmap",
                    format!("{len} bytes of shared memory"),
                    "open it for writing",
                );
                // SAFETY: the reservation is ours and holds nothing.
                unsafe { libc::munmap(at as *mut libc::c_void, len) };
                Err(error)
            }
        }
    }

    /// Its first byte; valid for [`SharedFile::len`] bytes while this lives, and as long as nobody
    /// cuts the file.
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its descriptor, to be handed to other processes.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Takes memory for a part, so that touching it cannot fail.
    ///
    /// # Errors
    /// No space (`ENOSPC`, `ENOMEM`).
    pub fn take(&self, part: Range<usize>) -> Result<(), SysError> {
        self.allocate(0, &part, "free some memory, or make the file system of /dev/shm larger")
    }

    /// Gives the memory of a part back; it reads as zero afterwards.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn give_back(&self, part: Range<usize>) -> Result<(), SysError> {
        self.allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, &part, "keep it")
    }

    /// Registers the mapping for write-protection faults of which none come, since nothing is
    /// protected. As long as the userfaultfd lives, the kernel maps no neighbours of a page that is
    /// touched.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn register(&self, uffd: &Uffd) -> Result<(), SysError> {
        let bytes = self.len.next_multiple_of(crate::page_size().get() as usize);
        uffd.register(self.base.as_ptr() as u64, bytes as u64, false, true)
    }

    /// Takes the page-table entries of a part of the mapping away; the file keeps its contents. A
    /// part that begins within a page, or behind the file's end, is refused by the kernel.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn zap(&self, part: Range<usize>) -> Result<(), SysError> {
        let page = crate::page_size().get() as usize;
        if part.start > part.end || part.end > self.len.next_multiple_of(page) {
            let remedy = "give a part of the memory";
            return Err(SysError::from_errno("madvise", "shared memory", libc::EINVAL, remedy));
        }
        // SAFETY: the range lies within this shared mapping of a file, whose pages stay in the file
        // when their entries are taken away, so that whoever reads the memory reads the same bytes.
        let done = unsafe {
            let start = self.base.as_ptr().add(part.start);
            libc::madvise(start.cast(), part.len(), libc::MADV_DONTNEED)
        };
        match done {
            0 => Ok(()),
            _ => Err(SysError::last("madvise", "shared memory", "track it otherwise")),
        }
    }

    fn allocate(
        &self,
        mode: i32,
        part: &Range<usize>,
        remedy: &'static str,
    ) -> Result<(), SysError> {
        loop {
            // SAFETY: takes a descriptor that is open and numbers.
            let done = unsafe {
                libc::fallocate(
                    self.fd.as_raw_fd(),
                    mode,
                    part.start as libc::off_t,
                    part.len() as libc::off_t,
                )
            };
            if done == 0 {
                return Ok(());
            }
            let error = SysError::last(
                "fallocate",
                format!("{} bytes of shared memory", part.len()),
                remedy,
            );
            if error.errno() != libc::EINTR {
                return Err(error);
            }
        }
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, whose users are gone with it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Addresses over a file in memory, without rights: nobody reads or writes there, but what is bound
/// there holds for the file's pages, whoever maps them (kernel: `mpol_set_shared_policy`). Unmapped
/// when dropped, which changes no policy.
#[derive(Debug)]
pub struct FileWindow {
    start: usize,
    len: usize,
}

impl FileWindow {
    /// What is tried, largest first: a limit on addresses may be in force. A window reaches beyond
    /// the file's end.
    const LENGTHS: [usize; 3] = [1 << 40, 1 << 36, 1 << 30];

    /// Over the file's first 1 TiB, or 64 GiB or 1 GiB where there are no more addresses.
    ///
    /// # Errors
    /// What the kernel said; a file that cannot be mapped.
    pub fn over(fd: BorrowedFd<'_>) -> Result<Self, SysError> {
        let mut refused = None;
        for len in Self::LENGTHS {
            // SAFETY: a new mapping at an address of the kernel's choice, without rights; no memory
            // of ours is touched.
            let at = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    len,
                    libc::PROT_NONE,
                    libc::MAP_SHARED,
                    fd.as_raw_fd(),
                    0,
                )
            };
            if at != libc::MAP_FAILED {
                return Ok(Self { start: at as usize, len });
            }
            refused = Some(SysError::last(
                "mmap",
                "a file in memory",
                "raise ulimit -v, or give a file of /dev/shm",
            ));
        }
        Err(refused.unwrap_or_else(|| {
            SysError::from_errno("mmap", "a file in memory", libc::ENOMEM, "raise ulimit -v")
        }))
    }

    /// Its addresses.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

impl Drop for FileWindow {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping, which nobody can have touched.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.len) };
    }
}

/// Takes a name away; who has the file open keeps it.
///
/// # Errors
/// No such name, or no permission.
pub fn remove_shared(name: &str) -> Result<(), SysError> {
    let path = path_of(name);
    std::fs::remove_file(&path)
        .map_err(|e| SysError::from_io("unlink", path.to_string_lossy(), &e, "see ls -l /dev/shm"))
}

/// How a [`RobustLock`] was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockFound {
    /// Free, or its holder gave it back.
    Whole,
    /// Its holder died: what it guards is to be put right, then [`RobustLock::put_right`] called.
    OwnerDied,
    /// The calling thread has it already: it is in a signal handler.
    OwnedHere,
    /// It was given back without having been put right; nobody can take it any more.
    Lost,
}

/// A mutual exclusion between all threads of all processes that map it.
#[repr(transparent)]
#[derive(Debug)]
pub struct RobustLock(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: made for being used by many threads at once; all access goes through the C library's
// functions.
unsafe impl Sync for RobustLock {}

impl RobustLock {
    /// Makes the memory at `at` a free lock.
    ///
    /// # Safety
    /// `at` is aligned and writable for a lock, and nobody else uses it yet.
    ///
    /// # Errors
    /// A system without robust locks.
    pub unsafe fn make(at: *mut Self) -> Result<(), SysError> {
        let mut kind = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let kind = kind.as_mut_ptr();
        // SAFETY: `kind` is initialised by the first call before the others read it; `at` by the
        // caller's promise.
        let errno = unsafe {
            let all = [
                libc::pthread_mutexattr_init(kind),
                libc::pthread_mutexattr_setpshared(kind, libc::PTHREAD_PROCESS_SHARED),
                libc::pthread_mutexattr_setrobust(kind, libc::PTHREAD_MUTEX_ROBUST),
                libc::pthread_mutexattr_settype(kind, libc::PTHREAD_MUTEX_ERRORCHECK),
                libc::pthread_mutex_init(at.cast(), kind),
                libc::pthread_mutexattr_destroy(kind),
            ];
            all.into_iter().find(|e| *e != 0)
        };
        match errno {
            None => Ok(()),
            Some(errno) => Err(SysError::from_errno(
                "pthread_mutex_init",
                "a shared lock",
                errno,
                "use another C library",
            )),
        }
    }

    /// Waits until it is free and takes it, unless the answer is [`LockFound::OwnedHere`] or
    /// [`LockFound::Lost`].
    pub fn lock(&self) -> LockFound {
        // SAFETY: a lock made by `make`, in memory that lives as long as `self`.
        match unsafe { libc::pthread_mutex_lock(self.0.get()) } {
            0 => LockFound::Whole,
            libc::EOWNERDEAD => LockFound::OwnerDied,
            libc::EDEADLK => LockFound::OwnedHere,
            _ => LockFound::Lost,
        }
    }

    /// What it guards is whole again. Only by who got [`LockFound::OwnerDied`].
    pub fn put_right(&self) {
        // SAFETY: as in `lock`; in any other state the call is refused and changes nothing.
        let _refused_changes_nothing = unsafe { libc::pthread_mutex_consistent(self.0.get()) };
    }

    /// Gives it back; nothing happens where the calling thread does not have it.
    pub fn unlock(&self) {
        // SAFETY: as in `lock`; the kind that checks errors refuses those who do not hold it.
        let _refused_changes_nothing = unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_are_one_memory_and_names_are_taken_once() {
        let name = format!("terrace-test-{}", std::process::id());
        let one = SharedFile::unpublished(3 << 20).unwrap();
        one.take(0..1 << 20).unwrap();
        // SAFETY: the first byte of a mapping that this test alone has.
        unsafe { one.as_ptr().write_volatile(7) };
        assert!(SharedFile::open(&name, 1).is_err());
        one.publish(&name).unwrap();
        let taken = one.publish(&name).unwrap_err();
        assert_eq!(taken.errno(), libc::EEXIST, "{taken}");
        let two = SharedFile::open(&name, 3 << 20).unwrap();
        assert_eq!(two.as_ptr() as usize % ALIGN, 0);
        // SAFETY: as above; written before.
        assert_eq!(unsafe { two.as_ptr().read_volatile() }, 7);
        one.give_back(0..4096).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { two.as_ptr().read_volatile() }, 0);
        assert!(SharedFile::open(&name, 4 << 20).is_err());
        remove_shared(&name).unwrap();
        assert!(remove_shared(&name).is_err());
    }

    #[test]
    fn what_is_no_memory_is_refused() {
        let folder = File::open("/").unwrap();
        assert!(SharedFile::of_fd(folder.into(), 0).is_err());
        let made = SharedFile::unnamed(4096).unwrap();
        let fd = made.fd().try_clone_to_owned().unwrap();
        assert!(File::from(fd).set_len(0).is_err(), "it can be cut");
    }

    #[test]
    fn a_lock_comes_back_from_a_process_that_died() {
        let file = SharedFile::unnamed(4096).unwrap();
        let at = file.as_ptr().cast::<RobustLock>();
        // SAFETY: the start of a fresh mapping, larger than a lock and aligned; nobody else has it.
        let lock = unsafe {
            RobustLock::make(at).unwrap();
            &*at
        };
        assert_eq!(lock.lock(), LockFound::Whole);
        assert_eq!(lock.lock(), LockFound::OwnedHere);
        lock.unlock();
        // SAFETY: the child takes the lock and ends without giving it back, calling nothing else.
        let child = unsafe { libc::fork() };
        if child == 0 {
            lock.lock();
            // SAFETY: ends the child at once.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        let mut status = 0;
        // SAFETY: waits for the child started above; `status` is writable.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        // A runner under test beside this one waits for any child of this process: then that one
        // has seen it end.
        let taken = || std::io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD);
        assert!(waited == child || waited == -1 && taken(), "{waited}");
        assert_eq!(lock.lock(), LockFound::OwnerDied);
        lock.put_right();
        lock.unlock();
        assert_eq!(lock.lock(), LockFound::Whole);
        lock.unlock();
    }
}
