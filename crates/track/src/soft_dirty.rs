//! Writes page by page, from soft-dirty bits.

use crate::runs::Looks;
use crate::Budget;
use std::collections::BTreeMap;
use terrace_engine::{Ask, Mapping, MappingKind, Observation, Sighting, TrackError, Tracker, TrackerInfo};
use terrace_sys::{now, sleep, task, Category, Clear, ClearRefs, CpuMeter, PageMap, Root, SysError};
use terrace_types::{BitSource, Bytes, Nanos, Pid, Request, Sees, Tick, Vpn, VpnRange};

/// Shortest window: below it the target mostly takes faults (26-29 ms with 16 k hot pages,
/// measured in the lab).
const SHORTEST: Nanos = Nanos::millis(25);
/// What one write fault costs the target: 1-3 us measured; the cautious end.
const FAULT: Nanos = Nanos::micros(2);
/// Looks into a window soon after it began.
const EARLY: [Nanos; 2] = [Nanos::millis(2), Nanos::millis(6)];
/// A stretch counts for at least this part of its length, however many faults fell into it.
const LEAST_PART: u64 = 8;

/// Clears soft-dirty bits (`clear_refs` = 4), lets a window pass, and reads which pages were
/// written (`PAGEMAP_SCAN`, or pagemap itself before Linux 6.7). Each window costs the target a
/// fault for each page that it writes, so windows are never shorter than 25 ms and, by
/// the cost of the last one, rarer the more is written: the faults are charged to the budget.
///
/// A page written a million times in a window is one dirty page. So each window is looked into
/// three times, 2 and 6 ms after it began and at its end: the bits only accumulate, further looks
/// cost no faults, and when a page was first found dirty tells rates up to some hundred writes a
/// second apart, where one look at 50 ms tells twenty at most. A target that writes many pages
/// spends the first milliseconds in faults, not in writing; the time that its faults took by
/// [`FAULT`] is left out of what the looks count as watched.
#[derive(Debug)]
pub struct SoftDirty {
    root: Root,
    budget: Budget,
    meter: CpuMeter,
    open: Option<Open>,
    last_cost: Nanos,
    scan_works: bool,
    cpus: u64,
}

/// A window under way.
#[derive(Debug)]
struct Open {
    since: Tick,
    watched: BTreeMap<Pid, Watched>,
    cpu: Nanos,
}

/// One process in it.
#[derive(Debug)]
struct Watched {
    ranges: Vec<VpnRange>,
    /// Looks so far.
    looks: Vec<Look>,
}

/// One look into a window.
#[derive(Debug)]
struct Look {
    /// Since the window began.
    at: Nanos,
    /// Runs of pages dirty by then, by range.
    written: Vec<Vec<VpnRange>>,
}

impl Look {
    fn pages(&self) -> u64 {
        self.written.iter().flatten().map(|r| r.len()).sum()
    }
}

