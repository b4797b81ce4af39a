//! Kernels that the paper does not have: more patterns to learn from.

use super::{along, floats, ints, square, zeros, ArrayValues, KernelInputs, ScalarValue, SplitMix};

/// A polynomial at many places.
pub mod polynomial {
    use super::*;

    const DEGREE: usize = 48;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        let arrays = vec![random.floats(n), random.floats(DEGREE), zeros(n)];
        along(n, arrays, &[n, DEGREE])
    }

    pub fn reference(_n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let coefficient = floats(&p.arrays[1]);
        let at = |x: &f32| coefficient.iter().fold(0.0, |sum, c| sum * x + c);
        vec![(2, ArrayValues::Float(floats(&p.arrays[0]).iter().map(at).collect()))]
    }
}

/// Dense matrix-vector product.
pub mod matvec {
    use super::*;

    const COLUMNS: usize = 512;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        let arrays = vec![random.floats(n * COLUMNS), random.floats(COLUMNS), zeros(n)];
        along(n, arrays, &[n, COLUMNS])
    }

    pub fn reference(_n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let x = floats(&p.arrays[1]);
        let row = |row: &[f32]| row.iter().zip(x).map(|(a, x)| a * x).sum::<f32>();
        let y = floats(&p.arrays[0]).chunks_exact(COLUMNS).map(row).collect();
        vec![(2, ArrayValues::Float(y))]
    }
}

/// Gravity among all bodies.
pub mod nbody {
    use super::*;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        let body = (0..4 * n).map(|_| random.unit()).collect();
        along(n, vec![ArrayValues::Float(body), zeros(4 * n)], &[n])
    }

    pub fn reference(n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let body = floats(&p.arrays[0]);
        let mut out = vec![0.0_f32; 4 * n];
        for (own, out) in body.chunks_exact(4).zip(out.chunks_exact_mut(4)) {
            let mut sum = [0.0_f64; 3];
            for other in body.chunks_exact(4) {
                let d: [f32; 3] = std::array::from_fn(|c| other[c] - own[c]);
                let inverse = 1.0 / (d[0] * d[0] + d[1] * d[1] + d[2] * d[2] + 0.01).sqrt();
                let strength = other[3] * inverse * inverse * inverse;
                (0..3).for_each(|c| sum[c] += f64::from(d[c] * strength));
            }
            (0..3).for_each(|c| out[c] = sum[c] as f32);
        }
        vec![(1, ArrayValues::Float(out))]
    }
}

/// Assignment of points to centres.
pub mod kmeans {
    use super::*;

    const DIMENSION: usize = 8;
    const CENTERS: usize = 32;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        // Multiples of 1/16: distances are exact, so that no rounding decides between centres.
        let mut coarse = |len: usize| {
            ArrayValues::Float((0..len).map(|_| random.below(64) as f32 / 16.0).collect())
        };
        let arrays =
            vec![coarse(n * DIMENSION), coarse(CENTERS * DIMENSION), ArrayValues::Int(vec![0; n])];
        along(n, arrays, &[n, CENTERS])
    }

    pub fn reference(n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let (point, center) = (floats(&p.arrays[0]), floats(&p.arrays[1]));
        let nearest = |i: usize| {
            let mut best = (1e30_f32, 0);
            for (c, center) in center.chunks_exact(DIMENSION).enumerate() {
                let distance =
                    (0..DIMENSION).map(|d| (point[d * n + i] - center[d]).powi(2)).sum::<f32>();
                if distance < best.0 {
                    best = (distance, c as i32);
                }
            }
            best.1
        };
        vec![(2, ArrayValues::Int((0..n).map(nearest).collect()))]
    }
}

/// Jacobi's method.
pub mod jacobi {
    use super::*;

    pub fn problem(n: usize) -> KernelInputs {
        square(n, vec![SplitMix(n as u64).floats(n * n), zeros(n * n)], &[n])
    }

    pub fn reference(n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let input = floats(&p.arrays[0]);
        let mut out = vec![0.0; n * n];
        for y in 1..n - 1 {
            for x in 1..n - 1 {
                let at = y * n + x;
                out[at] = 0.25 * (input[at - n] + input[at + n] + input[at - 1] + input[at + 1]);
            }
        }
        vec![(1, ArrayValues::Float(out))]
    }
}

/// Records taken apart.
pub mod unpack {
    use super::*;

    const FIELDS: usize = 8;

    pub fn problem(n: usize) -> KernelInputs {
        let len = n * FIELDS;
        along(n, vec![SplitMix(n as u64).floats(len), zeros(len)], &[n])
    }

