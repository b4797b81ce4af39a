//! Guest-physical layout of the nodes, as QEMU's q35 lays them out: one after the other from zero,
//! the part that does not fit below the PCI hole continued at 4 GiB.

use std::ops::Range;

/// All memory lies below the hole if it fits under this address.
const LOW_LIMIT: u64 = 0xb000_0000;
/// Otherwise it is cut here.
const LOW_CUT: u64 = 0x8000_0000;
/// Where the rest continues.
const HIGH_START: u64 = 0x1_0000_0000;

/// Ranges of physical addresses and the index of the node behind each, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressLayout {
    ranges: Vec<(Range<u64>, usize)>,
}

impl AddressLayout {
    /// The layout of nodes with these sizes in bytes.
    #[must_use]
    pub fn q35(sizes: &[u64]) -> Self {
        let total: u64 = sizes.iter().fold(0, |sum, size| sum.saturating_add(*size));
        let cut = if total > LOW_LIMIT { LOW_CUT } else { total };
        let mut ranges = Vec::new();
        let mut start = 0u64;
        for (node, &size) in sizes.iter().enumerate() {
            let end = start.saturating_add(size);
            if start < cut && size > 0 {
                ranges.push((start..end.min(cut), node));
            }
            if end > cut {
                let shift = HIGH_START - cut;
                ranges.push((start.max(cut) + shift..end.saturating_add(shift), node));
            }
            start = end;
        }
        ranges.sort_by_key(|r| r.0.start);
        Self { ranges }
    }

    /// Physical address of the byte at `offset` of a node; `None` past its end.
    #[must_use]
    pub fn address(&self, node: usize, offset: u64) -> Option<u64> {
        let mut left = offset;
        for (range, _) in self.ranges.iter().filter(|r| r.1 == node) {
            let length = range.end - range.start;
            if left < length {
                return Some(range.start + left);
            }
            left -= length;
        }
        None
    }

    /// What [`Self::address`] turns into `address`; `None` if it is no address of the node.
    #[must_use]
    pub fn offset(&self, node: usize, address: u64) -> Option<u64> {
        let mut before = 0;
        for (range, _) in self.ranges.iter().filter(|r| r.1 == node) {
            if range.contains(&address) {
                return Some(before + address - range.start);
            }
            before += range.end - range.start;
        }
        None
    }

    /// Node of a physical address; `None` for devices and holes.
    #[inline]
    #[must_use]
    pub fn node_of(&self, address: u64) -> Option<usize> {
        self.ranges.iter().find(|r| r.0.contains(&address)).map(|r| r.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn small_machines_are_contiguous() {
        let l = AddressLayout::q35(&[192 << 20, GIB]);
        assert_eq!(l.node_of(0), Some(0));
        assert_eq!(l.node_of((192 << 20) - 1), Some(0));
        assert_eq!(l.node_of(192 << 20), Some(1));
        assert_eq!(l.node_of((192 << 20) + GIB), None);
    }

    #[test]
    fn large_machines_go_around_the_hole() {
        let l = AddressLayout::q35(&[GIB, 3 * GIB]);
        assert_eq!(l.node_of(GIB), Some(1));
        assert_eq!(l.node_of(2 * GIB), None);
        assert_eq!(l.node_of(4 * GIB), Some(1));
        assert_eq!(l.node_of(6 * GIB - 1), Some(1));
        assert_eq!(l.node_of(6 * GIB), None);
        for offset in [0, GIB - 1, GIB, 3 * GIB - 1] {
            let address = l.address(1, offset).unwrap();
            assert_eq!((l.node_of(address), l.offset(1, address)), (Some(1), Some(offset)));
        }
        assert_eq!(
            (l.address(0, 5), l.address(1, GIB), l.address(1, 3 * GIB)),
            (Some(5), Some(4 * GIB), None)
        );
    }

    #[test]
    fn empty_nodes_take_no_space() {
        let l = AddressLayout::q35(&[0, GIB]);
        assert_eq!(l.node_of(0), Some(1));
    }
}
