//! A small process that outlives the tool by a moment: if the tool dies without saying goodbye
//! (kill -9), it makes a few prepared writes, such as turning off the kdamond that was started.

use crate::SysError;
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use terrace_types::Pid;

/// The tool's end of a guardian. Dropping it without [`Guardian::dismiss`] lets it act, as death
/// does.
#[derive(Debug)]
pub struct Guardian {
    pipe: OwnedFd,
    pid: Pid,
}

/// One prepared write.
struct Write {
    path: CString,
    text: CString,
}

impl Guardian {
    /// Forks a guardian that, once this process has ended or drops the handle, writes each text to
    /// its path, in order, and exits. It has its own session (no signal from the terminal reaches
    /// it), holds no other descriptor and never touches the target.
    ///
    /// # Errors
    /// What the kernel said; [`SysError::Malformed`] for a path with a zero byte.
    pub fn watch(writes: &[(String, String)]) -> Result<Self, SysError> {
        let text = |s: &String| {
            CString::new(s.as_str()).map_err(|_| SysError::Malformed {
                target: s.clone(),
                what: "zero byte",
                line: 0,
            })
        };
        let writes = writes
            .iter()
            .map(|(path, what)| Ok(Write { path: text(path)?, text: text(what)? }))
            .collect::<Result<Vec<_>, SysError>>()?;
        let mut ends = [0_i32; 2];
        // SAFETY: `ends` has space for the two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
            return Err(SysError::last("pipe2", "this process", "free some descriptors"));
        }
        // SAFETY: the kernel just gave us both; nobody else owns them.
        let (read, write) =
            unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
        // SAFETY: the child makes async-signal-safe calls only, allocates nothing and never
        // returns from `keep_watch`, so a lock held by another thread at the fork cannot matter.
        let pid = unsafe { libc::fork() };
        match pid {
            0 => {
                let _leaked_on_purpose = write.into_raw_fd();
                keep_watch(read.as_raw_fd(), &writes)
            }
            p if p < 0 => Err(SysError::last("fork", "the guardian", "raise the process limit")),
            p => Ok(Self { pipe: write, pid: Pid(p) }),
        }
    }

    /// The guardian's own process: no part of the target.
    #[must_use]
    pub const fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends it home without acting.
    pub fn dismiss(self) {
        let byte = [1_u8];
        // SAFETY: one readable byte, an open descriptor. A guardian that is gone gives EPIPE,
        // which MSG-less pipes report as an error only because Rust ignores SIGPIPE.
        unsafe { libc::write(self.pipe.as_raw_fd(), byte.as_ptr().cast(), 1) };
        drop(self.pipe);
        let mut status = 0;
        // SAFETY: `status` is writable; the pid is our child's. It may have been reaped already.
        unsafe { libc::waitpid(self.pid.0, &mut status, 0) };
    }
}

/// The child's whole life. Async-signal-safe calls only.
fn keep_watch(pipe: i32, writes: &[Write]) -> ! {
    // SAFETY: numbers only; descriptors below and above the pipe are closed, the pipe is kept, and
    // the paths and texts were prepared before the fork and live for ever in this process.
    unsafe {
        libc::setsid();
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGTSTP] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"terrace-guard".as_ptr(), 0, 0, 0);
        if pipe > 0 {
            libc::syscall(libc::SYS_close_range, 0_u32, (pipe - 1) as u32, 0_u32);
        }
        libc::syscall(libc::SYS_close_range, (pipe + 1) as u32, u32::MAX, 0_u32);
        let mut byte = [0_u8; 1];
        let dismissed = loop {
            let got = libc::read(pipe, byte.as_mut_ptr().cast(), 1);
            if got >= 0 || *libc::__errno_location() != libc::EINTR {
                break got == 1;
            }
        };
        if !dismissed {
            for write in writes {
                let fd = libc::open(write.path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                if fd >= 0 {
                    libc::write(fd, write.text.as_ptr().cast(), write.text.count_bytes());
                    libc::close(fd);
                }
            }
        }
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::Nanos;

    fn file(name: &str) -> String {
        let path =
            std::env::temp_dir().join(format!("terrace-guard-{name}-{}", std::process::id()));
        std::fs::write(&path, "on").unwrap();
        path.to_string_lossy().into_owned()
    }

    #[test]
    fn it_acts_when_dropped_and_not_when_dismissed() {
        let path = file("a");
        let kept = Guardian::watch(&[(path.clone(), "xx".to_owned())]).unwrap();
        kept.dismiss();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "on");
        let lost = Guardian::watch(&[(path.clone(), "off".to_owned())]).unwrap();
        let handle = crate::open_pidfd(lost.pid()).unwrap();
        drop(lost);
        assert!(crate::wait_for_end(&handle, Nanos::secs(5)));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "off");
        std::fs::remove_file(path).unwrap();
    }
}
