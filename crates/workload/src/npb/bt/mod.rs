//! `npb-bt`: the compressible Navier-Stokes equations on a cube, advanced in time by an implicit
//! scheme that is split by direction, so that each line of the grid gives one system of 5 by 5
//! blocks, tridiagonal (RNR-94-007, section 3). The right side is made so that a known polynomial
//! is the steady solution.
//!
//! ```text
//! words: | u, 5 n | right side, 5 n | forcing, 5 n | velocities, 3 n | kinetic / density, n | kinetic, n | 1 / density, n |
//! ```

mod lines;
mod physics;

use super::{compare, finite, iterations, must_verify};
use crate::algorithm::WrongResult;
use crate::memory::WordMemory;
use crate::random::mix;
use crate::spec::WorkloadSpec;
use crate::team::{digest, get, set, MeetingSums, NumericalKernel};
use physics::{exact, Scales};

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
const RESIDUALS: [f64; 5] = [
    1.703_428_370_954_131_1e-1,
    1.297_525_207_003_409_7e-2,
    3.252_792_698_948_605_5e-2,
    2.643_642_127_516_680_1e-2,
    1.921_178_413_174_443_0e-1,
];
#[allow(clippy::excessive_precision)] // as published
const ERRORS: [f64; 5] = [
    4.997_691_334_581_157_9e-4,
    4.519_566_678_296_192_7e-5,
    7.397_376_517_292_135_7e-5,
    7.382_123_863_243_973_1e-5,
    8.926_963_098_749_144_6e-4,
];
const TOLERANCE: f64 = 1e-8;

/// Words of a grid point in all arrays.
const WORDS: usize = 21;

