//! What tracking, deciding and moving may cost.

use crate::Config;
use std::borrow::Cow;
use terrace_policy::quota::{CpuLedger, TokenBucket};
use terrace_types::{Bytes, Move, Nanos, PolicyWork, Tick};

/// CPU time that this thread used, the policy's work included.
pub(super) struct OwnCpu {
    read: Box<dyn FnMut(PolicyWork) -> Nanos>,
    /// What the policy did that `read` was not given yet.
    pub work: PolicyWork,
}

impl OwnCpu {
    pub fn new(read: Box<dyn FnMut(PolicyWork) -> Nanos>) -> Self {
        Self { read, work: PolicyWork::default() }
    }

    /// So far.
    pub fn used(&mut self) -> Nanos {
        (self.read)(std::mem::take(&mut self.work))
    }

    /// Since it was `start`.
    pub fn since(&mut self, start: Nanos) -> Nanos {
        self.used().saturating_sub(start)
    }
}

/// The share of a core, what gains allow beyond it, and the rate of moves.
pub(super) struct Budget {
    pub ledger: CpuLedger,
    /// Gains are measured, and so bound what is spent on moves.
    measures: bool,
    /// When gains were last booked.
    gained: Option<Tick>,
    gain_lasts: Nanos,
    /// Seconds a second, as measured last; `None`: pages were moved since.
    gains: Option<f64>,
    rate: Option<TokenBucket>,
}

impl Budget {
    pub fn new(config: &Config, measures: bool) -> Self {
        let rate = config.limits.rate;
        Self {
            ledger: match measures {
                true => CpuLedger::new(config.tracking_share, config.tracking_over),
                false => CpuLedger::with_bursts(config.tracking_share, config.unmeasured_over),
            },
            measures,
            gained: None,
            gain_lasts: config.tuning.gain_lasts,
            gains: None,
            rate: rate.map(|r| TokenBucket::new(r.get() as f64, Nanos::secs(1))),
        }
    }

    /// What moves may cost after an interval that cost `spent`, where gains are measured.
    pub fn spendable(&self, spent: Nanos) -> Option<Nanos> {
        self.measures.then(|| self.ledger.for_moves(spent))
    }

    /// Books what moves were measured to save a second, since that was last booked. A loss beyond
    /// `least` may be chance ([`CpuLedger::gain`]).
    pub fn book_gain(&mut self, ns_a_second: f64, least: f64, now: Tick) {
        let since = self.gained.replace(now).map_or(Nanos::ZERO, |then| now.since(then));
        self.gains = Some(ns_a_second.max(least) / 1e9);
        let seconds = since.min(self.gain_lasts).as_secs_f64();
        self.ledger.gain(ns_a_second / 1e9 * seconds, least / 1e9 * seconds);
    }

    /// Books moves: their bytes, and their time where gains are measured.
    pub fn book_moves(&mut self, moved: Bytes, cost: Nanos, now: Tick) {
        if let Some(bucket) = &mut self.rate {
            bucket.spend(moved.get() as f64);
        }
        if self.measures {
            self.ledger.spend(cost, now);
        }
        self.gains = None;
    }

    /// Time until what moves gain pays for the next sample; `None`: what they gain is not known.
    pub fn time_to_gain(&self) -> Option<Nanos> {
        self.gains.map(|gains| self.ledger.time_to_gain(gains))
    }

    /// Whether the last measurement found a loss; `false` once pages were moved after it.
    pub fn loses(&self) -> bool {
        self.gains.is_some_and(|gains| gains < 0.0)
    }

    /// The moves that the rate allows now, in order.
    pub fn within_rate<'a>(
        &mut self,
        moves: &'a [Move],
        page_size: Bytes,
        now: Tick,
    ) -> Cow<'a, [Move]> {
        let Some(bucket) = &mut self.rate else {
            return Cow::Borrowed(moves);
        };
        bucket.advance(now);
        let mut left = (bucket.level().max(0.0) / page_size.get().max(1) as f64) as u64;
        let mut allowed = Vec::new();
        for m in moves {
            let pages = u64::from(m.pages).min(left) as u32;
            if pages == 0 {
                break;
            }
            left -= u64::from(pages);
            allowed.push(Move { pages, ..*m });
        }
        Cow::Owned(allowed)
    }
}
