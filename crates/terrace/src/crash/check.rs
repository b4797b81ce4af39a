//! `crash check`: all images that hardware may leave, each judged; and flushes and fences that are
//! missing or idle.

use super::mapped::PersistentFile;
use super::recorded::RecordedRun;
use super::reference::ReferenceRun;
use super::restart::{restart_all, RestartJob};
use super::symbols::SourceLines;
use super::workspace::Workspace;
use super::{CrashError, CrashProgress, CrashSpec, CrashStep, UNCONFINED};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use terrace_crash::persist::{
    collect_operations, enumerate_images, find_mapping, find_misuse, ChangedBytes, FlushMisuse,
    ObservedSpan, PersistentOperation, ReorderEngine,
};
use terrace_crash::{ImageLayout, RegionFile, RestartOutcome};

/// Operations of a region that are looked at one by one at most: some hundred megabytes.
const MAX_OPERATIONS: usize = 1 << 21;

/// How to check, besides a [`CrashSpec`].
#[derive(Debug, Clone)]
pub struct CheckSpec {
    /// Orders of stores to try.
    pub engine: ReorderEngine,
    /// Images at most.
    pub bound: usize,
    /// Seed of the sample where there are more.
    pub seed: u64,
    /// A file of the current folder that the program maps: its content is what is persistent, from
    /// where it is mapped on. Without one, it is the objects that `terrace_crash.h` names.
    pub mapped: Option<PathBuf>,
}

/// A misuse with its place in the source.
#[derive(Debug, Clone, Serialize)]
pub struct LocatedMisuse {
    /// EventKind.
    #[serde(flatten)]
    pub misuse: FlushMisuse,
    /// In words.
    pub what: &'static str,
    /// Whether data may be lost; else time is.
    pub loses_data: bool,
    /// Function, file and line, as far as known.
    pub place: String,
    /// The object, and the byte within it.
    pub object: Option<String>,
}

/// An image that the checker refuses.
#[derive(Debug, Clone, Serialize)]
pub struct BadImage {
    /// Its number.
    pub image: usize,
    /// What the checker did.
    #[serde(flatten)]
    pub outcome: RestartOutcome,
    /// It may be left just before this operation of the region.
    pub operation: usize,
    /// Where that operation is in the source.
    pub place: String,
}

/// What a check found.
#[derive(Debug, Clone, Serialize)]
pub struct CheckReport {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Stores, flushes and fences on persistent memory.
    pub operations: usize,
    /// Different images that were judged.
    pub images: usize,
    /// Orders of stores that were tried.
    pub sequences: u64,
    /// Orders that there are.
    pub possible_sequences: f64,
    /// Their quotient.
    pub coverage: f64,
    /// Images judged so far; fewer than there are where the check was stopped.
    pub judged: usize,
    /// Images that were refused.
    pub bad_images: Vec<BadImage>,
    /// Flushes and fences.
    pub misuses: Vec<LocatedMisuse>,
    /// What is to be known of these results, one sentence each.
    pub notes: Vec<String>,
}

impl CheckReport {
    /// Whether data may be lost.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.bad_images.is_empty() && self.misuses.iter().all(|m| !m.loses_data)
    }

    /// For a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let possible = self.possible_sequences;
        let possible =
            if possible < 1e6 { format!("{possible:.0}") } else { format!("{possible:.3e}") };
        writeln!(
            out,
            "{}: {} operations on persistent memory leave {} images ({} of {possible} orders \
                tried)",
            self.command.join(" "),
            self.operations,
            self.images,
            self.sequences,
        )?;
        writeln!(
            out,
            "images refused by the checker: {} of {}",
            self.bad_images.len(),
            self.judged
        )?;
        for bad in self.bad_images.iter().take(MAX_SHOWN) {
            let what = bad.outcome.name();
            writeln!(out, "  image {:>5}: {what}, before {}", bad.image, bad.place)?;
        }
        if self.bad_images.len() > MAX_SHOWN {
            writeln!(out, "  and {} more", self.bad_images.len() - MAX_SHOWN)?;
        }
        writeln!(out, "flushes and fences: {} findings", self.misuses.len())?;
        for found in &self.misuses {
            let object = found.object.as_ref().map_or(String::new(), |o| format!(", {o}"));
            writeln!(
                out,
                "  {}: {} ({} times{object})",
                found.place, found.what, found.misuse.count
            )?;
        }
        Ok(())
    }
}

/// Lines of refused images on a terminal.
const MAX_SHOWN: usize = 10;

