//! Accesses from the processor's samples (see [`crate::sampler`]): loads that the last level did
//! not serve, and stores.
//!
//! The reply is made by [`SampleMap`], as that of samples taken live. Unless it is fixed, the
//! period of loads follows what draining costs, between 199 and 19,997, as in MEMTIS (Lee et al.,
//! SOSP 2023, which keeps its sampler below 3% of a core in this way); that of stores stays at
//! about 100,000, as there.

use super::{Shared, PID};
use crate::costs::EngineInput;
use crate::sampler::{AccessSampler, BufferDrain, Sample, SamplingParams};
use terrace_engine::{Mapping, Observation, SampleRequest, TrackError, Tracker, TrackerInfo};
use terrace_tracker::{SampleMap, SamplePeriods, SampledAccess};
use terrace_types::{BitSource, Bytes, Nanos, NodeId, Request, Tick, Tid, TrackerVisibility, Vpn};

const LOADS: (u64, u64) = (199, 19_997);
const STORES: u64 = 100_003;
/// Bytes of a record: 24 words on Knights Landing (MCHPC'18, "On the Applicability of PEBS based
/// Online Memory Access Tracking", section 3).
const RECORD_BYTES: u64 = 192;
/// Linux's buffer on x86, 64 KiB a CPU (`arch/x86/events/intel/ds.c`).
const BUFFER_BYTES: u64 = 64 << 10;
/// The interrupt comes when a tenth of the buffer is free (that paper's driver).
const FREE_AT_INTERRUPT: u64 = 10;
/// Records that wait for the daemon.
const MAX_SAMPLES: usize = 1 << 16;

/// What of the processor's sampling can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PebsSettings {
    /// Loads that miss between two samples (the reset value of the counter); `None`: as many as
    /// keep draining within its share of a core.
    pub loads: Option<u64>,
    /// Stores between two samples.
    pub stores: u64,
    /// The buffer of each core.
    pub buffer: Bytes,
}

impl PebsSettings {
    /// What is used where nothing is set.
    pub const DEFAULT: Self = Self { loads: None, stores: STORES, buffer: Bytes(BUFFER_BYTES) };

    /// Records that fit in a core's buffer.
    #[must_use]
    pub const fn records(&self) -> u64 {
        self.buffer.get() / RECORD_BYTES
    }

    /// Records in a core's buffer when the interrupt comes.
    #[must_use]
    pub const fn threshold(&self) -> u64 {
        let records = self.records();
        let threshold = records - records / FREE_AT_INTERRUPT;
        if threshold == 0 {
            1
        } else {
            threshold
        }
    }
}

impl Default for PebsSettings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The tracker.
#[derive(Debug)]
pub struct PebsScan {
    world: Shared,
    /// Node of each core.
    cells: Vec<NodeId>,
    share: f64,
    fixed: bool,
    periods: SamplePeriods,
    since: Tick,
    mappings: Vec<Mapping>,
    map: SampleMap,
    /// Between intervals the processor does not sample (`PERF_EVENT_IOC_DISABLE`), so that who is
    /// idle pays nothing.
    parked: Option<AccessSampler>,
}

impl PebsScan {
    /// Of this world, whose nodes are numbered `ids` and whose processor samples during intervals;
    /// draining is to cost no more than `share` of a core.
    #[must_use]
    pub fn new(world: Shared, ids: &[NodeId], share: f64, settings: PebsSettings) -> Self {
        let kernel = world.borrow().costs.kernel;
        let (record, interrupt) = (kernel.sample_record.0, kernel.sample_interrupt.0);
        let buffer = settings.threshold() as usize;
        let drain = BufferDrain::Interrupt;
        let params = SamplingParams { drain, buffer, capacity: MAX_SAMPLES, record, interrupt };
        let loads = settings.loads.unwrap_or(LOADS.0);
        let (cells, cores): (Vec<NodeId>, usize) = {
            let world = world.borrow();
            (world.cores.iter().map(|core| ids[core.home]).collect(), world.cores.len())
        };
        Self {
            world,
            cells,
            share,
            fixed: settings.loads.is_some(),
            periods: SamplePeriods { loads, stores: settings.stores },
            since: Tick::ZERO,
            mappings: Vec::new(),
            map: SampleMap::default(),
            parked: Some(AccessSampler::new(loads, settings.stores, params, cores)),
        }
    }

    fn count(&mut self, samples: &[Sample]) {
        for sample in samples {
            self.map.add(&SampledAccess {
                pid: PID,
                vpn: Vpn(sample.vpn),
                store: sample.store,
                cell: self.cells.get(sample.core as usize).copied(),
                thread: Some(Tid(PID.0 + sample.thread as i32)),
            });
        }
    }

    /// The period of loads that keeps draining within its share.
    fn adapt(&mut self, spent: f64) {
        if self.fixed {
            return;
        }
        let loads = match spent {
            s if s > self.share => self.periods.loads * 2,
            s if s < self.share / 4.0 => self.periods.loads / 2,
            _ => self.periods.loads,
        };
        self.periods.loads = loads.clamp(LOADS.0, LOADS.1);
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
                cells: true,
                bits: BitSource::Approximate,
                sampled: true,
            },
            blind_to: "loads that caches serve; which stores caches absorb; pages accessed less \
                than once a period",
        }
    }

    fn begin(&mut self, mappings: &[Mapping], _ask: &SampleRequest) -> Result<(), TrackError> {
        let mut world = self.world.borrow_mut();
        self.mappings = mappings.to_vec();
        // An interval that was never finished goes on being sampled.
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
        let interval = world.now().since(self.since);
        let (samples, lost) = world.sampler.as_mut().map(AccessSampler::drain).unwrap_or_default();
        let cpu = world.costs.drain_samples(samples.len() as u64);
        world.charge(cpu);
        world.show(EngineInput { samples: true, ..EngineInput::default() });
        self.count(&samples);
        let mut seen = self.map.take(&self.mappings, interval, self.periods);
        seen.cpu = cpu;
        seen.lost += lost;
        if interval > Nanos::ZERO {
            self.adapt(cpu.as_secs_f64() / interval.as_secs_f64());
        }
        self.parked = world.sampler.take().map(|mut sampler| {
            sampler.set_load_period(self.periods.loads);
            world.sampling = sampler.totals();
            sampler
        });
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
    fn buffers_interrupt_where_the_papers_driver_does() {
        let threshold = |kib: u64| {
            PebsSettings { buffer: Bytes(kib << 10), ..PebsSettings::DEFAULT }.threshold()
        };
        // 42, 85, 170 and 341 records, less a tenth.
        assert_eq!([8, 16, 32, 64].map(threshold), [38, 77, 153, 307]);
        assert_eq!(PebsSettings { buffer: Bytes(1), ..PebsSettings::DEFAULT }.threshold(), 1);
    }
}
