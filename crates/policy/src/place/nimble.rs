//! `nimble`: the hotter pages to the fast tier, by hotness alone (Yan et al., "Nimble page
//! management for tiered memory systems", ASPLOS 2019, as HyPlacer, sections 2.3 and 5, describes
//! it).
//!
//! Each node has an active and an inactive list; a page is active when it was referenced in the
//! last period. Active pages of the slow tier come up: into free space, then in exchange for
//! inactive ones. Reads and writes count alike, and among active pages none is preferred: the lists
//! know no rates. Nimble's other half, faster copying and moving of huge pages, is the mover's
//! business.
//!
//! Decided here, where the descriptions are silent: the period (`period_ms`, 5000) and that a page
//! counts as referenced where heat predicts an access with even chance within a period.

use super::paced::{explain_plan, first, millis, one_tier, pages, period, sum, State, TierPages};
use super::SetError;
use serde::{Deserialize, Serialize};
use terrace_machine::Machine;
use terrace_types::{MoveReason, Nanos, Plan, Seed, Snapshot, Tick};

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// `period_ms`: between two rounds (5 s).
    pub period: Nanos,
    /// `round_pages`: base pages brought up at most in one round (131,072, as HyPlacer's).
    pub round_pages: u64,
}

impl Params {
    pub(crate) fn for_machine(_: &Machine) -> Self {
        Self { period: Nanos::secs(5), round_pages: 131_072 }
    }

    pub(crate) fn named(&self) -> Vec<(&'static str, String)> {
        vec![("period_ms", millis(self.period)), ("round_pages", self.round_pages.to_string())]
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), SetError> {
        match name {
            "period_ms" => self.period = period(value)?,
            "round_pages" => self.round_pages = pages(value)?,
            _ => return Err(SetError::Unknown),
        }
        Ok(())
    }
}

/// Exchanges active pages of the slow tier for inactive ones of the fast tier.
pub fn step(p: &Params, state: &mut State, snap: &Snapshot, now: Tick, _seed: Seed) -> Plan {
    if let Some(wait) = state.rest(now, p.period) {
        return wait;
    }
    let Some(all) = TierPages::from_snapshot(snap) else { return one_tier(p.period) };
    let active = std::f64::consts::LN_2 / p.period.as_secs_f64().max(1e-3);
    let is_active = |rate: u64| rate as f64 >= active;
    let up: Vec<_> = all.slow.iter().copied().filter(|i| is_active(i.rate)).collect();
    let down: Vec<_> = all.fast.iter().copied().filter(|i| !is_active(i.rate)).collect();
    let up = first(&up, p.round_pages.min(all.free + sum(&down)));
    let down = first(&down, sum(up).saturating_sub(all.free));
    let why = format!("{} active pages come up, {} inactive ones free space", sum(up), sum(down));
    explain_plan(all.exchange(snap, up, down, MoveReason::Hot), "exchange", why, p.period)
}
