//! A process between a bounded command and this one. It adopts what the command's processes leave
//! behind (prctl(2), `PR_SET_CHILD_SUBREAPER`), even in sessions of their own, and ends all of it
//! when the command ends, when it is told to by SIGTERM, or when this process is gone.
//!
//! Everything here runs between fork and exec: only system calls, no allocation.

use std::io::Error;

/// Between two looks whether what was killed is gone.
const PAUSE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// Bytes of `/proc/thread-self/children` that are read at a time: some hundred numbers.
const LIST: usize = 4096;
/// The status where a command's own is not known.
const UNKNOWN: i32 = 125;

/// Splits the calling process in two. The new one returns and goes on to run the command, in a
/// process group of its own. The calling one stays as its supervisor, never returns, and ends as
/// the command does. `tool`: whose end ends all of it, the calling process's parent.
///
/// # Errors
/// The system's, where no process can be made.
///
/// # Safety
/// The caller was forked just now, has one thread, and has not run another program yet.
pub unsafe fn split(tool: libc::pid_t) -> Result<(), Error> {
    // SAFETY: plain system calls on values of this frame; zero bytes are valid signal sets.
    unsafe {
        let (mut handled, mut before) = std::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>();
        libc::sigemptyset(&mut handled);
        libc::sigaddset(&mut handled, libc::SIGTERM);
        libc::sigaddset(&mut handled, libc::SIGCHLD);
        libc::sigprocmask(libc::SIG_BLOCK, &handled, &mut before);
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
        if libc::getppid() != tool {
            libc::_exit(UNKNOWN);
        }
        let supervisor = libc::getpid();
        match libc::fork() {
            -1 => Err(Error::last_os_error()),
            0 => {
                libc::setpgid(0, 0);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid() != supervisor {
                    libc::_exit(UNKNOWN);
                }
                libc::sigprocmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
                Ok(())
            }
            command => supervise(command, &handled),
        }
    }
}

/// Waits for the command's end or for SIGTERM, ends what is left, and ends as the command did.
///
/// # Safety
/// As for [`split`]; `command` is a child, and the signals are blocked.
unsafe fn supervise(command: libc::pid_t, handled: &libc::sigset_t) -> ! {
    // SAFETY: plain system calls on values of this frame. Descriptors are this process's copies:
    // nothing behind uses them.
    unsafe {
        // Whoever waits for the other end of a pipe must not wait for this process.
        if libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) != 0 {
            (0..1024).for_each(|fd| {
                libc::close(fd);
            });
        }
        let mut status = None;
        while status.is_none() {
            let signal = libc::sigwaitinfo(handled, std::ptr::null_mut());
            if signal == libc::SIGTERM {
                break;
            }
            reap(command, &mut status);
        }
        loop {
            let known = kill_children();
            if !known {
                libc::kill(-command, libc::SIGKILL);
            }
            let left = reap(command, &mut status);
            if !left || (!known && status.is_some()) {
                break;
            }
            libc::nanosleep(&PAUSE, std::ptr::null_mut());
        }
        let status = status.unwrap_or(UNKNOWN << 8);
        if libc::WIFSIGNALED(status) {
            let signal = libc::WTERMSIG(status);
            libc::signal(signal, libc::SIG_DFL);
            let mut own = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&mut own);
            libc::sigprocmask(libc::SIG_SETMASK, &own, std::ptr::null_mut());
            libc::kill(libc::getpid(), signal);
        }
        libc::_exit(libc::WEXITSTATUS(status))
    }
}

/// Waits for all children that have ended, and keeps the command's status; whether any is left.
fn reap(command: libc::pid_t, status: &mut Option<i32>) -> bool {
    loop {
        let mut ended = 0;
        // SAFETY: `ended` is writable.
        match unsafe { libc::waitpid(-1, &mut ended, libc::WNOHANG) } {
            0 => return true,
            -1 => return Error::last_os_error().raw_os_error() == Some(libc::EINTR),
            pid if pid == command => *status = Some(ended),
            _ => {}
        }
    }
}

/// Kills this process's children, adopted ones included; false where the kernel does not list them
/// (it was built without `CONFIG_PROC_CHILDREN`).
fn kill_children() -> bool {
    let mut list = [0u8; LIST];
    // SAFETY: a string that ends with a zero, a buffer of the stated length, and numbers.
    let read = unsafe {
        let path = c"/proc/thread-self/children".as_ptr();
        let file = libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return false;
        }
        let read = libc::read(file, list.as_mut_ptr().cast(), LIST);
        libc::close(file);
        read
    };
    let Ok(read) = usize::try_from(read) else { return false };
    let mut number = 0i32;
    for byte in &list[..read] {
        match byte {
            b'0'..=b'9' => {
                number = number.saturating_mul(10).saturating_add(i32::from(byte - b'0'));
            }
            _ if number > 1 => {
                // SAFETY: a child of this process that it has not waited for yet.
                unsafe { libc::kill(number, libc::SIGKILL) };
                number = 0;
            }
            _ => number = 0,
        }
    }
    true
}
