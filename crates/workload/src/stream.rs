//! `stream`: the triad `a = b + s c` on words, over and over; all data alike, no hot set.

use crate::algorithm::{Algorithm, ThreadStep, WorkloadResult, WrongResult};
use crate::memory::{WordMemory, LINE_WORDS};
use crate::pace::WorkloadPace;
use crate::random::mix;
use crate::spec::WorkloadSpec;
use terrace_types::Nanos;

const STEP: usize = 4_096;

/// The workload; see the module. An access is one word of `a`, `b` or `c`.
#[derive(Debug)]
pub struct Stream {
    elements: usize,
    threads: usize,
    passes: u64,
    seconds: Option<Nanos>,
    seed: u64,
}

/// One thread of it: its part of the arrays, and how far it is.
#[derive(Debug)]
pub struct StreamThread {
    first: usize,
    end: usize,
    at: usize,
    pass: u64,
}

impl Stream {
    /// The workload as specified; the three arrays together have its size.
    #[must_use]
    pub fn new(spec: &WorkloadSpec) -> Self {
        let elements = (spec.size.bytes(spec.fast).0 as usize / 24)
            .max(spec.threads as usize * LINE_WORDS)
            .next_multiple_of(LINE_WORDS);
        Self {
            elements,
            threads: spec.threads as usize,
            passes: (spec.accesses / (3 * elements as u64)).max(1),
            seconds: spec.seconds,
            seed: spec.seed,
        }
    }

    const fn b(&self, i: usize) -> u64 {
        (i as u64 ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    const fn c(i: usize) -> u64 {
        i as u64 + 1
    }

    const fn factor(pass: u64) -> u64 {
        3 + pass
    }
}

impl Algorithm for Stream {
    type Thread = StreamThread;

    fn words(&self) -> usize {
        3 * self.elements
    }

    fn pace(&self) -> WorkloadPace {
        WorkloadPace::even(235)
    }

    fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M) {
        for i in 0..self.elements {
            memory.store(i, 0);
        }
        for i in 0..self.elements {
            memory.store(self.elements + i, self.b(i));
        }
        for i in 0..self.elements {
            memory.store(2 * self.elements + i, Self::c(i));
        }
    }

    fn thread(&self, index: u32) -> StreamThread {
        let part = |index: usize| {
            (self.elements / LINE_WORDS * index / self.threads * LINE_WORDS).min(self.elements)
        };
        let first = part(index as usize);
        StreamThread { first, end: part(index as usize + 1), at: first, pass: 0 }
    }

    fn step<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        thread: &mut StreamThread,
        now: Nanos,
    ) -> ThreadStep {
        let end = thread.end.min(thread.at + STEP);
        let n = self.elements;
        memory.triad(
            [thread.at, n + thread.at, 2 * n + thread.at],
            end - thread.at,
            Self::factor(thread.pass),
        );
        thread.at = end;
        if end < thread.end {
            return ThreadStep::More;
        }
        thread.at = thread.first;
        thread.pass += 1;
        let enough = match self.seconds {
            Some(limit) => now >= limit,
            None => thread.pass == self.passes,
        };
        if enough {
            ThreadStep::Done
        } else {
            ThreadStep::More
        }
    }

    fn finish<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        threads: &[StreamThread],
    ) -> Result<WorkloadResult, WrongResult> {
        let (mut checksum, mut accesses) = (0u64, 0u64);
        for thread in threads {
            accesses += 3 * thread.pass * (thread.end - thread.first) as u64;
            let factor = Self::factor(thread.pass - 1);
            for i in thread.first..thread.end {
                let value = memory.load(i);
                if value != self.b(i).wrapping_add(Self::c(i).wrapping_mul(factor)) {
                    return Err(WrongResult {
                        workload: "stream",
                        what: format!("element {i} is {value}"),
                    });
                }
                checksum = checksum.wrapping_add(mix(value ^ i as u64));
            }
        }
        Ok(WorkloadResult { accesses, checksum })
    }
}
