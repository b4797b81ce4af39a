//! What the benchmarks in Rust share, as npb.h does for those in C: random numbers (Bailey et al.,
//! "The NAS Parallel Benchmarks", RNR-94-007, section 2.3), numbers that threads share, threads
//! that meet, sums, the command line.
#![allow(dead_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Barrier;

const MASK: u64 = (1 << 46) - 1;
const MULTIPLIER: u64 = 1_220_703_125;
pub const SEED: u64 = 314_159_265;
const MOST_THREADS: usize = 64;

pub fn draw(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(MULTIPLIER) & MASK;
    *state as f64 / (MASK + 1) as f64
}

/// Numbers that all threads read, and each thread writes in part.
pub struct SharedNumbers(Vec<AtomicU64>);

impl SharedNumbers {
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| AtomicU64::new(0)).collect())
    }

    pub fn pointer(&self) -> *mut f64 {
        self.0.as_ptr().cast_mut().cast()
    }

    #[inline]
    pub fn get(&self, at: usize) -> f64 {
        f64::from_bits(self.0[at].load(Ordering::Relaxed))
    }

    #[inline]
    pub fn set(&self, at: usize, value: f64) {
        self.0[at].store(value.to_bits(), Ordering::Relaxed);
    }
}

/// Threads and where they meet.
pub struct Team {
    pub threads: usize,
    barrier: Barrier,
    /// Of each thread, in a line of its own.
    partial: SharedNumbers,
}

impl Team {
    fn new(threads: usize) -> Self {
        let partial = SharedNumbers::new(threads * 8);
        Self { threads, barrier: Barrier::new(threads), partial }
    }

    pub fn meet(&self) {
        if self.threads > 1 {
            self.barrier.wait();
        }
    }

    /// The sum of what all threads hand in, the same in each and in every run.
    pub fn sum(&self, thread: usize, value: f64) -> f64 {
        self.partial.set(thread * 8, value);
        self.meet();
        let sum = (0..self.threads).map(|thread| self.partial.get(thread * 8)).sum();
        self.meet();
        sum
    }

    /// This thread's part of `count` things.
    pub fn share(&self, thread: usize, count: usize) -> std::ops::Range<usize> {
        count * thread / self.threads..count * (thread + 1) / self.threads
    }

    pub fn run(&self, work: impl Fn(usize) + Sync) {
        std::thread::scope(|scope| {
            let work = &work;
            for thread in 1..self.threads {
                scope.spawn(move || work(thread));
            }
            work(0);
        });
    }
}

/// CLASS and THREADS from the command line.
pub fn arguments(classes: &str) -> (char, Team) {
    let mut words = std::env::args().skip(1);
    let class = words.next().and_then(|word| word.chars().next()).or(classes.chars().next());
    let threads = words.next().map_or(Some(1), |word| word.parse().ok());
    let class = class.filter(|class| classes.contains(*class));
    match (class, threads.filter(|threads| (1..=MOST_THREADS).contains(threads))) {
        (Some(class), Some(threads)) => (class, Team::new(threads)),
        _ => {
            eprintln!("usage: [CLASS [THREADS]], one of the classes {classes}");
            std::process::exit(2)
        }
    }
}
