//! A measured machine: what `terrace probe --json` prints, with plots.

use crate::chart::{legend, Chart, Series};
use crate::markup::{brief, bytes, count, escape, page, put, rate, tile};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Measurements shown at most; a machine of 24 nodes has some ten thousand.
const MOST: usize = 200_000;
/// Pairs of nodes that get plots of their own.
const MOST_PAIRS: usize = 24;

/// What a probe printed.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    value: Value,
}

/// A line of a plot: its name and points.
type Line = (String, Vec<(f64, f64)>);

impl Probe {
    /// Whether these bytes look like it, before they are parsed.
    pub(crate) fn looks_like(data: &[u8]) -> bool {
        let has = |key: &[u8]| data.windows(key.len()).any(|w| w == key);
        data.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{')
            && has(b"\"probe_seconds\"")
            && has(b"\"measurements\"")
    }

    /// Reads the JSON.
    pub(crate) fn from_json(data: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(data).map_err(|e| e.to_string())?;
        let measurements = value["measurements"].as_array().ok_or("no list of measurements")?;
        if measurements.len() > MOST {
            return Err(format!("{} measurements, {MOST} at most", measurements.len()));
        }
        if !value["tiers"].is_array() || !value["nodes"].is_array() {
            return Err("no tiers or no nodes".to_owned());
        }
        Ok(Self { value })
    }

    /// The figures, as they were read.
    pub(crate) fn json(&self) -> Value {
        self.value.clone()
    }

    fn all(&self) -> impl Iterator<Item = &Value> {
        self.value["measurements"].as_array().into_iter().flatten()
    }

    fn of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.all().filter(move |m| m["kind"] == kind)
    }

    /// Initiators and nodes that were measured together.
    fn pairs(&self) -> BTreeSet<(u64, u64)> {
        self.all().filter_map(|m| Some((m["initiator"].as_u64()?, m["target"].as_u64()?))).collect()
    }

