//! What each constant that steers the engine, `terrace` and `hyplacer` earns: each is halved and
//! doubled, and the programs' times are compared with those of its usual value.
//!
//! `cargo run --release -p terrace-sim --example ablation [NAME...] [case=CASE...]` prints a table
//! of those that change a time by 1% and more, then the names of all others. NAME chooses constants
//! by a part of their names, CASE programs; all together take an hour of CPU time.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use terrace_engine::EngineTuning;
use terrace_machine::{preset, Machine};
use terrace_sim::{all, placement_of, simulate_placement, RunOptions, SimRun, SimSetup};
use terrace_types::{Bytes, PolicyId};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A program: name, preset, workload.
type Case = (&'static str, &'static str, &'static str);

/// The programs.
const CASES: [Case; 6] = [
    ("skew", "lab-cxl", "skew,accesses=8M,hot_size=25%"),
    ("shift", "lab-cxl", "shift,accesses=24M,phase_seconds=0.3"),
    ("rwsplit", "lab-dcpmm", "rwsplit,accesses=12M"),
    ("scan", "lab-cxl", "scan,accesses=8M"),
    ("fits", "lab-cxl", "fits,accesses=6M"),
    ("bfs", "lab-cxl", "graph-bfs,accesses=16M"),
];

/// From this change of a time on a constant is listed, per cent.
const LISTED: f64 = 1.0;

/// A constant: of the engine, or of a policy by its parameter's name.
#[derive(Debug, Clone)]
enum Constant {
    Engine(&'static str),
    Policy(PolicyId, String, f64),
}

impl Constant {
    fn name(&self) -> String {
        match self {
            Self::Engine(name) => format!("engine {name}"),
            Self::Policy(policy, name, _) => format!("{policy} {name}"),
        }
    }

    fn policy(&self) -> PolicyId {
        match self {
            Self::Engine(_) => PolicyId::Terrace,
            Self::Policy(policy, ..) => *policy,
        }
    }
}

/// A run: of which constant, how many times its value, and of which case.
type Task = (Constant, f64, usize);

/// The preset with memory for short runs.
fn machine(name: &str) -> Outcome<Machine> {
    let mut machine = preset(name).ok_or("no such preset")?;
    for (at, node) in machine.nodes.iter_mut().enumerate() {
        node.capacity = Bytes::mib(if at == 0 { 32 } else { 256 });
        node.reserved = Bytes::ZERO;
    }
    if let Some(last) = machine.caches.last_mut() {
        last.size = Bytes::mib(1);
    }
    Ok(machine)
}

/// All constants with a usual value that can be halved.
fn constants(plan: &SimSetup) -> Vec<Constant> {
    let engine = EngineTuning::NAMES.iter().map(|name| Constant::Engine(name));
    let params = [PolicyId::Terrace, PolicyId::HyPlacer].into_iter().flat_map(|policy| {
        let values = placement_of(plan, policy).params();
        let usable = |(name, value): (String, String)| Some((name, value.parse().ok()?));
        let usable = values.into_iter().filter_map(usable).filter(|(_, value)| *value > 0.0);
        usable.map(move |(name, value)| Constant::Policy(policy, name, value)).collect::<Vec<_>>()
    });
    engine.chain(params).collect()
}

fn run(plan: &SimSetup, constant: &Constant, times: f64) -> Result<SimRun, terrace_sim::SimError> {
    let (policy, mut options) = (constant.policy(), RunOptions::default());
    let mut placement = placement_of(plan, policy);
    match constant {
        Constant::Engine(name) => {
            options.tuning.scale(name, times);
        }
        Constant::Policy(_, name, value) => {
            // A value out of bounds (a factor below one) leaves the usual one.
            let _ = placement.set(name, &(value * times).to_string());
        }
    }
    simulate_placement(plan, &policy.into(), placement, options)
}

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (only, wanted): (Vec<&str>, Vec<&str>) =
        args.iter().map(String::as_str).partition(|arg| arg.starts_with("case="));
    let chosen = |name: &str| only.is_empty() || only.iter().any(|arg| arg[5..] == *name);
    let cases: Vec<Case> = CASES.into_iter().filter(|(name, ..)| chosen(name)).collect();
    let plans: Vec<SimSetup> = cases
        .iter()
        .map(|(_, name, workload)| Ok(SimSetup::new(&machine(name)?, workload)?))
        .collect::<Outcome<_>>()?;
    let mut constants = constants(plans.first().ok_or("no such case")?);
    constants.retain(|c| wanted.is_empty() || wanted.iter().any(|w| c.name().contains(w)));
    let mut tasks: Vec<Task> = Vec::new();
    for case in 0..cases.len() {
        // The usual values: those of the engine, and of the other policy.
        let usual =
            [Constant::Engine(""), Constant::Policy(PolicyId::HyPlacer, String::new(), 0.0)];
        tasks.extend(usual.map(|constant| (constant, 1.0, case)));
        for constant in &constants {
            tasks.extend([0.5, 2.0].map(|times| (constant.clone(), times, case)));
        }
    }
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    let runs =
        all(&tasks, workers, |(constant, times, case)| run(&plans[*case], constant, *times))?;
    let mut seconds = BTreeMap::new();
    for ((constant, times, case), run) in tasks.iter().zip(&runs) {
        let usual = *times == 1.0;
        let name = if usual { constant.policy().to_string() } else { constant.name() };
        seconds.insert((name, *times as u32, *case), run.seconds);
    }
    print(&cases, &constants, &seconds);
    Ok(())
}

/// The table; `seconds` by name, factor (0 for a half) and case.
fn print(cases: &[Case], constants: &[Constant], seconds: &BTreeMap<(String, u32, usize), f64>) {
    let names: Vec<&str> = cases.iter().map(|(name, ..)| *name).collect();
    let names = names.join(" | ");
    println!("| constant | value | {names} |\n|---|---|{}", "---|".repeat(cases.len()));
    for policy in [PolicyId::Terrace, PolicyId::HyPlacer] {
        let of = |case| format!("{:.3} s", seconds[&(policy.to_string(), 1, case)]);
        println!(
            "| {policy} | usual | {} |",
            (0..cases.len()).map(of).collect::<Vec<_>>().join(" | ")
        );
    }
    let mut others = Vec::new();
    for constant in constants {
        let change = |times: u32, case: usize| {
            let usual = seconds[&(constant.policy().to_string(), 1, case)];
            (seconds[&(constant.name(), times, case)] / usual - 1.0) * 100.0
        };
        let rows = [(0, "half"), (2, "double")];
        let all = || (0..cases.len()).flat_map(|case| rows.map(|(times, _)| change(times, case)));
        if all().all(|change| change.abs() < LISTED) {
            others.push(constant.name());
            continue;
        }
        for (times, what) in rows {
            let cells: Vec<String> =
                (0..cases.len()).map(|case| format!("{:+.1}%", change(times, case))).collect();
            println!("| {} | {what} | {} |", constant.name(), cells.join(" | "));
        }
    }
    println!("\nUnder {LISTED}% everywhere: {}", others.join(", "));
}
