//! What a lone miss brings along: the neighbours that went out with it.
//!
//! Victims go by the chunk, and who touches pages at random (the text of lines being sorted, a heap
//! of small nodes) has them come back one by one, each for the price of nearly a whole chunk: a
//! disk reads 64 KiB in less than twice the time of 4 KiB. So a miss that belongs to no access
//! stream fetches its *neighbours* too: the pages of its 64 KiB that were mapped when the chunk
//! went, as a swap's readahead does with what lies together in it.
//!
//! Whether that pays is measured, not assumed. Now and then one neighbour is left out and observed:
//! is it missed before as much has come in as memory holds, every lone miss counted as if it had
//! brought its neighbours? While they are not fetched, observing costs nothing, for they are absent
//! anyway. Of pages touched at random in twice the memory 2 to 22% are missed in time, in lines
//! being sorted 85 to 90%.
//!
//! For each neighbour that comes something else goes, so some of what goes is observed in the same
//! way. Where pages without order fill memory, a neighbour will be used, but no sooner than what
//! went for it: there are as many misses as before, each of which costs more (`graph-pagerank`
//! while its graph is built, ADR 0253). Neighbours are fetched if three eighths of those observed
//! lately will be missed, and that twice as soon as what went.
//!
//! To wait for the end of each watch would take as many misses as fill memory, and they are dear
//! where neighbours do not pay. So those still observed count for as long as they have been: what
//! is estimated is a rate, misses a time observed (the exponential law's estimator of censored
//! lifetimes), and from it the share that would be missed until the end.

use super::PagerTuning;
use crate::far::geometry::{FarPageNo, PageMask};
use std::collections::{HashMap, VecDeque};
use terrace_types::Seed;

/// Pages that are observed, and how they fared of late. A time is reported by pages that came in.
#[derive(Debug, Default)]
struct ObservedPages {
    /// Observed pages that were missed, and the whole times that pages were observed.
    met: f64,
    times: f64,
    /// Pages times observed pages since `times` was computed.
    recent: u64,
    /// Until when each observed page counts, and the same in order of time.
    observed: HashMap<FarPageNo, u64>,
    order: VecDeque<(u64, FarPageNo)>,
    tuning: PagerTuning,
}

impl ObservedPages {
    fn passed(&mut self, pages: u64) {
        self.recent += pages * self.observed.len() as u64;
    }

    fn missed(&mut self, page: FarPageNo, now: u64) {
        if self.observed.remove(&page).is_some_and(|until| now <= until) {
            self.met += 1.0;
        }
    }

    /// What passed so far counts, in a memory of `capacity` pages; who was observed for long enough
    /// is not any more.
    fn update_estimate(&mut self, now: u64, capacity: u64) {
        self.times += std::mem::take(&mut self.recent) as f64 / capacity.max(1) as f64;
        if self.met.max(self.times) > self.tuning.around_memory {
            (self.met, self.times) = (self.met / 2.0, self.times / 2.0);
        }
        while let Some((until, page)) =
            self.order.front().copied().filter(|(until, _)| *until < now)
        {
            self.order.pop_front();
            // Met meanwhile, and observed anew perhaps.
            if self.observed.get(&page) == Some(&until) {
                self.observed.remove(&page);
            }
        }
    }

    fn has_space(&self) -> bool {
        self.order.len() < self.tuning.observed
    }

    fn begin(&mut self, page: FarPageNo, until: u64) {
        self.observed.insert(page, until);
        self.order.push_back((until, page));
    }

    /// Misses a whole time of observing.
    fn rate(&self) -> f64 {
        self.met / self.times.max(f64::MIN_POSITIVE)
    }
}

/// How it stands.
#[derive(Debug)]
pub(super) struct FaultAround {
    neighbours: ObservedPages,
    /// What goes.
    gone: ObservedPages,
    /// Pages that came in, or would have.
    passed: u64,
    misses: u64,
    went: u64,
    chance: Seed,
    tuning: PagerTuning,
}

impl FaultAround {
    pub fn new(tuning: PagerTuning) -> Self {
        // At first it pays, until seen otherwise.
        let neighbours = ObservedPages { met: 1.0, times: 1.0, tuning, ..ObservedPages::default() };
        let gone = ObservedPages { times: 1.0, tuning, ..ObservedPages::default() };
        let chance = Seed::default();
        Self { neighbours, gone, passed: 0, misses: 0, went: 0, chance, tuning }
    }

    /// So many pages came in that no lone miss asked for.
    pub fn passed(&mut self, pages: u64) {
        self.passed += pages;
        self.neighbours.passed(pages);
        self.gone.passed(pages);
    }

    /// A page was missed.
    pub fn missed(&mut self, page: FarPageNo) {
        self.neighbours.missed(page, self.passed);
        self.gone.missed(page, self.passed);
    }

    /// Pages `mask` of a chunk, whose first is page `first`, went, from a memory that holds
    /// `capacity` pages.
    pub fn record_eviction(&mut self, mask: PageMask, first: FarPageNo, capacity: u64) {
        self.went += 1;
        if mask == 0 || self.went % self.tuning.gone_each != 0 || !self.gone.has_space() {
            return;
        }
        let page = first + u64::from(self.one_of(mask).trailing_zeros());
        self.gone.begin(page, self.passed + capacity);
    }

