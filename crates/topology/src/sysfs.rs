//! A machine from a tree laid out as `/`. Nodes and links have files of their own.
//!
//! Sources: Linux' `Documentation/admin-guide/mm/numaperf.rst` (access classes; latency in ns,
//! bandwidth in MiB/s), `Documentation/ABI/stable/sysfs-devices-node`,
//! `Documentation/ABI/testing/sysfs-kernel-mm-memory-tiers`,
//! `Documentation/admin-guide/cputopology.rst`.

use crate::devices;
use crate::error::TopologyError;
use crate::links::links;
use crate::models::models;
use crate::nodes::{list_file, nodes};
use crate::tree::{malformed, FileTree, View, CPUS, STAMP, TIERS};
use std::collections::BTreeMap;
use terrace_machine::{
    add_known_figures, parse_list, CacheLevel, CoreModel, DaemonCosts, KernelCosts, KernelTier,
    Machine, MigrationCost, Surroundings, Survey, TlbSpec, MAX_CPU, MAX_NODE,
};
use terrace_types::{Bytes, CpuId, NodeId};

/// The machine that a tree describes. `name` stands in messages, and names the machine where the
/// tree has no host name.
pub fn survey(tree: &dyn FileTree, name: &str) -> Result<Survey, TopologyError> {
    let view = View::new(tree, name)?;
    let mut notes = Vec::new();
    let dax = devices::dax(&view)?;
    let kernel_tiers = kernel_tiers(&view)?;
    let (mut nodes, listed) = nodes(&view, &mut notes)?;
    devices::name_kinds(&mut nodes, &dax);
    let links = links(&view, &mut nodes, &listed, &mut notes)?;
    devices::guess_blocks(&mut nodes, &links, &mut notes);
    let mut cpus: Vec<CpuId> = nodes.iter().flat_map(|n| n.cpus.clone()).collect();
    cpus.sort_unstable();
    let unused = dax.iter().filter(|d| d.system_ram == Some(false));
    notes.extend(unused.map(|d| format!("{d} is not in use as memory, and in no tier.")));
    notes.push(
        "Core model, cache times and cost of moving pages are typical values: sysfs has none."
            .to_owned(),
    );
    let mut machine = Machine {
        name: machine_name(&view, name)?,
        page_size: page_size(&view)?,
        core: CoreModel::default(),
        tlb: TlbSpec::default(),
        caches: caches(&view, &cpus)?,
        nodes,
        links,
        migration: MigrationCost::default(),
        kernel: KernelCosts::default(),
        daemon: DaemonCosts::default(),
        loaded: Vec::new(),
        far: Vec::new(),
        notes,
    };
    add_known_figures(&mut machine, models(&view, &cpus)?);
    let surroundings = Surroundings { kernel_tiers, dax, cxl: devices::cxl(&view)? };
    machine.notes.extend(view.doubts());
    machine
        .check()
        .map_err(|problem| TopologyError::Inconsistent { path: name.to_owned(), problem })?;
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
    let folder = Some(view.base())
        .filter(|b| !b.is_empty() && b.len() <= 64 && !b.chars().any(char::is_control));
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

/// Caches of the first of these CPUs that shows any: one that is offline shows none.
fn caches(view: &View<'_>, cpus: &[CpuId]) -> Result<Vec<CacheLevel>, TopologyError> {
    for cpu in cpus {
        let caches = caches_of(view, *cpu)?;
        if !caches.is_empty() {
            return Ok(caches);
        }
    }
    Ok(Vec::new())
}

fn caches_of(view: &View<'_>, cpu: CpuId) -> Result<Vec<CacheLevel>, TopologyError> {
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
        let listed = list_file(view, &path, u32::from(MAX_NODE.0))?.unwrap_or_default();
        let nodes: Vec<NodeId> = listed.into_iter().map(|n| NodeId(n as u16)).collect();
        if !nodes.is_empty() {
            tiers.push(KernelTier { number, nodes });
        }
    }
    if tiers.is_empty() {
        return Ok(None);
    }
    Ok(Some(tiers))
}
