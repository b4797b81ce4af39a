//! `terrace lab`.

use crate::args::{LabCompareArgs, LabNeedsArgs, LabRunArgs, LabSetupArgs};
use crate::output::{
    print, print_json, say, width, CommandFailure, Ending, ExpectedWork, ProgressLines,
};
use crate::replace::write;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_terrace::lab::wire::JobOutcome;
use terrace_terrace::lab::{
    self, calibrate, policies, shape::Shape, CompareInput, CompareSpec, HostCommand, Lab,
    LabMachine, StopFlag,
};
use terrace_terrace::lab_files;
use terrace_terrace::machine::Machine;
use terrace_terrace::parts::open_lab;
use terrace_terrace::report;
use terrace_terrace::topology::{load_machine, MachineSource};
use terrace_terrace::Interrupt;

/// Booting and calibrating a machine: 20 to 70 s, once.
const SETUP: ExpectedWork = ExpectedWork::Usually(Duration::from_secs(25));

impl lab::ProgressSink for ProgressLines {
    fn step(&self, what: &str) {
        Self::step(self, what);
    }
}

/// The machine that is meant, and the lab, whose machines end when somebody interrupts.
fn open(machine: &str, interrupt: &Interrupt) -> Result<(Lab, Machine), CommandFailure> {
    let machine =
        load_machine(&MachineSource::parse_machine(machine)).map_err(CommandFailure::usage)?;
    Shape::from_machine(&machine, None).map_err(CommandFailure::usage)?;
    let lab = open_lab().map_err(CommandFailure::lacking)?;
    Ok((lab.stopping(StopFlag::watching(interrupt.flag())), machine))
}

fn bench(
    lab: &Lab,
    machine: &Machine,
    progress: &ProgressLines,
    interrupt: &Interrupt,
) -> Result<LabMachine, CommandFailure> {
    lab.bench(machine, None, progress).map_err(|e| failed(e, interrupt))
}

/// Booted, saved and calibrated, all of it only where it was not before.
fn calibrated(
    lab: &Lab,
    machine: &Machine,
    interrupt: &Interrupt,
) -> Result<(LabMachine, calibrate::Calibration), CommandFailure> {
    let progress = ProgressLines::new(SETUP);
    let bench = bench(lab, machine, &progress, interrupt)?;
    let calibration = calibrate::ensure(&bench, &progress).map_err(|e| failed(e, interrupt))?;
    Ok((bench, calibration))
}

/// `terrace lab setup`.
pub fn setup(args: &LabSetupArgs) -> Ending {
    let interrupt = Interrupt::catch();
    let (lab, machine) = open(&args.machine, &interrupt)?;
    let (bench, calibration) = calibrated(&lab, &machine, &interrupt)?;
    if args.json {
        return print_json(&serde_json::json!({
            "machine": bench.shape().name,
            "vcpus": bench.shape().vcpus,
            "calibration": calibration.readings,
        }));
    }
    let mut text = format!("{}: saved machine ready\n", bench.shape().name);
    for r in &calibration.readings {
        text.push_str(&format!(
            "  node {} from {}  {:<24} wanted {:>14.1}  got {:>14.1}\n",
            r.node, r.initiator, r.figure, r.wanted, r.got
        ));
    }
    print(&text)
}

/// `terrace lab run`.
pub fn run(args: &LabRunArgs) -> Ending {
    let interrupt = Interrupt::catch();
    let limit = Duration::from_secs(args.limit);
    let mut command = host_command(&args.needs, &args.command)?;
    let (lab, machine) = open(&args.machine, &interrupt)?;
    if !args.needs.no_trace {
        find_files(&mut command, limit, &interrupt)?;
    }
    let mut spec = command.job().map_err(CommandFailure::usage)?;
    spec.limit_wall = limit;
    let fetch: Vec<PathBuf> = args.fetch.iter().map(|path| command.absolute(path)).collect();
    spec.fetch = fetch.iter().map(|path| path.display().to_string()).collect();
    // What is reported in seconds is reported by a machine that reads its machine file back.
    let bench = if args.json {
        calibrated(&lab, &machine, &interrupt)?.0
    } else {
        bench(&lab, &machine, &ProgressLines::new(SETUP), &interrupt)?
    };
    let result = bench.run(&spec).map_err(|e| failed(e, &interrupt))?;
    let _ = std::io::stderr().write_all(&result.stderr);
    let code = result.exit_status();
    if args.json {
        print_json(&serde_json::json!({
            "version": 1,
            "machine": bench.shape().name,
            "status": code,
            "ended": result.success().err().unwrap_or_else(|| "exited with status 0".into()),
            "seconds": result.seconds(),
            "startup_seconds": result.startup_seconds(),
            "wall_seconds": result.wall_seconds,
            "stdout": String::from_utf8_lossy(&result.stdout),
            "warnings": result.reply.warnings,
        }))?;
    } else {
        std::io::stdout().write_all(&result.stdout).map_err(CommandFailure::failed)?;
        result.reply.warnings.iter().for_each(|warning| say(warning));
    }
    // An exit status speaks for itself.
    if let (Err(how), false) =
        (result.success(), matches!(result.reply.outcome, JobOutcome::Exited { .. }))
    {
        say(&format!("{}: it {how}", args.command.join(" ")));
    }
    for path in &fetch {
        let Some(data) = result.files.get(&path.display().to_string()) else { continue };
        let name = Path::new(path.file_name().unwrap_or_default());
        write(name, data)
            .map_err(|e| CommandFailure::failed(format!("{}: {e}", name.display())))?;
    }
    Ok(code)
}

