//! How many accesses a second the caches take: `cargo run --release -p terrace-cache --example
//! speed`.
//!
//! Prints millions of accesses a second of a three-level hierarchy and, for a ratio, of one plain
//! LRU cache on the same streams. Host time: compare figures of one run only.

use std::time::Instant;
use terrace_cache::{Cache, Hierarchy, HierarchySpec, LevelSpec};

const ACCESSES: u64 = 20_000_000;

/// The line of access `i`, and whether it is a store.
type Stream = fn(u64) -> (u64, bool);

fn mixed(i: u64) -> u64 {
    let x = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ x >> 29
}

const STREAMS: [(&str, Stream); 4] = [
    ("sequential words", |i| (i / 8 % (1 << 22), i % 4 == 0)),
    ("hot and random, fits the second level", |i| (mixed(i) % 8_000, i % 4 == 0)),
    ("mixed: nine tenths of it hot", |i| {
        (if i % 10 == 0 { mixed(i) % (1 << 24) } else { mixed(i) % 400 }, i % 4 == 0)
    }),
    ("every access misses", |i| (mixed(i) % (1 << 26), i % 4 == 0)),
];

fn rate(run: impl FnOnce() -> u64) -> (f64, u64) {
    let start = Instant::now();
    let sum = run();
    (ACCESSES as f64 / start.elapsed().as_secs_f64() / 1e6, sum)
}

fn main() {
    let levels = vec![
        LevelSpec::new(32 << 10, 8, false),
        LevelSpec::new(1 << 20, 16, false),
        LevelSpec::new(22 << 20, 11, true),
    ];
    let spec = HierarchySpec { cores: 1, line: 64, levels };
    println!("{:<40}{:>14}{:>14}{:>8}", "M accesses/s", "three levels", "one LRU", "ratio");
    for (name, stream) in STREAMS {
        let (three, hits) = rate(|| match Hierarchy::new(&spec) {
            Ok(mut h) => {
                let mut written = 0;
                for i in 0..ACCESSES {
                    let (line, write) = stream(i);
                    h.access_line(0, line, write, &mut |_| written += 1);
                }
                written
            }
            Err(_) => 0,
        });
        let (one, more) = rate(|| match Cache::new(32 << 10, 8, 64) {
            Ok(mut c) => (0..ACCESSES)
                .filter(|i| {
                    let (l, w) = stream(*i);
                    c.access(l, w) == terrace_cache::LruOutcome::Hit
                })
                .count() as u64,
            Err(_) => 0,
        });
        println!("{name:<40}{three:>14.0}{one:>14.0}{:>8.2}   ({hits}, {more})", three / one);
    }
}
