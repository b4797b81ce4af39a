//! Staging for Python: a kernel in Python is called from the pipeline's threads, each time with a
//! block that NumPy takes as an array without a copy. A block that is kept keeps the buffer it lies
//! in, or the array it is a part of.

use crate::memory::array_interface;
use crate::{failed, machine_of, TerraceError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::json;
use std::any::Any;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use terrace_terrace::stage::{
    check_blocks, costs, stage_held, StagingMode, StagingOptions, StagingReport, StageError,
    Threads,
};
use terrace_terrace::types::{Bytes, CpuId, NodeId};

/// How often a signal (Ctrl-C) is looked for while blocks are worked on.
const LOOK: Duration = Duration::from_millis(20);

/// `terrace.stage`'s arguments, read by their names.
#[derive(FromPyObject)]
pub struct How {
    fast: u16,
    slow: Option<u16>,
    machine: Option<String>,
    initiator: Option<u16>,
    threads: (u32, Option<u32>),
    in_place: bool,
    passes: f64,
    compute_ns_per_byte: f64,
    room: Option<u64>,
    slots: Option<u32>,
    ahead: usize,
    expected: Option<usize>,
    largest: Option<u64>,
    cpus: Vec<u32>,
    keep_addresses: bool,
}

impl How {
    fn options(self) -> PyResult<StagingOptions> {
        let fast = NodeId(self.fast);
        let threads = match self.threads {
            (all, None) if self.in_place => Threads::InPlace(all),
            (all, None) => Threads::Auto(all),
            (workers, Some(migrators)) => Threads::Fixed { workers, migrators },
        };
        let mut options = StagingOptions::new(fast, threads);
        options.slow = self.slow.map(NodeId);
        if let (Some(name), Some(slow)) = (&self.machine, options.slow) {
            let initiator = NodeId(self.initiator.unwrap_or(self.fast));
            let known = costs(&machine_of(name)?, initiator, slow, fast);
            let why = "it does not tell latency and bandwidth of both nodes; measure them with \
                terrace probe -o FILE";
            options.costs = Some(known.ok_or_else(|| failed("stage by machine", name, &why))?);
        }
        (options.passes, options.compute_ns_per_byte) = (self.passes, self.compute_ns_per_byte);
        options.room = self.room.map_or(options.room, Bytes);
        options.slots = self.slots;
        (options.ahead, options.expected, options.largest) =
            (self.ahead, self.expected, self.largest.map(Bytes));
        options.keep_addresses = self.keep_addresses;
        options.cpus = self.cpus.into_iter().map(CpuId).collect();
        Ok(options)
    }
}

/// One block for one call of the kernel.
#[pyclass(frozen)]
pub struct StageBlock {
    address: usize,
    bytes: u64,
    writable: bool,
    /// Buffers or the whole array: what the block's memory goes with.
    _of: Arc<dyn Any + Send + Sync>,
}

#[pymethods]
impl StageBlock {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = array_interface(py, self.address, self.bytes)?;
        dict.set_item("data", (self.address, !self.writable))?;
        Ok(dict)
    }
}

/// Blocks: a list, refused before anything runs if one of them is, or what is asked for them while
/// they are worked on.
#[derive(FromPyObject)]
pub enum Sequence {
    List(Vec<(usize, usize)>),
    Iterator(Py<PyAny>),
}

/// Asks Python for blocks.
struct Asked<'a> {
    iterator: Py<PyAny>,
    raised: &'a Mutex<Option<PyErr>>,
    stop: &'a AtomicBool,
}

impl Iterator for Asked<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        if self.stop.load(Ordering::Relaxed) {
            resume_unwind(Box::new("it was interrupted".to_owned()));
        }
        let reported = Python::attach(|py| {
            let Some(next) = self.iterator.bind(py).try_iter()?.next() else { return Ok(None) };
            next?.extract::<(usize, usize)>().map(Some)
        });
        match reported {
            Ok(block) => block.map(range),
            Err(error) => {
                let text = error.to_string();
                self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                resume_unwind(Box::new(text));
            }
        }
    }
}

/// From the first byte and the number of bytes.
const fn range((start, length): (usize, usize)) -> Range<usize> {
    start..start.saturating_add(length)
}

