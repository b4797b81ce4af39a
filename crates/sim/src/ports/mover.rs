//! Moves pages of the simulated process as `move_pages` does on Linux, in batches as the live mover makes them.

use super::{costs, Shared};
use crate::memory::ABSENT;
use crate::world::World;
use std::collections::BTreeMap;
use terrace_engine::{MoveFailure, MoveLimits, MoveOutcome, Mover};
use terrace_machine::MigrationCost;
use terrace_model::PS;
use terrace_types::{Bytes, Move, MoveReason, Nanos, NodeId, Vpn};

/// Most base pages in one call, as live.
const BIGGEST_BATCH: u64 = 16_384;
/// Base pages that the kernel unmaps, copies and maps again together (`NR_MAX_BATCHED_MIGRATION`, `mm/migrate.c`).
const TOGETHER: usize = 512;
/// Of what a page costs, the parts before it is unmapped (taken off its list) and until all of its group are unmapped;
/// the rest is copying and mapping, one after the other. Estimates: nothing that was measured tells them apart.
const ISOLATING: (u64, u64) = (15, 100);
const UNMAPPING: (u64, u64) = (25, 100);
/// A base page.
const PAGE: u64 = 4096;

/// What moves as one.
#[derive(Debug, Clone, Copy)]
struct Unit {
    /// Its first base page, and the index of that.
    vpn: u64,
    head: Option<usize>,
    pages: u64,
    /// Which move asked for it.
    of: usize,
    fate: Option<Result<(), MoveFailure>>,
}

/// The mover of a world.
#[derive(Debug)]
pub struct SimMover {
    world: Shared,
    ids: Vec<NodeId>,
    cost: MigrationCost,
}

/// One `apply` under way.
struct Run<'a> {
    moves: &'a [Move],
    limits: &'a MoveLimits,
    units: Vec<Unit>,
    outcome: MoveOutcome,
    moved: u64,
}

impl SimMover {
    /// Of this world; `ids` are its nodes' names.
    #[must_use]
    pub fn new(world: Shared, ids: Vec<NodeId>, cost: MigrationCost) -> Self {
        Self { world, ids, cost }
    }

    fn units(&self, world: &World, moves: &[Move]) -> Vec<Unit> {
        let mut units = Vec::new();
        let mut hint = 0;
        for (of, m) in moves.iter().enumerate() {
            let mut vpn = m.start.0;
            while vpn < m.range().end.0 {
                let index = world.memory.index(vpn, &mut hint);
                let head = index.map(|i| world.memory.head(i));
                let whole = index.map_or(1, |i| world.memory.span(i) as u64);
                let part = index.map_or(0, |i| u64::from(world.memory.pages[i].part));
                let pages = (whole - part).min(m.range().end.0 - vpn);
                units.push(Unit { vpn, head, pages, of, fate: None });
                vpn += pages;
            }
        }
        units
    }

    /// Base pages of one call: three quarters of the time that a call may take.
    fn batch(&self, limits: &MoveLimits) -> u64 {
        (limits.longest_call.get() * 3 / 4 / self.cost.page.get().max(1)).clamp(1, BIGGEST_BATCH)
    }

    /// One call for the units `which`, all to one node.
    fn call(&self, world: &mut World, run: &mut Run<'_>, which: &[usize]) {
        let Some(first) = which.first() else { return };
        let id = run.moves[run.units[*first].of].to;
        let pages = which.iter().flat_map(|u| (run.units[*u].vpn..).take(run.units[*u].pages as usize));
        world.visit(pages, costs::QUERYING);
        run.outcome.tried += which.iter().map(|u| run.units[*u].pages).sum::<u64>();
        let Some(to) = self.ids.iter().position(|n| *n == id) else {
            which.iter().for_each(|u| run.units[*u].fate = Some(Err(MoveFailure::NotAllowed)));
            return;
        };
        let mut left = Vec::with_capacity(which.len());
        for u in which {
            let fate = run.units[*u].head.map(|h| world.memory.pages[h]);
            match fate {
                None => run.units[*u].fate = Some(Err(MoveFailure::Gone)),
                Some(p) if p.frame == ABSENT => run.units[*u].fate = Some(Err(MoveFailure::NotPresent)),
                Some(p) if p.node as usize == to => run.units[*u].fate = Some(Err(MoveFailure::AlreadyThere)),
                Some(_) => left.push(*u),
            }
        }
        if left.is_empty() {
            return;
        }
        let begun = world.now();
        let asked: u64 = left.iter().map(|u| run.units[*u].pages).sum();
        world.charge(self.cost.call + part(self.cost.page, asked, ISOLATING));
        let mut group = Vec::new();
        let mut size = 0;
        for u in left {
            group.push(u);
            size += run.units[u].pages as usize;
            if size >= TOGETHER {
                self.group(world, run, &std::mem::take(&mut group), to);
                size = 0;
            }
        }
        self.group(world, run, &group, to);
        let took = world.now().since(begun);
        run.outcome.calls += 1;
        run.outcome.cost += took;
        run.outcome.longest_call = run.outcome.longest_call.max(took);
    }