/// The command with the files that are named for it. What is named wrongly is found out before the
/// command runs anywhere.
fn host_command(needs: &LabNeedsArgs, argv: &[String]) -> Result<HostCommand, CommandFailure> {
    let env = needs.env.iter().map(|text| {
        let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
        let wrong = || CommandFailure::usage(format!("--env {text}: give NAME=VALUE"));
        pair.map(|(name, value)| (name.to_owned(), value.to_owned())).ok_or_else(wrong)
    });
    let command = HostCommand {
        argv: argv.to_vec(),
        search: std::env::var("PATH").ok(),
        cwd: std::env::current_dir().map_err(CommandFailure::failed)?,
        env: env.collect::<Result<_, _>>()?,
        carry: needs.carry.clone(),
        files: needs.file.clone(),
        folders: needs.dir.clone(),
        stdin: needs.stdin.clone(),
        used: Default::default(),
    };
    command.job().map_err(CommandFailure::usage)?;
    Ok(command)
}

/// Adds the files that the command opens on this machine.
fn find_files(
    command: &mut HostCommand,
    limit: Duration,
    interrupt: &Interrupt,
) -> Result<(), CommandFailure> {
    let job = command.job().map_err(CommandFailure::usage)?;
    let progress = ProgressLines::new(ExpectedWork::Usually(limit / lab_files::GUEST_SLOWDOWN));
    progress.left("looking for the files that the command opens", None);
    let search = lab_files::find(command, &job, limit, interrupt.flag());
    drop(progress);
    if interrupt.seen() {
        return Err(interrupted());
    }
    command.used = search.used;
    search.note.iter().for_each(|note| say(note));
    Ok(())
}

/// Somebody asked to stop: the status of a program that SIGINT ended.
fn interrupted() -> CommandFailure {
    CommandFailure { code: 130, line: "lab: interrupted".into() }
}

fn failed(error: lab::LabError, interrupt: &Interrupt) -> CommandFailure {
    if interrupt.seen() {
        return interrupted();
    }
    CommandFailure::failed(error)
}

/// `terrace lab compare`.
pub fn compare(args: &LabCompareArgs) -> Ending {
    understood(args)?;
    let interrupt = Interrupt::catch();
    let limit = Duration::from_secs(args.limit);
    let mut command = match args.command.as_slice() {
        [] => None,
        argv => Some(host_command(&args.needs, argv)?),
    };
    let (lab, machine) = open(&args.machine, &interrupt)?;
    if let Some(command) = command.as_mut().filter(|_| !args.needs.no_trace) {
        find_files(command, limit, &interrupt)?;
    }
    let (bench, calibration) = calibrated(&lab, &machine, &interrupt)?;
    if !calibration.timed {
        return Err(CommandFailure::failed(
            "lab: the timing plugin is switched off (TERRACE_LAB_NO_PLUGIN), so that no figure \
                would mean anything; unset it",
        ));
    }
    let program = |name: &str| bench.lab().guest_program(name);
    let input = match command {
        None => {
            let program = program("terrace-workload").ok_or_else(|| {
                CommandFailure::lacking("the lab has no terrace-workload; run make demo once")
            })?;
            CompareInput::Workload { spec: args.workload.clone(), program }
        }
        Some(command) => CompareInput::Command(command),
    };
    let spec = CompareSpec {
        policies: args.policy.clone(),
        input,
        terrace: program("terrace"),
        terrace_args: args.terrace_arg.clone(),
        jobs: args.jobs.max(1),
        repeat: 1,
        limit_wall: limit,
        profiles: None,
    };
    let result = lab::compare(&bench, &spec, &ProgressLines::new(runs(&spec)))
        .map_err(|e| failed(e, &interrupt))?;
    if let Some(folder) = &args.keep {
        std::fs::create_dir_all(folder)
            .map_err(|e| CommandFailure::failed(format!("{}: {e}", folder.display())))?;
        lab::compare::save_journals(&result, folder).map_err(CommandFailure::failed)?;
    }
    let json = serde_json::to_vec_pretty(&result).map_err(CommandFailure::failed)?;
    if let Some(path) = &args.report {
        write_report(path, &json)?;
    }
    if args.json {
        print(&format!("{}\n", String::from_utf8_lossy(&json)))?;
    } else {
        print(&lab::table(&result, width()))?;
    }
    if interrupt.seen() {
        return Err(interrupted());
    }
    let without: Vec<&str> =
        result.runs.iter().filter(|r| r.seconds.is_none()).map(|r| r.policy.as_str()).collect();
    if without.is_empty() {
        return Ok(0);
    }
    let (all, names) = (result.runs.len(), without.join(", "));
    Err(CommandFailure::failed(format!(
        "lab: {} of {all} policies have no time, each for the reason in its row: {names}",
        without.len()
    )))
}

/// Found out before a machine is booted.
fn understood(args: &LabCompareArgs) -> Result<(), CommandFailure> {
    let machine = load_machine(&MachineSource::parse_machine(&args.machine))
        .map_err(CommandFailure::usage)?;
    let shape = Shape::from_machine(&machine, None).map_err(CommandFailure::usage)?;
    for policy in &args.policy {
        policies::plan(policy, &shape).map_err(CommandFailure::usage)?;
    }
    Ok(())
}

/// The bound is profiled first, in a run of its own.
fn runs(spec: &CompareSpec) -> ExpectedWork {
    let profiled =
        spec.policies.iter().filter(|p| p.starts_with("bound:ideal-move")).count() as u64;
    let all = spec.policies.len() as u64 + profiled;
    ExpectedWork::Runs { all, at_once: spec.jobs as u64, unsaid: profiled }
}

fn write_report(path: &std::path::Path, json: &[u8]) -> Result<(), CommandFailure> {
    let document = report::read(json).map_err(CommandFailure::failed)?;
    write(path, document.to_html())
        .map_err(|e| CommandFailure::failed(format!("{}: {e}", path.display())))
}
