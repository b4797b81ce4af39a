//! TOML text to machine.

use super::MAX_FILE;
use crate::costs::{DaemonCosts, KernelCosts};
use crate::error::{MachineError, TextPosition};
use crate::loaded::{LoadLatencyCurve, LOADED_KEYS, MAX_CURVES};
use crate::model::{
    CacheLevel, CoreModel, Energy, Evidence, Link, Machine, MemoryKind, MigrationCost, Node,
    TlbSpec,
};
use crate::section::{Section, Source};
use crate::store::FarStore;
use crate::validate::MAX_NODE;
use terrace_types::{Bytes, BytesPerSec, CpuId, Nanos, NodeId};
use toml::de::DeTable;

/// As many as can be managed.
const MAX_NODES: usize = MAX_NODE.0 as usize + 1;

const TOP: [&str; 14] = [
    "name",
    "page_size",
    "evidence",
    "notes",
    "core",
    "tlb",
    "migration",
    "kernel",
    "daemon",
    "cache",
    "node",
    "link",
    "loaded",
    "far",
];
const CORE: [&str; 4] =
    ["ns_per_instruction", "outstanding_misses", "tlb_flush_us", "tlb_flush_ns"];
const TLB: [&str; 8] = [
    "entries",
    "ways",
    "large_entries",
    "large_ways",
    "l2_entries",
    "l2_ways",
    "l2_hit_ns",
    "walk_ns",
];
const MIGRATION: [&str; 5] = ["call_us", "call_ns", "page_us", "page_ns", "serial_percent"];
const CACHE: [&str; 6] = ["level", "size", "line", "ways", "shared", "hit_ns"];
const NODE: [&str; 11] = [
    "id",
    "kind",
    "cpus",
    "capacity",
    "reserved",
    "in_use",
    "block",
    "package",
    "read_pj_per_byte",
    "write_pj_per_byte",
    "static_mw",
];
const LINK: [&str; 10] = [
    "initiator",
    "target",
    "latency_ns",
    "read_latency_ns",
    "write_latency_ns",
    "bandwidth",
    "read_bandwidth",
    "write_bandwidth",
    "distance",
    "evidence",
];

const FAR: [&str; 15] = [
    "name",
    "fault_us",
    "fault_ns",
    "page_us",
    "page_ns",
    "read_latency_us",
    "read_latency_ns",
    "write_latency_us",
    "write_latency_ns",
    "operation_us",
    "operation_ns",
    "read_bandwidth",
    "write_bandwidth",
    "on_cpu",
    "evidence",
];
const MAX_STORES: usize = 16;

impl Machine {
    /// Reads a machine file. `name` stands in messages, and names the machine where the file does
    /// not.
    pub fn from_toml(text: &str, name: &str) -> Result<Self, MachineError> {
        if text.len() > MAX_FILE {
            return Err(MachineError::TooLarge {
                what: "machine file",
                file: name.to_owned(),
                bytes: text.len(),
                limit: MAX_FILE,
            });
        }
        let source = Source::new(name, text);
        let document = DeTable::parse(text).map_err(|error| MachineError::Syntax {
            place: error.span().map_or_else(
                || TextPosition { file: name.to_owned(), line: 0 },
                |s| source.place(s.start),
            ),
            why: error.message().lines().collect::<Vec<_>>().join("; "),
        })?;
        let machine = machine(&Section::new(&source, document.get_ref(), "", 0, &TOP)?, name)?;
        machine
            .check()
            .map_err(|problem| MachineError::Inconsistent { name: name.to_owned(), problem })?;
        Ok(machine)
    }
}

