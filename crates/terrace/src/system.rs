//! `terrace sim --system`: several hosts that share pools of memory.

use crate::predict::{recording, PredictError};
use serde::Serialize;
use std::fmt::Write;
use std::io::Read;
use std::time::Instant;
use terrace_machine::Machine;
use terrace_pool::{
    simulate_system, system_preset_names, system_preset_text, FileMoveTotals, HostOutcome,
    PoolError, QueueUse, SharedFileUse, StationUse, SystemDescription, SystemPlan,
};
use terrace_sim::{SimInput, SimSetup};
use terrace_topology::{load_machine, MachineSource, TopologyError};
use terrace_types::{Bytes, Seed};

/// Bytes of a system file that are read at most: more than the largest that is accepted.
const LARGEST_FILE: u64 = 2 << 20;
/// Version of the answer's JSON.
const VERSION: u32 = 1;
/// Systems of one question at most.
const MAX_SYSTEMS: usize = 10_000;

/// What to simulate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemQuestion {
    /// A preset, or a system file.
    pub system: String,
    /// One for all hosts, or one for each: a recording's file, or `workload:NAME[,key=value...]`.
    pub inputs: Vec<String>,
    /// Allocation policies, each for all hosts; empty: as the file says.
    pub policies: Vec<String>,
    /// Counts of hosts to try, in place of what the file says of its only group; empty: as it says.
    pub hosts: Vec<u32>,
    /// Counts of pools to try, in place of what the file says of its only group; empty: as it says.
    pub pools: Vec<u32>,
    /// Placement policy of all hosts; none: as the file says.
    pub placement: Option<String>,
    /// Sizes of each host's local memory to try; empty: as its machine has it.
    pub local: Vec<Bytes>,
    /// Seed of all chance.
    pub seed: Seed,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum SystemProblem {
    /// The system file cannot be read.
    #[error("system file {path}: {why}; give a system file or {known}")]
    File {
        /// The file.
        path: String,
        /// Why not.
        why: String,
        /// The presets.
        known: String,
    },
    /// More systems than can be tried.
    #[error("{count} combinations of policies, hosts, pools and sizes; give at most {most}")]
    Combinations {
        /// How many were asked for.
        count: usize,
        /// How many there may be.
        most: usize,
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
    /// A program of shared memory is wrong.
    #[error("input shared:... {part:?}: give {known}")]
    Program {
        /// The part.
        part: String,
        /// What would do.
        known: &'static str,
    },
    /// A machine file is wrong.
    #[error("system file {file}: host {group:?}, machine: {error}")]
    Machine {
        /// The system's file or preset.
        file: String,
        /// The group of hosts that names it.
        group: String,
        /// What is wrong with it.
        error: Box<TopologyError>,
    },
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
    /// `shared_pools`.
    pub kind: &'static str,
    /// Name of the system.
    pub system: String,
    /// What ran: one for all hosts, or one for each.
    pub inputs: Vec<String>,
    /// Local memory and the pools of the last run, in the order of each host's `pools`.
    pub pools: Vec<String>,
    /// What the command took.
    pub wall_seconds: f64,
    /// One entry a policy, count of hosts, of pools, and size of local memory, the last fastest.
    pub runs: Vec<SystemRun>,
}

/// All hosts under one policy.
#[derive(Debug, Clone, Serialize)]
pub struct SystemRun {
    /// The policy of all hosts; `file`: as the system file says.
    pub allocation_policy: String,
    /// Pools.
    pub pool_count: usize,
    /// Local memory of each host, bytes, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_bytes: Option<u64>,
    /// The hosts in order.
    pub hosts: Vec<HostOutcome>,
    /// What passed each direction of each link, and each switch.
    pub queues: Vec<QueueUse>,
    /// What waited at banks of pools, checks of access and the manager.
    pub stations: Vec<StationUse>,
    /// Pages of files that moved between pools.
    pub file_moves: FileMoveTotals,
    /// Pages of files that hosts touched and wrote.
    pub file_use: SharedFileUse,
    /// Seconds of each point of their use over time.
    pub point_seconds: f64,
}

/// Simulates; hosts on all cores of this computer. `done` is notified of each run that has ended,
/// with how many there are.
///
/// # Errors
/// [`SystemProblem`].
pub fn simulate_inputs(
    question: &SystemQuestion,
    mut done: impl FnMut(usize, usize),
) -> Result<SystemAnswer, SystemProblem> {
    let started = Instant::now();
    let mut system = load_system(&question.system)?;
    let machines = load_machines(&system, &question.system)?;
    let inputs: Result<Vec<SimInput>, PredictError> =
        question.inputs.iter().map(|text| read_input(text, machines.first())).collect();
    let inputs = inputs?;
    if question.placement.is_some() {
        system.hosts.iter_mut().for_each(|group| group.placement.clone_from(&question.placement));
    }
    let choices = list_choices(question)?;
    let file = &question.system;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut runs = Vec::with_capacity(choices.len());
    for choice in &choices {
        apply_choice(&mut system, choice)?;
        system.check(file)?;
        let machines: Vec<Machine> =
            machines.iter().map(|machine| with_local(machine, choice.local)).collect();
        let plan = SystemPlan::new(&system, file, &machines, &inputs, question.seed)?;
        let outcome = simulate_system(&plan, threads)?;
        runs.push(SystemRun {
            allocation_policy: choice.policy.map_or("file".to_owned(), Clone::clone),
            pool_count: system.list_pools(file)?.len(),
            local_bytes: choice.local.map(Bytes::get),
            hosts: outcome.hosts,
            queues: outcome.queues,
            stations: outcome.stations,
            file_moves: outcome.file_moves,
            file_use: outcome.file_use,
            point_seconds: outcome.point.get() as f64 / 1e9,
        });
        done(runs.len(), choices.len());
    }
    let pools = system.list_pools(file)?.into_iter().map(|pool| pool.name);
    Ok(SystemAnswer {
        version: VERSION,
        kind: "shared_pools",
        system: system.name.clone(),
        inputs: inputs.iter().map(ToString::to_string).collect(),
        pools: std::iter::once("local".to_owned()).chain(pools).collect(),
        wall_seconds: started.elapsed().as_secs_f64(),
        runs,
    })
}

/// The machines of all groups of hosts.
pub(crate) fn load_machines(
    system: &SystemDescription,
    file: &str,
) -> Result<Vec<Machine>, SystemProblem> {
    let groups = system.hosts.iter().map(|group| {
        load_machine(&MachineSource::parse_machine(&group.machine)).map_err(|error| {
            let (file, group) = (file.to_owned(), group.name.clone());
            SystemProblem::Machine { file, group, error: Box::new(error) }
        })
    });
    groups.collect()
}

/// What one run has in place of what the file says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SystemChoice<'a> {
    policy: Option<&'a String>,
    hosts: Option<u32>,
    pools: Option<u32>,
    local: Option<Bytes>,
}

