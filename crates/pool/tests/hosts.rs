//! Whole systems on small workloads.
#![allow(clippy::unwrap_used)]

mod common;

use common::{opal, run_all, workload};
use terrace_machine::preset;
use terrace_pool::*;
use terrace_sim::{RunOptions, SimInput, SimSetup};
use terrace_types::{Bytes, PolicyId, Seed};

fn run(system: &SystemDescription, inputs: &[SimInput], threads: usize) -> Vec<HostOutcome> {
    run_all(system, inputs, threads).hosts
}

fn frames(outcome: &HostOutcome) -> Vec<u64> {
    outcome.pools.iter().map(|pool| pool.frames).collect()
}

const SKEW: &str = "skew,accesses=300k";

#[test]
fn one_host_with_local_first_has_the_digits_of_the_machine_alone() {
    for input in [SKEW, "stream,accesses=300k", "skew,accesses=300k,threads=4"] {
        let input = workload(input);
        let alone =
            SimSetup::from_machine(&preset("disaggregated").unwrap(), input.clone()).unwrap();
        let alone =
            terrace_sim::simulate(&alone, &PolicyId::FirstTouch.into(), RunOptions::default())
                .unwrap();
        let outcomes = run(&opal(1, 2, "local-first"), &[input], 1);
        let host = &outcomes[0].run;
        assert_eq!(host.seconds.to_bits(), alone.seconds.to_bits());
        assert_eq!(host.caches, alone.caches);
        assert_eq!((host.accesses, host.touched_bytes), (alone.accesses, alone.touched_bytes));
        assert_eq!(frames(&outcomes[0])[1..], [0, 0]);
    }
}

#[test]
fn frames_are_where_the_policy_puts_them() {
    let touched = frames(&run(&opal(1, 0, "local-first"), &[workload(SKEW)], 1)[0])[0];
    assert!(touched > 1000, "{touched}");
    let part = |parts: u64, one: u64| touched / parts * one..=touched / parts * one + one;
    for (policy, pools, parts, expected) in [
        ("alternate", 2, 4, vec![2, 1, 1]),
        ("round-robin", 2, 3, vec![1, 1, 1]),
        ("proportional", 1, 9, vec![1, 8]),
        ("1:4", 4, 5, vec![1, 1, 1, 1, 1]),
    ] {
        let found = frames(&run(&opal(1, pools, policy), &[workload(SKEW)], 1)[0]);
        assert_eq!(found.iter().sum::<u64>(), touched, "{policy}");
        for (frames, share) in found.iter().zip(&expected) {
            assert!(part(parts, *share).contains(frames), "{policy}: {found:?} of {touched}");
        }
    }
}

#[test]
fn results_are_the_same_for_any_number_of_threads_and_hosts_may_change_places() {
    let inputs: Vec<SimInput> = [
        "skew,accesses=300k",
        "stream,accesses=100k",
        "skew,accesses=50k,threads=2",
        "skew,accesses=200k,seed=9",
    ]
    .map(workload)
    .to_vec();
    let system = opal(4, 2, "alternate");
    let one = run(&system, &inputs, 1);
    for threads in [2, 3, 99] {
        assert_eq!(run(&system, &inputs, threads), one, "{threads} threads");
    }
    let reversed: Vec<SimInput> = inputs.iter().rev().cloned().collect();
    for (outcome, expected) in run(&system, &reversed, 2).iter().rev().zip(&one) {
        assert_eq!((&outcome.run, &outcome.pools), (&expected.run, &expected.pools));
    }
}

#[test]
fn hosts_that_want_the_same_pool_slow_each_other_down_and_more_pools_help() {
    let input = [workload("stream,accesses=500k,size=32MiB")];
    let seconds = |hosts, pools| {
        let all = run(&opal(hosts, pools, "alternate"), &input, 2);
        all.iter().map(|outcome| outcome.run.seconds).fold(0.0, f64::max)
    };
    let (one, four, four_pools) = (seconds(1, 1), seconds(4, 1), seconds(4, 4));
    assert!(four > 1.5 * one, "{four} and {one}");
    assert!(four_pools < 0.8 * four, "{four_pools} and {four}");
    // Local memory is nobody else's.
    let local = |hosts| run(&opal(hosts, 1, "local-first"), &input, 2)[0].run.seconds;
    assert_eq!(local(4).to_bits(), local(1).to_bits());
}

