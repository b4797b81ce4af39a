//! A recording whose figures can be worked out by hand.
#![allow(clippy::unwrap_used)]

use std::io::Cursor;
use terrace_report::{read_recording, Document, RecordingSummary};
use terrace_sampling::{AccessLocality, DataSource, MemoryLevel, MemoryOperation};
use terrace_trace::{
    Access, EventKind, SampleDetail, TraceClock, TraceEvent, TraceHeader, TraceReader, TraceWriter,
};

/// Page 0 of an array is loaded 900 times, pages 0 to 9 of another are stored to in turn, ten
/// rounds of each.
fn trace(name: &str) -> Vec<u8> {
    let header = TraceHeader {
        source: "test".into(),
        command: vec!["prog".into(), name.into()],
        ..TraceHeader::default()
    };
    let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
    let event = |what| TraceEvent { time: 0, process: 0, thread: 0, what };
    let map = |start, length, name: &str| EventKind::Map {
        start,
        length,
        protection: 3,
        flags: 2,
        name: name.into(),
    };
    writer.event(&event(map(0x10_0000, 0x1000, "/lib/hot"))).unwrap();
    writer.event(&event(map(0x20_0000, 0x10_0000, ""))).unwrap();
    writer
        .event(&event(EventKind::Object { start: 0x20_0000, length: 0xa000, name: name.into() }))
        .unwrap();
    let access =
        |address, store| Access { address, size: 8, store, gap: 10, pc: 7, ..Access::default() };
    for _ in 0..10 {
        for i in 0..90 {
            writer.access(0, 0, &access(0x10_0000 + 8 * i, false)).unwrap();
        }
        for i in 0..10 {
            writer.access(0, 0, &access(0x20_0000 + 0x1000 * i, true)).unwrap();
        }
    }
    writer.finish().unwrap()
}

fn recording(bytes: Vec<u8>) -> RecordingSummary {
    RecordingSummary::from_reader(&mut TraceReader::open(Cursor::new(bytes)).unwrap()).unwrap()
}

#[test]
fn figures_are_those_of_the_accesses() {
    let r = recording(trace("table"));
    assert_eq!((r.total.loads, r.total.stores, r.total.pages, r.threads), (900, 100, 11, 1));
    assert!((r.seconds - 10_000.0 * 0.25e-9).abs() < 1e-12, "{}", r.seconds);
    assert_eq!((r.by_page[0], r.by_page[10], r.by_page.len()), (900, 10, 11));
    // The hottest page has 90% of all accesses.
    assert_eq!((r.bytes_for(0.9), r.bytes_for(0.905), r.bytes_for(1.0)), (4096, 8192, 11 * 4096));
    let objects: Vec<(&str, u64, u64)> =
        r.objects.iter().map(|o| (o.name.as_str(), o.uses.all(), o.uses.pages)).collect();
    assert_eq!(objects, [("/lib/hot", 900, 1), ("table", 100, 10)]);
    assert_eq!(r.columns.iter().map(|c| c.all()).sum::<u64>(), 1000);
    assert!(r.complete && r.damage.is_empty());
    // Ten rounds of 90 and 10: each tenth of the time touches all eleven pages once.
    let of_column = |c: usize| r.columns[c].pages;
    assert!((1..=11).contains(&of_column(0)) && r.columns.iter().all(|c| c.pages <= 11));
}

#[test]
fn the_working_set_is_one_use_long_at_first_and_everything_at_last() {
    let r = recording(trace("table"));
    let (first, last) = (r.working_set[0], r.working_set[r.working_set.len() - 1]);
    // A span of one tick: one access in ten ticks keeps its page in for one.
    assert!((first.1 / 4096.0 - 0.1).abs() < 0.01, "{first:?}");
    // Never more than all, which is what a span as long as the recording sees but for what is first
    // used later.
    assert!(last.1 <= 11.0 * 4096.0 && last.1 > 10.0 * 4096.0, "{last:?}");
    assert!(r.working_set.windows(2).all(|w| w[0].1 <= w[1].1 && w[0].0 < w[1].0), "it grows");
}

