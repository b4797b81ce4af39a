//! What came of a run: times, moves, energy, caches.

use crate::bounds::OracleMoves;
use crate::build::SimSetup;
use crate::error::SimError;
use crate::far::FarCount;
use crate::world::World;
use serde::Serialize;
use terrace_engine::journal::JournalSummary;
use terrace_model::Counters;
use terrace_types::{Bytes, Contender, Nanos, NodeId};

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;

/// One level of cache in the phase that counts, all its caches together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CacheCount {
    /// 1 is nearest the core.
    pub level: u8,
    /// Accesses that it served.
    pub hits: u64,
    /// Those that it did not.
    pub misses: u64,
    /// Dirty lines that left it.
    pub writebacks: u64,
}

/// One policy's result; as JSON it is an entry of the contract's `sim`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SimRun {
    /// What ran.
    pub policy: Contender,
    /// Modelled seconds of the phase that counts.
    pub seconds: f64,
    /// Share of last-level misses that the fast tier served.
    pub fast_access_share: Option<f64>,
    /// Base pages that came to a better tier.
    pub promoted_pages: Option<u64>,
    /// Base pages that went to a worse one.
    pub demoted_pages: Option<u64>,
    /// Bytes moved between nodes.
    pub migrated_bytes: Option<u64>,
    /// CPU seconds of tracking and deciding.
    pub overhead_seconds: Option<f64>,
    /// Seconds that the program's cores spent storing samples and in interrupts that took them,
    /// where accesses were sampled (equation 1 of the counter paper, without moving).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling_seconds: Option<f64>,
    /// Samples, where accesses were sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Energy of all memory, where the machine file tells all of it.
    pub energy_joules: Option<f64>,
    /// Energy by node, as far as the machine file tells.
    pub energy: Vec<NodeEnergy>,
    /// Caches, nearest first, counted before tiers.
    pub caches: Vec<CacheCount>,
    /// What the pager did, where a store lies behind memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far: Option<FarCount>,
    /// Accesses of the phase that counts, as the workload counts them.
    #[serde(skip)]
    pub accesses: u64,
    /// Memory that the program touched, bytes; 0 where a store lies behind memory.
    #[serde(skip)]
    pub touched_bytes: u64,
    /// What a reader of the results must know of the input: what of a recording was left out.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// The engine's account, where one ran.
    #[serde(skip)]
    pub summary: Option<JournalSummary>,
    /// The engine's journal, where one was asked for.
    #[serde(skip)]
    pub journal: Option<String>,
}

/// Energy of one node's memory in the phase that counts, joules.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct NodeEnergy {
    /// The node.
    pub node: NodeId,
    /// For what was read on its bus.
    pub read_joules: Option<f64>,
    /// For what was written on its bus.
    pub write_joules: Option<f64>,
    /// At rest.
    pub static_joules: Option<f64>,
}

/// What was moved by whom.
#[derive(Debug, Clone, Default)]
pub(super) struct Moves {
    pub moved: OracleMoves,
    pub overhead: Nanos,
    pub summary: Option<JournalSummary>,
}

/// What a run that has ended comes to.
pub(super) fn result(
    plan: &SimSetup,
    policy: &Contender,
    world: &mut World,
    moves: Moves,
) -> Result<SimRun, SimError> {
    if world.lacks_memory() {
        return Err(plan.too_little_memory(plan.host_bytes()));
    }
    let accesses = world.finish().map_err(SimError::Inconsistent)?;
    if world.memory.refused > 0 {
        let have: u64 = world.memory.pools.iter().map(|p| p.frames() * PAGE).sum();
        return Err(SimError::TooSmall {
            machine: plan.machine.name.clone(),
            input: plan.input.to_string(),
            have: Bytes(have),
            need: Bytes(have + world.memory.refused * PAGE),
        });
    }
    let (span, counters) = world
        .measured
        .result()
        .ok_or_else(|| SimError::Inconsistent("the measured phase did not end".to_owned()))?;
    let served = counters.llc_misses();
    let fast: u64 = plan.tiers.first().into_iter().flatten().map(|n| served[*n]).sum();
    let all: u64 = served.iter().sum();
    let migrated = match &moves.summary {
        Some(summary) => summary.migrated_bytes,
        None => (moves.moved.promoted + moves.moved.demoted) * PAGE,
    };
    let energy = energy(plan, &counters, span);
    let sampled = Some(world.sampling).filter(|sampling| sampling.records > 0);
    Ok(SimRun {
        policy: policy.clone(),
        seconds: span.as_secs_f64(),
        fast_access_share: (all > 0).then(|| fast as f64 / all as f64),
        promoted_pages: Some(moves.moved.promoted),
        demoted_pages: Some(moves.moved.demoted),
        migrated_bytes: Some(migrated),
        overhead_seconds: Some(moves.overhead.as_secs_f64()),
        sampling_seconds: sampled.map(|s| s.time as f64 / 1e12),
        samples: sampled.map(|s| s.records),
        energy_joules: total_energy(plan, &energy),
        energy,
        caches: caches(plan, &counters),
        far: None,
        accesses,
        touched_bytes: world.memory.touched * PAGE,
        notes: world.notes(),
        summary: moves.summary,
        journal: None,
    })
}

/// All together, if nothing is missing.
fn total_energy(plan: &SimSetup, energy: &[NodeEnergy]) -> Option<f64> {
    let with_memory = plan.machine.nodes.iter().filter(|n| n.capacity > Bytes::ZERO).count();
    let whole = |e: &NodeEnergy| Some(e.read_joules? + e.write_joules? + e.static_joules?);
    (energy.len() == with_memory).then(|| energy.iter().map(whole).sum::<Option<f64>>())?
}

/// Bytes on each bus by what a byte takes, and the time by what the node takes at rest.
fn energy(plan: &SimSetup, counters: &Counters, span: Nanos) -> Vec<NodeEnergy> {
    let with_memory =
        plan.machine.nodes.iter().enumerate().filter(|(_, n)| n.capacity > Bytes::ZERO);
    let bytes = |pj: Option<u32>, bytes: u64| pj.map(|pj| f64::from(pj) * bytes as f64 * 1e-12);
    let of = |(index, node): (usize, &terrace_machine::Node)| NodeEnergy {
        node: node.id,
        read_joules: bytes(node.energy.read_pj_per_byte, counters.read_bytes[index]),
        write_joules: bytes(node.energy.write_pj_per_byte, counters.write_bytes[index]),
        static_joules: node.energy.static_mw.map(|mw| f64::from(mw) * 1e-3 * span.as_secs_f64()),
    };
    with_memory
        .map(of)
        .filter(|e| e.read_joules.or(e.write_joules).or(e.static_joules).is_some())
        .collect()
}

fn caches(plan: &SimSetup, c: &Counters) -> Vec<CacheCount> {
    let last = plan.machine.caches.iter().map(|l| l.level).max().unwrap_or(2);
    let misses: u64 = c.llc_misses().iter().sum();
    let first = CacheCount {
        level: 1,
        hits: c.loads + c.stores - c.l1_misses,
        misses: c.l1_misses,
        writebacks: c.l1_writebacks,
    };
    // Only a private level between the first and the last is modelled.
    let middle = plan.has_middle_cache().then(|| CacheCount {
        level: last - 1,
        hits: c.l2_hits,
        misses: c.l1_misses - c.l2_hits,
        writebacks: c.l2_writebacks,
    });
    let outer =
        CacheCount { level: last, hits: c.llc_hits, misses, writebacks: c.writebacks.iter().sum() };
    std::iter::once(first).chain(middle).chain([outer]).collect()
}
