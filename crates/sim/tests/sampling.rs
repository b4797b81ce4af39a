//! Samples as the only source: `access-count` with them, and both papers' studies in short form.
#![allow(clippy::unwrap_used)]

use terrace_machine::{preset, Machine};
use terrace_sim::{
    sample_program, simulate, BufferDrain, PebsSettings, RunOptions, SampledProgram, SimSetup,
    TrackerKind,
};
use terrace_types::{Bytes, Nanos};

/// `lab-numa` with a small last level.
fn numa() -> Machine {
    let mut machine = preset("lab-numa").unwrap();
    machine.caches[1].size = Bytes(256 << 10);
    machine
}

/// Two threads, each on a part of its own; the main thread touched all of it first, on node 0.
const STREAM: &str = "stream,size=2MiB,accesses=3M,threads=2";

/// Slow memory, so that a short stream takes as long as some of the policy's periods.
fn slow_numa() -> Machine {
    let mut machine = numa();
    for link in &mut machine.links {
        for latency in [&mut link.read_latency, &mut link.write_latency].into_iter().flatten() {
            latency.value = Nanos(latency.value.get() * 50);
        }
        for bandwidth in [&mut link.read_bandwidth, &mut link.write_bandwidth].into_iter().flatten()
        {
            bandwidth.value.0 /= 1000;
        }
    }
    machine
}

fn pebs(loads: u64, kib: u64) -> PebsSettings {
    PebsSettings { loads: Some(loads), buffer: Bytes(kib << 10), ..PebsSettings::DEFAULT }
}

#[test]
fn access_count_brings_pages_to_the_cells_that_access_them() {
    let setup = SimSetup::new(&slow_numa(), STREAM).unwrap();
    let tracker = TrackerKind::Pebs(PebsSettings { stores: 17, ..pebs(17, 64) });
    let options = RunOptions { tracker, cpu_share: 0.5, ..RunOptions::default() };
    let first = simulate(&setup, &"first-touch".parse().unwrap(), options).unwrap();
    let run = simulate(&setup, &"access-count".parse().unwrap(), options).unwrap();
    assert_eq!(first.fast_access_share, Some(1.0));
    // Half of 2 MiB belongs to the thread on node 1.
    let moved = run.demoted_pages.unwrap();
    assert!((200..=320).contains(&moved), "{run:?}");
    assert!(run.seconds < first.seconds, "{} of {}", run.seconds, first.seconds);
    // What sampling takes of the program, deciding, and moving are distinguished.
    let summary = run.summary.as_ref().unwrap();
    assert!(run.sampling_seconds.unwrap() > 0.0 && summary.moving_ns > 0, "{run:?}");
    assert!(run.samples.unwrap() > 1000 && summary.lost_records == 0, "{run:?}");
    // Without samples there are no counts by cell.
    let blind = simulate(&setup, &"access-count".parse().unwrap(), RunOptions::default())
        .unwrap_err()
        .to_string();
    assert!(blind.contains("needs counts of accesses by cell"), "{blind}");
}

fn sampled(workload: &str, settings: Option<PebsSettings>) -> SampledProgram {
    sample_program(&SimSetup::new(&numa(), workload).unwrap(), settings, BufferDrain::Interrupt)
        .unwrap()
}

/// D of the counter paper, figure 5, in short: two threads that do not miss alike.
#[test]
fn the_sampling_error_is_small_up_to_the_papers_period() {
    for workload in ["npb-cg,accesses=3M,size=8MiB", "graph-bfs,accesses=2M,size=8MiB"] {
        let error = |period: u64| {
            let run = sampled(workload, Some(pebs(period, 64)));
            assert_eq!(run.lost, 0);
            let sum = |counts: &[u64]| counts.iter().sum::<u64>() as f64;
            let errors = run.misses.iter().zip(&run.sampled).map(|(all, sampled)| {
                let share = *all as f64 / sum(&run.misses);
                (*sampled as f64 / sum(&run.sampled) - share).abs() / share
            });
            errors.sum::<f64>() / run.misses.len() as f64
        };
        // Every miss is a sample: no error but of those that were under way at the begin.
        assert!(error(1) < 1e-3, "{workload}: {}", error(1));
        for period in [10, 199, 1000] {
            assert!(error(period) <= 0.10, "{workload}, {period}: {}", error(period));
        }
    }
}

/// The PEBS paper's figures 3, 4 and 7, in short: what sampling costs, and how much of a buffer it
/// shows, follow the reset value, and the cost the buffer's size.
#[test]
fn cost_and_sight_follow_the_reset_value_and_the_buffer() {
    let workload = "npb-cg,accesses=3M,size=8MiB";
    let base = sampled(workload, None);
    let runs =
        [64, 128, 256].map(|reset| [8, 32].map(|kib| sampled(workload, Some(pebs(reset, kib)))));
    for [small, large] in &runs {
        assert!(
            small.interrupts > 3 * large.interrupts,
            "{} {}",
            small.interrupts,
            large.interrupts
        );
        assert!(small.seconds > large.seconds && large.seconds > base.seconds, "{small:?}");
        assert!(small.sampling_seconds > large.sampling_seconds);
        assert_eq!(small.lost + large.lost, 0);
        assert_eq!(small.intervals.iter().flatten().count() as u64 + 2, small.interrupts);
    }
    for pair in runs.windows(2) {
        let (finer, coarser) = (&pair[0][0], &pair[1][0]);
        assert!(finer.seconds > coarser.seconds);
        let ratio = finer.samples as f64 / coarser.samples as f64;
        assert!((1.9..2.1).contains(&ratio), "{ratio}");
        assert!(
            finer.by_page.len() >= coarser.by_page.len()
                && finer.pages >= finer.by_page.len() as u64
        );
        let median = |run: &SampledProgram| run.intervals[0][run.intervals[0].len() / 2];
        assert!(median(finer) < median(coarser));
        assert!(!finer.interval_peaks(0).is_empty(), "{:?}", finer.intervals);
        // In an excerpt of a sixth of the misses finer samples show more pages of the buffer.
        let seen = |run: &SampledProgram| run.buffer_pages_seen(run.samples as usize / 6);
        assert!(seen(finer) > seen(coarser), "{} {}", seen(finer), seen(coarser));
        assert!(finer.largest_buffer.is_some_and(|buffer| buffer.len() >= seen(finer) as u64));
    }
}

/// The PEBS paper's future work in short: without interrupts a record costs what it did, and what
/// does not fit between two visits of the draining thread is lost and counted.
#[test]
fn a_draining_thread_saves_the_interrupts_and_loses_what_does_not_fit() {
    let setup = SimSetup::new(&numa(), "npb-cg,accesses=500k,size=8MiB").unwrap();
    let run = |drain| sample_program(&setup, Some(pebs(64, 8)), drain).unwrap();
    let each = |us: u64| BufferDrain::Thread { period: Nanos(us * 1000) };
    let interrupted = run(BufferDrain::Interrupt);
    let (often, seldom) = (run(each(50)), run(each(2000)));
    assert!(interrupted.interrupts > 0 && interrupted.draining_seconds == 0.0);
    assert_eq!((often.interrupts, often.lost), (0, 0));
    assert!(often.seconds < interrupted.seconds, "{} {}", often.seconds, interrupted.seconds);
    assert!(seldom.lost > seldom.samples / 10, "{} of {}", seldom.lost, seldom.samples);
    assert!(often.draining_seconds > seldom.draining_seconds && seldom.draining_seconds > 0.0);
    assert!(often.buffer_pages_seen(usize::MAX) > seldom.buffer_pages_seen(usize::MAX));
}
