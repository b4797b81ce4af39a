//! The report of a measured machine: plots of what is there, nothing broken by what a file may hold.

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
    assert!(html.contains("Latency by size of the region") && html.contains("Bandwidth by threads"));
    assert!(html.contains("95.0 ns at 64 MiB") && html.contains("20.0 GB/s"));
    assert!(html.contains("2300 ns") && html.contains("m&lt;b&gt;"));
    assert!(!html.contains("<i>One") && !html.contains("NaN") && !html.contains("\"inf"));
    assert!(html.matches("<script>").count() == 1, "ours alone");
    let terminal = document.to_text();
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
