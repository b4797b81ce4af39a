//! Whole runs on a small machine: the same engine and policies as live, a program that is
//! simulated.
#![allow(clippy::unwrap_used)]

use terrace_machine::{preset, Machine};
use terrace_sim::{
    all, simulate, simulate_custom, PebsSettings, RunOptions, SimError, SimRun, SimSetup,
    TrackerKind,
};
use terrace_types::{BaselineId, Bytes, PolicyId, Seed};

/// `lab-cxl` with 32 MiB of fast memory, and caches that leave something to miss.
fn machine() -> Machine {
    let mut machine = preset("lab-cxl").unwrap();
    machine.nodes[0].capacity = Bytes::mib(32);
    machine.nodes[0].reserved = Bytes::ZERO;
    machine.nodes[1].capacity = Bytes::mib(64);
    machine.caches[1].size = Bytes(256 << 10);
    machine
}

fn run(workload: &str, policy: &str) -> SimRun {
    simulate(
        &SimSetup::new(&machine(), workload).unwrap(),
        &policy.parse().unwrap(),
        RunOptions::default(),
    )
    .unwrap()
}

const SKEW: &str = "skew,accesses=9M,hot_size=25%";

#[test]
fn bounds_stand_in_their_order() {
    let seconds = |policy: &str| run("skew,accesses=300k,hot_size=25%", policy).seconds;
    let (fast, best, moved, first) = (
        seconds("bound:all-fast"),
        seconds("bound:static"),
        seconds("bound:ideal-move"),
        seconds("first-touch"),
    );
    assert!(fast < best && best < moved && best < 0.7 * first, "{fast} {best} {moved} {first}");
    let all = run("skew,accesses=300k,hot_size=25%", "bound:all-fast");
    assert_eq!((all.fast_access_share, all.accesses), (Some(1.0), 300_000));
}

#[test]
fn terrace_finds_the_hot_set_and_gains_reproducibly() {
    let (first, managed) = (run(SKEW, "first-touch"), run(SKEW, "terrace"));
    assert!(managed.promoted_pages.unwrap() > 1_600, "{managed:?}");
    assert!(managed.fast_access_share > first.fast_access_share, "{managed:?}");
    assert!(managed.overhead_seconds.unwrap() > 0.0);
    assert!(managed.seconds < first.seconds, "{} of {}", managed.seconds, first.seconds);
    assert_eq!(run(SKEW, "terrace"), managed);
}

#[test]
fn a_hot_set_in_huge_pages_is_found_where_ordinary_samples_saturate() {
    let skew = "skew,accesses=12M,hot_size=50%,pages=thp";
    let (first, managed) = (run(skew, "first-touch"), run(skew, "terrace"));
    assert!(managed.seconds < 0.85 * first.seconds, "{} of {}", managed.seconds, first.seconds);
}

#[test]
fn equal_seeds_give_equal_runs_on_any_number_of_threads() {
    let plan = SimSetup::new(&machine(), "graph-bfs,accesses=200k,size=6MiB").unwrap();
    let policies = ["terrace", "first-touch", "terrace", "hyplacer"];
    let go = |workers| {
        let options = RunOptions { seed: Seed(5), ..RunOptions::default() };
        all(&policies, workers, |p| simulate(&plan, &p.parse().unwrap(), options)).unwrap()
    };
    let (one, three) = (go(1), go(3));
    assert_eq!(one, three);
    assert_eq!(one[0], one[2]);
}

#[test]
fn the_dynamic_oracle_is_not_slower_than_the_static_one() {
    // The hot set shifts between phases: no one placement fits all of them.
    let shift = "shift,accesses=3M,phase_seconds=0.004,size=24MiB";
    let mut machine = machine();
    machine.nodes[0].capacity = Bytes::mib(12);
    let plan = SimSetup::new(&machine, &format!("{shift},fast=12MiB")).unwrap();
    let seconds = |policy: &str| {
        simulate(&plan, &policy.parse().unwrap(), RunOptions::default()).unwrap().seconds
    };
    let (knows, best, fast) =
        (seconds("bound:clairvoyant"), seconds("bound:static"), seconds("bound:all-fast"));
    assert!(fast < knows && knows < 0.98 * best, "{fast} {knows} {best}");
}

#[test]
fn a_policy_from_outside_runs_as_those_inside_do() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use terrace_policy::place::{CustomPolicy, Placement, PolicyNeeds};
    let plan = SimSetup::new(&machine(), SKEW).unwrap();
    let calls = std::sync::Arc::new(AtomicUsize::new(0));
    let mut inside = Placement::new(PolicyId::Histogram, &plan.machine);
    let (needs, counted) = (inside.needs(), calls.clone());
    let outside = CustomPolicy::new(needs, move |snapshot, now, seed| {
        counted.fetch_add(1, Ordering::Relaxed);
        inside.step(snapshot, now, seed)
    });
    let custom = simulate_custom(&plan, "mine", outside, RunOptions::default()).unwrap();
    let named = simulate(&plan, &"histogram".parse().unwrap(), RunOptions::default()).unwrap();
    assert_eq!((custom.policy.to_string().as_str(), custom.seconds), ("mine", named.seconds));
    assert_eq!(custom.promoted_pages, named.promoted_pages);
    assert!(calls.load(Ordering::Relaxed) > 0 && custom.promoted_pages.unwrap() > 0);
    // One that needs what no tracker tells does not start.
    let needy =
        CustomPolicy::new(PolicyNeeds { cells: true, ..needs }, |_, _, _| Default::default());
    let refused = simulate_custom(&plan, "needy", needy, RunOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("needs counts of accesses by cell"), "{refused}");
}

