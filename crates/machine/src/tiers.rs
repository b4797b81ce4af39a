//! What `terrace tiers` prints: the JSON that others rely on, and a table for people.

use crate::model::{Evidence, Figure, Machine};
use crate::rank::{list, Basis, Tier, TierRanking};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use terrace_types::text::{clip, wrap};
use terrace_types::{BytesPerSec, Nanos};

/// The answer of `tiers --json`. Keys are a contract (`design.md`, "The command line"); unknown
/// figures are null.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TiersReport {
    /// Name of the machine.
    pub machine: String,
    /// Where it was read from: `live`, `preset:NAME` or the file's name.
    pub source: String,
    /// All nodes by id, with or without memory.
    pub nodes: Vec<NodeReport>,
    /// Tiers by rank.
    pub tiers: Vec<TierReport>,
    /// The node asked from.
    pub initiator: u16,
}

/// A node of [`TiersReport`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeReport {
    /// OS index.
    pub id: u16,
    /// Local CPUs.
    pub cpus: Vec<u32>,
    /// Memory; 0 for CPU-only nodes.
    pub capacity_bytes: u64,
}

/// A tier of [`TiersReport`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TierReport {
    /// 0 is best.
    pub rank: usize,
    /// Kind of its nodes; `mixed` where they differ.
    pub kind: &'static str,
    /// Its nodes, nearest first.
    pub nodes: Vec<u16>,
    /// Memory of all its nodes.
    pub capacity_bytes: u64,
    /// Of one node.
    pub read_bandwidth_bytes_per_s: Option<u64>,
    /// Of one node.
    pub write_bandwidth_bytes_per_s: Option<u64>,
    /// Idle.
    pub read_latency_ns: Option<u64>,
    /// Idle.
    pub write_latency_ns: Option<u64>,
    /// Attribute, named as its key here, to source. A null figure is `distance` where the tier's
    /// place in the order rests on the distance table, else `unknown`.
    pub evidence: BTreeMap<&'static str, Evidence>,
}

impl TiersReport {
    /// The report of `ranking`, which must be of `machine`.
    #[must_use]
    pub fn new(machine: &Machine, ranking: &TierRanking, source: &str) -> Self {
        Self {
            machine: machine.name.clone(),
            source: source.to_owned(),
            nodes: machine
                .nodes
                .iter()
                .map(|n| NodeReport {
                    id: n.id.0,
                    cpus: n.cpus.iter().map(|c| c.0).collect(),
                    capacity_bytes: n.capacity.get(),
                })
                .collect(),
            tiers: ranking.tiers.iter().enumerate().map(|(r, t)| TierReport::new(r, t)).collect(),
            initiator: ranking.initiator.0,
        }
    }
}

impl TierReport {
    fn new(rank: usize, tier: &Tier) -> Self {
        let missing = match tier.basis {
            Basis::Distance => Evidence::Distance,
            _ => Evidence::Unknown,
        };
        let rate = |f: Option<Figure<BytesPerSec>>| f.map_or(missing, |f| f.evidence);
        let time = |f: Option<Figure<Nanos>>| f.map_or(missing, |f| f.evidence);
        Self {
            rank,
            kind: tier.kind.map_or("mixed", |k| k.name()),
            nodes: tier.nodes.iter().map(|n| n.0).collect(),
            capacity_bytes: tier.capacity.get(),
            read_bandwidth_bytes_per_s: tier.read_bandwidth.map(|f| f.value.get()),
            write_bandwidth_bytes_per_s: tier.write_bandwidth.map(|f| f.value.get()),
            read_latency_ns: tier.read_latency.map(|f| f.value.get()),
            write_latency_ns: tier.write_latency.map(|f| f.value.get()),
            evidence: BTreeMap::from([
                ("read_bandwidth_bytes_per_s", rate(tier.read_bandwidth)),
                ("write_bandwidth_bytes_per_s", rate(tier.write_bandwidth)),
                ("read_latency_ns", time(tier.read_latency)),
                ("write_latency_ns", time(tier.write_latency)),
            ]),
        }
    }
}

