//! What looks into one window say of how often pages are written: for trackers of dirty bits, live and simulated alike
//! (ADR 0043).
//!
//! A page written a million times in a window is one dirty page. So each window is looked into three times, 2 and 6 ms
//! after it began and at its end: the bits only accumulate, further looks cost no faults, and when a page was first found
//! dirty tells rates up to some hundred writes a second apart, where one look at 50 ms tells twenty at most. A target that
//! writes many pages spends the first milliseconds in faults, not in writing; the time that its faults took by
//! [`FAULT`] is left out of what the looks count as watched.

use crate::Sighting;
use terrace_types::{Nanos, Pid, Vpn, VpnRange};

/// Shortest window: below it the target mostly takes faults (26-29 ms with 16 k hot pages, measured in the lab).
pub const SHORTEST: Nanos = Nanos::millis(25);
/// What one write fault costs the target: 1-3 us measured; the cautious end.
pub const FAULT: Nanos = Nanos::micros(2);
/// Looks into a window soon after it began.
pub const EARLY: [Nanos; 2] = [Nanos::millis(2), Nanos::millis(6)];
/// A stretch counts for at least this part of its length, however many faults fell into it.
const LEAST_PART: u64 = 8;

/// One look into a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// Since the window began.
    pub at: Nanos,
    /// Runs of pages dirty by then, by range.
    pub written: Vec<Vec<VpnRange>>,
}

impl Look {
    /// Pages dirty by then.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.written.iter().flatten().map(|r| r.len()).sum()
    }
}

/// For how long each look had watched, the target's faults left out: `threads` of it can run.
fn watched_for(looks: &[Look], threads: u64) -> Vec<Nanos> {
    let (mut total, mut last, mut dirty) = (Nanos::ZERO, Nanos::ZERO, 0);
    looks
        .iter()
        .map(|look| {
            let stretch = look.at.saturating_sub(last);
            let faults = Nanos(look.pages().saturating_sub(dirty) * FAULT.0 / threads.max(1));
            total += stretch.saturating_sub(faults).max(Nanos(stretch.0 / LEAST_PART)).max(Nanos(1));
            (last, dirty) = (look.at, look.pages());
            total
        })
        .collect()
}

/// What a window's looks say of the pages of `ranges`, in units of the time to the first: a page first found dirty by
/// look `j` was written once in the time to the middle between that look and the one before it.
pub fn sightings(pid: Pid, ranges: &[VpnRange], looks: &[Look], threads: u64, into: &mut Vec<Sighting>) {
    let times = watched_for(looks, threads);
    let (Some(unit), Some(all)) = (times.first().copied(), times.last().copied()) else {
        return;
    };
    let units = |time: u64| (time / unit.0).clamp(1, u64::from(u16::MAX)) as u16;
    let told = |first: u8| match first {
        0 => (0, units(all.0 + unit.0 / 2)),
        1 => (1, 1),
        n => (1, units((times[usize::from(n) - 2].0 + times[usize::from(n) - 1].0 + unit.0) / 2)),
    };
    for (at, range) in ranges.iter().enumerate() {
        // 1 from the first look's, 0 for never.
        let mut first = vec![0_u8; range.len() as usize];
        for (n, look) in looks.iter().enumerate().rev() {
            for run in look.written.get(at).into_iter().flatten().filter_map(|r| r.intersect(*range)) {
                first[(run.start.0 - range.start.0) as usize..(run.end.0 - range.start.0) as usize].fill(n as u8 + 1);
            }
        }
        let mut start = range.start;
        for run in first.chunk_by(|a, b| a == b) {
            let end = Vpn(start.0 + run.len() as u64);
            let ((hits, windows), range) = (told(run[0]), VpnRange::new(start, end));
            into.push(Sighting { pid, range, hits, windows, window: unit, writes_only: true, every_page: true });
            start = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> VpnRange {
        VpnRange::new(Vpn(start), Vpn(end))
    }

    #[test]
    fn the_sooner_a_page_is_dirty_the_more_it_is_written() {
        let look = |ms, runs: &[VpnRange]| Look { at: Nanos::millis(ms), written: vec![runs.to_vec()] };
        let looks = [look(2, &[range(10, 11)]), look(6, &[range(10, 12)]), look(50, &[range(10, 12), range(13, 14)])];
        let mut all = Vec::new();
        sightings(Pid(1), &[range(10, 16)], &looks, 1, &mut all);
        let told: Vec<_> = all.iter().map(|s| (s.range.start.0, s.range.len(), s.hits, s.windows)).collect();
        assert_eq!(told, [(10, 1, 1, 1), (11, 1, 1, 2), (12, 1, 0, 25), (13, 1, 1, 14), (14, 2, 0, 25)]);
        assert!(all.iter().all(|s| s.writes_only && s.every_page && s.window < Nanos::millis(2)));
    }

    #[test]
    fn time_in_faults_is_no_time_to_write() {
        let look = |ms, pages: u64| Look { at: Nanos::millis(ms), written: vec![vec![range(0, pages)]] };
        // 500 faults of 2 us on one thread: one of the two milliseconds.
        assert_eq!(watched_for(&[look(2, 500)], 1), [Nanos::millis(1)]);
        assert_eq!(watched_for(&[look(2, 500)], 2), [Nanos::micros(1500)]);
        // However many there were, an eighth of the time is left; later stretches have their own.
        assert_eq!(watched_for(&[look(2, 5000), look(6, 5000)], 1), [Nanos::micros(250), Nanos::micros(4250)]);
    }
}
