//! The tables of `docs/results/pools.md`, after figure 5 of "Exploring Allocation Policies in
//! Disaggregated Non-Volatile Memories" (MCHPC 2018): instructions a cycle by policy, hosts and
//! pools. `cargo run --release -p terrace-pool --example figure5 [FOLDER OF RECORDINGS]`

use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;
use terrace_machine::Machine;
use terrace_pool::{simulate_system, system_preset_text, SystemDescription, SystemPlan};
use terrace_sim::recording::RecordingSource;
use terrace_sim::{Recording, SimInput, SimSetup};
use terrace_types::Seed;

/// The paper's policies, in the order of its figure.
const POLICIES: [&str; 4] = ["local-first", "alternate", "round-robin", "proportional"];
/// Hosts and pools of the figure.
const COUNTS: [u32; 3] = [1, 2, 4];
/// The paper's programs that are at hand as recordings.
const RECORDINGS: [&str; 4] = ["xsbench", "lulesh", "pennant", "npb-is"];
/// Workloads that do not fit the caches of 16 MiB, as the paper's programs with their 500 MB do
/// not: independent random reads, sweeps, dependent reads, and a conjugate gradient as MiniFE's.
const WORKLOADS: [&str; 4] = [
    "skew,accesses=4M,size=256MiB,threads=8",
    "stream,accesses=4M,size=256MiB,threads=8",
    "chase,accesses=1M,size=256MiB",
    "npb-cg,size=32MiB",
];

fn main() -> Result<(), Box<dyn Error>> {
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
    for policy in POLICIES {
        let columns: Vec<String> = COUNTS
            .iter()
            .flat_map(|hosts| COUNTS.map(|pools| format!("{hosts}N {pools}SM")))
            .collect();
        println!("\n| {policy} | {} |\n|---|{}", columns.join(" | "), "---|".repeat(9));
        for (name, input) in &inputs {
            let mut row = Vec::new();
            for hosts in COUNTS {
                for pools in COUNTS {
                    row.push(format!("{:.2}", mean_ipc(&machine, input, policy, hosts, pools)?));
                }
            }
            println!("| {name} | {} |", row.join(" | "));
        }
    }
    Ok(())
}

fn read_recording(stem: &Path) -> Result<SimInput, Box<dyn Error>> {
    let path = stem.with_extension("trace");
    let file = path.clone();
    let open = move || Ok(Box::new(BufReader::new(File::open(&file)?)) as Box<dyn RecordingSource>);
    let name = path.display().to_string();
    Ok(SimInput::Recording { name, recording: Recording::new(Arc::new(open))? })
}

/// Instructions a cycle, mean over hosts, as the paper takes it.
fn mean_ipc(
    machine: &Machine,
    input: &SimInput,
    policy: &str,
    hosts: u32,
    pools: u32,
) -> Result<f64, Box<dyn Error>> {
    let text = system_preset_text("opal").ok_or("no preset")?;
    let mut system = SystemDescription::from_toml(text, "opal")?;
    (system.hosts[0].count, system.pools[0].count) = (hosts, pools);
    system.hosts[0].policy = policy.to_owned();
    let machines = std::slice::from_ref(machine);
    let plan = SystemPlan::new(&system, "opal", machines, std::slice::from_ref(input), Seed(1))?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let outcome = simulate_system(&plan, threads)?;
    Ok(outcome.hosts.iter().map(|host| host.ipc).sum::<f64>() / outcome.hosts.len() as f64)
}
