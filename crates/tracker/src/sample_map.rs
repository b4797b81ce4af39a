//! A tracker's reply from samples of accesses: a page map for each thread (Lorenzo-Castillo et al.,
//! "A Flexible and Dynamic Page Migration Infrastructure Based on Hardware Counters", section 3.2),
//! and observations for the heat map.
//!
//! A page that was sampled `n` times with a period `P` in an interval `W` is reported as accessed
//! in `n` of many samples that are `W / P` long together: a stream thinned to one in `P` and
//! observed for `W` shows as much as all of it in `W / P`.

use std::collections::BTreeMap;
use terrace_engine::{Mapping, Observation, RangeObservation};
use terrace_types::{CellCount, Nanos, NodeId, Pid, Tid, Vpn, VpnRange};

/// Entries of the page maps that are kept; samples of further pages and threads are counted as
/// lost. At 48 bytes each the maps stay below 64 MiB.
const MAX_ENTRIES: usize = 1 << 20;
/// Intervals that stand for a page sampled once: so many that hits stay few among them.
const INTERVALS_PER_HIT: u32 = 8;
const LEAST_INTERVALS: u32 = 64;

/// One sampled access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SampledAccess {
    /// Process.
    pub pid: Pid,
    /// Page.
    pub vpn: Vpn,
    /// A store, else a load.
    pub store: bool,
    /// Node of the CPU that made it, where known.
    pub cell: Option<NodeId>,
    /// Thread that made it, where known.
    pub thread: Option<Tid>,
}

/// Accesses that one sample stands for; zero: this kind is not sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SamplePeriods {
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
}

type ThreadPage = (Pid, Vpn, NodeId, Option<Tid>);

/// Samples of one interval by page, cell and thread.
#[derive(Debug, Default)]
pub struct SampleMap {
    loads: BTreeMap<(Pid, Vpn), u16>,
    stores: BTreeMap<(Pid, Vpn), u16>,
    by_cell: BTreeMap<ThreadPage, (u32, u32)>,
    left_out: u64,
}

impl SampleMap {
    /// Counts a sample.
    pub fn add(&mut self, sample: &SampledAccess) {
        if self.loads.len() + self.stores.len() + self.by_cell.len() >= MAX_ENTRIES {
            self.left_out += 1;
            return;
        }
        let pages = if sample.store { &mut self.stores } else { &mut self.loads };
        let count = pages.entry((sample.pid, sample.vpn)).or_default();
        *count = count.saturating_add(1);
        if let Some(cell) = sample.cell {
            let key = (sample.pid, sample.vpn, cell, sample.thread);
            let (reads, writes) = self.by_cell.entry(key).or_default();
            let count = if sample.store { writes } else { reads };
            *count = count.saturating_add(1);
        }
    }

    /// Takes what was counted in an interval of this length, for the pages of `mappings`.
    pub fn take(
        &mut self,
        mappings: &[Mapping],
        interval: Nanos,
        periods: SamplePeriods,
    ) -> Observation {
        let mut seen = Observation { lost: self.left_out, ..Observation::default() };
        let counted = std::mem::take(self);
        for (counts, period, store) in
            [(&counted.loads, periods.loads, false), (&counted.stores, periods.stores, true)]
        {
            if period > 0 && interval > Nanos::ZERO {
                report(counts, mappings, interval, period, store, &mut seen.observations);
            }
        }
        seen.observations.sort_by_key(|s| (s.pid, s.range.start, s.writes_only));
        let count = |((pid, vpn, cell, thread), (reads, writes)): (&ThreadPage, &(u32, u32))| {
            let (pid, vpn, cell, thread) = (*pid, *vpn, *cell, *thread);
            CellCount { pid, vpn, cell, thread, reads: *reads, writes: *writes }
        };
        seen.by_cell = counted.by_cell.iter().map(count).collect();
        let bytes = std::mem::size_of_val(seen.observations.as_slice())
            + std::mem::size_of_val(seen.by_cell.as_slice());
        seen.memory = terrace_types::Bytes(bytes as u64);
        seen
    }
}

