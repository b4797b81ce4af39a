//! The calls of the live mover onto the simulated process: `move_pages` as Linux makes it, and what
//! it costs.

use super::Shared;
use crate::costs::nanos;
use crate::memory::{BasePage, ABSENT, UNTIL_REPORTED};
use crate::world::{ShootdownMode, World};
use std::collections::BTreeMap;
use terrace_engine::{MoveLimits, MoveOutcome, Mover};
use terrace_machine::MigrationCost;
use terrace_model::{MemorySystem, ModelParams, PS};
use terrace_mover::{CallError, MoveCall, MoveCalls, MoveCosts, MovePages, PageStatus};
use terrace_types::{Bytes, Move, Nanos, NodeId, Pid, Tick, Vpn, VpnRange};

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
/// `include/uapi/asm-generic/errno-base.h`: the page is not there, there is no memory for it, its
/// address is not mapped; and the node is none of the machine's.
const ENOENT: i32 = 2;
const ENOMEM: i32 = 12;
const EFAULT: i32 = 14;
const ENODEV: i32 = 19;

/// The live mover over a world's calls.
#[derive(Debug)]
pub struct SimMover {
    world: Shared,
    mover: MovePages<SimMoveCalls>,
}

impl SimMover {
    /// Of this world; `ids` are its nodes' names.
    #[must_use]
    pub fn new(world: Shared, ids: Vec<NodeId>, cost: MigrationCost) -> Self {
        let calls = SimMoveCalls { world: world.clone(), ids, cost, idle: BTreeMap::new() };
        Self { world, mover: MovePages::new(calls, Bytes(PAGE)) }
    }
}

impl Mover for SimMover {
    fn apply(&mut self, moves: &[Move], exchange: bool, limits: &MoveLimits) -> MoveOutcome {
        {
            let mut world = self.world.borrow_mut();
            let accounts =
                world.costs.move_accounts(moves.iter().map(|m| u64::from(m.pages)).sum());
            world.charge(accounts);
        }
        self.mover.apply(moves, exchange, limits)
    }
}

/// `move_pages` of the simulated kernel.
#[derive(Debug)]
struct SimMoveCalls {
    world: Shared,
    ids: Vec<NodeId>,
    cost: MigrationCost,
    /// What of a page's cost is waiting for memory where nobody else uses it, by the nodes that it
    /// goes from and to.
    idle: BTreeMap<(usize, usize), Nanos>,
}

/// A page, base or huge, that is about to be copied.
struct Unmapped {
    head: usize,
    before: BasePage,
    frame: u64,
    pages: u64,
}

impl MoveCalls for SimMoveCalls {
    fn query(&mut self, _: Pid, pages: &[Vpn]) -> Result<Vec<PageStatus>, CallError> {
        let mut world = self.world.borrow_mut();
        if world.ended() {
            return Err(CallError::Gone);
        }
        let query = world.costs.query_pages();
        world.visit(pages.iter().map(|vpn| vpn.0), query);
        let mut hint = 0;
        let status = |vpn: &Vpn| match world.memory.index(vpn.0, &mut hint) {
            None => PageStatus::Error(EFAULT),
            Some(index) => {
                let page = world.memory.pages[index];
                match page.frame {
                    ABSENT => PageStatus::Error(ENOENT),
                    _ => PageStatus::On(self.ids[usize::from(page.node)]),
                }
            }
        };
        Ok(pages.iter().map(status).collect())
    }

    fn move_to(&mut self, _: Pid, pages: &[Vpn], base_pages: u64, to: NodeId) -> MoveCall {
        let mut call =
            MoveCall { pages: vec![PageStatus::Untouched; pages.len()], ..MoveCall::default() };
        let Some(node) = self.ids.iter().position(|n| *n == to) else {
            return MoveCall { errno: ENODEV, ..call };
        };
        let shared = self.world.clone();
        let world = &mut *shared.borrow_mut();
        let used = world.daemon_cpu();
        world.charge(self.cost.call + part(self.cost.page, base_pages, ISOLATING));
        let blocked = |world: &mut World, span: Nanos| {
            if world.wants_all_cores() {
                world.pass(span);
            }
        };
        blocked(world, nanos(world.costs.kernel.move_call_wait));
        let mut next = 0;
        while next < pages.len() && call.errno == 0 {
            next = self.group(world, pages, next, node, &mut call);
        }
        let worked = world.daemon_cpu().saturating_sub(used);
        blocked(world, world.costs.move_wait(worked));
        call
    }

    fn huge(&mut self, _: Pid, range: VpnRange) -> Vec<VpnRange> {
        let world = self.world.borrow();
        let mut found: Vec<VpnRange> = Vec::new();
        if !world.memory.huge {
            return found;
        }
        let mut hint = 0;
        for mapped in world.memory.mappings().filter_map(|m| m.intersect(range)) {
            let mut vpn = mapped.start.0;
            while vpn < mapped.end.0 {
                let index = world.memory.index(vpn, &mut hint);
                let (span, part) = index.map_or((1, 0), |i| {
                    (world.memory.span(i) as u64, u64::from(world.memory.pages[i].part))
                });
                let end = vpn - part + span;
                if span > 1 {
                    found.push(VpnRange::new(Vpn(vpn - part), Vpn(end)));
                }
                vpn = end;
            }
        }
        found
    }

