//! `terrace sim --system`: several hosts that share pools of memory.

use crate::predict::{recording, PredictError};
use serde::Serialize;
use std::fmt::Write;
use std::io::Read;
use std::time::Instant;
use terrace_machine::Machine;
use terrace_pool::{
    simulate_system, system_preset_text, HostOutcome, HostPlan, PoolError, SystemDescription,
};
use terrace_sim::{SimInput, SimSetup};
use terrace_topology::{load_machine, MachineSource, TopologyError};
use terrace_types::Seed;

/// Bytes of a system file that are read at most: more than the largest that is accepted.
const LARGEST_FILE: u64 = 2 << 20;
/// Version of the answer's JSON.
const VERSION: u32 = 1;

/// What to simulate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemQuestion {
    /// A preset, or a system file.
    pub system: String,
    /// One for all hosts, or one for each: a recording's file, or `workload:NAME[,key=value...]`.
    pub inputs: Vec<String>,
    /// Allocation policies, each for all hosts; empty: as the file says.
    pub policies: Vec<String>,
    /// Hosts, in place of what the file says of its only group.
    pub hosts: Option<u32>,
    /// Pools, in place of what the file says of its only group.
    pub pools: Option<u32>,
    /// Seed of all chance.
    pub seed: Seed,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum SystemProblem {
    /// The system file cannot be read.
    #[error("system file {path}: {why}; give a system file or opal")]
    File {
        /// The file.
        path: String,
        /// Why not.
        why: String,
    },
    /// A count is to be replaced, and there is not one group that has it.
    #[error("--{option}: {system} has {groups} groups; write the counts into a system file")]
    Groups {
        /// `hosts` or `pools`.
        option: &'static str,
        /// The system.
        system: String,
        /// Groups that it has.
        groups: usize,
    },
    /// A machine file is wrong.
    #[error(transparent)]
    Machine(#[from] TopologyError),
    /// An input is wrong.
    #[error(transparent)]
    Input(#[from] PredictError),
    /// The system is wrong, or a host failed.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// The answer; as JSON it is the contract's `sim --system`.
#[derive(Debug, Clone, Serialize)]
pub struct SystemAnswer {
    /// Version of this form: 1.
    pub version: u32,
    /// Name of the system.
    pub system: String,
    /// What ran: one for all hosts, or one for each.
    pub inputs: Vec<String>,
    /// Local memory and the pools, in the order of each host's `pools`.
    pub pools: Vec<String>,
    /// What the command took.
    pub wall_seconds: f64,
    /// One entry a policy, in the order asked.
    pub runs: Vec<SystemRun>,
}

/// All hosts under one policy.
#[derive(Debug, Clone, Serialize)]
pub struct SystemRun {
    /// The policy of all hosts; `file`: as the system file says.
    pub allocation_policy: String,
    /// The hosts in order.
    pub hosts: Vec<HostOutcome>,
}

/// Simulates; hosts on all cores of this computer.
///
/// # Errors
/// [`SystemProblem`].
pub fn simulate_inputs(question: &SystemQuestion) -> Result<SystemAnswer, SystemProblem> {
    let started = Instant::now();
    let mut system = load_system(&question.system)?;
    replace_counts(&mut system, question)?;
    let groups = system.hosts.iter();
    let machines: Result<Vec<Machine>, TopologyError> =
        groups.map(|group| load_machine(&MachineSource::parse_machine(&group.machine))).collect();
    let machines = machines?;
    let inputs: Result<Vec<SimInput>, PredictError> =
        question.inputs.iter().map(|text| read_input(text, machines.first())).collect();
    let inputs = inputs?;
    let file = &question.system;
    let mut choices: Vec<Option<&String>> = question.policies.iter().map(Some).collect();
    if choices.is_empty() {
        choices.push(None);
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut runs = Vec::with_capacity(choices.len());
    for policy in choices {
        if let Some(policy) = policy {
            system.hosts.iter_mut().for_each(|group| group.policy.clone_from(policy));
        }
        system.check(file)?;
        let hosts = HostPlan::of_system(&system, file, &machines, &inputs, question.seed)?;
        runs.push(SystemRun {
            allocation_policy: policy.map_or("file".to_owned(), Clone::clone),
            hosts: simulate_system(&hosts, threads)?,
        });
    }
    let pools = system.list_pools(file)?.into_iter().map(|pool| pool.name);
    Ok(SystemAnswer {
        version: VERSION,
        system: system.name.clone(),
        inputs: inputs.iter().map(ToString::to_string).collect(),
        pools: std::iter::once("local".to_owned()).chain(pools).collect(),
        wall_seconds: started.elapsed().as_secs_f64(),
        runs,
    })
}

/// Reads a preset or a system file.
fn load_system(source: &str) -> Result<SystemDescription, SystemProblem> {
    if let Some(text) = system_preset_text(source) {
        return Ok(SystemDescription::from_toml(text, source)?);
    }
    let problem = |why: String| SystemProblem::File { path: source.to_owned(), why };
    let file = std::fs::File::open(source).map_err(|e| problem(e.to_string()))?;
    let mut text = String::new();
    file.take(LARGEST_FILE).read_to_string(&mut text).map_err(|e| problem(e.to_string()))?;
    Ok(SystemDescription::from_toml(&text, source)?)
}

fn replace_counts(
    system: &mut SystemDescription,
    question: &SystemQuestion,
) -> Result<(), SystemProblem> {
    let (hosts, pools) = (system.hosts.len(), system.pools.len());
    let name = system.name.clone();
    let several = |option, groups| SystemProblem::Groups { option, system: name.clone(), groups };
    if let Some(count) = question.hosts {
        let [group] = &mut system.hosts[..] else { return Err(several("hosts", hosts)) };
        group.count = count;
    }
    if let Some(count) = question.pools {
        let [group] = &mut system.pools[..] else { return Err(several("pools", pools)) };
        group.count = count;
    }
    Ok(())
}

/// A recording, or a workload; its size follows the first group's machine unless it is given.
fn read_input(text: &str, machine: Option<&Machine>) -> Result<SimInput, PredictError> {
    match (text.strip_prefix("workload:"), machine) {
        (Some(workload), Some(machine)) => Ok(SimSetup::new(machine, workload)?.input),
        _ => recording(text),
    }
}

impl SystemAnswer {
    /// The answer as a table for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        let printable = |text: &str| -> String {
            text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
        };
        // Writing to a String cannot fail.
        let (inputs, pools) = (printable(&self.inputs.join(", ")), self.pools.len() - 1);
        let _ = writeln!(out, "{inputs}\non {}, {pools} pools, simulated", printable(&self.system));
        let _ = writeln!(
            out,
            "{:<14}{:<12}{:>10}{:>8}{:>12}{:>12}{:>8}",
            "policy", "host", "seconds", "IPC", "local", "pools", "remote"
        );
        for host in self.runs.iter().flat_map(|run| &run.hosts) {
            let shared = host.pools.get(1..).unwrap_or_default();
            let local = host.pools.first().map_or(0, |pool| pool.accesses);
            let remote: u64 = shared.iter().map(|pool| pool.accesses).sum();
            let _ = writeln!(
                out,
                "{:<14}{:<12}{:>10.4}{:>8.3}{:>12}{:>12}{:>7.1}%",
                printable(&host.run.policy),
                printable(&host.host),
                host.run.seconds,
                host.ipc,
                host.pools.first().map_or(0, |pool| pool.frames),
                shared.iter().map(|pool| pool.frames).sum::<u64>(),
                100.0 * remote as f64 / (local + remote).max(1) as f64,
            );
        }
        let _ = writeln!(out, "seconds: modelled time; IPC: instructions a cycle and busy core;");
        let _ = writeln!(out, "local, pools: frames there; remote: share of last-level misses.");
        out
    }
}
