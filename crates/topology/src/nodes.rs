//! Nodes: their CPUs and memory. A fact that cannot be believed is left out with a note; no such
//! fact refuses the machine.

use crate::error::TopologyError;
use crate::tree::{malformed, View};
use crate::tree::{CPUS, NODES};
use std::collections::{BTreeMap, BTreeSet};
use terrace_machine::{
    list_numbers, parse_list, parse_mask, Energy, MemoryKind, Node, MAX_CAPACITY, MAX_CPU, MAX_NODE,
};
use terrace_types::{Bytes, CpuId, NodeId};

/// Highest number of a node that is read. Kernels have up to 1024 nodes (`NODES_SHIFT`,
/// `arch/x86/Kconfig`).
pub(crate) const MAX_LISTED: u32 = u16::MAX as u32;
/// Highest number in a list of CPUs that is read; those above [`MAX_CPU`] are left out.
const MAX_IN_LIST: u32 = u16::MAX as u32;

/// The nodes that can be described, and the numbers of all folders of nodes.
pub(crate) fn nodes(
    view: &View<'_>,
    notes: &mut Vec<String>,
) -> Result<(Vec<Node>, Vec<u32>), TopologyError> {
    let listed = view.numbered(NODES, "node", MAX_LISTED)?;
    let online = list_file(view, &format!("{NODES}/online"), MAX_LISTED)?.unwrap_or_default();
    // A list that names none of them is not about them.
    let any_online = listed.iter().any(|id| online.contains(id));
    let (mut nodes, mut offline, mut above) = (Vec::new(), Vec::new(), Vec::new());
    for id in &listed {
        if any_online && !online.contains(id) {
            offline.push(*id);
        } else if *id > u32::from(MAX_NODE.0) {
            above.push(*id);
        } else {
            nodes.push(node(view, NodeId(*id as u16))?);
        }
    }
    if !offline.is_empty() {
        view.remark(format!("Nodes {} are offline, and left out.", list_numbers(&offline)));
    }
    if !above.is_empty() {
        view.remark(format!(
            "Nodes {} are left out: nodes up to {MAX_NODE} can be managed.",
            list_numbers(&above)
        ));
    }
    if nodes.is_empty() {
        let why = if listed.is_empty() { "knows no NUMA nodes" } else { "names no node to manage" };
        notes.push(format!("This kernel {why}: all memory is taken as node 0."));
        return Ok((vec![whole(view)?], listed));
    }
    give_each_cpu_one_node(view, &mut nodes);
    place_cpus_of_no_node(view, &mut nodes)?;
    place_memory_of_no_node(view, &mut nodes)?;
    Ok((nodes, listed))
}

fn node(view: &View<'_>, id: NodeId) -> Result<Node, TopologyError> {
    let folder = format!("{NODES}/node{id}");
    let cpus = cpus(view, &folder)?;
    let meminfo = format!("{folder}/meminfo");
    let capacity = match view.text(&meminfo)? {
        None => {
            view.remark(format!("Node {id} has no meminfo: taken as without memory."));
            Bytes::ZERO
        }
        Some(text) => mem_total(&text).unwrap_or_else(|| {
            view.doubt(&meminfo, &text, "a line `Node N MemTotal: NUMBER kB`");
            Bytes::ZERO
        }),
    };
    let kind = if cpus.is_empty() || capacity == Bytes::ZERO {
        MemoryKind::Unknown
    } else {
        MemoryKind::Dram
    };
    Ok(described(id, kind, capacity, package(view, &cpus)?, cpus))
}

fn described(
    id: NodeId,
    kind: MemoryKind,
    capacity: Bytes,
    package: Option<u32>,
    cpus: Vec<CpuId>,
) -> Node {
    Node {
        id,
        kind,
        cpus,
        capacity,
        reserved: Bytes::ZERO,
        in_use: Bytes::ZERO,
        block: Bytes(64),
        package,
        energy: Energy::default(),
    }
}

/// One node of everything, for kernels built without NUMA.
fn whole(view: &View<'_>) -> Result<Node, TopologyError> {
    let cpus = online_cpus(view)?;
    let text = view.text("proc/meminfo")?.unwrap_or_default();
    let capacity = mem_total(&text)
        .ok_or_else(|| malformed("proc/meminfo", &text, "a line `MemTotal: NUMBER kB`"))?;
    Ok(described(NodeId(0), MemoryKind::Dram, capacity, package(view, &cpus)?, cpus))
}

/// Numbers of a list such as `0-3,8`, none above `max`; `None` where there is no such file, or,
/// with a doubt, no list in it.
pub(crate) fn list_file(
    view: &View<'_>,
    path: &str,
    max: u32,
) -> Result<Option<Vec<u32>>, TopologyError> {
    let Some(text) = view.text(path)? else {
        return Ok(None);
    };
    let Ok(mut numbers) = parse_list(&text, MAX_IN_LIST) else {
        view.doubt(path, &text, "a list such as 0-3,8");
        return Ok(None);
    };
    let before = numbers.len();
    numbers.retain(|number| *number <= max);
    if numbers.len() < before {
        view.remark(format!("Numbers above {max} in {path} are left out."));
    }
    Ok(Some(numbers))
}

