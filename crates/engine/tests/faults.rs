//! What goes wrong must go well.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use terrace_engine::journal::{self, JournalEntry, JournalProblem};
use terrace_engine::{
    Config, Engine, EngineParts, Observation, RangeObservation, StopReason, Tracker,
};
use terrace_policy::place::Placement;
use terrace_testkit::{
    cxl, numa, ClosedLoopWorld, FailingJournal, MemoryJournal, PageAccessRate, PageTracker,
    ScriptedTracker, StoppingTracker, WorldClock, WorldMover, WorldSpec, WorldTarget, WriteTracker,
    PID, START,
};
use terrace_types::{
    Bytes, BytesPerSec, CellCount, Nanos, NodeId, Pid, Tick, TrackerVisibility, Vpn, VpnRange,
};

type Shared = Rc<RefCell<ClosedLoopWorld>>;

fn world() -> Shared {
    let hot = |i: usize, _: Tick| {
        let rate = if i >= 1_000 { 2_000.0 } else { 100.0 };
        PageAccessRate { reads: rate / 2.0, writes: rate / 2.0 }
    };
    let world = ClosedLoopWorld::new(WorldSpec {
        machine: cxl(Bytes::mib(4), Bytes::mib(64)),
        tiers: vec![vec![NodeId(0)], vec![NodeId(1)]],
        node_pages: vec![1_000, 10_000],
        first_touch: (0..1_500).map(|i| NodeId(u16::from(i >= 990))).collect(),
        access: Box::new(hot),
        seed: 21,
    });
    world.borrow_mut().end_at(Tick(5_000_000_000));
    world
}

fn parts(world: &Shared, policy: &str, trackers: Vec<Box<dyn Tracker>>) -> EngineParts {
    let machine = world.borrow().machine().clone();
    EngineParts {
        clock: Box::new(WorldClock(world.clone())),
        trackers,
        target: Box::new(WorldTarget::new(world.clone())),
        mover: Box::new(WorldMover(world.clone())),
        journal: None,
        placement: Placement::new(policy.parse().unwrap(), &machine),
        machine,
        own_cpu: Box::new(|_| Nanos::ZERO),
    }
}

fn notes_of(mut engine: Engine) -> (Vec<String>, Option<StopReason>) {
    let mut notes = Vec::new();
    let (_, stop) = engine.run(|r| {
        notes.extend(r.notes.clone());
        false
    });
    (notes, stop)
}

#[test]
fn a_full_disk_is_said_once_and_the_work_goes_on() {
    let world = world();
    let refused = Rc::new(RefCell::new(0));
    let mut parts = parts(&world, "terrace", vec![Box::new(PageTracker::new(world.clone()))]);
    parts.journal = Some(Box::new(FailingJournal { left: 3, refused: refused.clone() }));
    let (notes, stop) = notes_of(Engine::new(parts, Config::default()));
    assert_eq!(stop, Some(StopReason::TargetEnded));
    let said = notes.iter().filter(|n| n.contains("no space left")).count();
    assert_eq!((said, *refused.borrow()), (1, 1), "{notes:?}");
    assert!(world.borrow().fast_share_now() > 0.8);
}

#[test]
fn a_tracker_that_stops_is_replaced_by_those_left() {
    let world = world();
    let first =
        StoppingTracker { inner: Box::new(PageTracker::new(world.clone())), sample_count: 1 };
    let trackers: Vec<Box<dyn Tracker>> =
        vec![Box::new(first), Box::new(WriteTracker::new(world.clone()))];
    let (notes, stop) =
        notes_of(Engine::new(parts(&world, "terrace", trackers), Config::default()));
    assert_eq!(stop, Some(StopReason::TargetEnded));
    assert_eq!(notes.iter().filter(|n| n.contains("going on with dirty")).count(), 1, "{notes:?}");
    assert!(world.borrow().fast_share_now() > 0.8, "{}", world.borrow().fast_share_now());
}

#[test]
fn nothing_left_to_see_with_is_exit_three() {
    let world = world();
    let only =
        StoppingTracker { inner: Box::new(PageTracker::new(world.clone())), sample_count: 2 };
    let (notes, stop) =
        notes_of(Engine::new(parts(&world, "terrace", vec![Box::new(only)]), Config::default()));
    assert!(matches!(stop, Some(StopReason::Missing { policy: "terrace", .. })), "{stop:?}");
    assert!(notes.iter().any(|n| n.contains("none is left")), "{notes:?}");
}

