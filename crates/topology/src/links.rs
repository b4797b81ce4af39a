//! Links: firmware's figures (HMAT) and the table of distances.

use crate::error::TopologyError;
use crate::nodes::{list_file, MAX_LISTED};
use crate::tree::View;
use crate::tree::NODES;
use std::collections::BTreeMap;
use terrace_machine::{Evidence, Figure, Link, Node, MAX_BANDWIDTH, MAX_LATENCY};
use terrace_types::{Bytes, BytesPerSec, Nanos, NodeId};

/// Largest distance that is believed; the kernel's are below 256.
const MAX_DISTANCE: u32 = 1_000_000;

type Links = BTreeMap<(NodeId, NodeId), Link>;

fn entry(links: &mut Links, initiator: NodeId, target: NodeId) -> &mut Link {
    links.entry((initiator, target)).or_insert(Link::unknown(initiator, target))
}

/// What is known of memory `target` from CPUs of `initiator`. `listed` are the numbers of all
/// folders of nodes.
pub(crate) fn links(
    view: &View<'_>,
    nodes: &mut [Node],
    listed: &[u32],
    notes: &mut Vec<String>,
) -> Result<Vec<Link>, TopologyError> {
    let mut links = Links::new();
    distances(view, nodes, listed, &mut links)?;
    let mut odd = 0;
    let targets: Vec<NodeId> =
        nodes.iter().filter(|n| n.capacity > Bytes::ZERO).map(|n| n.id).collect();
    for target in targets {
        // Class 0 is the best initiators of all, devices included; class 1 the best among CPUs. So
        // CPUs are looked for in class 1 first, and class 0 speaks for a node only if class 1 has
        // not. A node listed in neither has no figures: the kernel states them for the best
        // initiators alone.
        for class in [1, 0] {
            let folder = format!("{NODES}/node{}/access{class}/initiators", target.0);
            let listed = view.numbered(&folder, "node", MAX_LISTED)?;
            let listed: Vec<NodeId> = listed.into_iter().map(|id| NodeId(id as u16)).collect();
            if listed.is_empty() {
                continue;
            }
            let figures = figures(view, &folder, &mut odd)?;
            for initiator in listed.iter().filter(|i| nodes.iter().any(|n| n.id == **i)) {
                let link = entry(&mut links, *initiator, target);
                let empty = link.read_latency.is_none()
                    && link.write_latency.is_none()
                    && link.read_bandwidth.is_none()
                    && link.write_bandwidth.is_none();
                if empty {
                    let distance = link.distance;
                    *link = Link { initiator: *initiator, target, distance, ..figures };
                }
            }
            adopt_package(nodes, target, &listed);
        }
    }
    // A link that says nothing is no link.
    links.retain(|_, l| {
        l.distance.is_some()
            || l.read_latency.is_some()
            || l.write_latency.is_some()
            || l.read_bandwidth.is_some()
            || l.write_bandwidth.is_some()
    });
    if odd > 0 {
        notes.push(format!(
            "{odd} figures of the HMAT were 0 or beyond reason, and are taken as not known."
        ));
    }
    Ok(links.into_values().collect())
}

/// Memory-only nodes are on the package of the CPUs that are nearest, where that is one.
fn adopt_package(nodes: &mut [Node], target: NodeId, initiators: &[NodeId]) {
    let near = nodes.iter().filter(|n| initiators.contains(&n.id) && !n.cpus.is_empty());
    let packages: Vec<Option<u32>> = near.map(|n| n.package).collect();
    let Some(first) = packages.first().copied() else {
        return;
    };
    if packages.iter().all(|p| *p == first) {
        if let Some(node) = nodes.iter_mut().find(|n| n.id == target && n.package.is_none()) {
            node.package = first;
        }
    }
}

/// The four figures of one access class, as a link without ends. The kernel leaves a file out, or
/// writes 0, where the firmware does not say.
fn figures(view: &View<'_>, folder: &str, odd: &mut usize) -> Result<Link, TopologyError> {
    let mut read = |name: &str, scale: u64, most: u64| -> Result<Option<u64>, TopologyError> {
        let Some(number) = view.number(&format!("{folder}/{name}"))? else {
            return Ok(None);
        };
        let value = u64::try_from(number).ok().and_then(|n| n.checked_mul(scale));
        let value = value.filter(|v| (1..=most).contains(v));
        *odd += usize::from(value.is_none());
        Ok(value)
    };
    let evidence = Evidence::Hmat;
    let mut time = |name: &str| -> Result<Option<Figure<Nanos>>, TopologyError> {
        let value = read(name, 1, MAX_LATENCY.get())?;
        Ok(value.map(|ns| Figure { value: Nanos(ns), evidence }))
    };
    let (read_latency, write_latency) = (time("read_latency")?, time("write_latency")?);
    let mut rate = |name: &str| -> Result<Option<Figure<BytesPerSec>>, TopologyError> {
        let value = read(name, 1 << 20, MAX_BANDWIDTH.get())?;
        Ok(value.map(|bytes| Figure { value: BytesPerSec(bytes), evidence }))
    };
    Ok(Link {
        initiator: NodeId(0),
        target: NodeId(0),
        read_latency,
        write_latency,
        read_bandwidth: rate("read_bandwidth")?,
        write_bandwidth: rate("write_bandwidth")?,
        distance: None,
    })
}

/// `nodeN/distance`: one number for each online node, in the order of their numbers.
fn distances(
    view: &View<'_>,
    nodes: &[Node],
    listed: &[u32],
    links: &mut Links,
) -> Result<(), TopologyError> {
    let online = list_file(view, &format!("{NODES}/online"), MAX_LISTED)?.unwrap_or_default();
    let possible = list_file(view, &format!("{NODES}/possible"), MAX_LISTED)?.unwrap_or_default();
    let mut odd = 0;
    for from in nodes.iter().filter(|n| !n.cpus.is_empty()) {
        let path = format!("{NODES}/node{}/distance", from.id);
        let Some(text) = view.text(&path)? else {
            continue;
        };
        let row: Vec<Option<u32>> = text
            .split_whitespace()
            .map(|word| word.parse().ok().filter(|d| (1..=MAX_DISTANCE).contains(d)))
            .collect();
        // The kernel writes a number for each online node, other tools one for each that is
        // possible.
        let columns = [online.as_slice(), listed, possible.as_slice()];
        let Some(columns) = columns.into_iter().find(|c| c.len() == row.len()) else {
            view.doubt(&path, &text, "one number for each node");
            continue;
        };
        for (to, distance) in columns.iter().zip(row) {
            let to = nodes.iter().find(|n| u32::from(n.id.0) == *to);
            let Some(to) = to.filter(|n| n.capacity > Bytes::ZERO) else { continue };
            match distance {
                Some(distance) => entry(links, from.id, to.id).distance = Some(distance),
                None => odd += 1,
            }
        }
    }
    if odd > 0 {
        let what = if odd == 1 { "distance is" } else { "distances are" };
        view.remark(format!(
            "{odd} {what} no number from 1 to {MAX_DISTANCE}: taken as not known."
        ));
    }
    Ok(())
}
