//! One document of each kind of picture, made up, with names and figures that are hard to place.

use crate::common::{comparison, journal};
use serde_json::{json, Value};
use std::io::Cursor;
use terrace_report::{FarHeader, FarSample};
use terrace_sampling::{AccessLocality, DataSource, MemoryLevel, MemoryOperation};
use terrace_trace::{
    Access, CallFrame, EventKind, SampleDetail, TraceClock, TraceEvent, TraceHeader, TraceWriter,
};

/// Pages by name.
pub fn pages() -> Vec<(&'static str, String)> {
    let shown = |bytes: &str| match terrace_report::read(bytes.as_bytes()) {
        Ok(document) => document.to_html(),
        Err(error) => panic!("{error}"),
    };
    vec![
        ("run", shown(&journal("./solver --input mesh.bin", "the hot set is in the fast tier"))),
        ("compare", shown(&comparison("skew,accesses=32M"))),
        ("close", shown(&close().to_string())),
        ("sweep", shown(&sweep().to_string())),
        ("far", shown(&far())),
        ("probe", shown(&probe().to_string())),
        ("threads", shown(&threads().to_string())),
        ("recording", recording()),
        ("samples", shown_recording(sampled())),
        ("crash", shown(&crash_study("./cg S", 1).to_string())),
        (
            "crashes",
            shown(
                &[("cg A", 1), ("cg A", 4), ("cg A", 8), ("kmeans A", 1)]
                    .map(|(c, t)| crash_study(c, t).to_string())
                    .join("\n"),
            ),
        ),
    ]
}

/// Times of which none differs by much: labels of the levels want the same place, and ticks are no
/// round binary numbers.
fn close() -> Value {
    let run = |policy: &str, seconds: f64| json!({ "policy": policy, "seconds": seconds });
    json!({
        "machine": "lab-numa-with-a-long-name",
        "input": "recordings/of/the/last/week/by/the/team/orders.trace",
        "runs": [
            run("first-touch", 0.612), run("terrace-write-blind", 0.651),
            run("kernel:numa-balancing-with-tiering", 0.63), run("hardware:memory-mode", 0.7001),
            run("bound:ideal-move", 0.6),
        ],
    })
}

fn sweep() -> Value {
    let of = |fast: u64, policy: &str, seconds: f64| json!({ "policy": policy, "seconds": seconds, "fast_bytes": fast << 20 });
    let runs: Vec<Value> = [1u64, 2, 4, 8, 16]
        .iter()
        .flat_map(|fast| {
            let first = 0.004 / (*fast as f64).sqrt();
            [of(*fast, "first-touch", first), of(*fast, "terrace", first * 0.8)]
        })
        .collect();
    json!({ "machine": "lab-cxl", "input": "workload:skew", "runs": runs })
}

fn far() -> String {
    let header = FarHeader::new("sort --parallel=2 big.txt".into(), "/ssd".into(), 64 << 20);
    let sample = |step: u64| FarSample {
        at_ns: step * 130_000_000,
        resident_bytes: (step * 3).min(64) << 20,
        faults: step * step * 700,
        misses: step * step * 300,
        hits: step * 500,
        read_bytes: (step * step) << 20,
        written_bytes: (step * 37) << 20,
        ahead_bytes: (step * 60) << 20,
        wasted_bytes: (step * 6) << 20,
        processes: 1,
        ..FarSample::default()
    };
    let line = |value: Result<String, serde_json::Error>| value.unwrap_or_default();
    std::iter::once(line(serde_json::to_string(&header)))
        .chain((0..60).map(|step| line(serde_json::to_string(&sample(step)))))
        .collect::<Vec<_>>()
        .join("\n")
}

/// A program on eight nodelets, before and after a pass, with long lines and large counts.
fn threads() -> Value {
    let run = |passes: &[&str], part: u64| {
        let nodelet = |from: u64| {
            let to = |to: u64| if to == from { 0 } else { (from * 8 + to) * 1_234_567 / part };
            let over_time = |scale: f64| {
                let at = |t: u64| scale * (1.0 + ((t * (from + 3)) % 17) as f64);
                (0..200).map(at).collect::<Vec<f64>>()
            };
            json!({ "migrations_to": (0..8).map(to).collect::<Vec<u64>>(),
                "threads_over_time": over_time(3.5), "runnable_over_time": over_time(1.125),
                "arrivals_over_time": over_time(0.25), "departures_over_time": over_time(0.5) })
        };
        let line = |n: u64| {
            json!({ "text": format!("{}atomic u.next min= v.distance + e.weight * {n};",
                "    ".repeat(n as usize % 5)), "migrations": n * n * 7_654_321 / part,
                "remote_updates": n * 999 })
        };
        json!({ "passes": passes, "seconds": 0.0123 / part as f64, "migrations": 69_135_752 / part,
            "remote_updates": 1_234_567, "spawns": 98_765, "calls": 12, "spills": 0,
            "sample_seconds": 0.000_061_5 / part as f64,
            "returned": [{ "name": "conductance", "value": 1, "text": "0.512345" }],
            "nodelet_counters": (0..8).map(nodelet).collect::<Vec<Value>>(),
            "lines": (0..24).map(line).collect::<Vec<Value>>() })
    };
    json!({ "version": 1, "kind": "migratory_threads", "program": "bellman_ford_pull",
        "graph": "rmat:scale=16,edges=16,order=degree", "vertices": 65_536, "edges": 1_819_372,
        "directed": false, "machine": "emu-chick,clock_mhz=300", "nodelets": 8,
        "layout": "edges-striped", "notes": ["picked of 48 legal sets of passes:"],
        "runs": [run(&[], 1), run(&["flip"], 2), run(&["flip", "remote", "spawn-at-data"], 3)] })
}

