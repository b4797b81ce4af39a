//! What `npb-bt`, `npb-sp` and `npb-lu` have in common: the compressible Navier-Stokes equations on
//! a cube whose steady solution is a known polynomial (RNR-94-007, section 3). The kernels differ
//! in how they solve the implicit step.
//!
//! ```text
//! words: | u, 5 n | right side, 5 n | forcing, 5 n | velocities, 3 n |
//!        | kinetic / density, n | kinetic, n | 1 / density, n |
//! ```

mod physics;

use super::{compare, finite};
use crate::algorithm::WrongResult;
use crate::memory::WordMemory;
use crate::random::mix;
use crate::team::{digest, get, set};
pub use physics::{exact, Matrix5, Scales, C1, C2, C3, C4, C5, DIFFUSION};

/// Words of a grid point in all arrays.
pub const POINT_WORDS: usize = 21;

/// The grid and its arrays.
#[derive(Debug)]
pub struct FlowGrid {
    pub side: usize,
    pub dt: f64,
    pub scales: Scales,
    forcing: u64,
}

/// What class S must give: norms of the residual and of the error by component, and how near.
#[derive(Debug)]
pub struct PublishedNorms {
    pub residuals: [f64; 5],
    pub errors: [f64; 5],
    pub tolerance: f64,
}

impl FlowGrid {
    pub fn new(side: usize, dt: f64) -> Self {
        Self { side, dt, scales: Scales::new(side, dt), forcing: 0 }
    }

    /// The side of the cube whose arrays come nearest to `words`.
    pub fn nearest_side(words: u64) -> usize {
        ((words as f64 / POINT_WORDS as f64).cbrt().round() as usize).max(6)
    }

    pub const fn words(&self) -> usize {
        POINT_WORDS * self.points()
    }

    pub const fn points(&self) -> usize {
        self.side * self.side * self.side
    }

    pub const fn u(&self, point: usize) -> usize {
        5 * point
    }

    pub const fn right(&self, point: usize) -> usize {
        5 * (self.points() + point)
    }

    const fn force(&self, point: usize) -> usize {
        5 * (2 * self.points() + point)
    }

    /// Word of a derived number: velocities 0 to 2, kinetic energy over density 3, kinetic energy
    /// 4, 1 over density 5.
    pub const fn derived(&self, which: usize, point: usize) -> usize {
        (15 + which) * self.points() + point
    }

    pub const fn index(&self, [x, y, z]: [usize; 3]) -> usize {
        (z * self.side + y) * self.side + x
    }

    pub const fn stride(&self, dimension: usize) -> usize {
        match dimension {
            0 => 1,
            1 => self.side,
            _ => self.side * self.side,
        }
    }

    fn place(&self, x: usize, y: usize, z: usize) -> [f64; 3] {
        [x, y, z].map(|i| i as f64 / (self.side - 1) as f64)
    }

    /// Derives velocities and energies of a point from `u`.
    pub fn derive<M: WordMemory + ?Sized>(&self, memory: &M, point: usize) {
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

    /// Computes the right side of an inner point: forcing, fluxes, viscosity and dissipation of
    /// fourth order, times the step.
    pub fn right_side<M: WordMemory + ?Sized>(&self, memory: &M, at: [usize; 3]) {
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

    /// Writes the exact solution, the forcing that keeps it steady, and the initial state.
    pub fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M) {
        for at in self.all() {
            let point = self.index(at);
            put_five(memory, self.u(point), exact(self.place(at[0], at[1], at[2])));
            put_five(memory, self.right(point), [0.0; 5]);
            put_five(memory, self.force(point), [0.0; 5]);
        }
        (0..self.lines()).for_each(|line| self.derive_line(memory, line));
        (0..self.inner_lines()).for_each(|line| self.right_side_of_line(memory, line));
        for at in self.all() {
            let point = self.index(at);
            let left = five(memory, self.right(point));
            put_five(memory, self.force(point), left.map(|r| -r / self.dt));
            put_five(memory, self.u(point), self.initial(at));
        }
        self.forcing = self.digest_of_forcing(memory);
    }

    /// Lines along x, and those of inner points.
    pub const fn lines(&self) -> usize {
        self.side * self.side
    }

    pub const fn inner_lines(&self) -> usize {
        (self.side - 2) * (self.side - 2)
    }

    /// The two other coordinates of a line of inner points.
    pub const fn inner_line(&self, line: usize) -> (usize, usize) {
        let inner = self.side - 2;
        (line % inner + 1, line / inner + 1)
    }

    /// Derives the points of a line.
    pub fn derive_line<M: WordMemory + ?Sized>(&self, memory: &M, line: usize) {
        (line * self.side..(line + 1) * self.side).for_each(|point| self.derive(memory, point));
    }

    /// Computes the right side of a line of inner points.
    pub fn right_side_of_line<M: WordMemory + ?Sized>(&self, memory: &M, line: usize) {
        let (y, z) = self.inner_line(line);
        (1..self.side - 1).for_each(|x| self.right_side(memory, [x, y, z]));
    }

    /// Adds `factor` times the solution to `u` along a line of inner points.
    pub fn add_to_line<M: WordMemory + ?Sized>(&self, memory: &M, line: usize, factor: f64) {
        let (y, z) = self.inner_line(line);
        for point in (1..self.side - 1).map(|x| self.index([x, y, z])) {
            let (u, more) = (five(memory, self.u(point)), five(memory, self.right(point)));
            put_five(memory, self.u(point), std::array::from_fn(|m| u[m] + factor * more[m]));
        }
    }

    /// Checks the forcing and, where `published` says what must come out, the norms; their digest.
    pub fn finish<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        workload: &'static str,
        published: Option<&PublishedNorms>,
    ) -> Result<u64, WrongResult> {
        if self.digest_of_forcing(memory) != self.forcing {
            return Err(WrongResult {
                workload,
                what: "the forcing is not what was written".to_owned(),
            });
        }
        let [residuals, errors] = self.norms(memory);
        if let Some(published) = published {
            for (component, m) in ["density", "x", "y", "z", "energy"].into_iter().zip(0..) {
                let what = format!("the residual of component {component}");
                let wanted = published.residuals[m];
                compare(workload, &what, residuals[m], wanted, published.tolerance)?;
                let what = format!("the error of component {component}");
                compare(workload, &what, errors[m], published.errors[m], published.tolerance)?;
            }
        }
        finite(workload, "a norm", &[residuals, errors].concat())?;
        Ok(digest(&[residuals, errors].concat()))
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
pub const fn dissipation(place: usize, side: usize) -> [f64; 5] {
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

pub fn five<M: WordMemory + ?Sized>(memory: &M, word: usize) -> [f64; 5] {
    std::array::from_fn(|m| get(memory, word + m))
}

pub fn put_five<M: WordMemory + ?Sized>(memory: &M, word: usize, values: [f64; 5]) {
    values.iter().enumerate().for_each(|(m, value)| set(memory, word + m, *value));
}
