//! All cores, caches and nodes of a machine together.

use crate::calendar::Calendar;
use crate::core::Core;
use crate::memory_mode::{DirectMapped, Served};
use crate::physical::PhysicalMap;
use terrace_cache::{Outcome, SetAssoc};
use terrace_machine::{Link, Machine};
use terrace_types::{Bytes, BytesPerSec, NodeId};

/// Bytes a cache line; the only line size the lab's caches have.
const LINE: u64 = 64;
/// Lines a prefetcher runs ahead of a stream.
const AHEAD: u64 = 32;
/// Lines of write-back a memory controller takes before the core has to wait.
const WRITE_QUEUE: u64 = 64;
/// Blocks a node remembers, so that lines of one 256-byte block cost one block.
const BLOCKS: usize = 16;

/// What is switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Every node is timed as the best one (the bound `bound:all-fast`).
    pub all_fast: bool,
    /// The fast node is a direct-mapped cache of the slowest.
    pub memory_mode: bool,
}

/// Why a machine cannot be modelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupError {
    /// One line: what, on which target, why, what to try.
    pub why: String,
}

impl std::fmt::Display for SetupError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for SetupError {}

/// One memory access.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    /// Index of the core.
    pub cpu: usize,
    /// Virtual address.
    pub virtual_address: u64,
    /// Physical address.
    pub physical_address: u64,
    /// Whether it writes.
    pub store: bool,
    /// What a load brought, where known: it may be the address of a later access.
    pub value: Option<u64>,
    /// Time of the core before the access, in picoseconds.
    pub time: u64,
    /// Instructions the core has executed so far.
    pub instruction: u64,
}

/// Counts of one core. Vectors have one entry a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Loads and stores that missed the first level.
    pub l1_misses: u64,
    /// Of these, served by the last level.
    pub llc_hits: u64,
    /// Lines fetched from each node because of loads.
    pub read_misses: Vec<u64>,
    /// Lines fetched from each node because of stores.
    pub write_misses: Vec<u64>,
    /// Of all lines fetched, those that continued a stream.
    pub streamed: Vec<u64>,
    /// Dirty lines written back to each node.
    pub write_backs: Vec<u64>,
    /// Memory mode: lines of the slow node that the fast one held.
    pub mode_hits: u64,
}

#[derive(Debug)]
struct NodeTiming {
    read_latency: u64,
    write_latency: u64,
    read_line: u64,
    write_line: u64,
    block: u64,
    recent: [u64; BLOCKS],
    next_recent: usize,
    calendar: Calendar,
}

impl NodeTiming {
    /// Picoseconds of service that a line costs; a block that was just transferred is free.
    fn cost(&mut self, line: u64, store: bool) -> u64 {
        let per_line = if store { self.write_line } else { self.read_line };
        if self.block <= LINE {
            return per_line;
        }
        let block = (line * LINE / self.block) << 1 | u64::from(store);
        if self.recent.contains(&block) {
            return 0;
        }
        self.recent[self.next_recent % BLOCKS] = block;
        self.next_recent += 1;
        per_line * (self.block / LINE)
    }
}

/// The machine in motion.
#[derive(Debug)]
pub struct System {
    cores: Vec<Core>,
    l1: Vec<SetAssoc>,
    llc: SetAssoc,
    llc_hit: u64,
    nodes: Vec<NodeTiming>,
    map: PhysicalMap,
    mode: Option<(DirectMapped, usize, usize)>,
    counters: Vec<Counters>,
}

