//! `perf.data` files of memory samples, read without perf's help.
//!
//! The file is read twice: first mappings, threads and programs, which perf writes in the order of
//! the CPUs' rings, then the samples. So an event stands before the samples that came after it.

use super::{ImportError, Imported, HEADER_ROOM};
use crate::calls::CallPaths;
use crate::event::{Access, EventKind, SampleDetail, TraceClock, TraceEvent, TraceHeader};
use crate::tasks::TaskNumbers;
use crate::write::TraceWriter;
use std::collections::BTreeSet;
use std::io::{Read, Seek, Write};
use terrace_sampling::{
    MemoryOperation, PerfDataFile, PerfRecord, PerfSample, RecordCounts, TaskChange,
};

/// Events besides samples that are kept; what is beyond is counted.
const MAX_EVENTS: usize = 1 << 20;
/// Names of events that the notes list, and characters of each.
const MAX_NAMES: usize = 8;
const MAX_NAME: usize = 60;
/// Anonymous memory, as perf names it (`tools/perf/util/map.h`).
const ANONYMOUS: [&str; 3] = ["//anon", "//toolong", "[anon]"];

/// Something besides samples, of a process and thread as the kernel numbers them.
#[derive(Debug)]
struct SideEvent {
    time: u64,
    pid: i32,
    tid: i32,
    what: SideChange,
}

#[derive(Debug)]
enum SideChange {
    Trace(EventKind),
    /// A file's mapping, and where in the file it begins.
    Mapped(EventKind, u64),
    /// A process that is a copy of this one.
    Forked {
        parent: i32,
    },
}

fn write_side_event<W: Write>(
    tasks: &mut TaskNumbers,
    writer: &mut TraceWriter<W>,
    calls: &mut CallPaths,
    noted: SideEvent,
) -> Result<(), ImportError> {
    let time = noted.time;
    let (process, thread) = tasks.find(writer, (noted.pid, noted.tid), time)?;
    let what = match noted.what {
        SideChange::Trace(what) => what,
        SideChange::Mapped(what, offset) => {
            if let EventKind::Map { start, length, name, .. } = &what {
                calls.map(process, *start, *length, offset, name);
            }
            what
        }
        SideChange::Forked { parent } => match tasks.process(parent) {
            Some(parent) if parent != process => {
                calls.fork(process, parent);
                EventKind::Fork { parent }
            }
            _ => return Ok(()),
        },
    };
    if what == EventKind::ThreadExit {
        tasks.forget_thread(noted.tid);
    }
    if let EventKind::Exec { .. } = &what {
        calls.exec(process);
    }
    writer.event(&TraceEvent { time, process, thread, what })?;
    Ok(())
}

/// What is said of all samples.
#[derive(Debug, Default)]
struct SampleTally {
    written: u64,
    no_direction: u64,
    period_sum: u128,
    with_period: u64,
    /// Events that were sampled.
    events: BTreeSet<String>,
}

