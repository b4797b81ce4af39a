//! Chunks, pages and masks.
//!
//! A *chunk* (4 KiB to 2 MiB) is what is chosen as a victim and what one frame holds. A *page* is
//! the least that is fetched, written and tracked: a page, or a 64th of a chunk where that is more.
//! Which pages of a chunk are meant is a mask of 64 bits, bit 0 for the lowest address.

use std::ops::Range;
use terrace_types::Bytes;

/// Number of a chunk, from the start of the map.
pub type ChunkNo = u32;
/// Number of a page, from the start of the map.
pub type FarPageNo = u64;
/// Pages of one chunk.
pub type PageMask = u64;

/// Sizes of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    chunk_shift: u32,
    far_page_shift: u32,
    bytes: u64,
}

impl Geometry {
    /// `None` unless `chunk` is a power of two from the page (`1 << page_shift`) to 2 MiB and the
    /// map is not empty and below 2^32 chunks.
    #[must_use]
    pub fn new(bytes: Bytes, chunk: Bytes, page_shift: u32) -> Option<Self> {
        let chunk_shift = chunk.0.trailing_zeros();
        let sound =
            chunk.0.is_power_of_two() && (page_shift..=21).contains(&chunk_shift) && bytes.0 > 0;
        let bytes = bytes.0.checked_next_multiple_of(1 << page_shift)?;
        (sound && bytes >> chunk_shift < u64::from(u32::MAX)).then_some(Self {
            chunk_shift,
            far_page_shift: page_shift.max(chunk_shift.saturating_sub(6)),
            bytes,
        })
    }

    /// Bytes of the map, a multiple of the page.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Bytes of a chunk.
    #[must_use]
    pub const fn chunk_bytes(self) -> usize {
        1 << self.chunk_shift
    }

    /// Bytes of a page.
    #[must_use]
    pub const fn page_bytes(self) -> usize {
        1 << self.far_page_shift
    }

    /// Pages of a chunk, at most 64.
    #[must_use]
    pub const fn pages_per_chunk(self) -> u32 {
        1 << (self.chunk_shift - self.far_page_shift)
    }

    /// Chunks, the last perhaps partial.
    #[must_use]
    pub const fn chunks(self) -> u32 {
        self.bytes.div_ceil(1 << self.chunk_shift) as u32
    }

    /// Pages, the last perhaps partial.
    #[must_use]
    pub const fn pages(self) -> u64 {
        self.bytes.div_ceil(1 << self.far_page_shift)
    }

    /// The page that holds byte `offset`.
    #[must_use]
    pub const fn page_of(self, offset: u64) -> FarPageNo {
        offset >> self.far_page_shift
    }

    /// A page's chunk and its bit there.
    #[must_use]
    pub const fn split(self, page: FarPageNo) -> (ChunkNo, PageMask) {
        let per = self.chunk_shift - self.far_page_shift;
        ((page >> per) as u32, 1 << (page & ((1 << per) - 1)))
    }

    /// The page of bit number `bit` of a chunk.
    #[must_use]
    pub const fn page_at(self, chunk: ChunkNo, bit: u32) -> FarPageNo {
        ((chunk as u64) << (self.chunk_shift - self.far_page_shift)) + bit as u64
    }

    /// All pages that a chunk has.
    #[must_use]
    pub fn whole(self, chunk: ChunkNo) -> PageMask {
        let first = self.page_at(chunk, 0);
        let count = self.pages().saturating_sub(first).min(u64::from(self.pages_per_chunk()));
        ones(count as u32)
    }

    /// The parts of the map (bytes) that a mask of a chunk means: one for each run of pages.
    pub fn parts(self, chunk: ChunkNo, mask: PageMask) -> impl Iterator<Item = Range<usize>> {
        let base = u64::from(chunk) << self.chunk_shift;
        runs(mask).map(move |(bit, len)| {
            let start = base + (u64::from(bit) << self.far_page_shift);
            let end = (start + (u64::from(len) << self.far_page_shift)).min(self.bytes);
            start as usize..end as usize
        })
    }

    /// Chunks and masks that a range of bytes touches. `inner`: pages wholly within it only.
    pub fn cover(
        self,
        range: Range<u64>,
        inner: bool,
    ) -> impl Iterator<Item = (ChunkNo, PageMask)> {
        let size = 1_u64 << self.far_page_shift;
        let end = range.end.min(self.bytes);
        let (first, last) = if inner {
            let whole_end = if end == self.bytes { end.div_ceil(size) } else { end / size };
            (range.start.div_ceil(size), whole_end)
        } else {
            (range.start / size, end.div_ceil(size))
        };
        let per = u64::from(self.pages_per_chunk());
        let last = last.max(first);
        let chunks = if first < last { first / per..last.div_ceil(per) } else { 0..0 };
        chunks.map(move |chunk| {
            let low = first.max(chunk * per) - chunk * per;
            let high = last.min((chunk + 1) * per) - chunk * per;
            (chunk as u32, ones(high as u32) & !ones(low as u32))
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
        assert_eq!((g.chunks(), g.pages(), g.pages_per_chunk(), g.bytes()), (4, 49, 16, 200_704));
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
    fn large_chunks_have_large_pages_and_odd_sizes_are_refused() {
        let g = Geometry::new(Bytes::mib(64), Bytes::mib(2), 12).unwrap();
        assert_eq!((g.page_bytes(), g.pages_per_chunk()), (32 << 10, 64));
        let g = Geometry::new(Bytes::mib(1), Bytes(4096), 12).unwrap();
        assert_eq!((g.page_bytes(), g.pages_per_chunk()), (4096, 1));
        for chunk in [0, 2048, 3 << 12, 4 << 20] {
            assert_eq!(Geometry::new(Bytes::mib(1), Bytes(chunk), 12), None);
        }
    }
}
