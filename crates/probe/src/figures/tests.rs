use super::*;
use crate::task::TaskOutcome;
use terrace_machine::{preset, rank, RankAttribute};

fn record(task: Task, value: f64, second: Option<f64>) -> TaskRecord {
    let figure = |value| MeasuredFigure {
        value,
        spread: value / 100.0,
        runs: 5,
        disturbed: 0,
        noisy: false,
    };
    TaskRecord { task, outcome: TaskOutcome::new(figure(value), second.map(figure), "") }
}

fn stream(target: u16, kernel: ElementKernel, threads: u32, gb: f64) -> TaskRecord {
    let (initiator, target) = (NodeId(0), NodeId(target));
    record(
        Task::Stream { initiator, target, kernel, threads, bytes: Bytes::mib(64) },
        gb * 1e9,
        None,
    )
}

fn chase(target: u16, pages: PageKind, bytes: u64, ns: f64) -> TaskRecord {
    record(
        Task::Chase { initiator: NodeId(0), target: NodeId(target), pages, bytes: Bytes(bytes) },
        ns,
        None,
    )
}

fn measured(records: Vec<TaskRecord>) -> Measurements {
    Measurements { records, ..Measurements::default() }
}

#[test]
fn a_machine_file_of_measurements_is_read_back_and_ranked() {
    let machine = preset("lab-cxl").unwrap();
    let all = measured(vec![
        chase(0, PageKind::Huge, 512 << 20, 91.2),
        chase(0, PageKind::Base, 512 << 20, 120.0),
        chase(1, PageKind::Base, 512 << 20, 333.0),
        stream(0, ElementKernel::Read, 1, 20.0),
        stream(0, ElementKernel::Read, 2, 38.0),
        stream(0, ElementKernel::Write, 2, 25.0),
        stream(1, ElementKernel::Read, 2, 9.0),
    ]);
    let figures = figures(&machine, &all);
    let link = figures.machine.link(NodeId(0), NodeId(0)).unwrap();
    assert_eq!(link.read_latency, Some(Figure { value: Nanos(91), evidence: Evidence::Measured }));
    assert_eq!(link.read_bandwidth.unwrap().value, BytesPerSec::gb(38));
    assert_eq!(link.write_bandwidth.unwrap().value, BytesPerSec::gb(25));
    let far = figures.machine.link(NodeId(0), NodeId(1)).unwrap();
    assert_eq!(far.read_latency.unwrap().value, Nanos(333));
    assert_ne!(far.write_bandwidth.unwrap().evidence, Evidence::Measured, "nobody measured it");
    let text = figures.machine.to_toml_with("", &figures.spreads);
    assert!(text.contains("evidence = \"measured\", spread = "), "{text}");
    let back = Machine::from_toml(&text, "back").unwrap();
    assert_eq!(back, figures.machine);
    let ranking = rank(&back, RankAttribute::Bandwidth, None).unwrap();
    assert_eq!(ranking.tiers[0].nodes, [NodeId(0)]);
}

#[test]
fn latency_under_load_becomes_curves_by_the_share_of_reads() {
    let loaded = |kernel, delay, ns: f64, gb: f64| {
        let (initiator, target, bytes) = (NodeId(0), NodeId(1), Bytes::mib(64));
        let task = Task::Loaded { initiator, target, kernel, delay, threads: 3, bytes };
        record(task, ns, Some(gb * 1e9))
    };
    let mut records = vec![
        loaded(ElementKernel::Read, 0, 410.0, 18.0),
        loaded(ElementKernel::Read, 512, 300.0, 2.0),
        loaded(ElementKernel::Read, 64, 330.0, 12.0),
        loaded(ElementKernel::Mix2, 0, 500.0, 15.0),
    ];
    let machine = preset("lab-cxl").unwrap();
    let unknown = figures(&machine, &measured(records.clone()));
    assert_eq!(unknown.machine.loaded, [], "without an idle latency nothing is added to it");
    records.push(chase(1, PageKind::Huge, 512 << 20, 300.0));
    let found = figures(&machine, &measured(records)).machine;
    let point = |gb, ns| LoadedPoint { bandwidth: BytesPerSec::gb(gb), added: Nanos(ns) };
    let curve = |read_percent, points| LoadLatencyCurve { node: NodeId(1), read_percent, points };
    let all = [
        curve(66, vec![point(15, 200)]),
        curve(100, vec![point(2, 0), point(12, 30), point(18, 110)]),
    ];
    assert_eq!(found.loaded, all);
    let back = Machine::from_toml(&found.to_toml(), "back").unwrap();
    assert_eq!(back.loaded, all);
}

