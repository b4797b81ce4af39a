//! The benchmark kernels: source, inputs by size, and the result as the CPU computes it.
//!
//! Eight are those of Stoltzfus et al. (MCHPC 2018, section 4); the separable convolution has two
//! kernels. Histogram, BFS step, attention scores and key-value gather come on top.

mod dense;
mod more;
mod sparse;

use crate::source::{find_kernels, KernelSignature, SourceError};

/// Values of an array.
#[derive(Debug, Clone, PartialEq)]
pub enum ArrayValues {
    /// `float`, or `float4` as four after each other.
    Float(Vec<f32>),
    /// `int`.
    Int(Vec<i32>),
}

impl ArrayValues {
    /// Their bytes, as a GPU has them.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Float(values) => values.iter().flat_map(|v| v.to_ne_bytes()).collect(),
            Self::Int(values) => values.iter().flat_map(|v| v.to_ne_bytes()).collect(),
        }
    }

    /// Values of the same type from bytes.
    #[must_use]
    pub fn of_same_type(&self, bytes: &[u8]) -> Self {
        let words = bytes.chunks_exact(4).map(|c| [c[0], c[1], c[2], c[3]]);
        match self {
            Self::Float(_) => Self::Float(words.map(f32::from_ne_bytes).collect()),
            Self::Int(_) => Self::Int(words.map(i32::from_ne_bytes).collect()),
        }
    }

    /// Numbers of four bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Float(values) => values.len(),
            Self::Int(values) => values.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A scalar argument.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScalarValue {
    /// `int`.
    Int(i32),
    /// `float`.
    Float(f32),
}

/// Inputs of a benchmark kernel at one size.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelInputs {
    /// Values of the arrays in the kernel's order; those that it writes hold zeros.
    pub arrays: Vec<ArrayValues>,
    /// Scalars in the kernel's order.
    pub scalars: Vec<ScalarValue>,
    /// Threads that it needs along each axis.
    pub threads: [u32; 3],
    /// Definitions that the source needs.
    pub defines: Vec<(&'static str, i64)>,
}

/// A benchmark kernel.
#[derive(Debug, Clone, Copy)]
pub struct Benchmark {
    /// Its kernel's name.
    pub kernel: &'static str,
    /// The benchmark it belongs to: what is left out together in a cross-validation.
    pub family: &'static str,
    /// The source.
    pub source: &'static str,
    /// Sizes that are measured, least first.
    pub sizes: &'static [usize],
    /// Block shapes that are measured.
    pub blocks: &'static [[u32; 2]],
    /// Inputs of a size.
    pub problem: fn(usize) -> KernelInputs,
    /// What the arrays hold afterwards, by position, for those that the kernel writes.
    pub reference: fn(usize, &KernelInputs) -> Vec<(usize, ArrayValues)>,
}

impl KernelInputs {
    /// Elements of each array of the kernel.
    #[must_use]
    pub fn elements(&self, kernel: &KernelSignature) -> Vec<u64> {
        let bytes = self.arrays.iter().map(|a| a.len() as u64 * 4);
        bytes.zip(&kernel.arrays).map(|(bytes, array)| bytes / array.element_bytes).collect()
    }
}

impl Benchmark {
    /// Definitions that the source is compiled with.
    #[must_use]
    pub fn defines(&self, problem: &KernelInputs, block: [u32; 2]) -> Vec<(String, i64)> {
        let own = problem.defines.iter().map(|(name, value)| ((*name).to_owned(), *value));
        let block = [("BLOCK_X", block[0]), ("BLOCK_Y", block[1])];
        own.chain(block.map(|(name, value)| (name.to_owned(), i64::from(value)))).collect()
    }

    /// Definitions that hold for all sizes: those of the least one, whose inputs are soon made.
    #[must_use]
    pub fn fixed_defines(&self) -> std::collections::BTreeMap<String, i64> {
        let least = self.sizes.first().map(|size| (self.problem)(*size));
        let defines = least.map(|problem| problem.defines).unwrap_or_default();
        defines.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The block shape that stands for all where one is enough: the second, if there are several.
    #[must_use]
    pub fn check_block(&self) -> [u32; 2] {
        self.blocks[1 % self.blocks.len()]
    }

    /// Blocks of the grid.
    #[must_use]
    pub fn grid(&self, problem: &KernelInputs, block: [u32; 2]) -> [u32; 3] {
        let [x, y, z] = problem.threads;
        [x.div_ceil(block[0]), y.div_ceil(block[1]), z]
    }

    /// The kernel of the source.
    ///
    /// # Errors
    /// A source without it.
    pub fn signature(&self) -> Result<KernelSignature, SourceError> {
        let found = find_kernels(self.source)?;
        found.into_iter().find(|k| k.name == self.kernel).ok_or(SourceError::NoKernel)
    }

    /// The benchmark of this kernel.
    #[must_use]
    pub fn named(kernel: &str) -> Option<&'static Self> {
        BENCHMARKS.iter().find(|b| b.kernel == kernel)
    }
}

/// Blocks of a kernel along one axis.
const LINE: &[[u32; 2]] = &[[64, 1], [128, 1], [256, 1], [512, 1]];
/// Blocks of a kernel along two axes; whole warps along the first where possible.
const PLANE: &[[u32; 2]] = &[[8, 8], [16, 16], [32, 8], [64, 4]];

/// Elements of an edge of a square problem.
const EDGES: &[usize] = &[256, 512, 1024, 3072, 5120];