#[test]
fn a_page_of_it_is_whole_and_cannot_be_broken_by_names() {
    let document = read_recording(Cursor::new(trace("</script><b>&\u{202e}"))).unwrap();
    let html = document.to_html();
    for part in
        ["Loads and stores over time", "Working set", "By object", "heat-data", "/lib/hot", "90%"]
    {
        assert!(html.contains(part), "{part}");
    }
    assert!(
        !html.contains("<b>&\u{202e}") && !html.contains("NaN") && !html.contains("inf"),
        "broken"
    );
    let json = document.to_json();
    assert_eq!(
        (json["accesses"].as_u64(), json["bytes_for_share"][1][1].as_u64()),
        (Some(1000), Some(4096))
    );
    assert!(
        document.to_text(80).contains("80% of accesses go to 4 KiB"),
        "{}",
        document.to_text(80)
    );
}

#[test]
fn what_is_cut_off_or_empty_is_shown_as_far_as_it_goes() {
    let bytes = trace("table");
    let cut = recording(bytes[..bytes.len() - 40].to_vec());
    assert!(!cut.complete && cut.html().contains("warning"));
    let none = TraceWriter::new(Vec::new(), &TraceHeader::default()).unwrap().finish().unwrap();
    let none = recording(none);
    assert_eq!((none.total.all(), none.bytes_for(0.5)), (0, 0));
    assert!(none.html().contains("No access was recorded") && none.working_set.is_empty());
    assert!(read_recording(Cursor::new(b"nothing".to_vec())).is_err());
    let odd =
        TraceHeader { page_size_bytes: u64::MAX, ns_per_tick: f64::MAX, ..TraceHeader::default() };
    let mut writer = TraceWriter::new(Vec::new(), &odd).unwrap();
    for address in [0, 1, u64::MAX] {
        writer
            .access(7, 9, &Access { address, size: 1, gap: u32::MAX, ..Access::default() })
            .unwrap();
    }
    let odd = Document::Recording(Box::new(recording(writer.finish().unwrap())));
    assert!(!odd.to_html().is_empty() && !odd.to_text(80).is_empty());
}

/// Two threads, of which the second makes one sample in four: 10 pages once, one page 30 times.
#[test]
fn samples_show_threads_sources_and_trust() {
    let header = TraceHeader {
        clock: TraceClock::Nanoseconds,
        ns_per_tick: 1.0,
        sampled: true,
        details: true,
        ..TraceHeader::default()
    };
    let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
    let event = |time, what| TraceEvent { time, process: 0, thread: 0, what };
    for (cpu, node) in [(0, 0), (1, 7)] {
        writer.event(&event(0, EventKind::CpuNode { cpu, node })).unwrap();
    }
    writer.event(&event(0, EventKind::Lost { accesses: 5 })).unwrap();
    for i in 0..40u64 {
        let thread = u32::from(i % 4 == 3);
        let page = if i < 10 { i } else { 100 };
        let detail = SampleDetail {
            latency_cycles: 100 + i as u32,
            source: DataSource::new(
                MemoryOperation::Load,
                MemoryLevel::Ram,
                if thread == 0 { AccessLocality::Local } else { AccessLocality::Remote },
            ),
            cpu: thread,
        };
        let access = Access { address: page << 12, size: 8, ..Access::default() };
        writer.sample(0, thread, &access, 1000 * i, &detail).unwrap();
        if i % 10 == 9 {
            writer.event(&event(1000 * i, EventKind::SampleInterrupt { samples: 10 })).unwrap();
        }
    }
    let r = recording(writer.finish().unwrap());
    let samples = r.samples.as_ref().unwrap();
    let levels: Vec<(String, u64, u32)> =
        samples.levels.iter().map(|l| (l.name(), l.samples, l.most_cycles)).collect();
    assert_eq!(levels, [("local RAM".into(), 30, 138), ("remote RAM".into(), 10, 139)]);
    assert_eq!(samples.threads, [(0, 30), (1, 10)]);
    assert_eq!(samples.nodes, [(0, 30), (7, 10)]);
    assert_eq!((samples.interrupts, samples.lost), (4, 5));
    assert_eq!(samples.intervals.len(), 3);
    assert!(samples.intervals.iter().all(|s| (s - 1e-5).abs() < 1e-12), "{:?}", samples.intervals);
    let json = Document::Recording(Box::new(r.clone())).to_json();
    // 10 pages once, none twice: 10 * 9 / 2 more are expected.
    assert_eq!(json["samples"]["pages_seen"], 11);
    assert_eq!(json["samples"]["pages_estimated"], 56);
    let html = r.html();
    for part in
        ["Latency by data source", "remote RAM", "Time between interrupts", "CPUs of node 7"]
    {
        assert!(html.contains(part), "{part}");
    }
    assert!(recording(trace("all")).samples.is_none());
}
