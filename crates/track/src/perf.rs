//! Accesses from the processor's samples, by `perf_event_open`; in the lab from its sampling unit.
//!
//! Where the user may sample whole CPUs there is a ring for each CPU, and other programs' samples
//! are left out; else there is one for each thread. A thread drains rings that are half full. The
//! period follows the cost of draining, among primes, so that no loop of the program keeps step
//! with it.

mod lab_unit;
mod open;
mod rings;
mod settings;

pub use rings::{KeptSample, KeptSamples, SampleLosses};
pub use settings::PerfSettings;

use lab_unit::LabUnit;
use open::{cpu_nodes, find, opens, ring_pages, unit_event, OpenEvent};
use rings::{RingDrainer, RingOwner, RingSet};
use settings::SamplingPace;
use std::collections::BTreeMap;
use std::sync::Arc;
use terrace_engine::{Mapping, Observation, SampleRequest, TrackError, Tracker, TrackerInfo};
use terrace_sampling::{sampling_events, CpuModel, MemoryOperation, SamplingEvent, UnitAnswer};
use terrace_sys::{now, task, CpuMeter, Root, SampleRing, SampledTask, SysError};
use terrace_tracker::SamplePeriods;
use terrace_types::{BitSource, Bytes, Nanos, NodeId, Pid, Request, Tick, Tid, TrackerVisibility};

/// Rings by thread at most: each takes a descriptor, of which a process has 1024 by default. Of
/// more threads some are sampled in each interval, in turn.
const MAX_THREADS: usize = 512;

/// See the module.
#[derive(Debug)]
pub struct PerfSamples {
    root: Root,
    events: Arc<[OpenEvent]>,
    /// By CPU, or by thread.
    whole_cpus: bool,
    /// In the lab.
    unit: Option<LabUnit>,
    all_loads: bool,
    /// `None` while the drainer has them.
    set: Option<RingSet>,
    drainer: Option<RingDrainer>,
    /// Node of each CPU.
    cells: Arc<BTreeMap<u32, NodeId>>,
    share: f64,
    pace: SamplingPace,
    meter: CpuMeter,
    since: Tick,
    begin_cpu: Nanos,
    mappings: Vec<Mapping>,
    /// Where the turn among too many threads is, and all threads for each that is sampled.
    turn: usize,
    threads_for_each: u64,
    counts: SampleLosses,
    answer: UnitAnswer,
}

impl PerfSamples {
    /// Samples with the events that this CPU's model has, or with the lab's unit; draining takes
    /// `share` of a core at most.
    ///
    /// # Errors
    /// [`TrackError::Stopped`] where none of them can be opened, with what the kernel said.
    pub fn new(root: Root, share: f64) -> Result<Self, TrackError> {
        Self::with_settings(root, share, PerfSettings::default())
    }

    /// As [`PerfSamples::new`], with settings.
    ///
    /// # Errors
    /// As there.
    pub fn with_settings(
        root: Root,
        share: f64,
        settings: PerfSettings,
    ) -> Result<Self, TrackError> {
        let unit = match settings.event {
            None => LabUnit::open(&root, settings.buffer.get()).map_err(|why| stopped(&why))?,
            Some(_) => None,
        };
        if unit.is_some() {
            let events = Arc::new([unit_event()]);
            let mut made = Self::made(root, events, true, share, settings);
            made.unit = unit;
            made.set.iter_mut().for_each(|set| set.silent = true);
            return Ok(made);
        }
        if settings.all_loads {
            return Err(stopped(&"only the lab counts all loads so; name the processor's event"));
        }
        if let Some(event) = settings.event {
            return Self::with_events(root, &[event], share, settings);
        }
        let info = root.text("/proc/cpuinfo").map_err(|e| stopped(&e))?;
        let model = CpuModel::parse(&info);
        let events = model.map_or(&[][..], |model| sampling_events(model));
        if events.is_empty() {
            return Err(stopped(&"no sampling events are known for this model of CPU"));
        }
        Self::with_events(root, events, share, settings)
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
        settings: PerfSettings,
    ) -> Result<Self, TrackError> {
        let whole_cpus = events.iter().any(|event| {
            find(&root, event, &settings)
                .is_ok_and(|found| opens(&found, SampledTask::Cpu(0)).is_ok())
        });
        let wants_stores = SamplingPace::new(settings).wants_stores();
        let mut chosen: Vec<OpenEvent> = Vec::new();
        let mut refused = Vec::new();
        for event in events {
            let covered = chosen.iter().any(|c| {
                c.event.operation == event.operation
                    || c.event.operation == MemoryOperation::Unknown
            });
            if covered || event.operation == MemoryOperation::Store && !wants_stores {
                continue;
            }
            let own = if whole_cpus { SampledTask::Cpu(0) } else { SampledTask::Thread(Tid(0)) };
            match find(&root, event, &settings).and_then(|found| opens(&found, own).map(|()| found))
            {
                Ok(found) => chosen.push(found),
                Err(error) => refused.push((event.name, error)),
            }
        }
        if chosen.is_empty() {
            return Err(refusal(&refused));
        }
        Ok(Self::made(root, chosen.into(), whole_cpus, share, settings))
    }

