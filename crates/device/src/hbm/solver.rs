//! Heat in three dimensions: finite volumes on a grid of boxes, steady and transient.
//!
//! Each box has its conductivities (lateral and vertical), heat capacity and source. Conductances
//! between boxes are those of half a box each in series, so that flux is continuous and energy is
//! conserved exactly; boundaries lead to the ambient through a heat transfer coefficient or are
//! adiabatic. The steady system is solved by conjugate gradients, preconditioned by exact solves
//! of vertical lines: thin layers couple boxes most strongly up and down. Transients are integrated
//! by SDIRK2 (R. Alexander, SIAM J. Numer. Anal. 14(6), 1977), L-stable and of second order.
//! Second order in space where properties are smooth.

/// Properties of a box.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeatCell {
    /// Lateral conductivity, W/(m K).
    pub lateral_w_per_mk: f64,
    /// Vertical conductivity, W/(m K).
    pub vertical_w_per_mk: f64,
    /// Heat capacity, J/(m3 K).
    pub j_per_m3k: f64,
    /// Heat made in it, W/m3.
    pub w_per_m3: f64,
    /// Heat taken from it by a coolant at ambient temperature, W/(m3 K).
    pub sink_w_per_m3k: f64,
}

/// Number of boxes each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GridSize {
    /// Along x.
    pub x: usize,
    /// Along y.
    pub y: usize,
    /// Upwards.
    pub z: usize,
}

/// A body on a grid. Boxes are in order z, then x, then y: vertical lines are contiguous.
#[derive(Debug, Clone)]
pub struct HeatGrid {
    size: GridSize,
    /// Conductance to the next box along x, y, z, W/K.
    to_x: Vec<f64>,
    to_y: Vec<f64>,
    to_z: Vec<f64>,
    /// To the ambient, W/K.
    to_ambient: Vec<f64>,
    /// Diagonal of the system, W/K.
    diagonal: Vec<f64>,
    source_w: Vec<f64>,
    capacity_j_per_k: Vec<f64>,
}

/// A temperature field above ambient.
#[derive(Debug, Clone, PartialEq)]
pub struct SteadyHeat {
    /// Kelvin above the ambient, in the grid's order.
    pub rise_k: Vec<f64>,
    /// Iterations that it took.
    pub iterations: usize,
}

/// Iterations after which a solve stops; lines make tens enough.
const MAX_ITERATIONS: usize = 4000;

impl HeatGrid {
    /// A body of boxes with these edges (m), cells given by index, and heat transfer coefficients
    /// of the bottom and top to the ambient, W/(m2 K).
    #[must_use]
    pub fn new(
        widths: [&[f64]; 3],
        cell: impl Fn(usize, usize, usize) -> HeatCell,
        bottom_w_per_m2k: f64,
        top_w_per_m2k: f64,
    ) -> Self {
        let [dx, dy, dz] = widths;
        let size = GridSize { x: dx.len(), y: dy.len(), z: dz.len() };
        let count = size.x * size.y * size.z;
        let mut grid = Self {
            size,
            to_x: vec![0.0; count],
            to_y: vec![0.0; count],
            to_z: vec![0.0; count],
            to_ambient: vec![0.0; count],
            diagonal: vec![0.0; count],
            source_w: vec![0.0; count],
            capacity_j_per_k: vec![0.0; count],
        };
        let series = |area: f64, d1: f64, k1: f64, d2: f64, k2: f64| {
            area / (d1 / (2.0 * k1) + d2 / (2.0 * k2))
        };
        let film = |area: f64, h: f64, d: f64, k: f64| {
            if h > 0.0 {
                area / (1.0 / h + d / (2.0 * k))
            } else {
                0.0
            }
        };
        for y in 0..size.y {
            for x in 0..size.x {
                for z in 0..size.z {
                    let here = cell(x, y, z);
                    let at = grid.index(x, y, z);
                    let volume = dx[x] * dy[y] * dz[z];
                    grid.source_w[at] = here.w_per_m3 * volume;
                    grid.capacity_j_per_k[at] = here.j_per_m3k * volume;
                    let (k, kz) = (here.lateral_w_per_mk, here.vertical_w_per_mk);
                    if x + 1 < size.x {
                        let next = cell(x + 1, y, z).lateral_w_per_mk;
                        grid.to_x[at] = series(dy[y] * dz[z], dx[x], k, dx[x + 1], next);
                    }
                    if y + 1 < size.y {
                        let next = cell(x, y + 1, z).lateral_w_per_mk;
                        grid.to_y[at] = series(dx[x] * dz[z], dy[y], k, dy[y + 1], next);
                    }
                    let area = dx[x] * dy[y];
                    let mut ambient = here.sink_w_per_m3k * volume;
                    if z + 1 < size.z {
                        let next = cell(x, y, z + 1).vertical_w_per_mk;
                        grid.to_z[at] = series(area, dz[z], kz, dz[z + 1], next);
                    } else {
                        ambient += film(area, top_w_per_m2k, dz[z], kz);
                    }
                    if z == 0 {
                        ambient += film(area, bottom_w_per_m2k, dz[z], kz);
                    }
                    grid.to_ambient[at] = ambient;
                }
            }
        }
        grid.set_diagonal();
        grid
    }

