//! One policy on one machine with one input, from start to end; and several of them on all cores of
//! the host.

use crate::bounds::{self, OracleMoves};
use crate::build::{FirstTouchPlacement, MachineMode, SimSetup};
use crate::error::SimError;
use crate::far::FarCount;
use crate::memory::Misses;
use crate::ports::{
    own_cpu, DamonScan, PageTableScan, PebsScan, PebsSettings, Shared, SimClock, SimJournal,
    SimMover, SimTarget, SoftDirtyScan,
};
use crate::world::World;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use terrace_engine::journal::JournalSummary;
use terrace_engine::{Config, Engine, EngineParts, EngineTuning, Journal, StopReason, Tracker};
use terrace_machine::{CoreModel, Machine, MigrationCost};
use terrace_model::Counters;
use terrace_policy::far::pager::PagerTuning;
use terrace_policy::heat::HeatTuning;
use terrace_policy::place::{CustomPolicy, Placement};
use terrace_types::{BaselineId, Bytes, Contender, Nanos, NodeId, PolicyId, Seed};

/// A span that no run reaches.
const FOR_EVER: Nanos = Nanos(u64::MAX / 2000);
const PAGE: u64 = 4096;
/// Evidence from samples that is so old counts for a third: one access in 199 for a second is only
/// five milliseconds of observing. MEMTIS halves its counts every 2 M samples (its kernel's
/// `htmm_cooling_period`), which is every seven seconds at 60 M events a second.
const SAMPLES_KEPT: Nanos = Nanos::secs(10);

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

/// Choices that are neither the machine's nor the input's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunOptions {
    /// Seed of the policies' and trackers' chance.
    pub seed: Seed,
    /// Share of one core for tracking, deciding and moving (0.03).
    pub cpu_share: f64,
    /// How accesses are seen.
    pub tracker: TrackerKind,
    /// Keep the engine's journal.
    pub journal: bool,
    /// What steers the engine.
    pub tuning: EngineTuning,
    /// What steers the heat map.
    pub heat: HeatTuning,
    /// What steers the pager, where a store is behind memory.
    pub pager: PagerTuning,
}

/// How accesses are seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TrackerKind {
    /// Accessed bits page by page, and soft-dirty bits: what Terrace takes live.
    #[default]
    PageTable,
    /// Samples by the processor.
    Pebs(PebsSettings),
    /// Regions, each judged by a page of it.
    Damon,
}

impl TrackerKind {
    /// All, by the names that `--tracker` takes.
    pub const NAMED: [(&'static str, Self); 3] = [
        ("page-table", Self::PageTable),
        ("pebs", Self::Pebs(PebsSettings::DEFAULT)),
        ("damon", Self::Damon),
    ];
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            seed: Seed(1),
            cpu_share: 0.03,
            tracker: TrackerKind::PageTable,
            journal: false,
            tuning: EngineTuning::default(),
            heat: HeatTuning::USUAL,
            pager: PagerTuning::USUAL,
        }
    }
}

/// What was moved by whom.
#[derive(Debug, Clone, Default)]
struct Moves {
    moved: OracleMoves,
    overhead: Nanos,
    summary: Option<JournalSummary>,
}

/// Runs `policy`.
///
/// # Errors
/// [`SimError`].
pub fn simulate(
    plan: &SimSetup,
    policy: &Contender,
    options: RunOptions,
) -> Result<SimRun, SimError> {
    match policy {
        Contender::Policy(PolicyId::FirstTouch) => alone(plan, policy, MachineMode::Plain),
        Contender::Policy(id) => simulate_placement(plan, policy, placement_of(plan, *id), options),
        Contender::Baseline(id) => match baseline_runner(*id) {
            Some(run) => run(plan, policy),
            None => Err(SimError::NotSimulated { baseline: *id, simulated: simulated_names() }),
        },
        Contender::FarStore(store) => behind(plan, policy, store, options.pager),
        Contender::Custom(name) => {
            Err(SimError::Inconsistent(format!("no function for policy {name}")))
        }
    }
}