/// The ranking as a table for people, within 80 columns, with notes below.
#[must_use]
pub fn render_text(machine: &Machine, ranking: &TierRanking, source: &str) -> String {
    render_text_within(machine, ranking, source, 80)
}

/// As [`render_text`], within `columns`.
#[must_use]
pub fn render_text_within(
    machine: &Machine,
    ranking: &TierRanking,
    source: &str,
    columns: usize,
) -> String {
    let mut out = String::new();
    let title = format!(
        "{} ({source}): memory by {}, as CPUs of node {} see it",
        machine.name,
        ranking.by.name(),
        ranking.initiator
    );
    wrap(&mut out, &title, "", "  ", columns);
    out.push('\n');
    let head = ["rank", "kind", "nodes", "capacity", "bandwidth r/w", "latency r/w", "source"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(ranking.tiers.iter().enumerate().map(|(rank, tier)| row(rank, tier)));
    table(&mut out, &rows, columns);
    let notes = machine.notes.iter().chain(&ranking.notes);
    for (index, note) in notes.enumerate() {
        if index == 0 {
            out.push('\n');
        }
        wrap(&mut out, note, "- ", "  ", columns);
    }
    out
}

fn row(rank: usize, tier: &Tier) -> [String; 7] {
    let rate = |f: Option<Figure<BytesPerSec>>| f.map(|f| f.value.get());
    let time = |f: Option<Figure<Nanos>>| f.map(|f| f.value.get());
    let evidence: BTreeSet<&str> =
        TierReport::new(rank, tier).evidence.values().map(|e| e.name()).collect();
    let evidence: Vec<&str> = evidence.into_iter().collect();
    [
        rank.to_string(),
        tier.kind.map_or("mixed", |k| k.name()).to_owned(),
        clip(&list(&tier.nodes), 12),
        tier.capacity.to_string(),
        pair(
            rate(tier.read_bandwidth),
            rate(tier.write_bandwidth),
            &[(1e9, "GB/s"), (1e6, "MB/s")],
        ),
        pair(time(tier.read_latency), time(tier.write_latency), &[(1.0, "ns")]),
        if evidence.len() > 1 { "mixed".to_owned() } else { evidence.concat() },
    ]
}

/// Both sides of a figure in one unit: `13.2/4.6 GB/s`; one number where they agree.
fn pair(read: Option<u64>, write: Option<u64>, units: &[(f64, &str)]) -> String {
    let Some(low) = read.into_iter().chain(write).min() else {
        return "-".to_owned();
    };
    let unit = units.iter().find(|(scale, _)| low as f64 >= *scale).or(units.last());
    let (scale, name) = unit.copied().unwrap_or((1.0, ""));
    let show = |v: Option<u64>| match v {
        None => "-".to_owned(),
        Some(v) if scale <= 1.0 => v.to_string(),
        Some(v) => format!("{:.1}", v as f64 / scale),
    };
    if read == write {
        format!("{} {name}", show(read))
    } else {
        format!("{}/{} {name}", show(read), show(write))
    }
}

fn table(out: &mut String, rows: &[[String; 7]], columns: usize) {
    let mut widths = [0; 7];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.len().max(*width);
        }
    }
    for row in rows {
        let mut line = String::new();
        for (index, (cell, width)) in row.iter().zip(widths).enumerate() {
            let gap = if index == 0 { "" } else { "  " };
            // Numbers to the right, names to the left.
            let _ = match index {
                0 | 3..=5 => write!(line, "{gap}{cell:>width$}"),
                _ => write!(line, "{gap}{cell:<width$}"),
            };
        }
        out.push_str(&clip(line.trim_end(), columns));
        out.push('\n');
    }
}
