//! Whether to look at huge pages by themselves, and for how long.
//!
//! A huge page has one accessed bit for its 512 base pages. Ordinary looks ([`crate::aim`]) take half a millisecond and more, in which
//! a program that goes about at random touches each of its huge pages, the hot as well as the cold: they tell nothing. A huge page
//! alone can be looked at for some microseconds: few bits are to be cleared and read, and where that takes the
//! translation away as well (`MADV_COLD`) the next access sets the bit again at once.
//!
//! What a touch means for the base pages differs. A program that goes through its memory in order touches all of them with each touch of
//! the huge page; ordinary looks find such huge pages touched now and then, and are taken so. Only where they find (nearly)
//! every one touched always are accesses taken to be at random, a 512th of them for each base page
//! ([`PageLooks::at_random`](terrace_policy::heat::PageLooks::at_random)).

use crate::aim::{Aim, Group, Tally};
use terrace_types::Nanos;

/// Ordinary looks longer than this find everything touched in any case.
const LONGEST_TELLING: Nanos = Nanos::millis(2);
/// Huge pages touched, from which they say what the program does.
const FEW: usize = 4;

/// What was learned of huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LargeAim {
    on: bool,
    /// How long to look at them.
    pub aim: Aim,
}

impl Default for LargeAim {
    fn default() -> Self {
        Self { on: false, aim: Aim::at_huge_pages() }
    }
}

impl LargeAim {
    /// Whether huge pages are to be looked at by themselves.
    #[must_use]
    pub const fn on(&self) -> bool {
        self.on
    }

    /// Learns from a group of ordinary looks what huge pages are: on from four fifths of those touched that always were, off below
    /// half of them.
    pub fn consider(&mut self, group: Group, entries: impl Iterator<Item = Tally>) {
        if group.looks < 2 || group.length > LONGEST_TELLING {
            return;
        }
        let (mut touched, mut always) = (0, 0);
        for entry in entries.filter(|e| e.present() == group.looks && e.hits() > 0) {
            touched += 1;
            always += usize::from(entry.hits() == group.looks);
        }
        if touched >= FEW {
            self.on = if self.on { always * 2 >= touched } else { always * 5 >= touched * 4 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tallies(touched: usize, always: usize) -> Vec<Tally> {
        let tally = |hits: u8| {
            let mut tally = Tally::default();
            (0..8).for_each(|look| tally.add(look < hits));
            tally
        };
        (0..touched).map(|i| tally(if i < always { 8 } else { 3 })).chain([tally(0), tally(0)]).collect()
    }

    fn group(length: Nanos) -> Group {
        Group { length, looks: 8, sharp: false }
    }

    #[test]
    fn they_are_looked_at_where_ordinary_looks_find_all_touched() {
        let mut aim = LargeAim::default();
        let mut told = |length, touched, always| {
            aim.consider(group(length), tallies(touched, always).into_iter());
            aim.on()
        };
        assert!(!told(Nanos::millis(1), 10, 7));
        assert!(!told(Nanos::millis(3), 10, 10), "looks too long to tell");
        assert!(!told(Nanos::millis(1), 3, 3), "too few to tell");
        assert!(told(Nanos::millis(1), 10, 8));
        assert!(told(Nanos::millis(1), 10, 6), "not at once off again");
        assert!(!told(Nanos::millis(1), 10, 4));
    }
}
