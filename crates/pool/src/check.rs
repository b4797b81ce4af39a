//! Checks of a system file's values, and where in its text what is wrong stands.

use crate::allocation::AllocationPolicy;
use crate::system::{
    AccessDescription, AccessScheme, HostGroup, PoolDescription, PoolGroup, SharedFileEntry,
    SystemDescription,
};
use crate::PoolError;
use std::collections::{BTreeMap, HashSet};
use terrace_fabric::topology::MAX_LATENCY;
use terrace_fabric::FabricError;
use terrace_machine::parse_bytes;
use terrace_types::{Bytes, BytesPerSec, Nanos, PolicyId};

/// Bytes of a system file at most.
const LARGEST_FILE: usize = 1 << 20;

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
        system.check(file).map_err(|error| add_line(error, text, &system))?;
        Ok(system)
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
}

/// Hosts at most, and pools: what Terrace is to answer for.
pub const MOST_MEMBERS: u32 = 64;
/// Banks of a pool at most: far beyond any module (HBM4 has 4096).
const MOST_BANKS: u32 = 1 << 16;
/// Bytes of a request to a bank: a cache line.
const REQUEST_BYTES: u64 = 64;
/// Bytes of a header at most: a page.
const MOST_HEADER_BYTES: u64 = 4096;
/// A host's base page.
const PAGE: u64 = 4096;
/// Translations that a unit keeps at most: 16 GiB of pages.
const MOST_ENTRIES: u32 = 1 << 22;
/// Steps of a walk: of the system's page table alone, and with the host's own behind the unit
/// (MCHPC 2018, section 3.1.1).
const STEPS: std::ops::RangeInclusive<u32> = 4..=26;

/// A key and what is wrong with it.
type WrongValue = (String, String);

impl SystemDescription {
    /// Checks everything but the machines of hosts.
    ///
    /// # Errors
    /// As [`Self::from_toml`].
    pub fn check(&self, file: &str) -> Result<(), PoolError> {
        let value = |(key, why)| PoolError::Value { file: file.to_owned(), line: None, key, why };
        self.check_names().map_err(value)?;
        self.check_counts().map_err(value)?;
        self.check_figures().map_err(value)?;
        for group in &self.hosts {
            check_host(group)
                .map_err(|(key, why)| value((format!("host {:?}, {key}", group.name), why)))?;
        }
        if let Some(access) = &self.access {
            check_access(access).map_err(|(key, why)| value((format!("access.{key}"), why)))?;
        }
        self.check_files().map_err(value)?;
        self.list_pools(file)?;
        self.fabric(file).map(|_| ())
    }

    fn check_names(&self) -> Result<(), WrongValue> {
        let mut names = HashSet::new();
        let switches = self.switches.iter().map(|switch| &switch.name);
        let groups = self.hosts.iter().map(|h| &h.name).chain(self.pools.iter().map(|p| &p.name));
        match groups.chain(switches).find(|name| !names.insert(*name)) {
            Some(name) => {
                let why = "is used twice; give each group and switch its own name".to_owned();
                Err((format!("name {name:?}"), why))
            }
            None => Ok(()),
        }
    }

    fn check_counts(&self) -> Result<(), WrongValue> {
        let count = |groups: &mut dyn Iterator<Item = u32>| groups.map(u64::from).sum::<u64>();
        let hosts = count(&mut self.hosts.iter().map(|group| group.count));
        let pools = count(&mut self.pools.iter().map(|group| group.count));
        if hosts == 0 || hosts > MOST_MEMBERS.into() {
            let why = format!("{hosts} hosts; give 1 to {MOST_MEMBERS}");
            return Err(("host.count".to_owned(), why));
        }
        if pools > MOST_MEMBERS.into() {
            let why = format!("{pools} pools; give at most {MOST_MEMBERS}");
            return Err(("pool.count".to_owned(), why));
        }
        Ok(())
    }

    fn check_figures(&self) -> Result<(), WrongValue> {
        if Nanos(self.manager.latency_ns) > MAX_LATENCY {
            return Err((
                "manager.latency_ns".to_owned(),
                "is over a second; give less".to_owned(),
            ));
        }
        if self.manager.requests_per_us == Some(0) {
            let why = "is zero; give 1 or more, or leave it out".to_owned();
            return Err(("manager.requests_per_us".to_owned(), why));
        }
        if self.messages.header_bytes > MOST_HEADER_BYTES {
            let why = format!("{}; give at most {MOST_HEADER_BYTES}", self.messages.header_bytes);
            return Err(("messages.header_bytes".to_owned(), why));
        }
        if self.window_ns == 0 || Nanos(self.window_ns) > MAX_LATENCY {
            let why = format!("{} ns; give 1 ns to a second", self.window_ns);
            return Err(("window_ns".to_owned(), why));
        }
        Ok(())
    }

