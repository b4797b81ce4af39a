//! What a system file may say beside hosts, pools and fabric.
#![allow(clippy::unwrap_used)]

use terrace_machine::{preset, Machine};
use terrace_pool::*;
use terrace_sim::SimInput;
use terrace_types::{Bytes, Seed};
use terrace_workload::WorkloadSpec;

/// Opal's system with so many hosts and pools, all hosts under one policy.
fn opal(hosts: u32, pools: u32, policy: &str) -> SystemDescription {
    let text = system_preset_text("opal").unwrap();
    let mut system = SystemDescription::from_toml(text, "opal").unwrap();
    (system.hosts[0].count, system.pools[0].count) = (hosts, pools);
    system.hosts[0].policy = policy.to_owned();
    system
}

fn workload(text: &str) -> SimInput {
    SimInput::Workload(WorkloadSpec { fast: Bytes(8 << 20), ..WorkloadSpec::parse(text).unwrap() })
}

/// The paper's host with so much local memory.
fn machine(local: u64) -> Machine {
    let mut machine = preset("disaggregated").unwrap();
    machine.nodes[0].capacity = Bytes(local);
    machine
}

fn run_on(machine: &Machine, system: &SystemDescription, input: &str) -> Vec<HostOutcome> {
    system.check("x").unwrap();
    let machines = std::slice::from_ref(machine);
    let plan = SystemPlan::new(system, "x", machines, &[workload(input)], Seed(1)).unwrap();
    simulate_system(&plan, 2).unwrap().hosts
}

fn run(system: &SystemDescription, input: &str) -> Vec<HostOutcome> {
    run_on(&machine(2 << 30), system, input)
}

const SKEW: &str = "skew,accesses=100k";

#[test]
fn a_placement_policy_brings_hot_pages_from_the_pool_and_gives_frames_back() {
    // Cold pages are touched first, so that the hot ones lie in the pool. The last cache has room
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
    let plan =
        SystemPlan::new(&system, "x", std::slice::from_ref(&small), &[workload(input)], Seed(1));
    let error = plan.and_then(|plan| simulate_system(&plan, 1)).unwrap_err().to_string();
    assert!(error.contains("node0: ") && error.contains("needs"), "{error}");
    system.hosts[0].swap = Some(SwapDescription { read_ns: 80_000, write_ns: 20_000 });
    let small_world = run_on(&machine(7 << 20), &system, input);
    assert_eq!(small_world[0].swap.unwrap().written_pages, 0, "it fits");
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
    // With room for all, every page is walked for once, or again where a set is full.
    assert!((frames..frames + frames / 10).contains(&fewer.walks), "{fewer:?}, {frames} frames");
}

#[test]
fn hosts_have_the_same_frames_of_a_file_and_no_others() {
    let mut system = opal(3, 2, "local-first");
    let size = "4 MiB".to_owned();
    system.files =
        vec![SharedFileEntry { id: 7, size, offset: None, hosts: Vec::new(), moves_per_ms: None }];
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
    let plan = SystemPlan::new(&system, "x", &[machine(2 << 30)], &[workload(SKEW)], Seed(1));
    let error = plan.unwrap_err().to_string();
    assert!(error.contains("file \"7\", size: 1024 frames are asked for and 512"), "{error}");
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
    let plan = SystemPlan::new(&system, "x", &[machine(2 << 30)], &input, Seed(1)).unwrap();
    let one = simulate_system(&plan, 1).unwrap();
    assert_eq!(simulate_system(&plan, 2).unwrap(), one);
    let mut long = system.clone();
    long.window_ns = 10_000;
    let plan = SystemPlan::new(&long, "x", &[machine(2 << 30)], &input, Seed(1)).unwrap();
    let seconds = |outcome: &SystemOutcome| outcome.hosts[0].run.seconds;
    let ratio = seconds(&simulate_system(&plan, 2).unwrap()) / seconds(&one);
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
    let plan = SystemPlan::new(&system, "x", &[machine(2 << 30)], &[workload(input)], Seed(1));
    assert!(plan
        .unwrap_err()
        .to_string()
        .contains("cores: 9; machine disaggregated lets give 1 to 8"));
}
