//! What Python sees of Terrace: recordings as columns of bytes, journals and predictions as JSON.
//! The package around it (`python/terrace`) makes arrays and frames of them. Memory crosses as what
//! NumPy calls an array interface: an address and the object that keeps it.
#![deny(unsafe_code)]

mod arena;
mod columns;
mod far;
mod gpu;
mod memory;
mod policy;
mod stage;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::fs::File;
use std::io::BufReader;
use terrace_terrace::engine::journal;
use terrace_terrace::machine;
use terrace_terrace::predict::{parse_sweep, parse_tracker, predict, Question};
use terrace_terrace::system::{simulate_inputs, SystemQuestion};
use terrace_terrace::trace::TraceReader;
use terrace_terrace::types::{Bytes, Contender, Seed};

create_exception!(
    terrace,
    TerraceError,
    PyException,
    "What Terrace could not do: what, on which target, why, and what to try."
);

fn failed(what: &str, target: &str, why: &dyn std::fmt::Display) -> PyErr {
    TerraceError::new_err(format!("cannot {what} {target}: {why}"))
}

/// Names of the machines that come with Terrace.
#[pyfunction]
fn presets() -> Vec<String> {
    machine::preset_names().map(str::to_owned).collect()
}

/// Names of the policies, and of the bounds beside them.
#[pyfunction]
fn policies() -> Vec<String> {
    let simulated = Contender::all().filter(terrace_terrace::sim::is_simulated);
    simulated.map(|contender| contender.to_string()).collect()
}

/// A preset by its name, else a machine file.
fn machine_of(name: &str) -> PyResult<machine::Machine> {
    if let Some(preset) = machine::preset(name) {
        return Ok(preset);
    }
    let text = std::fs::read_to_string(name).map_err(|e| {
        failed(
            "read machine",
            name,
            &format!("{e}; give a file or one of {}", presets().join(", ")),
        )
    })?;
    machine::Machine::from_toml(&text, name).map_err(|e| failed("read machine", name, &e))
}

/// `terrace sim`: the contract's JSON. `own`: a name among `policies` and the function that it
/// stands for.
#[pyfunction]
#[pyo3(signature = (machine, input, policies, sweep, seed, tracker, own=None))]
#[allow(clippy::too_many_arguments)]
fn simulate(
    py: Python<'_>,
    machine: &str,
    input: String,
    policies: Vec<String>,
    sweep: Option<&str>,
    seed: u64,
    tracker: &str,
    own: Option<(String, Py<PyAny>)>,
) -> PyResult<String> {
    let machine = machine_of(machine)?;
    let tracker = parse_tracker(tracker).map_err(|e| failed("understand", "tracker", &e))?;
    let sweep = match sweep {
        Some(text) => parse_sweep(text).map_err(|e| failed("understand", "sweep", &e))?,
        None => Vec::new(),
    };
    let (own, failure) = match own {
        Some((name, function)) => {
            let (custom, failure) = policy::policy(function);
            (Some((name, custom)), failure)
        }
        None => (None, policy::Failure::default()),
    };
    let own_name = own.as_ref().map(|(name, _)| name.clone());
    let contender = |name: &String| match &own_name {
        Some(own) if own == name => Ok(Contender::Custom(name.clone())),
        _ => name.parse::<Contender>().map_err(|e| failed("simulate", &input, &e)),
    };
    let policies = policies.iter().map(contender).collect::<PyResult<Vec<_>>>()?;
    let question = Question {
        machine,
        policies,
        input,
        sweep,
        seed: Seed(seed),
        tracker,
        journals: false,
        custom: own.map(|(_, custom)| custom),
    };
    let answer =
        py.detach(|| predict(&question)).map_err(|e| failed("simulate", &question.input, &e));
    // What the function raised comes first: it is why whatever else went wrong.
    if let Some(error) = failure.take() {
        return Err(error);
    }
    let answer = answer?;
    serde_json::to_string(&answer).map_err(|e| failed("write", "the answer", &e))
}

/// One system of hosts that share pools, as `terrace sim --system --json` tells of it.
#[pyfunction]
#[pyo3(signature = (system, inputs, policy, hosts, pools, local_bytes, placement, seed))]
#[allow(clippy::too_many_arguments)]
fn simulate_system(
    py: Python<'_>,
    system: String,
    inputs: Vec<String>,
    policy: Option<String>,
    hosts: Option<u32>,
    pools: Option<u32>,
    local_bytes: Option<u64>,
    placement: Option<String>,
    seed: u64,
) -> PyResult<String> {
    let question = SystemQuestion {
        system,
        inputs,
        policies: policy.into_iter().collect(),
        hosts: hosts.into_iter().collect(),
        pools: pools.into_iter().collect(),
        placement,
        local: local_bytes.map(Bytes).into_iter().collect(),
        seed: Seed(seed),
    };
    let answer = py
        .detach(|| simulate_inputs(&question, |_, _| ()))
        .map_err(|e| failed("simulate", &question.system, &e))?;
    serde_json::to_string(&answer).map_err(|e| failed("write", "the answer", &e))
}

/// A recording's accesses: columns as bytes, native order, and the times cost nothing that are not
/// asked for. Damage that was left out is reported under `damage`.
#[pyfunction]
#[pyo3(signature = (path, first, count, times))]
fn read_recording<'py>(
    py: Python<'py>,
    path: &str,
    first: u64,
    count: u64,
    times: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let reported = |e: &dyn std::fmt::Display| failed("read recording", path, e);
    let file = File::open(path).map_err(|e| reported(&e))?;
    let read = py.detach(|| {
        let mut reader = TraceReader::open(BufReader::new(file)).map_err(|e| e.to_string())?;
        columns::read(&mut reader, first, count, times)
    });
    let read = read.map_err(|e| reported(&e))?;
    let dict = PyDict::new(py);
    for (name, bytes) in read.columns() {
        dict.set_item(name, PyBytes::new(py, &bytes))?;
    }
    dict.set_item("damage", read.damage)?;
    dict.set_item("header", read.header)?;
    Ok(dict)
}

/// A journal: JSON of its header, its entries, how many were skipped and what stopped the reading.
#[pyfunction]
fn read_journal(path: &str) -> PyResult<String> {
    let reported = |e: &dyn std::fmt::Display| failed("read journal", path, e);
    let bytes = std::fs::read(path).map_err(|e| reported(&e))?;
    let reading = journal::read(&bytes).map_err(|e| reported(&e))?;
    let all = serde_json::json!({
        "header": reading.header,
        "entries": reading.entries,
        "skipped": reading.skipped,
        "problem": reading.problem.map(|p| p.to_string()),
    });
    serde_json::to_string(&all).map_err(|e| reported(&e))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("TerraceError", module.py().get_type::<TerraceError>())?;
    module.add_function(wrap_pyfunction!(presets, module)?)?;
    module.add_function(wrap_pyfunction!(policies, module)?)?;
    module.add_function(wrap_pyfunction!(simulate, module)?)?;
    module.add_function(wrap_pyfunction!(simulate_system, module)?)?;
    module.add_function(wrap_pyfunction!(read_recording, module)?)?;
    module.add_function(wrap_pyfunction!(read_journal, module)?)?;
    module.add_class::<memory::Memory>()?;
    module.add_class::<arena::Arena>()?;
    module.add_class::<far::Far>()?;
    module.add_class::<stage::StageBlock>()?;
    module.add_function(wrap_pyfunction!(stage::stage, module)?)?;
    module.add_function(wrap_pyfunction!(gpu::gpu_advise, module)?)?;
    Ok(())
}
