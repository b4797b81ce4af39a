//! What moving data costs, as the three papers draw it: by size, pages a call, threads, page size
//! and caller; interleaved memory, and translations dropped.

use super::plot::{bars, plot, Axis, Line};
use super::{plain, ProbeReport, MAX_PAIRS};
use crate::markup::{escape, put, rate};
use serde_json::Value;
use std::collections::BTreeMap;

/// Pages a call of a measurement in which one call moves everything.
const ONE_CALL: u64 = u32::MAX as u64;
/// Lines of one plot at most.
const MAX_LINES: usize = 8 * MAX_PAIRS;

/// One measurement of moving.
struct Moved<'a> {
    nodes: (String, String),
    name: &'a str,
    caller: String,
    pages: &'a str,
    threads: u64,
    batch: u64,
    bytes: f64,
    ns: f64,
}

impl<'a> Moved<'a> {
    fn of(m: &'a Value) -> Option<Self> {
        let (bytes, ns) = (m["size_bytes"].as_f64()?, m["time_ns"].as_f64()?);
        (bytes > 0.0 && ns > 0.0).then_some(())?;
        Some(Self {
            nodes: (plain(&m["from"]), plain(&m["to"])),
            name: m["method"].as_str()?,
            caller: plain(&m["caller"]),
            pages: m["pages"].as_str()?,
            threads: m["threads"].as_u64()?,
            batch: m["batch"].as_u64()?,
            bytes,
            ns,
        })
    }

    /// Bytes a second.
    fn rate(&self) -> f64 {
        self.bytes / self.ns * 1e9
    }

    /// By one thread in base pages.
    fn plain(&self) -> bool {
        self.pages == "base" && self.threads == 1
    }
}

/// All sections.
pub(super) fn sections(probe: &ProbeReport, body: &mut String) {
    let mut pairs: BTreeMap<(String, String), Vec<Moved<'_>>> = BTreeMap::new();
    for m in probe.of("move").filter_map(Moved::of) {
        pairs.entry(m.nodes.clone()).or_default().push(m);
    }
    for ((from, to), all) in pairs.iter().take(MAX_PAIRS) {
        let mut section = String::new();
        pair(&mut section, all);
        if !section.is_empty() {
            let (from, to) = (escape(from), escape(to));
            put!(
                body,
                "<section><h2>Moving data from node {from} to node \
                {to}</h2>\n{section}</section>\n"
            );
        }
    }
    interleaved(probe, body);
    shootdown(probe, body);
}

