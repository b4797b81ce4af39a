//! Findings page by page as sightings, neighbours that are alike joined.

use super::PID;
use terrace_engine::RangeObservation;
use terrace_types::{Nanos, Vpn, VpnRange};

/// How one set of looks was made.
#[derive(Debug, Clone, Copy)]
pub(super) struct SimSampleSet {
    pub windows: u16,
    pub window: Nanos,
    pub writes_only: bool,
}

/// Hits of consecutive pages from `start` on; pages with `None` were not looked at.
pub(super) fn join(
    looks: SimSampleSet,
    start: Vpn,
    hits: impl Iterator<Item = Option<u16>>,
    into: &mut Vec<RangeObservation>,
) {
    let mut open: Option<RangeObservation> = None;
    for (page, hit) in (start.0..).zip(hits) {
        match (&mut open, hit) {
            (Some(run), Some(hit)) if run.hits == hit => run.range.end = Vpn(page + 1),
            (_, hit) => {
                into.extend(open.take());
                open = hit.map(|hits| RangeObservation {
                    pid: PID,
                    range: VpnRange::new(Vpn(page), Vpn(page + 1)),
                    hits,
                    windows: looks.windows,
                    window: looks.window,
                    writes_only: looks.writes_only,
                    every_page: true,
                });
            }
        }
    }
    into.extend(open);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alike_neighbours_are_one_sighting() {
        let looks = SimSampleSet { windows: 3, window: Nanos(5), writes_only: false };
        let hits = [Some(1), Some(1), None, Some(1), Some(0), Some(0)];
        let mut seen = Vec::new();
        join(looks, Vpn(10), hits.into_iter(), &mut seen);
        let told: Vec<_> = seen.iter().map(|s| (s.range.start.0, s.range.len(), s.hits)).collect();
        assert_eq!(told, [(10, 2, 1), (13, 1, 1), (14, 2, 0)]);
    }
}
