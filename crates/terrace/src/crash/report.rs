//! What a study found: JSON, text, and the figures of both.

use super::symbols::SourceLines;
use super::{CrashSpec, ReferenceRun};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use terrace_crash::outcome::phase_of;
use terrace_crash::{
    CrashPoint, CrashSchedule, CrashSet, DataObject, RegionFile, RestartOutcome, SuccessRate,
};

/// One crash and its restart.
#[derive(Debug, Clone, Serialize)]
pub struct CrashResult {
    /// Its number, in order of time.
    pub crash: usize,
    /// Where it happened and what it lost.
    #[serde(flatten)]
    pub point: CrashPoint,
    /// What became of the restart.
    #[serde(flatten)]
    pub outcome: RestartOutcome,
    /// The restart's last iteration, where it came to the region's end.
    pub iterations: Option<i64>,
    /// How long the restart took.
    pub seconds: f64,
}

/// One phase.
#[derive(Debug, Clone, Serialize)]
pub struct PhaseSummary {
    /// From 1.
    pub phase: u32,
    /// Successes.
    #[serde(flatten)]
    pub rate: SuccessRate,
    /// Their share, from 0 to 1.
    pub share: Option<f64>,
    /// Wilson's interval at 95%.
    pub interval: Option<(f64, f64)>,
    /// Mean of iterations beyond those of the reference run, of the successes.
    pub mean_more_iterations: Option<f64>,
    /// Mean inconsistent rate of each object, from 0 to 1, in the order of the objects.
    pub inconsistent_rates: Vec<f64>,
    /// The same of all memory.
    pub inconsistent_rate_of_all: f64,
}

/// Restarts by call path.
#[derive(Debug, Clone, Serialize)]
pub struct PathSummary {
    /// The innermost call first.
    pub call_path: Vec<String>,
    /// Successes.
    #[serde(flatten)]
    pub rate: SuccessRate,
}

/// Call paths that are reported at most.
const MAX_PATHS: usize = 20;
/// Those shown on a terminal.
const SHOWN_PATHS: usize = 5;

/// All that a study found.
#[derive(Debug, Clone, Serialize)]
pub struct CrashReport {
    /// What this is, for readers of its JSON.
    pub kind: &'static str,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The seed of the crash points, where they come from one.
    pub seed: Option<u64>,
    /// The objects that it names.
    pub objects: Vec<DataObject>,
    /// Threads that loaded or stored up to the region's end.
    pub threads: usize,
    /// Instructions of the region.
    pub instructions: u64,
    /// Loads of the region.
    pub loads: u64,
    /// Stores of the region.
    pub stores: u64,
    /// Lines written to memory within the region.
    pub lines_written: u64,
    /// Iterations of the run without a crash.
    pub reference_iterations: i64,
    /// How long that run took.
    pub reference_seconds: f64,
    /// How long the recorded run took.
    pub recording_seconds: f64,
    /// How long the caches took.
    pub caches_seconds: f64,
    /// How long all restarts took.
    pub restarts_seconds: f64,
    /// Bytes of an image.
    pub image_bytes: u64,
    /// Bytes that all images together take, as differences.
    pub difference_bytes: u64,
    /// Crashes of the schedule.
    pub crashes: usize,
    /// Of all restarts.
    pub total: SuccessRate,
    /// Whether the phases are those that the program marks; else they are equal parts of its
    /// iterations, or of its instructions where it has fewer iterations.
    pub marked_phases: bool,
    /// By phase.
    pub phases: Vec<PhaseSummary>,
    /// By outcome.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// One by one, in order of time.
    pub results: Vec<CrashResult>,
    /// Those that fail most, first.
    pub call_paths: Vec<PathSummary>,
    /// Why the restarts end before the last crash, where they do.
    pub ended_early: Option<String>,
    /// What is to be known of these results, one sentence each.
    pub notes: Vec<String>,
}

impl CrashReport {
    /// Without results yet.
    pub(super) fn new(
        spec: &CrashSpec,
        region: &RegionFile,
        set: &CrashSet,
        reference: &ReferenceRun,
    ) -> Self {
        let phases = if set.marked_phases > 0 { set.marked_phases } else { spec.phases.max(1) };
        let summary = |phase| PhaseSummary {
            phase,
            rate: SuccessRate::default(),
            share: None,
            interval: None,
            mean_more_iterations: None,
            inconsistent_rates: vec![0.0; region.objects.len()],
            inconsistent_rate_of_all: 0.0,
        };
        Self {
            kind: "crash_study",
            command: spec.argv.iter().map(|a| a.to_string_lossy().into_owned()).collect(),
            seed: match spec.schedule {
                CrashSchedule::Uniform { seed, .. } => Some(seed),
                _ => None,
            },
            objects: region.objects.clone(),
            threads: set.threads,
            instructions: set.instructions,
            loads: set.loads,
            stores: set.stores,
            lines_written: set.lines_written,
            reference_iterations: reference.iterations.unwrap_or(set.iterations),
            reference_seconds: reference.wall.as_secs_f64(),
            recording_seconds: 0.0,
            caches_seconds: 0.0,
            restarts_seconds: 0.0,
            image_bytes: set.images.image_bytes(),
            difference_bytes: set.images.difference_bytes(),
            crashes: set.points.len(),
            total: SuccessRate::default(),
            marked_phases: set.marked_phases > 0,
            phases: (1..=phases).map(summary).collect(),
            outcomes: BTreeMap::new(),
            results: Vec::new(),
            call_paths: Vec::new(),
            ended_early: None,
            notes: Vec::new(),
        }
    }

