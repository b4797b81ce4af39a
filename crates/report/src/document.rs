//! Which recording it is, and the three ways to show it.

use crate::comparison::Comparison;
use crate::crash::CrashStudies;
use crate::far::FarRun;
use crate::migratory::MigratoryStudy;
use crate::pools::SharedPools;
use crate::probe::ProbeReport;
use crate::recording::RecordingSummary;
use crate::run;
use crate::stacked::StackedMemory;
use serde_json::Value;
use std::collections::HashMap;
use std::io::{Read, Seek};
use terrace_engine::journal::{self, JournalProblem, ParsedJournal};
use terrace_trace::{CallFrame, TraceReader};

/// Why a file cannot be shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// Neither a journal nor a comparison.
    #[error("{0}")]
    Journal(#[from] JournalProblem),
    /// It is a comparison, but damaged.
    #[error("not the JSON of a comparison ({0}); give what `terrace lab compare --json` printed")]
    Comparison(String),
    /// It is what a probe printed, but damaged.
    #[error("not the JSON of a probe ({0}); give what `terrace probe --json` printed")]
    Probe(String),
    /// It is a study of stacked memory, but damaged.
    #[error("not the JSON of stacked memory ({0}); give what `terrace device hbm --json` printed")]
    StackedMemory(String),
    /// It is a simulation of hosts that share pools, but damaged.
    #[error("not the JSON of shared pools ({0}); give what `terrace sim --system --json` printed")]
    SharedPools(String),
    /// It is a run of a vertex program, but damaged.
    #[error(
        "not the JSON of migratory threads ({0}); give what `terrace migratory run --json` printed"
    )]
    MigratoryThreads(String),
    /// It is what crash tests printed, but damaged.
    #[error("not the JSON of a crash test ({0}); give what `terrace crash run --json` printed")]
    CrashStudies(String),
    /// It is the journal of a run with far memory, but damaged.
    #[error(
        "not the journal of a run with far memory ({0}); give what `terrace run --far \
        --journal` wrote"
    )]
    Far(String),
    /// It is a recording, but cannot be read.
    #[error("{0}")]
    Recording(String),
}

/// A recording that was read.
#[derive(Debug, Clone, PartialEq)]
pub enum Document {
    /// Journal of one managed run.
    Run(Box<ParsedJournal>),
    /// One workload under several policies.
    Comparison(Box<Comparison>),
    /// A run with far memory.
    Far(Box<FarRun>),
    /// A measured machine.
    Probe(Box<ProbeReport>),
    /// Designs of stacked memory.
    StackedMemory(Box<StackedMemory>),
    /// Hosts that share pools of memory.
    SharedPools(Box<SharedPools>),
    /// A vertex program on migratory threads.
    MigratoryThreads(Box<MigratoryStudy>),
    /// Crash tests.
    CrashStudies(Box<CrashStudies>),
    /// Loads and stores of a program.
    Recording(Box<RecordingSummary>),
}

