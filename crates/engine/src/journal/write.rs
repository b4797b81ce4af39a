//! Writing: one entry, one line.

use super::{JournalEntry, JournalHeader};

/// The header as one line, without the line end.
#[must_use]
pub fn encode_header(header: &JournalHeader) -> String {
    line(header)
}

/// An entry as one line, without the line end.
#[must_use]
pub fn encode(entry: &JournalEntry) -> String {
    line(entry)
}

/// JSON of a value that cannot fail: string keys only, and floats that are not finite become null.
fn line(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
