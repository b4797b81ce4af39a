//! Ranges of this process's own addresses: reserving, opening, binding to nodes, giving pages back.
//! What lies at an address is the caller's affair; nothing here keeps state.

use crate::{zones, Root, SysError};
use terrace_types::NodeId;

/// Where the kernel shall take a range's pages from when they are first touched
/// (`include/uapi/linux/mempolicy.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodePolicy {
    /// As the thread's own policy says; nodes are ignored.
    Default,
    /// From these nodes alone; a touch that finds none free is killed.
    Bind,
    /// From these nodes while they have space, then from the nearest.
    Preferred,
    /// From these nodes in turn.
    Interleave,
}

const MPOL_PREFERRED_MANY: i32 = 5;
const WHAT_HELPS: &str = "raise ulimit -v or lower what is asked";

fn described(start: usize, len: usize) -> String {
    format!("{start:#x}+{len:#x}")
}

/// Takes `len` bytes of addresses at a multiple of `align` (a power of two); nothing can be read or
/// written there until [`open_range`]. The addresses are never given to anybody else.
///
/// # Errors
/// When the process may have no more addresses.
pub fn reserve_range(len: usize, align: usize) -> Result<usize, SysError> {
    let Some(with_slack) = len.checked_add(align) else {
        return Err(SysError::from_errno("mmap", "addresses", libc::ENOMEM, WHAT_HELPS));
    };
    let start = map(with_slack, libc::PROT_NONE)?;
    let aligned = start.next_multiple_of(align);
    // SAFETY: both ends lie in the mapping made above, which nobody knows of yet, outside the part
    // that is kept.
    unsafe {
        if aligned > start {
            libc::munmap(start as *mut libc::c_void, aligned - start);
        }
        let end = start + with_slack;
        if end > aligned + len {
            libc::munmap((aligned + len) as *mut libc::c_void, end - aligned - len);
        }
    }
    Ok(aligned)
}

/// Fresh memory of `len` bytes, zero, not accounted before it is touched; for tables.
///
/// # Errors
/// When the kernel refuses.
pub fn map_zeroed(len: usize) -> Result<usize, SysError> {
    map(len, libc::PROT_READ | libc::PROT_WRITE)
}

fn map(len: usize, protection: i32) -> Result<usize, SysError> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(SysError::last("mmap", format!("{len} bytes of addresses"), WHAT_HELPS));
    }
    Ok(at as usize)
}

/// Makes reserved addresses readable and writable.
///
/// # Safety
/// `[start, start + len)` lies in a range of [`reserve_range`] of the caller.
///
/// # Errors
/// When the kernel refuses (too many mappings, accounting).
pub unsafe fn open_range(start: usize, len: usize) -> Result<(), SysError> {
    // SAFETY: the caller owns the range; more rights on it invalidate nothing.
    let done = unsafe {
        libc::mprotect(start as *mut libc::c_void, len, libc::PROT_READ | libc::PROT_WRITE)
    };
    if done == 0 {
        return Ok(());
    }
    Err(SysError::last(
        "mprotect",
        described(start, len),
        "raise vm.max_map_count or vm.overcommit_ratio",
    ))
}

/// Gives the pages of a range back; they read as zero afterwards.
///
/// # Safety
/// The caller owns the range, it is open, and nothing in it is used any more.
///
/// # Errors
/// When pages are locked; they keep their content.
pub unsafe fn discard_range(start: usize, len: usize) -> Result<(), SysError> {
    // SAFETY: the caller gives up what lies there.
    let done = unsafe { libc::madvise(start as *mut libc::c_void, len, libc::MADV_DONTNEED) };
    if done == 0 {
        return Ok(());
    }
    Err(SysError::last("madvise", described(start, len), "munlock the range"))
}

/// Asks for huge pages on a range. A kernel without them changes nothing.
pub fn prefer_huge_pages(start: usize, len: usize) {
    // SAFETY: advice about how pages are made; it changes no content and no rights.
    let _without_them_pages_are_small =
        unsafe { libc::madvise(start as *mut libc::c_void, len, libc::MADV_HUGEPAGE) };
}

/// Sets from which nodes pages of a range come. Pages that are there already stay where they are.
///
/// # Errors
/// No such node, no leave (sandboxes refuse `mbind`), or a kernel without nodes.
pub fn bind_range(
    start: usize,
    len: usize,
    policy: NodePolicy,
    nodes: &[NodeId],
) -> Result<(), SysError> {
    let mut mask = [0_u64; 16];
    for node in nodes {
        let Some(word) = mask.get_mut(usize::from(node.0) / 64) else {
            let target = format!("node {node}");
            return Err(SysError::from_errno(
                "mbind",
                target,
                libc::EINVAL,
                "give a node of terrace tiers",
            ));
        };
        *word |= 1 << (node.0 % 64);
    }
    let mode = match policy {
        NodePolicy::Default => libc::MPOL_DEFAULT,
        NodePolicy::Bind => libc::MPOL_BIND,
        NodePolicy::Interleave => libc::MPOL_INTERLEAVE,
        NodePolicy::Preferred if nodes.len() == 1 => libc::MPOL_PREFERRED,
        NodePolicy::Preferred => MPOL_PREFERRED_MANY,
    };
    let (bits, count) = if policy == NodePolicy::Default {
        (std::ptr::null(), 0)
    } else {
        (mask.as_ptr(), mask.len() * 64)
    };
    // SAFETY: `bits` is null or holds `count` bits and outlives the call; a policy changes no
    // content.
    let done = unsafe {
        libc::syscall(libc::SYS_mbind, start, len, mode, bits, count as libc::c_ulong, 0)
    };
    if done == 0 {
        return Ok(());
    }
    let names: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    let target = format!("{} for node {}", described(start, len), names.join(","));
    let error =
        SysError::last("mbind", target, "give nodes of terrace tiers that this process may use");
    // Where one node has all memory, neither that node nor the default makes a difference.
    let present = zones::nodes_with_memory(&Root::live());
    let same = match policy {
        NodePolicy::Default => present.len() == 1,
        _ => !nodes.is_empty() && nodes.iter().all(|node| present == [*node]),
    };
    if error.is_refusal() && same {
        return Ok(());
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_aligned_opens_and_forgets() {
        let align = 4 << 20;
        let start = reserve_range(1 << 30, align).unwrap();
        assert_eq!(start % align, 0);
        let byte = (start + 12_345) as *mut u8;
        // SAFETY: inside the range reserved above, which this test alone knows.
        unsafe {
            open_range(start, align).unwrap();
            byte.write(7);
            assert_eq!(byte.read(), 7);
            discard_range(start, align).unwrap();
            assert_eq!(byte.read(), 0);
        }
    }

    #[test]
    fn binding_names_the_nodes_that_are_refused() {
        let start = reserve_range(1 << 20, 1 << 16).unwrap();
        for node in [1000, 5000] {
            let refused =
                bind_range(start, 1 << 20, NodePolicy::Bind, &[NodeId(node)]).unwrap_err();
            assert!(refused.to_string().contains(&node.to_string()), "{refused}");
        }
        if let Err(e) = bind_range(start, 1 << 20, NodePolicy::Bind, &[NodeId(0)]) {
            println!("skipped: {e}");
        }
    }

    #[test]
    fn more_addresses_than_there_are_is_an_error() {
        assert!(reserve_range(usize::MAX - 5, 1 << 22).is_err());
        assert!(reserve_range(1 << 60, 1 << 22).is_err());
    }
}