fn machine(top: &Section<'_, '_>, name: &str) -> Result<Machine, MachineError> {
    let evidence = top.evidence("evidence")?.unwrap_or(Evidence::Config);
    let mut notes = top.strings("notes")?;
    let mut note = |text: &str| {
        if !notes.iter().any(|n| n == text) {
            notes.push(text.to_owned());
        }
    };
    let core = core(top, &mut note)?;
    let tlb = tlb(top)?;
    let migration = migration(top, &mut note)?;
    let kernel = match top.section("kernel", KernelCosts::KEYS)? {
        Some(section) => KernelCosts::read(&section)?,
        None => KernelCosts::default(),
    };
    let daemon = match top.section("daemon", DaemonCosts::KEYS)? {
        Some(section) => DaemonCosts::read(&section)?,
        None => DaemonCosts::default(),
    };
    let mut caches =
        top.sections("cache", &CACHE, 8)?.iter().map(cache).collect::<Result<Vec<_>, _>>()?;
    let mut nodes =
        top.sections("node", &NODE, MAX_NODES)?.iter().map(node).collect::<Result<Vec<_>, _>>()?;
    let links = top.sections("link", &LINK, MAX_NODES * MAX_NODES)?;
    let mut links =
        links.iter().map(|section| link(section, evidence)).collect::<Result<Vec<_>, _>>()?;
    let loaded = top.sections("loaded", &LOADED_KEYS, MAX_CURVES)?;
    let mut loaded = loaded.iter().map(LoadLatencyCurve::read).collect::<Result<Vec<_>, _>>()?;
    loaded.sort_by_key(|curve| (curve.node, curve.read_percent));
    let far = top.sections("far", &FAR, MAX_STORES)?;
    let far =
        far.iter().map(|section| far_store(section, evidence)).collect::<Result<Vec<_>, _>>()?;
    caches.sort_by_key(|c| c.level);
    nodes.sort_by_key(|n| n.id);
    links.sort_by_key(|l| (l.initiator, l.target));
    Ok(Machine {
        name: top.string("name")?.unwrap_or(name).to_owned(),
        page_size: top.bytes("page_size")?.unwrap_or(Bytes(4096)),
        core,
        tlb,
        caches,
        nodes,
        links,
        migration,
        kernel,
        daemon,
        loaded,
        far,
        notes,
    })
}

fn core(top: &Section<'_, '_>, note: &mut impl FnMut(&str)) -> Result<CoreModel, MachineError> {
    let mut core = CoreModel::default();
    let Some(section) = top.section("core", &CORE)? else {
        note("No [core] given: the default core model is used.");
        return Ok(core);
    };
    if let Some(ns) = section.number("ns_per_instruction")? {
        core.ns_per_instruction = ns;
    }
    if let Some(misses) = section.integer("outstanding_misses", 1..=65_536)? {
        core.outstanding_misses = misses as u32;
    }
    core.tlb_flush = section.span("tlb_flush")?.unwrap_or(core.tlb_flush);
    Ok(core)
}

/// What is not given is as in [`TlbSpec::default`]: no note, since only the simulator asks.
fn tlb(top: &Section<'_, '_>) -> Result<TlbSpec, MachineError> {
    let default = TlbSpec::default();
    let Some(section) = top.section("tlb", &TLB)? else { return Ok(default) };
    let number = |key, otherwise| -> Result<u32, MachineError> {
        Ok(section.integer(key, 0..=1 << 20)?.map_or(otherwise, |n| n as u32))
    };
    Ok(TlbSpec {
        entries: number("entries", default.entries)?,
        ways: number("ways", default.ways)?,
        large_entries: number("large_entries", default.large_entries)?,
        large_ways: number("large_ways", default.large_ways)?,
        l2_entries: number("l2_entries", default.l2_entries)?,
        l2_ways: number("l2_ways", default.l2_ways)?,
        l2_hit: section.span("l2_hit")?.unwrap_or(default.l2_hit),
        walk: section.span("walk")?.unwrap_or(default.walk),
    })
}

fn migration(
    top: &Section<'_, '_>,
    note: &mut impl FnMut(&str),
) -> Result<MigrationCost, MachineError> {
    let Some(section) = top.section("migration", &MIGRATION)? else {
        note("No [migration] given: the default cost of moving pages is used.");
        return Ok(MigrationCost::default());
    };
    let default = MigrationCost::default();
    Ok(MigrationCost {
        call: section.span("call")?.unwrap_or(default.call),
        page: section.span("page")?.unwrap_or(default.page),
        serial_percent: section
            .integer("serial_percent", 0..=100)?
            .map_or(default.serial_percent, |n| n as u8),
    })
}

/// What is not given is as in the first of [`FarStore::usual`], a disk.
fn far_store(section: &Section<'_, '_>, evidence: Evidence) -> Result<FarStore, MachineError> {
    let [usual, _] = FarStore::usual();
    let rate = |key, usual| -> Result<BytesPerSec, MachineError> {
        Ok(section.rate(key, Evidence::Config)?.map_or(usual, |figure| figure.value))
    };
    Ok(FarStore {
        name: section
            .string("name")?
            .ok_or_else(|| section.missing("name", "`name = \"file\"`"))?
            .to_owned(),
        fault: section.span("fault")?.unwrap_or(usual.fault),
        page: section.span("page")?.unwrap_or(usual.page),
        read_latency: section.span("read_latency")?.unwrap_or(usual.read_latency),
        write_latency: section.span("write_latency")?.unwrap_or(usual.write_latency),
        operation: section.span("operation")?.unwrap_or(usual.operation),
        read_bandwidth: rate("read_bandwidth", usual.read_bandwidth)?,
        write_bandwidth: rate("write_bandwidth", usual.write_bandwidth)?,
        on_cpu: section.boolean("on_cpu")?.unwrap_or(false),
        evidence: section.evidence("evidence")?.unwrap_or(evidence),
    })
}

