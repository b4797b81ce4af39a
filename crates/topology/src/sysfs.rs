//! Nodes, links and caches from a tree laid out as `/`.
//!
//! Sources: Linux' `Documentation/admin-guide/mm/numaperf.rst` (access classes; latency in ns,
//! bandwidth in MiB/s), `Documentation/ABI/stable/sysfs-devices-node`,
//! `Documentation/ABI/testing/sysfs-kernel-mm-memory-tiers`,
//! `Documentation/admin-guide/cputopology.rst`.

use crate::devices;
use crate::error::TopologyError;
use crate::tree::{malformed, Tree, View};
use std::collections::BTreeMap;
use terrace_machine::{
    parse_list, parse_mask, CacheLevel, CoreModel, Energy, Evidence, Figure, KernelTier, Kind,
    Link, Machine, MigrationCost, Node, Surroundings, Survey, Tlb, MAX_BANDWIDTH, MAX_CPU,
    MAX_LATENCY, MAX_NODE,
};
use terrace_types::{Bytes, BytesPerSec, CpuId, Nanos, NodeId};

pub(crate) const NODES: &str = "sys/devices/system/node";
pub(crate) const CPUS: &str = "sys/devices/system/cpu";
pub(crate) const TIERS: &str = "sys/devices/virtual/memory_tiering";
/// Written by [`crate::gather`]: what sysfs does not say.
pub(crate) const STAMP: &str = "terrace-gather";

/// The machine that a tree describes. `name` stands in messages, and names the machine where the
/// tree has no host name.
pub fn survey(tree: &dyn Tree, name: &str) -> Result<Survey, TopologyError> {
    let view = View::new(tree, name)?;
    let mut notes = Vec::new();
    let dax = devices::dax(&view)?;
    let kernel_tiers = kernel_tiers(&view)?;
    let mut nodes = nodes(&view, &mut notes)?;
    devices::name_kinds(&mut nodes, &dax);
    let links = links(&view, &mut nodes, &mut notes)?;
    devices::guess_blocks(&mut nodes, &links, &mut notes);
    let cpus: Vec<CpuId> = nodes.iter().flat_map(|n| n.cpus.clone()).collect();
    let unused = dax.iter().filter(|d| d.system_ram == Some(false));
    notes.extend(unused.map(|d| format!("{d} is not in use as memory, and in no tier.")));
    notes.push(
        "Core model, cache times and cost of moving pages are typical values: sysfs has none."
            .to_owned(),
    );
    let machine = Machine {
        name: machine_name(&view, name)?,
        page_size: page_size(&view)?,
        core: CoreModel::default(),
        tlb: Tlb::default(),
        caches: caches(&view, cpus.iter().min().copied())?,
        nodes,
        links,
        migration: MigrationCost::default(),
        far: Vec::new(),
        notes,
    };
    machine
        .check()
        .map_err(|problem| TopologyError::Inconsistent { path: name.to_owned(), problem })?;
    let surroundings = Surroundings { kernel_tiers, dax, cxl: devices::cxl(&view)? };
    Ok(Survey { machine, surroundings })
}

fn machine_name(view: &View<'_>, name: &str) -> Result<String, TopologyError> {
    let host = view.text("proc/sys/kernel/hostname")?.unwrap_or_default();
    let host = host.trim();
    // What a kernel says before anybody named the machine, and what distributions write there, name
    // none.
    let nameless = matches!(host, "" | "(none)" | "localhost" | "localhost.localdomain");
    let usable = !nameless && host.len() <= 64 && !host.chars().any(char::is_control);
    // An archive made by others often holds one folder, named after the machine.
    let folder = Some(view.base()).filter(|b| !b.is_empty() && b.len() <= 64);
    Ok(if usable { host } else { folder.unwrap_or(name) }.to_owned())
}

fn page_size(view: &View<'_>) -> Result<Bytes, TopologyError> {
    let Some(stamp) = view.text(STAMP)? else {
        return Ok(Bytes(4096));
    };
    let size = stamp.lines().find_map(|l| l.strip_prefix("page_size_bytes "));
    match size.map(str::parse) {
        None => Ok(Bytes(4096)),
        Some(Ok(bytes)) => Ok(Bytes(bytes)),
        Some(Err(_)) => Err(malformed(STAMP, &stamp, "`page_size_bytes NUMBER`")),
    }
}