    /// Lines of one plot: points of measurements of `kind` for a pair, by what names a line and what a point.
    fn lines(
        &self,
        kind: &str,
        pair: (u64, u64),
        name: impl Fn(&Value) -> Option<String>,
        point: impl Fn(&Value) -> Option<(f64, f64)>,
    ) -> Vec<Line> {
        let mut lines: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        let here =
            self.of(kind).filter(|m| m["initiator"].as_u64() == Some(pair.0) && m["target"].as_u64() == Some(pair.1));
        for m in here {
            if let (Some(name), Some(point)) = (name(m), point(m)) {
                lines.entry(name).or_default().push(point);
            }
        }
        for points in lines.values_mut() {
            points.retain(|p| p.0.is_finite() && p.1.is_finite());
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        lines.into_iter().collect()
    }

    /// For a terminal.
    pub(crate) fn text(&self) -> String {
        let mut out = format!(
            "{}: measured in {:.0} s{}\n",
            plain(&self.value["machine"]),
            self.value["probe_seconds"].as_f64().unwrap_or(0.0),
            self.value["partial"].as_str().map(|p| format!(", PARTIAL: {}", clean(p))).unwrap_or_default()
        );
        for tier in self.value["tiers"].as_array().into_iter().flatten() {
            let figure = |key: &str| tier[key].as_u64();
            let _ = writeln!(
                out,
                "  tier {} ({}): read {}, write {}, {} ns",
                tier["rank"],
                tier["nodes"],
                figure("read_bandwidth_bytes_per_s").map_or("unknown".to_owned(), rate),
                figure("write_bandwidth_bytes_per_s").map_or("unknown".to_owned(), rate),
                figure("read_latency_ns").map_or("?".to_owned(), |n| n.to_string())
            );
        }
        let noisy = self.all().filter(|m| m["noisy"] == true).count();
        let _ = writeln!(out, "  {} measurements, {noisy} of them noisy", self.all().count());
        for note in self.value["notes"].as_array().into_iter().flatten() {
            let _ = writeln!(out, "- {}", plain(note));
        }
        out
    }

    /// One HTML file.
    pub(crate) fn html(&self) -> String {
        let mut body = String::new();
        let machine = plain(&self.value["machine"]);
        let noisy = self.all().filter(|m| m["noisy"] == true).count();
        put!(
            &mut body,
            "<header><p class=\"over\">Measured in {:.0} s · {} measurements</p><h1>Memory of <code>{}</code></h1></header>\n",
            self.value["probe_seconds"].as_f64().unwrap_or(0.0),
            count(self.all().count() as u64),
            brief(&machine, 60)
        );
        if let Some(partial) = self.value["partial"].as_str() {
            put!(&mut body, "<p class=\"warning\">Partial: {}.</p>\n", brief(partial, 200));
        }
        if noisy > 0 {
            put!(
                &mut body,
                "<p class=\"warning\">{noisy} figures are noisy: other work ran meanwhile, or runs differed by more than 5%.</p>\n"
            );
        }
        self.tiles(&mut body);
        for pair in self.pairs().into_iter().take(MOST_PAIRS) {
            self.pair(&mut body, pair);
        }
        self.moves(&mut body);
        self.others(&mut body);
        let notes: Vec<String> = self.value["notes"].as_array().into_iter().flatten().map(plain).collect();
        if !notes.is_empty() {
            body.push_str("<section><h2>Notes</h2>\n");
            notes.iter().take(100).for_each(|n| put!(&mut body, "<p class=\"small\">{}</p>\n", brief(n, 400)));
            body.push_str("</section>\n");
        }
        page(&format!("Memory of {machine}"), &body)
    }

    fn tiles(&self, body: &mut String) {
        body.push_str("<div class=\"tiles\">\n");
        for tier in self.value["tiers"].as_array().into_iter().flatten().take(16) {
            let nodes: Vec<String> = tier["nodes"].as_array().into_iter().flatten().map(plain).collect();
            let name = format!("Tier {}: node {}", plain(&tier["rank"]), nodes.join(", "));
            let spread = |key: &str| tier[format!("{key}_spread")].as_f64();
            if let Some(read) = tier["read_bandwidth_bytes_per_s"].as_u64() {
                let apart =
                    spread("read_bandwidth_bytes_per_s").map_or(String::new(), |s| format!("± {}", rate(s as u64)));
                tile(body, &rate(read), &name, &format!("read {apart}"));
            }
            if let Some(write) = tier["write_bandwidth_bytes_per_s"].as_u64() {
                let apart =
                    spread("write_bandwidth_bytes_per_s").map_or(String::new(), |s| format!("± {}", rate(s as u64)));
                tile(body, &rate(write), &name, &format!("write {apart}"));
            }
            if let Some(ns) = tier["read_latency_ns"].as_u64() {
                let apart = spread("read_latency_ns").map_or(String::new(), |s| format!("± {s:.1} ns"));
                tile(body, &format!("{ns} ns"), &name, &format!("idle latency {apart}"));
            }
        }
        body.push_str("</div>\n");
    }

    fn pair(&self, body: &mut String, pair: (u64, u64)) {
        let (initiator, target) = pair;
        let latency = self.lines(
            "chase",
            pair,
            |m| Some(if m["pages"] == "huge" { "huge pages" } else { "base pages" }.to_owned()),
            |m| Some((m["size_bytes"].as_f64()?, m["latency_ns"].as_f64()?)),
        );
        put!(body, "<section><h2>Node {target} as CPUs of node {initiator} see it</h2>\n");
        plot(body, "Latency by size of the region", &latency, Axis::Size, Axis::Nanos);
        let kernels = |wanted: &'static [&'static str]| {
            self.lines(
                "stream",
                pair,
                move |m| m["kernel"].as_str().filter(|k| wanted.contains(k)).map(str::to_owned),
                |m| Some((m["threads"].as_f64()?, m["bandwidth_bytes_per_s"].as_f64()?)),
            )
        };
        plot(body, "Bandwidth by threads", &kernels(&["copy", "scale", "add", "triad"]), Axis::Threads, Axis::Rate);
        let mixes = kernels(&["read", "mix4", "mix3", "mix2", "write"]);
        plot(body, "Bandwidth by mix of reads and writes (mix2: two reads a write)", &mixes, Axis::Threads, Axis::Rate);
        let loaded = self.lines(
            "loaded",
            pair,
            |m| m["kernel"].as_str().map(str::to_owned),
            |m| Some((m["bandwidth_bytes_per_s"].as_f64()?, m["latency_ns"].as_f64()?)),
        );
        plot(body, "Latency of one CPU while others load the node", &loaded, Axis::Rate, Axis::Nanos);
        let misses = self.lines(
            "misses",
            pair,
            |_| Some("nanoseconds a load".to_owned()),
            |m| Some((m["chains"].as_f64()?, m["latency_ns"].as_f64()?)),
        );
        plot(body, "Independent loads in flight", &misses, Axis::Threads, Axis::Nanos);
        body.push_str("</section>\n");
    }