impl System {
    /// A machine with `cpus` cores, cold caches.
    ///
    /// # Errors
    /// When the machine file lacks a figure that time cannot be told without.
    pub fn new(machine: &Machine, cpus: usize, options: Options) -> Result<Self, SetupError> {
        let fail = |why: String| SetupError { why: format!("machine {}: {why}", machine.name) };
        let (private, shared) = caches(machine).map_err(fail)?;
        let build = |size: Bytes, ways: u32| {
            SetAssoc::new(size.get(), LINE, ways).map_err(|e| fail(e.to_string()))
        };
        let l1 = (0..cpus).map(|_| build(private.size, private.ways)).collect::<Result<_, _>>()?;
        let mut nodes =
            machine.nodes.iter().map(|n| timing(machine, n.id)).collect::<Result<Vec<_>, _>>().map_err(fail)?;
        let best = (0..nodes.len())
            .min_by_key(|&i| (nodes[i].read_line * 10 + nodes[i].read_latency, i))
            .ok_or_else(|| fail("it has no memory node".into()))?;
        let worst = (0..nodes.len())
            .max_by_key(|&i| (nodes[i].read_line * 10 + nodes[i].read_latency, i))
            .unwrap_or(best);
        if options.all_fast {
            for i in 0..nodes.len() {
                nodes[i] = timing(machine, machine.nodes[best].id).map_err(fail)?;
            }
        }
        let sizes: Vec<u64> = machine.nodes.iter().map(|n| n.capacity.get() >> 20 << 20).collect();
        let mode = options
            .memory_mode
            .then(|| (DirectMapped::new(machine.nodes[best].capacity.get()), best, worst));
        let ps = (machine.core.ns_per_instruction * 1000.0).round() as u64;
        let blank = Counters {
            read_misses: vec![0; nodes.len()],
            write_misses: vec![0; nodes.len()],
            streamed: vec![0; nodes.len()],
            write_backs: vec![0; nodes.len()],
            ..Counters::default()
        };
        Ok(Self {
            cores: (0..cpus).map(|_| Core::new(ps, machine.core.outstanding_misses)).collect(),
            l1,
            llc: build(shared.size, shared.ways)?,
            llc_hit: shared.hit.get() * 1000,
            nodes,
            map: PhysicalMap::q35(&sizes),
            mode,
            counters: vec![blank; cpus],
        })
    }

