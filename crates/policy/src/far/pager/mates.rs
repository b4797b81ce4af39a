//! What a lone miss brings along: the neighbours that went out with it.
//!
//! Victims go by the unit, and who touches pages at random (the text of lines being sorted, a heap of small nodes) has them come
//! back one by one, each for the price of nearly a whole unit: a disk reads 64 KiB in less than twice the time of 4 KiB. So a miss that
//! belongs to no walk fetches its *mates* too: the grains of its 64 KiB that were mapped when the unit went, as a
//! swap's readahead does with what lies together in it.
//!
//! Whether that pays is measured, not assumed. Now and then one mate is left out and watched: is it missed before as much
//! has come in as memory holds, every lone miss counted as if it had brought its mates? If at least three eighths of
//! those watched lately will be, mates are fetched. While they are not, watching costs nothing, for they are absent anyway. Of pages
//! touched at random in twice the memory 2 to 22% are missed in time, in lines being sorted 85 to 90%.
//!
//! To wait for the end of each watch would take as many misses as fill memory, and they are dear where mates do not pay. So those still
//! watched count for as long as they have been: what is estimated is a rate, misses a time watched (the exponential
//! law's estimator of censored lifetimes), and from it the share that would be missed until the end.

use crate::far::geometry::{GrainNo, Mask};
use std::collections::{HashMap, VecDeque};
use terrace_types::Seed;

/// Watched at a time.
const WATCHED: usize = 64;
/// Of so many lone misses one leaves a mate out while mates are fetched, and watches one while they are not.
const EACH: [u64; 2] = [8, 2];
/// Misses a whole time of watching from which on three eighths are missed within one: 1 - exp(-0.47).
const ENOUGH: f64 = 0.47;
/// As many misses, or whole times of watching, are remembered; then both count half.
const MEMORY: f64 = 32.0;

/// How it stands.
#[derive(Debug)]
pub(super) struct Mates {
    /// Watched grains that were missed, and the whole times that grains were watched. At first one of each: it pays, until seen otherwise.
    met: f64,
    times: f64,
    /// Grains times watched grains since `times` was reckoned.
    recent: u64,
    /// Grains that came in, or would have.
    passed: u64,
    misses: u64,
    /// Until when each watched grain counts, and the same in order of time.
    watched: HashMap<GrainNo, u64>,
    order: VecDeque<(u64, GrainNo)>,
    chance: Seed,
}

impl Default for Mates {
    fn default() -> Self {
        Self {
            met: 1.0,
            times: 1.0,
            recent: 0,
            passed: 0,
            misses: 0,
            watched: HashMap::new(),
            order: VecDeque::new(),
            chance: Seed::default(),
        }
    }
}

impl Mates {
    /// So many grains came in that no lone miss asked for.
    pub fn passed(&mut self, grains: u64) {
        self.passed += grains;
        self.recent += grains * self.watched.len() as u64;
    }

    /// A grain was missed.
    pub fn missed(&mut self, grain: GrainNo) {
        if self.watched.remove(&grain).is_some_and(|until| self.passed <= until) {
            self.met += 1.0;
        }
    }

    /// A lone miss whose mates are `mates`, the first at grain `first` of a unit, where memory holds `room` grains: those to fetch.
    pub fn of(&mut self, mates: Mask, first: GrainNo, room: u64) -> Mask {
        self.passed(1 + u64::from(mates.count_ones()));
        self.times += std::mem::take(&mut self.recent) as f64 / room.max(1) as f64;
        if self.met.max(self.times) > MEMORY {
            (self.met, self.times) = (self.met / 2.0, self.times / 2.0);
        }
        while let Some((until, grain)) = self.order.front().copied().filter(|(until, _)| *until < self.passed) {
            self.order.pop_front();
            // Met meanwhile, and watched anew perhaps.
            if self.watched.get(&grain) == Some(&until) {
                self.watched.remove(&grain);
            }
        }
        if mates == 0 {
            return 0;
        }
        self.misses += 1;
        let on = self.met >= ENOUGH * self.times;
        let mut left_out = 0;
        if self.misses % EACH[usize::from(!on)] == 0 && self.order.len() < WATCHED {
            let (r, next) = self.chance.next();
            self.chance = next;
            let mut rest = mates;
            for _ in 0..r % u64::from(mates.count_ones()) {
                rest &= rest - 1;
            }
            left_out = rest & rest.wrapping_neg();
            let grain = first + u64::from(left_out.trailing_zeros());
            self.watched.insert(grain, self.passed + room);
            self.order.push_back((self.passed + room, grain));
        }
        if on {
            mates & !left_out
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lone misses with fifteen mates each in a memory of 65,536 grains, of pages of which a share is missed again, after up to
    /// so many misses; how many of them were given mates.
    fn fetched(mates: &mut Mates, misses: u64, missed_again: impl Fn(u64) -> bool, within: u64) -> u64 {
        let mut later = std::collections::BTreeSet::new();
        let (mut fetched, mut chance) = (0, Seed(3));
        for n in 0..misses {
            let (r, next) = chance.next();
            chance = next;
            let first = n * 16;
            while let Some((_, grain)) = later.first().copied().filter(|(when, _): &(u64, GrainNo)| *when <= n) {
                later.pop_first();
                mates.missed(grain);
            }
            let got = mates.of(0xfffe, first, 1 << 16);
            fetched += u64::from(got != 0);
            let left_out = 0xfffe & !got;
            if left_out.count_ones() == 1 || got == 0 {
                let watched = mates.order.back().filter(|(_, g)| (first..first + 16).contains(g)).map(|(_, g)| *g);
                later.extend(watched.filter(|_| missed_again(n)).map(|grain| (n + 1 + (r >> 16) % within, grain)));
            }
        }
        fetched
    }

    #[test]
    fn mates_that_do_not_pay_are_given_up_long_before_memory_was_filled_by_them() {
        let mut mates = Mates::default();
        let count = fetched(&mut mates, 4096, |_| false, 1);
        assert!((100..400).contains(&count), "{count}");
        let mut mates = Mates::default();
        // Of ten two are missed: that is not three eighths.
        let count = fetched(&mut mates, 40_000, |n| n % 10 < 2, 4096);
        assert!(count < 2_000, "{count}");
    }

    #[test]
    fn mates_that_pay_are_kept_and_found_again() {
        let mut mates = Mates::default();
        let count = fetched(&mut mates, 4096, |n| n % 8 != 0, 1000);
        assert!(count > 3_800, "{count}");
        let none = fetched(&mut mates, 40_000, |_| false, 1);
        let again = fetched(&mut mates, 40_000, |n| n % 8 != 0, 1000);
        assert!(none < 8_000 && again > 30_000, "{none} {again}");
    }
}
