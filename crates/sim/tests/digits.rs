//! Results to the last digit: whoever makes the simulator faster changes none of them.
//!
//! Whoever changes what is modelled accepts new ones with the command that the test prints, and
//! says so in the changelog.
#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::io::Cursor;
use std::sync::Arc;
use terrace_machine::{preset, Machine};
use terrace_policy::place::{CustomPolicy, Placement};
use terrace_sim::recording::{OpenRecording, RecordingSource};
use terrace_sim::{
    simulate, simulate_custom, Recording, RunOptions, SimError, SimInput, SimRun, SimSetup,
    TrackerKind,
};
use terrace_trace::{Access, TraceHeader, TraceWriter};
use terrace_types::{Bytes, BytesPerSec, Nanos, PolicyId};

const ACCEPT: &str = "TERRACE_ACCEPT=1 cargo test -p terrace-sim --test digits";

/// A preset with a fast tier of `fast` MiB, so that short runs have something to place, and with a
/// last level that they fill.
fn machine(name: &str, fast: u64, last: u64) -> Machine {
    let mut machine = preset(name).unwrap();
    let nodes = machine.nodes.len();
    for (at, node) in machine.nodes.iter_mut().enumerate() {
        node.capacity = Bytes::mib(if at == 0 { fast } else { 512 / nodes as u64 });
        node.reserved = Bytes::ZERO;
    }
    let ways = u64::from(machine.caches.last().unwrap().ways);
    machine.caches.last_mut().unwrap().size = Bytes(last * ways * 64);
    machine
}

