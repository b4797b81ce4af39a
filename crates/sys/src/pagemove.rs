//! The `move_pages` call (kernel: `mm/migrate.c`).

use crate::SysError;
use terrace_types::{MoveCall, NodeId, PageStatus, Pid, Vpn};

/// Marks a status the kernel has not written; no node and no error number has this value.
const UNTOUCHED: i32 = i32::MIN;
/// `MPOL_MF_MOVE` of `include/uapi/linux/mempolicy.h`: only pages that this process alone maps.
const MPOL_MF_MOVE: libc::c_long = 1 << 1;

fn status_of(raw: i32) -> PageStatus {
    match raw {
        UNTOUCHED => PageStatus::Untouched,
        n if n < 0 => PageStatus::Error(-n),
        n => {
            u16::try_from(n).map_or(PageStatus::Error(libc::ERANGE), |n| PageStatus::On(NodeId(n)))
        }
    }
}

fn call(pid: Pid, pages: &[Vpn], nodes: Option<&[i32]>) -> MoveCall {
    let shift = crate::page_size().get().trailing_zeros();
    let mut addresses: Vec<*mut libc::c_void> =
        pages.iter().map(|p| (p.0 << shift) as usize as *mut libc::c_void).collect();
    let mut status = vec![UNTOUCHED; pages.len()];
    let nodes_ptr = nodes.map_or(std::ptr::null(), <[i32]>::as_ptr);
    // SAFETY: `addresses`, `nodes` (when given; its length is checked by the callers below) and
    // `status` each hold `pages.len()` elements and outlive the call. The addresses belong to the
    // other process: the kernel looks them up there and never follows them here.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            libc::c_long::from(pid.0),
            pages.len() as libc::c_ulong,
            addresses.as_mut_ptr(),
            nodes_ptr,
            status.as_mut_ptr(),
            MPOL_MF_MOVE,
        )
    };
    let errno = if result < 0 {
        std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
    } else {
        0
    };
    MoveCall {
        pages: status.into_iter().map(status_of).collect(),
        not_migrated: u64::try_from(result).unwrap_or(0),
        errno,
    }
}

/// Asks the kernel to move `pages` of `pid` to `to`. Everything, failure too, is a value.
/// Pages mapped by other processes as well are left (`MPOL_MF_MOVE`, never `MOVE_ALL`).
#[must_use]
pub fn move_pages(pid: Pid, pages: &[Vpn], to: NodeId) -> MoveCall {
    let nodes = vec![i32::from(to.0); pages.len()];
    call(pid, pages, Some(&nodes))
}

/// Asks which node each page is on; absent pages say `ENOENT` or `EFAULT`.
///
/// # Errors
/// [`SysError::Gone`] once the process has ended, [`SysError::NotPermitted`] without leave.
pub fn query_pages(pid: Pid, pages: &[Vpn]) -> Result<Vec<PageStatus>, SysError> {
    let done = call(pid, pages, None);
    if done.errno == 0 {
        return Ok(done.pages);
    }
    Err(SysError::from_errno(
        "move_pages",
        format!("process {pid}"),
        done.errno,
        "run as root (needs CAP_SYS_NICE)",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_page_is_on_a_node_and_stays() {
        let page = crate::page_size().get();
        let touched = vec![1_u8; 3 * page as usize];
        let vpn = Vpn(touched.as_ptr() as u64 / page + 1);
        let me = Pid(std::process::id() as i32);
        let on = match query_pages(me, &[vpn]) {
            Ok(on) => on,
            Err(e) => return println!("skipped: {e}"),
        };
        let PageStatus::On(node) = on[0] else { panic!("own page is {:?}", on[0]) };
        let moved = move_pages(me, &[vpn], node);
        assert_eq!((moved.errno, &moved.pages[..]), (0, &[PageStatus::On(node)][..]));
        drop(touched);
    }

    #[test]
    fn no_process_is_gone_and_absent_pages_are_errors() {
        let me = Pid(std::process::id() as i32);
        assert!(query_pages(Pid(i32::MAX), &[Vpn(1)]).unwrap_err().is_gone());
        if let Ok(on) = query_pages(me, &[Vpn(1)]) {
            assert!(matches!(on[0], PageStatus::Error(libc::EFAULT | libc::ENOENT)));
        }
    }
}
