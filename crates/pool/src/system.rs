//! The system file: hosts, pools, fabric and manager, as TOML.

use crate::allocation::AllocationPolicy;
use crate::PoolError;
use serde::Deserialize;
use std::collections::HashSet;
use terrace_fabric::{FabricTopology, LinkDescription, VertexDescription, VertexKind};
use terrace_machine::parse_bytes;
use terrace_types::{Bytes, BytesPerSec, Nanos};

/// Hosts at most, and pools: what Terrace is to answer for.
pub const MOST_MEMBERS: u32 = 64;
/// Banks of a pool at most: far beyond any module (HBM4 has 4096).
const MOST_BANKS: u32 = 1 << 16;
/// Bytes of a request to a bank: a cache line.
const REQUEST_BYTES: u64 = 64;
/// Bytes of a header unless a system file says otherwise: a slot of a CXL flit (CXL 2.0, section
/// 4.2).
const HEADER_BYTES: u64 = 16;
/// Bytes of a header at most: a page.
const MOST_HEADER_BYTES: u64 = 4096;
/// Bytes of a system file at most.
const LARGEST_FILE: usize = 1 << 20;
const PRESETS: [(&str, &str); 4] = [
    ("opal", include_str!("../presets/opal.toml")),
    ("cxl2-8", include_str!("../presets/cxl2-8.toml")),
    ("cxl3-32", include_str!("../presets/cxl3-32.toml")),
    ("network-16", include_str!("../presets/network-16.toml")),
];

/// The names of the presets.
pub fn system_preset_names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}

/// The system file of a preset, comments and sources included.
#[must_use]
pub fn system_preset_text(name: &str) -> Option<&'static str> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// A system: hosts that share pools behind a fabric.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SystemDescription {
    /// Its name.
    pub name: String,
    /// Who gives out the frames of pools.
    pub manager: ManagerDescription,
    /// Messages between hosts and pools.
    #[serde(default)]
    pub messages: MessageDescription,
    /// Groups of equal hosts.
    #[serde(rename = "host")]
    pub hosts: Vec<HostGroup>,
    /// Groups of equal pools.
    #[serde(rename = "pool", default)]
    pub pools: Vec<PoolGroup>,
    /// Switches of the fabric.
    #[serde(rename = "switch", default)]
    pub switches: Vec<SwitchDescription>,
    /// Links of the fabric.
    #[serde(rename = "link", default)]
    pub links: Vec<GroupLink>,
}

/// The memory manager.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManagerDescription {
    /// From a host to it, and back, nanoseconds each.
    pub latency_ns: u64,
    /// Requests for a frame that it serves in a microsecond, one after the other; none: no limit.
    pub requests_per_us: Option<u64>,
}

/// Equal hosts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostGroup {
    /// The group's name; its hosts are called after it, with a number from 0.
    pub name: String,
    /// Machine preset or file. Its nodes without CPUs are left out.
    pub machine: String,
    /// How many.
    pub count: u32,
    /// Clock of a core, by which instructions a cycle are counted.
    pub clock_mhz: u32,
    /// Allocation policy.
    pub policy: String,
    /// Each host's part of a full link against the weights of others: 1 unless given.
    #[serde(default = "one")]
    pub weight: u32,
}

/// Equal pools.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolGroup {
    /// The group's name; its pools are called after it, with a number from 0.
    pub name: String,
    /// How many.
    pub count: u32,
    /// Of all of them together, such as `16 GiB`.
    pub total_capacity: String,
    /// Such as `4 KiB`.
    pub frame_size: String,
    /// Banks of a pool; each serves one request of 64 bytes at a time.
    pub banks: u32,
    /// A bank's time to read, nanoseconds.
    pub read_ns: u64,
    /// A bank's time to write, nanoseconds.
    pub write_ns: u64,
    /// Requests in the pool at a time; none: as many as come.
    pub outstanding: Option<u32>,
}

/// A switch.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchDescription {
    /// Its name.
    pub name: String,
    /// From port to port, nanoseconds.
    pub latency_ns: u64,
    /// Of all its ports together, bytes a second; none: no limit but that of its links.
    pub bandwidth_bytes_per_s: Option<u64>,
}

/// Messages between hosts and pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageDescription {
    /// Bytes of a request or reply beside the data.
    pub header_bytes: u64,
}

impl Default for MessageDescription {
    fn default() -> Self {
        Self { header_bytes: HEADER_BYTES }
    }
}

