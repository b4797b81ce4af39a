//! Writes page by page, from soft-dirty bits.

use crate::Budget;
use std::collections::BTreeMap;
use terrace_engine::{
    Mapping, MappingKind, Observation, SampleRequest, TrackError, Tracker, TrackerInfo, WRITE_FAULT,
};
use terrace_sys::{
    maps::smaps, now, page_size, sleep, task, Category, Clear, ClearRefs, CpuMeter, PageEntry,
    PageMap, Root, SysError,
};
use terrace_tracker::write_samples::{WriteSamples, EARLY, SHORTEST};
use terrace_types::{
    BitSource, Bytes, Nanos, Pid, Request, Tick, TrackerVisibility, Vpn, VpnRange,
};

/// Clears soft-dirty bits (`clear_refs` = 4), lets an interval pass, and reads which pages were
/// written (`PAGEMAP_SCAN`, or pagemap itself before Linux 6.7). Each interval costs the target a
/// fault for each page that it writes, so intervals are never shorter than 25 ms and, by
/// the cost of the last one, rarer the more is written: the faults are charged to the budget.
///
/// When an interval is sampled, and what that says: [`terrace_tracker::write_samples`].
#[derive(Debug)]
pub struct SoftDirty {
    root: Root,
    budget: Budget,
    meter: CpuMeter,
    open: Option<OpenInterval>,
    last_cost: Nanos,
    scan_works: bool,
    cpus: u64,
}

/// Page-map entries read at a time, where dirty runs cannot be asked for.
const PIECE: u64 = 4096;

/// An interval under way.
#[derive(Debug)]
struct OpenInterval {
    since: Tick,
    observed: BTreeMap<Pid, WriteSamples>,
    cpu: Nanos,
}