/// Whether [`simulate`] can run it, given a machine with the store that it names.
#[must_use]
pub fn is_simulated(contender: &Contender) -> bool {
    match contender {
        Contender::Policy(_) | Contender::FarStore(_) => true,
        Contender::Baseline(id) => baseline_runner(*id).is_some(),
        Contender::Custom(_) => false,
    }
}

/// Names of all that can be simulated, for people.
fn simulated_names() -> String {
    let names = Contender::all().filter(is_simulated).map(|c| c.to_string());
    names.collect::<Vec<_>>().join(", ")
}

/// Simulates a baseline, called so in the result.
type BaselineRunner = fn(&SimSetup, &Contender) -> Result<SimRun, SimError>;

/// How a baseline is simulated; `None`: only a real kernel provides it.
fn baseline_runner(id: BaselineId) -> Option<BaselineRunner> {
    match id {
        BaselineId::AllFast => Some(|plan, name| alone(plan, name, MachineMode::AllFast)),
        BaselineId::MemoryMode => Some(|plan, name| alone(plan, name, MachineMode::MemoryMode)),
        BaselineId::StaticPlacement => Some(static_placement),
        BaselineId::Clairvoyant => Some(clairvoyant),
        BaselineId::IdealMove => Some(ideal_move),
        BaselineId::KernelNumaBalancing
        | BaselineId::KernelNumaBalancingTuned
        | BaselineId::KernelDamos
        | BaselineId::KernelDamosTuned
        | BaselineId::KernelWeightedInterleave
        | BaselineId::KernelReclaim => None,
    }
}

/// Runs a policy that comes from outside, called `name` in the result.
///
/// # Errors
/// [`SimError`].
pub fn simulate_custom(
    plan: &SimSetup,
    name: &str,
    policy: CustomPolicy,
    options: RunOptions,
) -> Result<SimRun, SimError> {
    let name = Contender::Custom(name.to_owned());
    simulate_placement(plan, &name, Placement::Custom(policy), options)
}

/// A run in which nobody moves anything.
fn alone(plan: &SimSetup, policy: &Contender, mode: MachineMode) -> Result<SimRun, SimError> {
    let mut world = plan.world(mode, FirstTouchPlacement::Nearest)?;
    world.pass(FOR_EVER);
    let mut run = result(plan, policy, &mut world, Moves::default())?;
    if mode == MachineMode::AllFast {
        run.fast_access_share = Some(1.0);
    }
    Ok(run)
}

/// The result of a world that somebody else has run to its program's end, called `policy` in it.
///
/// # Errors
/// [`SimError`]: wrong results, too little memory.
pub fn conclude(
    plan: &SimSetup,
    policy: &Contender,
    world: &mut World,
) -> Result<SimRun, SimError> {
    result(plan, policy, world, Moves::default())
}

/// What somebody does to a world before it begins, and sees of it when it has ended or was halted.
pub type WorldVisitors<'a> = (&'a mut dyn FnMut(&mut World), &'a mut dyn FnMut(&World));

/// Runs a placement policy, called `name` in the result, in a world that somebody else has to do
/// with, too. Moves nothing where there is one tier.
///
/// # Errors
/// [`SimError`].
pub fn simulate_with(
    plan: &SimSetup,
    (name, id): (&Contender, PolicyId),
    options: RunOptions,
    visitors: WorldVisitors<'_>,
) -> Result<SimRun, SimError> {
    managed_with(plan, name, placement_of(plan, id), options, visitors)
}

/// A run in the best tier's memory, with a store behind it.
fn behind(
    plan: &SimSetup,
    policy: &Contender,
    store: &str,
    tuning: PagerTuning,
) -> Result<SimRun, SimError> {
    let mut world = plan.paged_world(store, tuning)?;
    world.pass(FOR_EVER);
    let Some((counts, worked)) = world.far().map(|far| (far.counts(), far.worked())) else {
        return Err(SimError::Inconsistent("nothing lies behind memory".to_owned()));
    };
    let (promoted, demoted) = (counts.read_bytes / PAGE, counts.written_bytes / PAGE);
    let moved = OracleMoves { promoted, demoted, cost: worked };
    let mut run =
        result(plan, policy, &mut world, Moves { moved, overhead: worked, summary: None })?;
    let dram = world.memory.pools.iter().map(|pool| pool.frames() * PAGE).sum();
    run.far = Some(FarCount::from_counts(&counts, Bytes(dram)));
    Ok(run)
}

