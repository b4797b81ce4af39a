//! From a machine file to the shape of a virtual machine: which node has how much memory, which
//! CPUs, where its memory lies in the guest's physical address space, and what HMAT says about it.
//! Pure.

use crate::error::{LabError, Result};
use std::ops::Range;
use terrace_machine::{Figure, Machine};
use terrace_types::{Bytes, BytesPerSec, Nanos};

/// Least memory of the first node: what the guest's kernel takes there (some 72 MiB of each lab
/// machine's) and what calibrating takes (24 MiB). With 96 MiB a machine boots and calibrates.
const LEAST_OF_FIRST_NODE: Bytes = Bytes::mib(96);
/// Least memory of another node: with 40 MiB it calibrates, with 32 MiB the kernel kills what does.
const LEAST_OF_NODE: Bytes = Bytes::mib(40);
/// The q35 chipset keeps memory below this address when all of it fits.
const LOW_MEMORY_LIMIT: u64 = 0xb000_0000;
/// Where q35 cuts when it does not.
const LOW_MEMORY_CUT: u64 = 0x8000_0000;
/// Where the rest continues.
const HIGH_MEMORY_START: u64 = 0x1_0000_0000;
const MIB: u64 = 1 << 20;

/// One node of the virtual machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeShape {
    /// Index in the guest; the same as in the machine file.
    pub id: u32,
    /// Bytes of memory.
    pub bytes: u64,
    /// vCPUs on it.
    pub cpus: Vec<u32>,
    /// Node whose CPUs are nearest.
    pub initiator: u32,
    /// Guest-physical address ranges of its memory.
    pub physical: Vec<Range<u64>>,
}

/// Figures from one initiator to one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkShape {
    /// Node of the CPUs.
    pub initiator: u32,
    /// Node of the memory.
    pub target: u32,
    /// Nanoseconds.
    pub read_latency_ns: u64,
    /// Nanoseconds.
    pub write_latency_ns: u64,
    /// Bytes a second.
    pub read_bandwidth: u64,
    /// Bytes a second.
    pub write_bandwidth: u64,
}

/// What the virtual machine looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Name of the machine.
    pub name: String,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Nodes, by id.
    pub nodes: Vec<NodeShape>,
    /// Every initiator to every node with memory.
    pub links: Vec<LinkShape>,
    /// Distance table, row by row.
    pub distances: Vec<Vec<u32>>,
    /// The node that a program's first pages should best be on.
    pub fast: u32,
    /// The largest other node: where the guest keeps its own files, and where what is demoted goes.
    pub slow: u32,
}

impl Shape {
    /// Derive the shape; `vcpus` overrides the number of CPUs in the machine file (dealt out in its
    /// order).
    pub fn from_machine(machine: &Machine, vcpus: Option<u32>) -> Result<Self> {
        let bad = |why: String| LabError::Machine { name: machine.name.clone(), why };
        check_ids(machine).map_err(bad)?;
        let owned = deal_cpus(machine, vcpus).map_err(bad)?;
        let vcpus: u32 = owned.iter().map(|c| c.len() as u32).sum();
        let initiators: Vec<u32> =
            (0..).zip(&owned).filter(|(_, cpus)| !cpus.is_empty()).map(|(id, _)| id).collect();
        let links = links(machine, &initiators).map_err(bad)?;
        let nearest = |target: u32| {
            let best = links
                .iter()
                .filter(|l| l.target == target)
                .min_by_key(|l| (l.read_latency_ns, l.initiator));
            best.map_or(initiators[0], |l| l.initiator)
        };
        let sizes: Vec<u64> = machine.nodes.iter().map(|n| n.capacity.get() / MIB * MIB).collect();
        let physical = physical_layout(&sizes);
        let nodes: Vec<NodeShape> = (0u32..)
            .zip(owned.into_iter().zip(sizes).zip(physical))
            .map(|(id, ((cpus, bytes), physical))| {
                let initiator = if cpus.is_empty() { nearest(id) } else { id };
                NodeShape { id, bytes, cpus, initiator, physical }
            })
            .collect();
        let distances = distances(machine, &links);
        let (fast, slow) = ends(&nodes, &links).ok_or_else(|| {
            bad("it has memory on one node, and the lab needs two; add a [[node]] and a [[link]] \
                to it to a copy of the file"
                .into())
        })?;
        Ok(Shape { name: machine.name.clone(), vcpus, nodes, links, distances, fast, slow })
    }

    /// Memory of all nodes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.nodes.iter().map(|n| n.bytes).sum()
    }

    /// Figures of a node as its own initiator sees them.
    #[must_use]
    pub fn link_to(&self, target: u32) -> Option<&LinkShape> {
        let initiator = self.nodes.iter().find(|n| n.id == target)?.initiator;
        self.links.iter().find(|l| l.target == target && l.initiator == initiator)
    }
}

