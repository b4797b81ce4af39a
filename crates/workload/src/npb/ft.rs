//! `npb-ft`: a diffusion equation in three dimensions, solved in Fourier space: one transform
//! forward, then in each iteration all coefficients evolve, are transformed back, and a checksum is
//! taken (RNR-94-007, section 2.2.4). Lines along each dimension are transformed in the thread's
//! own buffer, several at a time so that cache lines are used whole.
//!
//! ```text
//! words: | coefficients, 2 n | transformed, 2 n | factors of evolution, n |
//! ```

use super::{compare, finite, iterations, must_verify, Random};
use crate::algorithm::WrongResult;
use crate::memory::WordMemory;
use crate::pace::WorkloadPace;
use crate::spec::WorkloadSpec;
use crate::team::{digest, get, set, MeetingSums, NumericalKernel};
use std::f64::consts::PI;

/// Lines that are transformed together.
const LINES: usize = 16;
/// Diffusion in a step.
const ALPHA: f64 = 1e-6;
/// Points of a checksum.
const CHECKED: usize = 1024;
/// Class S's checksums (NPB 3.4, `verify.f` of FT), real and imaginary, and how near they must
/// come.
const CHECKSUMS: [[f64; 2]; 6] = [
    [554.608_700_496_4, 484.536_333_197_8],
    [554.638_540_919_0, 486.530_426_951_1],
    [554.614_840_617_1, 488.391_072_233_7],
    [554.542_360_741_5, 490.127_316_904_6],
    [554.425_503_962_4, 491.747_585_799_3],
    [554.268_341_190_3, 493.259_724_494_1],
];
const TOLERANCE: f64 = 1e-12;

/// The workload; see the module. The unit of work is one complex point evolved, or transformed in
/// one dimension.
#[derive(Debug)]
pub struct Ft {
    sides: [usize; 3],
    /// For each dimension, roots of unity: `exp(2 pi i k / n)` for `k` below half of `n`.
    roots: [Vec<(f64, f64)>; 3],
    seed: u64,
    steps: u64,
    verify: bool,
}

/// Stages; a number is that of the dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FtStage {
    /// A transform forward, in place in the coefficients.
    Forward(usize),
    /// Coefficients times their factors, in place and to the transformed ones.
    Evolve,
    /// A transform back, in place.
    Back(usize),
    /// Sums some points.
    Check,
}

/// What each thread has: checksums so far and a buffer.
#[derive(Debug, Default)]
pub struct FtThread {
    checksums: Vec<[f64; 2]>,
    lines: Vec<(f64, f64)>,
}

impl Ft {
    /// The workload as specified; coefficients, transformed and factors together have its size.
    #[must_use]
    pub fn new(spec: &WorkloadSpec) -> Self {
        let points =
            (spec.size.bytes(spec.fast).0 as f64 / 40.0).max(1.0).log2().round().max(6.0) as u32;
        let side = |i: u32| 1usize << ((points + i) / 3);
        let sides = if spec.class_s { [64; 3] } else { [side(2), side(1), side(0)] };
        let root = |n: usize, k: usize| {
            let angle = 2.0 * PI * k as f64 / n as f64;
            (angle.cos(), angle.sin())
        };
        let roots = sides.map(|n| (0..n / 2).map(|k| root(n, k)).collect());
        let each = 4 * sides.iter().product::<usize>();
        let steps = iterations(spec, each, CHECKSUMS.len() as u64);
        Self { sides, roots, seed: spec.seed, steps, verify: must_verify(spec) }
    }

    fn points(&self) -> usize {
        self.sides.iter().product()
    }

    /// Offset of the first point of a bundle of lines along `dimension`, lines in it, and from line
    /// to line and point to point.
    fn bundle(&self, dimension: usize, unit: usize) -> (usize, usize, usize, usize) {
        let [nx, ny, nz] = self.sides;
        if dimension == 0 {
            let first = unit * LINES;
            return (first * nx, LINES.min(ny * nz - first), nx, 1);
        }
        let each = nx.div_ceil(LINES);
        let (outer, x) = (unit / each, unit % each * LINES);
        let lines = LINES.min(nx - x);
        match dimension {
            1 => (outer * nx * ny + x, lines, 1, nx),
            _ => (outer * nx + x, lines, 1, nx * ny),
        }
    }

    /// Transforms a bundle of lines in place; without scaling.
    fn transform<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        own: &mut FtThread,
        array: usize,
        dimension: usize,
        unit: usize,
        back: bool,
    ) -> u64 {
        let n = self.sides[dimension];
        let (first, lines, line_step, step) = self.bundle(dimension, unit);
        let shift = usize::BITS - n.trailing_zeros();
        let reversed = |i: usize| if n == 1 { i } else { i.reverse_bits() >> shift };
        own.lines.resize(LINES * n, (0.0, 0.0));
        let word = |i: usize, line: usize| array + 2 * (first + line * line_step + i * step);
        let each = |show: &mut dyn FnMut(usize, usize)| {
            if step == 1 {
                (0..lines).for_each(|line| (0..n).for_each(|i| show(i, line)));
            } else {
                (0..n).for_each(|i| (0..lines).for_each(|line| show(i, line)));
            }
        };
        let buffer = &mut own.lines;
        each(&mut |i, line| {
            let at = word(i, line);
            buffer[line * n + reversed(i)] = (get(memory, at), get(memory, at + 1));
        });
        for line in buffer.chunks_exact_mut(n).take(lines) {
            fft(line, &self.roots[dimension], back);
        }
        each(&mut |i, line| {
            let (at, value) = (word(i, line), buffer[line * n + i]);
            set(memory, at, value.0);
            set(memory, at + 1, value.1);
        });
        (lines * n) as u64
    }

    /// The factor of the point at `index`: its frequencies count from zero up and, beyond half,
    /// from below.
    fn factor(&self, index: usize) -> f64 {
        let [nx, ny, _] = self.sides;
        let at = [index % nx, index / nx % ny, index / (nx * ny)];
        let square = |d: usize| {
            let (k, n) = (at[d] as f64, self.sides[d] as f64);
            let k = if k >= n / 2.0 { k - n } else { k };
            k * k
        };
        (-4.0 * ALPHA * PI * PI * (square(0) + square(1) + square(2))).exp()
    }
}