    fn moves(&self, body: &mut String) {
        let mut lines: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for m in self.of("move").filter(|m| m["pages"] == "base" && m["threads"] == 1) {
            let whole = m["batch"].as_u64().is_some_and(|b| b >= u64::from(u32::MAX));
            let (Some(method), Some(x), Some(y)) =
                (m["method"].as_str(), m["size_bytes"].as_f64(), m["time_ns"].as_f64())
            else {
                continue;
            };
            if whole && lines.len() < 8 * MOST_PAIRS {
                let name = format!("{method}, {} to {}", plain(&m["from"]), plain(&m["to"]));
                lines.entry(name).or_default().push((x, y));
            }
        }
        lines.values_mut().for_each(|l| l.sort_by(|a, b| a.0.total_cmp(&b.0)));
        let lines: Vec<Line> = lines.into_iter().collect();
        if lines.iter().any(|l| l.1.len() > 1) {
            body.push_str("<section><h2>Moving data, one thread</h2>\n");
            plot(body, "Time by size", &lines, Axis::Size, Axis::Nanos);
            body.push_str("</section>\n");
        }
    }

    fn others(&self, body: &mut String) {
        let mut rows = String::new();
        for m in self.of("interleave").take(200) {
            let parts: Vec<String> = m["parts"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|p| format!("{} of node {}", plain(&p[1]), plain(&p[0])))
                .collect();
            let rate = m["bandwidth_bytes_per_s"].as_f64().map_or("unknown".to_owned(), |r| rate(r as u64));
            let what = format!("read, {} ({} threads)", parts.join(" to "), plain(&m["threads"]));
            put!(&mut rows, "<tr><th>{}</th><td>{}</td></tr>\n", escape(&what), escape(&rate));
        }
        for m in self.of("shootdown").take(64) {
            let ns = m["latency_ns"].as_f64().map_or("unknown".to_owned(), |n| format!("{n:.0} ns"));
            let what = format!("taking a right to a page away while {} other threads run", plain(&m["others"]));
            put!(&mut rows, "<tr><th>{}</th><td>{}</td></tr>\n", escape(&what), escape(&ns));
        }
        if !rows.is_empty() {
            put!(body, "<section><h2>Interleaved memory, and translations dropped</h2><table class=\"plain\">\n{rows}</table></section>\n");
        }
    }
}

/// A value as text without control characters, quotes off.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => clean(text),
        other => clean(&other.to_string()),
    }
}

fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(400).collect()
}

/// What an axis shows, and how.
#[derive(Clone, Copy, PartialEq)]
enum Axis {
    /// Bytes, by doublings.
    Size,
    /// Nanoseconds, by powers of ten.
    Nanos,
    /// Counts from 0.
    Threads,
    /// Bytes a second from 0.
    Rate,
}

impl Axis {
    /// Where a value lies, in the axis' own measure.
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Size => value.max(1.0).log2(),
            Self::Nanos => value.max(0.01).log10(),
            Self::Threads | Self::Rate => value,
        }
    }

    /// From where to where, in that measure, and marks with their names.
    fn span(self, values: &[f64]) -> (f64, f64, Vec<(f64, String)>) {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match self {
            Self::Size => {
                let (from, to) = (self.place(low).floor(), self.place(high).ceil().min(62.0));
                let step = ((to - from) / 9.0).ceil().max(1.0);
                let marks = (0..64).map(|k| from + f64::from(k) * step).take_while(|m| *m <= to);
                (from, to, marks.map(|m| (m, bytes(1_u64 << (m as u32).min(62)))).collect())
            }
            Self::Nanos => {
                let (from, to) = (self.place(low).floor(), self.place(high).ceil());
                let decades = (0..20).map(|k| from + f64::from(k)).take_while(|m| *m <= to);
                let name = |m: f64| match 10_f64.powf(m) {
                    ns if ns >= 1e9 => format!("{} s", ns / 1e9),
                    ns if ns >= 1e6 => format!("{} ms", ns / 1e6),
                    ns if ns >= 1e3 => format!("{} us", ns / 1e3),
                    ns => format!("{ns} ns"),
                };
                (from, to.max(from + 1.0), decades.map(|m| (m, name(m))).collect())
            }
            Self::Threads => {
                let step = (high / 8.0).ceil().max(1.0);
                let whole = (0..=8).map(|k| f64::from(k) * step).take_while(|v| *v <= high);
                (0.0, high, whole.map(|v| (v, format!("{v:.0}"))).collect())
            }
            Self::Rate => (0.0, high * 1.05, crate::chart::marks(high * 1.05, |v| rate(v as u64))),
        }
    }
}

