//! What can be measured, and what came of it.

use crate::kernels::ElementKernel;
use crate::stats::MeasuredFigure;
use serde::{Deserialize, Serialize};
use std::fmt;
use terrace_types::{Bytes, NodeId};

/// Which pages the measured memory has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageKind {
    /// Base pages (4 KiB on most machines).
    Base,
    /// Transparent huge pages (2 MiB).
    Huge,
}

/// How pages are moved, or data instead of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The call of this name; addresses stay.
    MovePages,
    /// The call of this name with its flag to move; addresses stay.
    Mbind,
    /// Copied to memory that is touched for the first time, and the source given back: addresses
    /// change.
    CopyFaulting,
    /// Copied to memory that was touched before; the source stays.
    CopyPrefaulted,
    /// Two regions change places, by two calls of move_pages for each batch.
    Exchange,
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::MovePages, Self::Mbind, Self::CopyFaulting, Self::CopyPrefaulted, Self::Exchange];

    /// Its name in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MovePages => "move_pages",
            Self::Mbind => "mbind",
            Self::CopyFaulting => "copy_faulting",
            Self::CopyPrefaulted => "copy_prefaulted",
            Self::Exchange => "exchange",
        }
    }

    /// Whether it moves pages, which takes two nodes.
    #[must_use]
    pub const fn moves_pages(self) -> bool {
        matches!(self, Self::MovePages | Self::Mbind | Self::Exchange)
    }
}

/// One figure to measure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Task {
    /// Idle latency by a chain of pointers: nanoseconds a load.
    Chase {
        /// Node whose CPU loads.
        initiator: NodeId,
        /// Node of the memory.
        target: NodeId,
        /// Its pages.
        pages: PageKind,
        /// Region.
        bytes: Bytes,
    },
    /// Several chains at once on one CPU: nanoseconds a load, all chains together.
    Misses {
        /// Node whose CPU loads.
        initiator: NodeId,
        /// Node of the memory.
        target: NodeId,
        /// Region.
        bytes: Bytes,
        /// Chains.
        chains: u32,
    },
    /// Bandwidth of a kernel: bytes a second, as the source text counts them.
    Stream {
        /// Node whose CPUs work.
        initiator: NodeId,
        /// Node of the memory.
        target: NodeId,
        /// What they do.
        kernel: ElementKernel,
        /// Threads, each on a CPU of its own.
        threads: u32,
        /// All arrays together.
        bytes: Bytes,
    },
    /// Latency of one CPU's loads while others load the node: nanoseconds; the second figure is
    /// their bandwidth.
    Loaded {
        /// Node whose CPUs work.
        initiator: NodeId,
        /// Node of the memory.
        target: NodeId,
        /// What the loading threads do.
        kernel: ElementKernel,
        /// Turns of an empty loop after every 2 KiB of each array.
        delay: u32,
        /// Loading threads.
        threads: u32,
        /// Their arrays together, and the chased region.
        bytes: Bytes,
    },
    /// Read bandwidth of memory dealt out over nodes page by page.
    Interleave {
        /// Node whose CPUs work.
        initiator: NodeId,
        /// Nodes with their weights.
        parts: Vec<(NodeId, u32)>,
        /// Threads.
        threads: u32,
        /// The array.
        bytes: Bytes,
    },
    /// Moving from node to node: bytes a second; the second figure is nanoseconds for all of it.
    Move {
        /// How.
        method: Method,
        /// Where the pages are.
        from: NodeId,
        /// Where they go.
        to: NodeId,
        /// Node of the CPUs that move.
        caller: NodeId,
        /// All of it.
        bytes: Bytes,
        /// Pages in a call.
        batch: u32,
        /// Page size.
        pages: PageKind,
        /// Threads that share the work.
        threads: u32,
    },
    /// Taking away a right to one page that other running threads have used: nanoseconds a call.
    Shootdown {
        /// Node whose CPUs work.
        initiator: NodeId,
        /// Other threads.
        others: u32,
    },
}

