//! Accesses by region, from DAMON; page by page at a price.

use std::collections::{BTreeMap, BTreeSet};
use terrace_engine::{
    Mapping, MappingKind, Observation, RangeObservation, SampleRequest, TrackError, Tracker,
    TrackerInfo,
};
use terrace_sys::{now, CpuMeter, DamonOps, DamonPlan, DamonRun, DamonTarget, Root, SysError};
use terrace_types::{
    BitSource, Bytes, Nanos, Pid, Request, Tick, TrackerVisibility, Vpn, VpnRange,
};

/// How DAMON is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamonMode {
    /// Some hundred regions, each judged by one page a sample: contiguous hot sets.
    Coarse,
    /// Every page a region of its own for a short burst: hot pages scattered among cold ones.
    /// Costs two page walks a page and sample and about 100 bytes of kernel memory a page.
    Page,
}

/// Sample and report intervals of the coarse mode; longer while relaxed.
const COARSE: (Nanos, Nanos) = (Nanos::millis(5), Nanos::millis(100));
const RELAXED: (Nanos, Nanos) = (Nanos::millis(100), Nanos::secs(1));
/// The same for page mode: the walk over all pages is longer than any interval asked for.
const PAGE: (Nanos, Nanos) = (Nanos::millis(2), Nanos::millis(8));
/// Bytes of kernel memory that one region holds (`struct damon_region`, rounded up by the slab).
const REGION_BYTES: u64 = 96;
/// Most pages observed one by one: 64 MiB of regions are never held.
const MAX_PAGES: u64 = 1 << 18;

/// Runs one kdamond of its own; never touches another's.
#[derive(Debug)]
pub struct Damon {
    root: Root,
    mode: DamonMode,
    meter: CpuMeter,
    run: Option<DamonRun>,
    pids: Vec<Pid>,
    relaxed: bool,
    plan: (Nanos, Nanos),
    since: Tick,
    kernel_cpu: Nanos,
    own_cpu: Nanos,
    memory: u64,
    lost: u64,
    mappings: Vec<(Pid, VpnRange)>,
}

impl Damon {
    /// A tracker in this mode; the kdamond starts with the first interval.
    #[must_use]
    pub fn new(root: Root, mode: DamonMode) -> Self {
        Self {
            root,
            mode,
            meter: CpuMeter::new(),
            run: None,
            pids: Vec::new(),
            relaxed: false,
            plan: COARSE,
            since: Tick::ZERO,
            kernel_cpu: Nanos::ZERO,
            own_cpu: Nanos::ZERO,
            memory: 0,
            lost: 0,
            mappings: Vec::new(),
        }
    }

    /// Turns the kdamond off until the next interval.
    pub fn rest(&mut self) {
        self.run = None;
    }

    fn start(&mut self, ask: &SampleRequest) -> Result<(), TrackError> {
        self.rest();
        let pages: u64 = self.mappings.iter().map(|m| m.1.len()).sum();
        self.plan = match self.mode {
            DamonMode::Page => PAGE,
            DamonMode::Coarse if ask.relaxed => RELAXED,
            DamonMode::Coarse => COARSE,
        };
        let (min, max, ring) = match self.mode {
            // A region's size is bounded by all memory divided by the minimum: at one page none
            // can merge, and beyond half of the maximum none is split (`mm/damon/core.c`).
            DamonMode::Page => {
                let all = self.span_pages();
                if all > MAX_PAGES {
                    return Err(stopped(
                        format!("{all} pages are too many to observe one by one"),
                        "page-table or soft-dirty serve larger targets",
                    ));
                }
                (all + all / 64 + 16, all * 2, (all as usize / 32).clamp(64, 8192))
            }
            DamonMode::Coarse => {
                let want = (pages / 512).clamp(20, 400);
                (want / 4, want, 256)
            }
        };
        let plan = DamonPlan {
            ops: DamonOps::Vaddr,
            targets: self
                .pids
                .iter()
                .map(|pid| DamonTarget { pid: *pid, regions: Vec::new() })
                .collect(),
            sample: self.plan.0,
            aggregate: self.plan.1,
            update: Nanos::millis(500),
            min_regions: min.max(3),
            max_regions: max.max(6),
            accessed_only: self.mode == DamonMode::Page,
            ring_pages: ring,
        };
        let run = DamonRun::start(&self.root, &plan).map_err(|e| self.refused(&e))?;
        self.memory = plan.max_regions * REGION_BYTES + run.ring_bytes() as u64;
        self.kernel_cpu = Nanos::ZERO;
        self.since = now();
        self.lost = 0;
        self.relaxed = ask.relaxed;
        self.run = Some(run);
        Ok(())
    }

