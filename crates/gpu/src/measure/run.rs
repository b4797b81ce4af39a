//! Runs and times the variants of a prepared problem on a GPU.

use super::{placement_limits, CompileCache, CompileUnit, PreparedProblem};
use crate::benchmark::{first_difference, ArrayValues, ScalarValue};
use crate::placement::ArrayPlacement;
use crate::variant::KernelVariant;
use std::collections::BTreeMap;
use terrace_sys::compute::{
    BufferKind, CompileError, ComputeGpu, GpuBuffer, GpuKernel, GpuTexture, KernelArgument,
    KernelFigures, LaunchShape, TexelFormat,
};
use terrace_sys::CudaError;
use terrace_types::Bytes;

/// How a variant is timed: Stoltzfus et al. warm up five times and take ten runs (section 4).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimingProtocol {
    /// Runs before timing.
    pub warmups: u32,
    /// Timed runs.
    pub runs: u32,
    /// A run repeats the launch until it takes so long, ns, so that the clock's step and the gap
    /// between launches matter little.
    pub least_run_ns: f64,
    /// Most launches of a run.
    pub most_repeats: u32,
    /// A launch that takes longer is timed three times after one warm-up: its spread is small.
    pub slow_ns: f64,
    /// Managed and pinned memory are measured for problems up to this size, with one block shape:
    /// the bus is slower by an order of magnitude at any size.
    pub most_bus: Bytes,
}

impl Default for TimingProtocol {
    fn default() -> Self {
        Self {
            warmups: 5,
            runs: 10,
            least_run_ns: 80_000.0,
            most_repeats: 20,
            slow_ns: 5e6,
            most_bus: Bytes(16 << 20),
        }
    }
}

/// A measured variant.
#[derive(Debug, Clone, PartialEq)]
pub struct VariantTiming {
    /// The kernel.
    pub kernel: String,
    /// The problem's size.
    pub size: usize,
    /// Threads of a block along x and y.
    pub block: [u32; 2],
    /// The variant.
    pub variant: String,
    /// Median of the runs, ns a launch.
    pub median_ns: f64,
    /// First quartile.
    pub low_ns: f64,
    /// Third quartile.
    pub high_ns: f64,
    /// Timed runs.
    pub runs: u32,
    /// Launches of a run.
    pub repeats: u32,
    /// What the compiler made of it.
    pub figures: KernelFigures,
    /// Dynamic shared memory of a block.
    pub dynamic_shared: u64,
    /// Blocks of a multiprocessor at once.
    pub resident_blocks: u32,
}

/// Why a variant was not measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// It does not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The driver refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The result is wrong.
    #[error("{kernel} as {variant} computes something else {difference}: its time is worthless")]
    WrongResult {
        /// The kernel.
        kernel: String,
        /// The variant.
        variant: String,
        /// Where and what.
        difference: String,
    },
}

/// Numbers of a result that is compared for one block shape only.
const LARGE_RESULT: usize = 1 << 22;

/// Buffers of a problem's arrays by memory, made when first needed.
struct Arrays<'a> {
    gpu: &'a ComputeGpu,
    prepared: &'a PreparedProblem,
    bytes: Vec<Vec<u8>>,
    buffers: BTreeMap<(usize, u8), GpuBuffer>,
    textures: BTreeMap<usize, GpuTexture>,
}

impl<'a> Arrays<'a> {
    fn new(gpu: &'a ComputeGpu, prepared: &'a PreparedProblem) -> Self {
        let bytes = prepared.problem.arrays.iter().map(ArrayValues::to_bytes).collect();
        Self { gpu, prepared, bytes, buffers: BTreeMap::new(), textures: BTreeMap::new() }
    }

    fn buffer(&mut self, at: usize, kind: BufferKind) -> Result<&GpuBuffer, CudaError> {
        let key = (at, kind as u8);
        if !self.buffers.contains_key(&key) {
            let buffer = self.gpu.allocate(kind, self.bytes[at].len())?;
            buffer.write(&self.bytes[at])?;
            self.buffers.insert(key, buffer);
        }
        Ok(&self.buffers[&key])
    }

