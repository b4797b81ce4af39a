//! The lab without the `terrace` program.
//!
//! `cargo run --release -p terrace-lab --example lab -- setup|run|compare ...`; see lab/README.md.

use std::io::Write;
use std::path::Path;
use std::time::Duration;
use terrace_lab::{
    calibrate, compare, CompareInput, CompareSpec, HostCommand, Lab, LabMachine, ProgressSink,
};

const USAGE: &str = "usage: lab setup|run|compare [--machine M] [--vcpus N] [--lab DIR]
  run     [--env K=V] [--carry PROGRAM] [--file PATH] [--fetch PATH] [--setting PATH=VALUE]
          [--policy P] [--limit SECONDS] [--stats] -- CMD ARGS...
  compare --policy P,... (--workload W | -- CMD ARGS...) [--jobs N] [--repeat N] [--json]
          [--terrace PROGRAM] [--terrace-arg ARG] [--journals DIR]";

type Failure = Box<dyn std::error::Error>;

struct Stderr;

impl ProgressSink for Stderr {
    fn step(&self, what: &str) {
        eprintln!("{what}");
    }
}

/// Options before `--`, the command after it.
struct Arguments {
    options: Vec<String>,
    command: Vec<String>,
}

impl Arguments {
    fn new(args: Vec<String>) -> Self {
        let cut = args.iter().position(|a| a == "--").unwrap_or(args.len());
        Arguments {
            options: args[..cut].to_vec(),
            command: args.get(cut + 1..).unwrap_or_default().to_vec(),
        }
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.options.windows(2).filter(move |w| w[0] == name).map(|w| w[1].as_str())
    }

    fn one<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).next()
    }

    fn number(&self, name: &str) -> Result<Option<u64>, Failure> {
        Ok(self.one(name).map(str::parse).transpose()?)
    }

    fn has(&self, name: &str) -> bool {
        self.options.iter().any(|o| o == name)
    }
}

fn main() {
    match run(&Arguments::new(std::env::args().skip(1).collect())) {
        Ok(status) => std::process::exit(status),
        Err(why) => {
            eprintln!("lab: {why}");
            std::process::exit(1);
        }
    }
}

fn run(args: &Arguments) -> Result<i32, Failure> {
    let action = args.options.first().map(String::as_str).unwrap_or_default();
    if !["setup", "run", "compare"].contains(&action) {
        return Err(USAGE.into());
    }
    let name = args.one("--machine").unwrap_or("lab-cxl");
    let machine = match terrace_machine::preset(name) {
        Some(machine) => machine,
        None => terrace_machine::Machine::from_toml(&std::fs::read_to_string(name)?, name)?,
    };
    let lab = Lab::open(&args.one("--lab").map_or_else(Lab::default_dir, Into::into))?;
    let bench = lab.bench(&machine, args.number("--vcpus")?.map(|n| n as u32), &Stderr)?;
    match action {
        "setup" => setup(&bench),
        "run" => run_job(&bench, args),
        _ => run_compare(&bench, args),
    }
}

fn setup(bench: &LabMachine) -> Result<i32, Failure> {
    eprintln!("saved machine ready, booted in {:.1} s", bench.snapshot().boot_wall_seconds());
    let calibration = calibrate::ensure(bench, &Stderr)?;
    for r in &calibration.readings {
        println!(
            "{:<30} node {} from {}: wanted {:.1}, got {:.1} ({:.2}% off)",
            r.figure,
            r.node,
            r.initiator,
            r.wanted,
            r.got,
            r.off_percent()
        );
    }
    println!("usable in the fast node: {} MiB", calibration.usable_fast_bytes >> 20);
    Ok(0)
}

fn run_job(bench: &LabMachine, args: &Arguments) -> Result<i32, Failure> {
    // What benches report comes from here too (bench/hexe.sh, docs/results/staging.md).
    calibrate::ensure(bench, &Stderr)?;
    let pair = |text: &str| text.split_once('=').map(|(k, v)| (k.to_string(), v.to_string()));
    let mut command = host_command(args)?;
    command.env.extend(args.all("--env").filter_map(pair));
    command.carry.extend(args.all("--carry").map(String::from));
    command.files.extend(args.all("--file").map(Into::into));
    let mut spec = command.job()?;
    if let Some(policy) = args.one("--policy") {
        let plan = terrace_lab::policies::plan(policy, bench.shape())?;
        spec.before = plan.before;
        spec.memory_policy = plan.memory_policy;
        spec.plugin = plan.plugin;
    }
    for (path, value) in args.all("--setting").filter_map(pair) {
        spec.before.push(terrace_lab::wire::Setting { path, value, required: true });
    }
    spec.fetch.extend(args.all("--fetch").map(String::from));
    if let Some(limit) = args.number("--limit")? {
        spec.limit_wall = Duration::from_secs(limit);
    }
    let result = bench.run(&spec)?;
    std::io::stdout().write_all(&result.stdout)?;
    std::io::stderr().write_all(&result.stderr)?;
    for (name, data) in &result.files {
        println!("==> {name}");
        std::io::stdout().write_all(data)?;
    }
    for warning in &result.reply.warnings {
        eprintln!("guest: {warning}");
    }
    if args.has("--stats") {
        eprintln!("{:#?}\n{:#?}", result.reply, result.stats);
    }
    eprintln!(
        "{:?}, {:.6} guest s, {:.1} wall s",
        result.reply.outcome,
        result.seconds(),
        result.wall_seconds
    );
    Ok(result.exit_status().into())
}

fn host_command(args: &Arguments) -> Result<HostCommand, Failure> {
    Ok(HostCommand {
        argv: args.command.clone(),
        search: std::env::var("PATH").ok(),
        cwd: std::env::current_dir()?,
        ..HostCommand::default()
    })
}

fn run_compare(bench: &LabMachine, args: &Arguments) -> Result<i32, Failure> {
    let lab = bench.lab();
    let input = match args.one("--workload") {
        Some(spec) => {
            let program = lab
                .guest_program("terrace-workload")
                .ok_or("bin/terrace-workload is missing: crates/guest/build.sh")?;
            CompareInput::Workload { spec: spec.to_string(), program }
        }
        None => CompareInput::Command(host_command(args)?),
    };
    let spec = CompareSpec {
        policies: args.one("--policy").ok_or(USAGE)?.split(',').map(String::from).collect(),
        input,
        terrace: args.one("--terrace").map(Into::into).or_else(|| lab.guest_program("terrace")),
        terrace_args: args.all("--terrace-arg").map(String::from).collect(),
        jobs: args.number("--jobs")?.unwrap_or(2) as usize,
        repeat: args.number("--repeat")?.unwrap_or(1) as usize,
        limit_wall: Duration::from_secs(args.number("--limit")?.unwrap_or(1200)),
        profiles: None,
    };
    let result = compare(bench, &spec, &Stderr)?;
    if let Some(dir) = args.one("--journals") {
        std::fs::create_dir_all(dir)?;
        compare::save_journals(&result, Path::new(dir))?;
    }
    if args.has("--json") {
        println!("{}", serde_json::to_string_pretty(&result)?);
    } else {
        print!("{}", terrace_lab::table(&result, 80));
    }
    Ok(0)
}
