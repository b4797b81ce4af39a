//! What a policy returns: moves, requests to the trackers, and the reason for both.

use crate::{Bytes, Nanos, NodeId, Pid, Vpn, VpnRange};
use serde::{Deserialize, Serialize};

/// Why one group of pages should move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveReason {
    /// Written often.
    WriteIntensive,
    /// Read often.
    ReadIntensive,
    /// Hot, reads and writes not distinguished.
    Hot,
    /// Space is free in the better tier.
    #[serde(rename = "fill_room")]
    FillFreeMemory,
    /// Cold, frees space.
    Cold,
    /// Its accesses come from that node.
    NearAccessor,
}

/// A run of consecutive base pages of one process that should be on `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Process that maps the pages.
    pub pid: Pid,
    /// First page.
    pub start: Vpn,
    /// Base pages in the run, at least one.
    pub pages: u32,
    /// Node the policy saw them on.
    pub from: NodeId,
    /// Node they should be on.
    pub to: NodeId,
    /// Why.
    pub reason: MoveReason,
}

impl Move {
    /// The pages to move.
    #[must_use]
    pub fn range(&self) -> VpnRange {
        VpnRange::new(self.start, Vpn(self.start.0 + u64::from(self.pages)))
    }
}

/// What a policy asks of the trackers before its next step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Clear referenced and dirty bits of all pages on these nodes.
    Clear {
        /// Nodes whose pages are meant.
        nodes: Vec<NodeId>,
    },
    /// Clear referenced and dirty bits of these pages.
    ClearPages {
        /// Process.
        pid: Pid,
        /// Pages.
        range: VpnRange,
    },
    /// Call the next step after this time, not sooner.
    Wait(Nanos),
    /// Track these pages more finely for a while.
    #[serde(rename = "look_closer")]
    SampleByPage {
        /// Process.
        pid: Pid,
        /// Pages.
        range: VpnRange,
    },
    /// Heat has settled: tracking may slow down until something changes.
    Relax,
    /// With [`Relax`](Self::Relax): that pages cool is no news, for the worse tiers serve too
    /// little for anything to be gained by it; that heat comes there is.
    IgnoreCooling,
    /// Nothing could be gained from sampling accesses: let time pass without trackers, and decide
    /// again once pages have come or memory was taken.
    #[serde(rename = "doze")]
    Idle,
    /// The target is still filling its memory, and what it touches meanwhile says little: let time
    /// pass without trackers until free memory stands still, then sample.
    #[serde(rename = "settle")]
    WarmUp,
}

/// What was decided, for the journal and the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Short name of the decision, in the policy's own terms (`SWITCH`, `promote`, `hold`).
    pub name: String,
    /// One sentence that a person can read, with the figures that decided it.
    pub why: String,
    /// Gain predicted a second, in nanoseconds of stall avoided; 0 when the policy predicts none.
    pub gain_ns_per_s: u64,
    /// Cost predicted, once, in nanoseconds.
    pub cost_ns: u64,
}

/// What a policy wants done.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Plan {
    /// Moves in the order they should be made. The mover may make fewer, never others.
    pub moves: Vec<Move>,
    /// `moves` alternate demotion and promotion and must keep both tiers' occupancy (HyPlacer's
    /// SWITCH).
    pub exchange: bool,
    /// Requests to the trackers.
    pub requests: Vec<Request>,
    /// What was decided and why; empty when nothing was.
    pub decisions: Vec<Decision>,
    /// What the policy's moves so far save the program now, nanoseconds a second, by what was seen
    /// of their pages since; negative: cost it. Zero where the policy does not measure, or nothing
    /// was sampled.
    #[serde(skip)]
    pub measured_gain: f64,
    /// Cost of further moves that would pay, and are left out since [`Snapshot::spendable`] does
    /// not cover them.
    #[serde(skip)]
    pub unaffordable: Nanos,
    /// What the policy did to decide so.
    #[serde(skip)]
    pub work: PolicyWork,
}

/// Operations that a policy counts while it decides. What they cost is a matter of the machine: the
/// simulator charges them by its file's `[daemon]`, and live the daemon's CPU time is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyWork {
    /// Entries of the snapshot that were read and no more than counted or tested.
    pub scanned_pages: u64,
    /// Pages that were rated, the rating kept in a histogram or a list.
    pub rated_pages: u64,
    /// Pages rated once more, in order of address, to choose what moves.
    pub walked_pages: u64,
    /// Comparisons made to put pages in order.
    pub compared_items: u64,
}

impl std::ops::AddAssign for PolicyWork {
    fn add_assign(&mut self, more: Self) {
        self.scanned_pages += more.scanned_pages;
        self.rated_pages += more.rated_pages;
        self.walked_pages += more.walked_pages;
        self.compared_items += more.compared_items;
    }
}

impl Plan {
    /// Bytes all moves together copy.
    #[must_use]
    pub fn bytes(&self, page_size: Bytes) -> Bytes {
        Bytes(self.moves.iter().map(|m| u64::from(m.pages)).sum::<u64>() * page_size.get())
    }
}
