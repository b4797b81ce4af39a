//! What can be wrong with a machine, a program or a run.

use terrace_fabric::FabricError;

/// A machine that cannot be, memory that does not fit, or a program that fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MigratoryError {
    /// A preset that does not exist.
    #[error("machine {name:?} is unknown; give {known}, with ,KEY=VALUE to change it")]
    UnknownMachine {
        /// What was asked for.
        name: String,
        /// Names of the presets.
        known: String,
    },
    /// A figure of a machine that is out of range or unknown.
    #[error("machine {machine}: {key} = {value:?} is not possible; give {expected}")]
    BadFigure {
        /// The machine.
        machine: String,
        /// The figure.
        key: String,
        /// What was given.
        value: String,
        /// What is possible.
        expected: String,
    },
    /// Arrays need more memory than a nodelet has.
    #[error(
        "nodelet {nodelet} of {machine} needs {needed_bytes} bytes for array {array}, and has \
         {capacity_bytes}; use a smaller graph, or a machine with more nodelets"
    )]
    MemoryFull {
        /// The machine.
        machine: String,
        /// The nodelet.
        nodelet: u32,
        /// The first array that does not fit.
        array: String,
        /// Bytes needed up to and with that array.
        needed_bytes: u64,
        /// Bytes of the nodelet.
        capacity_bytes: u64,
    },
    /// The links between nodes are wrong.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// An instruction that cannot be executed: a fault of the program.
    #[error("instruction {instruction} (line {line}) failed: {why}")]
    Fault {
        /// Its index.
        instruction: u32,
        /// Its source line; 0 where there is none.
        line: u32,
        /// What is wrong.
        why: String,
    },
    /// The run takes too long.
    #[error(
        "the program executed {instructions} instructions without an end; raise the limit, or \
         check its loops"
    )]
    Unfinished {
        /// How many were executed.
        instructions: u64,
    },
    /// No thread can go on, and none has ended the program.
    #[error("at {now_ps} ps no thread can go on, but the program has not ended")]
    Deadlock {
        /// When, picoseconds.
        now_ps: u64,
    },
}
