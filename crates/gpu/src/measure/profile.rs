//! A device's profile: latencies and rates of its memories by small kernels.
//!
//! A chase reads each index from the value before it, by one thread: its time a step is a latency.
//! A lookup reads a small table by all threads, at one place of a warp or at 32: its rate says what
//! divergence costs. A copy reads and writes once: its rate is a bandwidth.

use super::{placement_limits, CompileCache, CompileUnit, MeasureError, PreparedProblem};
use super::{run_problem, TimingProtocol};
use crate::benchmark::{ArrayValues, Benchmark, KernelInputs, ScalarValue, SplitMix};
use crate::placement::PlacementLimits;
use terrace_sys::compute::ComputeGpu;

/// A figure of a profile.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileRow {
    /// What was measured, such as `chase_8192_constant_ns`.
    pub name: String,
    /// The value, in the unit at the end of the name.
    pub value: f64,
}

const CHASE: &str = "
extern \"C\" __global__ void chase(const int *next, int *out, int steps)
{
    int at = 0;
    for (int k = 0; k < steps; k++)
        at = next[at];
    out[0] = at;
}
";

const LOOKUP: &str = "
extern \"C\" __global__ void lookup(const float *table, float *out, int n, int spread, int steps)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < steps; k++)
        sum += table[(threadIdx.x * spread + k) & (n - 1)];
    out[i] = sum;
}
";

const COPY: &str = "
extern \"C\" __global__ void copy(const float *in, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = in[i];
}
";

/// Steps of a chase and of a lookup.
const STEPS: i32 = 4096;
/// Threads of a lookup: enough for all multiprocessors of today's GPUs.
const LOOKUP_THREADS: usize = 1 << 19;
/// Elements of a lookup's table: 4 KiB.
const LOOKUP_TABLE: usize = 1024;

fn chase(elements: usize) -> KernelInputs {
    // One cycle through all lines of 128 bytes, in a random order (Sattolo's algorithm).
    let lines = elements / 32;
    let mut order: Vec<usize> = (0..lines).collect();
    let mut random = SplitMix(elements as u64);
    for i in (1..lines).rev() {
        order.swap(i, random.below(i));
    }
    let mut next = vec![0; elements];
    for (line, to) in order.iter().enumerate() {
        next[line * 32] = (to * 32) as i32;
    }
    let arrays = vec![ArrayValues::Int(next), ArrayValues::Int(vec![0; 1])];
    let scalars = vec![ScalarValue::Int(STEPS)];
    KernelInputs { arrays, scalars, threads: [1, 1, 1], defines: Vec::new() }
}

fn chase_result(_elements: usize, problem: &KernelInputs) -> Vec<(usize, ArrayValues)> {
    let next = crate::benchmark::ints(&problem.arrays[0]);
    let at = (0..STEPS).fold(0, |at: i32, _| next[at as usize]);
    vec![(1, ArrayValues::Int(vec![at]))]
}

fn lookup(spread: usize) -> KernelInputs {
    let table = SplitMix(1).floats(LOOKUP_TABLE);
    let out = ArrayValues::Float(vec![0.0; LOOKUP_THREADS]);
    let ints = [LOOKUP_TABLE as i32, spread as i32, STEPS / 16];
    let scalars = ints.map(ScalarValue::Int).to_vec();
    let threads = [LOOKUP_THREADS as u32, 1, 1];
    KernelInputs { arrays: vec![table, out], scalars, threads, defines: Vec::new() }
}

fn lookup_result(spread: usize, problem: &KernelInputs) -> Vec<(usize, ArrayValues)> {
    let table = crate::benchmark::floats(&problem.arrays[0]);
    let sum = |thread: usize| -> f32 {
        (0..STEPS as usize / 16).map(|k| table[(thread * spread + k) % LOOKUP_TABLE]).sum()
    };
    let block: Vec<f32> = (0..256).map(sum).collect();
    let out = (0..LOOKUP_THREADS).map(|i| block[i % 256]).collect();
    vec![(1, ArrayValues::Float(out))]
}

fn copy(n: usize) -> KernelInputs {
    let arrays = vec![SplitMix(2).floats(n), ArrayValues::Float(vec![0.0; n])];
    let scalars = vec![ScalarValue::Int(n as i32)];
    KernelInputs { arrays, scalars, threads: [n as u32, 1, 1], defines: Vec::new() }
}

