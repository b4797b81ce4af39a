//! Whether a seccomp filter stands between this process and the kernel.

/// `SECCOMP_MODE_FILTER` of `include/uapi/linux/seccomp.h`.
const MODE_FILTER: libc::c_int = 2;

/// Whether system calls of the calling thread pass a filter (`PR_GET_SECCOMP`).
#[must_use]
pub fn is_filtered() -> bool {
    // SAFETY: PR_GET_SECCOMP takes no pointer and changes nothing. In strict mode it would end the
    // process, but then none of what runs here could run.
    let mode = unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) };
    mode == MODE_FILTER
}
