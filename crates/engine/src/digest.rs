//! A snapshot, condensed for the journal.

use crate::journal::{HeatRow, SnapshotEntry, TierHeader, TierSummary, MAX_HEAT_ROWS};
use terrace_machine::{Evidence, Machine, MemoryKind};
use terrace_types::{
    buckets, Area, BytesPerSec, Nanos, PageFlags, PageStat, Snapshot, TierState, Vpn,
};

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

/// Condenses a snapshot, in one pass over its pages: a journal costs the managed program what this
/// costs.
pub(crate) fn digest(snap: &Snapshot, at: Nanos, tracking: Nanos) -> SnapshotEntry {
    let ranks = Ranks::new(&snap.tiers);
    let mut tiers: Vec<TierSummary> = snap.tiers.iter().enumerate().map(tier_summary).collect();
    let mut sums = Sums::new(tiers.len());
    let mut heat = Vec::new();
    let rows = row_sizes(snap);
    for (area, size) in snap.areas.iter().zip(rows) {
        for (i, pages) in area.pages.chunks(size.unwrap_or(usize::MAX)).enumerate() {
            let row = sums.add(pages, &ranks);
            if let Some(size) = size {
                heat.push(row.of(area, i * size, pages.len()));
            }
        }
    }
    heat.truncate(MAX_HEAT_ROWS);
    let hot_from =
        sums.hot_from(snap.tiers.first().map_or(0, |t| t.capacity.pages(snap.page_size)));
    for (tier, sum) in tiers.iter_mut().zip(&sums.tiers) {
        tier.pages = sum.pages;
        (tier.reads_per_s, tier.writes_per_s) = (sum.reads as u64, sum.writes as u64);
        tier.hot_pages = sum.counts[hot_from..].iter().map(|n| u64::from(*n)).sum();
    }
    SnapshotEntry {
        at_ns: at.get(),
        window_ns: snap.interval.get(),
        known_pages: sums.known,
        hot_from_per_s: buckets::floor(hot_from) as u64,
        fast_access_share: fast_share(&tiers).filter(|_| !snap.saturated && !snap.at_least),
        tiers,
        heat,
        tracking_cpu_ns: tracking.get(),
    }
}

/// Of one tier.
struct Sum {
    pages: u64,
    reads: f64,
    writes: f64,
    /// By rate.
    counts: Vec<u32>,
}

/// Of all tiers.
struct Sums {
    tiers: Vec<Sum>,
    known: u64,
}

impl Sums {
    fn new(tiers: usize) -> Self {
        let none = || Sum { pages: 0, reads: 0.0, writes: 0.0, counts: vec![0; buckets::COUNT] };
        Self { tiers: (0..tiers).map(|_| none()).collect(), known: 0 }
    }

    /// Adds the pages of a row; gives the row.
    fn add(&mut self, pages: &[PageStat], ranks: &Ranks) -> Row {
        let mut row =
            Row { reads: 0.0, writes: 0.0, hottest: 0.0, tiers: vec![0; self.tiers.len()] };
        for (page, count) in PageStat::runs(pages) {
            self.known += if page.flags.has(PageFlags::KNOWN) { count } else { 0 };
            let (reads, writes) = (page.reads.per_second(), page.writes.per_second());
            row.reads += f64::from(reads) * count as f64;
            row.writes += f64::from(writes) * count as f64;
            row.hottest = row.hottest.max(reads + writes);
            let Some(rank) = ranks.of(page) else { continue };
            row.tiers[rank] += count;
            let tier = &mut self.tiers[rank];
            tier.reads += f64::from(reads) * count as f64;
            tier.writes += f64::from(writes) * count as f64;
            tier.counts[buckets::bucket_of(reads + writes)] += count as u32;
        }
        for (tier, pages) in self.tiers.iter_mut().zip(&row.tiers) {
            tier.pages += pages;
        }
        row
    }

