//! `perf script` of memory samples. Samples are not all accesses, and their size is not known.
//!
//! perf prints fields in a fixed order, whichever of them were asked for
//! (`tools/perf/builtin-script.c`, `process_event`):
//!
//! ```text
//! [COMM] [PID/]TID [[CPU]] SECONDS.FRACTION: [PERIOD] EVENT: ADDRESS
//!     [DATA_SRC |OP LOAD|LVL L3 hit|...|BLK N/A] [WEIGHT] [IP [SYMBOL] [(FILE)]]
//! ```
//!
//! With call chains the instruction's address is on the next line. A command's name may hold
//! anything, so it is skipped, not read.

use super::{hex, ImportedLine, Importer};
use crate::error::TraceError;
use crate::event::{Access, EventKind, SampleDetail, TraceClock, TraceEvent, TraceHeader};
use crate::write::TraceWriter;
use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use terrace_sampling::{DataSource, MemoryOperation};

/// Highest thread number that is believed (`PID_MAX_LIMIT`, `include/linux/threads.h`).
const MAX_TID: i32 = 4 << 20;
/// Names of events that the trace's notes list, and characters of each.
const MAX_EVENTS: usize = 8;
const MAX_EVENT_NAME: usize = 60;

/// A sample whose instruction may be on the next line.
#[derive(Debug)]
struct Waiting {
    process: u32,
    thread: u32,
    time: u64,
    access: Access,
    detail: SampleDetail,
}

/// Processes and threads seen, and what is to be said of all samples.
#[derive(Debug, Default)]
pub struct Perf {
    processes: HashMap<i32, u32>,
    threads: HashMap<i32, u32>,
    waiting: Option<Waiting>,
    /// The lines up to the next empty one may be frames of a call chain.
    in_chain: bool,
    events: BTreeSet<String>,
    samples: u64,
    /// Samples whose line has a period, and the sum of those.
    with_period: u64,
    period_sum: u128,
    no_direction: u64,
    no_process: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Sample<'a> {
    pid: Option<i32>,
    tid: i32,
    time: u64,
    period: Option<u64>,
    event: &'a str,
    operation: MemoryOperation,
    cpu: Option<u32>,
    /// 0: not on this line.
    source: DataSource,
    /// 0: not on this line.
    latency_cycles: u32,
    /// 0: the sample has none.
    address: u64,
    /// 0: not on this line.
    pc: u64,
}

/// What a line of `perf script` is.
#[derive(Debug, PartialEq, Eq)]
enum Parsed<'a> {
    Sample(Sample<'a>),
    /// `PERF_RECORD_...`: shown on request, such as mappings and lost samples.
    Record,
    Unknown,
}

impl<W: Write> Importer<W> for Perf {
    fn line(
        &mut self,
        writer: &mut TraceWriter<W>,
        line: &str,
    ) -> Result<ImportedLine, TraceError> {
        let text = line.trim();
        if text.is_empty() {
            self.in_chain = false;
            return Ok(ImportedLine::Remark);
        }
        let sample = match parse(text) {
            Parsed::Sample(sample) => sample,
            Parsed::Record => return Ok(ImportedLine::Remark),
            // After samples are tried: a command's name may begin with the mark of titles.
            Parsed::Unknown if text.starts_with('#') => return Ok(ImportedLine::Remark),
            Parsed::Unknown => return Ok(self.frame(text)),
        };
        self.write_waiting(writer)?;
        self.in_chain = sample.pc == 0;
        let neither =
            [MemoryOperation::Fetch, MemoryOperation::Prefetch].contains(&sample.operation);
        if sample.address == 0 || neither {
            return Ok(ImportedLine::Record(0));
        }
        self.note(&sample);
        let next = self.processes.len() as u32;
        let pid = sample.pid.unwrap_or(0);
        let process = *self.processes.entry(pid).or_insert(next);
        let next = self.threads.len() as u32;
        let thread = *self.threads.entry(sample.tid).or_insert(next);
        if thread == next {
            let what = EventKind::ThreadStart { pid, tid: sample.tid };
            writer.event(&TraceEvent { time: sample.time, process, thread, what })?;
        }
        let store = sample.operation == MemoryOperation::Store;
        let access =
            Access { address: sample.address, size: 8, store, pc: sample.pc, ..Access::default() };
        let detail = SampleDetail {
            latency_cycles: sample.latency_cycles,
            source: sample.source,
            cpu: sample.cpu.unwrap_or(SampleDetail::UNKNOWN_CPU),
        };
        self.waiting = Some(Waiting { process, thread, time: sample.time, access, detail });
        Ok(ImportedLine::Record(1))
    }

