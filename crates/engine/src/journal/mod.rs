//! The journal format: JSON lines, versioned from the first line.
//!
//! ```text
//! {"terrace_journal":1,"command":...,"policy":...,"tiers":[...]}      one header
//! {"entry":"snapshot","at_ns":...,"tiers":[...],"heat":[...]}         what was seen
//! {"entry":"decision","at_ns":...,"name":"exchange","why":"..."}      what was decided, and why
//! {"entry":"outcome","at_ns":...,"tried_pages":...,"failed":[...]}    what became of it
//! {"entry":"note","at_ns":...,"text":"..."}                           anything a person should know
//! {"entry":"end",...}                                                 the summary, last
//! ```
//!
//! The types here are the format. Fields may be added to version 1 (readers ignore what they do
//! not know, and every later field has a default); a changed meaning needs version 2.
//! [`read`] takes text and gives back all that could be read, and one clear problem at most.

mod read;
mod write;

pub use read::{read, JournalProblem, ParsedJournal, MAX_ENTRIES, MAX_LINE_BYTES};
pub use write::{encode, encode_header};

use crate::MoveFailure;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use terrace_types::{NodeId, Pid, ThroughputSource, Vpn};

/// The version written and the only one read.
pub const VERSION: u32 = 1;

/// Rows of heat in one snapshot at most.
pub const MAX_HEAT_ROWS: usize = 256;

/// First line of a journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JournalHeader {
    /// Version of the format; this key comes first and names the file's type.
    pub terrace_journal: u32,
    /// The command that was run or attached to, as a person would type it.
    #[serde(default)]
    pub command: String,
    /// Policy by name.
    pub policy: String,
    /// Its parameters by name.
    #[serde(default)]
    pub params: BTreeMap<String, String>,
    /// Name of the machine model.
    #[serde(default)]
    pub machine: String,
    /// Bytes of a base page.
    pub page_size_bytes: u64,
    /// Tiers, best first.
    pub tiers: Vec<TierHeader>,
    /// Trackers in use, with what each is blind to.
    #[serde(default)]
    pub trackers: Vec<TrackerHeader>,
}

/// One tier, as the machine model describes it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TierHeader {
    /// 0 is best.
    pub rank: usize,
    /// What it is made of, for people.
    #[serde(default)]
    pub kind: String,
    /// Its nodes.
    pub nodes: Vec<NodeId>,
    /// What user pages can occupy.
    pub capacity_bytes: u64,
    /// Idle read latency; null when not known.
    #[serde(default)]
    pub read_latency_ns: Option<u64>,
    /// Peak read bandwidth; null when not known.
    #[serde(default)]
    pub read_bandwidth_bytes_per_s: Option<u64>,
    /// Peak write bandwidth; null when not known.
    #[serde(default)]
    pub write_bandwidth_bytes_per_s: Option<u64>,
    /// Where each figure that is known comes from: its key here, and `hmat`, `measured`, `config`,
    /// `preset`, `distance` or `unknown`. Journals from before this field have none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub evidence: BTreeMap<String, String>,
}

/// A tracker that took part.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TrackerHeader {
    /// Its name.
    pub name: String,
    /// What it cannot see.
    #[serde(default)]
    pub blind_to: String,
}

/// Any line after the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum JournalEntry {
    /// What was seen.
    Snapshot(SnapshotEntry),
    /// What was decided.
    Decision(DecisionEntry),
    /// What became of the moves.
    Outcome(OutcomeEntry),
    /// Anything a person should know.
    Note(NoteEntry),
    /// The account of the whole run.
    End(JournalSummary),
    /// An entry this reader does not know; skipped, never an error.
    #[serde(other)]
    Unknown,
}

/// Summary of one snapshot.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SnapshotEntry {
    /// Time since the engine started.
    pub at_ns: u64,
    /// Time behind a typical page's heat.
    pub window_ns: u64,
    /// Pages with heat to act on.
    #[serde(default)]
    pub known_pages: u64,
    /// A page counts as hot from this many accesses a second.
    #[serde(default)]
    pub hot_from_per_s: u64,
    /// Tiers, best first.
    pub tiers: Vec<TierSummary>,
    /// Heat by address, at most [`MAX_HEAT_ROWS`] rows, ordered by process, then address.
    #[serde(default)]
    pub heat: Vec<HeatRow>,
    /// Estimated share of accesses that the fast tier serves, 0 to 1; null when nothing was seen.
    #[serde(default)]
    pub fast_access_share: Option<f64>,
    /// CPU time the trackers spent for this interval.
    #[serde(default)]
    pub tracking_cpu_ns: u64,
}

/// One tier at the time of a snapshot.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TierSummary {
    /// 0 is best.
    pub rank: usize,
    /// What user pages can occupy.
    pub capacity_bytes: u64,
    /// Of it, what is free.
    pub free_bytes: u64,
    /// Pages of the target here.
    pub pages: u64,
    /// Of them, hot.
    pub hot_pages: u64,
    /// Estimated reads a second by the target here.
    pub reads_per_s: u64,
    /// Estimated writes a second by the target here.
    pub writes_per_s: u64,
    /// Bytes written a second, all told; null when nothing can tell.
    #[serde(default)]
    pub write_throughput_bytes_per_s: Option<u64>,
    /// How that was had.
    #[serde(default)]
    pub throughput_source: ThroughputSource,
}

