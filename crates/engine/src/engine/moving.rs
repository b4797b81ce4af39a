//! Making a plan's moves.

use super::{Engine, StepReport};
use crate::account::outcome_entry;
use crate::journal::{JournalEntry, OutcomeEntry};
use crate::{MoveFailure, MoveLimits};
use std::borrow::Cow;
use terrace_types::{Bytes, Move, Nanos, Plan, Snapshot, Tick};

/// Where more than this part of a program's pages was promoted at once, it goes on at another pace:
/// rates that were known before count for little.
const PACE_CHANGES: u64 = 16;

impl Engine {
    /// Makes the plan's moves, which are gone then, and those that the policy adds from the same
    /// sample. Gives the bytes of the longest list of moves and the CPU time of deciding on those
    /// added.
    pub(super) fn carry_out(
        &mut self,
        plan: &mut Plan,
        mut snapshot: Snapshot,
        present: u64,
        now: Tick,
        report: &mut StepReport,
    ) -> (u64, Nanos) {
        let (mut promoted, mut longest, mut deciding) = (0u64, 0, Nanos::ZERO);
        let (mut moves, mut limits) = (std::mem::take(&mut plan.moves), self.config.limits);
        if let Some(spendable) = snapshot.spendable {
            limits.total = limits.total.min(spendable);
        }
        loop {
            longest = longest.max(size_of_val(moves.as_slice()) as u64);
            let applied = self.apply(&moves, plan.exchange, &limits, &snapshot, now);
            self.heat.give_back(std::mem::take(&mut snapshot.areas));
            let Some((outcome, done)) = applied else { break };
            self.heat.moved(&done);
            self.placement.moved(&done, &snapshot);
            promoted = promoted.saturating_add(outcome.promoted_pages);
            limits.total = limits.total.saturating_sub(Nanos(outcome.cost_ns));
            self.write(&JournalEntry::Outcome(outcome.clone()), &mut report.notes);
            let all = outcome.tried_pages == moves.iter().map(|m| u64::from(m.pages)).sum::<u64>();
            match &mut report.outcome {
                Some(before) => before.add(outcome),
                none => *none = Some(outcome),
            }
            if !all || done.is_empty() {
                break;
            }
            let before = self.used_cpu();
            snapshot.areas = self.heat.lend();
            let part = self.placement.go_on(&snapshot, now);
            moves = part.moves;
            self.policy_work += part.work;
            deciding += self.used_cpu().saturating_sub(before);
        }
        if promoted.saturating_mul(PACE_CHANGES) > present {
            self.heat.doubt();
        }
        // What moves took and left is not memory that the target fills.
        if let (Some(_), Ok(tiers)) = (&report.outcome, self.target.tiers()) {
            self.free_then = tiers.iter().map(|t| t.free).collect();
        }
        (longest, deciding)
    }

    fn apply(
        &mut self,
        moves: &[Move],
        exchange: bool,
        limits: &MoveLimits,
        snapshot: &Snapshot,
        now: Tick,
    ) -> Option<(OutcomeEntry, Vec<Move>)> {
        let moves = self.within_rate(moves, snapshot.page_size, now);
        if moves.is_empty() {
            return None;
        }
        let outcome = self.mover.apply(&moves, exchange, limits);
        let at = self.at();
        let entry = outcome_entry(&outcome, &moves, exchange, snapshot, at);
        let pages = entry.promoted_pages + entry.demoted_pages + entry.sideways_pages;
        if let Some(bucket) = &mut self.rate {
            bucket.spend((pages * snapshot.page_size.get()) as f64);
        }
        // Those that were not tried are where they were.
        let tried = |why: &MoveFailure| *why != MoveFailure::OutOfTime;
        self.must_locate |= outcome.failed.iter().any(|(why, pages)| *pages > 0 && tried(why));
        if snapshot.spendable.is_some() {
            self.ledger.spend(outcome.cost, self.clock.now());
        }
        self.account.outcome(&entry, snapshot.page_size);
        Some((entry, outcome.done))
    }

    /// The moves that the rate allows now, in order.
    fn within_rate<'a>(
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