fn probe() -> Value {
    let mut all: Vec<Value> = Vec::new();
    for target in 0..2u64 {
        let slower = 1.0 + target as f64 * 1.7;
        for power in 12..31u32 {
            for pages in ["huge", "base"] {
                let ns = 1.1 + slower * f64::from(power.saturating_sub(19)).powi(2) * 1.1;
                all.push(
                    json!({ "kind": "chase", "initiator": 0, "target": target, "pages": pages,
                    "size_bytes": 1u64 << power, "latency_ns": ns, "runs": 3,
                    "noisy": power == 20 }),
                );
            }
        }
        for threads in 1..=16u64 {
            for (kernel, most) in
                [("copy", 90e9), ("triad", 95.7e9), ("read", 110e9), ("mix2", 80e9)]
            {
                let rate = most / slower * (1.0 - 0.8f64.powi(threads as i32));
                all.push(
                    json!({ "kind": "stream", "initiator": 0, "target": target, "kernel": kernel,
                    "threads": threads, "bandwidth_bytes_per_s": rate }),
                );
            }
        }
        for step in 0..8u64 {
            let load = 1.2e10 * step as f64;
            all.push(json!({ "kind": "loaded", "initiator": 0, "target": target, "kernel": "read",
                "delay": step, "latency_ns": 95.0 * slower / (1.0 - load / 1.0e11),
                "bandwidth_bytes_per_s": load + 1e9 }));
        }
    }
    for power in 12..30u32 {
        for method in ["move_pages", "copy", "mremap with a long name"] {
            all.push(json!({ "kind": "move", "from": 0, "to": 1, "method": method, "caller": 0,
                "pages": "base", "threads": 1, "batch": u32::MAX, "size_bytes": 1u64 << power,
                "time_ns": 2e3 + (1u64 << power) as f64 * 0.4 }));
        }
    }
    for others in 0..9u64 {
        all.push(json!({ "kind": "shootdown", "initiator": 0, "others": others,
            "latency_ns": 700.0 + 350.0 * others as f64 }));
    }
    let tier = |rank: u64, read: u64| {
        json!({ "rank": rank, "kind": "dram", "nodes": [rank], "capacity_bytes": 1u64 << 34,
            "read_bandwidth_bytes_per_s": read, "write_bandwidth_bytes_per_s": read / 2,
            "read_latency_ns": 95 + 150 * rank })
    };
    json!({
        "machine": "server-with-cxl", "source": "probe", "initiator": 0, "probe_seconds": 12.5,
        "notes": ["Turbo was on."], "nodes": [],
        "tiers": [tier(0, 110_000_000_000), tier(1, 40_000_000_000)],
        "measurements": all,
    })
}

/// Crashes that recompute less and less often, with an object whose name is long.
fn crash_study(command: &str, threads: u64) -> Value {
    let names = ["x", "z", "partial_sums_of_each_thread", "q", "r", "done"];
    let object =
        |name: &&str| json!({ "name": name, "bytes": if *name == "done" { 4 } else { 112_000 } });
    let crash = |crash: u64| {
        let lost: Vec<u64> =
            (0..6u64).map(|i| if i == 5 { 0 } else { (crash * (i + 1) * 977) % 112_000 }).collect();
        let outcome = if (crash * 7919) % 300 > crash { "recomputed" } else { "wrong" };
        json!({ "crash": crash, "instruction": crash * 3_333_333, "iterations_done": crash / 20,
            "inconsistent_bytes": lost, "inconsistent_bytes_of_all": crash * 3000 % 700_000,
            "footprint_bytes": 55_000_000, "outcome": outcome, "more_iterations": 0 })
    };
    let phase = |phase: u64| {
        let share = 1.0 / (phase * threads) as f64;
        json!({ "phase": phase, "restarts": 100, "share": share,
            "successes": (share * 100.0) as u64, "mean_more_iterations": 0.25,
            "interval": [share * 0.9, (share * 1.05).min(1.0)],
            "inconsistent_rates": [0.0, 0.12 / phase as f64, 0.3, 0.998, 0.97, 0.0],
            "inconsistent_rate_of_all": 0.0123 })
    };
    json!({
        "version": 1, "kind": "crash_study", "threads": threads,
        "command": command.split(' ').collect::<Vec<_>>(),
        "objects": names.iter().map(object).collect::<Vec<_>>(),
        "instructions": 1_000_000_000, "image_bytes": 560_004, "difference_bytes": 61_234_567,
        "reference_seconds": 1.25, "recording_seconds": 130.5, "caches_seconds": 61.0,
        "restarts_seconds": 200.1, "total": { "successes": 181, "restarts": 300 },
        "phases": (1..=3).map(phase).collect::<Vec<_>>(),
        "results": (0..300).map(crash).collect::<Vec<_>>(),
        "outcomes": { "recomputed": 181, "wrong": 112, "crashed": 7 },
        "call_paths": [{ "successes": 3, "restarts": 99, "call_path": [
            "conjugate_gradients cg.c:148", "work cg.c:171", "npb_run npb.h:79", "main cg.c:214",
        ] }],
    })
}