/// The workload; see the module. The unit of work is one grid point visited.
#[derive(Debug)]
pub struct Bt {
    side: usize,
    dt: f64,
    scales: Scales,
    steps: u64,
    verify: bool,
    forcing: u64,
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
        let nearest = (words as f64 / WORDS as f64).cbrt().round() as usize;
        let side = if spec.class_s { CLASS_S.0 } else { nearest.max(6) };
        let dt = TIME_STEPS.iter().find(|t| side <= t.0).map_or(1e-6, |t| t.1);
        // A step visits each point six times.
        let steps = iterations(spec, 6 * side * side * side, CLASS_S.1);
        Self {
            side,
            dt,
            scales: Scales::new(side, dt),
            steps,
            verify: must_verify(spec),
            forcing: 0,
        }
    }

    const fn points(&self) -> usize {
        self.side * self.side * self.side
    }

    const fn u(&self, point: usize) -> usize {
        5 * point
    }

    const fn right(&self, point: usize) -> usize {
        5 * (self.points() + point)
    }

    const fn force(&self, point: usize) -> usize {
        5 * (2 * self.points() + point)
    }

    /// Word of a derived number: velocities 0 to 2, kinetic energy over density 3, kinetic energy
    /// 4, 1 over density 5.
    const fn derived(&self, which: usize, point: usize) -> usize {
        (15 + which) * self.points() + point
    }

    const fn index(&self, [x, y, z]: [usize; 3]) -> usize {
        (z * self.side + y) * self.side + x
    }

    const fn stride(&self, dimension: usize) -> usize {
        match dimension {
            0 => 1,
            1 => self.side,
            _ => self.side * self.side,
        }
    }

    fn place(&self, x: usize, y: usize, z: usize) -> [f64; 3] {
        [x, y, z].map(|i| i as f64 / (self.side - 1) as f64)
    }

    fn derive<M: WordMemory + ?Sized>(&self, memory: &M, point: usize) {
        let u = five(memory, self.u(point));
        let inverse = 1.0 / u[0];
        let kinetic = 0.5 * (u[1] * u[1] + u[2] * u[2] + u[3] * u[3]) * inverse;
        for d in 0..3 {
            set(memory, self.derived(d, point), u[1 + d] * inverse);
        }
        set(memory, self.derived(3, point), kinetic * inverse);
        set(memory, self.derived(4, point), kinetic);
        set(memory, self.derived(5, point), inverse);
    }

    /// The right side of an inner point: forcing, fluxes, viscosity and dissipation of fourth
    /// order, times the step.
    fn right_side<M: WordMemory + ?Sized>(&self, memory: &M, at: [usize; 3]) {
        let point = self.index(at);
        let mut sum = five(memory, self.force(point));
        let here = self.state(memory, point);
        for (d, place) in at.into_iter().enumerate() {
            let stride = self.stride(d);
            let (low, high) =
                (self.state(memory, point - stride), self.state(memory, point + stride));
            self.scales.fluxes(d, [&low, &here, &high], &mut sum);
            let two_below =
                if place >= 2 { five(memory, self.u(point - 2 * stride)) } else { [0.0; 5] };
            let two_above = if place + 2 < self.side {
                five(memory, self.u(point + 2 * stride))
            } else {
                [0.0; 5]
            };
            let weights = dissipation(place, self.side);
            for m in 0..5 {
                let fourth = weights[0] * two_below[m]
                    + weights[1] * low.u[m]
                    + weights[2] * here.u[m]
                    + weights[3] * high.u[m]
                    + weights[4] * two_above[m];
                sum[m] -= self.scales.dissipation * fourth;
            }
        }
        put_five(memory, self.right(point), sum.map(|s| s * self.dt));
    }

    fn state<M: WordMemory + ?Sized>(&self, memory: &M, point: usize) -> physics::PointState {
        let derived = |which: usize| get(memory, self.derived(which, point));
        physics::PointState {
            u: five(memory, self.u(point)),
            velocity: [derived(0), derived(1), derived(2)],
            specific: derived(3),
            kinetic: derived(4),
            inverse: derived(5),
        }
    }

    /// At first: interpolated between the exact values on the six faces.
    fn initial(&self, [x, y, z]: [usize; 3]) -> [f64; 5] {
        let last = self.side - 1;
        let at = self.place(x, y, z);
        if [x, y, z].iter().any(|i| *i == 0 || *i == last) {
            return exact(at);
        }
        let between = |d: usize| {
            let face = |value: f64| {
                let mut on = at;
                on[d] = value;
                exact(on)
            };
            let (low, high) = (face(0.0), face(1.0));
            std::array::from_fn::<f64, 5, _>(|m| at[d] * high[m] + (1.0 - at[d]) * low[m])
        };
        let [a, b, c] = [between(0), between(1), between(2)];
        std::array::from_fn(|m| {
            a[m] + b[m] + c[m] - a[m] * b[m] - a[m] * c[m] - b[m] * c[m] + a[m] * b[m] * c[m]
        })
    }

    fn all(&self) -> impl Iterator<Item = [usize; 3]> {
        let n = self.side;
        (0..n).flat_map(move |z| (0..n).flat_map(move |y| (0..n).map(move |x| [x, y, z])))
    }

    /// Norms of the residual and of the error, by component.
    fn norms<M: WordMemory + ?Sized>(&self, memory: &M) -> [[f64; 5]; 2] {
        let mut sums = [[0.0f64; 5]; 2];
        for at in self.all() {
            let point = self.index(at);
            let inner = at.iter().all(|i| (1..self.side - 1).contains(i));
            let wanted = exact(self.place(at[0], at[1], at[2]));
            let (u, right) = (five(memory, self.u(point)), five(memory, self.right(point)));
            for m in 0..5 {
                sums[0][m] += if inner { right[m].powi(2) } else { 0.0 };
                sums[1][m] += (u[m] - wanted[m]).powi(2);
            }
        }
        let inner = (self.side - 2).pow(3) as f64;
        [sums[0].map(|s| (s / inner).sqrt() / self.dt), sums[1].map(|s| (s / inner).sqrt())]
    }

    fn digest_of_forcing<M: WordMemory + ?Sized>(&self, memory: &M) -> u64 {
        (self.force(0)..self.force(self.points())).fold(0, |sum, word| mix(sum ^ memory.load(word)))
    }
}