    fn end(&mut self, writer: &mut TraceWriter<W>) -> Result<(), TraceError> {
        self.write_waiting(writer)
    }

    fn header(&self) -> TraceHeader {
        let mut notes = super::sample_notes(&self.events, self.no_direction);
        if self.no_process > 0 {
            notes.push("no process is named: all threads are taken for one process's".to_owned());
        }
        // A mean over some samples would be of some events alone.
        let all = self.with_period == self.samples && self.samples > 0;
        let mean =
            (self.period_sum + u128::from(self.samples / 2)) / u128::from(self.samples.max(1));
        TraceHeader {
            source: "perf".into(),
            clock: TraceClock::Nanoseconds,
            ns_per_tick: 1.0,
            period: if all { u64::try_from(mean).unwrap_or(u64::MAX) } else { 0 },
            sampled: true,
            pcs: true,
            details: true,
            notes,
            ..TraceHeader::default()
        }
    }
}

impl Perf {
    /// A line that is no sample: a frame of the last sample's call chain, whose first is where the
    /// access was made, or nothing known.
    fn frame(&mut self, text: &str) -> ImportedLine {
        let first = text.split_whitespace().next().and_then(hex);
        let Some(pc) = first.filter(|_| self.in_chain) else { return ImportedLine::Unknown };
        if let Some(waiting) = self.waiting.as_mut().filter(|w| w.access.pc == 0) {
            waiting.access.pc = pc;
        }
        ImportedLine::Remark
    }

    fn write_waiting<W: Write>(&mut self, writer: &mut TraceWriter<W>) -> Result<(), TraceError> {
        match self.waiting.take() {
            Some(w) => writer.sample(w.process, w.thread, &w.access, w.time, &w.detail),
            None => Ok(()),
        }
    }

    fn note(&mut self, sample: &Sample<'_>) {
        self.samples += 1;
        self.with_period += u64::from(sample.period.is_some());
        self.period_sum += u128::from(sample.period.unwrap_or(0));
        self.no_direction += u64::from(sample.operation == MemoryOperation::Unknown);
        self.no_process += u64::from(sample.pid.is_none());
        let name = || sample.event.chars().filter(|c| !c.is_control()).take(MAX_EVENT_NAME);
        if self.events.len() < MAX_EVENTS {
            self.events.insert(name().collect());
        }
    }
}

fn parse(line: &str) -> Parsed<'_> {
    let words: Vec<&str> = line.split_whitespace().collect();
    for (at, word) in words.iter().enumerate() {
        let Some(time) = word.strip_suffix(':').and_then(nanos) else { continue };
        // A command's name may look like a time: a real one has a thread before it, and behind it
        // an event.
        let Some((pid, tid, cpu)) = ids(&words[..at]) else { continue };
        let mut rest = &words[at + 1..];
        let period = rest.first().and_then(|word| word.parse::<u64>().ok());
        if period.is_some() {
            rest = &rest[1..];
        }
        match rest {
            [record, ..] if record.starts_with("PERF_RECORD_") => return Parsed::Record,
            [event, address, rest @ ..] if event.len() > 1 && event.ends_with(':') => {
                let Some(address) = hex(address) else { continue };
                let event = event.trim_end_matches(':');
                let (found, source, rest) = data_source(rest);
                let operation = match found {
                    MemoryOperation::Unknown => operation_of(event),
                    known => known,
                };
                let pc = instruction(rest).unwrap_or(0);
                let latency_cycles = latency(rest);
                return Parsed::Sample(Sample {
                    pid,
                    tid,
                    time,
                    period,
                    event,
                    operation,
                    cpu,
                    source,
                    latency_cycles,
                    address,
                    pc,
                });
            }
            _ => {}
        }
    }
    Parsed::Unknown
}

