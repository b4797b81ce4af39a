//! `terrace probe`: the machine measured, as a machine file, as JSON, as text, and as the report's
//! input.

use serde::Serialize;
use serde_json::{json, Map, Value};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use terrace_machine::{
    rank, render_text, with_store, Evidence, FarStore, Link, Machine, MachineError, RankAttribute,
    RankError, TiersReport,
};
use terrace_probe::disk::{measure_disk, Disk, DiskRecord, DiskTask, Order, Way};
use terrace_probe::figures::{figures, ProbeFigures};
use terrace_probe::{
    plan, run, situation, Instrument, LiveMachine, Measurements, PageKind, Situation, Task,
};
pub use terrace_probe::{Depth, ProbeProgress};
use terrace_sys::{Root, SysError};
use terrace_topology::{load_machine, MachineSource, TopologyError};
use terrace_types::BytesPerSec;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The machine cannot be read.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// There is nothing that may be measured.
    #[error("nothing can be measured here: {0}")]
    Nothing(String),
    /// The disk cannot be measured.
    #[error(transparent)]
    Disk(#[from] SysError),
    /// The measured machine cannot be ranked.
    #[error(transparent)]
    Rank(#[from] RankError),
    /// The machine file that the disk is for cannot be used.
    #[error(transparent)]
    File(#[from] MachineError),
    /// Some of what a machine file has of a disk was not measured.
    #[error("{0}; the machine file is as it was; try again")]
    Partial(String),
}

/// A measured machine.
#[derive(Debug, Clone)]
pub struct Probed {
    /// What was measured.
    pub measured: Measurements,
    /// What it says of the machine.
    pub figures: ProbeFigures,
    /// How deep it went.
    pub depth: Depth,
}

/// Measures this machine until done or `stop` is set; `reported` hears of each measurement as it
/// begins.
///
/// # Errors
/// [`ProbeError`]; what fails in between is a note in the result.
pub fn probe(
    depth: Depth,
    stop: &AtomicBool,
    reported: &mut dyn FnMut(&ProbeProgress),
) -> Result<Probed, ProbeError> {
    let machine = load_machine(&MachineSource::Live)?;
    let situation = situation(machine, &Root::live());
    let mut live = LiveMachine::new(&situation, depth, stop);
    probe_with(&situation, depth, &mut live, reported)
}

/// Whether a disk of this name can be put into the machine file `text`, found out before it is
/// measured.
///
/// # Errors
/// [`ProbeError::File`].
pub fn check_machine_file(text: &str, name: &str, store: &str) -> Result<(), ProbeError> {
    let [usual, _] = FarStore::usual();
    with_store(text, name, &FarStore { name: store.to_owned(), ..usual })?;
    Ok(())
}

/// Measures the disk that `folder` lies on; `reported` hears of each measurement as it begins.
///
/// # Errors
/// [`ProbeError::Disk`].
pub fn probe_disk(
    folder: &Path,
    depth: Depth,
    stop: &AtomicBool,
    reported: &mut dyn FnMut(&ProbeProgress),
) -> Result<ProbedDisk, ProbeError> {
    let mut each = |done, all, task: &DiskTask| {
        reported(&ProbeProgress { what: name(task), done, all, left: None });
    };
    let disk = measure_disk(folder, depth, stop, &mut each)?;
    Ok(ProbedDisk { folder: folder.to_owned(), disk })
}

/// A measured disk and the folder by which it was reached.
#[derive(Debug, Clone)]
pub struct ProbedDisk {
    /// The folder.
    pub folder: PathBuf,
    /// The figures.
    pub disk: Disk,
}

fn name(task: &DiskTask) -> String {
    let order = if task.order == Order::Random { "random" } else { "sequential" };
    let way = if task.way == Way::Read { "read" } else { "write" };
    format!("{order} {way} of {}, {} at a time", task.size, task.depth)
}

impl ProbedDisk {
    /// What is to be known beside the figures.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!(
            "A file of {}; what the device keeps in a cache of its own counts as written.",
            self.disk.file
        )];
        if !self.disk.direct {
            notes.push(
                "The file system has no O_DIRECT: data went through the page cache, and \
                figures are memory's as much as the disk's."
                    .to_owned(),
            );
        }
        notes
    }

    /// The machine file `text` with this disk in it as the far store `store`, instead of one that
    /// is there by that name. `name` is the file's, for messages.
    ///
    /// # Errors
    /// [`ProbeError::File`], [`ProbeError::Partial`].
    pub fn machine_file(&self, text: &str, name: &str, store: &str) -> Result<String, ProbeError> {
        let why = || {
            self.disk
                .partial
                .clone()
                .unwrap_or_else(|| "not all of the disk was measured".to_owned())
        };
        let store = self.disk.store(store).ok_or_else(|| ProbeError::Partial(why()))?;
        Ok(with_store(text, name, &store)?)
    }

    /// As JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let record = |r: &DiskRecord| {
            let mut value = to_value(&r.task);
            if let Some(object) = value.as_object_mut() {
                let operations = r.bandwidth.value / r.task.size.get() as f64;
                let more = [
                    ("bandwidth_bytes_per_s", json!(r.bandwidth.value)),
                    ("bandwidth_bytes_per_s_spread", json!(r.bandwidth.spread)),
                    ("operations_per_s", json!(operations)),
                    ("latency_ns", json!(r.latency.value)),
                    ("latency_ns_spread", json!(r.latency.spread)),
                    ("runs", json!(r.bandwidth.runs)),
                    ("noisy", json!(r.bandwidth.noisy || r.latency.noisy)),
                ];
                object.extend(more.map(|(k, v)| (k.to_owned(), v)));
            }
            value
        };
        json!({
            "folder": self.folder.display().to_string(),
            "file_bytes": self.disk.file.get(),
            "direct": self.disk.direct,
            "partial": self.disk.partial,
            "notes": self.notes(),
            "disk": self.disk.records.iter().map(record).collect::<Vec<Value>>(),
        })
    }

    /// For a terminal; `*` marks noisy figures.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!("disk of {}\n", self.folder.display());
        for r in &self.disk.records {
            let mark = if r.bandwidth.noisy || r.latency.noisy { " *" } else { "" };
            let (rate, spread) = (r.bandwidth.value / 1e6, r.bandwidth.spread / 1e6);
            let (us, around) = (r.latency.value / 1e3, r.latency.spread / 1e3);
            let what = name(&r.task);
            let _ = writeln!(
                out,
                "  {what:<40} {rate:>9.1} +- {spread:<7.1} MB/s  {:>9.0} a second  {us:>9.1} +- \
                    {around:.1} us{mark}",
                r.bandwidth.value / r.task.size.get() as f64,
            );
        }
        for note in self.notes() {
            let _ = writeln!(out, "{note}");
        }
        out
    }
}