#[test]
fn every_tracker_leads_to_gain() {
    let first = run(SKEW, "first-touch");
    for (policy, tracker) in [
        ("histogram", TrackerKind::Pebs(PebsSettings::DEFAULT)),
        ("terrace", TrackerKind::Pebs(PebsSettings::DEFAULT)),
        ("hyplacer", TrackerKind::Pebs(PebsSettings::DEFAULT)),
        ("terrace", TrackerKind::Damon),
        ("terrace", TrackerKind::PageTable),
        ("hyplacer", TrackerKind::PageTable),
    ] {
        let options = RunOptions { tracker, ..RunOptions::default() };
        let managed =
            simulate(&SimSetup::new(&machine(), SKEW).unwrap(), &policy.parse().unwrap(), options)
                .unwrap();
        assert!(managed.promoted_pages.unwrap() > 500, "{policy}, {tracker:?}: {managed:?}");
        assert!(managed.fast_access_share > first.fast_access_share, "{tracker:?}: {managed:?}");
        assert!(managed.overhead_seconds.unwrap() > 0.0, "{tracker:?}: {managed:?}");
        assert!(
            managed.seconds < first.seconds,
            "{policy}, {tracker:?}: {} s, first touch {} s",
            managed.seconds,
            first.seconds
        );
    }
}

/// Regions tell no writes, so that the control rule takes the slow tier's writes as below its
/// threshold, and of a full fast tier it would only demote; pages that are not known are no
/// victims.
#[test]
fn hyplacer_moves_nothing_by_regions() {
    let options = RunOptions { tracker: TrackerKind::Damon, ..RunOptions::default() };
    let plan = SimSetup::new(&machine(), "skew,accesses=4M,hot_size=25%").unwrap();
    let run = simulate(&plan, &PolicyId::HyPlacer.into(), options).unwrap();
    assert_eq!((run.promoted_pages, run.demoted_pages), (Some(0), Some(0)));
}

/// `lab-dcpmm` in three quarters of the size: a program has filled its memory before its writes are
/// first sampled (docs/known-issues.md).
fn dcpmm() -> Machine {
    let small = machine();
    let mut machine = preset("lab-dcpmm").unwrap();
    for (node, of) in machine.nodes.iter_mut().zip(&small.nodes) {
        (node.capacity, node.reserved) = (Bytes(of.capacity.get() / 4 * 3), of.reserved);
    }
    machine.caches[1].size = small.caches[1].size;
    machine
}

#[test]
fn written_pages_are_distinguished_by_how_soon_they_are_dirty() {
    // All pages of both sets are written or read many times in any 25 ms; only early looks tell
    // rates.
    let plan = SimSetup::new(&dcpmm(), "rwsplit,accesses=16M").unwrap();
    let seconds =
        |policy: &str| simulate(&plan, &policy.parse().unwrap(), RunOptions::default()).unwrap();
    let (first, managed, blind) =
        (seconds("first-touch"), seconds("terrace"), seconds("terrace-write-blind"));
    assert!(managed.promoted_pages.unwrap() > 1_000, "{managed:?}");
    assert!(managed.seconds < 0.9 * first.seconds, "{} of {}", managed.seconds, first.seconds);
    assert!(managed.seconds < 0.9 * blind.seconds, "{} of {}", managed.seconds, blind.seconds);
}

#[test]
fn all_pages_that_are_written_are_found_whatever_the_seed() {
    let machine = dcpmm();
    // Of both sets seven tenths of the better tier each, what is read comes first: four tenths of
    // it are written and do not fit.
    let over = machine.nodes[0].capacity.get() / 4096 * 4 / 10;
    for seed in [3, 8] {
        let plan = SimSetup::new(&machine, &format!("rwsplit,accesses=16M,seed={seed}")).unwrap();
        let managed = simulate(&plan, &"terrace".parse().unwrap(), RunOptions::default()).unwrap();
        let promoted = managed.promoted_pages.unwrap();
        assert!(
            promoted * 100 > over * 95 && promoted * 100 < over * 110,
            "seed {seed}: {promoted} of {over}"
        );
    }
}