/// Reads the journal of a run or the JSON of a comparison, whichever it is.
///
/// # Errors
/// [`ReportError`] when it is neither, or damaged so early that nothing can be shown.
pub fn read(bytes: &[u8]) -> Result<Document, ReportError> {
    if FarRun::looks_like(bytes) {
        return FarRun::read(bytes)
            .map(|run| Document::Far(Box::new(run)))
            .map_err(ReportError::Far);
    }
    if StackedMemory::looks_like(bytes) {
        return StackedMemory::from_json(bytes)
            .map(|s| Document::StackedMemory(Box::new(s)))
            .map_err(ReportError::StackedMemory);
    }
    if SharedPools::looks_like(bytes) {
        return SharedPools::from_json(bytes)
            .map(|s| Document::SharedPools(Box::new(s)))
            .map_err(ReportError::SharedPools);
    }
    if MigratoryStudy::looks_like(bytes) {
        return MigratoryStudy::from_json(bytes)
            .map(|s| Document::MigratoryThreads(Box::new(s)))
            .map_err(ReportError::MigratoryThreads);
    }
    if CrashStudies::looks_like(bytes) {
        return CrashStudies::from_json(bytes)
            .map(|s| Document::CrashStudies(Box::new(s)))
            .map_err(ReportError::CrashStudies);
    }
    match journal::read(bytes) {
        Ok(reading) => Ok(Document::Run(Box::new(reading))),
        Err(problem) => {
            if matches!(problem, JournalProblem::NotAJournal(_)) && ProbeReport::looks_like(bytes) {
                return ProbeReport::from_json(bytes)
                    .map(|p| Document::Probe(Box::new(p)))
                    .map_err(ReportError::Probe);
            }
            let start = bytes.iter().copied().find(|b| !b.is_ascii_whitespace());
            let looks_like_comparison = start == Some(b'{')
                && matches!(problem, JournalProblem::NotAJournal(_))
                && bytes.windows(6).any(|w| w == b"\"runs\"");
            if !looks_like_comparison {
                return Err(problem.into());
            }
            Comparison::from_json(bytes)
                .map(|c| Document::Comparison(Box::new(c)))
                .map_err(ReportError::Comparison)
        }
    }
}

/// Reads a recording, twice from begin to end; what is damaged is left out and said.
///
/// # Errors
/// [`ReportError::Recording`] when it is none, or cannot be read.
pub fn read_recording<R: Read + Seek>(input: R) -> Result<Document, ReportError> {
    let recording =
        TraceReader::open(input).and_then(|mut reader| RecordingSummary::from_reader(&mut reader));
    recording
        .map(|r| Document::Recording(Box::new(r)))
        .map_err(|e| ReportError::Recording(e.to_string()))
}

impl Document {
    /// Places of a recording's call paths, some of them several times.
    #[must_use]
    pub fn call_frames(&self) -> Vec<&CallFrame> {
        let Self::Recording(recording) = self else { return Vec::new() };
        recording.samples.iter().flat_map(|samples| samples.calls.frames()).collect()
    }

    /// Names such places; others keep their file and byte.
    pub fn name_callers(&mut self, names: &HashMap<CallFrame, String>) {
        let Self::Recording(recording) = self else { return };
        recording.samples.iter_mut().for_each(|samples| samples.calls.name(names));
    }

    /// One HTML file that needs nothing else.
    #[must_use]
    pub fn to_html(&self) -> String {
        match self {
            Self::Run(reading) => run::html(reading),
            Self::Comparison(comparison) => comparison.html(),
            Self::Far(run) => run.html(),
            Self::Probe(probe) => probe.html(),
            Self::StackedMemory(stacks) => stacks.html(),
            Self::SharedPools(pools) => pools.html(),
            Self::MigratoryThreads(study) => study.html(),
            Self::CrashStudies(studies) => studies.html(),
            Self::Recording(recording) => recording.html(),
        }
    }

    /// For a terminal of so many columns.
    #[must_use]
    pub fn to_text(&self, columns: usize) -> String {
        match self {
            Self::Run(reading) => run::text(reading, columns),
            Self::Comparison(comparison) => comparison.text(columns),
            Self::Far(run) => run.text(columns),
            Self::Probe(probe) => probe.text(),
            Self::StackedMemory(stacks) => stacks.text(),
            Self::SharedPools(pools) => pools.text(),
            Self::MigratoryThreads(study) => study.text(),
            Self::CrashStudies(studies) => studies.text(),
            Self::Recording(recording) => recording.text(columns),
        }
    }

    /// The figures; keys are snake_case with units in their names.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match self {
            Self::Run(reading) => run::json(reading),
            Self::Comparison(comparison) => comparison.json(),
            Self::Far(run) => run.json(),
            Self::Probe(probe) => probe.json(),
            Self::StackedMemory(stacks) => stacks.json(),
            Self::SharedPools(pools) => pools.json(),
            Self::MigratoryThreads(study) => study.json(),
            Self::CrashStudies(studies) => studies.json(),
            Self::Recording(recording) => recording.json(),
        }
    }
}
