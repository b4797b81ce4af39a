//! The kernel's lists of free pages for each CPU (`per_cpu_pages`), and the watermarks of the zone
//! that they belong to.
//!
//! Pages that are freed go to a list of the CPU that frees them, and that CPU takes from it. Pages
//! on a list are in nobody's use and do not count as free: other CPUs cannot have them, and a first
//! touch goes to another node once what counts as free is down to the low watermark, whatever the
//! lists hold. The rules are those of Linux 6.12 (`mm/page_alloc.c`), the functions named below;
//! pages are of order 0.

use std::collections::VecDeque;

/// Doublings of a batch at most (`CONFIG_PCP_BATCH_SCALE_MAX`, its default).
const BATCH_SCALE_MAX: u32 = 5;
/// The longest lists hold this part of a zone, all together (`MIN_PERCPU_PAGELIST_HIGH_FRACTION`).
const HIGH_FRACTION: u64 = 8;
/// Pages of a batch at most, as `zone_batchsize` begins: 1 MiB.
const MAX_BATCH: u64 = 256;
/// Pages of a page block, of which so many a zone are kept free where huge pages are in use: two,
/// and one for each pair of the three kinds of movability (`set_recommended_min_free_kbytes`,
/// `mm/khugepaged.c`).
const PAGE_BLOCK: u64 = 512;
const BLOCKS_FREE: u64 = 2 + 3 * 3;
/// But not more than this part of what is above the high watermarks (the same,
/// `nr_free_buffer_pages`).
const MAX_LISTED: u64 = 20;
/// Pages of the zone for old devices, the first 16 MiB of node 0 on x86 (`ZONE_DMA`), of those that
/// Linux manages: free once it has started, and all. In the lab.
const SMALL_ZONE: (u64, u64) = (3776, 3840);
/// What is kept there of memory that could have lain in a higher zone, as a part of those
/// (`sysctl_lowmem_reserve_ratio`).
const SMALL_ZONE_KEEPS: u64 = 256;

/// A zone's watermarks and what bounds its lists, pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZoneLimits {
    /// Watermarks: down to `low` a first touch has its page here, down to `min` a page that is
    /// moved here.
    pub min: u64,
    /// As above.
    pub low: u64,
    /// Policies see as free what is above it.
    pub high: u64,
    /// Pages that a list gets or gives at a time, before that is doubled.
    pub batch: u64,
    /// Bounds of a list's limit.
    pub high_min: u64,
    /// As above.
    pub high_max: u64,
    /// The small zone of the same node, where programs get any of it.
    pub small: Option<SmallZone>,
}

/// The zone for old devices. It is used where the larger one is down to a watermark, and has no
/// lists (`zone_batchsize` of so few pages).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SmallZone {
    /// Free before any program runs.
    pub pages: u64,
    /// Its watermarks, with what is kept for those who cannot use another.
    pub min: u64,
    /// As above.
    pub low: u64,
    /// As above.
    pub high: u64,
}

impl ZoneLimits {
    /// The zones of nodes that have so many pages above their high watermarks, and so many CPUs. A
    /// node is one zone here, but for [`ZoneLimits::small`] of the first.
    #[must_use]
    pub fn of_nodes(nodes: &[(u64, u64)]) -> Vec<Self> {
        let all_cpus = nodes.iter().map(|n| n.1).sum::<u64>().max(1);
        // On x86 node 0 has two small zones besides; that a machine has them matters where there
        // are few.
        let kept = PAGE_BLOCK * BLOCKS_FREE * (nodes.len() as u64 + 2);
        // What is managed is what is above the watermarks and those, which follow what is managed.
        let mut zones = vec![Self::default(); nodes.len()];
        for _ in 0..8 {
            let managed: Vec<u64> = nodes.iter().zip(&zones).map(|(n, z)| n.0 + z.high).collect();
            let all = managed.iter().sum::<u64>().max(1);
            // `calculate_min_free_kbytes`: four times the root of all memory in KiB.
            let least = (all * 4 * 16).isqrt() / 4;
            let above = nodes.iter().map(|n| n.0).sum::<u64>();
            let min_all = kept.min(above / MAX_LISTED).max(least);
            for ((zone, managed), node) in zones.iter_mut().zip(managed).zip(nodes) {
                *zone = Self::sized(
                    managed,
                    min_all * managed / all,
                    if node.1 > 0 { node.1 } else { all_cpus },
                );
            }
        }
        if let (Some(zone), Some(node)) = (zones.first_mut(), nodes.first()) {
            let cpus = if node.1 > 0 { node.1 } else { all_cpus };
            *zone = zone.split(node.0 + zone.high, cpus);
        }
        zones
    }

