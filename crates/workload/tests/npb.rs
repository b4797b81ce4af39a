//! The kernels of the NAS Parallel Benchmarks: class S against the published verification values,
//! which `finish` of each compares with; and that sizes come near what is asked for.

use std::sync::atomic::{AtomicU64, Ordering};
use terrace_workload::{
    conduct, run_serially, Algorithm, Heap, WordMemory, WorkloadRunner, WorkloadSpec,
};

#[test]
fn class_s_gives_the_published_values() {
    for name in ["npb-cg", "npb-mg", "npb-ft", "npb-bt", "npb-is", "npb-lu", "npb-sp"] {
        for threads in [1, 3] {
            let spec =
                WorkloadSpec::parse(&format!("{name},class=S,threads={threads}")).expect("valid");
            if let Err(wrong) = run_serially(&spec, Heap::new) {
                panic!("{spec}: {wrong}");
            }
        }
    }
}

/// Memory that knows what the algorithm's own heap holds.
struct ReportingHeap(Heap, AtomicU64);

impl WordMemory for ReportingHeap {
    fn load(&self, word: usize) -> u64 {
        self.0.load(word)
    }
    fn store(&self, word: usize, value: u64) {
        self.0.store(word, value);
    }
    fn reserve_bytes(&self, bytes: u64) {
        self.1.store(bytes, Ordering::Relaxed);
    }
}

/// Bytes that the program has once its data is made.
struct Size;

impl WorkloadRunner for Size {
    type Out = u64;
    fn conduct<A: Algorithm>(self, mut algorithm: A, _: &WorkloadSpec) -> u64 {
        let words = algorithm.words();
        let memory = ReportingHeap(Heap::new(words), AtomicU64::new(0));
        algorithm.prepare(&memory);
        words as u64 * 8 + memory.1.into_inner()
    }
}

#[test]
fn sizes_come_near_what_is_asked_for() {
    // FT's grids are powers of two: at most a factor of the root of two off.
    for (name, off) in [
        ("npb-cg", 0.03),
        ("npb-bt", 0.08),
        ("npb-lu", 0.08),
        ("npb-sp", 0.08),
        ("npb-mg", 0.2),
        ("npb-ft", 0.42),
        ("npb-is", 0.03),
        ("graph-pagerank", 0.3),
    ] {
        for share in ["0.56", "0.89", "1.24", "2.32", "4.69"] {
            let spec =
                WorkloadSpec::parse(&format!("{name},fast=8MiB,size={share}")).expect("valid");
            let asked = spec.size.bytes(spec.fast).0 as f64;
            let ratio = conduct(&spec, Size) as f64 / asked;
            assert!((1.0 / (1.0 + off)..1.0 + off).contains(&ratio), "{spec}: {ratio}");
        }
    }
}