#[test]
fn chance_is_the_seeds() {
    let go = |tracker, seed| {
        let options = RunOptions { tracker, seed: Seed(seed), ..RunOptions::default() };
        simulate(
            &SimSetup::new(&machine(), "skew,accesses=900k,hot_size=25%").unwrap(),
            &PolicyId::Histogram.into(),
            options,
        )
        .unwrap()
    };
    for (_, tracker) in TrackerKind::NAMED {
        assert_eq!(go(tracker, 3), go(tracker, 3), "{tracker:?}");
    }
    // Which page of a region is sampled is chance; page tables and samples know none.
    let plan = SimSetup::new(&machine(), "skew,accesses=4M,hot_size=25%").unwrap();
    let damon = |seed| {
        let options =
            RunOptions { tracker: TrackerKind::Damon, seed: Seed(seed), ..RunOptions::default() };
        simulate(&plan, &PolicyId::Terrace.into(), options).unwrap()
    };
    assert_ne!(damon(3), damon(4), "the seed is ignored");
}

#[test]
fn without_drops_of_translations_reads_are_seen_all_the_same() {
    // Nothing drops translations here but others that come: 1536 of them, and the program has 8192
    // pages.
    let mut machine = machine();
    machine.core.tlb_flush = terrace_types::Nanos::ZERO;
    machine.tlb = terrace_machine::TlbSpec::default();
    let of = |machine: &Machine| {
        let plan = SimSetup::new(machine, "skew,accesses=9M,hot_size=25%,hot=read").unwrap();
        simulate(&plan, &"terrace".parse().unwrap(), RunOptions::default()).unwrap()
    };
    let finite = of(&machine);
    assert!(finite.promoted_pages.unwrap() > 1_000, "{finite:?}");
    machine.tlb = terrace_machine::TlbSpec::UNLIMITED;
    let unlimited = of(&machine);
    assert!(unlimited.promoted_pages < finite.promoted_pages, "{unlimited:?} {finite:?}");
}

#[test]
fn moves_take_what_the_buses_take_however_little_the_machine_file_says() {
    let mut machine = machine();
    machine.migration.page = terrace_types::Nanos(10);
    let options = RunOptions { journal: true, ..RunOptions::default() };
    let run =
        simulate(&SimSetup::new(&machine, SKEW).unwrap(), &"terrace".parse().unwrap(), options)
            .unwrap();
    let end = run.journal.as_deref().and_then(|j| j.lines().last()).unwrap();
    let of = |name: &str| {
        let (_, after) = end.split_once(&format!("\"{name}\":")).unwrap();
        after.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse::<u64>().unwrap()
    };
    let (pages, moving) = (of("promoted_pages") + of("demoted_pages"), of("moving_ns"));
    // One line in two comes over the slow node's 20 GB/s at least.
    assert!(pages > 2_000 && moving > pages * 200, "{pages} pages in {moving} ns");
}

#[test]
fn memory_mode_serves_what_is_reused() {
    let run = run("skew,accesses=300k,size=4MiB,hot_size=2MiB", "hardware:memory-mode");
    assert!(run.fast_access_share.unwrap() > 0.9, "{run:?}");
}

#[test]
fn caches_are_counted_before_tiers() {
    let run = run("fits,accesses=200k", "first-touch");
    let [l1, last] = run.caches[..] else { panic!("{run:?}") };
    assert_eq!((l1.level, last.level), (1, 2));
    assert_eq!(l1.misses, last.hits + last.misses);
    // Of 200,000 accesses four fifths are a load and a store.
    let all = l1.hits + l1.misses;
    assert!((355_000..365_000).contains(&all), "{all}");
    assert!(l1.writebacks > 0);
}

#[test]
fn huge_pages_and_many_threads_run_too() {
    let run = run("skew,accesses=100k,pages=thp,threads=5,size=6MiB,hot_size=2MiB", "first-touch");
    assert_eq!(run.accesses, 100_000);
    let shift = self::run("shift,accesses=100k,phase_seconds=0.001", "first-touch");
    assert!(shift.seconds > 0.0);
}

#[test]
fn what_does_not_fit_is_said_with_both_sizes() {
    let plan = SimSetup::new(&machine(), "skew,size=100MiB").unwrap();
    let error =
        simulate(&plan, &"first-touch".parse().unwrap(), RunOptions::default()).unwrap_err();
    assert!(
        matches!(error, SimError::TooSmall { .. }) && error.to_string().contains("96 MiB"),
        "{error}"
    );
}

/// Where nothing can be placed nothing is managed, as live.
#[test]
fn one_tier_is_left_alone() {
    let mut one = machine();
    one.nodes.truncate(1);
    one.nodes[0].capacity = Bytes::mib(64);
    one.links.retain(|l| l.target == one.nodes[0].id);
    let plan = SimSetup::new(&one, "npb-cg,threads=1,size=12MiB,accesses=2M").unwrap();
    let runs = ["first-touch", "hyplacer", "terrace"]
        .map(|policy| simulate(&plan, &policy.parse().unwrap(), RunOptions::default()).unwrap());
    for run in &runs[1..] {
        assert_eq!(
            (run.seconds, run.overhead_seconds),
            (runs[0].seconds, runs[0].overhead_seconds),
            "{}",
            run.policy
        );
    }
    let kernel = BaselineId::KernelDamos.into();
    let refused = simulate(&plan, &kernel, RunOptions::default()).unwrap_err();
    assert!(matches!(refused, SimError::NotSimulated { .. }), "{refused}");
}
