//! Counts the promoted pages that have saved the program as much time as their moves cost.
//!
//! The count goes by blocks of 64 neighbouring pages, because a sample does not tell neighbours of
//! much the same heat apart. Between two samples a block saves the mean of the rates that both
//! found. A block that moved since the last sample saves what its plan predicted.

use super::bit_blocks::BlockId;
use std::collections::BTreeMap;
use terrace_types::{Nanos, Tick};

/// The time that promotions cost and saved, by block.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct PromotionRepayment {
    blocks: BTreeMap<BlockId, PromotedBlock>,
    /// Repaid pages of blocks that have left the better tier.
    settled_pages: u64,
    /// Cost of demotions that no promotion followed yet: they make space for the next one.
    demotion_ns: f64,
    /// The saving that the current plan predicts for each page that it promotes.
    predicted_ns_per_s: f64,
    /// Time of the last sample.
    sampled: Tick,
}

/// The promoted pages of one block.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct PromotedBlock {
    pages: u32,
    cost_ns: f32,
    saved_ns: f32,
    saving_ns_per_s: f32,
}

impl PromotionRepayment {
    /// Sets the saving that the next plan predicts for each page that it promotes.
    pub fn predict_saving(&mut self, ns_per_s: f64) {
        self.predicted_ns_per_s = ns_per_s;
    }

    /// Books moves that took `cost`, with the number of promoted pages in each block.
    pub fn record_moves(&mut self, promoted: &BTreeMap<BlockId, u32>, cost: Nanos) {
        self.demotion_ns += cost.get() as f64;
        let all: u32 = promoted.values().sum();
        if all == 0 {
            return;
        }
        let cost_ns = std::mem::take(&mut self.demotion_ns) / f64::from(all);
        for (id, pages) in promoted {
            let block = self.blocks.entry(*id).or_default();
            block.pages += pages;
            block.cost_ns += (cost_ns * f64::from(*pages)) as f32;
            block.saving_ns_per_s += (self.predicted_ns_per_s * f64::from(*pages)) as f32;
        }
    }

    /// Books a sample at `now` that found these savings, in nanoseconds a second. Blocks without
    /// one have left the better tier and are settled, so that memory is held for the others alone.
    pub fn record_sample(&mut self, savings: &BTreeMap<BlockId, f64>, now: Tick) {
        let since = now.since(std::mem::replace(&mut self.sampled, now)).as_secs_f64() as f32;
        let settled = &mut self.settled_pages;
        self.blocks.retain(|id, block| {
            let found = savings.get(id).map(|saving| *saving as f32);
            block.saved_ns += (block.saving_ns_per_s + found.unwrap_or(0.0)) / 2.0 * since;
            block.saving_ns_per_s = found.unwrap_or(0.0);
            if found.is_none() && block.is_repaid(0.0) {
                *settled += u64::from(block.pages);
            }
            found.is_some()
        });
    }

    /// Returns the number of base pages that have saved what their moves cost by `now`. A page
    /// that was promoted twice in one stay must save the cost of both moves.
    pub fn repaid_pages(&self, now: Tick) -> u64 {
        let since = now.since(self.sampled).as_secs_f64() as f32;
        let repaid = self.blocks.values().filter(|block| block.is_repaid(since));
        self.settled_pages + repaid.map(|block| u64::from(block.pages)).sum::<u64>()
    }
}

impl PromotedBlock {
    /// Whether it has saved its cost `since` seconds after the last sample.
    fn is_repaid(&self, since: f32) -> bool {
        self.saved_ns + self.saving_ns_per_s * since >= self.cost_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::Pid;

    const HOT: BlockId = (Pid(1), 7);
    const COLD: BlockId = (Pid(1), 8);

    fn at(ms: u64) -> Tick {
        Tick(ms * 1_000_000)
    }

    fn sample(moves: &mut PromotionRepayment, savings: &[(BlockId, f64)], now: Tick) {
        moves.record_sample(&savings.iter().copied().collect(), now);
    }

    fn promote(moves: &mut PromotionRepayment, promoted: &[(BlockId, u32)], cost: Nanos) {
        moves.record_moves(&promoted.iter().copied().collect(), cost);
    }

    #[test]
    fn pages_repay_their_moves_and_those_that_made_space() {
        let mut moves = PromotionRepayment::default();
        sample(&mut moves, &[], at(100));
        promote(&mut moves, &[], Nanos(20_000));
        // 500 ns a page, of which the demotions took 200.
        promote(&mut moves, &[(HOT, 60), (COLD, 40)], Nanos(30_000));
        assert_eq!(moves.repaid_pages(at(150)), 0, "no saving is known");
        sample(&mut moves, &[(HOT, 200_000.0), (COLD, 10_000.0)], at(200));
        assert_eq!(moves.repaid_pages(at(200)), 0, "10 us of 30");
        assert_eq!(moves.repaid_pages(at(310)), 60, "if they go on saving as much");
        sample(&mut moves, &[(COLD, 10_000.0)], at(310));
        assert_eq!(moves.repaid_pages(at(1_000)), 0, "the hot pages left after 21 us of 30");
        assert_eq!(moves.repaid_pages(at(3_000)), 40, "the others need two seconds");
        assert_eq!(moves.blocks.len(), 1, "the account of the hot pages is settled");
    }

    #[test]
    fn pages_that_leave_after_they_repaid_count_as_repaid() {
        let mut moves = PromotionRepayment::default();
        promote(&mut moves, &[(HOT, 60)], Nanos(30_000));
        sample(&mut moves, &[(HOT, 90_000.0)], at(1_000));
        sample(&mut moves, &[], at(1_100));
        assert_eq!((moves.repaid_pages(at(1_100)), moves.blocks.len()), (60, 0));
        promote(&mut moves, &[(HOT, 60)], Nanos(30_000));
        sample(&mut moves, &[], at(1_200));
        assert_eq!(moves.repaid_pages(at(1_200)), 60, "the second stay did not repay");
    }

    #[test]
    fn the_plans_prediction_counts_until_the_next_sample() {
        let mut moves = PromotionRepayment::default();
        moves.predict_saving(1_000.0);
        promote(&mut moves, &[(HOT, 10)], Nanos(10_000));
        assert_eq!((moves.repaid_pages(at(900)), moves.repaid_pages(at(1_000))), (0, 10));
        sample(&mut moves, &[], at(1_500));
        assert_eq!(moves.repaid_pages(at(2_000)), 0, "the pages left within that time");
        promote(&mut moves, &[(HOT, 10)], Nanos(10_000));
        sample(&mut moves, &[(HOT, 10_000.0)], at(2_500));
        assert_eq!(moves.repaid_pages(at(2_500)), 10);
    }

    #[test]
    fn pages_promoted_twice_in_one_stay_repay_both_moves() {
        let mut moves = PromotionRepayment::default();
        promote(&mut moves, &[(HOT, 10)], Nanos(10_000));
        sample(&mut moves, &[(HOT, 20_000.0)], at(1_000));
        assert_eq!(moves.repaid_pages(at(1_000)), 10);
        promote(&mut moves, &[(HOT, 10)], Nanos(10_000));
        assert_eq!(moves.repaid_pages(at(1_000)), 0);
        assert_eq!(moves.repaid_pages(at(1_500)), 20);
    }
}