#[test]
fn figures_of_caches_are_not_published_as_memorys() {
    let mut machine = preset("lab-cxl").unwrap();
    machine.caches[1].size = Bytes::mib(32);
    let reported = |chases: &[(u64, f64)], streamed: u64| {
        let chase = |(mib, ns): &(u64, f64)| chase(0, PageKind::Huge, mib << 20, *ns);
        let mut records: Vec<TaskRecord> = chases.iter().map(chase).collect();
        let (initiator, target, kernel) = (NodeId(0), NodeId(0), ElementKernel::Read);
        let task =
            Task::Stream { initiator, target, kernel, threads: 2, bytes: Bytes::mib(streamed) };
        records.push(record(task, 300e9, None));
        let all = Measurements { caches: Bytes::mib(32), ..measured(records) };
        let got = figures(&machine, &all);
        let link = got.machine.link(NodeId(0), NodeId(0)).unwrap();
        let latency = link.read_latency.unwrap().evidence == Evidence::Measured;
        let rate = link.read_bandwidth.unwrap().evidence == Evidence::Measured;
        assert!(got.hidden.iter().all(|h| got.machine.notes.contains(h)));
        assert_eq!(got.hidden.is_empty(), latency && rate, "{:?}", got.hidden);
        (latency, rate, got.hidden.join(" "))
    };
    // A limit of memory allows 45 MiB: most of it hits, so that latency rises up to there.
    let (latency, rate, why) = reported(&[(4, 16.0), (32, 17.0), (45, 42.0)], 45);
    assert!(
        !latency && !rate && why.contains("up to 45 MiB") && why.contains("(of 32 MiB)"),
        "{why}"
    );
    // One that allows 100 MiB and a cache that keeps nothing of what does not fit: two regions
    // with the same latency are memory.
    assert_eq!(reported(&[(4, 16.0), (71, 105.0), (100, 105.0)], 100), (true, true, String::new()));
    // Large arrays speak for themselves, a small chase does not.
    let (latency, rate, why) = reported(&[(45, 42.0)], 400);
    assert!(!latency && rate && why.contains("the latency of its memory"), "{why}");
    assert_eq!(reported(&[(512, 105.0)], 400), (true, true, String::new()));
}

#[test]
fn hits_and_misses_in_flight_come_from_the_curves() {
    let mut machine = preset("lab-cxl").unwrap();
    let cache = |level, size, ways| CacheLevel {
        level,
        size: Bytes(size),
        line: Bytes(64),
        ways,
        shared: false,
        hit: Nanos::ZERO,
    };
    machine.caches = vec![cache(1, 32 << 10, 8), cache(2, 1 << 20, 8), cache(3, 12 << 20, 12)];
    let mut records: Vec<TaskRecord> = (12..29)
        .map(|k| {
            let bytes = 1_u64 << k;
            let ns = match bytes {
                b if b <= 32 << 10 => 1.2,
                b if b <= 1 << 20 => 4.2,
                _ => 96.0,
            };
            chase(0, PageKind::Huge, bytes, ns)
        })
        .collect();
    for (chains, ns) in [(1, 96.0), (8, 13.0), (16, 8.1), (24, 8.0)] {
        let (initiator, target) = (NodeId(0), NodeId(0));
        records.push(record(Task::Misses { initiator, target, bytes: Bytes(1), chains }, ns, None));
    }
    let got = figures(&machine, &measured(records)).machine;
    let hits: Vec<u64> = got.caches.iter().map(|c| c.hit.get()).collect();
    assert_eq!(hits, [0, 3, 3]);
    assert!(
        got.notes.iter().any(|n| n.contains("level 3") && n.contains("no knee")),
        "{:?}",
        got.notes
    );
    assert_eq!(got.core.outstanding_misses, 12);
    machine.caches.clear();
    let records = (12..29)
        .map(|k| chase(0, PageKind::Huge, 1 << k, if k <= 15 { 1.2 } else { 96.0 }))
        .collect();
    let got = figures(&machine, &measured(records)).machine;
    assert_eq!(got.caches.len(), 1);
    assert_eq!(got.caches[0].size, Bytes(32 << 10));
    got.check().unwrap();
}

