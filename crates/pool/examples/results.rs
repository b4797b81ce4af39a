//! The tables of `docs/results/pools.md`, after figure 5 of "Exploring Allocation Policies in
//! Disaggregated Non-Volatile Memories" (MCHPC 2018), and beyond it: our policies where local
//! memory is scarce, and how much local memory a program needs.
//! `cargo run -p terrace-pool --example results [FOLDER OF RECORDINGS]`

use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;
use terrace_machine::Machine;
use terrace_pool::{
    simulate_system, system_preset_text, HostOutcome, ShootdownLatencies, SystemDescription,
    SystemPlan,
};
use terrace_sim::recording::RecordingSource;
use terrace_sim::world::ShootdownMode;
use terrace_sim::{Recording, SimInput, SimSetup};
use terrace_types::{Bytes, Seed};

/// The paper's policies, in the order of its figure.
const POLICIES: [&str; 4] = ["local-first", "alternate", "round-robin", "proportional"];
/// What it does not have.
const OURS: [&str; 4] = ["bandwidth", "least-loaded", "latency", "application-aware"];
/// Hosts and pools of the figure.
const COUNTS: [u32; 3] = [1, 2, 4];
/// The paper's programs that are at hand as recordings.
const RECORDINGS: [&str; 4] = ["xsbench", "lulesh", "pennant", "npb-is"];
/// Workloads that do not fit the caches of 16 MiB, as the paper's programs with their 500 MB do
/// not: a conjugate gradient as MiniFE's, and the sort of which there is a recording, larger.
const WORKLOADS: [&str; 2] = ["npb-cg,size=32MiB,accesses=4M", "npb-is,size=32MiB,accesses=4M"];
/// Local memory that is tried for the share of all-local speed, percent of what the program
/// touches.
const SHARES: [u64; 9] = [10, 20, 30, 40, 50, 60, 70, 80, 90];
/// The share of all-local speed that is asked for.
const WANTED: f64 = 0.95;
const PAGE: u64 = 4096;

type Anything<T> = Result<T, Box<dyn Error>>;

fn main() -> Anything<()> {
    let machine = terrace_machine::preset("disaggregated").ok_or("no preset")?;
    let mut inputs = Vec::new();
    if let Some(folder) = std::env::args().nth(1) {
        for name in RECORDINGS {
            inputs.push((name.to_owned(), read_recording(&Path::new(&folder).join(name))?));
        }
    }
    for text in WORKLOADS {
        inputs.push((text.to_owned(), SimSetup::new(&machine, text)?.input));
    }
    migration()?;
    figure5(&machine, &inputs)?;
    scarce(&machine, &inputs)?;
    shares(&machine, &inputs)
}

/// Instructions a cycle by policy, hosts and pools.
fn figure5(machine: &Machine, inputs: &[(String, SimInput)]) -> Anything<()> {
    for policy in POLICIES {
        let columns: Vec<String> = COUNTS
            .iter()
            .flat_map(|hosts| COUNTS.map(|pools| format!("{hosts}N {pools}SM")))
            .collect();
        println!("\n| {policy} | {} |\n|---|{}", columns.join(" | "), "---|".repeat(9));
        for (name, input) in inputs {
            let mut row = Vec::new();
            for hosts in COUNTS {
                for pools in COUNTS {
                    let outcome = run(machine, input, policy, hosts, pools)?;
                    row.push(format!("{:.2}", mean(&outcome, |host| host.ipc)));
                }
            }
            println!("| {name} | {} |", row.join(" | "));
        }
    }
    Ok(())
}

/// Seconds where local memory holds a quarter of what a program touches: 4 hosts, 1 and 4 pools.
fn scarce(machine: &Machine, inputs: &[(String, SimInput)]) -> Anything<()> {
    let all: Vec<&str> = POLICIES.into_iter().chain(OURS).collect();
    println!("\n| seconds | pools | {} |\n|---|---|{}", all.join(" | "), "---|".repeat(all.len()));
    for (name, input) in inputs {
        let touched = touched(machine, input)?;
        let small = with_local(machine, touched / 4);
        for pools in [1, 4] {
            let mut row = Vec::new();
            for policy in &all {
                let outcome = run(&small, input, policy, 4, pools)?;
                row.push(format!("{:.4}", mean(&outcome, |host| host.run.seconds)));
            }
            println!("| {name} | {pools} | {} |", row.join(" | "));
        }
    }
    Ok(())
}

