//! Arguments of `lab`.

use crate::suggestions::{LAB_POLICIES, MACHINES, WORKLOADS};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `terrace lab`.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Boot a machine, save it and calibrate it; make demo fetches what the lab consists of.
    #[command(after_help = "Example: terrace lab setup --machine lab-cxl")]
    Setup(LabSetupArgs),
    /// Run a command inside the lab's machine.
    #[command(after_help = "Example: terrace lab run --machine lab-cxl -- ./a.out 10")]
    Run(LabRunArgs),
    /// Run one workload under several policies and compare.
    #[command(
        after_help = "Example: terrace lab compare --machine lab-cxl --policy first-touch,terrace \
            --workload skew,accesses=32M"
    )]
    Compare(LabCompareArgs),
}

/// `terrace lab setup`.
#[derive(Debug, Args)]
#[command(hide_possible_values = true)]
pub struct LabSetupArgs {
    /// Preset name or machine file.
    #[arg(long, default_value = "lab-cxl", value_parser = MACHINES)]
    pub machine: String,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `terrace lab run`.
#[derive(Debug, Args)]
#[command(hide_possible_values = true)]
pub struct LabRunArgs {
    /// Preset name or machine file.
    #[arg(long, default_value = "lab-cxl", value_parser = MACHINES)]
    pub machine: String,
    /// Print the output and what was measured as one JSON value.
    #[arg(long)]
    pub json: bool,
    /// What the command needs.
    #[command(flatten)]
    pub needs: LabNeedsArgs,
    /// Bring this file of the machine back into this folder; may be given again.
    #[arg(long, value_name = "PATH")]
    pub fetch: Vec<PathBuf>,
    /// Seconds of this machine after which a run that has not ended is given up.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, value_parser =
        clap::value_parser!(u64).range(1..=86400))]
    pub limit: u64,
    /// Command and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub command: Vec<String>,
}

/// What a command needs in the lab's machine.
#[derive(Debug, Args)]
pub struct LabNeedsArgs {
    /// Carry this program along too, with its libraries; may be given again.
    #[arg(long, value_name = "PROGRAM")]
    pub carry: Vec<String>,
    /// Carry this file along, to the same path; may be given again.
    #[arg(long, value_name = "FILE")]
    pub file: Vec<PathBuf>,
    /// Carry this folder along with everything in it; may be given again.
    #[arg(long, value_name = "FOLDER")]
    pub dir: Vec<PathBuf>,
    /// The command reads this file as its standard input; default: an empty one.
    #[arg(long, value_name = "FILE")]
    pub stdin: Option<PathBuf>,
    /// Set this in the command's environment; may be given again.
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// Carry only the program and what is named. Otherwise the command is run once on this
    /// computer, where it can change no file, to find the files that it opens.
    #[arg(long)]
    pub no_trace: bool,
}

/// `terrace lab compare`.
#[derive(Debug, Args)]
#[command(hide_possible_values = true)]
pub struct LabCompareArgs {
    /// Preset name or machine file.
    #[arg(long, default_value = "lab-cxl", value_parser = MACHINES)]
    pub machine: String,
    /// Policies, separated by commas.
    #[arg(long, value_delimiter = ',', required = true, value_parser = LAB_POLICIES)]
    pub policy: Vec<String>,
    /// NAME[,key=value...]; a command at the end takes its place.
    #[arg(long, default_value = "skew", value_parser = WORKLOADS)]
    pub workload: String,
    /// What the command needs.
    #[command(flatten)]
    pub needs: LabNeedsArgs,
    /// Runs at once.
    #[arg(long, default_value_t = 2)]
    pub jobs: usize,
    /// Seconds of this machine after which a run that has not ended is given up.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, value_parser =
        clap::value_parser!(u64).range(1..=86400))]
    pub limit: u64,
    /// Argument for `terrace run` in the machine; may be given again.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub terrace_arg: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Also write an HTML report here.
    #[arg(long)]
    pub report: Option<PathBuf>,
    /// Keep journals of our policies in this folder.
    #[arg(long)]
    pub keep: Option<PathBuf>,
    /// Any Linux program as the workload.
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<String>,
}
