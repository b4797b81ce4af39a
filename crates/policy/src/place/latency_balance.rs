//! `latency-balance`: the hottest pages in the fast tier only while it is faster under its load
//! (after Colloid: Vuppalapati and Agarwal, "Tiered memory management: access latency is the key!",
//! SOSP 2024).
//!
//! A tier's latency grows with its load; when the fast tier's exceeds the slow one's, pages in it
//! would be served sooner from the other. The share of accesses that the fast tier should have is
//! where both latencies are equal. Colloid measures latencies by Little's law from counters of the
//! memory controllers; no tracker of ours has these, so they are estimated: idle latency divided by
//! what is left of the bandwidth, `latency / (1 - load)`, from the rates in the heat map. As in
//! Colloid the share is approached by bisection between the last share that was too small and the
//! last that was too large, here on the estimate and in one step; at most `step` (0.2) of the
//! traffic moves in a round.
//!
//! With heat that comes from accessed bits, rates are lower bounds, and so are loads: the fast tier
//! seems emptier than it is, and the policy then fills it as `histogram` would.

use super::bandwidth_balance::{shift_to, traffic};
use super::paced::{by_value, explain_plan, millis, one_tier, pages, period, State, TierPages};
use super::{number, SetError};
use serde::{Deserialize, Serialize};
use terrace_machine::{rank, Machine, RankAttribute, Tier};
use terrace_types::{Nanos, Plan, Seed, Snapshot, Tick};

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Params {
    /// `period_ms`: between two rounds (500 ms).
    pub period: Nanos,
    /// `round_pages`: base pages moved at most in one round (131,072).
    pub round_pages: u64,
    /// `step`: share of all traffic moved at most in one round (0.2).
    pub step: f64,
    /// `slack`: latencies that differ by less than this share are equal (0.05).
    pub slack: f64,
    /// Of the best and the worst tier: idle latency in nanoseconds, and lines a second that they
    /// can carry.
    pub tiers: [(f64, f64); 2],
}

impl Params {
    pub(crate) fn for_machine(machine: &Machine) -> Self {
        let figures = |t: &Tier| {
            let latency = t.read_latency.map_or(100.0, |f| f.value.get() as f64);
            let rate =
                t.read_bandwidth.map_or(20e9, |f| f.value.get() as f64) * t.nodes.len() as f64;
            (latency, rate / 64.0)
        };
        let tiers = match rank(machine, RankAttribute::Bandwidth, None) {
            Ok(r) if r.tiers.len() > 1 => {
                [figures(&r.tiers[0]), figures(&r.tiers[r.tiers.len() - 1])]
            }
            _ => [(100.0, 1e9), (100.0, 1e9)],
        };
        Self { period: Nanos::millis(500), round_pages: 131_072, step: 0.2, slack: 0.05, tiers }
    }

    pub(crate) fn named(&self) -> Vec<(&'static str, String)> {
        vec![
            ("period_ms", millis(self.period)),
            ("round_pages", self.round_pages.to_string()),
            ("step", self.step.to_string()),
            ("slack", self.slack.to_string()),
        ]
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), SetError> {
        match name {
            "period_ms" => self.period = period(value)?,
            "round_pages" => self.round_pages = pages(value)?,
            "step" => self.step = number(value, 0.0, 1.0, "a share, 0 to 1")?,
            "slack" => self.slack = number(value, 0.0, 1.0, "a share, 0 to 1")?,
            _ => return Err(SetError::Unknown),
        }
        Ok(())
    }

    /// Latencies of both tiers, ns, where the fast one has `share` of `rate` accesses a second.
    fn latencies(&self, rate: f64, share: f64) -> [f64; 2] {
        let loaded = |(idle, lines): (f64, f64), rate: f64| idle / (1.0 - (rate / lines).min(0.99));
        [loaded(self.tiers[0], rate * share), loaded(self.tiers[1], rate * (1.0 - share))]
    }

    /// The share at which both latencies are equal; one, where the fast tier is faster with all of
    /// it.
    fn balanced(&self, rate: f64) -> f64 {
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            let [fast, slow] = self.latencies(rate, middle);
            match by_value(fast, slow) {
                std::cmp::Ordering::Less => low = middle,
                _ => high = middle,
            }
        }
        low
    }
}

/// Moves traffic towards equal latencies.
pub fn step(p: &Params, state: &mut State, snap: &Snapshot, now: Tick, _seed: Seed) -> Plan {
    if let Some(wait) = state.rest(now, p.period) {
        return wait;
    }
    let Some(mut all) = TierPages::from_snapshot(snap) else { return one_tier(p.period) };
    let (fast, slow) = (traffic(&all.fast), traffic(&all.slow));
    let rate = fast + slow;
    if rate <= 0.0 {
        return explain_plan(Plan::default(), "hold", "no accesses were seen".to_owned(), p.period);
    }
    let share = fast / rate;
    let [a, b] = p.latencies(rate, share);
    let said = format!("estimated latencies {a:.0} ns and {b:.0} ns at {:.0}% fast", share * 100.0);
    if (a - b).abs() <= p.slack * a.max(b) {
        return explain_plan(Plan::default(), "hold", said, p.period);
    }
    let target = p.balanced(rate).clamp(share - p.step, share + p.step);
    let (plan, up, down) = shift_to(&mut all, snap, target, p.round_pages);
    explain_plan(
        plan,
        "balance",
        format!("{said}: towards {:.0}%, {up} pages up, {down} down", target * 100.0),
        p.period,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_machine_wants_all_fast_and_a_loaded_one_less() {
        let p = Params {
            period: Nanos(1),
            round_pages: 1,
            step: 1.0,
            slack: 0.0,
            tiers: [(80.0, 1e8), (300.0, 1e8)],
        };
        assert!(p.balanced(1e6) > 0.999);
        let share = p.balanced(1.2e8);
        let [fast, slow] = p.latencies(1.2e8, share);
        assert!((fast - slow).abs() < 1.0 && share < 0.9 && share > 0.5, "{share}: {fast} {slow}");
    }
}
