//! Counters of Nsight Compute: which are asked for, and what its raw page in CSV says.
//!
//! The sixteen of Stoltzfus et al. (table 3) have new names (CUDA profiling guide, table of nvprof
//! metrics); floating-point operations are three counters.

use serde::Serialize;

/// Counters by Nsight Compute's names, and ours with their units.
pub const COUNTERS: [(&str, &str); 19] = [
    ("sm__warps_active.avg.pct_of_peak_sustained_active", "achieved_occupancy_pct"),
    ("sm__warps_active.avg.per_cycle_active", "active_warps_per_cycle"),
    ("lts__t_sectors_aperture_sysmem_op_write.sum", "l2_write_sysmem_sectors"),
    ("lts__t_sectors_op_write.sum", "l2_write_sectors"),
    ("lts__t_sectors_op_read.sum", "l2_read_sectors"),
    ("lts__t_sectors_op_read_lookup_miss.sum", "l2_read_miss_sectors"),
    ("dram__sectors_write.sum", "dram_write_sectors"),
    ("dram__bytes_read.sum.per_second", "dram_read_bytes_per_s"),
    ("smsp__warps_eligible.avg.per_cycle_active", "eligible_warps_per_cycle"),
    ("lts__t_sectors_srcunit_tex_op_read.sum", "l2_l1_read_sectors"),
    ("lts__t_sectors_srcunit_tex_op_write.sum", "l2_l1_write_sectors"),
    ("l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum.per_second", "global_load_bytes_per_s"),
    ("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", "fadd"),
    ("smsp__sass_thread_inst_executed_op_fmul_pred_on.sum", "fmul"),
    ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "ffma"),
    ("smsp__inst_executed_pipe_xu.sum", "special_instructions"),
    (
        "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",
        "predicated_threads_per_instruction",
    ),
    ("smsp__thread_inst_executed_per_inst_executed.ratio", "threads_per_instruction"),
    ("gpu__time_duration.sum", "duration_ns"),
];

/// Longest file that is read.
const MOST_BYTES: usize = 256 << 20;

/// Counters of one launch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LaunchCounters {
    /// The kernel.
    pub kernel: String,
    /// Threads of a block, as the profiler writes them.
    pub block: String,
    /// Blocks of the grid.
    pub grid: String,
    /// Values in the order of [`COUNTERS`]; `None` where the profiler has none.
    pub values: Vec<Option<f64>>,
}

/// Why a profiler's file says nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CountersError {
    /// Too long.
    #[error(
        "the profiler wrote {bytes} bytes; up to {MOST_BYTES} are read: profile fewer launches"
    )]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The user may not read counters.
    #[error("this user may not read the GPU's counters (ERR_NVGPUCTRPERM); run as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0")]
    NoPermission,
    /// No table in it.
    #[error("the profiler wrote no counters: {words}")]
    NoTable {
        /// Its last words.
        words: String,
    },
}

/// Reads the raw page.
///
/// # Errors
/// What stands there instead of counters.
pub fn read_profiler_page(text: &str) -> Result<Vec<LaunchCounters>, CountersError> {
    if text.len() > MOST_BYTES {
        return Err(CountersError::TooLong { bytes: text.len() });
    }
    if text.contains("ERR_NVGPUCTRPERM") {
        return Err(CountersError::NoPermission);
    }
    let mut lines = text.lines().filter(|line| line.starts_with('"'));
    let header = lines.next().map(split_quoted).unwrap_or_default();
    let column = |name: &str| header.iter().position(|h| h == name);
    let Some(kernel) = column("Kernel Name") else {
        let last = text.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("nothing at all");
        return Err(CountersError::NoTable { words: last.chars().take(200).collect() });
    };
    let columns = COUNTERS.map(|(name, _)| column(name));
    let (block, grid) = (column("Block Size"), column("Grid Size"));
    let mut launches = Vec::new();
    for fields in lines.map(split_quoted) {
        let text =
            |at: Option<usize>| at.and_then(|at| fields.get(at)).cloned().unwrap_or_default();
        // The line of units has no number in its first field.
        if fields.first().is_none_or(|id| id.parse::<u64>().is_err()) {
            continue;
        }
        let number = |at: &Option<usize>| {
            let value = text(*at).replace(',', "").parse().ok();
            value.filter(|v: &f64| v.is_finite())
        };
        launches.push(LaunchCounters {
            kernel: text(Some(kernel)),
            block: text(block),
            grid: text(grid),
            values: columns.iter().map(number).collect(),
        });
    }
    Ok(launches)
}

/// Fields of a line, each in quotes; a quote within is doubled.
fn split_quoted(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                if let Some(field) = fields.last_mut() {
                    field.push('"');
                }
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            c => {
                if let Some(field) = fields.last_mut() {
                    field.push(c);
                }
            }
        }
    }
    fields
}