macro_rules! benchmarks {
    (@family $name:ident) => { stringify!($name) };
    (@family $name:ident $family:literal) => { $family };
    ($($module:ident :: $name:ident $(of $family:literal)?, $blocks:expr, $sizes:expr;)*) => {
        /// All of them. Sizes reach from constant memory's 64 KiB to several times the L2 cache.
        pub const BENCHMARKS: &[Benchmark] = &[$(Benchmark {
            kernel: stringify!($name),
            family: benchmarks!(@family $name $($family)?),
            source: include_str!(concat!("../../kernels/", stringify!($name), ".cu")),
            sizes: $sizes,
            blocks: $blocks,
            problem: $module::$name::problem,
            reference: $module::$name::reference,
        },)*];
    };
}

benchmarks! {
    sparse::spmv, LINE, &[4000, 16_000, 120_000, 500_000, 2_000_000];
    sparse::md, LINE, &[2000, 4000, 12_000, 100_000, 600_000];
    sparse::cfd, LINE, &[3000, 24_000, 97_000, 400_000, 1_600_000];
    dense::mm, PLANE, &[64, 128, 256, 512, 1024];
    dense::particle, LINE, &[1000, 2000, 4000, 8000, 16_000];
    dense::convolution_rows of "convolution", PLANE, EDGES;
    dense::convolution_columns of "convolution", PLANE, EDGES;
    dense::stencil27, PLANE, &[32, 64, 128, 256, 320];
    dense::transpose, PLANE, EDGES;
    dense::histogram, LINE, &[100_000, 1_000_000, 4_000_000, 16_000_000, 50_000_000];
    sparse::bfs, LINE, &[4000, 15_000, 60_000, 500_000, 2_000_000];
    dense::attention, PLANE, &[64, 256, 1024, 2048, 4096];
    sparse::gather, LINE, &[250, 4000, 40_000, 150_000, 400_000];
    more::polynomial, LINE, &[8000, 100_000, 1_000_000, 4_000_000, 16_000_000];
    more::matvec, LINE, &[500, 2000, 10_000, 40_000, 120_000];
    more::nbody, LINE, &[1000, 2000, 4000, 10_000, 20_000];
    more::kmeans, LINE, &[4000, 40_000, 200_000, 1_000_000, 3_000_000];
    more::jacobi, PLANE, EDGES;
    more::unpack, LINE, &[4000, 40_000, 200_000, 1_000_000, 4_000_000];
    more::fir, LINE, &[8000, 100_000, 1_000_000, 4_000_000, 16_000_000];
    more::palette, LINE, &[8000, 100_000, 1_000_000, 4_000_000, 10_000_000];
    more::scatter, LINE, &[100_000, 1_000_000, 4_000_000, 12_000_000, 24_000_000];
    more::triad, LINE, &[8000, 100_000, 1_000_000, 6_000_000, 20_000_000];
    more::search, LINE, &[1000, 10_000, 50_000, 500_000, 2_000_000];
    more::scale_rows, PLANE, EDGES;
}

/// Numbers that look random and are the same everywhere (Steele et al., SplitMix64, OOPSLA 2014).
#[derive(Debug, Clone, Copy)]
pub(crate) struct SplitMix(pub u64);

impl SplitMix {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// From 0 up to 1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1_u64 << 24) as f32
    }

    pub fn floats(&mut self, n: usize) -> ArrayValues {
        ArrayValues::Float((0..n).map(|_| self.unit() - 0.5).collect())
    }
}

pub(crate) fn floats(values: &ArrayValues) -> &[f32] {
    match values {
        ArrayValues::Float(values) => values,
        ArrayValues::Int(_) => &[],
    }
}

pub(crate) fn ints(values: &ArrayValues) -> &[i32] {
    match values {
        ArrayValues::Int(values) => values,
        ArrayValues::Float(_) => &[],
    }
}

pub(crate) fn zeros(n: usize) -> ArrayValues {
    ArrayValues::Float(vec![0.0; n])
}

/// A problem with one thread for each of `n` elements and whole-number scalars.
fn along(n: usize, arrays: Vec<ArrayValues>, scalars: &[usize]) -> KernelInputs {
    let scalars = scalars.iter().map(|s| ScalarValue::Int(*s as i32)).collect();
    KernelInputs { arrays, scalars, threads: [n as u32, 1, 1], defines: Vec::new() }
}

/// The same with a square of threads.
fn square(n: usize, arrays: Vec<ArrayValues>, scalars: &[usize]) -> KernelInputs {
    KernelInputs { threads: [n as u32, n as u32, 1], ..along(n, arrays, scalars) }
}

/// The first difference of what a kernel wrote from the reference, if it is more than rounding
/// explains: one part in a thousand of the value, or of the array's largest.
#[must_use]
pub fn first_difference(got: &ArrayValues, expected: &ArrayValues) -> Option<String> {
    if got.len() != expected.len() {
        return Some(format!("{} values instead of {}", got.len(), expected.len()));
    }
    match (got, expected) {
        (ArrayValues::Int(got), ArrayValues::Int(expected)) => {
            let at = got.iter().zip(expected).position(|(g, e)| g != e)?;
            Some(format!("at {at}: {} instead of {}", got[at], expected[at]))
        }
        (ArrayValues::Float(got), ArrayValues::Float(expected)) => {
            let largest = expected.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
            let wrong = |g: f32, e: f32| {
                let bound = 1e-3_f32.mul_add(e.abs(), 1e-5 * largest);
                !g.is_finite() || (g - e).abs() > bound
            };
            let at = got.iter().zip(expected).position(|(g, e)| wrong(*g, *e))?;
            Some(format!("at {at}: {} instead of {}", got[at], expected[at]))
        }
        _ => Some("values of another type".to_owned()),
    }
}
