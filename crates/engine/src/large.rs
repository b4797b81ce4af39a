//! Whether to look at huge pages by themselves, and for how long.
//!
//! A huge page has one accessed bit for its 512 base pages. Ordinary looks ([`crate::aim`]) take half a millisecond and more, in which
//! a program that goes about at random touches each of its huge pages, the hot as well as the cold: they tell nothing. A huge page
//! alone can be looked at for some microseconds: few bits are to be cleared and read, and where that takes the
//! translation away as well (`MADV_COLD`) the next access sets the bit again at once.
//!
//! What a touch means for the base pages differs. A program that goes through its memory in order touches all of them with each touch of
//! the huge page; ordinary looks find such huge pages touched now and then, and are taken so. Only where they find (nearly)
//! every one touched always are accesses taken to be at random, a 512th of them for each base page ([`PageLooks::each`]).

use crate::aim::{Found, Group, Tally};
use crate::Ask;
use terrace_policy::heat::PageLooks;
use terrace_types::Nanos;

/// Ordinary looks longer than this find everything touched in any case.
const LONGEST_TELLING: Nanos = Nanos::millis(2);
/// Huge pages touched, from which they say what the program does.
const FEW: usize = 4;
/// Looks in a burst, and while relaxed.
const LOOKS: (u8, u8) = (12, 6);
/// Length of a look: at first, at least and at most.
const FIRST: Nanos = Nanos::micros(20);
const SHORTEST: Nanos = Nanos::micros(5);
const LONGEST: Nanos = Nanos::micros(500);
/// Share of huge pages found touched in a look, in thousandths, between which its length is left alone.
const AIM: (u64, u64) = (80, 600);

/// What was learned of huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LargeAim {
    on: bool,
    length: Nanos,
}

impl Default for LargeAim {
    fn default() -> Self {
        Self { on: false, length: FIRST }
    }
}

impl LargeAim {
    /// Whether huge pages are to be looked at by themselves.
    #[must_use]
    pub const fn on(&self) -> bool {
        self.on
    }

    /// Length of a look.
    #[must_use]
    pub const fn length(&self) -> Nanos {
        self.length
    }

    /// How many to make.
    #[must_use]
    pub const fn looks(ask: &Ask) -> u8 {
        match (ask.glance, ask.relaxed) {
            (true, _) => 1,
            (false, true) => LOOKS.1,
            (false, false) => LOOKS.0,
        }
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

    /// Learns from looks at huge pages by themselves.
    pub fn learn(&mut self, found: Found) {
        if found.present == 0 {
            return;
        }
        let share = found.accessed * 1000 / found.present;
        if share > AIM.1 {
            self.length = Nanos(self.length.get() / 2).max(SHORTEST);
        } else if share < AIM.0 {
            self.length = Nanos(self.length.get() * 2).min(LONGEST);
        }
    }
}

/// Takes huge pages that were looked at by themselves out of ordinary looks: `entries` are their first pages, in order,
/// and how many pages they have.
pub fn leave_out(looks: &mut [PageLooks], entries: &[(terrace_types::Vpn, u64)]) {
    for one in looks.iter_mut().filter(|one| one.each <= 1) {
        let range = one.range();
        let from = entries.partition_point(|(head, pages)| head.0 + pages <= range.start.0);
        for (head, pages) in entries[from..].iter().take_while(|(head, _)| *head < range.end) {
            let first = head.0.max(range.start.0) - range.start.0;
            let last = (head.0 + pages).min(range.end.0) - range.start.0;
            one.hits[first as usize..last as usize].fill(PageLooks::NOT_LOOKED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::{Pid, Vpn};

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

    #[test]
    fn looks_become_as_long_as_tells_most() {
        let mut aim = LargeAim::default();
        let found = |accessed| Found { present: 100, accessed, ..Found::default() };
        aim.learn(found(90));
        assert_eq!(aim.length(), Nanos::micros(10));
        (0..9).for_each(|_| aim.learn(found(90)));
        assert_eq!(aim.length(), SHORTEST);
        aim.learn(found(30));
        assert_eq!(aim.length(), SHORTEST);
        aim.learn(found(2));
        assert_eq!(aim.length(), Nanos::micros(10));
    }

    #[test]
    fn what_was_looked_at_by_itself_is_left_out() {
        let looks = |start, pages| PageLooks {
            pid: Pid(1),
            start: Vpn(start),
            windows: 8,
            window: Nanos::millis(1),
            each: 1,
            hits: vec![3; pages],
        };
        let mut all = [looks(0, 100), looks(1000, 1100), looks(4096, 512)];
        leave_out(&mut all, &[(Vpn(1024), 512), (Vpn(4096), 512)]);
        assert_eq!(all[0], looks(0, 100));
        let kept: Vec<u64> = (0..1100).filter(|p| all[1].hits[*p as usize] == 3).map(|p| p + 1000).collect();
        assert_eq!(kept, (1000..1024).chain(1536..2100).collect::<Vec<_>>());
        assert!(all[2].hits.iter().all(|h| *h == PageLooks::NOT_LOOKED));
    }
}
