//! Placements that know more than a policy can, to compare policies with.

use super::outcome::{result, Moves, SimRun, PAGE};
use super::FOR_EVER;
use crate::bounds::{self, OracleMoves};
use crate::build::{FirstTouchPlacement, MachineMode, SimSetup};
use crate::error::SimError;
use crate::memory::Misses;
use crate::world::World;
use std::collections::BTreeMap;
use std::sync::Arc;
use terrace_machine::MigrationCost;
use terrace_types::{Contender, Nanos};

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
pub(super) fn static_placement(plan: &SimSetup, policy: &Contender) -> Result<SimRun, SimError> {
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
/// nothing; pages first touched in it are where they belong in it from the beginning.
///
/// What it is a bound of: policies that move whole pages when an interval begins (256 Ki accesses,
/// or so many that there are 256 intervals at most) and rank them by what their misses save. It
/// pays nothing for moving, copying, or dropped translations. What it is not: an optimum. The
/// intervals' misses are those of a run under first touch, and pages are ranked one by one, so that
/// it can be beaten by who moves within an interval, by who divides misses between two buses, or
/// where a page's misses overlap with others so that they cost little. And no policy that pays
/// comes near it where the hot set changes from interval to interval.
pub(super) fn clairvoyant(plan: &SimSetup, policy: &Contender) -> Result<SimRun, SimError> {
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
pub(super) fn ideal_move(plan: &SimSetup, policy: &Contender) -> Result<SimRun, SimError> {
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