    fn check_files(&self) -> Result<(), WrongValue> {
        let mut sizes = BTreeMap::new();
        for file in &self.files {
            let key = |key: &str| format!("file \"{}\", {key}", file.id);
            file.range().map_err(|(wrong, why)| (key(wrong), why))?;
            if self.pools.is_empty() {
                return Err((key("id"), "there is no pool to hold it; add a [[pool]]".to_owned()));
            }
            if let Some(before) = sizes.insert(file.id, &file.size).filter(|s| **s != file.size) {
                let why = format!("is {before:?} in one place and {:?} in another", file.size);
                return Err((key("size"), why));
            }
            if file.moves_per_ms == Some(0) {
                return Err((
                    key("moves_per_ms"),
                    "is zero; give 1 or more, or leave it out".into(),
                ));
            }
            let unknown = |name: &&String| self.hosts.iter().all(|group| group.name != **name);
            for (of, names) in [("hosts", &file.hosts), ("trespassers", &file.trespassers)] {
                if let Some(name) = names.iter().find(unknown) {
                    return Err((key(of), format!("{name:?} is no group of hosts")));
                }
            }
            if let Some(name) = file.trespassers.iter().find(|name| file.may_reach(name)) {
                let why = format!("{name:?} may reach it; name in hosts those that may");
                return Err((key("trespassers"), why));
            }
        }
        Ok(())
    }
}

impl SharedFileEntry {
    /// Whether hosts of this group may reach it.
    pub(crate) fn may_reach(&self, group: &String) -> bool {
        self.hosts.is_empty() || self.hosts.contains(group)
    }

    /// Its first page and its pages, counted from the begin of a host's data.
    pub(crate) fn range(&self) -> Result<(u64, u64), (&'static str, String)> {
        let read = |key, text: &str, least| match parse_bytes(text) {
            Some(bytes) if bytes.get() >= least && bytes.get() % PAGE == 0 => Ok(bytes.get()),
            _ => Err((key, format!("{text:?} is no whole number of pages of 4 KiB"))),
        };
        let size = read("size", &self.size, PAGE)?;
        let offset = self.offset.as_deref().map_or(Ok(0), |offset| read("offset", offset, 0))?;
        Ok((offset / PAGE, size / PAGE))
    }
}

fn check_host(group: &HostGroup) -> Result<(), (&'static str, String)> {
    let positive = "give 1 or more, or leave it out";
    if group.weight == 0 {
        return Err(("weight", "is zero; give 1 or more".to_owned()));
    }
    if group.clock_mhz == 0 {
        return Err(("clock_mhz", "is zero; give the clock of a core".to_owned()));
    }
    if group.cap_bytes_per_s == Some(0) {
        return Err(("cap_bytes_per_s", format!("is zero; {positive}")));
    }
    if group.cores == Some(0) {
        return Err(("cores", format!("is zero; {positive}")));
    }
    if let Some(swap) = group.swap {
        if [swap.read_ns, swap.write_ns].iter().any(|ns| Nanos(*ns) > MAX_LATENCY) {
            return Err(("swap", "takes over a second a page; give less".to_owned()));
        }
    }
    group.placement_policy().map_err(|why| ("placement", why))?;
    AllocationPolicy::from_name(&group.policy).map_err(|e| ("policy", e.to_string()))?;
    Ok(())
}

impl HostGroup {
    /// Its placement policy; first touch where it has none.
    pub(crate) fn placement_policy(&self) -> Result<PolicyId, String> {
        let name = self.placement.as_deref().unwrap_or(PolicyId::FirstTouch.name());
        name.parse::<PolicyId>().map_err(|e| e.to_string())
    }
}

fn check_access(access: &AccessDescription) -> Result<(), (&'static str, String)> {
    let needed = |key, value: Option<u64>, most| match value {
        None => Err((key, "is missing; this scheme needs it".to_owned())),
        Some(value) if value > most => Err((key, format!("{value}; give at most {most}"))),
        Some(_) => Ok(()),
    };
    if access.scheme == AccessScheme::Translation {
        needed("entries", access.entries.map(u64::from), MOST_ENTRIES.into())?;
        needed("ways", access.ways.map(u64::from), MOST_ENTRIES.into())?;
        needed("hit_ns", access.hit_ns, MAX_LATENCY.get())?;
        needed("step_ns", access.step_ns, MAX_LATENCY.get() / 32)?;
        let steps = access.steps.unwrap_or(*STEPS.start());
        if !STEPS.contains(&steps) {
            let why = format!("{steps}; give {} to {}", STEPS.start(), STEPS.end());
            return Err(("steps", why));
        }
        let (entries, ways) = (access.entries.unwrap_or(0), access.ways.unwrap_or(0));
        if ways == 0 || entries == 0 || entries % ways != 0 {
            return Err(("entries", format!("{entries} are no whole sets of {ways} ways")));
        }
        return Ok(());
    }
    needed("check_ns", access.check_ns, MAX_LATENCY.get())?;
    if access.checks_per_us == Some(0) {
        return Err(("checks_per_us", "is zero; give 1 or more, or leave it out".to_owned()));
    }
    Ok(())
}

