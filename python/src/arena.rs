//! Arenas for Python. Handles of `alloc` are plain numbers that may outlive their arena; here an
//! arena ends when nothing of it is left in Python, so that none does.
#![allow(unsafe_code)]

use crate::failed;
use crate::memory::array_interface;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::json;
use std::sync::Arc;
use terrace_terrace::alloc::arena::{
    self, Devices, MoveError, MoveReport, Moving, ArenaSpec, Strictness,
};
use terrace_terrace::types::{Bytes, NodeId};

/// The arena itself, ended with the last thing that refers to it.
struct Owned(arena::Arena);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: each block and each move of this arena holds an `Arc` of this, so none is left;
        // this module alone has handles of it, all within calls on such objects, so nobody
        // allocates from it or frees into it.
        let _once = unsafe { self.0.destroy() };
    }
}

fn devices(how: &str, nodes: Vec<u16>) -> PyResult<Devices> {
    let nodes: Vec<NodeId> = nodes.into_iter().map(NodeId).collect();
    match how {
        "prefer" if nodes.is_empty() => Ok(Devices::Anywhere),
        "prefer" => Ok(Devices::Prefer(nodes)),
        "only" => Ok(Devices::Only(nodes)),
        "interleave" => Ok(Devices::Interleave(nodes)),
        "spill" => Ok(Devices::Spill(nodes)),
        _ => Err(failed(
            "use",
            "nodes",
            &format!("{how:?}; give \"prefer\", \"only\", \"interleave\" or \"spill\""),
        )),
    }
}

/// JSON of what became of the pages; an error only where nothing was begun.
fn describe(result: Result<MoveReport, MoveError>) -> PyResult<String> {
    let why = result.as_ref().err().map(ToString::to_string);
    let report = match result {
        Ok(report) => report,
        Err(MoveError::Incomplete(report) | MoveError::Cancelled(report)) => *report,
        Err(error) => return Err(failed("move", "the arena", &error)),
    };
    let stayed: Vec<(String, u64)> =
        report.stayed.iter().map(|(why, pages)| (why.to_string(), *pages)).collect();
    let all = json!({
        "pages": report.pages,
        "already": report.already,
        "moved": report.moved,
        "gone": report.gone,
        "stayed": stayed,
        "problem": why,
    });
    Ok(all.to_string())
}

fn strictness(strict: bool) -> Strictness {
    if strict {
        Strictness::Strict
    } else {
        Strictness::Partial
    }
}

/// A heap whose blocks lie on the nodes asked for and move together.
#[pyclass(frozen)]
pub struct Arena {
    of: Arc<Owned>,
}

#[pymethods]
impl Arena {
    #[new]
    fn new(
        how: &str,
        nodes: Vec<u16>,
        limit: Option<u64>,
        huge: bool,
        name: String,
    ) -> PyResult<Self> {
        let spec = ArenaSpec {
            name,
            limit: limit.map(Bytes),
            devices: devices(how, nodes)?,
            huge_pages: huge,
            ..ArenaSpec::default()
        };
        let made = arena::Arena::create(&spec).map_err(|e| failed("create", "an arena", &e))?;
        Ok(Self { of: Arc::new(Owned(made)) })
    }

    fn allocate(&self, bytes: usize, align: usize) -> PyResult<ArenaBlock> {
        let block = self.of.0.alloc_aligned(bytes, align);
        let block =
            block.map_err(|e| failed("allocate", &format!("{bytes} bytes of an arena"), &e))?;
        Ok(ArenaBlock { address: block.as_ptr() as usize, bytes, of: self.of.clone() })
    }

    fn set_device(
        &self,
        py: Python<'_>,
        how: &str,
        nodes: Vec<u16>,
        strict: bool,
    ) -> PyResult<String> {
        let devices = devices(how, nodes)?;
        describe(py.detach(|| self.of.0.set_device(&devices, strictness(strict))))
    }

    fn set_device_async(&self, how: &str, nodes: Vec<u16>, strict: bool) -> PyResult<Move> {
        let moving = self.of.0.set_device_async(&devices(how, nodes)?, strictness(strict));
        let moving = moving.map_err(|e| failed("move", "the arena", &e))?;
        Ok(Move { moving, _of: self.of.clone() })
    }

    /// JSON of its counts.
    fn stats(&self) -> PyResult<String> {
        let stats = self.of.0.stats().map_err(|e| failed("look at", "the arena", &e))?;
        let all = json!({
            "blocks": stats.blocks,
            "allocated_bytes": stats.allocated.get(),
            "held_bytes": stats.reserved.get(),
            "peak_bytes": stats.peak.get(),
            "limit_bytes": stats.limit.map(Bytes::get),
        });
        Ok(all.to_string())
    }

    /// Bytes by node, and bytes never touched.
    fn residency(&self, py: Python<'_>) -> PyResult<(Vec<(u16, u64)>, u64)> {
        let found =
            py.detach(|| self.of.0.residency()).map_err(|e| failed("look at", "the arena", &e))?;
        Ok((found.nodes.iter().map(|(n, b)| (n.0, b.get())).collect(), found.untouched.get()))
    }
}

/// A move under way; it keeps the arena.
#[pyclass(frozen)]
pub struct Move {
    moving: Moving,
    _of: Arc<Owned>,
}

#[pymethods]
impl Move {
    /// Base pages looked at, in all (0 until counted), and whether it has ended.
    fn progress(&self) -> (u64, u64, bool) {
        let progress = self.moving.progress();
        (progress.done, progress.total, progress.ended)
    }

    fn cancel(&self) {
        self.moving.cancel();
    }

    fn wait(&self, py: Python<'_>) -> PyResult<String> {
        describe(py.detach(|| self.moving.wait()))
    }
}

/// A block of an arena, freed with this object.
#[pyclass(frozen)]
pub struct ArenaBlock {
    address: usize,
    bytes: usize,
    of: Arc<Owned>,
}

#[pymethods]
impl ArenaBlock {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        array_interface(py, self.address, self.bytes as u64)
    }
}

impl Drop for ArenaBlock {
    fn drop(&mut self) {
        // SAFETY: allocated by `Arena::allocate` and freed here alone; arrays over it keep this
        // object, so none is left. `of` still keeps the arena.
        let freed = unsafe { arena::free(self.address as *mut u8) };
        debug_assert!(freed.is_ok() && Arc::strong_count(&self.of) > 0);
    }
}
