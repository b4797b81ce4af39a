//! The engine with the lab's machines.

use super::*;
use crate::params::ModelOptions;
use terrace_machine::{LoadLatencyCurve, LoadedPoint, Machine};
use terrace_types::{BytesPerSec, Nanos, NodeId};

fn engine(preset: &str, vcpus: u32, memory_mode: bool) -> MemorySystem {
    let options = ModelOptions { vcpus, all_fast: false, memory_mode, outstanding: None };
    let params =
        ModelParams::from_machine(&terrace_machine::preset(preset).unwrap(), options).unwrap();
    MemorySystem::new(params, 10_000_000).unwrap()
}

fn touch(e: &mut MemorySystem, vcpu: usize, physical: u64, write: bool) -> Option<usize> {
    e.units[vcpu].core.execute(2);
    if e.units[vcpu].l1.hit(physical / LINE, write) {
        return None;
    }
    e.miss(vcpu, MemoryAccess { physical, virtual_: physical, write }, || Some(0))
}

const SLOW: u64 = 256 << 20;

/// Bytes on the bus a second of a sequential sweep over 64 MiB by every vCPU, each over its own
/// part.
fn sweep(e: &mut MemorySystem, base: u64, write: bool) -> f64 {
    let lines = (64 << 20) / LINE;
    let cores = e.units.len() as u64;
    let mut next = vec![0u64; cores as usize];
    while next.iter().any(|n| *n < lines) {
        for v in 0..cores {
            while e.units[v as usize].core.time < e.lockstep().end() && next[v as usize] < lines {
                let at = base + (v * lines + next[v as usize]) * LINE;
                touch(e, v as usize, at, write);
                next[v as usize] += 1;
            }
        }
        let done: Vec<bool> = next.iter().map(|n| *n >= lines).collect();
        e.advance(|v| done[v]);
    }
    let time = e.units.iter().map(|u| u.core.time).max().unwrap();
    let bytes: u64 = (0..e.units.len())
        .map(|v| e.counters(v))
        .map(|c| c.read_bytes.iter().sum::<u64>() + c.write_bytes.iter().sum::<u64>())
        .sum();
    bytes as f64 * 1e12 / time as f64
}

fn within(value: f64, expected: f64, share: f64) {
    assert!((value / expected - 1.0).abs() < share, "{value:e}, expected {expected:e}");
}

#[test]
fn sweeps_read_the_bandwidth() {
    for vcpus in [1, 2] {
        within(sweep(&mut engine("lab-cxl", vcpus, false), 0, false), 100e9, 0.05);
        within(sweep(&mut engine("lab-cxl", vcpus, false), SLOW, false), 20e9, 0.05);
        within(sweep(&mut engine("lab-dcpmm", vcpus, false), SLOW, false), 13e9, 0.05);
    }
}

#[test]
fn written_lines_go_at_both_rates() {
    // Each line is read (13 GB/s) and, except for the last cacheful, written back (4.6 GB/s).
    let rate = sweep(&mut engine("lab-dcpmm", 2, false), SLOW, true);
    within(rate, 2.0 / (1.0 / 13e9 + 1.0 / 4.6e9), 0.10);
}

#[test]
fn caches_serve_what_they_hold() {
    let mut e = engine("lab-cxl", 2, false);
    assert_eq!(touch(&mut e, 0, SLOW, false), Some(1));
    assert_eq!(touch(&mut e, 0, SLOW + 8, false), None);
    assert_eq!(touch(&mut e, 1, SLOW, false), None);
    assert_eq!(e.counters(1).llc_hits, 1);
    assert_eq!(e.counters(0).llc_misses(), [0, 1]);
}

#[test]
fn a_middle_level_serves_what_left_the_first() {
    let mut e = engine("dram-dcpmm", 1, false);
    let lines = (256 << 10) / LINE;
    for write in [true, false] {
        (0..lines).for_each(|i| {
            touch(&mut e, 0, i * LINE, write);
        });
    }
    let c = e.counters(0);
    assert_eq!((c.l1_misses, c.l2_hits, c.llc_hits), (2 * lines, lines, 0));
    // What was written lies dirty in the second level, and nowhere else needed telling.
    assert_eq!((c.l1_writebacks, c.l2_writebacks, c.writebacks.iter().sum()), (lines, 0, 0));
}