/// The thread, and its process and CPU where named, at the end of the words before the time:
/// `PID/TID` or `TID`, then perhaps a CPU in brackets.
fn ids(before: &[&str]) -> Option<(Option<i32>, i32, Option<u32>)> {
    let (last, rest) = before.split_last()?;
    let cpu = last
        .strip_prefix('[')
        .and_then(|cpu| cpu.strip_suffix(']'))
        .filter(|cpu| !cpu.is_empty() && cpu.bytes().all(|b| b.is_ascii_digit()));
    let ids = if cpu.is_some() { rest.last()? } else { last };
    let cpu = cpu.and_then(|cpu| cpu.parse().ok());
    let number = |text: &str| text.parse::<i32>().ok().filter(|n| (-1..=MAX_TID).contains(n));
    match ids.split_once('/') {
        Some((pid, tid)) => Some((Some(number(pid)?), number(tid)?, cpu)),
        None => Some((None, number(ids)?, cpu)),
    }
}

/// What the data source says that the access did, the source itself, and the words behind it
/// (`perf_script__meminfo_scnprintf`, `tools/perf/util/mem-events.c`). It is a number and its
/// parts in words, each behind a bar; the last part is `BLK`, before Linux 5.12 `LCK`.
fn data_source<'a, 'b>(words: &'b [&'a str]) -> (MemoryOperation, DataSource, &'b [&'a str]) {
    let Some(begin) = words.iter().position(|word| word.starts_with("|OP")) else {
        return (MemoryOperation::Unknown, DataSource::default(), words);
    };
    // Its number stands before its words.
    let number = begin.checked_sub(1).and_then(|at| hex(words[at])).unwrap_or(0);
    let op = words.get(begin + 1).and_then(|word| word.split('|').next()).unwrap_or("");
    let operation = match op {
        "LOAD" => MemoryOperation::Load,
        "STORE" => MemoryOperation::Store,
        "PFETCH" => MemoryOperation::Prefetch,
        "EXEC" => MemoryOperation::Fetch,
        _ => MemoryOperation::Unknown,
    };
    let parts = &words[begin..];
    let last = ["BLK", "LCK"].into_iter().find_map(|name| {
        // A part begins in the word that ends the one before: `No|BLK`.
        parts.iter().position(|word| word.rsplit('|').next() == Some(name) && word.contains('|'))
    });
    let Some(last) = last else { return (operation, DataSource(number), &[]) };
    let rest = &parts[last + 1..];
    let values =
        rest.iter().take_while(|w| matches!(**w, "N/A" | "Data" | "Addr" | "Yes" | "No")).count();
    (operation, DataSource(number), &rest[values..])
}

/// The weight: a decimal number behind the data source that is followed by the instruction's
/// address, which is longer.
fn latency(words: &[&str]) -> u32 {
    match words {
        [weight, next, ..] if hex(next).is_some_and(|n| n > u64::from(u32::MAX >> 12)) => {
            weight.parse().unwrap_or(0)
        }
        _ => 0,
    }
}

/// What an event's name says that its accesses do.
pub(super) fn operation_of(event: &str) -> MemoryOperation {
    let event = event.to_ascii_lowercase();
    match (event.contains("load"), event.contains("store")) {
        (true, false) => MemoryOperation::Load,
        (false, true) => MemoryOperation::Store,
        _ => MemoryOperation::Unknown,
    }
}