fn check_ids(machine: &Machine) -> std::result::Result<(), String> {
    for (want, node) in (0u32..).zip(&machine.nodes) {
        if u32::from(node.id.0) != want {
            return Err(format!(
                "its nodes must be numbered 0, 1, 2, ...; found node {} at place {want}; renumber \
                    them in a copy of the file",
                node.id.0
            ));
        }
        let least = if want == 0 { LEAST_OF_FIRST_NODE } else { LEAST_OF_NODE };
        if node.capacity < least {
            return Err(format!(
                "node {want} has {}, and the lab's kernel and calibration take {least} of it; \
                 raise its `capacity` in a copy of the file, or leave the node out",
                node.capacity
            ));
        }
    }
    Ok(())
}

/// vCPU numbers of each node: consecutive, as QEMU wants them.
fn deal_cpus(machine: &Machine, vcpus: Option<u32>) -> std::result::Result<Vec<Vec<u32>>, String> {
    let holders: Vec<usize> = machine
        .nodes
        .iter()
        .enumerate()
        .filter(|(_, n)| !n.cpus.is_empty())
        .map(|(i, _)| i)
        .collect();
    let all: u32 = machine.nodes.iter().map(|n| n.cpus.len() as u32).sum();
    let Some(&first) = holders.first() else { return Err("no node has CPUs".into()) };
    let wanted = vcpus.unwrap_or(all);
    if wanted == 0 || wanted > 64 {
        return Err(format!("{wanted} vCPUs; the lab can have 1 to 64"));
    }
    let mut counts = vec![0u32; machine.nodes.len()];
    if wanted == all {
        for (count, node) in counts.iter_mut().zip(&machine.nodes) {
            *count = node.cpus.len() as u32;
        }
    } else if (wanted as usize) < holders.len() {
        counts[first] = wanted;
    } else {
        for i in 0..wanted as usize {
            counts[holders[i % holders.len()]] += 1;
        }
    }
    let mut next = 0;
    Ok(counts
        .into_iter()
        .map(|count| {
            let mine = (next..next + count).collect();
            next += count;
            mine
        })
        .collect())
}

fn links(machine: &Machine, initiators: &[u32]) -> std::result::Result<Vec<LinkShape>, String> {
    let mut out = Vec::new();
    for &initiator in initiators {
        for node in &machine.nodes {
            let target = u32::from(node.id.0);
            let link = machine
                .links
                .iter()
                .find(|l| u32::from(l.initiator.0) == initiator && u32::from(l.target.0) == target)
                .ok_or_else(|| {
                    format!(
                        "no figures from node {initiator} to node {target}; measure them with \
                        terrace probe, or add a [[link]]"
                    )
                })?;
            let ns = |f: Option<Figure<Nanos>>| f.map(|f| f.value.get());
            let rate = |f: Option<Figure<BytesPerSec>>| f.map(|f| f.value.get());
            let missing = |what: &str| {
                format!(
                    "{what} from node {initiator} to node {target} is not known; measure it \
                    with terrace probe"
                )
            };
            let read_latency_ns = ns(link.read_latency).ok_or_else(|| missing("read latency"))?;
            let read_bandwidth =
                rate(link.read_bandwidth).ok_or_else(|| missing("read bandwidth"))?;
            out.push(LinkShape {
                initiator,
                target,
                read_latency_ns,
                write_latency_ns: ns(link.write_latency).unwrap_or(read_latency_ns),
                read_bandwidth,
                write_bandwidth: rate(link.write_bandwidth).unwrap_or(read_bandwidth),
            });
        }
    }
    Ok(out)
}

/// Where QEMU's q35 puts the nodes: one after the other from zero, around the hole below 4 GiB.
fn physical_layout(sizes: &[u64]) -> Vec<Vec<Range<u64>>> {
    let total: u64 = sizes.iter().sum();
    let cut = if total > LOW_MEMORY_LIMIT { LOW_MEMORY_CUT } else { total };
    let mut offset = 0;
    sizes
        .iter()
        .map(|&size| {
            let (start, end) = (offset, offset + size);
            offset = end;
            let mut parts = Vec::new();
            if start < cut {
                parts.push(start..end.min(cut));
            }
            if end > cut {
                let shift = HIGH_MEMORY_START - cut;
                parts.push(start.max(cut) + shift..end + shift);
            }
            parts
        })
        .collect()
}

