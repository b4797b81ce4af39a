//! `npb-lu`: the equations of [`super::flow`], advanced by symmetric successive over-relaxation: a
//! sweep with the lower triangle of the system's blocks and one with the upper (RNR-94-007, section
//! 3.3.1). Points whose coordinates have one sum depend on points of the sum before only, so each
//! sweep goes by such planes, as NPB's variant LU-HP does. Velocities, which the original derives
//! for a line at a time, are kept in arrays.

use super::flow::{five, put_five, FlowGrid, Matrix5, PublishedNorms, C2};
use super::{compare, iterations, must_verify};
use crate::algorithm::WrongResult;
use crate::memory::WordMemory;
use crate::pace::WorkloadPace;
use crate::spec::WorkloadSpec;
use crate::team::{get, MeetingSums, NumericalKernel};

/// Time steps of the classes by the sides of their grids: S, W, A to C, D, E (NPB 3.4's problem
/// definitions).
const TIME_STEPS: [(usize, f64); 5] =
    [(12, 0.5), (33, 0.001_5), (162, 2.0), (408, 1.0), (usize::MAX, 0.5)];
/// Over-relaxation (NPB 3.4, `omega_default`).
const OMEGA: f64 = 1.2;
/// Class S: side and steps; norms and the surface integral (NPB 3.4, `verify.f` of LU).
const CLASS_S: (usize, u64) = (12, 50);
#[allow(clippy::excessive_precision)] // as published
const PUBLISHED: PublishedNorms = PublishedNorms {
    residuals: [
        1.619_634_321_097_670_2e-2,
        2.197_674_516_482_131_8e-3,
        1.517_992_765_339_918_5e-3,
        1.502_958_443_599_432_3e-3,
        3.426_407_315_589_646_1e-2,
    ],
    errors: [
        6.422_331_995_796_092_4e-4,
        8.414_434_204_734_792_6e-5,
        5.858_826_961_648_518_6e-5,
        5.847_422_259_515_735_0e-5,
        1.310_334_791_411_129_4e-3,
    ],
    tolerance: 1e-8,
};
#[allow(clippy::excessive_precision)] // as published
const SURFACE: f64 = 7.841_892_886_593_708_3;

/// The workload; see the module. The unit of work is one grid point visited.
#[derive(Debug)]
pub struct Lu {
    grid: FlowGrid,
    steps: u64,
    verify: bool,
}

/// Stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LuStage {
    /// Velocities and the like of all points.
    Derive,
    /// The right side.
    RightSide,
    /// The lower triangle, of the inner points whose coordinates have this sum.
    Lower(usize),
    /// The upper triangle.
    Upper(usize),
    /// `u` plus the solution.
    Add,
}

/// Which neighbours a sweep takes into account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Triangle {
    Lower,
    Upper,
}

impl Lu {
    /// The workload as specified; all arrays together have its size.
    #[must_use]
    pub fn new(spec: &WorkloadSpec) -> Self {
        let words = spec.size.bytes(spec.fast).0 / 8;
        let side = if spec.class_s { CLASS_S.0 } else { FlowGrid::nearest_side(words) };
        let dt = TIME_STEPS.iter().find(|t| side <= t.0).map_or(0.5, |t| t.1);
        // A step visits each point five times.
        let steps = iterations(spec, 5 * side * side * side, CLASS_S.1);
        Self { grid: FlowGrid::new(side, dt), steps, verify: must_verify(spec) }
    }

    /// Sums of the coordinates of the first and the last inner point.
    const fn planes(&self) -> (usize, usize) {
        (3, 3 * (self.grid.side - 2))
    }