/// Sightings of all pages of the mappings: sampled ones by their count, runs of others with none.
fn report(
    counts: &BTreeMap<(Pid, Vpn), u16>,
    mappings: &[Mapping],
    interval: Nanos,
    period: u64,
    store: bool,
    into: &mut Vec<RangeObservation>,
) {
    let most = u32::from(counts.values().copied().max().unwrap_or(0));
    let sample_count =
        (most * INTERVALS_PER_HIT).clamp(LEAST_INTERVALS, u32::from(u16::MAX)) as u16;
    let each = Nanos((interval.get() / period / u64::from(sample_count)).max(1));
    let mut open: Option<RangeObservation> = None;
    let mut put = |pid: Pid, range: VpnRange, hits: u16| match &mut open {
        _ if range.is_empty() => {}
        Some(run) if (run.pid, run.range.end, run.hits) == (pid, range.start, hits) => {
            run.range.end = range.end;
        }
        _ => {
            into.extend(open.replace(RangeObservation {
                pid,
                range,
                hits,
                sample_count,
                interval: each,
                writes_only: store,
                every_page: true,
            }));
        }
    };
    for Mapping { pid, range, .. } in mappings {
        let mut next = range.start;
        for ((_, vpn), hits) in counts.range((*pid, range.start)..(*pid, range.end)) {
            put(*pid, VpnRange::new(next, *vpn), 0);
            put(*pid, VpnRange::new(*vpn, Vpn(vpn.0 + 1)), *hits);
            next = Vpn(vpn.0 + 1);
        }
        put(*pid, VpnRange::new(next, range.end), 0);
    }
    into.extend(open);
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_engine::MappingKind;

    fn mapping(pid: i32, start: u64, end: u64) -> Mapping {
        let range = VpnRange::new(Vpn(start), Vpn(end));
        Mapping { pid: Pid(pid), range, kind: MappingKind::Anonymous, writable: true }
    }

    fn sample(vpn: u64, store: bool, cell: u16, thread: i32) -> SampledAccess {
        SampledAccess {
            pid: Pid(1),
            vpn: Vpn(vpn),
            store,
            cell: Some(NodeId(cell)),
            thread: Some(Tid(thread)),
        }
    }

    #[test]
    fn pages_are_reported_by_count_and_threads_by_cell() {
        let mut map = SampleMap::default();
        for (vpn, store, cell, thread) in [
            (12, false, 0, 7),
            (12, false, 1, 8),
            (12, false, 1, 8),
            (13, true, 0, 7),
            (99, false, 0, 7),
        ] {
            map.add(&sample(vpn, store, cell, thread));
        }
        let periods = SamplePeriods { loads: 100, stores: 0 };
        let seen = map.take(&[mapping(1, 10, 16)], Nanos::millis(64), periods);
        let reported: Vec<(u64, u64, u16)> =
            seen.observations.iter().map(|s| (s.range.start.0, s.range.end.0, s.hits)).collect();
        assert_eq!(reported, [(10, 12, 0), (12, 13, 3), (13, 16, 0)]);
        // 64 intervals, together a hundredth of the interval.
        let first = seen.observations[0];
        assert_eq!((first.sample_count, first.interval), (64, Nanos(10_000)));
        let counts: Vec<(u64, u16, i32, u32, u32)> = seen
            .by_cell
            .iter()
            .map(|c| (c.vpn.0, c.cell.0, c.thread.unwrap().0, c.reads, c.writes))
            .collect();
        assert_eq!(
            counts,
            [(12, 0, 7, 1, 0), (12, 1, 8, 2, 0), (13, 0, 7, 0, 1), (99, 0, 7, 1, 0)]
        );
        // Once: the next interval begins empty.
        let next = map.take(&[mapping(1, 10, 16)], Nanos::millis(64), periods);
        assert!(next.by_cell.is_empty() && next.observations.len() == 1);
    }

    #[test]
    fn maps_do_not_grow_without_bound() {
        let mut map = SampleMap::default();
        for vpn in 0..MAX_ENTRIES as u64 {
            map.add(&SampledAccess { cell: None, ..sample(vpn, false, 0, 1) });
        }
        map.add(&sample(1 << 40, false, 0, 1));
        let seen = map.take(&[], Nanos::millis(1), SamplePeriods::default());
        assert_eq!(seen.lost, 1);
    }
}
