//! Runs a workload: on threads and real pages, or one thread after another on any memory.

use crate::algorithm::{Algorithm, ThreadStep, WorkloadResult, WrongResult};
use crate::arena::{AlignedMapping, AlignedMappingError};
use crate::chase::Chase;
use crate::graph::GraphBfs;
use crate::memory::WordMemory;
use crate::npb::{bt::Bt, cg::Cg, ft::Ft, is::Is, lu::Lu, mg::Mg, sp::Sp};
use crate::pagerank::PageRank;
use crate::scan::Scan;
use crate::shift::Shift;
use crate::skew::Skew;
use crate::spec::{WorkloadName, WorkloadSpec};
use crate::stream::Stream;
use crate::team::Team;
use std::sync::Barrier;
use std::time::Instant;
use terrace_types::Nanos;

/// Why a run gave no result.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// No memory.
    #[error(transparent)]
    Arena(#[from] AlignedMappingError),
    /// The results are wrong.
    #[error(transparent)]
    Wrong(#[from] WrongResult),
    /// Whoever wanted to be notified of the marks cannot be reached.
    #[error("cannot {what} {path}: {source}; unset it or make the file")]
    Mark {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// Called at the two ends of the measured phase, while all threads wait.
pub trait PhaseHooks {
    /// The phase begins now; what this does is part of it.
    ///
    /// # Errors
    /// [`WorkloadError::Mark`] when a listener cannot be notified.
    fn begin(&mut self) -> Result<(), WorkloadError>;
    /// The phase has ended.
    fn end(&mut self);
}

/// How long a run took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// First touch of all data.
    pub prepare: Nanos,
    /// The measured phase.
    pub phase: Nanos,
}

/// Calls `$run` with the algorithm of the name: static dispatch, so that each is compiled tight.
macro_rules! with_algorithm {
    ($spec:expr, $algorithm:ident => $run:expr) => {
        with_algorithm!(@each $spec, $algorithm => $run;
            WorkloadName::Skew | WorkloadName::Fits | WorkloadName::Rwsplit => Skew::new($spec);
            WorkloadName::Shift => Shift::new($spec);
            WorkloadName::Scan => Scan::new($spec);
            WorkloadName::GraphBfs => GraphBfs::new($spec);
            WorkloadName::Stream => Stream::new($spec);
            WorkloadName::Chase => Chase::new($spec);
            WorkloadName::GraphPagerank => Team::new(PageRank::new($spec), $spec);
            WorkloadName::NpbBt => Team::new(Bt::new($spec), $spec);
            WorkloadName::NpbFt => Team::new(Ft::new($spec), $spec);
            WorkloadName::NpbMg => Team::new(Mg::new($spec), $spec);
            WorkloadName::NpbCg => Team::new(Cg::new($spec), $spec);
            WorkloadName::NpbIs => Team::new(Is::new($spec), $spec);
            WorkloadName::NpbLu => Team::new(Lu::new($spec), $spec);
            WorkloadName::NpbSp => Team::new(Sp::new($spec), $spec);
        )
    };
    (@each $spec:expr, $algorithm:ident => $run:expr; $($name:pat => $new:expr;)*) => {
        match $spec.name {
            $($name => {
                let $algorithm = $new;
                $run
            })*
        }
    };
}

/// Something that wants to run a workload in its own way: a simulator, say.
pub trait WorkloadRunner {
    /// What comes of it.
    type Out;
    /// Runs the algorithm of `spec`.
    fn conduct<A: Algorithm>(self, algorithm: A, spec: &WorkloadSpec) -> Self::Out;
}

/// Hands the algorithm of the name that `spec` has to `conductor`.
pub fn conduct<C: WorkloadRunner>(spec: &WorkloadSpec, conductor: C) -> C::Out {
    with_algorithm!(spec, algorithm => conductor.conduct(algorithm, spec))
}

/// Runs `spec` on real pages with real threads, calling `phase` at both ends of what is measured.
///
/// # Errors
/// [`WorkloadError`] without memory, when results are wrong, or when `phase` says so.
pub fn run_threads(
    spec: &WorkloadSpec,
    phase: &mut dyn PhaseHooks,
) -> Result<(WorkloadResult, Timing), WorkloadError> {
    with_algorithm!(spec, algorithm => threads(algorithm, spec, phase))
}

/// Runs `spec` on one thread, the workload's threads taking turns: deterministic down to the
/// order of accesses. Time stands still but for one microsecond a step.
///
/// # Errors
/// [`WrongResult`] when results are wrong.
pub fn run_serially<M: WordMemory>(
    spec: &WorkloadSpec,
    memory: impl FnOnce(usize) -> M,
) -> Result<WorkloadResult, WrongResult> {
    with_algorithm!(spec, algorithm => serially(algorithm, spec, memory))
}

fn threads<A: Algorithm>(
    mut algorithm: A,
    spec: &WorkloadSpec,
    phase: &mut dyn PhaseHooks,
) -> Result<(WorkloadResult, Timing), WorkloadError> {
    let arena = AlignedMapping::new(algorithm.words(), spec.pages)?;
    let memory = arena.words();
    let started = Instant::now();
    algorithm.prepare(memory);
    let prepare = nanos(started);
    let mut states: Vec<A::Thread> = (0..spec.threads).map(|i| algorithm.thread(i)).collect();

    let gate = Barrier::new(spec.threads as usize + 1);
    let meeting = Barrier::new(spec.threads as usize);
    let (algorithm, gate, meeting) = (&algorithm, &gate, &meeting);
    let (reported, time) = std::thread::scope(|scope| {
        for state in &mut states {
            scope.spawn(move || {
                gate.wait();
                let began = Instant::now();
                loop {
                    match algorithm.step(memory, state, nanos(began)) {
                        ThreadStep::More => {}
                        ThreadStep::Meet => {
                            meeting.wait();
                        }
                        ThreadStep::Done => break,
                    }
                }
                gate.wait();
            });
        }
        let began = Instant::now();
        let reported = phase.begin();
        gate.wait();
        gate.wait();
        let time = nanos(began);
        phase.end();
        (reported, time)
    });
    reported?;
    let outcome = algorithm.finish(memory, &states)?;
    Ok((outcome, Timing { prepare, phase: time }))
}

fn serially<A: Algorithm, M: WordMemory>(
    mut algorithm: A,
    spec: &WorkloadSpec,
    memory: impl FnOnce(usize) -> M,
) -> Result<WorkloadResult, WrongResult> {
    let memory = memory(algorithm.words());
    algorithm.prepare(&memory);
    let states = take_turns(&algorithm, spec.threads, &memory);
    algorithm.finish(&memory, &states)
}

/// Steps all threads in turn until all are done.
pub(crate) fn take_turns<A: Algorithm, M: WordMemory>(
    algorithm: &A,
    threads: u32,
    memory: &M,
) -> Vec<A::Thread> {
    let mut states: Vec<A::Thread> = (0..threads).map(|i| algorithm.thread(i)).collect();
    let mut last = vec![ThreadStep::More; states.len()];
    let mut now = Nanos::ZERO;
    while last.iter().any(|step| *step != ThreadStep::Done) {
        if last.iter().all(|step| *step != ThreadStep::More) {
            for step in last.iter_mut().filter(|step| **step == ThreadStep::Meet) {
                *step = ThreadStep::More;
            }
        }
        for (state, step) in states.iter_mut().zip(&mut last) {
            if *step == ThreadStep::More {
                *step = algorithm.step(memory, state, now);
                now = Nanos(now.0 + 1_000);
            }
        }
    }
    states
}

fn nanos(since: Instant) -> Nanos {
    Nanos(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX))
}
