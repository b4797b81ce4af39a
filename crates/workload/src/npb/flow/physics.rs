//! The equations: fluxes, their derivatives, and the solution that is known (RNR-94-007, section
//! 3.1 and tables there).

pub const C1: f64 = 1.4;
pub const C2: f64 = 0.4;
pub const C3: f64 = 0.1;
pub const C4: f64 = 1.0;
pub const C5: f64 = 1.4;
const FOUR_THIRDS: f64 = 4.0 / 3.0;
/// Diffusion along each dimension, the same for all components.
pub const DIFFUSION: [f64; 3] = [0.75, 0.75, 1.0];

/// Coefficients of the known solution, by component: the constant, then those of x, y, z of the
/// first to fourth power.
const SOLUTION: [[f64; 13]; 5] = [
    [2.0, 0.0, 0.0, 4.0, 5.0, 3.0, 0.5, 0.02, 0.01, 0.03, 0.5, 0.4, 0.3],
    [1.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 0.01, 0.03, 0.02, 0.4, 0.3, 0.5],
    [2.0, 2.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.04, 0.03, 0.05, 0.3, 0.5, 0.4],
    [2.0, 2.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.03, 0.05, 0.04, 0.2, 0.1, 0.3],
    [5.0, 4.0, 3.0, 2.0, 0.1, 0.4, 0.3, 0.05, 0.04, 0.03, 0.1, 0.3, 0.2],
];

/// The known solution at a point of the unit cube: density, three momenta, energy.
pub fn exact(at: [f64; 3]) -> [f64; 5] {
    SOLUTION.map(|c| {
        let along = |d: usize| {
            at[d] * (c[1 + d] + at[d] * (c[4 + d] + at[d] * (c[7 + d] + at[d] * c[10 + d])))
        };
        c[0] + along(0) + along(1) + along(2)
    })
}

/// Five by five.
pub type Matrix5 = [[f64; 5]; 5];

/// A point: its five components and what is derived from them.
#[derive(Debug)]
pub struct PointState {
    pub u: [f64; 5],
    pub velocity: [f64; 3],
    /// Kinetic energy over density.
    pub specific: f64,
    /// Kinetic energy.
    pub kinetic: f64,
    /// One over density.
    pub inverse: f64,
}

/// What follows from the grid and the time step.
#[derive(Debug, Clone, Copy)]
pub struct Scales {
    /// 1 / h^2 and 1 / 2 h.
    pub second: f64,
    pub first: f64,
    /// Of fourth differences.
    pub dissipation: f64,
    dt: f64,
}

impl Scales {
    pub fn new(side: usize, dt: f64) -> Self {
        let h = 1.0 / (side - 1) as f64;
        Self { second: 1.0 / (h * h), first: 1.0 / (2.0 * h), dissipation: 0.25, dt }
    }

    /// Adds what flows along dimension `d` between three neighbours.
    pub fn fluxes(&self, d: usize, [low, here, high]: [&PointState; 3], sum: &mut [f64; 5]) {
        let second = |f: &dyn Fn(&PointState) -> f64| f(high) - 2.0 * f(here) + f(low);
        let viscosity = C3 * C4 * self.second;
        let diffusion = DIFFUSION[d] * self.second;
        for (m, s) in sum.iter_mut().enumerate() {
            *s += diffusion * second(&|p| p.u[m]);
        }
        sum[0] -= self.first * (high.u[1 + d] - low.u[1 + d]);
        for c in 0..3 {
            let weight = if c == d { FOUR_THIRDS } else { 1.0 };
            let pressure = |p: &PointState| if c == d { C2 * (p.u[4] - p.kinetic) } else { 0.0 };
            let flux = |p: &PointState| p.u[1 + c] * p.velocity[d] + pressure(p);
            sum[1 + c] += viscosity * weight * second(&|p| p.velocity[c])
                - self.first * (flux(high) - flux(low));
        }
        let flux = |p: &PointState| (C1 * p.u[4] - C2 * p.kinetic) * p.velocity[d];
        sum[4] += viscosity * (1.0 - C1 * C5) * second(&|p| p.specific)
            + viscosity / 6.0 * second(&|p| p.velocity[d] * p.velocity[d])
            + viscosity * C1 * C5 * second(&|p| p.u[4] * p.inverse)
            - self.first * (flux(high) - flux(low));
    }