fn distances(machine: &Machine, links: &[LinkShape]) -> Vec<Vec<u32>> {
    let count = machine.nodes.len() as u32;
    let far = |a: u32, b: u32| -> Option<u32> {
        let link = machine
            .links
            .iter()
            .find(|l| u32::from(l.initiator.0) == a && u32::from(l.target.0) == b);
        let given = link.and_then(|l| l.distance);
        let by_latency = || {
            let here =
                links.iter().find(|l| l.initiator == a && l.target == a)?.read_latency_ns.max(1);
            let there = links.iter().find(|l| l.initiator == a && l.target == b)?.read_latency_ns;
            Some((there * 10 / here) as u32)
        };
        given.or_else(by_latency)
    };
    (0..count)
        .map(|a| {
            (0..count)
                .map(|b| {
                    if a == b {
                        10
                    } else {
                        far(a, b).or_else(|| far(b, a)).unwrap_or(20).clamp(11, 254)
                    }
                })
                .collect()
        })
        .collect()
}

/// The best and the largest other node: best by read bandwidth, then by latency.
fn ends(nodes: &[NodeShape], links: &[LinkShape]) -> Option<(u32, u32)> {
    let figure = |id: u32| {
        let initiator = nodes.iter().find(|n| n.id == id)?.initiator;
        links.iter().find(|l| l.target == id && l.initiator == initiator)
    };
    let rank =
        |id: u32| figure(id).map_or((0, 0), |l| (l.read_bandwidth, u64::MAX - l.read_latency_ns));
    let fast = nodes.iter().map(|n| n.id).max_by_key(|&id| (rank(id), std::cmp::Reverse(id)))?;
    let slow = nodes
        .iter()
        .filter(|n| n.id != fast)
        .min_by_key(|n| (rank(n.id), std::cmp::Reverse(n.bytes)))?
        .id;
    Some((fast, slow))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lab(name: &str) -> Machine {
        terrace_machine::preset(name).unwrap()
    }

    #[test]
    fn lab_cxl() {
        let s = Shape::from_machine(&lab("lab-cxl"), None).unwrap();
        assert_eq!((s.vcpus, s.fast, s.slow), (2, 0, 1));
        assert_eq!(s.nodes[0].cpus, [0, 1]);
        assert_eq!(s.nodes[1].initiator, 0);
        assert_eq!(s.nodes[1].physical, vec![192 * MIB..1216 * MIB]);
        assert_eq!(s.link_to(1).unwrap().read_latency_ns, 300);
        assert_eq!(s.distances[0], [10, 20]);
    }

    #[test]
    fn the_fast_node_may_lack_cpus() {
        let s = Shape::from_machine(&lab("lab-hbm"), None).unwrap();
        assert!(s.nodes[s.fast as usize].cpus.is_empty());
        assert!(!s.nodes[s.slow as usize].cpus.is_empty());
        assert_eq!(s.nodes[s.fast as usize].initiator, s.slow);
    }

    #[test]
    fn cpus_on_both_nodes() {
        let s = Shape::from_machine(&lab("lab-numa"), Some(2)).unwrap();
        assert_eq!(s.nodes.iter().map(|n| n.cpus.len()).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(s.links.len(), 4);
        assert_eq!(s.nodes[1].initiator, 1);
        let one = Shape::from_machine(&lab("lab-numa"), Some(1)).unwrap();
        assert_eq!(one.vcpus, 1);
        assert_eq!(one.links.len(), 2);
    }

    #[test]
    fn memory_beyond_the_hole_moves_up() {
        let parts = physical_layout(&[1 << 30, 3 << 30]);
        assert_eq!(parts[0], vec![0..1 << 30]);
        assert_eq!(parts[1], [1 << 30..2 << 30, 4 << 30..6 << 30]);
        assert_eq!(physical_layout(&[1 << 30, 1 << 30])[1], vec![1 << 30..2 << 30]);
    }

    #[test]
    fn impossible_machines_are_refused() {
        assert!(Shape::from_machine(&lab("lab-cxl"), Some(0)).is_err());
        let mut m = lab("lab-cxl");
        m.nodes[0].cpus.clear();
        assert!(Shape::from_machine(&m, None).is_err());
        let mut m = lab("lab-cxl");
        m.nodes[1].capacity = terrace_types::Bytes::ZERO;
        assert!(Shape::from_machine(&m, None).is_err());
        let capacity = |node: usize, mib| {
            let mut m = lab("lab-cxl");
            m.nodes[node].capacity = Bytes::mib(mib);
            Shape::from_machine(&m, None).map(|_| ()).map_err(|e| e.to_string())
        };
        assert_eq!((capacity(0, 96), capacity(1, 40)), (Ok(()), Ok(())));
        let why = capacity(0, 32).unwrap_err();
        assert!(why.contains("node 0 has 32 MiB") && why.contains("96 MiB"), "{why}");
        assert!(capacity(1, 32).unwrap_err().contains("40 MiB"));
        let mut m = lab("lab-cxl");
        m.links.clear();
        assert!(Shape::from_machine(&m, None).is_err());
        let mut m = lab("lab-cxl");
        m.nodes.pop();
        assert!(Shape::from_machine(&m, None).is_err());
    }
}
