//! Latency under load, from a machine file's curves.
//!
//! A bus that is divided among cores ([`crate::channel`]) makes those wait that ask for much. On a
//! real machine the others wait, too: their requests stand in the same queues of the memory
//! controller, and the longer the more of them are writes. The curves say how long. What a node
//! was asked for in one quantum sets what a miss takes in the next.

use terrace_machine::LoadLatencyCurve;

/// A node's curves, by ascending share of reads.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadedCurves(Vec<ReadShareCurve>);

/// One curve: points of bytes a second and added picoseconds, at one share of reads.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReadShareCurve {
    /// Bytes read of all bytes moved, per cent.
    read_percent: u64,
    points: Vec<(u64, u64)>,
}

impl ReadShareCurve {
    /// Added picoseconds at so many bytes a second.
    fn added_at(&self, rate: u64) -> u64 {
        let after = self.points.partition_point(|(at, _)| *at <= rate);
        let point = |at: usize| self.points.get(at).copied();
        match (after.checked_sub(1).and_then(point), point(after)) {
            (Some(low), Some(high)) => between(low, high, rate),
            (Some((_, last)), None) => last,
            (None, Some(first)) => between((0, 0), first, rate),
            (None, None) => 0,
        }
    }
}

/// The value at `at` on the line through two points.
fn between((x0, y0): (u64, u64), (x1, y1): (u64, u64), at: u64) -> u64 {
    let (span, part) = ((x1 - x0).max(1) as f64, at.saturating_sub(x0) as f64);
    (y0 as f64 + (y1 as f64 - y0 as f64) * (part / span).min(1.0)).round() as u64
}

impl LoadedCurves {
    /// Those of one node.
    pub fn new<'a>(curves: impl IntoIterator<Item = &'a LoadLatencyCurve>) -> Self {
        let curve = |c: &LoadLatencyCurve| ReadShareCurve {
            read_percent: u64::from(c.read_percent),
            points: c.points.iter().map(|p| (p.bandwidth.get(), p.added.get() * 1000)).collect(),
        };
        let mut all: Vec<ReadShareCurve> = curves.into_iter().map(curve).collect();
        all.sort_by_key(|c| c.read_percent);
        Self(all)
    }

    /// Whether there are none: misses take their idle latency.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What a miss takes beyond its idle latency, picoseconds, where so many bytes were read and
    /// written in `length` picoseconds. Between two shares of reads it is on the line between
    /// their curves.
    #[must_use]
    pub fn added(&self, read_bytes: u64, write_bytes: u64, length: u64) -> u64 {
        let all = read_bytes + write_bytes;
        if all == 0 || self.0.is_empty() {
            return 0;
        }
        let rate = u128::from(all) * 1_000_000_000_000 / u128::from(length.max(1));
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        let share = read_bytes * 100 / all;
        let after = self.0.partition_point(|c| c.read_percent <= share);
        let at = |index: usize| self.0.get(index).map(|c| (c.read_percent, c.added_at(rate)));
        match (after.checked_sub(1).and_then(at), at(after)) {
            (Some(low), Some(high)) => between(low, high, share),
            (Some((_, only)), None) | (None, Some((_, only))) => only,
            (None, None) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_machine::LoadedPoint;
    use terrace_types::{BytesPerSec, Nanos, NodeId};

    fn curves(of: &[(u8, &[(u64, u64)])]) -> LoadedCurves {
        let curve = |(read_percent, points): &(u8, &[(u64, u64)])| LoadLatencyCurve {
            node: NodeId(0),
            read_percent: *read_percent,
            points: points
                .iter()
                .map(|(gb, ns)| LoadedPoint {
                    bandwidth: BytesPerSec(gb * 1_000_000_000),
                    added: Nanos(*ns),
                })
                .collect(),
        };
        let all: Vec<LoadLatencyCurve> = of.iter().map(curve).collect();
        LoadedCurves::new(&all)
    }

    #[test]
    fn a_point_between_two_is_on_the_line_through_them() {
        let c = curves(&[(100, &[(10, 0), (20, 100), (22, 500)])]);
        // A microsecond: GB/s are thousands of bytes.
        let at = |gb: u64| c.added(gb * 1000, 0, 1_000_000);
        assert_eq!([at(0), at(5), at(10)], [0, 0, 0]);
        assert_eq!(
            [at(15), at(20), at(21), at(22), at(90)],
            [50_000, 100_000, 300_000, 500_000, 500_000]
        );
    }

    #[test]
    fn a_share_of_reads_between_two_is_on_the_line_between_their_curves() {
        let c = curves(&[(50, &[(0, 0), (10, 200)]), (100, &[(0, 0), (10, 100)])]);
        let at = |read: u64| c.added(read * 100, (100 - read) * 100, 1_000_000);
        assert_eq!([at(100), at(75), at(50), at(20)], [100_000, 150_000, 200_000, 200_000]);
        assert!(LoadedCurves::default().is_empty() && !c.is_empty());
        assert_eq!(LoadedCurves::default().added(1 << 40, 0, 1), 0);
    }
}
