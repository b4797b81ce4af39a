//! Counters of Nsight Compute: which are asked for, what its raw page in CSV says, and the file of
//! a recorded run.
//!
//! The sixteen of Stoltzfus et al. (table 3) have new names (CUDA profiling guide, table of nvprof
//! metrics); floating-point operations are three counters.

use crate::data::{CsvTable, DataError};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

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
    #[error(
        "this user may not read the GPU's counters (ERR_NVGPUCTRPERM); run as root, or load \
        the driver with NVreg_RestrictProfilingToAdminUsers=0"
    )]
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

/// The file of a recorded run: a line for each launch, counters in the order of [`COUNTERS`].
#[must_use]
pub fn write_recorded_run(launches: &[LaunchCounters]) -> String {
    let mut csv = String::from("kernel,block,grid");
    COUNTERS.iter().for_each(|(_, name)| csv.extend([",", name]));
    csv.push('\n');
    for launch in launches {
        let [kernel, block, grid] =
            [&launch.kernel, &launch.block, &launch.grid].map(|text| text.replace(',', " "));
        let _ = write!(csv, "{kernel},{block},{grid}");
        for value in &launch.values {
            csv.push_str(&value.map_or(",".to_owned(), |v| format!(",{v}")));
        }
        csv.push('\n');
    }
    csv
}

/// The shape of a kernel's launches in a recorded run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecordedLaunch {
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Launches of this shape.
    pub launches: usize,
    /// What they took together, ns.
    pub duration_ns: f64,
}

/// Whether a text is the file of a recorded run, by its header.
#[must_use]
pub fn is_recorded_run(text: &str) -> bool {
    text.starts_with("kernel,block,grid,")
}

/// The launch shape that a kernel spent most time in.
///
/// # Errors
/// Columns or numbers that are missing, or no launch of the kernel.
pub fn longest_launch(file: &str, text: &str, kernel: &str) -> Result<RecordedLaunch, DataError> {
    let table = CsvTable::read(file, text)?;
    let (kernels, blocks, grids) =
        (table.texts("kernel")?, table.texts("block")?, table.texts("grid")?);
    let durations = table.numbers("duration_ns")?;
    let mut shapes: BTreeMap<([u32; 3], [u32; 3]), (usize, f64)> = BTreeMap::new();
    for at in 0..table.len() {
        if base_name(kernels[at]) != kernel {
            continue;
        }
        let axes = |name: &str, text: &str| {
            let mut numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty());
            let axes: [Option<u32>; 3] =
                std::array::from_fn(|_| numbers.next().map_or(Some(1), |n| n.parse().ok()));
            let [Some(x), Some(y), Some(z)] = axes else {
                return Err(table.bad_field(at, name, text));
            };
            Ok([x.max(1), y.max(1), z.max(1)])
        };
        let shape = (axes("grid", grids[at])?, axes("block", blocks[at])?);
        let sum = shapes.entry(shape).or_default();
        *sum = (sum.0 + 1, sum.1 + durations[at].max(0.0));
    }
    let longest = shapes.into_iter().max_by(|a, b| a.1 .1.total_cmp(&b.1 .1));
    longest
        .map(|((grid, block), (launches, duration_ns))| RecordedLaunch {
            grid,
            block,
            launches,
            duration_ns,
        })
        .ok_or_else(|| DataError::NoLaunch { file: file.to_owned(), kernel: kernel.to_owned() })
}

/// `void space::name<float>(float *)` is `name`.
fn base_name(kernel: &str) -> &str {
    let end = kernel.find(['(', '<']).unwrap_or(kernel.len());
    kernel[..end].trim_end().rsplit([' ', ':']).next().unwrap_or_default()
}
