//! The guest's own door to the kernel: the few calls that an init needs and the `sys` crate has no
//! reason to know.
//!
//! Every function returns the errno as `std::io::Error`; nothing here decides anything.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Mark of the timing plugin: the agent is about to start the command.
pub const MARK_JOB_START: u32 = 0x7e44_a011;
/// Mark of the timing plugin: the command has ended.
pub const MARK_JOB_END: u32 = 0x7e44_a012;
/// Mark of the timing plugin: the measured phase begins.
pub const MARK_PHASE_BEGIN: u32 = 0x7e44_a001;
/// Mark of the timing plugin: the measured phase ends.
pub const MARK_PHASE_END: u32 = 0x7e44_a002;

/// Execute the multi-byte no-op `0f 1f 80 imm32` whose displacement is `MARK`; the lab's timing
/// plugin sees it.
#[inline(always)]
pub fn mark<const MARK: u32>() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `nop dword ptr [rax+imm32]` is the architectural long no-op: it reads no memory,
    // writes no register and no flag, and its address is never formed. Omitting `nomem` keeps it
    // ordered with memory accesses.
    unsafe {
        std::arch::asm!(".byte 0x0f, 0x1f, 0x80", ".long {m}", m = const MARK,
            options(nostack, preserves_flags));
    }
}

fn check(rc: libc::c_long) -> io::Result<libc::c_long> {
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(rc)
    }
}

fn cstr(s: &str) -> io::Result<CString> {
    CString::new(s).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// mount(2).
pub fn mount(
    source: &str,
    target: &str,
    kind: &str,
    flags: libc::c_ulong,
    data: &str,
) -> io::Result<()> {
    let (source, target, kind, data) = (cstr(source)?, cstr(target)?, cstr(kind)?, cstr(data)?);
    // SAFETY: four NUL-terminated strings that live across the call.
    let rc = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast())
    };
    check(rc.into()).map(drop)
}

/// chroot(2).
pub fn chroot(path: &str) -> io::Result<()> {
    let path = cstr(path)?;
    // SAFETY: a NUL-terminated string that lives across the call.
    check(unsafe { libc::chroot(path.as_ptr()) }.into()).map(drop)
}

/// mkfifo(3).
pub fn mkfifo(path: &str) -> io::Result<()> {
    let path = cstr(path)?;
    // SAFETY: a NUL-terminated string that lives across the call.
    check(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }.into()).map(drop)
}

/// Credit the kernel's random generator with fixed bytes, so that nothing waits for entropy that
/// never comes.
pub fn seed_random(device: &File, seed: [u32; 16]) -> io::Result<()> {
    #[repr(C)]
    struct PoolInfo {
        entropy_bits: libc::c_int,
        size: libc::c_int,
        words: [u32; 16],
    }
    const RNDADDENTROPY: libc::c_ulong = 0x4008_5203;
    let info = PoolInfo { entropy_bits: 512, size: 64, words: seed };
    // SAFETY: the ioctl reads a `rand_pool_info` of `size` bytes behind the head; `info` has that
    // layout and length.
    check(unsafe { libc::ioctl(device.as_raw_fd(), RNDADDENTROPY, &info) }.into()).map(drop)
}

/// Memory policy of the calling thread; an empty mask means the default policy's.
pub fn set_mempolicy(mode: i32, nodes: &[u32]) -> io::Result<()> {
    let mut mask: libc::c_ulong = 0;
    for &node in nodes {
        if node >= 64 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        mask |= 1 << node;
    }
    let (ptr, bits) =
        if nodes.is_empty() { (std::ptr::null(), 0) } else { (&mask as *const libc::c_ulong, 65) };
    // SAFETY: the kernel reads at most `bits` - 1 = 64 bits from `mask`, which is one unsigned
    // long, or nothing.
    check(unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::c_long::from(mode), ptr, bits) })
        .map(drop)
}

/// move_pages(2) for another process. With `nodes` empty it only asks where the pages are.
/// `status` gets a node or a negative errno for each page.
pub fn move_pages(pid: i32, pages: &[u64], nodes: &[i32], status: &mut [i32]) -> io::Result<i64> {
    const MPOL_MF_MOVE: libc::c_long = 2;
    if status.len() < pages.len() || (!nodes.is_empty() && nodes.len() < pages.len()) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let wanted = if nodes.is_empty() { std::ptr::null() } else { nodes.as_ptr() };
    // SAFETY: the three arrays hold at least `pages.len()` elements of the kernel's types (checked
    // above) and live across the call; page addresses belong to the other process and are never
    // dereferenced here.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            libc::c_long::from(pid),
            pages.len(),
            pages.as_ptr(),
            wanted,
            status.as_mut_ptr(),
            MPOL_MF_MOVE,
        )
    };
    check(rc)
}

