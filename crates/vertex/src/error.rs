//! What can be wrong with a program, a graph or a run.

use terrace_migratory::MigratoryError;

/// A program, graph or run that fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VertexError {
    /// The text is no program.
    #[error("line {line}, column {column}: {found} found, {expected} expected")]
    Syntax {
        /// From 1.
        line: u32,
        /// From 1.
        column: u32,
        /// What is there.
        found: String,
        /// What could be there.
        expected: String,
    },
    /// A name, or a construct, that means nothing here.
    #[error("line {line}: {what}")]
    Meaning {
        /// From 1.
        line: u32,
        /// What is wrong and what to write.
        what: String,
    },
    /// Threads of one parallel loop access a value, and one of them writes it plainly.
    #[error(
        "lines {first} and {second}: threads of the parallel loop at line {start} race on \
         {value}; update it with atomic or remote, or use two properties"
    )]
    Race {
        /// The loop.
        start: u32,
        /// The property or global.
        value: String,
        /// The line of one access.
        first: u32,
        /// The line of the other.
        second: u32,
    },
    /// A loop reached its limit.
    #[error("the loop at line {line} did not end within its limit of {limit} rounds")]
    Unbounded {
        /// The loop.
        line: u32,
        /// Its limit.
        limit: i64,
    },
    /// A parameter that the program does not have, or a value that is no number.
    #[error("parameter {name}: {why}")]
    Parameter {
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The program needs in-edges, and the graph has none.
    #[error("line {line} follows in-edges, but the graph keeps none; load it without inverse=no")]
    NoInEdges {
        /// Where they are needed.
        line: u32,
    },
    /// A graph that cannot be.
    #[error("graph {graph}: {why}")]
    Graph {
        /// The graph.
        graph: String,
        /// What is wrong and what to give.
        why: String,
    },
    /// A transformation that is not legal here.
    #[error("pass {pass} is not legal at line {line}: {why}")]
    Refused {
        /// The pass.
        pass: &'static str,
        /// Where.
        line: u32,
        /// Why not.
        why: String,
    },
    /// A transformation that finds no place where it could apply.
    #[error("pass {pass}: there is nothing to change in this program; leave the pass out")]
    Unchanged {
        /// The pass.
        pass: &'static str,
    },
    /// The machine fails.
    #[error(transparent)]
    Machine(#[from] MigratoryError),
}