    fn texture(&mut self, at: usize) -> Result<u64, CudaError> {
        if !self.textures.contains_key(&at) {
            let format = match self.prepared.kernel.arrays[at].element.as_str() {
                "int" => TexelFormat::Int,
                "float4" => TexelFormat::Float4,
                _ => TexelFormat::Float,
            };
            let gpu = self.gpu;
            let texture = gpu.texture(self.buffer(at, BufferKind::Device)?, format)?;
            self.textures.insert(at, texture);
        }
        Ok(self.textures[&at].handle())
    }

    fn arguments(&mut self, variant: &KernelVariant) -> Result<Vec<KernelArgument>, CudaError> {
        let mut arguments = Vec::new();
        for (at, placement) in variant.placements.iter().enumerate() {
            arguments.push(KernelArgument::Word(match placement {
                ArrayPlacement::Texture => self.texture(at)?,
                _ => self.buffer(at, kind(*placement))?.address(),
            }));
        }
        arguments.extend(self.prepared.problem.scalars.iter().map(|scalar| match scalar {
            ScalarValue::Int(value) => KernelArgument::Int(*value),
            ScalarValue::Float(value) => KernelArgument::Float(*value),
        }));
        Ok(arguments)
    }
}

const fn kind(placement: ArrayPlacement) -> BufferKind {
    match placement {
        ArrayPlacement::Managed => BufferKind::Managed,
        ArrayPlacement::Pinned => BufferKind::Pinned,
        _ => BufferKind::Device,
    }
}

/// Times each variant of a problem with each block shape. What fails is returned beside.
pub fn run_problem(
    gpu: &ComputeGpu,
    cache: &CompileCache,
    prepared: &PreparedProblem,
    protocol: &TimingProtocol,
) -> (Vec<VariantTiming>, Vec<MeasureError>) {
    let mut arrays = Arrays::new(gpu, prepared);
    let (mut timings, mut failures) = (Vec::new(), Vec::new());
    let bytes: u64 = arrays.bytes.iter().map(|b| b.len() as u64).sum();
    for block in prepared.benchmark.blocks {
        for variant in prepared.variants(&placement_limits(gpu.limits())) {
            let over_bus = |p| matches!(p, ArrayPlacement::Pinned | ArrayPlacement::Managed);
            let over_bus = variant.moved().any(|(_, placement)| over_bus(placement));
            let once = *block == prepared.benchmark.check_block();
            if over_bus && (bytes > protocol.most_bus.get() || !once) {
                continue;
            }
            match time_variant(gpu, cache, &mut arrays, *block, &variant, protocol) {
                Ok(timing) => timings.push(timing),
                Err(failure) => failures.push(failure),
            }
        }
    }
    (timings, failures)
}

/// Launches the global variant once for each block shape, for a profiler that watches.
///
/// # Errors
/// What is in the way of a launch.
pub fn run_counters(
    gpu: &ComputeGpu,
    cache: &CompileCache,
    prepared: &PreparedProblem,
    blocks: &[[u32; 2]],
) -> Result<(), MeasureError> {
    let mut arrays = Arrays::new(gpu, prepared);
    let variant = KernelVariant::global(prepared.kernel.arrays.len());
    for block in blocks {
        let (kernel, shape, _) = load(gpu, cache, prepared, *block, &variant)?;
        gpu.run(&kernel, &shape, &arrays.arguments(&variant)?)?;
    }
    Ok(())
}

fn load(
    gpu: &ComputeGpu,
    cache: &CompileCache,
    prepared: &PreparedProblem,
    block: [u32; 2],
    variant: &KernelVariant,
) -> Result<(GpuKernel, LaunchShape, CompileUnit), MeasureError> {
    let PreparedProblem { benchmark, kernel, problem, .. } = prepared;
    let unit = CompileUnit::of_variant(benchmark, kernel, problem, block, variant);
    let loaded = gpu.load(&cache.code(&unit)?, &kernel.name)?;
    let shape = LaunchShape {
        grid: benchmark.grid(problem, block),
        block: [block[0], block[1], 1],
        shared: unit.source.shared,
    };
    if unit.source.shared > Bytes(0) {
        loaded.allow_shared(unit.source.shared)?;
    }
    for (array, variable) in &unit.source.constants {
        if let Some(at) = kernel.arrays.iter().position(|a| a.name == *array) {
            loaded.write_variable(variable, &problem.arrays[at].to_bytes())?;
        }
    }
    Ok((loaded, shape, unit))
}

