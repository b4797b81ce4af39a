//! Recordings made up for tests: a run like the lab's `skew`, and a comparison.

use terrace_engine::journal::{
    encode, encode_header, DecisionEntry, FailureCount, HeatRow, JournalEntry, JournalHeader,
    JournalSummary, NoteEntry, OutcomeEntry, SnapshotEntry, TierHeader, TierSummary, TrackerHeader,
    VERSION,
};
use terrace_engine::MoveFailure;
use terrace_types::{NodeId, Pid, ThroughputSource, Vpn};

const STEP_NS: u64 = 200_000_000;
const COLD: u64 = 34_000;
const HOT: u64 = 11_000;

fn header(command: &str) -> JournalHeader {
    let tier = |rank, kind: &str, mib: u64, latency, read: u64, write: u64| TierHeader {
        rank,
        kind: kind.to_owned(),
        nodes: vec![NodeId(rank as u16)],
        capacity_bytes: mib << 20,
        read_latency_ns: Some(latency),
        read_bandwidth_bytes_per_s: Some(read * 1_000_000_000),
        write_bandwidth_bytes_per_s: Some(write * 1_000_000_000),
        evidence: [
            ("read_latency_ns", "measured"),
            ("read_bandwidth_bytes_per_s", "hmat"),
            ("write_bandwidth_bytes_per_s", "hmat"),
        ]
        .map(|(key, source)| (key.to_owned(), source.to_owned()))
        .into(),
    };
    JournalHeader {
        terrace_journal: VERSION,
        command: command.to_owned(),
        policy: "terrace".to_owned(),
        params: [("seed".to_owned(), "1".to_owned())].into(),
        machine: "lab-cxl".to_owned(),
        page_size_bytes: 4096,
        tiers: vec![tier(0, "dram", 134, 80, 100, 100), tier(1, "cxl", 960, 300, 20, 20)],
        trackers: vec![
            TrackerHeader {
                name: "damon".to_owned(),
                blind_to: "single hot pages inside large cold regions".to_owned(),
            },
            TrackerHeader { name: "softdirty".to_owned(), blind_to: "reads".to_owned() },
        ],
    }
}

/// Hot pages that are in the fast tier at step `step`.
fn fast_hot(step: u64) -> u64 {
    (step.saturating_sub(3) * 1_800).min(HOT)
}

fn snapshot(step: u64) -> SnapshotEntry {
    let moved = fast_hot(step);
    let hot_seen = if step < 2 { 0 } else { HOT };
    let tier = |rank: usize, mib: u64, pages: u64, hot: u64| TierSummary {
        rank,
        capacity_bytes: mib << 20,
        free_bytes: (mib << 20).saturating_sub((pages + 400) * 4096),
        pages,
        hot_pages: hot,
        reads_per_s: hot * 90,
        writes_per_s: hot * 400,
        write_throughput_bytes_per_s: Some(hot * 9_000),
        throughput_source: ThroughputSource::Estimated,
    };
    let mut heat = Vec::new();
    for bucket in 0..96u64 {
        let cold = COLD / 96;
        let gone = moved / 96;
        heat.push(HeatRow {
            pid: Pid(4242),
            start: Vpn(0x7_f120_0000 + bucket * cold),
            pages: cold,
            reads_per_s: 12 + bucket % 7,
            writes_per_s: 0,
            hottest_per_s: 60,
            tier_pages: vec![cold - gone, gone],
        });
    }
    for bucket in 0..32u64 {
        let pages = HOT / 32;
        let there = if moved * 32 / HOT > bucket { pages } else { 0 };
        heat.push(HeatRow {
            pid: Pid(4242),
            start: Vpn(0x7_f122_0000 + bucket * pages),
            pages,
            reads_per_s: if step < 2 { 0 } else { 420 },
            writes_per_s: if step < 2 { 0 } else { 400 + bucket * 9 },
            hottest_per_s: 1_400,
            tier_pages: vec![there, pages - there],
        });
    }
    SnapshotEntry {
        at_ns: step * STEP_NS,
        window_ns: STEP_NS,
        known_pages: COLD + HOT,
        hot_from_per_s: 180,
        tiers: vec![
            tier(0, 134, COLD - moved + moved, moved.min(hot_seen)),
            tier(1, 960, HOT, hot_seen - moved.min(hot_seen)),
        ],
        heat,
        fast_access_share: (step > 0).then(|| 0.2 + 0.78 * moved as f64 / HOT as f64),
        tracking_cpu_ns: 5_000_000,
    }
}

