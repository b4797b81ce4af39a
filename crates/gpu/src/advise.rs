//! Advice for a kernel: where each of its arrays belongs, how sure that is, and the source that
//! has it so.

use crate::analysis::{analyze_kernel, analyze_tiles, LaunchNumbers};
use crate::data::{read_profile, DataError, DeviceFigures};
use crate::dataset::recorded_devices;
use crate::features::{array_features, LaunchFacts, LEARNED};
use crate::model::{LearnedModelError, PlacementModel};
use crate::placement::{check_placement, ArrayPlacement, PlacementLimits};
use crate::source::VariantSource;
use crate::source::{find_kernels, rewrite_kernel, KernelSignature, PlacedArray, SourceError};
use serde::Serialize;
use std::collections::BTreeMap;
use terrace_types::Bytes;

/// What advice is asked for.
#[derive(Debug, Clone, Default)]
pub struct AdviceRequest {
    /// The source.
    pub source: String,
    /// The kernel; may be left out where the source has one.
    pub kernel: Option<String>,
    /// Elements of the arrays by name; those that are missing are taken to fill memory.
    pub elements: BTreeMap<String, u64>,
    /// The launch.
    pub launch: LaunchNumbers,
    /// A part of the GPU's name among those measured.
    pub gpu: String,
}

/// Advice for an array.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ArrayAdvice {
    /// The array.
    pub array: String,
    /// Where it belongs.
    pub placement: ArrayPlacement,
    /// The kernel's speed with it there over that with all arrays in global memory.
    pub expected_speedup: f64,
    /// How sure that is, from 0 to 1.
    pub confidence: f64,
    /// The learned rule that says so, or what was seen of the accesses.
    pub rule: String,
    /// Placements that are not offered, each with the reason.
    pub not_offered: Vec<String>,
}

/// Advice for a kernel.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelAdvice {
    /// Version of this format.
    pub version: u32,
    /// The kernel.
    pub kernel: String,
    /// The GPU whose profile was used.
    pub gpu: String,
    /// By array.
    pub arrays: Vec<ArrayAdvice>,
}

