//! What a system file may say beside hosts, pools and fabric.
#![allow(clippy::unwrap_used)]

mod common;

use common::{machine, opal, run_on, simulate, workload};
use terrace_pool::*;
use terrace_types::Bytes;

fn run(system: &SystemDescription, input: &str) -> Vec<HostOutcome> {
    run_on(&machine(2 << 30), system, input)
}

const SKEW: &str = "skew,accesses=100k";

#[test]
fn a_placement_policy_brings_hot_pages_from_the_pool_and_gives_frames_back() {
    // Cold pages are touched first, so that the hot ones lie in the pool. The last cache has space
    // for a quarter of those.
    let input = "skew,accesses=8M,size=16MiB,hot_size=4MiB";
    let mut small = machine(16 << 20);
    small.caches[2].size = Bytes(1 << 20);
    let mut system = opal(1, 1, "local-first");
    let stays = run_on(&small, &system, input);
    system.hosts[0].placement = Some("terrace".to_owned());
    let moves = run_on(&small, &system, input);
    for (stays, moves) in stays.iter().zip(&moves) {
        assert!(stays.pools[1].frames > 1000 && stays.placement.is_none());
        assert_eq!(stays.shootdowns.rounds, 0);
        let promoted = moves.run.promoted_pages.unwrap();
        assert!(promoted > 200, "{promoted} pages came to local memory");
        assert_eq!(moves.placement, Some("terrace"));
        assert!(
            moves.run.seconds < stays.run.seconds,
            "{} {}",
            moves.run.seconds,
            stays.run.seconds
        );
        // What came was exchanged: as many frames were given back as taken, and no page is lost.
        let all = |host: &HostOutcome| host.pools.iter().map(|pool| pool.frames).sum::<u64>();
        assert_eq!(all(stays), all(moves));
        // Pages move in groups: cores are interrupted less often than pages move, and frames are
        // asked for together.
        let drops = moves.shootdowns;
        assert!(drops.pages >= promoted && drops.rounds * 4 < drops.pages, "{drops:?}");
        assert!(drops.interrupts <= drops.rounds, "one thread: {drops:?}");
        let demoted = moves.run.demoted_pages.unwrap();
        assert!(
            moves.manager_requests < stays.manager_requests + demoted,
            "{}",
            moves.manager_requests
        );
    }
}

fn frames_of(host: &HostOutcome) -> u64 {
    host.pools.iter().map(|pool| pool.frames).sum()
}

#[test]
fn page_tables_take_local_memory() {
    let outcome = &run(&opal(1, 1, "1:16"), SKEW)[0];
    let frames: u64 = outcome.pools.iter().map(|pool| pool.frames).sum();
    // A page of the last level for 2 MiB, and at most as many above as there are levels, twice for
    // data and heap.
    let least = frames.div_ceil(512);
    assert!((least..least + 8).contains(&outcome.page_table_pages), "{}", outcome.page_table_pages);
}

#[test]
fn a_full_system_swaps_where_that_is_chosen_and_refuses_elsewhere() {
    let mut system = opal(1, 1, "local-first");
    system.pools[0].total_capacity = "1 MiB".to_owned();
    let small = machine(3 << 20);
    let input = "skew,accesses=20k,size=6MiB,hot_size=1MiB";
    let error = simulate(&small, &system, &[workload(input)], 1).unwrap_err().to_string();
    assert!(error.contains("node0: ") && error.contains("needs"), "{error}");
    system.hosts[0].swap = Some(SwapDescription { read_ns: 80_000, write_ns: 20_000 });
    let fits = run_on(&machine(7 << 20), &system, input).remove(0);
    assert_eq!(fits.swap.unwrap().written_pages, 0, "it fits");
    for policy in ["local-first", "round-robin", "application-aware"] {
        system.hosts[0].policy = policy.to_owned();
        let swaps = run_on(&small, &system, input).remove(0);
        // Each page once, and those that came back again.
        let (has, swap) = (frames_of(&swaps), swaps.swap.unwrap());
        assert_eq!(swaps.run.touched_bytes, fits.run.touched_bytes, "{policy}");
        assert_eq!((has + swaps.page_table_pages, swaps.pools[1].frames), (1024, 256), "{policy}");
        assert!(swap.read_pages > 0 && swap.written_pages >= swap.read_pages / 4, "{swap:?}");
        // Pages that left and did not come back are those that have no frame.
        let left = swaps.run.touched_bytes / 4096 - has;
        assert!(swap.written_pages >= left, "{policy}: {swap:?}, {left} are out");
        let least = fits.run.seconds + swap.read_pages as f64 * 80e-6 / 2.0;
        assert!(swaps.run.seconds > least, "{policy}: {} and {least}", swaps.run.seconds);
    }
}

