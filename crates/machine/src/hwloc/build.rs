//! Builds a machine model from the records of a parsed hwloc XML file.

use super::parse::{Indexing, Initiator, Object, Topology, Value, ATTRIBUTES, MAX_NODES};
use crate::costs::{DaemonCosts, KernelCosts};
use crate::known::{add_known_figures, KnownModels};
use crate::lists::list_numbers;
use crate::model::{
    CacheLevel, CoreModel, Energy, Evidence, Figure, Link, Machine, MemoryKind, MigrationCost,
    Node, TlbSpec,
};
use crate::survey::{CxlDevice, DaxDevice, Surroundings, Survey};
use crate::validate::{check_cache, MAX_BANDWIDTH, MAX_LATENCY, MAX_NODE};
use std::collections::{BTreeMap, BTreeSet};
use terrace_types::{Bytes, BytesPerSec, CpuId, Nanos, NodeId};

pub(super) fn build(mut topology: Topology, name: &str) -> Survey {
    let mut notes = Vec::new();
    leave_out_high_nodes(&mut topology, &mut notes);
    take_machine_as_node(&mut topology, &mut notes);
    let nodes = nodes(&topology, &mut notes);
    let links = links(&topology, &nodes, &mut notes);
    let surroundings = surroundings(&topology);
    notes.extend(
        surroundings
            .dax
            .iter()
            .filter(|d| d.system_ram != Some(true))
            .map(|d| format!("{d} is not in use as memory, and in no tier.")),
    );
    notes.extend(
        surroundings
            .cxl
            .iter()
            .map(|d| format!("{d} is listed; the XML does not say whether it backs a node.")),
    );
    notes.push(
        "Core model, cache times and cost of moving pages are typical values: hwloc has none."
            .to_owned(),
    );
    let mut machine = Machine {
        name: machine_name(&topology, name),
        page_size: Bytes(4096),
        core: CoreModel::default(),
        tlb: TlbSpec::default(),
        caches: caches(&topology),
        nodes,
        links,
        migration: MigrationCost::default(),
        kernel: KernelCosts::default(),
        daemon: DaemonCosts::default(),
        loaded: Vec::new(),
        far: Vec::new(),
        notes,
    };
    add_known_figures(&mut machine, models(&topology));
    Survey { machine, surroundings }
}

fn machine_name(topology: &Topology, name: &str) -> String {
    let usable = |n: &String| !n.is_empty() && n.len() <= 64 && !n.chars().any(char::is_control);
    topology.infos.get("HostName").filter(|n| usable(n)).cloned().unwrap_or_else(|| name.to_owned())
}

fn numa(topology: &Topology) -> impl Iterator<Item = &Object> {
    topology.numas.iter().map(|index| &topology.objects[*index])
}

/// Nodes whose numbers are too high to be managed are left out.
fn leave_out_high_nodes(topology: &mut Topology, notes: &mut Vec<String>) {
    let (kept, high): (Vec<usize>, Vec<usize>) =
        topology.numas.iter().partition(|index| id(&topology.objects[**index]) <= MAX_NODE);
    // If no other node is left, validation of the machine reports why it cannot be used.
    if !high.is_empty() && !kept.is_empty() {
        let nodes: Vec<NodeId> = high.iter().map(|index| id(&topology.objects[*index])).collect();
        notes.push(format!(
            "Nodes {} are left out: nodes up to {MAX_NODE} can be managed.",
            crate::rank::list(&nodes)
        ));
        topology.numas = kept;
    }
}

/// hwloc 1 lists no NUMA node on a machine with only one: the Machine object has its memory.
fn take_machine_as_node(topology: &mut Topology, notes: &mut Vec<String>) {
    let machine = topology.objects.iter().find(|o| o.kind == "Machine" && memory(o).is_some());
    if let (true, Some(machine)) = (topology.numas.is_empty(), machine) {
        let mut node = machine.clone();
        (node.kind, node.os_index, node.gp_index) = ("NUMANode".to_owned(), Some(0), None);
        notes.push("No NUMA node is listed: all memory is taken as node 0.".to_owned());
        topology.numas.push(topology.objects.len());
        topology.objects.push(node);
    }
}

