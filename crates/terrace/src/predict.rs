//! `terrace sim`: what another machine or another policy would give.

use crate::tracker_id::TrackerId;
use serde::Serialize;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;
use terrace_machine::Machine;
use terrace_policy::place::CustomPolicy;
use terrace_sim::{
    all, simulate, simulate_custom, Recording, RunOptions, SimError, SimInput, SimRun, SimSetup,
};
pub use terrace_sim::{PebsSettings, TrackerKind};
use terrace_sys::{Allowance, Root};
use terrace_types::text::{clip, clip_left, fold, TextTable};
use terrace_types::{Bytes, Contender, PolicyId, Seed, UnknownPolicyError};

/// What to predict.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The machine.
    pub machine: Machine,
    /// What to run under, in the order of the table.
    pub policies: Vec<Contender>,
    /// A recording's file, or `workload:NAME[,key=value...]`.
    pub input: String,
    /// Sizes of the best tier's memory to try; empty: as it is.
    pub sweep: Vec<FastSize>,
    /// Seed.
    pub seed: Seed,
    /// How accesses are seen.
    pub tracker: TrackerKind,
    /// Keep journals, for [`Prediction::reports`].
    pub journals: bool,
    /// The caller's policy; it runs for each [`Contender::Custom`] of `policies`.
    pub custom: Option<CustomPolicy>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PredictError {
    /// Asked for wrongly.
    #[error("{0}")]
    Usage(String),
    /// It cannot be done, or went wrong.
    #[error(transparent)]
    Sim(#[from] SimError),
}

/// A policy counts as faster than first touch where it takes less than this part of its time.
const NOT_FASTER: f64 = 0.995;

/// Version of the answer's JSON.
const VERSION: u32 = 1;

/// The answer; as JSON it is the contract's `sim`.
#[derive(Debug, Clone, Serialize)]
pub struct Prediction {
    /// Version of this form: 1.
    pub version: u32,
    /// Name of the machine.
    pub machine: String,
    /// What ran.
    pub input: String,
    /// Accesses of the phase that counts, as the workload counts them.
    pub accesses: Option<u64>,
    /// What the command took.
    pub wall_seconds: f64,
    /// What a reader of the figures must know: what of a recording is missing, and whether memory
    /// is scarce at all.
    pub notes: Vec<String>,
    /// One entry a policy, in the order asked; with a sweep, one a policy and size, sizes in the
    /// order asked.
    pub runs: Vec<PredictedRun>,
}

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct PredictedRun {
    /// The run.
    #[serde(flatten)]
    pub run: SimRun,
    /// Memory of the best tier that programs could have, where it was swept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast_bytes: Option<u64>,
}

/// How much of the best tier's memory programs may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FastSize {
    /// So many percent of what the machine has, 1 to 100.
    Percent(u32),
    /// So much, at most what it has.
    Bytes(Bytes),
}

impl FastSize {
    fn parse(text: &str) -> Option<Self> {
        match text.trim().strip_suffix('%') {
            Some(n) => n.parse().ok().filter(|n| (1..=100).contains(n)).map(Self::Percent),
            None => {
                terrace_machine::parse_bytes(text.trim()).filter(|b| b.get() > 0).map(Self::Bytes)
            }
        }
    }

    /// From this to that: percents in steps of ten, sizes doubling; the last one is always there.
    fn up_to(self, to: Self) -> Option<Vec<Self>> {
        let mut all: Vec<Self> = match (self, to) {
            (Self::Percent(from), Self::Percent(to)) if from <= to => {
                (from..=to).step_by(10).map(Self::Percent).collect()
            }
            (Self::Bytes(from), Self::Bytes(to)) if from <= to => {
                let doubled = |b: &u64| b.checked_mul(2).filter(|b| *b <= to.get());
                std::iter::successors(Some(from.get()), doubled)
                    .map(|b| Self::Bytes(Bytes(b)))
                    .collect()
            }
            _ => return None,
        };
        if all.last() != Some(&to) {
            all.push(to);
        }
        Some(all)
    }
}

