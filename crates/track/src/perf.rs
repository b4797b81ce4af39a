//! Accesses from the processor's samples, by `perf_event_open`.
//!
//! Where the user may sample whole CPUs there is a ring for each CPU, and other programs' samples
//! are left out; else there is one for each thread. Rings are drained when an interval ends. The
//! period follows the cost of draining, among primes, so that no loop of the program keeps step
//! with it.

use std::collections::BTreeMap;
use terrace_engine::{
    Mapping, Observation, SampleMap, SamplePeriods, SampleRequest, SampledAccess, TrackError,
    Tracker, TrackerInfo,
};
use terrace_sampling::{
    records, sample_type, sampling_events, CpuModel, EventAttributes, MemoryOperation, PerfRecord,
    SampleDevice, SamplingEvent, LOAD_LATENCY_LEADER,
};
use terrace_sys::{
    now, page_size, task, CpuMeter, Root, SampleEvent, SampleRing, SampledTask, SysError,
};
use terrace_types::{
    BitSource, Bytes, Nanos, NodeId, Pid, Request, Tick, Tid, TrackerVisibility, Vpn,
};

/// Periods, primes each about twice the one before. MEMTIS (Lee et al., SOSP 2023) goes from 199 to
/// 19,997; longer ones are for events that are not misses.
const PERIODS: [u64; 11] =
    [199, 401, 797, 1_597, 3_203, 5_003, 10_007, 19_997, 40_009, 80_021, 160_001];
/// Where it begins: 10,007, as HeMem's successors do.
const FIRST_PERIOD: usize = 6;
/// Pages of a ring: 64 KiB for some 900 samples of 72 bytes.
const RING_PAGES: usize = 16;
/// Rings by thread at most: each takes a descriptor, of which a process has 1024 by default.
const MAX_THREADS: usize = 512;
/// Of the share of a core that draining may take, the part below which the period is halved.
const EASY: f64 = 0.25;

/// Fields that every event's samples have.
const FIELDS: u64 = sample_type::IP
    | sample_type::TID
    | sample_type::TIME
    | sample_type::ADDR
    | sample_type::CPU
    | sample_type::PERIOD;

/// An event that was found to work.
#[derive(Debug, Clone, Copy)]
struct OpenEvent {
    event: SamplingEvent,
    spec: SampleEvent,
    attributes: EventAttributes,
}

/// Rings of one thread or CPU, one for each event.
#[derive(Debug)]
struct TaskRings {
    rings: Vec<SampleRing>,
}

/// What rings are opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RingOwner {
    Cpu(u32),
    Thread(Tid),
}

/// See the module.
#[derive(Debug)]
pub struct PerfSamples {
    root: Root,
    events: Vec<OpenEvent>,
    /// By CPU, or by thread.
    whole_cpus: bool,
    rings: BTreeMap<RingOwner, TaskRings>,
    /// Node of each CPU.
    cells: BTreeMap<u32, NodeId>,
    share: f64,
    /// Position among [`PERIODS`], and what takes its place if set.
    period: usize,
    fixed: Option<u64>,
    meter: CpuMeter,
    since: Tick,
    begin_cpu: Nanos,
    mappings: Vec<Mapping>,
    map: SampleMap,
    buffer: Vec<u8>,
    counts: SampleLosses,
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

impl PerfSamples {
    /// Samples with the events that this CPU's model has; draining takes `share` of a core at most.
    ///
    /// # Errors
    /// [`TrackError::Stopped`] where none of them can be opened, with what the kernel said.
    pub fn new(root: Root, share: f64) -> Result<Self, TrackError> {
        let info = root.text("/proc/cpuinfo").map_err(|e| stopped(&e))?;
        let model = CpuModel::parse(&info);
        let events = model.map_or(&[][..], |model| sampling_events(model));
        if events.is_empty() {
            return Err(stopped(&"no sampling events are known for this model of CPU"));
        }
        Self::with_events(root, events, share)
    }

