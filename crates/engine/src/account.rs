//! The account of a run: what was moved, what it cost, what it was worth.

use crate::journal::{FailureCount, JournalSummary, OutcomeEntry};
use crate::{MoveFailure, MoveOutcome};
use std::collections::BTreeMap;
use terrace_types::{Bytes, Move, Nanos, Snapshot};

/// Sums over all steps.
#[derive(Debug, Default)]
pub(crate) struct Account {
    summary: JournalSummary,
    failed: BTreeMap<MoveFailure, u64>,
    share_time: f64,
    share_sum: f64,
}

impl Account {
    /// Books an interval: trackers' CPU, own CPU, memory held.
    pub fn interval(&mut self, tracking: Nanos, deciding: Nanos, memory: Bytes, lost: u64) {
        let s = &mut self.summary;
        s.steps += 1;
        s.tracking_cpu_ns = s.tracking_cpu_ns.saturating_add(tracking.get());
        s.deciding_cpu_ns = s.deciding_cpu_ns.saturating_add(deciding.get());
        s.peak_memory_bytes = s.peak_memory_bytes.max(memory.get());
        s.lost_records = s.lost_records.saturating_add(lost);
    }

    /// Books CPU time between intervals.
    pub fn between(&mut self, deciding: Nanos) {
        self.summary.deciding_cpu_ns = self.summary.deciding_cpu_ns.saturating_add(deciding.get());
    }

    /// Books the fast tier's share of accesses over `span`.
    pub fn share(&mut self, share: Option<f64>, span: Nanos) {
        if let Some(share) = share {
            self.share_time += span.as_secs_f64();
            self.share_sum += share * span.as_secs_f64();
        }
    }

    /// Books the memory found to be managed.
    pub fn managed(&mut self, managed: Bytes) {
        self.summary.managed_bytes = self.summary.managed_bytes.max(managed.get());
    }

    /// Books an outcome. Directions are by tier rank at the time of the plan.
    pub fn outcome(&mut self, entry: &OutcomeEntry, page_size: Bytes) {
        let s = &mut self.summary;
        s.promoted_pages += entry.promoted_pages;
        s.demoted_pages += entry.demoted_pages;
        s.sideways_pages += entry.sideways_pages;
        let pages = entry.promoted_pages + entry.demoted_pages + entry.sideways_pages;
        s.migrated_bytes = s.migrated_bytes.saturating_add(pages.saturating_mul(page_size.get()));
        s.moving_ns = s.moving_ns.saturating_add(entry.cost_ns);
        for failure in &entry.failed {
            *self.failed.entry(failure.reason).or_default() += failure.pages;
        }
    }

    /// What moving a page of `page_size` has taken so far, failed tries included; zero while fewer
    /// than `fewest` were moved.
    pub fn move_cost(&self, page_size: Bytes, fewest: u64) -> Nanos {
        let pages = self.summary.migrated_bytes / page_size.get().max(1);
        Nanos(if pages < fewest { 0 } else { self.summary.moving_ns / pages })
    }

    /// Whether anything was moved.
    pub fn moved(&self) -> bool {
        self.summary.migrated_bytes > 0
    }

    /// The account so far.
    pub fn summary(&self, at: Nanos) -> JournalSummary {
        let share = (self.share_time > 0.0).then(|| self.share_sum / self.share_time);
        let failed = self.failed.iter().map(|(r, n)| FailureCount { reason: *r, pages: *n });
        JournalSummary {
            at_ns: at.get(),
            failed: failed.collect(),
            fast_access_share: share,
            ..self.summary.clone()
        }
    }
}

/// An outcome as the journal has it.
pub(crate) fn outcome_entry(
    outcome: &MoveOutcome,
    planned: &[Move],
    exchange: bool,
    snap: &Snapshot,
    at: Nanos,
) -> OutcomeEntry {
    let mut entry = OutcomeEntry {
        at_ns: at.get(),
        planned_pages: planned.iter().map(|m| u64::from(m.pages)).sum(),
        tried_pages: outcome.tried,
        cost_ns: outcome.cost.get(),
        longest_call_ns: outcome.longest_call.get(),
        calls: outcome.calls,
        exchange,
        failed: outcome
            .failed
            .iter()
            .map(|(reason, pages)| FailureCount { reason: *reason, pages: *pages })
            .collect(),
        ..OutcomeEntry::default()
    };
    for m in &outcome.done {
        let pages = u64::from(m.pages);
        match (snap.rank_of(m.from), snap.rank_of(m.to)) {
            (Some(from), Some(to)) if to < from => entry.promoted_pages += pages,
            (Some(from), Some(to)) if to > from => entry.demoted_pages += pages,
            _ => entry.sideways_pages += pages,
        }
    }
    entry
}