/// Reads `fast=10%..100%` (in steps of ten), `fast=1MiB..64MiB` (doubling), or a list such as
/// `fast=25%,50%`.
///
/// # Errors
/// What would be understood.
pub fn parse_sweep(text: &str) -> Result<Vec<FastSize>, PredictError> {
    let bad = || {
        PredictError::Usage(format!(
            "--sweep {text}: give fast=10%..100%, fast=1MiB..64MiB (doubling) or a list, \
                fast=25%,50%,100%"
        ))
    };
    let list = text.strip_prefix("fast=").ok_or_else(bad)?;
    let size = |t: &str| FastSize::parse(t).ok_or_else(bad);
    match list.split_once("..") {
        Some((from, to)) => size(from)?.up_to(size(to)?).ok_or_else(bad),
        None => list.split(',').map(size).collect(),
    }
}

/// Runs over one recording at the same time at most: each holds the program's page tables.
const MAX_AT_ONCE: usize = 16;

/// Reads `page-table`, `pebs` or `damon`; behind `pebs` may follow `loads=N` and `stores=N`, the
/// accesses between two samples, and `buffer=SIZE`, a core's buffer.
///
/// # Errors
/// What would be understood.
pub fn parse_tracker(text: &str) -> Result<TrackerKind, PredictError> {
    let mut parts = text.split(',');
    let name = parts.next().unwrap_or("");
    let unknown = || {
        let known = TrackerId::names(|id| id.simulated().is_some());
        PredictError::Usage(format!("--tracker {text}: give one of {known}"))
    };
    let mut tracker =
        TrackerId::from_name(name).and_then(TrackerId::simulated).ok_or_else(unknown)?;
    for part in parts {
        let TrackerKind::Pebs(settings) = &mut tracker else {
            let what = "only pebs has settings: loads, stores, buffer";
            return Err(PredictError::Usage(format!("--tracker {text}: {what}")));
        };
        if !set_pebs(settings, part) {
            let what = "loads and stores take a number from 1, buffer 8KiB to 64KiB";
            return Err(PredictError::Usage(format!("--tracker {text}: {part}: {what}")));
        }
    }
    Ok(tracker)
}

/// Buffers that Knights Landing's driver of the PEBS paper was measured with.
const PEBS_BUFFERS: std::ops::RangeInclusive<u64> = 8 << 10..=64 << 10;

/// Sets what `key=value` says; whether it says anything.
fn set_pebs(settings: &mut PebsSettings, part: &str) -> bool {
    let number = |value: &str| value.parse::<u64>().ok().filter(|n| *n > 0);
    match part.split_once('=') {
        Some(("loads", value)) => match number(value) {
            Some(loads) => settings.loads = Some(loads),
            None => return false,
        },
        Some(("stores", value)) => match number(value) {
            Some(stores) => settings.stores = stores,
            None => return false,
        },
        Some(("buffer", value)) => match terrace_machine::parse_bytes(value) {
            Some(buffer) if PEBS_BUFFERS.contains(&buffer.get()) => settings.buffer = buffer,
            _ => return false,
        },
        _ => return false,
    }
    true
}

/// Reads the names that `--policy` takes.
///
/// # Errors
/// The first that is unknown, with those that are known.
pub fn parse_contenders(names: &[String]) -> Result<Vec<Contender>, UnknownPolicyError> {
    names.iter().map(|name| name.parse()).collect()
}