/// Block SIGCHLD and return a descriptor that becomes readable when a child ends.
pub fn child_events() -> io::Result<OwnedFd> {
    // SAFETY: an all-zero sigset_t is a valid object to hand to sigemptyset.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a live sigset_t; sigprocmask only reads it, the old mask is not asked for.
    let fd = unsafe {
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    check(fd.into())?;
    // SAFETY: signalfd returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// In a freshly forked child: unblock every signal and leave the agent's session.
pub fn fresh_child() -> io::Result<()> {
    // SAFETY: an all-zero sigset_t is a valid object to hand to sigemptyset.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: async-signal-safe calls on a local sigset_t; setsid changes only the calling process.
    unsafe {
        libc::sigemptyset(&mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
        libc::setsid();
    }
    Ok(())
}

/// Both ends of a pipe, to read and to write; the first is readable once the second is closed.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has space for the two descriptors.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }.into())?;
    // SAFETY: pipe2 returned two new descriptors that nobody else owns.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Wait until one of the descriptors is readable; `None` waits for ever. Returns which are.
pub fn poll_readable(fds: &[i32], timeout_ms: Option<i32>) -> io::Result<Vec<bool>> {
    let mut polls: Vec<libc::pollfd> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: `polls` is a live array of `polls.len()` pollfd.
    let rc = unsafe {
        libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, timeout_ms.unwrap_or(-1))
    };
    match check(rc.into()) {
        Ok(_) => {}
        Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
        Err(e) => return Err(e),
    }
    // A pipe without a writer hangs up and says nothing else.
    Ok(polls.iter().map(|p| p.revents & (libc::POLLIN | libc::POLLHUP) != 0).collect())
}

/// One child that has ended.
pub struct ChildExit {
    /// Its process id.
    pub pid: i32,
    /// Its wait status.
    pub status: i32,
    /// User time of it and its waited-for children, nanoseconds.
    pub user_nanos: u64,
    /// System time likewise.
    pub system_nanos: u64,
}

/// Reap one ended child, if there is one.
pub fn reap() -> io::Result<Option<ChildExit>> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid value of that plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both out-pointers are live locals of the right types.
    let pid = unsafe { libc::wait4(-1, &mut status, libc::WNOHANG, &mut usage) };
    if pid == 0 {
        return Ok(None);
    }
    check(pid.into())?;
    let nanos = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1000;
    Ok(Some(ChildExit {
        pid,
        status,
        user_nanos: nanos(usage.ru_utime),
        system_nanos: nanos(usage.ru_stime),
    }))
}

/// Has the kernel ask before it executes one file: fanotify(7), `FAN_OPEN_EXEC_PERM`. What executes
/// it meanwhile waits for the answer.
pub struct ExecGate {
    group: OwnedFd,
}

/// Somebody waits at an [`ExecGate`].
pub struct ExecRequest {
    /// Process that wants to execute the file.
    pub pid: i32,
    file: OwnedFd,
}

impl ExecGate {
    /// A gate before this file.
    pub fn new(path: &str) -> io::Result<Self> {
        let path = cstr(path)?;
        let flags = libc::FAN_CLASS_CONTENT | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
        let file_flags = (libc::O_RDONLY | libc::O_LARGEFILE | libc::O_CLOEXEC) as libc::c_uint;
        // SAFETY: two numbers; no memory is involved.
        let fd = unsafe { libc::fanotify_init(flags, file_flags) };
        check(fd.into())?;
        // SAFETY: fanotify_init returned a new descriptor that nobody else owns.
        let group = unsafe { OwnedFd::from_raw_fd(fd) };
        let (add, event) = (libc::FAN_MARK_ADD, libc::FAN_OPEN_EXEC_PERM);
        // SAFETY: a live descriptor and a NUL-terminated path that lives across the call.
        let rc = unsafe { libc::fanotify_mark(fd, add, event, libc::AT_FDCWD, path.as_ptr()) };
        check(rc.into())?;
        Ok(ExecGate { group })
    }

    /// Readable while somebody waits.
    pub fn descriptor(&self) -> i32 {
        self.group.as_raw_fd()
    }

    /// Who waits, if somebody does.
    pub fn request(&self) -> io::Result<Option<ExecRequest>> {
        let mut event = std::mem::MaybeUninit::<libc::fanotify_event_metadata>::zeroed();
        let size = std::mem::size_of_val(&event);
        // SAFETY: `event` is `size` writable bytes; the kernel writes whole events only.
        let got = unsafe { libc::read(self.descriptor(), event.as_mut_ptr().cast(), size) };
        match check(got as libc::c_long) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            other => other?,
        };
        // SAFETY: plain numbers, zeroed before the kernel wrote them.
        let event = unsafe { event.assume_init() };
        if event.fd < 0 {
            return Ok(None);
        }
        // SAFETY: the kernel opened this descriptor for the event; nobody else owns it.
        let file = unsafe { OwnedFd::from_raw_fd(event.fd) };
        Ok(Some(ExecRequest { pid: event.pid, file }))
    }

    /// Let it go on.
    pub fn allow(&self, request: &ExecRequest) -> io::Result<()> {
        let answer =
            libc::fanotify_response { fd: request.file.as_raw_fd(), response: libc::FAN_ALLOW };
        let size = std::mem::size_of_val(&answer);
        // SAFETY: `answer` is `size` readable bytes.
        let put = unsafe { libc::write(self.descriptor(), (&raw const answer).cast(), size) };
        check(put as libc::c_long).map(drop)
    }
}

