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
mod tests;
