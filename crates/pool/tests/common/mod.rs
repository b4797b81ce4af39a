//! Systems and inputs that several tests have in common.
#![allow(dead_code, clippy::unwrap_used)]

use terrace_machine::{preset, Machine};
use terrace_pool::*;
use terrace_sim::SimInput;
use terrace_types::{Bytes, Seed};
use terrace_workload::WorkloadSpec;

/// Opal's system with so many hosts and pools, all hosts under one policy.
pub fn opal(hosts: u32, pools: u32, policy: &str) -> SystemDescription {
    let text = system_preset_text("opal").unwrap();
    let mut system = SystemDescription::from_toml(text, "opal").unwrap();
    (system.hosts[0].count, system.pools[0].count) = (hosts, pools);
    system.hosts[0].policy = policy.to_owned();
    system
}

/// A workload, its sizes those of 8 MiB of fast memory unless it says them.
pub fn workload(text: &str) -> SimInput {
    SimInput::Workload(WorkloadSpec { fast: Bytes(8 << 20), ..WorkloadSpec::parse(text).unwrap() })
}

/// The paper's host with so much local memory.
pub fn machine(local: u64) -> Machine {
    let mut machine = preset("disaggregated").unwrap();
    machine.nodes[0].capacity = Bytes(local);
    machine
}

/// What becomes of the system whose groups of hosts all have this machine.
pub fn simulate(
    machine: &Machine,
    system: &SystemDescription,
    inputs: &[SimInput],
    threads: usize,
) -> Result<SystemOutcome, PoolError> {
    system.check("x")?;
    let machines = vec![machine.clone(); system.hosts.len()];
    let plan = SystemPlan::new(system, "x", &machines, inputs, Seed(1))?;
    simulate_system(&plan, threads)
}

/// The same with the paper's machine, of a system that has nothing wrong.
pub fn run_all(system: &SystemDescription, inputs: &[SimInput], threads: usize) -> SystemOutcome {
    simulate(&preset("disaggregated").unwrap(), system, inputs, threads).unwrap()
}

/// The hosts alone, all with one input.
pub fn run_on(machine: &Machine, system: &SystemDescription, input: &str) -> Vec<HostOutcome> {
    simulate(machine, system, &[workload(input)], 2).unwrap().hosts
}
