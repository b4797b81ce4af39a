//! Which pages were sampled one by one lately.

use terrace_types::{Nanos, Pid, Tick, Vpn, VpnRange};

/// Ranges kept at most; beyond it the oldest knowledge is given up.
const MAX_RANGES: usize = 4096;

/// Ranges of pages sampled one by one, and when last. Neighbours are joined as they come.
#[derive(Debug, Clone, Default)]
pub struct ExactRanges {
    ranges: Vec<(Pid, VpnRange, Tick)>,
}

impl ExactRanges {
    /// Drops ranges not sampled for `span`.
    pub fn forget(&mut self, span: Nanos, now: Tick) {
        self.ranges.retain(|(_, _, at)| now.since(*at) <= span);
        if self.ranges.len() > MAX_RANGES {
            self.ranges.clear();
        }
    }

    /// The ranges, joined and sorted, for [`covers`].
    pub fn joined(&self) -> Vec<(Pid, VpnRange)> {
        let mut all: Vec<_> = self.ranges.iter().map(|(p, r, _)| (*p, *r)).collect();
        all.sort_unstable();
        all.dedup_by(|next, kept| {
            let joins = next.0 == kept.0 && next.1.start <= kept.1.end;
            if joins {
                kept.1.end = kept.1.end.max(next.1.end);
            }
            joins
        });
        all
    }

    /// These pages were sampled now.
    pub fn note(&mut self, pid: Pid, range: VpnRange, now: Tick) {
        if let Some((last, joined, at)) = self.ranges.last_mut() {
            if *last == pid && *at == now && joined.end == range.start {
                joined.end = range.end;
                return;
            }
        }
        if self.ranges.len() <= MAX_RANGES {
            self.ranges.push((pid, range, now));
        }
    }

    /// Calls `each` with the parts of `range` that are in none of the ranges.
    pub fn outside(&self, pid: Pid, range: VpnRange, mut each: impl FnMut(VpnRange)) {
        let mut inside: Vec<VpnRange> = self
            .ranges
            .iter()
            .filter(|(p, _, _)| *p == pid)
            .filter_map(|(_, r, _)| r.intersect(range))
            .collect();
        inside.sort_unstable();
        let mut at: Vpn = range.start;
        for part in inside {
            if part.start > at {
                each(VpnRange::new(at, part.start));
            }
            at = at.max(part.end);
        }
        if at < range.end {
            each(VpnRange::new(at, range.end));
        }
    }
}

/// Whether one of the joined ranges holds all of `range`.
pub fn covers(joined: &[(Pid, VpnRange)], pid: Pid, range: VpnRange) -> bool {
    let after = joined.partition_point(|(p, r)| (*p, r.start) <= (pid, range.start));
    after.checked_sub(1).is_some_and(|i| joined[i].0 == pid && joined[i].1.end >= range.end)
}

/// The parts of `range`, in order, and whether one of the joined ranges holds each.
pub fn parts(joined: &[(Pid, VpnRange)], pid: Pid, range: VpnRange) -> Vec<(VpnRange, bool)> {
    let mut all = Vec::new();
    let mut at = range.start;
    let first = joined.partition_point(|(p, r)| (*p, r.end) <= (pid, range.start));
    for (_, held) in joined[first..].iter().take_while(|(p, r)| *p == pid && r.start < range.end) {
        if let Some(both) = held.intersect(VpnRange::new(at, range.end)) {
            all.extend([(VpnRange::new(at, both.start), false), (both, true)]);
            at = both.end;
        }
    }
    all.push((VpnRange::new(at, range.end), false));
    all.retain(|(part, _)| !part.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> VpnRange {
        VpnRange::new(Vpn(start), Vpn(end))
    }

    #[test]
    fn parts_outside_are_what_is_left() {
        let mut exact = ExactRanges::default();
        for vpn in 10..20 {
            exact.note(Pid(1), range(vpn, vpn + 1), Tick(5));
        }
        exact.note(Pid(1), range(30, 40), Tick(5));
        assert_eq!(exact.ranges.len(), 2);
        let mut parts = Vec::new();
        exact.outside(Pid(1), range(0, 35), |r| parts.push((r.start.0, r.end.0)));
        assert_eq!(parts, [(0, 10), (20, 30)]);
        let joined = exact.joined();
        assert!(covers(&joined, Pid(1), range(12, 20)) && !covers(&joined, Pid(1), range(12, 21)));
        assert!(!covers(&joined, Pid(2), range(12, 13)) && !covers(&[], Pid(1), range(1, 2)));
        exact.forget(Nanos(10), Tick(16));
        assert!(exact.ranges.is_empty());
    }
}
