//! The report of a measured machine: plots of what is there, nothing broken by what a file may
//! hold.

const SMALL: &str = r#"{
  "machine": "m<b>", "source": "probe", "initiator": 0, "partial": "interrupted after 4 of 9 measurements",
  "probe_seconds": 12.5, "quick": true, "notes": ["One node <i>"], "levels": [],
  "nodes": [{"id": 0, "cpus": [0, 1], "capacity_bytes": 1073741824}],
  "tiers": [{"rank": 0, "kind": "dram", "nodes": [0], "capacity_bytes": 1073741824,
    "read_bandwidth_bytes_per_s": 20000000000, "read_bandwidth_bytes_per_s_spread": 100000000,
    "write_bandwidth_bytes_per_s": null, "read_latency_ns": 95, "read_latency_ns_spread": 1.5}],
  "measurements": [
    {"kind": "chase", "initiator": 0, "target": 0, "pages": "huge", "size_bytes": 4096, "latency_ns": 1.1, "runs": 3, "noisy": false},
    {"kind": "chase", "initiator": 0, "target": 0, "pages": "huge", "size_bytes": 67108864, "latency_ns": 95.0, "runs": 3, "noisy": true},
    {"kind": "stream", "initiator": 0, "target": 0, "kernel": "triad", "threads": 1, "bandwidth_bytes_per_s": 1.2e10},
    {"kind": "stream", "initiator": 0, "target": 0, "kernel": "triad", "threads": 2, "bandwidth_bytes_per_s": 2.1e10},
    {"kind": "stream", "initiator": 0, "target": 0, "kernel": "<script>", "threads": "x", "bandwidth_bytes_per_s": {}},
    {"kind": "loaded", "initiator": 0, "target": 0, "kernel": "read", "delay": 0, "latency_ns": 180, "bandwidth_bytes_per_s": 1e10},
    {"kind": "loaded", "initiator": 0, "target": 0, "kernel": "read", "delay": 64, "latency_ns": 101, "bandwidth_bytes_per_s": 2e9},
    {"kind": "shootdown", "initiator": 0, "others": 1, "latency_ns": 2300.0},
    {"kind": "chase", "initiator": 0, "target": 0, "pages": "base", "size_bytes": -5, "latency_ns": 1e400}
  ]
}"#;

#[test]
fn plots_say_what_was_measured_and_nothing_gets_out() {
    let text = SMALL.replace("1e400", "1e300");
    let document = terrace_report::read(text.as_bytes()).expect("it is read");
    let html = document.to_html();
    assert!(html.contains("Partial: interrupted after 4 of 9"));
    assert!(
        html.contains("Latency by size of the region") && html.contains("Bandwidth by threads")
    );
    assert!(html.contains("95.0 ns at 64 MiB") && html.contains("20.0 GB/s"));
    assert!(html.contains("2300 ns") && html.contains("m&lt;b&gt;"));
    assert!(!html.contains("<i>One") && !html.contains("NaN") && !html.contains("\"inf"));
    assert!(html.matches("<script>").count() == 1, "ours alone");
    let terminal = document.to_text(80);
    assert!(terminal.contains("tier 0 ([0]): read 20.0 GB/s, write unknown, 95 ns"), "{terminal}");
    assert_eq!(document.to_json()["initiator"], 0);
}

#[test]
fn one_count_of_threads_is_drawn_as_bars() {
    let text = SMALL.replace("1e400", "1e300").replace("\"threads\": 1,", "\"threads\": 2,");
    let text = text.replacen("\"kernel\": \"triad\"", "\"kernel\": \"copy\"", 1);
    let html = terrace_report::read(text.as_bytes()).expect("it is read").to_html();
    assert!(html.contains("Bandwidth by threads (2 threads)"));
    assert!(html.contains("<th>copy</th><td class=\"track\"><i style=\"width:55.4%\">"), "{html}");
    assert!(html.contains("<td>21.0 GB/s</td>"));
}

