//! npb-ft, as ft.c: a diffusion equation in three dimensions, solved in Fourier space: one
//! transform forward, then in each iteration all coefficients evolve, are transformed back, and a
//! checksum is taken (RNR-94-007, section 2.2.4; sizes and checksums of the classes: NPB 3.4).
//! Verification of each iteration decides the exit status. Its phases are those of the paper
//! (section 4.4): evolution, then transforms along the third, second and first dimension.
//!
//!     rustc -O -g ft.rs
//!     terrace crash run -- ./ft S 1 1                     one thread, one iteration

mod npb;
mod terrace_crash;

use npb::{draw, SharedNumbers, Team};
use std::f64::consts::PI;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use terrace_crash::{cache_line_write_back, crash_phase, write_back_invalidate_cache, CrashRegion};

const ALPHA: f64 = 1e-6;
const CHECKED: usize = 1024;
/// Lines that are transformed together, so that cache lines are used whole.
const LINES: usize = 16;

struct Class {
    sides: [usize; 3],
    iterations: i32,
    /// Of the first iterations.
    checksums: &'static [(f64, f64)],
}

const S: Class = Class {
    sides: [64; 3],
    iterations: 6,
    checksums: &[
        (554.608_700_496_4, 484.536_333_197_8),
        (554.638_540_919_0, 486.530_426_951_1),
        (554.614_840_617_1, 488.391_072_233_7),
        (554.542_360_741_5, 490.127_316_904_6),
        (554.425_503_962_4, 491.747_585_799_3),
        (554.268_341_190_3, 493.259_724_494_1),
    ],
};
const W: Class = Class {
    sides: [128, 128, 32],
    iterations: 6,
    checksums: &[(567.361_217_894_4, 529.324_684_917_5)],
};
const A: Class = Class {
    sides: [256, 256, 128],
    iterations: 6,
    checksums: &[(504.673_500_819_3, 511.404_790_551_0)],
};
const B: Class = Class {
    sides: [512, 256, 256],
    iterations: 20,
    checksums: &[(517.764_357_157_9, 507.780_345_859_7)],
};

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Complex {
    re: f64,
    im: f64,
}

/// Numbers that all threads read, and each thread writes in part.
struct SharedPoints(SharedNumbers);

impl SharedPoints {
    fn new(count: usize) -> Self {
        Self(SharedNumbers::new(2 * count))
    }

    fn get(&self, at: usize) -> Complex {
        Complex { re: self.0.get(2 * at), im: self.0.get(2 * at + 1) }
    }

    fn set(&self, at: usize, point: Complex) {
        self.0.set(2 * at, point.re);
        self.0.set(2 * at + 1, point.im);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Back,
}

/// Lines next to one another: the first point, how many, the way to the next line and the way to
/// the next point of a line.
struct LineGroup {
    first: usize,
    lines: usize,
    line_step: usize,
    step: usize,
}

/// What all transforms need: factors of evolution and exp(2 pi i k / n), by dimension.
struct Tables {
    sides: [usize; 3],
    factors: [Vec<f64>; 3],
    roots: [Vec<Complex>; 3],
}

impl Tables {
    fn new(sides: [usize; 3]) -> Self {
        let factor = |n: usize, i: usize| {
            let k = if i >= n / 2 { i as f64 - n as f64 } else { i as f64 };
            (-4.0 * ALPHA * PI * PI * k * k).exp()
        };
        let root = |n: usize, k: usize| {
            let angle = 2.0 * PI * k as f64 / n as f64;
            Complex { re: angle.cos(), im: angle.sin() }
        };
        Self {
            sides,
            factors: sides.map(|n| (0..n).map(|i| factor(n, i)).collect()),
            roots: sides.map(|n| (0..n / 2).map(|k| root(n, k)).collect()),
        }
    }

    fn points(&self) -> usize {
        self.sides.iter().product()
    }

    fn group(&self, dimension: usize, unit: usize) -> LineGroup {
        let [nx, ny, nz] = self.sides;
        if dimension == 0 {
            let first = unit * LINES;
            let lines = LINES.min(ny * nz - first);
            return LineGroup { first: first * nx, lines, line_step: nx, step: 1 };
        }
        let each = nx.div_ceil(LINES);
        let (outer, x) = (unit / each, unit % each * LINES);
        let (first, step) =
            if dimension == 1 { (outer * nx * ny + x, nx) } else { (outer * nx + x, nx * ny) };
        LineGroup { first, lines: LINES.min(nx - x), line_step: 1, step }
    }

    /// All lines along a dimension; each thread has some.
    fn transform(
        &self,
        (team, thread): (&Team, usize),
        array: &SharedPoints,
        dimension: usize,
        direction: Direction,
    ) {
        let [nx, ny, nz] = self.sides;
        let (n, each) = (self.sides[dimension], nx.div_ceil(LINES));
        let units = [(ny * nz).div_ceil(LINES), each * nz, each * ny][dimension];
        let mut buffer = vec![Complex::default(); LINES * n];
        let reversed = |i: usize| i.reverse_bits() >> (usize::BITS - n.trailing_zeros());
        for unit in team.share(thread, units) {
            let group = self.group(dimension, unit);
            let place = |line, i| group.first + line * group.line_step + i * group.step;
            for i in 0..n {
                for line in 0..group.lines {
                    buffer[line * n + reversed(i)] = array.get(place(line, i));
                }
            }
            for line in buffer.chunks_mut(n).take(group.lines) {
                transform_line(line, &self.roots[dimension], direction);
            }
            for i in 0..n {
                for line in 0..group.lines {
                    array.set(place(line, i), buffer[line * n + i]);
                }
            }
        }
        team.meet();
    }

