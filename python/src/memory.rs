//! Memory by attributes: what Python gets is a block, which NumPy takes as an array without a copy
//! and which gives its memory back when the last array over it goes.

use crate::failed;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{json, Value};
use std::sync::Arc;
use terrace_terrace::alloc::attributes::{
    Attributes, Binding, ClassId, Index, Lifetime, Mismatch, PageSize, ClassPlacement, NodeSplit,
};
use terrace_terrace::alloc::commit::{CommitRow, Scope};
use terrace_terrace::alloc::memory;
use terrace_terrace::types::Bytes;

/// Which nodes of a class, as Python says it: their indices, or `all` or `local`.
#[derive(FromPyObject)]
enum Which {
    These(Vec<u16>),
    Named(String),
}

/// `terrace.alloc.Attributes`, read by the names of its fields.
#[derive(FromPyObject)]
pub struct Wish {
    places: Vec<(i16, Which)>,
    how: (String, Vec<u64>),
    on_commit: bool,
    strict: bool,
    priority: u32,
    reads: f64,
    writes: f64,
    pages: String,
    lifetime: String,
    whole: Option<bool>,
    prefetch: bool,
    name: String,
}

fn unknown(what: &str, word: &str, known: &str) -> PyErr {
    failed("understand", what, &format!("{word:?}; give {known}"))
}

impl Wish {
    fn attributes(self) -> PyResult<Attributes> {
        let places = self.places.into_iter().map(|(class, which)| {
            let index = match which {
                Which::These(these) => Index::These(these),
                Which::Named(word) if word == "all" => Index::All,
                Which::Named(word) if word == "local" => Index::Local,
                Which::Named(word) => {
                    return Err(unknown("nodes", &word, "a list of indices, \"all\" or \"local\""))
                }
            };
            Ok(ClassPlacement { class: ClassId(class), index })
        });
        let small = |n: &u64| {
            u32::try_from(*n).map_err(|_| unknown("weight", &n.to_string(), "less than 2**32"))
        };
        let split = match (self.how.0.as_str(), self.how.1.as_slice()) {
            ("os", []) => NodeSplit::Os,
            ("spill", []) => NodeSplit::SpillOver,
            ("equal", []) => NodeSplit::Equal,
            ("chunk", [pages]) => NodeSplit::Chunk(*pages),
            ("weighted", weights) => {
                NodeSplit::Weighted(weights.iter().map(small).collect::<PyResult<_>>()?)
            }
            (word, _) => {
                let known =
                    "\"os\", \"spill\", \"equal\", (\"chunk\", PAGES) or (\"weighted\", WEIGHTS)";
                return Err(unknown("split", word, known));
            }
        };
        let page_size = match self.pages.as_str() {
            "auto" => PageSize::Auto,
            "base" => PageSize::Base,
            "huge" => PageSize::Huge,
            word => return Err(unknown("pages", word, "\"auto\", \"base\" or \"huge\"")),
        };
        let lifetime = match self.lifetime.as_str() {
            "unknown" => Lifetime::Unknown,
            "short" => Lifetime::Short,
            "long" => Lifetime::Long,
            word => return Err(unknown("lifetime", word, "\"unknown\", \"short\" or \"long\"")),
        };
        Ok(Attributes {
            places: places.collect::<PyResult<_>>()?,
            split,
            binding: if self.on_commit { Binding::OnCommit } else { Binding::Immediate },
            mismatch: if self.strict { Mismatch::Error } else { Mismatch::Fallback },
            priority: self.priority,
            reads: self.reads,
            writes: self.writes,
            page_size,
            lifetime,
            whole: self.whole,
            prefetch: self.prefetch,
            name: self.name,
        })
    }
}

/// Memory of this machine by class.
#[pyclass(frozen)]
pub struct Memory {
    inner: Arc<memory::Memory>,
}

#[pymethods]
impl Memory {
    #[new]
    fn new() -> PyResult<Self> {
        let inner = memory::Memory::live(&|name| std::env::var(name).ok());
        Ok(Self {
            inner: Arc::new(inner.map_err(|e| failed("find", "the classes of memory", &e))?),
        })
    }

