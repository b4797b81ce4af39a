//! All trackers as one: those that stop are left behind, the others go on.

use crate::{Mapping, SampleRequest, SpotCheck, TrackError, Tracker};
use terrace_policy::heat::{PageSamples, PageWrites, Prescan, RangeObservation};
use terrace_types::{
    BitSource, Bytes, CellCount, Nanos, Pid, Request, Tick, TrackerVisibility, VpnRange,
};

/// What all trackers saw in one interval.
#[derive(Debug, Default)]
pub(crate) struct IntervalSamples {
    pub seen: Vec<RangeObservation>,
    pub samples: Vec<PageSamples>,
    pub writes: Vec<PageWrites>,
    pub writes_to_come: bool,
    pub by_cell: Vec<CellCount>,
    pub cpu: Nanos,
    pub memory: Bytes,
    pub lost: u64,
    /// The trackers were asked to spend little.
    pub thrifty: bool,
    /// There was no interval, or nothing was seen in it.
    pub saw_nothing: bool,
}

impl IntervalSamples {
    /// Gives back what samples page by page take.
    pub fn forget_samples(&mut self) {
        let samples: usize = self.samples.drain(..).map(|l| l.hits.capacity()).sum();
        let writes: usize = self.writes.drain(..).map(|w| w.found.capacity()).sum();
        let sample_bytes = samples + writes;
        self.memory = Bytes(self.memory.get().saturating_sub(sample_bytes as u64));
    }
}

/// The trackers that still work.
pub(crate) struct TrackerSet {
    trackers: Vec<Box<dyn Tracker>>,
}

impl TrackerSet {
    pub fn new(trackers: Vec<Box<dyn Tracker>>) -> Self {
        Self { trackers }
    }

    pub fn trackers(&self) -> &[Box<dyn Tracker>] {
        &self.trackers
    }

    /// What they see together. Where heat is seen but no bits are given, bits are approximate.
    pub fn sees(&self) -> TrackerVisibility {
        let mut all = TrackerVisibility::default();
        for sees in self.trackers.iter().map(|t| t.info().sees) {
            all.reads |= sees.reads;
            all.writes |= sees.writes;
            all.cells |= sees.cells;
            all.pages |= sees.pages;
            all.sampled |= sees.sampled;
            all.bits = match (all.bits, sees.bits) {
                (BitSource::Exact, _) | (_, BitSource::Exact) => BitSource::Exact,
                (BitSource::Approximate, _) | (_, BitSource::Approximate) => BitSource::Approximate,
                _ => BitSource::None,
            };
        }
        if all.bits == BitSource::None && (all.reads || all.writes) {
            all.bits = BitSource::Approximate;
        }
        all
    }

    pub fn begin(&mut self, mappings: &[Mapping], ask: &SampleRequest, notes: &mut Vec<String>) {
        self.each(notes, |tracker| tracker.begin(mappings, ask));
    }

    pub fn lead(&self) -> Nanos {
        self.trackers.iter().map(|t| t.lead()).max().unwrap_or_default()
    }

    pub fn finish(&mut self, now: Tick, notes: &mut Vec<String>) -> IntervalSamples {
        let mut all = IntervalSamples::default();
        self.each(notes, |tracker| {
            let mut seen = tracker.finish(now)?;
            all.seen.append(&mut seen.observations);
            all.samples.append(&mut seen.samples);
            all.writes.append(&mut seen.writes);
            all.writes_to_come |= seen.writes_to_come;
            all.by_cell.extend(seen.by_cell);
            all.cpu += seen.cpu;
            all.memory += seen.memory;
            all.lost = all.lost.saturating_add(seen.lost);
            Ok(())
        });
        all.saw_nothing = all.seen.is_empty() && all.samples.is_empty() && all.writes.is_empty();
        all.by_cell.sort_unstable_by_key(|c| (c.pid, c.vpn, c.cell, c.thread));
        all
    }

    /// A prescan by the first tracker that can.
    pub fn prescan(&mut self, mappings: &[Mapping], notes: &mut Vec<String>) -> Option<Prescan> {
        let mut prescan = None;
        self.each(notes, |tracker| {
            if prescan.is_none() {
                prescan = tracker.prescan(mappings)?;
            }
            Ok(())
        });
        prescan
    }

    /// A spot check by the first tracker that can.
    pub fn spot_check(
        &mut self,
        mappings: &[Mapping],
        (asked, turn): (&[(Pid, VpnRange)], u64),
        notes: &mut Vec<String>,
    ) -> Option<SpotCheck> {
        let mut found = None;
        self.each(notes, |tracker| {
            if found.is_none() {
                found = tracker.spot_check(mappings, asked, turn)?;
            }
            Ok(())
        });
        found
    }

    /// Whether any page of each range was accessed since its bits were last cleared, by the first
    /// tracker that can tell.
    pub fn accessed(&mut self, ranges: &[(Pid, VpnRange)]) -> Option<Vec<bool>> {
        self.trackers.iter_mut().find_map(|tracker| tracker.accessed(ranges))
    }

    pub fn request(&mut self, request: &Request, notes: &mut Vec<String>) {
        self.each(notes, |tracker| tracker.request(request));
    }

    /// Calls each; one that stops is dropped, and a note says so.
    fn each(
        &mut self,
        notes: &mut Vec<String>,
        mut call: impl FnMut(&mut dyn Tracker) -> Result<(), TrackError>,
    ) {
        let before = self.trackers.len();
        let mut stopped = Vec::new();
        self.trackers.retain_mut(|tracker| match call(tracker.as_mut()) {
            Ok(()) => true,
            Err(error) => {
                stopped.push(error.to_string());
                false
            }
        });
        let left: Vec<&str> = self.trackers.iter().map(|t| t.info().name).collect();
        if before > left.len() {
            let rest = if left.is_empty() {
                "none is left".to_owned()
            } else {
                format!("going on with {}", left.join(", "))
            };
            notes.extend(stopped.into_iter().map(|why| format!("{why}; {rest}")));
        }
    }
}