#[test]
fn access_count_refuses_to_start_without_cells() {
    let world = world();
    let engine = Engine::new(
        parts(&world, "access-count", vec![Box::new(PageTracker::new(world.clone()))]),
        Config::default(),
    );
    let error = engine.check().unwrap_err();
    assert!(error.to_string().contains("by cell"), "{error}");
}

#[test]
fn access_count_follows_cells_where_reported() {
    let count = |i: u64| CellCount {
        pid: PID,
        vpn: Vpn(START.0 + i),
        cell: NodeId(1),
        thread: None,
        reads: 3,
        writes: 0,
    };
    let world = ClosedLoopWorld::new(WorldSpec {
        machine: numa(2, false),
        tiers: vec![vec![NodeId(0), NodeId(1)]],
        node_pages: vec![1_000, 1_000],
        first_touch: vec![NodeId(0); 10],
        access: Box::new(|_, _| PageAccessRate::default()),
        seed: 1,
    });
    world.borrow_mut().end_at(Tick(2_000_000_000));
    let reply = Observation { by_cell: (2..5).map(count).collect(), ..Observation::default() };
    let tracker = ScriptedTracker {
        sees: TrackerVisibility { cells: true, ..TrackerVisibility::default() },
        replies: VecDeque::from([reply]),
        asked: Rc::default(),
        requests: Rc::default(),
    };
    let (_, stop) = notes_of(Engine::new(
        parts(&world, "access-count", vec![Box::new(tracker)]),
        Config::default(),
    ));
    assert_eq!(stop, Some(StopReason::TargetEnded));
    assert_eq!(world.borrow().used(NodeId(1)), 3);
}

#[test]
fn failures_are_counted_by_reason_and_retried() {
    let world = world();
    world.borrow_mut().busy_share = 0.5;
    for i in 1_000..1_020 {
        world.borrow_mut().pinned[i] = true;
    }
    let mut parts = parts(&world, "terrace", vec![Box::new(PageTracker::new(world.clone()))]);
    let journal = MemoryJournal::default();
    parts.journal = Some(Box::new(journal.clone()));
    let (summary, _) = Engine::new(parts, Config::default()).run(|_| false);
    assert!(summary.failed.iter().any(|f| f.pages > 50), "{summary:?}");
    assert!(world.borrow().fast_share_now() > 0.75, "{}", world.borrow().fast_share_now());
    let reading = journal::read(journal.text().as_bytes()).unwrap();
    let outcomes = reading.entries.iter().filter_map(|e| match e {
        JournalEntry::Outcome(o) => Some(o),
        _ => None,
    });
    for o in outcomes {
        let failed: u64 = o.failed.iter().map(|f| f.pages).sum();
        assert_eq!(o.promoted_pages + o.demoted_pages + failed, o.planned_pages, "{o:?}");
    }
}

#[test]
fn pages_that_vanish_are_no_trouble() {
    let world = world();
    // Where little is to be had, a step takes a second.
    world.borrow_mut().end_at(Tick(60_000_000_000));
    let trackers: Vec<Box<dyn Tracker>> = vec![Box::new(PageTracker::new(world.clone()))];
    let mut engine = Engine::new(parts(&world, "terrace", trackers), Config::default());
    for step in 0..20 {
        world.borrow_mut().vanished = (step * 70) % 1_400;
        let report = engine.run_step();
        assert_eq!(report.stop, None);
    }
}

#[test]
fn hostile_replies_do_not_panic() {
    let world = world();
    let range = |a: u64, b: u64| VpnRange::new(Vpn(a), Vpn(b));
    let observation = |pid: i32, r: VpnRange, hits, sample_count, ns: u64| RangeObservation {
        pid: Pid(pid),
        range: r,
        hits,
        sample_count,
        interval: Nanos(ns),
        writes_only: hits % 2 == 0,
        every_page: sample_count % 2 == 0,
    };
    let reply = Observation {
        observations: vec![
            observation(PID.0, range(0, u64::MAX), 9, 3, 5),
            observation(PID.0, range(START.0, START.0 + 3), 1, 0, 5),
            observation(PID.0, range(START.0, START.0 + 3), 7, 8, 0),
            observation(-5, range(u64::MAX, u64::MAX), 7, 8, u64::MAX),
            observation(PID.0, range(START.0 + 9, START.0), u16::MAX, u16::MAX, 1),
        ],
        cpu: Nanos(u64::MAX),
        memory: Bytes(u64::MAX),
        lost: u64::MAX,
        ..Observation::default()
    };
    for policy in ["terrace", "hyplacer", "first-touch"] {
        let tracker = ScriptedTracker {
            sees: TrackerVisibility { reads: true, writes: true, ..TrackerVisibility::default() },
            replies: VecDeque::from([reply.clone(), reply.clone(), reply.clone()]),
            asked: Rc::default(),
            requests: Rc::default(),
        };
        let mut engine =
            Engine::new(parts(&world, policy, vec![Box::new(tracker)]), Config::default());
        for _ in 0..5 {
            engine.run_step();
        }
    }
}