    /// JSON: the classes, best first, and notes.
    fn classes(&self) -> String {
        let classes = self.inner.classes();
        let list = classes.list.iter().map(|c| {
            let nodes: Vec<u16> = c.nodes.iter().map(|n| n.0).collect();
            json!({"nodes": nodes, "read_gain": c.read_gain, "write_gain": c.write_gain})
        });
        json!({"classes": list.collect::<Vec<_>>(), "notes": classes.notes}).to_string()
    }

    /// JSON: GPUs with managed memory, by index, and how they are used.
    fn gpus(&self, py: Python<'_>) -> PyResult<String> {
        let reported = |e| failed("find", "GPUs", &e);
        py.detach(|| {
            let class = self.inner.gpus().map_err(reported)?;
            let list = (0..class.members().count() as u16).map(|index| {
                let usage = self.inner.gpu_use(index).map_err(reported)?;
                Ok(json!({
                    "name": usage.device.name,
                    "number": usage.number,
                    "node": usage.device.node.map(|n| n.0),
                    "total_bytes": usage.device.total.get(),
                    "free_bytes": usage.free.get(),
                    "bound_bytes": usage.bound.get(),
                    "blocks": usage.blocks,
                    "peers": usage.device.peers,
                }))
            });
            Ok(Value::Array(list.collect::<PyResult<Vec<Value>>>()?).to_string())
        })
    }

    fn allocate(&self, py: Python<'_>, bytes: u64, wish: Wish) -> PyResult<Block> {
        let (wish, inner) = (wish.attributes()?, self.inner.clone());
        let target = format!("{bytes} bytes {:?}", wish.name);
        let address = py
            .detach(|| inner.allocate(Bytes(bytes), wish))
            .map_err(|e| failed("allocate", &target, &e))?;
        Ok(Block { address, bytes, of: inner })
    }

    /// JSON of the report.
    fn commit(&self, py: Python<'_>, all: bool) -> PyResult<String> {
        let scope = if all { Scope::All } else { Scope::Epoch };
        let report = py
            .detach(|| self.inner.commit(scope))
            .map_err(|e| failed("commit", "the arrays", &e))?;
        let rows: Vec<Value> = report.rows.iter().map(|row| self.json(row)).collect();
        let all = json!({
            "rows": rows,
            "value": report.value,
            "bound": report.bound,
            "decided_ns": report.decided_in.get(),
            "applied_ns": report.applied_in.get(),
        });
        Ok(all.to_string())
    }

    /// JSON of one row: where the block that holds `address` is.
    fn describe(&self, address: usize) -> PyResult<String> {
        let start = self.inner.lookup(address).unwrap_or(address);
        let row = self.inner.describe(start).map_err(|e| failed("describe", "the array", &e))?;
        Ok(self.json(&row).to_string())
    }
}

impl Memory {
    fn json(&self, row: &CommitRow) -> Value {
        let of =
            |class| row.got.iter().find(|(c, _)| *c == class).map_or(0, |(_, bytes)| bytes.get());
        json!({
            "name": row.name,
            "address": row.address,
            "size_bytes": row.size.get(),
            "wanted_classes": row.wanted,
            "got_bytes": (0..self.inner.classes().list.len()).map(of).collect::<Vec<u64>>(),
            "got_managed_bytes": of(ClassId::CUDA_MANAGED.0 as usize),
            "refused": row.refused,
            "why": row.why,
            "moved_bytes": row.moved.get(),
            "stayed_bytes": row.stayed.get(),
            "populated_bytes": row.populated.get(),
            "cost_ns": row.cost.get(),
        })
    }
}

/// One allocation, given back with this object; it keeps the handle alive that it is of.
#[pyclass(frozen)]
pub struct Block {
    address: usize,
    bytes: u64,
    of: Arc<memory::Memory>,
}

/// What NumPy asks of an object whose memory it takes: bytes, writable. The array keeps the object.
pub fn array_interface(py: Python<'_>, address: usize, bytes: u64) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("version", 3)?;
    dict.set_item("typestr", "|u1")?;
    dict.set_item("shape", (bytes,))?;
    dict.set_item("data", (address, false))?;
    Ok(dict)
}

#[pymethods]
impl Block {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        array_interface(py, self.address, self.bytes)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // Refused only by a kernel that takes no memory back; there is nobody to tell.
        let _given_back = self.of.free(self.address);
    }
}
