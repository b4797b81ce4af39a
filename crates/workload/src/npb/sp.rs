//! `npb-sp`: the equations of [`super::flow`], advanced by an implicit scheme that is split by
//! direction and diagonalised, so that each line of the grid gives five scalar pentadiagonal
//! systems (RNR-94-007, section 3.3.2; T. H. Pulliam and D. S. Chaussee, "A Diagonal Form of an
//! Implicit Approximate-Factorization Algorithm", J. Comput. Phys. 39, 1981). The speed of sound,
//! an array of the original, is computed where it is used.

use super::flow::{
    dissipation, five, put_five, FlowGrid, PublishedNorms, C1, C2, C3, C4, C5, DIFFUSION,
};
use super::{iterations, must_verify};
use crate::algorithm::WrongResult;
use crate::memory::WordMemory;
use crate::pace::WorkloadPace;
use crate::spec::WorkloadSpec;
use crate::team::{get, MeetingSums, NumericalKernel};
use std::f64::consts::FRAC_1_SQRT_2;

/// Time steps of the classes by the sides of their grids: S, W and A, B, C, D, E (NPB 3.4's problem
/// definitions).
const TIME_STEPS: [(usize, f64); 6] = [
    (12, 0.015),
    (64, 0.0015),
    (102, 0.001),
    (162, 0.000_67),
    (408, 0.000_3),
    (usize::MAX, 0.000_1),
];
/// Class S: side and steps; norms (NPB 3.4, `verify.f` of SP).
const CLASS_S: (usize, u64) = (12, 100);
#[allow(clippy::excessive_precision)] // as published
const PUBLISHED: PublishedNorms = PublishedNorms {
    residuals: [
        2.747_031_545_133_947_9e-2,
        1.036_074_670_528_541_7e-2,
        1.623_574_506_509_553_2e-2,
        1.584_055_722_445_561_5e-2,
        3.484_904_060_936_246_0e-2,
    ],
    errors: [
        2.728_925_855_737_722_7e-5,
        1.036_444_664_083_728_5e-5,
        1.615_479_828_716_647_1e-5,
        1.575_070_499_448_010_2e-5,
        3.417_766_618_339_053_1e-5,
    ],
    tolerance: 1e-8,
};

/// The workload; see the module. The unit of work is one grid point visited.
#[derive(Debug)]
pub struct Sp {
    grid: FlowGrid,
    steps: u64,
    verify: bool,
}

/// Stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpStage {
    /// Velocities and the like of all points.
    Derive,
    /// The right side.
    RightSide,
    /// The right side in the characteristic variables along x.
    Transform,
    /// The systems of all lines along a dimension, and into the next one's variables.
    Solve(usize),
    /// `u` plus the solution.
    Add,
}

/// A row while it is solved: the weights of the next two rows, and the right side, of each of the
/// five systems.
#[derive(Debug, Clone, Copy, Default)]
struct SolvedRow {
    next: [f64; 5],
    after: [f64; 5],
    right: [f64; 5],
}

/// What each thread has: steps done, and a line.
#[derive(Debug, Default)]
pub struct SpThread {
    steps: u64,
    line: Vec<SolvedRow>,
}

/// A point of a line: what its systems need to know of it.
#[derive(Debug, Clone, Copy)]
struct Characteristics {
    velocity: f64,
    /// Speed of sound.
    sound: f64,
    /// Viscosity and diffusion: the largest of all components', which is heat's.
    spread: f64,
}

impl Sp {
    /// The workload as specified; all arrays together have its size.
    #[must_use]
    pub fn new(spec: &WorkloadSpec) -> Self {
        let words = spec.size.bytes(spec.fast).0 / 8;
        let side = if spec.class_s { CLASS_S.0 } else { FlowGrid::nearest_side(words) };
        let dt = TIME_STEPS.iter().find(|t| side <= t.0).map_or(1e-6, |t| t.1);
        // A step visits each point seven times.
        let steps = iterations(spec, 7 * side * side * side, CLASS_S.1);
        Self { grid: FlowGrid::new(side, dt), steps, verify: must_verify(spec) }
    }

