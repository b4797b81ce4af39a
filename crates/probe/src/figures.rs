//! From measurements to the machine model: links, caches, misses in flight, cost of moving. Pure.

use crate::kernels::ElementKernel;
use crate::knees::{levels, CurveLevel};
use crate::reach::{plenty, reached};
use crate::run::Measurements;
use crate::stats::{line, MeasuredFigure};
use crate::task::{Method, PageKind, Task, TaskRecord};
use std::collections::BTreeMap;
use terrace_machine::{
    CacheLevel, Evidence, Figure, Link, LinkSpread, LoadLatencyCurve, LoadedPoint, Machine, Spreads,
};
use terrace_types::{Bytes, BytesPerSec, Nanos, NodeId};

/// What the measurements say of the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeFigures {
    /// The machine, with evidence `measured` where it was.
    pub machine: Machine,
    /// The spread of each measured figure.
    pub spreads: Spreads,
    /// Levels of each latency curve, by initiator, node and pages.
    pub curves: BTreeMap<(NodeId, NodeId, PageKind), Vec<CurveLevel>>,
    /// Where what was measured is not memory's, one sentence each; these are among the machine's
    /// notes too.
    pub hidden: Vec<String>,
}

/// Sizes that differ by less than this factor are the same cache.
const SAME_SIZE: f64 = 1.6;
/// The curve with this many points or fewer names no caches.
const SHORT: usize = 8;

/// Puts what was measured in the place of what `machine` said of itself.
#[must_use]
pub fn figures(machine: &Machine, measured: &Measurements) -> ProbeFigures {
    let mut machine = machine.clone();
    let mut spreads = Spreads::default();
    machine.notes.retain(|n| !n.starts_with("Core model, cache times"));
    let curves = curves(&measured.records);
    let pairs = machine.links.iter().map(|l| (l.initiator, l.target));
    let seen =
        measured.records.iter().filter_map(|r| r.task.pair().1.map(|t| (r.task.pair().0, t)));
    let pairs: std::collections::BTreeSet<(NodeId, NodeId)> = pairs.chain(seen).collect();
    let mut hidden = Vec::new();
    for (initiator, target) in pairs {
        let spread = fill(&mut machine, measured, initiator, target, &mut hidden);
        if spread != LinkSpread::default() {
            spreads.links.insert((initiator, target), spread);
        }
    }
    machine.links.sort_by_key(|l| (l.initiator, l.target));
    if let Some(levels) = best_curve(&curves) {
        caches(&mut machine, levels);
    }
    misses(&mut machine, &measured.records);
    for target in machine.nodes.iter().map(|n| n.id).collect::<Vec<_>>() {
        loaded(&mut machine, &measured.records, target);
    }
    migration(&mut machine, &measured.records);
    if measured.records.iter().any(|r| r.outcome.read_first) {
        machine.notes.push(
            "No stores here go past the caches: write bandwidth is what is left of a plain write \
                when the read of each \
             line before it is taken off."
                .to_owned(),
        );
    }
    if let Some(partial) = &measured.partial {
        machine.notes.insert(0, format!("PARTIAL: the measurement was {partial}."));
    }
    machine.notes.extend(measured.notes.iter().chain(&hidden).cloned());
    let core = "Nanoseconds an instruction are a typical value: they are not measured.";
    machine.notes.push(core.to_owned());
    ProbeFigures { machine, spreads, curves, hidden }
}

