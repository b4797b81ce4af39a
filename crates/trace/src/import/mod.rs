//! Recordings of other tools become traces. Lines that are not understood are counted and stepped
//! over: such files have messages of the tool or the program in between. A file of which most lines
//! are not understood is refused.

mod damo;
mod lackey;
mod perf;
mod perf_data;

pub use perf_data::import_perf_data;

use crate::error::TraceError;
use crate::event::TraceHeader;
use crate::write::TraceWriter;
use std::io::{BufRead, Seek, Write};

/// Longest line that is looked at, bytes; what is longer is no line of these tools.
const MAX_LINE: usize = 64 << 10;
/// Bytes that the header may grow by until the last line is read: the notes of `perf.rs`, which has
/// the longest, stay below half of it.
const HEADER_ROOM: usize = 4096;
/// Characters of a line that an error quotes.
const MAX_QUOTED: usize = 60;

/// Whose recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordingFormat {
    /// `valgrind --tool=lackey --trace-mem=yes`: every access; time counts instructions.
    Lackey,
    /// `perf script` of memory samples, as it prints them or with fields named by `-F`.
    Perf,
    /// The text of a DAMON record, as damo prints it raw: how often a region was found accessed.
    Damo,
}

impl RecordingFormat {
    /// The command whose output it is.
    #[must_use]
    pub const fn command(self) -> &'static str {
        match self {
            Self::Lackey => "valgrind --tool=lackey --trace-mem=yes",
            Self::Perf => {
                "perf script -F comm,pid,tid,time,period,event,addr,data_src,ip of memory samples"
            }
            Self::Damo => "damo report access --raw_form",
        }
    }
}

/// Why an import failed.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The recording cannot be read.
    #[error("cannot read it: {0}")]
    Read(#[from] std::io::Error),
    /// The trace cannot be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Nothing to read.
    #[error("it is empty; expected the output of {}", .format.command())]
    Empty {
        /// What was looked for.
        format: RecordingFormat,
    },
    /// A `perf.data` file cannot be read.
    #[error(transparent)]
    PerfData(#[from] terrace_sampling::PerfDataError),
    /// Its samples are of no data addresses.
    #[error(
        "none of {samples} samples has a data address; record with perf mem record, or with \
         perf record -d and a memory event"
    )]
    NoAddresses {
        /// Samples in the file.
        samples: u64,
    },
    /// It ends before its records do, and what is there has no data address.
    #[error(
        "it was cut off, and none of the {samples} samples left has a data address; copy it again, \
         or record it again"
    )]
    CutOff {
        /// Samples in what is left of the file.
        samples: u64,
    },
    /// No line, or less than half of them, was understood: what was would mislead.
    #[error(
        "{understood} of {lines} lines are understood, and line {first} is not: {quoted}; \
         expected the output of {}",
        .format.command()
    )]
    Foreign {
        /// Lines that are not empty.
        lines: u64,
        /// Those understood.
        understood: u64,
        /// The first line that was not, counted from 1.
        first: u64,
        /// Its begin, control characters made visible.
        quoted: String,
        /// What was looked for.
        format: RecordingFormat,
    },
    /// All was understood, but no line could hold an access.
    #[error("none of {lines} lines holds an access; expected the output of {}", .format.command())]
    NoRecords {
        /// Lines that are not empty.
        lines: u64,
        /// What was looked for.
        format: RecordingFormat,
    },
}

/// What was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Imported {
    /// Accesses found.
    pub accesses: u64,
    /// Lines read; of `perf.data`, samples.
    pub lines: u64,
    /// Lines that were not understood, empty ones aside; of `perf.data`, damaged records.
    pub skipped: u64,
    /// The first of those, counted from 1.
    pub first_skipped_line: Option<u64>,
    /// Whether the accesses are samples.
    pub sampled: bool,
    /// See [`TraceHeader::period`].
    pub period: u64,
    /// Samples that the recorder lost.
    pub lost: u64,
    /// How often the kernel stopped an event that interrupted too often.
    pub throttled: u64,
    /// How often such an event went on.
    pub unthrottled: u64,
    /// Whether a `perf.data` file ends before its records do.
    pub cut_off: bool,
}

/// What a line was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ImportedLine {
    /// One that can hold accesses, with so many.
    Record(u64),
    /// One that the tool writes besides: a title, a message, a stack frame.
    Remark,
    Unknown,
}

trait Importer<W: Write> {
    /// Reads a line; empty ones too.
    fn line(&mut self, writer: &mut TraceWriter<W>, line: &str)
        -> Result<ImportedLine, TraceError>;

