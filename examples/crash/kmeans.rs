//! kmeans, as kmeans.c: points go to the nearest of some centres, centres to the middle of their
//! points, until almost no point changes sides. The exit status says whether that came about.
//!
//!     rustc -O -g kmeans.rs
//!     terrace crash run -- ./kmeans S

mod npb;
mod terrace_crash;

use npb::{draw, SharedNumbers};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use terrace_crash::{cache_line_write_back, write_back_invalidate_cache, CrashRegion};

const DIMENSIONS: usize = 34;
const CENTRES: usize = 5;
const MOST_ITERATIONS: i32 = 500;
/// Sums of a centre's points, and their count.
const SUMS: usize = CENTRES * (DIMENSIONS + 1);

fn nearest(point: &[f32], centres: &SharedNumbers) -> usize {
    let distance = |centre: usize| -> f64 {
        let step = |(d, x): (usize, &f32)| f64::from(*x) - centres.get(centre * DIMENSIONS + d);
        point.iter().enumerate().map(step).map(|step| step * step).sum()
    };
    (0..CENTRES).map(|c| (distance(c), c)).min_by(|a, b| a.0.total_cmp(&b.0)).map_or(0, |(_, c)| c)
}

fn main() {
    let (class, team) = npb::arguments("SWAB");
    let points = match class {
        'S' => 4000,
        'W' => 40_000,
        'A' => 494_020,
        _ => 819_200,
    };
    // Clouds that overlap, so that it takes a while.
    let (mut random, mut data) = (npb::SEED, Vec::with_capacity(points * DIMENSIONS));
    for _ in 0..points {
        let cloud = (draw(&mut random) * 8.0).floor();
        data.extend(
            (0..DIMENSIONS)
                .map(|d| (draw(&mut random) * 2.0 + (cloud * (d + 1) as f64).sin() * 0.6) as f32),
        );
    }
    let centres = SharedNumbers::new(CENTRES * DIMENSIONS);
    (0..CENTRES * DIMENSIONS).for_each(|i| centres.set(i, data[i].into()));
    let partial = SharedNumbers::new(team.threads * SUMS);
    let (done, converged) = (AtomicI32::new(0), AtomicBool::new(false));

    let mut region = CrashRegion::default();
    // SAFETY: both are atomics, and stay to the end.
    unsafe {
        region.critical_data("centers", centres.pointer(), CENTRES * DIMENSIONS);
        region.consistent_data("done", done.as_ptr(), 1);
    }
    let first = region.crash_restore() as i32 + 1;
    if !(1..=MOST_ITERATIONS + 1).contains(&first) {
        std::process::exit(1);
    }
    write_back_invalidate_cache();
    region.start_crash();
    team.run(|thread| {
        let share = team.share(thread, points);
        let mut members = vec![usize::MAX; share.len()];
        for it in first..=MOST_ITERATIONS {
            let (mut changed, mut sums) = (0.0, [0.0; SUMS]);
            for (i, member) in share.clone().zip(&mut members) {
                let point = &data[i * DIMENSIONS..][..DIMENSIONS];
                let centre = nearest(point, &centres);
                changed += f64::from(u8::from(*member != centre));
                *member = centre;
                let own = &mut sums[centre * (DIMENSIONS + 1)..][..=DIMENSIONS];
                own.iter_mut().zip(point).for_each(|(sum, x)| *sum += f64::from(*x));
                own[DIMENSIONS] += 1.0;
            }
            sums.iter().enumerate().for_each(|(i, sum)| partial.set(thread * SUMS + i, *sum));
            let changed = team.sum(thread, changed);
            if thread == 0 {
                let all = |i: usize| -> f64 {
                    (0..team.threads).map(|t| partial.get(t * SUMS + i)).sum()
                };
                for c in 0..CENTRES {
                    let count = all(c * (DIMENSIONS + 1) + DIMENSIONS);
                    for d in (0..DIMENSIONS).filter(|_| count > 0.0) {
                        centres.set(c * DIMENSIONS + d, all(c * (DIMENSIONS + 1) + d) / count);
                    }
                }
                converged.store(changed <= points as f64 * 0.001, Ordering::Relaxed);
                done.store(it, Ordering::Relaxed);
                cache_line_write_back(&done);
            }
            team.meet();
            if converged.load(Ordering::Relaxed) {
                break;
            }
        }
    });
    region.end_crash();
    let good = converged.into_inner();
    println!("{} iterations: {}", done.into_inner(), if good { "converged" } else { "no end" });
    std::process::exit(i32::from(!good));
}
