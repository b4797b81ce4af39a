//! One heat map from many trackers: reads and writes a second of every base page.
//!
//! What trackers give is rarely a count. It is "in `hits` of `sample_count` samples, each
//! `interval` long, the page had been touched". [`estimate`] turns that into a rate; [`HeatMap`]
//! keeps the rates, eight bytes a page in all (six of them are the [`terrace_types::PageStat`] that
//! policies see, two say how much evidence stands behind the rate).

mod attribute;
pub mod estimate;
mod exact;
mod map;
mod prescan;
mod round;
mod span;
mod sweeps;
mod tuning;

pub use map::{ForecastCheck, HeatMap, HeatParams, MergeResult, NodeTally, TouchedPages};
pub use prescan::{Prescan, PrescanTuning, TouchEvenness};
pub use sweeps::SweepEstimator;
pub use tuning::HeatTuning;

use terrace_types::{Nanos, Pid, Vpn, VpnRange};

/// Something seen about a range of pages: in `hits` of `sample_count` intervals of length
/// `interval` a page of the range was found accessed (or written).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeObservation {
    /// Process.
    pub pid: Pid,
    /// Pages. One page, or `every_page`: exact. Else one page sampled for all, a different one
    /// each interval.
    pub range: VpnRange,
    /// Intervals in which it was found accessed.
    pub hits: u16,
    /// Intervals sampled.
    pub sample_count: u16,
    /// Length of one interval.
    pub interval: Nanos,
    /// Only writes count as hits (else reads and writes alike).
    pub writes_only: bool,
    /// Holds for each page of the range, not for a sample.
    pub every_page: bool,
}

impl RangeObservation {
    /// Whether the finding holds for each page rather than for a sample.
    #[must_use]
    pub fn exact(&self) -> bool {
        self.every_page || self.range.len() <= 1
    }
}

/// Samples every page of a range, a byte a page: in `hits` of `sample_count` intervals of length
/// `interval` each was found accessed. What many scattered pages are reported by: a
/// [`RangeObservation`] for each would cost forty times the memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageSamples {
    /// Process.
    pub pid: Pid,
    /// First page.
    pub start: Vpn,
    /// Intervals sampled; never zero.
    pub sample_count: u8,
    /// Length of one interval.
    pub interval: Nanos,
    /// Pages, neighbours in a row, that share one accessed bit: 512 of a huge page on x86-64, else
    /// one.
    pub each: u16,
    /// Whether a touch of pages that share a bit is taken for one of any of them (else for one of
    /// each, in turn), so that each is as hot as if it alone had been sampled for `each` times as
    /// long.
    pub at_random: bool,
    /// By page, intervals in which it was found accessed; [`PageSamples::NOT_SAMPLED`] where it was
    /// not sampled in all of them.
    pub hits: Vec<u8>,
}

impl PageSamples {
    /// In place of hits: not sampled.
    pub const NOT_SAMPLED: u8 = u8::MAX;

    /// The pages.
    #[must_use]
    pub fn range(&self) -> VpnRange {
        VpnRange::new(self.start, Vpn(self.start.0.saturating_add(self.hits.len() as u64)))
    }

    /// Pages found accessed so often.
    fn count(&self, hits: u8) -> usize {
        // In bytes, which are compared many at once.
        let of = |part: &[u8]| part.iter().map(|h| u8::from(*h == hits)).sum::<u8>();
        self.hits.chunks(255).map(|part| usize::from(of(part))).sum()
    }

    /// Pages that were sampled in all intervals.
    fn report_count(&self) -> usize {
        self.hits.len() - self.count(Self::NOT_SAMPLED)
    }

    /// Seconds of one interval, as it counts for a page.
    fn seconds(&self) -> f32 {
        let times = if self.at_random { self.each.max(1) } else { 1 };
        self.interval.as_secs_f64() as f32 * f32::from(times)
    }
}

/// What an interval says of pages found alike in it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PageEvidence {
    /// Writes a second.
    pub per_second: f32,
    /// Time sampled that stands behind it.
    pub over: Nanos,
    /// Whether they were found written at all.
    pub dirty: bool,
}

/// How often the pages of a range are written, a byte a page.
#[derive(Debug, Clone, PartialEq)]
pub struct PageWrites {
    /// Process.
    pub pid: Pid,
    /// First page.
    pub start: Vpn,
    /// Time to the first sample of the interval: more than some writes in it are not distinguished.
    pub interval: Nanos,
    /// What is known of a page.
    pub reported: Vec<PageEvidence>,
    /// By page, which of `reported`; what is not there was not sampled.
    pub found: Vec<u8>,
}

impl PageWrites {
    /// The pages.
    #[must_use]
    pub fn range(&self) -> VpnRange {
        VpnRange::new(self.start, Vpn(self.start.0.saturating_add(self.found.len() as u64)))
    }

    /// Neighbours that are alike, in order.
    pub fn runs(&self) -> impl Iterator<Item = (VpnRange, PageEvidence)> + '_ {
        let mut at = self.start.0;
        self.found.chunk_by(|a, b| a == b).filter_map(move |run| {
            let start = Vpn(at);
            at = at.saturating_add(run.len() as u64);
            let reported = *self.reported.get(usize::from(run[0]))?;
            Some((VpnRange::new(start, Vpn(at)), reported))
        })
    }
}