    fn set_diagonal(&mut self) {
        self.diagonal.copy_from_slice(&self.to_ambient);
        let (sx, sy) = self.strides();
        for (edge, stride) in [(&self.to_x, sx), (&self.to_y, sy), (&self.to_z, 1)] {
            for (at, g) in edge.iter().enumerate().filter(|e| *e.1 > 0.0) {
                self.diagonal[at] += g;
                self.diagonal[at + stride] += g;
            }
        }
    }

    /// Where a box is in the grid's order.
    #[must_use]
    pub const fn index(&self, x: usize, y: usize, z: usize) -> usize {
        (y * self.size.x + x) * self.size.z + z
    }

    /// Boxes each way.
    #[must_use]
    pub const fn size(&self) -> GridSize {
        self.size
    }

    const fn strides(&self) -> (usize, usize) {
        (self.size.z, self.size.z * self.size.x)
    }

    /// Replaces the sources, W a box, in the grid's order.
    pub fn set_sources(&mut self, watts: impl Fn(usize, usize, usize) -> f64) {
        for y in 0..self.size.y {
            for x in 0..self.size.x {
                for z in 0..self.size.z {
                    let at = self.index(x, y, z);
                    self.source_w[at] = watts(x, y, z);
                }
            }
        }
    }

    /// Heat made, W.
    #[must_use]
    pub fn made_w(&self) -> f64 {
        self.source_w.iter().sum()
    }

    /// Heat that leaves for the ambient at these temperatures, W.
    #[must_use]
    pub fn leaving_w(&self, rise_k: &[f64]) -> f64 {
        self.to_ambient.iter().zip(rise_k).map(|(g, t)| g * t).sum()
    }

    /// `out` = (A + diag(extra)) t.
    fn apply(&self, t: &[f64], extra: &[f64], out: &mut [f64]) {
        for (at, o) in out.iter_mut().enumerate() {
            *o = (self.diagonal[at] + extra.get(at).copied().unwrap_or(0.0)) * t[at];
        }
        let (sx, sy) = self.strides();
        for (edge, stride) in [(&self.to_z, 1), (&self.to_x, sx), (&self.to_y, sy)] {
            for at in 0..t.len() - stride.min(t.len()) {
                let g = edge[at];
                out[at] -= g * t[at + stride];
                out[at + stride] -= g * t[at];
            }
        }
    }

