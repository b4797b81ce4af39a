//! LU: by panels with pivots in one matrix, as LAPACK's dgetrf, or by tiles without pivots.
//!
//! LAPACK's matrices are column by column. Here a column of it is a row in memory, so a panel is
//! rows that lie together, and interchanging two of its rows touches every row in memory. In terms
//! of rows in memory: `M P = L U` with ones on the diagonal of `U`.

use crate::kernel::{side, tiles, Kernel};
use crate::noise::noise_of;
use crate::product::{add, multiply, subtract_within, Packed, Shape};
use crate::threads::{each, rows_of};
use std::ops::Range;

/// Rows of a panel, then of the parts of a panel.
const WIDTHS: &[usize] = &[128, 16];
/// Triangles of this size are solved row by row.
const SMALL: usize = 32;

/// Makes `L` and `U` of `rows` in place; `n` words a row. What lies above was applied to them
/// before. Where `pivots` are wanted they are filled in: row `r` interchanged columns `r` and
/// `pivots[r]`.
fn factor(
    m: &mut [f64],
    n: usize,
    rows: Range<usize>,
    widths: &[usize],
    mut pivots: Option<&mut [usize]>,
    threads: usize,
) {
    let Some((width, inner)) = widths.split_first() else {
        return directly(m, n, rows, pivots);
    };
    for from in rows.clone().step_by(*width) {
        let to = rows.end.min(from + width);
        factor(m, n, from..to, inner, pivots.as_deref_mut(), threads);
        if let Some(pivots) = pivots.as_deref() {
            interchange(&mut m[rows.start * n..from * n], n, from..to, pivots, threads);
            interchange(&mut m[to * n..rows.end * n], n, from..to, pivots, threads);
        }
        let (above, below) = m.split_at_mut(to * n);
        let (panel, left) = (&above[from * n..], rows.end - to);
        if left == 0 {
            continue;
        }
        each(rows_of(&mut below[from..left * n], n, left, threads), |_, (_, rows, part)| {
            solve_right(part, n, rows, &panel[from..], n, to - from);
        });
        let packed = Packed::pack(&panel[to..], n, to - from, n - to);
        each(rows_of(&mut below[from..left * n], n, left, threads), |_, (_, rows, part)| {
            subtract_within(part, n, to - from, rows, &packed);
        });
    }
}

/// The same row by row.
fn directly(m: &mut [f64], n: usize, rows: Range<usize>, mut pivots: Option<&mut [usize]>) {
    for r in rows.clone() {
        if let Some(pivots) = pivots.as_deref_mut() {
            let row = &m[r * n..(r + 1) * n];
            let largest =
                (r..n).max_by(|a, b| row[*a].abs().total_cmp(&row[*b].abs())).unwrap_or(r);
            pivots[r] = largest;
            for q in rows.clone() {
                m[q * n..(q + 1) * n].swap(r, largest);
            }
        }
        let (above, below) = m.split_at_mut((r + 1) * n);
        let row = &mut above[r * n..];
        let inverse = 1.0 / row[r];
        row[r + 1..].iter_mut().for_each(|x| *x *= inverse);
        for other in below.chunks_mut(n).take(rows.end - r - 1) {
            let factor = other[r];
            other[r + 1..].iter_mut().zip(&row[r + 1..]).for_each(|(x, u)| *x -= factor * u);
        }
    }
}

/// Does a panel's interchanges in other rows.
fn interchange(m: &mut [f64], n: usize, panel: Range<usize>, pivots: &[usize], threads: usize) {
    let rows = m.len() / n;
    each(rows_of(m, n, rows, threads), |_, (_, _, part)| {
        for row in part.chunks_mut(n) {
            panel.clone().for_each(|r| row.swap(r, pivots[r]));
        }
    });
}

/// `X U = X` for rows of `x`; `U` has ones on its diagonal.
fn solve_right(x: &mut [f64], ldx: usize, rows: usize, u: &[f64], ldu: usize, size: usize) {
    if size <= SMALL {
        for row in x.chunks_mut(ldx).take(rows) {
            for p in 0..size {
                let factor = row[p];
                let u = &u[p * ldu + p + 1..p * ldu + size];
                row[p + 1..size].iter_mut().zip(u).for_each(|(x, u)| *x -= factor * u);
            }
        }
        return;
    }
    let half = size / 2;
    solve_right(x, ldx, rows, u, ldu, half);
    subtract_within(x, ldx, half, rows, &Packed::pack(&u[half..], ldu, half, size - half));
    solve_right(&mut x[half..], ldx, rows, &u[half * ldu + half..], ldu, size - half);
}

