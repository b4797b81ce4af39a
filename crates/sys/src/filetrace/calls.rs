//! System calls that name a file, as ptrace(2) shows them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// `PTRACE_GET_SYSCALL_INFO` (Linux 5.3), and what it may answer (`linux/ptrace.h`).
const GET_SYSCALL_INFO: libc::c_uint = 0x420e;
const INFO_ENTRY: u8 = 1;
const INFO_EXIT: u8 = 2;
/// Longest path, its end included (`PATH_MAX`).
const PATH_MAX: usize = 4096;

/// Where a stopped thread stands.
pub(super) enum Call {
    /// Before a call; what it names, if it names something.
    Entry(Option<NamedPath>),
    /// After one.
    Exit {
        /// Whether it failed.
        failed: bool,
    },
}

/// A path that a call names.
pub(super) struct NamedPath {
    /// Absolute.
    pub path: PathBuf,
    /// Whether the call executes it.
    pub executes: bool,
}

/// What the thread, which stands at a system call, does there.
pub(super) fn at(tid: i32) -> Option<Call> {
    // struct ptrace_syscall_info: op, arch, ip, sp, then number and six arguments or the result.
    let mut info = [0_u64; 11];
    // SAFETY: the kernel writes at most the size given to `info`, a stopped thread's.
    let got = unsafe {
        libc::ptrace(GET_SYSCALL_INFO as _, tid, std::mem::size_of_val(&info), info.as_mut_ptr())
    };
    if got <= 0 {
        return None;
    }
    match info[0] as u8 {
        INFO_ENTRY => {
            let arguments = [info[4], info[5], info[6], info[7], info[8], info[9]];
            Some(Call::Entry(named(tid, info[3] as libc::c_long, &arguments)))
        }
        // The result is followed by whether it is an error.
        INFO_EXIT => Some(Call::Exit { failed: info[4] as u8 != 0 }),
        _ => None,
    }
}

/// Which arguments of a call are a folder's descriptor and a path, and whether it executes.
fn shape(number: libc::c_long) -> Option<(Option<usize>, usize, bool)> {
    #[cfg(target_arch = "x86_64")]
    match number {
        libc::SYS_open
        | libc::SYS_stat
        | libc::SYS_lstat
        | libc::SYS_access
        | libc::SYS_readlink => return Some((None, 0, false)),
        _ => {}
    }
    match number {
        libc::SYS_chdir | libc::SYS_statfs => Some((None, 0, false)),
        libc::SYS_execve => Some((None, 0, true)),
        libc::SYS_openat
        | libc::SYS_openat2
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_faccessat
        | libc::SYS_faccessat2
        | libc::SYS_readlinkat => Some((Some(0), 1, false)),
        libc::SYS_execveat => Some((Some(0), 1, true)),
        _ => None,
    }
}

fn named(tid: i32, number: libc::c_long, arguments: &[u64; 6]) -> Option<NamedPath> {
    let (folder, path, executes) = shape(number)?;
    let path = PathBuf::from(OsString::from_vec(text(tid, arguments[path])?));
    if path.is_absolute() {
        return Some(NamedPath { path, executes });
    }
    let folder = folder.map_or(libc::AT_FDCWD, |at| arguments[at] as i32);
    let from = if folder == libc::AT_FDCWD {
        format!("/proc/{tid}/cwd")
    } else {
        format!("/proc/{tid}/fd/{folder}")
    };
    let from = std::fs::read_link(Path::new(&from)).ok().filter(|p| p.is_absolute())?;
    // An empty path is the descriptor's own file.
    let path = if path.as_os_str().is_empty() { from } else { from.join(path) };
    Some(NamedPath { path, executes })
}

/// The bytes up to a zero at an address of the thread's; `None` where it cannot be read.
fn text(tid: i32, address: u64) -> Option<Vec<u8>> {
    let page = crate::page_size().get();
    let mut out = Vec::new();
    let mut at = address;
    while out.len() < PATH_MAX {
        // Up to the end of a page: the next may not be there.
        let mut part = vec![0_u8; (page - at % page) as usize];
        let here = libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
        let there = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: part.len() };
        // SAFETY: `here` is `part`, writable and of that length; `there` is the thread's memory,
        // which only the kernel looks at.
        let got = unsafe { libc::process_vm_readv(tid, &here, 1, &there, 1, 0) };
        let got = usize::try_from(got).ok().filter(|got| *got > 0)?;
        part.truncate(got);
        if let Some(end) = part.iter().position(|b| *b == 0) {
            out.extend_from_slice(&part[..end]);
            return Some(out);
        }
        out.extend_from_slice(&part);
        at = at.checked_add(got as u64)?;
    }
    None
}