/// Why there is no advice.
#[derive(Debug, thiserror::Error)]
pub enum AdviceError {
    /// The source.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The model.
    #[error(transparent)]
    Model(#[from] LearnedModelError),
    /// The measurements.
    #[error(transparent)]
    Data(#[from] DataError),
    /// No such GPU.
    #[error("no measured GPU is called {name:?}; there are: {known}")]
    NoSuchGpu {
        /// What was asked for.
        name: String,
        /// Those there are.
        known: String,
    },
    /// Several kernels.
    #[error("the source has several kernels, {found}; name one with --kernel")]
    SeveralKernels {
        /// Their names.
        found: String,
    },
}

/// The model that comes with Terrace.
///
/// # Errors
/// A model of another version, which a test excludes.
pub fn recorded_model() -> Result<PlacementModel, LearnedModelError> {
    PlacementModel::read(include_str!("../data/model.json"))
}

fn device(name: &str) -> Result<(String, DeviceFigures), AdviceError> {
    let mut known = Vec::new();
    for files in recorded_devices() {
        let (device, figures) = read_profile("profile.csv", files.profile)?;
        if device.to_lowercase().contains(&name.to_lowercase()) {
            return Ok((device, figures));
        }
        known.push(device);
    }
    Err(AdviceError::NoSuchGpu { name: name.to_owned(), known: known.join(", ") })
}

fn limits(figures: &DeviceFigures) -> PlacementLimits {
    let bytes = |name: &str| Bytes(figures.get(name).map_or(0, |v| v.max(0.0) as u64));
    PlacementLimits {
        constant: bytes("constant_bytes"),
        shared_per_block: bytes("shared_per_block_bytes"),
        persisting_l2: bytes("persisting_l2_bytes"),
        texture_elements: 1 << 27,
    }
}

/// The kernel that is meant.
///
/// # Errors
/// None of that name, or several and no name.
pub fn choose_kernel(source: &str, name: Option<&str>) -> Result<KernelSignature, AdviceError> {
    let mut found = find_kernels(source)?;
    let names = found.iter().map(|k| k.name.clone()).collect::<Vec<_>>().join(", ");
    match name {
        Some(name) => found.into_iter().find(|k| k.name == name).ok_or_else(|| {
            SourceError::NoSuchKernel { name: name.to_owned(), found: names }.into()
        }),
        None if found.len() == 1 => Ok(found.remove(0)),
        None => Err(AdviceError::SeveralKernels { found: names }),
    }
}

/// Elements of an array whose length is not known: more than any memory but the GPU's takes.
const UNKNOWN_LENGTH: u64 = 1 << 26;

/// Advises on a kernel. It does not run it, and needs no GPU.
///
/// # Errors
/// A source without the kernel, a GPU that was not measured.
pub fn advise(
    request: &AdviceRequest,
    model: &PlacementModel,
) -> Result<KernelAdvice, AdviceError> {
    let kernel = choose_kernel(&request.source, request.kernel.as_deref())?;
    if let Some(unknown) =
        request.elements.keys().find(|name| kernel.arrays.iter().all(|a| a.name != **name))
    {
        return Err(SourceError::NoSuchArray {
            kernel: kernel.name.clone(),
            array: unknown.clone(),
            found: kernel.arrays.iter().map(|a| a.name.clone()).collect::<Vec<_>>().join(", "),
        }
        .into());
    }
    let (gpu, figures) = device(&request.gpu)?;
    let limits = limits(&figures);
    let elements: Vec<u64> = kernel
        .arrays
        .iter()
        .map(|a| request.elements.get(&a.name).copied().unwrap_or(UNKNOWN_LENGTH))
        .collect();
    let access = analyze_kernel(&request.source, &kernel, &request.launch);
    let tiled = analyze_tiles(&request.source, &kernel, &request.launch);
    let facts = LaunchFacts {
        arrays: &kernel.arrays,
        elements: &elements,
        access: &access,
        tiled: &tiled,
        block: request.launch.block,
        grid: request.launch.grid,
        device: &figures,
    };
    let mut arrays = Vec::new();
    for (at, array) in kernel.arrays.iter().enumerate() {
        let (mut legal, mut not_offered) = (Vec::new(), Vec::new());
        for placement in LEARNED {
            match check_placement(array, elements[at], placement, &limits) {
                Ok(()) => legal.push(placement),
                Err(why) => not_offered.push(why.to_string()),
            }
        }
        let row = array_features(&facts, at);
        let choice = model.choose(&row, &legal);
        let own = access.arrays[at];
        let seen = format!(
            "{:.0}% of accesses at one address of a warp, {:.1} sectors an access, {:.0}% by \
                loaded indices",
            100.0 * own.uniform,
            own.sectors,
            100.0 * own.indirect
        );
        arrays.push(ArrayAdvice {
            array: array.name.clone(),
            placement: choice.placement,
            expected_speedup: choice.speedup,
            confidence: choice.confidence,
            rule: model.rule_text(&row, choice.placement).unwrap_or(seen),
            not_offered,
        });
    }
    fit_constant(&kernel, &elements, &limits, &mut arrays);
    Ok(KernelAdvice { version: 1, kernel: kernel.name, gpu, arrays })
}

/// Constant and shared memory are one for all arrays: the least gain gives way.
fn fit_constant(
    kernel: &KernelSignature,
    elements: &[u64],
    limits: &PlacementLimits,
    arrays: &mut [ArrayAdvice],
) {
    for (placement, most) in [
        (ArrayPlacement::Constant, limits.constant.get()),
        (ArrayPlacement::Shared, limits.shared_per_block.get()),
    ] {
        loop {
            let whole = |at: &usize| {
                arrays[*at].placement == placement
                    && !(placement == ArrayPlacement::Shared && kernel.arrays[*at].has_tile)
            };
            let there: Vec<usize> = (0..arrays.len()).filter(whole).collect();
            let bytes: u64 =
                there.iter().map(|at| elements[*at] * kernel.arrays[*at].element_bytes).sum();
            let least = there.iter().min_by(|a, b| {
                arrays[**a].expected_speedup.total_cmp(&arrays[**b].expected_speedup)
            });
            match least {
                Some(at) if bytes > most => {
                    let name = placement.name();
                    arrays[*at].placement = ArrayPlacement::Global;
                    arrays[*at].expected_speedup = 1.0;
                    arrays[*at].rule = format!("{name} memory is taken by arrays that gain more");
                }
                _ => break,
            }
        }
    }
}

/// The source with the advice applied.
///
/// # Errors
/// A source without the kernel.
pub fn apply_advice(
    request: &AdviceRequest,
    advice: &KernelAdvice,
) -> Result<VariantSource, AdviceError> {
    let kernel = choose_kernel(&request.source, Some(&advice.kernel))?;
    let placed: Vec<PlacedArray> = advice
        .arrays
        .iter()
        .map(|a| PlacedArray {
            name: a.array.clone(),
            elements: request.elements.get(&a.array).copied().unwrap_or(UNKNOWN_LENGTH),
            placement: a.placement,
        })
        .collect();
    Ok(rewrite_kernel(&request.source, &kernel, &placed))
}
