//! Call paths of samples, counted while the samples are written.

use crate::error::TraceError;
use crate::event::{CallFrame, EventKind, TraceEvent};
use crate::write::TraceWriter;
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use terrace_sampling::PerfSample;

/// Different paths that are kept; samples of further ones are counted.
const MOST_PATHS: usize = 1 << 16;

/// A file's part of a process's addresses.
#[derive(Debug, Clone)]
struct MappedCode {
    end: u64,
    offset: u64,
    file: String,
}

/// Counts samples by call path. Addresses are turned into places in files while the mappings are
/// as they were when the sample was taken.
#[derive(Debug, Default)]
pub struct CallPaths {
    mapped: HashMap<u32, BTreeMap<u64, MappedCode>>,
    /// By process and addresses, since the process's mappings last changed in a way that matters.
    counted: HashMap<(u32, Vec<u64>), u64>,
    settled: HashMap<(u32, Vec<CallFrame>), u64>,
    left_out: u64,
    /// Of the latest sample.
    time: u64,
}

impl CallPaths {
    /// A file was mapped; an empty name takes the addresses away.
    pub fn map(&mut self, process: u32, start: u64, length: u64, offset: u64, name: &str) {
        let end = start.saturating_add(length);
        let overlaps = |space: &BTreeMap<u64, MappedCode>| {
            let before = space.range(..end).next_back();
            before.is_some_and(|(_, code)| code.end > start)
        };
        if self.mapped.get(&process).is_some_and(overlaps) {
            self.settle(process);
        }
        let space = self.mapped.entry(process).or_default();
        while let Some((at, code)) = space.range(..end).next_back().map(|(a, c)| (*a, c.clone())) {
            if code.end <= start {
                break;
            }
            space.remove(&at);
            if code.end > end {
                let offset = code.offset.saturating_add(end - at);
                space.insert(end, MappedCode { offset, ..code.clone() });
            }
            if at < start {
                space.insert(at, MappedCode { end: start, ..code });
            }
        }
        if name.starts_with('/') {
            space.insert(start, MappedCode { end, offset, file: name.to_owned() });
        }
    }

    /// The process is a copy of another.
    pub fn fork(&mut self, process: u32, parent: u32) {
        self.exec(process);
        let space = self.mapped.get(&parent).cloned().unwrap_or_default();
        self.mapped.insert(process, space);
    }

    /// The process runs another program.
    pub fn exec(&mut self, process: u32) {
        self.settle(process);
        self.mapped.remove(&process);
    }

    /// A sample was taken; one without a call chain counts for no path.
    pub fn count(&mut self, process: u32, sample: &PerfSample<'_>) {
        self.time = self.time.max(sample.time_ns);
        let key = (
            process,
            sample.program_callers().take(crate::events::MAX_FRAMES).collect::<Vec<u64>>(),
        );
        if key.1.is_empty() {
            return;
        }
        let full = self.counted.len() + self.settled.len() >= MOST_PATHS;
        match self.counted.get_mut(&key) {
            Some(samples) => *samples += 1,
            None if full => self.left_out += 1,
            None => {
                self.counted.insert(key, 1);
            }
        }
    }

    /// Names the places of what was counted of a process.
    fn settle(&mut self, process: u32) {
        let space = self.mapped.get(&process);
        let place = |(depth, address): (usize, &u64)| {
            // Callers are where the call returns to: the call itself ends a byte before.
            let address = address.saturating_sub(u64::from(depth > 0));
            let found = space.and_then(|s| s.range(..=address).next_back());
            match found.filter(|(_, code)| address < code.end) {
                Some((start, code)) => {
                    let offset = code.offset.saturating_add(address - start);
                    CallFrame { file: code.file.clone(), offset }
                }
                None => CallFrame { file: String::new(), offset: address },
            }
        };
        self.counted.retain(|(owner, addresses), samples| {
            if *owner == process {
                let frames = addresses.iter().enumerate().map(place).collect();
                *self.settled.entry((process, frames)).or_default() += *samples;
            }
            *owner != process
        });
    }

    /// Writes an event for each path, the most frequent first.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn write<W: Write>(mut self, writer: &mut TraceWriter<W>) -> Result<(), TraceError> {
        let time = self.time;
        let mut processes: Vec<u32> = self.counted.keys().map(|(process, _)| *process).collect();
        processes.sort_unstable();
        processes.dedup();
        processes.into_iter().for_each(|process| self.settle(process));
        let mut paths: Vec<_> = self.settled.into_iter().collect();
        paths.sort_unstable_by(|(a, n), (b, m)| m.cmp(n).then_with(|| a.cmp(b)));
        for ((process, frames), samples) in paths {
            let what = EventKind::CallPath { samples, frames };
            // The paths of all of a process's threads are counted together.
            writer.event(&TraceEvent { time, process, thread: 0, what })?;
        }
        if self.left_out > 0 {
            let n = self.left_out;
            writer.omit(&format!("call paths of {n} samples: over {MOST_PATHS} different ones"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, BlockKind, TraceHeader, TraceReader};
    use std::io::Cursor;

    #[test]
    fn paths_name_the_file_that_was_mapped_when_the_sample_was_taken() {
        let mut paths = CallPaths::default();
        paths.map(0, 0x1000, 0x3000, 0x100, "/old");
        // A hole in its middle, as a linker's data or an unmapping makes.
        paths.map(0, 0x2000, 0x1000, 0, "");
        // With the kernel's frames before, and zeros behind where frame pointers end.
        let count = |paths: &mut CallPaths, process, callers: &[u64]| {
            let chain: Vec<u8> = callers.iter().flat_map(|word| word.to_le_bytes()).collect();
            paths.count(process, &PerfSample { callchain: &chain, ..PerfSample::default() });
        };
        for _ in 0..3 {
            let chain = [-128_i64 as u64, 1 << 63, -512_i64 as u64, 0x1010, 0x3011, 0x2010, 0, 7];
            count(&mut paths, 0, &chain);
        }
        count(&mut paths, 0, &[]);
        paths.fork(1, 0);
        paths.map(0, 0x1000, 0x1000, 0, "/new");
        count(&mut paths, 0, &[0x1010]);
        count(&mut paths, 1, &[0x1010]);
        let header = TraceHeader::default();
        let mut writer = TraceWriter::new(Cursor::new(Vec::new()), &header).unwrap();
        paths.write(&mut writer).unwrap();
        let bytes = writer.finish().unwrap().into_inner();
        let mut reader = TraceReader::open(Cursor::new(bytes)).unwrap();
        let mut block = Block::new().unwrap();
        assert!(reader.next_block(&mut block).unwrap());
        assert_eq!(block.info().kind, BlockKind::Events);
        let found: Vec<_> = block.events().iter().map(|e| (e.process, e.what.clone())).collect();
        let frame = |file: &str, offset| CallFrame { file: file.to_owned(), offset };
        let path = |samples, frames: &[CallFrame]| EventKind::CallPath {
            samples,
            frames: frames.to_vec(),
        };
        let deep = [frame("/old", 0x110), frame("/old", 0x2110), frame("", 0x200f)];
        let wanted = vec![
            (0, path(3, &deep)),
            (0, path(1, &[frame("/new", 0x10)])),
            (1, path(1, &[frame("/old", 0x110)])),
        ];
        assert_eq!(found, wanted);
    }
}
