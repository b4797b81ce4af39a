//! What sampling costs a program, and how well samples show what it does: the program runs alone,
//! with the processor's sampling on, and all accesses are known besides.
//!
//! Nothing drains the samples but the model's interrupts, and nobody decides or moves: what is
//! measured is equation 1 of the counter paper without migration, and the sampling error D of its
//! section 4.1.

use crate::build::{FirstTouchPlacement, MachineMode, SimSetup};
use crate::error::SimError;
use crate::ports::PebsSettings;
use crate::sampler::{AccessSampler, SamplingParams};
use std::collections::HashMap;
use terrace_types::Nanos;

/// A span that no run reaches.
const FOR_EVER: Nanos = Nanos(u64::MAX / 2000);
/// Samples that are kept: 512 MiB of them.
const MAX_SAMPLES: usize = 1 << 25;

/// A program that ran with sampling on; figures are of the phase that counts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SampledProgram {
    /// Modelled seconds.
    pub seconds: f64,
    /// Seconds that storing samples and interrupts took of all cores together.
    pub sampling_seconds: f64,
    /// Samples.
    pub samples: u64,
    /// Interrupts that emptied a buffer.
    pub interrupts: u64,
    /// Samples that found no free space.
    pub lost: u64,
    /// Last-level misses by loads of each core, all of them.
    pub misses: Vec<u64>,
    /// The same as sampled.
    pub sampled: Vec<u64>,
    /// Pages that a load missed on at least once.
    pub pages: u64,
    /// Samples of loads by page, most first; as many entries as pages were seen.
    pub by_page: Vec<u64>,
    /// Seconds between two interrupts of one core, ascending.
    pub intervals: Vec<f64>,
}

/// Runs the program of `setup` where first touch puts it; `settings` is how it is sampled, if it
/// is. Loads are sampled at the period given, or at 1000, the counter paper's.
///
/// # Errors
/// [`SimError`].
pub fn sample_program(
    setup: &SimSetup,
    settings: Option<PebsSettings>,
) -> Result<SampledProgram, SimError> {
    const PERIOD: u64 = 1000;
    let mut world = setup.world(MachineMode::Plain, FirstTouchPlacement::Nearest)?;
    world.stops.at_begin = true;
    world.pass(FOR_EVER);
    world.memory.profile();
    let (cores, kernel) = (world.cores(), world.costs.kernel);
    world.sampler = settings.map(|settings| {
        let params = SamplingParams {
            buffer: settings.threshold() as usize,
            capacity: MAX_SAMPLES,
            record: kernel.sample_record.0,
            interrupt: kernel.sample_interrupt.0,
        };
        AccessSampler::new(settings.loads.unwrap_or(PERIOD), settings.stores, params, cores)
    });
    let before: Vec<u64> = (0..cores).map(|core| misses(&world, core)).collect();
    world.proceed(Nanos::ZERO);
    world.pass(FOR_EVER);
    let (span, _) = world
        .measured
        .result()
        .ok_or_else(|| SimError::Inconsistent("the measured phase did not end".to_owned()))?;
    let mut found = SampledProgram {
        seconds: span.as_secs_f64(),
        misses: (0..cores).map(|core| misses(&world, core) - before[core]).collect(),
        sampled: vec![0; cores],
        pages: world.memory.take_misses().iter().filter(|(_, m)| m.reads > 0).count() as u64,
        ..SampledProgram::default()
    };
    let Some(mut sampler) = world.sampler.take() else { return Ok(found) };
    let totals = sampler.totals();
    let (samples, lost) = sampler.drain();
    let mut pages: HashMap<u64, u64> = HashMap::new();
    for sample in samples.iter().filter(|sample| !sample.store) {
        found.sampled[sample.core as usize] += 1;
        *pages.entry(sample.vpn).or_default() += 1;
    }
    found.by_page = pages.into_values().collect();
    found.by_page.sort_unstable_by(|a, b| b.cmp(a));
    found.intervals = intervals(sampler.interrupted(), cores);
    found.sampling_seconds = totals.time as f64 / 1e12;
    (found.samples, found.interrupts, found.lost) = (totals.records, totals.interrupts, lost);
    Ok(found)
}

fn misses(world: &crate::world::World, core: usize) -> u64 {
    world.engine().counters(core).read_misses.iter().sum()
}

/// Times between the interrupts of each core; `times` are core and picoseconds.
fn intervals(times: &[(u32, u64)], cores: usize) -> Vec<f64> {
    let mut before = vec![None; cores];
    let mut all: Vec<f64> = Vec::new();
    for (core, time) in times {
        if let Some(before) = before[*core as usize].replace(*time) {
            all.push(time.saturating_sub(before) as f64 / 1e12);
        }
    }
    all.sort_unstable_by(f64::total_cmp);
    all
}
