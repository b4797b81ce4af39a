//! `chase`: pointer chasing; each load gives the index of the next, in one random cycle of lines.

use crate::algorithm::{Algorithm, ThreadStep, WorkloadResult, WrongResult};
use crate::memory::{WordMemory, LINE_WORDS};
use crate::pace::WorkloadPace;
use crate::random::{mix, Lcg};
use crate::spec::WorkloadSpec;
use terrace_types::Nanos;

const STEP: u64 = 8_192;

/// The workload; see the module.
#[derive(Debug)]
pub struct Chase {
    lines: usize,
    threads: u64,
    accesses: u64,
    seconds: Option<Nanos>,
    seed: u64,
}

/// State of one thread: the word at which it began, the one it loads next, and counts of loads.
#[derive(Debug)]
pub struct ChaseThread {
    start: usize,
    at: usize,
    left: u64,
    done: u64,
}

impl Chase {
    /// The workload as specified.
    #[must_use]
    pub fn new(spec: &WorkloadSpec) -> Self {
        Self {
            lines: (spec.size.bytes(spec.fast).0 as usize / 64).max(2),
            threads: u64::from(spec.threads),
            accesses: spec.accesses,
            seconds: spec.seconds,
            seed: spec.seed,
        }
    }
}

impl Algorithm for Chase {
    type Thread = ChaseThread;

    fn words(&self) -> usize {
        self.lines * LINE_WORDS
    }

    fn pace(&self) -> WorkloadPace {
        WorkloadPace::even(500)
    }

    /// Sattolo's algorithm: a random permutation that is a single cycle.
    fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M) {
        for line in 0..self.lines {
            memory.store(line * LINE_WORDS, (line * LINE_WORDS) as u64);
        }
        let mut random = Lcg::new(self.seed, 0);
        for line in (1..self.lines).rev() {
            let (one, other) = (line * LINE_WORDS, random.below(line as u64) as usize * LINE_WORDS);
            let next = memory.load(one);
            memory.store(one, memory.load(other));
            memory.store(other, next);
        }
    }

    fn thread(&self, index: u32) -> ChaseThread {
        let index = u64::from(index);
        let start = (self.lines as u64 * index / self.threads) as usize * LINE_WORDS;
        let share = self.accesses / self.threads + u64::from(index < self.accesses % self.threads);
        let left = if self.seconds.is_some() { u64::MAX } else { share };
        ChaseThread { start, at: start, left, done: 0 }
    }

    fn step<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        thread: &mut ChaseThread,
        now: Nanos,
    ) -> ThreadStep {
        if self.seconds.is_some_and(|limit| now >= limit) {
            return ThreadStep::Done;
        }
        let count = thread.left.min(STEP);
        let mut at = thread.at;
        for _ in 0..count {
            at = memory.load(at) as usize;
        }
        thread.at = at;
        thread.left -= count;
        thread.done += count;
        if thread.left == 0 {
            ThreadStep::Done
        } else {
            ThreadStep::More
        }
    }

    /// Walks the cycle once: it must come back to its start after all lines and no sooner, and
    /// each thread must be where its number of steps leads.
    fn finish<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        threads: &[ChaseThread],
    ) -> Result<WorkloadResult, WrongResult> {
        let wrong = |what: String| WrongResult { workload: "chase", what };
        let mut order = vec![0u64; self.lines];
        let mut at = 0usize;
        for step in 0..self.lines as u64 {
            let line = at / LINE_WORDS;
            if line >= self.lines || at % LINE_WORDS != 0 || (line == 0 && step > 0) {
                return Err(wrong(format!("the cycle breaks at step {step}")));
            }
            order[line] = step;
            at = memory.load(at) as usize;
        }
        let mut checksum = 0u64;
        for thread in threads {
            let (from, to) = (order[thread.start / LINE_WORDS], order[thread.at / LINE_WORDS]);
            let lines = self.lines as u64;
            if (from + thread.done) % lines != to {
                return Err(wrong(format!("a thread is at step {to}, having begun at {from}")));
            }
            checksum = mix(checksum ^ thread.at as u64).wrapping_add(thread.done);
        }
        Ok(WorkloadResult { accesses: threads.iter().map(|t| t.done).sum(), checksum })
    }
}
