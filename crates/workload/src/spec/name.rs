//! The workloads by name.

use std::fmt;

/// Defines the enum together with its list, names and one-line summaries: none can be left out.
macro_rules! workloads {
    ($($variant:ident = $name:literal, $summary:literal;)*) => {
        /// The workloads.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum WorkloadName {
            $(#[doc = $summary] $variant,)*
        }

        impl WorkloadName {
            /// All of them, in the order that help lists them.
            pub const ALL: [Self; [$(Self::$variant),*].len()] = [$(Self::$variant),*];

            /// The name used everywhere.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// What it does, in one line.
            #[must_use]
            pub const fn summary(self) -> &'static str {
                match self {
                    $(Self::$variant => $summary,)*
                }
            }
        }
    };
}

workloads! {
    Skew = "skew", "cold data fills the fast tier, a small hot set lies on the slow one";
    Shift = "shift", "as skew, but the hot set moves every few seconds";
    Fits = "fits", "all fits the fast tier: moving pages can only lose";
    Rwsplit = "rwsplit", "a read-hot and a write-hot set, together larger than the fast tier";
    Scan = "scan", "a hot set, and one pass over much cold data";
    GraphBfs = "graph-bfs", "breadth-first search on a Kronecker graph";
    Stream = "stream", "the triad a = b + 3 c, over and over";
    Chase = "chase", "dependent loads over all the data in random order";
    GraphPagerank = "graph-pagerank", "PageRank on the graph of graph-bfs";
    NpbBt = "npb-bt", "NAS Parallel Benchmarks BT: block-tridiagonal solver";
    NpbFt = "npb-ft", "NAS Parallel Benchmarks FT: three-dimensional Fourier transforms";
    NpbMg = "npb-mg", "NAS Parallel Benchmarks MG: multigrid";
    NpbCg = "npb-cg", "NAS Parallel Benchmarks CG: conjugate gradients";
    NpbIs = "npb-is", "NAS Parallel Benchmarks IS: integer sort";
    NpbLu = "npb-lu", "NAS Parallel Benchmarks LU: successive over-relaxation";
    NpbSp = "npb-sp", "NAS Parallel Benchmarks SP: scalar pentadiagonal solver";
}

impl WorkloadName {
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
