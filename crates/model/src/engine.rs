//! Caches, cores and buses together: one call an access.

use crate::channel::Channel;
use crate::core::Core;
use crate::counters::Counters;
use crate::lockstep::Lockstep;
use crate::memory_mode::{Found, MemoryMode};
use crate::params::{CacheParams, LinkParams, ModelError, Params};
use crate::LINE;
use terrace_cache::{Cache, Outcome, Victim};

/// One memory access that missed the first level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Physical address.
    pub physical: u64,
    /// Virtual address: streams and pointers are seen in these.
    pub virtual_: u64,
    /// A store.
    pub write: bool,
}

/// A vCPU: core, first-level cache, counts.
#[derive(Debug, Clone)]
pub struct Unit {
    /// Time and misses in flight.
    pub core: Core,
    /// First-level cache, of physical lines.
    pub l1: Cache,
    /// Middle level, where the machine has one.
    pub l2: Option<Cache>,
    /// What it did. `instructions` is kept by the core.
    pub counters: Counters,
}

/// The whole machine.
#[derive(Debug, Clone)]
pub struct Engine {
    params: Params,
    /// The vCPUs.
    pub units: Vec<Unit>,
    llc: Cache,
    channels: Vec<Channel>,
    memory_mode: Option<MemoryMode>,
    lockstep: Lockstep,
}

impl Engine {
    /// An empty machine at time zero, with quanta of `quantum` picoseconds.
    pub fn new(params: Params, quantum: u64) -> Result<Self, ModelError> {
        let build = |c: CacheParams| Cache::new(c.bytes, c.ways, LINE).map_err(|e| ModelError::Unusable(e.to_string()));
        let vcpus = params.links.len();
        let l1 = build(params.l1)?;
        let unit = Unit {
            core: Core::new(params.instruction, params.window, params.outstanding),
            l1,
            l2: params.l2.map(build).transpose()?,
            counters: Counters::new(params.sizes.len()),
        };
        let channels: Result<Vec<_>, _> = params.links[0].iter().map(|l| Channel::new(vcpus, l.block)).collect();
        let channels = channels.map_err(|e| ModelError::Unusable(e.to_string()))?;
        Ok(Self {
            units: vec![unit; vcpus],
            llc: build(params.llc)?,
            channels,
            memory_mode: params.memory_mode.then(|| MemoryMode::new(params.sizes[params.fast])),
            lockstep: Lockstep::new(quantum),
            params,
        })
    }

    /// What it was built from.
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Counts of a vCPU so far.
    #[must_use]
    pub fn counters(&self, vcpu: usize) -> Counters {
        let unit = &self.units[vcpu];
        Counters { instructions: unit.core.instructions, ..unit.counters.clone() }
    }

    /// The quantum being run.
    #[inline]
    #[must_use]
    pub fn lockstep(&self) -> &Lockstep {
        &self.lockstep
    }

    /// Next quantum if this one is done; `true` if it was.
    pub fn advance(&mut self, idle: impl Fn(usize) -> bool) -> bool {
        let active = self.units.iter().enumerate().filter(|(v, _)| !idle(*v));
        let length = self.lockstep.advance(active.map(|(_, u)| u.core.time));
        if length > 0 {
            self.begin_quantum(length);
        }
        length > 0
    }

    /// All vCPUs were idle: start anew where the furthest one stopped.
    pub fn restart(&mut self) {
        let before = self.lockstep.start();
        self.lockstep.restart(self.units.iter().map(|u| u.core.time));
        self.begin_quantum(self.lockstep.start() - before);
    }

    fn begin_quantum(&mut self, length: u64) {
        let start = self.lockstep.start();
        for unit in &mut self.units {
            unit.core.time = unit.core.time.max(start);
        }
        for channel in &mut self.channels {
            channel.end_quantum(length);
        }
    }