fn cpus(view: &View<'_>, folder: &str) -> Result<Vec<CpuId>, TopologyError> {
    if let Some(cpus) = list_file(view, &format!("{folder}/cpulist"), MAX_CPU.0)? {
        return Ok(cpus.into_iter().map(CpuId).collect());
    }
    // Older gathered trees have the mask alone.
    let path = format!("{folder}/cpumap");
    let Some(text) = view.text(&path)? else {
        return Ok(Vec::new());
    };
    match parse_mask(&text, MAX_CPU.0) {
        Ok(cpus) => Ok(cpus.into_iter().map(CpuId).collect()),
        Err(_) => {
            view.doubt(&path, &text, "a mask of CPUs such as 0000000f");
            Ok(Vec::new())
        }
    }
}

/// CPUs that are online, as far as the machine tells; all CPUs that have a folder otherwise.
fn online_cpus(view: &View<'_>) -> Result<Vec<CpuId>, TopologyError> {
    let online = list_file(view, &format!("{CPUS}/online"), MAX_CPU.0)?.unwrap_or_default();
    let cpus = if online.is_empty() { view.numbered(CPUS, "cpu", MAX_CPU.0)? } else { online };
    Ok(cpus.into_iter().map(CpuId).collect())
}

/// A CPU that several nodes list stays with the lowest: with `numa=fake` each part of a node lists
/// all the node's CPUs (`arch/x86/mm/numa_emulation.c`, `numa_add_cpu`).
fn give_each_cpu_one_node(view: &View<'_>, nodes: &mut [Node]) {
    let mut owners: BTreeMap<CpuId, NodeId> = BTreeMap::new();
    let mut shared: BTreeSet<u32> = BTreeSet::new();
    for node in nodes.iter_mut() {
        node.cpus.retain(|cpu| {
            let first = *owners.entry(*cpu).or_insert(node.id);
            if first != node.id {
                shared.insert(cpu.0);
            }
            first == node.id
        });
    }
    if !shared.is_empty() {
        let shared: Vec<u32> = shared.into_iter().collect();
        view.remark(format!(
            "CPUs {} are listed by several nodes: each is given to the lowest.",
            list_numbers(&shared)
        ));
    }
}

/// CPUs that are online and of no node are left out, unless there are no others.
fn place_cpus_of_no_node(view: &View<'_>, nodes: &mut [Node]) -> Result<(), TopologyError> {
    let placed: BTreeSet<CpuId> = nodes.iter().flat_map(|n| n.cpus.iter().copied()).collect();
    let mut rest = online_cpus(view)?;
    rest.retain(|cpu| !placed.contains(cpu));
    let Some(first) = rest.first().copied() else {
        return Ok(());
    };
    let numbers: Vec<u32> = rest.iter().map(|cpu| cpu.0).collect();
    let numbers = list_numbers(&numbers);
    if !placed.is_empty() {
        // Kernels list offline CPUs as folders, and each online one with its node.
        if list_file(view, &format!("{CPUS}/online"), MAX_CPU.0)?
            .is_some_and(|online| online.contains(&first.0))
        {
            view.remark(format!("CPUs {numbers} are of no node, and left out."));
        }
        return Ok(());
    }
    let best = nodes.iter().position(|n| n.capacity > Bytes::ZERO).unwrap_or(0);
    if let Some(node) = nodes.get_mut(best) {
        view.remark(format!("No node lists CPUs: CPUs {numbers} are given to node {}.", node.id));
        node.package = package(view, &rest)?;
        node.cpus = rest;
        node.kind = MemoryKind::Dram;
    }
    Ok(())
}

/// Where no node states its memory, all memory is taken as that of the first node with CPUs.
fn place_memory_of_no_node(view: &View<'_>, nodes: &mut [Node]) -> Result<(), TopologyError> {
    if nodes.iter().any(|n| n.capacity > Bytes::ZERO) {
        return Ok(());
    }
    let Some(total) = view.text("proc/meminfo")?.as_deref().and_then(mem_total) else {
        return Ok(());
    };
    let best = nodes.iter().position(|n| !n.cpus.is_empty()).unwrap_or(0);
    if let Some(node) = nodes.get_mut(best) {
        view.remark(format!("No node states its memory: all is taken as node {}'s.", node.id));
        node.capacity = total;
        node.kind = MemoryKind::Dram;
    }
    Ok(())
}

/// `MemTotal` of a node's or the machine's meminfo, in units of 1024 bytes whatever `kB` suggests;
/// `None` where there is none or it is beyond reason.
fn mem_total(text: &str) -> Option<Bytes> {
    let line = text.lines().find(|l| l.contains("MemTotal:"))?;
    let number = line.split("MemTotal:").nth(1)?.trim().strip_suffix("kB")?.trim();
    let bytes = number.parse::<u64>().ok()?.checked_mul(1024).map(Bytes)?;
    (bytes <= MAX_CAPACITY).then_some(bytes)
}

/// The one package of these CPUs. A CPU that is offline has no `topology`.
fn package(view: &View<'_>, cpus: &[CpuId]) -> Result<Option<u32>, TopologyError> {
    let mut found = None;
    for cpu in cpus {
        let path = format!("{CPUS}/cpu{cpu}/topology/physical_package_id");
        let Some(number) = view.number(&path)? else {
            continue;
        };
        // -1 where the architecture does not tell.
        let Ok(id) = u32::try_from(number) else {
            return Ok(None);
        };
        if found.is_some_and(|f| f != id) {
            return Ok(None);
        }
        found = Some(id);
    }
    Ok(found)
}
