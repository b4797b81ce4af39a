//! The timing plugin's account of a run: the guest clock, marked spans of time, misses by node.

use crate::error::{io, LabError, Result};
use serde::Deserialize;
use std::path::Path;

/// Everything that is used of the plugin's statistics file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PluginStats {
    /// Guest clock at the end.
    pub clock_ns: u64,
    /// Marked spans, in the order in which they began.
    #[serde(default)]
    pub phases: Vec<RoiSpan>,
}

/// One marked span of guest time.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RoiSpan {
    /// "phase" for the workload's own marks, "job" for exec to exit.
    pub name: String,
    /// Guest clock at its begin.
    pub start_ns: u64,
    /// Guest clock at its end.
    pub end_ns: u64,
    /// Last-level misses by node.
    #[serde(default)]
    pub llc_misses: Vec<u64>,
    /// Memory accesses of the program and the kernel.
    #[serde(default)]
    pub accesses: u64,
}

impl RoiSpan {
    /// Length.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.end_ns.saturating_sub(self.start_ns) as f64 / 1e9
    }

    /// Share of last-level misses that a node served; `None` if there were none.
    #[must_use]
    pub fn share_of(&self, node: u32) -> Option<f64> {
        let all: u64 = self.llc_misses.iter().sum();
        let here = self.llc_misses.get(node as usize).copied().unwrap_or(0);
        (all > 0).then(|| here as f64 / all as f64)
    }
}

impl PluginStats {
    /// The span that results are about: the workload's phase if it marked one, else the job.
    #[must_use]
    pub fn measured(&self) -> Option<&RoiSpan> {
        let of = |name: &str| self.phases.iter().find(|s| s.name == name);
        of("phase").or_else(|| of("job"))
    }
}

/// Read the file that the plugin writes when QEMU ends.
pub fn read(path: &Path) -> Result<PluginStats> {
    let bytes = std::fs::read(path).map_err(io("reading", path))?;
    serde_json::from_slice(&bytes)
        .map_err(|e| LabError::Stats { path: path.to_path_buf(), why: e.to_string() })
}
