//! Moves pages of the simulated process as `move_pages` does on Linux, in batches as the live mover
//! makes them.

use super::{costs, Shared};
use crate::kernel::RecordVisit;
use crate::memory::{ABSENT, UNTIL_TOLD};
use crate::world::World;
use std::collections::BTreeMap;
use terrace_engine::{MoveFailure, MoveLimits, MoveOutcome, Mover};
use terrace_machine::MigrationCost;
use terrace_model::{MemorySystem, ModelParams, PS};
use terrace_types::{Bytes, Move, MoveReason, Nanos, NodeId, Vpn};

/// Most base pages in one call, as live.
const BIGGEST_BATCH: u64 = 16_384;
/// Base pages that the kernel unmaps, copies and maps again together (`NR_MAX_BATCHED_MIGRATION`,
/// `mm/migrate.c`).
const TOGETHER: usize = 512;
/// Of what a page costs, the parts before it is unmapped (taken off its list) and until all of its
/// group are unmapped; the rest is copying and mapping, one after the other. Estimates: nothing
/// that was measured tells them apart.
const ISOLATING: (u64, u64) = (15, 100);
const UNMAPPING: (u64, u64) = (25, 100);
const COPYING: (u64, u64) = (100 - ISOLATING.0 - UNMAPPING.0, 100);
/// A base page.
const PAGE: u64 = 4096;

/// What moves as one.
#[derive(Debug, Clone, Copy)]
struct MovedPage {
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
    /// What of a page's cost is waiting for memory where nobody else uses it, by the nodes that it
    /// goes from and to.
    idle: BTreeMap<(usize, usize), Nanos>,
    /// What a page is expected to take, by the calls so far; as the live mover learns it, so that
    /// calls are as large.
    page_cost: Option<Nanos>,
}

/// One `apply` under way.
struct ApplyRun<'a> {
    moves: &'a [Move],
    limits: &'a MoveLimits,
    units: Vec<MovedPage>,
    outcome: MoveOutcome,
    moved: u64,
}

impl SimMover {
    /// Of this world; `ids` are its nodes' names.
    #[must_use]
    pub fn new(world: Shared, ids: Vec<NodeId>, cost: MigrationCost) -> Self {
        Self { world, ids, cost, page_cost: None, idle: BTreeMap::new() }
    }

