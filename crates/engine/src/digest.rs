//! A snapshot, condensed for the journal.

use crate::journal::{HeatRow, SnapshotEntry, TierHeader, TierSummary, MAX_HEAT_ROWS};
use terrace_machine::{Evidence, Kind, Machine};
use terrace_types::{Area, BytesPerSec, Heat, Nanos, PageFlags, PageStat, Snapshot, TierState, Vpn};

/// Rank of each node's tier; 255 where none.
struct Ranks([u8; 256]);

impl Ranks {
    fn new(tiers: &[TierState]) -> Self {
        let mut ranks = [u8::MAX; 256];
        for (rank, tier) in tiers.iter().enumerate().take(255) {
            for node in tier.nodes.iter().filter(|n| n.0 < 256) {
                ranks[usize::from(node.0)] = rank as u8;
            }
        }
        Self(ranks)
    }

    /// Of a present page's tier.
    fn of(&self, page: &PageStat) -> Option<usize> {
        let rank = self.0[usize::from(page.node)];
        (page.flags.has(PageFlags::PRESENT) && rank != u8::MAX).then_some(usize::from(rank))
    }
}

/// Condenses a snapshot.
pub(crate) fn digest(snap: &Snapshot, at: Nanos, tracking: Nanos) -> SnapshotEntry {
    let ranks = Ranks::new(&snap.tiers);
    let hot_from = hot_from(snap, &ranks);
    let mut tiers: Vec<TierSummary> = snap.tiers.iter().enumerate().map(tier_summary).collect();
    let mut known_pages = 0;
    for page in snap.areas.iter().flat_map(|a| &a.pages) {
        known_pages += u64::from(page.flags.has(PageFlags::KNOWN));
        let Some(tier) = ranks.of(page).and_then(|r| tiers.get_mut(r)) else {
            continue;
        };
        tier.pages += 1;
        tier.hot_pages += u64::from(page.rate() >= hot_from);
        tier.reads_per_s = tier.reads_per_s.saturating_add(page.reads.rate());
        tier.writes_per_s = tier.writes_per_s.saturating_add(page.writes.rate());
    }
    SnapshotEntry {
        at_ns: at.get(),
        window_ns: snap.window.get(),
        known_pages,
        hot_from_per_s: hot_from,
        fast_access_share: fast_share(&tiers),
        tiers,
        heat: heat_rows(snap, &ranks),
        tracking_cpu_ns: tracking.get(),
    }
}

fn fast_share(tiers: &[TierSummary]) -> Option<f64> {
    let rate = |t: &TierSummary| t.reads_per_s.saturating_add(t.writes_per_s) as f64;
    let all: f64 = tiers.iter().map(rate).sum();
    let fast = tiers.first().map_or(0.0, rate);
    (all > 0.0).then(|| fast / all)
}

fn tier_summary((rank, tier): (usize, &TierState)) -> TierSummary {
    TierSummary {
        rank,
        capacity_bytes: tier.capacity.get(),
        free_bytes: tier.free.get(),
        write_throughput_bytes_per_s: tier.write_throughput.map(BytesPerSec::get),
        throughput_source: tier.throughput_source,
        ..TierSummary::default()
    }
}

/// Rate from which a page counts as hot: hotter than the mean, and among the hottest that fit the
/// best tier.
fn hot_from(snap: &Snapshot, ranks: &Ranks) -> u64 {
    const SHIFT: u32 = 5;
    let mut counts = vec![0u64; 1 << (16 - SHIFT)];
    let (mut sum, mut n) = (0u64, 0u64);
    for page in snap.areas.iter().flat_map(|a| &a.pages).filter(|p| ranks.of(p).is_some()) {
        let rate = page.rate();
        counts[usize::from(Heat::from_rate(rate).0 >> SHIFT)] += 1;
        sum = sum.saturating_add(rate);
        n += 1;
    }
    let fits = snap.tiers.first().map_or(0, |t| t.capacity.pages(snap.page_size));
    let (mut above, mut cut) = (0, 0);
    for (bucket, count) in counts.iter().enumerate().rev() {
        above += count;
        if above > fits {
            cut = bucket + 1;
            break;
        }
    }
    let fit = Heat(((cut << SHIFT) as u64).min(u64::from(u16::MAX)) as u16).rate();
    fit.max(sum / n.max(1)).max(1)
}

