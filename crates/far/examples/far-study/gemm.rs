//! `C += A * B`: rows one after the other, or segments that lie together.

use crate::kernel::{side, tiles, Kernel};
use crate::noise::noise_of;
use crate::product::{multiply, Shape};
use crate::threads::{each, share};
use std::cmp::Ordering;

/// Fills one matrix of a kernel.
fn fill(matrix: &mut [f64], which: usize, threads: usize) {
    let share = share(matrix.len(), threads);
    each(matrix.chunks_mut(share), |n, part| {
        part.iter_mut().enumerate().for_each(|(i, x)| *x = noise_of(which, n * share + i) - 0.5);
    });
}

/// Whether `C` is what it was plus `A * B`, by one vector: `C v = C0 v + A (B v)`. `at` is where an
/// element lies in its matrix.
fn check(
    c: &[f64],
    n: usize,
    threads: usize,
    at: impl Fn(usize, usize) -> usize + Sync,
) -> Result<(), String> {
    let v: Vec<f64> = (0..n).map(|i| noise_of(9, i) - 0.5).collect();
    let rows = n.div_ceil(threads);
    let row = |i: usize, v: &[f64], f: &(dyn Fn(usize) -> f64 + Sync)| -> f64 {
        v.iter().enumerate().map(|(j, v)| f(at(i, j)) * v).sum()
    };
    let times = |v: &[f64], f: &(dyn Fn(usize) -> f64 + Sync)| -> Vec<f64> {
        each((0..n).step_by(rows), |_, from| {
            (from..n.min(from + rows)).map(|i| row(i, v, f)).collect::<Vec<_>>()
        })
        .concat()
    };
    let of = |which: usize| move |place: usize| noise_of(which, place) - 0.5;
    let bv = times(&v, &of(2));
    let right: Vec<f64> =
        times(&bv, &of(1)).iter().zip(times(&v, &of(3))).map(|(a, c)| a + c).collect();
    let found = times(&v, &|place| c[place]);
    let most = 1e-12 * n as f64;
    // What is no number is wrong.
    let off =
        |(r, f): &(&f64, &f64)| (*r - *f).abs().partial_cmp(&most).is_none_or(Ordering::is_gt);
    let wrong = right.iter().zip(&found).filter(off).count();
    if wrong == 0 {
        Ok(())
    } else {
        Err(format!("{wrong} of {n} rows are wrong"))
    }
}

/// Three matrices, each row by row.
pub struct Plain {
    n: usize,
    threads: usize,
}

impl Plain {
    /// In so many bytes.
    pub fn new(bytes: u64, threads: usize) -> Self {
        Self { n: side(bytes, 3), threads }
    }
}

/// The three matrices: A, B, C.
fn three(data: &mut [f64]) -> (&[f64], &[f64], &mut [f64]) {
    let words = data.len() / 3;
    let (a, rest) = data.split_at_mut(words);
    let (b, c) = rest.split_at_mut(words);
    (a, b, c)
}

impl Kernel for Plain {
    fn words(&self) -> usize {
        3 * self.n * self.n
    }

    fn gflop(&self) -> f64 {
        2.0 * (self.n as f64).powi(3) / 1e9
    }

    fn shape(&self) -> String {
        format!("n {}", self.n)
    }

    fn fill(&mut self, data: &mut [f64]) {
        let words = self.words() / 3;
        data.chunks_mut(words)
            .enumerate()
            .for_each(|(n, matrix)| fill(matrix, n + 1, self.threads));
    }

    fn run(&mut self, data: &mut [f64]) {
        let (a, b, c) = three(data);
        multiply(c, a, b, self.n, Shape::square(self.n), 1.0, self.threads);
    }

    fn check(&mut self, data: &mut [f64]) -> Result<(), String> {
        check(three(data).2, self.n, self.threads, |i, j| i * self.n + j)
    }
}

/// Three matrices in segments: square tiles, each of which lies together, as in the paper.
pub struct Segmented {
    count: usize,
    side: usize,
    threads: usize,
}

impl Segmented {
    /// In so many bytes where `dram` bytes are memory.
    pub fn new(bytes: u64, dram: u64, threads: usize) -> Self {
        let (count, side) = tiles(side(bytes, 3), dram);
        Self { count, side, threads }
    }
}

impl Kernel for Segmented {
    fn words(&self) -> usize {
        3 * (self.count * self.side).pow(2)
    }

    fn gflop(&self) -> f64 {
        2.0 * ((self.count * self.side) as f64).powi(3) / 1e9
    }

    fn shape(&self) -> String {
        format!("n {}, segments of {}", self.count * self.side, self.side)
    }

    fn fill(&mut self, data: &mut [f64]) {
        let words = self.words() / 3;
        data.chunks_mut(words)
            .enumerate()
            .for_each(|(n, matrix)| fill(matrix, n + 1, self.threads));
    }

    fn run(&mut self, data: &mut [f64]) {
        let (count, side) = (self.count, self.side);
        let (a, b, c) = three(data);
        for (n, c) in c.chunks_mut(side * side).enumerate() {
            for p in 0..count {
                let tile = |i: usize, j: usize| (i * count + j) * side * side;
                let (a, b) = (&a[tile(n / count, p)..], &b[tile(p, n % count)..]);
                multiply(c, a, b, side, Shape::square(side), 1.0, self.threads);
            }
        }
    }

    fn check(&mut self, data: &mut [f64]) -> Result<(), String> {
        let (count, s) = (self.count, self.side);
        let at = |i: usize, j: usize| (i / s * count + j / s) * s * s + i % s * s + j % s;
        check(three(data).2, count * s, self.threads, at)
    }
}
