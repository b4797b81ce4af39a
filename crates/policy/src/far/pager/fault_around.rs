//! What a lone miss brings along: the neighbours that went out with it.
//!
//! Victims go by the unit, and who touches pages at random (the text of lines being sorted, a heap
//! of small nodes) has them come back one by one, each for the price of nearly a whole unit: a disk
//! reads 64 KiB in less than twice the time of 4 KiB. So a miss that belongs to no walk fetches its
//! *neighbours* too: the grains of its 64 KiB that were mapped when the unit went, as a swap's
//! readahead does with what lies together in it.
//!
//! Whether that pays is measured, not assumed. Now and then one neighbour is left out and watched:
//! is it missed before as much has come in as memory holds, every lone miss counted as if it had
//! brought its neighbours? While they are not fetched, watching costs nothing, for they are absent
//! anyway. Of pages touched at random in twice the memory 2 to 22% are missed in time, in lines
//! being sorted 85 to 90%.
//!
//! For each neighbour that comes something else goes, so some of what goes is watched in the same
//! way. Where pages without order fill memory, a neighbour will be used, but no sooner than what
//! went for it: there are as many misses as before, each of which costs more (`graph-pagerank`
//! while its graph is built, ADR 0253). Neighbours are fetched if three eighths of those watched
//! lately will be missed, and that twice as soon as what went.
//!
//! To wait for the end of each watch would take as many misses as fill memory, and they are dear
//! where neighbours do not pay. So those still watched count for as long as they have been: what is
//! estimated is a rate, misses a time watched (the exponential law's estimator of censored
//! lifetimes), and from it the share that would be missed until the end.

use crate::far::geometry::{GrainNo, PageMask};
use std::collections::{HashMap, VecDeque};
use terrace_types::Seed;

/// Watched at a time, of each.
const WATCHED: usize = 64;
/// Of so many lone misses one leaves a neighbour out while neighbours are fetched, and watches one
/// while they are not.
const EACH: [u64; 2] = [8, 2];
/// Of so many units that go one has a grain watched.
const EACH_GONE: u64 = 4;
/// Misses a whole time of watching from which on three eighths are missed within one: 1 -
/// exp(-0.47).
const ENOUGH: f64 = 0.47;
/// How much sooner than what went for them they are missed, where they do: sorted lines 6 to 12
/// times, a graph being built 0.5 to 1.
const SOONER: f64 = 2.0;
/// As many misses, or whole times of watching, are remembered; then both count half.
const MEMORY: f64 = 32.0;

/// Grains that are watched, and how they fared of late. A time is told by grains that came in.
#[derive(Debug, Default)]
struct WatchedPages {
    /// Watched grains that were missed, and the whole times that grains were watched.
    met: f64,
    times: f64,
    /// Grains times watched grains since `times` was reckoned.
    recent: u64,
    /// Until when each watched grain counts, and the same in order of time.
    watched: HashMap<GrainNo, u64>,
    order: VecDeque<(u64, GrainNo)>,
}

impl WatchedPages {
    fn passed(&mut self, grains: u64) {
        self.recent += grains * self.watched.len() as u64;
    }

    fn missed(&mut self, grain: GrainNo, now: u64) {
        if self.watched.remove(&grain).is_some_and(|until| now <= until) {
            self.met += 1.0;
        }
    }

    /// What passed so far counts, in a memory of `room` grains; who was watched for long enough is
    /// not any more.
    fn update_estimate(&mut self, now: u64, room: u64) {
        self.times += std::mem::take(&mut self.recent) as f64 / room.max(1) as f64;
        if self.met.max(self.times) > MEMORY {
            (self.met, self.times) = (self.met / 2.0, self.times / 2.0);
        }
        while let Some((until, grain)) =
            self.order.front().copied().filter(|(until, _)| *until < now)
        {
            self.order.pop_front();
            // Met meanwhile, and watched anew perhaps.
            if self.watched.get(&grain) == Some(&until) {
                self.watched.remove(&grain);
            }
        }
    }

    fn has_room(&self) -> bool {
        self.order.len() < WATCHED
    }

    fn begin(&mut self, grain: GrainNo, until: u64) {
        self.watched.insert(grain, until);
        self.order.push_back((until, grain));
    }

    /// Misses a whole time of watching.
    fn rate(&self) -> f64 {
        self.met / self.times.max(f64::MIN_POSITIVE)
    }
}

/// How it stands.
#[derive(Debug)]
pub(super) struct FaultAround {
    neighbours: WatchedPages,
    /// What goes.
    gone: WatchedPages,
    /// Grains that came in, or would have.
    passed: u64,
    misses: u64,
    went: u64,
    chance: Seed,
}

impl Default for FaultAround {
    fn default() -> Self {
        // At first it pays, until seen otherwise.
        let neighbours = WatchedPages { met: 1.0, times: 1.0, ..WatchedPages::default() };
        let gone = WatchedPages { times: 1.0, ..WatchedPages::default() };
        Self { neighbours, gone, passed: 0, misses: 0, went: 0, chance: Seed::default() }
    }
}

impl FaultAround {
    /// So many grains came in that no lone miss asked for.
    pub fn passed(&mut self, grains: u64) {
        self.passed += grains;
        self.neighbours.passed(grains);
        self.gone.passed(grains);
    }