/// Weights of fourth differences at a place of a line, one-sided near its ends.
const fn dissipation(place: usize, side: usize) -> [f64; 5] {
    if place == 1 {
        [0.0, 0.0, 5.0, -4.0, 1.0]
    } else if place == 2 {
        [0.0, -4.0, 6.0, -4.0, 1.0]
    } else if place + 3 == side {
        [1.0, -4.0, 6.0, -4.0, 0.0]
    } else if place + 2 == side {
        [1.0, -4.0, 5.0, 0.0, 0.0]
    } else {
        [1.0, -4.0, 6.0, -4.0, 1.0]
    }
}

fn five<M: WordMemory + ?Sized>(memory: &M, word: usize) -> [f64; 5] {
    std::array::from_fn(|m| get(memory, word + m))
}

fn put_five<M: WordMemory + ?Sized>(memory: &M, word: usize, values: [f64; 5]) {
    values.iter().enumerate().for_each(|(m, value)| set(memory, word + m, *value));
}

impl NumericalKernel for Bt {
    type Stage = BtStage;
    type Own = BtThread;

    fn words(&self) -> usize {
        WORDS * self.points()
    }

    /// The forcing is what the exact solution leaves as its right side without one, negated.
    fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M) {
        for at in self.all() {
            let point = self.index(at);
            put_five(memory, self.u(point), exact(self.place(at[0], at[1], at[2])));
            put_five(memory, self.right(point), [0.0; 5]);
            put_five(memory, self.force(point), [0.0; 5]);
        }
        let mut own = BtThread::default();
        for stage in [BtStage::Derive, BtStage::RightSide] {
            (0..self.units(stage)).for_each(|unit| {
                self.work(memory, &mut own, stage, unit, &mut [0.0; 2]);
            });
        }
        for at in self.all() {
            let point = self.index(at);
            let left = five(memory, self.right(point));
            put_five(memory, self.force(point), left.map(|r| -r / self.dt));
            put_five(memory, self.u(point), self.initial(at));
        }
        self.forcing = self.digest_of_forcing(memory);
    }

    fn begin(&self) -> (BtStage, BtThread) {
        (BtStage::Derive, BtThread::default())
    }

    /// A unit is a line of points; of inner ones, but where numbers are derived.
    fn units(&self, stage: BtStage) -> usize {
        match stage {
            BtStage::Derive => self.side * self.side,
            _ => (self.side - 2) * (self.side - 2),
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
        let inner = self.side - 2;
        let (a, b) = (unit % inner + 1, unit / inner + 1);
        match stage {
            BtStage::Derive => {
                (unit * self.side..(unit + 1) * self.side).for_each(|p| self.derive(memory, p))
            }
            BtStage::RightSide => (1..=inner).for_each(|x| self.right_side(memory, [x, a, b])),
            BtStage::Solve(dimension) => self.solve(memory, &mut own.line, dimension, a, b),
            BtStage::Add => {
                for point in (1..=inner).map(|x| self.index([x, a, b])) {
                    let (u, more) = (five(memory, self.u(point)), five(memory, self.right(point)));
                    put_five(memory, self.u(point), std::array::from_fn(|m| u[m] + more[m]));
                }
            }
        }
        self.side as u64
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
        if self.digest_of_forcing(memory) != self.forcing {
            return Err(WrongResult {
                workload: "npb-bt",
                what: "the forcing is not what was written".to_owned(),
            });
        }
        let [residuals, errors] = self.norms(memory);
        if self.verify {
            for m in 0..5 {
                let component = m + 1;
                let (got, published) = (residuals[m], RESIDUALS[m]);
                compare(
                    "npb-bt",
                    &format!("the residual of component {component}"),
                    got,
                    published,
                    TOLERANCE,
                )?;
                let (got, published) = (errors[m], ERRORS[m]);
                compare(
                    "npb-bt",
                    &format!("the error of component {component}"),
                    got,
                    published,
                    TOLERANCE,
                )?;
            }
        }
        finite("npb-bt", "a norm", &[residuals, errors].concat())?;
        Ok(digest(&[residuals, errors].concat()))
    }
}
