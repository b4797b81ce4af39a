//! What sampling costs a program, and how well samples show what it does: the program runs alone,
//! with the processor's sampling on, and all accesses are known besides.
//!
//! Nothing drains the samples but the model's interrupts or its draining thread, and nobody
//! decides or moves: what is measured is equation 1 of the counter paper without migration, and the
//! sampling error D of its section 4.1.

use crate::build::{FirstTouchPlacement, MachineMode, SimSetup};
use crate::error::SimError;
use crate::ports::PebsSettings;
use crate::sampler::{AccessSampler, BufferDrain, SamplingParams};
use std::collections::{HashMap, HashSet};
use terrace_types::{Nanos, Vpn, VpnRange};

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
    /// Seconds that the thread which drains the buffers was at work, if one does.
    pub draining_seconds: f64,
    /// Last-level misses by loads of each core, all of them.
    pub misses: Vec<u64>,
    /// The same as sampled.
    pub sampled: Vec<u64>,
    /// Pages that a load missed on at least once.
    pub pages: u64,
    /// Samples of loads by page, most first; as many entries as pages were seen.
    pub by_page: Vec<u64>,
    /// Pages of sampled loads, in the order of the samples.
    pub sampled_pages: Vec<Vpn>,
    /// The longest run of pages that the program touched: its largest buffer.
    pub largest_buffer: Option<VpnRange>,
    /// Seconds between two interrupts, ascending, by core.
    pub intervals: Vec<Vec<f64>>,
}

/// Times between interrupts that are more frequent than shorter and longer ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IntervalPeak {
    /// The middle of its bin, seconds.
    pub seconds: f64,
    /// Intervals in the bin and two on each side, as a share of all; of peaks less than five bins
    /// apart these overlap.
    pub share: f64,
}

/// Bins of a peak's search for the median interval.
const BINS_PER_MEDIAN: f64 = 50.0;
/// Bins on each side that a peak is compared with.
const BINS_BESIDE: usize = 2;
/// A peak has at least this share of the intervals.
const PEAK_SHARE: f64 = 0.05;

impl SampledProgram {
    /// Pages of the largest buffer among its first `samples` samples.
    #[must_use]
    pub fn buffer_pages_seen(&self, samples: usize) -> usize {
        let Some(buffer) = self.largest_buffer else { return 0 };
        let within = self.sampled_pages.iter().filter(|vpn| buffer.contains(**vpn));
        within.take(samples).collect::<HashSet<_>>().len()
    }

    /// Where the distribution of the times between interrupts has its peaks (the PEBS paper's
    /// figure 6): bins of a fiftieth of the median that hold more than two bins on each side. Of
    /// one core, since cores that are not equally far from memory have peaks of their own.
    #[must_use]
    pub fn interval_peaks(&self, core: usize) -> Vec<IntervalPeak> {
        let intervals = self.intervals.get(core).map_or(&[][..], Vec::as_slice);
        let Some(median) = intervals.get(intervals.len() / 2) else { return Vec::new() };
        let width = median / BINS_PER_MEDIAN;
        let bins = (3.0 * BINS_PER_MEDIAN) as usize;
        let mut counts = vec![0_usize; bins];
        for interval in intervals {
            // Longer ones are waits between phases.
            if let Some(count) = counts.get_mut((interval / width) as usize) {
                *count += 1;
            }
        }
        let is_peak = |at: usize| {
            let before = &counts[at.saturating_sub(BINS_BESIDE)..at];
            let behind = &counts[at + 1..(at + 1 + BINS_BESIDE).min(bins)];
            before.iter().all(|count| *count < counts[at])
                && behind.iter().all(|count| *count <= counts[at])
        };
        let peak = |at: usize| {
            let all = at.saturating_sub(BINS_BESIDE)..(at + 1 + BINS_BESIDE).min(bins);
            let share = counts[all].iter().sum::<usize>() as f64 / intervals.len() as f64;
            IntervalPeak { seconds: (at as f64 + 0.5) * width, share }
        };
        (0..bins).filter(|at| is_peak(*at)).map(peak).filter(|p| p.share >= PEAK_SHARE).collect()
    }
}

