//! Measurements: what is compiled, run and timed, and the rows that come of it.

mod compile;
mod profile;
mod run;

pub use compile::{CompileCache, CompileUnit};
pub use profile::{measure_profile, profile_units, ProfileRow};
pub use run::{run_counters, run_problem, MeasureError, TimingProtocol, VariantTiming};

use crate::benchmark::{ArrayValues, Benchmark, KernelInputs};
use crate::placement::PlacementLimits;
use crate::source::{KernelSignature, SourceError};
use crate::variant::{list_variants, KernelVariant};
use terrace_sys::compute::GpuLimits;
use terrace_types::Bytes;

/// What is legal on a GPU.
#[must_use]
pub fn placement_limits(gpu: &GpuLimits) -> PlacementLimits {
    let shift = if gpu.capability >= 80 { 28 } else { 27 };
    PlacementLimits {
        constant: gpu.constant,
        shared_per_block: gpu.shared_per_block,
        persisting_l2: gpu.persisting_l2,
        texture_elements: 1 << shift,
    }
}

/// Limits of Hopper (CUDA programming guide, compute capability 9.0), to prepare code without one.
#[must_use]
pub const fn hopper_limits() -> PlacementLimits {
    PlacementLimits {
        constant: Bytes(64 << 10),
        shared_per_block: Bytes(227 << 10),
        persisting_l2: Bytes(1),
        texture_elements: 1 << 28,
    }
}

/// A benchmark at one size, ready to run.
#[derive(Debug)]
pub struct PreparedProblem {
    /// The benchmark.
    pub benchmark: &'static Benchmark,
    /// Its kernel.
    pub kernel: KernelSignature,
    /// The size.
    pub size: usize,
    /// Inputs.
    pub problem: KernelInputs,
    /// Results.
    pub reference: Vec<(usize, ArrayValues)>,
}

impl PreparedProblem {
    /// Makes the inputs and computes the results.
    ///
    /// # Errors
    /// A benchmark whose source lacks its kernel.
    pub fn prepare(benchmark: &'static Benchmark, size: usize) -> Result<Self, SourceError> {
        let kernel = benchmark.signature()?;
        let problem = (benchmark.problem)(size);
        let reference = (benchmark.reference)(size, &problem);
        Ok(Self { benchmark, kernel, size, problem, reference })
    }

    /// Its variants on a GPU of these limits.
    #[must_use]
    pub fn variants(&self, limits: &PlacementLimits) -> Vec<KernelVariant> {
        list_variants(&self.kernel, &self.problem.elements(&self.kernel), limits)
    }
}