/// The figures of one link, in place; gives their spreads.
fn fill(
    machine: &mut Machine,
    measured: &Measurements,
    initiator: NodeId,
    target: NodeId,
    hidden: &mut Vec<String>,
) -> LinkSpread {
    let here = |r: &&TaskRecord| r.task.pair() == (initiator, Some(target));
    let records: Vec<&TaskRecord> = measured.records.iter().filter(here).collect();
    let latency = memory_latency(&records);
    let last = machine.caches.last().map_or(Bytes::ZERO, |cache| cache.size);
    let seen = latency.is_some_and(|(pages, bytes, _)| {
        plenty(bytes, measured.caches) || reached(&chases(&records, pages), bytes, last)
    });
    let streamed = records.iter().filter_map(|r| match r.task {
        Task::Stream { bytes, .. } => Some(bytes),
        _ => None,
    });
    let (smallest, largest) = (streamed.clone().min(), streamed.max());
    // Either is enough: large arrays, or a latency that shows that regions like these are memory.
    let rates = seen || smallest.is_some_and(|bytes| plenty(bytes, measured.caches));
    if latency.is_some() && !seen || largest.is_some() && !rates {
        let most = latency.map(|l| l.1).max(largest).unwrap_or(Bytes::ZERO);
        let what = if rates { "the latency" } else { "latency and bandwidth" };
        let reported = if measured.caches == Bytes::ZERO {
            "not reported".to_owned()
        } else {
            format!("of {}", measured.caches)
        };
        hidden.push(format!(
            "Node {target} from node {initiator}: {what} of its memory cannot be \
             distinguished from those of the caches ({reported}) by regions of up to {most} and \
             are left as they were."
        ));
    }
    let latency = latency.filter(|_| seen).map(|l| l.2);
    let read = bandwidth(&records, ElementKernel::Read).filter(|_| rates);
    let write = written(&records, read).filter(|_| rates);
    let mut spread = LinkSpread::default();
    if latency.is_none() && read.is_none() && write.is_none() {
        return spread;
    }
    let found = machine.links.iter().position(|l| l.initiator == initiator && l.target == target);
    let at = found.unwrap_or_else(|| {
        machine.links.push(Link::unknown(initiator, target));
        machine.links.len() - 1
    });
    let link = &mut machine.links[at];
    let rate = |m: MeasuredFigure| Figure {
        value: BytesPerSec(m.value.round() as u64),
        evidence: Evidence::Measured,
    };
    if let Some(m) = latency.filter(|m| m.value >= 0.5) {
        link.read_latency =
            Some(Figure { value: Nanos(m.value.round() as u64), evidence: Evidence::Measured });
        spread.read_latency_ns = Some(m.spread);
    }
    if let Some(m) = read.filter(|m| m.value >= 1.0) {
        link.read_bandwidth = Some(rate(m));
        spread.read_bandwidth = Some(BytesPerSec(m.spread.round() as u64));
    }
    if let Some(m) = write.filter(|m| m.value >= 1.0) {
        link.write_bandwidth = Some(rate(m));
        spread.write_bandwidth = Some(BytesPerSec(m.spread.round() as u64));
    }
    spread
}

/// Latency under load of a node's memory, in place of what the machine said of it, from the CPUs of
/// the first node that measured it: one curve for each mix of reads and writes. What a miss takes
/// beyond is counted from the least of all its latencies there. Left as it is where nothing was
/// measured, or no latency of the node's memory.
fn loaded(machine: &mut Machine, records: &[TaskRecord], target: NodeId) {
    let measured =
        |r: &&TaskRecord| matches!(r.task, Task::Loaded { .. }) && r.task.pair().1 == Some(target);
    let Some(initiator) = records.iter().filter(measured).map(|r| r.task.pair().0).min() else {
        return;
    };
    let known = machine.link(initiator, target).and_then(|l| l.read_latency);
    if known.is_none_or(|figure| figure.evidence != Evidence::Measured) {
        return;
    }
    let mut curves: BTreeMap<u8, Vec<(f64, f64)>> = BTreeMap::new();
    for record in records.iter().filter(measured) {
        let (Task::Loaded { initiator: from, kernel, .. }, Some(rate)) =
            (&record.task, record.outcome.second)
        else {
            continue;
        };
        let (reads, writes) = (kernel.reads(), kernel.writes());
        let share = (reads * 100 / (reads + writes).max(1)) as u8;
        if *from == initiator {
            curves.entry(share).or_default().push((rate.value, record.outcome.figure.value));
        }
    }
    let least = curves.values().flatten().map(|p| p.1).fold(f64::INFINITY, f64::min);
    machine.loaded.retain(|curve| curve.node != target);
    for (read_percent, mut points) in curves {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut curve = LoadLatencyCurve { node: target, read_percent, points: Vec::new() };
        for (rate, ns) in points {
            let bandwidth = BytesPerSec(rate.max(0.0).round() as u64);
            if curve.points.last().is_none_or(|last| last.bandwidth < bandwidth) {
                let added = Nanos((ns - least).max(0.0).round() as u64);
                curve.points.push(LoadedPoint { bandwidth, added });
            }
        }
        machine.loaded.push(curve);
    }
    machine.loaded.sort_by_key(|curve| (curve.node, curve.read_percent));
}

/// The largest region's latency, with huge pages where they were to be had: translations are not
/// memory's.
fn memory_latency(records: &[&TaskRecord]) -> Option<(PageKind, Bytes, MeasuredFigure)> {
    let chases = records.iter().filter_map(|r| match r.task {
        Task::Chase { pages, bytes, .. } if bytes >= Bytes::mib(8) => {
            Some(((pages, bytes), r.outcome.figure))
        }
        _ => None,
    });
    // Huge before base pages, by the order of the kinds.
    chases.max_by_key(|c| c.0).map(|((pages, bytes), figure)| (pages, bytes, figure))
}

/// Regions and latencies of chases with such pages.
fn chases(records: &[&TaskRecord], wanted: PageKind) -> Vec<(Bytes, f64)> {
    let chase = |r: &&TaskRecord| match r.task {
        Task::Chase { pages, bytes, .. } if pages == wanted => {
            Some((bytes, r.outcome.figure.value))
        }
        _ => None,
    };
    records.iter().filter_map(chase).collect()
}