    pub fn reference(n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let record = floats(&p.arrays[0]);
        let out = (0..n * FIELDS).map(|at| record[at % n * FIELDS + at / n]).collect();
        vec![(1, ArrayValues::Float(out))]
    }
}

/// A filter.
pub mod fir {
    use super::*;

    const TAPS: usize = 32;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        let arrays = vec![random.floats(n + TAPS), random.floats(TAPS), zeros(n)];
        along(n, arrays, &[n])
    }

    pub fn reference(n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let (signal, tap) = (floats(&p.arrays[0]), floats(&p.arrays[1]));
        let at = |i: usize| signal[i..].iter().zip(tap).map(|(s, t)| s * t).sum::<f32>();
        vec![(2, ArrayValues::Float((0..n).map(at).collect()))]
    }
}

/// Colours from a table.
pub mod palette {
    use super::*;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        let pixel = (0..n).map(|_| random.below(256) as i32).collect();
        let arrays = vec![ArrayValues::Int(pixel), random.floats(3 * 256), zeros(3 * n)];
        along(n, arrays, &[n])
    }

    pub fn reference(n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let (pixel, color) = (ints(&p.arrays[0]), floats(&p.arrays[1]));
        let out = (0..3 * n).map(|at| color[pixel[at % n] as usize + at / n * 256]).collect();
        vec![(2, ArrayValues::Float(out))]
    }
}

/// Sums by key.
pub mod scatter {
    use super::*;

    const BINS: usize = 1024;
    const PER_THREAD: usize = 16;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        let key = (0..n).map(|_| random.below(BINS) as i32).collect();
        let value = (0..n).map(|_| random.below(16) as i32).collect();
        let arrays =
            vec![ArrayValues::Int(key), ArrayValues::Int(value), ArrayValues::Int(vec![0; BINS])];
        let threads = n.div_ceil(PER_THREAD);
        let problem = along(threads, arrays, &[n, BINS]);
        KernelInputs { defines: vec![("BINS", BINS as i64)], ..problem }
    }

    pub fn reference(_n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let mut sum = vec![0; BINS];
        for (key, value) in ints(&p.arrays[0]).iter().zip(ints(&p.arrays[1])) {
            sum[*key as usize] += value;
        }
        vec![(2, ArrayValues::Int(sum))]
    }
}

/// STREAM's triad.
pub mod triad {
    use super::*;

    const SCALE: f32 = 3.0;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        let arrays = vec![random.floats(n), random.floats(n), zeros(n)];
        let mut problem = along(n, arrays, &[n]);
        problem.scalars.push(ScalarValue::Float(SCALE));
        problem
    }

    pub fn reference(_n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let sums =
            floats(&p.arrays[0]).iter().zip(floats(&p.arrays[1])).map(|(b, c)| b + SCALE * c);
        vec![(2, ArrayValues::Float(sums.collect()))]
    }
}

/// Binary search.
pub mod search {
    use super::*;

    /// Keys for each element of the sorted array.
    const KEYS: usize = 8;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        let sorted = (0..n).map(|i| (4 * i + random.below(4)) as i32).collect();
        let key = (0..n * KEYS).map(|_| random.below(4 * n) as i32).collect();
        let place = ArrayValues::Int(vec![0; n * KEYS]);
        let arrays = vec![ArrayValues::Int(sorted), ArrayValues::Int(key), place];
        along(n * KEYS, arrays, &[n, n * KEYS])
    }

    pub fn reference(_n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let sorted = ints(&p.arrays[0]);
        let place = |key: &i32| sorted.partition_point(|s| s < key) as i32;
        vec![(2, ArrayValues::Int(ints(&p.arrays[1]).iter().map(place).collect()))]
    }
}

/// Rows by factors.
pub mod scale_rows {
    use super::*;

    pub fn problem(n: usize) -> KernelInputs {
        let mut random = SplitMix(n as u64);
        let arrays = vec![random.floats(n * n), random.floats(n), random.floats(n), zeros(n * n)];
        square(n, arrays, &[n, n])
    }

    pub fn reference(n: usize, p: &KernelInputs) -> Vec<(usize, ArrayValues)> {
        let (factor, offset) = (floats(&p.arrays[1]), floats(&p.arrays[2]));
        let input = floats(&p.arrays[0]).iter().enumerate();
        let out = input.map(|(at, v)| v * factor[at / n] + offset[at / n]).collect();
        vec![(3, ArrayValues::Float(out))]
    }
}