#[test]
fn checks_and_translations_take_time_and_walks_of_more_steps_more_of_it() {
    let mut system = opal(1, 1, "1:16");
    let input = "skew,accesses=100k,size=32MiB,hot_size=24MiB";
    let free = run(&system, input)[0].run.seconds;
    let access = AccessDescription {
        scheme: AccessScheme::Module,
        check_ns: Some(100),
        checks_per_us: None,
        entries: Some(64),
        ways: Some(4),
        hit_ns: Some(5),
        step_ns: Some(50),
        steps: None,
    };
    system.access = Some(access);
    let checked = run(&system, input)[0].run.seconds;
    assert!(checked > 1.01 * free, "{checked} and {free}");
    let translated = |entries, steps| {
        let mut system = system.clone();
        let scheme = AccessScheme::Translation;
        let entries = Some(entries);
        system.access = Some(AccessDescription {
            scheme,
            check_ns: None,
            entries,
            steps: Some(steps),
            ..access
        });
        let host = run(&system, input).remove(0);
        (host.run.seconds, host.translation.unwrap(), host.pools[1].frames)
    };
    let (four, few, _) = translated(64, 4);
    let (many, same, _) = translated(64, 26);
    let (large, fewer, frames) = translated(1 << 14, 4);
    assert!(
        four > free && many - free > 3.0 * (four - free) && large < four,
        "{free}: {four}, {many}, {large}"
    );
    assert!(few.walks > 1000 && few.walks < few.lookups, "{few:?}");
    assert!(same.walks.abs_diff(few.walks) < few.walks / 10, "{same:?} and {few:?}");
    // With space for all, every page is walked for once, or again where a set is full.
    assert!((frames..frames + frames / 10).contains(&fewer.walks), "{fewer:?}, {frames} frames");
}

#[test]
fn hosts_have_the_same_frames_of_a_file_and_no_others() {
    let mut system = opal(3, 2, "local-first");
    let size = "4 MiB".to_owned();
    system.files = vec![file(7, &size)];
    for outcome in run(&system, SKEW) {
        // 1024 pages, from the pools in turn, of which each host touches all.
        let shared: Vec<u64> = outcome.pools.iter().map(|pool| pool.shared_frames).collect();
        assert_eq!(shared, [0, 512, 512]);
        assert_eq!(outcome.pools[1].frames + outcome.pools[2].frames, 0, "the rest is local");
    }
    // A pool that the file fills has nothing for anybody else.
    system.hosts[0].policy = "1:16".to_owned();
    system.pools[0].total_capacity = "4 MiB".to_owned();
    for outcome in run(&system, SKEW) {
        assert_eq!(outcome.pools[1].frames + outcome.pools[2].frames, 0);
        assert_eq!(outcome.pools[1].shared_frames, 512);
    }
    system.pools[0].total_capacity = "2 MiB".to_owned();
    let error = simulate(&machine(2 << 30), &system, &[workload(SKEW)], 1).unwrap_err().to_string();
    assert!(error.contains("file \"7\", size: 1024 frames are asked for and 512"), "{error}");
}

/// A file at the begin of the data of all hosts.
fn file(id: u32, size: &str) -> SharedFileEntry {
    SharedFileEntry {
        id,
        size: size.to_owned(),
        offset: None,
        hosts: Vec::new(),
        trespassers: Vec::new(),
        moves_per_ms: None,
    }
}