/// Local memory of a node as stated, or else the sum over its page types.
fn memory(object: &Object) -> Option<u64> {
    object.local_memory.or(Some(object.pages).filter(|pages| *pages > 0))
}

/// Known machine models that the packages' CPU vendor, family and model numbers identify.
fn models(topology: &Topology) -> KnownModels {
    let packages = topology.objects.iter().filter(|o| o.kind == "Package").map(|o| &o.infos);
    let knights = |infos: &BTreeMap<String, String>| {
        let info = |key: &str| infos.get(key).map(String::as_str);
        info("CPUVendor") == Some("GenuineIntel")
            && info("CPUFamilyNumber") == Some("6")
            && matches!(info("CPUModelNumber"), Some("87" | "133"))
    };
    // Old hwloc versions give these info attributes for the whole machine, not per package.
    let knights_landing = packages.chain([&topology.infos]).any(knights);
    KnownModels { knights_landing, ..KnownModels::default() }
}

/// CPUs of the machine, or of all its parts where it lists none.
fn all_cpus(topology: &Topology) -> BTreeSet<u32> {
    let machine = topology.objects.iter().filter(|o| o.kind == "Machine");
    let whole: BTreeSet<u32> = machine.flat_map(|o| o.cpuset.iter().copied()).collect();
    if whole.is_empty() {
        return topology.objects.iter().flat_map(|o| o.cpuset.iter().copied()).collect();
    }
    whole
}

/// Handles CPUs that are local to no node. If no node has CPUs, they are assigned to the first node
/// with memory; otherwise a note lists them. hwloc omits nodes without memory, so the XML does not
/// say which node such CPUs belong to.
fn place_cpus_of_no_node(
    topology: &Topology,
    owner: &mut BTreeMap<u32, NodeId>,
    notes: &mut Vec<String>,
) {
    let mut rest = all_cpus(topology);
    rest.retain(|cpu| !owner.contains_key(cpu));
    if rest.is_empty() {
        return;
    }
    let list = list_numbers(&rest.iter().copied().collect::<Vec<u32>>());
    if !owner.is_empty() {
        notes.push(format!("CPUs {list} are of no node, and left out."));
        return;
    }
    let with_memory = numa(topology).filter(|o| memory(o).is_some_and(|bytes| bytes > 0));
    if let Some(node) = with_memory.map(id).min() {
        notes.push(format!("No node lists CPUs: CPUs {list} are given to node {node}."));
        owner.extend(rest.into_iter().map(|cpu| (cpu, node)));
    }
}

/// Node number, saturating.
fn id(object: &Object) -> NodeId {
    NodeId(object.os_index.and_then(|i| u16::try_from(i).ok()).unwrap_or(u16::MAX))
}

