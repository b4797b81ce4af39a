//! Which pages are mapped for writing when they come back: those that were written the last time
//! too.
//!
//! What comes from the store is mapped against writing, so that what was not written need not be
//! stored again. The first write is a fault then, as dear as one that maps zeros; where a program
//! reads a page and then writes it, as eliminations and updates in place do, each page costs two.
//! The neighbours of a page that was written are let off it; what is written here and there is not.
//!
//! Whether a page that was dirty when it went will be written again is measured, not assumed: such
//! pages are observed until they are written (a hit) or go clean (a miss). While more than half of
//! those observed lately were hits, such pages are mapped for writing at once, but for one in
//! sixteen, which goes on being observed, another each time that memory was turned over. A page
//! mapped so and not written is stored for nothing, which nobody waits for, until it is its turn to
//! be observed.

use super::{Pager, PagerAction, PagerTuning};
use crate::far::geometry::{ChunkNo, FarPageNo, PageMask};

/// How it stands: nothing is expected at first.
#[derive(Debug, Default)]
pub(super) struct RewritePredictor {
    share: i32,
    tuning: PagerTuning,
}

impl RewritePredictor {
    pub fn new(tuning: PagerTuning) -> Self {
        Self { tuning, ..Self::default() }
    }

    /// Of pages that were dirty when they went, the first bit at page `first`: those to be mapped
    /// for writing. `turn`: which are observed.
    pub fn of(&self, wrote: PageMask, first: FarPageNo, turn: u64) -> PageMask {
        if self.share < self.tuning.rewrite_share {
            return 0;
        }
        let mut rest = wrote;
        let mut mask = wrote;
        while rest != 0 {
            let bit = rest & rest.wrapping_neg();
            rest &= rest - 1;
            if self.is_observed(first + u64::from(bit.trailing_zeros()), turn) {
                mask &= !bit;
            }
        }
        mask
    }

    /// A page that was dirty when it went, and came back mapped against writing, was written
    /// again.
    pub fn hit(&mut self) {
        self.learn(true);
    }

    /// So many pages that were dirty when they went before, and came back mapped against writing,
    /// have gone clean.
    pub fn missed(&mut self, pages: u32) {
        (0..pages).for_each(|_| self.learn(false));
    }

    fn learn(&mut self, hit: bool) {
        let target = if hit { 1 << 16 } else { 0 };
        self.share += (target - self.share) / 32;
    }

    /// One in [`PagerTuning::rewrite_observed`] pages, others in each turn.
    const fn is_observed(&self, page: FarPageNo, turn: u64) -> bool {
        let each = u64::MAX / self.tuning.rewrite_observed;
        (page.wrapping_add(turn)).wrapping_mul(0x9e37_79b9_7f4a_7c15) <= each
    }
}

impl Pager {
    /// Maps what came from the store; for writing where it is, or where it was written the last
    /// time and that tends to be so again.
    pub(super) fn map_again(&mut self, chunk: ChunkNo, mask: PageMask, write: bool) {
        let wrote = self.chunks[chunk as usize].wrote & mask;
        let held = (self.budget / u64::from(self.geometry.pages_per_chunk())).max(1);
        let turn = self.counts.evictions / held;
        let again = if write {
            mask
        } else {
            self.rewrites.of(wrote, self.geometry.page_at(chunk, 0), turn)
        };
        for (mask, write) in [(again, true), (mask & !again, false)] {
            if mask != 0 {
                self.record_mapped(chunk, mask, write);
                self.actions.push_back(PagerAction::Install { chunk, mask, protect: !write });
            }
        }
    }

    /// Pages go, of which the store does not have `dirty`.
    pub(super) fn goes(&mut self, chunk: ChunkNo, mask: PageMask, dirty: PageMask) {
        let u = &mut self.chunks[chunk as usize];
        let clean = u.wrote & mask & !dirty;
        u.wrote = u.wrote & !mask | dirty;
        self.rewrites.missed(clean.count_ones());
        self.neighbours.record_eviction(mask, self.geometry.page_at(chunk, 0), self.budget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_chunk_in_sixteen_is_observed_in_turn_until_it_misses() {
        let mut rewrites = RewritePredictor::default();
        assert_eq!(rewrites.of(u64::MAX, 0, 0), 0, "nothing is known yet");
        (0..64).for_each(|_| rewrites.hit());
        let all: u32 = (0..64).map(|chunk| rewrites.of(u64::MAX, chunk * 64, 3).count_ones()).sum();
        assert!((3_740..3_940).contains(&all), "{all} of 4096");
        assert_eq!(rewrites.of(0b1010, 0, 0) & !0b1010, 0);
        let ever = (0..200).fold(0, |mask, turn| mask | !rewrites.of(u64::MAX, 640, turn));
        assert_eq!(ever, u64::MAX, "each has its turn to be observed");
        rewrites.missed(64);
        assert_eq!(rewrites.of(u64::MAX, 0, 0), 0);
    }
}
