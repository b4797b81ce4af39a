//! Disks, and compressed memory that a file system lies on: reads and writes of a file without a
//! name, past the page cache, by `io_uring`. Needs a folder that one may write to, and no
//! privilege.
//!
//! A run keeps as many operations under way as the task says for a fixed time, as fio's `iodepth`
//! has it; its figures are bytes a second and the median time of an operation. What the device has
//! in its own cache counts as written.

use crate::plan::Depth;
use crate::stats::{judge_values, quantile, MeasuredFigure};
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use terrace_machine::{Evidence, FarStore};
use terrace_sys::{
    now, ChunkFrame, Ring, StoreFile, SysError, Transfer, TransferBuffer, TransferPiece,
};
use terrace_types::{Bytes, BytesPerSec, Nanos, Seed, Tick};

/// Which way data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// From the disk.
    Read,
    /// To the disk.
    Write,
}

/// Where the next operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Behind the last one.
    Sequential,
    /// Anywhere in the file.
    Random,
}

/// One thing to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DiskTask {
    /// Which way.
    pub way: Way,
    /// In which order.
    pub order: Order,
    /// Bytes of an operation.
    #[serde(rename = "operation_bytes")]
    pub size: Bytes,
    /// Operations under way at a time.
    pub depth: u32,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct DiskRecord {
    /// The task.
    pub task: DiskTask,
    /// Bytes a second.
    pub bandwidth: MeasuredFigure,
    /// Nanoseconds from an operation's begin to its end: the median of each run, and of these the
    /// median.
    pub latency: MeasuredFigure,
}

/// A measured disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Disk {
    /// The file that was read and written; it is gone.
    pub file: Bytes,
    /// Whether the page cache was passed by. If not, these are figures of memory as much as of the
    /// disk.
    pub direct: bool,
    /// The figures, in order.
    pub records: Vec<DiskRecord>,
    /// Why it ended early.
    pub partial: Option<String>,
}

impl Disk {
    /// The disk as a far store of this name. What a request keeps it busy beside its bytes is from
    /// random reads of 4 KiB, 32 at a time; latencies are what one alone takes beyond that. A
    /// fault's cost and a page's are no disk's: they are as usual. `None` where one of the six
    /// figures was not measured.
    #[must_use]
    pub fn store(&self, name: &str) -> Option<FarStore> {
        use {Order::Random, Order::Sequential, Way::Read, Way::Write};
        let find = |way, order, kib, depth| {
            self.records.iter().find(|r| r.task == task(way, order, kib, depth))
        };
        let bandwidth =
            |way| find(way, Sequential, 1024, 8).map(|r| r.bandwidth.value).filter(|b| *b >= 1.0);
        let (read, write) = (bandwidth(Read)?, bandwidth(Write)?);
        let page = 4096.0;
        let busy = find(Read, Random, 4, 32).map(|r| page / r.bandwidth.value * 1e9)?;
        let operation = (busy - page / read * 1e9).max(0.0);
        let beyond = |way, bandwidth: f64| {
            let alone = find(way, Random, 4, 1)?.latency.value;
            Some(Nanos((alone - operation - page / bandwidth * 1e9).max(0.0) as u64))
        };
        let [usual, _] = FarStore::usual();
        Some(FarStore {
            name: name.to_owned(),
            read_latency: beyond(Read, read)?,
            write_latency: beyond(Write, write)?,
            operation: Nanos(operation as u64),
            read_bandwidth: BytesPerSec(read as u64),
            write_bandwidth: BytesPerSec(write as u64),
            on_cpu: false,
            evidence: Evidence::Measured,
            ..usual
        })
    }
}

/// How long and how often.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Effort {
    file: Bytes,
    run: Nanos,
    least: usize,
    most: usize,
}

/// Operations are of this size at most; the file is a multiple of it.
const LARGEST: Bytes = Bytes::mib(1);
/// A figure whose spread is below this share is good enough.
const ENOUGH: f64 = 0.02;

