//! Tiers of a machine as one initiator sees them.
//!
//! A *tier* is a set of memory nodes whose figures, from one initiator, are equal. Tiers are
//! ordered by an attribute, never by what the memory is called. A node without that attribute is
//! ordered by what is known instead: the other attribute, then the distance table, then nothing; it
//! always comes after nodes that have the attribute. Mixing the scales any other way would not give
//! an order: two figures and a distance can contradict each other in a circle.

use crate::lists::list_numbers;
use crate::model::{Evidence, Figure, Link, Machine, MemoryKind, Node};
use std::cmp::{Ordering, Reverse};
use terrace_types::{Bytes, BytesPerSec, Nanos, NodeId};

/// Cache lines as the model of simulator and lab has them; other machines are ranked and described,
/// not modelled.
pub const MODELLED_LINE: Bytes = Bytes(64);

/// The attribute that orders tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RankAttribute {
    /// Highest read bandwidth first; writes break ties.
    #[default]
    Bandwidth,
    /// Lowest read latency first; writes break ties.
    Latency,
    /// Largest tier first.
    Capacity,
}

impl RankAttribute {
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "bandwidth",
            Self::Latency => "latency",
            Self::Capacity => "capacity",
        }
    }

    /// The attribute of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Bandwidth, Self::Latency, Self::Capacity].into_iter().find(|b| b.name() == name)
    }
}

/// What placed a tier where it is in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Basis {
    /// The attribute asked for.
    Asked,
    /// The other of bandwidth and latency: the one asked for is not known.
    Other,
    /// The distance table: neither is known.
    Distance,
    /// Nothing is known.
    Nothing,
}

/// One tier, as seen from the ranking's initiator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tier {
    /// Its nodes, nearest first.
    pub nodes: Vec<NodeId>,
    /// What they are made of, where all are of one kind.
    pub kind: Option<MemoryKind>,
    /// Memory of all its nodes together.
    pub capacity: Bytes,
    /// Bandwidth of reads from one node of the tier.
    pub read_bandwidth: Option<Figure<BytesPerSec>>,
    /// Bandwidth of writes to one node of the tier.
    pub write_bandwidth: Option<Figure<BytesPerSec>>,
    /// Idle latency of reads.
    pub read_latency: Option<Figure<Nanos>>,
    /// Idle latency of writes.
    pub write_latency: Option<Figure<Nanos>>,
    /// Distance, where the table has it and it is one for all nodes.
    pub distance: Option<u32>,
    /// What placed the tier.
    pub basis: Basis,
}

/// All tiers of a machine from one initiator, best first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierRanking {
    /// The attribute asked for.
    pub by: RankAttribute,
    /// The node whose CPUs access.
    pub initiator: NodeId,
    /// Tiers by rank.
    pub tiers: Vec<Tier>,
    /// Nodes whose place in the order is not known: memory without CPUs of which nothing but a
    /// distance is known. Fast memory has large distances too, so it may be the best there is.
    pub unordered: Vec<NodeId>,
    /// What was tied or missing, and what was done about it.
    pub notes: Vec<String>,
}

impl TierRanking {
    /// Rank of the tier that holds `node`; 0 is best.
    #[must_use]
    pub fn rank_of(&self, node: NodeId) -> Option<usize> {
        self.tiers.iter().position(|t| t.nodes.contains(&node))
    }
}

/// Why a machine cannot be ranked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RankError {
    /// No such node.
    #[error("machine {machine}: there is no node {asked}; nodes with CPUs are: {valid}")]
    UnknownInitiator {
        /// The machine.
        machine: String,
        /// The node asked for.
        asked: NodeId,
        /// Nodes that can be asked from.
        valid: String,
    },
    /// Nothing accesses from there.
    #[error(
        "machine {machine}: node {asked} has no CPUs to see from; nodes with CPUs are: {valid}"
    )]
    InitiatorWithoutCpus {
        /// The machine.
        machine: String,
        /// The node asked for.
        asked: NodeId,
        /// Nodes that can be asked from.
        valid: String,
    },
    /// Nothing accesses at all.
    #[error("machine {machine}: no node has CPUs; describe the CPUs of at least one node")]
    NoCpus {
        /// The machine.
        machine: String,
    },
}