#[test]
fn copies_go_through_caches_at_the_slower_nodes_rate() {
    let mut e = engine("lab-cxl", 2, false);
    for page in (0..100 * 4096).step_by(4096) {
        let before = e.units[0].core.time;
        let took = e.copy(0, SLOW + page, page, 4096);
        assert_eq!(e.units[0].core.time, before);
        e.units[0].core.time += took;
    }
    // 20 GB/s read from the slow node; the fast one's lines come beside them.
    within(e.units[0].core.time as f64 / 100.0, 4096.0 / 20e9 * 1e12, 0.10);
    let counts = e.counters(0);
    assert_eq!(counts.read_bytes, [409_600, 409_600]);
    assert!(
        counts.write_bytes.iter().all(|b| *b == 0),
        "what was written is in the last level still"
    );
}

#[test]
fn copies_wait_for_a_bus_that_another_core_fills() {
    let mut e = engine("lab-cxl", 2, false);
    let (mut lines, mut pages) = (0, 0);
    for _ in 0..200 {
        while e.units[0].core.time < e.lockstep().end() {
            let took = e.copy(0, SLOW + pages * 4096, pages * 4096, 4096);
            e.units[0].core.time += took;
            pages += 1;
        }
        while e.units[1].core.time < e.lockstep().end() {
            touch(&mut e, 1, SLOW + (128 << 20) + lines * LINE, false);
            lines += 1;
        }
        e.advance(|_| false);
    }
    // Half of the 20 GB/s that it has alone.
    within(e.units[0].core.time as f64 / pages as f64, 4096.0 / 10e9 * 1e12, 0.15);
}

#[test]
fn devices_cost_nothing() {
    let mut e = engine("lab-cxl", 1, false);
    let before = e.units[0].core.time;
    assert_eq!(
        e.miss(0, MemoryAccess { physical: 0xfee0_0000, virtual_: 0, write: true }, || None),
        None
    );
    assert_eq!(e.units[0].core.time, before);
    assert_eq!(e.counters(0), Counters { instructions: 0, ..Counters::new(2) });
}

#[test]
fn memory_mode_serves_reuse_from_the_fast_node() {
    let mut e = engine("lab-cxl", 1, true);
    let lines = (32 << 20) / LINE;
    for round in 0..2 {
        for i in 0..lines {
            let node = touch(&mut e, 0, SLOW + i * LINE, false);
            assert_eq!(node, Some(if round == 0 { 1 } else { 0 }));
        }
    }
}

#[test]
fn in_memory_mode_each_cluster_has_its_own_cache() {
    let mut e = engine("lab-snc4", 4, true);
    assert_eq!(
        e.params().cached_by,
        [(4, 0), (5, 1), (6, 2), (7, 3), (4, 0), (5, 1), (6, 2), (7, 3)]
    );
    let range = |e: &MemorySystem, node: usize| {
        let layout = &e.params().layout;
        (0u64..4096).map(|m| m << 20).find(|a| layout.node_of(*a) == Some(node)).unwrap()
            + (32 << 20)
    };
    for node in [0, 2] {
        let start = range(&e, node);
        for round in 0..2 {
            for i in 0..(16 << 20) / LINE {
                let found = touch(&mut e, 0, start + i * LINE, false);
                assert_eq!(
                    found,
                    Some(if round == 0 { node } else { node + 4 }),
                    "node {node}, round {round}"
                );
            }
        }
    }
}

#[test]
fn copies_past_the_caches_read_nothing_of_their_target() {
    for (past, expected) in [(true, [1, 1]), (false, [2, 1])] {
        let mut e = engine("lab-cxl", 1, false);
        let lines = (64 << 20) / LINE;
        for i in 0..lines {
            touch(&mut e, 0, SLOW + i * LINE, false);
            for part in 0..4 {
                let at = i * LINE + part * 16;
                match past {
                    true => assert_eq!(e.store_past(0, at), part == 0),
                    false => drop(touch(&mut e, 0, at, true)),
                }
            }
        }
        let c = e.counters(0);
        let bytes = [c.read_bytes[0] + c.write_bytes[0], c.read_bytes[1]]
            .map(|b| b as f64 / (64 << 20) as f64);
        (0..2).for_each(|node| within(bytes[node], f64::from(expected[node]), 0.07));
        // The slow node's 20 GB/s bound both: each line is read there once.
        within((64 << 20) as f64 * 1e12 / e.units[0].core.time as f64, 20e9, 0.03);
    }
}