    /// With its small zone apart from it. A large machine keeps all of that.
    fn split(self, managed: u64, cpus: u64) -> Self {
        let (pages, all) = SMALL_ZONE;
        let rest = managed.saturating_sub(all);
        let kept = rest / SMALL_ZONE_KEEPS;
        let share = |of: u64| self.min * of / managed.max(1);
        let [small, large] = [all, rest].map(|of| Self::sized(of, share(of), cpus));
        let [min, low, high] = [small.min, small.low, small.high].map(|mark| mark + kept);
        let small = SmallZone { pages, min, low, high };
        if rest < all || high >= pages {
            return self;
        }
        Self { small: Some(small), ..large }
    }

    /// `__setup_per_zone_wmarks`, `zone_batchsize`, `zone_highsize`; the lists' bounds are shared
    /// by `cpus`.
    fn sized(managed: u64, min: u64, cpus: u64) -> Self {
        let step = (min / 4).max(managed / 1000);
        let (low, high) = (min + step, min + 2 * step);
        let quarter = ((managed >> 10).min(MAX_BATCH) / 4).max(1);
        let batch = (1 << (quarter + quarter / 2).ilog2()) - 1;
        let batch = batch.max(1);
        let bound = |pages: u64| (pages / cpus).max(batch * 4);
        Self {
            min,
            low,
            high,
            batch,
            high_min: bound(low),
            high_max: bound(managed / HIGH_FRACTION),
            small: None,
        }
    }

    /// Pages that a list gets at a time at most.
    #[must_use]
    pub const fn max_at_once(&self) -> u64 {
        self.batch << BATCH_SCALE_MAX
    }

    /// A CPU takes all that it can of `free` pages above the low watermark: how many it does not
    /// get, since they are on its list when the watermark is reached.
    #[must_use]
    pub fn left_over(&self, free: u64) -> u64 {
        let (mut list, mut left, mut got) = (PerCpuPages::default(), free + self.low, 0);
        while left > self.low {
            let count = list.refill(self, left <= self.high).min(left);
            left -= count;
            got += if left > self.low { count } else { 1 };
        }
        free.saturating_sub(got)
    }
}

/// The free pages of one CPU, by their numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PerCpuPages {
    pages: VecDeque<u64>,
    /// `pcp->high`: how long the list may become.
    limit: u64,
    /// Doublings of what is taken at a time; grows while nothing is freed.
    alloc_factor: u32,
    /// Pages freed one after the other.
    free_count: u64,
}

impl PerCpuPages {
    /// Free pages on the list.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Puts pages on it, behind all others.
    pub fn fill(&mut self, pages: impl IntoIterator<Item = u64>) {
        self.pages.extend(pages);
    }

    /// A page of the list, the last freed (`rmqueue_pcplist`). `None`: it has to be refilled.
    pub fn take(&mut self) -> Option<u64> {
        self.free_count >>= 1;
        self.pages.pop_front()
    }

    /// A page of the list just refilled.
    pub fn take_refilled(&mut self) -> Option<u64> {
        self.pages.pop_front()
    }

