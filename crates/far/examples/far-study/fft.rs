//! The Fourier transform of a cube of complex numbers, one axis after the other, as in the paper:
//! lines are copied, some at a time, transformed (Stockham), and copied back.

use crate::kernel::Kernel;
use crate::noise::{close, noise};
use crate::threads::{each, share};
use std::f64::consts::TAU;

/// Lines transformed together, side by side.
const LINES: usize = 16;

/// A complex number.
type Complex = (f64, f64);

fn turn(part: f64) -> Complex {
    let (sin, cos) = (-TAU * part).sin_cos();
    (cos, sin)
}

fn times(a: Complex, b: Complex) -> Complex {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

/// One element of [`LINES`] lines: real parts, imaginary parts.
type Element = [[f64; LINES]; 2];
const ZERO: Element = [[0.0; LINES]; 2];

fn plus(sum: &mut Element, x: &Element, w: Complex) {
    for l in 0..LINES {
        sum[0][l] += x[0][l] * w.0 - x[1][l] * w.1;
        sum[1][l] += x[0][l] * w.1 + x[1][l] * w.0;
    }
}

/// The transform of lines of one length, with what it needs.
pub struct Lines {
    radices: Vec<usize>,
    roots: Vec<Complex>,
    now: Vec<Element>,
    next: Vec<Element>,
}

impl Lines {
    /// For a length that is a product of 2, 3 and 5.
    pub fn new(length: usize) -> Self {
        let (mut radices, mut left) = (Vec::new(), length);
        for radix in [4, 2, 3, 5] {
            while left % radix == 0 {
                radices.push(radix);
                left /= radix;
            }
        }
        assert_eq!(left, 1, "{length} is no product of 2, 3 and 5");
        let roots = (0..length).map(|k| turn(k as f64 / length as f64)).collect();
        Self { radices, roots, now: vec![ZERO; length], next: vec![ZERO; length] }
    }

    /// Transforms what is in `now`.
    fn transform(&mut self) {
        let length = self.now.len();
        let (mut n, mut stride) = (length, 1);
        for radix in &self.radices {
            let radix = *radix;
            let m = n / radix;
            for p in 0..m {
                for q in 0..stride {
                    for j in 0..radix {
                        let mut sum = ZERO;
                        for k in 0..radix {
                            let root = self.roots[j * k % radix * (length / radix)];
                            plus(&mut sum, &self.now[q + stride * (p + m * k)], root);
                        }
                        let out = &mut self.next[q + stride * (radix * p + j)];
                        *out = ZERO;
                        plus(out, &sum, self.roots[p * j * stride]);
                    }
                }
            }
            std::mem::swap(&mut self.now, &mut self.next);
            n = m;
            stride *= radix;
        }
    }

    /// Transforms across rows: element `k` of line `l` is the complex number `first + l` of row
    /// `k`.
    fn across(&mut self, rows: &mut [&mut [f64]], first: usize, lines: usize) {
        self.now.fill(ZERO);
        for (element, row) in self.now.iter_mut().zip(rows.iter_mut()) {
            for (l, x) in row[2 * first..].chunks_exact(2).take(lines).enumerate() {
                (element[0][l], element[1][l]) = (x[0], x[1]);
            }
        }
        self.transform();
        for (element, row) in self.now.iter().zip(rows.iter_mut()) {
            for (l, x) in row[2 * first..].chunks_exact_mut(2).take(lines).enumerate() {
                (x[0], x[1]) = (element[0][l], element[1][l]);
            }
        }
    }

    /// Transforms up to [`LINES`] rows, each by itself.
    fn along(&mut self, rows: &mut [f64]) {
        let words = 2 * self.now.len();
        self.now.fill(ZERO);
        for (l, row) in rows.chunks_exact(words).enumerate() {
            for (element, x) in self.now.iter_mut().zip(row.chunks_exact(2)) {
                (element[0][l], element[1][l]) = (x[0], x[1]);
            }
        }
        self.transform();
        for (l, row) in rows.chunks_exact_mut(words).enumerate() {
            for (element, x) in self.now.iter().zip(row.chunks_exact_mut(2)) {
                (x[0], x[1]) = (element[0][l], element[1][l]);
            }
        }
    }
}

/// A cube.
pub struct Fft {
    n: usize,
    threads: usize,
    energy: f64,
}

impl Fft {
    /// The largest in so many bytes whose side is a product of 2, 3 and 5.
    pub fn new(bytes: u64, threads: usize) -> Self {
        let mut n = (bytes as f64 / 16.0).cbrt() as usize + 1;
        let smooth = |n: usize| {
            let strip = |n: usize, by: usize| {
                std::iter::successors(Some(n), |n| (n % by == 0).then(|| n / by)).last()
            };
            [2, 3, 5].into_iter().try_fold(n, strip) == Some(1)
        };
        while n > 1 && (16 * n.pow(3) > bytes as usize || !smooth(n)) {
            n -= 1;
        }
        Self { n, threads, energy: 0.0 }
    }
}

impl Kernel for Fft {
    fn words(&self) -> usize {
        2 * self.n.pow(3)
    }

    fn gflop(&self) -> f64 {
        let n = self.n as f64;
        15.0 * n.powi(3) * n.log2() / 1e9
    }

    fn shape(&self) -> String {
        format!("{0} x {0} x {0}", self.n)
    }

    fn fill(&mut self, data: &mut [f64]) {
        let share = share(data.len(), self.threads);
        let energies = each(data.chunks_mut(share), |n, part| {
            part.iter_mut().enumerate().for_each(|(i, x)| *x = noise(n * share + i) - 0.5);
            part.iter().map(|x| x * x).sum::<f64>()
        });
        self.energy = energies.iter().sum();
    }

    fn run(&mut self, data: &mut [f64]) {
        let (n, threads) = (self.n, self.threads);
        let (row, plane) = (2 * n, 2 * n * n);
        let share = n.div_ceil(threads);
        each(data.chunks_mut(share * plane), |_, planes| {
            let mut lines = Lines::new(n);
            planes.chunks_mut(LINES * row).for_each(|rows| lines.along(rows));
        });
        each(data.chunks_mut(share * plane), |_, planes| {
            let mut lines = Lines::new(n);
            for plane in planes.chunks_mut(plane) {
                let mut rows: Vec<&mut [f64]> = plane.chunks_mut(row).collect();
                (0..n).step_by(LINES).for_each(|x| lines.across(&mut rows, x, LINES.min(n - x)));
            }
        });
        // Across planes: each thread has some rows of every plane, gathered row by row.
        let mut columns: Vec<Vec<&mut [f64]>> = (0..n).map(|_| Vec::with_capacity(n)).collect();
        data.chunks_mut(row).enumerate().for_each(|(i, row)| columns[i % n].push(row));
        each(columns.chunks_mut(share), |_, columns| {
            let mut lines = Lines::new(n);
            for rows in columns {
                (0..n).step_by(LINES).for_each(|x| lines.across(rows, x, LINES.min(n - x)));
            }
        });
    }

    /// The energy is that of the input (Parseval), and some frequencies are what the definition
    /// says.
    fn check(&mut self, data: &mut [f64]) -> Result<(), String> {
        let n = self.n;
        let all = n.pow(3);
        let share = share(data.len(), self.threads);
        let energy: f64 =
            each(data.chunks(share), |_, part| part.iter().map(|x| x * x).sum::<f64>())
                .iter()
                .sum();
        let right = self.energy * all as f64;
        if !close(energy, right, 1e-11) {
            return Err(format!("energy {energy} instead of {right}"));
        }
        let some = [[0, 0, 0], [1, 2, 3], [n / 2, n / 3, n - 1]];
        let roots: Vec<Complex> = (0..n).map(|k| turn(k as f64 / n as f64)).collect();
        let planes = n.div_ceil(self.threads);
        for [kx, ky, kz] in some {
            let parts = each((0..n).step_by(planes), |_, from| {
                let mut sum = (0.0, 0.0);
                for z in from..n.min(from + planes) {
                    for y in 0..n {
                        let outer = (ky * y + kz * z) % n;
                        for x in 0..n {
                            let place = 2 * ((z * n + y) * n + x);
                            let term = times(
                                (noise(place) - 0.5, noise(place + 1) - 0.5),
                                roots[(outer + kx * x) % n],
                            );
                            sum = (sum.0 + term.0, sum.1 + term.1);
                        }
                    }
                }
                sum
            });
            let right = parts.iter().fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
            let at = 2 * ((kz * n + ky) * n + kx);
            let off = (data[at] - right.0).hypot(data[at + 1] - right.1);
            if off.is_nan() || off > 1e-9 * (all as f64).sqrt() {
                return Err(format!("frequency {kx}, {ky}, {kz} is off by {off:e}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_transformed_as_the_definition_says() {
        for length in [1, 2, 3, 4, 5, 8, 12, 30, 60, 64, 225] {
            let x: Vec<f64> = (0..2 * length * 3).map(noise).collect();
            let mut found = x.clone();
            Lines::new(length).along(&mut found);
            for (line, found) in x.chunks(2 * length).zip(found.chunks(2 * length)) {
                for k in 0..length {
                    let terms = (0..length).map(|j| {
                        times(
                            (line[2 * j], line[2 * j + 1]),
                            turn((j * k % length) as f64 / length as f64),
                        )
                    });
                    let right = terms.fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
                    let off = (found[2 * k] - right.0).hypot(found[2 * k + 1] - right.1);
                    assert!(off < 1e-11, "{length}, frequency {k}: {off}");
                }
            }
        }
    }

    #[test]
    fn cubes_fit_and_have_a_side_of_small_factors() {
        let sides = [0.2, 0.5, 1.0, 2.0, 4.0].map(|f| Fft::new((f * 48.0 * 1048576.0) as u64, 1).n);
        assert_eq!(sides, [81, 108, 144, 180, 225]);
    }
}
