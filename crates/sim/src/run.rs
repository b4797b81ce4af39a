//! One policy on one machine with one input, from start to end; and several of them on all cores of the host.

use crate::bounds::{self, Moved};
use crate::build::{Births, Mode, Plan};
use crate::error::SimError;
use crate::ports::{own_cpu, PageTableScan, Shared, SimClock, SimMover, SimTarget, SoftDirtyScan};
use crate::world::World;
use serde::Serialize;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Mutex;
use terrace_engine::journal::Summary;
use terrace_engine::{Config, Engine, Parts, Stop, Tracker};
use terrace_model::Counters;
use terrace_policy::place::Placement;
use terrace_types::{Bytes, Nanos, Seed};

/// What is no policy: bounds, and the fast node as a cache.
pub const BOUNDS: [&str; 4] = ["bound:static", "bound:ideal-move", "bound:all-fast", "hardware:memory-mode"];
/// A span that no run reaches.
const FOR_EVER: Nanos = Nanos(u64::MAX / 2000);
const PAGE: u64 = 4096;

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
pub struct Run {
    /// Its name.
    pub policy: String,
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
    /// Energy of memory, where the machine file tells.
    pub energy_joules: Option<f64>,
    /// Caches, nearest first, counted before tiers.
    pub caches: Vec<CacheCount>,
    /// Accesses of the phase that counts, as the workload counts them.
    #[serde(skip)]
    pub accesses: u64,
    /// The engine's account, where one ran.
    #[serde(skip)]
    pub summary: Option<Summary>,
}

/// Choices that are neither the machine's nor the input's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Seed of the policies' and trackers' chance.
    pub seed: Seed,
    /// Share of one core for tracking and deciding (0.03).
    pub cpu_share: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: Seed(1), cpu_share: 0.03 }
    }
}

/// What was moved by whom.
#[derive(Debug, Clone, Default)]
struct Moves {
    moved: Moved,
    overhead: Nanos,
    summary: Option<Summary>,
}

/// Runs `policy`.
///
/// # Errors
/// [`SimError`].
pub fn simulate(plan: &Plan, policy: &str, options: Options) -> Result<Run, SimError> {
    match policy {
        "first-touch" => alone(plan, policy, Mode::Plain),
        "bound:all-fast" => alone(plan, policy, Mode::AllFast),
        "hardware:memory-mode" => alone(plan, policy, Mode::MemoryMode),
        "bound:static" => {
            let ranking = profile(plan)?;
            let (fast, slow) = ends(plan);
            let world = plan.world(Mode::Plain, Births::Nearest)?;
            let nodes = bounds::placed(world.memory.pages.len(), &ranking, plan.usable(fast) / PAGE, fast, slow);
            let mut world = plan.world(Mode::Plain, Births::Placed(nodes))?;
            world.pass(FOR_EVER);
            result(plan, policy, &mut world, Moves::default())
        }
        "bound:ideal-move" => ideal_move(plan, policy),
        _ => managed(plan, policy, options),
    }
}

/// A run in which nobody moves anything.
fn alone(plan: &Plan, policy: &str, mode: Mode) -> Result<Run, SimError> {
    let mut world = plan.world(mode, Births::Nearest)?;
    world.pass(FOR_EVER);
    let mut run = result(plan, policy, &mut world, Moves::default())?;
    if mode == Mode::AllFast {
        run.fast_access_share = Some(1.0);
    }
    Ok(run)
}

/// Indexes of the best and the worst tier's first nodes.
fn ends(plan: &Plan) -> (usize, usize) {
    let of = |tier: Option<&Vec<usize>>| tier.and_then(|t| t.first()).copied().unwrap_or(0);
    (of(plan.tiers.first()), of(plan.tiers.last()))
}

/// Pages by what they would gain in the fast node, from a run in which nothing moves.
fn profile(plan: &Plan) -> Result<Vec<usize>, SimError> {
    let mut world = plan.world(Mode::Plain, Births::Nearest)?;
    world.stop_at_begin = true;
    world.pass(FOR_EVER);
    world.memory.profile();
    world.proceed(Nanos::ZERO);
    world.pass(FOR_EVER);
    let (fast, slow) = ends(plan);
    let links = &world.engine().params().links[0];
    let misses = world.memory.misses.as_deref().unwrap_or_default();
    Ok(bounds::ranked(misses, &links[fast], &links[slow]))
}