    /// An access of `vcpu` that missed its first-level cache. `value` fetches what a load brings, if known; it is asked
    /// only when time depends on it. Says which node served it, `None` for caches and devices.
    pub fn miss(&mut self, vcpu: usize, a: Access, value: impl FnOnce() -> Option<u64>) -> Option<usize> {
        self.params.layout.node_of(a.physical)?;
        let left = self.units[vcpu].l1.fill(a.physical / LINE, a.write);
        self.missed(vcpu, a, left, value)
    }

    /// As [`Self::miss`], of memory (no device), where the first level has let the line in already and `left` left it.
    pub fn missed(
        &mut self,
        vcpu: usize,
        a: Access,
        left: Option<Victim>,
        value: impl FnOnce() -> Option<u64>,
    ) -> Option<usize> {
        let line = a.physical / LINE;
        let unit = &mut self.units[vcpu];
        unit.counters.l1_misses += 1;
        let stream = unit.core.follows_stream(a.virtual_ / LINE);
        if let Some(left) = left.filter(|v| v.dirty) {
            unit.counters.l1_writebacks += 1;
            if !unit.l2.as_mut().is_some_and(|l2| l2.mark_dirty(left.line)) {
                self.leave_to_last(vcpu, left.line);
            }
        }
        let unit = &mut self.units[vcpu];
        if let (Some(l2), Some(params)) = (&mut unit.l2, &self.params.l2) {
            match l2.access(line, false) {
                Outcome::Hit => {
                    unit.counters.l2_hits += 1;
                    if !stream {
                        let value = if a.write { None } else { value().or(Some(0)) };
                        unit.core.miss(a.virtual_, value, params.hit_ps, |_| 0);
                    }
                    return None;
                }
                Outcome::Miss { victim: Some(Victim { line, dirty: true }) } => {
                    unit.counters.l2_writebacks += 1;
                    self.leave_to_last(vcpu, line);
                }
                Outcome::Miss { .. } => {}
            }
        }
        match self.llc.access(line, false) {
            Outcome::Hit => {
                let unit = &mut self.units[vcpu];
                unit.counters.llc_hits += 1;
                if !stream {
                    let value = if a.write { None } else { value().or(Some(0)) };
                    unit.core.miss(a.virtual_, value, self.params.llc.hit_ps, |_| 0);
                }
                None
            }
            Outcome::Miss { victim } => {
                if let Some(victim) = victim.filter(|v| v.dirty) {
                    self.write_back(vcpu, victim.line);
                }
                let node = self.params.layout.node_of(a.physical)?;
                let value = if a.write || stream { None } else { value().or(Some(0)) };
                Some(self.fetch(vcpu, node, line, a, stream, value))
            }
        }
    }

    /// A dirty line leaves a core's own caches.
    fn leave_to_last(&mut self, vcpu: usize, line: u64) {
        if !self.llc.mark_dirty(line) {
            self.write_back(vcpu, line);
        }
    }

    fn fetch(&mut self, vcpu: usize, node: usize, line: u64, a: Access, stream: bool, value: Option<u64>) -> usize {
        let node = match self.memory_mode.as_mut().map(|m| m.access(line, false)) {
            None => node,
            Some(Found::Hit) => self.params.fast,
            Some(Found::Miss { dirty }) => {
                self.bus_write(vcpu, self.params.fast, line);
                if let Some(dirty) = dirty {
                    self.bus_write(vcpu, self.params.slow, dirty);
                }
                self.params.slow
            }
        };
        let link = self.params.links[vcpu][node];
        let channel = &mut self.channels[self.params.channel_of(node)];
        let Unit { core, counters, .. } = &mut self.units[vcpu];
        let misses = if a.write { &mut counters.write_misses } else { &mut counters.read_misses };
        misses[node] += 1;
        let bus_time = if channel.opens_block(line, false) { link.read_block } else { 0 };
        if bus_time > 0 {
            counters.read_bytes[node] += link.block;
        }
        if stream {
            counters.stream_misses[node] += 1;
            let ends = channel.transfer(vcpu, core.time, bus_time);
            core.run_behind(ends, link.read_block);
        } else {
            let latency = if a.write { link.write_latency } else { link.read_latency };
            core.miss(a.virtual_, value, latency, |start| channel.transfer(vcpu, start, bus_time));
        }
        node
    }

