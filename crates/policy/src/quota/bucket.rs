//! A token bucket.

use serde::{Deserialize, Serialize};
use terrace_types::{Nanos, Tick};

/// Fills at a steady rate up to a limit; may be overdrawn, and then must fill again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenBucket {
    per_second: f64,
    limit: f64,
    level: f64,
    last: Option<Tick>,
}

impl TokenBucket {
    /// A full bucket that holds what `over` brings.
    #[must_use]
    pub fn new(per_second: f64, over: Nanos) -> Self {
        let per_second = if per_second.is_finite() { per_second.max(0.0) } else { 0.0 };
        let limit = per_second * over.as_secs_f64();
        Self { per_second, limit, level: limit, last: None }
    }

    /// Lets time pass.
    pub fn advance(&mut self, now: Tick) {
        let elapsed = self.last.map_or(0.0, |last| now.since(last).as_secs_f64());
        self.last = Some(now);
        self.level = (self.level + elapsed * self.per_second).min(self.limit);
    }

    /// Takes out what was used, even if more than is there.
    pub fn spend(&mut self, amount: f64) {
        if amount.is_finite() && amount > 0.0 {
            self.level -= amount;
        }
    }

    /// What is there; negative when overdrawn.
    #[must_use]
    pub fn level(&self) -> f64 {
        self.level
    }

    /// Time until `amount` is there; zero when it is already, a day when it never will be.
    #[must_use]
    pub fn time_until(&self, amount: f64) -> Nanos {
        const DAY: f64 = 86_400.0;
        let missing = amount.min(self.limit) - self.level;
        if missing <= 0.0 {
            return Nanos::ZERO;
        }
        let seconds = if self.per_second > 0.0 { missing / self.per_second } else { DAY };
        Nanos((seconds.min(DAY) * 1e9) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_a_long_time_no_more_than_the_rate_goes_out() {
        let mut bucket = TokenBucket::new(0.03, Nanos::secs(10));
        let mut spent = 0.0;
        for s in 0..1_000 {
            bucket.advance(Tick(s * 1_000_000_000));
            while bucket.level() > 0.0 {
                bucket.spend(0.05);
                spent += 0.05;
            }
        }
        assert!(spent < 0.03 * 1_000.0 + 0.3 + 0.05, "{spent}");
        assert!(spent > 0.03 * 990.0, "{spent}");
    }

    #[test]
    fn waiting_times_are_finite() {
        let mut bucket = TokenBucket::new(f64::NAN, Nanos::secs(1));
        bucket.spend(1.0);
        assert_eq!(bucket.time_until(1.0), Nanos::secs(86_400));
        let mut bucket = TokenBucket::new(2.0, Nanos::secs(1));
        bucket.spend(3.0);
        assert_eq!(bucket.time_until(1.0), Nanos::secs(1));
    }
}
