//! What it is worth to serve one access from a better tier, from the machine's own figures.

use serde::{Deserialize, Serialize};
use terrace_machine::{Figure, Machine};
use terrace_types::{BytesPerSec, Nanos, NodeId};

/// Nanoseconds saved by each access that the better of two tiers serves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Worth {
    /// By a read.
    pub read_ns: f64,
    /// By a write.
    pub write_ns: f64,
}

/// Bytes of a cache line, the unit of a read.
const LINE: f64 = 64.0;
/// Taken for the latency gained where the machine tells none.
const UNKNOWN_GAP_NS: f64 = 100.0;

impl Worth {
    /// Of `fast` over `slow`, as the CPUs of the machine see them.
    ///
    /// A read saves the difference in latency and the difference in time its line holds the bus
    /// (all of a tier's bandwidth is shared by all CPUs). Misses overlap: a core with `n`
    /// outstanding misses waits for between one and `1/n` of a latency; the geometric mean,
    /// `1/sqrt(n)`, is off by at most `sqrt(n)` either way. A write fetches the line (a read) and
    /// later leaves one medium block on the bus, at write bandwidth.
    #[must_use]
    pub fn between(machine: &Machine, fast: &[NodeId], slow: &[NodeId]) -> Self {
        let overlap = f64::from(machine.core.outstanding_misses.max(1)).sqrt();
        let latency = match (latency(machine, slow), latency(machine, fast)) {
            (Some(slow), Some(fast)) => slow - fast,
            _ => UNKNOWN_GAP_NS,
        };
        let read = per_byte(machine, slow, false, fast) * LINE;
        let write = (per_byte(machine, slow, true, slow) * block(machine, slow)
            - per_byte(machine, fast, true, fast) * block(machine, fast))
        .max(0.0);
        let read_ns = (latency / overlap + read).max(0.0);
        Self { read_ns, write_ns: read_ns + write }
    }

    /// The larger of the two: nanoseconds that one access, more or less, makes.
    #[must_use]
    pub fn unit(&self) -> f64 {
        self.read_ns.max(self.write_ns)
    }

    /// Reads and writes taken alike: a store is worth what a load is.
    #[must_use]
    pub fn write_blind(self) -> Self {
        Self { read_ns: self.read_ns, write_ns: self.read_ns }
    }
}

/// Bus time of a byte on `nodes`, less that on `than` when they differ; 0 when not known.
fn per_byte(machine: &Machine, nodes: &[NodeId], write: bool, than: &[NodeId]) -> f64 {
    let of = |nodes: &[NodeId]| {
        best(machine, nodes, |link| {
            let figure = if write { link.write_bandwidth.or(link.read_bandwidth) } else { link.read_bandwidth };
            figure.map(|f: Figure<BytesPerSec>| 1e9 / f.value.get().max(1) as f64)
        })
    };
    match (of(nodes), of(than)) {
        (Some(a), Some(b)) if nodes != than => a - b,
        (Some(a), _) if nodes == than => a,
        _ => 0.0,
    }
}

fn block(machine: &Machine, nodes: &[NodeId]) -> f64 {
    let blocks = nodes.iter().filter_map(|n| machine.node(*n)).map(|n| n.block.get());
    (blocks.max().unwrap_or(0) as f64).max(LINE)
}

fn latency(machine: &Machine, nodes: &[NodeId]) -> Option<f64> {
    best(machine, nodes, |link| link.read_latency.map(|f: Figure<Nanos>| f.value.get() as f64))
}

/// The least figure over all links from nodes with CPUs to `nodes`.
fn best(machine: &Machine, nodes: &[NodeId], figure: impl Fn(&terrace_machine::Link) -> Option<f64>) -> Option<f64> {
    let from_cpus = |link: &&terrace_machine::Link| {
        nodes.contains(&link.target) && machine.node(link.initiator).is_some_and(|n| !n.cpus.is_empty())
    };
    machine.links.iter().filter(from_cpus).filter_map(figure).min_by(f64::total_cmp)
}

/// The node of `tier` nearest to `page_node`: least latency, then distance, then the tier's order.
#[must_use]
pub fn nearest(machine: &Machine, page_node: NodeId, tier: &[NodeId]) -> Option<NodeId> {
    let rank = |to: &NodeId| {
        let link = machine.link(page_node, *to).or_else(|| machine.link(*to, page_node));
        let distance = link.and_then(|l| l.distance);
        let latency = link.and_then(|l| l.read_latency).map(|f| f.value.get());
        (distance.unwrap_or(u32::MAX), latency.unwrap_or(u64::MAX))
    };
    let package = |n: NodeId| machine.node(n).and_then(|n| n.package);
    let home = package(page_node);
    tier.iter().copied().min_by_key(|to| (home.is_some() && package(*to) != home, rank(to)))
}
