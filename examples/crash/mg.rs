//! npb-mg, as mg.c: V-cycles of a multigrid solver for a Poisson problem on a periodic grid, its
//! right side zero but for twenty charges (RNR-94-007, section 2.2.2; sizes, smoothers and norms
//! of the classes: NPB 3.4). The residual's norm decides the exit status.
//!
//!     rustc -O -g mg.rs
//!     terrace crash run --phases 2 -- ./mg S

mod npb;
mod terrace_crash;

use npb::{draw, SharedNumbers, Team};
use std::sync::atomic::{AtomicI32, Ordering};
use terrace_crash::{cache_line_write_back, write_back_invalidate_cache, CrashRegion};

const CHARGES: usize = 10;

/// Weights of a point, its face, edge and corner neighbours.
type Weights = [f64; 4];
const OPERATOR: Weights = [-8.0 / 3.0, 0.0, 1.0 / 6.0, 1.0 / 12.0];
const RESTRICTION: Weights = [0.5, 0.25, 0.125, 0.0625];
const SMOOTHER: Weights = [-3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0, 0.0];
const SMOOTHER_B: Weights = [-3.0 / 17.0, 1.0 / 33.0, -1.0 / 61.0, 0.0];

struct Class {
    side: usize,
    iterations: i32,
    smoother: Weights,
    norm: f64,
}

impl Class {
    const fn new(side: usize, iterations: i32, smoother: Weights, norm: f64) -> Self {
        Self { side, iterations, smoother, norm }
    }
}

const S: Class = Class::new(32, 4, SMOOTHER, 0.530_770_700_573_4e-4);
const W: Class = Class::new(128, 4, SMOOTHER, 0.646_732_937_533_9e-5);
const A: Class = Class::new(256, 4, SMOOTHER, 0.243_336_530_906_9e-5);
const B: Class = Class::new(256, 20, SMOOTHER_B, 0.180_056_440_135_5e-5);

/// A cube of points on a torus, x fastest.
#[derive(Clone, Copy)]
struct Grid<'a> {
    numbers: &'a SharedNumbers,
    first: usize,
    side: usize,
}

impl Grid<'_> {
    /// Where the row with these coordinates begins.
    fn row(&self, y: isize, z: isize) -> usize {
        let n = self.side as isize;
        self.first + ((z.rem_euclid(n) * n + y.rem_euclid(n)) * n) as usize
    }

    /// Weighted sums of all neighbours of a row's points.
    fn stencil(&self, y: usize, z: usize, w: &Weights, out: &mut [f64]) {
        let (n, y, z) = (self.side, y as isize, z as isize);
        let sums = |rows: [(isize, isize); 4]| -> Vec<f64> {
            let starts = rows.map(|(dy, dz)| self.row(y + dy, z + dz));
            (0..n).map(|x| starts.iter().map(|start| self.numbers.get(start + x)).sum()).collect()
        };
        let faces = sums([(-1, 0), (1, 0), (0, -1), (0, 1)]);
        let edges = sums([(-1, -1), (1, -1), (-1, 1), (1, 1)]);
        let own = self.row(y, z);
        let centre = |x: usize| self.numbers.get(own + x);
        for (x, out) in out.iter_mut().enumerate().take(n) {
            let (b, a) = (if x > 0 { x - 1 } else { n - 1 }, if x + 1 < n { x + 1 } else { 0 });
            *out = w[0] * centre(x)
                + w[1] * (centre(b) + centre(a) + faces[x])
                + w[2] * (edges[x] + faces[b] + faces[a])
                + w[3] * (edges[b] + edges[a]);
        }
    }
}

/// All grids, the finest first.
struct Solver<'a> {
    team: &'a Team,
    smoother: Weights,
    /// Side and first point of each level.
    levels: Vec<(usize, usize)>,
    u: SharedNumbers,
    r: SharedNumbers,
    /// The right side, of the finest level.
    v: SharedNumbers,
}

impl<'a> Solver<'a> {
    fn new(class: &Class, team: &'a Team) -> Self {
        let (mut levels, mut points, mut side) = (Vec::new(), 0, class.side);
        while side >= 2 {
            levels.push((side, points));
            points += side.pow(3);
            side /= 2;
        }
        let v = SharedNumbers::new(class.side.pow(3));
        place_charges(&v, class.side.pow(3));
        let (u, r) = (SharedNumbers::new(points), SharedNumbers::new(points));
        Self { team, smoother: class.smoother, levels, u, r, v }
    }

    fn points(&self) -> usize {
        self.levels.iter().map(|(side, _)| side.pow(3)).sum()
    }

