//! Every workload: same result from threads, from turns, from any run; different for each seed.

use std::sync::atomic::{AtomicU64, Ordering};
use terrace_workload::{
    run_serially, run_threads, Heap, PhaseHooks, WordMemory, WorkloadError, WorkloadName,
    WorkloadSpec,
};

struct Silent;

impl PhaseHooks for Silent {
    fn begin(&mut self) -> Result<(), WorkloadError> {
        Ok(())
    }
    fn end(&mut self) {}
}

fn small(name: WorkloadName, more: &str) -> WorkloadSpec {
    WorkloadSpec::parse(&format!("{name},fast=2MiB,accesses=300k{more}"))
        .expect("a valid specification")
}

#[test]
fn threads_and_turns_give_the_same_result() {
    for name in WorkloadName::ALL {
        for more in
            ["", ",hot=read", ",layout=scattered", ",layout=scattered,hot=read", ",threads=5"]
        {
            // PageRank and the kernels after it know no hot set.
            if name >= WorkloadName::GraphPagerank
                && (more.contains("hot") || more.contains("layout"))
            {
                continue;
            }
            let spec = small(name, more);
            let turns = run_serially(&spec, Heap::new).expect("verified");
            for _ in 0..3 {
                let (threads, _) = run_threads(&spec, &mut Silent).expect("verified");
                assert_eq!(threads, turns, "{spec}");
            }
        }
    }
}

#[test]
fn another_seed_gives_another_result() {
    // Nothing in the specifications of BT, LU and SP is drawn.
    let drawn = |name: &WorkloadName| {
        !matches!(name, WorkloadName::NpbBt | WorkloadName::NpbLu | WorkloadName::NpbSp)
    };
    for name in WorkloadName::ALL.into_iter().filter(drawn) {
        let checksum = |seed| {
            let spec = WorkloadSpec { seed, ..small(name, "") };
            run_serially(&spec, Heap::new).expect("verified").checksum
        };
        assert_ne!(checksum(1), checksum(2), "{name}");
    }
}

/// The results are a contract: recorded runs stay comparable. Change an algorithm on purpose
/// only, and then write the new digests here.
#[test]
fn results_are_those_recorded() {
    let got: Vec<String> = WorkloadName::ALL
        .iter()
        .map(|name| {
            let outcome = run_serially(&small(*name, ",seed=7"), Heap::new).expect("verified");
            format!("{name} {} {:016x}", outcome.accesses, outcome.checksum)
        })
        .collect();
    assert_eq!(got.join("\n"), include_str!("results.txt").trim());
}

#[test]
fn a_time_limit_ends_every_workload() {
    for name in WorkloadName::ALL {
        let spec = small(name, ",seconds=0.02");
        let (_, timing) = run_threads(&spec, &mut Silent).expect("verified");
        assert!(timing.phase.as_secs_f64() < 5.0, "{name} took {}", timing.phase);
    }
}

/// Counts accesses by page.
struct Counting {
    heap: Heap,
    pages: Vec<AtomicU64>,
    order: Vec<AtomicU64>,
    touched: AtomicU64,
}

impl Counting {
    fn new(words: usize) -> Self {
        let zeroes = || (0..words.div_ceil(512)).map(|_| AtomicU64::new(0)).collect();
        Self {
            heap: Heap::new(words),
            pages: zeroes(),
            order: zeroes(),
            touched: AtomicU64::new(0),
        }
    }

    fn count(&self, word: usize) {
        if self.pages[word / 512].fetch_add(1, Ordering::Relaxed) == 0 {
            let rank = self.touched.fetch_add(1, Ordering::Relaxed);
            self.order[word / 512].store(rank, Ordering::Relaxed);
        }
    }
}

impl WordMemory for &Counting {
    fn load(&self, word: usize) -> u64 {
        self.count(word);
        self.heap.load(word)
    }
    fn store(&self, word: usize, value: u64) {
        self.count(word);
        self.heap.store(word, value);
    }
}

#[test]
fn hot_pages_of_skew_are_touched_last_and_take_four_fifths() {
    for layout in ["contiguous", "scattered"] {
        let spec =
            WorkloadSpec::parse(&format!("skew,fast=4MiB,accesses=2M,hot=read,layout={layout}"))
                .expect("a valid specification");
        let mut recorder = None;
        let outcome = run_serially(&spec, |words| {
            // Lives to the end of the test program: the algorithm borrows it, we look after it.
            let counting: &'static Counting = Box::leak(Box::new(Counting::new(words)));
            recorder = Some(counting);
            counting
        })
        .expect("verified");
        let counting = recorder.expect("made by the run");
        let cold = 1024;
        // Each word is stored once at first touch and hot ones are loaded once by the check.
        let accesses: Vec<(u64, u64)> = counting
            .pages
            .iter()
            .zip(&counting.order)
            .map(|(n, rank)| (n.load(Ordering::Relaxed), rank.load(Ordering::Relaxed)))
            .filter(|(n, _)| *n > 0)
            .map(|(n, rank)| (n - if rank >= cold { 1024 } else { 512 }, rank))
            .collect();
        let hot: u64 = accesses.iter().filter(|(_, rank)| *rank >= cold).map(|(n, _)| n).sum();
        let share = hot as f64 / outcome.accesses as f64;
        assert!((share - 0.8).abs() < 0.01, "{layout}: {share}");
        let hot_pages = accesses.iter().filter(|(_, rank)| *rank >= cold).count();
        assert_eq!((accesses.len(), hot_pages), (1024 + 341, 341), "{layout}");
        assert_eq!(accesses.iter().map(|(n, _)| n).sum::<u64>(), outcome.accesses);
    }
}
