//! Whether earlier predictions came true, and for how long heat stays where it is.
//!
//! A few pages of every batch promoted are sampled again. While they stay hot the time that heat
//! is taken to last grows with the age of the batch; once they are cold, that age is what it
//! lasted. A batch that was cold by the first sample was a mistake, and the next prediction is
//! trusted less.

use super::hotness::value_of;
use super::params::Params;
use super::tuning::TerraceTuning;
use crate::place::worth::AccessWorth;
use serde::{Deserialize, Serialize};
use terrace_types::{Move, Nanos, Pid, Snapshot, Tick, Vpn};

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
    /// Share of a predicted gain that is counted on, at most 1.
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
    pub fn begin(&mut self, tuning: &TerraceTuning, pages: u64, value: f64, now: Tick) {
        if self.batches.len() >= tuning.trust_batches {
            self.batches.remove(0);
        }
        let each = (pages / tuning.found_samples as u64).max(1);
        let stride = if pages > 0 { each } else { u64::MAX };
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
    pub fn promoted(&mut self, tuning: &TerraceTuning, m: &Move) {
        let Some(batch) = self.batches.last_mut() else { return };
        let most = tuning.found_samples;
        while batch.next < u64::from(m.pages) && batch.samples.len() < most {
            batch.samples.push((m.pid, Vpn(m.start.0 + batch.next)));
            batch.next += batch.stride;
        }
        batch.next = batch.next.saturating_sub(u64::from(m.pages));
    }

    /// How long heat is taken to stay where it is. As long as none was seen to go, it is taken to
    /// stay for as long as it has (Lindy's law), and for [`Params::first_lifetime`] at least: a
    /// program that runs for hours is given more than one that has run for a second.
    #[must_use]
    pub fn lifetime_at(&mut self, p: &Params, now: Tick) -> Nanos {
        let lasted = now.since(*self.since.get_or_insert(now)).min(p.tuning.longest_lifetime);
        let known = self.lifetime.unwrap_or(p.first_lifetime);
        if self.died.is_none() {
            known.max(lasted)
        } else {
            known
        }
    }

    /// Share of a predicted gain that is counted on now.
    #[must_use]
    pub fn counted_on(&self, tuning: &TerraceTuning, now: Tick) -> f64 {
        let since = self.failed.map_or(0.0, |failed| now.since(failed).as_secs_f64());
        (self.share * (since / tuning.trust_recovers).exp2()).min(1.0)
    }

    /// Heat has shifted.
    pub fn shifted(&mut self, tuning: &TerraceTuning, now: Tick) {
        self.share = self.counted_on(tuning, now).max(tuning.trust_after_shift);
        self.failed = self.failed.map(|_| now);
    }

    /// Samples of all batches.
    pub fn review(&mut self, p: &Params, snap: &Snapshot, worth: &AccessWorth, now: Tick) {
        let tuning = &p.tuning;
        let lifetime = self.lifetime.unwrap_or(p.first_lifetime);
        let (mut longest_alive, mut died) = (Nanos::ZERO, None);
        let (mut share, last) = (self.counted_on(tuning, now), self.died);
        let mut failed = false;
        self.batches.retain_mut(|batch| {
            let age = now.since(batch.at);
            if batch.samples.is_empty() {
                return false;
            }
            if age < tuning.trust_first_age {
                return true;
            }
            let value = batch.value_now(snap, worth);
            let alive = value >= tuning.trust_alive * batch.value;
            if !batch.judged {
                batch.judged = true;
                // What was predicted is what the batch gains over those it displaced: from now on
                // it is measured by itself.
                batch.value = batch.value.max(value);
                share = if alive {
                    (share * tuning.trust_step).min(1.0)
                } else {
                    (share / tuning.trust_step).max(tuning.trust_least)
                };
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
        let p = Params::for_machine(&terrace_machine::preset("lab-cxl").unwrap());
        let mut trust = PredictionTrust::default();
        let at = |trust: &mut PredictionTrust, s: u64| {
            trust.lifetime_at(&p, Tick(s * 1_000_000_000)).as_secs_f64() as u64
        };
        assert_eq!([10, 13, 40, 900].map(|s| at(&mut trust, s)), [4, 4, 30, 60]);
        (trust.died, trust.lifetime) = (Some(Tick(901_000_000_000)), Some(Nanos::secs(2)));
        assert_eq!(at(&mut trust, 905), 2);
    }
}