/// A link between switches, or one from each member of a group.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupLink {
    /// Names of a switch, or of a group of hosts or pools.
    pub ends: [String; 2],
    /// Propagation in one direction, nanoseconds.
    pub latency_ns: u64,
    /// Of each direction, bytes a second; none: no limit.
    pub bandwidth_bytes_per_s: Option<u64>,
}

/// One pool, its values checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolDescription {
    /// Its name, unique in the system.
    pub name: String,
    /// What it holds.
    pub capacity: Bytes,
    /// Size of a frame.
    pub frame: Bytes,
    /// A bank's time to read.
    pub read: Nanos,
    /// A bank's time to write.
    pub write: Nanos,
    /// Banks.
    pub banks: u32,
    /// All banks together, reading.
    pub read_bandwidth: BytesPerSec,
    /// All banks together, writing.
    pub write_bandwidth: BytesPerSec,
}

impl SystemDescription {
    /// Reads and checks a system file; `file` is its name in errors.
    ///
    /// # Errors
    /// [`PoolError`]: syntax with its line, a value with its key, a fabric that is no tree.
    pub fn from_toml(text: &str, file: &str) -> Result<Self, PoolError> {
        if text.len() > LARGEST_FILE {
            let why = format!("{} bytes; give at most {LARGEST_FILE}", text.len());
            let (file, key) = (file.to_owned(), "size".to_owned());
            return Err(PoolError::Value { file, line: None, key, why });
        }
        let system: Self = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = 1 + text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count();
            let why = error.message().lines().collect::<Vec<_>>().join("; ");
            PoolError::Syntax { file: file.to_owned(), line, why }
        })?;
        system.check(file).map_err(|error| match error {
            PoolError::Value { file, line: None, key, why } => {
                PoolError::Value { line: find_line(text, &key), file, key, why }
            }
            other => other,
        })?;
        Ok(system)
    }

    /// Checks everything but the machines of hosts.
    ///
    /// # Errors
    /// As [`Self::from_toml`].
    pub fn check(&self, file: &str) -> Result<(), PoolError> {
        let wrong = |key: String, why: String| PoolError::Value {
            file: file.to_owned(),
            line: None,
            key,
            why,
        };
        let mut names = HashSet::new();
        let switches = self.switches.iter().map(|switch| &switch.name);
        let groups = self.hosts.iter().map(|h| &h.name).chain(self.pools.iter().map(|p| &p.name));
        for name in groups.chain(switches) {
            if !names.insert(name) {
                let why = "is used twice; give each group and switch its own name".to_owned();
                return Err(wrong(format!("name {name:?}"), why));
            }
        }
        let count = |groups: &mut dyn Iterator<Item = u32>| groups.map(u64::from).sum::<u64>();
        let hosts = count(&mut self.hosts.iter().map(|group| group.count));
        let pools = count(&mut self.pools.iter().map(|group| group.count));
        if hosts == 0 || hosts > MOST_MEMBERS.into() {
            let why = format!("{hosts} hosts; give 1 to {MOST_MEMBERS}");
            return Err(wrong("host.count".to_owned(), why));
        }
        if pools > MOST_MEMBERS.into() {
            let why = format!("{pools} pools; give at most {MOST_MEMBERS}");
            return Err(wrong("pool.count".to_owned(), why));
        }
        if Nanos(self.manager.latency_ns) > terrace_fabric::topology::MAX_LATENCY {
            let why = "is over a second; give less".to_owned();
            return Err(wrong("manager.latency_ns".to_owned(), why));
        }
        if self.manager.requests_per_us == Some(0) {
            let why = "is zero; give 1 or more, or leave it out".to_owned();
            return Err(wrong("manager.requests_per_us".to_owned(), why));
        }
        if self.messages.header_bytes > MOST_HEADER_BYTES {
            let why = format!("{}; give at most {MOST_HEADER_BYTES}", self.messages.header_bytes);
            return Err(wrong("messages.header_bytes".to_owned(), why));
        }
        for group in &self.hosts {
            if group.weight == 0 {
                let why = "is zero; give 1 or more".to_owned();
                return Err(wrong(format!("host {:?}, weight", group.name), why));
            }
            if group.clock_mhz == 0 {
                let why = "is zero; give the clock of a core".to_owned();
                return Err(wrong(format!("host {:?}, clock_mhz", group.name), why));
            }
            AllocationPolicy::from_name(&group.policy)
                .map_err(|e| wrong(format!("host {:?}, policy", group.name), e.to_string()))?;
        }
        self.list_pools(file)?;
        self.fabric(file).map(|_| ())
    }

    /// The names of all hosts, each with its group.
    pub fn list_hosts(&self) -> impl Iterator<Item = (String, &HostGroup)> {
        self.hosts.iter().flat_map(|g| (0..g.count).map(move |i| (format!("{}{i}", g.name), g)))
    }

    /// All pools.
    ///
    /// # Errors
    /// [`PoolError::Value`].
    pub fn list_pools(&self, file: &str) -> Result<Vec<PoolDescription>, PoolError> {
        let mut pools = Vec::new();
        for group in &self.pools {
            let one = check_pool(group).map_err(|(key, why)| PoolError::Value {
                file: file.to_owned(),
                line: None,
                key: format!("pool {:?}, {key}", group.name),
                why,
            })?;
            pools.extend((0..group.count).map(|index| PoolDescription {
                name: format!("{}{index}", group.name),
                ..one.clone()
            }));
        }
        Ok(pools)
    }

    /// The fabric: hosts, then pools, then switches.
    ///
    /// # Errors
    /// [`PoolError::Fabric`].
    pub fn fabric(&self, file: &str) -> Result<FabricTopology, PoolError> {
        let groups = self.hosts.iter().map(|h| (&h.name, h.count));
        let groups: Vec<_> = groups.chain(self.pools.iter().map(|p| (&p.name, p.count))).collect();
        let members = |name: &String| match groups.iter().find(|group| group.0 == name) {
            Some((name, count)) => (0..*count).map(|i| format!("{name}{i}")).collect(),
            None => vec![name.clone()],
        };
        let endpoints = groups.iter().flat_map(|group| members(group.0));
        let endpoints =
            endpoints.map(|name| VertexDescription { name, kind: VertexKind::Endpoint });
        let switches = self.switches.iter().map(|switch| VertexDescription {
            name: switch.name.clone(),
            kind: VertexKind::Switch {
                latency: Nanos(switch.latency_ns),
                bandwidth: switch.bandwidth_bytes_per_s.map(BytesPerSec),
            },
        });
        let mut links = Vec::new();
        for link in &self.links {
            for a in members(&link.ends[0]) {
                links.extend(members(&link.ends[1]).into_iter().map(|b| LinkDescription {
                    ends: [a.clone(), b],
                    latency: Nanos(link.latency_ns),
                    bandwidth: link.bandwidth_bytes_per_s.map(BytesPerSec),
                }));
            }
        }
        FabricTopology::new(endpoints.chain(switches).collect(), links)
            .map_err(|why| PoolError::Fabric { file: file.to_owned(), why })
    }
}

