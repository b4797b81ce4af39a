//! Reading a journal that may be cut off, damaged or hostile: bounded, never a panic.

use super::{JournalEntry, JournalHeader, VERSION};
use std::fmt;

/// A longer line is not of ours.
pub const MAX_LINE_BYTES: usize = 1 << 20;
/// More entries than this are not read.
pub const MAX_ENTRIES: usize = 1 << 20;

/// All that could be read.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedJournal {
    /// The first line.
    pub header: JournalHeader,
    /// Entries in the order written, up to the problem if there is one.
    pub entries: Vec<JournalEntry>,
    /// Entries of kinds this reader does not know, which were skipped.
    pub skipped: u64,
    /// Why reading stopped before the end, if it did. What came before is sound.
    pub problem: Option<JournalProblem>,
}

/// What is wrong with a journal. Shown as one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalProblem {
    /// Nothing there.
    #[error("the journal is empty; was the run stopped before its first step?")]
    Empty,
    /// The first line is no header of ours.
    #[error("line 1: not a terrace journal ({0}); give the file that --journal wrote")]
    NotAJournal(String),
    /// A version that this program does not know.
    #[error(
        "line 1: journal version {0}, this program reads version {VERSION}; use a matching terrace"
    )]
    Version(u64),
    /// The last line has no end: the run was killed or the disk was full.
    #[error("line {line}: cut off after {bytes} bytes; everything before it was read")]
    CutOff {
        /// Line number, from 1.
        line: usize,
        /// Bytes of it that are there.
        bytes: usize,
    },
    /// A line in the middle cannot be read.
    #[error("line {line}: damaged ({why}); everything before it was read")]
    Damaged {
        /// Line number, from 1.
        line: usize,
        /// What the parser said, or which bound was passed.
        why: String,
    },
}

/// Reads a journal.
///
/// # Errors
/// Only when there is no usable header; any later damage is [`ParsedJournal::problem`].
pub fn read(bytes: &[u8]) -> Result<ParsedJournal, JournalProblem> {
    let mut lines = Lines { rest: bytes, number: 0 };
    let first = lines.next().ok_or(JournalProblem::Empty)?;
    let header = header(&first)?;
    let mut reading = ParsedJournal { header, entries: Vec::new(), skipped: 0, problem: None };
    for line in lines {
        if line.bytes.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        if reading.entries.len() >= MAX_ENTRIES {
            reading.problem = Some(line.damaged(&format!("more than {MAX_ENTRIES} entries")));
            break;
        }
        match entry(&line) {
            Ok(JournalEntry::Unknown) => reading.skipped += 1,
            Ok(entry) => reading.entries.push(entry),
            Err(problem) => {
                reading.problem = Some(problem);
                break;
            }
        }
    }
    Ok(reading)
}

fn header(line: &Line<'_>) -> Result<JournalHeader, JournalProblem> {
    #[derive(serde::Deserialize)]
    struct Probe {
        terrace_journal: u64,
    }
    if line.bytes.len() > MAX_LINE_BYTES {
        return Err(JournalProblem::NotAJournal(format!("first line over {MAX_LINE_BYTES} bytes")));
    }
    let probe: Probe =
        serde_json::from_slice(line.bytes).map_err(|e| JournalProblem::NotAJournal(brief(&e)))?;
    if probe.terrace_journal != u64::from(VERSION) {
        return Err(JournalProblem::Version(probe.terrace_journal));
    }
    serde_json::from_slice(line.bytes).map_err(|e| JournalProblem::NotAJournal(brief(&e)))
}

fn entry(line: &Line<'_>) -> Result<JournalEntry, JournalProblem> {
    if line.bytes.len() > MAX_LINE_BYTES {
        return Err(line.damaged(&format!("over {MAX_LINE_BYTES} bytes")));
    }
    match serde_json::from_slice(line.bytes) {
        Ok(entry) => Ok(entry),
        Err(_) if !line.ended => {
            Err(JournalProblem::CutOff { line: line.number, bytes: line.bytes.len() })
        }
        Err(e) => Err(line.damaged(&brief(&e))),
    }
}

/// The parser's message without control characters, cut to a line's length.
fn brief(error: &impl fmt::Display) -> String {
    error.to_string().chars().filter(|c| !c.is_control()).take(160).collect()
}

struct Line<'a> {
    bytes: &'a [u8],
    number: usize,
    ended: bool,
}

impl Line<'_> {
    fn damaged(&self, why: &str) -> JournalProblem {
        JournalProblem::Damaged { line: self.number, why: why.to_owned() }
    }
}

struct Lines<'a> {
    rest: &'a [u8],
    number: usize,
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        self.number += 1;
        let (bytes, rest, ended) = match self.rest.iter().position(|b| *b == b'\n') {
            Some(end) => (&self.rest[..end], &self.rest[end + 1..], true),
            None => (self.rest, &[][..], false),
        };
        self.rest = rest;
        Some(Line { bytes, number: self.number, ended })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{encode, encode_header, NoteEntry};
    use super::*;

    fn sample() -> String {
        let header = JournalHeader {
            terrace_journal: VERSION,
            command: "true".into(),
            policy: "terrace".into(),
            params: Default::default(),
            machine: "lab-cxl".into(),
            page_size_bytes: 4096,
            tiers: vec![],
            trackers: vec![],
        };
        let note = JournalEntry::Note(NoteEntry { at_ns: 5, text: "two\nlines".into() });
        format!("{}\n{}\n{}\n", encode_header(&header), encode(&note), encode(&note))
    }

    #[test]
    fn what_is_written_is_read() {
        let text = sample();
        assert!(text.starts_with("{\"terrace_journal\":1,"), "{text}");
        let reading = read(text.as_bytes()).unwrap();
        assert_eq!(reading.entries.len(), 2);
        assert_eq!(reading.problem, None);
    }

    #[test]
    fn every_cut_gives_what_came_before() {
        let text = sample();
        let header_end = text.find('\n').unwrap();
        for cut in 0..text.len() {
            match read(&text.as_bytes()[..cut]) {
                Ok(reading) => {
                    assert!(cut >= header_end);
                    let whole = text[header_end + 1..].lines().count();
                    assert!(reading.entries.len() <= whole);
                }
                Err(problem) => {
                    assert!(cut < header_end, "{problem}");
                    assert!(!problem.to_string().contains('\n'));
                }
            }
        }
    }

    #[test]
    fn unknown_entries_are_skipped_and_damage_is_one_line() {
        let text = sample();
        let text = text + "{\"entry\":\"hologram\",\"x\":1}\n\u{1}garbage\n{\"entry\":\"note\"}\n";
        let reading = read(text.as_bytes()).unwrap();
        assert_eq!((reading.entries.len(), reading.skipped), (2, 1));
        let problem = reading.problem.unwrap().to_string();
        assert!(problem.starts_with("line 5: damaged"), "{problem}");
    }

    #[test]
    fn another_version_is_named() {
        let text = sample().replace("\"terrace_journal\":1", "\"terrace_journal\":7");
        assert_eq!(read(text.as_bytes()), Err(JournalProblem::Version(7)));
    }

    #[test]
    fn deep_nesting_does_not_overflow() {
        let text = sample() + &"[".repeat(500_000) + "\n";
        assert!(matches!(
            read(text.as_bytes()).unwrap().problem,
            Some(JournalProblem::Damaged { .. })
        ));
    }
}
