//! Counters that the guest reads around a job.

use crate::wire::ThreadCpu;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// /proc/vmstat as a map; empty where it cannot be read.
pub fn vmstat(procfs: &Path) -> BTreeMap<String, i64> {
    parse_vmstat(&fs::read_to_string(procfs.join("vmstat")).unwrap_or_default())
}

fn parse_vmstat(text: &str) -> BTreeMap<String, i64> {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_string(), value.trim().parse().ok()?))
        })
        .collect()
}

/// What changed between two readings.
pub fn difference(
    before: &BTreeMap<String, i64>,
    after: &BTreeMap<String, i64>,
) -> BTreeMap<String, i64> {
    after
        .iter()
        .filter_map(|(name, value)| {
            let change = value - before.get(name).copied().unwrap_or(0);
            (change != 0).then(|| (name.clone(), change))
        })
        .collect()
}

/// Free bytes of every node.
pub fn free_bytes(sysfs: &Path) -> BTreeMap<u32, u64> {
    let mut out = BTreeMap::new();
    let Ok(entries) = fs::read_dir(sysfs.join("devices/system/node")) else { return out };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(id) =
            name.to_str().and_then(|n| n.strip_prefix("node")).and_then(|n| n.parse().ok())
        else {
            continue;
        };
        let text = fs::read_to_string(entry.path().join("meminfo")).unwrap_or_default();
        if let Some(kib) = meminfo_kib(&text, "MemFree:") {
            out.insert(id, kib * 1024);
        }
    }
    out
}

fn meminfo_kib(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.split_once(key).map(|(_, rest)| rest))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Pages below which the kernel gives nothing from a node to a normal allocation: the sum of its
/// zones' high marks.
pub fn reserve_pages(procfs: &Path, node: u32) -> u64 {
    parse_reserve(&fs::read_to_string(procfs.join("zoneinfo")).unwrap_or_default(), node)
}

fn parse_reserve(text: &str, node: u32) -> u64 {
    let (mut here, mut sum) = (false, 0);
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Node ") {
            here = rest.split(',').next().and_then(|n| n.trim().parse::<u32>().ok()) == Some(node);
        } else if here {
            // Per-CPU lines read "high:" and do not count.
            let mut words = line.split_whitespace();
            if words.next() == Some("high") {
                sum += words.next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
            }
        }
    }
    sum
}

/// Nanoseconds on a processor of every thread whose name starts with one of `prefixes`, by process
/// id.
pub fn threads_cpu(procfs: &Path, prefixes: &[String]) -> BTreeMap<u32, ThreadCpu> {
    let mut out = BTreeMap::new();
    let Ok(entries) = fs::read_dir(procfs) else { return out };
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
        let Ok(name) = fs::read_to_string(entry.path().join("comm")) else { continue };
        let name = name.trim();
        if !prefixes.iter().any(|p| name.starts_with(p.as_str())) {
            continue;
        }
        let stat = fs::read_to_string(entry.path().join("schedstat")).unwrap_or_default();
        let nanos = stat.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
        out.insert(pid, ThreadCpu { name: name.to_string(), nanos });
    }
    out
}

/// Processor time between two readings; a thread that is new counts whole.
pub fn threads_cpu_since(
    before: &BTreeMap<u32, ThreadCpu>,
    after: BTreeMap<u32, ThreadCpu>,
) -> Vec<ThreadCpu> {
    after
        .into_iter()
        .map(|(pid, cpu)| {
            let earlier = before.get(&pid).map_or(0, |c| c.nanos);
            ThreadCpu { nanos: cpu.nanos.saturating_sub(earlier), ..cpu }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vmstat_differences() {
        let a = parse_vmstat("pgpromote_success 5\npgfault 10\nnonsense\n");
        let b = parse_vmstat("pgpromote_success 9\npgfault 10\nnew 3\n");
        let d = difference(&a, &b);
        assert_eq!(d.get("pgpromote_success"), Some(&4));
        assert_eq!(d.get("new"), Some(&3));
        assert_eq!(d.get("pgfault"), None);
    }

    #[test]
    fn reserve_sums_the_nodes_zones_only() {
        let text = "Node 0, zone      DMA\n  pages free     1\n        high     10\n    cpu: \
                0\n              high:  99\n\
                    Node 0, zone    DMA32\n        high     32\nNode 1, zone   Normal\n        \
                    high     7\n";
        assert_eq!(parse_reserve(text, 0), 42);
        assert_eq!(parse_reserve(text, 1), 7);
        assert_eq!(parse_reserve("garbage", 1), 0);
    }

    #[test]
    fn meminfo_line() {
        assert_eq!(
            meminfo_kib("Node 0 MemTotal: 10 kB\nNode 0 MemFree:   137012 kB\n", "MemFree:"),
            Some(137_012)
        );
        assert_eq!(meminfo_kib("", "MemFree:"), None);
    }
}
