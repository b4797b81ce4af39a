//! Programs of little more than a second: a hot range among cold ones is moved while that pays.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use terrace_engine::{Clock, Config, Engine, EngineParts};
use terrace_policy::place::Placement;
use terrace_testkit::{cxl, ClosedLoopWorld, PageTracker, WorldClock, WorldMover, WorldSpec};
use terrace_testkit::{Rng, WorldTarget};
use terrace_types::{Bytes, Nanos, NodeId, PolicyWork, Tick};

const PAGES: usize = 60_000;
const FIT: usize = 34_000;
/// When most programs end.
const END: Tick = Tick(13 * SECONDS / 10);
/// What deciding takes for a page rated or walked, nanoseconds, as in `ledger.rs`.
const RATED: f64 = 56.0;

/// Waits that end with the program, as live ones do.
struct EndingClock(WorldClock, Tick);

impl Clock for EndingClock {
    fn now(&self) -> Tick {
        self.0.now()
    }

    fn wait(&mut self, span: Nanos) {
        let left = self.1.since(self.now());
        self.0.wait(span.min(left));
    }
}

/// Accesses that the fast tier served because of moves, and pages moved.
fn gained(access: Rate, seed: u64) -> (f64, u64) {
    gained_by(END, access, seed)
}

/// The same of a program that ends then.
fn gained_by(end: Tick, access: Rate, seed: u64) -> (f64, u64) {
    let first_touch = (0..PAGES).map(|i| NodeId(u16::from(i >= FIT))).collect();
    let world = ClosedLoopWorld::new(WorldSpec {
        machine: cxl(Bytes::mib(138), Bytes::gib(1)),
        tiers: vec![vec![NodeId(0)], vec![NodeId(1)]],
        node_pages: vec![FIT as u64 + 64, 1 << 18],
        first_touch,
        access,
        seed,
    });
    world.borrow_mut().end_at(end);
    let machine = world_machine(&world);
    let mut decided = 0.0;
    let parts = EngineParts {
        clock: Box::new(EndingClock(WorldClock(world.clone()), end)),
        trackers: vec![Box::new(PageTracker::as_page_tables(world.clone()))],
        target: Box::new(WorldTarget::new(world.clone())),
        mover: Box::new(WorldMover(world.clone())),
        journal: None,
        placement: Placement::new("terrace".parse().unwrap(), &machine),
        machine,
        own_cpu: Box::new(move |work: PolicyWork| {
            decided += RATED * (work.rated_pages + work.walked_pages) as f64;
            Nanos(decided as u64)
        }),
    };
    let mut engine = Engine::new(parts, Config::default());
    engine.run(|report| {
        show(report);
        false
    });
    let world = world.borrow();
    (world.extra_fast(), world.total_moves())
}

/// Input that is gone through in order, and a table filled last that is read at random.
fn table(rate: f64) -> Rate {
    const INPUT: usize = 30_000;
    Box::new(move |i, t| {
        let at = t.0 as usize * 14 / 1_000_000;
        let swept = (at..at + 60).contains(&i);
        read(if i >= INPUT { rate } else { f64::from(u8::from(swept)) * 2_000.0 })
    })
}

#[test]
fn a_hot_range_is_moved_although_no_page_of_it_is_very_hot() {
    for rate in [80.0, 150.0] {
        let (gained, moves) = gained(table(rate), 1);
        let all = (PAGES - FIT) as f64 * rate * END.0 as f64 / 1e9;
        println!("{rate} a second: {:.3} of what there is to gain, {moves} moves", gained / all);
        assert!(gained > 0.6 * all, "{rate} a second: {gained:.0} of {all:.0}, {moves} moves");
    }
}

/// The share pays for a part of the exchange (0.77 of what there is to gain, 43,426 moves), and
/// what that was seen to gain for the rest.
#[test]
fn what_was_gained_pays_for_the_rest() {
    let end = Tick(2 * SECONDS);
    let (gained, moves) = gained_by(end, table(300.0), 1);
    let all = (PAGES - FIT) as f64 * 300.0 * end.0 as f64 / 1e9;
    assert!(gained > 0.85 * all, "{gained:.0} of {all:.0}, {moves} moves");
    assert!(moves > 50_000, "{moves} moves");
}

#[test]
fn hot_pages_that_are_scattered_are_found_one_by_one() {
    let hot = |i: usize| Rng(i as u64).unit() < 0.1;
    let (gained, moves) =
        gained(Box::new(move |i, _| read(if hot(i) { 2_000.0 } else { 60.0 })), 5);
    let all = (FIT..PAGES).filter(|i| hot(*i)).count() as f64 * 1_940.0 * END.0 as f64 / 1e9;
    assert!(gained > 0.8 * all, "{gained:.0} of {all:.0}, {moves} moves");
}

#[test]
fn even_heat_is_left_alone() {
    assert_eq!(gained(Box::new(|_, _| read(300.0)), 1).1, 0);
}