/// The error with the line of what is wrong, as far as the text tells.
fn add_line(error: PoolError, text: &str, system: &SystemDescription) -> PoolError {
    match error {
        PoolError::Value { file, line: None, key, why } => {
            PoolError::Value { line: find_line(text, &key), file, key, why }
        }
        PoolError::Fabric { file, line: None, why } => {
            PoolError::Fabric { line: find_fabric_line(text, system, &why), file, why }
        }
        other => other,
    }
}

/// The line of the link at which a fabric goes wrong, or of the part that no link reaches.
fn find_fabric_line(text: &str, system: &SystemDescription, why: &FabricError) -> Option<usize> {
    let position = |line: &str, from: usize| {
        let found = text.lines().skip(from).position(|l| l.trim() == line)?;
        Some(from + found)
    };
    if let FabricError::Gap { name, .. } = why {
        let named = |group: &&String| name.starts_with(group.as_str());
        let groups =
            system.hosts.iter().map(|h| &h.name).chain(system.pools.iter().map(|p| &p.name));
        let group = groups.chain(system.switches.iter().map(|s| &s.name)).filter(named);
        let group = group.max_by_key(|group| group.len())?;
        let is_name = |line: &str| {
            let value =
                |text: &str| text.split('#').next().map(|v| v.trim().trim_matches('"') == group);
            line.split_once('=').is_some_and(|(k, v)| k.trim() == "name" && value(v) == Some(true))
        };
        return text.lines().position(is_name).map(|index| index + 1);
    }
    // The first link with which the fabric is wrong in this way.
    let mut part = system.clone();
    let wrong = |links: &usize| {
        part.links.clone_from(&system.links[..*links].to_vec());
        matches!(part.fabric(""), Err(PoolError::Fabric { why: found, .. }) if found == *why)
    };
    let links = (1..=system.links.len()).find(wrong)?;
    let mut line = 0;
    for _ in 0..links {
        line = position("[[link]]", line)? + 1;
    }
    Some(line)
}

/// The line, from 1, that gives a name, in quotes, for the second time.
fn find_second_use(text: &str, quoted: &str) -> Option<usize> {
    let gives = |line: &str| {
        let value = |value: &str| value.split('#').next().map(str::trim) == Some(quoted);
        line.split_once('=').is_some_and(|(key, text)| key.trim() == "name" && value(text))
    };
    // The system's own name stands before all tables.
    let lines = text.lines().enumerate().skip_while(|(_, line)| !line.trim().starts_with('['));
    lines.filter(|(_, line)| gives(line)).nth(1).map(|(index, _)| index + 1)
}

/// The line, from 1, that says what is called `TABLE.KEY` or `TABLE "NAME", KEY` in errors.
fn find_line(text: &str, called: &str) -> Option<usize> {
    if let Some(name) = called.strip_prefix("name ") {
        return find_second_use(text, name);
    }
    let (table, name, key) = match called.split_once(", ") {
        Some((group, key)) => {
            let (table, name) = group.split_once(' ')?;
            (table, Some(name.trim_matches('"')), key)
        }
        // A key of the file itself stands before all tables.
        None => {
            let (table, key) = called.split_once('.').unwrap_or(("", called));
            (table, None, key)
        }
    };
    let value = |line: &str| {
        let (key, value) = line.split_once('=')?;
        Some((key.trim().to_owned(), value.trim().to_owned()))
    };
    // Of a table: whether it is the group that is meant, and where the key is.
    let (mut inside, mut named, mut at) = (table.is_empty(), name.is_none(), None);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            if named && at.is_some() {
                break;
            }
            inside = line.trim_matches(['[', ']']) == table;
            (named, at) = (name.is_none(), None);
        } else if let Some((found, value)) = value(line).filter(|_| inside) {
            let names = found == "name" || found == "id";
            named |= names && name.is_some_and(|n| value.trim_matches('"') == n);
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
        check_ns: 0,
    })
}
