//! The tables and the picture of `docs/results/three-ways.md`: graph programs on equal hardware,
//! where pages move, where accesses go to a pool, and where threads migrate.
//!
//! `cargo run --release -p terrace-pool --example three-ways FOLDER [LAST_SCALE]`

use std::error::Error;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;
use terrace_machine::Machine;
use terrace_migratory::simulation::{simulate, SimulationLimits};
use terrace_migratory::MigratoryMachine;
use terrace_pool::{simulate_system, HostOutcome, SystemDescription, SystemPlan};
use terrace_report::figure::{winner_figure, CaseWinner, WinnerPanel};
use terrace_sim::recording::RecordingSource;
use terrace_sim::{Recording, SimInput};
use terrace_trace::{Info, TraceReader};
use terrace_types::{Bytes, Seed};
use terrace_vertex::compile::compile;
use terrace_vertex::generate::GraphRecipe;
use terrace_vertex::graph::Graph;
use terrace_vertex::layout::DataLayout;
use terrace_vertex::parse::parse;
use terrace_vertex::passes::{Pass, PassContext};
use terrace_vertex::programs::shipped;
use terrace_vertex::record::record;
use terrace_vertex::syntax::{Direction, VertexProgram};

/// Names of the ways, in the order of the tables.
const WAYS: [&str; 3] = ["pages move", "accesses to a pool", "threads migrate"];
/// Scales of the graphs: 2 to this power are the vertices.
const SCALES: [u32; 4] = [10, 12, 14, 16];
/// Cores of the host, one thread on each.
const CORES: u32 = 8;
/// Memory channels; the host has one of them.
const CHANNELS: u64 = 8;
const PAGE: u64 = 4096;
/// Words of a property on one page: neighbours nearer than that count as local.
const PAGE_WORDS: u32 = 512;

/// A program, and how threads run it best: passes that apply on every graph here.
struct Subject {
    title: &'static str,
    program: &'static str,
    /// It begins at a vertex: here at the last, which in `rmat` has most edges.
    source: bool,
    parameters: &'static [(&'static str, i64)],
    passes: &'static [&'static str],
    /// The largest scale of grids, and of the others, that takes a few seconds: a grid has many
    /// levels, and the programs visit all vertices at each.
    most: [u32; 2],
}

const SUBJECTS: [Subject; 4] = [
    Subject {
        title: "BFS",
        program: "bfs",
        source: true,
        parameters: &[],
        passes: &["remote", "spawn-at-data"],
        most: [12, 16],
    },
    Subject {
        title: "PageRank",
        program: "pagerank",
        source: false,
        parameters: &[("iterations", 5)],
        passes: &["flip", "remote", "spawn-at-data"],
        most: [14, 16],
    },
    Subject {
        title: "SSSP",
        program: "bellman-ford-push",
        source: true,
        parameters: &[],
        passes: &["remote", "spawn-at-data"],
        most: [10, 14],
    },
    Subject {
        title: "Triangles",
        program: "triangles",
        source: false,
        parameters: &[],
        passes: &["remote", "spawn-at-data"],
        most: [14, 12],
    },
];

/// Graphs, from those with near neighbours to those without.
const GRAPHS: [(&str, &str); 4] = [
    ("grid", "grid:"),
    ("shuffled", "grid:order=random,"),
    ("rmat", "rmat:order=degree,"),
    ("uniform", "uniform:"),
];

type Anything<T> = Result<T, Box<dyn Error>>;

/// What one way took.
#[derive(Clone, Copy)]
struct WayOutcome {
    seconds: f64,
    /// Bytes on the links between channels, both directions.
    link_bytes: u64,
}

/// One program on one graph.
struct Case {
    subject: usize,
    graph: usize,
    scale: u32,
    bytes: u64,
    near_percent: f64,
    ways: [WayOutcome; 3],
    promoted: u64,
}

fn main() -> Anything<()> {
    let folder = std::env::args().nth(1).ok_or("give a folder for the picture")?;
    let last: u32 = std::env::args().nth(2).map_or(Ok(16), |word| word.parse())?;
    let host = Machine::from_toml(include_str!("host.toml"), "eight-channels")?;
    let mut cases = Vec::new();
    for (subject, description) in SUBJECTS.iter().enumerate() {
        for (graph, (_, recipe)) in GRAPHS.iter().enumerate() {
            let most = description.most[usize::from(graph > 1)].min(last);
            for scale in SCALES.into_iter().filter(|scale| *scale <= most) {
                let input = Input::new(description, recipe, scale)?;
                eprintln!("{} on {recipe}scale={scale}", description.title);
                cases.push(run_case(&host, &input, (subject, graph, scale))?);
            }
        }
        print_cases(&cases, subject);
    }
    print_caches(&host, last)?;
    print_rounds(&host, last)?;
    let panels: Vec<WinnerPanel> = (0..SUBJECTS.len()).map(|at| panel(&cases, at)).collect();
    let title = "Who is the fastest, and how many times as fast as the second";
    let svg = winner_figure(title, "scale", &WAYS.map(str::to_owned), &panels);
    Ok(std::fs::write(Path::new(&folder).join("who-wins.svg"), svg)?)
}