/// Nodes, sorted by id. hwloc lists the local CPUs of every node, memory-only nodes included, so a
/// CPU may be local to several. It is assigned to the node with the fewest local CPUs; among equals
/// DRAM or unknown memory comes before other kinds, then the lowest number.
fn nodes(topology: &Topology, notes: &mut Vec<String>) -> Vec<Node> {
    let mut order: Vec<&Object> = numa(topology).collect();
    order.sort_by_key(|o| {
        (o.cpuset.len(), kind(o) != MemoryKind::Unknown && kind(o) != MemoryKind::Dram, id(o))
    });
    let mut owner: BTreeMap<u32, NodeId> = BTreeMap::new();
    let mut shared: BTreeSet<NodeId> = BTreeSet::new();
    for object in order {
        for cpu in &object.cpuset {
            match owner.get(cpu) {
                None => {
                    owner.insert(*cpu, id(object));
                }
                Some(first) if *first != id(object) => {
                    shared.insert(*first);
                    shared.insert(id(object));
                }
                Some(_) => {}
            }
        }
    }
    if !shared.is_empty() {
        let nodes: Vec<NodeId> = shared.into_iter().collect();
        notes.push(format!(
            "hwloc names CPUs near several of nodes {}: each is given to the one it is nearest to.",
            crate::rank::list(&nodes)
        ));
    }
    place_cpus_of_no_node(topology, &mut owner, notes);
    let unstated: Vec<NodeId> = numa(topology).filter(|o| memory(o).is_none()).map(id).collect();
    if !unstated.is_empty() {
        notes.push(format!(
            "The memory of nodes {} is not stated: taken as none.",
            crate::rank::list(&unstated)
        ));
    }
    let mut nodes: Vec<Node> = numa(topology)
        .map(|object| {
            let id = id(object);
            let cpus: Vec<CpuId> =
                owner.iter().filter(|(_, n)| **n == id).map(|(cpu, _)| CpuId(*cpu)).collect();
            let has_cpus = !cpus.is_empty();
            Node {
                id,
                kind: match kind(object) {
                    MemoryKind::Unknown if has_cpus && memory(object) > Some(0) => MemoryKind::Dram,
                    kind => kind,
                },
                cpus,
                capacity: Bytes(memory(object).unwrap_or(0)),
                reserved: Bytes::ZERO,
                in_use: Bytes::ZERO,
                block: Bytes(64),
                package: package(topology, object),
                energy: Energy::default(),
            }
        })
        .collect();
    nodes.sort_by_key(|n| n.id);
    nodes
}

/// Memory kind from the subtype of an hwloc NUMA node (`doc/hwloc.doxy`, "Heterogeneous Memory")
/// and its info attributes.
fn kind(object: &Object) -> MemoryKind {
    let dax = object.infos.get("DAXType").map(String::as_str);
    match (object.subtype.as_str(), dax) {
        (subtype, _) if subtype.starts_with("CXL") => MemoryKind::Cxl,
        (_, _) if object.infos.contains_key("CXLDevice") => MemoryKind::Cxl,
        ("DRAM", _) => MemoryKind::Dram,
        ("HBM" | "MCDRAM", _) => MemoryKind::Hbm,
        ("NVM", _) | (_, Some("NVM")) => MemoryKind::Pmem,
        ("GPUMemory", _) => MemoryKind::Gpu,
        ("SPM", _) | (_, Some("SPM")) => MemoryKind::Dax,
        _ => MemoryKind::Unknown,
    }
}

/// The package whose cpuset contains all CPUs local to the node, if there is exactly one.
fn package(topology: &Topology, node: &Object) -> Option<u32> {
    let mut holding = topology.objects.iter().filter(|o| {
        o.kind == "Package" && !node.cpuset.is_empty() && within(&node.cpuset, &o.cpuset)
    });
    let first = holding.next()?;
    first.os_index.and_then(|i| u32::try_from(i).ok()).filter(|_| holding.next().is_none())
}

/// Whether every element of `inner` is in `outer`, which is sorted.
fn within(inner: &[u32], outer: &[u32]) -> bool {
    inner.iter().all(|cpu| outer.binary_search(cpu).is_ok())
}

fn links(topology: &Topology, nodes: &[Node], notes: &mut Vec<String>) -> Vec<Link> {
    let mut links: BTreeMap<(NodeId, NodeId), Link> = BTreeMap::new();
    add_distances(topology, nodes, &mut links);
    // Only hwloc's Linux backend reads these from firmware (HMAT); otherwise a user set them.
    let from_linux = topology.infos.get("Backend").is_some_and(|b| b.contains("Linux"));
    let evidence = if from_linux { Evidence::Hmat } else { Evidence::Config };
    let targets: BTreeMap<u64, NodeId> =
        numa(topology).filter_map(|o| Some((o.gp_index?, id(o)))).collect();
    let by_object: BTreeMap<u64, &Object> =
        topology.objects.iter().filter_map(|o| Some((o.gp_index?, o))).collect();
    let mut dropped = 0usize;
    for attribute in ATTRIBUTES {
        for node in nodes.iter().filter(|n| !n.cpus.is_empty()) {
            let cpus: Vec<u32> = node.cpus.iter().map(|c| c.0).collect();
            for (target, value) in best(topology, attribute, &cpus, &by_object) {
                let Some(target) = targets.get(&target) else {
                    continue;
                };
                if !nodes.iter().any(|n| n.id == *target && n.capacity > Bytes::ZERO) {
                    continue;
                }
                let link = entry(&mut links, node.id, *target);
                dropped += usize::from(!set(link, attribute, value, evidence));
            }
        }
    }
    if dropped > 0 {
        notes.push(format!(
            "{dropped} memory attributes were 0 or beyond reason, and are taken as not known."
        ));
    }
    links.into_values().collect()
}

