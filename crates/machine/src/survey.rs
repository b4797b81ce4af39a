//! A machine with what surrounds it: facts that are no figures of memory, but explain why tiers are
//! as they are.

use crate::model::Machine;
use std::fmt;
use terrace_types::{Bytes, NodeId};

/// A machine as read from somewhere, and what was seen beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct Survey {
    /// The machine.
    pub machine: Machine,
    /// What was seen beside it.
    pub surroundings: Surroundings,
}

/// Facts beside the machine; each `None` where the source cannot tell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Surroundings {
    /// The kernel's own tiers (`/sys/devices/virtual/memory_tiering`), best first.
    pub kernel_tiers: Option<Vec<KernelTier>>,
    /// DAX devices: memory that may not be in use as such.
    pub dax: Vec<DaxDevice>,
    /// CXL memory devices.
    pub cxl: Vec<CxlDevice>,
}

/// A tier as the kernel groups nodes for demotion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelTier {
    /// The kernel's number: lower is better (abstract distance / 128, `mm/memory-tiers.c`).
    pub number: u32,
    /// Its nodes.
    pub nodes: Vec<NodeId>,
}

/// A DAX device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaxDevice {
    /// Its name, `dax0.0`.
    pub name: String,
    /// Its size, where told.
    pub size: Option<Bytes>,
    /// The node that it is, or would be, part of.
    pub target_node: Option<NodeId>,
    /// Whether it is in use as memory; unknown from hwloc.
    pub system_ram: Option<bool>,
    /// What it is (`SPM`: specific-purpose memory such as HBM; `NVM`: persistent memory), where
    /// told.
    pub nature: Option<String>,
}

/// A CXL memory device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CxlDevice {
    /// Its name, `mem0`.
    pub name: String,
    /// Volatile capacity.
    pub ram: Bytes,
    /// Persistent capacity.
    pub pmem: Bytes,
}

impl fmt::Display for DaxDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DAX device {}", self.name)?;
        match (&self.nature, self.size) {
            (Some(nature), Some(size)) => write!(f, " ({nature}, {size})"),
            (Some(nature), None) => write!(f, " ({nature})"),
            (None, Some(size)) => write!(f, " ({size})"),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Display for CxlDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CXL memory device {}", self.name)?;
        let parts: Vec<String> = [(self.ram, "volatile"), (self.pmem, "persistent")]
            .into_iter()
            .filter(|(size, _)| *size > Bytes::ZERO)
            .map(|(size, what)| format!("{size} {what}"))
            .collect();
        if parts.is_empty() {
            return Ok(());
        }
        write!(f, " ({})", parts.join(", "))
    }
}