/// `L X = X` for tiles whose rows are `ld` apart; `size` rows.
fn solve_left(l: &[f64], x: &mut [f64], ld: usize, size: usize, threads: usize) {
    if size <= SMALL {
        for r in 0..size {
            let (above, below) = x.split_at_mut(r * ld);
            let row = &mut below[..ld];
            for (p, known) in above.chunks(ld).enumerate() {
                let factor = l[r * ld + p];
                row.iter_mut().zip(known).for_each(|(x, k)| *x -= factor * k);
            }
            let inverse = 1.0 / l[r * ld + r];
            row.iter_mut().for_each(|x| *x *= inverse);
        }
        return;
    }
    let half = size / 2;
    solve_left(l, x, ld, half, threads);
    let (top, bottom) = x.split_at_mut(half * ld);
    let packed = Packed::pack(top, ld, half, ld);
    each(rows_of(bottom, ld, size - half, threads), |_, (first, rows, part)| {
        add(part, ld, &l[(half + first) * ld..], ld, rows, &packed, -1.0);
    });
    solve_left(&l[half * ld + half..], bottom, ld, size - half, threads);
}

/// Solves `M x = y` with the factors, then holds `M x` against `y`, `M` being made anew: the
/// residual in the way of the Linpack benchmark is below 16. `at`: where an element lies.
fn check(
    m: &[f64],
    n: usize,
    pivots: &[usize],
    at: impl Fn(usize, usize) -> usize,
    element: impl Fn(usize, usize) -> f64 + Sync,
    threads: usize,
) -> Result<(), String> {
    let y: Vec<f64> = (0..n).map(|i| noise_of(9, i) - 0.5).collect();
    let mut x = y.clone();
    for i in 0..n {
        let known: f64 = (0..i).map(|p| m[at(i, p)] * x[p]).sum();
        x[i] = (x[i] - known) / m[at(i, i)];
    }
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|p| m[at(i, p)] * x[p]).sum();
        x[i] -= known;
    }
    for (r, p) in pivots.iter().enumerate().rev() {
        x.swap(r, *p);
    }
    let largest = |v: &[f64]| v.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
    let share = n.div_ceil(threads);
    let parts = each((0..n).step_by(share), |_, from| {
        (from..n.min(from + share)).fold((0.0_f64, 0.0_f64, true), |(off, norm, number), i| {
            let row = x.iter().enumerate().map(|(j, x)| (element(i, j) * x, element(i, j).abs()));
            let (product, size) = row.fold((0.0, 0.0), |(p, s), (q, t)| (p + q, s + t));
            let d = (product - y[i]).abs();
            (off.max(d), norm.max(size), number && d.is_finite())
        })
    });
    let (off, norm, number) = parts
        .into_iter()
        .fold((0.0_f64, 0.0_f64, true), |a, b| (a.0.max(b.0), a.1.max(b.1), a.2 && b.2));
    let residual = off / (f64::EPSILON * (norm * largest(&x) + largest(&y)) * n as f64);
    if number && residual < 16.0 {
        Ok(())
    } else {
        Err(format!("residual {residual}"))
    }
}

/// One matrix, with pivots or, its diagonal being large, without.
pub struct Plain {
    n: usize,
    threads: usize,
    pivots: Vec<usize>,
}

impl Plain {
    /// In so many bytes.
    pub fn new(bytes: u64, pivots: bool, threads: usize) -> Self {
        let n = side(bytes, 1);
        Self { n, threads, pivots: if pivots { vec![0; n] } else { Vec::new() } }
    }

    /// The place-th element of the matrix.
    fn element(&self, place: usize) -> f64 {
        let large = self.pivots.is_empty() && place / self.n == place % self.n;
        noise_of(1, place) - 0.5 + if large { self.n as f64 } else { 0.0 }
    }
}

impl Kernel for Plain {
    fn words(&self) -> usize {
        self.n * self.n
    }

    fn gflop(&self) -> f64 {
        2.0 / 3.0 * (self.n as f64).powi(3) / 1e9
    }

    fn shape(&self) -> String {
        format!("n {}, panels of {}", self.n, WIDTHS[0])
    }

    fn fill(&mut self, data: &mut [f64]) {
        let n = self.n;
        each(rows_of(data, n, n, self.threads), |_, (first, _, part)| {
            part.iter_mut().enumerate().for_each(|(i, x)| *x = self.element(first * n + i));
        });
    }

    fn run(&mut self, data: &mut [f64]) {
        let pivots = (!self.pivots.is_empty()).then_some(self.pivots.as_mut_slice());
        factor(data, self.n, 0..self.n, WIDTHS, pivots, self.threads);
    }

