//! System calls, without a C library.

use core::arch::asm;

pub const READ: u64 = 0;
pub const WRITE: u64 = 1;
pub const OPEN: u64 = 2;
pub const CLOSE: u64 = 3;
pub const MMAP: u64 = 9;
pub const MPROTECT: u64 = 10;
pub const MUNMAP: u64 = 11;
pub const BRK: u64 = 12;
pub const RT_SIGACTION: u64 = 13;
pub const RT_SIGPROCMASK: u64 = 14;
pub const PREAD: u64 = 17;
pub const ACCESS: u64 = 21;
pub const SCHED_YIELD: u64 = 24;
pub const MREMAP: u64 = 25;
pub const MINCORE: u64 = 27;
pub const NANOSLEEP: u64 = 35;
pub const GETPID: u64 = 39;
pub const EXECVE: u64 = 59;
pub const EXIT: u64 = 60;
pub const KILL: u64 = 62;
pub const READLINK: u64 = 89;
pub const STAT: u64 = 4;
pub const FSTAT: u64 = 5;
pub const FCNTL: u64 = 72;
pub const GETEUID: u64 = 107;
pub const GETEGID: u64 = 108;
pub const GETXATTR: u64 = 191;
pub const EXECVEAT: u64 = 322;
pub const SIGALTSTACK: u64 = 131;
pub const PRCTL: u64 = 157;
pub const ARCH_PRCTL: u64 = 158;
pub const GETTID: u64 = 186;
pub const EXIT_GROUP: u64 = 231;
pub const PROCESS_VM_READV: u64 = 310;

pub const PROT_READ: u64 = 1;
pub const PROT_WRITE: u64 = 2;
pub const MAP_SHARED: u64 = 1;
pub const MAP_PRIVATE: u64 = 2;
pub const MAP_FIXED: u64 = 0x10;
pub const MAP_ANONYMOUS: u64 = 0x20;
pub const MAP_NORESERVE: u64 = 0x4000;
pub const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;

pub const ENOENT: i64 = 2;
pub const ESRCH: i64 = 3;
pub const EAGAIN: i64 = 11;
pub const ENOMEM: i64 = 12;
pub const EFAULT: i64 = 14;
pub const EINVAL: i64 = 22;
pub const ENOSYS: i64 = 38;

/// A system call; the kernel's answer, negative errors included.
///
/// # Safety
/// What the call does to this process must be what the caller may do.
#[inline]
pub unsafe fn call(number: u64, a: [u64; 6]) -> i64 {
    let result: i64;
    // SAFETY: the kernel changes rax, rcx and r11 only; the caller answers for the call itself.
    unsafe {
        asm!("syscall", inlateout("rax") number as i64 => result, in("rdi") a[0], in("rsi") a[1],
            in("rdx") a[2],
             in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _,
             options(nostack));
    }
    result
}

/// [`call`] with up to three arguments.
///
/// # Safety
/// As [`call`].
#[inline]
pub unsafe fn call3(number: u64, a: u64, b: u64, c: u64) -> i64 {
    // SAFETY: the caller answers for it.
    unsafe { call(number, [a, b, c, 0, 0, 0]) }
}

/// Which file it is, and what else is asked of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    pub device: u64,
    pub inode: u64,
}

/// The kernel's `struct stat`, as far as it is used.
pub struct FileStatus {
    pub id: FileId,
    pub mode: u32,
    pub user: u32,
    pub group: u32,
}

impl FileStatus {
    fn ask(number: u64, which: u64) -> Option<Self> {
        let mut all = [0u64; 18];
        // SAFETY: a string that ends with a zero or a descriptor, and space for the answer.
        let done = unsafe { call3(number, which, all.as_mut_ptr() as u64, 0) };
        (done == 0).then(|| Self {
            id: FileId { device: all[0], inode: all[1] },
            mode: all[3] as u32,
            user: (all[3] >> 32) as u32,
            group: all[4] as u32,
        })
    }

    /// Of the file of this path, which ends with a zero.
    pub fn at(path: &[u8]) -> Option<Self> {
        Self::ask(STAT, path.as_ptr() as u64)
    }
}

impl FileId {
    /// Of the file of this path.
    pub fn at(path: &core::ffi::CStr) -> Option<Self> {
        FileStatus::at(path.to_bytes_with_nul()).map(|s| s.id)
    }

    /// Of an open file.
    pub fn of(fd: i64) -> Option<Self> {
        FileStatus::ask(FSTAT, fd as u64).filter(|_| fd >= 0).map(|s| s.id)
    }
}

/// New memory of this process; `None` where there is none.
pub fn map(address: u64, bytes: u64, protection: u64, flags: u64) -> Option<u64> {
    let all = [address, bytes, protection, flags | MAP_PRIVATE | MAP_ANONYMOUS, u64::MAX, 0];
    // SAFETY: without MAP_FIXED nothing that is there is replaced; who passes it has reserved the
    // range.
    let at = unsafe { call(MMAP, all) };
    (at > 0).then_some(at as u64)
}

/// Text to standard error.
pub fn say(parts: &[&str]) {
    let mut line = [0u8; 512];
    let mut length = 0;
    for byte in parts.iter().flat_map(|p| p.bytes()).chain(core::iter::once(b'\n')) {
        if length < line.len() {
            line[length] = byte;
            length += 1;
        }
    }
    // SAFETY: the kernel reads `length` bytes of our line.
    unsafe { call3(WRITE, 2, line.as_ptr() as u64, length as u64) };
}

/// The process ends.
pub fn exit_group(status: i32) -> ! {
    loop {
        // SAFETY: does not return.
        unsafe { call3(EXIT_GROUP, status as u64, 0, 0) };
    }
}

/// Copies memory of this process that may not be there; how many bytes could be read.
pub fn read_memory(address: u64, out: &mut [u8]) -> usize {
    let first = (4096 - (address as usize & 4095)).min(out.len());
    let here = [out.as_mut_ptr() as u64, out.len() as u64];
    // One piece up to each page's end: what is read of a piece is all or nothing.
    let mut there = [[0u64; 2]; 64];
    let (mut count, mut at, mut left, mut piece) = (0, address, out.len(), first);
    while left > 0 && count < there.len() {
        there[count] = [at, piece as u64];
        count += 1;
        at = at.wrapping_add(piece as u64);
        left -= piece;
        piece = left.min(4096);
    }
    // SAFETY: the kernel writes to `out` only, and answers for addresses that are not there.
    let got = unsafe {
        // The thread: a process whose main thread has ended has no memory by its own number.
        let pid = call3(GETTID, 0, 0, 0) as u64;
        call(
            PROCESS_VM_READV,
            [pid, here.as_ptr() as u64, 1, there.as_ptr() as u64, count as u64, 0],
        )
    };
    got.max(0) as usize
}

/// Writes to memory of the program that may not be there. As the kernel would for a system call: so
/// a stack grows where it is written to for the first time, which `process_vm_writev` does not do.
pub fn write_memory(address: u64, bytes: &[u8]) -> bool {
    let (there, here) =
        ([address, bytes.len() as u64], [bytes.as_ptr() as u64, bytes.len() as u64]);
    // SAFETY: the kernel answers for addresses that are not there; the range is the program's to be
    // written.
    let put = unsafe {
        let pid = call3(GETTID, 0, 0, 0) as u64;
        call(PROCESS_VM_READV, [pid, there.as_ptr() as u64, 1, here.as_ptr() as u64, 1, 0])
    };
    put == bytes.len() as i64
}

/// A word of the program's.
pub fn read_word(address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (read_memory(address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
}