/// The instruction's address among the words behind address and data source: the last number
/// before symbol and file. Numbers before it are the weight and physical addresses.
fn instruction(words: &[&str]) -> Option<u64> {
    let numbers = words.iter().take_while(|word| hex(word).is_some()).count();
    let at = match numbers {
        0 => return None,
        // A symbol may read as a number (`add`): code does not lie that low, and symbols are
        // followed by their file.
        n if n > 1 && words.len() > n && words[n].starts_with('(') => {
            let (symbol, before) = (words[n - 1], words[n - 2]);
            if before.len() > symbol.len() && hex(before) > hex(symbol) {
                n - 2
            } else {
                n - 1
            }
        }
        n => n - 1,
    };
    hex(words[at])
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

    fn sample(line: &str) -> Sample<'_> {
        match parse(line) {
            Parsed::Sample(sample) => sample,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn samples_are_read_with_and_without_optional_fields() {
        let full =
            "  my prog  1234/1236 [001] 12.000345:   1000  cpu/mem-stores/P:  7f12ab340010  \
                    55aa10 main+0x10 (a.out)";
        let expected = Sample {
            pid: Some(1234),
            tid: 1236,
            time: 12_000_345_000,
            period: Some(1000),
            event: "cpu/mem-stores/P",
            operation: MemoryOperation::Store,
            cpu: Some(1),
            source: DataSource::default(),
            latency_cycles: 0,
            address: 0x7f12_ab34_0010,
            pc: 0x55_aa10,
        };
        assert_eq!(sample(full), expected);
        let bare = "77 0.5: cpu/mem-loads,ldlat=30/P: ffff";
        let expected = Sample {
            pid: None,
            tid: 77,
            time: 500_000_000,
            period: None,
            event: "cpu/mem-loads,ldlat=30/P",
            operation: MemoryOperation::Load,
            cpu: None,
            source: DataSource::default(),
            latency_cycles: 0,
            address: 0xffff,
            pc: 0,
        };
        assert_eq!(sample(bare), expected);
        for other in [
            "x 1.5:",
            "77 1.5: mem-loads: zz",
            "1.5: e: 10",
            "5000000 1.5: e: 10",
            "[0] 1.5: e: 10",
        ] {
            assert_eq!(parse(other), Parsed::Unknown, "{other}");
        }
        assert_eq!(parse("x 7/7 1.5: PERF_RECORD_COMM: x:7/7"), Parsed::Record);
    }

    #[test]
    fn a_name_of_a_command_is_never_read() {
        let line = "a 7 1.5: x: 10 88/89 [002] 2.25: cpu/mem-stores/P: 7f00 4010";
        // A name that is a whole sample cannot be distinguished from one; these are none.
        assert_eq!(sample(line).time, 1_500_000_000);
        let line = "v1.5: x    77/78    974.714900: cpu/mem-stores/P:   7ff3de2ba050  562c6d17b190";
        assert_eq!((sample(line).tid, sample(line).pc), (78, 0x562c_6d17_b190));
        assert_eq!(sample("[ET 0]  77/79  9.5: mem-stores:  7ff0 4010").tid, 79);
        assert_eq!(sample("io 12 [a] b  989/990  9.5: mem-stores:  7ff0 4010").tid, 990);
    }

    #[test]
    fn the_data_source_distinguishes_loads_from_stores_and_is_no_instruction() {
        let line =
            |source: &str, rest: &str| format!("x 7/8 1.5: 100000 ibs_op//: 7f00 {source} {rest}");
        let at = |source: &str, rest: &str| {
            let line = line(source, rest);
            let sample = sample(&line);
            (sample.operation, sample.pc)
        };
        let new = "5080144 |OP STORE|LVL L3 hit|SNP N/A|TLB L1 or L2 hit|LCK No|BLK  N/A";
        let old = "68100142 |OP LOAD|LVL L1 hit|SNP None|TLB L1 or L2 hit|LCK Yes";
        assert_eq!(
            at(new, "57 55d0a41b2c10 f+0x1 (a)"),
            (MemoryOperation::Store, 0x55d0_a41b_2c10)
        );
        assert_eq!(at(new, "55d0a41b2c10"), (MemoryOperation::Store, 0x55d0_a41b_2c10));
        assert_eq!(at(old, "57 55d0a41b2c10 add (a)"), (MemoryOperation::Load, 0x55d0_a41b_2c10));
        assert_eq!(at(old, "4010 [unknown] ([unknown])"), (MemoryOperation::Load, 0x4010));
        assert_eq!(at(old, ""), (MemoryOperation::Load, 0));
        let whole = line(new, "57 55d0a41b2c10 f+0x1 (a)");
        let kept = sample(&whole);
        assert_eq!((kept.source, kept.latency_cycles), (DataSource(0x508_0144), 57));
        assert_eq!(sample(&line(new, "55d0a41b2c10 f+0x1 (a)")).latency_cycles, 0);
        assert_eq!(
            at("1 |OP N/A|LVL N/A|SNP N/A|TLB N/A|LCK N/A", "9").0,
            MemoryOperation::Unknown
        );
        assert_eq!(
            at("1 |OP EXEC|LVL L1 hit|SNP N/A|LCK No|BLK Data Addr", "9"),
            (MemoryOperation::Fetch, 9)
        );
    }

    #[test]
    fn the_name_of_an_event_says_less_than_its_data_source() {
        assert_eq!(operation_of("cpu/mem-loads,ldlat=30/P"), MemoryOperation::Load);
        assert_eq!(operation_of("mem_inst_retired.all_stores:p"), MemoryOperation::Store);
        assert_eq!(operation_of("arm_spe/load_filter=1,store_filter=1/"), MemoryOperation::Unknown);
        assert_eq!(operation_of("page-faults"), MemoryOperation::Unknown);
    }
}
