//! Who in a sampled region was it? A region's sample tells how much its pages are accessed on
//! average. Where page-exact write bits say that some pages of it are written again and again,
//! most of the region's accesses are theirs, and spreading the average evenly would hide hot pages
//! among cold ones (the scattered, written hot set).
//!
//! The approximation, by name *dirty attribution*: a tenth of the region's accesses is spread
//! evenly, the rest in proportion to the share of samples that found each page dirty, at most
//! [`HeatTuning::dirty_most`] times the average. Shares that differ no more than chance makes them
//! differ are first drawn together: few samples of evenly written pages change nothing, nor does a
//! region where no page is dirty, or all are.

use super::HeatTuning;

/// How a region's accesses are shared among its pages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RegionShare {
    mean: f32,
    even: f32,
    trusted: f32,
    most: f32,
}

impl RegionShare {
    /// From each page's share of dirty samples and the number of samples behind it.
    pub fn from_pages(pages: impl Iterator<Item = (f32, f32)>, tuning: &HeatTuning) -> Self {
        let (mut n, mut sum, mut squares, mut samples) = (0.0f32, 0.0f32, 0.0f32, 0.0f32);
        for (dirty, times) in pages {
            n += 1.0;
            sum += dirty;
            squares += dirty * dirty;
            samples += times;
        }
        let mean = sum / n.max(1.0);
        let spread = (squares / n.max(1.0) - mean * mean).max(0.0);
        let chance = mean * (1.0 - mean) / (samples / n.max(1.0)).max(1.0);
        let trusted = if spread > 0.0 { 1.0 - tuning.dirty_caution * chance / spread } else { 0.0 };
        let most = tuning.dirty_most;
        if mean < tuning.dirty_least || trusted <= 0.0 {
            Self { mean: 1.0, even: 1.0, trusted: 0.0, most }
        } else {
            Self { mean, even: tuning.dirty_even, trusted, most }
        }
    }

    /// Times the region's average for a page found dirty in this share of samples.
    pub fn of(&self, dirty: f32) -> f32 {
        if self.even >= 1.0 {
            return 1.0;
        }
        let drawn = self.mean + self.trusted * (dirty - self.mean);
        self.even + (1.0 - self.even) * (drawn / self.mean).min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_go_to_the_dirty_pages_and_add_up() {
        let pages =
            |samples: f32| (0..100).map(move |i| (if i % 4 == 0 { 1.0 } else { 0.0 }, samples));
        let share = RegionShare::from_pages(pages(20.0), &HeatTuning::USUAL);
        assert!(share.of(1.0) > 3.3 && share.of(0.0) < 0.3, "{share:?}");
        assert!((0.25 * share.of(1.0) + 0.75 * share.of(0.0) - 1.0).abs() < 1e-4);
        let one_sample = RegionShare::from_pages(pages(1.0), &HeatTuning::USUAL);
        assert!((one_sample.of(1.0) - 1.0).abs() < 1e-4, "{one_sample:?}");
    }

    #[test]
    fn all_dirty_or_none_changes_nothing() {
        for dirty in [0.0, 1.0] {
            let share = RegionShare::from_pages((0..10).map(|_| (dirty, 20.0)), &HeatTuning::USUAL);
            assert!((share.of(dirty) - 1.0).abs() < 1e-4, "{share:?}");
        }
    }
}