/// A program and its graph.
struct Input {
    program: VertexProgram,
    graph: Graph,
    parameters: Vec<(String, i64)>,
    passes: &'static [&'static str],
}

impl Input {
    fn new(subject: &Subject, recipe: &str, scale: u32) -> Anything<Self> {
        let recipe = GraphRecipe::parse(&format!("{recipe}scale={scale}")).ok_or("no recipe")??;
        let named = |(name, value): &(&str, i64)| ((*name).to_owned(), *value);
        let mut parameters: Vec<_> = subject.parameters.iter().map(named).collect();
        if subject.source {
            parameters.push(("source".to_owned(), (1 << scale) - 1));
        }
        Ok(Self {
            program: parse(shipped(subject.program).ok_or("no such program")?)?,
            graph: recipe.draw()?,
            parameters,
            passes: subject.passes,
        })
    }

    /// Percent of edges whose ends have properties on one page, or on the next.
    fn near_percent(&self) -> f64 {
        let (mut near, mut all) = (0u64, 0u64);
        let Some(lists) = self.graph.lists(Direction::Out) else { return 0.0 };
        for vertex in 0..self.graph.vertices() {
            let of = lists.of(vertex);
            all += of.len() as u64;
            near += of.iter().filter(|other| other.abs_diff(vertex) < PAGE_WORDS).count() as u64;
        }
        100.0 * near as f64 / all.max(1) as f64
    }

    /// Threads migrate: the program after its passes; what it computes must be `expected`.
    fn migrate_threads(&self, expected: &[i64]) -> Anything<WayOutcome> {
        let machine = MigratoryMachine::emu_chick();
        let context = PassContext { graph: &self.graph, copy_bytes: 0 };
        let mut program = self.program.clone();
        for name in self.passes {
            let pass = Pass::named(name).ok_or("no such pass")?;
            program = pass.apply(&program, context)?.program;
        }
        let layout = DataLayout::named("striped").ok_or("no such layout")?;
        let nodelets = machine.nodelets();
        let compiled = compile(&program, &self.graph, &self.parameters, layout, nodelets)?;
        let (mut memory, limits) = (compiled.memory.clone(), SimulationLimits::default());
        let counters = simulate(&machine, &compiled.map, &compiled.code, &mut memory, limits)?;
        let returned = compiled.results(&memory)?.returned;
        if returned.iter().map(|value| value.value).ne(expected.iter().copied()) {
            return Err("threads that migrate compute something else".into());
        }
        let (contexts, packets) = (machine.context.get(), machine.packet.get());
        // An update is acknowledged.
        let bytes = counters.migrations() * contexts + 2 * counters.remote_updates() * packets;
        Ok(WayOutcome { seconds: counters.seconds(), link_bytes: bytes })
    }

    /// The recording of the program as it is, and what it returns.
    fn record(&self) -> Anything<(Recorded, Vec<i64>)> {
        let (results, bytes) =
            record(&self.program, &self.graph, &self.parameters, CORES, &[], Vec::new())?;
        let bytes: Arc<[u8]> = bytes.into();
        let touched = Info::from_reader(&mut TraceReader::open(Cursor::new(&bytes[..]))?)?.pages;
        let open = move || {
            let source = Cursor::new(Arc::clone(&bytes));
            Ok(Box::new(source) as Box<dyn RecordingSource>)
        };
        let recording = Recording::new(Arc::new(open))?;
        let input = SimInput::Recording { name: self.program.name.clone(), recording };
        let returned = results.returned.iter().map(|value| value.value).collect();
        Ok((Recorded { input, touched: touched * PAGE }, returned))
    }
}

/// A recording, and the bytes of the pages that it touches.
struct Recorded {
    input: SimInput,
    touched: u64,
}

impl Recorded {
    /// On a host with one channel and seven pools; `placement` moves pages.
    fn simulate(&self, host: &Machine, placement: Option<&str>) -> Anything<HostOutcome> {
        let mut system = SystemDescription::from_toml(include_str!("system.toml"), "system.toml")?;
        system.hosts[0].placement = placement.map(str::to_owned);
        let mut host = host.clone();
        // Memory is as large as the data: a channel has its part.
        host.nodes[0].capacity = Bytes((self.touched / CHANNELS).next_multiple_of(PAGE));
        let (machines, inputs) = (std::slice::from_ref(&host), std::slice::from_ref(&self.input));
        let plan = SystemPlan::new(&system, "system.toml", machines, inputs, Seed(1))?;
        let outcome = simulate_system(&plan, 1)?;
        Ok(outcome.hosts.into_iter().next().ok_or("no host")?)
    }
}

fn outcome_of(host: &HostOutcome) -> WayOutcome {
    let of_pools = host.pools.iter().skip(1);
    let lines: u64 = of_pools.map(|pool| pool.read_bytes + pool.write_bytes).sum();
    WayOutcome { seconds: host.run.seconds, link_bytes: lines }
}

