//! `terrace crash`: what survives a crash.

use crate::output::{json_text, print, print_json, say, CommandFailure, Ending, StatusLine};
use crate::replace::write;
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;
use terrace_terrace::crash::{
    advise as advise_flushes, check as check_program, run as run_study, AdviseSpec, CheckSpec,
    CrashError, CrashReport, CrashResult, CrashSpec, CrashStep,
};
use terrace_terrace::crash_model::persist::ReorderEngine;
use terrace_terrace::crash_model::{CacheSetup, CrashSchedule};
use terrace_terrace::record::RecordError;
use terrace_terrace::report as documents;
use terrace_terrace::topology::{load_machine, MachineSource};
use terrace_terrace::types::{Bytes, Nanos};
use terrace_terrace::Interrupt;

/// `terrace crash`.
#[derive(Debug, Subcommand)]
pub enum CrashCommand {
    /// Record a program once, crash it many times, restart it from what memory held.
    #[command(after_help = "Example: terrace crash run --count 1000 -- ./cg S")]
    Run(CrashRunArgs),
    /// Find ordering bugs: every image that hardware may leave, each judged by a restart.
    #[command(after_help = "Example: terrace crash check -- ./list")]
    Check(CrashCheckArgs),
    /// Find what to flush so that restarts succeed as often as wanted, at least cost.
    #[command(after_help = "Example: terrace crash advise --wanted 0.95 -- ./cg S")]
    Advise(CrashAdviseArgs),
}