/// Measured figures this close, in percent, are taken as equal: repeated runs of a probe differ by
/// as much.
pub const MEASURED_TOLERANCE_PERCENT: u64 = 5;

/// Ranks the memory of `machine` by `by`, as the CPUs of `initiator` see it; without one, as those
/// of the lowest node that has CPUs.
pub fn rank(
    machine: &Machine,
    by: RankAttribute,
    initiator: Option<NodeId>,
) -> Result<TierRanking, RankError> {
    let initiator = resolve(machine, initiator)?;
    let mut singles: Vec<Tier> = machine
        .nodes
        .iter()
        .filter(|n| n.capacity > Bytes::ZERO)
        .map(|n| single(n, machine.link(initiator, n.id), by))
        .collect();
    // One order for grouping, whatever the attribute, so that the tiers themselves do not depend on
    // it.
    singles.sort_by(|a, b| {
        compare(a, b, RankAttribute::Bandwidth).then_with(|| a.nodes.cmp(&b.nodes))
    });
    let mut notes = Vec::new();
    let mut tiers: Vec<Tier> = Vec::new();
    for tier in singles {
        match tiers.iter_mut().find(|t| same(t, &tier, &mut notes)) {
            Some(equal) => absorb(equal, tier),
            None => tiers.push(tier),
        }
    }
    for tier in &mut tiers {
        tier.nodes.sort_by_key(|n| (distance(machine, initiator, *n), *n));
    }
    tiers.sort_by(|a, b| compare(a, b, by).then_with(|| a.nodes.cmp(&b.nodes)));
    describe(&tiers, by, initiator, &mut notes);
    let unordered = unordered(machine, &tiers);
    notes.extend(describe_unordered(&unordered));
    if let Some(cache) = machine.caches.iter().find(|c| c.line != MODELLED_LINE) {
        notes.push(format!(
            "Cache lines of {}: terrace sim and the lab model lines of {MODELLED_LINE} and refuse \
             this machine.",
            cache.line
        ));
    }
    Ok(TierRanking { by, initiator, tiers, unordered, notes })
}

fn resolve(machine: &Machine, asked: Option<NodeId>) -> Result<NodeId, RankError> {
    let with_cpus = || machine.nodes.iter().filter(|n| !n.cpus.is_empty()).map(|n| n.id);
    let name = || machine.name.clone();
    let valid = || list(&with_cpus().collect::<Vec<_>>());
    let Some(asked) = asked else {
        return with_cpus().min().ok_or_else(|| RankError::NoCpus { machine: name() });
    };
    match machine.node(asked) {
        None => Err(RankError::UnknownInitiator { machine: name(), asked, valid: valid() }),
        Some(node) if node.cpus.is_empty() => {
            Err(RankError::InitiatorWithoutCpus { machine: name(), asked, valid: valid() })
        }
        Some(_) => Ok(asked),
    }
}

fn single(node: &Node, link: Option<&Link>, by: RankAttribute) -> Tier {
    let mut tier = Tier {
        nodes: vec![node.id],
        kind: Some(node.kind),
        capacity: node.capacity,
        read_bandwidth: link.and_then(|l| l.read_bandwidth),
        write_bandwidth: link.and_then(|l| l.write_bandwidth),
        read_latency: link.and_then(|l| l.read_latency),
        write_latency: link.and_then(|l| l.write_latency),
        distance: link.and_then(|l| l.distance),
        basis: Basis::Nothing,
    };
    let bandwidth = tier.read_bandwidth.or(tier.write_bandwidth).is_some();
    let latency = tier.read_latency.or(tier.write_latency).is_some();
    tier.basis = match (by, bandwidth, latency) {
        (RankAttribute::Capacity, ..)
        | (RankAttribute::Bandwidth, true, _)
        | (RankAttribute::Latency, _, true) => Basis::Asked,
        (RankAttribute::Bandwidth, false, true) | (RankAttribute::Latency, true, false) => {
            Basis::Other
        }
        (_, false, false) if tier.distance.is_some() => Basis::Distance,
        (_, false, false) => Basis::Nothing,
    };
    tier
}