    fn now(&mut self) -> Tick {
        self.world.borrow().now()
    }

    fn wait(&mut self, span: Nanos) {
        self.world.borrow_mut().sleep(span);
    }

    fn batch(&self, span: Nanos) -> Option<u64> {
        let MigrationCost { call, page, serial_percent } = self.cost;
        Some(MoveCosts { call, page, serial_percent }.batch(span))
    }

    fn turn(&mut self) {
        self.world.borrow_mut().take_turn();
    }
}

impl SimMoveCalls {
    /// Pages from `first` on that the kernel unmaps together and copies one after the other; gives
    /// where the next group begins. A thread that touches one waits until it is copied. Where a
    /// page finds no free frame, those before it are still copied and the call ends
    /// (`migrate_pages_batch`, mm/migrate.c).
    ///
    /// What the machine file says of a page is with idle buses. Where the kernel's own memory is
    /// modelled, a page's new frame is filled with zeros when it is allocated (`init_on_alloc`,
    /// mm/page_alloc.c; what Debian, Ubuntu and Fedora build), which is before any page of the
    /// group is copied, and both take longer by what others use of the buses. Elsewhere a page
    /// takes what the file says or what its copy alone takes.
    fn group(
        &mut self,
        world: &mut World,
        pages: &[Vpn],
        first: usize,
        to: usize,
        call: &mut MoveCall,
    ) -> usize {
        let modelled = world.costs.models_kernel_memory();
        let (mut copies, mut size, mut next, mut hint) = (Vec::new(), 0, first, 0);
        while next < pages.len() && size < TOGETHER {
            let (vpn, at) = (pages[next].0, next);
            next += 1;
            let Some(index) = world.memory.index(vpn, &mut hint) else {
                call.pages[at] = PageStatus::Error(EFAULT);
                continue;
            };
            let head = world.memory.head(index);
            let (before, pages) = (world.memory.pages[head], world.memory.span(index) as u64);
            if before.frame == ABSENT {
                call.pages[at] = PageStatus::Error(ENOENT);
                continue;
            }
            call.pages[at] = PageStatus::On(self.ids[to]);
            if usize::from(before.node) == to {
                continue;
            }
            // The program runs between two pages.
            world.memory.cpu = world.daemon.core;
            if !world.memory.relocate(head, to, UNTIL_REPORTED) {
                call.pages[at] = PageStatus::Untouched;
                call.errno = ENOMEM;
                break;
            }
            world.shoot_down(vpn);
            if world.shootdowns.mode == ShootdownMode::PerPage {
                world.interrupt_for_shootdown(pages);
            }
            let frame = u64::from(world.memory.pages[head].frame);
            let zeroing = if modelled { world.zero(frame, pages * PAGE) } else { Nanos::ZERO };
            world.charge(part(self.cost.page, pages, UNMAPPING) + zeroing);
            copies.push(Unmapped { head, before, frame, pages });
            size += pages as usize;
        }
        if copies.is_empty() {
            return next;
        }
        if world.shootdowns.mode != ShootdownMode::PerPage {
            world.interrupt_for_shootdown(size as u64);
        }
        let asked = world.memory.move_request_cost(to, size as u64);
        world.charge(Nanos(asked / PS));
        for Unmapped { head, before, frame, pages } in copies {
            let took = world.copy(u64::from(before.frame), frame, pages * PAGE);
            let asked = part(self.cost.page, pages, COPYING);
            let idle = self.idle(world, (usize::from(before.node), to));
            world.charge(match modelled {
                true => asked.saturating_sub(Nanos(idle.get() * pages)) + took,
                false => asked.max(took),
            });
            world.has_moved(head);
        }
        next
    }

    /// What filling a page with zeros and copying another to it takes from one node to another
    /// where nobody else uses either.
    fn idle(&mut self, world: &World, way: (usize, usize)) -> Nanos {
        *self.idle.entry(way).or_insert_with(|| idle_move(world.engine().params(), way))
    }
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

fn part(page: Nanos, pages: u64, share: (u64, u64)) -> Nanos {
    Nanos(page.get() * pages * share.0 / share.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::{FirstTouchPlacement, MachineMode, SimSetup};
    use std::cell::RefCell;
    use std::rc::Rc;
    use terrace_machine::preset;
    use terrace_types::MoveReason;

    /// What a page takes that is moved there, or with `busy` while the program runs: the mean of so
    /// many.
    fn takes(machine: &str, busy: bool) -> f64 {
        let machine = preset(machine).unwrap();
        let plan = SimSetup::new(&machine, "skew,accesses=8M,size=24MiB,threads=1").unwrap();
        let mut world = plan.world(MachineMode::Plain, FirstTouchPlacement::Nearest).unwrap();
        world.stops.at_begin = true;
        while !world.stopped() {
            world.pass(Nanos::millis(1));
        }
        if busy {
            world.stops.at_begin = false;
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
