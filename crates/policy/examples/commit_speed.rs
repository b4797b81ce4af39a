//! How long the commit solver takes for many objects, and how near it comes to the bound. Figures
//! for a person to read; `cargo run --release -p terrace-policy --example commit_speed [OBJECTS]`.
#![forbid(unsafe_code)]

use std::time::Instant;
use terrace_policy::solve::{solve, Object, PlacementProblem, SolverTier, TierSplit};
use terrace_types::{Bytes, Seed};

const PAGE: u64 = 4096;

fn problem(objects: u64, tiers: usize, seed: u64, distinct: bool) -> PlacementProblem {
    let mut seed = Seed(seed);
    let mut draw = move |below: u64| {
        let (x, next) = seed.next();
        seed = next;
        x % below
    };
    let mut all = 0;
    let others: Vec<usize> = (1..tiers).collect();
    let objects: Vec<Object> = (0..objects)
        .map(|_| {
            let granules = if draw(4) == 0 { 512 + draw(4096) } else { 1 + draw(512) };
            all += granules;
            let steps = if distinct { 100_000 } else { 4 };
            Object {
                priority: 1.0 + draw(4) as f64,
                reads: 1.0 + draw(steps) as f64 / 100.0,
                writes: draw(steps) as f64 / 100.0,
                size: Bytes(granules * PAGE),
                wanted: vec![0],
                fallback: others.clone(),
                split: TierSplit::Free,
                strict: false,
                whole: granules < 512,
            }
        })
        .collect();
    let tiers = (0..tiers)
        .map(|t| {
            let share = if t + 1 == tiers { 1.0 } else { 0.66 / tiers as f64 };
            let gain = 1.0 / (1.0 + t as f64);
            let capacity = Bytes((all as f64 * share) as u64 * PAGE);
            SolverTier { capacity, read_gain: gain, write_gain: gain * 0.8 }
        })
        .collect();
    PlacementProblem { granule: Bytes(PAGE), tiers, objects }
}

fn main() {
    let objects = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10_000);
    for (tiers, distinct) in [(2, true), (2, false), (3, true), (4, true), (8, true)] {
        let mut millis = Vec::new();
        let mut worst = 1.0_f64;
        for seed in 0..9 {
            let p = problem(objects, tiers, seed, distinct);
            let start = Instant::now();
            let solved = solve(&p);
            millis.push(start.elapsed().as_secs_f64() * 1e3);
            if let Ok(s) = solved {
                worst = worst.min(s.value / s.bound);
            }
        }
        millis.sort_by(f64::total_cmp);
        let kind = if distinct { "all different" } else { "few kinds" };
        println!(
            "{objects} objects, {tiers} tiers, {kind}: median {:.2} ms (best {:.2}), at least \
                {:.5} of the bound",
            millis[4], millis[0], worst
        );
    }
}