impl SoftDirty {
    /// A tracker that costs the target and us together no more than `budget`.
    #[must_use]
    pub fn new(root: Root, budget: Budget) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        Self {
            root,
            budget,
            meter: CpuMeter::new(),
            open: None,
            last_cost: Nanos::ZERO,
            scan_works: true,
            cpus,
        }
    }

    /// Whether an interval is under way.
    #[must_use]
    pub const fn under_way(&self) -> bool {
        self.open.is_some()
    }

    fn start(&mut self, mappings: &[Mapping]) -> Result<(), TrackError> {
        let work = self.meter.start();
        let mut ranges: BTreeMap<Pid, Vec<VpnRange>> = BTreeMap::new();
        for m in mappings.iter().filter(|m| is_observed(m)) {
            ranges.entry(m.pid).or_default().push(m.range);
        }
        let (mut refused, mut observed) = (None, BTreeMap::new());
        for (pid, ranges) in ranges {
            match self.interval(pid, ranges) {
                Ok(interval) => drop(observed.insert(pid, interval)),
                Err(e) if task::is_over(&self.root, pid, &e) => {}
                Err(e) => refused = Some(e),
            }
        }
        if let (true, Some(error)) = (observed.is_empty(), refused) {
            return Err(stopped(&error));
        }
        if observed.is_empty() {
            return Ok(());
        }
        let since = now();
        let mut open = OpenInterval { since, observed, cpu: Nanos::ZERO };
        let mut slept = Nanos::ZERO;
        for at in EARLY {
            let before = now();
            sleep(at.saturating_sub(before.since(open.since)));
            slept += now().since(before);
            self.sample_written(&mut open)?;
        }
        open.cpu = work.used(slept);
        self.open = Some(open);
        Ok(())
    }

    /// Begins an interval into one process, over the pages that are there.
    fn interval(&mut self, pid: Pid, ranges: Vec<VpnRange>) -> Result<WriteSamples, SysError> {
        let map = PageMap::open(&self.root, pid)?;
        let mut interval = WriteSamples::new(ranges);
        interval.leave_out_absent(|range, report_pages| {
            self.having(PageSelector::There, &map, range, report_pages)
        })?;
        ClearRefs::open(&self.root, pid).and_then(|c| c.clear(Clear::SoftDirty))?;
        Ok(interval)
    }

    /// Samples which pages are dirty by now; processes that are gone are left out.
    fn sample_written(&mut self, open: &mut OpenInterval) -> Result<(), TrackError> {
        let (mut gone, since) = (Vec::new(), open.since);
        for (pid, interval) in &mut open.observed {
            let before = now();
            // A page's bit was read somewhere on the way: the middle is least wrong.
            let middle = || Nanos((before.since(since).0 + now().since(since).0) / 2);
            let present_pages = PageMap::open(&self.root, *pid)
                .and_then(|map| {
                    interval.sample(
                        |range, report_pages| {
                            self.having(PageSelector::Dirty, &map, range, report_pages)
                        },
                        middle,
                    )
                })
                .and_then(|()| self.leave_out_whole(*pid, interval));
            match present_pages {
                Ok(()) => {}
                Err(e) if task::is_over(&self.root, *pid, &e) => gone.push(*pid),
                Err(e) => return Err(stopped(&e)),
            }
        }
        open.observed.retain(|pid, _| !gone.contains(pid));
        Ok(())
    }

    /// Leaves out mappings that count as dirty as a whole, should so much be dirty at once that
    /// there may be some; all, where the kernel does not tell which (mappings that are merged while
    /// they are read may be reported twice): the next interval may be better.
    fn leave_out_whole(&self, pid: Pid, interval: &mut WriteSamples) -> Result<(), SysError> {
        if !interval.is_doubtful() {
            return Ok(());
        }
        let page = page_size().get();
        let whole: Vec<VpnRange> = match smaps(&self.root, pid) {
            Ok(maps) => {
                let whole = maps.iter().filter(|m| m.flags.soft_dirty);
                whole
                    .map(|m| VpnRange::new(Vpn(m.start / page), Vpn(m.end.div_ceil(page))))
                    .collect()
            }
            Err(e) if task::is_over(&self.root, pid, &e) => return Err(e),
            Err(_) => vec![VpnRange::new(Vpn(0), Vpn(u64::MAX))],
        };
        interval.leave_out(&whole);
        Ok(())
    }

    /// Tells the runs of pages of `range` that are there, or that are dirty.
    fn having(
        &mut self,
        what: PageSelector,
        map: &PageMap,
        range: VpnRange,
        report_pages: &mut dyn FnMut(VpnRange),
    ) -> Result<(), SysError> {
        if self.scan_works {
            let category = what.category();
            match map.scan(range, category, category, |run, _| report_pages(run)) {
                Err(SysError::Absent { .. }) => self.scan_works = false,
                other => return other.map(|_| ()),
            }
        }
        let mut entries = Vec::new();
        let mut start = range.start;
        while start < range.end {
            let piece = VpnRange::new(start, Vpn(start.0 + PIECE).min(range.end));
            map.read(piece, &mut entries)?;
            for (at, _) in entries.iter().enumerate().filter(|(_, e)| what.holds(e)) {
                let page = start.0 + at as u64;
                report_pages(VpnRange::new(Vpn(page), Vpn(page + 1)));
            }
            start = piece.end;
        }
        Ok(())
    }

    /// Threads of a process that can run at a time.
    fn running(&self, pid: Pid) -> u64 {
        let threads = task::threads(&self.root, pid).map_or(1, |t| t.len() as u64);
        threads.clamp(1, self.cpus)
    }
}

/// What is asked of pages.
#[derive(Debug, Clone, Copy)]
enum PageSelector {
    There,
    Dirty,
}

impl PageSelector {
    const fn category(self) -> Category {
        match self {
            Self::There => Category::PRESENT,
            Self::Dirty => Category::SOFT_DIRTY,
        }
    }

    fn holds(self, entry: &PageEntry) -> bool {
        match self {
            Self::There => entry.present(),
            Self::Dirty => entry.soft_dirty(),
        }
    }
}

