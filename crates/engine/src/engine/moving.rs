//! Making a plan's moves.

use super::{Engine, StepReport};
use crate::account::outcome_entry;
use crate::journal::{JournalEntry, OutcomeEntry};
use crate::{MoveFailure, MoveLimits};
use terrace_types::{Bytes, Move, Nanos, Plan, Snapshot, Tick};

impl Engine {
    /// Makes the plan's moves, which are gone then, and those that the policy adds from the same
    /// sample. Gives the bytes of the longest list of moves, the CPU time of deciding on those
    /// added, and the moves that were made.
    pub(super) fn carry_out(
        &mut self,
        plan: &mut Plan,
        mut snapshot: Snapshot,
        present: u64,
        now: Tick,
        report: &mut StepReport,
    ) -> (u64, Nanos, Vec<Move>) {
        let (mut promoted, mut longest, mut deciding) = (0u64, 0, Nanos::ZERO);
        let mut made = Vec::new();
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
            self.placement.moved(&done, &snapshot, Nanos(outcome.cost_ns));
            promoted = promoted.saturating_add(outcome.promoted_pages);
            limits.total = limits.total.saturating_sub(Nanos(outcome.cost_ns));
            self.log.write(&JournalEntry::Outcome(outcome.clone()), &mut report.notes);
            let all = outcome.tried_pages == moves.iter().map(|m| u64::from(m.pages)).sum::<u64>();
            match &mut report.outcome {
                Some(before) => before.add(outcome),
                none => *none = Some(outcome),
            }
            let none = done.is_empty();
            made.extend(done);
            if !all || none {
                break;
            }
            let before = self.own_cpu.used();
            snapshot.areas = self.heat.lend();
            let part = self.placement.go_on(&snapshot, now);
            moves = part.moves;
            self.own_cpu.work += part.work;
            deciding += self.own_cpu.since(before);
        }
        if promoted.saturating_mul(self.config.tuning.pace_part) > present {
            self.heat.doubt();
        }
        // What moves took and left is not memory that the target fills.
        if let (Some(_), Ok(tiers)) = (&report.outcome, self.target.tiers()) {
            self.located.note_free(&tiers, self.clock.now());
        }
        (longest, deciding, made)
    }

    fn apply(
        &mut self,
        moves: &[Move],
        exchange: bool,
        limits: &MoveLimits,
        snapshot: &Snapshot,
        now: Tick,
    ) -> Option<(OutcomeEntry, Vec<Move>)> {
        let moves = self.budget.within_rate(moves, snapshot.page_size, now);
        if moves.is_empty() {
            return None;
        }
        let outcome = self.mover.apply(&moves, exchange, limits);
        let at = self.at();
        let entry = outcome_entry(&outcome, &moves, exchange, snapshot, at);
        let pages = entry.promoted_pages + entry.demoted_pages + entry.sideways_pages;
        // Those that were not tried are where they were.
        let tried = |why: &MoveFailure| *why != MoveFailure::OutOfTime;
        self.located.all_moved |=
            outcome.failed.iter().any(|(why, pages)| *pages > 0 && tried(why));
        let moved = Bytes(pages * snapshot.page_size.get());
        self.budget.book_moves(moved, outcome.cost, self.clock.now());
        self.account.outcome(&entry, snapshot.page_size);
        Some((entry, outcome.done))
    }
}