    fn units(&self, world: &World, moves: &[Move]) -> Vec<MovedPage> {
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
                units.push(MovedPage { vpn, head, pages, of, fate: None });
                vpn += pages;
            }
        }
        units
    }

    /// Base pages of one call: three quarters of the time that a call may take; as many as were
    /// asked for while nothing is known.
    fn batch(&self, limits: &MoveLimits) -> u64 {
        let span = limits.longest_call.get() * 3 / 4;
        match self.page_cost {
            Some(cost) => (span / cost.get().max(1)).clamp(1, BIGGEST_BATCH),
            None => (span / self.cost.page.get().max(1)).clamp(1, u64::from(limits.batch.max(1))),
        }
    }

    /// As live (`MovePages::learn`): slower at once, faster by quarters; small calls say little.
    fn learn(&mut self, pages: u64, took: Nanos) {
        if pages < 64 && self.page_cost.is_some() {
            return;
        }
        let now = Nanos((took.get() / pages.max(1)).max(1));
        self.page_cost = Some(match self.page_cost {
            Some(old) if old > now => Nanos((old.get() * 3 + now.get()) / 4),
            _ => now,
        });
    }

    /// One call for the units `which`, all to one node.
    fn call(&mut self, world: &mut World, run: &mut ApplyRun<'_>, which: &[usize]) {
        let Some(first) = which.first() else { return };
        let id = run.moves[run.units[*first].of].to;
        let pages =
            which.iter().flat_map(|u| (run.units[*u].vpn..).take(run.units[*u].pages as usize));
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
                Some(p) if p.frame == ABSENT => {
                    run.units[*u].fate = Some(Err(MoveFailure::NotPresent))
                }
                Some(p) if p.node as usize == to => {
                    run.units[*u].fate = Some(Err(MoveFailure::AlreadyThere))
                }
                Some(_) => left.push(*u),
            }
        }
        if left.is_empty() {
            return;
        }
        let (begun, used) = (world.now(), world.manager_cpu());
        let asked: u64 = left.iter().map(|u| run.units[*u].pages).sum();
        world.charge(self.cost.call + part(self.cost.page, asked, ISOLATING));
        let kept_waiting = |world: &mut World, span: Nanos| {
            if world.wants_all_cores() {
                world.pass(span);
            }
        };
        kept_waiting(world, costs::KEPT_WAITING);
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
        let worked = world.manager_cpu().saturating_sub(used);
        kept_waiting(world, Nanos(worked.get() * costs::KEPT_WAITING_BY_WORK / 1000));
        let took = world.now().since(begun);
        run.outcome.calls += 1;
        run.outcome.cost += took;
        run.outcome.longest_call = run.outcome.longest_call.max(took);
        self.learn(asked, took);
    }

    /// Pages that the kernel unmaps together and copies one after the other. Who touches one waits
    /// until it is copied.
    ///
    /// What the machine file says of a page is with idle buses. Where the kernel's own memory is
    /// waited for, so is this: a page's new frame is filled with zeros when it is allocated
    /// (`init_on_alloc`, mm/page_alloc.c; what Debian, Ubuntu and Fedora build), which is before
    /// any page of the group is copied, and both take longer by what others use of the buses.
    /// Elsewhere a page takes what the file says or what its copy alone takes.
    fn group(&mut self, world: &mut World, run: &mut ApplyRun<'_>, which: &[usize], to: usize) {
        let pages: u64 = which.iter().map(|u| run.units[*u].pages).sum();
        if pages == 0 {
            return;
        }
        let waits = world.waits_for_page_records();
        let (unmapping, copying) =
            (part(self.cost.page, 1, UNMAPPING), part(self.cost.page, 1, COPYING));
        let mut copies = Vec::with_capacity(which.len());
        for u in which {
            let unit = run.units[*u];
            let Some(head) = unit.head else { continue };
            let page = world.memory.pages[head];
            let mut zeroing = Nanos::ZERO;
            // The program runs between two pages.
            world.memory.cpu = world.manager_core;
            if world.memory.relocate(head, to, UNTIL_TOLD) {
                world.shoot_down(unit.vpn);
                let frame = u64::from(world.memory.pages[head].frame);
                if waits {
                    zeroing = world.zero(frame, unit.pages * PAGE);
                }
                copies.push((head, page, frame, unit.pages));
                run.units[*u].fate = Some(Ok(()));
                run.moved += unit.pages;
            } else {
                run.units[*u].fate = Some(Err(MoveFailure::NodeFull));
            }
            world.charge(times(unmapping, unit.pages) + zeroing);
        }
        world.interrupt(costs::SHOOT_DOWN);
        for (head, page, frame, pages) in copies {
            let took = world.copy(u64::from(page.frame), frame, pages * PAGE);
            let asked = times(copying, pages);
            world.charge(match waits {
                true => {
                    asked.saturating_sub(times(self.idle(world, (page.node as usize, to)), pages))
                        + took
                }
                false => asked.max(took),
            });
            world.has_moved(head);
        }
    }

    /// What filling a page with zeros and copying another to it takes from one node to another
    /// where nobody else uses either.
    fn idle(&mut self, world: &World, way: (usize, usize)) -> Nanos {
        *self.idle.entry(way).or_insert_with(|| idle_move(world.engine().params(), way))
    }

    /// How many of `units` from the first on go into one call of at most `most` pages.
    fn take(run: &ApplyRun<'_>, units: &[usize], most: u64) -> usize {
        let key = |u: usize| (run.moves[run.units[u].of].to, run.moves[run.units[u].of].from);
        let mut pages = 0;
        let fits = units.iter().take_while(|u| {
            pages += run.units[**u].pages;
            key(**u) == key(units[0]) && (pages <= most || pages == run.units[**u].pages)
        });
        fits.count()
    }

    fn in_order(&mut self, world: &mut World, run: &mut ApplyRun<'_>, units: &[usize]) {
        let (mut rest, mut before) = (units, None);
        while !rest.is_empty() && may_go_on(world, run) {
            let taken = Self::take(run, rest, self.batch(run.limits));
            let m = &run.moves[run.units[rest[0]].of];
            // As live (ADR 0182): pages that go down lie on lists of the CPU on which those must be
            // that take their room.
            if before.replace(m.to) != Some(m.to) && m.reason == MoveReason::Cold {
                world.take_turn();
            }
            self.call(world, run, &rest[..taken]);
            rest = &rest[taken..];
        }
    }

    /// One batch down, then as many pages up, until either is used up.
    fn exchange(
        &mut self,
        world: &mut World,
        run: &mut ApplyRun<'_>,
        down: &[usize],
        up: &[usize],
    ) {
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
fn may_go_on(world: &mut World, run: &ApplyRun<'_>) -> bool {
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

/// Waiting for memory of one page that is filled with zeros and another that is copied to it, the
/// mean of some that no cache has, on a machine of these figures on which nothing else happens.
fn idle_move(params: &ModelParams, (from, to): (usize, usize)) -> Nanos {
    const PAGES: u64 = 64;
    const QUANTUM: u64 = 10_000_000;
    let (Ok(mut engine), layout) = (MemorySystem::new(params.clone(), QUANTUM), &params.layout)
    else {
        return Nanos::ZERO;
    };
    let mut took = 0;
    let mut takes = |engine: &mut MemorySystem, span: u64| {
        took += span;
        engine.units[0].core.time += span;
        while engine.lockstep().end() <= engine.units[0].core.time
            && engine.advance(|core| core != 0)
        {}
    };
    // Every other page, as pages lie that are not taken in order.
    let pages: Vec<(u64, u64)> = (0..PAGES)
        .filter_map(|n| {
            Some((layout.address(from, 2 * n * PAGE)?, layout.address(to, (2 * n + 1) * PAGE)?))
        })
        .collect();
    for (_, to) in &pages {
        let span = engine.zero(0, *to, PAGE);
        takes(&mut engine, span);
    }
    for (from, to) in &pages {
        let span = engine.copy(0, *from, *to, PAGE);
        takes(&mut engine, span);
    }
    Nanos(took / PS / PAGES)
}

fn times(each: Nanos, count: u64) -> Nanos {
    Nanos(each.get().saturating_mul(count))
}

fn part(page: Nanos, pages: u64, share: (u64, u64)) -> Nanos {
    Nanos(page.get() * pages * share.0 / share.1)
}

impl Mover for SimMover {
    fn apply(&mut self, moves: &[Move], exchange: bool, limits: &MoveLimits) -> MoveOutcome {
        let shared = self.world.clone();
        let mut world = shared.borrow_mut();
        let units = self.units(&world, moves);
        let mut run = ApplyRun { moves, limits, units, outcome: MoveOutcome::default(), moved: 0 };
        // A plan may be carried out in parts.
        if std::mem::take(&mut world.plan_to_make) {
            let planning = RecordVisit { work: world.deciding.planning, ..RecordVisit::default() };
            super::visit_all(&mut world, planning);
        }
        let handed = moves.iter().map(|m| u64::from(m.pages)).sum();
        let each = RecordVisit { work: world.deciding.moving, ..RecordVisit::default() };
        world.charge(each.worked(handed));
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

impl ApplyRun<'_> {
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
                        Some(last)
                            if last.to == m.to
                                && last.from == m.from
                                && last.range().end.0 == unit.vpn =>
                        {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::{FirstTouchPlacement, MachineMode, SimSetup};
    use std::cell::RefCell;
    use std::rc::Rc;
    use terrace_machine::preset;

    /// What a page takes that is moved there, or with `busy` while the program runs: the mean of so
    /// many.
    fn takes(machine: &str, busy: bool) -> f64 {
        let machine = preset(machine).unwrap();
        let plan = SimSetup::new(&machine, "skew,accesses=8M,size=24MiB,threads=1").unwrap();
        let mut world = plan.world(MachineMode::Plain, FirstTouchPlacement::Nearest).unwrap();
        world.stop_at_begin = true;
        while !world.stopped() {
            world.pass(Nanos::millis(1));
        }
        if busy {
            world.stop_at_begin = false;
            world.proceed(Nanos::ZERO);
        }
        // To the core that the program does not use.
        world.sleep(Nanos::micros(1));
        let shared: Shared = Rc::new(RefCell::new(world));
        let first = shared.borrow().memory.mappings().next().unwrap().start;
        let pages = 2048;
        let m = Move {
            pid: super::super::PID,
            start: first,
            pages,
            from: NodeId(0),
            to: NodeId(1),
            reason: MoveReason::Cold,
        };
        let limits = MoveLimits {
            longest_call: Nanos::millis(100),
            rate: None,
            batch: 512,
            total: Nanos::secs(1),
        };
        let mut mover = SimMover::new(shared.clone(), plan.ids.clone(), machine.migration);
        let outcome = mover.apply(&[m], false, &limits);
        assert_eq!(outcome.moved, [(NodeId(1), u64::from(pages))], "{outcome:?}");
        let beside = machine.migration.call.get() * outcome.calls;
        (outcome.cost.get() - beside) as f64 / f64::from(pages)
    }

    #[test]
    fn a_page_takes_what_the_machine_file_says_or_longer_where_buses_are_busy() {
        for (machine, longer) in [("lab-cxl", 0.95), ("lab-dcpmm", 1.2)] {
            let said = preset(machine).unwrap().migration.page.get() as f64;
            let (idle, busy) = (takes(machine, false), takes(machine, true));
            assert!((idle / said - 1.0).abs() < 0.05, "{machine}: {idle} of {said}");
            assert!(busy > longer * idle, "{machine}: {busy} and {idle}");
        }
    }
}
