//! The system file: hosts, pools, fabric and manager, as TOML.

use crate::PoolError;
use serde::Deserialize;
use terrace_fabric::{FabricTopology, LinkDescription, VertexDescription, VertexKind};
use terrace_types::{Bytes, BytesPerSec, Nanos};

/// Bytes of a header unless a system file says otherwise: a slot of a CXL flit (CXL 2.0, section
/// 4.2).
const HEADER_BYTES: u64 = 16;
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
    /// Whether hosts may reach a frame, and who says so; none: nobody checks.
    pub access: Option<AccessDescription>,
    /// Files that several hosts have mapped.
    #[serde(rename = "file", default)]
    pub files: Vec<SharedFileEntry>,
    /// Length of the windows in which hosts run by themselves, nanoseconds. What a host sees of
    /// another is at most so old; nothing reaches another host sooner than the least latency of the
    /// fabric, so that with it nothing is late.
    #[serde(default = "default_window")]
    pub window_ns: u64,
}

/// Who checks that a host may reach a frame of a pool ("Exploring Allocation Policies in
/// Disaggregated Non-Volatile Memories", MCHPC 2018, sections 3.1.1 and 3.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessScheme {
    /// Each pool: hosts know the addresses of frames, and a request that must not is sent back.
    Module,
    /// The first switch on the way from the host.
    Router,
    /// A system translation unit of each host: hosts do not know the addresses of frames.
    Translation,
}

/// Access control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessDescription {
    /// Who checks.
    pub scheme: AccessScheme,
    /// Module or router: what a check takes, nanoseconds.
    pub check_ns: Option<u64>,
    /// Module or router: checks in a microsecond, one after the other; none: no limit.
    pub checks_per_us: Option<u64>,
    /// Translation: translations that the unit keeps.
    pub entries: Option<u32>,
    /// Translation: ways of a set of them.
    pub ways: Option<u32>,
    /// Translation: what a translation that it has takes, nanoseconds.
    pub hit_ns: Option<u64>,
    /// Translation: what a step of a walk takes, nanoseconds.
    pub step_ns: Option<u64>,
    /// Translation: steps of a walk: 4, unless the host's own page table lies behind the unit, too,
    /// with which it may be up to 26 (section 3.1.1).
    pub steps: Option<u32>,
}

/// A file in pools that several hosts have mapped at the same place of their data.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedFileEntry {
    /// Its number: entries with the same one are the same file.
    pub id: u32,
    /// Such as `64 MiB`.
    pub size: String,
    /// Where it begins in the data of each host; 0 unless given.
    #[serde(default)]
    pub offset: Option<String>,
    /// Groups of hosts that have it mapped; none: all.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Groups of hosts that have mapped it without leave: they know where its frames are, and the
    /// manager does not know of them.
    #[serde(default)]
    pub trespassers: Vec<String>,
    /// Pages a millisecond that the manager moves from the pool whose requests wait longest to the
    /// one whose wait least; none: pages stay.
    pub moves_per_ms: Option<u32>,
}

/// A device to which pages go when all memory is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwapDescription {
    /// What reading a page takes, nanoseconds.
    pub read_ns: u64,
    /// What writing a page takes, nanoseconds.
    pub write_ns: u64,
}

/// How hosts drop translations of pages that move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShootdownChoice {
    /// One interrupt of every core for a group of pages.
    #[default]
    Batched,
    /// One for each page.
    PerPage,
    /// As batched, and acknowledged before translations are dropped.
    EarlyAcknowledge,
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
    /// Most that each host may read from and write to pools, bytes a second; none: no cap.
    pub cap_bytes_per_s: Option<u64>,
    /// Cores of each host, of those that its machine has; none: all.
    pub cores: Option<u32>,
    /// Placement policy that moves pages between local memory and pools; none: pages stay.
    pub placement: Option<String>,
    /// How translations of pages that move are dropped.
    #[serde(default)]
    pub shootdowns: ShootdownChoice,
    /// Where pages go when local memory and pools are full; none: the program ends with an error.
    pub swap: Option<SwapDescription>,
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
    /// What checking a request takes on its way, nanoseconds.
    pub check_ns: u64,
}