#[test]
fn a_write_that_reads_first_leaves_the_read_out() {
    let machine = preset("lab-dcpmm").unwrap();
    let through = |kernel, gb| {
        let mut r = stream(1, kernel, 2, gb);
        r.outcome.read_first = kernel == ElementKernel::Write;
        r
    };
    // 13 GB/s read, 4.6 written: a byte stored takes both.
    let seen = 1.0 / (1.0 / 13.0 + 1.0 / 4.6);
    let all =
        measured(vec![through(ElementKernel::Read, 13.0), through(ElementKernel::Write, seen)]);
    let got = figures(&machine, &all);
    let link = got.machine.link(NodeId(0), NodeId(1)).unwrap();
    let write = link.write_bandwidth.unwrap().value.get() as f64;
    assert!((write / 4.6e9 - 1.0).abs() < 1e-6, "{write}");
    let spread = got.spreads.links[&(NodeId(0), NodeId(1))].write_bandwidth.unwrap().get() as f64;
    assert!(spread > 0.01 * write && spread < 0.03 * write, "{spread}");
    assert!(
        got.machine.notes.iter().any(|n| n.contains("read of each line")),
        "{:?}",
        got.machine.notes
    );
    // Reads and writes that do not share a bus: nothing is taken off.
    let all =
        measured(vec![through(ElementKernel::Read, 13.0), through(ElementKernel::Write, 12.0)]);
    let link = *figures(&machine, &all).machine.link(NodeId(0), NodeId(1)).unwrap();
    assert_eq!(link.write_bandwidth.unwrap().value, BytesPerSec::gb(12));
}

#[test]
fn costs_of_calls_and_of_pages_are_separated() {
    let machine = preset("lab-cxl").unwrap();
    let of = |bytes: u64, batch: u32| {
        let pages = bytes / 4096;
        let calls = pages.div_ceil(u64::from(batch));
        let task = Task::Move {
            method: Method::MovePages,
            from: NodeId(0),
            to: NodeId(1),
            caller: NodeId(0),
            bytes: Bytes(bytes),
            batch,
            pages: PageKind::Base,
            threads: 1,
        };
        record(task, 1.0, Some((calls * 60_000 + pages * 1_500) as f64))
    };
    let all = measured(vec![
        of(4 << 20, 1),
        of(4 << 20, 8),
        of(4 << 20, 64),
        of(4 << 20, 512),
        of(16384, u32::MAX),
    ]);
    let got = figures(&machine, &all).machine;
    assert_eq!((got.migration.call, got.migration.page), (Nanos(60_000), Nanos(1_500)));
    let none = figures(&machine, &measured(Vec::new())).machine;
    assert_eq!(none.migration, machine.migration);
}

#[test]
fn what_threads_gain_by_moving_is_in_the_machine_file() {
    let machine = preset("lab-cxl").unwrap();
    let of = |method: Method, to: u16, threads: u32, ns: f64| {
        let task = Task::Move {
            method,
            from: NodeId(0),
            to: NodeId(to),
            caller: NodeId(0),
            bytes: Bytes::mib(16),
            batch: u32::MAX,
            pages: PageKind::Base,
            threads,
        };
        record(task, 1.0, Some(ns))
    };
    // Twelve threads in a fifth of the time of one share (12 / 5 - 1) / 11; what mbind gains is
    // another matter.
    let all = vec![
        of(Method::MovePages, 1, 1, 10e6),
        of(Method::MovePages, 1, 4, 9e6),
        of(Method::MovePages, 1, 12, 2e6),
        of(Method::Mbind, 1, 1, 10e6),
        of(Method::Mbind, 1, 12, 10e6),
    ];
    let got = figures(&machine, &measured(all.clone())).machine;
    assert_eq!(got.migration.serial_percent, 13);
    let text = got.to_toml();
    assert_eq!(Machine::from_toml(&text, "back").unwrap().migration, got.migration, "{text}");
    let alone = figures(&machine, &measured(all[..1].to_vec())).machine;
    assert_eq!(alone.migration, machine.migration, "one thread tells nothing");
    let slower = vec![of(Method::MovePages, 1, 1, 1e6), of(Method::MovePages, 1, 4, 9e6)];
    assert_eq!(figures(&machine, &measured(slower)).machine.migration.serial_percent, 100);
}

#[test]
fn a_partial_file_says_so_first() {
    let machine = preset("lab-cxl").unwrap();
    let all = Measurements {
        partial: Some("interrupted after 3 of 9 measurements".into()),
        ..measured(vec![])
    };
    let got = figures(&machine, &all).machine;
    assert!(got.notes[0].starts_with("PARTIAL: the measurement was interrupted after 3"));
    assert_eq!(got.links, machine.links);
}
