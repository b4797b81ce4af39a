//! What can go wrong before or while a machine is simulated.

use terrace_model::ModelError;
use terrace_types::BaselineId;
use terrace_workload::WorkloadSpecError;

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimError {
    /// The machine file lacks what the model needs.
    #[error("machine {machine}: {why}; complete the machine file or take a preset")]
    Machine {
        /// Its name.
        machine: String,
        /// What the model said.
        why: ModelError,
    },
    /// The machine's nodes cannot be ranked.
    #[error("machine {machine}: {why}")]
    Ranking {
        /// Its name.
        machine: String,
        /// What is missing.
        why: String,
    },
    /// No such workload, or a parameter that cannot be read.
    #[error(transparent)]
    Workload(#[from] WorkloadSpecError),
    /// A recording that cannot be run.
    #[error("recording {name}: {why}")]
    Recording {
        /// Its name.
        name: String,
        /// Why.
        why: String,
    },
    /// A baseline that only a real kernel provides.
    #[error("{baseline} is not simulated; run terrace lab compare, or give one of {simulated}")]
    NotSimulated {
        /// The baseline.
        baseline: BaselineId,
        /// What can be simulated.
        simulated: String,
    },
    /// The policy cannot work with what the simulated trackers see.
    #[error("{0}")]
    Needs(String),
    /// The program does not fit.
    #[error(
        "machine {machine} has {have} for programs and {input} needs {need}; give a smaller size= \
            or a larger machine"
    )]
    TooSmall {
        /// Machine.
        machine: String,
        /// What ran.
        input: String,
        /// Memory that programs can have.
        have: terrace_types::Bytes,
        /// Memory that it maps.
        need: terrace_types::Bytes,
    },
    /// The host has too little memory for the simulation.
    #[error(
        "simulating {input} on {machine} takes {need} of this host's memory and {have} is there; \
            {remedy}"
    )]
    HostMemory {
        /// Machine.
        machine: String,
        /// What runs.
        input: String,
        /// Memory that it takes.
        need: terrace_types::Bytes,
        /// Memory that the host has, as far as it is known.
        have: terrace_types::Bytes,
        /// What to try.
        remedy: &'static str,
    },
    /// No such store behind memory.
    #[error(
        "machine {machine} has no far store {name}; it has {known}; add a [[far]] to its file"
    )]
    NoStore {
        /// Machine.
        machine: String,
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// Too little memory for a pager.
    #[error(
        "machine {machine} has {have} of its best tier for programs, and a pager needs \
        {need}; give it more"
    )]
    TooLittle {
        /// Machine.
        machine: String,
        /// Memory of the best tier.
        have: terrace_types::Bytes,
        /// The least.
        need: terrace_types::Bytes,
    },
    /// The workload found its own results wrong.
    #[error("{0}")]
    Inconsistent(String),
}