    /// The last line has been seen.
    fn end(&mut self, _writer: &mut TraceWriter<W>) -> Result<(), TraceError> {
        Ok(())
    }

    /// The header as far as it is known: before the first line, and after the last.
    fn header(&self) -> TraceHeader;
}

/// Counts of lines, until it is known whether they are the format's.
#[derive(Debug, Default)]
struct Tally {
    lines: u64,
    records: u64,
    remarks: u64,
    unknown: u64,
    /// Number and begin of the first line that was not understood.
    first_unknown: Option<(u64, String)>,
}

impl Tally {
    fn add(&mut self, line: ImportedLine, text: &str) {
        match line {
            _ if text.trim().is_empty() => {}
            ImportedLine::Record(_) => self.records += 1,
            ImportedLine::Remark => self.remarks += 1,
            ImportedLine::Unknown => {
                self.unknown += 1;
                let quoted = || text.trim().chars().take(MAX_QUOTED).flat_map(char::escape_debug);
                self.first_unknown.get_or_insert_with(|| (self.lines, quoted().collect()));
            }
        }
    }

    /// Whether the lines were the format's.
    fn judge(self, format: RecordingFormat) -> Result<(), ImportError> {
        let understood = self.records + self.remarks;
        let lines = understood + self.unknown;
        match self.first_unknown {
            Some((first, quoted)) if self.records == 0 || self.unknown > understood => {
                Err(ImportError::Foreign { lines, understood, first, quoted, format })
            }
            None if lines == 0 => Err(ImportError::Empty { format }),
            None if self.records == 0 => Err(ImportError::NoRecords { lines, format }),
            _ => Ok(()),
        }
    }
}

/// Reads a recording of another tool and writes it as a trace, to the begin of `output`.
///
/// # Errors
/// [`ImportError`]; what `output` holds then is no whole trace.
pub fn import<W: Write + Seek>(
    format: RecordingFormat,
    input: impl BufRead,
    output: W,
) -> Result<Imported, ImportError> {
    let mut importer: Box<dyn Importer<W>> = match format {
        RecordingFormat::Lackey => Box::new(lackey::Lackey::default()),
        RecordingFormat::Perf => Box::new(perf::Perf::default()),
        RecordingFormat::Damo => Box::new(damo::Damo::default()),
    };
    let mut writer = TraceWriter::with_header_space(output, &importer.header(), HEADER_ROOM)?;
    let mut accesses = 0u64;
    let mut tally = Tally::default();
    for_lines(input, |text| {
        tally.lines += 1;
        let line = match text {
            Some(text) => importer.line(&mut writer, text)?,
            None => ImportedLine::Unknown,
        };
        if let ImportedLine::Record(count) = line {
            accesses += count;
        }
        tally.add(line, text.unwrap_or("a line of more than 64 KiB"));
        Ok(())
    })?;
    importer.end(&mut writer)?;
    let header = importer.header();
    let read = Imported {
        accesses,
        lines: tally.lines,
        skipped: tally.unknown,
        first_skipped_line: tally.first_unknown.as_ref().map(|(number, _)| *number),
        sampled: header.sampled,
        period: header.period,
        ..Imported::default()
    };
    tally.judge(format)?;
    writer.finish_with_header(&header)?.flush()?;
    Ok(read)
}

/// Calls `each` with every line, without holding more than one; what is not UTF-8 is replaced.
/// `None` stands for a line that is too long.
fn for_lines(
    mut input: impl BufRead,
    mut each: impl FnMut(Option<&str>) -> Result<(), ImportError>,
) -> Result<(), ImportError> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let got = std::io::Read::take(&mut input, MAX_LINE as u64).read_until(b'\n', &mut line)?;
        if got == 0 {
            return Ok(());
        }
        if got == MAX_LINE && line.last() != Some(&b'\n') {
            input.skip_until(b'\n')?;
            each(None)?;
            continue;
        }
        each(Some(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r'])))?;
    }
}

fn hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))
}

/// What a recording of samples notes first: sizes that are not known, the events, and samples
/// without a direction.
fn sample_notes(events: &std::collections::BTreeSet<String>, no_direction: u64) -> Vec<String> {
    let mut notes = vec!["samples; sizes are not known and given as 8".to_owned()];
    if !events.is_empty() {
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        notes.push(format!("events sampled: {}", events.join(", ")));
    }
    if no_direction > 0 {
        notes.push(format!(
            "of {no_direction} samples it is not known whether they are loads or stores: given as \
             loads"
        ));
    }
    notes
}
