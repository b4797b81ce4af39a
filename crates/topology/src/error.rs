//! What can be wrong with a tree, an archive or a file. One line each: what, on which target, why,
//! what to try.

use terrace_machine::{MachineConflict, MachineError};

/// Why no machine could be read, or no archive written.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// Nothing there.
    #[error(
        "{path}: no such file or folder; give a machine file, hwloc XML, a gathered tree, or \
        preset:NAME"
    )]
    Absent {
        /// What was asked for.
        path: String,
    },
    /// The system refuses.
    #[error("{call} {path}: {why}; check the path and who may read it")]
    Io {
        /// Operation.
        call: &'static str,
        /// Its target.
        path: String,
        /// The system's words.
        why: String,
    },
    /// A folder or archive without sysfs in it.
    #[error("{path}: no sys/devices/system in it; gather one with `terrace gather -o FILE`")]
    NotATree {
        /// Folder or archive.
        path: String,
    },
    /// A compressed archive.
    #[error("{path}: compressed with {format}; unpack it first: `tar xf {path}`")]
    Compressed {
        /// The file.
        path: String,
        /// Its format.
        format: &'static str,
    },
    /// Neither TOML nor XML nor tar.
    #[error(
        "{path}: neither a machine file, nor hwloc XML, nor a tar archive; `terrace gather -o \
        FILE` makes one"
    )]
    UnknownFormat {
        /// The file.
        path: String,
    },
    /// Too large to be what it should be.
    #[error("{path}: more than {limit} {unit}; is it the right file?")]
    TooLarge {
        /// File or folder.
        path: String,
        /// Limit.
        limit: usize,
        /// What is counted.
        unit: &'static str,
    },
    /// A file of the tree that does not hold what the kernel writes.
    #[error("{path}: holds {found}; expected {expected}; gather the tree again")]
    Malformed {
        /// File in the tree.
        path: String,
        /// Its text, shortened.
        found: String,
        /// What the kernel writes there.
        expected: &'static str,
    },
    /// Symbolic links that lead in a circle, or nowhere near an end.
    #[error("{path}: more than 40 symbolic links on the way; gather the tree again")]
    LinkLoop {
        /// The path.
        path: String,
    },
    /// A damaged archive.
    #[error("{path}: damaged tar archive at byte {offset} ({why}); gather it again")]
    Archive {
        /// The archive.
        path: String,
        /// Where.
        offset: usize,
        /// What.
        why: &'static str,
    },
    /// The parts read make no machine.
    #[error("{path}: {problem}")]
    Inconsistent {
        /// Tree.
        path: String,
        /// What does not fit.
        problem: MachineConflict,
    },
    /// A machine file, XML or preset was refused.
    #[error(transparent)]
    Machine(#[from] MachineError),
}

impl TopologyError {
    pub(crate) fn io(call: &'static str, path: &str, error: &std::io::Error) -> Self {
        Self::Io { call, path: path.to_owned(), why: error.to_string() }
    }
}

/// A text shortened for one line, control characters made visible: at most 40 characters and a
/// few, as a table is 80 wide.
pub(crate) fn shorten(text: &str) -> String {
    const LIMIT: usize = 40;
    let text = text.trim_end();
    let mut out = String::new();
    for c in text.chars() {
        if out.chars().count() >= LIMIT {
            out.push_str("...");
            break;
        }
        out.extend(c.escape_debug());
    }
    format!("\"{out}\"")
}