/// The best of all thread counts.
fn bandwidth(records: &[&TaskRecord], wanted: ElementKernel) -> Option<MeasuredFigure> {
    let found = records.iter().filter_map(|r| match r.task {
        Task::Stream { kernel, .. } if kernel == wanted => Some(r.outcome.figure),
        _ => None,
    });
    found.max_by(|a, b| a.value.total_cmp(&b.value))
}

/// Write bandwidth. Where every store reads its line first, a byte took the time of a read and a
/// write on the bus, and the read's share is known.
fn written(records: &[&TaskRecord], read: Option<MeasuredFigure>) -> Option<MeasuredFigure> {
    let write = bandwidth(records, ElementKernel::Write)?;
    let through = |r: &&&TaskRecord| {
        matches!(r.task, Task::Stream { kernel: ElementKernel::Write, .. }) && r.outcome.read_first
    };
    let Some(read) = read.filter(|_| records.iter().any(|r| through(&r))) else {
        return Some(write);
    };
    // Seconds a byte. A bus that does both at once would leave less than nothing for the write:
    // then what was seen stands.
    let rest = 1.0 / write.value - 1.0 / read.value;
    if rest < 0.2 / write.value {
        return Some(write);
    }
    // The difference has the spreads of both.
    let seconds = |m: MeasuredFigure| m.spread / (m.value * m.value);
    let spread = (seconds(write) + seconds(read)) / (rest * rest);
    let value = 1.0 / rest;
    Some(MeasuredFigure { value, spread, noisy: write.noisy || read.noisy, ..write })
}

/// Levels of each curve that has points enough.
fn curves(records: &[TaskRecord]) -> BTreeMap<(NodeId, NodeId, PageKind), Vec<CurveLevel>> {
    let mut points: BTreeMap<(NodeId, NodeId, PageKind), Vec<(Bytes, f64)>> = BTreeMap::new();
    for record in records {
        if let Task::Chase { initiator, target, pages, bytes } = record.task {
            points
                .entry((initiator, target, pages))
                .or_default()
                .push((bytes, record.outcome.figure.value));
        }
    }
    points.retain(|_, p| p.len() > SHORT);
    points.into_iter().map(|(key, p)| (key, levels(&p))).collect()
}

/// The one that shows caches best: with huge pages, to the initiator's own node.
fn best_curve(
    curves: &BTreeMap<(NodeId, NodeId, PageKind), Vec<CurveLevel>>,
) -> Option<&Vec<CurveLevel>> {
    curves
        .iter()
        .max_by_key(|((i, t, pages), _)| (*pages, i == t, std::cmp::Reverse((*i, *t))))
        .map(|c| c.1)
}

/// Times of hits, and, where the machine tells no caches, their sizes. A level that the machine
/// does not tell is a note.
fn caches(machine: &mut Machine, found: &[CurveLevel]) {
    let Some((_memory, found)) = found.split_last() else { return };
    let Some(nearest) = found.first() else { return };
    // What a load takes at all is in the core's model; a hit farther out adds the rest.
    let added = |level: &CurveLevel| Nanos((level.ns - nearest.ns).max(0.0).round() as u64);
    if machine.caches.is_empty() {
        machine.caches = found
            .iter()
            .enumerate()
            .map(|(index, level)| {
                let ways = 8;
                let grain = 64 * u64::from(ways);
                CacheLevel {
                    level: index as u8 + 1,
                    size: Bytes((level.bytes.get() / grain).max(1) * grain),
                    line: Bytes(64),
                    ways,
                    shared: false,
                    hit: added(level),
                }
            })
            .take(8)
            .collect();
        machine.notes.push(
            "No interface reports the caches: their sizes are the knees of the latency curve, \
             their ways a typical 8."
                .to_owned(),
        );
        return;
    }
    let ratio = |a: Bytes, b: Bytes| {
        let (a, b) = (a.get().max(1) as f64, b.get().max(1) as f64);
        (a / b).max(b / a)
    };
    for cache in &mut machine.caches {
        let nearest = found
            .iter()
            .min_by(|a, b| ratio(a.bytes, cache.size).total_cmp(&ratio(b.bytes, cache.size)));
        match nearest.filter(|l| ratio(l.bytes, cache.size) <= SAME_SIZE) {
            Some(level) => cache.hit = added(level),
            None => machine.notes.push(format!(
                "Cache level {} is reported as {}; the latency curve shows no knee there.",
                cache.level, cache.size
            )),
        }
    }
    // A farther cache never answers sooner.
    for index in 1..machine.caches.len() {
        machine.caches[index].hit = machine.caches[index].hit.max(machine.caches[index - 1].hit);
    }
}