    /// Solves each vertical line by itself (Thomas' algorithm).
    fn precondition(&self, extra: &[f64], r: &[f64], z: &mut [f64], scratch: &mut [f64]) {
        let n = self.size.z;
        for start in (0..r.len()).step_by(n) {
            let mut before = 0.0;
            let mut carried = 0.0;
            for at in start..start + n {
                let lower = if at > start { -self.to_z[at - 1] } else { 0.0 };
                let pivot =
                    self.diagonal[at] + extra.get(at).copied().unwrap_or(0.0) - lower * before;
                before = if at + 1 < start + n { -self.to_z[at] / pivot } else { 0.0 };
                scratch[at] = before;
                carried = (r[at] - lower * carried) / pivot;
                z[at] = carried;
            }
            for at in (start..start + n - 1).rev() {
                z[at] -= scratch[at] * z[at + 1];
            }
        }
    }

    /// Conjugate gradients from `t` until the residual is below `tolerance` times the right side.
    fn solve(&self, right: &[f64], extra: &[f64], t: &mut [f64], tolerance: f64) -> usize {
        let n = right.len();
        let (mut r, mut z, mut q, mut scratch) =
            (vec![0.0; n], vec![0.0; n], vec![0.0; n], vec![0.0; n]);
        self.apply(t, extra, &mut q);
        for at in 0..n {
            r[at] = right[at] - q[at];
        }
        let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        let target = norm(right) * tolerance;
        self.precondition(extra, &r, &mut z, &mut scratch);
        let mut p = z.clone();
        let mut rz = dot(&r, &z);
        for iteration in 0..MAX_ITERATIONS {
            if norm(&r) <= target || rz == 0.0 {
                return iteration;
            }
            self.apply(&p, extra, &mut q);
            let alpha = rz / dot(&p, &q);
            for at in 0..n {
                t[at] += alpha * p[at];
                r[at] -= alpha * q[at];
            }
            self.precondition(extra, &r, &mut z, &mut scratch);
            let next = dot(&r, &z);
            let beta = next / rz;
            rz = next;
            for at in 0..n {
                p[at] = z[at] + beta * p[at];
            }
        }
        MAX_ITERATIONS
    }

    /// The steady field, from a guess (or none), until the residual is `tolerance` of the sources.
    /// Without any way to the ambient there is none; the result then is of no meaning.
    #[must_use]
    pub fn steady(&self, guess: Option<&[f64]>, tolerance: f64) -> SteadyHeat {
        let mut rise_k = match guess {
            Some(guess) if guess.len() == self.source_w.len() => guess.to_vec(),
            _ => vec![0.0; self.source_w.len()],
        };
        let iterations = self.solve(&self.source_w, &[], &mut rise_k, tolerance);
        SteadyHeat { rise_k, iterations }
    }

    /// The field a time step later (s), by SDIRK2: two implicit stages of the same system.
    pub fn step(&self, rise_k: &mut [f64], step_s: f64, tolerance: f64) {
        let gamma = 1.0 - std::f64::consts::FRAC_1_SQRT_2;
        let extra: Vec<f64> = self.capacity_j_per_k.iter().map(|c| c / (gamma * step_s)).collect();
        let n = rise_k.len();
        let mut slopes = [vec![0.0; n], vec![0.0; n]];
        for stage in 0..2 {
            let weight = if stage == 0 { 0.0 } else { 1.0 - gamma };
            let base: Vec<f64> =
                (0..n).map(|i| rise_k[i] + step_s * weight * slopes[0][i]).collect();
            let right: Vec<f64> = (0..n).map(|i| self.source_w[i] + extra[i] * base[i]).collect();
            let mut t = base.clone();
            self.solve(&right, &extra, &mut t, tolerance);
            for i in 0..n {
                slopes[stage][i] = (t[i] - base[i]) / (gamma * step_s);
            }
        }
        for i in 0..n {
            rise_k[i] += step_s * ((1.0 - gamma) * slopes[0][i] + gamma * slopes[1][i]);
        }
    }
}
