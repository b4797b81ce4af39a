//! Runs of alike pages as sightings.

use terrace_engine::RangeObservation;
use terrace_types::{Nanos, Pid, Vpn, VpnRange};

/// How one set of samples was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampleSet {
    pub(crate) pid: Pid,
    pub(crate) sample_count: u16,
    pub(crate) interval: Nanos,
    pub(crate) writes_only: bool,
}

impl SampleSet {
    /// A sighting of `range`, exact for each of its pages.
    pub(crate) const fn of(self, range: VpnRange, hits: u16) -> RangeObservation {
        RangeObservation {
            pid: self.pid,
            range,
            hits,
            sample_count: self.sample_count,
            interval: self.interval,
            writes_only: self.writes_only,
            every_page: true,
        }
    }
}

/// Hits of consecutive pages from `start`, neighbours with the same count joined. Pages with
/// `None` were not sampled.
pub(crate) fn join(
    samples: SampleSet,
    start: Vpn,
    hits: impl Iterator<Item = Option<u16>>,
    into: &mut Vec<RangeObservation>,
) {
    let mut open: Option<RangeObservation> = None;
    for (at, hit) in hits.enumerate() {
        let page = Vpn(start.0 + at as u64);
        match (&mut open, hit) {
            (Some(run), Some(hit)) if run.hits == hit => run.range.end = Vpn(page.0 + 1),
            (_, hit) => {
                into.extend(open.take());
                open = hit.map(|h| samples.of(VpnRange::new(page, Vpn(page.0 + 1)), h));
            }
        }
    }
    into.extend(open);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE_SET: SampleSet =
        SampleSet { pid: Pid(1), sample_count: 4, interval: Nanos(9), writes_only: false };

    #[test]
    fn neighbours_join_and_gaps_part() {
        let mut all = Vec::new();
        let hits = [Some(1), Some(1), None, Some(1), Some(0), Some(0)];
        join(SAMPLE_SET, Vpn(10), hits.into_iter(), &mut all);
        let ranges: Vec<_> = all.iter().map(|s| (s.range.start.0, s.range.end.0, s.hits)).collect();
        assert_eq!(ranges, [(10, 12, 1), (13, 14, 1), (14, 16, 0)]);
    }
}
