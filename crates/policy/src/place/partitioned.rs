//! `partitioned`: written pages in the fast tier, pages that are mostly read in the slow one
//! (CLOCK-DWF: Lee, Bahn and Noh, IEEE Transactions on Computers 63(9), 2014, as HyPlacer, sections
//! 2.3 and 3.1, describes it).
//!
//! A page on which writes are detected comes up; a page of the fast tier that is mostly read goes
//! down even where there is space (what HyPlacer's observation 1 is about). When the fast tier is
//! full, the page written least frees space.
//!
//! Decided here: "mostly read" is fewer writes than `least_writes` (0.1) of all accesses; CLOCK's
//! hand with its reference bits is replaced by heat, which orders pages as several laps of the hand
//! would.

use super::paced::{
    explain_plan, hottest_first, millis, one_tier, pages, pair, period, sum, PacedPage, State,
    TierPages,
};
use super::{number, SetError};
use serde::{Deserialize, Serialize};
use terrace_machine::Machine;
use terrace_types::{MoveReason, Nanos, Plan, Seed, Snapshot, Tick};

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Params {
    /// `period_ms`: between two rounds (1 s).
    pub period: Nanos,
    /// `round_pages`: base pages moved each way at most in one round (131,072).
    pub round_pages: u64,
    /// `least_writes`: share of writes from which a page is not mostly read (0.1).
    pub least_writes: f64,
}

impl Params {
    pub(crate) fn for_machine(_: &Machine) -> Self {
        Self { period: Nanos::secs(1), round_pages: 131_072, least_writes: 0.1 }
    }

    pub(crate) fn named(&self) -> Vec<(&'static str, String)> {
        vec![
            ("period_ms", millis(self.period)),
            ("round_pages", self.round_pages.to_string()),
            ("least_writes", self.least_writes.to_string()),
        ]
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), SetError> {
        match name {
            "period_ms" => self.period = period(value)?,
            "round_pages" => self.round_pages = pages(value)?,
            "least_writes" => self.least_writes = number(value, 0.0, 1.0, "a share, 0 to 1")?,
            _ => return Err(SetError::Unknown),
        }
        Ok(())
    }
}

/// Sorts pages by whether they are written.
pub fn step(p: &Params, state: &mut State, snap: &Snapshot, now: Tick, _seed: Seed) -> Plan {
    if let Some(wait) = state.rest(now, p.period) {
        return wait;
    }
    let Some(all) = TierPages::from_snapshot(snap) else { return one_tier(p.period) };
    let written = |i: &PacedPage| i.writes > 0 && i.writes as f64 >= i.rate as f64 * p.least_writes;
    let mut up: Vec<PacedPage> = all.slow.iter().copied().filter(written).collect();
    hottest_first(&all.work, &mut up, |i| i.writes);
    // Read pages leave in any case, hot or not, but for those that nothing was seen of.
    let mut leave: Vec<PacedPage> =
        all.fast.iter().copied().filter(|i| i.rate > 0 && !written(i)).collect();
    hottest_first(&all.work, &mut leave, |i| u64::MAX - i.rate);
    let leave = super::paced::first(&leave, p.round_pages);
    let mut rest: Vec<PacedPage> =
        all.fast.iter().copied().filter(|i| i.rate == 0 || written(i)).collect();
    hottest_first(&all.work, &mut rest, |i| u64::MAX - i.writes);
    let (up, more) =
        pair(&up, &rest, all.free + sum(leave), p.round_pages, |u, d| d.writes < u.writes);
    let down: Vec<PacedPage> = leave.iter().chain(more).copied().collect();
    let why = format!(
        "{} written pages come up, {} read or less written ones go down",
        sum(up),
        sum(&down)
    );
    explain_plan(
        all.exchange(snap, up, &down, MoveReason::WriteIntensive),
        "partition",
        why,
        p.period,
    )
}