/// From one node to another.
fn pair(body: &mut String, all: &[Moved<'_>]) {
    // The first caller is the one by whom everything was measured.
    let Some(first) = all.first().map(|m| &m.caller) else { return };
    let usual: Vec<&Moved<'_>> = all.iter().filter(|m| m.caller == *first).collect();
    let whole = |m: &Moved<'_>| m.batch >= ONE_CALL;
    by(
        body,
        "Time by size, one thread",
        &usual,
        |m| m.plain() && whole(m),
        |m| (m.bytes, m.ns),
        (Axis::Size, Axis::Nanos),
    );
    // In each of the rest one figure differs: what was moved is of one size.
    let rate = |x: f64, m: &Moved<'_>| (x, m.rate());
    let axes = (Axis::Pages, Axis::Rate);
    by(
        body,
        "Bandwidth by pages a call, one thread",
        &usual,
        |m| m.plain() && !whole(m),
        |m| rate(m.batch as f64, m),
        axes,
    );
    let largest = |which: &dyn Fn(&Moved<'_>) -> bool| {
        all.iter().filter(|m| whole(m) && which(m)).map(|m| m.bytes).fold(0.0, f64::max)
    };
    let size = largest(&|m| m.threads > 1);
    let alike = |m: &Moved<'_>| whole(m) && m.bytes == size && m.pages == "base";
    let axes = (Axis::Threads, Axis::Rate);
    by(body, "Bandwidth by threads", &usual, alike, |m| rate(m.threads as f64, m), axes);
    let size = largest(&|m| m.pages == "huge");
    let alike = |m: &&&Moved<'_>| whole(m) && m.bytes == size && m.threads == 1;
    let huge =
        usual.iter().filter(alike).map(|m| (format!("{}, {} pages", m.name, m.pages), m.rate()));
    figures(body, "Bandwidth by page size, one thread", huge);
    let size = largest(&|m| m.caller != *first);
    let alike = |m: &&Moved<'_>| whole(m) && m.bytes == size && m.plain();
    let called = all
        .iter()
        .filter(alike)
        .map(|m| (format!("{}, by CPUs of node {}", m.name, m.caller), m.rate()));
    figures(body, "Bandwidth by the caller's node, one thread", called);
}

/// A plot with a line for each method and pair of nodes, where a line has two points.
fn by(
    body: &mut String,
    title: &str,
    all: &[&Moved<'_>],
    which: impl Fn(&Moved<'_>) -> bool,
    point: impl Fn(&Moved<'_>) -> (f64, f64),
    (across, up): (Axis, Axis),
) {
    // A method has its colour in every plot, also where it has no line.
    let mut lines: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for m in all {
        if lines.len() < MAX_LINES || lines.contains_key(m.name) {
            let line = lines.entry(m.name).or_default();
            if which(m) {
                line.push(point(m));
            }
        }
    }
    drawn(
        body,
        title,
        lines.into_iter().map(|(name, points)| (name.to_owned(), points)).collect(),
        across,
        up,
    );
}

fn drawn(body: &mut String, title: &str, mut lines: Vec<Line>, across: Axis, up: Axis) {
    lines.iter_mut().for_each(|l| l.1.sort_by(|a, b| a.0.total_cmp(&b.0)));
    lines.iter_mut().filter(|l| l.1.len() < 2).for_each(|l| l.1.clear());
    if lines.iter().any(|l| !l.1.is_empty()) {
        plot(body, title, &lines, across, up);
    }
}

/// Bars, where there are two.
fn figures(body: &mut String, title: &str, all: impl Iterator<Item = (String, f64)>) {
    let mut all: Vec<(String, f64)> = all.take(MAX_LINES).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all.dedup_by(|a, b| a.0 == b.0);
    let bare: Vec<(&str, f64)> = all.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    if bare.len() > 1 {
        bars(body, title, &bare);
    }
}

/// Memory interleaved between nodes by weights: two nodes are drawn by the share of the first, of
/// what was measured as well.
fn interleaved(probe: &ProbeReport, body: &mut String) {
    let mut lines: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    let mut rows = String::new();
    for m in probe.of("interleave").take(2000) {
        let parts: Vec<(String, f64)> = m["parts"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|p| Some((plain(&p[0]), p[1].as_f64()?)))
            .collect();
        let read = m["bandwidth_bytes_per_s"].as_f64().filter(|r| *r > 0.0);
        if let ([(near, of_near), (far, of_far)], Some(read)) = (parts.as_slice(), read) {
            let name = format!("nodes {near} and {far}, {} threads", plain(&m["threads"]));
            let share = of_near / (of_near + of_far);
            if share.is_finite() && (lines.len() < MAX_LINES || lines.contains_key(&name)) {
                let line = lines.entry(name).or_insert_with(|| ends(probe, m, near, far));
                line.push((share, read));
            }
        }
        let reported: Vec<String> =
            parts.iter().map(|(node, weight)| format!("{weight} of node {node}")).collect();
        let read = read.map_or("unknown".to_owned(), |r| rate(r as u64));
        let what = format!("read, {} ({} threads)", reported.join(" to "), plain(&m["threads"]));
        put!(&mut rows, "<tr><th>{}</th><td>{}</td></tr>\n", escape(&what), escape(&read));
    }
    if rows.is_empty() {
        return;
    }
    body.push_str("<section><h2>Interleaved memory</h2>\n");
    drawn(
        body,
        "Reading, by the share of pages on the first node",
        lines.into_iter().collect(),
        Axis::Share,
        Axis::Rate,
    );
    put!(
        body,
        "<details><summary>All figures</summary><table \
        class=\"plain\">\n{rows}</table></details></section>\n"
    );
}

/// What the same threads read of each node alone: both ends of the plot.
fn ends(probe: &ProbeReport, like: &Value, near: &str, far: &str) -> Vec<(f64, f64)> {
    let alone = |node: &str| {
        let same = |m: &&Value| {
            m["kernel"] == "read"
                && plain(&m["target"]) == node
                && ["initiator", "threads"].iter().all(|key| m[*key] == like[*key])
        };
        probe.of("stream").find(same).and_then(|m| m["bandwidth_bytes_per_s"].as_f64())
    };
    [(1.0, alone(near)), (0.0, alone(far))]
        .into_iter()
        .filter_map(|(share, read)| Some((share, read?)))
        .collect()
}

fn shootdown(probe: &ProbeReport, body: &mut String) {
    let figures = probe.of("shootdown").take(2000);
    let mut lines: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    let mut rows = String::new();
    for m in figures {
        let ns = m["latency_ns"].as_f64().filter(|ns| *ns > 0.0);
        if let (Some(others), Some(ns)) = (m["others"].as_f64(), ns) {
            lines
                .entry(format!("CPUs of node {}", plain(&m["initiator"])))
                .or_default()
                .push((others, ns));
        }
        let reported = ns.map_or("unknown".to_owned(), |n| format!("{n:.0} ns"));
        let what = format!(
            "taking a right to a page away while {} other threads run",
            plain(&m["others"])
        );
        put!(&mut rows, "<tr><th>{}</th><td>{}</td></tr>\n", escape(&what), escape(&reported));
    }
    if rows.is_empty() {
        return;
    }
    body.push_str("<section><h2>Translations dropped</h2>\n");
    drawn(
        body,
        "Time by other threads that run",
        lines.into_iter().collect(),
        Axis::Threads,
        Axis::Nanos,
    );
    put!(body, "<table class=\"plain\">\n{rows}</table></section>\n");
}
