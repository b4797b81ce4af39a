//! All live trackers together, within a share of one core.

use crate::{Budget, Damon, DamonMode, PageTable, PerfSamples, PerfSettings, SoftDirty};
use terrace_engine::{
    Mapping, Observation, Prescan, SampleRequest, SpotCheck, TrackError, Tracker, TrackerInfo,
};
use terrace_sys::{damon_is_usable, now, Capabilities, Root};
use terrace_types::{BitSource, Nanos, Pid, Request, Tick, TrackerVisibility, VpnRange};

/// Which trackers to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TrackerChoice {
    /// The best that work: page tables, else DAMON; and soft-dirty beside either.
    #[default]
    Auto,
    /// DAMON by region and soft-dirty, no kernel memory read.
    Damon,
    /// DAMON page by page and soft-dirty.
    DamonPage,
    /// Page tables alone.
    PageTable,
    /// Soft-dirty alone.
    SoftDirty,
    /// Samples of the processor alone.
    Perf(PerfSettings),
}

/// A tracker that can be told to cost nothing for a while.
pub trait LiveTracker: Tracker {
    /// Stops whatever runs on between intervals, until the next `begin`.
    fn pause(&mut self) {}
}

impl LiveTracker for PageTable {}
impl LiveTracker for SoftDirty {}
impl LiveTracker for PerfSamples {
    fn pause(&mut self) {
        self.rest();
    }
}
impl LiveTracker for Damon {
    fn pause(&mut self) {
        self.rest();
    }
}

/// One tracker with what it lately cost.
struct TrackerEntry {
    tracker: Box<dyn LiveTracker>,
    last_cost: Nanos,
    running: bool,
}

/// The trackers that work here, merged. A tracker that stops is left out and noted; the rest go on.
pub struct LiveTrackers {
    entries: Vec<TrackerEntry>,
    budget: Budget,
    notes: Vec<String>,
    relaxed: bool,
    /// Where DAMON takes the place of the page tables should they stop and it be usable.
    spare: Option<Root>,
}

impl std::fmt::Debug for LiveTrackers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveTrackers")
            .field("trackers", &self.names())
            .field("budget", &self.budget)
            .field("notes", &self.notes)
            .finish()
    }
}

impl LiveTrackers {
    /// Picks trackers by what was probed. Soft-dirty's cost to the target is kept within a budget
    /// of the same size as ours.
    ///
    /// # Errors
    /// [`TrackError::Stopped`] when nothing is usable: exit 3.
    pub fn new(
        root: &Root,
        able: &Capabilities,
        choice: TrackerChoice,
        budget: Budget,
    ) -> Result<Self, TrackError> {
        let mut all =
            Self { entries: Vec::new(), budget, notes: Vec::new(), relaxed: false, spare: None };
        let wants = |these: &[TrackerChoice]| these.contains(&choice);
        let mut reads = false;
        if wants(&[TrackerChoice::Auto, TrackerChoice::PageTable]) {
            let tracker = match &able.page_tables {
                able if able.usable => PageTable::new(root.clone()).map_err(|e| e.to_string()),
                able => Err(able.why_not.clone()),
            };
            match tracker {
                Ok(tracker) => {
                    all.add(Box::new(tracker));
                    reads = true;
                    all.spare = (choice == TrackerChoice::Auto).then(|| root.clone());
                }
                Err(why) => all.notes.push(format!("page-table left out: {why}")),
            }
        }
        let perf = match choice {
            TrackerChoice::Perf(settings) => Some(settings),
            _ => None,
        };
        if let Some(settings) = perf {
            match PerfSamples::with_settings(root.clone(), budget.share(), settings) {
                Ok(tracker) => all.add(Box::new(tracker)),
                Err(error) => all.notes.push(error.to_string()),
            }
        }
        let others = [TrackerChoice::SoftDirty, TrackerChoice::PageTable];
        if !reads && perf.is_none() && !wants(&others) {
            if able.damon.usable {
                let mode = match choice {
                    TrackerChoice::DamonPage => DamonMode::Page,
                    _ => DamonMode::Coarse,
                };
                all.add(Box::new(Damon::new(root.clone(), mode)));
            } else {
                all.notes.push(format!("damon left out: {}", able.damon.why_not));
            }
        }
        if perf.is_none() && choice != TrackerChoice::PageTable {
            if able.soft_dirty.usable {
                all.add(Box::new(SoftDirty::new(root.clone(), budget)));
            } else {
                all.notes.push(format!("soft-dirty left out: {}", able.soft_dirty.why_not));
            }
        }
        if all.entries.is_empty() {
            return Err(nothing_left(&all.notes));
        }
        Ok(all)
    }

    /// Any trackers.
    #[must_use]
    pub fn from_trackers(trackers: Vec<Box<dyn LiveTracker>>, budget: Budget) -> Self {
        let mut all =
            Self { entries: Vec::new(), budget, notes: Vec::new(), relaxed: false, spare: None };
        for tracker in trackers {
            all.add(tracker);
        }
        all
    }