    /// A kernel thread of `vcpu` copies `bytes` from one node to another past the caches: the time, picoseconds, at
    /// which both buses are done. Counts as traffic, not as misses; the core itself does not wait.
    pub fn copy(&mut self, vcpu: usize, from: usize, to: usize, bytes: u64) -> u64 {
        let now = self.units[vcpu].core.time;
        let (source, target) = (self.params.links[vcpu][from], self.params.links[vcpu][to]);
        let read = bytes.div_ceil(source.block) * source.read_block;
        let written = bytes.div_ceil(target.block) * target.write_block;
        let read = self.channels[self.params.channel_of(from)].transfer(vcpu, now, read);
        let written = self.channels[self.params.channel_of(to)].transfer(vcpu, now, written);
        let counters = &mut self.units[vcpu].counters;
        counters.read_bytes[from] += bytes.next_multiple_of(source.block);
        counters.write_bytes[to] += bytes.next_multiple_of(target.block);
        read.max(written)
    }

    /// A dirty line leaves the last level.
    fn write_back(&mut self, vcpu: usize, line: u64) {
        let Some(mut node) = self.params.layout.node_of(line * LINE) else { return };
        if let Some(mode) = self.memory_mode.as_mut() {
            let found = mode.access(line, true);
            node = self.params.fast;
            if let Found::Miss { dirty: Some(dirty) } = found {
                self.bus_write(vcpu, self.params.slow, dirty);
            }
        }
        self.units[vcpu].counters.writebacks[node] += 1;
        self.bus_write(vcpu, node, line);
    }

