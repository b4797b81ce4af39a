//! hwloc XML, versions 1 to 3, read without libhwloc.
//!
//! The format is that of hwloc's `hwloc2.dtd`, in version 1 `hwloc.dtd`. What is taken: NUMA nodes
//! (`os_index`, `cpuset`, `local_memory`, `subtype`), packages, caches, the memory attributes
//! Bandwidth and Latency with their Read and Write forms, the `NUMALatency` distances, DAX and CXL
//! devices. Units are hwloc's: MiB/s and ns (`hwloc/memattrs.h`).

mod build;
mod parse;

use crate::error::{MachineError, TextPosition};
use crate::survey::Survey;

/// Largest XML that is read, in bytes: the largest in hwloc's own test suite are below 4 MiB.
pub const MAX_XML: usize = 32 << 20;

/// Reads hwloc XML of version 1, 2 or 3. `name` stands in messages and names the machine where the
/// XML has no host name.
pub fn from_hwloc_xml(text: &str, name: &str) -> Result<Survey, MachineError> {
    if text.len() > MAX_XML {
        return Err(MachineError::TooLarge {
            what: "hwloc XML",
            file: name.to_owned(),
            bytes: text.len(),
            limit: MAX_XML,
        });
    }
    let topology = parse::parse(text).map_err(|(offset, problem)| MachineError::Xml {
        place: TextPosition { file: name.to_owned(), line: line_of(text, offset) },
        problem,
    })?;
    let survey = build::build(topology, name);
    survey
        .machine
        .check()
        .map_err(|problem| MachineError::Inconsistent { name: name.to_owned(), problem })?;
    Ok(survey)
}

fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1
}
