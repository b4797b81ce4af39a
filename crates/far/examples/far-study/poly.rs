//! Polynomials by Horner's rule over an array: one stream reads the arguments and sums up, two
//! write each result in its argument's place.

use crate::kernel::Kernel;
use crate::noise::{close, noise};
use crate::threads::{each, share};

/// Arguments evaluated together: so many independent chains of operations fill a vector unit.
const LANES: usize = 64;
/// All coefficients. Arguments from 0 to 1/2 have values from 1/4 to 1/2 then, which are arguments
/// again.
const COEFFICIENT: f64 = 0.25;

/// Polynomials of one degree.
pub struct Poly {
    words: usize,
    degree: usize,
    update: bool,
    threads: usize,
    coefficients: Vec<f64>,
    found: f64,
}

impl Poly {
    /// For so many bytes; `update`: two streams.
    pub fn new(bytes: u64, degree: usize, update: bool, threads: usize) -> Self {
        let words = bytes as usize / 8;
        Self {
            words,
            degree,
            update,
            threads,
            coefficients: vec![COEFFICIENT; degree + 1],
            found: 0.0,
        }
    }
}

/// `a * b + c`, in one operation where the machine that this is compiled for has one.
#[inline(always)]
pub fn fma(a: f64, b: f64, c: f64) -> f64 {
    if cfg!(target_feature = "fma") {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

#[inline]
fn horner(coefficients: &[f64], x: &[f64; LANES]) -> [f64; LANES] {
    let mut sum = [0.0; LANES];
    for c in coefficients {
        for (s, x) in sum.iter_mut().zip(x) {
            *s = fma(*s, *x, *c);
        }
    }
    sum
}

fn lanes(some: &[f64]) -> [f64; LANES] {
    let mut x = [0.0; LANES];
    x[..some.len()].copy_from_slice(some);
    x
}

/// The sum of all values.
fn sum(coefficients: &[f64], data: &[f64]) -> f64 {
    let mut sums = [0.0; LANES];
    for some in data.chunks(LANES) {
        let values = horner(coefficients, &lanes(some));
        for (s, v) in sums.iter_mut().zip(&values[..some.len()]) {
            *s += v;
        }
    }
    sums.iter().sum()
}

/// Each argument becomes its value.
fn update(coefficients: &[f64], data: &mut [f64]) {
    for some in data.chunks_mut(LANES) {
        let values = horner(coefficients, &lanes(some));
        let n = some.len();
        some.copy_from_slice(&values[..n]);
    }
}

/// What the polynomial is by the sum of a geometric series.
fn closed(x: f64, degree: usize) -> f64 {
    COEFFICIENT * (1.0 - x.powi(degree as i32 + 1)) / (1.0 - x)
}

impl Kernel for Poly {
    fn words(&self) -> usize {
        self.words
    }

    fn gflop(&self) -> f64 {
        2.0 * self.degree as f64 * self.words as f64 / 1e9
    }

    fn shape(&self) -> String {
        format!("{} arguments, degree {}", self.words, self.degree)
    }

    fn fill(&mut self, data: &mut [f64]) {
        let share = share(data.len(), self.threads);
        each(data.chunks_mut(share), |n, part| {
            part.iter_mut().enumerate().for_each(|(i, x)| *x = 0.5 * noise(n * share + i));
        });
    }

    fn run(&mut self, data: &mut [f64]) {
        let share = share(data.len(), self.threads);
        let coefficients = &self.coefficients;
        if self.update {
            each(data.chunks_mut(share), |_, part| update(coefficients, part));
        } else {
            self.found = each(data.chunks(share), |_, part| sum(coefficients, part)).iter().sum();
        }
    }

    fn check(&mut self, data: &mut [f64]) -> Result<(), String> {
        let share = share(data.len(), self.threads);
        if self.update {
            let wrong = each(data.chunks(share), |n, part| {
                let right = |i: usize| closed(0.5 * noise(n * share + i), self.degree);
                part.iter().enumerate().filter(|(i, y)| !close(**y, right(*i), 1e-12)).count()
            });
            let wrong: usize = wrong.iter().sum();
            return if wrong == 0 { Ok(()) } else { Err(format!("{wrong} values are wrong")) };
        }
        let parts = each((0..data.len()).step_by(share), |_, from| {
            (from..data.len().min(from + share))
                .map(|i| closed(0.5 * noise(i), self.degree))
                .sum::<f64>()
        });
        let right: f64 = parts.iter().sum();
        if close(self.found, right, 1e-11) {
            Ok(())
        } else {
            Err(format!("sum {} instead of {right}", self.found))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_polynomial() {
        // 1 + 2x + 3x^2 at 2 is 17, the highest coefficient first.
        assert_eq!(horner(&[3.0, 2.0, 1.0], &[2.0; LANES])[LANES - 1], 17.0);
        assert!(close(
            sum(&[0.25; 17], &[0.25, 0.5, 0.0]),
            closed(0.25, 16) + closed(0.5, 16) + 0.25,
            1e-14
        ));
        let mut data = vec![0.125; LANES + 3];
        update(&[0.25; 65], &mut data);
        assert!(data.iter().all(|y| close(*y, closed(0.125, 64), 1e-14)));
    }

    #[test]
    fn values_are_arguments_again() {
        assert!((0..1000).map(|n| closed(0.5 * noise(n), 16)).all(|y| (0.25..=0.5).contains(&y)));
    }
}
