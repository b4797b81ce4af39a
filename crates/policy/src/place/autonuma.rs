//! `autonuma`: Linux's tiering extension of NUMA balancing (Huang and Verma, "autonuma: optimize
//! memory placement in memory tiering system", 2020; since Linux 6.1 `kernel/sched/fair.c`,
//! `should_numa_migrate_memory`).
//!
//! A page of the slow tier whose time between two accesses is below a threshold comes up, as far as
//! a rate of promotion allows. Pages go down only for space: reclaim demotes the coldest when the
//! fast tier has less free than its watermark. Nothing is exchanged for its own sake, and reads and
//! writes count alike.
//!
//! Here the time between accesses is the inverse of a page's heat; the kernel measures it from
//! unmapping a page to the next fault on it. Defaults are those of Linux 6.12:
//! `numa_balancing_hot_threshold` 1 s, promotion 65,536 MB/s; the watermark is
//! `watermark_scale_factor`'s tenth of a per cent twice. The kernel adapts its threshold to the
//! rate every minute: halved or raised by a tenth of itself in steps; here the hottest come first,
//! which that approximates.

use super::paced::{explain_plan, hottest, millis, one_tier, period, sum, State, TierPages};
use super::runs::page_size;
use super::{number, SetError};
use serde::{Deserialize, Serialize};
use terrace_machine::Machine;
use terrace_types::{Bytes, BytesPerSec, MoveReason, Nanos, Plan, Seed, Snapshot, Tick};

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Params {
    /// `period_ms`: between two rounds (1 s, the least scan period).
    pub period: Nanos,
    /// `hot_threshold_ms`: pages accessed more often than this are hot (1 s).
    pub hot_threshold: Nanos,
    /// `promote_mb_per_s`: bytes brought up at most (65,536 MB/s).
    pub promote: BytesPerSec,
    /// `watermark`: share of the fast tier that is kept free (0.002).
    pub watermark: f64,
}

impl Params {
    pub(crate) fn for_machine(_: &Machine) -> Self {
        Self {
            period: Nanos::secs(1),
            hot_threshold: Nanos::secs(1),
            promote: BytesPerSec::mb(65_536),
            watermark: 0.002,
        }
    }

    pub(crate) fn named(&self) -> Vec<(&'static str, String)> {
        vec![
            ("period_ms", millis(self.period)),
            ("hot_threshold_ms", millis(self.hot_threshold)),
            ("promote_mb_per_s", (self.promote.get() / 1_000_000).to_string()),
            ("watermark", self.watermark.to_string()),
        ]
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), SetError> {
        match name {
            "period_ms" => self.period = period(value)?,
            "hot_threshold_ms" => self.hot_threshold = period(value)?,
            "promote_mb_per_s" => {
                self.promote =
                    BytesPerSec::mb(number(value, 1.0, 1e9, "megabytes a second, from 1")? as u64);
            }
            "watermark" => self.watermark = number(value, 0.0, 0.5, "a share, 0 to 0.5")?,
            _ => return Err(SetError::Unknown),
        }
        Ok(())
    }
}

/// Promotes hot pages; demotes the coldest for space.
pub fn step(p: &Params, state: &mut State, snap: &Snapshot, now: Tick, _seed: Seed) -> Plan {
    if let Some(wait) = state.rest(now, p.period) {
        return wait;
    }
    let Some(all) = TierPages::from_snapshot(snap) else { return one_tier(p.period) };
    let page = page_size(snap);
    let budget = Bytes((p.promote.get() as f64 * p.period.as_secs_f64()) as u64).pages(page);
    let hot = 1.0 / p.hot_threshold.as_secs_f64().max(1e-6);
    let hotter: Vec<_> = all.slow.iter().copied().filter(|i| i.rate as f64 > hot).collect();
    // Reclaim demotes inactive pages: those that would be promoted again at once stay.
    let colder: Vec<_> = all.fast.iter().copied().filter(|i| i.rate as f64 <= hot).collect();
    let kept = (snap.tiers[0].capacity.pages(page) as f64 * p.watermark) as u64;
    let up = hottest(
        &all.work,
        hotter,
        budget.min((all.free + sum(&colder)).saturating_sub(kept)),
        |i| i.rate,
    );
    let down = hottest(&all.work, colder, (sum(&up) + kept).saturating_sub(all.free), |i| {
        u64::MAX - i.rate
    });
    let why =
        format!("{} pages accessed more often than every {} come up", sum(&up), p.hot_threshold);
    explain_plan(all.exchange(snap, &up, &down, MoveReason::Hot), "promote", why, p.period)
}