/// Four hosts behind a link of 1 GB/s take no more than it serves, by their weights.
#[test]
fn a_link_that_hosts_share_bounds_them_and_weights_divide_it() {
    let mut system = opal(4, 1, "1:16");
    system.links[1].bandwidth_bytes_per_s = Some(1_000_000_000);
    let input = [workload("stream,accesses=200k,size=24MiB")];
    let outcome = run_all(&system, &input, 2);
    let slowest = outcome.hosts.iter().map(|host| host.run.seconds).fold(0.0, f64::max);
    // A reply has 16 bytes beside the line; writes are acknowledged by 16.
    let replies = |pool: &PoolTraffic| pool.read_bytes / 64 * 80 + pool.write_bytes / 64 * 16;
    let bytes: u64 = outcome.hosts.iter().map(|host| replies(&host.pools[1])).sum();
    let rate = bytes as f64 / slowest;
    assert!((0.7e9..1.1e9).contains(&rate), "{rate} B/s");
    assert!(outcome.hosts.iter().all(|host| host.pools[1].mean_wait_ns > 0.0));
    // Of two groups, the one with four times the weight ends first.
    let mut other = system.hosts[0].clone();
    (other.name, other.count, other.weight) = ("heavy".to_owned(), 2, 4);
    system.hosts[0].count = 2;
    system.hosts.push(other);
    let mut link = system.links[0].clone();
    link.ends[0] = "heavy".to_owned();
    system.links.push(link);
    let seconds: Vec<f64> = run(&system, &input, 2).iter().map(|host| host.run.seconds).collect();
    // Less than four times as long: the light ones have the link to themselves in the end.
    assert!(seconds[2] < 0.85 * seconds[0], "{seconds:?}");
}

#[test]
fn no_pool_gives_more_frames_than_it_has_and_the_rest_is_local() {
    let mut system = opal(3, 2, "1:16");
    system.pools[0].total_capacity = "4 MiB".to_owned();
    let outcomes = run(&system, &[workload(SKEW)], 2);
    for pool in [1, 2] {
        let given: u64 = outcomes.iter().map(|outcome| outcome.pools[pool].frames).sum();
        // 2 MiB; what is left of it at last is less than a frame for each host.
        assert!((510..=512).contains(&given), "pool {pool}: {given}");
    }
    let alone = frames(&run(&opal(1, 0, "local-first"), &[workload(SKEW)], 1)[0])[0];
    for outcome in &outcomes {
        assert_eq!(frames(outcome).iter().sum::<u64>(), alone);
    }
}

#[test]
fn when_everything_is_full_the_host_is_named_and_the_others_end() {
    let mut machine = preset("disaggregated").unwrap();
    machine.nodes[0].reserved = Bytes(machine.nodes[0].capacity.get() - (4 << 20));
    let mut system = opal(2, 1, "round-robin");
    system.pools[0].total_capacity = "4 KiB".to_owned();
    let inputs = [workload("skew,accesses=1k,size=1MiB"), workload("skew,accesses=1k")];
    let error = common::simulate(&machine, &system, &inputs, 2).unwrap_err().to_string();
    assert!(error.starts_with("host node1: ") && !error.contains('\n'), "{error}");
}