    /// Counts of a core so far.
    #[must_use]
    pub fn counters(&self, cpu: usize) -> &Counters {
        &self.counters[cpu]
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Whether an access to this line hits the first level; makes it the newest there if so.
    /// On a hit nothing else need be done.
    #[inline]
    pub fn hits_first_level(&mut self, cpu: usize, physical_address: u64, store: bool) -> bool {
        let line = physical_address / LINE;
        match self.l1[cpu].access(line, store) {
            Outcome::Hit => true,
            Outcome::Miss { evicted } => {
                if let Some((old, true)) = evicted {
                    self.llc.mark_dirty(old);
                }
                false
            }
        }
    }

    /// An access that missed the first level. Returns the core's time after it and the node that
    /// served it, if one had to.
    pub fn miss(&mut self, a: &Access) -> (u64, Option<usize>) {
        let line = a.physical_address / LINE;
        let Some(node) = self.map.node(a.physical_address) else { return (a.time, None) };
        let counters = &mut self.counters[a.cpu];
        counters.l1_misses += 1;
        let core = &mut self.cores[a.cpu];
        let time = core.retire(a.time, a.instruction);
        let issue = core.known(a.virtual_address, time);
        match self.llc.access(line, false) {
            Outcome::Hit => {
                counters.llc_hits += 1;
                let time = core.slot(time);
                let done = issue.max(time) + self.llc_hit;
                core.add(a.instruction, done);
                if let Some(value) = a.value {
                    core.remember(value, done);
                }
                (time, None)
            }
            Outcome::Miss { evicted } => {
                let time = self.write_back(a.cpu, evicted, time);
                (self.fetch(a, line, node, time, issue.max(time)), Some(node))
            }
        }
    }

    fn fetch(&mut self, a: &Access, line: u64, node: usize, time: u64, issue: u64) -> u64 {
        let counters = &mut self.counters[a.cpu];
        let misses = if a.store { &mut counters.write_misses } else { &mut counters.read_misses };
        misses[node] += 1;
        let streaming = self.cores[a.cpu].streams(a.virtual_address / LINE);
        counters.streamed[node] += u64::from(streaming);
        let time = if streaming { time } else { self.cores[a.cpu].slot(time) };
        let issue = issue.max(time);
        let (served, extra) = self.served_by(a, line, node, issue);
        let timing = &mut self.nodes[served];
        let cost = timing.cost(line, false);
        let done = timing.calendar.serve(issue, cost);
        if streaming {
            return time.max(done.saturating_sub(AHEAD * timing.read_line)) + extra;
        }
        let latency = if a.store { timing.write_latency } else { timing.read_latency };
        let done = done - cost.min(done) + latency.max(cost) + extra;
        let core = &mut self.cores[a.cpu];
        core.add(a.instruction, done);
        if let Some(value) = a.value {
            core.remember(value, done);
        }
        time
    }

    /// Memory mode: who really serves a line of the slow node, and what that adds.
    fn served_by(&mut self, a: &Access, line: u64, node: usize, issue: u64) -> (usize, u64) {
        let Some((fast, best, worst)) = &mut self.mode else { return (node, 0) };
        if node != *worst {
            return (node, 0);
        }
        let (best, worst) = (*best, *worst);
        match fast.access(line, a.store) {
            Served::Hit => {
                self.counters[a.cpu].mode_hits += 1;
                (best, 0)
            }
            Served::Miss { dirty } => {
                let probe = self.nodes[best].read_latency;
                let fill = self.nodes[best].write_line;
                self.nodes[best].calendar.serve(issue, fill);
                if dirty {
                    let cost = self.nodes[worst].cost(line, true);
                    self.nodes[worst].calendar.serve(issue, cost);
                }
                (worst, probe)
            }
        }
    }

    /// Writes an evicted dirty line back; the core waits only when the write queue is full.
    fn write_back(&mut self, cpu: usize, evicted: Option<(u64, bool)>, time: u64) -> u64 {
        let Some((line, true)) = evicted else { return time };
        let Some(node) = self.map.node(line * LINE) else { return time };
        self.counters[cpu].write_backs[node] += 1;
        let timing = &mut self.nodes[node];
        let cost = timing.cost(line, true);
        let done = timing.calendar.serve(time, cost);
        time.max(done.saturating_sub(WRITE_QUEUE * timing.write_line))
    }
}

/// The first level, and the last one shared by all cores.
fn caches(machine: &Machine) -> Result<(terrace_machine::CacheLevel, terrace_machine::CacheLevel), String> {
    let first = machine.caches.iter().find(|c| !c.shared);
    let last = machine.caches.iter().rev().find(|c| c.shared);
    match (first, last) {
        (Some(f), Some(l)) if f.line.get() == LINE && l.line.get() == LINE => Ok((*f, *l)),
        (Some(_), Some(_)) => Err("its caches must have lines of 64 bytes".into()),
        _ => Err("it needs one private and one shared cache level".into()),
    }
}

/// Figures of a node as the nearest CPUs see them.
fn timing(machine: &Machine, node: NodeId) -> Result<NodeTiming, String> {
    let link: &Link = machine
        .links
        .iter()
        .filter(|l| l.target == node && l.read_latency.is_some())
        .min_by_key(|l| l.read_latency.map(|f| f.value))
        .ok_or_else(|| format!("node {node} has no read latency; add a link with read_latency_ns"))?;
    let read_latency = link.read_latency.map_or(0, |f| f.value.get() * 1000);
    let write_latency = link.write_latency.map_or(read_latency, |f| f.value.get() * 1000);
    let bandwidth = link
        .read_bandwidth
        .ok_or_else(|| format!("node {node} has no read bandwidth; add read_bandwidth to its link"))?
        .value;
    let write_bandwidth = link.write_bandwidth.map_or(bandwidth, |f| f.value);
    let line = |rate: BytesPerSec| LINE * 1_000_000_000_000 / rate.get().max(1_000_000);
    Ok(NodeTiming {
        read_latency,
        write_latency,
        read_line: line(bandwidth),
        write_line: line(write_bandwidth),
        block: machine.node(node).map_or(LINE, |n| n.block.get()),
        recent: [u64::MAX; BLOCKS],
        next_recent: 0,
        calendar: Calendar::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        terrace_machine::preset("lab-cxl").expect("a shipped preset")
    }

    fn run(system: &mut System, accesses: impl Iterator<Item = (u64, bool, Option<u64>)>) -> u64 {
        let (mut time, mut instruction) = (0, 0);
        for (address, store, value) in accesses {
            instruction += 4;
            time += 4 * 250;
            if !system.hits_first_level(0, address, store) {
                let access = Access {
                    cpu: 0,
                    virtual_address: address,
                    physical_address: address,
                    store,
                    value,
                    time,
                    instruction,
                };
                time = system.miss(&access).0;
            }
        }
        system.cores[0].retire(time, instruction + super::super::WINDOW)
    }

    /// Addresses of distinct lines in a scrambled order, within 64 MiB from `base`.
    fn scrambled(base: u64, count: u64) -> Vec<u64> {
        (0..count).map(|i| base + (i * 7_919 % (1 << 20)) * 64).collect()
    }

    #[test]
    fn a_pointer_chase_reads_the_latency_of_its_node() {
        for (base, latency_ns) in [(0_u64, 80.0), (192 << 20, 300.0)] {
            let mut system = System::new(&machine(), 1, Options::default()).expect("lab-cxl");
            let order = scrambled(base, 20_000);
            let next = order.iter().skip(1).chain([&0]);
            let steps = order.iter().zip(next).map(|(&a, &n)| (a, false, Some(n)));
            let per_step = run(&mut system, steps) as f64 / 20_000.0 / 1000.0;
            assert!((per_step / latency_ns - 1.0).abs() < 0.05, "{per_step} ns against {latency_ns}");
        }
    }

    #[test]
    fn independent_misses_overlap() {
        let mut system = System::new(&machine(), 1, Options::default()).expect("lab-cxl");
        let order = scrambled(192 << 20, 20_000);
        let per_step =
            run(&mut system, order.iter().map(|&a| (a, false, Some(1)))) as f64 / 20_000.0 / 1000.0;
        assert!(per_step < 300.0 / 1.9, "{per_step} ns a miss");
    }

    #[test]
    fn a_stream_comes_at_the_bandwidth_of_its_node() {
        for (base, gb) in [(0_u64, 100.0), (192 << 20, 20.0)] {
            let mut system = System::new(&machine(), 1, Options::default()).expect("lab-cxl");
            let lines = 400_000_u64;
            let ps = run(&mut system, (0..lines).map(|i| (base + i * 64, false, Some(0))));
            let compute = 1_000.0 * lines as f64;
            let transfer = lines as f64 * 64.0 / gb * 1000.0;
            let ratio = ps as f64 / compute.max(transfer);
            assert!((0.95..1.1).contains(&ratio), "{ratio} of max(compute, transfer) at {gb} GB/s");
        }
    }

    #[test]
    fn all_fast_times_the_slow_node_as_the_fast_one() {
        let options = Options { all_fast: true, ..Options::default() };
        let mut system = System::new(&machine(), 1, options).expect("lab-cxl");
        let order = scrambled(192 << 20, 5_000);
        let next = order.iter().skip(1).chain([&0]);
        let ps = run(&mut system, order.iter().zip(next).map(|(&a, &n)| (a, false, Some(n))));
        assert!((ps as f64 / 5_000.0 / 80_000.0 - 1.0).abs() < 0.05);
    }

    #[test]
    fn addresses_of_devices_cost_nothing() {
        let mut system = System::new(&machine(), 1, Options::default()).expect("lab-cxl");
        let access = Access {
            cpu: 0,
            virtual_address: 0,
            physical_address: 0xfe00_0000,
            store: false,
            value: None,
            time: 5,
            instruction: 1,
        };
        assert_eq!(system.miss(&access), (5, None));
    }
}
