//! Distributions of latencies: counts by the nanosecond, and where they have their parts.

use serde::Serialize;
use std::collections::BTreeMap;

/// Picoseconds in a nanosecond.
const PS: u64 = 1000;

/// The distribution of a latency, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct LatencySpread {
    /// Half take no longer.
    pub p50: u64,
    /// Nine of ten take no longer.
    pub p90: u64,
    /// 99 of 100 take no longer.
    pub p99: u64,
    /// None takes longer.
    pub max: u64,
}

/// Messages by the whole nanoseconds that they took.
#[derive(Debug, Clone, Default)]
pub(crate) struct LatencyHistogram(BTreeMap<u64, u64>);

impl LatencyHistogram {
    /// So many took so long.
    pub fn count(&mut self, took_ps: u64, messages: u64) {
        if messages > 0 {
            *self.0.entry(took_ps / PS).or_default() += messages;
        }
    }

    pub fn spread(&self) -> LatencySpread {
        let all: u64 = self.0.values().sum();
        let below = |percent: u64| {
            let (mut passed, wanted) = (0, (all * percent).div_ceil(100));
            let reached = self.0.iter().find(|(_, count)| {
                passed += *count;
                passed >= wanted
            });
            reached.map_or(0, |(ns, _)| *ns)
        };
        let max = self.0.keys().next_back().copied().unwrap_or_default();
        LatencySpread { p50: below(50), p90: below(90), p99: below(99), max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_distribution_are_where_so_many_have_passed() {
        let mut lines = LatencyHistogram::default();
        for (ns, count) in [(300, 50), (400, 40), (900, 9), (5000, 1), (9000, 0)] {
            lines.count(ns * PS + 999, count);
        }
        assert_eq!(lines.spread(), LatencySpread { p50: 300, p90: 400, p99: 900, max: 5000 });
        assert_eq!(LatencyHistogram::default().spread(), LatencySpread::default());
    }
}