fn run_case(host: &Machine, input: &Input, case: (usize, usize, u32)) -> Anything<Case> {
    let (recorded, returned) = input.record()?;
    let moved = recorded.simulate(host, Some("terrace"))?;
    let accessed = recorded.simulate(host, None)?;
    let ways = [outcome_of(&moved), outcome_of(&accessed), input.migrate_threads(&returned)?];
    let (subject, graph, scale) = case;
    let (bytes, near_percent) = (recorded.touched, input.near_percent());
    let promoted = moved.run.promoted_pages.unwrap_or(0);
    Ok(Case { subject, graph, scale, bytes, near_percent, ways, promoted })
}

fn print_cases(cases: &[Case], subject: usize) {
    println!("### {}\n", SUBJECTS[subject].title);
    let ways = WAYS.join(", ms | ");
    println!("| graph | scale | MiB | near | {ways}, ms | pages promoted | MB on links, each |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for case in cases.iter().filter(|case| case.subject == subject) {
        let times = case.ways.map(|way| format!("{:.2}", way.seconds * 1e3)).join(" | ");
        let bytes = case.ways.map(|way| format!("{:.1}", way.link_bytes as f64 / 1e6)).join(", ");
        println!(
            "| {} | {} | {:.1} | {:.0}% | {times} | {} | {bytes} |",
            GRAPHS[case.graph].0,
            case.scale,
            case.bytes as f64 / f64::from(1 << 20),
            case.near_percent,
            case.promoted
        );
    }
    println!();
}

/// Accesses to a pool where cores have other caches, or one miss in flight.
fn print_caches(host: &Machine, last: u32) -> Anything<()> {
    let scale = last.min(12);
    let mut lone = host.clone();
    lone.core.outstanding_misses = 1;
    let mut large = host.clone();
    // SiFive FU540-C000 Manual, v1p0: 32 KiB of data in 8 ways a core, 2 MiB in 16 ways for all.
    for (cache, size) in large.caches.iter_mut().zip([Bytes(32 << 10), Bytes(2 << 20)]) {
        cache.size = size;
    }
    println!("### Accesses to a pool on other cores: rmat, scale {scale}, ms\n");
    println!("| program | as above | one miss in flight | caches of an FU540 | threads migrate |");
    println!("|---|---|---|---|---|");
    for subject in &SUBJECTS {
        let input = Input::new(subject, GRAPHS[2].1, scale)?;
        let (recorded, returned) = input.record()?;
        let mut row = Vec::new();
        for machine in [host, &lone, &large] {
            row.push(outcome_of(&recorded.simulate(machine, None)?));
        }
        row.push(input.migrate_threads(&returned)?);
        let row: Vec<String> = row.iter().map(|way| format!("{:.2}", way.seconds * 1e3)).collect();
        println!("| {} | {} |", subject.title, row.join(" | "));
    }
    Ok(())
}

/// PageRank for longer: pages that move must repay their moves.
fn print_rounds(host: &Machine, last: u32) -> Anything<()> {
    println!("\n### PageRank for longer\n");
    println!("| graph | scale | rounds | {}, ms | pages promoted |", WAYS.join(", ms | "));
    println!("|---|---|---|---|---|---|---|");
    for (graph, scale, rounds) in [(2, 14, 50), (3, 14, 50)] {
        let scale = last.min(scale);
        let mut input = Input::new(&SUBJECTS[1], GRAPHS[graph].1, scale)?;
        input.parameters = vec![("iterations".to_owned(), rounds)];
        let case = run_case(host, &input, (1, graph, scale))?;
        let times = case.ways.map(|way| format!("{:.2}", way.seconds * 1e3)).join(" | ");
        println!("| {} | {scale} | {rounds} | {times} | {} |", GRAPHS[graph].0, case.promoted);
    }
    Ok(())
}

/// The winners of a program by graph and scale.
fn panel(cases: &[Case], subject: usize) -> WinnerPanel {
    let find = |graph: usize, scale: u32| {
        let found =
            |case: &&Case| (case.subject, case.graph, case.scale) == (subject, graph, scale);
        cases.iter().find(found).map(winner)
    };
    WinnerPanel {
        title: SUBJECTS[subject].title.to_owned(),
        rows: GRAPHS.map(|(name, _)| name.to_owned()).to_vec(),
        columns: SCALES.map(|scale| scale.to_string()).to_vec(),
        cells: (0..GRAPHS.len()).map(|graph| SCALES.map(|s| find(graph, s)).to_vec()).collect(),
    }
}

/// Where no page moved, that way is one of accesses to a pool, and does not compete.
fn winner(case: &Case) -> CaseWinner {
    let first = usize::from(case.promoted == 0);
    let mut order: Vec<usize> = (first..WAYS.len()).collect();
    order.sort_by(|a, b| case.ways[*a].seconds.total_cmp(&case.ways[*b].seconds));
    let factor = case.ways[order[1]].seconds / case.ways[order[0]].seconds;
    CaseWinner { contender: order[0], factor }
}
