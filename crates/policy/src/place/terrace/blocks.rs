//! What blocks of pages hold, by side of a boundary: the range of expected values, and the mean.
//!
//! One pass over all pages makes the hotness histogram and these summaries. A cut is then carried
//! out block by block: what holds nothing of it is passed over, what belongs to it as a whole
//! moves as a whole, and only pages of the rest are rated one by one.

use super::tuning::TerraceTuning;
use terrace_types::{Area, Snapshot};

/// Base pages of a block.
pub(super) const BLOCK: u64 = 512;

/// Lowest and highest bucket of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BucketRange {
    pub lowest: u16,
    pub highest: u16,
}

impl BucketRange {
    pub const NONE: Self = Self { lowest: u16::MAX, highest: 0 };

    pub fn include(&mut self, bucket: usize) {
        let bucket = bucket as u16;
        (self.lowest, self.highest) = (self.lowest.min(bucket), self.highest.max(bucket));
    }

    pub fn is_none(self) -> bool {
        self.lowest > self.highest
    }
}

/// Of one side: its base pages and what they are worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SideSummary {
    pub pages: u32,
    /// As sampled, nanoseconds a second.
    pub value: f32,
    /// The class of all pages, where chance explains how they differ: each is rated by their mean.
    pub alike: Option<u8>,
    /// Expected values, chance taken out.
    pub expected: BucketRange,
}

/// A block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct BlockSummary {
    /// Base pages of it that the area has.
    pub all: u32,
    /// Better side, worse side.
    pub sides: [SideSummary; 2],
    /// The node of all pages; `None`: of several.
    pub node: Option<u8>,
    /// It holds parts of huge pages, which are not summed up here.
    pub huge: bool,
}

/// What the base pages of one side of a block come to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SideSums {
    pub pages: u32,
    pub value: f32,
    pub squares: f32,
    pub reads: f32,
    pub writes: f32,
}

impl SideSums {
    /// Whether chance explains how its pages differ: touches are counted, so that their variance is
    /// their mean (a dispersion test: Fisher, Statistical Methods for Research Workers, 1925). Many
    /// pages tell that well though each was touched once or twice. `touch`: what one touch comes to
    /// in nanoseconds a second.
    pub fn is_alike(&self, tuning: &TerraceTuning, touch: f64) -> bool {
        let (n, sum) = (f64::from(self.pages), f64::from(self.value));
        if self.pages < tuning.alike_fewest {
            return false;
        }
        let mean = sum / n;
        let variance = (f64::from(self.squares) - sum * mean).max(0.0) / (n - 1.0);
        let chance = tuning.alike_deviations * (2.0 / (n - 1.0)).sqrt();
        variance <= touch * mean * (1.0 + chance)
    }
}

/// The blocks of all areas.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct BlockMap {
    first: Vec<usize>,
    pub blocks: Vec<BlockSummary>,
}

impl BlockMap {
    pub fn new(snap: &Snapshot) -> Self {
        let (mut first, mut next) = (Vec::with_capacity(snap.areas.len()), 0);
        for area in &snap.areas {
            first.push(next);
            next += stretches(area).count();
        }
        Self { first, blocks: Vec::with_capacity(next) }
    }

    /// The block of the page at `at` of an area.
    pub fn at(&self, snap: &Snapshot, area: usize, at: usize) -> Option<&BlockSummary> {
        let start = snap.areas.get(area).filter(|a| at < a.pages.len())?.start.0;
        let index = (start + at as u64) / BLOCK - start / BLOCK;
        self.blocks.get(self.first.get(area)? + index as usize)
    }
}

/// Indexes of an area's pages by block.
pub(super) fn stretches(area: &Area) -> impl Iterator<Item = (usize, usize)> + '_ {
    let end = area.pages.len();
    let mut at = 0;
    std::iter::from_fn(move || {
        let from = at;
        at = end_of_block(area, from);
        (from < end).then_some((from, at))
    })
}

/// Where the block ends that holds the page at `at`.
pub(super) fn end_of_block(area: &Area, at: usize) -> usize {
    let vpn = area.start.0 + at as u64;
    let end = (vpn / BLOCK + 1).saturating_mul(BLOCK) - area.start.0;
    area.pages.len().min(end as usize)
}