fn entry(
    links: &mut BTreeMap<(NodeId, NodeId), Link>,
    initiator: NodeId,
    target: NodeId,
) -> &mut Link {
    links.entry((initiator, target)).or_insert(Link::unknown(initiator, target))
}

/// Values of one attribute for accesses from these CPUs, by target. A value applies if its
/// initiator's cpuset contains all the CPUs, as in hwloc's own look-up; of several, the one with
/// the fewest CPUs is taken.
fn best(
    topology: &Topology,
    attribute: &str,
    cpus: &[u32],
    by_object: &BTreeMap<u64, &Object>,
) -> BTreeMap<u64, u64> {
    let mut found: BTreeMap<u64, (usize, u64)> = BTreeMap::new();
    for value in topology.values.get(attribute).into_iter().flatten() {
        let Value { target, value, initiator, .. } = value;
        let from: &[u32] = match initiator {
            Initiator::None => continue,
            Initiator::Cpus(cpus) => cpus,
            // A device has no CPUs: its values do not apply to accesses from CPUs.
            Initiator::Object(gp) => match by_object.get(gp) {
                Some(object) if object.kind != "OSDev" => &object.cpuset,
                _ => continue,
            },
        };
        if !within(cpus, from) {
            continue;
        }
        let better = found.get(target).is_none_or(|(size, _)| from.len() < *size);
        if better {
            found.insert(*target, (from.len(), *value));
        }
    }
    found.into_iter().map(|(target, (_, value))| (target, value)).collect()
}

/// Sets a figure of the link; false if the value is 0 or above the maximum.
fn set(link: &mut Link, attribute: &str, value: u64, evidence: Evidence) -> bool {
    if attribute.ends_with("Latency") {
        let time = Nanos(value);
        if time == Nanos::ZERO || time > MAX_LATENCY {
            return false;
        }
        let figure = Some(Figure { value: time, evidence });
        if attribute != "WriteLatency" {
            link.read_latency = figure;
        }
        if attribute != "ReadLatency" {
            link.write_latency = figure;
        }
    } else {
        let rate = BytesPerSec(value.saturating_mul(1 << 20));
        if rate == BytesPerSec::ZERO || rate > MAX_BANDWIDTH {
            return false;
        }
        let figure = Some(Figure { value: rate, evidence });
        if attribute != "WriteBandwidth" {
            link.read_bandwidth = figure;
        }
        if attribute != "ReadBandwidth" {
            link.write_bandwidth = figure;
        }
    }
    true
}

fn add_distances(
    topology: &Topology,
    nodes: &[Node],
    links: &mut BTreeMap<(NodeId, NodeId), Link>,
) {
    let Some((indexing, indexes, values)) = &topology.distances else {
        return;
    };
    // A distance matrix of another size is damaged, too large, or not about NUMA nodes.
    if *indexing == Indexing::Order && indexes.len() != numa(topology).count() {
        return;
    }
    if indexes.is_empty()
        || indexes.len() > MAX_NODES
        || values.len() != indexes.len() * indexes.len()
    {
        return;
    }
    let ids: Vec<Option<NodeId>> = indexes
        .iter()
        .map(|index| {
            let of = |(place, o): &(usize, &Object)| match indexing {
                Indexing::Os => o.os_index == Some(*index),
                Indexing::Gp => o.gp_index == Some(*index),
                Indexing::Order => *place as u64 == *index,
            };
            numa(topology).enumerate().find(of).map(|(_, o)| id(o))
        })
        .collect();
    let node = |id: NodeId| nodes.iter().find(|n| n.id == id);
    for (from, row) in ids.iter().zip(values.chunks(ids.len())) {
        for (to, value) in ids.iter().zip(row) {
            let (Some(from), Some(to)) = (*from, *to) else {
                continue;
            };
            let seen = node(from).is_some_and(|n| !n.cpus.is_empty())
                && node(to).is_some_and(|n| n.capacity > Bytes::ZERO);
            if seen && (1..=1_000_000).contains(value) {
                entry(links, from, to).distance = Some(*value as u32);
            }
        }
    }
}