/// Better first. Total: what compares equal here is equal in every figure and every distance.
fn compare(a: &Tier, b: &Tier, by: RankAttribute) -> Ordering {
    let bandwidth = || bandwidth_key(a).cmp(&bandwidth_key(b));
    let latency = || latency_key(a).cmp(&latency_key(b));
    let near = || a.distance.unwrap_or(u32::MAX).cmp(&b.distance.unwrap_or(u32::MAX));
    match by {
        RankAttribute::Bandwidth => bandwidth().then_with(latency).then_with(near),
        RankAttribute::Latency => latency().then_with(bandwidth).then_with(near),
        RankAttribute::Capacity => {
            b.capacity.cmp(&a.capacity).then_with(bandwidth).then_with(latency).then_with(near)
        }
    }
}

/// Known before unknown, then high before low, reads before writes.
fn bandwidth_key(tier: &Tier) -> (bool, Reverse<u64>, Reverse<u64>) {
    let read = tier.read_bandwidth.or(tier.write_bandwidth).map(|f| f.value.get());
    let write = tier.write_bandwidth.or(tier.read_bandwidth).map(|f| f.value.get());
    (read.is_none(), Reverse(read.unwrap_or(0)), Reverse(write.unwrap_or(0)))
}

/// Known before unknown, then low before high, reads before writes.
fn latency_key(tier: &Tier) -> (bool, u64, u64) {
    let read = tier.read_latency.or(tier.write_latency).map(|f| f.value.get());
    let write = tier.write_latency.or(tier.read_latency).map(|f| f.value.get());
    (read.is_none(), read.unwrap_or(u64::MAX), write.unwrap_or(u64::MAX))
}

/// Whether two nodes make one tier: all figures equal, or both measured and nearly so. Where no
/// figure is known at all, the distances must be equal; where figures are known, they speak and the
/// distance does not.
fn same(a: &Tier, b: &Tier, notes: &mut Vec<String>) -> bool {
    let rates = [(a.read_bandwidth, b.read_bandwidth), (a.write_bandwidth, b.write_bandwidth)];
    let times = [(a.read_latency, b.read_latency), (a.write_latency, b.write_latency)];
    let (mut near, mut any) = (false, false);
    let pairs = rates
        .map(|(x, y)| {
            (x.map(|f| (f.value.get(), f.evidence)), y.map(|f| (f.value.get(), f.evidence)))
        })
        .into_iter()
        .chain(times.map(|(x, y)| {
            (x.map(|f| (f.value.get(), f.evidence)), y.map(|f| (f.value.get(), f.evidence)))
        }));
    for pair in pairs {
        match pair {
            (None, None) => {}
            (Some((x, _)), Some((y, _))) if x == y => any = true,
            (Some((x, Evidence::Measured)), Some((y, Evidence::Measured)))
                if u128::from(x.abs_diff(y)) * 100
                    <= u128::from(x.max(y)) * u128::from(MEASURED_TOLERANCE_PERCENT) =>
            {
                (near, any) = (true, true);
            }
            _ => return false,
        }
    }
    if !any {
        return a.distance == b.distance;
    }
    if near {
        notes.push(format!(
            "Measured figures of nodes {} and {} differ by at most {MEASURED_TOLERANCE_PERCENT}%: \
                taken as one tier.",
            list(&a.nodes),
            list(&b.nodes),
        ));
    }
    true
}

fn absorb(tier: &mut Tier, other: Tier) {
    tier.nodes.extend(other.nodes);
    tier.capacity += other.capacity;
    tier.kind = tier.kind.filter(|k| other.kind == Some(*k));
    tier.distance = tier.distance.filter(|d| other.distance == Some(*d));
}

fn distance(machine: &Machine, from: NodeId, to: NodeId) -> u32 {
    machine.link(from, to).and_then(|l| l.distance).unwrap_or(u32::MAX)
}