/// Runs `kernel(number, block)` on every block (first byte, bytes) of `array`, whose `bytes` bytes
/// lie at `address` one after the other. JSON of the report.
#[pyfunction]
#[pyo3(signature = (array, address, bytes, blocks, back, kernel, how))]
#[allow(clippy::too_many_arguments, reason = "one call from the package")]
pub fn stage(
    py: Python<'_>,
    array: Py<PyAny>,
    address: usize,
    bytes: usize,
    blocks: Sequence,
    back: bool,
    kernel: Py<PyAny>,
    how: How,
) -> PyResult<String> {
    let options = how.options()?;
    let array: Arc<dyn Any + Send + Sync> = Arc::new(array);
    let (raised, stop) = (Mutex::new(None::<PyErr>), AtomicBool::new(false));
    let call = |number: usize, part: &mut [u8], of: Arc<dyn Any + Send + Sync>| {
        if stop.load(Ordering::Relaxed) {
            resume_unwind(Box::new("it was interrupted".to_owned()));
        }
        let block = StageBlock {
            address: part.as_mut_ptr() as usize,
            bytes: part.len() as u64,
            writable: back,
            _of: of,
        };
        let ran = Python::attach(|py| {
            let reported = kernel.call1(py, (number, block)).map(drop);
            reported.map_err(|error| (error.to_string(), error))
        });
        if let Err((text, error)) = ran {
            raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            // The pipeline ends by a panic of its kernel. Resumed rather than begun: no hook
            // prints.
            resume_unwind(Box::new(text));
        }
    };
    let ranges: Box<dyn Iterator<Item = Range<usize>> + Send + '_> = match blocks {
        Sequence::List(list) => {
            check_blocks(bytes, list.iter().copied().map(range))
                .map_err(|e| failed("stage", "the array", &e))?;
            Box::new(list.into_iter().map(range))
        }
        Sequence::Iterator(iterator) => Box::new(Asked { iterator, raised: &raised, stop: &stop }),
    };
    let result = py.detach(|| {
        std::thread::scope(|scope| {
            let (done, wait) = channel();
            let (call, options, whole) = (&call, &options, &array);
            scope.spawn(move || {
                let reported = run(address, bytes, back, ranges, options, |number, part, buffers| {
                    call(number, part, buffers.unwrap_or_else(|| whole.clone()));
                });
                // Nobody waits any more only where this thread's panic has ended the scope.
                let _ignored = done.send(reported);
            });
            loop {
                match wait.recv_timeout(LOOK) {
                    Ok(result) => return Some(result),
                    Err(RecvTimeoutError::Disconnected) => return None,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                if let Err(signal) = Python::attach(|py| py.check_signals()) {
                    stop.store(true, Ordering::Relaxed);
                    raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(signal);
                }
            }
        })
    });
    let raised = raised.into_inner().unwrap_or_else(PoisonError::into_inner);
    match result {
        Some(Ok(report)) => raised.map_or_else(|| Ok(reported(&report)), Err),
        Some(Err(StageError::Panicked { block, intact, .. })) if raised.is_some() => {
            let cause = raised.unwrap_or_else(|| TerraceError::new_err("unknown"));
            if !cause.is_instance_of::<pyo3::exceptions::PyException>(py) {
                return Err(cause); // Ctrl-C, and what else ends a program
            }
            let half = if intact {
                ""
            } else {
                " (the block may be half done: it was worked on in place)"
            };
            let error = failed("finish", &format!("block {block}"), &format!("{cause}{half}"));
            error.set_cause(py, Some(cause));
            Err(error)
        }
        // What gives the blocks raised: it is the caller's own, and raises as it would in a loop.
        Some(Err(StageError::Sequence { .. })) if raised.is_some() => {
            Err(raised.unwrap_or_else(|| TerraceError::new_err("unknown")))
        }
        Some(Err(error)) => Err(failed("stage", "the array", &error)),
        None => Err(failed("stage", "the array", &"its thread ended")),
    }
}

/// The pipeline over memory that Python owns.
#[allow(unsafe_code, reason = "an array's memory is an address here; the proof is below")]
fn run(
    address: usize,
    bytes: usize,
    back: bool,
    blocks: impl Iterator<Item = Range<usize>> + Send,
    options: &StagingOptions,
    kernel: impl Fn(usize, &mut [u8], Option<Arc<dyn Any + Send + Sync>>) + Sync,
) -> Result<StagingReport, StageError> {
    let mut none = [];
    let data: &mut [u8] = if bytes == 0 {
        &mut none
    } else {
        // SAFETY: the package gives the address and size of a C-contiguous array's elements, and
        // `stage` holds the array for as long as this runs, so it is memory, initialised and not
        // moved (NumPy refuses to resize an array that is referred to). Other threads of Python may
        // write to it meanwhile, as they may to any array that NumPy itself works on: what is read
        // then is theirs to answer for, and bytes have no wrong values. Where results do not go
        // back nothing is written.
        unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) }
    };
    stage_held(data, back, blocks, options, |number, part, buffers| {
        kernel(number, part, buffers.map(|b| b.clone() as Arc<dyn Any + Send + Sync>));
    })
}

fn reported(report: &StagingReport) -> String {
    let why = match report.mode {
        StagingMode::Staged => None,
        StagingMode::InPlace(why) => Some(why.to_string()),
    };
    json!({
        "staged": why.is_none(),
        "why": why,
        "threads": report.threads,
        "migrators": report.migrators,
        "slots": report.slots,
        "blocks": report.blocks,
        "brought_bytes": report.brought.get(),
        "returned_bytes": report.returned.get(),
        "stayed_bytes": report.stayed.get(),
        "stalls": report.stalls,
        "stalled_ns": report.stalled.get(),
        "prepared_ns": report.prepared.get(),
        "released_ns": report.released.get(),
        "took_ns": report.took.get(),
    })
    .to_string()
}