/// Heat by address: the largest half of the rows' number of areas, rows shared by size.
fn heat_rows(snap: &Snapshot, ranks: &Ranks) -> Vec<HeatRow> {
    let half = MAX_HEAT_ROWS / 2;
    let mut largest: Vec<usize> = (0..snap.areas.len()).collect();
    largest.sort_by_key(|i| std::cmp::Reverse(snap.areas[*i].pages.len()));
    largest.truncate(half);
    largest.sort_unstable();
    let total: usize = largest.iter().map(|i| snap.areas[*i].pages.len()).sum();
    let mut rows = Vec::new();
    for area in largest.iter().map(|i| &snap.areas[*i]).filter(|a| !a.pages.is_empty()) {
        let share = (area.pages.len() * half / total.max(1)).max(1);
        let size = area.pages.len().div_ceil(share);
        for (i, pages) in area.pages.chunks(size).enumerate() {
            rows.push(row(area, i * size, pages, snap.tiers.len(), ranks));
        }
    }
    rows.truncate(MAX_HEAT_ROWS);
    rows
}

fn row(area: &Area, offset: usize, pages: &[PageStat], tiers: usize, ranks: &Ranks) -> HeatRow {
    let n = pages.len() as u64;
    let mut tier_pages = vec![0; tiers];
    for rank in pages.iter().filter_map(|p| ranks.of(p)) {
        tier_pages[rank] += 1;
    }
    HeatRow {
        pid: area.pid,
        start: Vpn(area.start.0 + offset as u64),
        pages: n,
        reads_per_s: pages.iter().map(|p| p.reads.rate()).sum::<u64>() / n.max(1),
        writes_per_s: pages.iter().map(|p| p.writes.rate()).sum::<u64>() / n.max(1),
        hottest_per_s: pages.iter().map(|p| p.rate()).max().unwrap_or(0),
        tier_pages,
    }
}

/// A tier as the journal's header describes it.
pub(crate) fn tier_header(machine: &Machine, rank: usize, tier: &TierState) -> TierHeader {
    let nodes = || tier.nodes.iter().filter_map(|n| machine.node(*n));
    let kind = nodes().map(|n| n.kind).find(|k| *k != Kind::Unknown);
    let links = || machine.links.iter().filter(|l| tier.nodes.contains(&l.target));
    let latency = links().filter_map(|l| l.read_latency).min_by_key(|f| f.value);
    let read = links().filter_map(|l| l.read_bandwidth).max_by_key(|f| f.value);
    let write = links().filter_map(|l| l.write_bandwidth).max_by_key(|f| f.value);
    let sources = [
        ("read_latency_ns", latency.map(|f| f.evidence)),
        ("read_bandwidth_bytes_per_s", read.map(|f| f.evidence)),
        ("write_bandwidth_bytes_per_s", write.map(|f| f.evidence)),
    ];
    let told = |(key, source): (&str, Option<Evidence>)| Some((key.to_owned(), source?.name().to_owned()));
    TierHeader {
        rank,
        kind: kind.map_or("memory".to_owned(), |k| format!("{k:?}").to_lowercase()),
        nodes: tier.nodes.clone(),
        capacity_bytes: tier.capacity.get(),
        read_latency_ns: latency.map(|f| f.value.get()),
        read_bandwidth_bytes_per_s: read.map(|f| f.value.get()),
        write_bandwidth_bytes_per_s: write.map(|f| f.value.get()),
        evidence: sources.into_iter().filter_map(told).collect(),
    }
}