/// Runs the program of `setup` where first touch puts it; `settings` is how it is sampled, if it
/// is, and `drain` who empties the buffers. Loads are sampled at the period given, or at 1000, the
/// counter paper's.
///
/// # Errors
/// [`SimError`].
pub fn sample_program(
    setup: &SimSetup,
    settings: Option<PebsSettings>,
    drain: BufferDrain,
) -> Result<SampledProgram, SimError> {
    const PERIOD: u64 = 1000;
    let mut world = setup.world(MachineMode::Plain, FirstTouchPlacement::Nearest)?;
    world.stops.at_begin = true;
    world.pass(FOR_EVER);
    world.memory.profile();
    let (cores, kernel) = (world.cores(), world.costs.kernel);
    world.sampler = settings.map(|settings| {
        let records = match drain {
            BufferDrain::Interrupt => settings.threshold(),
            BufferDrain::Thread { .. } => settings.records(),
        };
        let params = SamplingParams {
            drain,
            buffer: records as usize,
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
        largest_buffer: longest_run(world.memory.present().map(|(vpn, _)| vpn)),
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
        found.sampled_pages.push(Vpn(sample.vpn));
    }
    found.by_page = pages.into_values().collect();
    found.by_page.sort_unstable_by(|a, b| b.cmp(a));
    found.intervals = intervals(sampler.interrupted(), cores);
    found.sampling_seconds = totals.time as f64 / 1e12;
    if let BufferDrain::Thread { period } = drain {
        let visits = span.0 / period.0.max(1) * cores as u64;
        let time = visits * kernel.drain_samples.0 + totals.records * kernel.drain_sample.0;
        found.draining_seconds = time as f64 / 1e12;
    }
    (found.samples, found.interrupts, found.lost) = (totals.records, totals.interrupts, lost);
    Ok(found)
}

fn misses(world: &crate::world::World, core: usize) -> u64 {
    world.engine().counters(core).read_misses.iter().sum()
}

/// Times between the interrupts of each core; `times` are core and picoseconds.
fn intervals(times: &[(u32, u64)], cores: usize) -> Vec<Vec<f64>> {
    let mut before = vec![None; cores];
    let mut all = vec![Vec::new(); cores];
    for (core, time) in times {
        let core = *core as usize;
        if let Some(before) = before[core].replace(*time) {
            all[core].push(time.saturating_sub(before) as f64 / 1e12);
        }
    }
    all.iter_mut().for_each(|intervals| intervals.sort_unstable_by(f64::total_cmp));
    all
}

/// The longest run of consecutive numbers among `pages`, which ascend.
fn longest_run(pages: impl Iterator<Item = u64>) -> Option<VpnRange> {
    let mut longest = VpnRange::new(Vpn(0), Vpn(0));
    let mut run = longest;
    for page in pages {
        if page != run.end.0 {
            run.start = Vpn(page);
        }
        run.end = Vpn(page + 1);
        if run.len() > longest.len() {
            longest = run;
        }
    }
    (!longest.is_empty()).then_some(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_run_is_the_largest_buffer() {
        let pages = [0, 1, 5, 6, 7, 9, 10, 20];
        assert_eq!(longest_run(pages.into_iter()), Some(VpnRange::new(Vpn(5), Vpn(8))));
        assert_eq!(longest_run(std::iter::empty()), None);
        let run = SampledProgram {
            sampled_pages: [9, 5, 5, 7, 6].map(Vpn).to_vec(),
            largest_buffer: Some(VpnRange::new(Vpn(5), Vpn(8))),
            ..SampledProgram::default()
        };
        assert_eq!([0, 1, 2, 3, 9].map(|n| run.buffer_pages_seen(n)), [0, 1, 1, 2, 3]);
    }

    #[test]
    fn intervals_around_two_times_have_two_peaks() {
        let around = |at: u32, count: u32| (0..count).map(move |i| f64::from(at + i % 3) * 1e-6);
        let mut intervals: Vec<f64> = around(110, 60).chain(around(130, 90)).collect();
        intervals.extend([50e-6, 90e-6, 1.0]);
        intervals.sort_unstable_by(f64::total_cmp);
        let run = SampledProgram { intervals: vec![intervals], ..SampledProgram::default() };
        let peaks = run.interval_peaks(0);
        let found: Vec<(u32, u32)> = peaks
            .iter()
            .map(|peak| ((peak.seconds * 1e6) as u32, (100.0 * peak.share).round() as u32))
            .collect();
        assert!(matches!(found[..], [(109..=113, 39), (129..=133, 59)]), "{found:?}");
        assert_eq!(run.interval_peaks(1), []);
    }
}