fn copy_result(_n: usize, problem: &KernelInputs) -> Vec<(usize, ArrayValues)> {
    vec![(1, problem.arrays[0].clone())]
}

/// Sizes: L1 and constant cache, shared memory, L2, memory; places of a warp; a copy past L2.
static KERNELS: [Benchmark; 3] = [
    Benchmark {
        kernel: "chase",
        family: "profile",
        source: CHASE,
        sizes: &[512, 8192, 1 << 20, 64 << 20],
        blocks: &[[1, 1]],
        problem: chase,
        reference: chase_result,
    },
    Benchmark {
        kernel: "lookup",
        family: "profile",
        source: LOOKUP,
        sizes: &[0, 1, 33],
        blocks: &[[256, 1]],
        problem: lookup,
        reference: lookup_result,
    },
    Benchmark {
        kernel: "copy",
        family: "profile",
        source: COPY,
        sizes: &[1 << 20, 64 << 20],
        blocks: &[[256, 1]],
        problem: copy,
        reference: copy_result,
    },
];

fn problems() -> impl Iterator<Item = PreparedProblem> {
    KERNELS.iter().flat_map(|kernel| {
        kernel.sizes.iter().filter_map(|size| PreparedProblem::prepare(kernel, *size).ok())
    })
}

/// All that a profile compiles.
#[must_use]
pub fn profile_units(limits: &PlacementLimits) -> Vec<CompileUnit> {
    let mut units = Vec::new();
    for p in problems() {
        let block = p.benchmark.blocks[0];
        units.extend(p.variants(limits).iter().map(|variant| {
            CompileUnit::of_variant(p.benchmark, &p.kernel, &p.problem, block, variant)
        }));
    }
    units
}

/// Measures the profile of a GPU.
pub fn measure_profile(
    gpu: &ComputeGpu,
    cache: &CompileCache,
    protocol: &TimingProtocol,
) -> (Vec<ProfileRow>, Vec<MeasureError>) {
    let limits = gpu.limits();
    let mut rows: Vec<ProfileRow> = [
        ("capability", f64::from(limits.capability)),
        ("multiprocessors", f64::from(limits.multiprocessors)),
        ("l2_bytes", limits.l2.get() as f64),
        ("shared_per_block_bytes", placement_limits(limits).shared_per_block.get() as f64),
        ("shared_per_multiprocessor_bytes", limits.shared_per_multiprocessor.get() as f64),
        ("constant_bytes", limits.constant.get() as f64),
        ("persisting_l2_bytes", limits.persisting_l2.get() as f64),
        ("access_window_bytes", limits.access_window.get() as f64),
        ("registers_per_multiprocessor", f64::from(limits.registers)),
        ("threads_per_multiprocessor", f64::from(limits.threads)),
        ("clock_khz", f64::from(limits.clock_khz)),
        ("memory_clock_khz", f64::from(limits.memory_clock_khz)),
        ("memory_bus_bits", f64::from(limits.memory_bus_bits)),
        ("memory_bytes", limits.memory.get() as f64),
        ("driver", f64::from(limits.driver)),
    ]
    .map(|(name, value)| ProfileRow { name: name.to_owned(), value })
    .into();
    let mut failures = Vec::new();
    for problem in problems() {
        let (timings, failed) = run_problem(gpu, cache, &problem, protocol);
        failures.extend(failed);
        for timing in timings {
            let placement = timing.variant.replace("0=", "").replace("1=", "out_");
            let name = format!("{}_{}_{placement}", timing.kernel, timing.size);
            let (unit, value) = match timing.kernel.as_str() {
                "chase" => ("ns", timing.median_ns / f64::from(STEPS)),
                "lookup" => {
                    let reads = LOOKUP_THREADS as f64 * f64::from(STEPS / 16);
                    ("reads_per_ns", reads / timing.median_ns)
                }
                _ => ("bytes_per_ns", 8.0 * timing.size as f64 / timing.median_ns),
            };
            rows.push(ProfileRow { name: format!("{name}_{unit}"), value });
        }
    }
    (rows, failures)
}
