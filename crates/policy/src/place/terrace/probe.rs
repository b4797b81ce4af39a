//! Looking closer. Trackers that sample regions give all pages of a region one heat: hot pages
//! scattered among cold ones cannot be distinguished. When the worse tier serves traffic worth
//! having and nothing can be moved, a few short ranges are sampled page by page. If their pages
//! differ, everything that matters is sampled so, until it is sorted out; if not, heat is truly
//! even, and the next probe waits twice as long.

use super::hotness::value_of;
use super::params::Params;
use super::shrink::ValueShrinkage;
use super::tuning::TerraceTuning;
use crate::place::worth::AccessWorth;
use serde::{Deserialize, Serialize};
use terrace_types::{Nanos, PageFlags, Pid, Request, Seed, Snapshot, Tick, Vpn, VpnRange};

/// What is being sampled.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ProbeTarget {
    /// Nothing in particular.
    #[default]
    Wide,
    /// These ranges, for so many more intervals.
    Probe {
        /// Short ranges on the worse tier.
        ranges: Vec<(Pid, VpnRange)>,
        /// Intervals still to come.
        intervals: u32,
    },
    /// All pages on both sides, page by page; idle intervals so far.
    All {
        /// Intervals in a row without a move.
        idle: u32,
    },
}

/// When and where to sample page by page.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RegionProbe {
    /// What is being sampled.
    pub sample: ProbeTarget,
    next: Tick,
    pause: Nanos,
}

impl RegionProbe {
    /// After a step: what to sample in the next interval. `moved`: pages were moved; `worth_it`:
    /// the worse tier serves traffic worth a probe.
    pub fn advance(
        &mut self,
        p: &Params,
        snap: &Snapshot,
        worth: &AccessWorth,
        (moved, worth_it): (bool, bool),
        rank: usize,
        (now, seed): (Tick, Seed),
    ) -> Option<&'static str> {
        let tuning = &p.tuning;
        match &mut self.sample {
            ProbeTarget::Wide if moved || !worth_it || now < self.next => None,
            ProbeTarget::Wide => {
                let ranges = pick(tuning, snap, rank, seed);
                if ranges.is_empty() {
                    return None;
                }
                let intervals = tuning.probe_intervals;
                self.sample = ProbeTarget::Probe { ranges, intervals };
                Some("probe")
            }
            ProbeTarget::Probe { intervals, .. } if *intervals > 1 => {
                *intervals -= 1;
                None
            }
            ProbeTarget::Probe { ranges, .. } => {
                let mixed = differ(p, snap, worth, ranges);
                self.sample = if mixed { ProbeTarget::All { idle: 0 } } else { ProbeTarget::Wide };
                if mixed {
                    return Some("sample by page");
                }
                self.rest(tuning, now);
                Some("even")
            }
            ProbeTarget::All { idle } => {
                *idle = if moved { 0 } else { *idle + 1 };
                if *idle >= tuning.probe_patience {
                    self.sample = ProbeTarget::Wide;
                    self.rest(tuning, now);
                }
                None
            }
        }
    }

    fn rest(&mut self, tuning: &TerraceTuning, now: Tick) {
        let longer = Nanos(self.pause.get() * tuning.probe_longer);
        self.pause = longer.clamp(tuning.probe_first_pause, tuning.probe_longest_pause);
        self.next = now.after(self.pause);
    }

    /// Heat has shifted: even heat may no longer be even.
    pub fn shifted(&mut self) {
        self.pause = Nanos::ZERO;
    }

    /// Whether short intervals are needed.
    pub fn busy(&self) -> bool {
        self.sample != ProbeTarget::Wide
    }

    /// What to ask of the trackers.
    pub fn requests(&self, snap: &Snapshot) -> Vec<Request> {
        match &self.sample {
            ProbeTarget::Wide => Vec::new(),
            ProbeTarget::Probe { ranges, .. } => ranges
                .iter()
                .map(|(pid, range)| Request::SampleByPage { pid: *pid, range: *range })
                .collect(),
            ProbeTarget::All { .. } => snap
                .areas
                .iter()
                .filter(|a| a.pages.iter().any(|p| p.movable() && p.rate() > 0))
                .map(|a| Request::SampleByPage { pid: a.pid, range: a.range() })
                .collect(),
        }
    }
}

/// Short ranges spread over the pages of the worse tier, from a random start.
fn pick(tuning: &TerraceTuning, snap: &Snapshot, rank: usize, seed: Seed) -> Vec<(Pid, VpnRange)> {
    let Some(tier) = snap.tiers.get(rank + 1) else {
        return Vec::new();
    };
    let here = |p: &terrace_types::PageStat| p.movable() && tier.nodes.contains(&p.node());
    let total = snap.areas.iter().flat_map(|a| &a.pages).filter(|p| here(p)).count() as u64;
    if total == 0 {
        return Vec::new();
    }
    let stride = (total / tuning.probe_ranges).max(1);
    let mut next = seed.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) % stride;
    let (mut ranges, mut at): (Vec<(Pid, VpnRange)>, u64) = (Vec::new(), 0);
    for area in &snap.areas {
        for (i, page) in area.pages.iter().enumerate() {
            if !here(page) {
                continue;
            }
            if at >= next {
                let start = Vpn(area.start.0 + i as u64);
                let overlaps =
                    ranges.last().is_some_and(|(pid, r)| *pid == area.pid && r.end > start);
                if !overlaps {
                    let end = Vpn((start.0 + tuning.probe_pages).min(area.range().end.0));
                    ranges.push((area.pid, VpnRange::new(start, end)));
                }
                next += stride;
            }
            at += 1;
        }
    }
    ranges
}

/// Whether pages that lie together differ, chance taken out.
fn differ(p: &Params, snap: &Snapshot, worth: &AccessWorth, ranges: &[(Pid, VpnRange)]) -> bool {
    let tuning = &p.tuning;
    let mut values: Vec<f64> = Vec::new();
    for (pid, range) in ranges {
        for area in snap.areas.iter().filter(|a| a.pid == *pid) {
            let Some(part) = area.range().intersect(*range) else {
                continue;
            };
            let from = (part.start.0 - area.start.0) as usize;
            let pages = &area.pages[from..from + part.len() as usize];
            let known = pages.iter().filter(|p| p.flags.has(PageFlags::KNOWN) && p.movable());
            values.extend(known.map(|p| value_of(p, worth)));
        }
    }
    if values.len() < tuning.few_compared {
        return false;
    }
    let evidence = snap.interval.as_secs_f64().min(tuning.probe_evidence);
    let seen = values.iter().map(|v| (*v, 1));
    let shrink = ValueShrinkage::new(tuning, seen, worth.unit(), evidence, p.doubt);
    values.sort_by(f64::total_cmp);
    let quantile = |q: f64| shrink.value(values[((values.len() - 1) as f64 * q) as usize]);
    quantile(1.0 - tuning.probe_hot) > tuning.probe_ratio * quantile(tuning.probe_cold)
}