/// The best static placement, made once while the program waits at the begin of its phase.
fn ideal_move(plan: &Plan, policy: &str) -> Result<Run, SimError> {
    let ranking = profile(plan)?;
    let (fast, slow) = ends(plan);
    let mut world = plan.world(Mode::Plain, Births::Nearest)?;
    world.stop_at_begin = true;
    world.pass(FOR_EVER);
    let moved = bounds::place(&mut world.memory, &ranking, fast, slow, plan.machine.migration);
    world.flush_translations();
    world.proceed(moved.cost);
    world.pass(FOR_EVER);
    result(plan, policy, &mut world, Moves { moved, ..Moves::default() })
}

/// A run under the engine, with the very policy that runs live.
fn managed(plan: &Plan, policy: &str, options: Options) -> Result<Run, SimError> {
    let placement = Placement::named(policy, &plan.machine).map_err(SimError::Policy)?;
    let births = match (placement.starts_slow(), placement.wants_huge_pages()) {
        (true, _) => Births::Slow,
        (_, true) => Births::Huge,
        _ => Births::Nearest,
    };
    let world: Shared = Rc::new(RefCell::new(plan.world(Mode::Plain, births)?));
    let trackers: Vec<Box<dyn Tracker>> = vec![
        Box::new(PageTableScan::new(world.clone())),
        Box::new(SoftDirtyScan::new(world.clone(), options.cpu_share)),
    ];
    let parts = Parts {
        clock: Box::new(SimClock(world.clone())),
        trackers,
        target: Box::new(SimTarget::new(world.clone(), plan.ids.clone(), &plan.tiers)),
        mover: Box::new(SimMover::new(world.clone(), plan.ids.clone(), plan.machine.migration)),
        journal: None,
        placement,
        machine: plan.machine.clone(),
        own_cpu: own_cpu(&world),
    };
    let config = Config { tracking_share: options.cpu_share, seed: options.seed, ..Config::default() };
    let mut engine = Engine::new(parts, config);
    let (summary, stop) = engine.run(|_| false);
    if let Some(stop @ Stop::Missing { .. }) = stop {
        return Err(SimError::Needs(stop.to_string()));
    }
    drop(engine);
    let moved =
        Moved { promoted: summary.promoted_pages, demoted: summary.demoted_pages, cost: Nanos(summary.moving_ns) };
    let overhead = Nanos(summary.tracking_cpu_ns + summary.deciding_cpu_ns);
    let mut world = world.borrow_mut();
    // An engine that stopped early leaves the program running.
    world.pass(FOR_EVER);
    result(plan, policy, &mut world, Moves { moved, overhead, summary: Some(summary) })
}

fn result(plan: &Plan, policy: &str, world: &mut World, moves: Moves) -> Result<Run, SimError> {
    let accesses = world.finish().map_err(SimError::Wrong)?;
    if world.memory.refused > 0 {
        let have: u64 = world.memory.pools.iter().map(|p| p.frames() * PAGE).sum();
        return Err(SimError::TooSmall {
            machine: plan.machine.name.clone(),
            input: plan.input.to_string(),
            have: Bytes(have),
            need: Bytes(have + world.memory.refused * PAGE),
        });
    }
    let (span, counters) =
        world.measured.result().ok_or_else(|| SimError::Wrong("the measured phase did not end".to_owned()))?;
    let served = counters.llc_misses();
    let fast: u64 = plan.tiers.first().into_iter().flatten().map(|n| served[*n]).sum();
    let all: u64 = served.iter().sum();
    let migrated = match &moves.summary {
        Some(summary) => summary.migrated_bytes,
        None => (moves.moved.promoted + moves.moved.demoted) * PAGE,
    };
    Ok(Run {
        policy: policy.to_owned(),
        seconds: span.as_secs_f64(),
        fast_access_share: (all > 0).then(|| fast as f64 / all as f64),
        promoted_pages: Some(moves.moved.promoted),
        demoted_pages: Some(moves.moved.demoted),
        migrated_bytes: Some(migrated),
        overhead_seconds: Some(moves.overhead.as_secs_f64()),
        energy_joules: None,
        caches: caches(plan, &counters),
        accesses,
        summary: moves.summary,
    })
}

fn caches(plan: &Plan, c: &Counters) -> Vec<CacheCount> {
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
    let outer = CacheCount { level: last, hits: c.llc_hits, misses, writebacks: c.writebacks.iter().sum() };
    std::iter::once(first).chain(middle).chain([outer]).collect()
}

/// Runs each task on one of `workers` threads; results in the order of the tasks.
///
/// # Errors
/// The first, by the order of the tasks.
pub fn all<T: Sync>(
    tasks: &[T],
    workers: usize,
    run: impl Fn(&T) -> Result<Run, SimError> + Sync,
) -> Result<Vec<Run>, SimError> {
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