    fn blocks<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        dimension: usize,
        point: usize,
    ) -> [Matrix5; 3] {
        let derived = |which: usize| get(memory, self.grid.derived(which, point));
        let u = five(memory, self.grid.u(point));
        self.grid.scales.blocks(dimension, u, derived(3), derived(4), derived(5))
    }

    /// Relaxes a point by the neighbours of a triangle.
    fn relax<M: WordMemory + ?Sized>(&self, memory: &M, triangle: Triangle, point: usize) {
        let grid = &self.grid;
        let mut own: Matrix5 =
            std::array::from_fn(|i| std::array::from_fn(|j| if i == j { 1.0 } else { 0.0 }));
        let mut sum = [0.0; 5];
        for dimension in 0..3 {
            let stride = grid.stride(dimension);
            let (other, which) = match triangle {
                Triangle::Lower => (point - stride, 0),
                Triangle::Upper => (point + stride, 2),
            };
            let block = self.blocks(memory, dimension, other)[which];
            let value = five(memory, grid.right(other));
            let diagonal = self.blocks(memory, dimension, point)[1];
            for i in 0..5 {
                sum[i] += OMEGA * block[i].iter().zip(&value).map(|(b, v)| b * v).sum::<f64>();
                for j in 0..5 {
                    own[i][j] += diagonal[i][j] - if i == j { 1.0 } else { 0.0 };
                }
            }
        }
        let right = five(memory, grid.right(point));
        let relaxed = match triangle {
            Triangle::Lower => solve(own, std::array::from_fn(|m| right[m] - sum[m])),
            Triangle::Upper => {
                let change = solve(own, sum);
                std::array::from_fn(|m| right[m] - change[m])
            }
        };
        put_five(memory, grid.right(point), relaxed);
    }

    /// Relaxes the inner points of a plane that have this `z`; how many they are.
    fn relax_row<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        triangle: Triangle,
        plane: usize,
        z: usize,
    ) -> u64 {
        let last = self.grid.side - 2;
        let mut points = 0;
        for y in 1..=last {
            if let Some(x) = plane.checked_sub(y + z).filter(|x| (1..=last).contains(x)) {
                self.relax(memory, triangle, self.grid.index([x, y, z]));
                points += 1;
            }
        }
        points
    }

    /// The integral of the pressure over six inner faces (NPB 3.4, `pintgr.f`).
    fn surface_integral<M: WordMemory + ?Sized>(&self, memory: &M) -> f64 {
        let grid = &self.grid;
        let n = grid.side;
        let (low, high) = ([1, 1, 2], [n - 2, n - 3, n - 2]);
        let pressure = |at: [usize; 3]| {
            let point = grid.index(at);
            C2 * (get(memory, grid.u(point) + 4) - get(memory, grid.derived(4, point)))
        };
        let mut sum = 0.0;
        for d in 0..3 {
            let (a, b) = ((d + 1) % 3, (d + 2) % 3);
            for face in [low[d], high[d]] {
                for (i, j) in (low[a]..high[a]).flat_map(|i| (low[b]..high[b]).map(move |j| (i, j)))
                {
                    for (di, dj) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
                        let mut at = [0; 3];
                        (at[d], at[a], at[b]) = (face, i + di, j + dj);
                        sum += pressure(at);
                    }
                }
            }
        }
        0.25 * sum / ((n - 1) * (n - 1)) as f64
    }
}

/// Solves five equations by elimination; the diagonal leads in this problem.
fn solve(mut matrix: Matrix5, mut right: [f64; 5]) -> [f64; 5] {
    for p in 0..5 {
        let (lead, value) = (matrix[p], right[p] / matrix[p][p]);
        for i in p + 1..5 {
            let factor = matrix[i][p] / lead[p];
            matrix[i].iter_mut().zip(lead).for_each(|(m, l)| *m -= factor * l);
            right[i] -= factor * lead[p] * value;
        }
    }
    for p in (0..5).rev() {
        let known: f64 = (p + 1..5).map(|j| matrix[p][j] * right[j]).sum();
        right[p] = (right[p] - known) / matrix[p][p];
    }
    right
}

impl NumericalKernel for Lu {
    type Stage = LuStage;
    /// Steps done.
    type Own = u64;

    fn words(&self) -> usize {
        self.grid.words()
    }

    fn pace(&self) -> WorkloadPace {
        WorkloadPace::even(4150)
    }

    fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M) {
        self.grid.prepare(memory);
    }

    fn begin(&self) -> (LuStage, u64) {
        (LuStage::Derive, 0)
    }

    /// A unit is a line of points, or in a sweep those of a plane that have one `z`.
    fn units(&self, stage: LuStage) -> usize {
        match stage {
            LuStage::Derive => self.grid.lines(),
            LuStage::RightSide | LuStage::Add => self.grid.inner_lines(),
            LuStage::Lower(_) | LuStage::Upper(_) => self.grid.side - 2,
        }
    }

    fn work<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        _: &mut u64,
        stage: LuStage,
        unit: usize,
        _: &mut [f64; 2],
    ) -> u64 {
        let grid = &self.grid;
        match stage {
            LuStage::Derive => grid.derive_line(memory, unit),
            LuStage::RightSide => grid.right_side_of_line(memory, unit),
            LuStage::Lower(plane) => {
                return self.relax_row(memory, Triangle::Lower, plane, unit + 1)
            }
            LuStage::Upper(plane) => {
                return self.relax_row(memory, Triangle::Upper, plane, unit + 1)
            }
            LuStage::Add => grid.add_to_line(memory, unit, 1.0 / (OMEGA * (2.0 - OMEGA))),
        }
        grid.side as u64
    }

    fn next(&self, steps: &mut u64, stage: LuStage, met: MeetingSums) -> Option<LuStage> {
        let (first, last) = self.planes();
        Some(match stage {
            LuStage::Derive => LuStage::RightSide,
            // The right side of the last step's result is what is checked.
            LuStage::RightSide if met.over || *steps == self.steps => return None,
            LuStage::RightSide => LuStage::Lower(first),
            LuStage::Lower(plane) if plane < last => LuStage::Lower(plane + 1),
            LuStage::Lower(plane) => LuStage::Upper(plane),
            LuStage::Upper(plane) if plane > first => LuStage::Upper(plane - 1),
            LuStage::Upper(_) => LuStage::Add,
            LuStage::Add => {
                *steps += 1;
                LuStage::Derive
            }
        })
    }

    fn finish<M: WordMemory + ?Sized>(&self, memory: &M, _: &u64) -> Result<u64, WrongResult> {
        if self.verify {
            let surface = self.surface_integral(memory);
            compare("npb-lu", "the surface integral", surface, SURFACE, PUBLISHED.tolerance)?;
        }
        self.grid.finish(memory, "npb-lu", self.verify.then_some(&PUBLISHED))
    }
}