#[test]
fn stores_past_the_caches_take_the_bus_and_drop_what_caches_hold() {
    let mut e = engine("lab-dcpmm", 1, false);
    let lines = (64 << 20) / LINE;
    (0..lines).for_each(|i| assert!(e.store_past(0, SLOW + i * LINE)));
    within((64 << 20) as f64 * 1e12 / e.units[0].core.time as f64, 4.6e9, 0.05);
    // Written in the cache, then past it: not written a second time, and read anew from memory.
    let mut e = engine("lab-cxl", 1, false);
    touch(&mut e, 0, SLOW, true);
    assert!(e.store_past(0, SLOW + 16) && !e.store_past(0, SLOW + 32));
    assert_eq!(touch(&mut e, 0, SLOW, false), Some(1));
    assert_eq!(e.counters(0).writebacks, [0, 1]);
    assert!(!e.store_past(0, 0xfee0_0000), "a device");
}

#[test]
fn pages_are_served_by_the_node_that_they_are_given() {
    let mut e = engine("lab-cxl", 1, false);
    e.serve_from(SLOW >> 12, 0);
    assert_eq!(touch(&mut e, 0, SLOW, true), Some(0));
    assert_eq!(touch(&mut e, 0, SLOW + 4096, true), Some(1));
    // Their dirty lines go back to it too, when others push them out of the caches.
    for line in 0..(64 << 20) / LINE {
        touch(&mut e, 0, (SLOW << 1) + line * LINE, false);
    }
    assert_eq!(e.counters(0).writebacks, [1, 1]);
    e.serve_from(SLOW >> 12, 1);
    assert_eq!(touch(&mut e, 0, SLOW, false), Some(1));
}

/// A step of a core that follows pointers on the slow node beside one that reads it in order,
/// picoseconds, and the bytes a second that both take there.
fn step_beside_a_stream(machine: &Machine) -> (f64, f64) {
    let options = ModelOptions { vcpus: 2, all_fast: false, memory_mode: false, outstanding: None };
    let mut e = MemorySystem::new(ModelParams::from_machine(machine, options).unwrap(), 10_000_000)
        .unwrap();
    let (mut line, mut at, mut steps) = (SLOW / LINE, SLOW + (512 << 20), 0u64);
    let mut middle = (0, 0, 0);
    let bytes = |e: &MemorySystem| (0..2).map(|v| e.counters(v).read_bytes[1]).sum::<u64>();
    for quantum in 0..200 {
        while e.units[0].core.time < e.lockstep().end() {
            touch(&mut e, 0, line * LINE, false);
            line += 1;
        }
        while e.units[1].core.time < e.lockstep().end() {
            // An odd factor: no line comes twice within 2 M steps.
            let next = SLOW + (512 << 20) + steps * 1_402_947 % (1 << 21) * LINE;
            e.units[1].core.execute(2);
            let access = MemoryAccess { physical: at, virtual_: at, write: false };
            e.miss(1, access, || Some(next));
            (at, steps) = (next, steps + 1);
        }
        if quantum == 100 {
            middle = (e.units[1].core.time, steps, bytes(&e));
        }
        e.advance(|_| false);
    }
    let time = (e.units[1].core.time - middle.0) as f64;
    (time / (steps - middle.1) as f64, (bytes(&e) - middle.2) as f64 * 1e12 / time)
}

#[test]
fn a_lone_miss_takes_what_the_curve_says_under_load() {
    let mut machine = terrace_machine::preset("lab-cxl").unwrap();
    let (idle, _) = step_beside_a_stream(&machine);
    let point = |gb: u64, ns: u64| LoadedPoint {
        bandwidth: BytesPerSec(gb * 1_000_000_000),
        added: Nanos(ns),
    };
    let points = vec![point(5, 0), point(20, 600)];
    machine.loaded = vec![LoadLatencyCurve { node: NodeId(1), read_percent: 100, points }];
    let (busy, rate) = step_beside_a_stream(&machine);
    assert!((10e9..21e9).contains(&rate), "{rate}");
    // 40 ns for each GB/s beyond 5.
    within(busy - idle, (rate / 1e9 - 5.0) * 40_000.0, 0.1);
}