    /// A lone miss whose neighbours are `neighbours`, the first at page `first` of a chunk, where
    /// memory holds `capacity` pages: those to fetch.
    pub fn of(&mut self, neighbours: PageMask, first: FarPageNo, capacity: u64) -> PageMask {
        self.passed(1 + u64::from(neighbours.count_ones()));
        self.neighbours.update_estimate(self.passed, capacity);
        self.gone.update_estimate(self.passed, capacity);
        if neighbours == 0 {
            return 0;
        }
        self.misses += 1;
        let t = &self.tuning;
        let on = self.neighbours.rate() >= t.around_rate.max(t.around_sooner * self.gone.rate());
        let each = if on { t.left_out_each } else { t.watched_each };
        let mut left_out = 0;
        if self.misses % each == 0 && self.neighbours.has_space() {
            left_out = self.one_of(neighbours);
            self.neighbours
                .begin(first + u64::from(left_out.trailing_zeros()), self.passed + capacity);
        }
        if on {
            neighbours & !left_out & !self.observed(neighbours, first)
        } else {
            0
        }
    }

    /// Those of a chunk that went and are observed: fetched as neighbours they would never be
    /// missed.
    fn observed(&self, neighbours: PageMask, first: FarPageNo) -> PageMask {
        let pages = first..first + u64::from(PageMask::BITS);
        let within = self.gone.observed.keys().filter(|page| pages.contains(page));
        within.fold(0, |mask, page| mask | 1 << (page - first)) & neighbours
    }

    fn one_of(&mut self, mask: PageMask) -> PageMask {
        let (r, next) = self.chance.next();
        self.chance = next;
        let mut rest = mask;
        for _ in 0..r % u64::from(mask.count_ones()) {
            rest &= rest - 1;
        }
        rest & rest.wrapping_neg()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lone misses with fifteen neighbours each in a memory of 65,536 pages, of pages of which a
    /// share is missed again, after up to so many misses; how many of them were given neighbours.
    fn fetched(
        neighbours: &mut FaultAround,
        misses: u64,
        missed_again: impl Fn(u64) -> bool,
        within: u64,
    ) -> u64 {
        let mut later = std::collections::BTreeSet::new();
        let (mut fetched, mut chance) = (0, Seed(3));
        for n in 0..misses {
            let (r, next) = chance.next();
            chance = next;
            let first = n * 16;
            while let Some((_, page)) =
                later.first().copied().filter(|(when, _): &(u64, FarPageNo)| *when <= n)
            {
                later.pop_first();
                neighbours.missed(page);
            }
            let got = neighbours.of(0xfffe, first, 1 << 16);
            fetched += u64::from(got != 0);
            let left_out = 0xfffe & !got;
            if left_out.count_ones() == 1 || got == 0 {
                let observed = neighbours
                    .neighbours
                    .order
                    .back()
                    .filter(|(_, g)| (first..first + 16).contains(g))
                    .map(|(_, g)| *g);
                later.extend(
                    observed
                        .filter(|_| missed_again(n))
                        .map(|page| (n + 1 + (r >> 16) % within, page)),
                );
            }
        }
        fetched
    }

    #[test]
    fn unprofitable_neighbours_are_dropped_before_they_fill_memory() {
        let mut neighbours = FaultAround::new(PagerTuning::USUAL);
        let count = fetched(&mut neighbours, 4096, |_| false, 1);
        assert!((100..400).contains(&count), "{count}");
        let mut neighbours = FaultAround::new(PagerTuning::USUAL);
        // Of ten two are missed: that is not three eighths.
        let count = fetched(&mut neighbours, 40_000, |n| n % 10 < 2, 4096);
        assert!(count < 2_000, "{count}");
    }

    #[test]
    fn profitable_neighbours_are_fetched_and_resumed() {
        let mut neighbours = FaultAround::new(PagerTuning::USUAL);
        let count = fetched(&mut neighbours, 4096, |n| n % 8 != 0, 1000);
        assert!(count > 3_800, "{count}");
        let none = fetched(&mut neighbours, 40_000, |_| false, 1);
        let again = fetched(&mut neighbours, 40_000, |n| n % 8 != 0, 1000);
        assert!(none < 8_000 && again > 30_000, "{none} {again}");
    }

    /// What goes is missed after as many misses as stated, neighbours that are left out after 20:
    /// the misses of 4096 that were given neighbours.
    fn beside(gone_after: u64) -> u64 {
        let mut neighbours = FaultAround::new(PagerTuning::USUAL);
        let mut later = VecDeque::new();
        let mut fetched = 0;
        for n in 0..4096 {
            let due: Vec<FarPageNo> = neighbours
                .neighbours
                .observed
                .keys()
                .copied()
                .filter(|g| g / 16 + 20 <= n)
                .collect();
            due.into_iter().for_each(|page| neighbours.missed(page));
            neighbours.record_eviction(1, 1 << 32 | n, 1024);
            later.push_back((n + gone_after, 1 << 32 | n));
            while let Some((_, page)) = later.front().copied().filter(|(when, _)| *when <= n) {
                later.pop_front();
                neighbours.missed(page);
            }
            fetched += u64::from(neighbours.of(0b10, n * 16, 1024) != 0);
        }
        fetched
    }

    #[test]
    fn neighbours_pay_when_missed_sooner_than_their_victims() {
        assert!(beside(800) > 3_500, "{}", beside(800));
        assert!(beside(20) < 500, "{}", beside(20));
    }
}