fn nodes(view: &View<'_>, notes: &mut Vec<String>) -> Result<Vec<Node>, TopologyError> {
    let ids = view.numbered(NODES, "node", u32::from(MAX_NODE.0))?;
    if ids.is_empty() {
        notes.push("This kernel knows no NUMA nodes: all memory is taken as node 0.".to_owned());
        return Ok(vec![whole(view)?]);
    }
    let mut nodes = Vec::new();
    for id in ids {
        let folder = format!("{NODES}/node{id}");
        let cpus = cpus(view, &folder)?;
        let meminfo = format!("{folder}/meminfo");
        let capacity = match view.text(&meminfo)? {
            None => {
                notes.push(format!("Node {id} has no meminfo: taken as without memory."));
                Bytes::ZERO
            }
            Some(text) => mem_total(&text)
                .ok_or_else(|| malformed(&meminfo, &text, "a line `Node N MemTotal: NUMBER kB`"))?,
        };
        let kind =
            if cpus.is_empty() || capacity == Bytes::ZERO { Kind::Unknown } else { Kind::Dram };
        let package = package(view, &cpus)?;
        nodes.push(Node {
            id: NodeId(id as u16),
            kind,
            cpus,
            capacity,
            reserved: Bytes::ZERO,
            in_use: Bytes::ZERO,
            block: Bytes(64),
            package,
            energy: Energy::default(),
        });
    }
    Ok(nodes)
}

/// One node of everything, for kernels built without NUMA.
fn whole(view: &View<'_>) -> Result<Node, TopologyError> {
    let online = format!("{CPUS}/online");
    let text = view.text(&online)?.unwrap_or_default();
    let cpus = parse_list(&text, MAX_CPU.0)
        .map_err(|_| malformed(&online, &text, "a list of CPUs such as 0-3"))?;
    let cpus: Vec<CpuId> = cpus.into_iter().map(CpuId).collect();
    let text = view.text("proc/meminfo")?.unwrap_or_default();
    let capacity = mem_total(&text)
        .ok_or_else(|| malformed("proc/meminfo", &text, "a line `MemTotal: NUMBER kB`"))?;
    let package = package(view, &cpus)?;
    Ok(Node {
        id: NodeId(0),
        kind: Kind::Dram,
        cpus,
        capacity,
        reserved: Bytes::ZERO,
        in_use: Bytes::ZERO,
        block: Bytes(64),
        package,
        energy: Energy::default(),
    })
}

fn cpus(view: &View<'_>, folder: &str) -> Result<Vec<CpuId>, TopologyError> {
    let path = format!("{folder}/cpulist");
    if let Some(text) = view.text(&path)? {
        let cpus = parse_list(&text, MAX_CPU.0)
            .map_err(|_| malformed(&path, &text, "a list of CPUs such as 0-3"))?;
        return Ok(cpus.into_iter().map(CpuId).collect());
    }
    // Older gathered trees have the mask alone.
    let path = format!("{folder}/cpumap");
    let Some(text) = view.text(&path)? else {
        return Ok(Vec::new());
    };
    let cpus = parse_mask(&text, MAX_CPU.0)
        .map_err(|_| malformed(&path, &text, "a mask of CPUs such as 0000000f"))?;
    Ok(cpus.into_iter().map(CpuId).collect())
}

/// `MemTotal` of a node's or the machine's meminfo, in units of 1024 bytes whatever `kB` suggests.
fn mem_total(text: &str) -> Option<Bytes> {
    let line = text.lines().find(|l| l.contains("MemTotal:"))?;
    let number = line.split("MemTotal:").nth(1)?.trim().strip_suffix("kB")?.trim();
    number.parse::<u64>().ok()?.checked_mul(1024).map(Bytes)
}

/// The one package of these CPUs.
fn package(view: &View<'_>, cpus: &[CpuId]) -> Result<Option<u32>, TopologyError> {
    let mut found = None;
    for cpu in cpus {
        let path = format!("{CPUS}/cpu{cpu}/topology/physical_package_id");
        // -1 where the architecture does not tell.
        let Some(id) = view.number(&path)?.and_then(|id| u32::try_from(id).ok()) else {
            return Ok(None);
        };
        if found.is_some_and(|f| f != id) {
            return Ok(None);
        }
        found = Some(id);
    }
    Ok(found)
}

type Links = BTreeMap<(NodeId, NodeId), Link>;

