//! What can go wrong, by situation.

use terrace_machine::RankError;
use terrace_policy::solve::SolveError;
use terrace_sys::{CudaError, SysError};
use terrace_topology::TopologyError;
use terrace_types::Bytes;

/// Why memory was not given, freed or placed.
#[derive(Debug, thiserror::Error)]
pub enum AllocError {
    /// More than any machine has.
    #[error("{size} is more than can be addressed; check the computation of the size")]
    TooLarge {
        /// What was asked for.
        size: Bytes,
    },
    /// No class was named.
    #[error("no class of memory was asked for; name at least one, 0 is the fastest")]
    NothingAsked,
    /// No such class here.
    #[error(
        "this machine has no class {class} of memory, it has {classes} (0 is the fastest, -1 \
        the slowest); ask for another or with fallback"
    )]
    NoSuchClass {
        /// What was asked for.
        class: i16,
        /// How many there are.
        classes: usize,
    },
    /// No such node in the class.
    #[error(
        "class {class} has {nodes} nodes, no index {index}; count from 0, or ask for all of them"
    )]
    NoSuchIndex {
        /// Class.
        class: i16,
        /// What was asked for.
        index: u16,
        /// How many there are.
        nodes: usize,
    },
    /// LOCAL for a thread that is nowhere in particular.
    #[error(
        "local memory was asked for by a thread that may run on CPUs of nodes {nodes}; bind \
        the thread, or ask with fallback"
    )]
    NotBound {
        /// Nodes whose CPUs it may use.
        nodes: String,
    },
    /// LOCAL where the class is far.
    #[error(
        "class {class} has no memory near node {initiator}, it is on nodes {nodes}; ask for \
        all of it, or with fallback"
    )]
    NotLocal {
        /// Class.
        class: i16,
        /// The caller's node.
        initiator: u16,
        /// Where the class is.
        nodes: String,
    },
    /// No class of GPUs.
    #[error(
        "there is no CUDA managed memory here: {0}; or ask for another class, or with fallback"
    )]
    NoCuda(#[source] CudaError),
    /// No such GPU.
    #[error(
        "CUDA managed memory has {gpus} GPUs, no index {index}; count from 0, or ask for all \
        of them"
    )]
    NoSuchGpu {
        /// What was asked for.
        index: u16,
        /// How many there are.
        gpus: usize,
    },
    /// LOCAL where no GPU is near.
    #[error(
        "no GPU is known to be near node {initiator}; ask for one by its index, for all, or \
        with fallback"
    )]
    NoGpuNear {
        /// The caller's node.
        initiator: u16,
    },
    /// A split that divides nothing.
    #[error("the split cannot be: {what}")]
    BadSplit {
        /// What is wrong with it.
        what: &'static str,
    },
    /// Weights and intensities are numbers.
    #[error("reads and writes must be finite and not below zero; leave them at 1 when unsure")]
    BadIntensity,
    /// There is none left where it may lie.
    #[error(
        "{asked} were asked for in nodes {nodes}, which have {free} free ({limit}); free \
        some, ask for less, or ask with fallback"
    )]
    NoSpace {
        /// What was asked for.
        asked: Bytes,
        /// Where.
        nodes: String,
        /// What there is.
        free: Bytes,
        /// What sets the limit.
        limit: &'static str,
    },
    /// GPUs without space.
    #[error(
        "{asked} were asked for on GPUs {gpus}, which have {free} free (what is free there \
        and not promised); free some, ask for less, or ask with fallback"
    )]
    NoSpaceOnGpus {
        /// What was asked for.
        asked: Bytes,
        /// Numbers of the GPUs.
        gpus: String,
        /// What there is.
        free: Bytes,
    },
    /// Not an address of ours: foreign, or freed before.
    #[error(
        "{address:#x} was not allocated here, or was freed before; give the address that \
        allocate returned"
    )]
    NotOurs {
        /// The address.
        address: usize,
    },
    /// The thread is inside already.
    #[error(
        "this thread is inside this memory already (a signal handler); allocate and free \
        outside of handlers"
    )]
    Reentered,
    /// A variable of the environment that says nothing.
    #[error("{name}={value:?} cannot be read: {what}")]
    Environment {
        /// Variable.
        name: &'static str,
        /// What it holds.
        value: String,
        /// What is wrong.
        what: String,
    },
    /// No node of the machine file is here.
    #[error(
        "none of the machine's nodes {described} may be used here (usable: {usable}); give this \
            machine's own file"
    )]
    NoNodes {
        /// Nodes of the machine.
        described: String,
        /// Nodes that the process may use.
        usable: String,
    },
    /// The machine could not be read.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The machine could not be ranked.
    #[error(transparent)]
    Rank(#[from] RankError),
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] SysError),
    /// The driver of the GPUs refused.
    #[error("CUDA managed memory: {0}")]
    Cuda(#[from] CudaError),
    /// The commit could not be posed.
    #[error(transparent)]
    Solve(#[from] SolveError),
}