    fn bus_write(&mut self, vcpu: usize, node: usize, line: u64) {
        let LinkParams { write_block, block, .. } = self.params.links[vcpu][node];
        let channel = &mut self.channels[self.params.channel_of(node)];
        if !channel.opens_block(line, true) {
            return;
        }
        let Unit { core, counters, .. } = &mut self.units[vcpu];
        counters.write_bytes[node] += block;
        let ends = channel.transfer(vcpu, core.time, write_block);
        core.run_behind(ends, write_block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Options;

    fn engine(preset: &str, vcpus: u32, memory_mode: bool) -> Engine {
        let options = Options { vcpus, all_fast: false, memory_mode, outstanding: None };
        let params = Params::of(&terrace_machine::preset(preset).unwrap(), options).unwrap();
        Engine::new(params, 10_000_000).unwrap()
    }

    fn touch(e: &mut Engine, vcpu: usize, physical: u64, write: bool) -> Option<usize> {
        e.units[vcpu].core.execute(2);
        if e.units[vcpu].l1.hit(physical / LINE, write) {
            return None;
        }
        e.miss(vcpu, Access { physical, virtual_: physical, write }, || Some(0))
    }

    const SLOW: u64 = 256 << 20;

    /// Bytes on the bus a second of a sequential sweep over 64 MiB by every vCPU, each over its own part.
    fn sweep(e: &mut Engine, base: u64, write: bool) -> f64 {
        let lines = (64 << 20) / LINE;
        let cores = e.units.len() as u64;
        let mut next = vec![0u64; cores as usize];
        while next.iter().any(|n| *n < lines) {
            for v in 0..cores {
                while e.units[v as usize].core.time < e.lockstep().end() && next[v as usize] < lines {
                    let at = base + (v * lines + next[v as usize]) * LINE;
                    touch(e, v as usize, at, write);
                    next[v as usize] += 1;
                }
            }
            let done: Vec<bool> = next.iter().map(|n| *n >= lines).collect();
            e.advance(|v| done[v]);
        }
        let time = e.units.iter().map(|u| u.core.time).max().unwrap();
        let bytes: u64 = (0..e.units.len())
            .map(|v| e.counters(v))
            .map(|c| c.read_bytes.iter().sum::<u64>() + c.write_bytes.iter().sum::<u64>())
            .sum();
        bytes as f64 * 1e12 / time as f64
    }

    fn within(value: f64, expected: f64, share: f64) {
        assert!((value / expected - 1.0).abs() < share, "{value:e}, expected {expected:e}");
    }

    #[test]
    fn sweeps_read_the_bandwidth() {
        for vcpus in [1, 2] {
            within(sweep(&mut engine("lab-cxl", vcpus, false), 0, false), 100e9, 0.05);
            within(sweep(&mut engine("lab-cxl", vcpus, false), SLOW, false), 20e9, 0.05);
            within(sweep(&mut engine("lab-dcpmm", vcpus, false), SLOW, false), 13e9, 0.05);
        }
    }

    #[test]
    fn written_lines_go_at_both_rates() {
        // Each line is read (13 GB/s) and, except for the last cacheful, written back (4.6 GB/s).
        let rate = sweep(&mut engine("lab-dcpmm", 2, false), SLOW, true);
        within(rate, 2.0 / (1.0 / 13e9 + 1.0 / 4.6e9), 0.10);
    }

    #[test]
    fn caches_serve_what_they_hold() {
        let mut e = engine("lab-cxl", 2, false);
        assert_eq!(touch(&mut e, 0, SLOW, false), Some(1));
        assert_eq!(touch(&mut e, 0, SLOW + 8, false), None);
        assert_eq!(touch(&mut e, 1, SLOW, false), None);
        assert_eq!(e.counters(1).llc_hits, 1);
        assert_eq!(e.counters(0).llc_misses(), [0, 1]);
    }

    #[test]
    fn a_middle_level_serves_what_left_the_first() {
        let mut e = engine("dram-dcpmm", 1, false);
        let lines = (256 << 10) / LINE;
        for write in [true, false] {
            (0..lines).for_each(|i| {
                touch(&mut e, 0, i * LINE, write);
            });
        }
        let c = e.counters(0);
        assert_eq!((c.l1_misses, c.l2_hits, c.llc_hits), (2 * lines, lines, 0));
        // What was written lies dirty in the second level, and nowhere else needed telling.
        assert_eq!((c.l1_writebacks, c.l2_writebacks, c.writebacks.iter().sum()), (lines, 0, 0));
    }

    #[test]
    fn copies_take_the_slower_bus() {
        let mut e = engine("lab-cxl", 2, false);
        // 4096 bytes at 20 GB/s, and at 100 GB/s within the lab's fast node.
        assert_eq!(e.copy(0, 1, 0, 4096), 204_800);
        assert_eq!((e.counters(0).read_bytes[1], e.counters(0).write_bytes[0]), (4096, 4096));
        assert_eq!(e.copy(1, 0, 0, 4096), 81_920);
    }

    #[test]
    fn devices_cost_nothing() {
        let mut e = engine("lab-cxl", 1, false);
        let before = e.units[0].core.time;
        assert_eq!(e.miss(0, Access { physical: 0xfee0_0000, virtual_: 0, write: true }, || None), None);
        assert_eq!(e.units[0].core.time, before);
        assert_eq!(e.counters(0), Counters { instructions: 0, ..Counters::new(2) });
    }

    #[test]
    fn memory_mode_serves_reuse_from_the_fast_node() {
        let mut e = engine("lab-cxl", 1, true);
        let lines = (32 << 20) / LINE;
        for round in 0..2 {
            for i in 0..lines {
                let node = touch(&mut e, 0, SLOW + i * LINE, false);
                assert_eq!(node, Some(if round == 0 { 1 } else { 0 }));
            }
        }
    }
}