/// Reads a file of `perf record` and writes its samples as a trace, to the begin of `output`.
///
/// # Errors
/// [`ImportError`]; what `output` holds then is no whole trace.
pub fn import_perf_data<R: Read + Seek, W: Write + Seek>(
    input: R,
    output: W,
) -> Result<Imported, ImportError> {
    let mut file = PerfDataFile::open(input)?;
    let (mut noted, counts) = read_events(&mut file)?;
    if counts.addressed == 0 {
        let samples = counts.samples;
        return Err(match counts.cut_off {
            true => ImportError::CutOff { samples },
            false => ImportError::NoAddresses { samples },
        });
    }
    noted.sort_by_key(|event| event.time);
    let mut tally = SampleTally::default();
    let mut writer = TraceWriter::with_header_space(output, &tally.header(&file), HEADER_ROOM)?;
    write_nodes(&mut writer, &file)?;
    let (mut tasks, mut calls) = (TaskNumbers::default(), CallPaths::default());
    let mut noted = noted.into_iter().peekable();
    let names: Vec<(String, u64)> = file.events().iter().map(describe).collect();
    let mut failed = None;
    file.records(|event, record| {
        let PerfRecord::Sample(sample) = record else { return };
        if failed.is_some() || sample.address == 0 {
            return;
        }
        let mut due = std::iter::from_fn(|| noted.next_if(|n| n.time <= sample.time_ns));
        let mut write = |noted| write_side_event(&mut tasks, &mut writer, &mut calls, noted);
        if let Err(error) = due.try_for_each(&mut write) {
            failed = Some(error);
            return;
        }
        let (name, period) = &names[event];
        let written = write_sample(&mut writer, &mut tasks, sample, name);
        match written {
            Ok((process, operation)) => {
                calls.count(process, sample);
                tally.count(sample, operation, name, *period);
            }
            Err(error) => failed = Some(error),
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    for event in noted {
        write_side_event(&mut tasks, &mut writer, &mut calls, event)?;
    }
    calls.write(&mut writer)?;
    say_losses(&mut writer, &counts);
    let header = tally.header(&file);
    writer.finish_with_header(&header)?.flush()?;
    Ok(Imported {
        accesses: tally.written,
        lines: counts.samples,
        skipped: counts.damaged,
        sampled: true,
        period: header.period,
        lost: counts.lost,
        throttled: counts.throttled,
        unthrottled: counts.unthrottled,
        cut_off: counts.cut_off,
        ..Imported::default()
    })
}

/// Everything but samples, and how many records there are.
fn read_events<R: Read + Seek>(
    file: &mut PerfDataFile<R>,
) -> Result<(Vec<SideEvent>, RecordCounts), ImportError> {
    let mut noted: Vec<SideEvent> = Vec::new();
    let counts = file.records(|_, record| {
        if noted.len() < MAX_EVENTS {
            noted.extend(note(record));
        }
    })?;
    Ok((noted, counts))
}

fn note(record: &PerfRecord<'_>) -> Option<SideEvent> {
    let (time, pid, tid, what) = match record {
        PerfRecord::Mapped(map, identity) if map.pid >= 0 => {
            let anonymous = ANONYMOUS.contains(&map.name.as_str());
            let name = if anonymous { String::new() } else { map.name.clone() };
            let (start, length) = (map.start, map.length);
            let (protection, flags) = (map.protection, map.flags);
            let what = EventKind::Map { start, length, protection, flags, name };
            (identity.time_ns, map.pid, map.tid, SideChange::Mapped(what, map.offset))
        }
        PerfRecord::Renamed { pid, tid, name, exec: true, identity } => {
            let what = EventKind::Exec { name: name.clone() };
            (identity.time_ns, *pid, *tid, SideChange::Trace(what))
        }
        PerfRecord::Forked(TaskChange { pid, parent_pid, tid, time_ns, .. })
            if pid != parent_pid =>
        {
            (*time_ns, *pid, *tid, SideChange::Forked { parent: *parent_pid })
        }
        PerfRecord::Exited(TaskChange { pid, tid, time_ns, .. }) => {
            (*time_ns, *pid, *tid, SideChange::Trace(EventKind::ThreadExit))
        }
        PerfRecord::Lost(lost, identity) | PerfRecord::LostSamples(lost, identity) => {
            let what = EventKind::Lost { accesses: *lost };
            (identity.time_ns, identity.pid, identity.tid, SideChange::Trace(what))
        }
        _ => return None,
    };
    Some(SideEvent { time, pid, tid, what })
}

fn write_nodes<R: Read + Seek, W: Write>(
    writer: &mut TraceWriter<W>,
    file: &PerfDataFile<R>,
) -> Result<(), ImportError> {
    let mut nodes: Vec<(u32, u16)> = file.cpu_nodes.iter().map(|(c, n)| (*c, *n)).collect();
    nodes.sort_unstable();
    for (cpu, node) in nodes {
        let what = EventKind::CpuNode { cpu, node: u32::from(node) };
        writer.event(&TraceEvent { time: 0, process: 0, thread: 0, what })?;
    }
    Ok(())
}

/// The event's name for people, and its period, zero where that varies.
fn describe(event: &terrace_sampling::RecordedEvent) -> (String, u64) {
    let attributes = &event.attributes;
    let name: String = event.name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect();
    let name = if name.is_empty() {
        format!("{}:{:#x}", attributes.device, attributes.config)
    } else {
        name
    };
    (name, if attributes.is_frequency() { 0 } else { attributes.period })
}

fn write_sample<W: Write>(
    writer: &mut TraceWriter<W>,
    tasks: &mut TaskNumbers,
    sample: &PerfSample<'_>,
    event: &str,
) -> Result<(u32, MemoryOperation), ImportError> {
    let (process, thread) = tasks.find(writer, (sample.pid, sample.tid), sample.time_ns)?;
    let operation = match sample.source.operation() {
        MemoryOperation::Unknown => super::perf::operation_of(event),
        known => known,
    };
    let access = Access {
        address: sample.address,
        size: 8,
        store: operation == MemoryOperation::Store,
        pc: sample.instruction,
        ..Access::default()
    };
    let detail = SampleDetail {
        latency_cycles: sample.latency_cycles,
        source: sample.source,
        cpu: sample.cpu.unwrap_or(SampleDetail::UNKNOWN_CPU),
    };
    writer.sample(process, thread, &access, sample.time_ns, &detail)?;
    Ok((process, operation))
}

fn say_losses<W: Write>(writer: &mut TraceWriter<W>, counts: &RecordCounts) {
    if counts.lost > 0 {
        writer.omit(&format!("{} samples were lost because a buffer was full", counts.lost));
    }
    if counts.damaged > 0 {
        writer.omit(&format!("{} records of the file are damaged", counts.damaged));
    }
    if counts.cut_off {
        writer.omit("the file ends before its records do: it was cut off");
    }
}

impl SampleTally {
    fn count(
        &mut self,
        sample: &PerfSample<'_>,
        operation: MemoryOperation,
        event: &str,
        period: u64,
    ) {
        self.written += 1;
        self.no_direction += u64::from(operation == MemoryOperation::Unknown);
        let period = if sample.period > 0 { sample.period } else { period };
        self.with_period += u64::from(period > 0);
        self.period_sum += u128::from(period);
        if self.events.len() < MAX_NAMES {
            self.events.insert(event.to_owned());
        }
    }

    fn header<R: Read + Seek>(&self, file: &PerfDataFile<R>) -> TraceHeader {
        let notes = super::sample_notes(&self.events, self.no_direction);
        let all = self.with_period == self.written && self.written > 0;
        let mean =
            (self.period_sum + u128::from(self.written / 2)) / u128::from(self.written.max(1));
        TraceHeader {
            source: "perf".into(),
            command: file.command.clone(),
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
