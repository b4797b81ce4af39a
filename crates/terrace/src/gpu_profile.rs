//! Counters of a command's GPU kernels, by Nsight Compute.

use std::path::PathBuf;
use std::process::Command;
use terrace_gpu::counters::{read_profiler_page, CountersError, LaunchCounters, COUNTERS};

/// Why a command was not profiled.
#[derive(Debug, thiserror::Error)]
pub enum GpuProfileError {
    /// No profiler.
    #[error(
        "ncu cannot be started: {reason}; install NVIDIA Nsight Compute and put its folder in PATH"
    )]
    NoProfiler {
        /// The system's words.
        reason: String,
    },
    /// The profiler's file is not there.
    #[error("ncu wrote no file (it ended with {status}); run `ncu {program}` to see why")]
    NoFile {
        /// How it ended.
        status: String,
        /// What it was to profile.
        program: String,
    },
    /// What it wrote.
    #[error(transparent)]
    Counters(#[from] CountersError),
}

impl GpuProfileError {
    /// Whether the machine lacks what was asked, rather than something that failed.
    #[must_use]
    pub const fn is_lacking(&self) -> bool {
        matches!(self, Self::NoProfiler { .. } | Self::Counters(CountersError::NoPermission))
    }
}

/// Runs a command under Nsight Compute and reads the counters of its launches. The GPU's clocks
/// are left as they are. The command has the terminal; the profiler writes to a file of its own.
///
/// # Errors
/// No profiler, no permission, no counters.
pub fn profile_command(command: &[String]) -> Result<Vec<LaunchCounters>, GpuProfileError> {
    let log: PathBuf = std::env::temp_dir().join(format!("terrace-ncu-{}.csv", std::process::id()));
    let metrics: Vec<&str> = COUNTERS.iter().map(|(name, _)| *name).collect();
    let status = Command::new("ncu")
        .args(["--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base"])
        .args(["--target-processes", "all", "--metrics", &metrics.join(","), "--log-file"])
        .arg(&log)
        .args(command)
        .status()
        .map_err(|error| GpuProfileError::NoProfiler { reason: error.to_string() })?;
    let text = std::fs::read(&log);
    // A file that cannot be removed is a temporary one still.
    let _removed = std::fs::remove_file(&log);
    let text = text.map_err(|_| GpuProfileError::NoFile {
        status: status.to_string(),
        program: command.first().cloned().unwrap_or_default(),
    })?;
    Ok(read_profiler_page(&String::from_utf8_lossy(&text))?)
}

/// The compiler's words on a source, with no GPU; `None` where it compiles or no compiler is here.
#[must_use]
pub fn compiler_objection(name: &str, source: &str, defines: &[(String, i64)]) -> Option<String> {
    let compiler = terrace_sys::compute::KernelCompiler::load().ok()?;
    let refused = compiler.compile(name, source, "sm_90", defines).err()?;
    Some(refused.to_string())
}
