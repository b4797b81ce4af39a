//! Kernels of the NAS Parallel Benchmarks, written from their specification: Bailey et al., "The
//! NAS Parallel Benchmarks", RNR-94-007, 1994 (section 2: problems, random numbers, verification).
//! With `class=S` they solve the problem of that class and must give its published verification
//! values; without, sizes follow `size` and iterations follow `accesses`, the mathematics being the
//! same.
//!
//! Numbers are stored in words. What the original programs keep in arrays of one thread (a line's
//! buffer) is kept in the thread here too and is no access to the data.

pub mod bt;
pub mod cg;
mod flow;
pub mod ft;
pub mod is;
pub mod lu;
pub mod mg;
pub mod sp;
#[cfg(test)]
mod tests;

use crate::algorithm::WrongResult;
use crate::spec::WorkloadSpec;

/// The multiplier, 5^13.
const MULTIPLIER: u64 = 1_220_703_125;
const MASK: u64 = (1 << 46) - 1;

/// `x' = 5^13 x mod 2^46`; numbers are `x' / 2^46` (RNR-94-007, section 2.3).
#[derive(Debug, Clone, Copy)]
pub struct Random(u64);

impl Random {
    /// Begins at 314159265 for seed 1, as the benchmarks do; elsewhere, an odd number again, for
    /// others.
    pub fn new(seed: u64) -> Self {
        Self((314_159_265 + seed.wrapping_sub(1).wrapping_mul(0x9e37_79b9_7f4a_7c16)) & MASK)
    }

    /// The next number, uniform in (0, 1).
    #[inline]
    pub fn draw(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(MULTIPLIER) & MASK;
        self.0 as f64 / (MASK + 1) as f64
    }
}

/// Whether the published values must come out: class S, its seed, run to its end.
fn must_verify(spec: &WorkloadSpec) -> bool {
    spec.class_s && spec.seed == 1 && spec.seconds.is_none()
}

/// Compares with a published value.
fn compare(
    workload: &'static str,
    what: &str,
    got: f64,
    published: f64,
    tolerance: f64,
) -> Result<(), WrongResult> {
    if ((got - published) / published).abs() <= tolerance {
        return Ok(());
    }
    Err(WrongResult { workload, what: format!("{what} is {got:.13e}, published {published:.13e}") })
}

/// Numbers that memory damage or divergence would spoil.
fn finite(workload: &'static str, what: &str, numbers: &[f64]) -> Result<(), WrongResult> {
    match numbers.iter().find(|n| !n.is_finite()) {
        Some(n) => Err(WrongResult { workload, what: format!("{what} is {n}") }),
        None => Ok(()),
    }
}

/// Iterations: those that `accesses` allows at `each`, one at least.
fn iterations(spec: &WorkloadSpec, each: usize, of_class: u64) -> u64 {
    match (spec.class_s, spec.seconds) {
        (true, _) => of_class,
        (false, Some(_)) => u64::MAX,
        (false, None) => (spec.accesses / each.max(1) as u64).max(1),
    }
}