impl Task {
    /// The node whose CPUs work, and that of the memory where there is one.
    #[must_use]
    pub fn pair(&self) -> (NodeId, Option<NodeId>) {
        match *self {
            Self::Chase { initiator, target, .. }
            | Self::Misses { initiator, target, .. }
            | Self::Stream { initiator, target, .. }
            | Self::Loaded { initiator, target, .. } => (initiator, Some(target)),
            Self::Interleave { initiator, .. } | Self::Shootdown { initiator, .. } => {
                (initiator, None)
            }
            Self::Move { caller, from, .. } => (caller, Some(from)),
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let huge = |pages: &PageKind| if *pages == PageKind::Huge { ", huge pages" } else { "" };
        match self {
            Self::Chase { initiator, target, pages, bytes } => {
                write!(f, "latency of node {target} from {initiator}: {bytes}{}", huge(pages))
            }
            Self::Misses { initiator, target, chains, .. } => {
                write!(f, "misses in flight to node {target} from {initiator}: {chains}")
            }
            Self::Stream { initiator, target, kernel, threads, .. } => {
                write!(
                    f,
                    "bandwidth of node {target} from {initiator}: {}, {threads} \
                    threads",
                    kernel.name()
                )
            }
            Self::Loaded { initiator, target, kernel, delay, .. } => {
                write!(
                    f,
                    "loaded latency of node {target} from {initiator}: {}, delay \
                    {delay}",
                    kernel.name()
                )
            }
            Self::Interleave { initiator, parts, threads, .. } => {
                let parts: Vec<String> =
                    parts.iter().map(|(node, weight)| format!("{weight} of node {node}")).collect();
                write!(f, "interleaved from {initiator}: {}, {threads} threads", parts.join(" to "))
            }
            Self::Move { method, from, to, bytes, batch, pages, threads, caller } => write!(
                f,
                "{} of {bytes} from node {from} to {to} by {caller}: {batch} pages a call, \
                    {threads} threads{}",
                method.name(),
                huge(pages)
            ),
            Self::Shootdown { initiator, others } => {
                write!(f, "translations dropped on node {initiator}: {others} other threads")
            }
        }
    }
}

/// What came of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskOutcome {
    /// The figure, in the unit the task names.
    pub figure: MeasuredFigure,
    /// The second one, where the task has one.
    pub second: Option<MeasuredFigure>,
    /// How it was measured, where there are several ways: the kernel's form that was fastest, the
    /// pages that were had.
    pub how: String,
    /// Stores read their lines first: the bus carried each byte twice, once in each direction. Of
    /// [`ElementKernel::Write`] alone, and only where no form stores past the caches.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_first: bool,
}

impl TaskOutcome {
    /// One figure, or two, had this way.
    #[must_use]
    pub fn new(figure: MeasuredFigure, second: Option<MeasuredFigure>, how: &str) -> Self {
        Self { figure, second, how: how.to_owned(), read_first: false }
    }
}

/// A task and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// What was measured.
    #[serde(flatten)]
    pub task: Task,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: TaskOutcome,
}

/// Why a figure was not measured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// Too few CPUs for the task.
    #[error("it takes {wanted} CPUs of node {node}, {there} may be used here")]
    FewCpus {
        /// Whose CPUs.
        node: NodeId,
        /// CPUs needed.
        wanted: u32,
        /// CPUs there are.
        there: u32,
    },
    /// The kernel gave base pages instead of huge ones.
    #[error(
        "huge pages were not to be had; see /sys/kernel/mm/transparent_hugepage/enabled and \
        free memory"
    )]
    NoHugePages,
    /// Pages did not go where they were to.
    #[error("{left} of {all} pages did not move")]
    NotMoved {
        /// Pages left behind.
        left: u64,
        /// Pages in all.
        all: u64,
    },
    /// No thread that makes the load ran while the latency was measured.
    #[error(
        "the {threads} threads that make the load had no CPU time while the latency was \
        measured; try with less beside it"
    )]
    NoLoad {
        /// Threads that were to make it.
        threads: u32,
    },
    /// The kernel refused something.
    #[error(transparent)]
    Sys(#[from] terrace_sys::SysError),
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// What measures: the machine itself, or a fake in tests.
pub trait Instrument {
    /// Measures one figure.
    ///
    /// # Errors
    /// Why not; others may still be measured, but for [`Trouble::Interrupted`].
    fn measure(&mut self, task: &Task) -> Result<TaskOutcome, Trouble>;

    /// Time since some beginning.
    fn now(&mut self) -> terrace_types::Tick;

    /// Time that other work (programs, the kernel, other guests) had of each CPU since some
    /// beginning, on average; `None` where that is not known.
    fn cpu_time_of_others(&mut self) -> Option<terrace_types::Nanos>;
}
