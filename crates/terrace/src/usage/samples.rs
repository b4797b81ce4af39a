//! Who accesses the memory, by samples.

use super::{AccessUsage, ProcessMappings};
use std::collections::BTreeMap;
use terrace_engine::{Mapping, MappingKind, SampleRequest, Tracker};
use terrace_sys::{now, query_pages, sleep};
use terrace_track::PerfSamples;
use terrace_types::{CellCount, Nanos, NodeId, PageStatus, Pid, Vpn, VpnRange};

/// Pages of a process whose node is asked for, those with most samples first: a page takes the
/// kernel about half a microsecond, and watching may take a hundredth of a core.
const MAX_LOCATED: usize = 4096;

/// Samples all processes for `span` and adds what was seen to them; how many samples were lost.
pub(super) fn sample(
    tracker: &mut PerfSamples,
    processes: &mut [ProcessMappings],
    span: Nanos,
) -> Result<u64, String> {
    // Whatever the addresses: the tracker keeps counts by page for all that these processes access.
    let mappings: Vec<Mapping> = processes
        .iter()
        .map(|(process, _)| Mapping {
            pid: Pid(process.pid),
            range: VpnRange::new(Vpn(0), Vpn(0)),
            kind: MappingKind::Anonymous,
            writable: true,
        })
        .collect();
    let ask = SampleRequest {
        interval: span,
        fine: Vec::new(),
        reads: true,
        writes: true,
        relaxed: false,
        quick_scan: false,
    };
    tracker.begin(&mappings, &ask).map_err(|e| e.to_string())?;
    sleep(span);
    let seen = tracker.finish(now()).map_err(|e| e.to_string())?;
    for process in processes {
        let pid = Pid(process.0.pid);
        // Counts are in order of processes.
        let from = seen.by_cell.partition_point(|c| c.pid < pid);
        let to = seen.by_cell.partition_point(|c| c.pid <= pid);
        let counts = &seen.by_cell[from..to];
        let nodes = located(pid, counts);
        add_samples(process, counts, &nodes, terrace_sys::page_size().get());
    }
    Ok(seen.lost)
}

fn samples_of(count: &CellCount) -> u64 {
    u64::from(count.reads) + u64::from(count.writes)
}

/// The nodes that the pages with most samples are on.
fn located(pid: Pid, counts: &[CellCount]) -> BTreeMap<Vpn, NodeId> {
    let mut by_page: BTreeMap<Vpn, u64> = BTreeMap::new();
    counts.iter().for_each(|c| *by_page.entry(c.vpn).or_default() += samples_of(c));
    let mut pages: Vec<(u64, Vpn)> = by_page.into_iter().map(|(vpn, n)| (n, vpn)).collect();
    pages.sort_unstable_by_key(|(n, vpn)| (std::cmp::Reverse(*n), *vpn));
    let pages: Vec<Vpn> = pages.into_iter().map(|(_, vpn)| vpn).take(MAX_LOCATED).collect();
    let on = query_pages(pid, &pages).unwrap_or_default();
    let found = pages.into_iter().zip(on).filter_map(|(vpn, status)| match status {
        PageStatus::On(node) => Some((vpn, node)),
        _ => None,
    });
    found.collect()
}

/// Adds samples to a process and its mappings. `nodes`: where pages are that were found.
fn add_samples(
    (process, mappings): &mut ProcessMappings,
    counts: &[CellCount],
    nodes: &BTreeMap<Vpn, NodeId>,
    page: u64,
) {
    let mut starts: Vec<u64> = mappings.iter().map(|m| m.start).collect();
    starts.sort_unstable();
    let mut by_mapping: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut usage = AccessUsage::default();
    let (mut local, mut found) = (0, 0);
    let mut last = None;
    for count in counts {
        let samples = samples_of(count);
        usage.samples += samples;
        *usage.by_cpu_node.entry(count.cell.0).or_default() += samples;
        if let Some(thread) = count.thread {
            *usage.by_thread.entry(thread.0).or_default() += samples;
        }
        if let Some(node) = nodes.get(&count.vpn) {
            *usage.by_memory_node.entry(node.0).or_default() += samples;
            found += samples;
            local += if *node == count.cell { samples } else { 0 };
        }
        let address = count.vpn.0 * page;
        let before = starts.partition_point(|start| *start <= address);
        let of_mapping = before.checked_sub(1).map(|i| by_mapping.entry(starts[i]).or_default());
        // Counts are in order of pages.
        let first = last.replace(count.vpn) != Some(count.vpn);
        let hot = if first { page } else { 0 };
        usage.hot_bytes += hot;
        if let Some((all, bytes)) = of_mapping {
            *all += samples;
            *bytes += hot;
        }
    }
    usage.local_share = (found > 0).then(|| local as f64 / found as f64);
    usage.cold_bytes = process.resident_bytes.saturating_sub(usage.hot_bytes);
    for mapping in &mut process.mappings {
        let (samples, hot) = by_mapping.get(&mapping.start).copied().unwrap_or_default();
        (mapping.samples, mapping.hot_bytes) = (Some(samples), Some(hot));
    }
    process.accesses = Some(usage);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::{MappingUsage, ProcessUsage};
    use terrace_sys::NodeMapping;
    use terrace_types::Tid;

    #[test]
    fn samples_go_to_threads_mappings_and_nodes() {
        let mapping = |start: u64| MappingUsage {
            start,
            name: String::new(),
            by_node_bytes: BTreeMap::new(),
            samples: None,
            hot_bytes: None,
        };
        let process = ProcessUsage {
            pid: 7,
            name: "solver".into(),
            threads: 2,
            resident_bytes: 10 * 4096,
            by_node_bytes: BTreeMap::new(),
            mappings: vec![mapping(0x10_000), mapping(0x20_000)],
            accesses: None,
        };
        let of = |start: u64| NodeMapping { start, ..NodeMapping::default() };
        let mut both = (process, vec![of(0x20_000), of(0x10_000)]);
        let count = |vpn: u64, cell: u16, thread: i32, reads: u32| CellCount {
            pid: Pid(7),
            vpn: Vpn(vpn),
            cell: NodeId(cell),
            thread: Some(Tid(thread)),
            reads,
            writes: 1,
        };
        // The first page is accessed from both nodes; the last is not found.
        let counts = [
            count(0x10, 0, 70, 3),
            count(0x10, 1, 71, 1),
            count(0x21, 1, 71, 4),
            count(2, 0, 70, 0),
        ];
        let nodes = BTreeMap::from([(Vpn(0x10), NodeId(0)), (Vpn(0x21), NodeId(0))]);
        add_samples(&mut both, &counts, &nodes, 4096);
        let accesses = both.0.accesses.expect("sampled");
        assert_eq!(accesses.samples, 12);
        assert_eq!(accesses.by_thread, BTreeMap::from([(70, 5), (71, 7)]));
        assert_eq!(accesses.by_cpu_node, BTreeMap::from([(0, 5), (1, 7)]));
        assert_eq!(accesses.by_memory_node, BTreeMap::from([(0, 11)]));
        assert_eq!(accesses.local_share, Some(4.0 / 11.0));
        assert_eq!((accesses.hot_bytes, accesses.cold_bytes), (3 * 4096, 7 * 4096));
        let seen: Vec<_> = both.0.mappings.iter().map(|m| (m.samples, m.hot_bytes)).collect();
        assert_eq!(seen, [(Some(6), Some(4096)), (Some(5), Some(4096))]);
    }
}
