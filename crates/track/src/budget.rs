//! A share of one core, kept over minutes, with bursts.

use terrace_types::{Nanos, Tick};

/// CPU time earned at a share of real time and saved up to a burst.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    share: f64,
    burst: Nanos,
    /// May fall below zero: a burst that cost more than foreseen is paid back by waiting.
    level: f64,
    last: Option<Tick>,
    spent: Nanos,
}

impl Budget {
    /// `share` of one core (0.03: 3%), saved up to `burst`, which is there at the start.
    #[must_use]
    pub fn new(share: f64, burst: Nanos) -> Self {
        Self {
            share: share.clamp(0.0001, 64.0),
            burst,
            level: burst.0 as f64,
            last: None,
            spent: Nanos::ZERO,
        }
    }

    /// No bound: for use under the engine, which keeps a share of its own.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::new(64.0, Nanos::secs(3600))
    }

    /// The share of one core.
    #[must_use]
    pub const fn share(&self) -> f64 {
        self.share
    }

    /// Adds what was earned until `now`.
    pub fn earn(&mut self, now: Tick) {
        let passed = self.last.map_or(Nanos::ZERO, |last| now.since(last));
        self.last = Some(now);
        self.level = (self.level + passed.0 as f64 * self.share).min(self.burst.0 as f64);
    }

    /// Whether something that costs `cost` may start now.
    #[must_use]
    pub fn allows(&self, cost: Nanos) -> bool {
        self.level >= (cost.0 as f64).min(self.burst.0 as f64 * 0.5)
    }

    /// Takes off what was spent.
    pub fn spend(&mut self, cost: Nanos) {
        self.level -= cost.0 as f64;
        self.spent += cost;
    }

    /// Everything spent so far.
    #[must_use]
    pub const fn spent(&self) -> Nanos {
        self.spent
    }
}

impl Default for Budget {
    /// 3% of one core; bursts of up to 0.6 s, what 20 s earn.
    fn default() -> Self {
        Self::new(0.03, Nanos::millis(600))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_kept_over_time_and_bursts_are_bounded() {
        let mut budget = Budget::new(0.03, Nanos::millis(100));
        let cost = Nanos::millis(10);
        let mut spent = 0;
        for ms in 0..60_000 {
            budget.earn(Tick(ms * 1_000_000));
            if budget.allows(cost) {
                budget.spend(cost);
                spent += cost.0;
            }
        }
        let most = Nanos::millis(100).0 + 60_000_000_000 * 3 / 100;
        assert!(spent <= most && spent > most * 9 / 10, "{spent}");
        assert_eq!(budget.spent(), Nanos(spent));
    }

    #[test]
    fn a_cost_beyond_the_burst_still_gets_its_turn() {
        let mut budget = Budget::new(0.5, Nanos::millis(10));
        budget.earn(Tick(0));
        assert!(budget.allows(Nanos::secs(1)));
        budget.spend(Nanos::secs(1));
        budget.earn(Tick(1_000_000_000));
        assert!(!budget.allows(Nanos::millis(1)));
        budget.earn(Tick(3_000_000_000));
        assert!(budget.allows(Nanos::millis(1)));
    }
}
