//! One heat map from many trackers: reads and writes a second of every base page.
//!
//! What trackers give is rarely a count. It is "in `hits` of `windows` looks, each `window` long,
//! the page had been touched". [`estimate`] turns that into a rate; [`HeatMap`] keeps the rates,
//! eight bytes a page in all (six of them are the [`terrace_types::PageStat`] that policies see,
//! two say how much evidence stands behind the rate).

mod attribute;
pub mod estimate;
mod exact;
mod map;
mod span;

pub use map::{Absorbed, HeatMap, HeatParams};

use terrace_types::{Nanos, Pid, VpnRange};

/// Something seen about a range of pages: in `hits` of `windows` windows of length `window` a
/// page of the range was found accessed (or written). The engine makes these from what trackers
/// report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Process.
    pub pid: Pid,
    /// Pages. One page, or `every_page`: exact. Else one page sampled for all, a different one
    /// each window.
    pub range: VpnRange,
    /// Windows in which it was found accessed.
    pub hits: u16,
    /// Windows looked at.
    pub windows: u16,
    /// Length of one window.
    pub window: Nanos,
    /// Only writes count as hits (else reads and writes alike).
    pub writes_only: bool,
    /// Holds for each page of the range, not for a sample.
    pub every_page: bool,
}

impl Seen {
    /// Whether the finding holds for each page rather than for a sample.
    #[must_use]
    pub fn exact(&self) -> bool {
        self.every_page || self.range.len() <= 1
    }
}
