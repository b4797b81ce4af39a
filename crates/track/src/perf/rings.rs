//! The rings of a window: a thread drains them when one is half full, and when the window ends.

use super::OpenEvent;
use std::collections::BTreeMap;
use std::sync::Arc;
use terrace_sampling::{records, MemoryOperation, PerfRecord, PerfSample};
use terrace_sys::{page_size, thread_cpu, wait_for_records, SampleRing, WakeDescriptor};
use terrace_tracker::{SampleMap, SampledAccess};
use terrace_types::{Nanos, NodeId, Pid, Tid, Vpn};

/// Least time between two drainings: MEMTIS's thread drains every 2 ms.
const LEAST_PAUSE: Nanos = Nanos::millis(2);
/// Longest time between two drainings.
const MOST_PAUSE: Nanos = Nanos::millis(20);

/// Samples that are kept in a window; what is beyond is counted.
const MOST_KEPT: usize = 1 << 20;

/// Bytes of call chains that are kept in a window: of a million samples eight callers each.
const MOST_CHAIN_BYTES: usize = 64 << 20;

/// A sample as it was read.
#[derive(Debug, Clone)]
pub struct KeptSample {
    sample: PerfSample<'static>,
    /// What the access did.
    pub operation: MemoryOperation,
    callchain: Box<[u8]>,
}

impl KeptSample {
    /// The sample with its call chain.
    #[must_use]
    pub fn whole(&self) -> PerfSample<'_> {
        PerfSample { callchain: &self.callchain, ..self.sample }
    }
}

/// Samples as they were read.
#[derive(Debug, Default)]
pub struct KeptSamples {
    /// In order of time within a CPU.
    pub samples: Vec<KeptSample>,
    /// Samples beyond those that are kept.
    pub left_out: u64,
    chain_bytes: usize,
}

impl KeptSamples {
    fn add(&mut self, sample: &PerfSample<'_>, operation: MemoryOperation) {
        let chain_bytes = self.chain_bytes + sample.callchain.len();
        if self.samples.len() < MOST_KEPT && chain_bytes <= MOST_CHAIN_BYTES {
            self.chain_bytes = chain_bytes;
            let callchain = sample.callchain.into();
            let sample = PerfSample { callchain: &[], ..*sample };
            self.samples.push(KeptSample { sample, operation, callchain });
        } else {
            self.left_out += 1;
        }
    }
}

/// What happened to samples since the tracker began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleLosses {
    /// Samples of the target.
    pub samples: u64,
    /// Samples of others, or without an address.
    pub foreign: u64,
    /// Records that found a ring full.
    pub lost: u64,
    /// How often the kernel stopped an event that interrupted too often.
    pub throttled: u64,
    /// How often such an event went on.
    pub unthrottled: u64,
    /// Records that could not be read.
    pub damaged: u64,
}

/// What rings are opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RingOwner {
    Cpu(u32),
    Thread(Tid),
}

/// All rings, and what was read from them.
#[derive(Debug, Default)]
pub(super) struct RingSet {
    /// One for each event; of the lab's unit one for all.
    pub rings: BTreeMap<RingOwner, Vec<SampleRing>>,
    pub events: Arc<[OpenEvent]>,
    /// Node of each CPU.
    pub cells: Arc<BTreeMap<u32, NodeId>>,
    /// Whose samples are kept, ascending.
    pub pids: Vec<Pid>,
    pub map: SampleMap,
    pub counts: SampleLosses,
    /// `None`: samples are not kept.
    pub kept: Option<KeptSamples>,
    /// Rings of the lab's unit wake nobody: they are drained each time.
    pub silent: bool,
    buffer: Vec<u8>,
}

impl RingSet {
    pub fn new(events: Arc<[OpenEvent]>, cells: Arc<BTreeMap<u32, NodeId>>) -> Self {
        Self { events, cells, ..Self::default() }
    }

    pub fn all(&self) -> impl Iterator<Item = &SampleRing> {
        self.rings.values().flatten()
    }

    /// Takes all samples out of the rings.
    pub fn drain(&mut self) {
        let shift = page_size().get().trailing_zeros();
        for rings in self.rings.values_mut() {
            for (ring, found) in rings.iter_mut().zip(self.events.iter()) {
                self.buffer.clear();
                ring.take(&mut self.buffer);
                for record in records(&self.buffer, &found.attributes) {
                    count(&mut self.counts, &record);
                    let Ok(PerfRecord::Sample(sample)) = record else { continue };
                    let operation = match found.event.operation {
                        MemoryOperation::Unknown => sample.source.operation(),
                        known => known,
                    };
                    let pid = Pid(sample.pid);
                    if sample.address == 0 || self.pids.binary_search(&pid).is_err() {
                        self.counts.foreign += 1;
                        continue;
                    }
                    self.counts.samples += 1;
                    if let Some(kept) = &mut self.kept {
                        kept.add(&sample, operation);
                    }
                    self.map.add(&SampledAccess {
                        pid,
                        vpn: Vpn(sample.address >> shift),
                        store: operation == MemoryOperation::Store,
                        cell: sample.cpu.and_then(|cpu| self.cells.get(&cpu).copied()),
                        thread: Some(Tid(sample.tid)),
                    });
                }
            }
        }
    }

    /// Drains whenever a ring is half full, until `stop` rings; then stops all events and drains
    /// once more. CPU time that it took.
    fn follow(&mut self, stop: &WakeDescriptor) -> Nanos {
        let before = thread_cpu();
        loop {
            let most = if self.silent { Nanos::ZERO } else { MOST_PAUSE };
            let stopped = wait_for_records(self.all(), stop, most)
                || wait_for_records([].into_iter(), stop, LEAST_PAUSE);
            if stopped {
                break;
            }
            self.drain();
        }
        for ring in self.all() {
            // A thread that has ended has no event any more.
            let _gone = ring.disable();
        }
        self.drain();
        thread_cpu() - before
    }
}

fn count(counts: &mut SampleLosses, record: &Result<PerfRecord<'_>, impl Sized>) {
    match record {
        Ok(PerfRecord::Lost(lost, _) | PerfRecord::LostSamples(lost, _)) => {
            counts.lost = counts.lost.saturating_add(*lost);
        }
        Ok(PerfRecord::Throttle(_)) => counts.throttled += 1,
        Ok(PerfRecord::Unthrottle(_)) => counts.unthrottled += 1,
        Ok(_) => {}
        Err(_) => counts.damaged += 1,
    }
}

/// The thread that drains during a window, and has the rings meanwhile.
#[derive(Debug)]
pub(super) struct RingDrainer {
    stop: Arc<WakeDescriptor>,
    thread: std::thread::JoinHandle<(RingSet, Nanos)>,
}

impl RingDrainer {
    /// Starts it. Without another thread the rings are drained at the window's end only.
    pub fn start(set: RingSet) -> Result<Self, String> {
        let stop = Arc::new(WakeDescriptor::new().map_err(|e| e.to_string())?);
        let seen = stop.clone();
        let drains = move || {
            let mut set = set;
            let took = set.follow(&seen);
            (set, took)
        };
        let thread = std::thread::Builder::new()
            .name("terrace-samples".to_owned())
            .spawn(drains)
            .map_err(|e| format!("a thread that drains samples cannot be started: {e}"))?;
        Ok(Self { stop, thread })
    }

    /// Ends it: the rings, drained, and its CPU time; `None` if it failed.
    pub fn finish(self) -> Option<(RingSet, Nanos)> {
        self.stop.ring();
        self.thread.join().ok()
    }
}
