//! What a workload is.

use crate::memory::WordMemory;
use crate::pace::WorkloadPace;
use terrace_types::Nanos;

/// What a thread says after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadStep {
    /// More to do.
    More,
    /// Wait until all threads have come to this point.
    Meet,
    /// This thread is done.
    Done,
}

/// What a workload computed. The same whatever the placement of its pages, the tool that moved
/// them, or the order in which threads ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkloadResult {
    /// Accesses to the data made in the measured phase, in the workload's own unit.
    pub accesses: u64,
    /// Digest of the results.
    pub checksum: u64,
}

/// A result that is wrong: memory was damaged or the algorithm is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("wrong result in {workload}: {what}; the data was damaged while it ran")]
pub struct WrongResult {
    /// Name of the workload.
    pub workload: &'static str,
    /// What is wrong.
    pub what: String,
}

/// One workload, of given size and seed, independent of the memory it runs on.
pub trait Algorithm: Sync {
    /// State of one thread.
    type Thread: Send;

    /// Words of memory that it needs.
    fn words(&self) -> usize;
    /// Instructions that it executes for its accesses.
    fn pace(&self) -> WorkloadPace;
    /// Writes its data for the first time, cold data first, from one thread.
    fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M);
    /// State of thread `index` at the begin of the measured phase.
    fn thread(&self, index: u32) -> Self::Thread;
    /// Does a few thousand accesses. `now` is the time since the phase began.
    fn step<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        thread: &mut Self::Thread,
        now: Nanos,
    ) -> ThreadStep;
    /// Checks the results after all threads are done.
    ///
    /// # Errors
    /// [`WrongResult`] when the results are not what the seed must give.
    fn finish<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        threads: &[Self::Thread],
    ) -> Result<WorkloadResult, WrongResult>;
}