pub(crate) fn list_choices(
    question: &SystemQuestion,
) -> Result<Vec<SystemChoice<'_>>, SystemProblem> {
    fn each<T: Copy>(all: &[T]) -> Vec<Option<T>> {
        if all.is_empty() {
            vec![None]
        } else {
            all.iter().copied().map(Some).collect()
        }
    }
    let policies: Vec<&String> = question.policies.iter().collect();
    let (hosts, pools) = (each(&question.hosts), each(&question.pools));
    let (policies, locals) = (each(&policies), each(&question.local));
    let lengths = [policies.len(), hosts.len(), pools.len(), locals.len()];
    let count = lengths.iter().fold(1_usize, |count, more| count.saturating_mul(*more));
    if count > MAX_SYSTEMS {
        return Err(SystemProblem::Combinations { count, most: MAX_SYSTEMS });
    }
    let mut choices = Vec::with_capacity(count);
    for policy in policies {
        for hosts in &hosts {
            for pools in &pools {
                for local in &locals {
                    let (hosts, pools, local) = (*hosts, *pools, *local);
                    choices.push(SystemChoice { policy, hosts, pools, local });
                }
            }
        }
    }
    Ok(choices)
}

pub(crate) fn apply_choice(
    system: &mut SystemDescription,
    choice: &SystemChoice<'_>,
) -> Result<(), SystemProblem> {
    let (hosts, pools) = (system.hosts.len(), system.pools.len());
    let name = system.name.clone();
    let several = |option, groups| SystemProblem::Groups { option, system: name.clone(), groups };
    if let Some(policy) = choice.policy {
        system.hosts.iter_mut().for_each(|group| group.policy.clone_from(policy));
    }
    if let Some(count) = choice.hosts {
        let [group] = &mut system.hosts[..] else { return Err(several("hosts", hosts)) };
        group.count = count;
    }
    if let Some(count) = choice.pools {
        let [group] = &mut system.pools[..] else { return Err(several("pools", pools)) };
        group.count = count;
    }
    Ok(())
}

/// The machine with this much local memory, in equal parts on its nodes with CPUs.
fn with_local(machine: &Machine, local: Option<Bytes>) -> Machine {
    let mut machine = machine.clone();
    let Some(local) = local else { return machine };
    let nodes = machine.nodes.iter().filter(|node| !node.cpus.is_empty()).count().max(1) as u64;
    for node in machine.nodes.iter_mut().filter(|node| !node.cpus.is_empty()) {
        // Whole pages.
        node.capacity = Bytes(local.get() / nodes / 4096 * 4096);
        node.reserved = Bytes::ZERO;
        node.in_use = Bytes::ZERO;
    }
    machine
}