/// As [`probe`], with any instrument.
///
/// # Errors
/// [`ProbeError::Nothing`] where the plan is empty, and where neither a latency nor a bandwidth
/// came out of it.
pub fn probe_with(
    situation: &Situation,
    depth: Depth,
    instrument: &mut dyn Instrument,
    reported: &mut dyn FnMut(&ProbeProgress),
) -> Result<Probed, ProbeError> {
    let plan = plan(situation, depth);
    if !plan.steps.iter().any(|s| s.task.pair().1.is_some()) {
        let why = if plan.notes.is_empty() {
            "no CPU and no memory may be used".to_owned()
        } else {
            plan.notes.join(" ")
        };
        return Err(ProbeError::Nothing(why));
    }
    let measured = run(&plan, depth, instrument, reported);
    let figures = figures(&situation.machine, &measured);
    let came_out = |l: &Link| {
        [l.read_latency.map(|f| f.evidence), l.read_bandwidth.map(|f| f.evidence)]
            .contains(&Some(Evidence::Measured))
    };
    if measured.partial.is_none() && !figures.machine.links.iter().any(came_out) {
        // Where figures came out that are not memory's, what else there is to say of the run is no
        // reason.
        let reason = |n: &&String| figures.hidden.is_empty() || n.starts_with("Node ");
        let notes: Vec<String> =
            measured.notes.iter().filter(reason).chain(&figures.hidden).cloned().collect();
        return Err(ProbeError::Nothing(notes.join(" ")));
    }
    Ok(Probed { measured, figures, depth })
}

