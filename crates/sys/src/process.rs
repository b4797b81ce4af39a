//! Handles on processes (pidfd) and adoption of orphans.

use crate::SysError;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use terrace_types::{Nanos, Pid};

/// A handle on one process that can never come to mean another.
#[derive(Debug)]
pub struct PidFd {
    fd: OwnedFd,
    pid: Pid,
}

impl PidFd {
    /// The process.
    #[must_use]
    pub const fn pid(&self) -> Pid {
        self.pid
    }
}

impl AsRawFd for PidFd {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

/// Opens a handle.
///
/// # Errors
/// [`SysError::Gone`] for no such process.
pub fn open_pidfd(pid: Pid) -> Result<PidFd, SysError> {
    // SAFETY: pidfd_open takes two numbers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(pid.0), 0_i64) };
    if fd < 0 {
        let target = format!("process {pid}");
        return Err(SysError::last("pidfd_open", target, "needs Linux 5.3 or later"));
    }
    // SAFETY: the kernel just gave us this descriptor (close-on-exec); nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    Ok(PidFd { fd, pid })
}

/// Sends a signal; 0 only checks.
///
/// # Errors
/// [`SysError::Gone`] once it has ended, [`SysError::NotPermitted`] for another user's.
pub fn signal_process(handle: &PidFd, signal: i32) -> Result<(), SysError> {
    // SAFETY: the descriptor is open; a null siginfo asks for that of kill(2).
    let r = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            libc::c_long::from(handle.as_raw_fd()),
            libc::c_long::from(signal),
            std::ptr::null::<libc::siginfo_t>(),
            0_i64,
        )
    };
    if r == 0 {
        return Ok(());
    }
    let target = format!("process {}", handle.pid);
    Err(SysError::last("pidfd_send_signal", target, "run as the owner or as root"))
}

/// Waits up to `span` for the process to end; true once it has.
#[must_use]
pub fn wait_for_end(handle: &PidFd, span: Nanos) -> bool {
    let mut fds = [libc::pollfd { fd: handle.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    poll(&mut fds, span);
    fds[0].revents != 0
}

/// Polls; a signal or failure reads as nothing ready.
pub(crate) fn poll(fds: &mut [libc::pollfd], span: Nanos) {
    let limit = libc::timespec {
        tv_sec: (span.0 / 1_000_000_000) as libc::time_t,
        tv_nsec: (span.0 % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: `fds` is a writable slice of its stated length, `limit` outlives the call, and a
    // null mask leaves the signal mask alone.
    let ready = unsafe {
        libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &limit, std::ptr::null())
    };
    if ready < 0 {
        for fd in fds {
            fd.revents = 0;
        }
    }
}

/// Makes this process the parent of descendants whose own parent ends.
///
/// # Errors
/// What the kernel said.
pub fn become_subreaper() -> Result<(), SysError> {
    // SAFETY: prctl with this option takes numbers only.
    let r = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    if r == 0 {
        Ok(())
    } else {
        Err(SysError::last("prctl PR_SET_CHILD_SUBREAPER", "this process", "needs Linux 3.4"))
    }
}

/// Lets this process end with its parent, however that ends.
///
/// # Errors
/// [`SysError::Gone`] where the parent is another process, since the expected one ended.
pub fn end_with_parent(parent: Pid) -> Result<(), SysError> {
    // SAFETY: prctl with this option takes numbers only.
    let r = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
    if r != 0 {
        return Err(SysError::last("prctl PR_SET_PDEATHSIG", "this process", "needs Linux 2.1.57"));
    }
    // It may have ended before the call.
    // SAFETY: getppid takes nothing and cannot fail.
    if unsafe { libc::getppid() } == parent.0 {
        return Ok(());
    }
    Err(SysError::Gone { call: "getppid", target: format!("process {parent}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_signalled_and_its_end_noticed() {
        let mut child = std::process::Command::new("sleep").arg("20").spawn().unwrap();
        let handle = open_pidfd(Pid(child.id() as i32)).unwrap();
        assert!(!wait_for_end(&handle, Nanos::millis(1)));
        signal_process(&handle, libc::SIGTERM).unwrap();
        assert!(wait_for_end(&handle, Nanos::secs(5)));
        child.wait().unwrap();
        assert!(signal_process(&handle, 0).unwrap_err().is_gone());
        assert!(open_pidfd(Pid(i32::MAX)).unwrap_err().is_gone());
        assert!(end_with_parent(Pid(i32::MAX)).unwrap_err().is_gone());
    }
}