    /// Sums the results up.
    pub(super) fn finish(&mut self, lines: &SourceLines) {
        self.results.sort_by_key(|r| r.crash);
        self.sum_call_paths(lines);
        let phases = self.phases.len() as u32;
        let mut more = vec![0u64; self.phases.len()];
        for result in &self.results {
            self.total.add(result.outcome);
            *self.outcomes.entry(result.outcome.name()).or_default() += 1;
            let (now, all) = if self.marked_phases {
                // What comes before the first mark belongs to the first phase.
                (result.point.marked_phase.map_or(1, i64::from), i64::from(phases))
            } else if self.reference_iterations < i64::from(phases) {
                // Fewer iterations than phases are divided by time.
                (result.point.instruction as i64, self.instructions as i64)
            } else {
                (result.point.iterations_done + 1, self.reference_iterations)
            };
            let at = phase_of(now, all, phases) as usize;
            let phase = &mut self.phases[at];
            phase.rate.add(result.outcome);
            if let RestartOutcome::Recomputed { more_iterations } = result.outcome {
                more[at] += u64::from(more_iterations);
            }
            let rates = phase.inconsistent_rates.iter_mut().zip(&self.objects);
            for ((rate, object), bytes) in rates.zip(&result.point.inconsistent_bytes) {
                *rate += *bytes as f64 / object.bytes.max(1) as f64;
            }
            phase.inconsistent_rate_of_all += result.point.inconsistent_bytes_of_all as f64
                / result.point.footprint_bytes.max(1) as f64;
        }
        for (phase, more) in self.phases.iter_mut().zip(more) {
            let count = phase.rate.restarts.max(1) as f64;
            phase.inconsistent_rates.iter_mut().for_each(|rate| *rate /= count);
            phase.inconsistent_rate_of_all /= count;
            (phase.share, phase.interval) = (phase.rate.share(), phase.rate.interval());
            let successes = phase.rate.successes;
            phase.mean_more_iterations = (successes > 0).then(|| more as f64 / successes as f64);
        }
    }

    fn sum_call_paths(&mut self, lines: &SourceLines) {
        let all = self.results.iter().flat_map(|r| r.point.call_path.iter().copied());
        let names = lines.name(&all.collect::<Vec<u64>>());
        let mut by_path: BTreeMap<Vec<String>, SuccessRate> = BTreeMap::new();
        for result in &self.results {
            let name = |pc: &u64| names.get(pc).cloned().unwrap_or_else(|| format!("{pc:#x}"));
            let path = result.point.call_path.iter().map(name).collect();
            by_path.entry(path).or_default().add(result.outcome);
        }
        let summary = |(call_path, rate)| PathSummary { call_path, rate };
        self.call_paths = by_path.into_iter().map(summary).collect();
        let failures = |p: &PathSummary| p.rate.restarts - p.rate.successes;
        self.call_paths.sort_by_key(|p| std::cmp::Reverse((failures(p), p.rate.restarts)));
        self.call_paths.truncate(MAX_PATHS);
    }

    /// For a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let share = |rate: SuccessRate| rate.share().map_or("-".into(), percent);
        writeln!(
            out,
            "{}: {} of {} restarts recompute ({}), {} crashes in {} instructions",
            self.command.join(" "),
            self.total.successes,
            self.total.restarts,
            share(self.total),
            self.crashes,
            self.instructions
        )?;
        writeln!(
            out,
            "reference {:.2} s, recording {:.2} s, caches {:.2} s, restarts {:.2} s; images of {} \
                bytes as {} bytes of differences\n",
            self.reference_seconds,
            self.recording_seconds,
            self.caches_seconds,
            self.restarts_seconds,
            self.image_bytes,
            self.difference_bytes
        )?;
        writeln!(out, "phase  restarts  success  95% interval    more iterations  success rate")?;
        for phase in &self.phases {
            let interval = phase
                .interval
                .map_or("-".into(), |(low, high)| format!("{} - {}", percent(low), percent(high)));
            let more = phase.mean_more_iterations.map_or("-".into(), |m| format!("{m:.2}"));
            let bar = "#".repeat((phase.share.unwrap_or(0.0) * 40.0).round() as usize);
            writeln!(
                out,
                "{:>5}  {:>8}  {:>7}  {interval:<15} {more:>15}  |{bar:<40}|",
                phase.phase,
                phase.rate.restarts,
                share(phase.rate)
            )?;
        }
        writeln!(out, "\noutcomes:")?;
        for (name, count) in &self.outcomes {
            writeln!(out, "  {count:>7}  {name}")?;
        }
        writeln!(out, "\ninconsistent rate, mean by phase:")?;
        for (i, object) in self.objects.iter().enumerate() {
            let rates =
                self.phases.iter().map(|p| format!("{:>7}", percent(p.inconsistent_rates[i])));
            let rates: Vec<String> = rates.collect();
            writeln!(out, "  {:<12} {:>12} bytes {}", object.name, object.bytes, rates.join(""))?;
        }
        let all: Vec<String> = self
            .phases
            .iter()
            .map(|p| format!("{:>7}", percent(p.inconsistent_rate_of_all)))
            .collect();
        writeln!(out, "  {:<12} {:>18} {}", "all memory", "", all.join(""))?;
        let failing = |p: &&PathSummary| p.rate.successes < p.rate.restarts;
        let mut failing = self.call_paths.iter().filter(failing).take(SHOWN_PATHS).peekable();
        if failing.peek().is_some() {
            writeln!(out, "\ncall paths that fail most:")?;
        }
        for path in failing {
            let failures = path.rate.restarts - path.rate.successes;
            let calls = path.call_path.join(" < ");
            writeln!(out, "  {failures:>5} of {:<5} {calls}", path.rate.restarts)?;
        }
        Ok(())
    }
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}