    fn evolve(&self, (team, thread): (&Team, usize), u0: &SharedPoints, u1: &SharedPoints) {
        let [nx, ny, nz] = self.sides;
        for row in team.share(thread, ny * nz) {
            let factor = self.factors[1][row % ny] * self.factors[2][row / ny];
            for x in 0..nx {
                let Complex { re, im } = u0.get(row * nx + x);
                let factor = factor * self.factors[0][x];
                let point = Complex { re: re * factor, im: im * factor };
                u0.set(row * nx + x, point);
                u1.set(row * nx + x, point);
            }
        }
        team.meet();
    }

    fn checksum(&self, u1: &SharedPoints) -> (f64, f64) {
        let [nx, ny, nz] = self.sides;
        let (mut re, mut im) = (0.0, 0.0);
        for j in 1..=CHECKED {
            let point = u1.get((5 * j % nz * ny + 3 * j % ny) * nx + j % nx);
            (re, im) = (re + point.re, im + point.im);
        }
        let points = self.points() as f64;
        (re / points, im / points)
    }
}

/// Butterflies on a line in bit-reversed order.
fn transform_line(line: &mut [Complex], roots: &[Complex], direction: Direction) {
    let n = line.len();
    let sign = if direction == Direction::Back { -1.0 } else { 1.0 };
    let mut half = 1;
    while half < n {
        for group in line.chunks_exact_mut(2 * half) {
            let (low, high) = group.split_at_mut(half);
            for (k, (a, b)) in low.iter_mut().zip(high).enumerate() {
                let Complex { re: c, im: s } = roots[k * (n / 2 / half)];
                let s = sign * s;
                let t = Complex { re: b.re * c - b.im * s, im: b.re * s + b.im * c };
                *b = Complex { re: a.re - t.re, im: a.im - t.im };
                *a = Complex { re: a.re + t.re, im: a.im + t.im };
            }
        }
        half *= 2;
    }
}

/// Whether a checksum is the published one; beyond those published, whether it is a number.
fn is_good(class: &Class, it: i32, (re, im): (f64, f64)) -> bool {
    let close = |value: f64, published: f64| ((value - published) / published).abs() <= 1e-12;
    match class.checksums.get(it as usize - 1) {
        Some(published) => close(re, published.0) && close(im, published.1),
        None => re.is_finite() && im.is_finite(),
    }
}

fn main() {
    let (class, team) = npb::arguments("SWAB");
    let class = match class {
        'S' => S,
        'W' => W,
        'A' => A,
        _ => B,
    };
    let iterations = std::env::args().nth(3).and_then(|word| word.parse().ok());
    let iterations: i32 = iterations.unwrap_or(class.iterations);
    let tables = Tables::new(class.sides);
    let points = tables.points();
    let (u0, u1) = (SharedPoints::new(points), SharedPoints::new(points));
    let mut random = npb::SEED;
    (0..2 * points).for_each(|i| u0.0.set(i, draw(&mut random)));
    team.run(|thread| {
        (0..3).for_each(|d| tables.transform((&team, thread), &u0, d, Direction::Forward));
    });
    let (done, wrong) = (AtomicI32::new(0), AtomicBool::new(false));

    let mut region = CrashRegion::default();
    // SAFETY: all are atomics, and stay to the end.
    unsafe {
        region.critical_data("u0", u0.0.pointer().cast::<Complex>(), points);
        region.critical_data("u1", u1.0.pointer().cast::<Complex>(), points);
        region.consistent_data("done", done.as_ptr(), 1);
    }
    let first = region.crash_restore() as i32 + 1;
    if !(1..=iterations + 1).contains(&first) {
        std::process::exit(1);
    }
    write_back_invalidate_cache();
    region.start_crash();
    team.run(|thread| {
        for it in first..=iterations {
            let back = |dimension| {
                tables.transform((&team, thread), &u1, dimension, Direction::Back);
            };
            let mark = |phase: fn()| {
                if thread == 0 {
                    phase();
                }
            };
            mark(crash_phase::<1>);
            tables.evolve((&team, thread), &u0, &u1);
            mark(crash_phase::<2>);
            back(2);
            mark(crash_phase::<3>);
            back(1);
            mark(crash_phase::<4>);
            back(0);
            if thread == 0 {
                let sum = tables.checksum(&u1);
                println!("checksum {it}: {:.10} {:.10}", sum.0, sum.1);
                wrong.fetch_or(!is_good(&class, it, sum), Ordering::Relaxed);
                done.store(it, Ordering::Relaxed);
                cache_line_write_back(&done);
            }
            team.meet();
        }
    });
    region.end_crash();
    let wrong = wrong.into_inner();
    println!("verification {}", if wrong { "FAILED" } else { "successful" });
    std::process::exit(i32::from(wrong));
}
