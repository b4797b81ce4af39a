//! Arguments of `tiers`, `doctor`, `gather`, `report` and `list`; options under their old names.

use crate::suggestions::MACHINES;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Attribute to rank tiers by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RankBy {
    /// Read bandwidth, most first.
    Bandwidth,
    /// Read latency, least first.
    Latency,
    /// Capacity, most first.
    Capacity,
}

/// `terrace tiers`.
#[derive(Debug, Args)]
pub struct TiersArgs {
    /// live, a preset, or a machine file, hwloc XML or gathered sysfs.
    #[arg(long, default_value = "live", value_parser = MACHINES, hide_possible_values = true)]
    pub machine: String,
    /// Old name of --machine.
    #[arg(long, hide = true, conflicts_with = "machine")]
    pub from: Option<String>,
    /// Attribute to rank by.
    #[arg(long, value_enum, default_value = "bandwidth")]
    pub by: RankBy,
    /// Node whose CPUs ask; default: the lowest with CPUs.
    #[arg(long)]
    pub initiator: Option<u16>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `terrace doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `terrace gather`.
#[derive(Debug, Args)]
pub struct GatherArgs {
    /// File to write (tar).
    #[arg(short, long)]
    pub output: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `terrace report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Journal of `run`, JSON of `lab compare`, or a recording of `record`; default: the journal or
    /// recording in this folder that was written last.
    pub file: Option<PathBuf>,
    /// HTML file to write; default: FILE with .html.
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// Print the figures as JSON instead.
    #[arg(long)]
    pub json: bool,
}

/// The value of an option that was given by its old name, which is accepted for one release.
pub fn renamed<T>(old: Option<T>, new: T, names: [&str; 2]) -> (T, Option<String>) {
    match old {
        Some(value) => {
            let [old, new] = names;
            let note = format!("{old} is now called {new}; the next release drops the old name");
            (value, Some(note))
        }
        None => (new, None),
    }
}

/// What can be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ListTopic {
    /// Policies and baselines, with the commands that take each.
    Policies,
    /// Workloads and their parameters.
    Workloads,
    /// Machine presets.
    Machines,
    /// How policies see accesses.
    Trackers,
    /// Commands.
    Commands,
}

/// `terrace list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// What to list; without it, what can be listed.
    #[arg(value_enum)]
    pub topic: Option<ListTopic>,
    /// Print names alone, one a line.
    #[arg(long, conflicts_with = "json")]
    pub names: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
