//! `plan`: which allocations belong in fast memory.

use crate::output::{say, CommandFailure, Ending};
use crate::replace::write;
use crate::suggestions::MACHINES;
use clap::Args;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use terrace_terrace::allocation_plan::{plan_allocations, AllocationPlanError, AllocationProfile};
use terrace_terrace::far_run::size;
use terrace_terrace::topology::{load_machine, MachineSource};
use terrace_terrace::trace::TraceReader;

/// `terrace plan`.
#[derive(Debug, Args)]
#[command(hide_possible_values = true)]
pub struct PlanArgs {
    /// Recording of a program built with terrace-cc, made with --objects BYTES.
    #[arg(value_name = "RECORDING")]
    pub recording: PathBuf,
    /// Preset or machine file; default: this machine as it describes itself.
    #[arg(long, value_parser = MACHINES)]
    pub machine: Option<String>,
    /// Bytes of the best tier that the program's objects may take, such as 64M.
    #[arg(long, value_name = "SIZE")]
    pub fast: String,
    /// Write the plan here.
    #[arg(short, long, value_name = "PLAN")]
    pub output: PathBuf,
}

/// `terrace plan`.
pub fn plan(args: &PlanArgs) -> Ending {
    let space = size(&args.fast).filter(|bytes| bytes.get() > 0).ok_or_else(|| {
        CommandFailure::usage(format!("--fast {}: give bytes, such as 64M", args.fast))
    })?;
    let source = args.machine.as_deref().map_or(MachineSource::Live, MachineSource::parse_machine);
    let machine = load_machine(&source).map_err(CommandFailure::usage)?;
    let named = |why: &dyn std::fmt::Display| format!("{}: {why}", args.recording.display());
    let file = File::open(&args.recording).map_err(|e| CommandFailure::failed(named(&e)))?;
    let mut reader =
        TraceReader::open(BufReader::new(file)).map_err(|e| CommandFailure::failed(named(&e)))?;
    let failed = |error: AllocationPlanError| match error {
        AllocationPlanError::Recording(e) => CommandFailure::failed(named(&e)),
        AllocationPlanError::NoObjects => CommandFailure::lacking(named(&error)),
        AllocationPlanError::OneTier(_) | AllocationPlanError::Machine { .. } => {
            CommandFailure::lacking(error)
        }
    };
    let profile = AllocationProfile::from_reader(&mut reader, &machine).map_err(failed)?;
    let plan = plan_allocations(&profile, &machine, space).map_err(failed)?;
    write(&args.output, plan.text.as_bytes())
        .map_err(|e| CommandFailure::failed(format!("{}: {e}", args.output.display())))?;
    say(&format!(
        "{} of {} sizes to the best tier, {} at most: {:.0}% of the misses of named objects; \
         {:.0}% of all misses belong to none",
        plan.fast.len(),
        profile.sizes.len(),
        plan.fast_bytes,
        100.0 * plan.fast_share,
        100.0 * plan.elsewhere_share
    ));
    Ok(0)
}
