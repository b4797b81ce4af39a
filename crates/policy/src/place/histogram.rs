//! `histogram`: the threshold at which the hot pages just fit the fast tier, read off a histogram
//! of page heat (after MEMTIS: Lee et al., "MEMTIS: Efficient memory tiering with dynamic page
//! classification and page size determination", SOSP 2023).
//!
//! Heat falls into bins, each twice as hot as the one below. The hot threshold is the lowest bin
//! such that it and all hotter ones fit the fast tier; pages in it and above come up. The bin below
//! is *warm*: those pages stay where they are, unless space is needed and nothing colder is left.
//! Only the cold go down, and only for space. MEMTIS counts samples of processor events and halves
//! the counts now and then; here the heat map does both. Its splitting of huge pages is not
//! modelled.
//!
//! Decided here: when the hot set is smaller than `warm_from` (0.9) of the fast tier, warm pages
//! may come up into space that is free, and `reserve` (0.02) of the tier stays free, as MEMTIS
//! keeps some for new pages.

use super::paced::{
    explain_plan, hottest, millis, one_tier, pages, period, sum, PacedPage, State, TierPages,
};
use super::runs::page_size;
use super::{number, SetError};
use serde::{Deserialize, Serialize};
use terrace_machine::Machine;
use terrace_types::{MoveReason, Nanos, Plan, Seed, Snapshot, Tick};

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Params {
    /// `period_ms`: between two rounds (500 ms).
    pub period: Nanos,
    /// `round_pages`: base pages brought up at most in one round (131,072).
    pub round_pages: u64,
    /// `reserve`: share of the fast tier that stays free (0.02).
    pub reserve: f64,
    /// `warm_from`: below this share of the fast tier's space that is hot, warm pages come up too
    /// (0.9).
    pub warm_from: f64,
}

impl Params {
    pub(crate) fn for_machine(_: &Machine) -> Self {
        Self { period: Nanos::millis(500), round_pages: 131_072, reserve: 0.02, warm_from: 0.9 }
    }

    pub(crate) fn named(&self) -> Vec<(&'static str, String)> {
        vec![
            ("period_ms", millis(self.period)),
            ("round_pages", self.round_pages.to_string()),
            ("reserve", self.reserve.to_string()),
            ("warm_from", self.warm_from.to_string()),
        ]
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), SetError> {
        match name {
            "period_ms" => self.period = period(value)?,
            "round_pages" => self.round_pages = pages(value)?,
            "reserve" => self.reserve = number(value, 0.0, 0.5, "a share, 0 to 0.5")?,
            "warm_from" => self.warm_from = number(value, 0.0, 1.0, "a share, 0 to 1")?,
            _ => return Err(SetError::Unknown),
        }
        Ok(())
    }
}

/// Bins of heat; the last takes all that is hotter.
const BINS: usize = 40;

/// The bin of a rate: 0 for nothing, else one more than the logarithm.
fn bin(rate: u64) -> usize {
    (64 - rate.leading_zeros() as usize).min(BINS - 1)
}

/// The lowest bin such that it and all above hold at most `capacity` pages, and how many they hold.
fn threshold(counts: &[u64; BINS], capacity: u64) -> (usize, u64) {
    let (mut at, mut covered) = (BINS, 0);
    // Bin 0 was not accessed at all: never hot.
    for bin in (1..BINS).rev() {
        if covered + counts[bin] > capacity {
            break;
        }
        covered += counts[bin];
        at = bin;
    }
    (at, covered)
}

/// Brings the hot up; sends the cold down for space.
pub fn step(p: &Params, state: &mut State, snap: &Snapshot, now: Tick, _seed: Seed) -> Plan {
    if let Some(wait) = state.rest(now, p.period) {
        return wait;
    }
    let Some(all) = TierPages::from_snapshot(snap) else { return one_tier(p.period) };
    let mut counts = [0u64; BINS];
    for item in all.fast.iter().chain(&all.slow) {
        counts[bin(item.rate)] += item.pages();
    }
    let reserve = (snap.tiers[0].capacity.pages(page_size(snap)) as f64 * p.reserve) as u64;
    let capacity = (sum(&all.fast) + all.free).saturating_sub(reserve);
    let (hot, covered) = threshold(&counts, capacity);
    let warm = hot.saturating_sub(1).max(1);
    let from = if (covered as f64) < capacity as f64 * p.warm_from { warm } else { hot };
    let warmer: Vec<PacedPage> = all.slow.iter().copied().filter(|i| bin(i.rate) >= from).collect();
    // Cold pages leave for hot ones; for warm ones only what is colder than they are.
    let fast = |wanted: &dyn Fn(usize) -> bool| -> u64 {
        all.fast.iter().filter(|i| wanted(bin(i.rate))).map(PacedPage::pages).sum()
    };
    let colder = warm.min(from);
    let (cold, less_hot) = (fast(&|bin| bin < colder), fast(&|bin| (colder..hot).contains(&bin)));
    let hot_up = warmer.iter().filter(|i| bin(i.rate) >= hot).map(PacedPage::pages).sum::<u64>();
    let free = all.free.saturating_sub(reserve);
    let most = (free + cold).max(hot_up.min(free + cold + less_hot));
    let up = hottest(&all.work, warmer, most.min(p.round_pages), |i| i.rate);
    let leaving = all.fast.iter().copied().filter(|i| bin(i.rate) < colder.max(hot)).collect();
    let down = hottest(&all.work, leaving, (sum(&up) + reserve).saturating_sub(all.free), |i| {
        u64::MAX - i.rate
    });
    let rate = |bin: usize| if bin >= BINS { u64::MAX } else { 1u64 << (bin - 1) };
    let why = format!(
        "hot from {} accesses a second: {covered} of {capacity} pages; {} up, {} down",
        rate(hot),
        sum(&up),
        sum(&down)
    );
    explain_plan(all.exchange(snap, &up, &down, MoveReason::Hot), "classify", why, p.period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_is_the_lowest_that_fits() {
        let mut counts = [0; BINS];
        (counts[10], counts[8], counts[3], counts[0]) = (5, 10, 20, 100);
        assert_eq!(threshold(&counts, 4), (11, 0));
        assert_eq!(threshold(&counts, 15), (4, 15));
        assert_eq!(threshold(&counts, 1_000), (1, 35));
        assert_eq!([bin(0), bin(1), bin(2), bin(3), bin(u64::MAX)], [0, 1, 2, 2, BINS - 1]);
    }
}
