//! `crash run`: records a program once, finds what memory holds at many crashes, restarts the
//! program from each and judges what became of it.

mod advise;
mod check;
mod mapped;
mod recorded;
mod reference;
mod report;
mod restart;
mod symbols;
mod workspace;

pub use advise::{advise, AdviceReport, AdviseSpec, FlushTrial, FlushedObject};
pub use check::{check, BadImage, CheckReport, CheckSpec, LocatedMisuse};
pub use report::{CrashReport, CrashResult, PathSummary, PhaseSummary};

use crate::record::RecordError;
use recorded::RecordedRun;
use reference::ReferenceRun;
use restart::{restart_all, RestartJob};
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_crash::study::study;
use terrace_crash::{
    CacheSetup, CrashSchedule, CrashSet, RegionError, RegionFile, StudyError, StudyOptions,
};
use terrace_sim::recording::RecordingError;
use terrace_sim::SimError;
use terrace_sys::{CommandExit, SysError};
use terrace_trace::TraceError;
use terrace_types::{Bytes, Nanos};
use workspace::Workspace;

/// Crashes of one study at most; each keeps a record of some hundred bytes.
pub const MAX_CRASHES: u32 = 1_000_000;

/// What to crash, and how to judge restarts.
#[derive(Debug, Clone)]
pub struct CrashSpec {
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// The caches.
    pub setup: CacheSetup,
    /// Where crashes happen.
    pub schedule: CrashSchedule,
    /// Equal parts of the iterations by which successes are counted, of programs that mark no
    /// phases.
    pub phases: u32,
    /// Restarts at a time.
    pub jobs: usize,
    /// Limit of a restart's time; by default [`TIME_FACTOR`] times the reference run and
    /// [`TIME_LEAST`].
    pub time: Option<Nanos>,
    /// Limit of a restart's address space.
    pub memory: Option<Bytes>,
    /// Besides its exit status, a restart's output must be that of the reference run.
    pub same_output: bool,
    /// Besides its exit status, a restart's output must contain this.
    pub expect: Option<String>,
    /// Where recordings, images and folders lie meanwhile.
    pub work: PathBuf,
}

