//! `memos`: bandwidth balance that knows writes, every four seconds, with new pages in the slow
//! tier (Liu et al., "Memos", as HyPlacer, section 5.1, rebuilt it: period 4 s, one classification,
//! 100,000 pages a period; no bank balance, no migration engine of its own).
//!
//! While the fast tier carries less than its share of the traffic (shares as the bandwidths are),
//! hot pages come up, written ones first; beyond it the read-hot ones that carry the excess go
//! down. Cold pages free space.
//!
//! Decided here: hot is a page that heat expects to be accessed in a period. That new pages are
//! *born* in the slow tier is for whoever sets the process up (see
//! [`crate::place::Placement::starts_slow`]): a policy sees pages when they are there.

use super::bandwidth_balance::{carrying, fast_share, traffic};
use super::paced::{
    explain_plan, first, hottest_first, millis, one_tier, pages, pair, period, sum, PacedPage,
    State, TierPages,
};
use super::{number, SetError};
use serde::{Deserialize, Serialize};
use terrace_machine::Machine;
use terrace_types::{MoveReason, Nanos, Plan, Seed, Snapshot, Tick};

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Params {
    /// `period_ms`: between two rounds (4 s).
    pub period: Nanos,
    /// `round_pages`: base pages moved up at most in one round (100,000).
    pub round_pages: u64,
    /// `fast_share`: of all traffic, what the fast tier should carry (its share of the bandwidths).
    pub fast_share: f64,
}

impl Params {
    pub(crate) fn for_machine(machine: &Machine) -> Self {
        Self { period: Nanos::secs(4), round_pages: 100_000, fast_share: fast_share(machine) }
    }

    pub(crate) fn named(&self) -> Vec<(&'static str, String)> {
        vec![
            ("period_ms", millis(self.period)),
            ("round_pages", self.round_pages.to_string()),
            ("fast_share", format!("{:.3}", self.fast_share)),
        ]
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), SetError> {
        match name {
            "period_ms" => self.period = period(value)?,
            "round_pages" => self.round_pages = pages(value)?,
            "fast_share" => self.fast_share = number(value, 0.0, 1.0, "a share, 0 to 1")?,
            _ => return Err(SetError::Unknown),
        }
        Ok(())
    }
}

/// Moves traffic towards the share asked for, writes up first.
pub fn step(p: &Params, state: &mut State, snap: &Snapshot, now: Tick, _seed: Seed) -> Plan {
    if let Some(wait) = state.rest(now, p.period) {
        return wait;
    }
    let Some(mut all) = TierPages::from_snapshot(snap) else { return one_tier(p.period) };
    let (fast, slow) = (traffic(&all.fast), traffic(&all.slow));
    let wanted = (fast + slow) * p.fast_share;
    let share = format!(
        "{:.0}% of traffic is fast, {:.0}% wanted",
        100.0 * fast / (fast + slow).max(1.0),
        100.0 * p.fast_share
    );
    let hot = std::f64::consts::LN_2 / p.period.as_secs_f64().max(1e-3);
    hottest_first(&all.work, &mut all.slow, |i| {
        i.writes.saturating_mul(1 << 20).saturating_add(i.rate)
    });
    all.slow.retain(|i| i.rate as f64 >= hot);
    if fast < wanted {
        let up = carrying(&all.slow, wanted - fast);
        let mut down = all.fast.clone();
        hottest_first(&all.work, &mut down, |i| u64::MAX - i.rate);
        let (up, down) = pair(&up, &down, all.free, p.round_pages, |u, d| d.rate * 2 < u.rate);
        let why =
            format!("{share}: {} hot pages come up, {} cold ones free space", sum(up), sum(down));
        return explain_plan(
            all.exchange(snap, up, down, MoveReason::Hot),
            "promote",
            why,
            p.period,
        );
    }
    let mut reads: Vec<PacedPage> =
        all.fast.iter().copied().filter(|i| i.writes * 2 < i.rate).collect();
    hottest_first(&all.work, &mut reads, |i| i.rate);
    let down = carrying(&reads, fast - wanted);
    let down = first(&down, p.round_pages);
    let why = format!("{share}: {} read-hot pages go down", sum(down));
    explain_plan(all.exchange(snap, &[], down, MoveReason::Hot), "demote", why, p.period)
}
