//! Accesses from the processor's samples (see [`crate::sampler`]): loads that the last level did
//! not serve, and stores.
//!
//! Of a page that was sampled `n` times with a period `P` in a window `W` is told that it was seen
//! in `n` of many looks which are `W / P` long together: a stream thinned to one in `P` and watched
//! for `W` shows as much as all of it in `W / P`. The period of loads follows what draining costs,
//! between 199 and 19,997, as in MEMTIS (Lee et al., SOSP 2023, which keeps its sampler below 3% of
//! a core in this way); that of stores stays at about 100,000, as there.

use super::runs::{join, SimSampleSet};
use super::{costs, EngineInput, Shared};
use crate::sampler::{AccessSampler, Sample, SamplingParams};
use std::collections::BTreeMap;
use terrace_engine::{Mapping, Observation, SampleRequest, TrackError, Tracker, TrackerInfo};
use terrace_model::PS;
use terrace_types::{BitSource, Bytes, Nanos, Request, Tick, TrackerVisibility, Vpn, VpnRange};

const LOADS: (u64, u64) = (199, 19_997);
const STORES: u64 = 100_003;
/// Linux's buffer on x86, 64 KiB a CPU (`arch/x86/events/intel/ds.c`), at 192 bytes a record
/// (MCHPC'18, as in [`costs::SAMPLES_INTERRUPT`]); 64 Ki records wait for the manager.
const BUFFER: usize = (64 << 10) / 192;
const ROOM: usize = 1 << 16;

/// The tracker.
#[derive(Debug)]
pub struct PebsScan {
    world: Shared,
    share: f64,
    period: u64,
    since: Tick,
    ranges: Vec<VpnRange>,
    /// Between windows the processor does not sample (`PERF_EVENT_IOC_DISABLE`), so that who dozes
    /// pays nothing.
    parked: Option<AccessSampler>,
}

impl PebsScan {
    /// Of this world, whose processor samples during windows; draining is to cost no more than
    /// `share` of a core.
    #[must_use]
    pub fn new(world: Shared, share: f64) -> Self {
        let (record, interrupt) = (costs::SAMPLING.get() * PS, costs::SAMPLES_INTERRUPT.get() * PS);
        let figures = SamplingParams { buffer: BUFFER, room: ROOM, record, interrupt };
        let parked = Some(AccessSampler::new(LOADS.0, STORES, figures));
        Self { world, share, period: LOADS.0, since: Tick::ZERO, ranges: Vec::new(), parked }
    }

    fn report(&self, samples: &[Sample], store: bool, window: Nanos, seen: &mut Observation) {
        let mut counts: BTreeMap<u64, u16> = BTreeMap::new();
        for sample in samples.iter().filter(|s| s.store == store) {
            let count = counts.entry(sample.vpn).or_default();
            *count = count.saturating_add(1);
        }
        let most = counts.values().copied().max().unwrap_or(0);
        // So many looks that hits stay few among them: then hits are counts.
        let windows = (u32::from(most) * 8).clamp(64, u32::from(u16::MAX)) as u16;
        let period = if store { STORES } else { self.period };
        let each = Nanos((window.get() / period / u64::from(windows)).max(1));
        let looks = SimSampleSet { windows, window: each, writes_only: store };
        for range in &self.ranges {
            let mut sampled = counts.range(range.start.0..range.end.0).peekable();
            let hits = (range.start.0..range.end.0).map(|vpn| {
                Some(sampled.next_if(|(page, _)| **page == vpn).map_or(0, |(_, count)| *count))
            });
            join(looks, Vpn(range.start.0), hits, &mut seen.sightings);
        }
    }
}

impl Tracker for PebsScan {
    fn info(&self) -> TrackerInfo {
        TrackerInfo {
            name: "pebs",
            sees: TrackerVisibility {
                reads: true,
                writes: true,
                pages: true,
                bits: BitSource::Approximate,
                sampled: true,
                ..TrackerVisibility::default()
            },
            blind_to: "loads that caches serve; which stores caches absorb; pages accessed less than once a period",
        }
    }

    fn begin(&mut self, mappings: &[Mapping], _ask: &SampleRequest) -> Result<(), TrackError> {
        let mut world = self.world.borrow_mut();
        self.ranges = mappings.iter().map(|m| m.range).collect();
        // A window that was never finished goes on being sampled.
        if let Some(sampler) = self.parked.take().or_else(|| world.sampler.take()) {
            let sampler = world.sampler.insert(sampler);
            sampler.drain();
        }
        self.since = world.now();
        Ok(())
    }

    fn finish(&mut self, _now: Tick) -> Result<Observation, TrackError> {
        let shared = self.world.clone();
        let mut world = shared.borrow_mut();
        let window = world.now().since(self.since);
        let (samples, lost) = world.sampler.as_mut().map(AccessSampler::drain).unwrap_or_default();
        let cpu = costs::draining(samples.len() as u64);
        world.charge(cpu);
        world.show(EngineInput { looks: true, ..EngineInput::default() });
        let mut seen = Observation { cpu, lost, ..Observation::default() };
        if window > Nanos::ZERO {
            self.report(&samples, false, window, &mut seen);
            self.report(&samples, true, window, &mut seen);
            let spent = cpu.as_secs_f64() / window.as_secs_f64();
            let period = match spent {
                s if s > self.share => self.period * 2,
                s if s < self.share / 4.0 => self.period / 2,
                _ => self.period,
            };
            self.period = period.clamp(LOADS.0, LOADS.1);
        }
        self.parked = world.sampler.take().map(|mut sampler| {
            sampler.set_load_period(self.period);
            sampler
        });
        seen.sightings.sort_by_key(|s| (s.range.start, s.writes_only));
        seen.memory = Bytes(std::mem::size_of_val(seen.sightings.as_slice()) as u64);
        Ok(seen)
    }

    fn request(&mut self, _request: &Request) -> Result<(), TrackError> {
        Ok(())
    }
}