/// Checks a program. Each image is judged by a restart of the program, or of another command.
///
/// # Errors
/// [`CrashError`].
pub fn check(
    spec: &CrashSpec,
    how: &CheckSpec,
    checker: Option<&[std::ffi::OsString]>,
    stop: &AtomicBool,
    progress: &mut CrashProgress<'_>,
) -> Result<CheckReport, CrashError> {
    let workspace = Workspace::create(&spec.work)?;
    progress(CrashStep::Reference, 0.0);
    let own = how.mapped.as_deref().map(PersistentFile::read).transpose()?;
    let mut reference = ReferenceRun::make(spec, &workspace, own, stop)?;
    progress(CrashStep::Recording, 0.0);
    let recorded = RecordedRun::make(&reference, &workspace)?;
    let mut reader = recorded.open()?;
    let (region, span) = match &reference.own {
        None => (recorded.region()?, ObservedSpan::Region),
        Some(file) => {
            let mapped = find_mapping(&mut reader, &recorded.folder.join(file.name()))?;
            (file.as_region(&recorded.folder, &mapped)?, ObservedSpan::Mapping(mapped))
        }
    };
    let operations = collect_operations(&mut reader, &region, &span, MAX_OPERATIONS)?;
    let lines = SourceLines::read(&mut reader)?;
    drop(reader);
    progress(CrashStep::Caches, 0.0);
    let layout = ImageLayout::new(&region.objects);
    let changed = ChangedBytes::new(&operations, &layout);
    let initial = changed.pick(&region.content);
    let set = enumerate_images(
        &operations,
        (changed.layout(), &initial),
        how.engine,
        how.bound,
        how.seed,
    );
    if let Some(checker) = checker {
        reference.argv = super::reference::absolute(checker);
    }
    let is_file = reference.own.is_some();
    let mut notes = recorded.notes;
    let mut confined = true;
    let mut bad = Vec::new();
    let mut judged = 0;
    let mut images = set.images.iter().enumerate();
    let mut jobs = || {
        let (crash, (_, image)) = images.next()?;
        let content = changed.put_back(image, &region.content);
        let image = if is_file { content } else { region.image(&content) };
        Some(RestartJob { crash, image })
    };
    restart_all(spec, &workspace, &reference, &mut jobs, stop, &mut |done| {
        judged += 1;
        confined &= done.confined;
        if !done.outcome.is_success() {
            bad.push((done.crash, done.outcome));
        }
        progress(CrashStep::Restarts, judged as f64 / set.images.len().max(1) as f64);
    })?;
    if !confined {
        notes.push(UNCONFINED.to_owned());
    }
    bad.sort_by_key(|(image, _)| *image);
    let misuses = find_misuse(&operations);
    let mut wanted: Vec<u64> = misuses.iter().map(|m| m.pc).collect();
    wanted.extend(bad.iter().filter_map(|(image, _)| pc_of(&operations, set.images[*image].0)));
    let places = lines.name(&wanted);
    let place = |pc: u64| places.get(&pc).cloned().unwrap_or_else(|| format!("{pc:#x}"));
    Ok(CheckReport {
        command: spec.argv.iter().map(|a| a.to_string_lossy().into_owned()).collect(),
        operations: operations.len(),
        images: set.images.len(),
        sequences: set.sequences,
        possible_sequences: set.possible,
        coverage: set.coverage(),
        judged,
        bad_images: bad
            .into_iter()
            .map(|(image, outcome)| {
                let operation = set.images[image].0;
                let end = || "the end of the region".to_owned();
                let place = pc_of(&operations, operation).map_or_else(end, place);
                BadImage { image, outcome, operation, place }
            })
            .collect(),
        misuses: misuses
            .into_iter()
            .map(|misuse| LocatedMisuse {
                what: misuse.kind.name(),
                loses_data: misuse.kind.loses_data(),
                place: place(misuse.pc),
                object: object_at(&region, misuse.address),
                misuse,
            })
            .collect(),
        notes,
    })
}

fn pc_of(operations: &[PersistentOperation], number: usize) -> Option<u64> {
    operations.get(number).map(|operation| match operation {
        PersistentOperation::Store { pc, .. }
        | PersistentOperation::Flush { pc, .. }
        | PersistentOperation::Fence { pc } => *pc,
    })
}

fn object_at(region: &RegionFile, address: u64) -> Option<String> {
    let object = region.objects.iter().find(|o| o.address <= address && address < o.end())?;
    Some(format!("{} byte {}", object.name, address - object.address))
}