    fn made(
        root: Root,
        events: Arc<[OpenEvent]>,
        whole_cpus: bool,
        share: f64,
        settings: PerfSettings,
    ) -> Self {
        let cells = Arc::new(cpu_nodes(&root));
        Self {
            root,
            set: Some(RingSet::new(events.clone(), cells.clone())),
            drainer: None,
            events,
            whole_cpus,
            unit: None,
            all_loads: settings.all_loads,
            cells,
            share,
            pace: SamplingPace::new(settings),
            meter: CpuMeter::new(),
            since: Tick::ZERO,
            begin_cpu: Nanos::ZERO,
            mappings: Vec::new(),
            turn: 0,
            threads_for_each: 1,
            counts: SampleLosses::default(),
            answer: UnitAnswer::default(),
        }
    }

    /// Names of the events in use.
    #[must_use]
    pub fn event_names(&self) -> Vec<&'static str> {
        self.events.iter().map(|found| found.event.name).collect()
    }

    /// Whether samples come from the lab's unit, which keeps no call chains.
    #[must_use]
    pub const fn is_lab_unit(&self) -> bool {
        self.unit.is_some()
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

    /// From now on samples are kept, for [`PerfSamples::take_samples`].
    pub fn keep_samples(&mut self) {
        if let Some(set) = &mut self.set {
            set.kept = Some(KeptSamples::default());
        }
    }

    /// The samples of the window that was finished last.
    pub fn take_samples(&mut self) -> KeptSamples {
        let kept = self.set.as_mut().and_then(|set| set.kept.as_mut());
        kept.map(std::mem::take).unwrap_or_default()
    }

    /// The node of each CPU.
    pub fn cpu_nodes(&self) -> impl Iterator<Item = (u32, NodeId)> + '_ {
        self.cells.iter().map(|(cpu, node)| (*cpu, *node))
    }

    /// Lets go of all rings.
    pub fn rest(&mut self) {
        self.stop();
        if let Some(set) = &mut self.set {
            set.rings.clear();
        }
    }

    /// Ends sampling: the rings are drained, and here. CPU time that draining took.
    fn stop(&mut self) -> Nanos {
        if let Some(unit) = &self.unit {
            self.answer = unit.sample([0; 3]).unwrap_or(self.answer);
        }
        let Some(drainer) = self.drainer.take() else {
            if let Some(set) = &mut self.set {
                set.all().for_each(|ring| drop(ring.disable()));
                set.drain();
            }
            return Nanos::ZERO;
        };
        let fresh = || RingSet::new(self.events.clone(), self.cells.clone());
        let (set, took) = drainer.finish().unwrap_or_else(|| (fresh(), Nanos::ZERO));
        self.set = Some(set);
        took
    }

    /// What is to be sampled now.
    fn owners(&mut self) -> Vec<RingOwner> {
        self.threads_for_each = 1;
        if self.whole_cpus {
            return self.cells.keys().map(|cpu| RingOwner::Cpu(*cpu)).collect();
        }
        let mut pids: Vec<Pid> = self.mappings.iter().map(|m| m.pid).collect();
        pids.dedup();
        // A process that ends meanwhile has no threads.
        let threads = |pid| task::threads(&self.root, pid).unwrap_or_default();
        let mut all: Vec<Tid> = pids.into_iter().flat_map(threads).collect();
        if all.len() > MAX_THREADS {
            self.threads_for_each = (all.len() / MAX_THREADS) as u64;
            let first = self.turn % all.len();
            all.rotate_left(first);
            all.truncate(MAX_THREADS);
            self.turn = first + MAX_THREADS;
        }
        all.into_iter().map(RingOwner::Thread).collect()
    }

    /// Rings for what is to be sampled: opened for who came, closed for who went.
    fn follow(&mut self, set: &mut RingSet) -> Result<(), TrackError> {
        let owners = self.owners();
        set.rings.retain(|owner, _| owners.contains(owner));
        let pages = ring_pages(owners.len() * self.events.len(), self.cells.len());
        let mut refused = None;
        for owner in owners {
            if set.rings.contains_key(&owner) {
                continue;
            }
            match self.open_rings(owner, pages) {
                Ok(rings) => {
                    set.rings.insert(owner, rings);
                }
                // A CPU that went offline, a thread that ended: the others go on.
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if set.rings.is_empty() => Err(stopped(&error)),
            _ => Ok(()),
        }
    }

    fn open_rings(&self, owner: RingOwner, pages: usize) -> Result<Vec<SampleRing>, SysError> {
        let sampled = match (owner, &self.unit) {
            (RingOwner::Cpu(cpu), Some(unit)) => {
                let none = || SysError::Gone { call: "ring", target: format!("CPU {cpu}") };
                return Ok(vec![unit.ring(cpu).ok_or_else(none)?]);
            }
            (RingOwner::Cpu(cpu), None) => SampledTask::Cpu(cpu),
            (RingOwner::Thread(tid), _) => SampledTask::Thread(tid),
        };
        let open = |found: &OpenEvent| {
            SampleRing::open(&found.spec, sampled, self.pace.period_of(&found.event), pages)
        };
        self.events.iter().map(open).collect()
    }

    /// Begins sampling.
    fn start(&mut self, set: &RingSet) -> Result<(), TrackError> {
        for ring in set.all() {
            let _gone = ring.enable();
        }
        let Some(unit) = &self.unit else { return Ok(()) };
        let (misses, loads) =
            if self.all_loads { (0, self.pace.loads()) } else { (self.pace.loads(), 0) };
        match unit.sample([misses, loads, self.pace.stores()]) {
            Some(answer) if answer.accepted => Ok(()),
            _ => Err(stopped(&"the lab's sampling unit refused its settings")),
        }
    }

    /// What one sample of loads and one of stores stand for.
    fn periods(&self) -> SamplePeriods {
        let mut periods = SamplePeriods::default();
        for found in self.events.iter() {
            let period = self.pace.period_of(&found.event) * self.threads_for_each;
            match found.event.operation {
                MemoryOperation::Load => periods.loads = period,
                MemoryOperation::Store => periods.stores = period,
                _ => (periods.loads, periods.stores) = (period, period),
            }
        }
        if self.unit.is_some() {
            periods.stores = self.pace.stores();
        }
        periods
    }

    fn sees(&self, operation: MemoryOperation) -> bool {
        let stores = operation == MemoryOperation::Store;
        self.events.iter().map(|found| found.event.operation).any(|counted| {
            counted == operation
                || counted == MemoryOperation::Unknown && (!stores || self.pace.wants_stores())
        })
    }
}