    fn add(&mut self, tracker: Box<dyn LiveTracker>) {
        self.entries.push(TrackerEntry { tracker, last_cost: Nanos::ZERO, running: false });
    }

    /// Names of the trackers in use.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        self.entries.iter().map(|s| s.tracker.info().name).collect()
    }

    /// What was left out or stopped, and why: for one line on standard error each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// CPU time spent so far, kernel threads included.
    #[must_use]
    pub const fn spent(&self) -> Nanos {
        self.budget.spent()
    }

    fn drop_slot(&mut self, at: usize, error: &TrackError) -> Result<(), TrackError> {
        self.notes.push(error.to_string());
        let lost = self.entries.remove(at).tracker.info();
        let spare = self.spare.take_if(|_| lost.sees.reads);
        if let Some(root) = spare.filter(damon_is_usable) {
            self.notes.push("going on with damon".to_owned());
            self.add(Box::new(Damon::new(root, DamonMode::Coarse)));
        }
        if self.entries.is_empty() {
            return Err(nothing_left(&self.notes));
        }
        Ok(())
    }
}

fn nothing_left(notes: &[String]) -> TrackError {
    TrackError::Stopped {
        tracker: "all",
        why: notes.join("; "),
        remedy: "terrace doctor tells what each tracker needs",
    }
}

impl Tracker for LiveTrackers {
    fn info(&self) -> TrackerInfo {
        let mut sees = TrackerVisibility::default();
        for entry in &self.entries {
            let one = entry.tracker.info().sees;
            sees.reads |= one.reads;
            sees.writes |= one.writes;
            sees.pages |= one.pages;
            sees.cells |= one.cells;
            sees.sampled |= one.sampled;
        }
        sees.bits = BitSource::Approximate;
        if sees.cells {
            let blind_to = "accesses that are not sampled";
            return TrackerInfo { name: "live (samples)", sees, blind_to };
        }
        let blind_to = match (sees.reads, sees.writes) {
            (true, true) => "who accessed; which accesses of a written page were reads",
            (true, false) => "who accessed; reads as distinct from writes",
            (false, _) => "who accessed; reads",
        };
        let name = match (sees.reads, sees.writes) {
            (true, true) => "live (reads and writes)",
            (true, false) => "live (reads and writes alike)",
            (false, _) => "live (writes)",
        };
        TrackerInfo { name, sees, blind_to }
    }

    fn begin(&mut self, mappings: &[Mapping], ask: &SampleRequest) -> Result<(), TrackError> {
        self.budget.earn(now());
        let ask = SampleRequest { relaxed: ask.relaxed || self.relaxed, ..ask.clone() };
        let mut at = 0;
        while at < self.entries.len() {
            let entry = &mut self.entries[at];
            entry.running = self.budget.allows(entry.last_cost);
            if entry.running {
                if let Err(e) = entry.tracker.begin(mappings, &ask) {
                    self.drop_slot(at, &e)?;
                    continue;
                }
            } else {
                entry.tracker.pause();
            }
            at += 1;
        }
        Ok(())
    }

    fn lead(&self) -> Nanos {
        self.entries
            .iter()
            .filter(|s| s.running)
            .map(|s| s.tracker.lead())
            .max()
            .unwrap_or_default()
    }

    fn finish(&mut self, tick: Tick) -> Result<Observation, TrackError> {
        let mut all = Observation::default();
        let mut at = 0;
        while at < self.entries.len() {
            let entry = &mut self.entries[at];
            if entry.running {
                match entry.tracker.finish(tick) {
                    Ok(mut seen) => {
                        if seen.cpu > Nanos::ZERO {
                            entry.last_cost = seen.cpu;
                        }
                        self.budget.spend(seen.cpu);
                        all.observations.append(&mut seen.observations);
                        all.samples.append(&mut seen.samples);
                        all.writes.append(&mut seen.writes);
                        all.writes_to_come |= seen.writes_to_come;
                        all.by_cell.append(&mut seen.by_cell);
                        all.cpu += seen.cpu;
                        all.memory += seen.memory;
                        all.lost += seen.lost;
                    }
                    Err(e) => {
                        self.drop_slot(at, &e)?;
                        continue;
                    }
                }
            }
            at += 1;
        }
        all.observations.sort_by_key(|s| (s.pid, s.range.start, s.writes_only));
        Ok(all)
    }

    fn prescan(&mut self, mappings: &[Mapping]) -> Result<Option<Prescan>, TrackError> {
        self.budget.earn(now());
        let mut at = 0;
        while at < self.entries.len() {
            match self.entries[at].tracker.prescan(mappings) {
                Ok(Some(prescan)) => {
                    self.budget.spend(prescan.cpu);
                    return Ok(Some(prescan));
                }
                Ok(None) => at += 1,
                Err(e) => self.drop_slot(at, &e)?,
            }
        }
        Ok(None)
    }

