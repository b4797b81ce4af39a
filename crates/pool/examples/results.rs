//! The tables of `docs/results/pools.md`, after figure 5 of "Exploring Allocation Policies in
//! Disaggregated Non-Volatile Memories" (MCHPC 2018), and beyond it: all policies where local
//! memory is scarce, how much local memory a program needs, and what moving a shared page costs.
//! `cargo run -p terrace-pool --example results FOLDER OF RECORDINGS [FILE OF RESULTS]`
//!
//! Results go to the file one by one, and what is there already is not run again.

use std::collections::HashMap;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Write};
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
/// Hosts and pools where local memory is scarce: 4 with 4 wait about as long as 1 with 1.
const SCARCE_COUNTS: [(u32, u32); 3] = [(1, 1), (1, 4), (4, 1)];
/// Accesses of a program: from the middle of recordings, which begin with preparations, or of a
/// workload.
const ACCESSES: u64 = 1_000_000;
/// The paper's programs, and what stands for them here: a recording, or a workload of ours.
const PROGRAMS: &[(&str, Source)] = &[
    ("XSBench", Source::Recording("xsbench")),
    ("Lulesh", Source::Recording("lulesh")),
    // Sweeps along lines with much arithmetic between accesses, as rays through a reactor are.
    ("SimpleMOC", Source::Workload("npb-bt,threads=2,size=512KiB")),
    ("Pennant", Source::Recording("pennant")),
    // MiniFE spends its time in conjugate gradients on a sparse matrix.
    ("MiniFE", Source::Workload("npb-cg,threads=2,size=2MiB")),
    ("NAS IS", Source::Recording("npb-is")),
];
/// Workloads that touch so much that steps of local memory are a MiB at least.
const LARGE: &[(&str, Source)] = &[
    ("CG", Source::Workload("npb-cg,threads=2,size=24MiB")),
    ("IS", Source::Workload("npb-is,threads=2,size=24MiB")),
    ("PageRank", Source::Workload("graph-pagerank,threads=2,size=24MiB")),
    ("skew", Source::Workload("skew,threads=2,size=24MiB,hot_size=4MiB")),
];
/// What the paper's programs touch at most (section 4.1.1).
const PAPER_BYTES: u64 = 500_000_000;
/// How much larger a cache is than the next inner one, at least: as the paper's outer two.
const INNER_PART: u64 = 4;
/// Steps of local memory that are tried, percent of what the program touches.
const SHARE_STEP: u64 = 5;
/// The share of all-local speed that is asked for.
const WANTED: f64 = 0.95;
/// The model counts a node's memory in whole MiB.
const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

type Anything<T> = Result<T, Box<dyn Error>>;

