//! `npb-bt`: the compressible Navier-Stokes equations on a cube, advanced in time by an implicit
//! scheme that is split by direction, so that each line of the grid gives one system of 5 by 5
//! blocks, tridiagonal (RNR-94-007, section 3). The right side is made so that a known polynomial
//! is the steady solution.

mod lines;

use super::flow::{FlowGrid, PublishedNorms};
use super::{iterations, must_verify};
use crate::algorithm::WrongResult;
use crate::memory::WordMemory;
use crate::pace::WorkloadPace;
use crate::spec::WorkloadSpec;
use crate::team::{MeetingSums, NumericalKernel};

/// Time steps of the classes by the sides of their grids: S, W and A, B, C, D, E (NPB 3.4's problem
/// definitions).
const TIME_STEPS: [(usize, f64); 6] = [
    (12, 0.01),
    (64, 0.0008),
    (102, 0.0003),
    (162, 0.0001),
    (408, 0.00002),
    (usize::MAX, 0.000_004),
];
/// Class S: side and steps; norms of the residual and of the error by component (NPB 3.4,
/// `verify.f` of BT), and how near they must come.
const CLASS_S: (usize, u64) = (12, 60);
#[allow(clippy::excessive_precision)] // as published
const PUBLISHED: PublishedNorms = PublishedNorms {
    residuals: [
        1.703_428_370_954_131_1e-1,
        1.297_525_207_003_409_7e-2,
        3.252_792_698_948_605_5e-2,
        2.643_642_127_516_680_1e-2,
        1.921_178_413_174_443_0e-1,
    ],
    errors: [
        4.997_691_334_581_157_9e-4,
        4.519_566_678_296_192_7e-5,
        7.397_376_517_292_135_7e-5,
        7.382_123_863_243_973_1e-5,
        8.926_963_098_749_144_6e-4,
    ],
    tolerance: 1e-8,
};

/// The workload; see the module. The unit of work is one grid point visited.
#[derive(Debug)]
pub struct Bt {
    grid: FlowGrid,
    steps: u64,
    verify: bool,
}

/// Stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BtStage {
    /// Velocities and the like of all points.
    Derive,
    /// The right side.
    RightSide,
    /// The systems of all lines along a dimension.
    Solve(usize),
    /// `u` plus the solution.
    Add,
}

/// What each thread has: steps done, and a line's blocks.
#[derive(Debug, Default)]
pub struct BtThread {
    steps: u64,
    line: Vec<lines::SolvedRow>,
}

impl Bt {
    /// The workload as specified; all arrays together have its size.
    #[must_use]
    pub fn new(spec: &WorkloadSpec) -> Self {
        let words = spec.size.bytes(spec.fast).0 / 8;
        let side = if spec.class_s { CLASS_S.0 } else { FlowGrid::nearest_side(words) };
        let dt = TIME_STEPS.iter().find(|t| side <= t.0).map_or(1e-6, |t| t.1);
        // A step visits each point six times.
        let steps = iterations(spec, 6 * side * side * side, CLASS_S.1);
        Self { grid: FlowGrid::new(side, dt), steps, verify: must_verify(spec) }
    }
}

impl NumericalKernel for Bt {
    type Stage = BtStage;
    type Own = BtThread;

    fn words(&self) -> usize {
        self.grid.words()
    }

    fn pace(&self) -> WorkloadPace {
        WorkloadPace::even(4547)
    }

    fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M) {
        self.grid.prepare(memory);
    }

    fn begin(&self) -> (BtStage, BtThread) {
        (BtStage::Derive, BtThread::default())
    }

    /// A unit is a line of points; of inner ones, but where numbers are derived.
    fn units(&self, stage: BtStage) -> usize {
        match stage {
            BtStage::Derive => self.grid.lines(),
            _ => self.grid.inner_lines(),
        }
    }

    fn work<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        own: &mut BtThread,
        stage: BtStage,
        unit: usize,
        _: &mut [f64; 2],
    ) -> u64 {
        let grid = &self.grid;
        match stage {
            BtStage::Derive => grid.derive_line(memory, unit),
            BtStage::RightSide => grid.right_side_of_line(memory, unit),
            BtStage::Solve(dimension) => {
                lines::solve(grid, memory, &mut own.line, dimension, grid.inner_line(unit));
            }
            BtStage::Add => grid.add_to_line(memory, unit, 1.0),
        }
        grid.side as u64
    }

    fn next(&self, own: &mut BtThread, stage: BtStage, met: MeetingSums) -> Option<BtStage> {
        Some(match stage {
            BtStage::Derive => BtStage::RightSide,
            // The right side of the last step's result is what is checked.
            BtStage::RightSide if met.over || own.steps == self.steps => return None,
            BtStage::RightSide => BtStage::Solve(0),
            BtStage::Solve(2) => BtStage::Add,
            BtStage::Solve(dimension) => BtStage::Solve(dimension + 1),
            BtStage::Add => {
                own.steps += 1;
                BtStage::Derive
            }
        })
    }

    fn finish<M: WordMemory + ?Sized>(&self, memory: &M, _: &BtThread) -> Result<u64, WrongResult> {
        self.grid.finish(memory, "npb-bt", self.verify.then_some(&PUBLISHED))
    }
}