    fn spot_check(
        &mut self,
        mappings: &[Mapping],
        asked: &[(Pid, VpnRange)],
        turn: u64,
    ) -> Result<Option<SpotCheck>, TrackError> {
        self.budget.earn(now());
        let mut at = 0;
        while at < self.entries.len() {
            match self.entries[at].tracker.spot_check(mappings, asked, turn) {
                Ok(Some(found)) => {
                    self.budget.spend(found.cpu);
                    return Ok(Some(found));
                }
                Ok(None) => at += 1,
                Err(e) => self.drop_slot(at, &e)?,
            }
        }
        Ok(None)
    }

    fn accessed(&mut self, ranges: &[(Pid, VpnRange)]) -> Option<Vec<bool>> {
        self.entries.iter_mut().find_map(|entry| entry.tracker.accessed(ranges))
    }

    fn request(&mut self, request: &Request) -> Result<(), TrackError> {
        match request {
            Request::Relax => self.relaxed = true,
            Request::SampleByPage { .. } => self.relaxed = false,
            _ => {}
        }
        for entry in &mut self.entries {
            entry.tracker.request(request)?;
        }
        Ok(())
    }

    fn accounts(&self) -> Vec<String> {
        self.entries.iter().flat_map(|entry| entry.tracker.accounts()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_engine::RangeObservation;
    use terrace_types::{Pid, Vpn, VpnRange};

    /// Costs and sees what it is reported; stops at its third interval.
    struct Scripted {
        cost: Nanos,
        start: u64,
        sample_count: u32,
        mortal: bool,
    }

    impl Tracker for Scripted {
        fn info(&self) -> TrackerInfo {
            let sees = TrackerVisibility {
                reads: self.mortal,
                writes: true,
                ..TrackerVisibility::default()
            };
            TrackerInfo { name: "scripted", sees, blind_to: "all else" }
        }

        fn begin(&mut self, _: &[Mapping], _: &SampleRequest) -> Result<(), TrackError> {
            self.sample_count += 1;
            if self.mortal && self.sample_count == 3 {
                let why = "died".to_owned();
                return Err(TrackError::Stopped { tracker: "scripted", why, remedy: "none" });
            }
            Ok(())
        }

        fn finish(&mut self, _: Tick) -> Result<Observation, TrackError> {
            let observation = RangeObservation {
                pid: Pid(1),
                range: VpnRange::new(Vpn(self.start), Vpn(self.start + 1)),
                hits: 1,
                sample_count: 1,
                interval: Nanos(1),
                writes_only: false,
                every_page: true,
            };
            Ok(Observation {
                observations: vec![observation],
                cpu: self.cost,
                ..Observation::default()
            })
        }

        fn request(&mut self, _: &Request) -> Result<(), TrackError> {
            Ok(())
        }
    }

    fn ask() -> SampleRequest {
        SampleRequest {
            interval: Nanos(1),
            fine: vec![],
            reads: true,
            writes: true,
            relaxed: false,
            quick_scan: false,
        }
    }

    impl LiveTracker for Scripted {}

    fn scripted(cost: Nanos, start: u64, mortal: bool) -> Box<dyn LiveTracker> {
        Box::new(Scripted { cost, start, sample_count: 0, mortal })
    }

    #[test]
    fn one_that_stops_is_left_out_and_noted() {
        let both = vec![scripted(Nanos(1), 9, true), scripted(Nanos(1), 3, false)];
        let mut all = LiveTrackers::from_trackers(both, Budget::default());
        assert!(all.info().sees.reads);
        for interval in 0..4 {
            all.begin(&[], &ask()).unwrap();
            let seen = all.finish(Tick(0)).unwrap();
            assert_eq!(seen.observations.len(), if interval < 2 { 2 } else { 1 });
            assert!(seen.observations.is_sorted_by_key(|s| s.range.start));
        }
        assert_eq!(all.notes().len(), 1);
        assert!(!all.info().sees.reads);
        let mut last =
            LiveTrackers::from_trackers(vec![scripted(Nanos(1), 9, true)], Budget::default());
        assert!((0..4).any(|_| last.begin(&[], &ask()).is_err()));
    }

    #[test]
    fn where_nothing_is_left_each_tracker_says_what_the_probe_found() {
        let nowhere = Root::with_prefix("/nonexistent");
        let mut able = Capabilities::probe(&nowhere);
        // As for a user who may not: the probe knows the capability, the tracker itself does not.
        able.page_tables.why_not = "not permitted (needs CAP_SYS_RAWIO)".to_owned();
        let said = LiveTrackers::new(&nowhere, &able, TrackerChoice::Auto, Budget::default())
            .unwrap_err()
            .to_string();
        let why = [&able.page_tables, &able.damon, &able.soft_dirty].map(|c| &c.why_not);
        assert!(why.iter().all(|why| !why.is_empty() && said.contains(why.as_str())), "{said}");
    }

    #[test]
    fn the_share_bounds_how_often_trackers_run() {
        let budget = Budget::new(0.03, Nanos::millis(100));
        let mut all =
            LiveTrackers::from_trackers(vec![scripted(Nanos::millis(30), 1, false)], budget);
        let mut ran = 0;
        for _ in 0..100 {
            all.begin(&[], &ask()).unwrap();
            ran += all.finish(Tick(0)).unwrap().observations.len();
        }
        assert!((3..=4).contains(&ran), "{ran}");
    }
}
