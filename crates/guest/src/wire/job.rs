//! What host and guest tell each other as JSON: the job, and the reply to it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the host asks of the guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GuestJob {
    /// The command and its arguments; `argv[0]` is looked up in `PATH` when it has no slash.
    pub argv: Vec<String>,
    /// The whole environment of the command.
    pub env: Vec<(String, String)>,
    /// Program of the guest whose first exec begins the time that counts; the command's own, also
    /// where `argv` begins with a tool that starts it.
    pub program: String,
    /// Working directory, made if it does not exist.
    pub cwd: String,
    /// File of the guest that the command reads as its standard input; `None` is an empty one.
    pub stdin: Option<String>,
    /// Settings written before the command starts, in order.
    pub before: Vec<Setting>,
    /// Settings written after the command ended, in order.
    pub after: Vec<Setting>,
    /// Memory policy of the command, set between fork and exec.
    pub memory_policy: Option<MemoryPolicy>,
    /// What the guest does when the workload stands at its mark.
    pub at_mark: AtMark,
    /// Reclaim while the command runs.
    pub reclaim: Option<Reclaim>,
    /// Guest seconds after which the command is killed.
    pub limit_seconds: u64,
    /// Processor time is reported for threads whose name starts with one of these.
    pub cpu_of: Vec<String>,
    /// Files that come back with the reply, where they exist.
    pub fetch: Vec<String>,
}

/// One value written to one file of the guest (a sysctl, sysfs, debugfs).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Absolute path.
    pub path: String,
    /// What is written.
    pub value: String,
    /// Whether a failure stops the job (else it becomes a warning).
    pub required: bool,
}

/// A memory policy as set_mempolicy(2) knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPolicy {
    /// Kernel's number of the mode, for example 6 for weighted interleave.
    pub mode: i32,
    /// Nodes in the mask.
    pub nodes: Vec<u32>,
}

/// The mark protocol: the workload stops at the beginning of its measured phase until the guest
/// answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum AtMark {
    /// No fifos: the workload does not stop.
    Nothing,
    /// Stop and answer at once (so that a profiled run has the same environment as the moved one).
    Answer,
    /// Move the pages of [`PAGES_NAME`] so that the hottest are on `fast`, then answer.
    Place {
        /// Node that gets the hottest pages.
        fast: u32,
        /// Node that gets what has to leave.
        slow: u32,
        /// Pages of the fast node that stay free, above the kernel's own reserve.
        reserve_pages: u64,
        /// Whether the move is part of the measured phase; if not, the phase is marked as beginning
        /// after it.
        counts: bool,
    },
}

/// Proactive reclaim: the command in a memory cgroup of its own, of which a little is reclaimed
/// each period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaim {
    /// Node whose free memory is looked at.
    pub node: u32,
    /// Reclaim while less than this is free above the node's high watermark.
    pub free_bytes: u64,
    /// Most that is asked for at a time.
    pub step_bytes: u64,
    /// Guest nanoseconds between two looks.
    pub period_nanos: u64,
}

/// What proactive reclaim did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimReport {
    /// Looks at the node's free memory.
    pub looks: u64,
    /// Bytes asked of `memory.reclaim`.
    pub asked_bytes: u64,
    /// What the kernel answered when it did not find as much, and how often.
    pub refused: BTreeMap<String, u64>,
    /// Guest nanoseconds that looking and reclaiming took.
    pub nanos: u64,
}

/// How the command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "how")]
pub enum JobOutcome {
    /// It exited with this status.
    Exited {
        /// Exit status.
        status: i32,
    },
    /// It was ended by this signal.
    Signalled {
        /// Signal number.
        signal: i32,
    },
    /// It ran longer than the job allowed and was killed.
    TimedOut,
    /// It was never started.
    NotStarted {
        /// Why not.
        why: String,
    },
}

/// What placing at the mark did: what was tried and applied, and the reasons for what was not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceReport {
    /// Pages of the ranking that fit the fast node.
    pub wanted_pages: u64,
    /// Pages that were to leave the fast node.
    pub demote_tried: u64,
    /// Pages that left it.
    pub demoted_pages: u64,
    /// Pages that were to come.
    pub promote_tried: u64,
    /// Pages that came.
    pub promoted_pages: u64,
    /// Why not: errno name or node, and how many pages.
    pub refused: BTreeMap<String, u64>,
    /// Guest nanoseconds that it took.
    pub nanos: u64,
}

/// Processor time of one thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadCpu {
    /// Its name.
    pub name: String,
    /// Nanoseconds on a processor between start and end of the job.
    pub nanos: u64,
}

/// What the guest answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// How the command ended.
    pub outcome: JobOutcome,
    /// Guest nanoseconds from the program's exec to its exit, by the guest's own clock.
    pub nanos: u64,
    /// Guest nanoseconds from the command's start to the program's exec: what a tool that starts
    /// the program takes before.
    pub startup_nanos: u64,
    /// User and system time of the command and its children, nanoseconds.
    pub user_nanos: u64,
    /// See `user_nanos`.
    pub system_nanos: u64,
    /// Counters of /proc/vmstat that changed, after minus before.
    pub vmstat: BTreeMap<String, i64>,
    /// Threads asked for by `cpu_of`.
    pub cpu: Vec<ThreadCpu>,
    /// Bytes by node that a program could still get before the command started: free, less the
    /// kernel's reserve.
    pub usable_bytes: BTreeMap<u32, u64>,
    /// What placing at the mark did.
    pub placed: Option<PlaceReport>,
    /// What reclaiming did.
    pub reclaimed: Option<ReclaimReport>,
    /// Settings that could not be written, files that could not be read.
    pub warnings: Vec<String>,
}

impl Reply {
    /// A reply that only says why nothing was run.
    pub fn not_started(why: String) -> Self {
        Reply {
            outcome: JobOutcome::NotStarted { why },
            nanos: 0,
            startup_nanos: 0,
            user_nanos: 0,
            system_nanos: 0,
            vmstat: BTreeMap::new(),
            cpu: Vec::new(),
            usable_bytes: BTreeMap::new(),
            placed: None,
            reclaimed: None,
            warnings: Vec::new(),
        }
    }
}