/// The line, from 1, that says what is called `TABLE.KEY` or `TABLE "NAME", KEY` in errors.
fn find_line(text: &str, called: &str) -> Option<usize> {
    let (table, name, key) = match called.split_once(", ") {
        Some((group, key)) => {
            let (table, name) = group.split_once(' ')?;
            (table, Some(name.trim_matches('"')), key)
        }
        None => {
            let (table, key) = called.split_once('.')?;
            (table, None, key)
        }
    };
    let value = |line: &str| {
        let (key, value) = line.split_once('=')?;
        Some((key.trim().to_owned(), value.trim().to_owned()))
    };
    // Of a table: whether it is the group that is meant, and where the key is.
    let (mut inside, mut named, mut at) = (false, name.is_none(), None);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            if named && at.is_some() {
                break;
            }
            inside = line.trim_matches(['[', ']']) == table;
            (named, at) = (name.is_none(), None);
        } else if let Some((found, value)) = value(line).filter(|_| inside) {
            named |= found == "name" && name.is_some_and(|n| value.trim_matches('"') == n);
            if found == key {
                at = Some(index + 1);
            }
        }
    }
    at.filter(|_| named)
}

/// One pool of a group, without its own name; otherwise the key that is wrong, and why.
fn check_pool(group: &PoolGroup) -> Result<PoolDescription, (&'static str, String)> {
    let size = |key, text: &String| match parse_bytes(text).filter(|bytes| bytes.get() > 0) {
        Some(bytes) => Ok(bytes),
        None => Err((key, format!("{text:?} is no size; give one such as 16 GiB"))),
    };
    let total = size("total_capacity", &group.total_capacity)?;
    let frame = size("frame_size", &group.frame_size)?;
    if frame.get() != PAGE {
        let why = format!("{frame} is not what hosts have; give {}", Bytes(PAGE));
        return Err(("frame_size", why));
    }
    let frames = total.get() / frame.get();
    if total.get() % frame.get() != 0 || frames % u64::from(group.count.max(1)) != 0 {
        let why = format!("{total} is no whole number of frames in each of {} pools", group.count);
        return Err(("total_capacity", why));
    }
    if frames == 0 || group.banks == 0 || group.banks > MOST_BANKS {
        return Err(("banks", format!("{}; give 1 to {MOST_BANKS}", group.banks)));
    }
    if group.outstanding == Some(0) {
        return Err(("outstanding", "is zero; give 1 or more, or leave it out".to_owned()));
    }
    // Requests that are in the pool at a time, and of those as many as there are banks are served.
    let served = group.banks.min(group.outstanding.unwrap_or(group.banks));
    let bandwidth = |key, ns: u64| {
        if ns == 0 || Nanos(ns) > terrace_fabric::topology::MAX_LATENCY {
            return Err((key, format!("{ns} ns; give 1 ns to a second")));
        }
        Ok(BytesPerSec(REQUEST_BYTES * u64::from(served) * 1_000_000_000 / ns))
    };
    Ok(PoolDescription {
        name: String::new(),
        capacity: Bytes(total.get() / u64::from(group.count.max(1))),
        frame,
        read: Nanos(group.read_ns),
        write: Nanos(group.write_ns),
        banks: served,
        read_bandwidth: bandwidth("read_ns", group.read_ns)?,
        write_bandwidth: bandwidth("write_ns", group.write_ns)?,
    })
}