    fn check(&mut self, data: &mut [f64]) -> Result<(), String> {
        let n = self.n;
        check(data, n, &self.pivots, |i, j| i * n + j, |i, j| self.element(i * n + j), self.threads)
    }
}

/// Square tiles, each of which lies together, without pivots.
pub struct Tiled {
    count: usize,
    side: usize,
    threads: usize,
}

impl Tiled {
    /// In so many bytes where `dram` bytes are memory.
    pub fn new(bytes: u64, dram: u64, threads: usize) -> Self {
        let (count, side) = tiles(side(bytes, 1), dram);
        Self { count, side, threads }
    }

    fn n(&self) -> usize {
        self.count * self.side
    }

    /// Where an element lies.
    fn at(&self, i: usize, j: usize) -> usize {
        let s = self.side;
        (i / s * self.count + j / s) * s * s + i % s * s + j % s
    }

    /// The place-th element of the data; the diagonal is large, so that no pivots are needed.
    fn element(&self, place: usize) -> f64 {
        let (s, within) = (self.side, place % (self.side * self.side));
        let tile = place / (s * s);
        let diagonal = tile / self.count == tile % self.count && within / s == within % s;
        noise_of(1, place) - 0.5 + if diagonal { self.n() as f64 } else { 0.0 }
    }
}

impl Kernel for Tiled {
    fn words(&self) -> usize {
        self.n() * self.n()
    }

    fn gflop(&self) -> f64 {
        2.0 / 3.0 * (self.n() as f64).powi(3) / 1e9
    }

    fn shape(&self) -> String {
        format!("n {}, tiles of {}", self.n(), self.side)
    }

    fn fill(&mut self, data: &mut [f64]) {
        let n = self.n();
        each(rows_of(data, n, n, self.threads), |_, (first, _, part)| {
            part.iter_mut().enumerate().for_each(|(i, x)| *x = self.element(first * n + i));
        });
    }

    fn run(&mut self, data: &mut [f64]) {
        let (count, s, threads) = (self.count, self.side, self.threads);
        let mut tiles: Vec<&mut [f64]> = data.chunks_mut(s * s).collect();
        for k in 0..count {
            let diagonal = std::mem::take(&mut tiles[k * count + k]);
            factor(diagonal, s, 0..s, WIDTHS, None, threads);
            for j in k + 1..count {
                solve_left(diagonal, tiles[k * count + j], s, s, threads);
            }
            for i in k + 1..count {
                let left = std::mem::take(&mut tiles[i * count + k]);
                each(rows_of(left, s, s, threads), |_, (_, rows, part)| {
                    solve_right(part, s, rows, diagonal, s, s);
                });
                for j in k + 1..count {
                    let to = std::mem::take(&mut tiles[i * count + j]);
                    multiply(to, left, tiles[k * count + j], s, Shape::square(s), -1.0, threads);
                    tiles[i * count + j] = to;
                }
                tiles[i * count + k] = left;
            }
            tiles[k * count + k] = diagonal;
        }
    }

    fn check(&mut self, data: &mut [f64]) -> Result<(), String> {
        let element = |i: usize, j: usize| self.element(self.at(i, j));
        check(data, self.n(), &[], |i, j| self.at(i, j), element, self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_matrix_has_the_factors_of_the_textbook() {
        // [4 2; 2 3] = [4 0; 2 2] [1 1/2; 0 1].
        let mut m = [4.0, 2.0, 2.0, 3.0];
        factor(&mut m, 2, 0..2, &[1], None, 1);
        assert_eq!(m, [4.0, 0.5, 2.0, 2.0]);
    }

    #[test]
    fn pivots_are_the_largest_of_their_row() {
        let mut m = [1.0, -8.0, 3.0, 2.0];
        let mut pivots = [0; 2];
        factor(&mut m, 2, 0..2, &[1], Some(&mut pivots), 1);
        assert_eq!(pivots, [1, 1]);
        assert_eq!(m, [-8.0, -0.125, 2.0, 3.25]);
    }

    #[test]
    fn panels_do_not_change_the_factors() {
        let n = 150;
        let matrix: Vec<f64> = (0..n * n).map(|i| noise_of(1, i) - 0.5).collect();
        let made = |widths: &[usize]| {
            let (mut m, mut pivots) = (matrix.clone(), vec![0; n]);
            factor(&mut m, n, 0..n, widths, Some(&mut pivots), 2);
            (m, pivots)
        };
        let (plain, parts) = (made(&[]), made(&[64, 16]));
        assert_eq!(plain.1, parts.1);
        assert!(plain.0.iter().zip(&parts.0).all(|(a, b)| (a - b).abs() < 1e-9));
    }
}