    /// Samples with those of `events` that work: the first for loads and the first for stores, or
    /// one for both.
    ///
    /// # Errors
    /// As [`PerfSamples::new`].
    pub fn with_events(
        root: Root,
        events: &[SamplingEvent],
        share: f64,
    ) -> Result<Self, TrackError> {
        let whole_cpus = events.iter().any(|event| {
            find(&root, event).is_ok_and(|found| opens(&found, SampledTask::Cpu(0)).is_ok())
        });
        let mut chosen: Vec<OpenEvent> = Vec::new();
        let mut refused = Vec::new();
        for event in events {
            let covered = chosen.iter().any(|c| {
                c.event.operation == event.operation
                    || c.event.operation == MemoryOperation::Unknown
            });
            if covered {
                continue;
            }
            let own = if whole_cpus { SampledTask::Cpu(0) } else { SampledTask::Thread(Tid(0)) };
            match find(&root, event).and_then(|found| opens(&found, own).map(|()| found)) {
                Ok(found) => chosen.push(found),
                Err(error) => refused.push(format!("{}: {error}", event.name)),
            }
        }
        if chosen.is_empty() {
            return Err(stopped(&refused.join("; ")));
        }
        let cells = cpu_nodes(&root);
        Ok(Self {
            root,
            events: chosen,
            whole_cpus,
            rings: BTreeMap::new(),
            cells,
            share,
            period: FIRST_PERIOD,
            fixed: None,
            meter: CpuMeter::new(),
            since: Tick::ZERO,
            begin_cpu: Nanos::ZERO,
            mappings: Vec::new(),
            map: SampleMap::default(),
            buffer: Vec::new(),
            counts: SampleLosses::default(),
        })
    }

    /// Names of the events in use.
    #[must_use]
    pub fn event_names(&self) -> Vec<&'static str> {
        self.events.iter().map(|found| found.event.name).collect()
    }

    /// Whether whole CPUs are sampled, not single threads.
    #[must_use]
    pub const fn samples_cpus(&self) -> bool {
        self.whole_cpus
    }

    /// What became of samples.
    #[must_use]
    pub const fn losses(&self) -> SampleLosses {
        self.counts
    }

    /// From now on one sample for so many events, whatever it costs.
    pub fn fix_period(&mut self, period: u64) {
        self.fixed = Some(period);
    }

    /// Lets go of all rings.
    pub fn rest(&mut self) {
        self.rings.clear();
    }

    /// Events between two samples of an event.
    fn period_of(&self, event: &SamplingEvent) -> u64 {
        self.fixed.unwrap_or(PERIODS[self.period]).next_multiple_of(event.period_unit.max(1))
    }