    fn grid<'g>(&self, numbers: &'g SharedNumbers, level: usize) -> Grid<'g> {
        let (side, first) = self.levels[level];
        Grid { numbers, first, side }
    }

    /// Does something with each of a thread's rows of a level: y, z and where it begins.
    fn each_row(&self, thread: usize, level: usize, mut work: impl FnMut(usize, usize, usize)) {
        let (n, first) = self.levels[level];
        for row in self.team.share(thread, n * n) {
            work(row % n, row / n, first + row * n);
        }
    }

    /// r = right - A u; the right side is v on the finest level, else what r was. Gives the sum of
    /// its squares.
    fn residual(&self, thread: usize, level: usize) -> f64 {
        let (u, right) = (self.grid(&self.u, level), if level > 0 { &self.r } else { &self.v });
        let (mut sums, mut square) = (vec![0.0; u.side], 0.0);
        self.each_row(thread, level, |y, z, at| {
            u.stencil(y, z, &OPERATOR, &mut sums);
            for (at, sum) in (at..).zip(&sums) {
                let rest = right.get(at) - sum;
                self.r.set(at, rest);
                square += rest * rest;
            }
        });
        self.team.sum(thread, square)
    }

    /// Coarse point c lies on fine point 2 c + 1.
    fn restrict(&self, thread: usize, level: usize) {
        let fine = self.grid(&self.r, level - 1);
        let mut sums = vec![0.0; fine.side];
        self.each_row(thread, level, |y, z, at| {
            fine.stencil(2 * y + 1, 2 * z + 1, &RESTRICTION, &mut sums);
            (at..).zip(sums.iter().skip(1).step_by(2)).for_each(|(at, sum)| self.r.set(at, *sum));
        });
        self.team.meet();
    }

    /// u = u + S r; on the coarsest level, u = S r.
    fn smooth(&self, thread: usize, level: usize) {
        let (r, coarsest) = (self.grid(&self.r, level), level + 1 == self.levels.len());
        let mut sums = vec![0.0; r.side];
        self.each_row(thread, level, |y, z, at| {
            r.stencil(y, z, &self.smoother, &mut sums);
            for (at, sum) in (at..).zip(&sums) {
                self.u.set(at, if coarsest { *sum } else { self.u.get(at) + sum });
            }
        });
        self.team.meet();
    }

    /// A fine row from the coarse rows that it lies on or between; added on the finest level.
    fn interpolate(&self, thread: usize, level: usize) {
        let coarse = self.grid(&self.u, level + 1);
        self.each_row(thread, level, |y, z, at| {
            let below = |c: usize| (c as isize - 1).div_euclid(2);
            let (y0, z0, y1, z1) = (below(y), below(z), y as isize / 2, z as isize / 2);
            let rows = [(y0, z0), (y1, z0), (y0, z1), (y1, z1)].map(|(y, z)| coarse.row(y, z));
            let mean = |x: usize| {
                rows.iter().map(|start| coarse.numbers.get(start + x)).sum::<f64>() / 4.0
            };
            let put = |at, value| {
                let old = if level == 0 { self.u.get(at) } else { 0.0 };
                self.u.set(at, old + value);
            };
            let mut left = mean(coarse.side - 1);
            for x in 0..coarse.side {
                let here = mean(x);
                put(at + 2 * x, 0.5 * (left + here));
                put(at + 2 * x + 1, here);
                left = here;
            }
        });
        self.team.meet();
    }

    /// From the finest level to the coarsest and back; the sum of the residual's squares.
    fn cycle(&self, thread: usize) -> f64 {
        let levels = self.levels.len();
        (1..levels).for_each(|level| self.restrict(thread, level));
        self.smooth(thread, levels - 1);
        for level in (0..levels - 1).rev() {
            self.interpolate(thread, level);
            self.residual(thread, level);
            self.smooth(thread, level);
        }
        self.residual(thread, 0)
    }
}

/// Charges at the places of the ten largest and the ten smallest random numbers.
fn place_charges(v: &SharedNumbers, count: usize) {
    let mut random = npb::SEED;
    let mut found: [Vec<(f64, usize)>; 2] = Default::default();
    for place in 0..count {
        let number = draw(&mut random);
        for (found, value) in found.iter_mut().zip([number, -number]) {
            let at = found.partition_point(|(other, _)| *other >= value);
            if at < CHARGES {
                found.insert(at, (value, place));
                found.truncate(CHARGES);
            }
        }
    }
    for (found, charge) in found.iter().zip([1.0, -1.0]) {
        found.iter().for_each(|(_, place)| v.set(*place, charge));
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
    let solver = Solver::new(&class, &team);
    let (square, done) = (SharedNumbers::new(1), AtomicI32::new(0));

    let mut region = CrashRegion::default();
    // SAFETY: all are atomics, and stay to the end.
    unsafe {
        region.critical_data("u", solver.u.pointer(), solver.points());
        region.critical_data("r", solver.r.pointer(), solver.points());
        region.consistent_data("done", done.as_ptr(), 1);
    }
    let first = region.crash_restore() as i32 + 1;
    if !(1..=class.iterations + 1).contains(&first) {
        std::process::exit(1);
    }
    write_back_invalidate_cache();
    region.start_crash();
    team.run(|thread| {
        if first == 1 {
            solver.residual(thread, 0);
        }
        for it in first..=class.iterations {
            let sum = solver.cycle(thread);
            if thread == 0 {
                square.set(0, sum);
                done.store(it, Ordering::Relaxed);
                cache_line_write_back(&done);
            }
            team.meet();
        }
    });
    region.end_crash();
    let norm = (square.get(0) / class.side.pow(3) as f64).sqrt();
    let good = ((norm - class.norm) / class.norm).abs() <= 1e-8;
    let verdict = if good { "successful" } else { "FAILED" };
    println!("norm {norm:.13e}, published {:.13e}: verification {verdict}", class.norm);
    std::process::exit(i32::from(!good));
}
