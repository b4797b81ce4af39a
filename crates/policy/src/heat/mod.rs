//! One heat map from many trackers: reads and writes a second of every base page.
//!
//! What trackers give is rarely a count. It is "in `hits` of `windows` looks, each `window` long,
//! the page had been touched". [`estimate`] turns that into a rate; [`HeatMap`] keeps the rates,
//! eight bytes a page in all (six of them are the [`terrace_types::PageStat`] that policies see,
//! two say how much evidence stands behind the rate).

mod attribute;
pub mod estimate;
mod exact;
mod growth;
mod map;
mod round;
mod span;
mod sweeps;

pub use growth::{Evenness, Growth};
pub use map::{Absorbed, Foreseen, HeatMap, HeatParams, NodeTally, Touched};
pub use sweeps::Sweeps;

use terrace_types::{Nanos, Pid, Vpn, VpnRange};

/// Something seen about a range of pages: in `hits` of `windows` windows of length `window` a
/// page of the range was found accessed (or written).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
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

impl Sighting {
    /// Whether the finding holds for each page rather than for a sample.
    #[must_use]
    pub fn exact(&self) -> bool {
        self.every_page || self.range.len() <= 1
    }
}

/// Looks at every page of a range, a byte a page: in `hits` of `windows` windows of length `window`
/// each was found accessed. What many scattered pages are told by: a [`Sighting`] for each would
/// cost forty times the memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageLooks {
    /// Process.
    pub pid: Pid,
    /// First page.
    pub start: Vpn,
    /// Windows looked at; never zero.
    pub windows: u8,
    /// Length of one window.
    pub window: Nanos,
    /// By page, windows in which it was found accessed; [`PageLooks::NOT_LOOKED`] where it was not
    /// looked at in all of them.
    pub hits: Vec<u8>,
}

impl PageLooks {
    /// In place of hits: not looked at.
    pub const NOT_LOOKED: u8 = u8::MAX;

    /// The pages.
    #[must_use]
    pub fn range(&self) -> VpnRange {
        VpnRange::new(self.start, Vpn(self.start.0.saturating_add(self.hits.len() as u64)))
    }
}

/// How soon each page of a range was found written, a byte a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageWrites {
    /// Process.
    pub pid: Pid,
    /// First page.
    pub start: Vpn,
    /// Length of one window.
    pub window: Nanos,
    /// What can be told of a page: (windows in which it was found written, windows looked at).
    pub told: Vec<(u16, u16)>,
    /// By page, which of `told`; what is not there was not looked at.
    pub found: Vec<u8>,
}

impl PageWrites {
    /// Neighbours that are alike as one sighting, in order.
    pub fn sightings(&self) -> impl Iterator<Item = Sighting> + '_ {
        let mut at = self.start.0;
        self.found.chunk_by(|a, b| a == b).filter_map(move |run| {
            let start = Vpn(at);
            at = at.saturating_add(run.len() as u64);
            let (hits, windows) = *self.told.get(usize::from(run[0]))?;
            let range = VpnRange::new(start, Vpn(at));
            let (pid, window) = (self.pid, self.window);
            Some(Sighting { pid, range, hits, windows, window, writes_only: true, every_page: true })
        })
    }
}