/// Two pools, of which one has a single bank: the manager moves a file's pages away from it.
#[test]
fn pages_of_files_move_from_a_busy_pool_and_all_hosts_acknowledge() {
    let mut system = opal(3, 1, "local-first");
    let mut slow = system.pools[0].clone();
    (slow.name, slow.banks) = ("slow".to_owned(), 1);
    let mut link = system.links[1].clone();
    link.ends[0] = "slow".to_owned();
    system.pools.push(slow);
    system.links.push(link);
    // Hosts read the whole file over and over, past small caches.
    let mut machine = machine(2 << 30);
    machine.caches[2].size = Bytes(256 << 10);
    let input = [workload("stream,accesses=200k,size=4MiB")];
    system.files = vec![file(7, "4 MiB")];
    let run =
        |system: &SystemDescription, threads| simulate(&machine, system, &input, threads).unwrap();
    let stays = run(&system, 2);
    assert_eq!(stays.file_moves, FileMoveTotals::default());
    system.files[0].moves_per_ms = Some(400);
    for (mode, batches) in [
        (ShootdownChoice::Batched, true),
        (ShootdownChoice::EarlyAcknowledge, true),
        (ShootdownChoice::PerPage, false),
    ] {
        system.hosts[0].shootdowns = mode;
        let moves = run(&system, 2);
        assert_eq!(run(&system, 1), moves, "{mode:?}");
        let totals = moves.file_moves;
        assert!(totals.pages > 100, "{mode:?}: {totals:?}");
        // Two other hosts acknowledge each round; none is lost, but those of hosts that had ended.
        let due = totals.acknowledgements_due;
        let rounds = if batches { due / 2 } else { totals.pages };
        assert!((due - 2..=due).contains(&totals.acknowledgements), "{mode:?}: {totals:?}");
        assert!(rounds > 0 && totals.messages == 3 * due, "{mode:?}: {totals:?}");
        for (host, before) in moves.hosts.iter().zip(&stays.hosts) {
            let shared: Vec<u64> = host.pools.iter().map(|pool| pool.shared_frames).collect();
            // Every page is mapped once.
            assert_eq!(shared.iter().sum::<u64>(), 1024, "{mode:?}, {}: {shared:?}", host.host);
            assert!(shared[1] != 512 && before.pools[1].shared_frames == 512, "{shared:?}");
            let drops = host.shootdowns;
            assert!(drops.pages <= totals.pages && drops.rounds > 0, "{drops:?}");
            assert_eq!(drops.rounds == drops.pages, !batches, "{mode:?}: {drops:?}");
            assert_eq!(before.shootdowns.rounds, 0);
        }
        // The host that ends last has seen all of them.
        let most = moves.hosts.iter().map(|host| host.shootdowns.pages).max();
        assert_eq!(most, Some(totals.pages), "{mode:?}");
        if batches {
            let seconds = |outcome: &SystemOutcome| outcome.hosts[0].run.seconds;
            assert!(seconds(&moves) < 0.9 * seconds(&stays), "{mode:?}");
        }
    }
}

/// A group of hosts has mapped a file that it may not reach.
#[test]
fn whoever_checks_refuses_a_stranger_and_lets_the_others_go_on() {
    let mut system = opal(2, 2, "local-first");
    let mut stranger = system.hosts[0].clone();
    (stranger.name, stranger.count) = ("stranger".to_owned(), 1);
    let mut link = system.links[0].clone();
    link.ends[0] = stranger.name.clone();
    system.hosts.push(stranger);
    system.links.push(link);
    let node = || vec!["node".to_owned()];
    let trespassers = vec!["stranger".to_owned()];
    system.files = vec![SharedFileEntry { hosts: node(), trespassers, ..file(7, "1 MiB") }];
    let run = |system: &SystemDescription| {
        simulate(&machine(2 << 30), system, &[workload("chase,accesses=20k,size=2MiB")], 2)
    };
    // Nobody checks.
    let open = run(&system).unwrap();
    assert_eq!(open.file_use.trespassed_pages, 256);
    assert_eq!(open.hosts[2].pools[1].shared_frames, 128);
    let access = AccessDescription {
        scheme: AccessScheme::Module,
        check_ns: Some(10),
        checks_per_us: None,
        entries: Some(64),
        ways: Some(4),
        hit_ns: Some(5),
        step_ns: Some(50),
        steps: None,
    };
    for (scheme, checker) in [(AccessScheme::Module, "pool"), (AccessScheme::Router, "switch")] {
        system.access = Some(AccessDescription { scheme, ..access });
        for placement in [None, Some("terrace")] {
            system.hosts[1].placement = placement.map(str::to_owned);
            let error = run(&system).unwrap_err().to_string();
            assert!(error.starts_with(&format!("host stranger0: {checker}")), "{error}");
            assert!(error.contains(" of file 7, frame ") && !error.contains('\n'), "{error}");
        }
    }
    // Behind a translation unit it cannot name the frames, and has its own.
    system.access = Some(AccessDescription { scheme: AccessScheme::Translation, ..access });
    system.hosts[1].placement = None;
    let apart = run(&system).unwrap();
    assert_eq!((apart.file_use.trespassed_pages, apart.file_use.shared_pages), (0, 256));
    assert_eq!(apart.hosts[2].pools[1].shared_frames, 0);
    // Those who may are not refused.
    system.hosts.pop();
    system.links.pop();
    system.files[0].trespassers.clear();
    system.access = Some(access);
    assert_eq!(run(&system).unwrap().file_use.trespassed_pages, 0);
}