fn time_variant(
    gpu: &ComputeGpu,
    cache: &CompileCache,
    arrays: &mut Arrays<'_>,
    block: [u32; 2],
    variant: &KernelVariant,
    protocol: &TimingProtocol,
) -> Result<VariantTiming, MeasureError> {
    let prepared = arrays.prepared;
    let (kernel, shape, unit) = load(gpu, cache, prepared, block, variant)?;
    let arguments = arrays.arguments(variant)?;
    check_result(gpu, arrays, &kernel, &shape, &arguments, variant)?;
    let persisting = variant
        .moved()
        .find(|(_, placement)| *placement == ArrayPlacement::PersistingL2)
        .map(|(at, _)| at);
    if let Some(at) = persisting {
        gpu.persist(Some(arrays.buffer(at, BufferKind::Device)?))?;
    }
    let timed = time_launches(gpu, &kernel, &shape, &arguments, protocol);
    if persisting.is_some() {
        gpu.persist(None)?;
    }
    let (mut times, repeats) = timed?;
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    Ok(VariantTiming {
        kernel: prepared.kernel.name.clone(),
        size: prepared.size,
        block,
        variant: variant.to_string(),
        median_ns: at(0.5),
        low_ns: at(0.25),
        high_ns: at(0.75),
        runs: times.len() as u32,
        repeats,
        figures: kernel.figures()?,
        dynamic_shared: unit.source.shared.get(),
        resident_blocks: kernel.resident_blocks(&shape)?,
    })
}

/// Runs the variant once on cleared outputs and compares with the reference.
fn check_result(
    gpu: &ComputeGpu,
    arrays: &mut Arrays<'_>,
    kernel: &GpuKernel,
    shape: &LaunchShape,
    arguments: &[KernelArgument],
    variant: &KernelVariant,
) -> Result<(), MeasureError> {
    let prepared = arrays.prepared;
    for (at, _) in &prepared.reference {
        arrays.buffer(*at, kind(variant.placements[*at]))?.clear()?;
    }
    gpu.run(kernel, shape, arguments)?;
    for (at, expected) in &prepared.reference {
        // Copies of large results would take most of the time: they are compared for one block
        // shape.
        if expected.len() > LARGE_RESULT && shape.block[..2] != prepared.benchmark.check_block() {
            continue;
        }
        let mut bytes = vec![0; expected.len() * 4];
        arrays.buffer(*at, kind(variant.placements[*at]))?.read(&mut bytes)?;
        if let Some(difference) = first_difference(&expected.of_same_type(&bytes), expected) {
            return Err(MeasureError::WrongResult {
                kernel: prepared.kernel.name.clone(),
                variant: variant.to_string(),
                difference,
            });
        }
    }
    Ok(())
}

/// Times of runs, ns a launch, and the launches of a run.
fn time_launches(
    gpu: &ComputeGpu,
    kernel: &GpuKernel,
    shape: &LaunchShape,
    arguments: &[KernelArgument],
    protocol: &TimingProtocol,
) -> Result<(Vec<f64>, u32), CudaError> {
    let once = gpu.capture(kernel, shape, arguments, 1)?;
    let first = gpu.time(&once)?.min(gpu.time(&once)?);
    if first > protocol.slow_ns {
        let times = (0..3).map(|_| gpu.time(&once)).collect::<Result<_, _>>()?;
        return Ok((times, 1));
    }
    let wanted = (protocol.least_run_ns / first.max(1.0)).ceil();
    let repeats = (wanted as u32).clamp(1, protocol.most_repeats);
    let graph = gpu.capture(kernel, shape, arguments, repeats)?;
    for _ in 0..protocol.warmups {
        gpu.time(&graph)?;
    }
    let times = (0..protocol.runs).map(|_| gpu.time(&graph)).collect::<Result<_, _>>()?;
    Ok((times, repeats))
}