    /// Rings for what is to be sampled: opened for who came, closed for who went.
    fn follow(&mut self) -> Result<(), TrackError> {
        let owners: Vec<RingOwner> = if self.whole_cpus {
            self.cells.keys().map(|cpu| RingOwner::Cpu(*cpu)).collect()
        } else {
            let mut pids: Vec<Pid> = self.mappings.iter().map(|m| m.pid).collect();
            pids.dedup();
            // A process that ends meanwhile has no threads.
            let threads = |pid| task::threads(&self.root, pid).unwrap_or_default();
            pids.into_iter().flat_map(threads).map(RingOwner::Thread).collect()
        };
        if owners.len() > MAX_THREADS && !self.whole_cpus {
            let why = format!("{} threads are too many for a ring each", owners.len());
            return Err(stopped(&why));
        }
        self.rings.retain(|owner, _| owners.contains(owner));
        let mut refused = None;
        for owner in owners {
            if self.rings.contains_key(&owner) {
                continue;
            }
            match self.open_rings(owner) {
                Ok(rings) => {
                    self.rings.insert(owner, rings);
                }
                // A CPU that went offline, a thread that ended: the others go on.
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if self.rings.is_empty() => Err(stopped(&error)),
            _ => Ok(()),
        }
    }

    fn open_rings(&self, owner: RingOwner) -> Result<TaskRings, SysError> {
        let sampled = match owner {
            RingOwner::Cpu(cpu) => SampledTask::Cpu(cpu),
            RingOwner::Thread(tid) => SampledTask::Thread(tid),
        };
        let open = |found: &OpenEvent| {
            SampleRing::open(&found.spec, sampled, self.period_of(&found.event), RING_PAGES)
        };
        Ok(TaskRings { rings: self.events.iter().map(open).collect::<Result<_, _>>()? })
    }

    /// Takes all samples out of the rings.
    fn drain(&mut self) {
        let shift = page_size().get().trailing_zeros();
        let mut pids: Vec<Pid> = self.mappings.iter().map(|m| m.pid).collect();
        pids.dedup();
        for rings in self.rings.values_mut() {
            for (ring, found) in rings.rings.iter_mut().zip(&self.events) {
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
                    if sample.address == 0 || !pids.contains(&pid) {
                        self.counts.foreign += 1;
                        continue;
                    }
                    self.counts.samples += 1;
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

    /// What one sample of loads and one of stores stand for.
    fn periods(&self) -> SamplePeriods {
        let mut periods = SamplePeriods::default();
        for found in &self.events {
            let period = self.period_of(&found.event);
            match found.event.operation {
                MemoryOperation::Load => periods.loads = period,
                MemoryOperation::Store => periods.stores = period,
                _ => (periods.loads, periods.stores) = (period, period),
            }
        }
        periods
    }

    /// The period that keeps draining within its share.
    fn adapt(&mut self, spent: f64) {
        let period = match spent {
            s if s > self.share => (self.period + 1).min(PERIODS.len() - 1),
            s if s < self.share * EASY => self.period.saturating_sub(1),
            _ => self.period,
        };
        if period != self.period {
            self.period = period;
            for rings in self.rings.values() {
                for (ring, found) in rings.rings.iter().zip(&self.events) {
                    // A thread that has ended needs no period.
                    let _gone = ring.set_period(self.period_of(&found.event));
                }
            }
        }
    }
}

impl Tracker for PerfSamples {
    fn info(&self) -> TrackerInfo {
        let operations: Vec<MemoryOperation> =
            self.events.iter().map(|found| found.event.operation).collect();
        let sees =
            |one| operations.contains(&one) || operations.contains(&MemoryOperation::Unknown);
        TrackerInfo {
            name: "perf",
            sees: TrackerVisibility {
                reads: sees(MemoryOperation::Load),
                writes: sees(MemoryOperation::Store),
                pages: true,
                cells: true,
                bits: BitSource::Approximate,
                sampled: true,
            },
            blind_to:
                "accesses that its events do not count; pages accessed less than once a period",
        }
    }

    fn begin(&mut self, mappings: &[Mapping], _ask: &SampleRequest) -> Result<(), TrackError> {
        let work = self.meter.start();
        self.mappings = mappings.to_vec();
        self.follow()?;
        for ring in self.rings.values().flat_map(|rings| &rings.rings) {
            let _gone = ring.enable();
        }
        self.since = now();
        self.begin_cpu = work.used(Nanos::ZERO);
        Ok(())
    }

    fn finish(&mut self, _now: Tick) -> Result<Observation, TrackError> {
        let work = self.meter.start();
        for ring in self.rings.values().flat_map(|rings| &rings.rings) {
            let _gone = ring.disable();
        }
        let interval = now().since(self.since);
        let lost = self.counts.lost;
        self.drain();
        let mut seen = self.map.take(&self.mappings, interval, self.periods());
        seen.lost += self.counts.lost - lost;
        let rings = self.rings.values().flat_map(|rings| &rings.rings).map(SampleRing::bytes);
        seen.memory = Bytes(seen.memory.get() + rings.sum::<usize>() as u64);
        seen.cpu = self.begin_cpu + work.used(Nanos::ZERO);
        if interval > Nanos::ZERO {
            self.adapt(seen.cpu.as_secs_f64() / interval.as_secs_f64());
        }
        Ok(seen)
    }

    fn request(&mut self, _request: &Request) -> Result<(), TrackError> {
        Ok(())
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

/// The event with its device's number.
fn find(root: &Root, event: &SamplingEvent) -> Result<OpenEvent, SysError> {
    let device = match event.device {
        SampleDevice::Number(number) => number,
        SampleDevice::Named(name) => {
            let path = format!("/sys/bus/event_source/devices/{name}/type");
            u32::try_from(root.number(&path)?).unwrap_or(u32::MAX)
        }
    };
    let auxiliary = root.exists("/sys/bus/event_source/devices/cpu/events/mem-loads-aux");
    let leads = auxiliary && event.detailed && event.operation == MemoryOperation::Load;
    let details = if event.detailed { sample_type::WEIGHT | sample_type::DATA_SRC } else { 0 };
    let spec = SampleEvent {
        device,
        config: event.config,
        config1: event.config1,
        leader: leads.then_some(LOAD_LATENCY_LEADER),
        precise: event.precise,
        sample_type: FIELDS | details,
        ..SampleEvent::default()
    };
    let attributes =
        EventAttributes { sample_type: spec.sample_type, ..EventAttributes::default() };
    Ok(OpenEvent { event: *event, spec, attributes })
}

/// Tries an event, the only way to know whether it works.
fn opens(found: &OpenEvent, whose: SampledTask) -> Result<(), SysError> {
    SampleRing::open(&found.spec, whose, PERIODS[FIRST_PERIOD], 1).map(|_| ())
}

/// Node of each CPU that is online.
fn cpu_nodes(root: &Root) -> BTreeMap<u32, NodeId> {
    let nodes = "/sys/devices/system/node";
    let mut cells = BTreeMap::new();
    for name in root.list(nodes).unwrap_or_default() {
        let number = name.strip_prefix("node").and_then(|number| number.parse().ok());
        let Some(node) = number.map(NodeId) else { continue };
        let list = root.text(&format!("{nodes}/{name}/cpulist")).unwrap_or_default();
        let cpus = task::parse_list(list.trim(), 1 << 16).unwrap_or_default();
        cells.extend(cpus.into_iter().map(|cpu| (cpu, node)));
    }
    if cells.is_empty() {
        let list = root.text("/sys/devices/system/cpu/online").unwrap_or_default();
        let cpus = task::parse_list(list.trim(), 1 << 16).unwrap_or_default();
        cells.extend(cpus.into_iter().map(|cpu| (cpu, NodeId(0))));
    }
    cells
}

fn stopped(why: &dyn std::fmt::Display) -> TrackError {
    TrackError::Stopped {
        tracker: "perf",
        why: why.to_string(),
        remedy: "try another tracker, or see terrace doctor",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_engine::MappingKind;
    use terrace_sampling::PAGE_FAULTS;
    use terrace_types::VpnRange;

    fn ask() -> SampleRequest {
        SampleRequest {
            interval: Nanos(1),
            fine: vec![],
            reads: true,
            writes: true,
            relaxed: false,
            quick_scan: false,
        }
    }

    /// Page faults stand for a processor's events: rings, records and page map are the same.
    #[test]
    fn accesses_of_this_process_are_sampled_through_real_rings() {
        let mut tracker = match PerfSamples::with_events(Root::live(), &[PAGE_FAULTS], 0.5) {
            Ok(tracker) => tracker,
            Err(error) => return println!("skipped: {error}"),
        };
        tracker.fix_period(1);
        // Other programs' faults would fill the rings of CPUs.
        tracker.whole_cpus = false;
        assert_eq!(tracker.event_names(), ["page faults"]);
        // Touches so far apart that a huge page, where the kernel gives one, holds no two of them.
        const APART: usize = 2 << 20;
        const TOUCHES: usize = 20;
        let page = page_size().get();
        let mut memory = vec![0u8; (TOUCHES + 1) * APART];
        let start = memory.as_ptr() as u64;
        let range = VpnRange::new(Vpn(start / page), Vpn((start + memory.len() as u64) / page));
        let pid = Pid(std::process::id() as i32);
        let mapping = Mapping { pid, range, kind: MappingKind::Anonymous, writable: true };
        tracker.begin(&[mapping], &ask()).unwrap();
        (0..TOUCHES).for_each(|i| memory[i * APART + APART / 2] = 1);
        let seen = tracker.finish(now()).unwrap();
        let pages: u64 =
            seen.observations.iter().filter(|s| s.hits > 0).map(|s| s.range.len()).sum();
        assert_eq!((pages / TOUCHES as u64, tracker.losses().damaged), (1, 0), "{seen:?}");
        let inside = |vpn: Vpn| range.start <= vpn && vpn < range.end;
        let counts: Vec<_> = seen.by_cell.iter().filter(|c| inside(c.vpn)).collect();
        assert!(counts.len() >= TOUCHES && counts.iter().all(|c| c.thread.is_some()), "{counts:?}");
        assert!(tracker.info().sees.cells && seen.memory.get() > 0);
        tracker.rest();
    }

    #[test]
    fn a_machine_without_counters_says_which_events_it_refused() {
        let none =
            SamplingEvent { name: "none", device: SampleDevice::Number(4711), ..PAGE_FAULTS };
        let error = PerfSamples::with_events(Root::live(), &[none], 0.01).unwrap_err().to_string();
        assert!(error.contains("none: perf_event_open on event 0x2"), "{error}");
        let nowhere = Root::with_prefix("/nonexistent");
        assert!(PerfSamples::new(nowhere, 0.01).is_err());
    }

    #[test]
    fn nodes_of_cpus_are_read() {
        let cells = cpu_nodes(&Root::live());
        assert!(!cells.is_empty());
    }
}