#[test]
fn a_rate_limit_is_kept() {
    let world = world();
    let mut config = Config::default();
    config.limits.rate = Some(BytesPerSec(100 * 4096));
    let trackers: Vec<Box<dyn Tracker>> = vec![Box::new(PageTracker::new(world.clone()))];
    let (summary, _) = Engine::new(parts(&world, "terrace", trackers), config).run(|_| false);
    let seconds = summary.at_ns / 1_000_000_000 + 1;
    assert!(summary.migrated_bytes <= 4096 * 100 * (seconds + 1), "{summary:?}");
    assert!(summary.promoted_pages > 100, "{summary:?}");
}

#[test]
fn the_header_says_where_each_figure_comes_from() {
    let world = world();
    let mut machine = world.borrow().machine().clone();
    for link in machine.links.iter_mut().filter(|l| l.target == NodeId(1)) {
        link.write_bandwidth = None;
        if let Some(figure) = &mut link.read_bandwidth {
            figure.evidence = terrace_machine::Evidence::Measured;
        }
    }
    let journal = MemoryJournal::default();
    let trackers: Vec<Box<dyn Tracker>> = vec![Box::new(PageTracker::new(world.clone()))];
    let parts = EngineParts {
        machine,
        journal: Some(Box::new(journal.clone())),
        ..parts(&world, "first-touch", trackers)
    };
    Engine::new(parts, Config::default()).run_step();
    let read = journal::read(journal.text().as_bytes()).unwrap();
    let slow = &read.header.tiers[1];
    let source = |key: &str| slow.evidence.get(key).map(String::as_str);
    assert_eq!(source("read_bandwidth_bytes_per_s"), Some("measured"));
    assert_eq!(source("read_latency_ns"), Some("config"));
    assert_eq!(
        (slow.write_bandwidth_bytes_per_s, source("write_bandwidth_bytes_per_s")),
        (None, None)
    );
}

#[test]
fn fixtures_of_the_journal_are_read_for_ever() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/formats");
    let file = |name: &str| std::fs::read(dir.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let whole = journal::read(&file("v1/journal.jsonl")).unwrap();
    assert_eq!((whole.problem, whole.skipped), (None, 0));
    assert!(matches!(whole.entries.last(), Some(JournalEntry::End(_))));
    assert!(whole.entries.len() > 10);
    assert!(
        whole.header.tiers.iter().all(|t| t.evidence.is_empty()),
        "it is from before the field"
    );
    let sources = journal::read(&file("v1/journal-evidence.jsonl")).unwrap();
    assert_eq!((sources.problem, sources.skipped), (None, 0));
    let given =
        sources.header.tiers.iter().map(|t| t.evidence.get("read_latency_ns").map(String::as_str));
    assert_eq!(given.collect::<Vec<_>>(), [Some("config"); 2]);
    let cut = journal::read(&file("corrupt/journal-cut-off.jsonl")).unwrap();
    assert!(matches!(cut.problem, Some(JournalProblem::CutOff { .. })), "{:?}", cut.problem);
    assert!(!cut.entries.is_empty());
    let damaged = journal::read(&file("corrupt/journal-damaged.jsonl")).unwrap();
    assert!(
        matches!(damaged.problem, Some(JournalProblem::Damaged { .. })),
        "{:?}",
        damaged.problem
    );
    assert!(matches!(
        journal::read(&file("corrupt/journal-v99.jsonl")),
        Err(JournalProblem::Version(99))
    ));
    assert!(matches!(
        journal::read(&file("corrupt/journal-not-one.jsonl")),
        Err(JournalProblem::NotAJournal(_))
    ));
    assert!(matches!(
        journal::read(&file("corrupt/journal-empty.jsonl")),
        Err(JournalProblem::Empty)
    ));
}
