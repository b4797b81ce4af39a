//! Clearing accessed bits so that the very next access sets them again.

use crate::{open_pidfd, PidFd, SysError};
use std::os::fd::AsRawFd;
use terrace_types::{Pid, VpnRange};

/// Clears the accessed bits of chosen huge pages of one process, and what CPUs have cached of their
/// translations.
///
/// `clear_refs` leaves cached translations alone: as long as a CPU keeps one, its accesses set no
/// bit, and a CPU keeps those of a thousand huge pages. `process_madvise` with `MADV_COLD` takes
/// the translation away (`madvise_cold_or_pageout_pte_range` in `mm/madvise.c`). It also puts the
/// pages on the inactive list, from where one that is accessed comes back before it could be
/// reclaimed.
#[derive(Debug)]
pub struct ColdRefs {
    handle: PidFd,
    page_size: u64,
}

impl ColdRefs {
    /// Most ranges that one call takes (`UIO_FASTIOV`: more make the kernel allocate).
    pub const AT_ONCE: usize = 8;

    /// Opens the process.
    ///
    /// # Errors
    /// [`SysError::Gone`] for no such process.
    pub fn open(pid: Pid) -> Result<Self, SysError> {
        Ok(Self { handle: open_pidfd(pid)?, page_size: crate::page_size().get() })
    }

    /// Clears those of at most [`Self::AT_ONCE`] ranges of whole huge pages, in order. False if not
    /// all were: a part is not mapped any more, or locked.
    ///
    /// # Errors
    /// [`SysError::NotPermitted`] without `CAP_SYS_NICE` or for another user's;
    /// [`SysError::Absent`] before Linux 5.10; [`SysError::Gone`] once it has ended.
    pub fn clear(&self, ranges: &[VpnRange]) -> Result<bool, SysError> {
        let part = |r: &VpnRange| libc::iovec {
            iov_base: (r.start.0 * self.page_size) as *mut libc::c_void,
            iov_len: (r.len() * self.page_size) as usize,
        };
        let parts: Vec<libc::iovec> = ranges.iter().take(Self::AT_ONCE).map(part).collect();
        // SAFETY: the descriptor is open and the vectors live through the call. The addresses are
        // another process's and are not used by this one; the advice changes no content, here or
        // there.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                libc::c_long::from(self.handle.as_raw_fd()),
                parts.as_ptr(),
                parts.len(),
                libc::c_long::from(libc::MADV_COLD),
                0_i64,
            )
        };
        if done < 0 {
            let target = format!("process {}", self.handle.pid());
            let why = SysError::last(
                "process_madvise",
                target,
                "needs CAP_SYS_NICE and Linux 5.10 or later",
            );
            return if matches!(why, SysError::Failed { .. }) { Ok(false) } else { Err(why) };
        }
        let wanted: usize = parts.iter().map(|p| p.iov_len).sum();
        Ok(usize::try_from(done).is_ok_and(|done| done == wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::Vpn;

    #[test]
    fn own_memory_may_be_advised_and_keeps_its_content() {
        let page = crate::page_size().get();
        let memory = vec![7_u8; 4 << 20];
        let first = (memory.as_ptr() as u64).div_ceil(2 << 20) * (2 << 20) / page;
        let range = VpnRange::new(Vpn(first), Vpn(first + (2 << 20) / page));
        let cold = ColdRefs::open(Pid(std::process::id() as i32)).unwrap();
        match cold.clear(&[range]) {
            Ok(whole) => {
                assert!(whole && memory.iter().all(|b| *b == 7));
                let none = VpnRange::new(Vpn(1), Vpn(2));
                assert!(!cold.clear(&[range, none]).unwrap(), "nothing is mapped there");
                assert!(!cold.clear(&[none]).unwrap());
            }
            Err(e) => println!("skipped: {e}"),
        }
    }
}
