//! What each constant that steers the engine, its heat map, `terrace`, `hyplacer` and the pager of
//! far memory earns: each is halved and doubled, and the programs' times are compared with those of
//! its usual value. Programs before a store have half the memory that they use, or a third.
//!
//! `cargo run --release -p terrace-sim --example ablation [NAME...] [case=CASE...]` prints a table
//! of those that change a time by 1% and more, then the names of all others. NAME chooses constants
//! by a part of their names, CASE programs; all together take some hours of CPU time.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use terrace_engine::EngineTuning;
use terrace_machine::{preset, FarStore, Machine};
use terrace_policy::far::pager::PagerTuning;
use terrace_policy::heat::HeatTuning;
use terrace_policy::place::terrace::TerraceTuning;
use terrace_policy::place::Placement;
use terrace_sim::{
    all, placement_of, simulate, simulate_placement, RunOptions, SimError, SimRun, SimSetup,
};
use terrace_types::{Bytes, Contender, PolicyId};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A program: name, preset, workload.
type Case = (&'static str, &'static str, &'static str);

/// The programs.
const CASES: [Case; 9] = [
    ("skew", "lab-cxl", "skew,accesses=8M,hot_size=25%"),
    ("shift", "lab-cxl", "shift,accesses=24M,phase_seconds=0.3"),
    ("rwsplit", "lab-dcpmm", "rwsplit,accesses=12M"),
    ("scan", "lab-cxl", "scan,accesses=8M"),
    ("fits", "lab-cxl", "fits,accesses=6M"),
    ("bfs", "lab-cxl", "graph-bfs,accesses=16M"),
    ("pagerank", "lab-cxl", "graph-pagerank,accesses=24M"),
    ("cg", "lab-cxl", "npb-cg,accesses=24M"),
    ("mg", "lab-cxl", "npb-mg,accesses=24M"),
];

/// The same with the disk behind memory.
const FAR_CASES: [Case; 4] = [
    ("far-scan", "lab-cxl", "scan,accesses=2M"),
    ("far-skew", "lab-cxl", "skew,accesses=1M,hot_size=25%"),
    ("far-shift", "lab-cxl", "shift,accesses=1M,phase_seconds=0.3"),
    ("far-bfs", "lab-cxl", "graph-bfs,accesses=4M"),
];

/// From this change of a time on a constant is listed, per cent.
const LISTED: f64 = 1.0;

/// A constant, or the usual values of all that steer one contender.
#[derive(Debug, Clone)]
enum Constant {
    Usual(Contender),
    Engine(&'static str),
    Heat(&'static str),
    Pager(&'static str),
    /// Of `terrace`, that no user sets.
    Terrace(&'static str),
    /// A policy's parameter: its name and its usual value.
    Policy(PolicyId, String, f64),
}

impl Constant {
    fn name(&self) -> String {
        match self {
            Self::Usual(contender) => contender.to_string(),
            Self::Engine(name) => format!("engine {name}"),
            Self::Heat(name) => format!("heat {name}"),
            Self::Pager(name) => format!("pager {name}"),
            Self::Terrace(name) => format!("terrace constant {name}"),
            Self::Policy(policy, name, _) => format!("{policy} {name}"),
        }
    }

    /// Whom it steers.
    fn contender(&self) -> Contender {
        match self {
            Self::Usual(contender) => contender.clone(),
            Self::Engine(_) | Self::Heat(_) | Self::Terrace(_) => PolicyId::Terrace.into(),
            Self::Pager(_) => behind_the_disk(),
            Self::Policy(policy, ..) => (*policy).into(),
        }
    }
}

/// A program in the best tier's memory, the disk behind it.
fn behind_the_disk() -> Contender {
    let [disk, _] = FarStore::usual();
    Contender::FarStore(disk.name)
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

/// Constants of the engine and of policies with a usual value that can be halved.
fn of_policies(plan: &SimSetup) -> Vec<Constant> {
    let engine = EngineTuning::NAMES.iter().map(|name| Constant::Engine(name));
    let heat = HeatTuning::NAMES.iter().map(|name| Constant::Heat(name));
    let terrace = TerraceTuning::NAMES.iter().map(|name| Constant::Terrace(name));
    let params = [PolicyId::Terrace, PolicyId::HyPlacer].into_iter().flat_map(|policy| {
        let values = placement_of(plan, policy).params();
        let usable = |(name, value): (String, String)| Some((name, value.parse().ok()?));
        let usable = values.into_iter().filter_map(usable).filter(|(_, value)| *value > 0.0);
        usable.map(move |(name, value)| Constant::Policy(policy, name, value)).collect::<Vec<_>>()
    });
    engine.chain(heat).chain(terrace).chain(params).collect()
}

fn run(plan: &SimSetup, constant: &Constant, times: f64) -> Result<SimRun, SimError> {
    let (contender, mut options) = (constant.contender(), RunOptions::default());
    let mut set = None;
    match constant {
        Constant::Usual(_) | Constant::Terrace(_) => {}
        Constant::Engine(name) => {
            options.tuning.scale(name, times);
        }
        Constant::Heat(name) => {
            options.heat.scale(name, times);
        }
        Constant::Pager(name) => {
            options.pager.scale(name, times);
        }
        Constant::Policy(_, name, value) => set = Some((name, (value * times).to_string())),
    }
    let Contender::Policy(policy) = contender else {
        return simulate(plan, &contender, options);
    };
    let mut placement = placement_of(plan, policy);
    if let (Placement::Terrace { params, .. }, Constant::Terrace(name)) = (&mut placement, constant)
    {
        params.tuning.scale(name, times);
    }
    if let Some((name, value)) = set {
        // A value out of bounds (a factor below one) leaves the usual one.
        let _ = placement.set(name, &value);
    }
    simulate_placement(plan, &contender, placement, options)
}

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (cases, names): (Vec<&str>, Vec<&str>) =
        args.iter().map(String::as_str).partition(|arg| arg.starts_with("case="));
    let chosen = |name: &str| cases.is_empty() || cases.iter().any(|arg| arg[5..] == *name);
    let pager = |_: &SimSetup| PagerTuning::NAMES.iter().map(|n| Constant::Pager(n)).collect();
    let policies = [PolicyId::Terrace, PolicyId::HyPlacer].map(Contender::from);
    study(&CASES, &chosen, &names, &policies, of_policies)?;
    study(&FAR_CASES, &chosen, &names, &[behind_the_disk()], pager)
}

/// Runs the chosen programs with half and double of each constant of these contenders, and prints.
fn study(
    cases: &[Case],
    chosen: &dyn Fn(&str) -> bool,
    names: &[&str],
    contenders: &[Contender],
    constants: impl Fn(&SimSetup) -> Vec<Constant>,
) -> Outcome<()> {
    let cases: Vec<Case> = cases.iter().copied().filter(|(name, ..)| chosen(name)).collect();
    let plans: Vec<SimSetup> = cases
        .iter()
        .map(|(_, name, workload)| Ok(SimSetup::new(&machine(name)?, workload)?))
        .collect::<Outcome<_>>()?;
    let Some(first) = plans.first() else { return Ok(()) };
    let mut constants = constants(first);
    constants.retain(|c| names.is_empty() || names.iter().any(|w| c.name().contains(w)));
    if constants.is_empty() {
        return Ok(());
    }
    let usual: Vec<Constant> = contenders.iter().cloned().map(Constant::Usual).collect();
    let mut tasks: Vec<Task> = Vec::new();
    for case in 0..cases.len() {
        tasks.extend(usual.iter().map(|constant| (constant.clone(), 1.0, case)));
        for constant in &constants {
            tasks.extend([0.5, 2.0].map(|times| (constant.clone(), times, case)));
        }
    }
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    let runs =
        all(&tasks, workers, |(constant, times, case)| run(&plans[*case], constant, *times))?;
    let mut seconds = BTreeMap::new();
    for ((constant, times, case), run) in tasks.iter().zip(&runs) {
        seconds.insert((constant.name(), *times as u32, *case), run.seconds);
    }
    print(&cases, &usual, &constants, &seconds);
    Ok(())
}

/// Seconds by constant, factor (0 for a half) and case.
type Seconds = BTreeMap<(String, u32, usize), f64>;

/// The table.
fn print(cases: &[Case], usual: &[Constant], constants: &[Constant], seconds: &Seconds) {
    let names: Vec<&str> = cases.iter().map(|(name, ..)| *name).collect();
    let names = names.join(" | ");
    println!("| constant | value | {names} |\n|---|---|{}", "---|".repeat(cases.len()));
    for name in usual.iter().map(Constant::name) {
        let of = |case| format!("{:.3} s", seconds[&(name.clone(), 1, case)]);
        println!(
            "| {name} | usual | {} |",
            (0..cases.len()).map(of).collect::<Vec<_>>().join(" | ")
        );
    }
    let mut others = Vec::new();
    for constant in constants {
        let change = |times: u32, case: usize| {
            let usual = seconds[&(constant.contender().to_string(), 1, case)];
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
    println!("\nUnder {LISTED}% everywhere: {}\n", others.join(", "));
}