#[test]
fn pages_of_files_that_a_host_writes_and_another_touches_are_named() {
    let mut system = opal(2, 1, "local-first");
    system.files = vec![file(7, "1 MiB")];
    let run = |text: &str| simulate(&machine(2 << 30), &system, &[workload(text)], 2).unwrap();
    // Both write their first pages.
    let written = run("stream,accesses=100k,size=3MiB").file_use;
    let first = written.first_unguarded_page.unwrap();
    assert_eq!((written.shared_pages, written.unguarded_pages), (256, 256));
    assert_eq!((first.file, first.writer, first.other), (7, "node0".into(), "node1".into()));
}

#[test]
fn a_cap_holds_one_host_back_and_leaves_the_others_alone() {
    let mut system = opal(1, 1, "1:16");
    let input = "stream,accesses=400k,size=24MiB";
    let pooled = |host: &HostOutcome| host.pools[1].read_bytes + host.pools[1].write_bytes;
    let free = run(&system, input).remove(0);
    system.hosts[0].cap_bytes_per_s = Some(200_000_000);
    let capped = run(&system, input).remove(0);
    let rate = pooled(&capped) as f64 / capped.run.seconds;
    let before = pooled(&free) as f64 / free.run.seconds;
    assert!(before > 4e8 && (1e8..2.4e8).contains(&rate), "{rate} B/s of {before}");
}

#[test]
fn windows_as_short_as_the_fabric_is_fast_give_the_same_on_any_number_of_threads() {
    let mut system = opal(2, 1, "alternate");
    system.links.iter_mut().for_each(|link| link.latency_ns = 500);
    let input = [workload("skew,accesses=3k,size=1MiB")];
    let least = system.fabric("x").unwrap().least_latency_ps().unwrap() / 1000;
    system.window_ns = least;
    assert_eq!(least, 1000);
    let run = |system: &SystemDescription, threads| {
        simulate(&machine(2 << 30), system, &input, threads).unwrap()
    };
    let one = run(&system, 1);
    assert_eq!(run(&system, 2), one);
    let mut long = system.clone();
    long.window_ns = 10_000;
    let seconds = |outcome: &SystemOutcome| outcome.hosts[0].run.seconds;
    let ratio = seconds(&run(&long, 2)) / seconds(&one);
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}

#[test]
fn a_profile_puts_what_misses_most_into_local_memory() {
    let input = "skew,accesses=400k,size=24MiB,hot_size=20MiB";
    let local = machine(22 << 20);
    let seconds = |policy| run_on(&local, &opal(1, 1, policy), input)[0].run.seconds;
    let (first, aware) = (seconds("local-first"), seconds("application-aware"));
    assert!(aware < 0.9 * first, "{aware} and {first}");
}

#[test]
fn hosts_have_as_many_cores_as_the_file_says() {
    let mut system = opal(1, 0, "local-first");
    let input = "skew,accesses=100k,threads=8";
    let all = run(&system, input)[0].run.seconds;
    system.hosts[0].cores = Some(2);
    let two = run(&system, input)[0].run.seconds;
    assert!(two > 2.0 * all, "{two} and {all}");
    system.hosts[0].cores = Some(9);
    let error = simulate(&machine(2 << 30), &system, &[workload(input)], 1).unwrap_err();
    let expected = "cores: 9; machine disaggregated lets give 1 to 8";
    assert!(error.to_string().contains(expected), "{error}");
}