/// Butterflies on a line in bit-reversed order.
fn fft(line: &mut [(f64, f64)], roots: &[(f64, f64)], back: bool) {
    let mut half = 1;
    while half < line.len() {
        let stride = roots.len() / half;
        for pair in line.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (k, (a, b)) in low.iter_mut().zip(high).enumerate() {
                let (c, s) = roots[k * stride];
                let s = if back { -s } else { s };
                let t = (b.0 * c - b.1 * s, b.0 * s + b.1 * c);
                *b = (a.0 - t.0, a.1 - t.1);
                *a = (a.0 + t.0, a.1 + t.1);
            }
        }
        half *= 2;
    }
}

impl NumericalKernel for Ft {
    type Stage = FtStage;
    type Own = FtThread;

    fn words(&self) -> usize {
        5 * self.points()
    }

    fn pace(&self) -> WorkloadPace {
        WorkloadPace::even(1942)
    }

    fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M) {
        let mut random = Random::new(self.seed);
        for word in 0..2 * self.points() {
            set(memory, word, random.draw());
        }
        for word in 2 * self.points()..4 * self.points() {
            set(memory, word, 0.0);
        }
        for index in 0..self.points() {
            set(memory, 4 * self.points() + index, self.factor(index));
        }
    }

    fn begin(&self) -> (FtStage, FtThread) {
        (FtStage::Forward(0), FtThread::default())
    }

    fn units(&self, stage: FtStage) -> usize {
        let [nx, ny, nz] = self.sides;
        match stage {
            FtStage::Forward(0) | FtStage::Back(0) => (ny * nz).div_ceil(LINES),
            FtStage::Forward(1) | FtStage::Back(1) => nx.div_ceil(LINES) * nz,
            FtStage::Forward(_) | FtStage::Back(_) => nx.div_ceil(LINES) * ny,
            FtStage::Evolve => ny * nz,
            FtStage::Check => 1,
        }
    }

    fn work<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        own: &mut FtThread,
        stage: FtStage,
        unit: usize,
        sums: &mut [f64; 2],
    ) -> u64 {
        let [nx, ny, nz] = self.sides;
        let (coefficients, transformed, factors) = (0, 2 * self.points(), 4 * self.points());
        match stage {
            FtStage::Forward(d) => self.transform(memory, own, coefficients, d, unit, false),
            FtStage::Back(d) => self.transform(memory, own, transformed, d, unit, true),
            FtStage::Evolve => {
                for i in unit * nx..(unit + 1) * nx {
                    let factor = get(memory, factors + i);
                    for word in [2 * i, 2 * i + 1] {
                        let value = get(memory, coefficients + word) * factor;
                        set(memory, coefficients + word, value);
                        set(memory, transformed + word, value);
                    }
                }
                nx as u64
            }
            FtStage::Check => {
                for j in 1..=CHECKED {
                    let at = ((5 * j % nz) * ny + 3 * j % ny) * nx + j % nx;
                    sums[0] += get(memory, transformed + 2 * at);
                    sums[1] += get(memory, transformed + 2 * at + 1);
                }
                CHECKED as u64
            }
        }
    }

    fn next(&self, own: &mut FtThread, stage: FtStage, met: MeetingSums) -> Option<FtStage> {
        Some(match stage {
            FtStage::Forward(2) => FtStage::Evolve,
            FtStage::Forward(dimension) => FtStage::Forward(dimension + 1),
            // As the benchmark has it: the last dimension first on the way back.
            FtStage::Evolve => FtStage::Back(2),
            FtStage::Back(0) => FtStage::Check,
            FtStage::Back(dimension) => FtStage::Back(dimension - 1),
            FtStage::Check => {
                own.checksums.push(met.sums.map(|s| s / self.points() as f64));
                if met.over || own.checksums.len() as u64 == self.steps {
                    return None;
                }
                FtStage::Evolve
            }
        })
    }

    fn finish<M: WordMemory + ?Sized>(&self, _: &M, own: &FtThread) -> Result<u64, WrongResult> {
        let all: Vec<f64> = own.checksums.iter().flatten().copied().collect();
        if self.verify {
            for (step, (got, published)) in own.checksums.iter().zip(&CHECKSUMS).enumerate() {
                for (part, (got, published)) in
                    ["real", "imaginary"].iter().zip(got.iter().zip(published))
                {
                    let what = format!("checksum {} ({part})", step + 1);
                    compare("npb-ft", &what, *got, *published, TOLERANCE)?;
                }
            }
        }
        finite("npb-ft", "a checksum", &all)?;
        Ok(digest(&all))
    }
}