    /// How many pages an empty list gets (`nr_pcp_alloc`). `below_high`: little is free
    /// (`ZONE_BELOW_HIGH`).
    pub fn refill(&mut self, zone: &ZoneLimits, below_high: bool) -> u64 {
        self.limit = self.limit.clamp(zone.high_min, zone.high_max);
        if self.limit < zone.batch {
            return 1;
        }
        let batch = zone.batch << self.alloc_factor;
        if !below_high {
            self.limit = (self.limit + batch).min(zone.high_max);
        }
        let most = self.limit.saturating_sub(self.count() + zone.batch).max(zone.batch);
        if batch <= most && self.alloc_factor < BATCH_SCALE_MAX {
            self.alloc_factor += 1;
        }
        batch.min(most)
    }

    /// A page is freed (`free_unref_page_commit`): how many the list has to give back then, by
    /// [`Self::give`].
    pub fn free(&mut self, page: u64, zone: &ZoneLimits, below_high: bool) -> u64 {
        self.alloc_factor >>= 1;
        self.pages.push_front(page);
        if self.free_count < zone.max_at_once() {
            self.free_count += 1;
        }
        let limit = self.limit_at(zone, below_high);
        if self.count() < limit {
            return 0;
        }
        // `nr_pcp_free`: as many as were freed one after the other, a batch stays.
        if limit < zone.batch {
            return 1;
        }
        self.free_count.clamp(zone.batch, (limit - zone.batch).max(zone.batch))
    }

    /// `nr_pcp_high`, where the kernel does not reclaim.
    fn limit_at(&mut self, zone: &ZoneLimits, below_high: bool) -> u64 {
        let limit = self.limit.clamp(zone.high_min, zone.high_max);
        self.limit = limit;
        if zone.high_min == zone.high_max {
            return limit;
        }
        if below_high {
            self.limit = limit.saturating_sub(self.free_count.max(zone.batch)).max(zone.high_min);
            return self.count().max(zone.high_min);
        }
        let needed = self.free_count + zone.batch;
        if self.count() >= limit && limit < needed {
            self.limit = needed.clamp(zone.high_min, zone.high_max);
        }
        limit
    }

    /// The page that has been on the list longest (`free_pcppages_bulk`).
    pub fn give(&mut self) -> Option<u64> {
        self.pages.pop_back()
    }

