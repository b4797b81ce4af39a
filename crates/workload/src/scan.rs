//! `scan`: a hot set that is where it should be, touched first, and beside it one pass over much
//! cold data. Pages seen once by the pass are not worth promoting; a policy that takes them for
//! hot loses.

use crate::algorithm::{Algorithm, ThreadStep, WorkloadResult, WrongResult};
use crate::memory::{WordMemory, PAGE_WORDS};
use crate::pace::WorkloadPace;
use crate::random::{mix, HotColdChooser, Lcg};
use crate::spec::WorkloadSpec;
use terrace_types::Nanos;

const STEP: u64 = 16_384;

/// The workload; see the module.
#[derive(Debug)]
pub struct Scan {
    hot_words: usize,
    cold_words: usize,
    threads: u64,
    choice: HotColdChooser,
    seed: u64,
    accesses: u64,
    seconds: Option<Nanos>,
    /// Words that the pass goes on for each access to it, in 2^-20.
    stride: u64,
}

/// One thread of it.
#[derive(Debug)]
pub struct ScanThread {
    index: u64,
    random: Lcg,
    left: u64,
    done: u64,
    hot: u64,
    /// Place of the pass within this thread's part, in 2^-20 words.
    at: u64,
    sum: u64,
}

impl Scan {
    /// The workload as specified.
    #[must_use]
    pub fn new(spec: &WorkloadSpec) -> Self {
        let words = |bytes: u64| (bytes as usize / 8).max(1).next_multiple_of(PAGE_WORDS);
        let hot_words = words(spec.hot_size.bytes(spec.fast).0);
        let cold_words = words(spec.size.bytes(spec.fast).0);
        let cold_accesses =
            u128::from(spec.accesses) * u128::from(1_000_000 - spec.hot_share) / 1_000_000;
        let stride = ((cold_words as u128) << 20) / cold_accesses.max(1);
        let threads = u64::from(spec.threads);
        Self {
            hot_words,
            cold_words,
            threads,
            choice: HotColdChooser::new(hot_words as u64 / threads, 1, spec.hot_share),
            seed: spec.seed,
            accesses: spec.accesses,
            seconds: spec.seconds,
            stride: stride.clamp(1, 1 << 40) as u64,
        }
    }

    const fn initial(&self, word: usize) -> u64 {
        (word as u64 ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl Algorithm for Scan {
    type Thread = ScanThread;

    fn words(&self) -> usize {
        self.hot_words + self.cold_words
    }

    fn pace(&self) -> WorkloadPace {
        WorkloadPace::even(1070)
    }

    fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M) {
        for word in 0..self.words() {
            memory.store(word, self.initial(word));
        }
    }

    fn thread(&self, index: u32) -> ScanThread {
        let index = u64::from(index);
        let share = self.accesses / self.threads + u64::from(index < self.accesses % self.threads);
        let left = if self.seconds.is_some() { u64::MAX } else { share };
        ScanThread {
            index,
            random: Lcg::new(self.seed, index),
            left,
            done: 0,
            hot: 0,
            at: 0,
            sum: 0,
        }
    }

    fn step<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        thread: &mut ScanThread,
        now: Nanos,
    ) -> ThreadStep {
        if self.seconds.is_some_and(|limit| now >= limit) {
            return ThreadStep::Done;
        }
        let count = thread.left.min(STEP);
        let part = self.cold_words / self.threads as usize;
        let first = self.hot_words + part * thread.index as usize;
        for _ in 0..count {
            let (is_hot, k) = self.choice.pick(thread.random.next());
            if is_hot {
                memory.add_own((k * self.threads + thread.index) as usize, 1);
                thread.hot += 1;
            } else {
                let word = first + (thread.at >> 20) as usize % part.max(1);
                thread.sum = thread.sum.wrapping_add(memory.load(word));
                thread.at = thread.at.wrapping_add(self.stride);
            }
        }
        thread.left -= count;
        thread.done += count;
        if thread.left == 0 {
            ThreadStep::Done
        } else {
            ThreadStep::More
        }
    }

    fn finish<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        threads: &[ScanThread],
    ) -> Result<WorkloadResult, WrongResult> {
        let (mut checksum, mut written) = (0u64, 0u64);
        for word in 0..self.hot_words {
            let count = memory.load(word).wrapping_sub(self.initial(word));
            written = written.wrapping_add(count);
            checksum = checksum.wrapping_add(mix(count ^ (word as u64) << 32));
        }
        let made = threads.iter().map(|t| t.hot).sum::<u64>();
        if written != made {
            return Err(WrongResult {
                workload: "scan",
                what: format!("{written} increments found where {made} were made"),
            });
        }
        for thread in threads {
            checksum = mix(checksum ^ thread.sum).wrapping_add(thread.done);
        }
        Ok(WorkloadResult { accesses: threads.iter().map(|t| t.done).sum(), checksum })
    }
}
