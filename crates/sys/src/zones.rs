//! `/proc/zoneinfo`: which page frames belong to which node, and what is free above the kernel's
//! own reserves (kernel: `mm/vmstat.c`, watermarks in `mm/page_alloc.c`).

use crate::{Root, SysError};
use terrace_types::{Bytes, NodeId};

/// One zone of one node. All counts are base pages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Zone {
    /// Node.
    pub node: NodeId,
    /// `DMA`, `DMA32`, `Normal`, `Movable`, `Device`.
    pub name: String,
    /// Free, and on no CPU's list.
    pub free: u64,
    /// Free, on lists of the CPUs (`per_cpu_pages`), where the kernel does not count them as free.
    pub listed: u64,
    /// Pages that a CPU's list gets at a time, before that is doubled.
    pub batch: u64,
    /// Watermarks: below `min` only the kernel itself allocates.
    pub min: u64,
    /// Below `low` kswapd wakes.
    pub low: u64,
    /// kswapd sleeps above `high`.
    pub high: u64,
    /// Frames from first to last, holes included.
    pub spanned: u64,
    /// Frames that the page allocator hands out.
    pub managed: u64,
    /// Largest lowmem reserve kept from allocations that could use a higher zone.
    pub protection: u64,
    /// First frame.
    pub start_pfn: u64,
}

impl Zone {
    /// What ordinary user allocations must leave free here.
    #[must_use]
    pub const fn reserve(&self) -> u64 {
        self.high.saturating_add(self.protection)
    }

    /// Whether a frame lies in the zone's span.
    #[must_use]
    pub const fn spans(&self, pfn: u64) -> bool {
        pfn >= self.start_pfn && pfn - self.start_pfn < self.spanned
    }
}

/// Reads the text of zoneinfo; lines it does not know are skipped.
#[must_use]
pub fn parse_zoneinfo(text: &str) -> Vec<Zone> {
    let mut zones: Vec<Zone> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Node ") {
            let Some((node, name)) = rest.split_once(", zone") else {
                continue;
            };
            let Ok(node) = node.trim().parse() else {
                continue;
            };
            zones.push(Zone {
                node: NodeId(node),
                name: name.trim().to_owned(),
                ..Zone::default()
            });
            continue;
        }
        let Some(zone) = zones.last_mut() else {
            continue;
        };
        let line = line.trim();
        if let Some(list) = line.strip_prefix("protection:") {
            let numbers = list.split(|c: char| !c.is_ascii_digit());
            zone.protection = numbers.filter_map(|n| n.parse().ok()).max().unwrap_or(0);
            continue;
        }
        let Some((key, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let Ok(value) = value.parse::<u64>() else {
            continue;
        };
        // The page sets of each CPU have a line `high:`, with a colon; the watermark has none.
        match key.trim() {
            "pages free" => zone.free = value,
            "count:" => zone.listed = zone.listed.saturating_add(value),
            "batch:" => zone.batch = zone.batch.max(value),
            "min" => zone.min = value,
            "low" => zone.low = value,
            "high" => zone.high = value,
            "spanned" => zone.spanned = value,
            "managed" => zone.managed = value,
            "start_pfn:" => zone.start_pfn = value,
            _ => {}
        }
    }
    zones.retain(|z| z.managed > 0);
    zones
}

/// All zones that hold memory.
///
/// # Errors
/// When zoneinfo cannot be read.
pub fn zones(root: &Root) -> Result<Vec<Zone>, SysError> {
    Ok(parse_zoneinfo(&root.text("/proc/zoneinfo")?))
}

/// Memory of one node that user pages can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeFreeMemory {
    /// In all: managed less the kernel's reserves.
    pub capacity: Bytes,
    /// Free now above the reserves, for whoever asks.
    pub free: Bytes,
    /// In nobody's use: those, and what lies on lists of the CPUs. A CPU has what is on its own
    /// list only, and page by page; so this is what tells how full a node is, and `free` how much
    /// may be asked of it at once.
    pub unused: Bytes,
    /// Of `free`, what whoever touches it has for certain: a list is refilled by many pages at a
    /// time, and by two huge pages where those are in use, and what is on it when the watermark is
    /// reached, nobody gets (`nr_pcp_alloc` and `rmqueue_bulk`, `mm/page_alloc.c`).
    pub sure: Bytes,
}

/// Doublings of a batch at most (`CONFIG_PCP_BATCH_SCALE_MAX`, its default).
const BATCH_SCALE_MAX: u32 = 5;
/// Base pages of 4 KiB in a huge page; with larger ones huge pages are too large for a CPU's list.
const HUGE: u64 = 512;

impl Zone {
    /// Pages that a refill may leave on a list for nobody.
    fn left_over(&self, page_size: Bytes) -> u64 {
        let huge = if page_size == Bytes(4096) { HUGE } else { 0 };
        self.batch.saturating_mul(1 << BATCH_SCALE_MAX).saturating_add(huge)
    }
}

/// Free memory of `node`, with base pages of `page_size`.
#[must_use]
pub fn free_memory(zones: &[Zone], node: NodeId, page_size: Bytes) -> NodeFreeMemory {
    let mut memory = NodeFreeMemory::default();
    for zone in zones.iter().filter(|z| z.node == node && z.name != "Device") {
        let size = page_size.get();
        memory.capacity += Bytes(zone.managed.saturating_sub(zone.reserve()).saturating_mul(size));
        memory.free += Bytes(zone.free.saturating_sub(zone.reserve()).saturating_mul(size));
        let unused = zone.free.saturating_add(zone.listed).saturating_sub(zone.reserve());
        memory.unused += Bytes(unused.saturating_mul(size));
        let sure =
            zone.free.saturating_sub(zone.reserve().saturating_add(zone.left_over(page_size)));
        memory.sure += Bytes(sure.saturating_mul(size));
    }
    memory
}

