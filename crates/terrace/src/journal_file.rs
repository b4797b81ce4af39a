//! The journal as a file.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use terrace_engine::{Journal, JournalError};

/// Appends lines to a file, each handed to the kernel whole.
#[derive(Debug)]
pub(crate) struct JournalFile(File);

impl JournalFile {
    pub(crate) fn create(path: &Path) -> std::io::Result<Self> {
        File::create(path).map(Self)
    }
}

impl Journal for JournalFile {
    fn append(&mut self, line: &str) -> Result<(), JournalError> {
        let mut whole = String::with_capacity(line.len() + 1);
        whole.push_str(line);
        whole.push('\n');
        self.0.write_all(whole.as_bytes()).map_err(|e| JournalError::Write(e.to_string()))
    }
}
