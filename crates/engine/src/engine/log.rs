//! What the engine writes to the journal, and when.

use super::{Engine, StepReport};
use crate::digest::{digest, tier_header};
use crate::journal::{
    encode, encode_header, DecisionEntry, JournalEntry, JournalHeader, TrackerHeader, VERSION,
};
use crate::trackers::IntervalSamples;
use crate::Journal;
use terrace_types::{Nanos, Plan, Snapshot, Tick, TierState};

/// The journal, if one is kept, and what is in it already.
pub(super) struct JournalLog {
    journal: Option<Box<dyn Journal>>,
    headed: bool,
    /// When a snapshot was last written.
    snapshot: Option<Tick>,
}

impl JournalLog {
    pub fn new(journal: Option<Box<dyn Journal>>) -> Self {
        Self { journal, headed: false, snapshot: None }
    }

    /// Whether the header is still to be written.
    pub fn wants_header(&self) -> bool {
        self.journal.is_some() && !self.headed
    }

    fn head(&mut self, header: &JournalHeader, notes: &mut Vec<String>) {
        self.headed = true;
        self.write_line(&encode_header(header), notes);
    }

    pub fn write(&mut self, entry: &JournalEntry, notes: &mut Vec<String>) {
        if self.headed {
            self.write_line(&encode(entry), notes);
        }
    }

    /// A journal that fails is given up, and that is said once.
    fn write_line(&mut self, line: &str, notes: &mut Vec<String>) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        if let Err(error) = journal.append(line) {
            self.journal = None;
            notes.push(format!("{error}; going on without a journal"));
        }
    }

    /// Writes a decision of the engine's own.
    pub fn write_decision(&mut self, name: &str, why: String, at: Nanos, notes: &mut Vec<String>) {
        let entry = DecisionEntry {
            at_ns: at.get(),
            name: name.to_owned(),
            why,
            gain_ns_per_s: 0,
            cost_ns: 0,
            state: Default::default(),
        };
        self.write(&JournalEntry::Decision(entry), notes);
    }
}

impl Engine {
    pub(super) fn journal_step(
        &mut self,
        snapshot: &Snapshot,
        plan: &Plan,
        observed: &IntervalSamples,
        now: Tick,
        report: &mut StepReport,
    ) {
        if self.log.journal.is_none() {
            return;
        }
        self.head_journal(&snapshot.tiers, &mut report.notes);
        let every = self.config.journal_every;
        let due = self.log.snapshot.is_none_or(|then| now.since(then) >= every);
        let at = now.since(self.started);
        if due || !plan.moves.is_empty() {
            self.log.snapshot = Some(now);
            let entry = digest(snapshot, at, observed.cpu);
            self.log.write(&JournalEntry::Snapshot(entry), &mut report.notes);
        }
        let state = if plan.moves.is_empty() { Default::default() } else { self.placement.memo() };
        for (i, d) in plan.decisions.iter().enumerate() {
            let entry = DecisionEntry {
                at_ns: at.get(),
                name: d.name.clone(),
                why: d.why.clone(),
                gain_ns_per_s: d.gain_ns_per_s,
                cost_ns: d.cost_ns,
                state: if i == 0 { state.clone() } else { Default::default() },
            };
            self.log.write(&JournalEntry::Decision(entry), &mut report.notes);
        }
    }

    /// Writes the journal's header, once.
    pub(super) fn head_journal(&mut self, tiers: &[TierState], notes: &mut Vec<String>) {
        if self.log.wants_header() {
            let header = self.header(tiers);
            self.log.head(&header, notes);
        }
    }

    fn header(&self, tiers: &[TierState]) -> JournalHeader {
        let tiers = tiers.iter().enumerate();
        JournalHeader {
            terrace_journal: VERSION,
            command: self.config.command.clone(),
            policy: self.placement.name().to_owned(),
            params: self.placement.params(),
            machine: self.machine.name.clone(),
            page_size_bytes: self.machine.page_size.get(),
            tiers: tiers.map(|(rank, t)| tier_header(&self.machine, rank, t)).collect(),
            trackers: self
                .trackers
                .trackers()
                .iter()
                .map(|t| t.info())
                .map(|i| TrackerHeader { name: i.name.to_owned(), blind_to: i.blind_to.to_owned() })
                .collect(),
        }
    }
}