impl SoftDirty {
    /// A tracker that costs the target and us together no more than `budget`.
    #[must_use]
    pub fn new(root: Root, budget: Budget) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        Self { root, budget, meter: CpuMeter::new(), open: None, last_cost: Nanos::ZERO, scan_works: true, cpus }
    }

    /// Whether a window is under way.
    #[must_use]
    pub const fn under_way(&self) -> bool {
        self.open.is_some()
    }

    fn start(&mut self, mappings: &[Mapping]) -> Result<(), TrackError> {
        let work = self.meter.start();
        let mut watched: BTreeMap<Pid, Watched> = BTreeMap::new();
        for m in mappings.iter().filter(|m| m.kind == MappingKind::Anonymous && m.writable) {
            let one = watched.entry(m.pid).or_insert_with(|| Watched { ranges: Vec::new(), looks: Vec::new() });
            one.ranges.push(m.range);
        }
        let mut refused = None;
        watched.retain(|pid, _| {
            let cleared = ClearRefs::open(&self.root, *pid).and_then(|c| c.clear(Clear::SoftDirty));
            refused = cleared.as_ref().err().filter(|e| !e.is_gone()).cloned().or(refused.take());
            cleared.is_ok()
        });
        if let (true, Some(error)) = (watched.is_empty(), refused) {
            return Err(stopped(&error));
        }
        if watched.is_empty() {
            return Ok(());
        }
        let mut open = Open { since: now(), watched, cpu: Nanos::ZERO };
        let mut slept = Nanos::ZERO;
        for at in EARLY {
            let before = now();
            sleep(at.saturating_sub(before.since(open.since)));
            slept += now().since(before);
            self.look_into(&mut open)?;
        }
        open.cpu = work.used(slept);
        self.open = Some(open);
        Ok(())
    }

    /// Looks which pages are dirty by now; processes that are gone are left out.
    fn look_into(&mut self, open: &mut Open) -> Result<(), TrackError> {
        let mut gone = Vec::new();
        for (pid, watched) in &mut open.watched {
            let before = now();
            match self.look(*pid, &watched.ranges) {
                Ok(written) => {
                    // A page's bit was read somewhere on the way: the middle is least wrong.
                    let at = Nanos((before.since(open.since).0 + now().since(open.since).0) / 2);
                    watched.looks.push(Look { at, written });
                }
                Err(e) if e.is_gone() => gone.push(*pid),
                Err(e) => return Err(stopped(&e)),
            }
        }
        open.watched.retain(|pid, _| !gone.contains(pid));
        Ok(())
    }

    fn look(&mut self, pid: Pid, ranges: &[VpnRange]) -> Result<Vec<Vec<VpnRange>>, SysError> {
        let map = PageMap::open(&self.root, pid)?;
        let mut found = Vec::with_capacity(ranges.len());
        for range in ranges {
            let mut written: Vec<VpnRange> = Vec::new();
            if self.scan_works {
                match map.scan(*range, Category::SOFT_DIRTY, Category::SOFT_DIRTY, |run, _| {
                    written.push(run);
                }) {
                    Err(SysError::Absent { .. }) => self.scan_works = false,
                    other => other?,
                }
            }
            if !self.scan_works {
                let mut entries = Vec::new();
                map.read(*range, &mut entries)?;
                for (at, _) in entries.iter().enumerate().filter(|(_, e)| e.soft_dirty()) {
                    let page = Vpn(range.start.0 + at as u64);
                    let end = Vpn(page.0 + 1);
                    match written.last_mut() {
                        Some(run) if run.end == page => run.end = end,
                        _ => written.push(VpnRange::new(page, end)),
                    }
                }
            }
            found.push(written);
        }
        Ok(found)
    }

    /// Threads of a process that can run at a time.
    fn running(&self, pid: Pid) -> u64 {
        let threads = task::threads(&self.root, pid).map_or(1, |t| t.len() as u64);
        threads.clamp(1, self.cpus)
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

/// What a window's looks say, in units of the time to the first: a page first found dirty by look
/// `j` was written once in the time to the middle between that look and the one before it.
fn sightings(pid: Pid, watched: &Watched, threads: u64, into: &mut Vec<Sighting>) {
    let times = watched_for(&watched.looks, threads);
    let (Some(unit), Some(all)) = (times.first().copied(), times.last().copied()) else {
        return;
    };
    let units = |time: u64| (time / unit.0).clamp(1, u64::from(u16::MAX)) as u16;
    let told = |first: u8| match first {
        0 => (0, units(all.0 + unit.0 / 2)),
        1 => (1, 1),
        n => (1, units((times[usize::from(n) - 2].0 + times[usize::from(n) - 1].0 + unit.0) / 2)),
    };
    for (at, range) in watched.ranges.iter().enumerate() {
        // 1 from the first look's, 0 for never.
        let mut first = vec![0_u8; range.len() as usize];
        for (n, look) in watched.looks.iter().enumerate().rev() {
            for run in look.written.get(at).into_iter().flatten().filter_map(|r| r.intersect(*range)) {
                first[(run.start.0 - range.start.0) as usize..(run.end.0 - range.start.0) as usize].fill(n as u8 + 1);
            }
        }
        let mut start = range.start;
        for run in first.chunk_by(|a, b| a == b) {
            let end = Vpn(start.0 + run.len() as u64);
            let (hits, windows) = told(run[0]);
            let looks = Looks { pid, windows, window: unit, writes_only: true };
            into.push(looks.of(VpnRange::new(start, end), hits));
            start = end;
        }
    }
}

fn stopped(error: &SysError) -> TrackError {
    TrackError::Stopped {
        tracker: "soft-dirty",
        why: error.to_string(),
        remedy: "run as the target's owner or as root",
    }
}

impl Tracker for SoftDirty {
    fn info(&self) -> TrackerInfo {
        TrackerInfo {
            name: "soft-dirty",
            sees: Sees { writes: true, bits: BitSource::Approximate, ..Sees::default() },
            blind_to: "reads; and writes to a page beyond some hundred a second",
        }
    }

    fn begin(&mut self, mappings: &[Mapping], ask: &Ask) -> Result<(), TrackError> {
        self.budget.earn(now());
        if self.open.is_some() || !ask.writes || !self.budget.allows(self.last_cost) {
            return Ok(());
        }
        self.start(mappings)
    }

    fn finish(&mut self, _now: Tick) -> Result<Observation, TrackError> {
        let mut seen = Observation::default();
        let Some(open) = self.open.take_if(|o| now().since(o.since) >= SHORTEST) else {
            return Ok(seen);
        };
        let work = self.meter.start();
        let mut open = open;
        self.look_into(&mut open)?;
        let mut written_pages = 0;
        for (pid, watched) in &open.watched {
            written_pages += watched.looks.last().map_or(0, Look::pages);
            sightings(*pid, watched, self.running(*pid), &mut seen.sightings);
        }
        seen.cpu = open.cpu + work.used(Nanos::ZERO);
        seen.memory = Bytes(std::mem::size_of_val(seen.sightings.as_slice()) as u64);
        self.last_cost = seen.cpu + Nanos(FAULT.0 * written_pages);
        self.budget.spend(self.last_cost);
        Ok(seen)
    }

    fn request(&mut self, _request: &Request) -> Result<(), TrackError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_sys::Capabilities;

    fn range(start: u64, end: u64) -> VpnRange {
        VpnRange::new(Vpn(start), Vpn(end))
    }

    #[test]
    fn the_sooner_a_page_is_dirty_the_more_it_is_written() {
        let look = |ms, runs: &[VpnRange]| Look { at: Nanos::millis(ms), written: vec![runs.to_vec()] };
        let looks =
            vec![look(2, &[range(10, 11)]), look(6, &[range(10, 12)]), look(50, &[range(10, 12), range(13, 14)])];
        let watched = Watched { ranges: vec![range(10, 16)], looks };
        let mut all = Vec::new();
        sightings(Pid(1), &watched, 1, &mut all);
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

    #[test]
    fn written_pages_of_this_process_are_seen() {
        let able = Capabilities::probe(&Root::live()).soft_dirty;
        if !able.usable {
            return println!("skipped: {}", able.why_not);
        }
        let pid = Pid(std::process::id() as i32);
        let mut memory = vec![1_u8; 64 * 4096];
        let first = memory.as_ptr() as u64 / 4096 + 1;
        let range = VpnRange::new(Vpn(first), Vpn(first + 60));
        let mapping = Mapping { pid, range, kind: MappingKind::Anonymous, writable: true };
        let ask = Ask { window: SHORTEST, fine: vec![], reads: true, writes: true, relaxed: false, glance: false };
        let mut tracker = SoftDirty::new(Root::live(), Budget::default());
        tracker.begin(&[mapping], &ask).unwrap();
        for page in [5, 6, 30] {
            memory[page * 4096 + 4096] = std::hint::black_box(2);
        }
        terrace_sys::sleep(SHORTEST);
        let seen = tracker.finish(now()).unwrap();
        let hit: u64 = seen.sightings.iter().filter(|s| s.hits > 0).map(|s| s.range.len()).sum();
        assert!((3..10).contains(&hit), "{hit}");
        assert_eq!(seen.sightings.iter().map(|s| s.range.len()).sum::<u64>(), 60);
    }

    #[test]
    fn nobody_to_watch_is_no_error() {
        let mut tracker = SoftDirty::new(Root::live(), Budget::default());
        let gone = Mapping {
            pid: Pid(i32::MAX),
            range: VpnRange::new(Vpn(1), Vpn(2)),
            kind: MappingKind::Anonymous,
            writable: true,
        };
        let ask = Ask { window: SHORTEST, fine: vec![], reads: true, writes: true, relaxed: false, glance: false };
        tracker.begin(&[gone], &ask).unwrap();
        assert_eq!(tracker.finish(now()).unwrap(), Observation::default());
    }
}