    /// Bucket from which a page counts as hot: hotter than the mean, and among the hottest that fit
    /// the best tier.
    fn hot_from(&self, fits: u64) -> usize {
        let (mut above, mut cut) = (0, 0);
        for at in (0..buckets::COUNT).rev() {
            above += self.tiers.iter().map(|t| u64::from(t.counts[at])).sum::<u64>();
            if above > fits {
                cut = at + 1;
                break;
            }
        }
        let pages: u64 = self.tiers.iter().map(|t| t.pages).sum();
        let rates: f64 = self.tiers.iter().map(|t| t.reads + t.writes).sum();
        let mean = (rates / pages.max(1) as f64) as f32;
        let above_mean =
            buckets::bucket_of(mean) + usize::from(buckets::floor(buckets::bucket_of(mean)) < mean);
        cut.max(above_mean).clamp(1, buckets::COUNT - 1)
    }
}

/// Heat of a row of pages.
struct Row {
    reads: f64,
    writes: f64,
    hottest: f32,
    tiers: Vec<u64>,
}

impl Row {
    fn of(self, area: &Area, offset: usize, pages: usize) -> HeatRow {
        let n = pages.max(1) as f64;
        HeatRow {
            pid: area.pid,
            start: Vpn(area.start.0 + offset as u64),
            pages: pages as u64,
            reads_per_s: (self.reads / n) as u64,
            writes_per_s: (self.writes / n) as u64,
            hottest_per_s: self.hottest as u64,
            tier_pages: self.tiers,
        }
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

/// Pages a row of heat by address, for each area; none: no rows of it. The largest areas, half as
/// many as there may be rows, share those by size.
fn row_sizes(snap: &Snapshot) -> Vec<Option<usize>> {
    let half = MAX_HEAT_ROWS / 2;
    let len = |i: &usize| snap.areas[*i].pages.len();
    let mut largest: Vec<usize> = (0..snap.areas.len()).filter(|i| len(i) > 0).collect();
    largest.sort_by_key(|i| std::cmp::Reverse(len(i)));
    largest.truncate(half);
    let total: usize = largest.iter().map(len).sum();
    let mut sizes = vec![None; snap.areas.len()];
    for i in largest {
        let share = (len(&i) * half / total.max(1)).max(1);
        sizes[i] = Some(len(&i).div_ceil(share));
    }
    sizes
}

/// A tier as the journal's header describes it.
pub(crate) fn tier_header(machine: &Machine, rank: usize, tier: &TierState) -> TierHeader {
    let nodes = || tier.nodes.iter().filter_map(|n| machine.node(*n));
    let kind = nodes().map(|n| n.kind).find(|k| *k != MemoryKind::Unknown);
    let links = || machine.links.iter().filter(|l| tier.nodes.contains(&l.target));
    let latency = links().filter_map(|l| l.read_latency).min_by_key(|f| f.value);
    let read = links().filter_map(|l| l.read_bandwidth).max_by_key(|f| f.value);
    let write = links().filter_map(|l| l.write_bandwidth).max_by_key(|f| f.value);
    let sources = [
        ("read_latency_ns", latency.map(|f| f.evidence)),
        ("read_bandwidth_bytes_per_s", read.map(|f| f.evidence)),
        ("write_bandwidth_bytes_per_s", write.map(|f| f.evidence)),
    ];
    let reported =
        |(key, source): (&str, Option<Evidence>)| Some((key.to_owned(), source?.name().to_owned()));
    TierHeader {
        rank,
        kind: kind.map_or("memory".to_owned(), |k| format!("{k:?}").to_lowercase()),
        nodes: tier.nodes.clone(),
        capacity_bytes: tier.capacity.get(),
        read_latency_ns: latency.map(|f| f.value.get()),
        read_bandwidth_bytes_per_s: read.map(|f| f.value.get()),
        write_bandwidth_bytes_per_s: write.map(|f| f.value.get()),
        evidence: sources.into_iter().filter_map(reported).collect(),
    }
}
