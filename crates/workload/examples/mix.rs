//! Loads and stores of a workload's data, as the program makes them: `mix SPEC...`. What reaches
//! memory is another matter: caches serve most loads, and a store that misses is a read and a write
//! there.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_types::Nanos;
use terrace_workload::{
    conduct, Algorithm, Heap, ThreadStep, WordMemory, WorkloadRunner, WorkloadSpec,
};

struct Counting {
    heap: Heap,
    loads: AtomicU64,
    stores: AtomicU64,
}

impl WordMemory for Counting {
    fn load(&self, word: usize) -> u64 {
        self.loads.fetch_add(1, Ordering::Relaxed);
        self.heap.load(word)
    }
    fn store(&self, word: usize, value: u64) {
        self.stores.fetch_add(1, Ordering::Relaxed);
        self.heap.store(word, value);
    }
}

struct Mix;

impl WorkloadRunner for Mix {
    type Out = String;

    fn conduct<A: Algorithm>(self, mut algorithm: A, spec: &WorkloadSpec) -> String {
        let words = algorithm.words();
        let memory = Counting {
            heap: Heap::new(words),
            loads: AtomicU64::new(0),
            stores: AtomicU64::new(0),
        };
        algorithm.prepare(&memory);
        let counts = || [&memory.loads, &memory.stores].map(|c| c.load(Ordering::Relaxed));
        let before = counts();
        let mut threads: Vec<A::Thread> = (0..spec.threads).map(|i| algorithm.thread(i)).collect();
        let mut last = vec![ThreadStep::More; threads.len()];
        while last.iter().any(|step| *step != ThreadStep::Done) {
            for (thread, step) in
                threads.iter_mut().zip(&mut last).filter(|t| *t.1 != ThreadStep::Done)
            {
                while {
                    *step = algorithm.step(&memory, thread, Nanos::ZERO);
                    *step == ThreadStep::More
                } {}
            }
        }
        let after = counts();
        let (loads, stores) = (after[0] - before[0], after[1] - before[1]);
        match algorithm.finish(&memory, &threads) {
            Ok(outcome) => format!(
                "{spec}: {words} words, {} accesses as it counts them, {loads} loads, {stores} \
                    stores, {:.2} to 1",
                outcome.accesses,
                loads as f64 / stores.max(1) as f64
            ),
            Err(wrong) => format!("{spec}: {wrong}"),
        }
    }
}

fn main() -> ExitCode {
    for text in std::env::args().skip(1) {
        match WorkloadSpec::parse(&text) {
            Ok(spec) => println!("{}", conduct(&spec, Mix)),
            Err(error) => {
                eprintln!("{text}: {error}");
                return ExitCode::from(2);
            }
        }
    }
    ExitCode::SUCCESS
}
