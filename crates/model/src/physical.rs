//! Which node a physical address belongs to.

use std::ops::Range;

/// Physical address ranges of nodes. Addresses outside all of them (devices) belong to none.
#[derive(Debug, Clone, Default)]
pub struct PhysicalMap {
    ranges: Vec<(Range<u64>, usize)>,
}

impl PhysicalMap {
    /// A map from ranges and the index of the node each belongs to.
    #[must_use]
    pub fn new(mut ranges: Vec<(Range<u64>, usize)>) -> Self {
        ranges.sort_by_key(|(r, _)| r.start);
        Self { ranges }
    }

    /// Nodes laid one after the other as QEMU's q35 does: from 0 up to the low limit, the rest
    /// from 4 GiB. All of it is low when it fits below 2816 MiB (hw/i386/pc_q35.c); else low memory
    /// ends at 2 GiB.
    #[must_use]
    pub fn q35(sizes: &[u64]) -> Self {
        const HIGH: u64 = 1 << 32;
        let total: u64 = sizes.iter().sum();
        let low_end = if total >= 0xb000_0000 { 0x8000_0000 } else { 0xb000_0000 };
        let mut ranges = Vec::new();
        let mut offset = 0;
        for (node, &size) in sizes.iter().enumerate() {
            let end = offset + size;
            if offset < low_end {
                ranges.push((offset..end.min(low_end), node));
            }
            if end > low_end {
                ranges.push((HIGH + offset.max(low_end) - low_end..HIGH + end - low_end, node));
            }
            offset = end;
        }
        ranges.retain(|(r, _)| !r.is_empty());
        Self::new(ranges)
    }

    /// Index of the node that holds `address`.
    #[inline]
    #[must_use]
    pub fn node(&self, address: u64) -> Option<usize> {
        self.ranges.iter().find(|(r, _)| r.contains(&address)).map(|&(_, node)| node)
    }

    /// Offset of `address` within its node, counting its ranges in order.
    #[must_use]
    pub fn offset(&self, address: u64) -> Option<u64> {
        let node = self.node(address)?;
        let mut before = 0;
        for (r, n) in &self.ranges {
            if *n == node {
                if r.contains(&address) {
                    return Some(before + address - r.start);
                }
                before += r.end - r.start;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_machines_lie_in_one_piece() {
        let map = PhysicalMap::q35(&[192 << 20, 1 << 30]);
        assert_eq!(map.node(0), Some(0));
        assert_eq!(map.node((192 << 20) - 1), Some(0));
        assert_eq!(map.node(192 << 20), Some(1));
        assert_eq!(map.node((192 << 20) + (1 << 30)), None);
    }

    #[test]
    fn large_machines_continue_at_four_gibibytes() {
        let map = PhysicalMap::q35(&[1 << 30, 3 << 30]);
        assert_eq!(map.node(0x8000_0000), None);
        assert_eq!(map.node(0x1_0000_0000), Some(1));
        assert_eq!(map.offset(0x1_0000_0000), Some(1 << 30));
    }
}