    fn sound<M: WordMemory + ?Sized>(&self, memory: &M, point: usize) -> f64 {
        let derived = |which: usize| get(memory, self.grid.derived(which, point));
        let internal = get(memory, self.grid.u(point) + 4) - derived(4);
        (C1 * C2 * derived(5) * internal).sqrt()
    }

    fn characteristics<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        dimension: usize,
        point: usize,
    ) -> Characteristics {
        let derived = |which: usize| get(memory, self.grid.derived(which, point));
        Characteristics {
            velocity: derived(dimension),
            sound: self.sound(memory, point),
            spread: DIFFUSION[dimension] + C1 * C5 * C3 * C4 * derived(5),
        }
    }

    /// Multiplies the right side by the inverse of the first block of eigenvectors.
    fn transform<M: WordMemory + ?Sized>(&self, memory: &M, point: usize) {
        let derived = |which: usize| get(memory, self.grid.derived(which, point));
        let [u, v, w, specific, inverse] = [0, 1, 2, 3, 5].map(derived);
        let sound = self.sound(memory, point);
        let [r1, r2, r3, r4, r5] = five(memory, self.grid.right(point));
        let t1 = C2 / (sound * sound) * (specific * r1 - u * r2 - v * r3 - w * r4 + r5);
        let t2 = FRAC_1_SQRT_2 * inverse * (u * r1 - r2);
        let t3 = FRAC_1_SQRT_2 * inverse * sound * t1;
        let values = [r1 - t1, -inverse * (w * r1 - r4), inverse * (v * r1 - r3), t3 - t2, t3 + t2];
        put_five(memory, self.grid.right(point), values);
    }

    /// From the characteristic variables along `dimension` to those along the next, or to `u`'s.
    fn back<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        dimension: usize,
        point: usize,
        [r1, r2, r3, r4, r5]: [f64; 5],
    ) -> [f64; 5] {
        let half = 0.5 * (r4 + r5);
        match dimension {
            0 => {
                let t = FRAC_1_SQRT_2 * r3;
                [-r2, r1, FRAC_1_SQRT_2 * (r4 - r5), half - t, half + t]
            }
            1 => {
                let t = FRAC_1_SQRT_2 * r1;
                [FRAC_1_SQRT_2 * (r4 - r5), -r3, r2, half - t, half + t]
            }
            _ => {
                let derived = |which: usize| get(memory, self.grid.derived(which, point));
                let [u, v, w, specific] = [0, 1, 2, 3].map(derived);
                let (sound, density) = (self.sound(memory, point), get(memory, self.grid.u(point)));
                let scaled = FRAC_1_SQRT_2 * density;
                let t1 = scaled / sound * (r4 + r5);
                let t2 = r3 + t1;
                let t3 = scaled * (r4 - r5);
                [
                    t2,
                    u * t2 - density * r2,
                    v * t2 + density * r1,
                    w * t2 + t3,
                    density * (v * r1 - u * r2) + specific * t2 + sound * sound / C2 * t1 + w * t3,
                ]
            }
        }
    }

    /// Rows of the five systems at a place of a line between its two neighbours: two weights
    /// before the diagonal, it, and two behind it. The systems of the components 0 to 2 are equal.
    fn row(&self, place: usize, [low, here, high]: [Characteristics; 3]) -> [[f64; 5]; 5] {
        let scales = &self.grid.scales;
        let (first, second) = (self.grid.dt * scales.first, self.grid.dt * scales.second);
        let fourth = dissipation(place, self.grid.side)
            .map(|weight| self.grid.dt * scales.dissipation * weight);
        let system = |low_speed: f64, high_speed: f64| {
            [
                fourth[0],
                fourth[1] - first * low_speed - second * low.spread,
                fourth[2] + 1.0 + 2.0 * second * here.spread,
                fourth[3] + first * high_speed - second * high.spread,
                fourth[4],
            ]
        };
        let still = system(low.velocity, high.velocity);
        let with = system(low.velocity + low.sound, high.velocity + high.sound);
        let against = system(low.velocity - low.sound, high.velocity - high.sound);
        [still, still, still, with, against]
    }

    /// Solves the line along `dimension` through `(a, b)` in the other two, in their order. Beyond
    /// both ends of the inner points the solution is zero.
    fn solve<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        rows: &mut Vec<SolvedRow>,
        dimension: usize,
        (a, b): (usize, usize),
    ) {
        let grid = &self.grid;
        let end = match dimension {
            0 => grid.index([0, a, b]),
            1 => grid.index([a, 0, b]),
            _ => grid.index([a, b, 0]),
        };
        let stride = grid.stride(dimension);
        let at = |place: usize| self.characteristics(memory, dimension, end + place * stride);
        rows.clear();
        let mut around = [at(0), at(0), at(1)];
        for place in 1..grid.side - 1 {
            around = [around[1], around[2], at(place + 1)];
            let weights = self.row(place, around);
            let right = five(memory, grid.right(end + place * stride));
            let above = |back: usize| match rows.len().checked_sub(back) {
                Some(row) => rows[row],
                None => SolvedRow::default(),
            };
            let (two, one) = (above(2), above(1));
            let mut row = SolvedRow::default();
            for m in 0..5 {
                let [w0, w1, w2, w3, w4] = weights[m];
                let w1 = w1 - w0 * two.next[m];
                let diagonal = w2 - w0 * two.after[m] - w1 * one.next[m];
                row.next[m] = (w3 - w1 * one.after[m]) / diagonal;
                row.after[m] = w4 / diagonal;
                row.right[m] = (right[m] - w0 * two.right[m] - w1 * one.right[m]) / diagonal;
            }
            rows.push(row);
        }
        let (mut next, mut after) = ([0.0; 5], [0.0; 5]);
        for (i, row) in rows.iter().enumerate().rev() {
            let solution = std::array::from_fn(|m| {
                row.right[m] - row.next[m] * next[m] - row.after[m] * after[m]
            });
            (next, after) = (solution, next);
            let point = end + (i + 1) * stride;
            put_five(memory, grid.right(point), self.back(memory, dimension, point, solution));
        }
    }
}

