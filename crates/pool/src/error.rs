//! What can be wrong with a system of hosts and pools.

use crate::manager::ManagerError;
use terrace_fabric::FabricError;
use terrace_sim::SimError;

/// An access to a pool that is sent back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{checker} refuses page {page} of file {file}, frame {frame} of {pool}, and the program ends; \
     name its group in the file's hosts"
)]
pub struct AccessRefusal {
    /// Who checks.
    pub checker: String,
    /// The file whose frame it is.
    pub file: u32,
    /// The file's page, from 0.
    pub page: u64,
    /// The pool.
    pub pool: String,
    /// The frame there.
    pub frame: u64,
}

/// A system that cannot be built or simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PoolError {
    /// The file is no TOML, or a key is missing, unknown or of the wrong kind.
    #[error("system file {file}, line {line}: {why}")]
    Syntax {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// A value that cannot be.
    #[error("system file {file}{}: {key}: {why}", at_line(*line))]
    Value {
        /// The file.
        file: String,
        /// The line, from 1, where it is known.
        line: Option<usize>,
        /// The key, with the name of what it belongs to.
        key: String,
        /// What is wrong, and what would do.
        why: String,
    },
    /// The fabric is no tree, or has a figure out of range.
    #[error("system file {file}{}: {why}", at_line(*line))]
    Fabric {
        /// The file.
        file: String,
        /// The line, from 1, where it is known.
        line: Option<usize>,
        /// What is wrong.
        why: FabricError,
    },
    /// There is no such allocation policy.
    #[error("allocation policy {name:?} is unknown; give one of {known}")]
    Policy {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A host's simulation failed.
    #[error("host {host}: {why}")]
    Host {
        /// The host.
        host: String,
        /// Why.
        why: SimError,
    },
    /// A host reached for a frame that it may not have, and its program ended.
    #[error("host {host}: {why}")]
    Access {
        /// The host.
        host: String,
        /// Which frame.
        why: AccessRefusal,
    },
    /// A host's frames and the manager's account of them differ.
    #[error("host {host}: {why}; a fault of the simulator, report the input")]
    Manager {
        /// The host.
        host: String,
        /// How.
        why: ManagerError,
    },
    /// A thread of the simulation ended before its hosts did.
    #[error("a thread of the simulation ended early, a fault of the simulator; report the input")]
    ThreadLost,
}

/// `, line 3`, or nothing where the line is not known.
fn at_line(line: Option<usize>) -> String {
    line.map_or(String::new(), |line| format!(", line {line}"))
}