impl SystemDescription {
    /// The names of all hosts, each with its group.
    pub fn list_hosts(&self) -> impl Iterator<Item = (String, &HostGroup)> {
        self.hosts.iter().flat_map(|g| (0..g.count).map(move |i| (format!("{}{i}", g.name), g)))
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
            .map_err(|why| PoolError::Fabric { file: file.to_owned(), line: None, why })
    }
}

const fn one() -> u32 {
    1
}

/// One quantum of `terrace-sim`: 10 us.
const fn default_window() -> u64 {
    10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL_LINK: &str = "[\"pool\", \"switch\"]";

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
            ("name = \"switch\"", "name = \"pool\"", "line 30: name \"pool\": is used twice"),
            (POOL_LINK, "[\"node\", \"switch\"]", "x, line 37: link node0 - switch closes"),
            (POOL_LINK, "[\"pool\", \"hub\"]", "x, line 37: link pool0 - hub ends at \"hub\""),
            (
                "latency_ns = 0\n",
                "latency_ns = 0\n[[switch]]\nname = \"far\"\nlatency_ns = 1\n",
                "x, line 33: no link",
            ),
            ("clock_mhz = 2000", "clock_mhz = 0", "line 16: host \"node\", clock_mhz: is zero"),
            ("clock_mhz = 2000", "clock_mhz = 1\nweight = 0", "host \"node\", weight: is zero"),
            (
                "clock_mhz = 2000",
                "clock_mhz = 1\ncores = 0",
                "line 17: host \"node\", cores: is zero",
            ),
            (
                "clock_mhz = 2000",
                "clock_mhz = 1\nplacement = \"best\"",
                "line 17: host \"node\", placement: no policy is called \"best\"",
            ),
            ("clock_mhz = 2000", "clock_mhz = 1\ncap_bytes_per_s = 0", "cap_bytes_per_s: is zero"),
            (
                "name = \"opal\"",
                "name = \"o\"\nwindow_ns = 0",
                "line 7: window_ns: 0 ns; give 1 ns",
            ),
            ("[[host]]", "[access]\nscheme = \"router\"\n[[host]]", "access.check_ns: is missing"),
            (
                "[[host]]",
                "[access]\nscheme = \"module\"\ncheck_ns = 5\nchecks_per_us = 0\n[[host]]",
                "line 15: access.checks_per_us: is zero",
            ),
            (
                "[[host]]",
                "[access]\nscheme = \"translation\"\nentries = 10\nways = 4\nhit_ns = 1\n\
                 step_ns = 1\n[[host]]",
                "line 14: access.entries: 10 are no whole sets of 4",
            ),
            (
                "[[host]]",
                "[access]\nscheme = \"translation\"\nentries = 8\nways = 4\nhit_ns = 1\n\
                 step_ns = 1\nsteps = 27\n[[host]]",
                "line 18: access.steps: 27; give 4 to 26",
            ),
            (
                "[[host]]",
                "[[file]]\nid = 1\nsize = \"5 KiB\"\n[[host]]",
                "line 14: file \"1\", size: \"5 KiB\" is no whole",
            ),
            (
                "[[host]]",
                "[[file]]\nid = 1\nsize = \"8 KiB\"\n[[file]]\nid = 1\nsize = \"4 KiB\"\n[[host]]",
                "file \"1\", size: is \"8 KiB\" in one place and \"4 KiB\"",
            ),
            (
                "[[host]]",
                "[[file]]\nid = 1\nsize = \"8 KiB\"\ntrespassers = [\"node\"]\n[[host]]",
                "line 15: file \"1\", trespassers: \"node\" may reach it; name in hosts",
            ),
            (
                "[[host]]",
                "[[file]]\nid = 1\nsize = \"8 KiB\"\nhosts = [\"a\"]\n[[host]]",
                "line 15: file \"1\", hosts: \"a\" is no group",
            ),
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