#[test]
fn what_is_damaged_is_an_error_that_says_what_to_give() {
    for broken in [
        &SMALL[..SMALL.len() / 2],
        "{\"probe_seconds\": 1, \"measurements\": 5}",
        "{\"probe_seconds\":1,\"measurements\":[]}",
    ] {
        let error = terrace_report::read(broken.as_bytes()).expect_err("damaged");
        assert!(error.to_string().contains("terrace probe --json"), "{error}");
    }
}

/// Of two nodes: by size, pages a call, threads, page size and caller; interleaved; translations
/// dropped.
fn moving() -> String {
    let mut all = Vec::new();
    let mut moved = |caller: u32, size: u64, batch: u64, pages: &str, threads: u32, ns: u64| {
        all.push(format!(
            r#"{{"kind": "move", "method": "move_pages", "from": 0, "to": 1, "caller": {caller}, "size_bytes": {size}, "batch": {batch}, "pages": "{pages}", "threads": {threads}, "time_ns": {ns}}}"#
        ));
    };
    let whole = u64::from(u32::MAX);
    moved(0, 4096, whole, "base", 1, 10_000);
    moved(0, 16 << 20, whole, "base", 1, 10_000_000);
    moved(0, 16 << 20, whole, "huge", 1, 2_000_000);
    moved(0, 16 << 20, whole, "base", 4, 3_000_000);
    moved(0, 4 << 20, 1, "base", 1, 20_000_000);
    moved(0, 4 << 20, 512, "base", 1, 4_000_000);
    moved(1, 16 << 20, whole, "base", 1, 16_000_000);
    let read = |target: u32, rate: &str| {
        format!(
            r#"{{"kind": "stream", "initiator": 0, "target": {target}, "kernel": "read", "threads": 2, "bandwidth_bytes_per_s": {rate}}}"#
        )
    };
    let mixed = |near: u32, rate: &str| {
        format!(
            r#"{{"kind": "interleave", "initiator": 0, "parts": [[0, {near}], [1, 1]], "threads": 2, "bandwidth_bytes_per_s": {rate}}}"#
        )
    };
    all.extend([
        read(0, "2e10"),
        read(1, "5e9"),
        mixed(1, "1e10"),
        mixed(3, "2.2e10"),
        mixed(0, "{}"),
    ]);
    all.extend([0, 1, 3].map(|n| {
        format!(
            r#"{{"kind": "shootdown", "initiator": 0, "others": {n}, "latency_ns": {}}}"#,
            2000 + 500 * n
        )
    }));
    let head = &SMALL[..SMALL.find("\"measurements\": [").expect("a list") + 17];
    format!("{head}{}]}}", all.join(",\n"))
}

#[test]
fn moving_is_drawn_by_each_thing_that_changes_it() {
    let html = terrace_report::read(moving().as_bytes()).expect("it is read").to_html();
    for title in [
        "Moving data from node 0 to node 1",
        "Time by size, one thread",
        "Bandwidth by pages a call, one thread",
        "Bandwidth by threads",
        "Bandwidth by page size, one thread",
        "Bandwidth by the caller&#39;s node, one thread",
        "Reading, by the share of pages on the first node",
        "Time by other threads that run",
    ] {
        assert!(html.contains(title), "{title} is missing");
    }
    // A point tells what it is: the size, pages a call, threads, share.
    for point in [
        "10000.0 ns at 4 KiB",
        "1.0 GB/s at 512",
        "5.6 GB/s at 4",
        "22.0 GB/s at 75%",
        "5.0 GB/s at 0%",
        "3500.0 ns at 3",
    ] {
        assert!(html.contains(point), "{point} is missing");
    }
    assert!(html.contains("<th>move_pages, huge pages</th>") && html.contains("<td>8.4 GB/s</td>"));
    assert!(html.contains("<th>move_pages, by CPUs of node 1</th>") && !html.contains("NaN"));
}