/// Indexes of the best and the worst tier's first nodes.
fn ends(plan: &SimSetup) -> (usize, usize) {
    let of = |tier: Option<&Vec<usize>>| tier.and_then(|t| t.first()).copied().unwrap_or(0);
    (of(plan.tiers.first()), of(plan.tiers.last()))
}

/// What a run in which nothing moves shows: all pages, and those of them that gain in the fast
/// node, best first.
fn profile(plan: &SimSetup) -> Result<(Vec<u64>, Vec<u64>), SimError> {
    let mut world = profiled(plan)?;
    world.proceed(Nanos::ZERO);
    world.pass(FOR_EVER);
    let misses = world.memory.take_misses();
    let pages = world.memory.present().map(|(vpn, _)| vpn).collect();
    Ok((pages, rank(plan, &world, &misses)))
}

/// Misses of the last-level cache by page in the phase that counts, in a run in which nothing
/// moves: what a placement can be made from. In the order of addresses; pages without any are left
/// out.
///
/// # Errors
/// [`SimError`].
pub fn profile_misses(plan: &SimSetup) -> Result<Vec<(u64, Misses)>, SimError> {
    let mut world = profiled(plan)?;
    world.proceed(Nanos::ZERO);
    world.pass(FOR_EVER);
    Ok(world.memory.take_misses())
}

/// A world that counts misses by page and waits at the begin of the phase that counts.
fn profiled(plan: &SimSetup) -> Result<World, SimError> {
    let mut world = plan.world(MachineMode::Plain, FirstTouchPlacement::Nearest)?;
    world.stops.at_begin = true;
    world.pass(FOR_EVER);
    world.memory.profile();
    Ok(world)
}

fn rank(plan: &SimSetup, world: &World, misses: &bounds::MissProfile) -> Vec<u64> {
    let (fast, slow) = ends(plan);
    let links = &world.engine().params().links[0];
    bounds::ranked(misses, &links[fast], &links[slow])
}

/// The best static placement, in place from the start.
fn static_placement(plan: &SimSetup, policy: &Contender) -> Result<SimRun, SimError> {
    let (pages, ranking) = profile(plan)?;
    let (fast, slow) = ends(plan);
    let places = bounds::placed(&pages, &ranking, plan.usable(fast) / PAGE, fast, slow);
    let mut world =
        plan.world(MachineMode::Plain, FirstTouchPlacement::Placed(Arc::new(places)))?;
    world.pass(FOR_EVER);
    result(plan, policy, &mut world, Moves::default())
}

/// Accesses of the first intervals; they are joined in pairs where there would be more than
/// [`MAX_INTERVALS`].
const SAMPLING_INTERVAL: u64 = 1 << 18;
const MAX_INTERVALS: usize = 256;

/// Misses of one interval by page.
type Window = Vec<(u64, Misses)>;

/// Misses by page and interval in a run in which nothing moves, and the intervals' length in
/// accesses.
fn foresee(plan: &SimSetup) -> Result<(Vec<Window>, u64), SimError> {
    let mut world = profiled(plan)?;
    let (mut intervals, mut length) = (Vec::new(), SAMPLING_INTERVAL);
    while !world.ended() {
        world.stops.after_accesses = world.accesses() + length;
        world.proceed(Nanos::ZERO);
        world.pass(FOR_EVER);
        intervals.push(world.memory.take_misses());
        if !world.ended() && !world.stopped() {
            return Err(SimError::Inconsistent("the program came to a halt".to_owned()));
        }
        if intervals.len() == MAX_INTERVALS {
            intervals = intervals.chunks(2).map(joined).collect();
            length *= 2;
        }
    }
    Ok((intervals, length))
}

/// Two intervals as one.
fn joined(pair: &[Window]) -> Window {
    let mut sum: BTreeMap<u64, Misses> = BTreeMap::new();
    for (vpn, m) in pair.iter().flatten() {
        let page = sum.entry(*vpn).or_default();
        page.reads = page.reads.saturating_add(m.reads);
        page.writes = page.writes.saturating_add(m.writes);
    }
    sum.into_iter().collect()
}

