//! Checks that every reader of machines shares, whatever the format.

use crate::error::MachineConflict;
use crate::loaded::LoadLatencyCurve;
use crate::model::{CacheLevel, Figure, Link, Machine};
use crate::store::FarStore;
use std::collections::{BTreeMap, BTreeSet};
use terrace_types::{Bytes, BytesPerSec, CpuId, Nanos, NodeId};

/// Highest node that can be managed: a page's record names its node in one byte.
pub const MAX_NODE: NodeId = NodeId(255);
/// Highest CPU: `NR_CPUS_RANGE_END` of Linux, `arch/x86/Kconfig`, is 8192.
pub const MAX_CPU: CpuId = CpuId(8191);
/// Longest latency that is believed: one second.
pub const MAX_LATENCY: Nanos = Nanos(1_000_000_000);
/// Highest throughput that is believed: one petabyte a second.
pub const MAX_BANDWIDTH: BytesPerSec = BytesPerSec(1_000_000_000_000_000);
/// Largest node that is believed: one exbibyte.
pub const MAX_CAPACITY: Bytes = Bytes(1 << 60);

impl Machine {
    /// Checks that the parts fit each other and no figure is beyond reason.
    pub fn check(&self) -> Result<(), MachineConflict> {
        if self.name.is_empty() || self.name.len() > 64 || self.name.chars().any(char::is_control) {
            return Err(MachineConflict::BadName);
        }
        self.check_nodes()?;
        self.check_links()?;
        self.check_caches()?;
        self.check_tlb()?;
        self.check_costs()
    }

    fn check_nodes(&self) -> Result<(), MachineConflict> {
        if self.nodes.is_empty() {
            return Err(MachineConflict::NoNodes);
        }
        let mut ids = BTreeSet::new();
        let mut owners: BTreeMap<CpuId, NodeId> = BTreeMap::new();
        for node in &self.nodes {
            if node.id > MAX_NODE {
                return Err(MachineConflict::NodeTooHigh(node.id));
            }
            if !ids.insert(node.id) {
                return Err(MachineConflict::DuplicateNode(node.id));
            }
            let what = |part: &str| format!("{part} of node {}", node.id);
            if node.capacity > MAX_CAPACITY {
                return Err(absurd(what("capacity"), node.capacity, "at most 1048576 TiB"));
            }
            if node.in_use > node.reserved {
                return Err(absurd(
                    what("in_use"),
                    node.in_use,
                    "no more than `reserved`, of which it is a part",
                ));
            }
            if !power_of_two(node.block, 1, 1 << 20) {
                return Err(absurd(what("block"), node.block, "a power of two up to 1 MiB"));
            }
            for cpu in &node.cpus {
                if *cpu > MAX_CPU {
                    return Err(MachineConflict::CpuTooHigh(*cpu));
                }
                if let Some(first) = owners.insert(*cpu, node.id) {
                    return Err(MachineConflict::CpuTwice { cpu: *cpu, first, second: node.id });
                }
            }
        }
        if owners.is_empty() {
            return Err(MachineConflict::NoCpus);
        }
        if self.nodes.iter().all(|n| n.capacity == Bytes::ZERO) {
            return Err(MachineConflict::NoMemory);
        }
        Ok(())
    }

    fn check_links(&self) -> Result<(), MachineConflict> {
        let mut pairs = BTreeSet::new();
        for link in &self.links {
            let Link { initiator, target, .. } = *link;
            for end in [initiator, target] {
                if self.node(end).is_none() {
                    return Err(MachineConflict::LinkToNowhere { initiator, target, missing: end });
                }
            }
            if self.node(target).is_some_and(|n| n.capacity == Bytes::ZERO) {
                return Err(MachineConflict::LinkToNoMemory { initiator, target });
            }
            if !pairs.insert((initiator, target)) {
                return Err(MachineConflict::DuplicateLink { initiator, target });
            }
            check_figures(link)?;
        }
        Ok(())
    }

    fn check_caches(&self) -> Result<(), MachineConflict> {
        let mut levels = BTreeSet::new();
        for cache in &self.caches {
            if !levels.insert(cache.level) {
                return Err(MachineConflict::DuplicateCache(cache.level));
            }
            check_cache(cache)?;
        }
        Ok(())
    }

    fn check_tlb(&self) -> Result<(), MachineConflict> {
        let tlb = &self.tlb;
        let levels = [
            ("tlb.entries", tlb.entries, tlb.ways),
            ("tlb.large_entries", tlb.large_entries, tlb.large_ways),
            ("tlb.l2_entries", tlb.l2_entries, tlb.l2_ways),
        ];
        for (what, entries, ways) in levels {
            let sets = entries.checked_div(ways).unwrap_or(0);
            let whole = ways > 0 && sets * ways == entries && (sets == 0 || sets.is_power_of_two());
            if !whole || entries > 1 << 20 {
                let found = format!("{entries} in {ways} ways");
                return Err(absurd(
                    what,
                    found,
                    "a power of two times the ways, up to 1048576, or 0",
                ));
            }
        }
        for (what, time) in [("tlb.l2_hit_ns", tlb.l2_hit), ("tlb.walk_ns", tlb.walk)] {
            if time > Nanos::millis(1) {
                return Err(absurd(what, time, "at most 1 ms"));
            }
        }
        Ok(())
    }