#[derive(Debug, Clone, Copy)]
enum Source {
    Recording(&'static str),
    Workload(&'static str),
}

/// A program with its machine.
struct Program {
    name: &'static str,
    input: SimInput,
    /// Bytes that it touches, and those of its page tables.
    touched: u64,
    machine: Machine,
}

/// One system: hosts and pools of Opal's, and each host's local memory where it is not all.
#[derive(Debug, Clone, Copy)]
struct Case {
    policy: &'static str,
    hosts: u32,
    pools: u32,
    local: Option<u64>,
}

/// What is kept of a run, mean over hosts.
#[derive(Debug, Clone, Copy)]
struct Figures {
    ipc: f64,
    wait_ns: f64,
    touched: u64,
}

/// Results so far.
struct Results {
    known: HashMap<String, Figures>,
    file: Option<File>,
}

fn main() -> Anything<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("give a folder of recordings")?;
    let mut results = Results::open(arguments.next())?;
    migration()?;
    let folder = Path::new(&folder);
    let large = programs(LARGE, folder, &mut results)?;
    scarce(&large, &mut results)?;
    shares(&large, &mut results)?;
    let programs = programs(PROGRAMS, folder, &mut results)?;
    figure5(&programs, &mut results)?;
    whole_caches(&programs, &mut results)
}

fn programs(
    sources: &[(&'static str, Source)],
    folder: &Path,
    results: &mut Results,
) -> Anything<Vec<Program>> {
    let machine = terrace_machine::preset("disaggregated").ok_or("no preset")?;
    let mut programs = Vec::new();
    println!("| program | here | touched, MiB | caches, KiB |\n|---|---|---|---|");
    for &(name, source) in sources {
        let (input, here) = match source {
            Source::Recording(file) => (read_recording(&folder.join(file))?, file.to_owned()),
            Source::Workload(text) => {
                let text = format!("{text},accesses={ACCESSES}");
                (SimSetup::new(&machine, &text)?.input, text)
            }
        };
        let mut program = Program { name, input, touched: 0, machine: machine.clone() };
        let alone = Case { policy: "local-first", hosts: 1, pools: 1, local: None };
        program.touched = results.find("whole caches", &program, alone)?.touched;
        program.machine = scaled(&machine, program.touched);
        let caches: Vec<String> =
            program.machine.caches.iter().map(|c| (c.size.get() >> 10).to_string()).collect();
        let touched = program.touched as f64 / f64::from(1 << 20);
        println!("| {name} | {here} | {touched:.1} | {} |", caches.join(", "));
        programs.push(program);
    }
    Ok(programs)
}

/// The machine with caches smaller by as much as the program is smaller than the paper's.
fn scaled(machine: &Machine, touched: u64) -> Machine {
    let mut machine = machine.clone();
    let mut most = u64::MAX;
    for cache in machine.caches.iter_mut().rev() {
        let size = match most {
            u64::MAX => {
                let part = u128::from(cache.size.get()) * u128::from(touched);
                1 << (part / u128::from(PAPER_BYTES)).max(1).ilog2()
            }
            most => most.min(cache.size.get()),
        };
        cache.size = Bytes(size);
        most = size / INNER_PART;
    }
    machine
}

/// Instructions a cycle by policy, hosts and pools.
fn figure5(programs: &[Program], results: &mut Results) -> Anything<()> {
    for policy in POLICIES {
        let columns: Vec<String> = COUNTS
            .iter()
            .flat_map(|hosts| COUNTS.map(|pools| format!("{hosts}N {pools}SM")))
            .collect();
        println!("\n| {policy} | {} |\n|---|{}", columns.join(" | "), "---|".repeat(9));
        for program in programs {
            let mut row = Vec::new();
            for hosts in COUNTS {
                for pools in COUNTS {
                    let case = Case { policy, hosts, pools, local: None };
                    row.push(format!("{:.3}", results.find("scaled", program, case)?.ipc));
                }
            }
            println!("| {} | {} |", program.name, row.join(" | "));
        }
    }
    Ok(())
}

/// The same with caches as the paper has them, in which these smaller programs fit: one host, one
/// pool.
fn whole_caches(programs: &[Program], results: &mut Results) -> Anything<()> {
    println!("\n| whole caches | {} | wait, ns |\n|---|---|---|---|---|---|", POLICIES.join(" | "));
    let machine = terrace_machine::preset("disaggregated").ok_or("no preset")?;
    for program in programs {
        let whole = Program { machine: machine.clone(), input: program.input.clone(), ..*program };
        let mut row = Vec::new();
        let mut wait_ns = 0.0;
        for policy in POLICIES {
            let case = Case { policy, hosts: 1, pools: 1, local: None };
            let found = results.find("whole caches", &whole, case)?;
            row.push(format!("{:.3}", found.ipc));
            wait_ns = found.wait_ns;
        }
        println!("| {} | {} | {wait_ns:.0} |", program.name, row.join(" | "));
    }
    Ok(())
}

/// Instructions a cycle where local memory holds a quarter of what a program touches, and how the
/// best of ours compares with the best of theirs.
fn scarce(programs: &[Program], results: &mut Results) -> Anything<()> {
    let all = || POLICIES.into_iter().chain(OURS);
    let heads: Vec<&str> = all().collect();
    println!("\n| IPC | hosts | pools | {} | best of ours |", heads.join(" | "));
    println!("|---|---|---|{}---|", "---|".repeat(heads.len()));
    for program in programs {
        for (hosts, pools) in SCARCE_COUNTS {
            let local = Some(program.touched / 4);
            let mut found = Vec::new();
            for policy in all() {
                let case = Case { policy, hosts, pools, local };
                found.push(results.find("scaled", program, case)?.ipc);
            }
            let best = |ipcs: &[f64]| ipcs.iter().copied().fold(0.0, f64::max);
            let (theirs, ours) = found.split_at(POLICIES.len());
            let row: Vec<String> = found.iter().map(|ipc| format!("{ipc:.3}")).collect();
            let ratio = best(ours) / best(theirs);
            let row = row.join(" | ");
            println!("| {} | {hosts} | {pools} | {row} | {ratio:.2} |", program.name);
        }
    }
    Ok(())
}

/// The least local memory with which a program has 95% of its all-local speed, by policy.
fn shares(programs: &[Program], results: &mut Results) -> Anything<()> {
    println!("\n| program | touched, MiB | local-first | application-aware |\n|---|---|---|---|");
    for program in programs {
        let mut needed = Vec::new();
        for policy in ["local-first", "application-aware"] {
            let all = Case { policy: "local-first", hosts: 1, pools: 1, local: None };
            let wanted = WANTED * results.find("scaled", program, all)?.ipc;
            // Speed grows with local memory: half of what is left is tried next.
            let (mut few, mut enough) = (0, 100 / SHARE_STEP);
            while enough - few > 1 {
                let share = (few + enough) / 2;
                let local = Some(program.touched * share * SHARE_STEP / 100);
                let case = Case { policy, local, ..all };
                let fast = results.find("scaled", program, case)?.ipc >= wanted;
                *(if fast { &mut enough } else { &mut few }) = share;
            }
            needed.push(format!("{}%", enough * SHARE_STEP));
        }
        let touched = program.touched as f64 / f64::from(1 << 20);
        println!("| {} | {touched:.1} | {} |", program.name, needed.join(" | "));
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

impl Results {
    /// What a file of results holds; without one nothing is kept.
    fn open(path: Option<String>) -> Anything<Self> {
        let Some(path) = path else { return Ok(Self { known: HashMap::new(), file: None }) };
        let mut known = HashMap::new();
        for line in std::fs::read_to_string(&path).unwrap_or_default().lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [key, ipc, wait_ns, touched] = fields[..] else { continue };
            let (ipc, wait_ns, touched) = (ipc.parse()?, wait_ns.parse()?, touched.parse()?);
            known.insert(key.to_owned(), Figures { ipc, wait_ns, touched });
        }
        let file = Some(OpenOptions::new().create(true).append(true).open(path)?);
        Ok(Self { known, file })
    }

    /// The figures of a case, run where they are not known. `caches` says which the machine has.
    fn find(&mut self, caches: &str, program: &Program, case: Case) -> Anything<Figures> {
        let Case { policy, hosts, pools, local } = case;
        let local = local.map_or("all".to_owned(), |bytes| bytes.to_string());
        let key = format!(
            "{} of {ACCESSES}, {caches}, {policy}, {hosts} hosts, {pools} pools, {local} local",
            program.name
        );
        if let Some(found) = self.known.get(&key) {
            return Ok(*found);
        }
        let hosts = run(program, case)?;
        let figures = Figures {
            ipc: mean(&hosts, |host| host.ipc),
            wait_ns: mean(&hosts, wait_ns),
            touched: hosts[0].run.touched_bytes + hosts[0].page_table_pages * PAGE,
        };
        if let Some(file) = &mut self.file {
            let Figures { ipc, wait_ns, touched } = figures;
            writeln!(file, "{key}\t{ipc}\t{wait_ns}\t{touched}")?;
        }
        self.known.insert(key, figures);
        Ok(figures)
    }
}

/// What a miss of the host to a pool waits, mean.
fn wait_ns(host: &HostOutcome) -> f64 {
    let pools = || host.pools[1..].iter();
    let waited: f64 = pools().map(|pool| pool.mean_wait_ns * pool.read_bytes as f64).sum();
    waited / pools().map(|pool| pool.read_bytes as f64).sum::<f64>().max(1.0)
}

fn mean(hosts: &[HostOutcome], of: impl Fn(&HostOutcome) -> f64) -> f64 {
    hosts.iter().map(of).sum::<f64>() / hosts.len() as f64
}

fn read_recording(stem: &Path) -> Anything<SimInput> {
    let path = stem.with_extension("trace");
    let file = path.clone();
    let open = move || Ok(Box::new(BufReader::new(File::open(&file)?)) as Box<dyn RecordingSource>);
    let open = Arc::new(open);
    let middle = Recording::new(open.clone())?.accesses() / 2;
    let recording = Recording::part(open, middle..middle + ACCESSES)?;
    Ok(SimInput::Recording { name: path.display().to_string(), recording })
}

/// All hosts with the same program.
fn run(program: &Program, case: Case) -> Anything<Vec<HostOutcome>> {
    let text = system_preset_text("opal").ok_or("no preset")?;
    let mut system = SystemDescription::from_toml(text, "opal")?;
    (system.hosts[0].count, system.pools[0].count) = (case.hosts, case.pools);
    system.hosts[0].policy = case.policy.to_owned();
    let mut machine = program.machine.clone();
    if let Some(local) = case.local {
        machine.nodes[0].capacity = Bytes(local / MIB * MIB);
    }
    let input = std::slice::from_ref(&program.input);
    let plan = SystemPlan::new(&system, "opal", &[machine], input, Seed(1))?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(simulate_system(&plan, threads)?.hosts)
}
