//! Picks transformations by predicted time.
//!
//! Every legal set of passes is compiled and run without time ([`terrace_migratory::count`]) on the
//! graph. The counts and the unit costs of the machine, which micro-benchmarks measure, give a
//! predicted time: that of the busiest resource, and what one thread does alone.

use crate::compile::compile;
use crate::graph::Graph;
use crate::layout::DataLayout;
use crate::native::ParameterValues;
use crate::passes::{Pass, PassContext};
use crate::syntax::VertexProgram;
use crate::VertexError;
use terrace_migratory::count::{count, UntimedCounts};
use terrace_migratory::memory::MemoryView;
use terrace_migratory::micro::{ping_pong, stream, MicroBenchmark, StreamWalk};
use terrace_migratory::simulation::{simulate, SimulationLimits};
use terrace_migratory::{MigratoryError, MigratoryMachine};

/// Passes in the order in which they are tried: each may make work for a later one.
const ORDER: [Pass; 8] = [
    Pass::Fusion,
    Pass::Flip,
    Pass::Hybrid,
    Pass::Remote,
    Pass::Reorder,
    Pass::Hoist,
    Pass::Replicate,
    Pass::SpawnAtData,
];
/// Rounds of the calibrating micro-benchmarks: enough that start-up is below a percent.
const ROUNDS: u32 = 500;

/// What a machine takes, by micro-benchmarks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnitCosts {
    /// Between two migrations that leave a nodelet, picoseconds.
    pub migration_ps: f64,
    /// From a migration's begin to its end, with nothing else to do, picoseconds.
    pub migration_latency_ps: f64,
    /// An instruction of a nodelet with many threads, picoseconds.
    pub instruction_ps: f64,
    /// An instruction of a thread that runs alone, picoseconds.
    pub lone_instruction_ps: f64,
}

/// A sequence of passes with its predicted time.
#[derive(Debug, Clone, PartialEq)]
pub struct PassCandidate {
    /// The passes.
    pub passes: Vec<Pass>,
    /// The program.
    pub program: VertexProgram,
    /// Predicted picoseconds.
    pub predicted_ps: f64,
    /// Migrations that the prediction counted.
    pub migrations: u64,
    /// What takes most of the time.
    pub bound: &'static str,
}

/// Measures a machine's unit costs.
///
/// # Errors
/// [`MigratoryError`].
pub fn calibrate(machine: &MigratoryMachine) -> Result<UnitCosts, MigratoryError> {
    let run = |bench: &MicroBenchmark| {
        let mut memory = bench.memory.clone();
        let limits = SimulationLimits::default();
        simulate(machine, &bench.map, &bench.code, &mut memory, limits)
    };
    let rounds = f64::from(ROUNDS);
    let alone = run(&ping_pong(machine, 1, ROUNDS))?;
    let threads = machine.slots().min(64);
    let busy = run(&ping_pong(machine, threads, ROUNDS))?;
    let lone_words = u64::from(ROUNDS) * u64::from(machine.nodelets());
    let lone = run(&stream(machine, MemoryView::Striped, StreamWalk::AtData, lone_words, 1))?;
    let each = machine.slots().saturating_sub(4).clamp(1, 48 * machine.cores);
    let many = u64::from(ROUNDS) * u64::from(machine.nodelets() * each);
    let full = run(&stream(machine, MemoryView::Striped, StreamWalk::AtData, many, each))?;
    let of_nodelet = |counters: &terrace_migratory::MigratoryCounters| {
        counters.elapsed_ps as f64 / counters.most(|n| n.instructions).max(1) as f64
    };
    let migrations = busy.most(|n| n.migrations()).max(1) as f64;
    Ok(UnitCosts {
        migration_ps: busy.elapsed_ps as f64 / migrations,
        migration_latency_ps: alone.elapsed_ps as f64 / (2.0 * rounds),
        instruction_ps: of_nodelet(&full),
        lone_instruction_ps: of_nodelet(&lone),
    })
}

/// The predicted time of counts, and what it is bound by.
fn predict(counts: &UntimedCounts, costs: &UnitCosts) -> (f64, &'static str) {
    let most = |values: &[u64]| values.iter().copied().max().unwrap_or(0) as f64;
    let serial = counts.serial_instructions as f64 * costs.lone_instruction_ps;
    let longest = counts.longest_migrations as f64 * costs.migration_latency_ps
        + counts.longest_instructions as f64 * costs.lone_instruction_ps;
    // The thread that all wait for may be spawned last.
    let chain =
        if serial > longest { "spawning by one thread" } else { "the longest thread of each loop" };
    let parts = [
        (most(&counts.migrations) * costs.migration_ps, "the busiest migration engine"),
        (most(&counts.instructions) * costs.instruction_ps, "the busiest cores"),
        (serial + longest, chain),
    ];
    let (time, bound) =
        parts.into_iter().fold((0.0, ""), |best, part| if part.0 > best.0 { part } else { best });
    // A parallel loop ends no sooner than its last thread has come and its end is known.
    (time + counts.syncs as f64 * 2.0 * costs.migration_latency_ps, bound)
}

/// Predicts every legal set of passes, the best first.
///
/// # Errors
/// [`VertexError`] of the program as it is; sets that are not legal are left out.
pub fn rank_passes(
    program: &VertexProgram,
    parameters: &ParameterValues,
    layout: DataLayout,
    machine: &MigratoryMachine,
    context: PassContext,
) -> Result<Vec<PassCandidate>, VertexError> {
    let costs = calibrate(machine)?;
    let mut candidates = Vec::new();
    for set in 0u32..1 << ORDER.len() {
        let (mut current, mut passes) = (program.clone(), Vec::new());
        let chosen = ORDER.iter().enumerate().filter(|(bit, _)| set >> bit & 1 == 1);
        let mut legal = true;
        for (_, pass) in chosen {
            match pass.apply(&current, context) {
                Ok(outcome) => current = outcome.program,
                Err(VertexError::Refused { .. } | VertexError::Unchanged { .. }) => legal = false,
                Err(error) => return Err(error),
            }
            passes.push(*pass);
        }
        if legal {
            let graph = context.graph;
            candidates
                .push(candidate(current, passes, graph, parameters, layout, machine, &costs)?);
        }
    }
    // Of equals the one with fewer passes.
    candidates.sort_by(|a, b| {
        a.predicted_ps.total_cmp(&b.predicted_ps).then(a.passes.len().cmp(&b.passes.len()))
    });
    Ok(candidates)
}

fn candidate(
    program: VertexProgram,
    passes: Vec<Pass>,
    graph: &Graph,
    parameters: &ParameterValues,
    layout: DataLayout,
    machine: &MigratoryMachine,
    costs: &UnitCosts,
) -> Result<PassCandidate, VertexError> {
    let compiled = compile(&program, graph, parameters, layout, machine.nodelets())?;
    compiled.map.check(machine)?;
    let mut memory = compiled.memory.clone();
    let counts = count(&compiled.map, &compiled.code, &mut memory, u64::MAX)?;
    let (predicted_ps, bound) = predict(&counts, costs);
    let migrations = counts.migrations.iter().sum();
    Ok(PassCandidate { passes, program, predicted_ps, migrations, bound })
}
