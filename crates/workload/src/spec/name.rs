//! The workloads by name.

use std::fmt;

/// The workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkloadName {
    /// Cold data touched first fills the fast tier; a small hot set lands on the slow one.
    Skew,
    /// As `skew`, but the hot set moves every few seconds.
    Shift,
    /// All fits the fast tier: moving pages can only lose.
    Fits,
    /// A read-hot and a write-hot set, together larger than the fast tier.
    Rwsplit,
    /// A hot set, and beside it one pass over much cold data.
    Scan,
    /// Breadth-first search on a Kronecker graph.
    GraphBfs,
    /// The triad `a = b + 3 c`, over and over.
    Stream,
    /// A chain of dependent loads over all the data in random order.
    Chase,
    /// PageRank on the graph of `graph-bfs`.
    GraphPagerank,
    /// NAS Parallel Benchmarks: block-tridiagonal solver of flow equations.
    NpbBt,
    /// NAS Parallel Benchmarks: three-dimensional Fourier transforms.
    NpbFt,
    /// NAS Parallel Benchmarks: multigrid.
    NpbMg,
    /// NAS Parallel Benchmarks: conjugate gradients on a sparse matrix.
    NpbCg,
    /// NAS Parallel Benchmarks: integers are ranked and put in order.
    NpbIs,
    /// NAS Parallel Benchmarks: the same equations by successive over-relaxation.
    NpbLu,
    /// NAS Parallel Benchmarks: the same by scalar pentadiagonal systems.
    NpbSp,
}

impl WorkloadName {
    /// All of them, in the order that help lists them.
    pub const ALL: [Self; 16] = [
        Self::Skew,
        Self::Shift,
        Self::Fits,
        Self::Rwsplit,
        Self::Scan,
        Self::GraphBfs,
        Self::Stream,
        Self::Chase,
        Self::GraphPagerank,
        Self::NpbBt,
        Self::NpbFt,
        Self::NpbMg,
        Self::NpbCg,
        Self::NpbIs,
        Self::NpbLu,
        Self::NpbSp,
    ];

    /// The name used everywhere.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Skew => "skew",
            Self::Shift => "shift",
            Self::Fits => "fits",
            Self::Rwsplit => "rwsplit",
            Self::Scan => "scan",
            Self::GraphBfs => "graph-bfs",
            Self::Stream => "stream",
            Self::Chase => "chase",
            Self::GraphPagerank => "graph-pagerank",
            Self::NpbBt => "npb-bt",
            Self::NpbFt => "npb-ft",
            Self::NpbMg => "npb-mg",
            Self::NpbCg => "npb-cg",
            Self::NpbIs => "npb-is",
            Self::NpbLu => "npb-lu",
            Self::NpbSp => "npb-sp",
        }
    }

    /// What it does, in one line.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            Self::Skew => "cold data fills the fast tier, a small hot set lies on the slow one",
            Self::Shift => "as skew, but the hot set moves every few seconds",
            Self::Fits => "all fits the fast tier: moving pages can only lose",
            Self::Rwsplit => "a read-hot and a write-hot set, together larger than the fast tier",
            Self::Scan => "a hot set, and one pass over much cold data",
            Self::GraphBfs => "breadth-first search on a Kronecker graph",
            Self::Stream => "the triad a = b + 3 c, over and over",
            Self::Chase => "dependent loads over all the data in random order",
            Self::GraphPagerank => "PageRank on the graph of graph-bfs",
            Self::NpbBt => "NAS Parallel Benchmarks BT: block-tridiagonal solver",
            Self::NpbFt => "NAS Parallel Benchmarks FT: three-dimensional Fourier transforms",
            Self::NpbMg => "NAS Parallel Benchmarks MG: multigrid",
            Self::NpbCg => "NAS Parallel Benchmarks CG: conjugate gradients",
            Self::NpbIs => "NAS Parallel Benchmarks IS: integer sort",
            Self::NpbLu => "NAS Parallel Benchmarks LU: successive over-relaxation",
            Self::NpbSp => "NAS Parallel Benchmarks SP: scalar pentadiagonal solver",
        }
    }

    /// Size of its data, and of its hot set, in millionths of the fast tier.
    pub(super) const fn default_sizes(self) -> (u32, u32) {
        match self {
            Self::Skew | Self::Shift => (1_000_000, 333_333),
            Self::Fits => (500_000, 250_000),
            Self::Rwsplit => (700_000, 700_000),
            Self::Scan => (2_000_000, 333_333),
            Self::GraphBfs | Self::GraphPagerank | Self::Stream => (1_500_000, 0),
            // The medium sizes of HyPlacer's table III.
            Self::NpbBt => (1_220_000, 0),
            Self::NpbFt => (1_250_000, 0),
            Self::NpbMg => (2_320_000, 0),
            Self::NpbCg => (1_240_000, 0),
            // As FT and BT: the table has none of these.
            Self::NpbIs => (1_250_000, 0),
            Self::NpbLu | Self::NpbSp => (1_220_000, 0),
            Self::Chase => (1_000_000, 0),
        }
    }
}

impl fmt::Display for WorkloadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