    fn check_costs(&self) -> Result<(), MachineConflict> {
        if !power_of_two(self.page_size, 4096, 2 << 20) {
            return Err(absurd("page_size", self.page_size, "a power of two from 4 KiB to 2 MiB"));
        }
        let ns = self.core.ns_per_instruction;
        if !(ns.is_finite() && ns > 0.0 && ns <= 1e6) {
            return Err(absurd("core.ns_per_instruction", ns, "above 0 and at most 1000000"));
        }
        if !(1..=65_536).contains(&self.core.outstanding_misses) {
            let found = self.core.outstanding_misses;
            return Err(absurd("core.outstanding_misses", found, "from 1 to 65536"));
        }
        if self.migration.serial_percent > 100 {
            return Err(absurd(
                "migration.serial_percent",
                self.migration.serial_percent,
                "at most 100",
            ));
        }
        let times = [
            ("core.tlb_flush_us", self.core.tlb_flush),
            ("migration.call_us", self.migration.call),
            ("migration.page_us", self.migration.page),
        ];
        for (what, time) in times {
            if time > Nanos::secs(3600) {
                return Err(absurd(what, time, "at most an hour"));
            }
        }
        for curve in &self.loaded {
            if !self.nodes.iter().any(|n| n.id == curve.node && n.capacity > Bytes::ZERO) {
                return Err(absurd("loaded.node", curve.node, "a node with memory"));
            }
            let same = |other: &&LoadLatencyCurve| {
                (other.node, other.read_percent) == (curve.node, curve.read_percent)
            };
            if self.loaded.iter().filter(same).count() > 1 {
                let found = format!("{} per cent twice", curve.read_percent);
                return Err(absurd("loaded.read_percent", found, "one curve for each share"));
            }
        }
        self.far.iter().try_for_each(|store| self.check_store(store))
    }

    fn check_store(&self, store: &FarStore) -> Result<(), MachineConflict> {
        let name = &store.name;
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if name.is_empty() || name.len() > 32 || !name.chars().all(plain) {
            return Err(absurd(
                "far.name",
                format!("{name:?}"),
                "up to 32 letters, digits, - . and _",
            ));
        }
        if self.far.iter().filter(|other| other.name == *name).count() > 1 {
            return Err(absurd(
                "far.name",
                format!("{name:?} twice"),
                "a name of its own for each",
            ));
        }
        let times =
            [store.fault, store.page, store.read_latency, store.write_latency, store.operation];
        if let Some(time) = times.into_iter().find(|t| *t > MAX_LATENCY) {
            return Err(absurd(format!("a time of far store {name}"), time, "at most 1 s"));
        }
        for (what, rate) in [("read", store.read_bandwidth), ("write", store.write_bandwidth)] {
            if rate.0 == 0 || rate > MAX_BANDWIDTH {
                let what = format!("{what} bandwidth of far store {name}");
                return Err(absurd(what, rate, "above 0 and at most 1000 TB/s"));
            }
        }
        Ok(())
    }
}

fn check_figures(link: &Link) -> Result<(), MachineConflict> {
    let what = |part: &str| format!("{part} from node {} to node {}", link.initiator, link.target);
    for (part, figure) in
        [("read latency", link.read_latency), ("write latency", link.write_latency)]
    {
        if let Some(Figure { value, .. }) = figure {
            if value == Nanos::ZERO || value > MAX_LATENCY {
                return Err(absurd(what(part), value, "above 0 and at most 1 s"));
            }
        }
    }
    for (part, figure) in
        [("read bandwidth", link.read_bandwidth), ("write bandwidth", link.write_bandwidth)]
    {
        if let Some(Figure { value, .. }) = figure {
            if value == BytesPerSec::ZERO || value > MAX_BANDWIDTH {
                return Err(absurd(what(part), value, "above 0 and at most 1000 TB/s"));
            }
        }
    }
    if link.distance.is_some_and(|d| !(1..=1_000_000).contains(&d)) {
        let found = link.distance.unwrap_or_default();
        return Err(absurd(what("distance"), found, "from 1 to 1000000 (10 is local)"));
    }
    Ok(())
}

/// Checks one cache level.
pub(crate) fn check_cache(cache: &CacheLevel) -> Result<(), MachineConflict> {
    let what = |part: &str| format!("{part} of cache level {}", cache.level);
    if !(1..=8).contains(&cache.level) {
        return Err(absurd("cache level", cache.level, "from 1 to 8"));
    }
    if !power_of_two(cache.line, 8, 4096) {
        return Err(absurd(what("line"), cache.line, "a power of two from 8 B to 4 KiB"));
    }
    if !(1..=65_536).contains(&cache.ways) {
        return Err(absurd(what("ways"), cache.ways, "from 1 to 65536"));
    }
    if cache.size == Bytes::ZERO || cache.size > Bytes::gib(64) {
        return Err(absurd(what("size"), cache.size, "above 0 and at most 64 GiB"));
    }
    if cache.size.get() % (cache.line.get() * u64::from(cache.ways)) != 0 {
        return Err(MachineConflict::CacheGeometry(cache.level));
    }
    if cache.hit > Nanos::millis(1) {
        return Err(absurd(what("hit time"), cache.hit, "at most 1 ms"));
    }
    Ok(())
}

fn power_of_two(bytes: Bytes, from: u64, to: u64) -> bool {
    bytes.get().is_power_of_two() && (from..=to).contains(&bytes.get())
}

fn absurd(
    what: impl Into<String>,
    found: impl std::fmt::Display,
    expected: &'static str,
) -> MachineConflict {
    MachineConflict::Absurd { what: what.into(), found: found.to_string(), expected }
}