const fn task(way: Way, order: Order, kib: u64, depth: u32) -> DiskTask {
    DiskTask { way, order, size: Bytes(kib << 10), depth }
}

/// What is measured at a depth.
#[must_use]
pub fn disk_plan(depth: Depth) -> Vec<DiskTask> {
    use {Order::Random, Order::Sequential, Way::Read, Way::Write};
    let mut tasks = vec![
        task(Write, Sequential, 1024, 8),
        task(Read, Sequential, 1024, 8),
        task(Read, Random, 4, 1),
        task(Read, Random, 4, 32),
        task(Write, Random, 4, 1),
        task(Write, Random, 4, 32),
    ];
    if depth == Depth::Full {
        for way in [Read, Write] {
            tasks.extend([
                task(way, Random, 64, 1),
                task(way, Random, 64, 16),
                task(way, Sequential, 1024, 1),
            ]);
        }
    }
    tasks
}

/// Measures the disk that `folder` lies on, until done or `stop` is set; `reported` hears of each
/// task with its number.
///
/// # Errors
/// The folder is not to be written to, has no free space, or the kernel offers no `io_uring`.
pub fn measure_disk(
    folder: &Path,
    depth: Depth,
    stop: &AtomicBool,
    reported: &mut dyn FnMut(usize, usize, &DiskTask),
) -> Result<Disk, SysError> {
    let effort = match depth {
        Depth::Full => {
            Effort { file: Bytes::mib(1024), run: Nanos::millis(500), least: 5, most: 15 }
        }
        _ => Effort { file: Bytes::mib(256), run: Nanos::millis(250), least: 3, most: 9 },
    };
    measure(folder, &disk_plan(depth), effort, stop, reported)
}

fn measure(
    folder: &Path,
    tasks: &[DiskTask],
    effort: Effort,
    stop: &AtomicBool,
    reported: &mut dyn FnMut(usize, usize, &DiskTask),
) -> Result<Disk, SysError> {
    let made = StoreFile::create(folder, effort.file.get())?;
    let direct = made.direct;
    let most = tasks.iter().map(|t| t.depth).max().unwrap_or(1).max(8);
    let ring = Ring::new(most, vec![made.file])?;
    let slots = ChunkFrame::pool(most as usize + 1, LARGEST.get() as usize)?;
    let mut disk = Bench {
        ring,
        slots,
        content: None,
        file: effort.file,
        seed: Seed(0x7e44_d15c),
        next: 0,
        stop,
    };
    disk.fill()?;
    let mut records = Vec::new();
    let mut partial = None;
    for (index, task) in tasks.iter().enumerate() {
        reported(index, tasks.len(), task);
        match disk.record(task, effort)? {
            Some(record) => records.push(record),
            None => {
                partial =
                    Some(format!("interrupted after {index} of {} measurements", tasks.len()));
                break;
            }
        }
    }
    Ok(Disk { file: effort.file, direct, records, partial })
}

/// The file, and memory to read it into and write it from.
struct Bench<'a> {
    ring: Ring,
    /// Free ones.
    slots: Vec<ChunkFrame>,
    /// What is written: nothing that a compressor could make small.
    content: Option<Arc<ChunkFrame>>,
    file: Bytes,
    seed: Seed,
    /// Where the next sequential operation is.
    next: u64,
    stop: &'a AtomicBool,
}

/// What a run gave.
struct Run {
    bytes: u64,
    span: Nanos,
    latencies: Vec<f64>,
}

