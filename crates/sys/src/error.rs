//! What the kernel can refuse, by situation.

use crate::seccomp;

/// Calls that containers' filters refuse with EPERM or ENOSYS although the kernel has them
/// (Docker's and Podman's default profiles without capabilities; systemd's `SystemCallFilter`).
const FILTERED: [&str; 14] = [
    "get_mempolicy",
    "io_uring_setup",
    "mbind",
    "membarrier",
    "migrate_pages",
    "move_pages",
    "perf_event_open",
    "pidfd_open",
    "process_madvise",
    "process_vm_readv",
    "sched_setaffinity",
    "set_mempolicy",
    "unshare",
    "userfaultfd",
];
/// What helps then.
const ALLOW: &str = "a seccomp filter is in force here, as in containers: let its profile allow \
                     the call (docker run --security-opt seccomp=PROFILE) or add the capability \
                     that it asks for (--cap-add SYS_NICE)";

/// A call to the kernel that did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SysError {
    /// The process, thread or file belonged to something that has ended.
    #[error("{call} on {target}: it has ended")]
    Gone {
        /// System call or operation.
        call: &'static str,
        /// What it was tried on.
        target: String,
    },
    /// The kernel refuses this user.
    #[error("{call} on {target} is not permitted (errno {errno}); {remedy}")]
    NotPermitted {
        /// System call or operation.
        call: &'static str,
        /// What it was tried on.
        target: String,
        /// The kernel's number.
        errno: i32,
        /// What would help.
        remedy: &'static str,
    },
    /// This kernel has no such file or call.
    #[error("{call} on {target}: this kernel offers no such thing (errno {errno}); {remedy}")]
    Absent {
        /// System call or operation.
        call: &'static str,
        /// What it was tried on.
        target: String,
        /// The kernel's number.
        errno: i32,
        /// What would help.
        remedy: &'static str,
    },
    /// More bytes than the reader accepts.
    #[error("{target} has more than {limit} bytes; refused")]
    TooLarge {
        /// File.
        target: String,
        /// Bytes accepted at most.
        limit: usize,
    },
    /// The text is not in the kernel's format.
    #[error("{target}: {what} in line {line}")]
    Malformed {
        /// File.
        target: String,
        /// What is wrong.
        what: &'static str,
        /// Line, from 1; 0 when not a matter of lines.
        line: usize,
    },
    /// Anything else.
    #[error("{call} on {target} failed (errno {errno}); {remedy}")]
    Failed {
        /// System call or operation.
        call: &'static str,
        /// What it was tried on.
        target: String,
        /// The kernel's number.
        errno: i32,
        /// What would help.
        remedy: &'static str,
    },
}

impl SysError {
    /// The situation that `errno` of `call` on `target` means.
    #[must_use]
    pub fn from_errno(
        call: &'static str,
        target: impl Into<String>,
        errno: i32,
        remedy: &'static str,
    ) -> Self {
        let target = target.into();
        match errno {
            libc::ESRCH => Self::Gone { call, target },
            // A filter's ENOSYS is no word of the kernel's, and its EPERM none about this user.
            libc::EPERM | libc::ENOSYS if FILTERED.contains(&call) && seccomp::is_filtered() => {
                Self::NotPermitted { call, target, errno, remedy: ALLOW }
            }
            libc::EPERM | libc::EACCES => Self::NotPermitted { call, target, errno, remedy },
            libc::ENOENT | libc::ENOSYS | libc::EOPNOTSUPP | libc::ENODEV | libc::ENOTTY => {
                Self::Absent { call, target, errno, remedy }
            }
            _ => Self::Failed { call, target, errno, remedy },
        }
    }

    /// As [`SysError::from_errno`] with the calling thread's last error.
    #[must_use]
    pub fn last(call: &'static str, target: impl Into<String>, remedy: &'static str) -> Self {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Self::from_errno(call, target, errno, remedy)
    }

    /// As [`SysError::from_errno`] from an I/O error of the standard library.
    #[must_use]
    pub fn from_io(
        call: &'static str,
        target: impl Into<String>,
        error: &std::io::Error,
        remedy: &'static str,
    ) -> Self {
        Self::from_errno(call, target, error.raw_os_error().unwrap_or(0), remedy)
    }

    /// The kernel's number, 0 when the situation has none.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::NotPermitted { errno, .. }
            | Self::Absent { errno, .. }
            | Self::Failed { errno, .. } => *errno,
            Self::Gone { .. } => libc::ESRCH,
            Self::TooLarge { .. } | Self::Malformed { .. } => 0,
        }
    }

    /// Whether a seccomp filter is in force that may be what refuses the call: then neither another
    /// kernel nor a capability of the program's file helps.
    #[must_use]
    pub fn may_be_filtered(&self) -> bool {
        matches!(self, Self::NotPermitted { remedy, .. } if *remedy == ALLOW)
    }

    /// Whether the kernel, or a filter before it, does not let this process make the call at all.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::NotPermitted { .. } | Self::Absent { .. })
    }

    /// Whether the other side has ended.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }
}