/// Tells a frame's node. Spans of nodes may interleave; then only a query to the kernel knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FrameMap {
    /// Start, end and node, by start.
    spans: Vec<(u64, u64, NodeId)>,
    overlapping: bool,
}

impl FrameMap {
    /// From the zones' spans.
    #[must_use]
    pub fn new(zones: &[Zone]) -> Self {
        let mut spans: Vec<(u64, u64, NodeId)> = zones
            .iter()
            .map(|z| (z.start_pfn, z.start_pfn.saturating_add(z.spanned), z.node))
            .collect();
        spans.sort_unstable();
        let overlapping = spans.windows(2).any(|w| w[0].1 > w[1].0 && w[0].2 != w[1].2);
        Self { spans, overlapping }
    }

    /// Whether [`FrameMap::node`] can be trusted.
    #[must_use]
    pub fn usable(&self) -> bool {
        !self.overlapping && !self.spans.is_empty()
    }

    /// Node of a frame; `None` outside all spans.
    #[must_use]
    pub fn node(&self, pfn: u64) -> Option<NodeId> {
        let at = self.spans.partition_point(|s| s.0 <= pfn);
        let (_, end, node) = *self.spans.get(at.checked_sub(1)?)?;
        (pfn < end).then_some(node)
    }

    /// One past the last frame of all.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.spans.iter().map(|s| s.1).max().unwrap_or(0)
    }

    /// Spans as `(start, end, node)`, by start.
    #[must_use]
    pub fn spans(&self) -> &[(u64, u64, NodeId)] {
        &self.spans
    }
}

/// Whether `node` alone has memory: then all pages are on it, and binding changes nothing.
#[must_use]
pub fn is_only_node(root: &Root, node: NodeId) -> bool {
    nodes_with_memory(root) == [node]
}

/// Nodes with memory, as sysfs lists them; node 0 alone where sysfs knows no nodes.
#[must_use]
pub fn nodes_with_memory(root: &Root) -> Vec<NodeId> {
    root.text("/sys/devices/system/node/has_memory")
        .ok()
        .and_then(|t| crate::task::parse_list(&t, 1 << 16))
        .map(|l| l.into_iter().filter_map(|n| u16::try_from(n).ok()).map(NodeId).collect())
        .filter(|l: &Vec<NodeId>| !l.is_empty())
        .unwrap_or_else(|| vec![NodeId(0)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SAMPLE: &str = "Node 0, zone    DMA32\n  per-node stats\n      nr_x 5\n  pages free     \
        1000\n        boost    0\n        min      10\n        low      12\n        high     \
        15\n        spanned  4000\n        present  4000\n        managed  3900\n        \
        protection: (0, 0, 100, 100)\n      nr_free_pages 1\n  pagesets\n    cpu: \
        0\n              count:    120\n              high:     378\n              batch:    \
        3\n    cpu: 1\n              count:    7\n              high:     378\n  \
        start_pfn:           4096\nNode 1, zone   Normal\n  pages free     500\n        high     \
        20\n        spanned  1000\n        managed  900\n        protection: (0, 0, 0)\n  \
        start_pfn:           8192\nNode 1, zone Movable\n  pages free 0\n        managed 0\n";

    #[test]
    fn free_memory_leaves_the_kernel_its_reserves() {
        let zones = parse_zoneinfo(SAMPLE);
        assert_eq!(zones.len(), 2);
        assert_eq!(free_memory(&zones, NodeId(0), Bytes(4096)).free, Bytes((1000 - 115) * 4096));
        assert_eq!(
            free_memory(&zones, NodeId(0), Bytes(4096)).unused,
            Bytes((1000 + 127 - 115) * 4096)
        );
        assert_eq!(free_memory(&zones, NodeId(1), Bytes(4096)).capacity, Bytes(880 * 4096));
        assert_eq!(
            free_memory(&zones, NodeId(0), Bytes(4096)).sure,
            Bytes((1000 - 115 - 3 * 32 - 512) * 4096)
        );
        assert_eq!(free_memory(&zones, NodeId(1), Bytes(4096)).sure, Bytes(0));
    }

    #[test]
    fn frames_find_their_node() {
        let frames = FrameMap::new(&parse_zoneinfo(SAMPLE));
        assert!(frames.usable());
        assert_eq!(frames.node(4096), Some(NodeId(0)));
        assert_eq!(frames.node(8192 + 999), Some(NodeId(1)));
        assert_eq!(frames.node(8192 + 1000), None);
        assert_eq!(frames.node(1), None);
    }

    #[test]
    fn this_machine_has_free_memory() {
        let zones = zones(&Root::live()).unwrap();
        let nodes = nodes_with_memory(&Root::live());
        assert!(free_memory(&zones, nodes[0], Bytes(4096)).capacity > Bytes::mib(16));
    }

    proptest! {
        #[test]
        fn any_text_is_survived(parts in prop::collection::vec(prop::sample::select(vec![
            "Node ", "0", ", zone", "\n", " pages free ", "99999999999999999999", "high", " ",
            "protection: (", ",", "count: ", "batch: ", "start_pfn:", "18446744073709551615",
            "spanned ", "managed ",
        ]), 0..80)) {
            let zones = parse_zoneinfo(&parts.concat());
            let frames = FrameMap::new(&zones);
            let _ = frames.node(7);
            let _ = free_memory(&zones, NodeId(0), Bytes(4096));
        }
    }
}
