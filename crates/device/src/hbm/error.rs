//! What can be wrong with a stack file or a design.

/// Why there is no design, or no result for it. Each is one line that names what was found and
/// what is accepted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StackError {
    /// The file is not TOML.
    #[error("{file}:{line}: {why}")]
    Syntax {
        /// The file.
        file: String,
        /// Its line, from 1.
        line: usize,
        /// What the parser says.
        why: String,
    },
    /// A key that stack files do not have.
    #[error("{file}:{line}: {key} is not a key of stack files; known here: {known}")]
    UnknownKey {
        /// The file.
        file: String,
        /// Its line.
        line: usize,
        /// Table and key.
        key: String,
        /// Keys that would do.
        known: String,
    },
    /// A value of the wrong kind or outside the models' range.
    #[error("{file}:{line}: {key} = {found}; give {accepted}")]
    Value {
        /// The file.
        file: String,
        /// Its line.
        line: usize,
        /// Table and key.
        key: String,
        /// The value.
        found: String,
        /// What is accepted, with range and unit.
        accepted: String,
    },
    /// A figure without which nothing can be said.
    #[error("{file}: {key} is missing; give {accepted}")]
    Missing {
        /// The file.
        file: String,
        /// Table and key.
        key: String,
        /// What is accepted.
        accepted: String,
    },
    /// Values that are possible each and impossible together.
    #[error("{design}: {what}; {remedy}")]
    Impossible {
        /// The design or file.
        design: String,
        /// What contradicts what, with values.
        what: String,
        /// What to try.
        remedy: String,
    },
    /// No preset of this name.
    #[error("no stack preset {name}; known: {known}")]
    NoSuchPreset {
        /// What was asked for.
        name: String,
        /// All presets.
        known: String,
    },
    /// A key that cannot be swept, or values it cannot have.
    #[error("--sweep {text}: {why}")]
    Sweep {
        /// What was asked for.
        text: String,
        /// Why not, and what would do.
        why: String,
    },
}
