//! The ports of the engine. One trait each; one file a backend; one fake in `testkit`.

use terrace_policy::heat::{PageSamples, PageWrites, Prescan, RangeObservation};
use terrace_types::{
    Area, Bytes, CellCount, Move, Nanos, NodeId, Pid, Request, Tick, TierState, TrackerVisibility,
    VpnRange,
};

/// Gives time. Real, simulated or scripted.
pub trait Clock {
    /// The time now.
    fn now(&self) -> Tick;
    /// Lets `span` pass; may return sooner when the target ends.
    fn wait(&mut self, span: Nanos);
}

/// What a mapping is made of, as far as moving it is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MappingKind {
    /// Private anonymous memory, heap and stack: moved freely.
    Anonymous,
    /// Private file mapping: only its own (written) copies are moved.
    FilePrivate,
    /// Shared memory or shared file: left alone unless the policy is told otherwise.
    Shared,
    /// hugetlbfs: left alone.
    HugeTlb,
    /// Locked, device or special mapping: left alone.
    Pinned,
}

/// One mapping of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Process.
    pub pid: Pid,
    /// Pages.
    pub range: VpnRange,
    /// Its nature.
    pub kind: MappingKind,
    /// Whether pages can be written.
    pub writable: bool,
}

/// What changed since the target was last read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetChange {
    /// Processes that joined (forks are followed).
    pub born: Vec<Pid>,
    /// Processes that ended.
    pub died: Vec<Pid>,
    /// Mappings differ from last time.
    pub mappings_changed: bool,
    /// Processes that belong to the target and may not be read, and why: newly found ones. The
    /// others are managed all the same.
    pub left_out: Vec<(Pid, String)>,
}

/// Why the target cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// All its processes have ended.
    #[error("the target has ended")]
    Ended,
    /// The kernel refuses.
    #[error("cannot {what} of process {pid}: {why}; {remedy}")]
    Refused {
        /// What was tried.
        what: &'static str,
        /// On which process.
        pid: Pid,
        /// The kernel's answer.
        why: String,
        /// What would help.
        remedy: &'static str,
    },
}

/// The processes that are managed: their mappings, where their pages are, births and deaths.
pub trait Target {
    /// Reads processes and mappings again.
    ///
    /// # Errors
    /// [`TargetError::Ended`] once nothing is left; `Refused` if the kernel says no.
    fn refresh(&mut self) -> Result<TargetChange, TargetError>;
    /// Mappings as of the last refresh, ordered by process, then address.
    fn mappings(&self) -> &[Mapping];
    /// Fills `node` and the flags `PRESENT`, `HUGE_*`, `PINNED`, `SHARED` of every page of `areas`,
    /// leaving heat and other flags as they are. Areas that vanished are left with nothing present.
    ///
    /// # Errors
    /// As [`Target::refresh`].
    fn locate(&mut self, areas: &mut [Area]) -> Result<(), TargetError>;
    /// The same of pages without the flag `PRESENT`, and leaves all others as they are: what came
    /// since is found at the cost of what was missing.
    ///
    /// # Errors
    /// As [`Target::refresh`].
    fn locate_new(&mut self, areas: &mut [Area]) -> Result<(), TargetError> {
        self.locate(areas)
    }
    /// Whether the kernel gives the target huge pages without being asked, as of the last refresh.
    fn gets_huge_pages(&self) -> bool {
        true
    }
    /// Bytes that the target has in memory, by a figure that is cheap to ask for and may be off by
    /// as much as the kernel keeps in counters by CPU. What the tiers' free memory says, where
    /// there is no other.
    ///
    /// # Errors
    /// As [`Target::refresh`].
    fn resident(&mut self) -> Result<Bytes, TargetError> {
        let used = |t: &TierState| t.capacity.saturating_sub(t.free);
        Ok(self.tiers()?.iter().map(used).fold(Bytes::ZERO, |all, one| all + one))
    }
    /// State of the tiers, best first, as the target may use them (cpusets respected).
    ///
    /// # Errors
    /// As [`Target::refresh`].
    fn tiers(&mut self) -> Result<Vec<TierState>, TargetError>;
}

/// What is asked of trackers for the next interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleRequest {
    /// Planned length of the interval.
    pub interval: Nanos,
    /// Page-exact answers are wanted within these ranges; empty: coarse everywhere.
    pub fine: Vec<(Pid, VpnRange)>,
    /// Reads matter now.
    pub reads: bool,
    /// Writes matter now.
    pub writes: bool,
    /// Whether the trackers should spend as little as they can (heat has settled).
    pub relaxed: bool,
    /// One short sample of each page is enough, at the end of the interval.
    pub quick_scan: bool,
}

/// A tracker's reply for one interval.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Observation {
    /// What was seen, ordered by process, then address. Pages not covered were not sampled.
    pub observations: Vec<RangeObservation>,
    /// What was seen page by page.
    pub samples: Vec<PageSamples>,
    /// How soon pages were found written.
    pub writes: Vec<PageWrites>,
    /// How soon pages are written is being sampled, and will be told after a later interval.
    pub writes_to_come: bool,
    /// Who accessed, where known.
    pub by_cell: Vec<CellCount>,
    /// CPU time spent for this interval, kernel threads we started included.
    pub cpu: Nanos,
    /// Memory held for tracking at most, kernel side included where known.
    pub memory: Bytes,
    /// Records lost.
    pub lost: u64,
}

/// A tracker's reply to a spot check: one short sample of some pages, whose bits alone were
/// cleared.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SpotCheck {
    /// Of pages spread evenly over those that have page tables.
    pub spread: Vec<PageSamples>,
    /// The share of all such pages that they are, above 0 and at most 1.
    pub share: f64,
    /// Of those that were asked for, as far as they could be sampled.
    pub asked: Vec<PageSamples>,
    /// CPU time spent.
    pub cpu: Nanos,
}