    /// A grain was missed.
    pub fn missed(&mut self, grain: GrainNo) {
        self.neighbours.missed(grain, self.passed);
        self.gone.missed(grain, self.passed);
    }

    /// Grains `mask` of a unit, whose first is grain `first`, went, from a memory that holds `room`
    /// grains.
    pub fn record_eviction(&mut self, mask: PageMask, first: GrainNo, room: u64) {
        self.went += 1;
        if mask == 0 || self.went % EACH_GONE != 0 || !self.gone.has_room() {
            return;
        }
        let grain = first + u64::from(self.one_of(mask).trailing_zeros());
        self.gone.begin(grain, self.passed + room);
    }

    /// A lone miss whose neighbours are `neighbours`, the first at grain `first` of a unit, where
    /// memory holds `room` grains: those to fetch.
    pub fn of(&mut self, neighbours: PageMask, first: GrainNo, room: u64) -> PageMask {
        self.passed(1 + u64::from(neighbours.count_ones()));
        self.neighbours.update_estimate(self.passed, room);
        self.gone.update_estimate(self.passed, room);
        if neighbours == 0 {
            return 0;
        }
        self.misses += 1;
        let on = self.neighbours.rate() >= ENOUGH.max(SOONER * self.gone.rate());
        let mut left_out = 0;
        if self.misses % EACH[usize::from(!on)] == 0 && self.neighbours.has_room() {
            left_out = self.one_of(neighbours);
            self.neighbours.begin(first + u64::from(left_out.trailing_zeros()), self.passed + room);
        }
        if on {
            neighbours & !left_out & !self.watched(neighbours, first)
        } else {
            0
        }
    }

    /// Those of a unit that went and are watched: fetched as neighbours they would never be missed.
    fn watched(&self, neighbours: PageMask, first: GrainNo) -> PageMask {
        let grains = first..first + u64::from(PageMask::BITS);
        let within = self.gone.watched.keys().filter(|grain| grains.contains(grain));
        within.fold(0, |mask, grain| mask | 1 << (grain - first)) & neighbours
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

    /// Lone misses with fifteen neighbours each in a memory of 65,536 grains, of pages of which a
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
            while let Some((_, grain)) =
                later.first().copied().filter(|(when, _): &(u64, GrainNo)| *when <= n)
            {
                later.pop_first();
                neighbours.missed(grain);
            }
            let got = neighbours.of(0xfffe, first, 1 << 16);
            fetched += u64::from(got != 0);
            let left_out = 0xfffe & !got;
            if left_out.count_ones() == 1 || got == 0 {
                let watched = neighbours
                    .neighbours
                    .order
                    .back()
                    .filter(|(_, g)| (first..first + 16).contains(g))
                    .map(|(_, g)| *g);
                later.extend(
                    watched
                        .filter(|_| missed_again(n))
                        .map(|grain| (n + 1 + (r >> 16) % within, grain)),
                );
            }
        }
        fetched
    }

    #[test]
    fn mates_that_do_not_pay_are_given_up_long_before_memory_was_filled_by_them() {
        let mut neighbours = FaultAround::default();
        let count = fetched(&mut neighbours, 4096, |_| false, 1);
        assert!((100..400).contains(&count), "{count}");
        let mut neighbours = FaultAround::default();
        // Of ten two are missed: that is not three eighths.
        let count = fetched(&mut neighbours, 40_000, |n| n % 10 < 2, 4096);
        assert!(count < 2_000, "{count}");
    }

    #[test]
    fn mates_that_pay_are_kept_and_found_again() {
        let mut neighbours = FaultAround::default();
        let count = fetched(&mut neighbours, 4096, |n| n % 8 != 0, 1000);
        assert!(count > 3_800, "{count}");
        let none = fetched(&mut neighbours, 40_000, |_| false, 1);
        let again = fetched(&mut neighbours, 40_000, |n| n % 8 != 0, 1000);
        assert!(none < 8_000 && again > 30_000, "{none} {again}");
    }

    /// What goes is missed after as many misses as stated, neighbours that are left out after 20:
    /// the misses of 4096 that were given neighbours.
    fn beside(gone_after: u64) -> u64 {
        let mut neighbours = FaultAround::default();
        let mut later = VecDeque::new();
        let mut fetched = 0;
        for n in 0..4096 {
            let due: Vec<GrainNo> = neighbours
                .neighbours
                .watched
                .keys()
                .copied()
                .filter(|g| g / 16 + 20 <= n)
                .collect();
            due.into_iter().for_each(|grain| neighbours.missed(grain));
            neighbours.record_eviction(1, 1 << 32 | n, 1024);
            later.push_back((n + gone_after, 1 << 32 | n));
            while let Some((_, grain)) = later.front().copied().filter(|(when, _)| *when <= n) {
                later.pop_front();
                neighbours.missed(grain);
            }
            fetched += u64::from(neighbours.of(0b10, n * 16, 1024) != 0);
        }
        fetched
    }

    #[test]
    fn mates_pay_if_they_are_missed_sooner_than_what_goes_for_them() {
        assert!(beside(800) > 3_500, "{}", beside(800));
        assert!(beside(20) < 500, "{}", beside(20));
    }
}
