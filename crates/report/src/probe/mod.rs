//! A measured machine: what `terrace probe --json` prints, with plots.

mod moves;
mod plot;

use crate::markup::{brief, count, page, put, rate, tile};
use plot::{plot, Axis, Line};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Measurements shown at most; a machine of 24 nodes has some ten thousand.
const MOST: usize = 200_000;
/// Pairs of nodes that get plots of their own.
const MAX_PAIRS: usize = 24;

/// What a probe printed.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeReport {
    value: Value,
}

impl ProbeReport {
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

    /// Lines of one plot: points of measurements of `kind` for a pair, by what names a line and
    /// what a point.
    fn lines(
        &self,
        kind: &str,
        pair: (u64, u64),
        name: impl Fn(&Value) -> Option<String>,
        point: impl Fn(&Value) -> Option<(f64, f64)>,
    ) -> Vec<Line> {
        let mut lines: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        let here = self.of(kind).filter(|m| {
            m["initiator"].as_u64() == Some(pair.0) && m["target"].as_u64() == Some(pair.1)
        });
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
            self.value["partial"]
                .as_str()
                .map(|p| format!(", PARTIAL: {}", clean(p)))
                .unwrap_or_default()
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
            "<header><p class=\"over\">Measured in {:.0} s · {} measurements</p><h1>Memory of \
                <code>{}</code></h1></header>\n",
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
                "<p class=\"warning\">{noisy} figures are noisy: other work ran meanwhile, or \
                    runs differed by more than 5%.</p>\n"
            );
        }
        self.tiles(&mut body);
        for pair in self.pairs().into_iter().take(MAX_PAIRS) {
            self.pair(&mut body, pair);
        }
        moves::sections(self, &mut body);
        let notes: Vec<String> =
            self.value["notes"].as_array().into_iter().flatten().map(plain).collect();
        if !notes.is_empty() {
            body.push_str("<section><h2>Notes</h2>\n");
            notes
                .iter()
                .take(100)
                .for_each(|n| put!(&mut body, "<p class=\"small\">{}</p>\n", brief(n, 400)));
            body.push_str("</section>\n");
        }
        page(&format!("Memory of {machine}"), &body)
    }

    fn tiles(&self, body: &mut String) {
        body.push_str("<div class=\"tiles\">\n");
        for tier in self.value["tiers"].as_array().into_iter().flatten().take(16) {
            let nodes: Vec<String> =
                tier["nodes"].as_array().into_iter().flatten().map(plain).collect();
            let name = format!("Tier {}: node {}", plain(&tier["rank"]), nodes.join(", "));
            let spread = |key: &str| tier[format!("{key}_spread")].as_f64();
            if let Some(read) = tier["read_bandwidth_bytes_per_s"].as_u64() {
                let apart = spread("read_bandwidth_bytes_per_s")
                    .map_or(String::new(), |s| format!("± {}", rate(s as u64)));
                tile(body, &rate(read), &name, &format!("read {apart}"));
            }
            if let Some(write) = tier["write_bandwidth_bytes_per_s"].as_u64() {
                let apart = spread("write_bandwidth_bytes_per_s")
                    .map_or(String::new(), |s| format!("± {}", rate(s as u64)));
                tile(body, &rate(write), &name, &format!("write {apart}"));
            }
            if let Some(ns) = tier["read_latency_ns"].as_u64() {
                let apart =
                    spread("read_latency_ns").map_or(String::new(), |s| format!("± {s:.1} ns"));
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
        plot(
            body,
            "Bandwidth by threads",
            &kernels(&["copy", "scale", "add", "triad"]),
            Axis::Threads,
            Axis::Rate,
        );
        let mixes = kernels(&["read", "mix4", "mix3", "mix2", "write"]);
        plot(
            body,
            "Bandwidth by mix of reads and writes (mix2: two reads a write)",
            &mixes,
            Axis::Threads,
            Axis::Rate,
        );
        let loaded = self.lines(
            "loaded",
            pair,
            |m| m["kernel"].as_str().map(str::to_owned),
            |m| Some((m["bandwidth_bytes_per_s"].as_f64()?, m["latency_ns"].as_f64()?)),
        );
        plot(
            body,
            "Latency of one CPU while others load the node",
            &loaded,
            Axis::Rate,
            Axis::Nanos,
        );
        let misses = self.lines(
            "misses",
            pair,
            |_| Some("nanoseconds a load".to_owned()),
            |m| Some((m["chains"].as_f64()?, m["latency_ns"].as_f64()?)),
        );
        plot(body, "Independent loads in flight", &misses, Axis::Threads, Axis::Nanos);
        body.push_str("</section>\n");
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