/// What a tracker is and sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackerInfo {
    /// Name, as `terrace doctor` prints it.
    pub name: &'static str,
    /// What it can see.
    pub sees: TrackerVisibility,
    /// What it cannot see, one sentence.
    pub blind_to: &'static str,
}

/// Why a tracker cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrackError {
    /// It lost its means (DAMON turned off, file gone); others go on.
    #[error("tracker {tracker} stopped: {why}; {remedy}")]
    Stopped {
        /// Tracker's name.
        tracker: &'static str,
        /// What happened.
        why: String,
        /// What to try.
        remedy: &'static str,
    },
}

/// Sees accesses. `begin` starts an interval, `finish` ends it; the engine lets time pass between.
pub trait Tracker {
    /// What it is and sees.
    fn info(&self) -> TrackerInfo;
    /// Starts an interval over these mappings.
    ///
    /// # Errors
    /// [`TrackError::Stopped`] when it can no longer work.
    fn begin(&mut self, mappings: &[Mapping], ask: &SampleRequest) -> Result<(), TrackError>;
    /// How long `finish` will go on looking by itself: the engine calls it so much before the
    /// interval's end.
    fn lead(&self) -> Nanos {
        Nanos::ZERO
    }
    /// Ends the interval and tells what was seen.
    ///
    /// # Errors
    /// [`TrackError::Stopped`] when it can no longer work.
    fn finish(&mut self, now: Tick) -> Result<Observation, TrackError>;
    /// Samples twice for [`Prescan::SAMPLE_LENGTH`], and counts pages touched at the times of
    /// [`Prescan::LATER`] until that says something. Takes its time itself; `None` where the
    /// tracker sees no bits of its own.
    ///
    /// # Errors
    /// [`TrackError::Stopped`] when it can no longer work.
    fn prescan(&mut self, _mappings: &[Mapping]) -> Result<Option<Prescan>, TrackError> {
        Ok(None)
    }
    /// Samples some pages once: of all pages a few, others at each `turn`, and these. Takes its
    /// time itself; `None` where bits of some pages cannot be cleared alone, or that is not worth
    /// it.
    ///
    /// # Errors
    /// [`TrackError::Stopped`] when it can no longer work.
    fn spot_check(
        &mut self,
        _mappings: &[Mapping],
        _asked: &[(Pid, VpnRange)],
        _turn: u64,
    ) -> Result<Option<SpotCheck>, TrackError> {
        Ok(None)
    }
    /// Whether any page of each range was accessed since its bits were last cleared; `None` where
    /// the tracker sees no bits of its own.
    fn accessed(&mut self, _ranges: &[(Pid, VpnRange)]) -> Option<Vec<bool>> {
        None
    }
    /// Passes on a policy's request (clear bits, sample page by page, relax).
    ///
    /// # Errors
    /// [`TrackError::Stopped`] when it can no longer work.
    fn request(&mut self, request: &Request) -> Result<(), TrackError>;
    /// What became of its observations, a sentence each; empty: nothing to say.
    fn accounts(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Bounds on moving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveLimits {
    /// One call holds the target at most this long (default 20 ms); time wins over batch size.
    pub longest_call: Nanos,
    /// Bytes a second, moves both ways together; `None`: unlimited.
    pub rate: Option<terrace_types::BytesPerSec>,
    /// Smallest batch in base pages (default 512).
    pub batch: u32,
    /// Stop after this much time in all; the rest counts as [`MoveFailure::OutOfTime`].
    pub total: Nanos,
}

/// Why pages did not move.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum MoveFailure {
    /// Not backed any more.
    NotPresent,
    /// Already there.
    AlreadyThere,
    /// The node is full.
    NodeFull,
    /// Busy: locked, under write-back, pinned for I/O.
    Busy,
    /// Mapped by several processes.
    Shared,
    /// The kernel has no leave: cpuset or missing capability.
    NotAllowed,
    /// The process ended or unmapped it.
    Gone,
    /// Never tried: time or rate was used up.
    OutOfTime,
    /// Something else the kernel said.
    Other,
}

/// What became of a list of moves.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MoveOutcome {
    /// Base pages tried.
    pub tried: u64,
    /// Base pages now on the node asked for, verified, by node.
    pub moved: Vec<(NodeId, u64)>,
    /// Base pages that are not, by reason; with `moved` adds up to all pages asked for.
    pub failed: Vec<(MoveFailure, u64)>,
    /// Runs that did move, for the heat map to follow without a new sample.
    pub done: Vec<Move>,
    /// Time spent in calls.
    pub cost: Nanos,
    /// Longest single call.
    pub longest_call: Nanos,
    /// Calls made.
    pub calls: u64,
}

/// Moves pages; chooses none.
pub trait Mover {
    /// Makes the moves in order. Partial success is a value.
    fn apply(&mut self, moves: &[Move], exchange: bool, limits: &MoveLimits) -> MoveOutcome;
}

/// Why an entry could not be written. The engine goes on without a journal and says so once.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Writing failed.
    #[error("cannot write the journal: {0}; free space or give another --journal file")]
    Write(String),
}

/// Takes every snapshot summary, decision and outcome; the report's only source.
pub trait Journal {
    /// Appends one line of the journal format (JSON, no line end inside).
    ///
    /// # Errors
    /// [`JournalError::Write`] when the line is not safely handed on.
    fn append(&mut self, line: &str) -> Result<(), JournalError>;
}