/// The least local memory with which a program has 95% of its all-local speed, by policy.
fn shares(machine: &Machine, inputs: &[(String, SimInput)]) -> Anything<()> {
    println!("\n| program | touched, MiB | local-first | application-aware |\n|---|---|---|---|");
    for (name, input) in inputs {
        let touched = touched(machine, input)?;
        let local = mean(&run(machine, input, "local-first", 1, 1)?, |host| host.run.seconds);
        let mut needed = Vec::new();
        for policy in ["local-first", "application-aware"] {
            let mut found = "all".to_owned();
            for share in SHARES {
                let small = with_local(machine, touched * share / 100);
                let seconds = mean(&run(&small, input, policy, 1, 1)?, |host| host.run.seconds);
                if local >= WANTED * seconds {
                    found = format!("{share}%");
                    break;
                }
            }
            needed.push(found);
        }
        let megabytes = touched as f64 / f64::from(1 << 20);
        println!("| {name} | {megabytes:.1} | {} |", needed.join(" | "));
    }
    Ok(())
}

/// What a page that all hosts have mapped costs to move, beside its copy.
fn migration() -> Anything<()> {
    let handler_ps = terrace_machine::KernelCosts::default().tlb_shootdown.0;
    println!("\n| us a page | hosts | page by page | batched by 512 | early | messages a round |");
    println!("|---|---|---|---|---|---|");
    for preset in ["opal", "cxl2-8"] {
        let text = system_preset_text(preset).ok_or("no preset")?;
        let manager = SystemDescription::from_toml(text, preset)?.manager;
        let latencies = ShootdownLatencies {
            manager_ps: manager.latency_ns * 1000,
            service_ps: manager.requests_per_us.map_or(0, |rate| 1_000_000 / rate),
            handler_ps,
        };
        for hosts in [1, 2, 4, 8, 16, 32, 64] {
            let of = |mode| latencies.round(hosts - 1, 512, mode);
            let us = |mode| of(mode).takes_ps as f64 / 512.0 / 1e6;
            println!(
                "| {preset} | {hosts} | {:.2} | {:.4} | {:.4} | {} |",
                us(ShootdownMode::PerPage),
                us(ShootdownMode::Batched),
                us(ShootdownMode::EarlyAcknowledge),
                of(ShootdownMode::Batched).messages
            );
        }
    }
    Ok(())
}

fn mean(hosts: &[HostOutcome], of: impl Fn(&HostOutcome) -> f64) -> f64 {
    hosts.iter().map(of).sum::<f64>() / hosts.len() as f64
}

fn touched(machine: &Machine, input: &SimInput) -> Anything<u64> {
    let alone = run(machine, input, "local-first", 1, 1)?;
    Ok(alone[0].run.touched_bytes + alone[0].page_table_pages * PAGE)
}

/// The machine with so much local memory, whole pages.
fn with_local(machine: &Machine, bytes: u64) -> Machine {
    let mut machine = machine.clone();
    machine.nodes[0].capacity = Bytes(bytes / PAGE * PAGE);
    machine
}

fn read_recording(stem: &Path) -> Anything<SimInput> {
    let path = stem.with_extension("trace");
    let file = path.clone();
    let open = move || Ok(Box::new(BufReader::new(File::open(&file)?)) as Box<dyn RecordingSource>);
    let name = path.display().to_string();
    Ok(SimInput::Recording { name, recording: Recording::new(Arc::new(open))? })
}

/// All hosts with the same program under one policy.
fn run(
    machine: &Machine,
    input: &SimInput,
    policy: &str,
    hosts: u32,
    pools: u32,
) -> Anything<Vec<HostOutcome>> {
    let text = system_preset_text("opal").ok_or("no preset")?;
    let mut system = SystemDescription::from_toml(text, "opal")?;
    (system.hosts[0].count, system.pools[0].count) = (hosts, pools);
    system.hosts[0].policy = policy.to_owned();
    let machines = std::slice::from_ref(machine);
    let plan = SystemPlan::new(&system, "opal", machines, std::slice::from_ref(input), Seed(1))?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(simulate_system(&plan, threads)?.hosts)
}
