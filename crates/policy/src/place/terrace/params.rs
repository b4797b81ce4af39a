//! Parameters of `terrace`. None needs tuning: what matters comes from the machine file, and the
//! rest are bounds that were the same on every machine and workload tried. Constants that no user
//! sets are in [`super::tuning`].

use super::tuning::TerraceTuning;
use crate::place::worth::{AccessKnowledge, AccessWorth};
use crate::place::{number, SetError};
use serde::{Deserialize, Serialize};
use terrace_machine::Machine;
use terrace_types::{Nanos, NodeId};

/// Parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Params {
    /// The machine: what an access costs in each tier, and what moving costs.
    pub machine: Machine,
    /// Writes are treated as reads (for comparison only).
    pub write_blind: bool,
    /// `window_ms`: an interval while heat has not settled (100 ms).
    pub interval: Nanos,
    /// `longest_window_ms`: an interval when it has (8,000 ms).
    pub longest_interval: Nanos,
    /// `least_evidence_ms`: nothing is moved on less time sampled (3 ms), unless two accesses a
    /// page were seen sooner, and nothing let be unless four were (ADR 0197); chance is computed
    /// with apart, by `doubt`.
    pub least_evidence: Nanos,
    /// `doubt`: how much more than Poisson chance is computed with (1.5 times).
    pub doubt: f64,
    /// `margin`: and by what factor (1.15).
    pub margin: f64,
    /// `repay`: pages change places where what that is expected to save, for as long as heat is
    /// taken to stay, is so many times what the moves cost (2; where regions are sampled, 5). What
    /// an access saves is known within a factor of two, and what comes to nothing in spite of that
    /// is bounded by [`crate::quota::CpuLedger`]
    /// (docs/adr/0355-let-the-ledger-bound-what-moves-may-lose.md).
    pub repay: f64,
    /// `again`: factor by which a page that moved lately must beat the margin once more (1.5).
    pub again: f64,
    /// `damp_ms`: how long a page counts as moved lately (4,000 ms).
    pub damp: Nanos,
    /// `reserve`: share of the better tier left free for new pages (0.005).
    pub reserve: f64,
    /// `lifetime_ms`: how long heat is taken to stay where it is before any is seen to (4,000 ms);
    /// learned from then on.
    pub first_lifetime: Nanos,
    /// What steers it otherwise; not part of what is written.
    #[serde(skip)]
    pub tuning: TerraceTuning,
}

impl Params {
    /// For this machine.
    #[must_use]
    pub fn for_machine(machine: &Machine) -> Self {
        Self {
            machine: machine.clone(),
            write_blind: false,
            interval: Nanos::millis(100),
            longest_interval: Nanos::secs(8),
            least_evidence: Nanos::millis(3),
            doubt: 1.5,
            margin: 1.15,
            repay: 2.0,
            again: 1.5,
            damp: Nanos::secs(4),
            reserve: 0.005,
            first_lifetime: Nanos::secs(4),
            tuning: TerraceTuning::USUAL,
        }
    }

    /// Whether a write is worth so much more than a read between any two nodes that it pays to tell
    /// them apart: soft-dirty bits cost the target a fault for every page that it writes.
    pub(crate) fn writes_matter(&self) -> bool {
        let nodes = || self.machine.nodes.iter().map(|n| n.id);
        let differ = |(a, b): (NodeId, NodeId)| {
            let worth = self.worth_between(&[a], &[b], &AccessKnowledge::BUSY);
            worth.write_ns > self.tuning.writes_matter * worth.read_ns
        };
        !self.write_blind
            && nodes()
                .flat_map(|a| nodes().map(move |b| (a, b)))
                .filter(|(a, b)| a != b)
                .any(differ)
    }

    /// What an access saves that `fast` serves instead of `slow`.
    pub(super) fn worth_between(
        &self,
        fast: &[NodeId],
        slow: &[NodeId],
        touches: &AccessKnowledge,
    ) -> AccessWorth {
        let unknown = self.tuning.unknown_gap_ns;
        AccessWorth::between(&self.machine, fast, slow, touches, unknown)
    }

    /// Nanoseconds to move one base page, its part of a call of 512 included: `seen` to be so, or
    /// as the machine file has it.
    pub(crate) fn page_cost_ns(&self, seen: Nanos) -> f64 {
        if seen > Nanos::ZERO {
            return seen.get() as f64;
        }
        self.machine.migration.page_of_a_call()
    }

    pub(crate) fn named(&self) -> Vec<(&'static str, String)> {
        let ms = |n: Nanos| (n.get() as f64 / 1e6).to_string();
        vec![
            ("window_ms", ms(self.interval)),
            ("longest_window_ms", ms(self.longest_interval)),
            ("least_evidence_ms", ms(self.least_evidence)),
            ("doubt", self.doubt.to_string()),
            ("margin", self.margin.to_string()),
            ("repay", self.repay.to_string()),
            ("again", self.again.to_string()),
            ("damp_ms", ms(self.damp)),
            ("reserve", self.reserve.to_string()),
            ("lifetime_ms", ms(self.first_lifetime)),
        ]
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), SetError> {
        let ms = |least| {
            number(value, least, 3_600_000.0, "milliseconds, at most an hour")
                .map(|ms| Nanos((ms * 1e6) as u64))
        };
        match name {
            "window_ms" => self.interval = ms(1.0)?,
            "longest_window_ms" => self.longest_interval = ms(1.0)?,
            "least_evidence_ms" => self.least_evidence = ms(0.0)?,
            "doubt" => self.doubt = number(value, 0.0, 100.0, "a factor, 0 to 100")?,
            "margin" => self.margin = number(value, 1.0, 100.0, "a factor, 1 to 100")?,
            "repay" => self.repay = number(value, 1.0, 100.0, "a factor, 1 to 100")?,
            "again" => self.again = number(value, 1.0, 100.0, "a factor, 1 to 100")?,
            "damp_ms" => self.damp = ms(0.0)?,
            "reserve" => self.reserve = number(value, 0.0, 0.5, "a share, 0 to 0.5")?,
            "lifetime_ms" => self.first_lifetime = ms(1.0)?,
            _ => return Err(SetError::Unknown),
        }
        Ok(())
    }
}