/// Simulates; policies and sizes on all cores of the host.
///
/// # Errors
/// [`PredictError`].
pub fn predict(question: &Question) -> Result<Prediction, PredictError> {
    let started = Instant::now();
    let whole = match question.input.strip_prefix("workload:") {
        Some(workload) => SimSetup::new(&question.machine, workload)?,
        None => SimSetup::from_machine(&question.machine, recording(&question.input)?)?,
    };
    let mut tasks: Vec<(SimSetup, Contender, Option<u64>)> = Vec::new();
    if question.sweep.is_empty() {
        tasks.extend(question.policies.iter().map(|p| (whole.clone(), p.clone(), None)));
    }
    for size in &question.sweep {
        let plan = with_fast(&whole, *size)?;
        let bytes = plan.tiers.first().into_iter().flatten().map(|n| plan.usable(*n)).sum();
        tasks.extend(question.policies.iter().map(|p| (plan.clone(), p.clone(), Some(bytes))));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let host = Some(Allowance::current(&Root::live()).memory).filter(|bytes| *bytes > Bytes::ZERO);
    // As many at a time as the host has memory for.
    let space = host.and_then(|host| host.get().checked_div(whole.host_bytes().get()));
    let space = space.map_or(usize::MAX, |n| n as usize);
    // All at once over a recording, so that each of its blocks is decoded once; the host's
    // scheduler deals out the cores.
    let workers = match whole.input {
        SimInput::Recording { .. } => tasks.len().clamp(cores, MAX_AT_ONCE.max(cores)),
        SimInput::Workload(_) => cores.min(space.max(1)),
    };
    tasks.iter_mut().for_each(|(plan, ..)| plan.host_memory = host);
    let options = RunOptions {
        seed: question.seed,
        tracker: question.tracker,
        journal: question.journals,
        ..RunOptions::default()
    };
    // The caller's policy has a state of its own: its runs follow each other.
    let workers = if question.custom.is_some() { 1 } else { workers };
    let runs = all(&tasks, workers, |(plan, policy, _)| match (policy, &question.custom) {
        (Contender::Custom(name), Some(custom)) => {
            simulate_custom(plan, name, custom.clone(), options)
        }
        _ => simulate(plan, policy, options),
    })?;
    let fast = |plan: &SimSetup| -> u64 {
        plan.tiers.first().into_iter().flatten().map(|n| plan.usable(*n)).sum()
    };
    let fast: Vec<u64> = tasks.iter().map(|(plan, ..)| fast(plan)).collect();
    let notes = notes(&whole.input, &runs, &fast, !question.sweep.is_empty());
    Ok(Prediction {
        version: VERSION,
        notes,
        machine: question.machine.name.clone(),
        input: whole.input.to_string(),
        accesses: runs.first().map(|r| r.accesses),
        wall_seconds: started.elapsed().as_secs_f64(),
        runs: runs
            .into_iter()
            .zip(tasks)
            .map(|(run, task)| PredictedRun { run, fast_bytes: task.2 })
            .collect(),
    })
}

/// What is to be known before the figures; `fast`: bytes of the best tier that programs could have
/// in each run.
fn notes(input: &SimInput, runs: &[SimRun], fast: &[u64], swept: bool) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for note in runs.iter().flat_map(|run| &run.notes) {
        let note = format!("{input}: {note}");
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    let touched = runs.iter().map(|run| run.touched_bytes).max().unwrap_or(0);
    let least = fast.iter().copied().min().unwrap_or(0);
    if touched > 0 && runs.iter().all(|r| r.far.is_none()) && touched <= least {
        let size = if swept { "even the least size swept" } else { "the fast tier" };
        notes.push(format!(
            "everything fits: {} touched, and {size} has {} for programs, so that no policy can \
             gain; try --sweep {}",
            Bytes(touched),
            Bytes(least),
            scarce(touched)
        ));
    }
    notes
}

/// Sizes of the best tier, doubling, from an eighth of what is touched up to where all of it fits.
fn scarce(touched: u64) -> String {
    // Below a pager's or a watermark's worth of memory nothing can be compared.
    let most = touched.next_power_of_two().max(1 << 20);
    let size = |bytes: u64| match bytes >> 20 {
        0 => format!("{}KiB", bytes >> 10),
        mib => format!("{mib}MiB"),
    };
    format!("fast={}..{}", size(most / 8), size(most))
}

/// The same program on a machine whose best tier has only so much of its memory for programs; of
/// several nodes each gives its part.
fn with_fast(whole: &SimSetup, size: FastSize) -> Result<SimSetup, PredictError> {
    let mut machine = whole.machine.clone();
    let best: Vec<usize> = whole.tiers.first().into_iter().flatten().copied().collect();
    let usable = |node: &terrace_machine::Node| node.capacity.saturating_sub(node.reserved).get();
    let all: u64 = best.iter().map(|n| usable(&machine.nodes[*n])).sum();
    if let FastSize::Bytes(asked) = size {
        if asked.get() > all {
            let has = Bytes(all);
            return Err(PredictError::Usage(format!(
                "--sweep: the fast tier of {} has {has} for programs, less than {asked}; give less",
                machine.name
            )));
        }
    }
    let mut spare = whole.spare_pages.clone();
    for index in best {
        let node = &mut machine.nodes[index];
        let (part, of) = match size {
            FastSize::Percent(percent) => (u64::from(percent), 100),
            FastSize::Bytes(asked) => (asked.get(), all.max(1)),
        };
        let had = usable(node);
        let left = (u128::from(had) * u128::from(part) / u128::from(of)) as u64;
        node.reserved = Bytes(node.capacity.get() - left);
        spare[index] += (had - left) / machine.page_size.get();
    }
    let mut plan = SimSetup::from_machine(&machine, whole.input.clone())?;
    plan.spare_pages = spare;
    Ok(plan)
}

/// A recording in a file, which each run opens anew.
pub(crate) fn recording(path: &str) -> Result<SimInput, PredictError> {
    let bad = |why: String| {
        PredictError::Usage(format!("input {path}: {why}; give a recording or workload:NAME"))
    };
    let file = std::path::PathBuf::from(path);
    let open = move || {
        let file = std::fs::File::open(&file)?;
        Ok(Box::new(std::io::BufReader::new(file))
            as Box<dyn terrace_sim::recording::RecordingSource>)
    };
    let recording = Recording::new(Arc::new(open)).map_err(|e| bad(e.to_string()))?;
    Ok(SimInput::Recording { name: path.to_owned(), recording })
}

impl Prediction {
    /// The report of each run that kept a journal, as a page of HTML, as of a live run: its policy,
    /// with the size of the fast tier where that was swept, and the page.
    ///
    /// # Errors
    /// A journal that cannot be read back, which is a fault of the simulator's.
    pub fn reports(&self) -> Result<Vec<(String, String)>, terrace_report::ReportError> {
        let page = |(name, journal): (String, &str)| {
            Ok((name, terrace_report::read(journal.as_bytes())?.to_html()))
        };
        self.journals().map(page).collect()
    }

    /// The journal of each run that kept one, as `terrace run` writes it, with the same names as
    /// [`Self::reports`].
    pub fn journals(&self) -> impl Iterator<Item = (String, &str)> {
        self.runs.iter().filter_map(|entry| {
            let size = entry.fast_bytes.map(|b| format!("-{}M", b >> 20)).unwrap_or_default();
            Some((format!("{}{size}", entry.run.policy), entry.run.journal.as_deref()?))
        })
    }

    /// The answer as a table for people, on a terminal of so many columns.
    #[must_use]
    pub fn text(&self, columns: usize) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        for note in &self.notes {
            let printable: String =
                note.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
            let _ = writeln!(out, "{}", fold(&format!("note: {printable}"), columns));
        }
        let machine = clip(&self.machine, columns / 4);
        let width = columns.saturating_sub(machine.chars().count() + " on , simulated".len());
        // A path tells more at its end, a workload at its beginning.
        let cut = if self.input.starts_with("workload:") { clip } else { clip_left };
        let _ = writeln!(out, "{} on {machine}, simulated", cut(&self.input, width));
        let swept = self.runs.iter().any(|e| e.fast_bytes.is_some());
        let size = |e: &PredictedRun| {
            e.fast_bytes.map(|b| format!("{:>6}M ", b >> 20)).unwrap_or_default()
        };
        let heads = ["policy", "seconds", "ratio", "fast", "promoted", "demoted", "overhead"];
        let mut table = if swept {
            TextTable::new(2, &[&["   fast"], &heads[..]].concat())
        } else {
            TextTable::new(1, &heads)
        };
        let base = |e: &PredictedRun| {
            let alike =
                |b: &&PredictedRun| b.run.policy.is_first_touch() && b.fast_bytes == e.fast_bytes;
            self.runs
                .iter()
                .find(alike)
                .or(self.runs.first())
                .map_or(1.0, |b| b.run.seconds.max(1e-12))
        };
        for e in &self.runs {
            let r = &e.run;
            let number = |n: Option<u64>| n.map_or("-".to_owned(), |n| n.to_string());
            let figures = [
                r.policy.to_string(),
                format!("{:.4}", r.seconds),
                format!("{:.3}", r.seconds / base(e)),
                r.fast_access_share.map_or("-".to_owned(), |s| format!("{:.1}%", s * 100.0)),
                number(r.promoted_pages),
                number(r.demoted_pages),
                r.overhead_seconds.map_or("-".to_owned(), |s| format!("{s:.3} s")),
            ];
            let size = swept.then(|| size(e).trim_end().to_owned());
            table.row(size.into_iter().chain(figures));
        }
        out.push_str(&table.text(columns));
        let ratios: Vec<f64> = self
            .runs
            .iter()
            .filter(|e| match &e.run.policy {
                Contender::Policy(id) => *id != PolicyId::FirstTouch,
                Contender::Custom(_) => true,
                Contender::Baseline(_) | Contender::FarStore(_) => false,
            })
            .map(|e| e.run.seconds / base(e))
            .collect();
        let compared = self.runs.iter().any(|e| e.run.policy.is_first_touch());
        if compared && !ratios.is_empty() && ratios.iter().all(|r| *r > NOT_FASTER) {
            let _ = writeln!(out, "No policy is faster than first touch here.");
        }
        let mut paragraph = |text: &str| {
            let _ = writeln!(out, "{}", fold(text, columns));
        };
        for e in self.runs.iter().filter(|e| !e.run.energy.is_empty()) {
            paragraph(&format!("energy, {}{}: {}", size(e), e.run.policy, energy(&e.run)));
        }
        for e in self.runs.iter() {
            if let Some(far) = &e.run.far {
                paragraph(&format!("{}{}: {}", size(e), e.run.policy, paging(far)));
            }
        }
        paragraph(
            "seconds: modelled time of the measured phase; ratio to first touch; fast: share of \
             last-level misses served by the fast tier.",
        );
        if self.runs.iter().any(|e| e.run.far.is_some()) {
            paragraph(
                "far: promoted and demoted are pages read from the store and written to it, \
                 overhead the pager's CPU; from the program's start on.",
            );
        }
        out
    }
}

/// What a pager did, in one line.
fn paging(far: &terrace_sim::FarCount) -> String {
    let (read, written) = (Bytes(far.read_bytes), Bytes(far.written_bytes));
    format!("{} faults, {} waited; {read} in, {written} out", far.faults, far.misses)
}

/// What is known of a run's energy, in one line.
fn energy(run: &SimRun) -> String {
    let joules = |j: Option<f64>| j.map_or("-".to_owned(), |j| format!("{j:.3}"));
    let node = |e: &terrace_sim::NodeEnergy| {
        format!(
            "node {} {}+{}+{}",
            e.node,
            joules(e.read_joules),
            joules(e.write_joules),
            joules(e.static_joules)
        )
    };
    let nodes: Vec<String> = run.energy.iter().map(node).collect();
    let total = run.energy_joules.map_or("not all known".to_owned(), |j| format!("{j:.3} J"));
    format!("{total}; J read+written+rest: {}", nodes.join(", "))
}

#[cfg(test)]
mod tests;