    /// A second has passed (`decay_pcp_high`): how many pages the list has to give back.
    pub fn decay(&mut self, zone: &ZoneLimits) -> u64 {
        if self.limit > zone.high_min {
            let kept = self.count().saturating_sub(zone.max_at_once());
            self.limit = kept.max(self.limit - (self.limit >> 3)).max(zone.high_min);
        }
        self.count().saturating_sub(self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fast node of `lab-dcpmm`: 138.4 MiB above the high watermark and two CPUs; the slow one
    /// has a GiB.
    fn lab() -> ZoneLimits {
        ZoneLimits::of_nodes(&[(35_430, 2), (262_144, 0)])[0]
    }

    #[test]
    fn a_zone_is_sized_as_the_kernel_sizes_it() {
        let zone = lab();
        let small = zone.small.unwrap();
        // Of the lab's kernel (/proc/zoneinfo): 3,840 pages, watermarks 190, 237 and 284 with 134
        // kept, and 34,440 pages with 1,619, 2,023, 2,427.
        assert_eq!(small.pages, 3776);
        for (mark, of_kernel) in
            [(small.min, 190 + 134), (small.low, 237 + 134), (small.high, 284 + 134)]
        {
            assert!(mark.abs_diff(of_kernel) < 20, "{zone:?}");
        }
        for (mark, of_kernel) in [(zone.min, 1619), (zone.low, 2023), (zone.high, 2427)] {
            assert!(mark.abs_diff(of_kernel) < of_kernel / 50, "{zone:?}");
        }
        // A twentieth of what is above them is kept for huge pages; the other watermarks are a
        // quarter of that apart.
        assert_eq!((zone.low, zone.high), (zone.min + zone.min / 4, zone.min + zone.min / 4 * 2));
        // 33 pages are a thousandth; a quarter and half of that again are 12, rounded down to a
        // power of two less one.
        assert_eq!((zone.batch, zone.max_at_once()), (7, 224));
        assert_eq!(zone.high_min, zone.low / 2);
        assert!(zone.high_max.abs_diff(34_440 / 8 / 2) < 40, "{zone:?}");
        // Two sockets of 64 GiB: 11 page blocks a zone, a thousandth between the watermarks.
        let [zone, _] = ZoneLimits::of_nodes(&[(1 << 24, 32), (1 << 24, 32)])[..] else { panic!() };
        assert!(zone.min.abs_diff(512 * 11 * 4 / 2) < 2, "{zone:?}");
        assert!((zone.low - zone.min).abs_diff((1 << 24) / 1000) < 100, "{zone:?}");
        assert_eq!((zone.batch, zone.small), (63, None), "all of the small one is kept");
    }

    #[test]
    fn batches_double_until_a_page_is_freed() {
        let (zone, mut list) = (lab(), PerCpuPages::default());
        let refills: Vec<u64> = (0..7).map(|_| list.refill(&zone, false)).collect();
        assert_eq!(refills, [7, 14, 28, 56, 112, 224, 224]);
        assert_eq!(list.free(1, &zone, false), 0);
        list.take();
        assert_eq!(list.refill(&zone, false), 28, "five doublings are two again");
    }

    /// The list of a CPU that took much and freed nothing.
    fn grown(zone: &ZoneLimits) -> PerCpuPages {
        let mut list = PerCpuPages::default();
        while list.limit < zone.high_max {
            assert!(list.refill(zone, false) > 0);
        }
        list
    }

    /// Frees so many pages, one after the other; how many stay.
    fn freed(list: &mut PerCpuPages, zone: &ZoneLimits, pages: u64, below_high: bool) -> u64 {
        for page in 0..pages {
            for _ in 0..list.free(page, zone, below_high) {
                list.give();
            }
        }
        list.count()
    }

    #[test]
    fn a_list_keeps_what_is_freed_up_to_its_limit() {
        let zone = lab();
        assert_eq!(
            freed(&mut PerCpuPages::default(), &zone, zone.high_min - 1, true),
            zone.high_min - 1
        );
        // Then it gives as many as were freed one after the other, 224 at most.
        for below_high in [false, true] {
            let mut list = PerCpuPages::default();
            assert_eq!(freed(&mut list, &zone, zone.high_min, below_high), zone.high_min - 224);
            let kept = freed(&mut list, &zone, 5000, below_high);
            assert!((zone.high_min - 224..zone.high_min).contains(&kept), "{kept}");
        }
        // A CPU that took much is let keep much, but not where little is free.
        for (below_high, most) in [(false, zone.high_max), (true, zone.high_min)] {
            let mut list = grown(&zone);
            let kept = freed(&mut list, &zone, 5000, below_high);
            assert!((most - 224..most).contains(&kept), "{kept} of {most}");
        }
    }

    #[test]
    fn pages_come_back_last_first_and_leave_first_first() {
        let (zone, mut list) = (lab(), PerCpuPages::default());
        list.fill([10, 11]);
        list.free(12, &zone, false);
        assert_eq!(
            (list.take(), list.take(), list.give(), list.take()),
            (Some(12), Some(10), Some(11), None)
        );
    }

    #[test]
    fn a_limit_that_has_grown_shrinks_by_an_eighth_a_second() {
        let zone = lab();
        let mut list = grown(&zone);
        assert_eq!(list.limit, zone.high_max);
        list.fill(0..zone.high_max);
        assert_eq!(list.decay(&zone), zone.high_max - list.limit);
        assert_eq!(list.limit, zone.high_max - 224);
        let mut empty = PerCpuPages { limit: zone.high_max, ..PerCpuPages::default() };
        assert_eq!((empty.decay(&zone), empty.limit), (0, zone.high_max - zone.high_max / 8));
        (0..40).for_each(|_| assert_eq!(empty.decay(&zone), 0));
        assert_eq!(empty.limit, zone.high_min);
    }
}