    /// Pages between the first and last mapping of each process, less its two largest gaps: what
    /// `__damon_va_init_regions` in `mm/damon/vaddr.c` divides by the minimum of regions.
    fn span_pages(&self) -> u64 {
        let mut by_pid: BTreeMap<Pid, Vec<VpnRange>> = BTreeMap::new();
        for (pid, range) in &self.mappings {
            by_pid.entry(*pid).or_default().push(*range);
        }
        let spans = by_pid.values().map(|ranges| {
            let mut gaps: Vec<u64> = ranges.windows(2).map(|w| w[1].start.0 - w[0].end.0).collect();
            gaps.sort_unstable();
            let whole = ranges.last().map_or(0, |l| l.end.0 - ranges[0].start.0);
            whole - gaps.iter().rev().take(2).sum::<u64>()
        });
        spans.sum()
    }

    fn refused(&self, error: &SysError) -> TrackError {
        stopped(error.to_string(), "terrace doctor tells what DAMON needs")
    }

    /// Page mode: pages not reported were sampled and not hit.
    fn by_page(
        &self,
        hits: &BTreeMap<(Pid, u64), (u32, u32)>,
        interval: Nanos,
    ) -> Vec<RangeObservation> {
        let per_report = (self.plan.1 .0 / self.plan.0 .0).max(1) as u32;
        let reports = hits.values().map(|h| h.1).max().unwrap_or(0);
        let sample_count = (reports * per_report).min(u32::from(u16::MAX));
        let mut seen = Vec::new();
        if sample_count == 0 {
            return seen;
        }
        for (pid, range) in &self.mappings {
            let samples = crate::runs::SampleSet {
                pid: *pid,
                sample_count: sample_count as u16,
                interval: Nanos((interval.0 / u64::from(sample_count)).max(1)),
                writes_only: false,
            };
            let counts = (range.start.0..range.end.0).map(|page| {
                Some(hits.get(&(*pid, page)).map_or(0, |h| h.0.min(sample_count)) as u16)
            });
            crate::runs::join(samples, range.start, counts, &mut seen);
        }
        seen
    }
}

fn stopped(why: String, remedy: &'static str) -> TrackError {
    TrackError::Stopped { tracker: "damon", why, remedy }
}

impl Tracker for Damon {
    fn info(&self) -> TrackerInfo {
        TrackerInfo {
            name: match self.mode {
                DamonMode::Coarse => "damon",
                DamonMode::Page => "damon-page",
            },
            sees: TrackerVisibility {
                reads: true,
                bits: BitSource::Approximate,
                ..TrackerVisibility::default()
            },
            blind_to: match self.mode {
                DamonMode::Coarse => {
                    "reads as distinct from writes; hot pages scattered among cold ones"
                }
                DamonMode::Page => "reads as distinct from writes",
            },
        }
    }

