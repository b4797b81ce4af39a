//! Recordings of other tools become traces. Lines that are not understood are counted and stepped
//! over: such files have messages of the tool or the program in between.

mod damo;
mod lackey;
mod perf;

use crate::error::TraceError;
use crate::write::TraceWriter;
use std::io::{BufRead, Write};

/// Longest line that is looked at, bytes; what is longer is no line of these tools.
const MOST_LINE: usize = 64 << 10;

/// Whose recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `valgrind --tool=lackey --trace-mem=yes`: every access; time counts instructions.
    Lackey,
    /// `perf script -F pid,tid,time,event,addr,ip` of memory samples.
    Perf,
    /// The text of a DAMON record, as damo prints it raw: how often a region was found accessed.
    Damo,
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
    /// No line was understood.
    #[error("none of its {lines} lines is one of {format:?}'s; check --from")]
    Foreign {
        /// Lines there were.
        lines: u64,
        /// What was looked for.
        format: Format,
    },
}

/// What was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Imported {
    /// Accesses found.
    pub accesses: u64,
    /// Lines read.
    pub lines: u64,
    /// Lines that were not understood, empty ones aside.
    pub skipped: u64,
}

/// Whether a line was understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// With so many accesses.
    Known(u64),
    Unknown,
}

trait Importer<W: Write> {
    fn line(&mut self, writer: &mut TraceWriter<W>, line: &str) -> Result<Line, TraceError>;

    /// The last line has been seen.
    fn end(&mut self, _writer: &mut TraceWriter<W>) -> Result<u64, TraceError> {
        Ok(0)
    }
}

/// Reads a recording of another tool and writes it as a trace.
///
/// # Errors
/// [`ImportError`].
pub fn import<W: Write>(
    format: Format,
    input: impl BufRead,
    output: W,
) -> Result<Imported, ImportError> {
    let (header, mut importer): (_, Box<dyn Importer<W>>) = match format {
        Format::Lackey => (lackey::header(), Box::new(lackey::Lackey::default())),
        Format::Perf => (perf::header(), Box::new(perf::Perf::default())),
        Format::Damo => (damo::header(), Box::new(damo::Damo::default())),
    };
    let mut writer = TraceWriter::new(output, &header)?;
    let mut read = Imported::default();
    let mut known = 0u64;
    for_lines(input, |line| {
        read.lines += 1;
        match importer.line(&mut writer, line)? {
            Line::Known(accesses) => {
                known += 1;
                read.accesses += accesses;
            }
            Line::Unknown if !line.trim().is_empty() => read.skipped += 1,
            Line::Unknown => {}
        }
        Ok(())
    })?;
    read.accesses += importer.end(&mut writer)?;
    if known == 0 && read.skipped > 0 {
        return Err(ImportError::Foreign { lines: read.lines, format });
    }
    writer.finish()?.flush()?;
    Ok(read)
}

/// Calls `each` with every line, without holding more than one; what is not UTF-8 is replaced.
fn for_lines(
    mut input: impl BufRead,
    mut each: impl FnMut(&str) -> Result<(), ImportError>,
) -> Result<(), ImportError> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let got = std::io::Read::take(&mut input, MOST_LINE as u64).read_until(b'\n', &mut line)?;
        if got == 0 {
            return Ok(());
        }
        each(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']))?;
    }
}

fn hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))
}