    /// The blocks that a point gives to the systems along dimension `d`: to the row after it, its
    /// own, to the row before.
    pub fn blocks(
        &self,
        d: usize,
        u: [f64; 5],
        specific: f64,
        kinetic: f64,
        inverse: f64,
    ) -> [Matrix5; 3] {
        let (flux, viscous) = jacobians(d, u, specific, kinetic, inverse);
        let (first, second) = (self.dt * self.first, self.dt * self.second);
        let mut blocks = [[[0.0; 5]; 5]; 3];
        for i in 0..5 {
            for j in 0..5 {
                let diagonal = if i == j { 1.0 } else { 0.0 };
                let spread = second * (viscous[i][j] + DIFFUSION[d] * diagonal);
                blocks[0][i][j] = -first * flux[i][j] - spread;
                blocks[1][i][j] = diagonal + 2.0 * spread;
                blocks[2][i][j] = first * flux[i][j] - spread;
            }
        }
        blocks
    }
}

/// Derivatives of the flux along `d`, and of what viscosity acts on.
fn jacobians(
    d: usize,
    u: [f64; 5],
    specific: f64,
    kinetic: f64,
    inverse: f64,
) -> (Matrix5, Matrix5) {
    let square = inverse * inverse;
    let (mut flux, mut viscous) = ([[0.0; 5]; 5], [[0.0; 5]; 5]);
    let along = u[1 + d];
    flux[0][1 + d] = 1.0;
    for c in 0..3 {
        let momentum = u[1 + c];
        let row = &mut flux[1 + c];
        row[0] = -momentum * along * square;
        row[1 + c] += along * inverse;
        row[1 + d] += momentum * inverse;
        if c == d {
            row[0] += C2 * specific;
            row[4] = C2;
            for e in 0..3 {
                row[1 + e] -= C2 * u[1 + e] * inverse;
            }
        }
    }
    flux[4][0] = (2.0 * C2 * kinetic - C1 * u[4]) * along * square;
    for e in 0..3 {
        flux[4][1 + e] = -C2 * u[1 + e] * along * square;
    }
    flux[4][1 + d] += (C1 * u[4] - C2 * kinetic) * inverse;
    flux[4][4] = C1 * along * inverse;

    let heat = C1 * C3 * C4 * C5;
    viscous[4][0] = -heat * u[4] * square;
    viscous[4][4] = heat * inverse;
    for c in 0..3 {
        let weight = C3 * C4 * if c == d { FOUR_THIRDS } else { 1.0 };
        viscous[1 + c][0] = -weight * u[1 + c] * square;
        viscous[1 + c][1 + c] = weight * inverse;
        viscous[4][0] -= (weight - heat) * u[1 + c] * u[1 + c] * square * inverse;
        viscous[4][1 + c] = (weight - heat) * u[1 + c] * square;
    }
    (flux, viscous)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(u: [f64; 5]) -> PointState {
        let inverse = 1.0 / u[0];
        let kinetic = 0.5 * (u[1] * u[1] + u[2] * u[2] + u[3] * u[3]) * inverse;
        let velocity = [u[1] * inverse, u[2] * inverse, u[3] * inverse];
        PointState { u, velocity, specific: kinetic * inverse, kinetic, inverse }
    }

    /// The right side's derivative by the upper neighbour, by differences, is the block that goes
    /// to the row before, negated and without the time step.
    #[test]
    fn blocks_are_the_derivatives_of_the_fluxes() {
        let (low, here, high) =
            ([1.1, 0.3, 0.5, 0.2, 3.0], [1.2, 0.4, 0.4, 0.3, 3.1], [1.3, 0.2, 0.6, 0.4, 2.9]);
        let scales = Scales::new(12, 1.0);
        for d in 0..3 {
            let of = state(high);
            let block = scales.blocks(d, high, of.specific, of.kinetic, of.inverse)[2];
            for j in 0..5 {
                let by = |change: f64| {
                    let mut moved = high;
                    moved[j] += change;
                    let mut sum = [0.0; 5];
                    scales.fluxes(d, [&state(low), &state(here), &state(moved)], &mut sum);
                    sum
                };
                let (less, more) = (by(-1e-6), by(1e-6));
                for i in 0..5 {
                    let slope = (more[i] - less[i]) / 2e-6;
                    assert!(
                        (slope + block[i][j]).abs() < 1e-4,
                        "{d} {i} {j}: {slope} {}",
                        block[i][j]
                    );
                }
            }
        }
    }
}