/// Before each interval, the pages that will gain most in it are put into the fast node, for
/// nothing; pages that are born in it are born where they belong in it.
///
/// What it is a bound of: policies that move whole pages when an interval begins (256 Ki accesses,
/// or so many that there are 256 intervals at most) and rank them by what their misses save. It
/// pays nothing for moving, copying, or dropped translations. What it is not: an optimum. The
/// intervals' misses are those of a run under first touch, and pages are ranked one by one, so that
/// it can be beaten by who moves within an interval, by who divides misses between two buses, or
/// where a page's misses overlap with others so that they cost little. And no policy that pays
/// comes near it where the hot set changes from interval to interval.
fn clairvoyant(plan: &SimSetup, policy: &Contender) -> Result<SimRun, SimError> {
    let (intervals, length) = foresee(plan)?;
    let (fast, slow) = ends(plan);
    let mut world = plan.world(MachineMode::Plain, FirstTouchPlacement::Nearest)?;
    world.stops.at_begin = true;
    world.pass(FOR_EVER);
    let free = MigrationCost { call: Nanos::ZERO, page: Nanos::ZERO, ..MigrationCost::default() };
    let mut moved = OracleMoves::default();
    for misses in &intervals {
        if world.ended() {
            break;
        }
        let ranking = rank(plan, &world, misses);
        let pages: Vec<u64> = misses.iter().map(|m| m.0).collect();
        let places = bounds::placed(&pages, &ranking, plan.usable(fast) / PAGE, fast, slow);
        world.memory.set_first_touch_nodes(Arc::new(places));
        let step = bounds::place(&mut world.memory, &ranking, fast, slow, free);
        moved.promoted += step.promoted;
        moved.demoted += step.demoted;
        world.flush_translations();
        world.stops.after_accesses = world.accesses() + length;
        world.proceed(Nanos::ZERO);
        world.pass(FOR_EVER);
    }
    // Threads may take turns otherwise than in the run that was foreseen: what is left, if
    // anything, runs as it lies.
    world.stops.after_accesses = u64::MAX;
    world.proceed(Nanos::ZERO);
    world.pass(FOR_EVER);
    result(plan, policy, &mut world, Moves { moved, ..Moves::default() })
}

/// The best static placement, made once while the program waits at the begin of its phase: it pays
/// for finding out where its pages are and for moving them.
///
/// A recording is all phase: nothing is in memory when it begins, so nothing is moved.
fn ideal_move(plan: &SimSetup, policy: &Contender) -> Result<SimRun, SimError> {
    let (_, ranking) = profile(plan)?;
    let (fast, slow) = ends(plan);
    let mut world = plan.world(MachineMode::Plain, FirstTouchPlacement::Nearest)?;
    world.stops.at_begin = true;
    world.pass(FOR_EVER);
    let moved = bounds::place(&mut world.memory, &ranking, fast, slow, plan.machine.migration);
    world.flush_translations();
    let mapped: u64 = world.memory.mappings().map(|range| range.len()).sum();
    world.proceed(moved.cost + world.costs.query_pages().worked(mapped));
    world.pass(FOR_EVER);
    result(plan, policy, &mut world, Moves { moved, ..Moves::default() })
}

/// A policy for the machine as it finds it there: no kernel tells how many misses a core has under
/// way, and latencies and bandwidths are in its tables (HMAT).
#[must_use]
pub fn placement_of(plan: &SimSetup, id: PolicyId) -> Placement {
    let machine = Machine { core: CoreModel::default(), ..plan.machine.clone() };
    Placement::new(id, &machine)
}

/// Runs a policy, whatever its parameters, called `policy` in the result: under the engine, with
/// the very policy that runs live.
///
/// # Errors
/// [`SimError`].
pub fn simulate_placement(
    plan: &SimSetup,
    policy: &Contender,
    placement: Placement,
    options: RunOptions,
) -> Result<SimRun, SimError> {
    if plan.tiers.len() < 2 {
        // As live: nothing is managed where there is nothing to place.
        return alone(plan, policy, MachineMode::Plain);
    }
    managed_with(plan, policy, placement, options, (&mut |_| (), &mut |_| ()))
}

