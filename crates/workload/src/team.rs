//! Numerical kernels as sequences of stages: in each, every thread works on units of its own, then
//! all meet. Sums over all threads and the decision to stop are made at the meetings, the same for
//! all, in the order of the threads: what is computed depends on the number of threads at most (by
//! rounding), never on how they interleave.
//!
//! ```text
//! words: | the kernel's own | two sums a thread and whether time is over, twice: one set a stage, in turn |
//! ```

use crate::algorithm::{Algorithm, ThreadStep, WorkloadResult, WrongResult};
use crate::memory::WordMemory;
use crate::pace::WorkloadPace;
use crate::random::mix;
use crate::spec::WorkloadSpec;
use terrace_types::Nanos;

/// Work of one step, in the kernel's unit.
const STEP: u64 = 4_096;
/// Words that a thread leaves at a meeting: two sums, and whether time is over.
const LEFT: usize = 3;

/// What all threads know after a meeting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeetingSums {
    /// The two sums, over all threads.
    pub sums: [f64; 2],
    /// The time limit has passed.
    pub over: bool,
}

/// A numerical kernel.
pub trait NumericalKernel: Sync {
    /// One of its stages.
    type Stage: Copy + Send;
    /// What a thread keeps from stage to stage.
    type Own: Send;

    /// Words of memory that it needs.
    fn words(&self) -> usize;
    /// Instructions that it executes for its accesses.
    fn pace(&self) -> WorkloadPace;
    /// Writes its data for the first time.
    fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M);
    /// The first stage, and what a thread begins with.
    fn begin(&self) -> (Self::Stage, Self::Own);
    /// Units of work of a stage.
    fn units(&self, stage: Self::Stage) -> usize;
    /// Does a unit and adds to the sums: the work done, in the workload's own unit.
    fn work<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        own: &mut Self::Own,
        stage: Self::Stage,
        unit: usize,
        sums: &mut [f64; 2],
    ) -> u64;
    /// After the stage, on every thread alike: the next stage, `None` at the end.
    fn next(
        &self,
        own: &mut Self::Own,
        stage: Self::Stage,
        met: MeetingSums,
    ) -> Option<Self::Stage>;
    /// Checks the results; the digest of them.
    ///
    /// # Errors
    /// [`WrongResult`].
    fn finish<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        own: &Self::Own,
    ) -> Result<u64, WrongResult>;
}

/// A kernel on several threads.
#[derive(Debug)]
pub struct Team<K> {
    kernel: K,
    threads: usize,
    seconds: Option<Nanos>,
}

/// One of them.
#[derive(Debug)]
pub struct TeamMember<S, O> {
    index: usize,
    stage: S,
    turn: usize,
    /// The next unit, if the stage has begun.
    at: Option<usize>,
    waiting: bool,
    sums: [f64; 2],
    done: u64,
    own: O,
}

impl<K: NumericalKernel> Team<K> {
    /// `kernel` as `spec` has it run.
    pub fn new(kernel: K, spec: &WorkloadSpec) -> Self {
        Self { kernel, threads: spec.threads as usize, seconds: spec.seconds }
    }

    /// Word of what `thread` leaves at the meeting after `turn`.
    fn left(&self, turn: usize, thread: usize) -> usize {
        self.kernel.words() + (turn % 2 * self.threads + thread) * LEFT
    }

    fn met<M: WordMemory + ?Sized>(&self, memory: &M, turn: usize) -> MeetingSums {
        let mut sums = [0.0; 2];
        for thread in 0..self.threads {
            let left = self.left(turn, thread);
            sums[0] += get(memory, left);
            sums[1] += get(memory, left + 1);
        }
        // The first thread's clock decides for all.
        MeetingSums { sums, over: memory.load(self.left(turn, 0) + 2) != 0 }
    }
}

impl<K: NumericalKernel> Algorithm for Team<K> {
    type Thread = TeamMember<K::Stage, K::Own>;

    fn words(&self) -> usize {
        self.kernel.words() + 2 * LEFT * self.threads
    }

    fn pace(&self) -> WorkloadPace {
        self.kernel.pace()
    }

    fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M) {
        self.kernel.prepare(memory);
        for word in self.kernel.words()..self.words() {
            memory.store(word, 0);
        }
    }

    fn thread(&self, index: u32) -> Self::Thread {
        let (stage, own) = self.kernel.begin();
        TeamMember {
            index: index as usize,
            stage,
            turn: 0,
            at: None,
            waiting: false,
            sums: [0.0; 2],
            done: 0,
            own,
        }
    }

    fn step<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        thread: &mut Self::Thread,
        now: Nanos,
    ) -> ThreadStep {
        if thread.waiting {
            let met = self.met(memory, thread.turn);
            let Some(stage) = self.kernel.next(&mut thread.own, thread.stage, met) else {
                return ThreadStep::Done;
            };
            (thread.stage, thread.at, thread.waiting, thread.sums) = (stage, None, false, [0.0; 2]);
            thread.turn += 1;
        }
        let units = self.kernel.units(thread.stage);
        let part = |index: usize| units * index / self.threads;
        let mut at = thread.at.unwrap_or_else(|| part(thread.index));
        let (end, before) = (part(thread.index + 1), thread.done);
        while at < end && thread.done - before < STEP {
            thread.done +=
                self.kernel.work(memory, &mut thread.own, thread.stage, at, &mut thread.sums);
            at += 1;
        }
        thread.at = Some(at);
        if at < end {
            return ThreadStep::More;
        }
        let left = self.left(thread.turn, thread.index);
        set(memory, left, thread.sums[0]);
        set(memory, left + 1, thread.sums[1]);
        memory.store(left + 2, u64::from(self.seconds.is_some_and(|limit| now >= limit)));
        thread.waiting = true;
        ThreadStep::Meet
    }

    fn finish<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        threads: &[Self::Thread],
    ) -> Result<WorkloadResult, WrongResult> {
        let accesses = threads.iter().map(|t| t.done).sum();
        let checksum = match threads.first() {
            Some(first) => self.kernel.finish(memory, &first.own)?,
            None => 0,
        };
        Ok(WorkloadResult { accesses, checksum })
    }
}

/// A number from a word.
#[inline(always)]
pub fn get<M: WordMemory + ?Sized>(memory: &M, word: usize) -> f64 {
    f64::from_bits(memory.load(word))
}

/// A number into a word.
#[inline(always)]
pub fn set<M: WordMemory + ?Sized>(memory: &M, word: usize, value: f64) {
    memory.store(word, value.to_bits());
}

/// Digest of numbers to eight digits: elementary functions differ in the last bits from one C
/// library, and from one processor, to another.
pub fn digest(numbers: &[f64]) -> u64 {
    let text = |n: &f64| format!("{n:.7e}");
    numbers
        .iter()
        .map(text)
        .flat_map(String::into_bytes)
        .fold(0, |sum, byte| mix(sum ^ u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::digest;

    #[test]
    fn digests_see_eight_digits_and_order() {
        assert_eq!(digest(&[1.000_000_000_1, 2.0]), digest(&[1.0, 2.0]));
        assert_ne!(digest(&[1.000_000_1, 2.0]), digest(&[1.0, 2.0]));
        assert_ne!(digest(&[2.0, 1.0]), digest(&[1.0, 2.0]));
    }
}