impl Tracker for PerfSamples {
    fn info(&self) -> TrackerInfo {
        TrackerInfo {
            name: "perf",
            sees: TrackerVisibility {
                reads: self.sees(MemoryOperation::Load),
                writes: self.sees(MemoryOperation::Store),
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
        self.stop();
        self.mappings = mappings.to_vec();
        let mut set = self.set.take().unwrap_or_default();
        set.pids = mappings.iter().map(|m| m.pid).collect();
        set.pids.sort_unstable();
        set.pids.dedup();
        let done = self.follow(&mut set).and_then(|()| self.start(&set));
        if let Err(error) = done {
            self.set = Some(set);
            return Err(error);
        }
        self.drainer = Some(RingDrainer::start(set).map_err(|why| stopped(&why))?);
        self.since = now();
        self.begin_cpu = work.used(Nanos::ZERO);
        Ok(())
    }

    fn finish(&mut self, _now: Tick) -> Result<Observation, TrackError> {
        let work = self.meter.start();
        let drained = self.stop();
        let interval = now().since(self.since);
        let periods = self.periods();
        let Some(set) = &mut self.set else { return Ok(Observation::default()) };
        let mut seen = set.map.take(&self.mappings, interval, periods);
        seen.lost += set.counts.lost - self.counts.lost.min(set.counts.lost);
        self.counts = set.counts;
        let held: usize = set.all().map(SampleRing::bytes).sum();
        seen.memory = Bytes(seen.memory.get() + held as u64);
        seen.cpu = self.begin_cpu + work.used(Nanos::ZERO) + drained;
        let spent = seen.cpu.as_secs_f64() / interval.as_secs_f64();
        if interval > Nanos::ZERO && self.pace.adapt(spent, self.share) {
            for rings in set.rings.values() {
                for (ring, found) in rings.iter().zip(self.events.iter()) {
                    // A thread that has ended needs no period.
                    let _gone = ring.set_period(self.pace.period_of(&found.event));
                }
            }
        }
        Ok(seen)
    }

    fn request(&mut self, _request: &Request) -> Result<(), TrackError> {
        Ok(())
    }

    fn accounts(&self) -> Vec<String> {
        self.account().into_iter().collect()
    }
}

impl Drop for PerfSamples {
    fn drop(&mut self) {
        self.stop();
    }
}

impl PerfSamples {
    /// What became of samples, one sentence; `None` before there were any.
    #[must_use]
    pub fn account(&self) -> Option<String> {
        let SampleLosses { samples, foreign, lost, throttled, unthrottled, damaged } = self.counts;
        if samples + foreign + lost + damaged == 0 {
            return None;
        }
        let mut text = format!("perf: {samples} samples, {lost} lost");
        if throttled > 0 {
            text += &format!(", {throttled} times throttled by the kernel, {unthrottled} ended");
        }
        if damaged > 0 {
            text += &format!(", {damaged} records that cannot be read");
        }
        if self.answer.records > 0 {
            text += &format!(
                "; the unit made {} records with {} interrupts, which took {}",
                self.answer.records,
                self.answer.interrupts,
                Nanos(self.answer.cost_ps / 1000)
            );
        }
        Some(text)
    }
}

/// That none of these events opens, and of what the kernel said what can be helped most easily: one
/// short line, however many were tried.
fn refusal(refused: &[(&str, SysError)]) -> TrackError {
    const BUSY: i32 = 16;
    let ease = |error: &SysError| match error {
        SysError::NotPermitted { .. } => 0,
        SysError::Failed { errno: BUSY, .. } => 1,
        SysError::Absent { .. } => 3,
        _ => 2,
    };
    let names: Vec<&str> = refused.iter().map(|(name, _)| *name).collect();
    let first = refused.iter().map(|(_, error)| error).min_by_key(|error| ease(error));
    let errno = first.map_or(0, SysError::errno);
    let (why, remedy) = match first {
        Some(error) if error.may_be_filtered() => {
            ("a filter forbids it", "let the container's seccomp profile allow perf_event_open")
        }
        Some(SysError::NotPermitted { remedy, .. }) => ("not permitted", *remedy),
        Some(SysError::Failed { errno: BUSY, .. }) => {
            ("counters are held", "end what holds them, such as perf")
        }
        Some(SysError::Absent { .. }) => ("this machine lacks them", "try another tracker"),
        _ => ("the kernel refuses", "try another tracker"),
    };
    let why = format!("no event opens of {}: {why} (errno {errno})", names.join(", "));
    TrackError::Stopped { tracker: "perf", why, remedy }
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
    use super::open::RING_PAGES;
    use super::*;
    use terrace_engine::MappingKind;
    use terrace_sampling::{SampleDevice, PAGE_FAULTS};
    use terrace_sys::page_size;
    use terrace_types::{Vpn, VpnRange};

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
        let mut tracker = match PerfSamples::with_events(
            Root::live(),
            &[PAGE_FAULTS],
            0.5,
            PerfSettings { loads: Some(1), ..PerfSettings::default() },
        ) {
            Ok(tracker) => tracker,
            Err(error) => return println!("skipped: {error}"),
        };
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
        let error = PerfSamples::with_events(Root::live(), &[none], 0.01, PerfSettings::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("no event opens of none: "), "{error}");
        let nowhere = Root::with_prefix("/nonexistent");
        assert!(PerfSamples::new(nowhere, 0.01).is_err());
    }

    /// One line that a terminal shows at once, with what helps most, however many were tried.
    #[test]
    fn refusals_are_one_short_line() {
        let of = |errnos: [i32; 3]| {
            let target = "event 0x20d1 of CPU 0".to_owned();
            let say = |errno| {
                let remedy =
                    "run as root, or grant CAP_PERFMON, or lower kernel.perf_event_paranoid";
                SysError::from_errno("openat", target.clone(), errno, remedy)
            };
            let names = ["MEM_LOAD_RETIRED.L3_MISS", "load latency", "stores"];
            let refused: Vec<_> = names.into_iter().zip(errnos.map(say)).collect();
            refusal(&refused).to_string()
        };
        for (errnos, why) in [
            ([2, 2, 2], "this machine lacks them (errno 2)"),
            ([2, 13, 16], "not permitted (errno 13); run as root"),
            ([2, 22, 16], "counters are held (errno 16)"),
            ([2, 22, 2], "the kernel refuses (errno 22)"),
        ] {
            let line = of(errnos);
            assert!(line.contains("MEM_LOAD_RETIRED.L3_MISS, load latency, stores: "), "{line}");
            assert!(line.contains(why) && line.len() <= 200, "{} {line}", line.len());
        }
    }

    #[test]
    fn nodes_of_cpus_are_read() {
        let cells = cpu_nodes(&Root::live());
        assert!(!cells.is_empty());
    }

    /// More than a ring holds: it is drained while the window runs, so that nothing is lost.
    #[test]
    fn rings_are_drained_before_they_are_full() {
        let settings = PerfSettings { loads: Some(1), ..PerfSettings::default() };
        let mut tracker =
            match PerfSamples::with_events(Root::live(), &[PAGE_FAULTS], 0.5, settings) {
                Ok(tracker) => tracker,
                Err(error) => return println!("skipped: {error}"),
            };
        tracker.whole_cpus = false;
        const PAGES: usize = 6000;
        let page = page_size().get() as usize;
        let pid = Pid(std::process::id() as i32);
        let range = VpnRange::new(Vpn(0), Vpn(0));
        let mapping = Mapping { pid, range, kind: MappingKind::Anonymous, writable: true };
        tracker.begin(&[mapping], &ask()).unwrap();
        // One fault a page; ring and records are as in the lab and on processors that sample.
        let memory = terrace_sys::AnonymousMapping::new(
            Bytes((PAGES * page) as u64),
            terrace_sys::MappingPages::Base,
        )
        .unwrap();
        for i in 0..PAGES {
            memory.fill_part(i * page..(i + 1) * page);
            if i % 500 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(30));
            }
        }
        tracker.finish(now()).unwrap();
        let counts = tracker.losses();
        let ring = RING_PAGES * page / 64;
        assert!(counts.samples as usize >= PAGES && PAGES > 2 * ring, "{counts:?}");
        assert_eq!((counts.lost, counts.damaged), (0, 0));
        let account = tracker.account().unwrap();
        assert!(account.contains(" samples, 0 lost"), "{account}");
        tracker.rest();
    }

    #[test]
    fn many_threads_take_turns_and_have_small_rings() {
        assert_eq!(ring_pages(4, 2), RING_PAGES);
        assert_eq!(ring_pages(512, 2), 1);
        assert!((1..=10_000).all(|n| ring_pages(n, 8).is_power_of_two()));
    }
}
