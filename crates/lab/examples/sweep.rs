//! Goes through a list of comparisons (`bench/claims.toml`, `bench/grids.toml`) and prints the
//! ratios.
//!
//! `cargo run --release -p terrace-lab --example sweep -- LIST ...`; `make bench` does so. See
//! docs/adr/0070. The tables go to standard output as Markdown, what is going on to standard error.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use terrace_lab::sweep::{self, ratios, List, Origin, RecordStore, SweepResult, SweepSettings};
use terrace_lab::{Lab, ProgressSink};

const USAGE: &str = "usage: sweep LIST --store DIR [--quick] [--jobs N] [--load L] [--limit SECONDS]
  [--case NAME,...] [--policy NAME,...] [--show] [--revision TEXT]
  names may end in a star; --load: wake a second machine only below this load of the host; --show: measure nothing";

type Failure = Box<dyn std::error::Error>;

/// Steps on standard error, with the seconds since the start.
struct Stderr(Instant);

impl ProgressSink for Stderr {
    fn step(&self, what: &str) {
        eprintln!("[{:5.0}s] {what}", self.0.elapsed().as_secs_f64());
    }
}

#[derive(Debug, Default)]
struct Arguments {
    list: PathBuf,
    store: PathBuf,
    quick: bool,
    show: bool,
    jobs: usize,
    load: Option<f64>,
    limit: u64,
    cases: Vec<String>,
    policies: Vec<String>,
    revision: String,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut out =
            Arguments { jobs: 1, limit: 3600, revision: "unknown".into(), ..Arguments::default() };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"));
            let names = |text: String| text.split(',').map(String::from).collect();
            match word.as_str() {
                "--store" => out.store = value()?.into(),
                "--quick" => out.quick = true,
                "--show" => out.show = true,
                "--jobs" => out.jobs = value()?.parse()?,
                "--load" => out.load = Some(value()?.parse()?),
                "--limit" => out.limit = value()?.parse()?,
                "--case" => out.cases = names(value()?),
                "--policy" => out.policies = names(value()?),
                "--revision" => out.revision = value()?,
                other if other.starts_with('-') || !out.list.as_os_str().is_empty() => {
                    return Err(format!("'{other}' is not understood\n{USAGE}").into());
                }
                list => out.list = list.into(),
            }
        }
        if out.list.as_os_str().is_empty() || out.store.as_os_str().is_empty() {
            return Err(USAGE.into());
        }
        Ok(out)
    }
}

fn main() -> ExitCode {
    let done = Arguments::parse(std::env::args().skip(1)).and_then(|args| run(&args));
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("sweep: {why}");
            ExitCode::from(2)
        }
    }
}

/// Whether every run has a result.
fn run(args: &Arguments) -> Result<bool, Failure> {
    let progress = Stderr(Instant::now());
    let text =
        std::fs::read_to_string(&args.list).map_err(|e| format!("{}: {e}", args.list.display()))?;
    let mut list = List::parse(&text, args.quick)?;
    list.select(&args.cases, &args.policies);
    let origin = Origin { host: host(), revision: args.revision.clone() };
    let settings = SweepSettings {
        base: args.list.parent().map(Path::to_path_buf).unwrap_or_default(),
        jobs: args.jobs,
        load: args.load,
        only_kept: args.show,
        limit_wall: Duration::from_secs(args.limit),
        origin: origin.clone(),
    };
    let lab = Lab::open(&Lab::default_dir())?;
    let store = RecordStore::open(&args.store)?;
    let swept = sweep::sweep(&lab, &list, &store, &settings, &progress)?;
    let measured = swept.measured(&list);
    println!("Host: {}. Revision {}.", origin.host, origin.revision);
    println!("Command: `{}`\n", command());
    println!("{}", ratios::tables(&list, &measured));
    println!("{}", origins(&swept));
    for (case, policy, why) in &swept.failed {
        println!("No result for {case}, {policy}: {why}");
    }
    Ok(swept.failed.is_empty())
}

/// Which results are from earlier, and from where.
fn origins(swept: &SweepResult) -> String {
    let reused: Vec<String> = swept
        .done
        .iter()
        .filter(|d| d.reused)
        .map(|d| format!("{} {}", d.case, d.policy))
        .collect();
    let mut from: Vec<String> = Vec::new();
    for done in &swept.done {
        let origin = format!("{} at revision {}", done.origin.host, done.origin.revision);
        if !from.contains(&origin) {
            from.push(origin);
        }
    }
    let which = if reused.is_empty() { String::new() } else { format!(" ({})", reused.join("; ")) };
    let head = format!(
        "{} results, of which {} were kept from earlier{which}.",
        swept.done.len(),
        reused.len()
    );
    format!("{head}\nMeasured on: {}.", from.join("; "))
}

/// As it can be given again: the program by its name.
fn command() -> String {
    let words: Vec<String> = std::env::args().skip(1).collect();
    format!("sweep {}", words.join(" "))
}

fn host() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let model = read("/proc/cpuinfo")
        .lines()
        .find_map(|l| Some(l.strip_prefix("model name")?.split_once(':')?.1.trim().to_string()))
        .unwrap_or_else(|| "unknown processor".into());
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{model}, {cpus} CPUs, Linux {}", read("/proc/sys/kernel/osrelease").trim())
}