/// What all crash commands take.
#[derive(Debug, Args)]
pub struct CrashProgramArgs {
    /// Seed of what is drawn by chance: moments of crashes, or images (1).
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Restarts at a time; by default one for each CPU.
    #[arg(short, long)]
    pub jobs: Option<usize>,
    /// Limit of a restart's time, seconds; by default ten times a run without a crash.
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<f64>,
    /// Folder for recordings and images meanwhile; by default the one for temporary files.
    #[arg(long)]
    pub work: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// `terrace crash advise`.
#[derive(Debug, Args)]
pub struct CrashAdviseArgs {
    /// Share of restarts that are to succeed, from 0 to 1.
    #[arg(long, default_value_t = 0.95)]
    pub wanted: f64,
    /// Machine on which flushes are simulated, in its slowest memory: a preset or machine file.
    #[arg(long, default_value = "dram-dcpmm")]
    pub machine: String,
    /// Crashes of each trial.
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub count: u32,
    /// Caches: nvc, none, unlimited, or levels such as 32K/8+20M/20/shared/inclusive.
    #[arg(long, default_value = "nvc")]
    pub caches: String,
    #[command(flatten)]
    pub program: CrashProgramArgs,
}

/// `terrace crash check`.
#[derive(Debug, Args)]
pub struct CrashCheckArgs {
    /// Orders of stores: hardware, none, full, partial, accumulative or reverse-accumulative.
    #[arg(long, default_value = "hardware")]
    pub engine: String,
    /// Images to judge at most; where there are more, a sample.
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub bound: usize,
    /// File of this folder that the program maps, shared, as its persistent memory; for programs
    /// without terrace_crash.h.
    #[arg(long, value_name = "FILE")]
    pub mapped: Option<PathBuf>,
    /// Command that judges an image, whose path is in TERRACE_CRASH_IMAGE, by its exit status; by
    /// default the program itself.
    #[arg(long, value_name = "CMD")]
    pub check: Option<String>,
    #[command(flatten)]
    pub program: CrashProgramArgs,
}

/// `terrace crash run`.
#[derive(Debug, Args)]
pub struct CrashRunArgs {
    /// Crashes, uniform over the instructions of the region.
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub count: u32,
    /// Crash at other moments: each iteration, each fence, store:N, or phase:N for N in each phase.
    #[arg(long, value_name = "WHEN", conflicts_with = "count")]
    pub at: Option<String>,
    /// Caches: nvc, none, unlimited, or levels such as 32K/8+20M/20/shared/inclusive.
    #[arg(long, default_value = "nvc")]
    pub caches: String,
    /// Equal parts of the iterations by which successes are counted, of programs that mark no
    /// phases.
    #[arg(long, default_value_t = 3)]
    pub phases: u32,
    /// Limit of a restart's address space, MiB.
    #[arg(long, value_name = "MIB")]
    pub memory: Option<u64>,
    /// A restart succeeds only if its output is that of a run without a crash.
    #[arg(long)]
    pub same_output: bool,
    /// A restart succeeds only if its output contains this.
    #[arg(long, value_name = "TEXT")]
    pub expect: Option<String>,
    /// File to write results to as they come, one JSON object a line.
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// HTML file to write, with pictures.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    #[command(flatten)]
    pub program: CrashProgramArgs,
}

impl CrashProgramArgs {
    /// The seed of what is drawn by chance, 1 where none was given.
    fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    /// One phase, and the exit status alone decides.
    fn spec(
        &self,
        setup: CacheSetup,
        schedule: CrashSchedule,
    ) -> Result<CrashSpec, CommandFailure> {
        Ok(CrashSpec {
            argv: self.command.clone(),
            setup,
            schedule,
            phases: 1,
            jobs: job_count(self.jobs)?,
            time: time_limit(self.timeout)?,
            memory: None,
            same_output: false,
            expect: None,
            work: self.work.clone().unwrap_or_else(std::env::temp_dir),
        })
    }
}

fn schedule(args: &CrashRunArgs) -> Result<CrashSchedule, CommandFailure> {
    let Some(when) = &args.at else {
        return Ok(CrashSchedule::Uniform { count: args.count, seed: args.program.seed() });
    };
    if args.program.seed.is_some() && !when.starts_with("phase:") {
        let why = "--seed is for crashes drawn by chance: --count, or --at phase:N";
        return Err(CommandFailure::usage(why));
    }
    match when.as_str() {
        "iteration" => Ok(CrashSchedule::EachIteration),
        "fence" => Ok(CrashSchedule::EachFence),
        other => {
            let number = |prefix| other.strip_prefix(prefix).and_then(|n| n.parse().ok());
            let in_each = number("phase:").and_then(|n| u32::try_from(n).ok());
            if let Some(period) = number("store:").filter(|n: &u64| *n > 0) {
                Ok(CrashSchedule::EachStore { period })
            } else if let Some(count) = in_each.filter(|n| *n > 0) {
                let (seed, phases) = (args.program.seed(), args.phases);
                Ok(CrashSchedule::EachPhase { count, seed, phases })
            } else {
                let known = "iteration, fence, store:N or phase:N";
                Err(CommandFailure::usage(format!("--at {other}: give {known}")))
            }
        }
    }
}

fn caches(text: &str) -> Result<CacheSetup, CommandFailure> {
    CacheSetup::parse(text).map_err(|error| CommandFailure::usage(format!("--caches {error}")))
}

fn time_limit(seconds: Option<f64>) -> Result<Option<Nanos>, CommandFailure> {
    match seconds {
        Some(s) if !s.is_finite() || s <= 0.0 => {
            Err(CommandFailure::usage("--timeout must be a time above 0"))
        }
        other => Ok(other.map(|s| Nanos((s * 1e9) as u64))),
    }
}

fn job_count(jobs: Option<usize>) -> Result<usize, CommandFailure> {
    match jobs {
        Some(0) => Err(CommandFailure::usage("--jobs must be at least 1")),
        Some(jobs) => Ok(jobs),
        None => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
    }
}

fn failure(error: &CrashError) -> CommandFailure {
    match error {
        CrashError::Record(RecordError::Lacking(_)) => CommandFailure::lacking(error),
        CrashError::Simulator(_) => CommandFailure::usage(error),
        _ => CommandFailure::failed(error),
    }
}

/// Shows the step, how much of it is done and the time left.
fn show_progress(live: &mut StatusLine) -> impl FnMut(CrashStep, f64) + '_ {
    let mut step = (CrashStep::Reference, Instant::now());
    move |now: CrashStep, done: f64| {
        if step.0 != now {
            step = (now, Instant::now());
        }
        let past = step.1.elapsed().as_secs_f64();
        let name = match now {
            CrashStep::Reference => "running without a crash",
            CrashStep::Recording => "recording",
            CrashStep::Caches => "finding what memory holds",
            CrashStep::Restarts => "restarts",
            CrashStep::Simulation => "simulating what flushes cost",
        };
        if done > 0.0 {
            let left = past / done * (1.0 - done);
            live.show(&format!("{name}: {:.0}%, about {left:.0} s left", done * 100.0));
        } else {
            live.show(name);
        }
    }
}

/// `terrace crash advise`.
pub fn advise(args: &CrashAdviseArgs) -> Ending {
    if !(0.0..=1.0).contains(&args.wanted) || args.count == 0 {
        return Err(CommandFailure::usage("--wanted is 0 to 1, and --count at least 1"));
    }
    let source = MachineSource::parse_machine(&args.machine);
    let machine = load_machine(&source).map_err(CommandFailure::usage)?;
    let schedule = CrashSchedule::Uniform { count: args.count, seed: args.program.seed() };
    let spec = args.program.spec(caches(&args.caches)?, schedule)?;
    let how = AdviseSpec { wanted: args.wanted, machine };
    let interrupt = Interrupt::catch();
    let mut live = StatusLine::new(args.program.json);
    let report = {
        let mut progress = show_progress(&mut live);
        advise_flushes(&spec, &how, interrupt.flag(), &mut progress)
    };
    live.clear();
    let report = report.map_err(|error| failure(&error))?;
    if args.program.json {
        print_json(&report)?;
    } else {
        print(&report.text())?;
    }
    Ok(u8::from(report.advice.is_none()))
}

