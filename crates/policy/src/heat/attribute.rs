//! Who in a sampled region was it? A region's sample tells how much its pages are accessed on
//! average. Where page-exact write bits say that some pages of it are written again and again,
//! most of the region's accesses are theirs, and spreading the average evenly would hide hot pages
//! among cold ones (the scattered, written hot set).
//!
//! The approximation, by name *dirty attribution*: a tenth of the region's accesses is spread
//! evenly, the rest in proportion to the share of looks that found each page dirty, at most
//! [`CAP`] times the average. Where no page is dirty, or all are, it changes nothing.

/// A page gets at most this many times its region's average.
pub const CAP: f32 = 16.0;
/// Spread evenly whatever the bits say.
const EVEN: f32 = 0.1;
/// Regions with a smaller share of dirty looks are left alone.
const LEAST: f32 = 0.005;

/// How a region's accesses are shared among its pages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    mean: f32,
    even: f32,
}

impl Share {
    /// From the mean share of dirty looks over the region's pages.
    pub fn new(mean_dirty: f32) -> Self {
        if mean_dirty < LEAST {
            Self {
                mean: 1.0,
                even: 1.0,
            }
        } else {
            Self {
                mean: mean_dirty,
                even: EVEN,
            }
        }
    }

    /// Times the region's average for a page found dirty in this share of looks.
    pub fn of(&self, dirty: f32) -> f32 {
        if self.even >= 1.0 {
            return 1.0;
        }
        self.even + (1.0 - self.even) * (dirty / self.mean).min(CAP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_go_to_the_dirty_pages_and_add_up() {
        let share = Share::new(0.25);
        assert!((share.of(1.0) - 3.7).abs() < 1e-4 && (share.of(0.0) - 0.1).abs() < 1e-6);
        assert!((0.25 * share.of(1.0) + 0.75 * share.of(0.0) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn all_dirty_or_none_changes_nothing() {
        assert!((Share::new(1.0).of(1.0) - 1.0).abs() < 1e-6);
        assert!((Share::new(0.0).of(0.0) - 1.0).abs() < 1e-6);
    }
}
