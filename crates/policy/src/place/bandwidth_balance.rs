//! `bandwidth-balance`: hot pages over both tiers in the proportion of their bandwidths (HyPlacer,
//! sections 2.3 and 3.3; BATMAN, Chou et al., MEMSYS 2017, is the best known).
//!
//! In theory all buses together carry more than the fast one; HyPlacer's observation 3 is that on
//! persistent memory the gain is small. The fast tier's target share of traffic is its share of the
//! read bandwidths. Below it, the hottest pages come up for cold ones; above it, hot pages go down
//! until the share is met.

use super::paced::{
    explain_plan, first, hottest_first, millis, one_tier, pages, pair, period, sum, PacedPage,
    State, TierPages,
};
use super::{number, SetError};
use serde::{Deserialize, Serialize};
use terrace_machine::{rank, Machine, RankAttribute};
use terrace_types::{MoveReason, Nanos, Plan, Seed, Snapshot, Tick};

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Params {
    /// `period_ms`: between two rounds (1 s).
    pub period: Nanos,
    /// `round_pages`: base pages moved at most in one round (131,072).
    pub round_pages: u64,
    /// `fast_share`: of all traffic, what the fast tier should carry (its share of the bandwidths).
    pub fast_share: f64,
    /// `slack`: shares this near to it are left alone (0.02).
    pub slack: f64,
}

/// The best tier's share of all tiers' read bandwidth; a half where that is not known.
pub(crate) fn fast_share(machine: &Machine) -> f64 {
    let Ok(ranking) = rank(machine, RankAttribute::Bandwidth, None) else { return 0.5 };
    let rate = |t: &terrace_machine::Tier| {
        t.read_bandwidth.map(|f| f.value.get() as f64 * t.nodes.len() as f64)
    };
    let rates: Option<Vec<f64>> = ranking.tiers.iter().map(rate).collect();
    match rates {
        Some(rates) if rates.iter().sum::<f64>() > 0.0 => rates[0] / rates.iter().sum::<f64>(),
        _ => 0.5,
    }
}

impl Params {
    pub(crate) fn for_machine(machine: &Machine) -> Self {
        Self {
            period: Nanos::secs(1),
            round_pages: 131_072,
            fast_share: fast_share(machine),
            slack: 0.02,
        }
    }

    pub(crate) fn named(&self) -> Vec<(&'static str, String)> {
        vec![
            ("period_ms", millis(self.period)),
            ("round_pages", self.round_pages.to_string()),
            ("fast_share", format!("{:.3}", self.fast_share)),
            ("slack", self.slack.to_string()),
        ]
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), SetError> {
        match name {
            "period_ms" => self.period = period(value)?,
            "round_pages" => self.round_pages = pages(value)?,
            "fast_share" => self.fast_share = number(value, 0.0, 1.0, "a share, 0 to 1")?,
            "slack" => self.slack = number(value, 0.0, 1.0, "a share, 0 to 1")?,
            _ => return Err(SetError::Unknown),
        }
        Ok(())
    }
}

/// Accesses a second of all together.
pub(crate) fn traffic(items: &[PacedPage]) -> f64 {
    items.iter().map(|i| i.rate as f64 * i.pages() as f64).sum()
}

/// Of `items`, hottest first, as many as carry `amount` of traffic and no more.
pub(crate) fn carrying(items: &[PacedPage], amount: f64) -> Vec<PacedPage> {
    let mut left = amount;
    let fits = |i: &&PacedPage| {
        let mine = i.rate as f64 * i.pages() as f64;
        let fits = mine > 0.0 && mine <= left;
        if fits {
            left -= mine;
        }
        fits
    };
    items.iter().filter(fits).copied().collect()
}

/// Moves so much traffic from one tier to the other that the fast one carries `share` of it.
pub(crate) fn shift_to(
    all: &mut TierPages,
    snap: &Snapshot,
    share: f64,
    most: u64,
) -> (Plan, u64, u64) {
    let (fast, slow) = (traffic(&all.fast), traffic(&all.slow));
    let missing = (fast + slow) * share - fast;
    hottest_first(&all.work, &mut all.slow, |i| i.rate);
    hottest_first(&all.work, &mut all.fast, |i| i.rate);
    if missing > 0.0 {
        let up = carrying(&all.slow, missing);
        let coldest: Vec<PacedPage> = all.fast.iter().rev().copied().collect();
        let (up, down) = pair(&up, &coldest, all.free, most, |u, d| d.rate < u.rate);
        return (all.exchange(snap, up, down, MoveReason::Hot), sum(up), sum(down));
    }
    let down = carrying(&all.fast, -missing);
    let down = first(&down, most);
    (all.exchange(snap, &[], down, MoveReason::Hot), 0, sum(down))
}

/// Moves the fast tier's share of traffic towards its share of bandwidth.
pub fn step(p: &Params, state: &mut State, snap: &Snapshot, now: Tick, _seed: Seed) -> Plan {
    if let Some(wait) = state.rest(now, p.period) {
        return wait;
    }
    let Some(mut all) = TierPages::from_snapshot(snap) else { return one_tier(p.period) };
    let (fast, slow) = (traffic(&all.fast), traffic(&all.slow));
    let share = if fast + slow > 0.0 { fast / (fast + slow) } else { p.fast_share };
    let said =
        format!("{:.0}% of traffic is fast, {:.0}% wanted", share * 100.0, p.fast_share * 100.0);
    if (share - p.fast_share).abs() <= p.slack {
        return explain_plan(Plan::default(), "hold", said, p.period);
    }
    let (plan, up, down) = shift_to(&mut all, snap, p.fast_share, p.round_pages);
    explain_plan(plan, "balance", format!("{said}: {up} pages up, {down} down"), p.period)
}
