//! The machine in miniature on which engine and policies are tested end to end.
#![allow(dead_code, clippy::unwrap_used)] // each file of tests uses a part

use std::cell::RefCell;
use std::rc::Rc;
use terrace_engine::journal::JournalSummary;
use terrace_engine::{Config, Engine, EngineParts, StopReason, Tracker};
use terrace_machine::Machine;
use terrace_policy::place::Placement;
use terrace_testkit::{
    cxl, ClosedLoopWorld, MemoryJournal, PageAccessRate, PageTracker, RegionTracker, Rng,
    WorldClock, WorldMover, WorldSpec, WorldTarget, WriteTracker,
};
use terrace_types::{Bytes, Nanos, NodeId, Tick};

pub const FAST: u64 = 4096;
pub const COLD: usize = 6144;
pub const HOT: usize = 2048;
pub const SECONDS: u64 = 1_000_000_000;

pub type Shared = Rc<RefCell<ClosedLoopWorld>>;
pub type Rate = Box<dyn Fn(usize, Tick) -> PageAccessRate>;

pub fn read(rate: f64) -> PageAccessRate {
    PageAccessRate { reads: rate, writes: 0.0 }
}

pub fn write(rate: f64) -> PageAccessRate {
    PageAccessRate { reads: rate / 2.0, writes: rate / 2.0 }
}

pub fn world_on(machine: Machine, pages: usize, access: Rate, seed: u64) -> Shared {
    let first_touch = (0..pages).map(|i| NodeId(u16::from(i as u64 >= FAST - 64))).collect();
    ClosedLoopWorld::new(WorldSpec {
        machine,
        tiers: vec![vec![NodeId(0)], vec![NodeId(1)]],
        node_pages: vec![FAST, 65_536],
        first_touch,
        access,
        seed,
    })
}

pub fn world(pages: usize, access: Rate, seed: u64) -> Shared {
    world_on(cxl(Bytes::mib(24), Bytes::gib(1)), pages, access, seed)
}

pub fn engine(
    world: &Shared,
    policy: &str,
    trackers: Vec<Box<dyn Tracker>>,
) -> (Engine, MemoryJournal) {
    engine_for(world, WorldTarget::new(world.clone()), policy, trackers)
}

pub fn engine_for(
    world: &Shared,
    target: WorldTarget,
    policy: &str,
    trackers: Vec<Box<dyn Tracker>>,
) -> (Engine, MemoryJournal) {
    engine_with(world, target, policy, trackers, Config::default())
}

pub fn engine_with(
    world: &Shared,
    target: WorldTarget,
    policy: &str,
    trackers: Vec<Box<dyn Tracker>>,
    config: Config,
) -> (Engine, MemoryJournal) {
    let journal = MemoryJournal::default();
    let machine = world_machine(world);
    let parts = EngineParts {
        clock: Box::new(WorldClock(world.clone())),
        trackers,
        target: Box::new(target),
        mover: Box::new(WorldMover(world.clone())),
        journal: Some(Box::new(journal.clone())),
        placement: Placement::new(policy.parse().unwrap(), &machine),
        machine,
        own_cpu: Box::new(|_| Nanos::ZERO),
    };
    (Engine::new(parts, config), journal)
}

pub fn world_machine(world: &Shared) -> Machine {
    world.borrow().machine().clone()
}

pub fn run(
    world: &Shared,
    policy: &str,
    trackers: Vec<Box<dyn Tracker>>,
    seconds: u64,
) -> (JournalSummary, String) {
    world.borrow_mut().end_at(Tick(seconds * SECONDS));
    let (mut engine, journal) = engine(world, policy, trackers);
    let (summary, stop) = engine.run(|r| {
        show(r);
        false
    });
    assert_eq!(stop, Some(StopReason::TargetEnded));
    (summary, journal.text())
}

/// Samples of 5 ms at every page, as dear as page tables are.
pub fn pages(world: &Shared) -> Vec<Box<dyn Tracker>> {
    let mut tracker = PageTracker::new(world.clone());
    tracker.cost_ns = 27.0;
    vec![Box::new(tracker)]
}

/// What a stock kernel gives: coarse regions, write bits, and page-exact samples where asked.
pub fn stock(world: &Shared) -> Vec<Box<dyn Tracker>> {
    vec![
        Box::new(RegionTracker::new(world.clone(), 64)),
        Box::new(WriteTracker::new(world.clone())),
        Box::new(PageTracker::where_asked(world.clone())),
    ]
}

pub fn skew(hot: f64, cold: f64) -> Rate {
    Box::new(move |i, _| write(if i >= COLD { hot } else { cold }))
}

pub fn scattered(how: fn(f64) -> PageAccessRate, seed: u64) -> Rate {
    let mut rng = Rng(seed);
    let hot: Vec<bool> =
        (0..COLD + HOT).map(|_| rng.unit() < HOT as f64 / (COLD + HOT) as f64).collect();
    Box::new(move |i, _| if hot[i] { how(2_000.0) } else { read(160.0) })
}

/// Prints what was decided where SHOW is set.
pub fn show(report: &terrace_engine::StepReport) {
    if std::env::var_os("SHOW").is_none() {
        return;
    }
    for d in &report.decisions {
        println!("{} {}: {}", report.at, d.name, d.why);
    }
    for note in &report.notes {
        println!("{} note: {note}", report.at);
    }
}

/// Seconds until the best tier serves this share of accesses.
pub fn seconds_to(
    world: &Shared,
    policy: &str,
    trackers: Vec<Box<dyn Tracker>>,
    share: f64,
) -> f64 {
    world.borrow_mut().end_at(Tick(20 * SECONDS));
    let (mut engine, _) = engine(world, policy, trackers);
    loop {
        let report = engine.run_step();
        show(&report);
        if world.borrow().fast_share_now() >= share || report.stop.is_some() {
            return report.at.as_secs_f64();
        }
    }
}
