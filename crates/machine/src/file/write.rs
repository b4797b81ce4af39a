//! Machine to TOML text. What is written is read back exactly.

use crate::model::{CacheLevel, Evidence, Figure, Link, Machine, MigrationCost, Node, TlbSpec};
use crate::quantity::{format_bytes, format_rate};
use crate::store::FarStore;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use terrace_types::{Bytes, BytesPerSec, Nanos, NodeId};

/// How far repeated measurements of a link's figures lay apart. `None` where nothing was measured.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LinkSpread {
    /// Nanoseconds.
    pub read_latency_ns: Option<f64>,
    /// Of the read bandwidth.
    pub read_bandwidth: Option<BytesPerSec>,
    /// Of the write bandwidth.
    pub write_bandwidth: Option<BytesPerSec>,
}

/// Spreads by (initiator, target). They stand in a machine file for its reader and are no part of
/// the machine.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spreads {
    /// Of links.
    pub links: BTreeMap<(NodeId, NodeId), LinkSpread>,
}

impl Machine {
    /// The machine as a machine file. [`Machine::from_toml`] gives exactly the same machine back.
    #[must_use]
    pub fn to_toml(&self) -> String {
        self.to_toml_with("", &Spreads::default())
    }

    /// As [`Machine::to_toml`], below a comment and with spreads beside the figures.
    #[must_use]
    pub fn to_toml_with(&self, comment: &str, spreads: &Spreads) -> String {
        let mut out = String::new();
        for text in comment.lines() {
            // A control character would end the file's being TOML.
            let text: String = text.chars().filter(|c| !c.is_control()).collect();
            let _ = writeln!(out, "# {text}");
        }
        line(&mut out, "name", quote(&self.name));
        line(&mut out, "page_size", quote(&format_bytes(self.page_size)));
        if !self.notes.is_empty() {
            let notes: Vec<String> = self.notes.iter().map(|n| quote(n)).collect();
            line(&mut out, "notes", format!("[{}]", notes.join(", ")));
        }
        out.push_str("\n[core]\n");
        line(&mut out, "ns_per_instruction", format!("{:?}", self.core.ns_per_instruction));
        line(&mut out, "outstanding_misses", self.core.outstanding_misses.to_string());
        span(&mut out, "tlb_flush", self.core.tlb_flush);
        tlb(&mut out, &self.tlb);
        out.push_str("\n[migration]\n");
        span(&mut out, "call", self.migration.call);
        span(&mut out, "page", self.migration.page);
        if self.migration.serial_percent != MigrationCost::usual_serial_percent() {
            let _ = writeln!(out, "serial_percent = {}", self.migration.serial_percent);
        }
        self.kernel.write(&mut out);
        self.daemon.write(&mut out);
        for item in &self.caches {
            cache(&mut out, item);
        }
        for item in &self.nodes {
            node(&mut out, item);
        }
        for item in &self.links {
            let spread =
                spreads.links.get(&(item.initiator, item.target)).copied().unwrap_or_default();
            link(&mut out, item, spread);
        }
        for curve in &self.loaded {
            curve.write(&mut out);
        }
        for item in &self.far {
            far(&mut out, item);
        }
        out
    }
}

pub(super) fn far(out: &mut String, store: &FarStore) {
    out.push_str("\n[[far]]\n");
    line(out, "name", quote(&store.name));
    span(out, "fault", store.fault);
    span(out, "page", store.page);
    span(out, "read_latency", store.read_latency);
    span(out, "write_latency", store.write_latency);
    span(out, "operation", store.operation);
    line(out, "read_bandwidth", quote(&format_rate(store.read_bandwidth)));
    line(out, "write_bandwidth", quote(&format_rate(store.write_bandwidth)));
    line(out, "on_cpu", store.on_cpu.to_string());
    line(out, "evidence", quote(store.evidence.name()));
}

