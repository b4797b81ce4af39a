//! Units, grains and masks.
//!
//! A *unit* (4 KiB to 2 MiB) is what is chosen as a victim and what one slot holds. A *grain* is
//! the least that is fetched, written and tracked: a page, or a 64th of a unit where that is more.
//! Which grains of a unit are meant is a mask of 64 bits, bit 0 for the lowest address.

use std::ops::Range;
use terrace_types::Bytes;

/// Number of a unit, from the start of the map.
pub type UnitNo = u32;
/// Number of a grain, from the start of the map.
pub type GrainNo = u64;
/// Grains of one unit.
pub type PageMask = u64;

/// Sizes of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    unit_shift: u32,
    grain_shift: u32,
    bytes: u64,
}

impl Geometry {
    /// `None` unless `unit` is a power of two from the page (`1 << page_shift`) to 2 MiB and the
    /// map is not empty and below 2^32 units.
    #[must_use]
    pub fn new(bytes: Bytes, unit: Bytes, page_shift: u32) -> Option<Self> {
        let unit_shift = unit.0.trailing_zeros();
        let sound =
            unit.0.is_power_of_two() && (page_shift..=21).contains(&unit_shift) && bytes.0 > 0;
        let bytes = bytes.0.checked_next_multiple_of(1 << page_shift)?;
        (sound && bytes >> unit_shift < u64::from(u32::MAX)).then_some(Self {
            unit_shift,
            grain_shift: page_shift.max(unit_shift.saturating_sub(6)),
            bytes,
        })
    }

    /// Bytes of the map, a multiple of the page.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Bytes of a unit.
    #[must_use]
    pub const fn unit_bytes(self) -> usize {
        1 << self.unit_shift
    }

    /// Bytes of a grain.
    #[must_use]
    pub const fn grain_bytes(self) -> usize {
        1 << self.grain_shift
    }

    /// Grains of a unit, at most 64.
    #[must_use]
    pub const fn grains_per_unit(self) -> u32 {
        1 << (self.unit_shift - self.grain_shift)
    }

    /// Units, the last perhaps partial.
    #[must_use]
    pub const fn units(self) -> u32 {
        self.bytes.div_ceil(1 << self.unit_shift) as u32
    }

    /// Grains, the last perhaps partial.
    #[must_use]
    pub const fn grains(self) -> u64 {
        self.bytes.div_ceil(1 << self.grain_shift)
    }

    /// The grain that holds byte `offset`.
    #[must_use]
    pub const fn grain_of(self, offset: u64) -> GrainNo {
        offset >> self.grain_shift
    }

    /// A grain's unit and its bit there.
    #[must_use]
    pub const fn split(self, grain: GrainNo) -> (UnitNo, PageMask) {
        let per = self.unit_shift - self.grain_shift;
        ((grain >> per) as u32, 1 << (grain & ((1 << per) - 1)))
    }

    /// The grain of bit number `bit` of a unit.
    #[must_use]
    pub const fn grain_at(self, unit: UnitNo, bit: u32) -> GrainNo {
        ((unit as u64) << (self.unit_shift - self.grain_shift)) + bit as u64
    }

    /// All grains that a unit has.
    #[must_use]
    pub fn whole(self, unit: UnitNo) -> PageMask {
        let first = self.grain_at(unit, 0);
        let count = self.grains().saturating_sub(first).min(u64::from(self.grains_per_unit()));
        ones(count as u32)
    }

    /// The parts of the map (bytes) that a mask of a unit means: one for each run of grains.
    pub fn parts(self, unit: UnitNo, mask: PageMask) -> impl Iterator<Item = Range<usize>> {
        let base = u64::from(unit) << self.unit_shift;
        runs(mask).map(move |(bit, len)| {
            let start = base + (u64::from(bit) << self.grain_shift);
            let end = (start + (u64::from(len) << self.grain_shift)).min(self.bytes);
            start as usize..end as usize
        })
    }

    /// Units and masks that a range of bytes touches. `inner`: grains wholly within it only.
    pub fn cover(self, range: Range<u64>, inner: bool) -> impl Iterator<Item = (UnitNo, PageMask)> {
        let size = 1_u64 << self.grain_shift;
        let end = range.end.min(self.bytes);
        let (first, last) = if inner {
            let whole_end = if end == self.bytes { end.div_ceil(size) } else { end / size };
            (range.start.div_ceil(size), whole_end)
        } else {
            (range.start / size, end.div_ceil(size))
        };
        let per = u64::from(self.grains_per_unit());
        let last = last.max(first);
        let units = if first < last { first / per..last.div_ceil(per) } else { 0..0 };
        units.map(move |unit| {
            let low = first.max(unit * per) - unit * per;
            let high = last.min((unit + 1) * per) - unit * per;
            (unit as u32, ones(high as u32) & !ones(low as u32))
        })
    }
}

/// The lowest `count` bits.
#[must_use]
pub const fn ones(count: u32) -> PageMask {
    if count >= 64 {
        u64::MAX
    } else {
        (1 << count) - 1
    }
}

/// Runs of set bits: first bit and length, upwards.
pub fn runs(mut mask: PageMask) -> impl Iterator<Item = (u32, u32)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let gap = mask.trailing_zeros();
        mask >>= gap;
        let len = mask.trailing_ones();
        let run = (at + gap, len);
        at += gap + len;
        mask = if len == 64 { 0 } else { mask >> len };
        Some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_parts_agree() {
        let g = Geometry::new(Bytes(200_000), Bytes(65_536), 12).unwrap();
        assert_eq!((g.units(), g.grains(), g.grains_per_unit(), g.bytes()), (4, 49, 16, 200_704));
        assert_eq!((g.whole(0), g.whole(3)), (0xffff, 1));
        assert_eq!(g.split(33), (2, 2));
        let parts: Vec<_> = g.parts(1, 0b1_0110).collect();
        assert_eq!(parts, [69_632..77_824, 81_920..86_016]);
        assert_eq!(g.parts(3, 1).next(), Some(196_608..200_704));
        assert_eq!(g.cover(1..65_537, false).collect::<Vec<_>>(), [(0, 0xffff), (1, 1)]);
        assert_eq!(g.cover(1..65_537, true).collect::<Vec<_>>(), [(0, 0xfffe)]);
        assert_eq!(g.cover(5..6, true).count(), 0);
    }

    #[test]
    fn runs_are_found_at_both_ends() {
        assert_eq!(runs(u64::MAX).collect::<Vec<_>>(), [(0, 64)]);
        assert_eq!(runs(1 << 63 | 0b1011).collect::<Vec<_>>(), [(0, 2), (3, 1), (63, 1)]);
        assert_eq!(runs(0).count(), 0);
    }

    #[test]
    fn large_units_have_large_grains_and_odd_ones_are_refused() {
        let g = Geometry::new(Bytes::mib(64), Bytes::mib(2), 12).unwrap();
        assert_eq!((g.grain_bytes(), g.grains_per_unit()), (32 << 10, 64));
        let g = Geometry::new(Bytes::mib(1), Bytes(4096), 12).unwrap();
        assert_eq!((g.grain_bytes(), g.grains_per_unit()), (4096, 1));
        for unit in [0, 2048, 3 << 12, 4 << 20] {
            assert_eq!(Geometry::new(Bytes::mib(1), Bytes(unit), 12), None);
        }
    }
}
