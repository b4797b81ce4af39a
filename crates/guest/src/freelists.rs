//! The kernel's lists of free pages for each CPU, emptied before a job.
//!
//! Pages that a CPU frees stay on a list of its own, up to half the low watermark of a zone on two
//! CPUs (`nr_pcp_high`, Linux 6.12, `mm/page_alloc.c`); no other CPU can have them, and they do not
//! count as free. What booting and calibrating leave there is 3.6 MiB of a fast node of 150, and
//! whether a program gets them depends on which CPU it happens to run on: beside a tool it is
//! another one than alone. With nothing on any list every job finds the same space.

use crate::kernel::{self, GuestMapping};
use std::fs;
use std::io;

/// Lists hold a `1/N` of their zone at most while this is `N` and not zero.
const FRACTION: &str = "/proc/sys/vm/percpu_pagelist_high_fraction";
/// So that a list's limit is the least there is: four batches (`zone_highsize`).
const LEAST: &str = "1000000";
/// Pages freed on each CPU and node. A list over its limit gives back one to three batches
/// (`nr_pcp_free`) at each: with batches of 7, the smallest, a list as long as lists become on such
/// machines is gone after 300.
const FREED: usize = 512;
const PAGE: usize = 4096;
/// Bytes that are taken of a node for that.
pub const TAKEN: u64 = (FREED * PAGE) as u64;

/// Gives back what is on the lists of all CPUs for these nodes' memory, but four batches each.
pub fn empty(nodes: &[u32]) -> io::Result<()> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online")?;
    let before = fs::read_to_string(FRACTION)?;
    fs::write(FRACTION, LEAST)?;
    let freed = cpus(&online).try_for_each(|cpu| {
        kernel::pin_to_cpu(cpu)?;
        nodes.iter().try_for_each(|node| free_some(*node))
    });
    let everywhere = kernel::pin_to_cpus(cpus(&online));
    fs::write(FRACTION, before.trim())?;
    freed.and(everywhere)
}

/// Takes pages of a node and frees them.
fn free_some(node: u32) -> io::Result<()> {
    let map = GuestMapping::anonymous(FREED * PAGE)?;
    map.bind_to_node(node)?;
    for page in 0..FREED {
        map.copy_in(page * PAGE, &[1]);
    }
    Ok(())
}

/// Numbers of a list of ranges, such as `0-3,6`.
fn cpus(list: &str) -> impl Iterator<Item = usize> + '_ {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_processors_are_counted_out() {
        assert_eq!(cpus("0-2,5\n").collect::<Vec<_>>(), [0, 1, 2, 5]);
        assert_eq!(cpus("7").collect::<Vec<_>>(), [7]);
        assert_eq!(cpus("").count() + cpus("a-b").count(), 0);
    }
}