fn tlb(out: &mut String, tlb: &TlbSpec) {
    if *tlb == TlbSpec::default() {
        return;
    }
    out.push_str("\n[tlb]\n");
    let numbers = [
        ("entries", tlb.entries),
        ("ways", tlb.ways),
        ("large_entries", tlb.large_entries),
        ("large_ways", tlb.large_ways),
        ("l2_entries", tlb.l2_entries),
        ("l2_ways", tlb.l2_ways),
    ];
    for (key, number) in numbers {
        line(out, key, number.to_string());
    }
    line(out, "l2_hit_ns", tlb.l2_hit.get().to_string());
    line(out, "walk_ns", tlb.walk.get().to_string());
}

fn cache(out: &mut String, cache: &CacheLevel) {
    out.push_str("\n[[cache]]\n");
    line(out, "level", cache.level.to_string());
    line(out, "size", quote(&format_bytes(cache.size)));
    line(out, "line", quote(&format_bytes(cache.line)));
    line(out, "ways", cache.ways.to_string());
    line(out, "shared", cache.shared.to_string());
    line(out, "hit_ns", cache.hit.get().to_string());
}

fn node(out: &mut String, node: &Node) {
    out.push_str("\n[[node]]\n");
    line(out, "id", node.id.to_string());
    line(out, "kind", quote(node.kind.name()));
    let cpus: Vec<String> = node.cpus.iter().map(ToString::to_string).collect();
    line(out, "cpus", format!("[{}]", cpus.join(", ")));
    line(out, "capacity", quote(&format_bytes(node.capacity)));
    if node.reserved > Bytes::ZERO {
        line(out, "reserved", quote(&format_bytes(node.reserved)));
    }
    if node.in_use > Bytes::ZERO {
        line(out, "in_use", quote(&format_bytes(node.in_use)));
    }
    line(out, "block", quote(&format_bytes(node.block)));
    if let Some(package) = node.package {
        line(out, "package", package.to_string());
    }
    let energy = node.energy;
    let figures = [
        ("read_pj_per_byte", energy.read_pj_per_byte),
        ("write_pj_per_byte", energy.write_pj_per_byte),
        ("static_mw", energy.static_mw),
    ];
    for (key, figure) in figures {
        if let Some(figure) = figure {
            line(out, key, figure.to_string());
        }
    }
}

fn link(out: &mut String, link: &Link, spread: LinkSpread) {
    out.push_str("\n[[link]]\n");
    line(out, "initiator", link.initiator.to_string());
    line(out, "target", link.target.to_string());
    let nanos = |v: Nanos| v.get().to_string();
    let rate = |v: BytesPerSec| quote(&format_rate(v));
    let apart =
        spread.read_latency_ns.filter(|s| s.is_finite()).map(|s| format!("{:.2}", s.max(0.0)));
    figure(out, "read_latency_ns", link.read_latency, nanos, apart);
    figure(out, "write_latency_ns", link.write_latency, nanos, None);
    figure(out, "read_bandwidth", link.read_bandwidth, rate, spread.read_bandwidth.map(rate));
    figure(out, "write_bandwidth", link.write_bandwidth, rate, spread.write_bandwidth.map(rate));
    if let Some(distance) = link.distance {
        line(out, "distance", distance.to_string());
    }
}

fn figure<T>(
    out: &mut String,
    key: &str,
    figure: Option<Figure<T>>,
    show: impl Fn(T) -> String,
    spread: Option<String>,
) {
    let Some(Figure { value, evidence }) = figure else {
        return;
    };
    let value = show(value);
    if let Some(spread) = spread {
        let evidence = quote(evidence.name());
        line(out, key, format!("{{ value = {value}, evidence = {evidence}, spread = {spread} }}"));
    } else if evidence == Evidence::Config {
        line(out, key, value);
    } else {
        line(out, key, format!("{{ value = {value}, evidence = {} }}", quote(evidence.name())));
    }
}

fn span(out: &mut String, key: &str, time: Nanos) {
    if time.get() % 1_000 == 0 {
        line(out, &format!("{key}_us"), (time.get() / 1_000).to_string());
    } else {
        line(out, &format!("{key}_ns"), time.get().to_string());
    }
}

fn line(out: &mut String, key: &str, value: String) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{key} = {value}");
}

/// A TOML basic string.
fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
