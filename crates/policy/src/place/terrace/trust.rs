//! Whether earlier predictions came true, and for how long heat stays where it is.
//!
//! A few pages of every batch promoted are sampled again. While they stay hot the time that heat
//! is taken to last grows with the age of the batch; once they are cold, that age is what it
//! lasted. A batch that was cold by the first sample was a mistake, and the next prediction is
//! trusted less.

use super::hotness::value_of;
use crate::place::worth::AccessWorth;
use serde::{Deserialize, Serialize};
use terrace_types::{Move, Nanos, Pid, Snapshot, Tick, Vpn};

const BATCHES: usize = 16;
const SAMPLES: usize = 64;
/// By then the heat map shows what became of a batch.
const FIRST_SAMPLE_AGE: Nanos = Nanos::millis(400);

/// Promoted together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct PromotedBatch {
    at: Tick,
    value: f64,
    samples: Vec<(Pid, Vpn)>,
    /// Every so many pages one is sampled; pages until the next.
    stride: u64,
    next: u64,
    judged: bool,
}

/// What was learned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PredictionTrust {
    batches: Vec<PromotedBatch>,
    /// Share of a predicted gain that is counted on, 1/16 to 1.
    pub share: f64,
    /// How long heat is taken to stay; `None` before anything is known.
    pub lifetime: Option<Nanos>,
    /// When a batch was last found cold.
    died: Option<Tick>,
    /// When a prediction last failed.
    failed: Option<Tick>,
    /// When the program came to be as it is: its memory was filled.
    since: Option<Tick>,
}

/// Of what has lasted no end is seen beyond so long.
const LONGEST: Nanos = Nanos::secs(60);

/// Trust that was lost comes back twofold in so long: a policy that moves nothing learns nothing.
const RECOVERS: f64 = 1.0;
/// Where heat has shifted, earlier predictions say little of those to come.
const AFTER_A_SHIFT: f64 = 0.5;

impl Default for PredictionTrust {
    fn default() -> Self {
        Self {
            batches: Vec::new(),
            share: 1.0,
            lifetime: None,
            died: None,
            failed: None,
            since: None,
        }
    }
}

impl PredictionTrust {
    /// A batch of so many promotions (none: none that says anything) worth `value` a page begins,
    /// in accesses a second ([`AccessWorth::relative`]).
    pub fn begin(&mut self, pages: u64, value: f64, now: Tick) {
        if self.batches.len() == BATCHES {
            self.batches.remove(0);
        }
        let stride = if pages > 0 { (pages / SAMPLES as u64).max(1) } else { u64::MAX };
        self.batches.push(PromotedBatch {
            at: now,
            value,
            samples: Vec::new(),
            stride,
            next: if pages > 0 { 0 } else { u64::MAX },
            judged: false,
        });
    }

    /// Remembers the next promotion of the batch begun last.
    pub fn promoted(&mut self, m: &Move) {
        let Some(batch) = self.batches.last_mut() else { return };
        while batch.next < u64::from(m.pages) && batch.samples.len() < SAMPLES {
            batch.samples.push((m.pid, Vpn(m.start.0 + batch.next)));
            batch.next += batch.stride;
        }
        batch.next = batch.next.saturating_sub(u64::from(m.pages));
    }

    /// How long heat is taken to stay where it is. As long as none was seen to go, it is taken to
    /// stay for as long as it has (Lindy's law), and for `first` at least: a program that runs for
    /// hours is given more than one that has run for a second.
    #[must_use]
    pub fn lifetime_at(&mut self, first: Nanos, now: Tick) -> Nanos {
        let lasted = now.since(*self.since.get_or_insert(now)).min(LONGEST);
        let known = self.lifetime.unwrap_or(first);
        if self.died.is_none() {
            known.max(lasted)
        } else {
            known
        }
    }

    /// Share of a predicted gain that is counted on now.
    #[must_use]
    pub fn counted_on(&self, now: Tick) -> f64 {
        let since = self.failed.map_or(0.0, |failed| now.since(failed).as_secs_f64());
        (self.share * (since / RECOVERS).min(8.0).exp2()).min(1.0)
    }

    /// Heat has shifted.
    pub fn shifted(&mut self, now: Tick) {
        self.share = self.counted_on(now).max(AFTER_A_SHIFT);
        self.failed = self.failed.map(|_| now);
    }

    /// Samples of all batches.
    pub fn review(&mut self, snap: &Snapshot, worth: &AccessWorth, first: Nanos, now: Tick) {
        let lifetime = self.lifetime.unwrap_or(first);
        let (mut longest_alive, mut died) = (Nanos::ZERO, None);
        let (mut share, last) = (self.counted_on(now), self.died);
        let mut failed = false;
        self.batches.retain_mut(|batch| {
            let age = now.since(batch.at);
            if batch.samples.is_empty() {
                return false;
            }
            if age < FIRST_SAMPLE_AGE {
                return true;
            }
            let value = batch.value_now(snap, worth);
            let alive = value >= 0.5 * batch.value;
            if !batch.judged {
                batch.judged = true;
                // What was predicted is what the batch gains over those it displaced: from now on
                // it is measured by itself.
                batch.value = batch.value.max(value);
                share = if alive { (share * 2.0).min(1.0) } else { (share * 0.5).max(1.0 / 16.0) };
                failed |= !alive;
            }
            if alive {
                // Batches from before heat last shifted say nothing of how long it stays now.
                if last.is_none_or(|died| batch.at >= died) {
                    longest_alive = longest_alive.max(age);
                }
            } else {
                died = Some(died.map_or(age, |d: Nanos| d.max(age)));
            }
            alive
        });
        self.share = share;
        self.failed = if failed { Some(now) } else { self.failed.map(|_| now) };
        if let Some(died) = died {
            self.died = Some(now);
            // What was taken for it before anything was seen counts for nothing beside what was.
            self.lifetime =
                Some(self.lifetime.map_or(died, |known| Nanos((known.get() + died.get()) / 2)));
        } else if longest_alive > lifetime {
            self.lifetime = Some(longest_alive);
        }
    }
}

impl PromotedBatch {
    /// Mean value of its sampled pages that are still mapped.
    fn value_now(&self, snap: &Snapshot, worth: &AccessWorth) -> f64 {
        let mapped = self.samples.iter().filter_map(|(pid, vpn)| snap.page(*pid, *vpn));
        mapped.map(|page| value_of(page, worth)).sum::<f64>() / self.samples.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_is_predicted_to_last_as_long_as_it_has() {
        let mut trust = PredictionTrust::default();
        let at = |trust: &mut PredictionTrust, s: u64| {
            trust.lifetime_at(Nanos::secs(4), Tick(s * 1_000_000_000)).as_secs_f64() as u64
        };
        assert_eq!([10, 13, 40, 900].map(|s| at(&mut trust, s)), [4, 4, 30, 60]);
        (trust.died, trust.lifetime) = (Some(Tick(901_000_000_000)), Some(Nanos::secs(2)));
        assert_eq!(at(&mut trust, 905), 2);
    }
}