/// Heat of one bucket of addresses: the mean over its pages.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HeatRow {
    /// Process.
    pub pid: Pid,
    /// First page.
    pub start: Vpn,
    /// Base pages in the bucket.
    pub pages: u64,
    /// Reads a second of a page, on average.
    pub reads_per_s: u64,
    /// Writes a second of a page, on average.
    pub writes_per_s: u64,
    /// Accesses a second of the hottest page.
    #[serde(default)]
    pub hottest_per_s: u64,
    /// Present pages by tier rank; pages not present are in none.
    pub tier_pages: Vec<u64>,
}

/// One decision.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DecisionEntry {
    /// Time since the engine started.
    pub at_ns: u64,
    /// Its short name.
    pub name: String,
    /// One sentence with the figures that decided it.
    pub why: String,
    /// Predicted gain, in nanoseconds of stall avoided a second; 0: none predicted.
    #[serde(default)]
    pub gain_ns_per_s: u64,
    /// Predicted cost, once.
    #[serde(default)]
    pub cost_ns: u64,
    /// What of the policy's state is worth keeping, by name; given where pages move.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub state: BTreeMap<String, String>,
}

/// What became of one plan's moves.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct OutcomeEntry {
    /// Time since the engine started, when the moves were done.
    pub at_ns: u64,
    /// Base pages the plan asked for.
    pub planned_pages: u64,
    /// Base pages tried.
    pub tried_pages: u64,
    /// Base pages that reached a better tier.
    pub promoted_pages: u64,
    /// Base pages that reached a worse tier.
    pub demoted_pages: u64,
    /// Base pages that moved within a tier.
    #[serde(default)]
    pub sideways_pages: u64,
    /// Base pages that did not move, by reason.
    #[serde(default)]
    pub failed: Vec<FailureCount>,
    /// Time spent in calls.
    pub cost_ns: u64,
    /// Longest single call.
    #[serde(default)]
    pub longest_call_ns: u64,
    /// Calls made.
    #[serde(default)]
    pub calls: u64,
    /// Both directions in equal numbers.
    #[serde(default)]
    pub exchange: bool,
}

impl OutcomeEntry {
    /// Adds what the next part of the same plan came to.
    pub fn add(&mut self, next: Self) {
        self.at_ns = next.at_ns;
        self.planned_pages += next.planned_pages;
        self.tried_pages += next.tried_pages;
        self.promoted_pages += next.promoted_pages;
        self.demoted_pages += next.demoted_pages;
        self.sideways_pages += next.sideways_pages;
        self.cost_ns = self.cost_ns.saturating_add(next.cost_ns);
        self.longest_call_ns = self.longest_call_ns.max(next.longest_call_ns);
        self.calls += next.calls;
        self.exchange |= next.exchange;
        for failure in next.failed {
            match self.failed.iter_mut().find(|f| f.reason == failure.reason) {
                Some(known) => known.pages += failure.pages,
                None => self.failed.push(failure),
            }
        }
    }
}

/// Pages that did not move, for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureCount {
    /// Why.
    pub reason: MoveFailure,
    /// How many base pages.
    pub pages: u64,
}

/// Something a person should know.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NoteEntry {
    /// Time since the engine started.
    pub at_ns: u64,
    /// One sentence.
    pub text: String,
}

/// The account of a whole run: last line of the journal, and what `--summary` writes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct JournalSummary {
    /// Time since the engine started.
    pub at_ns: u64,
    /// Steps taken.
    pub steps: u64,
    /// Base pages moved to a better tier.
    pub promoted_pages: u64,
    /// Promoted base pages that have saved, as estimated from samples, the cost of their moves and
    /// of the demotions that made space for them; null: not measured.
    #[serde(default)]
    pub repaid_pages: Option<u64>,
    /// Base pages moved to a worse tier.
    pub demoted_pages: u64,
    /// Base pages moved within a tier.
    #[serde(default)]
    pub sideways_pages: u64,
    /// Bytes copied by moves.
    pub migrated_bytes: u64,
    /// Base pages that did not move, by reason.
    #[serde(default)]
    pub failed: Vec<FailureCount>,
    /// CPU time of trackers, kernel threads we started included.
    pub tracking_cpu_ns: u64,
    /// CPU time of deciding.
    pub deciding_cpu_ns: u64,
    /// Time spent in calls that move pages.
    pub moving_ns: u64,
    /// Estimated share of accesses that the fast tier served, weighted by time; null: never seen.
    #[serde(default)]
    pub fast_access_share: Option<f64>,
    /// Most memory held by trackers and heat map together.
    pub peak_memory_bytes: u64,
    /// Most memory managed at once.
    #[serde(default)]
    pub managed_bytes: u64,
    /// Records that trackers lost.
    #[serde(default)]
    pub lost_records: u64,
}
