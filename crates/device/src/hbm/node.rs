//! From a stack to a machine file: the HBM node of a machine with its stacks.
//!
//! Bandwidth is what whole rows sustain, at the refresh rate that the stack settled at; latency is
//! the idle one at the pins and the host's path; energy of a byte is that of whole rows; power at
//! rest is standby and refresh at the settled temperatures.

use super::design::StackDesign;
use super::evaluate::StackEvaluation;
use terrace_machine::{Energy, Evidence, Figure, Link, Machine, MemoryKind, Node};
use terrace_types::{Bytes, BytesPerSec, Nanos, NodeId};

/// Smallest unit that is read or written, bytes: a line.
const BLOCK: u64 = 64;

/// `base` with its HBM replaced by this design's stacks, or with them added. `None` where no node
/// number is left or no node has CPUs.
#[must_use]
pub fn machine(base: &Machine, design: &StackDesign, e: &StackEvaluation) -> Option<Machine> {
    let mut machine = base.clone();
    let old: Vec<NodeId> = machine
        .nodes
        .iter()
        .filter(|n| n.kind == MemoryKind::Hbm && n.cpus.is_empty())
        .map(|n| n.id)
        .collect();
    let package = machine.nodes.iter().find(|n| !n.cpus.is_empty())?.package;
    let distance = |initiator| {
        let to = |l: &&Link| l.initiator == initiator && old.contains(&l.target);
        base.links.iter().find(to).and_then(|l| l.distance)
    };
    let id = match old.first() {
        Some(id) => *id,
        None => NodeId(machine.nodes.iter().map(|n| n.id.0).max()?.checked_add(1)?),
    };
    if id.0 > 254 {
        return None;
    }
    machine.nodes.retain(|n| !old.contains(&n.id));
    machine.links.retain(|l| !old.contains(&l.target));
    machine.nodes.push(node(design, e, id, package));
    machine.nodes.sort_by_key(|n| n.id);
    let initiators: Vec<NodeId> =
        machine.nodes.iter().filter(|n| !n.cpus.is_empty()).map(|n| n.id).collect();
    for initiator in initiators {
        machine.links.push(link(design, e, initiator, id, distance(initiator)));
    }
    machine.links.sort_by_key(|l| (l.initiator, l.target));
    machine.name = format!("{}-{}", base.name, design.name);
    machine.notes.push(format!(
        "Node {id}: {} stacks {}, computed by terrace device hbm; hottest die {:.0} C.",
        design.package.stacks,
        design.name,
        e.temperatures.hottest_c()
    ));
    for violation in &e.violations {
        machine.notes.push(format!("Stack {}: {violation}.", design.name));
    }
    Some(machine)
}

fn node(design: &StackDesign, e: &StackEvaluation, id: NodeId, package: Option<u32>) -> Node {
    let stacks = design.package.stacks;
    let read = super::energy::per_bit(design, false, activations(design)).total();
    let write = super::energy::per_bit(design, true, activations(design)).total();
    Node {
        id,
        kind: MemoryKind::Hbm,
        cpus: Vec::new(),
        capacity: Bytes(e.capacity_bytes.saturating_mul(stacks as u64)),
        reserved: Bytes::ZERO,
        in_use: Bytes::ZERO,
        block: Bytes(BLOCK),
        package,
        energy: Energy {
            read_pj_per_byte: Some((8.0 * read).round() as u32),
            write_pj_per_byte: Some((8.0 * write).round() as u32),
            static_mw: Some((e.rest_w * stacks * 1e3).round() as u32),
        },
    }
}

/// Activations a burst where whole rows are read.
#[must_use]
pub fn activations(design: &StackDesign) -> f64 {
    super::banks::burst_bytes(design) / design.interface.row_bytes
}

fn link(
    design: &StackDesign,
    e: &StackEvaluation,
    initiator: NodeId,
    target: NodeId,
    distance: Option<u32>,
) -> Link {
    let figure = |value| Some(Figure { value, evidence: Evidence::Config });
    let rate = |bytes: f64| {
        Some(Figure {
            // Whole megabytes a second: more digits would pretend to a precision that is not there.
            value: BytesPerSec::mb((bytes * design.package.stacks / 1e6).round().max(1.0) as u64),
            evidence: Evidence::Config,
        })
    };
    let latency = Nanos((design.interface.path_ns + e.idle_latency_ns).round() as u64);
    Link {
        initiator,
        target,
        read_latency: figure(latency),
        write_latency: figure(latency),
        read_bandwidth: rate(e.sustained_bytes_per_s.stream_read),
        write_bandwidth: rate(e.sustained_bytes_per_s.stream_write),
        distance,
    }
}
