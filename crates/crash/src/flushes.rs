//! Flushes besides the program's own: what it is taken to flush in a what-if, and all of a region's
//! flushes for a caller that computes what they cost.

use crate::mark;
use crate::recording::visit_events;
use crate::region::RegionFile;
use crate::span::find_region;
use serde::Serialize;
use std::io::{Read, Seek};
use terrace_trace::{CacheOperation, EventKind, TraceError, TraceReader};

/// Where in a program an object is flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FlushPlace {
    /// Just before the program flushes its iteration.
    IterationEnd,
    /// Where the program marks the begin of this phase, from 1.
    PhaseBegin(u32),
}

/// A what-if: an object is flushed (CLWB of each of its lines) at a place, every so many times that
/// the program comes there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FlushPlan {
    /// Which of the region's objects.
    pub object: usize,
    /// Where.
    pub place: FlushPlace,
    /// Every so many times, at least 1.
    pub period: u64,
}

/// Follows a region's events, and says what plans flush at each.
#[derive(Debug)]
pub(crate) struct PlannedFlushes<'a> {
    region: &'a RegionFile,
    /// Each with how often its place was reached.
    plans: Vec<(FlushPlan, u64)>,
    line_bytes: u64,
}

impl<'a> PlannedFlushes<'a> {
    pub(crate) fn new(region: &'a RegionFile, plans: &[FlushPlan], line_bytes: u64) -> Self {
        Self { region, plans: plans.iter().map(|plan| (*plan, 0)).collect(), line_bytes }
    }

    /// The place that an event within the region is.
    fn place_of(&self, what: &EventKind) -> Option<FlushPlace> {
        match what {
            EventKind::Mark { id } => mark::phase(*id).map(FlushPlace::PhaseBegin),
            EventKind::Cache { operation, address, .. } if is_flush(*operation) => {
                let object = self.region.iteration_object()?;
                let same = object.address / self.line_bytes == address / self.line_bytes;
                same.then_some(FlushPlace::IterationEnd)
            }
            _ => None,
        }
    }

    /// Numbers of the lines that are flushed just before this event.
    pub(crate) fn lines_before(&mut self, what: &EventKind) -> Vec<u64> {
        let mut lines = Vec::new();
        if self.plans.is_empty() {
            return lines;
        }
        let Some(here) = self.place_of(what) else { return lines };
        for (plan, times) in self.plans.iter_mut().filter(|(plan, _)| plan.place == here) {
            *times += 1;
            let object = self.region.objects.get(plan.object).filter(|object| object.bytes > 0);
            let Some(object) = object.filter(|_| *times % plan.period.max(1) == 0) else {
                continue;
            };
            lines.extend(object.address / self.line_bytes..=(object.end() - 1) / self.line_bytes);
        }
        lines
    }
}

/// Whether it writes one line back.
fn is_flush(operation: CacheOperation) -> bool {
    use CacheOperation::{Flush, FlushWeak, WriteBack};
    matches!(operation, WriteBack | Flush | FlushWeak)
}

/// Lines that a thread flushes at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionFlush {
    /// The process, as the recording numbers it.
    pub process: u32,
    /// The thread, as the recording numbers it.
    pub thread: u32,
    /// When, as the recording has time.
    pub time: u64,
    /// The lines' first addresses.
    pub addresses: Vec<u64>,
}

/// All flushes of a region, in the order of the recording: the program's own of single lines, and
/// those of `plans`, with lines of `line_bytes`. None where there is no region.
///
/// # Errors
/// [`TraceError`].
pub fn region_flushes<R: Read + Seek>(
    reader: &mut TraceReader<R>,
    region: &RegionFile,
    plans: &[FlushPlan],
    line_bytes: u64,
) -> Result<Vec<RegionFlush>, TraceError> {
    let Some(span) = find_region(reader)? else { return Ok(Vec::new()) };
    let mut planned = PlannedFlushes::new(region, plans, line_bytes);
    let mut all: Vec<RegionFlush> = Vec::new();
    visit_events(reader, |event| {
        if event.process != span.process || !span.contains(event.time) {
            return;
        }
        let mut addresses: Vec<u64> =
            planned.lines_before(&event.what).iter().map(|line| line * line_bytes).collect();
        if let EventKind::Cache { operation, address, .. } = &event.what {
            addresses.extend(is_flush(*operation).then_some(*address));
        }
        if !addresses.is_empty() {
            let (process, thread, time) = (event.process, event.thread, event.time);
            all.push(RegionFlush { process, thread, time, addresses });
        }
    })?;
    Ok(all)
}