fn recording() -> String {
    let header = TraceHeader {
        source: "full".into(),
        command: vec!["./orders".into(), "--rows=1000000".into()],
        notes: vec!["one process could not be followed".into()],
        ..TraceHeader::default()
    };
    let write = || -> Result<Vec<u8>, terrace_trace::TraceError> {
        let mut writer = TraceWriter::new(Vec::new(), &header)?;
        let library =
            "/usr/lib/x86_64-linux-gnu/some/folder/that/is/far/down/libanalysis.so.6.0.30";
        for (start, length, name) in
            [(0x40_0000, 0x1_0000, library), (0x7fff_1234_5000, 0x40_0000, "")]
        {
            let (protection, flags, name) = (3, 2, name.into());
            let what = EventKind::Map { start, length, protection, flags, name };
            writer.event(&TraceEvent { time: 0, process: 0, thread: 0, what })?;
        }
        let mut x = 1u64;
        for i in 0..60_000u64 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let within = (x >> 33) % 0x40_0000 * (i + 1) / 60_000;
            let address =
                if i % 9 == 0 { 0x40_0000 + within % 0x1_0000 } else { 0x7fff_1234_5000 + within };
            let access =
                Access { address, size: 8, store: i % 4 == 0, gap: 12, ..Access::default() };
            writer.access(0, (i % 2) as u32, &access)?;
        }
        writer.finish()
    };
    match write() {
        Ok(bytes) => shown_recording(bytes),
        Err(error) => panic!("{error}"),
    }
}

fn shown_recording(bytes: Vec<u8>) -> String {
    match terrace_report::read_recording(Cursor::new(bytes)) {
        Ok(document) => document.to_html(),
        Err(error) => panic!("{error}"),
    }
}

/// Samples of two threads on two nodes: the first makes two of three; a buffer holds 42. Every page
/// of 1500 is sampled some times, sixteen hot ones far more often. The two phases interrupt at two
/// rates.
fn sampled() -> Vec<u8> {
    let header = TraceHeader {
        source: "perf".into(),
        command: vec!["./minife".into(), "-nx".into(), "128".into()],
        clock: TraceClock::Nanoseconds,
        ns_per_tick: 1.0,
        sampled: true,
        details: true,
        period: 128,
        ..TraceHeader::default()
    };
    let write = || -> Result<Vec<u8>, terrace_trace::TraceError> {
        let mut writer = TraceWriter::new(Vec::new(), &header)?;
        for (cpu, node) in [(0, 0), (1, 1)] {
            let what = EventKind::CpuNode { cpu, node };
            writer.event(&TraceEvent { time: 0, process: 0, thread: 0, what })?;
        }
        let (mut x, mut time) = (1u64, 0);
        for i in 0..12_600u64 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (chance, thread) = (x >> 33, u32::from(i % 3 == 2));
            let page = if chance % 10 == 0 { chance % 16 } else { chance % 1500 };
            let level =
                [MemoryLevel::L2, MemoryLevel::Ram, MemoryLevel::Ram][(chance % 3) as usize];
            let locality = if thread == 0 { AccessLocality::Local } else { AccessLocality::Remote };
            let detail = SampleDetail {
                latency_cycles: if level == MemoryLevel::L2 { 14 } else { 250 }
                    + chance as u32 % 40,
                source: DataSource::new(MemoryOperation::Load, level, locality),
                cpu: thread,
            };
            time += if i < 6300 { 9_000 } else { 15_000 };
            let access = Access { address: (page << 12) + 64, size: 8, ..Access::default() };
            writer.sample(0, thread, &access, time, &detail)?;
            if i % 42 == 41 {
                let what = EventKind::SampleInterrupt { samples: 42 };
                writer.event(&TraceEvent { time, process: 0, thread: 0, what })?;
            }
        }
        let frame = |offset| CallFrame { file: "/opt/solvers/bin/minife".into(), offset };
        for (samples, frames) in
            [(9_000, vec![frame(0x1a2b), frame(0x9f00)]), (3_600, vec![frame(64)])]
        {
            let what = EventKind::CallPath { samples, frames };
            writer.event(&TraceEvent { time, process: 0, thread: 0, what })?;
        }
        writer.finish()
    };
    match write() {
        Ok(bytes) => bytes,
        Err(error) => panic!("{error}"),
    }
}
