//! Far memory for Python: what it gets is a range, which NumPy takes as an array without a copy and
//! which is given back when the last array over it goes.

use crate::failed;
use crate::memory::array_interface;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::json;
use std::ffi::OsStr;
use std::ops::Range;
use terrace_terrace::far::store::StoreSpec;
use terrace_terrace::far::{FileMapMode, Advice, FarMap, FarOptions};
use terrace_terrace::far_run::size;
use terrace_terrace::types::Bytes;

/// Bytes, as a number or as people write them.
#[derive(FromPyObject)]
pub enum Size {
    /// Bytes.
    Number(u64),
    /// As in `2G`.
    Text(String),
}

impl Size {
    fn bytes(self) -> PyResult<Bytes> {
        match self {
            Self::Number(bytes) => Ok(Bytes(bytes)),
            Self::Text(text) => size(&text).ok_or_else(|| {
                failed("understand", "dram", &format!("{text:?}; give bytes, or as in \"2G\""))
            }),
        }
    }
}

/// A range larger than its memory.
#[pyclass(frozen)]
pub struct Far {
    map: FarMap,
    bytes: u64,
}

impl Far {
    fn checked(what: &str, result: Result<(), impl std::fmt::Display>) -> PyResult<()> {
        result.map_err(|e| failed(what, "far memory", &e))
    }

    fn range(start: usize, bytes: usize) -> Range<usize> {
        start..start.saturating_add(bytes)
    }
}

#[pymethods]
impl Far {
    #[new]
    fn new(py: Python<'_>, bytes: u64, dram: Size, store: &str) -> PyResult<Self> {
        let dram = dram.bytes()?;
        let target = format!("{bytes} bytes of far memory");
        let room = Bytes(bytes.max(1));
        let made = py.detach(|| {
            let store =
                StoreSpec::parse(OsStr::new(store)).make(room, dram).map_err(|e| e.to_string())?;
            FarMap::new(room, dram, store).map_err(|e| e.to_string())
        });
        Ok(Self { map: made.map_err(|e| failed("make", &target, &e))?, bytes })
    }

    /// Of a file that is there.
    #[staticmethod]
    fn open(
        py: Python<'_>,
        path: std::path::PathBuf,
        dram: Size,
        writable: bool,
    ) -> PyResult<Self> {
        let dram = dram.bytes()?;
        let access = if writable { FileMapMode::ReadWrite } else { FileMapMode::ReadOnly };
        let made = py.detach(|| FarMap::of_file(&path, access, dram, &FarOptions::default()));
        let map = made.map_err(|e| failed("map", &path.to_string_lossy(), &e))?;
        let bytes = map.file_bytes().map_or(map.len() as u64, |b| b.get());
        Ok(Self { map, bytes })
    }

    /// Bytes.
    #[getter]
    fn bytes(&self) -> u64 {
        self.bytes
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        array_interface(py, self.map.as_mut_ptr() as usize, self.bytes)
    }

    /// Address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.map.as_mut_ptr() as usize
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        Self::checked("write out", py.detach(|| self.map.flush()))
    }

    fn advise(&self, py: Python<'_>, start: usize, bytes: usize, advice: &str) -> PyResult<()> {
        let advice = match advice {
            "will-need" => Advice::WillNeed,
            "cold" => Advice::Cold,
            "discard" => Advice::Discard,
            word => {
                let known = format!("{word:?}; give \"will-need\", \"cold\" or \"discard\"");
                return Err(failed("understand", "advice", &known));
            }
        };
        Self::checked("advise", py.detach(|| self.map.advise(Self::range(start, bytes), advice)))
    }

    fn pin(&self, py: Python<'_>, start: usize, bytes: usize, on: bool) -> PyResult<()> {
        Self::checked("pin", py.detach(|| self.map.pin(Self::range(start, bytes), on)))
    }

    fn set_dram(&self, dram: Size) -> PyResult<()> {
        Self::checked("change the memory of", self.map.set_dram(dram.bytes()?))
    }

    /// JSON of its counts.
    fn statistics(&self) -> String {
        let reported = self.map.statistics();
        let c = &reported.counts;
        json!({
            "faults": c.faults,
            "misses": c.misses,
            "hits": c.soft_faults + c.late_hits,
            "read_bytes": c.read_bytes,
            "written_bytes": c.written_bytes,
            "ahead_bytes": c.prefetched_bytes,
            "wasted_bytes": c.wasted_bytes,
            "write_failures": c.write_failures,
            "resident_bytes": c.mapped_bytes,
            "lost_bytes": c.lost_bytes,
            "store_bytes": reported.store_memory.0,
            "remarks": reported.remarks,
        })
        .to_string()
    }
}