/// Memory of the process's own, all of which is moved: anonymous memory, be it read-only for now,
/// of which it must be told that it is not written; and copies of a file's pages, where there can
/// be any.
fn is_observed(m: &Mapping) -> bool {
    m.kind == MappingKind::Anonymous || m.kind == MappingKind::FilePrivate && m.writable
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
            sees: TrackerVisibility {
                writes: true,
                bits: BitSource::Approximate,
                ..TrackerVisibility::default()
            },
            blind_to: "reads; and writes to a page beyond some hundred a second",
        }
    }

    fn begin(&mut self, mappings: &[Mapping], ask: &SampleRequest) -> Result<(), TrackError> {
        self.budget.earn(now());
        if self.open.is_some() || !ask.writes || !self.budget.allows(self.last_cost) {
            return Ok(());
        }
        self.start(mappings)
    }

    fn finish(&mut self, _now: Tick) -> Result<Observation, TrackError> {
        let mut seen = Observation::default();
        let Some(open) = self.open.take_if(|o| now().since(o.since) >= SHORTEST) else {
            seen.writes_to_come = self.open.is_some();
            return Ok(seen);
        };
        let work = self.meter.start();
        let mut open = open;
        self.sample_written(&mut open)?;
        if !open.observed.iter().all(|(pid, interval)| interval.ripe(self.running(*pid))) {
            open.cpu += work.used(Nanos::ZERO);
            self.open = Some(open);
            seen.writes_to_come = true;
            return Ok(seen);
        }
        let written_pages: u64 = open.observed.values().map(WriteSamples::pages).sum();
        for (pid, interval) in open.observed {
            interval.over(pid, self.running(pid), &mut seen.writes);
        }
        seen.cpu = open.cpu + work.used(Nanos::ZERO);
        seen.memory = Bytes(seen.writes.iter().map(|w| w.found.len() as u64).sum());
        self.last_cost = seen.cpu + Nanos(WRITE_FAULT.0 * written_pages);
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
    use terrace_engine::PageWrites;
    use terrace_sys::Capabilities;

    #[test]
    fn wholly_dirty_mappings_are_left_out() {
        let folder = std::env::temp_dir().join(format!("terrace-smaps-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("proc/7")).unwrap();
        let tracker = SoftDirty::new(Root::with_prefix(&folder), Budget::default());
        let page = page_size().get();
        let line = |from: u64, to: u64| {
            format!("{:x}-{:x} rw-p 00000000 00:00 0 \n", from * page, to * page)
        };
        let range = |from, to| VpnRange::new(Vpn(from), Vpn(to));
        let left = |smaps: &str| {
            std::fs::write(folder.join("proc/7/smaps"), smaps).unwrap();
            let mut interval = WriteSamples::new(vec![range(100, 300), range(400, 600)]);
            interval.force_sample(|range, report_pages| report_pages(range), || Nanos::millis(30));
            tracker.leave_out_whole(Pid(7), &mut interval).unwrap();
            interval.pages()
        };
        let (one, other) = (line(50, 300), line(400, 600));
        assert_eq!(left(&format!("{one}VmFlags: rd wr sd \n{other}VmFlags: rd wr \n")), 200);
        assert_eq!(
            left(&format!("{one}VmFlags: rd wr \n{other}VmFlags: rd wr \n")),
            400,
            "all is written"
        );
        assert_eq!(left(&format!("{other}{one}VmFlags: rd\n")), 0, "not reported");
        std::fs::remove_dir_all(&folder).unwrap();
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
        let ask = SampleRequest {
            interval: SHORTEST,
            fine: vec![],
            reads: true,
            writes: true,
            relaxed: false,
            quick_scan: false,
        };
        let mut tracker = SoftDirty::new(Root::live(), Budget::default());
        tracker.begin(&[mapping], &ask).unwrap();
        for page in [5, 6, 30] {
            memory[page * 4096 + 4096] = std::hint::black_box(2);
        }
        terrace_sys::sleep(SHORTEST);
        let seen = tracker.finish(now()).unwrap();
        let all: Vec<_> = seen.writes.iter().flat_map(PageWrites::runs).collect();
        let hit: u64 =
            all.iter().filter(|(_, reported)| reported.dirty).map(|(range, _)| range.len()).sum();
        assert!((3..10).contains(&hit), "{hit}");
        assert_eq!(all.iter().map(|(range, _)| range.len()).sum::<u64>(), 60);
    }

    #[test]
    fn a_private_file_mapping_is_observed_for_copied_pages() {
        let of = |kind, writable| {
            is_observed(&Mapping {
                pid: Pid(1),
                range: VpnRange::new(Vpn(1), Vpn(2)),
                kind,
                writable,
            })
        };
        assert!(of(MappingKind::FilePrivate, true) && !of(MappingKind::FilePrivate, false));
        assert!(of(MappingKind::Anonymous, true) && of(MappingKind::Anonymous, false));
        assert!(
            !of(MappingKind::Shared, true)
                && !of(MappingKind::Pinned, true)
                && !of(MappingKind::HugeTlb, true)
        );
    }

    #[test]
    fn no_process_to_observe_is_no_error() {
        let mut tracker = SoftDirty::new(Root::live(), Budget::default());
        let gone = Mapping {
            pid: Pid(i32::MAX),
            range: VpnRange::new(Vpn(1), Vpn(2)),
            kind: MappingKind::Anonymous,
            writable: true,
        };
        let ask = SampleRequest {
            interval: SHORTEST,
            fine: vec![],
            reads: true,
            writes: true,
            relaxed: false,
            quick_scan: false,
        };
        tracker.begin(&[gone], &ask).unwrap();
        assert_eq!(tracker.finish(now()).unwrap(), Observation::default());
    }
}
