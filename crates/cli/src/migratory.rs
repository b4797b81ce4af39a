//! `terrace migratory`: vertex programs on machines of migratory threads.

use crate::output::{print, print_json, CommandFailure, Ending, StatusLine};
use crate::replace::{replace, write};
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use terrace_terrace::migratory::{
    format_program, run_program, MigratoryProblem, MigratoryQuestion,
};
use terrace_terrace::vertex::VertexError;

/// `terrace migratory`.
#[derive(Debug, Subcommand)]
pub enum MigratoryCommand {
    /// Run a vertex program, before and after transformations.
    #[command(
        after_help = "Example: terrace migratory run triangles --graph rmat:scale=10,edges=16 \
            --pass remote"
    )]
    Run(MigratoryArgs),
    /// Print a vertex program in the one layout.
    #[command(after_help = "Example: terrace migratory format bfs")]
    Format(FormatArgs),
}

/// `terrace migratory format`.
#[derive(Debug, Args)]
pub struct FormatArgs {
    /// A program's file, or the name of one that comes with Terrace.
    pub program: String,
    /// Replace the file in place of printing.
    #[arg(long)]
    pub write: bool,
}

/// `terrace migratory run`.
#[derive(Debug, Args)]
pub struct MigratoryArgs {
    /// A program's file, or one of conductance, bellman-ford-pull, bellman-ford-push, triangles,
    /// pagerank, bfs, teenage-followers, components.
    pub program: String,
    /// rmat, uniform or grid with :scale=N, then after commas edges=N,
    /// order=natural|random|degree and directed=yes; or a file: an edge list (undirected unless
    /// ,directed=yes follows), .mtx, .sg or .wsg.
    #[arg(long, value_name = "GRAPH")]
    pub graph: String,
    /// emu-chick, emu-chick-8, emu-full-speed or pathfinder, with ,KEY=VALUE to replace figures.
    #[arg(long, value_name = "MACHINE", default_value = "emu-chick")]
    pub machine: String,
    /// Where data lies: striped, pointers or edges-striped.
    #[arg(long, default_value = "striped")]
    pub layout: String,
    /// Passes in order: fusion, flip, remote, hoist, replicate, spawn-at-data, hybrid, reorder.
    #[arg(long, value_name = "PASSES", value_delimiter = ',')]
    pub pass: Vec<String>,
    /// Pick the passes by predicted time, and say why.
    #[arg(long, conflicts_with = "pass")]
    pub optimize: bool,
    /// Value of a parameter of the program; may be given again.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Host threads that simulate; the result does not depend on them.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub threads: u32,
    /// Simulated instructions at most.
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000_000_000)]
    pub instructions: u64,
    /// HTML file to write: migrations from nodelet to nodelet, queues, the program's lines.
    #[arg(long)]
    pub report: Option<PathBuf>,
    /// Recording to write for terrace sim: all accesses of native execution, after the passes.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Threads of that recording; they take blocks of vertices in turn.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 1,
        requires = "record",
        value_parser = clap::value_parser!(u32).range(1..=256)
    )]
    pub record_threads: u32,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

fn parameter(text: &str) -> Result<(String, i64), CommandFailure> {
    let parsed = text.split_once('=').and_then(|(name, value)| {
        let value = value.parse().ok()?;
        Some((name.to_owned(), value))
    });
    parsed.ok_or_else(|| {
        CommandFailure::usage(format!("--set {text}: give NAME=VALUE, a whole number"))
    })
}

/// `terrace migratory format`.
pub fn format(args: &FormatArgs) -> Ending {
    let text = format_program(&args.program).map_err(failure)?;
    if !args.write {
        return print(&text);
    }
    let path = Path::new(&args.program);
    replace(path, text).map_err(|e| {
        let program = path.display();
        CommandFailure::failed(format!("program {program}: {e}; give a file, or leave out --write"))
    })?;
    Ok(0)
}

/// `terrace migratory run`.
pub fn run(args: &MigratoryArgs) -> Ending {
    let question = MigratoryQuestion {
        program: args.program.clone(),
        graph: args.graph.clone(),
        machine: args.machine.clone(),
        layout: args.layout.clone(),
        passes: args.pass.clone(),
        optimize: args.optimize,
        parameters: args.set.iter().map(|text| parameter(text)).collect::<Result<_, _>>()?,
        host_threads: args.threads,
        instructions: args.instructions,
        record: args.record.clone(),
        recorded_threads: args.record_threads,
    };
    let mut live = StatusLine::new(args.json);
    let answer = run_program(&question, |what| live.show(what));
    live.clear();
    let answer = answer.map_err(failure)?;
    if let Some(path) = &args.report {
        let html = answer.html().map_err(CommandFailure::failed)?;
        write(path, html.as_bytes())
            .map_err(|e| CommandFailure::failed(format!("report {}: {e}", path.display())))?;
    }
    if args.json {
        print_json(&answer)
    } else {
        print(&answer.text())
    }
}

fn failure(problem: MigratoryProblem) -> CommandFailure {
    use terrace_terrace::migratory_machine::MigratoryError;
    match problem {
        MigratoryProblem::Different { .. }
        | MigratoryProblem::Recording { .. }
        | MigratoryProblem::Program { error: VertexError::Unbounded { .. }, .. }
        | MigratoryProblem::Machine(
            MigratoryError::Unfinished { .. }
            | MigratoryError::Fault { .. }
            | MigratoryError::Deadlock { .. },
        ) => CommandFailure::failed(problem),
        MigratoryProblem::Machine(MigratoryError::MemoryFull { .. }) => {
            CommandFailure::lacking(problem)
        }
        _ => CommandFailure::usage(problem),
    }
}
