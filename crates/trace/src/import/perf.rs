//! `perf script` of memory samples: `[COMM] PID/TID [CPU] SECONDS.FRACTION: [PERIOD] EVENT: ADDRESS
//! [IP ...]`. Samples are not all accesses, and their size is not known.

use super::{hex, Importer, Line};
use crate::error::TraceError;
use crate::event::{Access, Clock, Event, Header, What};
use crate::write::TraceWriter;
use std::collections::HashMap;
use std::io::Write;

pub fn header() -> Header {
    Header {
        source: "perf".into(),
        clock: Clock::Nanoseconds,
        ns_per_tick: 1.0,
        period: 0,
        pcs: true,
        notes: vec!["samples; sizes are not known and given as 8".into()],
        ..Header::default()
    }
}

/// Processes and threads seen.
#[derive(Debug, Default)]
pub struct Perf {
    processes: HashMap<i32, u32>,
    threads: HashMap<i32, u32>,
}

#[derive(Debug, PartialEq, Eq)]
struct Sample {
    pid: Option<i32>,
    tid: i32,
    time: u64,
    store: bool,
    address: u64,
    pc: u64,
}

impl<W: Write> Importer<W> for Perf {
    fn line(&mut self, writer: &mut TraceWriter<W>, line: &str) -> Result<Line, TraceError> {
        let Some(sample) = parse(line) else { return Ok(Line::Unknown) };
        let next = self.processes.len() as u32;
        let pid = sample.pid.unwrap_or(0);
        let process = *self.processes.entry(pid).or_insert(next);
        let next = self.threads.len() as u32;
        let thread = *self.threads.entry(sample.tid).or_insert(next);
        if thread == next {
            let what = What::ThreadStart { pid, tid: sample.tid };
            writer.event(&Event { time: sample.time, process, thread, what })?;
        }
        let (address, store, pc) = (sample.address, sample.store, sample.pc);
        writer.access_at(
            process,
            thread,
            &Access { address, size: 8, store, depends: 0, gap: 0, pc },
            sample.time,
        )?;
        Ok(Line::Known(1))
    }
}

fn parse(line: &str) -> Option<Sample> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|w| w.strip_suffix(':').is_some_and(|t| nanos(t).is_some()))?;
    let time = nanos(words[at].trim_end_matches(':'))?;
    // Before the time: the thread, perhaps a CPU in brackets; a command's name may hold anything.
    let ids = words[..at].iter().rev().find(|w| !w.starts_with('['))?;
    let (pid, tid) = match ids.split_once('/') {
        Some((pid, tid)) => (Some(pid.parse().ok()?), tid.parse().ok()?),
        None => (None, ids.parse().ok()?),
    };
    // After it: a period where asked for, the event, the address.
    let event = at + 1 + words[at + 1..].iter().position(|w| w.ends_with(':'))?;
    let address = hex(words.get(event + 1)?).filter(|a| *a != 0)?;
    let pc = words.get(event + 2).and_then(|w| hex(w)).unwrap_or(0);
    Some(Sample { pid, tid, time, store: words[event].contains("store"), address, pc })
}

/// Seconds with a fraction, in nanoseconds.
fn nanos(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    if fraction.is_empty() || fraction.len() > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let scale = 10u64.pow(9 - fraction.len() as u32);
    seconds
        .parse::<u64>()
        .ok()?
        .checked_mul(1_000_000_000)?
        .checked_add(fraction.parse::<u64>().ok()? * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_with_and_without_what_is_optional() {
        let full =
            "  my prog  1234/1236 [001] 12.000345:   1000  cpu/mem-stores/P:  7f12ab340010  55aa10 main+0x10 (a.out)";
        let sample = Sample {
            pid: Some(1234),
            tid: 1236,
            time: 12_000_345_000,
            store: true,
            address: 0x7f12_ab34_0010,
            pc: 0x55_aa10,
        };
        assert_eq!(parse(full), Some(sample));
        let bare = "77 0.5: cpu/mem-loads,ldlat=30/P: ffff";
        let sample =
            Sample { pid: None, tid: 77, time: 500_000_000, store: false, address: 0xffff, pc: 0 };
        assert_eq!(parse(bare), Some(sample));
        for other in [
            "",
            "# comment",
            "x 1.5:",
            "77 1.5: mem-loads: 0",
            "77 1.5: mem-loads: zz",
            "1.5: e: 10",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