impl Probed {
    /// The machine as measured.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.figures.machine
    }

    /// The machine file.
    #[must_use]
    pub fn machine_file(&self) -> String {
        let state = match &self.measured.partial {
            Some(why) => format!("PARTIAL: {why}.\n"),
            None => String::new(),
        };
        let depth = match self.depth {
            Depth::Brief => " --brief",
            Depth::Quick => " --quick",
            Depth::Full => "",
        };
        let comment = format!(
            "{state}Measured by terrace probe{depth} in {:.0} s. Each figure is a median; spread \
                is half the distance between quartiles.",
            self.measured.took.as_secs_f64()
        );
        self.figures.machine.to_toml_with(&comment, &self.figures.spreads)
    }

    /// The contract's JSON: that of `tiers`, `_spread` beside each figure, and all measurements.
    ///
    /// # Errors
    /// The machine has no tiers.
    pub fn json(&self) -> Result<Value, ProbeError> {
        let machine = self.machine();
        let ranking = rank(machine, RankAttribute::Bandwidth, None)?;
        let report = TiersReport::new(machine, &ranking, "probe");
        let mut value = to_value(&report);
        let initiator = ranking.initiator;
        for (rank, tier) in ranking.tiers.iter().enumerate() {
            let spread = tier
                .nodes
                .first()
                .and_then(|n| self.figures.spreads.links.get(&(initiator, *n)))
                .copied()
                .unwrap_or_default();
            let Some(entry) = value["tiers"][rank].as_object_mut() else { continue };
            entry.insert("read_latency_ns_spread".into(), json!(spread.read_latency_ns));
            entry.insert("write_latency_ns_spread".into(), Value::Null);
            entry.insert(
                "read_bandwidth_bytes_per_s_spread".into(),
                json!(spread.read_bandwidth.map(BytesPerSec::get)),
            );
            entry.insert(
                "write_bandwidth_bytes_per_s_spread".into(),
                json!(spread.write_bandwidth.map(BytesPerSec::get)),
            );
        }
        let measurements: Vec<Value> = self.measured.records.iter().map(record).collect();
        let levels: Vec<Value> = self
            .figures
            .curves
            .iter()
            .map(|((initiator, target, pages), levels)| {
                let levels: Vec<Value> = levels
                    .iter()
                    .map(|l| json!({ "bytes": l.bytes.get(), "latency_ns": l.ns }))
                    .collect();
                json!({ "initiator": initiator, "target": target, "pages": pages,
                    "levels": levels })
            })
            .collect();
        let more = [
            ("partial", json!(self.measured.partial)),
            ("quick", json!(self.depth == Depth::Quick)),
            ("brief", json!(self.depth == Depth::Brief)),
            ("probe_seconds", json!(self.measured.took.as_secs_f64())),
            ("notes", json!(machine.notes)),
            ("levels", json!(levels)),
            ("measurements", json!(measurements)),
        ];
        if let Some(object) = value.as_object_mut() {
            object.extend(more.map(|(k, v)| (k.to_owned(), v)));
        }
        Ok(value)
    }

    /// For a terminal.
    ///
    /// # Errors
    /// The machine has no tiers.
    pub fn text(&self) -> Result<String, ProbeError> {
        let machine = self.machine();
        let ranking = rank(machine, RankAttribute::Bandwidth, None)?;
        let mut out = render_text(machine, &ranking, "probe");
        for ((initiator, target, pages), levels) in &self.figures.curves {
            let pages = if *pages == PageKind::Huge { "huge pages" } else { "base pages" };
            let _ = writeln!(out, "\nlatency of node {target} from node {initiator}, {pages}:");
            for (index, level) in levels.iter().enumerate() {
                let up_to = if index + 1 == levels.len() {
                    "beyond".to_owned()
                } else {
                    format!("to {}", level.bytes)
                };
                let _ = writeln!(out, "  {up_to:>12}  {:>8.2} ns", level.ns);
            }
        }
        out.push_str(&self.bandwidths());
        Ok(out)
    }

    /// Rows of the kernels with all threads; `*` marks noisy figures.
    fn bandwidths(&self) -> String {
        let mut out = String::new();
        let mut last = None;
        let mut records: Vec<_> = self.measured.records.iter().collect();
        records.sort_by_key(|r| match r.task {
            Task::Stream { initiator, target, kernel, threads, .. } => {
                Some((initiator, target, kernel, threads))
            }
            _ => None,
        });
        for record in records {
            let Task::Stream { initiator, target, kernel, threads, .. } = &record.task else {
                continue;
            };
            if last != Some((initiator, target)) {
                let _ = writeln!(out, "\nbandwidth of node {target} from node {initiator}:");
                last = Some((initiator, target));
            }
            let m = record.outcome.figure;
            let mark = if m.noisy { " *" } else { "" };
            let _ = writeln!(
                out,
                "  {:>6}  {threads:>3} threads  {:>8.2} +- {:.2} GB/s  {}{mark}",
                kernel.name(),
                m.value / 1e9,
                m.spread / 1e9,
                record.outcome.how
            );
        }
        out
    }
}

fn to_value<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

/// One measurement: what was asked, and each figure under a name with its unit, its spread beside
/// it.
fn record(record: &terrace_probe::TaskRecord) -> Value {
    let (first, second) = match record.task {
        Task::Chase { .. } | Task::Misses { .. } | Task::Shootdown { .. } => ("latency_ns", ""),
        Task::Stream { .. } | Task::Interleave { .. } => ("bandwidth_bytes_per_s", ""),
        Task::Loaded { .. } => ("latency_ns", "bandwidth_bytes_per_s"),
        Task::Move { .. } => ("bandwidth_bytes_per_s", "time_ns"),
    };
    let mut object: Map<String, Value> = Map::new();
    if let Value::Object(task) = to_value(&record.task) {
        // Amounts say their unit in their names.
        object.extend(
            task.into_iter()
                .map(|(k, v)| (if k == "bytes" { "size_bytes".to_owned() } else { k }, v)),
        );
    }
    let outcome = &record.outcome;
    let figures = [(first, Some(outcome.figure)), (second, outcome.second)];
    for (name, figure) in figures {
        if let Some(m) = figure.filter(|_| !name.is_empty()) {
            object.insert(name.to_owned(), json!(m.value));
            object.insert(format!("{name}_spread"), json!(m.spread));
        }
    }
    object.insert("runs".to_owned(), json!(outcome.figure.runs));
    object.insert("disturbed_runs".to_owned(), json!(outcome.figure.disturbed));
    object.insert(
        "noisy".to_owned(),
        json!(outcome.figure.noisy || outcome.second.is_some_and(|s| s.noisy)),
    );
    object.insert("how".to_owned(), json!(outcome.how));
    Value::Object(object)
}