    fn begin(&mut self, mappings: &[Mapping], ask: &SampleRequest) -> Result<(), TrackError> {
        let work = self.meter.start();
        self.mappings = mappings
            .iter()
            .filter(|m| m.kind != MappingKind::Pinned)
            .map(|m| (m.pid, m.range))
            .collect();
        let pids: BTreeSet<Pid> = self.mappings.iter().map(|m| m.0).collect();
        let pids: Vec<Pid> = pids.into_iter().collect();
        let stale = self.run.is_none() || pids != self.pids || ask.relaxed != self.relaxed;
        self.pids = pids;
        if self.pids.is_empty() {
            self.rest();
        } else if stale || self.mode == DamonMode::Page {
            self.start(ask)?;
        }
        self.own_cpu = work.used(Nanos::ZERO);
        Ok(())
    }

    fn finish(&mut self, _now: Tick) -> Result<Observation, TrackError> {
        let work = self.meter.start();
        let Some(run) = &mut self.run else {
            return Ok(Observation::default());
        };
        let mut seen = Observation::default();
        let shift = terrace_sys::page_size().get().trailing_zeros();
        let samples = (self.plan.1 .0 / self.plan.0 .0).clamp(1, 65_535) as u16;
        let mut pages: BTreeMap<(Pid, u64), (u32, u32)> = BTreeMap::new();
        let (page_mode, pids, plan) = (self.mode == DamonMode::Page, &self.pids, self.plan);
        run.drain(|region| {
            let Some(pid) = pids.get(region.target as usize) else {
                return;
            };
            let range = VpnRange::new(Vpn(region.start >> shift), Vpn(region.end >> shift));
            if page_mode {
                for page in range.start.0..range.end.0.min(range.start.0 + 16) {
                    let count = pages.entry((*pid, page)).or_default();
                    *count = (count.0 + region.hits, count.1 + 1);
                }
            } else if !range.is_empty() {
                seen.observations.push(RangeObservation {
                    pid: *pid,
                    range,
                    hits: region.hits.min(u32::from(samples)) as u16,
                    sample_count: samples,
                    interval: plan.0,
                    writes_only: false,
                    every_page: range.len() == 1,
                });
            }
        });
        let used = run.cpu();
        seen.lost = run.lost() - self.lost;
        self.lost = run.lost();
        seen.cpu = (used - self.kernel_cpu) + self.own_cpu;
        self.kernel_cpu = used;
        seen.memory = Bytes(self.memory);
        let running = run.running();
        if page_mode {
            let interval = now().since(self.since);
            self.rest();
            seen.observations = self.by_page(&pages, interval);
        } else if !running {
            // It ends by itself with its target; the next interval starts another if one is left.
            self.rest();
        }
        seen.observations.sort_by_key(|s| (s.pid, s.range.start));
        seen.cpu += work.used(Nanos::ZERO);
        Ok(seen)
    }

    fn request(&mut self, _request: &Request) -> Result<(), TrackError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreported_pages_count_as_sampled_and_not_hit() {
        let mut damon = Damon::new(Root::live(), DamonMode::Page);
        damon.plan = PAGE;
        damon.mappings = vec![(Pid(1), VpnRange::new(Vpn(10), Vpn(20)))];
        let hits = BTreeMap::from([((Pid(1), 12), (6, 2)), ((Pid(1), 13), (1, 1))]);
        let seen = damon.by_page(&hits, Nanos::millis(80));
        let reported: Vec<_> =
            seen.iter().map(|s| (s.range.start.0, s.range.len(), s.hits)).collect();
        assert_eq!(reported, [(10, 2, 0), (12, 1, 6), (13, 1, 1), (14, 6, 0)]);
        assert_eq!((seen[0].sample_count, seen[0].interval), (8, Nanos::millis(10)));
    }

    #[test]
    fn spans_leave_out_the_two_largest_gaps() {
        let mut damon = Damon::new(Root::live(), DamonMode::Page);
        let range = |a, b| (Pid(1), VpnRange::new(Vpn(a), Vpn(b)));
        damon.mappings = vec![range(0, 10), range(12, 20), range(1000, 1010), range(9000, 9001)];
        assert_eq!(damon.span_pages(), 20 + 10 + 1);
    }
}
