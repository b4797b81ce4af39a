//! Memory by node: of processes from `/proc/PID/numa_maps` (kernel: `fs/proc/task_mmu.c`), of nodes
//! from `/sys/devices/system/node/nodeN/meminfo` (`drivers/base/node.c`); and pages that the kernel
//! has moved, from `/proc/vmstat` (`mm/vmstat.c`).

use crate::{maps, zones, Root, SysError};
use std::collections::BTreeMap;
use terrace_types::{Bytes, NodeId, Pid};

/// Bytes of `numa_maps` that are read: at 100 each, 640,000 mappings.
const MOST_BYTES: usize = 64 << 20;
/// Digits of a node's number.
const MOST_NODE: u16 = 4096;

/// One mapping with its memory by node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeMapping {
    /// First address.
    pub start: u64,
    /// Bytes in memory by node.
    pub by_node: BTreeMap<NodeId, Bytes>,
    /// File, or `[heap]`, `[stack]`; empty: anonymous.
    pub name: String,
}

impl NodeMapping {
    /// Bytes in memory.
    #[must_use]
    pub fn resident(&self) -> Bytes {
        self.by_node.values().fold(Bytes::ZERO, |sum, bytes| sum + *bytes)
    }
}

/// Memory of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeMemory {
    /// Node.
    pub node: NodeId,
    /// All that it has.
    pub total: Bytes,
    /// Free.
    pub free: Bytes,
}

/// Pages that the kernel has moved since it booted, by reason. A counter that the kernel lacks is
/// zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageMoves {
    /// Moved for any reason (`pgmigrate_success`).
    pub migrated: u64,
    /// Not moved (`pgmigrate_fail`).
    pub failed: u64,
    /// By NUMA balancing (`numa_pages_migrated`).
    pub balanced: u64,
    /// To a faster tier (`pgpromote_success`).
    pub promoted: u64,
    /// To a slower tier (`pgdemote_*`).
    pub demoted: u64,
}

/// Reads the counters of moved pages out of the text of `/proc/vmstat`; lines that are not
/// understood are left out.
#[must_use]
pub fn parse_page_moves(text: &str) -> PageMoves {
    let mut moves = PageMoves::default();
    for line in text.lines() {
        let Some((name, count)) = line.split_once(' ') else { continue };
        let Ok(count) = count.trim().parse::<u64>() else { continue };
        let counter = match name {
            "pgmigrate_success" => &mut moves.migrated,
            "pgmigrate_fail" => &mut moves.failed,
            "numa_pages_migrated" => &mut moves.balanced,
            "pgpromote_success" => &mut moves.promoted,
            name if name.starts_with("pgdemote_") => &mut moves.demoted,
            _ => continue,
        };
        *counter = counter.saturating_add(count);
    }
    moves
}

/// Pages that the kernel has moved since it booted.
///
/// # Errors
/// `/proc/vmstat` cannot be read.
pub fn page_moves(root: &Root) -> Result<PageMoves, SysError> {
    Ok(parse_page_moves(&root.text("/proc/vmstat")?))
}

/// The node that a CPU belongs to, where the kernel says.
#[must_use]
pub fn node_of_cpu(root: &Root, cpu: u32) -> Option<NodeId> {
    let names = root.list(&format!("/sys/devices/system/cpu/cpu{cpu}")).ok()?;
    names.iter().find_map(|name| name.strip_prefix("node")?.parse().ok().map(NodeId))
}

/// Reads the text of `numa_maps`; lines that are not understood are left out.
#[must_use]
pub fn parse_numa_maps(text: &str) -> Vec<NodeMapping> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<NodeMapping> {
    let mut words = line.split(' ').filter(|word| !word.is_empty());
    let mut mapping =
        NodeMapping { start: u64::from_str_radix(words.next()?, 16).ok()?, ..Default::default() };
    let (mut pages, mut page_kib) = (Vec::new(), 4u64);
    // The policy comes second and may look like anything.
    for word in words.skip(1) {
        match word.split_once('=') {
            None if word == "heap" => mapping.name = "[heap]".to_owned(),
            None if word == "stack" => mapping.name = "[stack]".to_owned(),
            Some(("file", name)) => mapping.name = unescaped(name),
            Some(("kernelpagesize_kB", kib)) => page_kib = kib.parse().ok()?,
            Some((key, count)) => {
                let node = key.strip_prefix('N').and_then(|number| number.parse().ok());
                if let Some(node) = node.filter(|node| *node < MOST_NODE) {
                    pages.push((NodeId(node), count.parse::<u64>().ok()?));
                }
            }
            None => {}
        }
    }
    for (node, count) in pages {
        mapping.by_node.insert(node, Bytes(count.checked_mul(page_kib.checked_mul(1024)?)?));
    }
    Some(mapping)
}