impl Bench<'_> {
    /// Writes all of the file: blocks that were never written are read without the disk.
    fn fill(&mut self) -> Result<(), SysError> {
        if let Some(mut slot) = self.slots.pop() {
            for word in slot.bytes_mut().chunks_exact_mut(8) {
                let (random, next) = self.seed.next();
                self.seed = next;
                word.copy_from_slice(&random.to_ne_bytes());
            }
            self.content = Some(Arc::new(slot));
        }
        let whole = self.file.get() / LARGEST.get();
        self.next = 0;
        self.go(&task(Way::Write, Order::Sequential, LARGEST.get() / 1024, 8), |done, _| {
            done < whole
        })?;
        Ok(())
    }

    /// A figure of several runs; `None` when stopped.
    fn record(&mut self, task: &DiskTask, effort: Effort) -> Result<Option<DiskRecord>, SysError> {
        let (mut rates, mut times) = (Vec::new(), Vec::new());
        while rates.len() < effort.most {
            let mut run = self.go(task, |_, spent| spent < effort.run)?;
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            run.latencies.sort_by(f64::total_cmp);
            // The device is what is waited for: that other work had the CPU meanwhile does not
            // disturb a run.
            rates.push((run.bytes as f64 / run.span.get().max(1) as f64 * 1e9, 1.0));
            times.push((quantile(&run.latencies, 0.5), 1.0));
            let so_far = judge_values(&rates);
            if rates.len() >= effort.least && so_far.spread <= ENOUGH * so_far.value {
                break;
            }
        }
        Ok(Some(DiskRecord {
            task: *task,
            bandwidth: judge_values(&rates),
            latency: judge_values(&times),
        }))
    }

    /// Operations one after the other, `depth` under way, while `more` (operations begun, time
    /// spent) says so and nobody stops.
    fn go(&mut self, task: &DiskTask, more: impl Fn(u64, Nanos) -> bool) -> Result<Run, SysError> {
        let began = now();
        let mut starts = vec![Tick(0); task.depth as usize];
        let mut idle: Vec<usize> = (0..starts.len()).collect();
        let (mut begun, mut ended) = (0, Vec::new());
        let mut run = Run { bytes: 0, span: Nanos::ZERO, latencies: Vec::new() };
        loop {
            while !self.stop.load(Ordering::Relaxed) && more(begun, now().since(began)) {
                let Some(tag) = idle.pop() else { break };
                let Some(transfer) = self.operation(task, tag as u64) else { break };
                starts[tag] = now();
                self.ring.begin(transfer);
                begun += 1;
            }
            self.ring.submit()?;
            if self.ring.in_flight() == 0 {
                run.span = now().since(began);
                return Ok(run);
            }
            self.ring.finished(&mut ended)?;
            if ended.is_empty() {
                self.ring.wait(&[], Some(Nanos::millis(100)))?;
            }
            for (transfer, errno) in ended.drain(..) {
                let tag = transfer.tag as usize;
                run.latencies.push(now().since(starts[tag]).get() as f64);
                run.bytes += task.size.get();
                idle.push(tag);
                if let TransferBuffer::Fill(slot) = transfer.buffer {
                    self.slots.push(slot);
                }
                if errno != 0 {
                    let call = if task.way == Way::Read { "read" } else { "write" };
                    return Err(SysError::from_errno(
                        call,
                        "the probe's file",
                        errno,
                        "look at the kernel's log",
                    ));
                }
            }
        }
    }

    /// The next operation; `None` while there is no memory for it.
    fn operation(&mut self, task: &DiskTask, tag: u64) -> Option<Transfer> {
        let places = (self.file.get() / task.size.get()).max(1);
        let place = match task.order {
            Order::Sequential => {
                let at = self.next % places;
                self.next = at + 1;
                at
            }
            Order::Random => {
                let (random, next) = self.seed.next();
                self.seed = next;
                random % places
            }
        };
        let len = task.size.get() as usize;
        // Of what is written, another part each time.
        let parts = (LARGEST.get() as usize / len).max(1);
        let (buffer, start) = match task.way {
            Way::Read => (TransferBuffer::Fill(self.slots.pop()?), 0),
            Way::Write => (
                TransferBuffer::Send(Arc::clone(self.content.as_ref()?)),
                place as usize % parts * len,
            ),
        };
        let piece = TransferPiece { file: 0, offset: place * task.size.get(), start, len };
        Some(Transfer { tag, buffer, pieces: vec![piece] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Effort = Effort { file: Bytes::mib(8), run: Nanos::millis(20), least: 2, most: 3 };

    fn folder(name: &str) -> std::path::PathBuf {
        let folder =
            std::env::temp_dir().join(format!("terrace-disk-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn every_task_gives_figures_and_nothing_is_left() {
        let folder = folder("all");
        let (tasks, mut reported) = (disk_plan(Depth::Full), 0);
        let disk = match measure(&folder, &tasks, SMALL, &AtomicBool::new(false), &mut |_, _, _| {
            reported += 1
        }) {
            Ok(disk) => disk,
            Err(error) => return println!("skipped: {error}"),
        };
        assert_eq!((disk.records.len(), reported, disk.partial), (tasks.len(), tasks.len(), None));
        for record in &disk.records {
            let (rate, ns) = (record.bandwidth.value, record.latency.value);
            assert!(rate > 1e4 && rate < 1e12, "{:?}: {rate} bytes a second", record.task);
            assert!(ns > 200.0 && ns < 3e10, "{:?}: {ns} ns", record.task);
            assert!(record.bandwidth.runs >= 2 && record.latency.spread >= 0.0);
            // Little's law: as many under way as were asked for, within what begins and ends cost.
            let under_way = rate * ns / 1e9 / record.task.size.get() as f64;
            assert!(
                under_way < f64::from(record.task.depth) * 2.0,
                "{:?}: {under_way} under way",
                record.task
            );
        }
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "the file has no name");
        std::fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn a_store_has_the_figures_of_the_disk() {
        let figure =
            |value| MeasuredFigure { value, spread: 0.0, runs: 3, disturbed: 0, noisy: false };
        let record = |way, order, kib, depth, bandwidth, latency| DiskRecord {
            task: task(way, order, kib, depth),
            bandwidth: figure(bandwidth),
            latency: figure(latency),
        };
        let mut records = vec![
            record(Way::Write, Order::Sequential, 1024, 8, 1.024e9, 8e6),
            record(Way::Read, Order::Sequential, 1024, 8, 2.048e9, 4e6),
            record(Way::Read, Order::Random, 4, 1, 40e6, 100e3),
            record(Way::Read, Order::Random, 4, 32, 409.6e6, 300e3),
            record(Way::Write, Order::Random, 4, 1, 200e6, 20e3),
        ];
        let disk = |records: &[DiskRecord]| Disk {
            file: Bytes::mib(8),
            direct: true,
            records: records.to_vec(),
            partial: None,
        };
        let store = disk(&records).store("nvme").unwrap();
        // 100,000 reads a second: 10 us each, of which 2 are the bytes'; a write's bytes take 4.
        assert_eq!(
            (store.operation, store.read_latency, store.write_latency),
            (Nanos(8_000), Nanos(90_000), Nanos(8_000))
        );
        assert_eq!(
            (store.read_bandwidth, store.write_bandwidth),
            (BytesPerSec(2_048_000_000), BytesPerSec(1_024_000_000))
        );
        assert_eq!(
            (store.name.as_str(), store.evidence, store.on_cpu),
            ("nvme", Evidence::Measured, false)
        );
        records.pop();
        assert_eq!(disk(&records).store("nvme"), None, "writes one at a time are missing");
    }

    #[test]
    fn a_stop_is_heard_and_a_folder_that_is_not_there_is_named() {
        let folder = folder("stop");
        match measure(
            &folder,
            &disk_plan(Depth::Quick),
            SMALL,
            &AtomicBool::new(true),
            &mut |_, _, _| {},
        ) {
            Ok(disk) => {
                assert!(disk.records.is_empty() && disk.partial.unwrap().contains("after 0 of 6"))
            }
            Err(error) => println!("skipped: {error}"),
        }
        std::fs::remove_dir(&folder).unwrap();
        let error = measure_disk(&folder, Depth::Quick, &AtomicBool::new(false), &mut |_, _, _| {})
            .unwrap_err();
        assert!(error.to_string().contains("terrace-disk-stop"), "{error}");
    }
}
