//! How closely to look: the share of a core that tracking and deciding may cost.

use super::TokenBucket;
use serde::{Deserialize, Serialize};
use terrace_types::{Nanos, Tick};

/// How the next window should run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplingPace {
    /// Time to let pass, untracked, before the next window.
    pub rest: Nanos,
    /// Trackers should spend as little as they can.
    pub thrifty: bool,
}

/// Keeps tracking and deciding within a share of one core, averaged over minutes.
///
/// Bursts are allowed while there is something to gain. A third of what the share brings in the
/// averaging time is kept for them; steady tracking may use the other two thirds, so that whatever
/// happens no averaging time costs more than the share. What a burst used is saved up again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrackingQuota {
    share: f64,
    bucket: TokenBucket,
    /// Seconds of CPU a window costs: in full, and thrifty.
    window_cost: [f64; 2],
    /// The same of a glance; none were made while it is zero.
    #[serde(alias = "glance_cost")]
    quick_scan_cost: f64,
    longest_rest: Nanos,
}

/// Part of the share that is for steady tracking. Half of an averaging time at this rate is a third
/// of the whole: what bursts may use.
const STEADY: f64 = 2.0 / 3.0;

impl TrackingQuota {
    /// `share` of one core (0.03: three per cent), averaged over `over`.
    #[must_use]
    pub fn new(share: f64, over: Nanos) -> Self {
        Self {
            share: if share.is_finite() { share.clamp(0.0, 64.0) } else { 0.0 },
            bucket: TokenBucket::new(share * STEADY, Nanos(over.get() / 2)),
            window_cost: [0.0; 2],
            quick_scan_cost: 0.0,
            longest_rest: Nanos::secs(5),
        }
    }

    /// Books what a window and its decision cost. `thrifty` as [`SamplingPace`] had it.
    pub fn book(&mut self, cpu: Nanos, thrifty: bool, now: Tick) {
        self.bucket.advance(now);
        let cost = cpu.as_secs_f64();
        self.bucket.spend(cost);
        let known = &mut self.window_cost[usize::from(thrifty)];
        *known = if *known == 0.0 { cost } else { 0.7 * *known + 0.3 * cost };
    }

    /// Books what something else cost, which says nothing of what windows or glances will.
    pub fn spend(&mut self, cpu: Nanos, now: Tick) {
        self.bucket.advance(now);
        self.bucket.spend(cpu.as_secs_f64());
    }

    /// Books what a glance cost.
    pub fn charge_quick_scan(&mut self, cpu: Nanos, now: Tick) {
        self.bucket.advance(now);
        let cost = cpu.as_secs_f64();
        self.bucket.spend(cost);
        self.quick_scan_cost = if self.quick_scan_cost == 0.0 {
            cost
        } else {
            0.7 * self.quick_scan_cost + 0.3 * cost
        };
    }

    /// Time from glance to glance that half of the steady share pays for.
    #[must_use]
    pub fn quick_scan_interval(&self) -> Nanos {
        if self.share <= 0.0 {
            return self.longest_rest;
        }
        Nanos((self.quick_scan_cost / (self.share * STEADY / 2.0) * 1e9) as u64)
            .min(self.longest_rest)
    }

    /// How the next window of length `window` should run. `urgent`: heat has not settled, or a
    /// gain is predicted that repays a burst.
    #[must_use]
    pub fn pace(&self, window: Nanos, urgent: bool) -> SamplingPace {
        if urgent && self.bucket.level() > 0.0 {
            return SamplingPace { rest: Nanos::ZERO, thrifty: false };
        }
        let cost = self.window_cost[1];
        // Glances have the other half.
        let steady = if self.quick_scan_cost > 0.0 { STEADY / 2.0 } else { STEADY };
        let sustainable = if self.share > 0.0 { cost / (self.share * steady) } else { 1e9 };
        let rest = Nanos((sustainable * 1e9) as u64).saturating_sub(window);
        SamplingPace { rest: rest.min(self.longest_rest), thrifty: true }
    }

    /// CPU time that may still be spent in a burst; negative when overdrawn.
    #[must_use]
    pub fn left_seconds(&self) -> f64 {
        self.bucket.level()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_while_urgent_then_the_share() {
        let mut quota = TrackingQuota::new(0.03, Nanos::secs(60));
        let window = Nanos::millis(100);
        let (mut now, mut bursts) = (Tick(0), 0);
        loop {
            let pace = quota.pace(window, true);
            if pace.thrifty {
                break;
            }
            bursts += 1;
            now = now.after(window);
            quota.book(Nanos::millis(50), false, now);
        }
        assert!((11..20).contains(&bursts), "{bursts}");
    }

    #[test]
    fn settled_tracking_keeps_to_the_share() {
        let mut quota = TrackingQuota::new(0.03, Nanos::secs(60));
        let (mut now, mut cpu) = (Tick(0), Nanos::ZERO);
        while now < Tick(300_000_000_000) {
            let window = Nanos::millis(100);
            let pace = quota.pace(window, false);
            now = now.after(window).after(pace.rest);
            quota.book(Nanos::millis(9), true, now);
            cpu += Nanos::millis(9);
        }
        assert!(
            cpu.as_secs_f64() / Nanos(now.0).as_secs_f64() < 0.031,
            "{cpu} in {}",
            Nanos(now.0)
        );
    }
}
