//! `terrace device`: memory devices from their descriptions.

use crate::output::{print, print_json, width, CommandFailure, Ending, StatusLine};
use crate::replace::write;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;
use terrace_terrace::device::hbm::sweep;
use terrace_terrace::stack::{
    load_stack, stack_machine, study, StackProblem, StackStudy, STACK_BASE,
};
use terrace_terrace::topology::{load_machine, MachineSource};

/// `terrace device`.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Figures of a stack of DRAM dies, from its description.
    #[command(
        after_help = "Example: terrace device hbm hbm3 --sweep dies=4..24 --report stacks.html"
    )]
    Hbm(HbmArgs),
}

/// `terrace device hbm`.
#[derive(Debug, Args)]
pub struct HbmArgs {
    /// Stack file or preset:NAME (hbm1, hbm2, hbm2e, hbm3, hbm3e, hbm4, hbm4-16, paper-8,
    /// microbump-16, hybrid-16, ddr4-3ds).
    pub stack: String,
    /// Values of a key to try, such as dies=4..24 or bonding=microbump,hybrid; given again, all
    /// combinations.
    #[arg(long, value_name = "KEY=VALUES")]
    pub sweep: Vec<String>,
    /// Machine file to write: the base machine with these stacks as its HBM.
    #[arg(short, long, conflicts_with = "sweep")]
    pub output: Option<PathBuf>,
    /// Machine that the stacks are put into: a preset or machine file.
    #[arg(long, default_value = STACK_BASE)]
    pub base: String,
    /// HTML file to write, with plots and cross-sections.
    #[arg(long)]
    pub report: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `terrace device hbm`.
pub fn hbm(args: &HbmArgs) -> Ending {
    let stack = load_stack(&args.stack).map_err(CommandFailure::usage)?;
    let keys: Vec<_> = args
        .sweep
        .iter()
        .map(|text| sweep::parse(text))
        .collect::<Result<_, _>>()
        .map_err(CommandFailure::usage)?;
    let started = Instant::now();
    let live = Mutex::new(StatusLine::new(args.json));
    let done = |finished: usize, all: usize| {
        let left = started.elapsed().as_secs_f64() / finished as f64 * (all - finished) as f64;
        if let Ok(mut live) = live.lock() {
            if all > 1 {
                live.show(&format!("{finished} of {all} designs, about {left:.0} s left"));
            }
        }
    };
    let study = study(&stack, &keys, done).map_err(CommandFailure::usage)?;
    if let Ok(mut live) = live.lock() {
        live.clear();
    }
    if let Some(path) = &args.output {
        write_machine(args, &study, path)?;
    }
    if let Some(path) = &args.report {
        let html = study.html().map_err(CommandFailure::failed)?;
        write(path, html.as_bytes())
            .map_err(|e| CommandFailure::failed(format!("report {}: {e}", path.display())))?;
    }
    if args.json {
        print_json(&study)?;
    } else {
        print(&study.text(width()))?;
    }
    // One design that cannot work is a failure; a sweep tells it by design.
    let failed = |e: &terrace_terrace::device::hbm::StackEvaluation| {
        use terrace_terrace::device::hbm::evaluate::ThermalState;
        args.sweep.is_empty() && e.thermal == ThermalState::Runaway
    };
    if let Some(e) = study.designs.iter().filter_map(|d| d.evaluation.as_ref()).find(|e| failed(e))
    {
        let why = e.violations.iter().find(|v| v.starts_with("thermal runaway"));
        return Err(CommandFailure::failed(format!(
            "{}: {}; cool it better or lower its power",
            e.name,
            why.map_or("thermal runaway", String::as_str)
        )));
    }
    Ok(0)
}

fn write_machine(
    args: &HbmArgs,
    study: &StackStudy,
    path: &std::path::Path,
) -> Result<(), CommandFailure> {
    let base =
        load_machine(&MachineSource::parse_machine(&args.base)).map_err(CommandFailure::usage)?;
    let Some((design, evaluation)) =
        study.designs.first().and_then(|d| Some((d.design.as_ref()?, d.evaluation.as_ref()?)))
    else {
        return Ok(());
    };
    let machine = stack_machine(&base, design, evaluation).map_err(|e| match e {
        StackProblem::Base(_) => CommandFailure::usage(e),
        _ => CommandFailure::failed(e),
    })?;
    write(path, machine.to_toml().as_bytes())
        .map_err(|e| CommandFailure::failed(format!("machine file {}: {e}", path.display())))
}