impl NumericalKernel for Sp {
    type Stage = SpStage;
    type Own = SpThread;

    fn words(&self) -> usize {
        self.grid.words()
    }

    fn pace(&self) -> WorkloadPace {
        WorkloadPace::even(1607)
    }

    fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M) {
        self.grid.prepare(memory);
    }

    fn begin(&self) -> (SpStage, SpThread) {
        (SpStage::Derive, SpThread::default())
    }

    /// A unit is a line of points; of inner ones, but where numbers are derived.
    fn units(&self, stage: SpStage) -> usize {
        match stage {
            SpStage::Derive => self.grid.lines(),
            _ => self.grid.inner_lines(),
        }
    }

    fn work<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        own: &mut SpThread,
        stage: SpStage,
        unit: usize,
        _: &mut [f64; 2],
    ) -> u64 {
        let grid = &self.grid;
        let line = grid.inner_line(unit);
        match stage {
            SpStage::Derive => grid.derive_line(memory, unit),
            SpStage::RightSide => grid.right_side_of_line(memory, unit),
            SpStage::Transform => (1..grid.side - 1)
                .for_each(|x| self.transform(memory, grid.index([x, line.0, line.1]))),
            SpStage::Solve(dimension) => self.solve(memory, &mut own.line, dimension, line),
            SpStage::Add => grid.add_to_line(memory, unit, 1.0),
        }
        grid.side as u64
    }

    fn next(&self, own: &mut SpThread, stage: SpStage, met: MeetingSums) -> Option<SpStage> {
        Some(match stage {
            SpStage::Derive => SpStage::RightSide,
            // The right side of the last step's result is what is checked.
            SpStage::RightSide if met.over || own.steps == self.steps => return None,
            SpStage::RightSide => SpStage::Transform,
            SpStage::Transform => SpStage::Solve(0),
            SpStage::Solve(2) => SpStage::Add,
            SpStage::Solve(dimension) => SpStage::Solve(dimension + 1),
            SpStage::Add => {
                own.steps += 1;
                SpStage::Derive
            }
        })
    }

    fn finish<M: WordMemory + ?Sized>(&self, memory: &M, _: &SpThread) -> Result<u64, WrongResult> {
        self.grid.finish(memory, "npb-sp", self.verify.then_some(&PUBLISHED))
    }
}
