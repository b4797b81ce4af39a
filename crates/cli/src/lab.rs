//! `terrace lab`.

use crate::args::{LabCompareArgs, LabRunArgs, LabSetupArgs};
use crate::output::{print, print_json, Ending, Failure, Progress, Work};
use crate::replace::write;
use std::io::Write;
use std::time::Duration;
use terrace_terrace::lab::wire::Outcome;
use terrace_terrace::lab::{
    self, calibrate, policies, shape::Shape, Bench, CompareSpec, Input, JobSpec,
};
use terrace_terrace::parts::open_lab;
use terrace_terrace::report;
use terrace_terrace::topology::{load_machine, Source};

/// Booting and calibrating a machine: 20 to 70 s, once.
const SETUP: Work = Work::Usually(Duration::from_secs(25));

impl lab::Progress for Progress {
    fn step(&self, what: &str) {
        Self::step(self, what);
    }
}

fn bench(machine: &str, progress: &Progress) -> Result<Bench, Failure> {
    let machine = load_machine(&Source::parse_machine(machine)).map_err(Failure::usage)?;
    let lab = open_lab().map_err(Failure::lacking)?;
    lab.bench(&machine, None, progress).map_err(Failure::failed)
}

/// Booted, saved and calibrated, all of it only where it was not before.
fn calibrated(machine: &str) -> Result<(Bench, calibrate::Calibration), Failure> {
    let progress = Progress::new(SETUP);
    let bench = bench(machine, &progress)?;
    let calibration = calibrate::ensure(&bench, &progress).map_err(Failure::failed)?;
    Ok((bench, calibration))
}

/// `terrace lab setup`.
pub fn setup(args: &LabSetupArgs) -> Ending {
    let (bench, calibration) = calibrated(&args.machine)?;
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
    // What is told in seconds is told by a machine that reads its machine file back.
    let bench = if args.json {
        calibrated(&args.machine)?.0
    } else {
        bench(&args.machine, &Progress::new(SETUP))?
    };
    let path = std::env::var("PATH").ok();
    let mut spec =
        JobSpec::of_host_command(&args.command, path.as_deref()).map_err(Failure::usage)?;
    for program in &args.carry {
        let found = lab::program::look_up(program, path.as_deref()).map_err(Failure::usage)?;
        spec.carry(&found).map_err(Failure::usage)?;
    }
    spec.limit_wall = Duration::from_secs(args.limit);
    let result = bench.run(&spec).map_err(Failure::failed)?;
    let _ = std::io::stderr().write_all(&result.stderr);
    let code = match result.reply.outcome {
        Outcome::Exited { status } => status as u8,
        _ => 1,
    };
    if args.json {
        print_json(&serde_json::json!({
            "machine": bench.shape().name,
            "status": code,
            "seconds": result.seconds(),
            "wall_seconds": result.wall_seconds,
            "stdout": String::from_utf8_lossy(&result.stdout),
        }))?;
    } else {
        std::io::stdout().write_all(&result.stdout).map_err(Failure::failed)?;
    }
    Ok(code)
}

/// `terrace lab compare`.
pub fn compare(args: &LabCompareArgs) -> Ending {
    understood(args)?;
    let (bench, calibration) = calibrated(&args.machine)?;
    if !calibration.timed {
        return Err(Failure::failed(
            "lab: the timing plugin is switched off (TERRACE_LAB_NO_PLUGIN), so that no figure would mean anything; unset it",
        ));
    }
    let program = |name: &str| bench.lab().guest_program(name);
    let input = if args.command.is_empty() {
        let program = program("terrace-workload").ok_or_else(|| {
            Failure::lacking("the lab has no terrace-workload; run make demo once")
        })?;
        Input::Workload { spec: args.workload.clone(), program }
    } else {
        Input::Command { argv: args.command.clone(), files: Vec::new() }
    };
    let spec = CompareSpec {
        policies: args.policy.clone(),
        input,
        terrace: program("terrace"),
        terrace_args: args.terrace_arg.clone(),
        jobs: args.jobs.max(1),
        repeat: 1,
        limit_wall: Duration::from_secs(args.limit),
        profiles: None,
    };
    let result =
        lab::compare(&bench, &spec, &Progress::new(runs(&spec))).map_err(Failure::failed)?;
    if let Some(folder) = &args.keep {
        std::fs::create_dir_all(folder)
            .map_err(|e| Failure::failed(format!("{}: {e}", folder.display())))?;
        lab::compare::save_journals(&result, folder).map_err(Failure::failed)?;
    }
    let json = serde_json::to_vec_pretty(&result).map_err(Failure::failed)?;
    if let Some(path) = &args.report {
        write_report(path, &json)?;
    }
    if args.json {
        print(&format!("{}\n", String::from_utf8_lossy(&json)))
    } else {
        print(&lab::table(&result))
    }
}

/// Found out before a machine is booted.
fn understood(args: &LabCompareArgs) -> Result<(), Failure> {
    let machine = load_machine(&Source::parse_machine(&args.machine)).map_err(Failure::usage)?;
    let shape = Shape::of(&machine, None).map_err(Failure::usage)?;
    for policy in &args.policy {
        policies::plan(policy, &shape).map_err(Failure::usage)?;
    }
    Ok(())
}

/// The bound is profiled first, in a run of its own.
fn runs(spec: &CompareSpec) -> Work {
    let profiled =
        spec.policies.iter().filter(|p| p.starts_with("bound:ideal-move")).count() as u64;
    let all = spec.policies.len() as u64 + profiled;
    Work::Runs { all, at_once: spec.jobs as u64, unsaid: profiled }
}

fn write_report(path: &std::path::Path, json: &[u8]) -> Result<(), Failure> {
    let document = report::read(json).map_err(Failure::failed)?;
    write(path, document.to_html()).map_err(|e| Failure::failed(format!("{}: {e}", path.display())))
}
