//! What the report says of recordings, whole, cut off and hostile.

mod common;

use proptest::prelude::*;
use terrace_report::{read, Document};

fn document(bytes: &[u8]) -> Document {
    read(bytes).expect("readable")
}

#[test]
fn a_run_is_reported_in_full() {
    let html =
        document(common::journal("solver --input mesh", "heat has settled").as_bytes()).to_html();
    for expected in [
        "solver --input mesh",
        "Moved 11,000 pages to a better tier and 11,000 pages to a worse one.",
        "An estimated 90% of the former saved as much time as their moves took.",
        "20% of accesses when first seen and 98% at the end",
        "fast tier (dram, node 0)",
        "memory for user pages: 134 MiB",
        "<b>exchange</b>",
        "saves 310.0 ms a second<br>costs 39.0 ms once",
        "31 not: busy",
        "<b>hold</b> <span class=\"times\">× 3</span>",
        "the node was full",
        "7.0% of one core",
        "single hot pages inside large cold regions",
        "80 ns<span class=\"source\">measured</span>",
        "20.0 GB/s<span class=\"source\">firmware (HMAT)</span>",
        "id=\"heat-data\"",
    ] {
        assert!(html.contains(expected), "missing: {expected}");
    }
    assert!(!html.contains("NaN") && !html.contains("not whole"));
}

#[test]
fn journals_without_sources_say_so_and_strange_sources_are_harmless() {
    let with = |evidence: &str| {
        let journal = common::journal("./solver", "settled");
        let (header, rest) = journal.split_once('\n').expect("a header");
        let mut header: serde_json::Value = serde_json::from_str(header).expect("JSON");
        for tier in header["tiers"].as_array_mut().expect("tiers") {
            tier["evidence"] = serde_json::from_str(evidence).expect("JSON");
        }
        document(format!("{header}\n{rest}").as_bytes()).to_html()
    };
    let old = with("{}");
    assert!(old.contains("was not recorded") && !old.contains("class=\"source\""));
    let strange = with("{\"read_latency_ns\":\"<b>oracle</b>\",\"later\":\"x\"}");
    assert!(strange.contains("80 ns<span class=\"source\">&lt;b&gt;oracle&lt;/b&gt;</span>"));
}

#[test]
fn a_comparison_is_reported_in_full() {
    let document = document(common::comparison("skew,accesses=32M").as_bytes());
    let html = document.to_html();
    for expected in [
        "Fastest policy: terrace with 2.31 s, 2.21 times as fast as first touch, and 1.05 times \
            the time of the ideal move.",
        "failed: the guest&#39;s kernel has no DAMON; boot another",
        "first touch</span>",
        "ideal move</span>",
        "class=\"spread\"",
        "<th>read bandwidth</th><td>1</td><td>0</td><td>20.00 GB/s</td><td>19.10 \
            GB/s</td><td>-4.5%</td>",
        "scan_size_mb = 256",
        "2.310",
    ] {
        assert!(html.contains(expected), "missing: {expected}");
    }
    let text = document.to_text(80);
    assert!(
        text.contains("terrace") && text.contains("0.45 x") && text.contains("1.05 x"),
        "{text}"
    );
    let json = document.to_json();
    let run = &json["runs"][3];
    assert_eq!(json["later"], 1, "what a later version adds is kept");
    assert_eq!((run["policy"].as_str(), run["seconds"].as_f64()), (Some("terrace"), Some(2.31)));
    for key in [
        "fast_access_share",
        "promoted_pages",
        "demoted_pages",
        "migrated_bytes",
        "overhead_seconds",
        "energy_joules",
    ] {
        assert!(run.get(key).is_some(), "the contract has {key}");
    }
}

#[test]
fn figures_of_a_run_are_json_with_units_in_the_keys() {
    let json = document(common::journal("x", "y").as_bytes()).to_json();
    assert_eq!(json["promoted_pages"], 11_000);
    assert_eq!(json["failed_pages"]["busy"], 217);
    assert_eq!(json["complete"], true);
    assert!((json["core_share"].as_f64().expect("known") - 0.418 / 6.0).abs() < 1e-9);
}

#[test]
fn a_cut_journal_shows_the_steps_before_the_cut_and_says_so() {
    let whole = common::journal("x", "y");
    let cut = &whole[..whole.len() * 2 / 3];
    let html = document(cut.as_bytes()).to_html();
    assert!(html.contains("The journal is not whole") && html.contains("cut off"));
    assert!(html.contains("<b>exchange</b>"));
}

#[test]
fn what_is_no_recording_is_one_clear_line() {
    for bytes in [
        &b""[..],
        b"hello",
        b"{}",
        b"{\"runs\":[]}",
        b"{\"runs\":3}",
        b"\xff\xfe",
        b"[1,2]",
        b"{\"machine\":\"m\",\"input\":\"i\",\"runs\":[{\"seconds\":1}]}",
    ] {
        let error = read(bytes).expect_err("not a recording").to_string();
        assert!(!error.is_empty() && !error.contains('\n'), "{error}");
    }
}

const NASTY: &str = "</script><script>alert(1)</script><img src=http://evil.example/x \
    onerror=alert(2)>\"'&\u{1b}[31m";

#[test]
fn hostile_text_stays_text() {
    let recordings = [
        common::journal(NASTY, NASTY),
        common::journal("x", "y")
            .replace("lab-cxl", &NASTY.replace('"', "\\\"").replace('\u{1b}', "\\u001b")),
        common::comparison(NASTY),
    ];
    for recording in recordings {
        let document = document(recording.as_bytes());
        let html = document.to_html();
        assert!(!html.contains("<img") && !html.contains("<script>alert"), "it got out");
        assert!(html.contains("&lt;/script&gt;"), "it is shown, as text");
        assert!(!document.to_text(80).contains('\u{1b}'), "nothing steers the terminal");
    }
}

#[test]
fn extreme_figures_neither_panic_nor_break_the_drawing() {
    let max = u64::MAX.to_string();
    let mut big = common::journal("x", "y");
    for figure in [
        "\"pages\":354,",
        "\"pages\":343,",
        "\"promoted_pages\":1800,",
        "\"capacity_bytes\":140509184,",
        "\"page_size_bytes\":4096,",
        "\"at_ns\":5800000000,",
        "\"reads_per_s\":420,",
        "\"known_pages\":45000,",
    ] {
        assert!(big.contains(figure), "the recording has {figure}");
        let key = figure.split(':').next().unwrap_or_default();
        big = big.replace(figure, &format!("{key}:{max},"));
    }
    let html = document(big.as_bytes()).to_html();
    assert!(!html.contains("NaN") && !html.contains("inf,") && !html.contains(",inf"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn damage_anywhere_never_panics(at in 0usize..60_000, byte: u8, journal: bool) {
        let mut bytes =
            if journal { common::journal("x", "y") } else { common::comparison("w") }.into_bytes();
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(document) = read(&bytes) {
            let _shown = (document.to_html(), document.to_text(80), document.to_json());
        }
    }
}