/// A restart may take so many times as long as a run without a crash.
pub const TIME_FACTOR: u64 = 10;
/// And so long in any case: starting a program on a busy machine takes a while.
pub const TIME_LEAST: Nanos = Nanos::secs(10);

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum CrashError {
    /// The recorder is missing or cannot work.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A folder or file of the study cannot be used.
    #[error("cannot use {}: {source}; free space there or give another folder with \
        --work", path.display())]
    Work {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A process cannot be started or watched.
    #[error(transparent)]
    System(#[from] SysError),
    /// The program fails without any crash.
    #[error("the program {how} without a crash; its last line: {last_line}")]
    Reference {
        /// How it ended.
        how: String,
        /// The last line of its output.
        last_line: String,
    },
    /// The program never wrote a region file.
    #[error(
        "the program never calls start_crash() of terrace_crash.h, so there is no region to \
        crash in"
    )]
    NoRegion,
    /// The program ended within the region.
    #[error("the program never calls end_crash(): it ends within the region")]
    EndsInside,
    /// The recording ends early.
    #[error("the program is not recorded to its end: {why}")]
    CutShort {
        /// The recorder's words.
        why: String,
    },
    /// A file of persistent memory that runs cannot have a copy of.
    #[error(
        "{}: runs have copies of files of the current folder only; start there",
        path.display()
    )]
    FileElsewhere {
        /// As it was named.
        path: PathBuf,
    },
    /// What lies where is not known of parts of a file.
    #[error("the program maps a part of {}; check one that maps all of it", path.display())]
    PartMapped {
        /// The file.
        path: PathBuf,
    },
    /// What the program named is of no use.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The recording is of no use.
    #[error(transparent)]
    Study(#[from] StudyError),
    /// The recording cannot be simulated.
    #[error("the simulator cannot take the recording: {0}")]
    Simulated(#[from] RecordingError),
    /// Nor the machine.
    #[error(transparent)]
    Simulator(#[from] SimError),
    /// Somebody asked to stop before there was a result.
    #[error("stopped before the first restart")]
    Stopped,
}

impl From<TraceError> for CrashError {
    fn from(error: TraceError) -> Self {
        Self::Study(error.into())
    }
}

/// A step of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashStep {
    /// The program runs without a crash.
    Reference,
    /// The program is recorded.
    Recording,
    /// The recording goes through the caches.
    Caches,
    /// The program restarts.
    Restarts,
    /// What added flushes cost is simulated.
    Simulation,
}

/// Called with the step, and how much of it is done, from 0 to 1.
pub type CrashProgress<'a> = dyn FnMut(CrashStep, f64) + 'a;

/// Runs the whole study. `stop`: ends it early, with the results so far. `each`: told every result
/// as it comes.
///
/// # Errors
/// [`CrashError`].
pub fn run(
    spec: &CrashSpec,
    stop: &AtomicBool,
    progress: &mut CrashProgress<'_>,
    each: &mut dyn FnMut(&CrashResult),
) -> Result<CrashReport, CrashError> {
    let workspace = Workspace::create(&spec.work)?;
    progress(CrashStep::Reference, 0.0);
    let reference = ReferenceRun::make(spec, &workspace, None, stop)?;
    progress(CrashStep::Recording, 0.0);
    let recorded = RecordedRun::make(&reference, &workspace)?;
    let region = recorded.region()?;
    progress(CrashStep::Caches, 0.0);
    let begun = terrace_sys::now();
    let most = MAX_CRASHES as usize;
    let options = StudyOptions {
        setup: spec.setup.clone(),
        schedule: spec.schedule.clone(),
        most,
        flushes: Vec::new(),
    };
    let mut reader = recorded.open()?;
    let set = study(&mut reader, &region, &options, &mut |done| {
        progress(CrashStep::Caches, done);
        stop_or_go_on(stop)
    })?;
    let study_time = terrace_sys::now().since(begun);
    let names = symbols::SourceLines::read(&mut reader)?;
    drop(reader);
    if !set.ended {
        return Err(CrashError::EndsInside);
    }
    let mut results = CrashReport::new(spec, &region, &set, &reference);
    (results.recording_seconds, results.caches_seconds) =
        (recorded.wall.as_secs_f64(), study_time.as_secs_f64());
    results.notes = recorded.notes;
    let begun = terrace_sys::now();
    let mut confined = true;
    let ended = restart_each(spec, &workspace, &reference, (&region, &set), stop, &mut |done| {
        let (result, is_confined) = done;
        confined &= is_confined;
        each(&result);
        results.results.push(result);
        progress(CrashStep::Restarts, results.results.len() as f64 / set.points.len() as f64);
    });
    match ended {
        Err(error) if results.results.is_empty() => return Err(error),
        Err(error) => results.ended_early = Some(error.to_string()),
        Ok(()) => {}
    }
    if !confined {
        results.notes.push(UNCONFINED.to_owned());
    }
    results.restarts_seconds = terrace_sys::now().since(begun).as_secs_f64();
    results.finish(&names);
    Ok(results)
}

/// What a study is to do.
fn stop_or_go_on(stop: &AtomicBool) -> ControlFlow<()> {
    if stop.load(Ordering::Relaxed) {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

/// What is said where the kernel has no Landlock.
const UNCONFINED: &str =
    "this kernel cannot keep restarts from writing outside their folders (it has no Landlock)";

fn describe_end(ended: CommandExit) -> String {
    match ended {
        CommandExit::Code(code) => format!("ends with status {code}"),
        CommandExit::Signal(signal) => format!("is ended by signal {signal}"),
    }
}

/// Restarts from each image, several at a time, in order of their crashes. `each` is given whether
/// the restart was kept from writing outside its folder, too.
fn restart_each(
    spec: &CrashSpec,
    workspace: &Workspace,
    reference: &ReferenceRun,
    (region, set): (&RegionFile, &CrashSet),
    stop: &AtomicBool,
    each: &mut dyn FnMut((CrashResult, bool)),
) -> Result<(), CrashError> {
    let mut cursor = set.images.cursor();
    let mut number = 0;
    let mut jobs = || {
        let content = cursor.advance()?;
        number += 1;
        Some(RestartJob { crash: number - 1, image: region.image(content) })
    };
    restart_all(spec, workspace, reference, &mut jobs, stop, &mut |job| {
        let result = CrashResult {
            crash: job.crash,
            point: set.points[job.crash].clone(),
            outcome: job.outcome,
            iterations: job.iterations,
            seconds: job.wall.as_secs_f64(),
        };
        each((result, job.confined));
    })
}