/// Reads a preset or a system file.
pub(crate) fn load_system(source: &str) -> Result<SystemDescription, SystemProblem> {
    if let Some(text) = system_preset_text(source) {
        return Ok(SystemDescription::from_toml(text, source)?);
    }
    let problem = |why: String| {
        let known = system_preset_names().collect::<Vec<_>>().join(", ");
        SystemProblem::File { path: source.to_owned(), why, known }
    };
    let file = std::fs::File::open(source).map_err(|e| problem(e.to_string()))?;
    let mut text = String::new();
    file.take(LARGEST_FILE).read_to_string(&mut text).map_err(|e| problem(e.to_string()))?;
    Ok(SystemDescription::from_toml(&text, source)?)
}

/// A recording, or a workload; its size follows the first group's machine unless it is given.
fn read_input(text: &str, machine: Option<&Machine>) -> Result<SimInput, PredictError> {
    match (text.strip_prefix("workload:"), machine) {
        (Some(workload), Some(machine)) => Ok(SimSetup::new(machine, workload)?.input),
        _ => recording(text),
    }
}

impl SystemAnswer {
    /// The answer as a page of HTML that needs nothing else.
    ///
    /// # Errors
    /// An answer that cannot be read back, which is a fault of ours.
    pub fn html(&self) -> Result<String, terrace_report::ReportError> {
        let bad = |e: serde_json::Error| terrace_report::ReportError::SharedPools(e.to_string());
        let json = serde_json::to_vec(self).map_err(bad)?;
        Ok(terrace_report::read(&json)?.to_html())
    }

    /// The answer as a table for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        let printable = |text: &str| -> String {
            text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
        };
        // Writing to a String cannot fail.
        let inputs = printable(&self.inputs.join(", "));
        let _ = writeln!(out, "{inputs}\non {}, simulated", printable(&self.system));
        let _ = writeln!(
            out,
            "{:<13}{:<8}{:>6}{:>9}{:>7}{:>10}{:>10}{:>8}{:>8}",
            "policy", "host", "pools", "seconds", "IPC", "local", "pooled", "remote", "wait"
        );
        for run in &self.runs {
            for host in &run.hosts {
                let _ = writeln!(out, "{}", host_line(host, run.pool_count, &printable));
            }
        }
        let _ = writeln!(out, "seconds: modelled time; IPC: instructions a cycle and busy core;");
        let _ = writeln!(out, "local, pooled: frames there; remote: share of last-level misses;");
        let _ = writeln!(out, "wait: of a miss to a pool, in queues, mean, ns.");
        for run in &self.runs {
            for host in run.hosts.iter().filter(|host| host.shootdowns.pages > 0) {
                let _ = writeln!(out, "{}", moved_line(host, &printable));
            }
            if let Some(page) = &run.file_use.first_unguarded_page {
                let pages = run.file_use.unguarded_pages;
                let (writer, other) = (printable(&page.writer), printable(&page.other));
                let policy = &run.allocation_policy;
                let _ = writeln!(
                    out,
                    "{}: reads of {pages} pages of files may be stale: {writer} wrote page {} of\n\
                     file {} without a lock, and {other} touched it",
                    printable(policy),
                    page.page,
                    page.file
                );
            }
            if run.file_use.trespassed_pages > 0 {
                let pages = run.file_use.trespassed_pages;
                let _ = writeln!(out, "{pages} pages of files were touched without leave");
            }
        }
        out
    }
}

fn host_line(host: &HostOutcome, pools: usize, printable: &impl Fn(&str) -> String) -> String {
    let shared = host.pools.get(1..).unwrap_or_default();
    let local = host.pools.first().map_or(0, |pool| pool.accesses);
    let remote: u64 = shared.iter().map(|pool| pool.accesses).sum();
    let read: u64 = shared.iter().map(|pool| pool.read_bytes).sum();
    let waits = shared.iter().map(|pool| pool.mean_wait_ns * pool.read_bytes as f64);
    // A sum of nothing is -0, and would be printed so.
    let waited = waits.fold(0.0, |sum, wait| sum + wait);
    format!(
        "{:<13}{:<8}{pools:>6}{:>9.4}{:>7.3}{:>10}{:>10}{:>7.1}%{:>8.0}",
        printable(&host.run.policy.to_string()),
        printable(&host.host),
        host.run.seconds,
        host.ipc,
        host.pools.first().map_or(0, |pool| pool.frames),
        shared.iter().map(|pool| pool.frames).sum::<u64>(),
        100.0 * remote as f64 / (local + remote).max(1) as f64,
        waited / (read as f64).max(1.0),
    )
}

fn moved_line(host: &HostOutcome, printable: &impl Fn(&str) -> String) -> String {
    format!(
        "{}, {}: {} moved {} pages with {} TLB shootdowns",
        printable(&host.run.policy.to_string()),
        printable(&host.host),
        host.placement.unwrap_or("nobody"),
        host.shootdowns.pages,
        host.shootdowns.rounds
    )
}
