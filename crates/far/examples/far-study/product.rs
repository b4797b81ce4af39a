//! Products of matrices for the caches: blocks are copied so that the innermost loop reads in
//! order, as BLAS libraries do.
//!
//! Matrices are row by row; rows are `ld` words apart. A part of a matrix is the slice that begins
//! with its first word.

use crate::poly::fma;
use crate::threads::{each, rows_of};

/// Rows and columns of the innermost block, whose sums stay in registers.
const ROWS: usize = 6;
const COLUMNS: usize = 16;
/// Rows of the left matrix copied at a time; they stay in the second cache.
const HEIGHT: usize = 96;
/// Depth and width of the part of the right matrix copied at a time; it stays in the last cache.
const DEPTH: usize = 256;
const WIDTH: usize = 2048;

/// A part of the right matrix, copied: strips of [`COLUMNS`] columns, the last one filled up with
/// zeros.
pub struct Packed {
    strips: Vec<f64>,
    depth: usize,
    width: usize,
}

impl Packed {
    /// Copies `depth` rows of `width` words.
    pub fn pack(b: &[f64], ld: usize, depth: usize, width: usize) -> Self {
        let mut strips = vec![0.0; width.div_ceil(COLUMNS) * COLUMNS * depth];
        for p in 0..depth {
            let row = &b[p * ld..p * ld + width];
            for (n, some) in row.chunks(COLUMNS).enumerate() {
                let at = (n * depth + p) * COLUMNS;
                strips[at..at + some.len()].copy_from_slice(some);
            }
        }
        Self { strips, depth, width }
    }
}

/// Copies `rows` rows of the left matrix: groups of [`ROWS`], the last one filled up with zeros.
fn pack_left(a: &[f64], ld: usize, rows: usize, depth: usize, to: &mut Vec<f64>) {
    to.clear();
    to.resize(rows.div_ceil(ROWS) * ROWS * depth, 0.0);
    for r in 0..rows {
        let group = &mut to[r / ROWS * ROWS * depth..];
        for (p, x) in a[r * ld..r * ld + depth].iter().enumerate() {
            group[p * ROWS + r % ROWS] = *x;
        }
    }
}

/// The sums of one innermost block.
#[inline]
fn innermost(group: &[f64], strip: &[f64]) -> [[f64; COLUMNS]; ROWS] {
    let mut sums = [[0.0; COLUMNS]; ROWS];
    for (a, b) in group.chunks_exact(ROWS).zip(strip.chunks_exact(COLUMNS)) {
        for r in 0..ROWS {
            for c in 0..COLUMNS {
                sums[r][c] = fma(a[r], b[c], sums[r][c]);
            }
        }
    }
    sums
}

/// `c += sign * left * b` for up to [`HEIGHT`] copied rows.
fn block(c: &mut [f64], ld: usize, rows: usize, left: &[f64], b: &Packed, sign: f64) {
    for (n, strip) in b.strips.chunks_exact(COLUMNS * b.depth).enumerate() {
        let (first, last) = (n * COLUMNS, b.width.min((n + 1) * COLUMNS));
        for (g, group) in left.chunks_exact(ROWS * b.depth).enumerate() {
            let sums = innermost(group, strip);
            for (r, sums) in sums.iter().enumerate().take(rows - g * ROWS) {
                let at = (g * ROWS + r) * ld;
                c[at + first..at + last].iter_mut().zip(sums).for_each(|(c, s)| *c += sign * s);
            }
        }
    }
}

/// `c += sign * a * b`, `rows` rows.
pub fn add(c: &mut [f64], ldc: usize, a: &[f64], lda: usize, rows: usize, b: &Packed, sign: f64) {
    let mut left = Vec::new();
    for from in (0..rows).step_by(HEIGHT) {
        let some = HEIGHT.min(rows - from);
        pack_left(&a[from * lda..], lda, some, b.depth, &mut left);
        block(&mut c[from * ldc..], ldc, some, &left, b, sign);
    }
}

/// The same where `a` is the first columns of the rows whose part from column `to` on is `c`;
/// subtracts.
pub fn subtract_within(m: &mut [f64], ld: usize, to: usize, rows: usize, b: &Packed) {
    let mut left = Vec::new();
    for from in (0..rows).step_by(HEIGHT) {
        let some = HEIGHT.min(rows - from);
        pack_left(&m[from * ld..], ld, some, b.depth, &mut left);
        block(&mut m[from * ld + to..], ld, some, &left, b, -1.0);
    }
}

/// Rows, depth and columns of a product.
#[derive(Clone, Copy)]
pub struct Shape {
    pub rows: usize,
    pub depth: usize,
    pub columns: usize,
}

impl Shape {
    /// Of square matrices.
    pub const fn square(n: usize) -> Self {
        Self { rows: n, depth: n, columns: n }
    }
}

/// `c += sign * a * b` by several threads; the rows of each matrix are `ld` apart.
pub fn multiply(
    c: &mut [f64],
    a: &[f64],
    b: &[f64],
    ld: usize,
    shape: Shape,
    sign: f64,
    threads: usize,
) {
    for column in (0..shape.columns).step_by(WIDTH) {
        let width = WIDTH.min(shape.columns - column);
        for p in (0..shape.depth).step_by(DEPTH) {
            let packed = Packed::pack(&b[p * ld + column..], ld, DEPTH.min(shape.depth - p), width);
            each(rows_of(&mut c[column..], ld, shape.rows, threads), |_, (first, rows, c)| {
                add(c, ld, &a[first * ld + p..], ld, rows, &packed, sign);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::noise_of;

    #[test]
    fn products_are_those_of_the_definition() {
        for (rows, depth, columns) in [(1, 1, 1), (7, 5, 17), (101, 300, 33), (13, 260, 2060)] {
            let ld = depth.max(columns) + 3;
            let matrix =
                |which, rows: usize| (0..rows * ld).map(|n| noise_of(which, n)).collect::<Vec<_>>();
            let (a, b, mut c) = (matrix(1, rows), matrix(2, depth), matrix(3, rows));
            let before = c.clone();
            multiply(&mut c, &a, &b, ld, Shape { rows, depth, columns }, -1.0, 2);
            for i in 0..rows {
                for j in 0..ld {
                    let product: f64 = (0..depth).map(|p| a[i * ld + p] * b[p * ld + j]).sum();
                    let right = before[i * ld + j] - if j < columns { product } else { 0.0 };
                    assert!(
                        (c[i * ld + j] - right).abs() < 1e-10,
                        "{i} {j} of {rows} {depth} {columns}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_product_within_rows_leaves_the_left_part() {
        let (ld, rows, depth) = (40, 100, 7);
        let mut m: Vec<f64> = (0..rows * ld).map(|n| noise_of(1, n)).collect();
        let before = m.clone();
        let b: Vec<f64> = (0..depth * ld).map(|n| noise_of(2, n)).collect();
        subtract_within(&mut m, ld, depth, rows, &Packed::pack(&b, ld, depth, ld - depth));
        for (n, x) in m.iter().enumerate() {
            let (i, j) = (n / ld, n % ld);
            let product =
                |j: usize| (0..depth).map(|p| before[i * ld + p] * b[p * ld + j]).sum::<f64>();
            let right = before[n] - if j < depth { 0.0 } else { product(j - depth) };
            assert!((x - right).abs() < 1e-12);
        }
    }
}