const fn one() -> u32 {
    1
}

/// A host's base page.
const PAGE: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn opal() -> &'static str {
        system_preset_text("opal").unwrap()
    }

    #[test]
    fn presets_are_read() {
        for name in system_preset_names() {
            let text = system_preset_text(name).unwrap();
            assert_eq!(SystemDescription::from_toml(text, name).unwrap().name, name);
        }
        let mut system = SystemDescription::from_toml(opal(), "opal").unwrap();
        system.pools[0].count = 4;
        system.hosts[0].count = 2;
        let pools = system.list_pools("opal").unwrap();
        assert_eq!((pools.len(), pools[3].capacity), (4, Bytes(4 << 30)));
        assert_eq!(pools[0].read_bandwidth, BytesPerSec(3_413_333_333));
        let fabric = system.fabric("opal").unwrap();
        let find = |name| fabric.find(name).unwrap();
        assert_eq!(fabric.latency_ps(find("node1"), find("pool3")), Ok(20_000));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (old, new, expected) in [
            ("banks = 16", "bank = 16", "system file x, line 24: unknown field `bank`"),
            ("count = 1", "count = \"one\"", "line 15: invalid type"),
            ("count = 1", "count = 0", "system file x, line 15: host.count: 0 hosts"),
            ("count = 1", "count = 65", "host.count: 65 hosts; give 1 to 64"),
            ("banks = 16", "banks = 0", "line 24: pool \"pool\", banks: 0"),
            ("read_ns = 300", "read_ns = 0", "pool \"pool\", read_ns: 0 ns"),
            ("\"16 GiB\"", "\"much\"", "total_capacity: \"much\" is no size"),
            ("\"16 GiB\"", "\"5 KiB\"", "total_capacity: 5 KiB is no whole number of frames"),
            ("\"4 KiB\"", "\"3 KiB\"", "frame_size: 3 KiB is not what hosts have"),
            ("\"local-first\"", "\"best\"", "host \"node\", policy: allocation policy \"best\""),
            ("name = \"switch\"", "name = \"pool\"", "name \"pool\": is used twice"),
            ("[\"pool\", \"switch\"]", "[\"node\", \"switch\"]", "link node0 - switch closes"),
            ("[\"pool\", \"switch\"]", "[\"pool\", \"hub\"]", "ends at \"hub\""),
            ("clock_mhz = 2000", "clock_mhz = 0", "line 16: host \"node\", clock_mhz: is zero"),
            ("clock_mhz = 2000", "clock_mhz = 1\nweight = 0", "host \"node\", weight: is zero"),
            ("outstanding = 128", "outstanding = 0", "pool \"pool\", outstanding: is zero"),
            ("requests_per_us = 64000", "requests_per_us = 0", "manager.requests_per_us: is zero"),
            ("name = \"opal\"", "name = \"o\"\nmessages.header_bytes = 9999", "messages.header_b"),
        ] {
            let text = opal().replacen(old, new, 1);
            assert_ne!(text, opal(), "{old}");
            let error = SystemDescription::from_toml(&text, "x").unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{error}: {expected}");
        }
    }
}
