//! What the command line prints, and how it ends.

use std::io::{IsTerminal, Write};

/// A command that did not do what was asked: one line and an exit status.
#[derive(Debug)]
pub struct Failure {
    /// 1 failed, 2 wrong usage, 3 the machine lacks what was asked.
    pub code: u8,
    /// What, on which target, why, what to try.
    pub line: String,
}

impl Failure {
    /// The command failed.
    pub fn failed(line: impl ToString) -> Self {
        Self { code: 1, line: line.to_string() }
    }

    /// It was asked for wrongly.
    pub fn usage(line: impl ToString) -> Self {
        Self { code: 2, line: line.to_string() }
    }

    /// The machine lacks what was asked.
    pub fn lacking(line: impl ToString) -> Self {
        Self { code: 3, line: line.to_string() }
    }
}

/// Ends a command: an exit status, or why not.
pub type Ending = Result<u8, Failure>;

/// One line on standard error, whatever the text holds.
pub fn complain(failure: &Failure) {
    say(&failure.line);
}

/// One line of ours on standard error.
pub fn say(line: &str) {
    let line = line.replace(['\n', '\r'], " ");
    let _ = writeln!(std::io::stderr(), "terrace: {line}");
}

/// Prints to standard output; a closed pipe ends the command quietly.
pub fn print(text: &str) -> Ending {
    match std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush()) {
        Ok(()) => Ok(0),
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(0),
        Err(e) => Err(Failure::failed(format!("cannot write to standard output: {e}"))),
    }
}

/// Prints a value as JSON.
pub fn print_json<T: serde::Serialize>(value: &T) -> Ending {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::failed(format!("cannot write JSON: {e}")))?;
    print(&format!("{text}\n"))
}

/// Whether standard error is a terminal, so that progress may be shown.
pub fn watched() -> bool {
    std::io::stderr().is_terminal()
}
