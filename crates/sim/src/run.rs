//! One policy on one machine with one input, from start to end; and several of them on all cores of
//! the host.

mod oracles;
mod outcome;

pub use oracles::profile_misses;
pub use outcome::{CacheCount, NodeEnergy, SimRun};

use crate::bounds::OracleMoves;
use crate::build::{FirstTouchPlacement, MachineMode, SimSetup};
use crate::error::SimError;
use crate::far::FarCount;
use crate::ports::{
    own_cpu, DamonScan, PageTableScan, PebsScan, PebsSettings, Shared, SimClock, SimJournal,
    SimMover, SimTarget, SoftDirtyScan,
};
use crate::world::World;
use oracles::{clairvoyant, ideal_move, static_placement};
use outcome::{result, Moves, PAGE};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Mutex;
use terrace_engine::{Config, Engine, EngineParts, EngineTuning, Journal, StopReason, Tracker};
use terrace_machine::{CoreModel, Machine};
use terrace_policy::far::pager::PagerTuning;
use terrace_policy::heat::HeatTuning;
use terrace_policy::place::{CustomPolicy, Placement};
use terrace_types::{BaselineId, Bytes, Contender, Nanos, PolicyId, Seed};

/// A span that no run reaches.
const FOR_EVER: Nanos = Nanos(u64::MAX / 2000);
/// Evidence from samples that is so old counts for a third: one access in 199 for a second is only
/// five milliseconds of observing. MEMTIS halves its counts every 2 M samples (its kernel's
/// `htmm_cooling_period`), which is every seven seconds at 60 M events a second.
const SAMPLES_KEPT: Nanos = Nanos::secs(10);

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

/// What a program takes whose memory is the machine's slowest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowMemoryRun {
    /// Modelled seconds of the phase that counts.
    pub seconds: f64,
    /// Bytes written on the buses of all nodes.
    pub written_bytes: u64,
}

/// Runs the input with its memory on the worst tier, as persistent memory is, and on the next one
/// where that is full; nobody moves anything.
///
/// # Errors
/// [`SimError`].
pub fn simulate_in_slow_memory(plan: &SimSetup) -> Result<SlowMemoryRun, SimError> {
    let mut world = plan.world(MachineMode::Plain, FirstTouchPlacement::Slow)?;
    world.pass(FOR_EVER);
    let name = Contender::Policy(PolicyId::FirstTouch);
    let run = result(plan, &name, &mut world, Moves::default())?;
    let written = (0..plan.ids.len()).map(|node| world.engine().bus_bytes(node).written);
    Ok(SlowMemoryRun { seconds: run.seconds, written_bytes: written.sum() })
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