/// Misses in flight: how much more is done by many chains than by one, of the initiator nearest its
/// memory.
fn misses(machine: &mut Machine, records: &[TaskRecord]) {
    let mut by_pair: BTreeMap<(NodeId, NodeId), Vec<(u32, f64)>> = BTreeMap::new();
    for record in records {
        if let Task::Misses { initiator, target, chains, .. } = record.task {
            by_pair
                .entry((initiator, target))
                .or_default()
                .push((chains, record.outcome.figure.value));
        }
    }
    let most = by_pair.values().filter_map(|points| {
        let one = points.iter().find(|p| p.0 == 1)?.1;
        let best = points.iter().map(|p| p.1).filter(|v| *v > 0.0).min_by(f64::total_cmp)?;
        Some((one / best).round() as u32)
    });
    if let Some(most) = most.max().filter(|m| *m >= 1) {
        machine.core.outstanding_misses = most.min(256);
    }
}

/// A call and a page of `move_pages`, from runs with different batches over as many pages.
fn migration(machine: &mut Machine, records: &[TaskRecord]) {
    let page = machine.page_size.get().max(1);
    let per_call: Vec<(f64, f64)> = records
        .iter()
        .filter_map(|r| match (&r.task, r.outcome.second) {
            (
                Task::Move {
                    method: Method::MovePages,
                    bytes,
                    batch,
                    pages: PageKind::Base,
                    threads: 1,
                    ..
                },
                Some(time),
            ) => {
                let all = (bytes.get() / page).max(1);
                let calls = all.div_ceil(u64::from(*batch));
                Some((all as f64 / calls as f64, time.value / calls as f64))
            }
            _ => None,
        })
        // Very large calls would drown the small ones' fixed cost.
        .filter(|p| p.0 <= 4096.0)
        .collect();
    if let Some((call, each)) = line(&per_call).filter(|l| l.1 >= 1.0) {
        machine.migration.call = Nanos(call.round() as u64);
        machine.migration.page = Nanos(each.round() as u64);
        machine.notes.push(format!(
            "The cost of moving pages is measured: {} a call and {} a page.",
            machine.migration.call, machine.migration.page
        ));
    } else {
        let why = if machine.nodes.len() > 1 {
            "it was not measured"
        } else {
            "to measure it takes two nodes"
        };
        machine.notes.push(format!("The cost of moving pages is a typical value: {why}."));
    }
    if let Some(percent) = serial_percent(records) {
        machine.migration.serial_percent = percent;
        machine.notes.push(format!(
            "Threads that move pages beside each other share {percent}% of a page's \
                cost, measured."
        ));
    }
}

/// What threads that move pages cannot have beside each other, from what the most of them gained
/// over one that moved as much (Amdahl's law); the median of all pairs of nodes.
fn serial_percent(records: &[TaskRecord]) -> Option<u8> {
    // (nodes and bytes) -> time by threads.
    let mut by_case: BTreeMap<(NodeId, NodeId, NodeId, Bytes), BTreeMap<u32, f64>> =
        BTreeMap::new();
    for record in records {
        let Task::Move {
            method: Method::MovePages,
            from,
            to,
            caller,
            bytes,
            batch,
            pages: PageKind::Base,
            threads,
        } = record.task
        else {
            continue;
        };
        if let (true, Some(time)) = (u64::from(batch) * 4096 >= bytes.get(), record.outcome.second)
        {
            by_case.entry((from, to, caller, bytes)).or_default().insert(threads, time.value);
        }
    }
    let mut shares: Vec<f64> = by_case
        .values()
        .filter_map(|times| {
            let (one, (most, many)) = (times.get(&1)?, times.last_key_value()?);
            let threads = f64::from(*most);
            (*most > 1 && *one > 0.0)
                .then(|| ((threads * many / one - 1.0) / (threads - 1.0)).clamp(0.0, 1.0))
        })
        .collect();
    shares.sort_unstable_by(f64::total_cmp);
    shares.get(shares.len() / 2).map(|share| (share * 100.0).round() as u8)
}

#[cfg(test)]
mod tests {
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
            Task::Chase {
                initiator: NodeId(0),
                target: NodeId(target),
                pages,
                bytes: Bytes(bytes),
            },
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
        assert_eq!(
            link.read_latency,
            Some(Figure { value: Nanos(91), evidence: Evidence::Measured })
        );
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
        let curve =
            |read_percent, points| LoadLatencyCurve { node: NodeId(1), read_percent, points };
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
        assert_eq!(
            reported(&[(4, 16.0), (71, 105.0), (100, 105.0)], 100),
            (true, true, String::new())
        );
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
            records.push(record(
                Task::Misses { initiator, target, bytes: Bytes(1), chains },
                ns,
                None,
            ));
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
        let spread =
            got.spreads.links[&(NodeId(0), NodeId(1))].write_bandwidth.unwrap().get() as f64;
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
}