/// `terrace crash check`.
pub fn check(args: &CrashCheckArgs) -> Ending {
    let engines = ReorderEngine::ALL;
    let Some((engine, _)) = engines.into_iter().find(|(_, name)| *name == args.engine) else {
        let names: Vec<&str> = engines.iter().map(|(_, name)| *name).collect();
        let names = names.join(", ");
        return Err(CommandFailure::usage(format!(
            "--engine {}: give one of {names}",
            args.engine
        )));
    };
    if args.bound == 0 {
        return Err(CommandFailure::usage("--bound must be at least 1"));
    }
    let spec = args.program.spec(CacheSetup::nvc(), CrashSchedule::EachFence)?;
    let how = CheckSpec {
        engine,
        bound: args.bound,
        seed: args.program.seed(),
        mapped: args.mapped.clone(),
    };
    let checker = args.check.as_ref().map(|command| ["sh", "-c", command].map(OsString::from));
    let interrupt = Interrupt::catch();
    let mut live = StatusLine::new(args.program.json);
    let report = {
        let mut progress = show_progress(&mut live);
        let checker = checker.as_ref().map(|words| words.as_slice());
        check_program(&spec, &how, checker, interrupt.flag(), &mut progress)
    };
    live.clear();
    let report = report.map_err(|error| failure(&error))?;
    if interrupt.seen() {
        say(&format!("stopped after {} of {} images", report.judged, report.images));
    }
    if args.program.json {
        print_json(&report)?;
    } else {
        report.notes.iter().for_each(|note| say(note));
        print(&report.text())?;
    }
    Ok(u8::from(!report.is_clean()))
}

/// `terrace crash run`.
pub fn run(args: &CrashRunArgs) -> Ending {
    if args.phases == 0 || args.count == 0 {
        return Err(CommandFailure::usage("--phases and --count must be at least 1"));
    }
    let spec = CrashSpec {
        phases: args.phases,
        memory: args.memory.map(|mib| Bytes(mib << 20)),
        same_output: args.same_output,
        expect: args.expect.clone(),
        ..args.program.spec(caches(&args.caches)?, schedule(args)?)?
    };
    let cannot = |e: std::io::Error, path: &PathBuf| {
        CommandFailure::failed(format!("cannot write {}: {e}", path.display()))
    };
    let mut lines = match &args.output {
        Some(path) => Some(std::fs::File::create(path).map_err(|e| cannot(e, path))?),
        None => None,
    };
    let mut lost = None;
    let mut each = |result: &CrashResult| {
        if let Some(file) = &mut lines {
            let line = serde_json::to_string(result).unwrap_or_default() + "\n";
            if let Err(error) = file.write_all(line.as_bytes()) {
                lost.get_or_insert(error);
            }
        }
    };
    let interrupt = Interrupt::catch();
    let mut live = StatusLine::new(args.program.json);
    let report = {
        let mut progress = show_progress(&mut live);
        run_study(&spec, interrupt.flag(), &mut progress, &mut each)
    };
    live.clear();
    let report = report.map_err(|error| failure(&error))?;
    if let (Some(error), Some(path)) = (lost, &args.output) {
        say(&format!("not all results are in {}: {error}", path.display()));
    }
    if interrupt.seen() {
        say(&format!("stopped after {} of {} restarts", report.total.restarts, report.crashes));
    }
    show(args, &report)
}

/// Prints a study, and writes its page where one is asked for.
fn show(args: &CrashRunArgs, report: &CrashReport) -> Ending {
    let json = json_text(report, &[])?;
    if let Some(path) = &args.report {
        let page = documents::read(json.as_bytes()).map_err(CommandFailure::failed)?.to_html();
        write(path, page)
            .map_err(|e| CommandFailure::failed(format!("report {}: {e}", path.display())))?;
    }
    if args.program.json {
        print(&json)?;
    } else {
        report.notes.iter().for_each(|note| say(note));
        print(&report.text())?;
    }
    match &report.ended_early {
        Some(why) => Err(CommandFailure::failed(format!(
            "only {} of {} restarts: {why}",
            report.total.restarts, report.crashes
        ))),
        None => Ok(0),
    }
}