fn managed_with(
    plan: &SimSetup,
    policy: &Contender,
    placement: Placement,
    options: RunOptions,
    (begin, end): WorldVisitors<'_>,
) -> Result<SimRun, SimError> {
    let first_touch_placement = match (placement.starts_slow(), placement.wants_huge_pages()) {
        (true, _) => FirstTouchPlacement::Slow,
        (_, true) => FirstTouchPlacement::Huge,
        _ => FirstTouchPlacement::Nearest,
    };
    let mut world = plan.world(MachineMode::Plain, first_touch_placement)?;
    world.start_daemon(&plan.spare_pages);
    begin(&mut world);
    let world: Shared = Rc::new(RefCell::new(world));
    let trackers: Vec<Box<dyn Tracker>> = match options.tracker {
        TrackerKind::PageTable => vec![
            Box::new(PageTableScan::new(world.clone())),
            Box::new(SoftDirtyScan::new(world.clone(), options.cpu_share)),
        ],
        TrackerKind::Pebs(settings) => {
            let (world, share) = (world.clone(), options.cpu_share);
            vec![Box::new(PebsScan::new(world, &plan.ids, share, settings))]
        }
        TrackerKind::Damon => vec![Box::new(DamonScan::new(world.clone(), options.seed))],
    };
    let journal = SimJournal::default();
    let parts = EngineParts {
        clock: Box::new(SimClock(world.clone())),
        trackers,
        target: Box::new(SimTarget::new(world.clone(), plan.ids.clone(), &plan.tiers)),
        mover: Box::new(SimMover::new(world.clone(), plan.ids.clone(), plan.machine.migration)),
        journal: options.journal.then(|| Box::new(journal.clone()) as Box<dyn Journal>),
        placement,
        machine: plan.machine.clone(),
        own_cpu: own_cpu(&world),
    };
    let command = format!("{} (simulated)", plan.input);
    let mut config = Config {
        command,
        tracking_share: options.cpu_share,
        seed: options.seed,
        tuning: options.tuning,
        ..Config::default()
    };
    config.heat.tuning = options.heat;
    if matches!(options.tracker, TrackerKind::Pebs(_)) {
        config.heat.memory = SAMPLES_KEPT;
    }
    let mut engine = Engine::new(parts, config);
    let halted = world.clone();
    let (summary, stop) = engine.run(move |_| halted.borrow().is_halted());
    if let Some(stop @ StopReason::Missing { .. }) = stop {
        return Err(SimError::Needs(stop.to_string()));
    }
    drop(engine);
    let moved = OracleMoves {
        promoted: summary.promoted_pages,
        demoted: summary.demoted_pages,
        cost: Nanos(summary.moving_ns),
    };
    let overhead = Nanos(summary.tracking_cpu_ns + summary.deciding_cpu_ns);
    let mut world = world.borrow_mut();
    // An engine that stopped early leaves the program running.
    world.pass(FOR_EVER);
    end(&world);
    let mut run =
        result(plan, policy, &mut world, Moves { moved, overhead, summary: Some(summary) })?;
    run.journal = options.journal.then(|| journal.text());
    Ok(run)
}

fn result(
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

/// Runs each task on one of `workers` threads; results in the order of the tasks.
///
/// # Errors
/// The first, by the order of the tasks.
pub fn all<T: Sync>(
    tasks: &[T],
    workers: usize,
    run: impl Fn(&T) -> Result<SimRun, SimError> + Sync,
) -> Result<Vec<SimRun>, SimError> {
    let next = Mutex::new(0..tasks.len());
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..workers.clamp(1, tasks.len().max(1)) {
            let (take, done) = (|| next.lock().ok().and_then(|mut n| n.next()), &done);
            let (run, tasks) = (&run, &tasks);
            scope.spawn(move || {
                while let Some(at) = take() {
                    let outcome = run(&tasks[at]);
                    if let Ok(mut done) = done.lock() {
                        done.push((at, outcome));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|d| d.0);
    done.into_iter().map(|d| d.1).collect()
}
