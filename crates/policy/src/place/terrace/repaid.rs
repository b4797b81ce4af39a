//! How many of the pages that moved up have saved by now what their moves cost.
//!
//! Pages are accounted for in blocks of 64 neighbours, all of one block alike: a look does not tell
//! neighbours of much the same heat apart. Between two looks a page is taken to save the mean of
//! what both found; from its move to the first of them, what the plan expected counts for a look.

use std::collections::BTreeMap;
use terrace_types::{Nanos, Pid, Tick};

/// What moves up cost and saved, by block.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct RepaidMoves {
    blocks: BTreeMap<(Pid, u64), PromotedBlock>,
    /// Nanoseconds of moves down since the last move up, which they made space for.
    owed: f64,
    /// Nanoseconds a second that the plan under way expects of each page that moves up.
    pub expected: f64,
    /// The last look.
    at: Tick,
}

/// Of all pages of a block that ever moved up.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct PromotedBlock {
    pages: u32,
    /// Nanoseconds.
    cost: f32,
    saved: f32,
    /// Nanoseconds a second, as the last look found.
    rate: f32,
}

impl RepaidMoves {
    /// Moves that took so long, and how many pages of each block they took up.
    pub fn moved(&mut self, up: &[((Pid, u64), u32)], cost: Nanos) {
        self.owed += cost.get() as f64;
        let pages: u32 = up.iter().map(|(_, pages)| pages).sum();
        if pages == 0 {
            return;
        }
        let each = (std::mem::take(&mut self.owed) / f64::from(pages)) as f32;
        for (block, pages) in up {
            let of = self.blocks.entry(*block).or_default();
            (of.pages, of.cost) = (of.pages + pages, of.cost + each * *pages as f32);
            of.rate += self.expected as f32 * *pages as f32;
        }
    }

    /// A look at `now` found what pages that lie above where first touch put them save, nanoseconds
    /// a second; those of other blocks save nothing any more.
    pub fn found(&mut self, rates: &[((Pid, u64), f64)], now: Tick) {
        let since = now.since(std::mem::replace(&mut self.at, now)).as_secs_f64() as f32;
        let half = |of: &mut PromotedBlock| of.saved += of.rate * since / 2.0;
        for of in self.blocks.values_mut() {
            half(of);
            of.rate = 0.0;
        }
        for (block, rate) in rates {
            if let Some(of) = self.blocks.get_mut(block) {
                of.rate += *rate as f32;
            }
        }
        self.blocks.values_mut().for_each(half);
    }

    /// How many base pages have saved what their moves cost by `now`; of a page that moved up
    /// twice, both moves.
    pub fn repaid(&self, now: Tick) -> u64 {
        let since = now.since(self.at).as_secs_f64() as f32;
        let repaid = self.blocks.values().filter(|of| of.saved + of.rate * since >= of.cost);
        repaid.map(|of| u64::from(of.pages)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOT: (Pid, u64) = (Pid(1), 7);
    const COLD: (Pid, u64) = (Pid(1), 8);

    fn at(ms: u64) -> Tick {
        Tick(ms * 1_000_000)
    }

    #[test]
    fn pages_repay_what_they_and_those_that_made_space_cost() {
        let mut moves = RepaidMoves::default();
        moves.found(&[], at(100));
        moves.moved(&[], Nanos(20_000));
        // 500 ns a page, of which the moves down took 200.
        moves.moved(&[(HOT, 60), (COLD, 40)], Nanos(30_000));
        assert_eq!(moves.repaid(at(150)), 0, "nothing is known of what they save");
        moves.found(&[(HOT, 200_000.0), (COLD, 10_000.0)], at(200));
        assert_eq!(moves.repaid(at(200)), 0, "10 us of 30");
        assert_eq!(moves.repaid(at(310)), 60, "if it saves on as it did");
        moves.found(&[(COLD, 10_000.0)], at(310));
        assert_eq!(moves.repaid(at(1_000)), 0, "the hot ones are gone, at half that time perhaps");
        assert_eq!(moves.repaid(at(3_000)), 40, "the others repay it in two seconds");
    }

    #[test]
    fn until_the_next_look_what_was_expected_counts() {
        let mut moves = RepaidMoves { expected: 1_000.0, ..RepaidMoves::default() };
        moves.moved(&[(HOT, 10)], Nanos(10_000));
        assert_eq!((moves.repaid(at(900)), moves.repaid(at(1_000))), (0, 10));
        moves.found(&[], at(1_500));
        assert_eq!(moves.repaid(at(2_000)), 0, "gone within that time");
        moves.found(&[(HOT, 10_000.0)], at(2_000));
        assert_eq!(moves.repaid(at(2_000)), 10);
    }

    #[test]
    fn what_moves_up_again_must_repay_both_moves() {
        let mut moves = RepaidMoves::default();
        moves.moved(&[(HOT, 10)], Nanos(10_000));
        moves.found(&[(HOT, 20_000.0)], at(1_000));
        assert_eq!(moves.repaid(at(1_000)), 10);
        moves.moved(&[(HOT, 10)], Nanos(10_000));
        assert_eq!(moves.repaid(at(1_000)), 0);
        assert_eq!(moves.repaid(at(1_500)), 20);
    }
}
