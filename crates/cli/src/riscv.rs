//! `terrace riscv`, and `record --source riscv`.

use crate::args::RecordArgs;
use crate::output::{say, CommandFailure, Ending};
use crate::record::filter;
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use terrace_terrace::riscv::{self, RiscvError, RiscvProgram, RiscvRecording, RiscvRun};
use terrace_terrace::types::Bytes;

/// Bytes of memory that a program may touch, where no other limit is given.
const MEMORY: u64 = 4 << 30;

/// `terrace riscv`.
#[derive(Debug, Subcommand)]
pub enum RiscvCommand {
    /// Run a static program for riscv64 Linux.
    #[command(after_help = "Example: terrace riscv run --root . --stats ./a.out input.txt")]
    Run(RiscvRunArgs),
}

/// `terrace riscv run`.
#[derive(Debug, Args)]
pub struct RiscvRunArgs {
    /// Folder below which the program finds its files; without one it has its streams only.
    #[arg(long, value_name = "FOLDER")]
    pub root: Option<PathBuf>,
    /// Seed of the random numbers that the program is given.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Say at the end how many instructions were executed, and how fast.
    #[arg(long)]
    pub stats: bool,
    /// Write a recording of all loads and stores.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

fn program(command: &[OsString], root: Option<PathBuf>, seed: u64) -> RiscvProgram {
    RiscvProgram {
        path: command.first().map(PathBuf::from).unwrap_or_default(),
        arguments: command.iter().map(|word| word.as_bytes().to_vec()).collect(),
        root,
        memory: Bytes(MEMORY),
        seed,
    }
}

fn failure(error: RiscvError) -> CommandFailure {
    match error {
        RiscvError::Program { .. } => CommandFailure::usage(error),
        _ => CommandFailure::failed(error),
    }
}

fn leave(run: &RiscvRun) -> Ending {
    let (status, line) = run.status();
    line.map_or(Ok(status), |line| Err(CommandFailure { code: status, line }))
}

/// `terrace riscv run`: ends as the program did.
pub fn run(args: &RiscvRunArgs) -> Ending {
    let program = program(&args.command, args.root.clone(), args.seed);
    let run = match &args.record {
        None => riscv::run(&program),
        Some(output) => {
            let output = output.clone();
            let filter = terrace_terrace::trace::capture::Filter::default();
            riscv::record(&program, &RiscvRecording { output, filter, pcs: true })
        }
    }
    .map_err(failure)?;
    if args.stats {
        say(&format!(
            "{} instructions of {} threads in {:.3} s, {:.1} million a second",
            run.instructions,
            run.threads,
            run.elapsed_s,
            run.instructions as f64 / run.elapsed_s.max(1e-9) / 1e6
        ));
    }
    leave(&run)
}

/// `terrace record --source riscv`: ends as the program did.
pub fn record(args: &RecordArgs) -> Ending {
    for (given, flag, why) in [
        (args.values, "--values", "values are not kept"),
        (args.objects.is_some(), "--objects", "objects are named by hooks only"),
        (args.begin_at.is_some(), "--begin-at", "functions are not known by name"),
        (args.end_at.is_some(), "--end-at", "functions are not known by name"),
    ] {
        if given {
            let line = format!("{flag} with --source riscv: {why}; leave it out");
            return Err(CommandFailure::lacking(line));
        }
    }
    // A program to be recorded may read what its user may read in this folder.
    let program = program(&args.command, Some(PathBuf::from(".")), 1);
    let recording =
        RiscvRecording { output: args.output.clone(), filter: filter(args)?, pcs: args.pc };
    let run = riscv::record(&program, &recording).map_err(failure)?;
    if let (Some(seen), false) = (run.recorded, args.quiet) {
        say(&format!(
            "recorded {} of {} loads and stores ({} loads, {} stores) of {} threads into {}",
            seen.kept,
            seen.loads + seen.stores,
            seen.loads,
            seen.stores,
            run.threads,
            recording.output.display()
        ));
    }
    leave(&run)
}