    /// Pages that the kernel unmaps together and copies one after the other. Who touches one waits for it, as long as that takes where
    /// buses are idle.
    fn group(&self, world: &mut World, run: &mut Run<'_>, which: &[usize], to: usize) {
        let pages: u64 = which.iter().map(|u| run.units[*u].pages).sum();
        if pages == 0 {
            return;
        }
        let unmapping = part(self.cost.page, pages, UNMAPPING);
        let copying = (100 - ISOLATING.0 - UNMAPPING.0, 100);
        let start = world.now();
        world.memory.cpu = world.manager_core;
        let mut done = 0;
        let mut copies = Vec::with_capacity(which.len());
        for u in which {
            let unit = run.units[*u];
            let Some(head) = unit.head else { continue };
            let from = u64::from(world.memory.pages[head].frame);
            done += unit.pages;
            let ready = start.after(unmapping + part(self.cost.page, done, copying));
            if world.memory.relocate(head, to, ready.0.saturating_mul(PS)) {
                world.shoot_down(unit.vpn);
                copies.push((from, u64::from(world.memory.pages[head].frame), unit.pages));
                run.units[*u].fate = Some(Ok(()));
                run.moved += unit.pages;
            } else {
                run.units[*u].fate = Some(Err(MoveFailure::NodeFull));
            }
        }
        world.interrupt(costs::SHOOT_DOWN);
        world.charge(unmapping);
        // What the machine file says is with idle buses; those that others use keep a copy longer.
        for (from, to, pages) in copies {
            let took = world.copy(from, to, pages * PAGE);
            world.charge(part(self.cost.page, pages, copying).max(took));
        }
    }

    /// How many of `units` from the first on go into one call of at most `most` pages.
    fn take(run: &Run<'_>, units: &[usize], most: u64) -> usize {
        let key = |u: usize| (run.moves[run.units[u].of].to, run.moves[run.units[u].of].from);
        let mut pages = 0;
        let fits = units.iter().take_while(|u| {
            pages += run.units[**u].pages;
            key(**u) == key(units[0]) && (pages <= most || pages == run.units[**u].pages)
        });
        fits.count()
    }

    fn in_order(&self, world: &mut World, run: &mut Run<'_>, units: &[usize]) {
        let (mut rest, mut before) = (units, None);
        while !rest.is_empty() && may_go_on(world, run) {
            let taken = Self::take(run, rest, self.batch(run.limits));
            let m = &run.moves[run.units[rest[0]].of];
            // As live (ADR 0182): pages that go down lie on lists of the CPU on which those must be that take their room.
            if before.replace(m.to) != Some(m.to) && m.reason == MoveReason::Cold {
                world.take_turn();
            }
            self.call(world, run, &rest[..taken]);
            rest = &rest[taken..];
        }
    }

    /// One batch down, then as many pages up, until either is used up.
    fn exchange(&self, world: &mut World, run: &mut Run<'_>, down: &[usize], up: &[usize]) {
        let (mut down, mut up) = (down, up);
        while !down.is_empty() && !up.is_empty() && may_go_on(world, run) {
            let taken = Self::take(run, down, self.batch(run.limits));
            let before = run.moved;
            world.take_turn();
            self.call(world, run, &down[..taken]);
            down = &down[taken..];
            let mut room = run.moved - before;
            while room > 0 && !up.is_empty() && may_go_on(world, run) {
                let taken = Self::take(run, up, room.min(self.batch(run.limits)));
                let before = run.moved;
                self.call(world, run, &up[..taken]);
                up = &up[taken..];
                if run.moved == before {
                    break;
                }
                room = room.saturating_sub(run.moved - before);
            }
        }
    }
}

/// Waits for the rate; whether there is time left.
fn may_go_on(world: &mut World, run: &Run<'_>) -> bool {
    if let Some(rate) = run.limits.rate {
        match rate.time_for(Bytes(run.moved * PAGE)) {
            Some(due) if due <= run.limits.total => {
                let early = due.saturating_sub(run.outcome.cost);
                world.pass(early);
            }
            _ => return false,
        }
    }
    run.outcome.cost < run.limits.total && !world.ended()
}

fn part(page: Nanos, pages: u64, share: (u64, u64)) -> Nanos {
    Nanos(page.get() * pages * share.0 / share.1)
}

impl Mover for SimMover {
    fn apply(&mut self, moves: &[Move], exchange: bool, limits: &MoveLimits) -> MoveOutcome {
        let shared = self.world.clone();
        let mut world = shared.borrow_mut();
        let units = self.units(&world, moves);
        let mut run = Run { moves, limits, units, outcome: MoveOutcome::default(), moved: 0 };
        let is_down = |u: &usize| moves[run.units[*u].of].reason == MoveReason::Cold;
        let all: Vec<usize> = (0..run.units.len()).collect();
        let (down, up): (Vec<usize>, Vec<usize>) = all.iter().partition(|u| is_down(u));
        if exchange && !down.is_empty() && !up.is_empty() {
            self.exchange(&mut world, &mut run, &down, &up);
        } else {
            self.in_order(&mut world, &mut run, &all);
        }
        run.close()
    }
}

impl Run<'_> {
    fn close(mut self) -> MoveOutcome {
        let mut failed: BTreeMap<MoveFailure, u64> = BTreeMap::new();
        let mut moved: BTreeMap<NodeId, u64> = BTreeMap::new();
        for unit in &self.units {
            let m = &self.moves[unit.of];
            match unit.fate.unwrap_or(Err(MoveFailure::OutOfTime)) {
                Err(why) => *failed.entry(why).or_default() += unit.pages,
                Ok(()) => {
                    *moved.entry(m.to).or_default() += unit.pages;
                    match self.outcome.done.last_mut() {
                        Some(last) if last.to == m.to && last.from == m.from && last.range().end.0 == unit.vpn => {
                            last.pages += unit.pages as u32;
                        }
                        _ => {
                            let (start, pages) = (Vpn(unit.vpn), unit.pages as u32);
                            self.outcome.done.push(Move { start, pages, ..*m });
                        }
                    }
                }
            }
        }
        self.outcome.moved = moved.into_iter().collect();
        self.outcome.failed = failed.into_iter().collect();
        self.outcome
    }
}
