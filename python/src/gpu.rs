//! Advice on GPU memories for Python: a kernel's source and the launch, as CuPy has them.

use crate::failed;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use terrace_terrace::gpu::advise::{
    advise, apply_advice, choose_kernel, recorded_model, AdviceRequest,
};
use terrace_terrace::gpu::analysis::LaunchNumbers;

/// Advice for a kernel as JSON, and the source with the advice applied. `elements` and `scalars`
/// are those of the launch in the order of the kernel's parameters; whole numbers alone count.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn gpu_advise(
    source: String,
    kernel: Option<String>,
    grid: [u32; 3],
    block: [u32; 3],
    elements: Vec<u64>,
    scalars: Vec<i64>,
    defines: BTreeMap<String, i64>,
    gpu: String,
) -> PyResult<(String, String)> {
    let refused = |what: &str, why: &dyn std::fmt::Display| failed("advise on", what, why);
    let found =
        choose_kernel(&source, kernel.as_deref()).map_err(|e| refused("the kernel", &e))?;
    let counts = (found.arrays.len(), found.scalars.len());
    if (elements.len(), scalars.len()) != counts {
        let why = format!(
            "it takes {} arrays and {} scalars, the launch has {} and {}",
            counts.0,
            counts.1,
            elements.len(),
            scalars.len()
        );
        return Err(refused(&found.name, &why));
    }
    let request = AdviceRequest {
        source,
        kernel: Some(found.name.clone()),
        elements: found.arrays.iter().map(|a| a.name.clone()).zip(elements).collect(),
        launch: LaunchNumbers {
            grid,
            block,
            scalars: found.scalars.iter().map(|s| s.name.clone()).zip(scalars).collect(),
            defines,
        },
        gpu,
    };
    let model = recorded_model().map_err(|e| refused(&found.name, &e))?;
    let advice = advise(&request, &model).map_err(|e| refused(&found.name, &e))?;
    let placed = apply_advice(&request, &advice).map_err(|e| refused(&found.name, &e))?;
    let text = serde_json::to_string(&advice).map_err(|e| refused(&found.name, &e))?;
    Ok((text, placed.standalone(block)))
}
