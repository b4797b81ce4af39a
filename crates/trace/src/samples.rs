//! A trace of samples that are taken while a program runs.

use crate::calls::CallPaths;
use crate::error::TraceError;
use crate::event::{Access, EventKind, SampleDetail, TraceClock, TraceEvent, TraceHeader};
use crate::tasks::TaskNumbers;
use crate::write::TraceWriter;
use std::io::{Seek, Write};
use terrace_sampling::{MemoryOperation, PerfSample};

/// Bytes that the header may grow by until the end: the period has some digits more.
const HEADER_ROOM: usize = 256;

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleTotals {
    /// Samples of loads.
    pub loads: u64,
    /// Samples of stores.
    pub stores: u64,
    /// Samples that were taken and are not here.
    pub lost: u64,
}

/// Writes samples and what happens to mappings, each at the time of the sample before it.
#[derive(Debug)]
pub struct SampleTraceWriter<W: Write> {
    writer: TraceWriter<W>,
    header: TraceHeader,
    tasks: TaskNumbers,
    calls: CallPaths,
    time: u64,
    totals: SampleTotals,
    /// Events that all samples stand for.
    events: u128,
}

impl<W: Write + Seek> SampleTraceWriter<W> {
    /// Begins a trace of samples of `command`; `nodes`: the node of each CPU; `notes`: what
    /// sampled.
    ///
    /// # Errors
    /// As [`TraceWriter::new`].
    pub fn new(
        out: W,
        command: Vec<String>,
        nodes: impl IntoIterator<Item = (u32, u32)>,
        notes: Vec<String>,
    ) -> Result<Self, TraceError> {
        let header = TraceHeader {
            source: "perf".into(),
            command,
            clock: TraceClock::Nanoseconds,
            ns_per_tick: 1.0,
            period: 0,
            sampled: true,
            pcs: true,
            details: true,
            notes,
            ..TraceHeader::default()
        };
        let mut writer = TraceWriter::with_header_space(out, &header, HEADER_ROOM)?;
        for (cpu, node) in nodes {
            let what = EventKind::CpuNode { cpu, node };
            writer.event(&TraceEvent { time: 0, process: 0, thread: 0, what })?;
        }
        Ok(Self {
            writer,
            header,
            tasks: TaskNumbers::default(),
            calls: CallPaths::default(),
            time: 0,
            totals: SampleTotals::default(),
            events: 0,
        })
    }

    /// A file was mapped, from its byte `offset` on, seen now: `what` is [`EventKind::Map`].
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn mapped(&mut self, pid: i32, what: EventKind, offset: u64) -> Result<(), TraceError> {
        let (process, _) = self.tasks.find(&mut self.writer, (pid, pid), self.time)?;
        if let EventKind::Map { start, length, name, .. } = &what {
            self.calls.map(process, *start, *length, offset, name);
        }
        self.event(pid, what)
    }

    /// Something besides samples happened in a process, seen now.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn event(&mut self, pid: i32, what: EventKind) -> Result<(), TraceError> {
        let time = self.time;
        let (process, thread) = self.tasks.find(&mut self.writer, (pid, pid), time)?;
        if let EventKind::Unmap { start, length } = what {
            self.calls.map(process, start, length, 0, "");
        }
        self.writer.event(&TraceEvent { time, process, thread, what })
    }

    /// A sample, of loads if nothing says otherwise. Give them in order of time.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn sample(
        &mut self,
        sample: &PerfSample<'_>,
        operation: MemoryOperation,
    ) -> Result<(), TraceError> {
        self.time = self.time.max(sample.time_ns);
        let (process, thread) =
            self.tasks.find(&mut self.writer, (sample.pid, sample.tid), self.time)?;
        let store = operation == MemoryOperation::Store;
        let access = Access {
            address: sample.address,
            size: 8,
            store,
            pc: sample.instruction,
            ..Access::default()
        };
        let detail = SampleDetail {
            latency_cycles: sample.latency_cycles,
            source: sample.source,
            cpu: sample.cpu.unwrap_or(SampleDetail::UNKNOWN_CPU),
        };
        *(if store { &mut self.totals.stores } else { &mut self.totals.loads }) += 1;
        self.events += u128::from(sample.period);
        self.calls.count(process, sample);
        self.writer.sample(process, thread, &access, self.time, &detail)
    }

    /// So many samples are not here.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn lost(&mut self, pid: i32, samples: u64) -> Result<(), TraceError> {
        if samples == 0 {
            return Ok(());
        }
        self.totals.lost += samples;
        self.event(pid, EventKind::Lost { accesses: samples })
    }

    /// Ends the trace. Its period is the mean of the samples' periods.
    ///
    /// # Errors
    /// As [`TraceWriter::finish_with_header`].
    pub fn finish(mut self) -> Result<(W, SampleTotals), TraceError> {
        self.calls.write(&mut self.writer)?;
        let lost = self.totals.lost;
        if lost > 0 {
            self.writer.omit(&format!("{lost} samples were lost because a ring was full"));
        }
        let all = u128::from(self.totals.loads + self.totals.stores);
        let mean = (self.events + all / 2) / all.max(1);
        self.header.period = u64::try_from(mean).unwrap_or(u64::MAX);
        Ok((self.writer.finish_with_header(&self.header)?, self.totals))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, BlockKind, TraceReader};
    use std::io::Cursor;
    use terrace_sampling::{AccessLocality, DataSource, MemoryLevel};

    #[test]
    fn samples_and_mappings_come_back() {
        let nodes = [(0, 0), (1, 1)];
        let command = vec!["solver".to_owned()];
        let mut w =
            SampleTraceWriter::new(Cursor::new(Vec::new()), command, nodes, vec![]).unwrap();
        let (start, length) = (0x7f00_0000_0000, 1 << 20);
        let map = EventKind::Map { start, length, protection: 3, flags: 0x22, name: String::new() };
        w.event(7, map).unwrap();
        let source =
            DataSource::new(MemoryOperation::Load, MemoryLevel::CxlMemory, AccessLocality::Remote);
        let sample = PerfSample {
            pid: 7,
            tid: 8,
            time_ns: 1000,
            address: start + 64,
            cpu: Some(1),
            period: 100,
            latency_cycles: 300,
            source,
            ..PerfSample::default()
        };
        w.sample(&sample, MemoryOperation::Load).unwrap();
        w.sample(&PerfSample { time_ns: 2000, period: 300, ..sample }, MemoryOperation::Store)
            .unwrap();
        w.lost(7, 5).unwrap();
        let (file, totals) = w.finish().unwrap();
        assert_eq!(totals, SampleTotals { loads: 1, stores: 1, lost: 5 });
        let mut reader = TraceReader::open(Cursor::new(file.into_inner())).unwrap();
        assert_eq!((reader.header().period, reader.header().sampled), (200, true));
        let (mut accesses, mut lost, mut maps, mut cpus) = (Vec::new(), 0, 0, 0);
        let mut block = Block::new().unwrap();
        while reader.next_block(&mut block).unwrap() {
            if block.info().kind == BlockKind::Accesses {
                let stores = block.kinds().iter().map(|kind| kind.is_store());
                accesses.extend(block.addresses().iter().copied().zip(stores));
                continue;
            }
            for event in block.events() {
                match event.what {
                    EventKind::Lost { accesses } => lost += accesses,
                    EventKind::Map { .. } => maps += 1,
                    EventKind::CpuNode { .. } => cpus += 1,
                    _ => {}
                }
            }
        }
        assert_eq!(accesses, [(start + 64, false), (start + 64, true)]);
        assert_eq!((lost, maps, cpus), (5, 1, 2));
    }
}
