//! `terrace riscv`, and `record --source riscv`.

use crate::args::RecordArgs;
use crate::output::{say, CommandFailure, Ending};
use crate::record::filter;
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use terrace_terrace::riscv::{
    self, Dialect, ElementOptions, ElementSchedule, ElementsRun, LookasideSize, RiscvError,
    RiscvProgram, RiscvRecording, RiscvRun,
};
use terrace_terrace::types::Bytes;

/// Bytes of memory that a program may touch, where no other limit is given.
const MEMORY: u64 = 4 << 30;

/// `terrace riscv`.
#[derive(Debug, Subcommand)]
pub enum RiscvCommand {
    /// Run a static program for riscv64 Linux, on one or more xBGAS processing elements.
    #[command(after_help = "Example: terrace riscv run --root . --stats ./a.out input.txt\n\
        Example: terrace riscv run --pes 4 --stats ./gather")]
    Run(RiscvRunArgs),
    /// Print the instructions of a static program.
    #[command(after_help = "Example: terrace riscv disasm --dialect 2018 ./gather")]
    Disasm(RiscvDisasmArgs),
}

/// `terrace riscv disasm`.
#[derive(Debug, Args)]
pub struct RiscvDisasmArgs {
    /// Name xBGAS instructions in this encoding; without one they print as data.
    #[arg(long, value_name = "D")]
    pub dialect: Option<DialectName>,
    /// The program.
    pub file: PathBuf,
}

/// A published encoding of xBGAS instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DialectName {
    /// That of the binary tools of 2018.
    #[value(name = "2018")]
    V2018,
    /// That of the specification 2.0.
    #[value(name = "2.0")]
    V2_0,
    /// That of its revision.
    #[value(name = "rev")]
    Rev,
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
    /// Run so many copies as xBGAS processing elements, each with memory of its own.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32)
        .range(1..=i64::from(riscv::MOST_ELEMENTS)))]
    pub pes: Option<u32>,
    /// Execute xBGAS instructions in this encoding (with --pes: 2018).
    #[arg(long, value_name = "D")]
    pub dialect: Option<DialectName>,
    /// Instructions of an element's turn at most; its length is drawn with --seed.
    #[arg(long, value_name = "N", default_value_t = ElementSchedule::from_seed(0).quantum)]
    pub quantum: u64,
    /// Entries of an element's object look-aside buffer.
    #[arg(long, value_name = "N", default_value_t = LookasideSize::default().entries as u32,
        value_parser = clap::value_parser!(u32).range(0..=65_536))]
    pub olb_entries: u32,
    /// Ways of the look-aside buffer.
    #[arg(long, value_name = "N", default_value_t = LookasideSize::default().ways as u32,
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub olb_ways: u32,
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

fn dialect(name: DialectName) -> Dialect {
    match name {
        DialectName::V2018 => Dialect::V2018,
        DialectName::V2_0 => Dialect::V2_0,
        DialectName::Rev => Dialect::Rev,
    }
}

/// `terrace riscv disasm`.
pub fn disasm(args: &RiscvDisasmArgs) -> Ending {
    let mut output = std::io::BufWriter::new(std::io::stdout().lock());
    match riscv::disassemble(&args.file, args.dialect.map(dialect), &mut output) {
        Ok(()) => Ok(0),
        // Whoever was reading has seen enough.
        Err(RiscvError::Output { source, .. }) if source.kind() == ErrorKind::BrokenPipe => Ok(0),
        Err(RiscvError::Output { source, .. }) => {
            Err(CommandFailure::failed(format!("cannot write the listing: {source}")))
        }
        Err(error) => Err(failure(error)),
    }
}

/// One line for each element.
fn say_statistics(run: &ElementsRun) {
    for (number, element) in run.elements.iter().enumerate() {
        say(&format!(
            "element {number}: {} instructions, {} remote loads, {} remote stores, {} bytes, \
             {} local extended accesses, {} look-aside hits, {} misses, {} waits",
            element.instructions,
            element.remote_loads,
            element.remote_stores,
            element.remote_bytes,
            element.local_accesses,
            element.lookaside_hits,
            element.lookaside_misses,
            element.waits
        ));
    }
    let instructions: u64 = run.elements.iter().map(|element| element.instructions).sum();
    say(&format!(
        "{instructions} instructions of {} elements in {:.3} s, {:.1} million a second",
        run.elements.len(),
        run.elapsed_s,
        instructions as f64 / run.elapsed_s.max(1e-9) / 1e6
    ));
}

fn run_elements(args: &RiscvRunArgs, program: &RiscvProgram) -> Ending {
    if args.record.is_some() {
        let line = "--record with --pes or --dialect: remote accesses cannot be recorded; leave \
                    out one of them";
        return Err(CommandFailure::lacking(line));
    }
    let options = ElementOptions {
        count: args.pes.unwrap_or(1),
        dialect: args.dialect.map_or(Dialect::V2018, dialect),
        schedule: ElementSchedule { quantum: args.quantum, seed: args.seed },
        lookaside: LookasideSize {
            entries: args.olb_entries as usize,
            ways: args.olb_ways as usize,
        },
    };
    let run = riscv::run_elements(program, &options).map_err(failure)?;
    if args.stats {
        say_statistics(&run);
    }
    let (status, line) = run.status();
    line.map_or(Ok(status), |line| Err(CommandFailure { code: status, line }))
}

/// `terrace riscv run`: ends as the program did.
pub fn run(args: &RiscvRunArgs) -> Ending {
    let program = program(&args.command, args.root.clone(), args.seed);
    if args.pes.is_some() || args.dialect.is_some() {
        return run_elements(args, &program);
    }
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