fn mix(x: u64) -> u64 {
    let z = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Streams, gathers that depend on a load two before, chases, and stores, by three threads of two
/// processes, one of which waits for the others; `far`: over how many bytes the scattered ones go.
fn recording(far: u64) -> SimInput {
    let header = TraceHeader { dependence: true, ..TraceHeader::default() };
    let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
    for (process, thread) in [(0u32, 0u32), (0, 1), (7, 0)] {
        let base = 0x7f12_0000_0000 + u64::from(thread) * (64 << 20);
        if thread == 1 {
            writer.advance(process, thread, 200_000).unwrap();
        }
        for i in 0..60_000u64 {
            let random = mix(i ^ u64::from(thread) << 40);
            let scattered = base + random % (far / 64) * 64;
            let accesses = [
                (base + far + 8 * i, false, 2, 0),
                (base + far + (8 << 20) + 4 * (i % 9000), random >> 60 == 0, 1, 0),
                (scattered, false, 1, if i & 1024 == 0 { 2 } else { 0 }),
                (scattered + 8, random & 3 == 0, 3, u8::from(random & 8 == 0)),
            ];
            for (address, store, gap, depends) in accesses {
                let access = Access { address, size: 8, store, depends, gap, pc: 0 };
                writer.access(process, thread, &access).unwrap();
            }
        }
    }
    let bytes = writer.finish().unwrap();
    let open: Arc<OpenRecording> =
        Arc::new(move || Ok(Box::new(Cursor::new(bytes.clone())) as Box<dyn RecordingSource>));
    SimInput::Recording {
        name: format!("recording {far}"),
        recording: Recording::new(open).unwrap(),
    }
}

fn line(run: &SimRun) -> String {
    let mut text =
        format!("    {} {:?} s, fast {:?}", run.policy, run.seconds, run.fast_access_share);
    let moves = (run.promoted_pages, run.demoted_pages, run.migrated_bytes);
    write!(
        text,
        ", moves {moves:?}, overhead {:?}, joules {:?}",
        run.overhead_seconds, run.energy_joules
    )
    .unwrap();
    for c in &run.caches {
        write!(text, ", L{} {} {} {}", c.level, c.hits, c.misses, c.writebacks).unwrap();
    }
    text.replace("Some(", "(")
}

/// As [`machine`], its memory eight times slower: a short program lives for several intervals of
/// every tracker and policy.
fn slow_machine(name: &str, fast: u64, sets: u64) -> Machine {
    const TIMES: u64 = 8;
    let mut machine = machine(name, fast, sets);
    for link in &mut machine.links {
        for latency in [&mut link.read_latency, &mut link.write_latency].into_iter().flatten() {
            latency.value = Nanos(latency.value.get() * TIMES);
        }
        for rate in [&mut link.read_bandwidth, &mut link.write_bandwidth].into_iter().flatten() {
            rate.value = BytesPerSec(rate.value.get() / TIMES);
        }
    }
    machine
}

/// A program that fills 12 MiB and then reads the last 3 MiB of them only: what lies on the fast
/// node is never touched again.
fn hot_at_the_end() -> SimInput {
    let mut writer = TraceWriter::new(Vec::new(), &TraceHeader::default()).unwrap();
    let base = 0x7f12_0000_0000;
    let mut access = |address, store| {
        let access = Access { address, size: 8, store, depends: 0, gap: 4, pc: 0 };
        writer.access(0, 0, &access).unwrap();
    };
    (0..12 << 14).for_each(|line| access(base + line * 64, true));
    (0..700_000).for_each(|i| access(base + (9 << 20) + mix(i) % (3 << 14) * 64, false));
    let bytes = writer.finish().unwrap();
    let open: Arc<OpenRecording> =
        Arc::new(move || Ok(Box::new(Cursor::new(bytes.clone())) as Box<dyn RecordingSource>));
    SimInput::Recording {
        name: "hot at the end".to_owned(),
        recording: Recording::new(open).unwrap(),
    }
}

/// Whether a policy moves pages in the simulator at all.
fn moves_pages(id: PolicyId) -> bool {
    match id {
        // It moves nothing by definition.
        PolicyId::FirstTouch => false,
        // It needs counts by cell, which page tables do not tell.
        PolicyId::AccessCount => false,
        PolicyId::Terrace
        | PolicyId::HyPlacer
        | PolicyId::TerraceWriteBlind
        | PolicyId::HyPlacerWriteBlind
        | PolicyId::Nimble
        | PolicyId::Autonuma
        | PolicyId::Memos
        | PolicyId::Partitioned
        | PolicyId::BandwidthBalance
        | PolicyId::Histogram
        | PolicyId::LatencyBalance => true,
    }
}

/// A run of a policy; of a periodic one with periods and thresholds of 50 ms in place of seconds,
/// by which these programs have ended before a page counts as cold.
fn run_in_a_hurry(plan: &SimSetup, id: PolicyId) -> SimRun {
    let mut placement = Placement::new(id, &plan.machine);
    if !matches!(placement, Placement::Paced { .. }) {
        return simulate(plan, &id.into(), RunOptions::default()).unwrap();
    }
    for key in ["period_ms", "hot_threshold_ms"] {
        if placement.params().contains_key(key) {
            placement.set(key, "50").unwrap();
        }
    }
    let policy = CustomPolicy::new(placement.needs(), move |snapshot, now, seed| {
        placement.step(snapshot, now, seed)
    });
    let name = format!("{id}, every 50 ms");
    simulate_custom(plan, &name, policy, RunOptions::default()).unwrap()
}

/// Each policy that moves pages, on two programs: where it moved none the line would say nothing of
/// it. One of the two must have moves.
fn moving_runs(text: &mut String) {
    let (dcpmm, cxl) = (slow_machine("lab-dcpmm", 8, 512), slow_machine("lab-cxl", 8, 512));
    let written = "rwsplit,accesses=1500k";
    let plans = [
        (format!("{written} on slow lab-dcpmm"), SimSetup::new(&dcpmm, written).unwrap()),
        (
            "hot at the end on slow lab-cxl".to_owned(),
            SimSetup::from_machine(&cxl, hot_at_the_end()).unwrap(),
        ),
    ];
    let mut idle = Vec::new();
    for id in PolicyId::ALL.iter().copied().filter(|id| moves_pages(*id)) {
        let mut moved = 0;
        for (title, plan) in &plans {
            writeln!(text, "{title}, PageTable").unwrap();
            let run = run_in_a_hurry(plan, id);
            moved += run.promoted_pages.unwrap() + run.demoted_pages.unwrap();
            writeln!(text, "{}", line(&run)).unwrap();
        }
        if moved == 0 {
            idle.push(id.name());
        }
    }
    assert!(idle.is_empty(), "{idle:?} moved nothing: {text}");
    let plan = &plans[0].1;
    let refused = simulate(plan, &PolicyId::AccessCount.into(), RunOptions::default()).unwrap_err();
    assert!(matches!(refused, SimError::Needs(_)), "{refused}");
}

fn runs(text: &mut String, title: &str, plan: &SimSetup, tracker: TrackerKind, policies: &[&str]) {
    let name = format!("{tracker:?}");
    let name = name.split('(').next().unwrap();
    writeln!(text, "{title}, {name}").unwrap();
    for policy in policies {
        let run = simulate(
            plan,
            &policy.parse().unwrap(),
            RunOptions { tracker, ..RunOptions::default() },
        )
        .unwrap();
        writeln!(text, "{}", line(&run)).unwrap();
    }
}

#[test]
fn results_stay_as_they_are() {
    let mut text = String::new();
    let few = ["first-touch", "terrace", "bound:static"];
    let page_table = TrackerKind::PageTable;
    for (name, fast, sets, workload, policies) in [
        ("lab-cxl", 8, 512, "skew,accesses=1M,size=12MiB,hot_size=2MiB", &few[..]),
        (
            "lab-cxl",
            8,
            512,
            "shift,accesses=600k,phase_seconds=0.003,size=12MiB",
            &["bound:clairvoyant", "histogram"],
        ),
        (
            "lab-dcpmm",
            8,
            512,
            "rwsplit,accesses=1M",
            &["first-touch", "terrace", "hyplacer", "hardware:memory-mode"],
        ),
        (
            "dram-dcpmm",
            4,
            1024,
            "graph-bfs,accesses=200k",
            &["first-touch", "bound:ideal-move", "terrace"],
        ),
        (
            "dram-dcpmm",
            4,
            1000,
            "skew,accesses=300k,size=6MiB,hot_size=1MiB,threads=3",
            &["memos", "autonuma"],
        ),
        (
            "ddr-cxl",
            8,
            2048,
            "skew,accesses=300k,size=12MiB,hot_size=2MiB,pages=thp",
            &["first-touch", "nimble"],
        ),
        (
            "knl-flat",
            4,
            2048,
            "stream,fast=4MiB,accesses=300k,threads=4",
            &["first-touch", "bound:all-fast"],
        ),
        (
            "xeon-max",
            4,
            2048,
            "npb-cg,fast=4MiB,accesses=300k,threads=2",
            &["first-touch", "bandwidth-balance"],
        ),
        ("lab-hbm", 4, 512, "chase,fast=4MiB,accesses=100k", &["first-touch", "bound:static"]),
        ("lab-pcie", 4, 512, "scan,fast=4MiB,accesses=300k", &["first-touch", "terrace"]),
    ] {
        let plan = SimSetup::new(&machine(name, fast, sets), workload).unwrap();
        runs(&mut text, &format!("{workload} on {name}"), &plan, page_table, policies);
    }
    for tracker in [TrackerKind::NAMED[1].1, TrackerKind::Damon] {
        let plan = SimSetup::new(
            &machine("ddr-cxl", 8, 1024),
            "skew,accesses=2M,size=16MiB,hot_size=2MiB",
        )
        .unwrap();
        runs(&mut text, "skew on ddr-cxl", &plan, tracker, &["histogram", "hyplacer"]);
    }
    for (name, far) in [
        ("lab-cxl", 2 << 20),
        ("dram-dcpmm", 24 << 20),
        ("ddr-cxl", 24 << 20),
        ("xeon-max", 8 << 20),
    ] {
        let plan = SimSetup::from_machine(&machine(name, 24, 1024), recording(far)).unwrap();
        runs(&mut text, &format!("recording {far} on {name}"), &plan, page_table, &few);
        runs(&mut text, "again", &plan, page_table, &["hardware:memory-mode"]);
    }
    moving_runs(&mut text);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/digits.txt");
    if std::env::var_os("TERRACE_ACCEPT").is_some() {
        std::fs::write(file, &text).unwrap();
    }
    let expected = std::fs::read_to_string(file).unwrap();
    let differs = text.lines().zip(expected.lines()).find(|(now, then)| now != then);
    assert_eq!(differs, None, "to accept: {ACCEPT}");
    assert_eq!(text, expected, "to accept: {ACCEPT}");
}