fn caches(topology: &Topology) -> Vec<CacheLevel> {
    let packages = topology.objects.iter().filter(|o| o.kind == "Package").count().max(1);
    // Level 0 is a cache of instructions in version 1.
    let data =
        |o: &&Object| o.kind.ends_with("Cache") && !o.kind.ends_with("iCache") && o.cache[0] > 0;
    let mut levels: BTreeMap<u64, (usize, &Object)> = BTreeMap::new();
    for object in topology.objects.iter().filter(data) {
        levels.entry(object.cache[0]).or_insert((0, object)).0 += 1;
    }
    levels
        .into_values()
        .filter_map(|(count, object)| {
            let [depth, size, line, ways] = object.cache;
            let level = u8::try_from(depth).ok()?;
            CacheLevel::from_parts(level, Bytes(size), Bytes(line), ways, count <= packages)
        })
        .collect()
}

impl CacheLevel {
    /// A cache level as an operating system describes it: without hit times, and with 0 ways if
    /// fully associative or not reported. `None` if the values do not describe a valid cache.
    #[must_use]
    pub fn from_parts(
        level: u8,
        size: Bytes,
        line: Bytes,
        ways: u64,
        shared: bool,
    ) -> Option<Self> {
        let ways = if ways == 0 { 16 } else { u32::try_from(ways).ok()? };
        // Typical extra time of a hit: none at level 1, 4 ns at level 2, about four times that
        // beyond.
        let hit = match level {
            0 | 1 => Nanos(0),
            2 => Nanos(4),
            _ => Nanos(15),
        };
        let cache = Self { level, size, line, ways, shared, hit };
        check_cache(&cache).is_ok().then_some(cache)
    }
}

fn surroundings(topology: &Topology) -> Surroundings {
    let mut out = Surroundings::default();
    let in_use: BTreeSet<&str> =
        numa(topology).filter_map(|o| o.infos.get("DAXDevice")).map(String::as_str).collect();
    for device in topology.objects.iter().filter(|o| o.kind == "OSDev") {
        let size = |key: &str| device.infos.get(key).and_then(|t| kibibytes(t));
        if let Some(nature) = device.infos.get("DAXType") {
            out.dax.push(DaxDevice {
                name: device.name.clone(),
                size: size("Size"),
                target_node: None,
                // hwloc lists a DAX device only while it is not system RAM; a node backed by one
                // names it (`DAXDevice`).
                system_ram: Some(in_use.contains(device.name.as_str())),
                nature: Some(nature.clone()),
            });
        } else if device.subtype == "CXLMem" {
            out.cxl.push(CxlDevice {
                name: device.name.clone(),
                ram: size("CXLRAMSize").unwrap_or_default(),
                pmem: size("CXLPMEMSize").unwrap_or_default(),
            });
        }
    }
    out.dax.sort_by(|a, b| a.name.cmp(&b.name));
    out.cxl.sort_by(|a, b| a.name.cmp(&b.name));
    out
}

/// A size in an hwloc info attribute: `262144KiB`; in older versions a bare number of KiB.
fn kibibytes(text: &str) -> Option<Bytes> {
    let number = text.trim().trim_end_matches("KiB").trim_end();
    number.parse::<u64>().ok()?.checked_mul(1024).map(Bytes)
}