/// A whole journal of 30 steps.
pub fn journal(command: &str, why: &str) -> String {
    let mut lines = vec![encode_header(&header(command))];
    let note = "DAMON gives regions, soft-dirty gives writes; merged";
    lines.push(encode(&JournalEntry::Note(NoteEntry { at_ns: 1_000_000, text: note.to_owned() })));
    let (mut promoted, mut failed) = (0, 0);
    for step in 0..30u64 {
        lines.push(encode(&JournalEntry::Snapshot(snapshot(step))));
        let todo = fast_hot(step + 1) - fast_hot(step);
        let at_ns = step * STEP_NS + 2_000_000;
        let decision = |name: &str, why: &str, gain, cost| {
            JournalEntry::Decision(DecisionEntry {
                at_ns,
                name: name.to_owned(),
                why: why.to_owned(),
                gain_ns_per_s: gain,
                cost_ns: cost,
                ..DecisionEntry::default()
            })
        };
        if todo == 0 {
            lines.push(encode(&decision("hold", why, 0, 0)));
            continue;
        }
        let text =
            "1,800 pages above 180 accesses/s lie on the slow tier; 2,100 colder ones make room";
        lines.push(encode(&decision("exchange", text, 310_000_000, 39_000_000)));
        promoted += todo;
        failed += 40;
        lines.push(encode(&JournalEntry::Outcome(OutcomeEntry {
            at_ns: at_ns + 45_000_000,
            planned_pages: 2 * todo + 40,
            tried_pages: 2 * todo + 40,
            promoted_pages: todo,
            demoted_pages: todo,
            sideways_pages: 0,
            failed: vec![
                FailureCount { reason: MoveFailure::Busy, pages: 31 },
                FailureCount { reason: MoveFailure::NodeFull, pages: 9 },
            ],
            cost_ns: 41_000_000,
            longest_call_ns: 11_000_000,
            calls: 8,
            exchange: true,
        })));
    }
    lines.push(encode(&JournalEntry::End(JournalSummary {
        at_ns: 30 * STEP_NS,
        steps: 30,
        promoted_pages: promoted,
        repaid_pages: Some(promoted * 9 / 10),
        demoted_pages: promoted,
        migrated_bytes: promoted * 2 * 4096,
        failed: vec![
            FailureCount { reason: MoveFailure::Busy, pages: failed * 31 / 40 },
            FailureCount { reason: MoveFailure::NodeFull, pages: failed * 9 / 40 },
        ],
        tracking_cpu_ns: 110_000_000,
        deciding_cpu_ns: 21_000_000,
        moving_ns: 287_000_000,
        fast_access_share: Some(0.83),
        peak_memory_bytes: 400_000,
        managed_bytes: 180 << 20,
        ..JournalSummary::default()
    })));
    lines.join("\n") + "\n"
}

/// The JSON of a comparison. The figures are made up.
pub fn comparison(input: &str) -> String {
    let run = |policy: &str, seconds: Option<f64>, share: f64, pages: u64| {
        serde_json::json!({
            "policy": policy, "seconds": seconds, "fast_access_share": share,
            "promoted_pages": pages, "demoted_pages": pages, "migrated_bytes": pages * 8192,
            "overhead_seconds": pages as f64 * 1.1e-5, "energy_joules": null,
            "seconds_spread": seconds.map(|s| s * 0.02), "settings": {"scan_size_mb": "256"},
            "warnings": [],
        })
    };
    let mut failed = run("kernel:damos", None, 0.0, 0);
    for key in [
        "fast_access_share",
        "promoted_pages",
        "demoted_pages",
        "migrated_bytes",
        "overhead_seconds",
    ] {
        failed[key] = serde_json::Value::Null;
    }
    failed["error"] = "the guest's kernel has no DAMON; boot another".into();
    serde_json::json!({
        "machine": "lab-cxl", "input": input, "accesses": 32_000_000u64, "wall_seconds": 71.5,
        "vcpus": 2, "later": 1,
    "calibration": [
            {"initiator": 0, "node": 0, "figure": "latency_ns", "wanted": 80.0, "got": 80.4},
            {"initiator": 0, "node": 1, "figure": "read_bandwidth_bytes_per_s", "wanted": 2e10,
                "got": 1.91e10},
        ],
        "runs": [
            run("first-touch", Some(5.11), 0.20, 0),
            run("kernel:numa-balancing", Some(4.2), 0.55, 7_400),
            failed,
            run("terrace", Some(2.31), 0.93, 11_000),
            run("hyplacer", Some(2.58), 0.90, 12_700),
            run("bound:ideal-move", Some(2.2), 0.97, 11_000),
        ],
    })
    .to_string()
}