/// A plot of lines with points, where there is more than one point.
fn plot(body: &mut String, title: &str, lines: &[Line], across: Axis, up: Axis) {
    let all: Vec<(f64, f64)> =
        lines.iter().flat_map(|l| l.1.iter().copied()).filter(|p| p.0 > 0.0 && p.1 > 0.0).collect();
    if all.len() < 2 {
        return;
    }
    let one = all.iter().all(|p| p.0 == all[0].0);
    if let (true, Axis::Threads, Axis::Rate) = (one, across, up) {
        let threads = format!("{title} ({} threads)", told(across, all[0].0));
        let figures: Vec<(&str, f64)> =
            lines.iter().flat_map(|(name, points)| points.iter().map(move |p| (name.as_str(), p.1))).collect();
        return bars(body, &threads, &figures);
    }
    let (x0, x1, labels) = across.span(&all.iter().map(|p| p.0).collect::<Vec<_>>());
    let (y0, y1, marks) = up.span(&all.iter().map(|p| p.1).collect::<Vec<_>>());
    let width = (x1 - x0).max(1e-9);
    let labels: Vec<(f64, String)> = labels.into_iter().map(|(at, name)| ((at - x0) / width, name)).collect();
    let marks: Vec<(f64, String)> = marks.into_iter().map(|(at, name)| (at - y0, name)).collect();
    put!(body, "<h3>{}</h3>\n", escape(title));
    let mut chart = Chart::labelled(title, 260.0, y1 - y0, &marks, &labels);
    for (index, (name, points)) in lines.iter().enumerate() {
        let times: Vec<f64> = points.iter().map(|p| (across.place(p.0) - x0) / width).collect();
        let values: Vec<f64> = points.iter().map(|p| up.place(p.1) - y0).collect();
        let class = format!("t{}", index % 8);
        chart.line(&times, &Series { class: class.clone(), values: values.clone() });
        for ((x, y), point) in times.iter().zip(&values).zip(points) {
            chart.dot(*x, *y, &class, &format!("{name}: {} at {}", told(up, point.1), told(across, point.0)));
        }
    }
    body.push_str(&chart.finish());
    let names: Vec<(String, String)> =
        lines.iter().enumerate().map(|(index, l)| (format!("t{}", index % 8), l.0.clone())).collect();
    body.push_str(&legend(&names));
}

/// A bar a figure, bytes a second: where one count of threads was measured, there is nothing to draw a line through.
fn bars(body: &mut String, title: &str, figures: &[(&str, f64)]) {
    let most = figures.iter().map(|f| f.1).fold(1.0, f64::max);
    put!(body, "<h3>{}</h3>\n<table class=\"plain meter ours\">\n", escape(title));
    for (name, value) in figures.iter().filter(|f| f.1 > 0.0) {
        let (name, told, percent) = (escape(name), told(Axis::Rate, *value), 97.0 * value / most);
        put!(
            body,
            "<tr><th>{name}</th><td class=\"track\"><i style=\"width:{percent:.1}%\"></i></td><td>{told}</td></tr>\n"
        );
    }
    body.push_str("</table>\n");
}

fn told(axis: Axis, value: f64) -> String {
    match axis {
        Axis::Size => bytes(value as u64),
        Axis::Nanos => format!("{value:.1} ns"),
        Axis::Threads => format!("{value:.0}"),
        Axis::Rate => rate(value as u64),
    }
}