fn describe(tiers: &[Tier], by: RankAttribute, initiator: NodeId, notes: &mut Vec<String>) {
    let nodes_on = |basis| -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> =
            tiers.iter().filter(|t| t.basis == basis).flat_map(|t| t.nodes.clone()).collect();
        nodes.sort_unstable();
        nodes
    };
    let asked = by.name();
    let other = if by == RankAttribute::Latency { "bandwidth" } else { "latency" };
    // With one tier there is no order; with one basis there is nothing to come after.
    let only = tiers.len() < 2;
    let alike = tiers.windows(2).all(|pair| pair[0].basis == pair[1].basis);
    let lacking = |basis, what: &str, rest: &str, notes: &mut Vec<String>| {
        let nodes = nodes_on(basis);
        let s = if nodes.len() == 1 { "" } else { "s" };
        let nodes = match nodes.as_slice() {
            [] => return,
            nodes => list(nodes),
        };
        let how = match (only, alike) {
            (true, _) => String::new(),
            (false, true) => format!(", ranked {rest}"),
            (false, false) => format!(", ranked after the others, {rest}"),
        };
        notes.push(format!("Node{s} {nodes}: {what} from node {initiator}{how}."));
    };
    let unknown = format!("no {asked} is known");
    lacking(Basis::Other, &unknown, &format!("by {other}"), notes);
    let unknown = "neither bandwidth nor latency is known";
    lacking(Basis::Distance, unknown, "by distance", notes);
    lacking(Basis::Nothing, "nothing is known", "in no order", notes);
    for pair in tiers.windows(2) {
        let [a, b] = pair else { continue };
        let tied = a.basis == Basis::Asked
            && b.basis == Basis::Asked
            && match by {
                RankAttribute::Bandwidth => bandwidth_key(a) == bandwidth_key(b),
                RankAttribute::Latency => latency_key(a) == latency_key(b),
                RankAttribute::Capacity => a.capacity == b.capacity,
            };
        if tied {
            let (x, y) = (list(&a.nodes), list(&b.nodes));
            notes.push(format!("Nodes {x} and {y} tie by {asked}: {} decides.", decider(a, b, by)));
        }
    }
}

/// Nodes of [`TierRanking::unordered`], ascending.
fn unordered(machine: &Machine, tiers: &[Tier]) -> Vec<NodeId> {
    if tiers.len() < 2 {
        return Vec::new();
    }
    let by_distance = tiers.iter().filter(|t| t.basis == Basis::Distance);
    let mut nodes: Vec<NodeId> = by_distance.flat_map(|t| t.nodes.clone()).collect();
    // What is known to be behind a link or made of flash is slow, wherever it is; and of memory
    // whose figures its nearest CPUs know, those farther away see no more.
    nodes.retain(|id| {
        let figures = machine.links.iter().any(|l| l.target == *id && l.has_figures());
        machine.node(*id).is_some_and(|n| {
            let may_be_fast =
                matches!(n.kind, MemoryKind::Unknown | MemoryKind::Hbm | MemoryKind::Gpu);
            n.cpus.is_empty() && may_be_fast && !figures
        })
    });
    nodes.sort_unstable();
    nodes
}

fn describe_unordered(nodes: &[NodeId]) -> Option<String> {
    let (s, they) = match nodes {
        [] => return None,
        [_] => ("", "it"),
        _ => ("s", "they"),
    };
    Some(format!(
        "Node{s} {}: order unknown. Only a distance is known, and fast memory without CPUs has \
         large ones too: {they} may be the fastest. Measure with `terrace probe -o machine.toml`.",
        list(nodes)
    ))
}

/// What breaks a tie.
fn decider(a: &Tier, b: &Tier, by: RankAttribute) -> &'static str {
    if by != RankAttribute::Bandwidth && bandwidth_key(a) != bandwidth_key(b) {
        "bandwidth"
    } else if by != RankAttribute::Latency && latency_key(a) != latency_key(b) {
        "latency"
    } else if a.distance != b.distance {
        "distance"
    } else {
        "the lower node number"
    }
}

/// Nodes as the kernel writes them: `0-3,8`.
#[must_use]
pub fn list(nodes: &[NodeId]) -> String {
    let numbers: Vec<u32> = nodes.iter().map(|n| u32::from(n.0)).collect();
    list_numbers(&numbers)
}
