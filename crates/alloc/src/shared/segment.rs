//! Segments of shared memory that a program made itself, with `shm_open(3)`: on the nodes asked
//! for.

use super::SharedError;
use crate::arena::{ArenaError, Devices, NodeOps};
use std::os::fd::BorrowedFd;
use terrace_sys::FileWindow;

/// Says from where the pages of a segment come that nobody has touched yet, for all processes that
/// map it and as long as it lives. The descriptor is that of `shm_open(3)` or `memfd_create(2)`;
/// the segment may still be empty. What lies beyond its first 1 TiB stays unbound.
///
/// # Errors
/// [`SharedError`]: devices that do not exist or have a spill order, a file that cannot be mapped,
/// no leave to bind.
pub fn place_segment(
    fd: BorrowedFd<'_>,
    devices: &Devices,
    nodes: &dyn NodeOps,
) -> Result<(), SharedError> {
    devices.check(&nodes.nodes())?;
    if matches!(devices, Devices::Spill(_)) {
        return Err(ArenaError::Devices("shared memory has no spill order").into());
    }
    if *devices == Devices::Anywhere {
        return Ok(());
    }
    let window = FileWindow::over(fd)?;
    for policy in devices.policies() {
        policy
            .apply(nodes, window.range().start, window.range().len())
            .map_err(ArenaError::Bind)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::KernelNodes;
    use std::os::fd::AsFd;
    use terrace_sys::SharedFile;
    use terrace_types::NodeId;

    /// The line of `numa_maps` for the mapping that begins there.
    fn policy_at(start: usize) -> Option<String> {
        let text = std::fs::read_to_string("/proc/self/numa_maps").ok()?;
        let line = text
            .lines()
            .find(|l| usize::from_str_radix(l.split(' ').next().unwrap_or(""), 16) == Ok(start))?;
        line.split(' ').nth(1).map(str::to_owned)
    }

    #[test]
    fn a_segment_that_another_maps_comes_from_where_it_was_bound() {
        let node = KernelNodes.nodes()[0];
        let theirs = SharedFile::unnamed(1 << 20).unwrap();
        match place_segment(theirs.fd(), &Devices::Only(vec![node]), &KernelNodes) {
            Err(SharedError::Devices(error)) => return println!("skipped: {error}"),
            done => done.unwrap(),
        }
        match policy_at(theirs.as_ptr() as usize) {
            Some(policy) => assert_eq!(policy, format!("bind:{node}")),
            None => println!("skipped: this kernel has no numa_maps"),
        }
        let later = SharedFile::of_fd(theirs.fd().try_clone_to_owned().unwrap(), 1).unwrap();
        assert_eq!(policy_at(later.as_ptr() as usize), policy_at(theirs.as_ptr() as usize));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let file = SharedFile::unnamed(4096).unwrap();
        let spill =
            place_segment(file.fd(), &Devices::Spill(vec![KernelNodes.nodes()[0]]), &KernelNodes)
                .unwrap_err();
        assert!(spill.to_string().contains("no spill order"), "{spill}");
        let nowhere =
            place_segment(file.fd(), &Devices::Only(vec![NodeId(999)]), &KernelNodes).unwrap_err();
        assert!(nowhere.to_string().contains("node 999"), "{nowhere}");
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let refused = place_segment(
            socket.as_fd(),
            &Devices::Only(vec![KernelNodes.nodes()[0]]),
            &KernelNodes,
        );
        assert!(refused.unwrap_err().to_string().contains("mmap"));
    }
}