#[test]
fn hosts_and_inputs_must_match_and_hosts_have_memory() {
    let (system, machine) = (opal(3, 1, "alternate"), preset("disaggregated").unwrap());
    let two = [workload(SKEW), workload(SKEW)];
    let error = HostPlan::of_system(&system, "opal", std::slice::from_ref(&machine), &two, Seed(1));
    assert!(error.unwrap_err().to_string().contains("2 inputs; give one, or one for each of 3"));
    let mut empty = machine;
    empty.nodes[0].capacity = Bytes::ZERO;
    let error = HostPlan::of_system(&system, "opal", &[empty], &two[..1], Seed(1));
    assert!(error.unwrap_err().to_string().contains("has no local memory"));
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn draw(chance: &mut u64, end: u64) -> u64 {
    *chance = chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*chance ^ (*chance >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) % end
}

#[test]
fn random_systems_come_to_an_end_and_lose_no_frame() {
    for seed in 0..12 {
        let mut chance = seed;
        let (hosts, pools) = (1 + draw(&mut chance, 5) as u32, draw(&mut chance, 4) as u32);
        let policies = AllocationPolicy::NAMED;
        let policy = policies[draw(&mut chance, policies.len() as u64) as usize].0;
        let mut system = opal(hosts, pools, policy);
        let frames_of_each = 1 + draw(&mut chance, 1000);
        system.pools[0].total_capacity =
            format!("{} KiB", 4 * frames_of_each * u64::from(pools.max(1)));
        system.links[0].latency_ns = draw(&mut chance, 500);
        system.links[1].bandwidth_bytes_per_s = Some(1 + draw(&mut chance, 1 << 33));
        // Slow links make long runs; a few MB/s are slow enough.
        let bandwidth = &mut system.links[1].bandwidth_bytes_per_s;
        *bandwidth = bandwidth.map(|bandwidth| bandwidth.max(10_000_000));
        let placements = [None, None, Some("terrace"), Some("hyplacer"), Some("autonuma")];
        let placement = placements[draw(&mut chance, placements.len() as u64) as usize];
        system.hosts[0].placement = placement.map(str::to_owned);
        let schemes = [AccessScheme::Module, AccessScheme::Router, AccessScheme::Translation];
        system.access = Some(AccessDescription {
            scheme: schemes[draw(&mut chance, 3) as usize],
            check_ns: Some(draw(&mut chance, 100)),
            checks_per_us: Some(1 + draw(&mut chance, 1000)),
            entries: Some(64),
            ways: Some(4),
            hit_ns: Some(2),
            step_ns: Some(10),
            steps: Some(4 + draw(&mut chance, 23) as u32),
        });
        system.hosts[0].cap_bytes_per_s = Some(100_000_000 + draw(&mut chance, 1 << 33));
        let inputs: Vec<SimInput> = (0..hosts)
            .map(|_| workload(&format!("skew,accesses={}", 1000 + draw(&mut chance, 60_000))))
            .collect();
        let threads = 1 + draw(&mut chance, 4) as usize;
        // A host that has ended gives its frames back, so that others may have them, too.
        let outcomes = run(&system, &inputs, threads);
        for (pool, outcome) in
            (1..=pools as usize).flat_map(|p| outcomes.iter().map(move |o| (p, o)))
        {
            let has = outcome.pools[pool].frames;
            assert!(has <= frames_of_each, "seed {seed}: {has} of {frames_of_each}");
        }
        for outcome in &outcomes {
            let got = frames(outcome).iter().sum::<u64>() * 4096;
            assert_eq!(got, outcome.run.touched_bytes, "seed {seed}, {}", outcome.host);
        }
    }
}

#[test]
fn damaged_system_files_are_refused_or_read_and_never_harm() {
    let text = system_preset_text("opal").unwrap();
    let (mut chance, mut read) = (1, 0);
    for _ in 0..3000 {
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..1 + draw(&mut chance, 3) {
            let at = draw(&mut chance, bytes.len() as u64) as usize;
            match draw(&mut chance, 3) {
                0 => drop(bytes.remove(at)),
                1 => bytes[at] = draw(&mut chance, 128) as u8,
                _ => bytes.insert(at, b"0123456789\"[]=-."[draw(&mut chance, 16) as usize]),
            }
        }
        let damaged = String::from_utf8_lossy(&bytes);
        match SystemDescription::from_toml(&damaged, "x") {
            Ok(_) => read += 1,
            Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
        }
    }
    // Changes in comments and in figures do no harm.
    assert!((100..2900).contains(&read), "{read}");
}