/// File names have octal escapes for space, tab, line feed and backslash.
fn unescaped(name: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(name.to_owned(), |name, (escape, plain)| name.replace(escape, plain))
}

/// Mappings of a process that have memory. Anonymous ones have the name that the program gave them
/// (`[anon:NAME]`, prctl's `PR_SET_VMA`), which only `/proc/PID/maps` has.
///
/// # Errors
/// [`SysError::Gone`], [`SysError::NotPermitted`] for another user's process, [`SysError::Absent`]
/// without CONFIG_NUMA.
pub fn numa_maps(root: &Root, pid: Pid) -> Result<Vec<NodeMapping>, SysError> {
    let bytes = root.read(&format!("/proc/{pid}/numa_maps"), MOST_BYTES)?;
    let mut mappings = parse_numa_maps(&String::from_utf8_lossy(&bytes));
    mappings.retain(|mapping| mapping.resident() > Bytes::ZERO);
    if let Ok(lines) = maps::maps(root, pid) {
        let names: BTreeMap<u64, String> = lines.into_iter().map(|l| (l.start, l.name)).collect();
        for mapping in mappings.iter_mut().filter(|mapping| mapping.name.is_empty()) {
            mapping.name = names.get(&mapping.start).cloned().unwrap_or_default();
        }
    }
    Ok(mappings)
}

/// Memory of all nodes that have some.
#[must_use]
pub fn node_memory(root: &Root) -> Vec<NodeMemory> {
    let read = |node: NodeId| {
        let text = root.text(&format!("/sys/devices/system/node/node{node}/meminfo")).ok()?;
        let field = |name: &str| {
            let line = text.lines().find(|line| line.split_whitespace().nth(2) == Some(name))?;
            let kib: u64 = line.split_whitespace().nth(3)?.parse().ok()?;
            kib.checked_mul(1024).map(Bytes)
        };
        Some(NodeMemory { node, total: field("MemTotal:")?, free: field("MemFree:")? })
    };
    zones::nodes_with_memory(root).into_iter().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mappings_have_their_bytes_by_node() {
        let text = "55a7d4428000 default file=/usr/bin/a\\040b mapped=2 mapmax=2 N0=2 \
            kernelpagesize_kB=4\n\
                    55a811192000 bind:0 heap anon=5 dirty=4 active=0 N0=1 N1=4 \
                    kernelpagesize_kB=4\n\
                    7f0000000000 default huge anon=1 N1=1 kernelpagesize_kB=2048\n\
                    7ffc8a7e2000 default\nnonsense\n";
        let maps = parse_numa_maps(text);
        let reported: Vec<(&str, u64)> =
            maps.iter().map(|m| (m.name.as_str(), m.resident().get() >> 10)).collect();
        assert_eq!(reported, [("/usr/bin/a b", 8), ("[heap]", 20), ("", 2048), ("", 0)]);
        assert_eq!(maps[1].by_node[&NodeId(1)], Bytes(16 << 10));
    }

    #[test]
    fn moved_pages_are_counted_by_reason() {
        let text = "nr_free_pages 7\npgpromote_success 5\npgpromote_candidate 9\n\
            pgdemote_kswapd 2\npgdemote_direct 3\nnuma_pages_migrated 4\npgmigrate_success 11\n\
            pgmigrate_fail 1\npgmigrate_success nonsense\nalone\n";
        let moves = parse_page_moves(text);
        let wanted = PageMoves { migrated: 11, failed: 1, balanced: 4, promoted: 5, demoted: 5 };
        assert_eq!(moves, wanted);
    }

    #[test]
    fn this_process_and_its_nodes_are_read() {
        let root = Root::live();
        match numa_maps(&root, Pid(std::process::id() as i32)) {
            Ok(maps) => assert!(maps.iter().any(|m| m.resident() > Bytes::ZERO)),
            Err(error) => println!("skipped: {error}"),
        }
        let nodes = node_memory(&root);
        assert!(nodes.iter().all(|node| node.free <= node.total), "{nodes:?}");
    }

    proptest! {
        #[test]
        fn any_text_is_survived(parts in prop::collection::vec(prop::sample::select(vec![
            "7f00", " default", " N0=", " N1=", " N99999=", "18446744073709551615", "1", "\n",
            " file=", "\\040", " heap", " kernelpagesize_kB=", "=", " ",
        ]), 0..60)) {
            let maps = parse_numa_maps(&parts.concat());
            prop_assert!(maps.iter().all(|m| m.by_node.len() <= 2));
        }
    }
}