fn cache(section: &Section<'_, '_>) -> Result<CacheLevel, MachineError> {
    let need = |key, example| section.missing(key, example);
    Ok(CacheLevel {
        level: section.integer("level", 1..=8)?.ok_or_else(|| need("level", "`level = 1`"))? as u8,
        size: section.bytes("size")?.ok_or_else(|| need("size", "`size = \"32 KiB\"`"))?,
        line: section.bytes("line")?.unwrap_or(Bytes(64)),
        ways: section.integer("ways", 1..=65_536)?.ok_or_else(|| need("ways", "`ways = 8`"))?
            as u32,
        shared: section.boolean("shared")?.unwrap_or(false),
        hit: section.span("hit")?.unwrap_or(Nanos::ZERO),
    })
}

fn node(section: &Section<'_, '_>) -> Result<Node, MachineError> {
    let id = section
        .integer("id", 0..=u64::from(MAX_NODE.0))?
        .ok_or_else(|| section.missing("id", "`id = 0`"))?;
    let kind = match section.string("kind")? {
        None => MemoryKind::Unknown,
        Some(text) => MemoryKind::from_name(text).ok_or_else(|| {
            let known = "one of dram, hbm, cxl, pmem, gpu, dax, remote, unknown";
            section.bad_string("kind", text, known)
        })?,
    };
    let mut cpus: Vec<CpuId> =
        section.cpus("cpus")?.unwrap_or_default().into_iter().map(CpuId).collect();
    cpus.sort_unstable();
    Ok(Node {
        id: NodeId(id as u16),
        kind,
        cpus,
        capacity: section
            .bytes("capacity")?
            .ok_or_else(|| section.missing("capacity", "`capacity = \"16 GiB\"`"))?,
        reserved: section.bytes("reserved")?.unwrap_or(Bytes::ZERO),
        in_use: section.bytes("in_use")?.unwrap_or(Bytes::ZERO),
        block: section.bytes("block")?.unwrap_or(Bytes(64)),
        package: section.integer("package", 0..=65_535)?.map(|p| p as u32),
        energy: energy(section)?,
    })
}

fn energy(section: &Section<'_, '_>) -> Result<Energy, MachineError> {
    let number = |key| -> Result<Option<u32>, MachineError> {
        Ok(section.integer(key, 0..=u64::from(u32::MAX))?.map(|n| n as u32))
    };
    Ok(Energy {
        read_pj_per_byte: number("read_pj_per_byte")?,
        write_pj_per_byte: number("write_pj_per_byte")?,
        static_mw: number("static_mw")?,
    })
}

fn link(section: &Section<'_, '_>, evidence: Evidence) -> Result<Link, MachineError> {
    let end = |key, example| -> Result<NodeId, MachineError> {
        let id = section
            .integer(key, 0..=u64::from(MAX_NODE.0))?
            .ok_or_else(|| section.missing(key, example))?;
        Ok(NodeId(id as u16))
    };
    let evidence = section.evidence("evidence")?.unwrap_or(evidence);
    section.exclusive("latency_ns", ["read_latency_ns", "write_latency_ns"])?;
    section.exclusive("bandwidth", ["read_bandwidth", "write_bandwidth"])?;
    let latency = section.latency("latency_ns", evidence)?;
    let bandwidth = section.rate("bandwidth", evidence)?;
    Ok(Link {
        initiator: end("initiator", "`initiator = 0`")?,
        target: end("target", "`target = 0`")?,
        read_latency: section.latency("read_latency_ns", evidence)?.or(latency),
        write_latency: section.latency("write_latency_ns", evidence)?.or(latency),
        read_bandwidth: section.rate("read_bandwidth", evidence)?.or(bandwidth),
        write_bandwidth: section.rate("write_bandwidth", evidence)?.or(bandwidth),
        distance: section.integer("distance", 1..=1_000_000)?.map(|d| d as u32),
    })
}