fn entry(links: &mut Links, initiator: NodeId, target: NodeId) -> &mut Link {
    links.entry((initiator, target)).or_insert(Link::unknown(initiator, target))
}

fn links(
    view: &View<'_>,
    nodes: &mut [Node],
    notes: &mut Vec<String>,
) -> Result<Vec<Link>, TopologyError> {
    let mut links = Links::new();
    distances(view, nodes, &mut links)?;
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
            let listed = view.numbered(&folder, "node", u32::from(MAX_NODE.0))?;
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
fn distances(view: &View<'_>, nodes: &[Node], links: &mut Links) -> Result<(), TopologyError> {
    for from in nodes.iter().filter(|n| !n.cpus.is_empty()) {
        let path = format!("{NODES}/node{}/distance", from.id);
        let Some(text) = view.text(&path)? else {
            continue;
        };
        let expected = "one number from 1 to 1000000 for each node";
        let row = text
            .split_whitespace()
            .map(|word| word.parse::<u32>().ok().filter(|d| (1..=1_000_000).contains(d)))
            .collect::<Option<Vec<u32>>>()
            .filter(|row| row.len() == nodes.len())
            .ok_or_else(|| malformed(&path, &text, expected))?;
        for (to, distance) in nodes.iter().zip(row) {
            if to.capacity > Bytes::ZERO {
                entry(links, from.id, to.id).distance = Some(distance);
            }
        }
    }
    Ok(())
}

fn caches(view: &View<'_>, cpu: Option<CpuId>) -> Result<Vec<CacheLevel>, TopologyError> {
    let Some(cpu) = cpu else {
        return Ok(Vec::new());
    };
    let folder = format!("{CPUS}/cpu{cpu}");
    let siblings = format!("{folder}/topology/package_cpus_list");
    let package = view.text(&siblings)?.map(|t| parse_list(&t, MAX_CPU.0).unwrap_or_default());
    let mut caches = BTreeMap::new();
    for index in view.numbered(&format!("{folder}/cache"), "index", 63)? {
        let folder = format!("{folder}/cache/index{index}");
        let text = |name: &str| view.text(&format!("{folder}/{name}"));
        let number = |name: &str| view.number(&format!("{folder}/{name}"));
        if text("type")?.is_some_and(|t| t.trim() == "Instruction") {
            continue;
        }
        let level = number("level")?.and_then(|l| u8::try_from(l).ok());
        let size = text("size")?.as_deref().and_then(cache_size);
        let (Some(level), Some(size)) = (level, size) else {
            continue;
        };
        let line = number("coherency_line_size")?.and_then(|l| u64::try_from(l).ok()).unwrap_or(64);
        let ways =
            number("ways_of_associativity")?.and_then(|w| u64::try_from(w).ok()).unwrap_or(0);
        let users = text("shared_cpu_list")?.and_then(|t| parse_list(&t, MAX_CPU.0).ok());
        let shared = match (&users, &package) {
            (Some(users), Some(package)) => users.len() > 1 && users.len() >= package.len(),
            _ => level > 2,
        };
        if let Some(cache) = CacheLevel::from_parts(level, size, Bytes(line), ways, shared) {
            caches.entry(level).or_insert(cache);
        }
    }
    Ok(caches.into_values().collect())
}

/// `32K`, `1024K`, `32M`.
fn cache_size(text: &str) -> Option<Bytes> {
    let text = text.trim();
    let (digits, scale) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(scale).map(Bytes)
}

fn kernel_tiers(view: &View<'_>) -> Result<Option<Vec<KernelTier>>, TopologyError> {
    // A kernel that has tiers has the folder, and lists at least one tier while any node has
    // memory.
    let mut tiers = Vec::new();
    for number in view.numbered(TIERS, "memory_tier", u32::from(u16::MAX))? {
        let path = format!("{TIERS}/memory_tier{number}/nodelist");
        let Some(text) = view.text(&path)? else {
            continue;
        };
        let nodes = parse_list(&text, u32::from(MAX_NODE.0))
            .map_err(|_| malformed(&path, &text, "a list of nodes such as 0-1"))?;
        let nodes: Vec<NodeId> = nodes.into_iter().map(|n| NodeId(n as u16)).collect();
        if !nodes.is_empty() {
            tiers.push(KernelTier { number, nodes });
        }
    }
    if tiers.is_empty() {
        return Ok(None);
    }
    Ok(Some(tiers))
}
