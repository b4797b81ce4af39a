//! Kernels whose accesses follow from the threads' positions.

use super::{along, floats, ints, square, zeros, ArrayValues, KernelInputs, ScalarValue, SplitMix};

/// Product of square matrices.
pub mod mm {
    use super::*;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        let arrays = vec![random.floats(n * n), random.floats(n * n), zeros(n * n)];
        square(n, arrays, &[n])
    }

    pub fn reference(n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let (a, b) = (floats(&p.arrays[0]), floats(&p.arrays[1]));
        let mut c = vec![0.0_f32; n * n];
        for y in 0..n {
            for k in 0..n {
                let left = a[y * n + k];
                let out = &mut c[y * n..(y + 1) * n];
                out.iter_mut().zip(&b[k * n..(k + 1) * n]).for_each(|(o, r)| *o += left * r);
            }
        }
        vec![(2, ArrayValues::Float(c))]
    }
}

/// Resampling of a particle filter.
pub mod particle {
    use super::*;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        let weights: Vec<f32> = (0..n).map(|_| 0.1 + random.unit()).collect();
        let total: f32 = weights.iter().sum();
        let mut sum = 0.0;
        let cdf = weights
            .iter()
            .map(|w| {
                sum += w / total;
                sum
            })
            .collect();
        let first = random.unit();
        let u = (0..n).map(|i| (i as f32 + first) / n as f32).collect();
        let arrays = vec![
            ArrayValues::Float(cdf),
            ArrayValues::Float(u),
            random.floats(n),
            random.floats(n),
            zeros(n),
            zeros(n),
        ];
        along(n, arrays, &[n])
    }

    pub fn reference(n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let (cdf, u) = (floats(&p.arrays[0]), floats(&p.arrays[1]));
        let found: Vec<usize> =
            u.iter().map(|value| cdf.iter().position(|c| c >= value).unwrap_or(n - 1)).collect();
        let pick = |from: usize| {
            let from = floats(&p.arrays[from]);
            ArrayValues::Float(found.iter().map(|k| from[*k]).collect())
        };
        vec![(4, pick(2)), (5, pick(3))]
    }
}

const RADIUS: usize = 8;

fn convolution(n: usize) -> KernelInputs {
    let mut random = SplitMix(n as u64);
    let arrays = vec![random.floats(n * n), random.floats(2 * RADIUS + 1), zeros(n * n)];
    square(n, arrays, &[n, n])
}

/// The position `k` coefficients on, at the edge the edge.
fn clamped(position: usize, k: usize, n: usize) -> usize {
    (position + k).saturating_sub(RADIUS).min(n - 1)
}

/// Separable convolution, along rows.
pub mod convolution_rows {
    use super::*;

    pub fn problem(n: usize) -> KernelInputs {
        convolution(n)
    }

    pub fn reference(n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let (image, coefficient) = (floats(&p.arrays[0]), floats(&p.arrays[1]));
        let mut out = Vec::with_capacity(n * n);
        for row in image.chunks_exact(n) {
            out.extend((0..n).map(|x| {
                coefficient.iter().enumerate().map(|(k, c)| c * row[clamped(x, k, n)]).sum::<f32>()
            }));
        }
        vec![(2, ArrayValues::Float(out))]
    }
}

/// Separable convolution, along columns.
pub mod convolution_columns {
    use super::*;

    pub fn problem(n: usize) -> KernelInputs {
        convolution(n)
    }

    pub fn reference(n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let (image, coefficient) = (floats(&p.arrays[0]), floats(&p.arrays[1]));
        let mut out = vec![0.0_f32; n * n];
        for y in 0..n {
            let to = &mut out[y * n..(y + 1) * n];
            for (k, c) in coefficient.iter().enumerate() {
                let from = &image[clamped(y, k, n) * n..][..n];
                to.iter_mut().zip(from).for_each(|(o, i)| *o += c * i);
            }
        }
        vec![(2, ArrayValues::Float(out))]
    }
}

/// A stencil of 27 points.
pub mod stencil27 {
    use super::*;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        let arrays = vec![random.floats(n * n * n), random.floats(27), zeros(n * n * n)];
        KernelInputs { threads: [n as u32, n as u32, n as u32], ..square(n, arrays, &[n]) }
    }

    pub fn reference(n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let (input, weight) = (floats(&p.arrays[0]), floats(&p.arrays[1]));
        let mut out = vec![0.0_f32; n * n * n];
        for z in 1..n.saturating_sub(1) {
            for y in 1..n - 1 {
                let to = &mut out[(z * n + y) * n..][..n];
                for (at, w) in weight.iter().enumerate() {
                    let (c, b, a) = (at / 9, at / 3 % 3, at % 3);
                    let from = &input[((z + c - 1) * n + y + b - 1) * n + a..][..n - 2];
                    to[1..n - 1].iter_mut().zip(from).for_each(|(o, i)| *o += w * i);
                }
            }
        }
        vec![(2, ArrayValues::Float(out))]
    }
}

/// Transpose of a square matrix.
pub mod transpose {
    use super::*;

    pub fn problem(n: usize) -> KernelInputs {
        let arrays = vec![SplitMix(n as u64).floats(n * n), zeros(n * n)];
        square(n, arrays, &[n])
    }

    pub fn reference(n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let input = floats(&p.arrays[0]);
        let out = (0..n * n).map(|at| input[at % n * n + at / n]).collect();
        vec![(1, ArrayValues::Float(out))]
    }
}

/// A histogram of 256 bins, some fuller than others.
pub mod histogram {
    use super::*;

    const BINS: usize = 256;
    /// Values of a thread: the grid has a fixed size and strides over the data.
    const PER_THREAD: usize = 16;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        let data = (0..n)
            .map(|_| ((random.unit() * random.unit() * BINS as f32) as usize).min(BINS - 1) as i32)
            .collect();
        let arrays = vec![ArrayValues::Int(data), ArrayValues::Int(vec![0; BINS])];
        KernelInputs {
            defines: vec![("BINS", BINS as i64)],
            ..along(n.div_ceil(PER_THREAD), arrays, &[n, BINS])
        }
    }

    pub fn reference(_n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let mut counts = vec![0; BINS];
        for value in ints(&p.arrays[0]) {
            counts[*value as usize] += 1;
        }
        vec![(1, ArrayValues::Int(counts))]
    }
}

/// Scores of queries against keys, as in attention.
pub mod attention {
    use super::*;

    const DIMENSION: usize = 64;
    /// Queries: a batch, or the heads of one token.
    const QUERIES: usize = 256;
    const SCALE: f32 = 0.125;

    pub fn problem(keys: usize) -> KernelInputs {
        let mut random = SplitMix(keys as u64);
        let arrays = vec![
            random.floats(QUERIES * DIMENSION),
            random.floats(keys * DIMENSION),
            zeros(QUERIES * keys),
        ];
        let mut problem = along(keys, arrays, &[QUERIES, keys]);
        problem.scalars.push(ScalarValue::Float(SCALE));
        KernelInputs { threads: [keys as u32, QUERIES as u32, 1], ..problem }
    }

    pub fn reference(keys: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let (query, key) = (floats(&p.arrays[0]), floats(&p.arrays[1]));
        let mut score = Vec::with_capacity(QUERIES * keys);
        for q in query.chunks_exact(DIMENSION) {
            score.extend(
                key.chunks_exact(DIMENSION).map(|k| {
                    q.iter().zip(k).map(|(left, right)| left * right).sum::<f32>() * SCALE
                }),
            );
        }
        vec![(2, ArrayValues::Float(score))]
    }
}