/// A descriptor of a process that is readable once it has ended: pidfd_open(2).
pub fn process_handle(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: two numbers; no memory is involved.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(pid), 0) })?;
    // SAFETY: pidfd_open returned a new descriptor (close-on-exec) that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// kill(2); a negative pid names a process group.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::kill(pid, signal) }.into()).map(drop)
}

/// Power the machine off; returns only on failure.
pub fn power_off() -> io::Error {
    // SAFETY: no memory is involved; as init of a throw-away guest there is nothing to lose.
    unsafe { libc::reboot(libc::LINUX_REBOOT_CMD_POWER_OFF) };
    io::Error::last_os_error()
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn now() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The calling thread runs before all of ordinary priority: sched_setscheduler(2), `SCHED_FIFO`.
pub fn run_before_others() -> io::Result<()> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: `lowest` is a live sched_param; 0 is the calling thread.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &lowest) }.into()).map(drop)
}

/// Pin the calling thread to one CPU.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    pin_to_cpus(std::iter::once(cpu))
}

/// Let the calling thread run on these CPUs alone.
pub fn pin_to_cpus(cpus: impl Iterator<Item = usize>) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus {
        if cpu >= libc::CPU_SETSIZE as usize {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: `cpu` is below CPU_SETSIZE, which is how many `set` has space for.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: `set` is a live cpu_set_t of the size given.
    let rc = unsafe { libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set) };
    check(rc.into()).map(drop)
}

/// A private anonymous or shared file mapping, unmapped when dropped.
pub struct GuestMapping {
    start: *mut u8,
    len: usize,
}

impl GuestMapping {
    /// Fresh zero pages, 4 KiB each (no huge pages).
    pub fn anonymous(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
        let p = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: advice on the mapping just made.
        unsafe { libc::madvise(p, len, libc::MADV_NOHUGEPAGE) };
        Ok(GuestMapping { start: p.cast(), len })
    }

    /// A file, shared and writable.
    pub fn shared(file: &File, len: usize) -> io::Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
        let p = unsafe {
            libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(GuestMapping { start: p.cast(), len })
    }

    /// Bind its pages to one node; those that exist already stay where they are.
    pub fn bind_to_node(&self, node: u32) -> io::Result<()> {
        const MPOL_BIND: libc::c_long = 2;
        if node >= 64 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mask: libc::c_ulong = 1 << node;
        // SAFETY: mbind changes only the policy of this live mapping and reads 64 bits from `mask`.
        check(unsafe {
            libc::syscall(libc::SYS_mbind, self.start, self.len, MPOL_BIND, &mask, 65usize, 0usize)
        })
        .map(drop)
    }

    /// Processes that are forked do not have it: madvise(2), `MADV_DONTFORK`.
    pub fn keep_from_children(&self) -> io::Result<()> {
        // SAFETY: advice on this live mapping, which no child uses.
        check(unsafe { libc::madvise(self.start.cast(), self.len, libc::MADV_DONTFORK) }.into())
            .map(drop)
    }

    /// First byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing; a mapping never does.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copy bytes out; the other side may write at the same time, so each byte is read once and
    /// never aliased.
    pub fn copy_out(&self, offset: usize, len: usize) -> Option<Vec<u8>> {
        let end = offset.checked_add(len)?;
        if end > self.len {
            return None;
        }
        let mut out = vec![0u8; len];
        // SAFETY: source [offset, end) lies inside the live mapping (checked), `out` is a distinct
        // allocation of `len`.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(offset), out.as_mut_ptr(), len) };
        Some(out)
    }

    /// Copy bytes in; false if they do not fit.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> bool {
        match offset.checked_add(bytes.len()) {
            Some(end) if end <= self.len => {
                // SAFETY: destination [offset, end) lies inside the live writable mapping
                // (checked); `bytes` is elsewhere.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        bytes.as_ptr(),
                        self.start.add(offset),
                        bytes.len(),
                    )
                };
                true
            }
            _ => false,
        }
    }

    /// Read one 32-bit word that the other side writes, ordered before all later reads.
    pub fn load_u32(&self, offset: usize) -> Option<u32> {
        if offset % 4 != 0 || offset.checked_add(4)? > self.len {
            return None;
        }
        // SAFETY: aligned (mappings start on a page) and inside the live mapping, both checked
        // above.
        let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(self.start.add(offset).cast()) };
        Some(word.load(std::sync::atomic::Ordering::Acquire))
    }
}

impl Drop for GuestMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by this value and no reference into it outlives it.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}
