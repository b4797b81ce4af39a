//! Caches, cores and buses together: one call an access.

use crate::channel::{BusDemand, Channel};
use crate::combine::Combining;
use crate::core::Core;
use crate::counters::Counters;
use crate::lockstep::Lockstep;
use crate::memory_mode::{MemoryMode, MemoryModeLookup};
use crate::params::{CacheParams, LinkParams, ModelError, ModelParams};
use crate::translation::{TranslationUnit, TranslationUnitCount};
use crate::LINE;
use std::collections::HashMap;
use terrace_cache::Cache;

/// One memory access that missed the first level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryAccess {
    /// Physical address.
    pub physical: u64,
    /// Virtual address: streams and pointers are seen in these.
    pub virtual_: u64,
    /// A store.
    pub write: bool,
}

/// A vCPU: core, its own caches, counts.
#[derive(Debug, Clone)]
pub struct Vcpu {
    /// Time and misses in flight.
    pub core: Core,
    /// First-level cache, of physical lines.
    pub l1: Cache,
    /// Middle level, where the machine has one.
    pub l2: Option<Cache>,
    /// What it did, but for `instructions`, which the core keeps, and for what is counted by node.
    pub counters: Counters,
    /// Lines that stores past the caches gather in.
    combining: Combining,
    index: usize,
    routes: Vec<Route>,
}

/// The way from a vCPU to a node, and what went along it.
#[derive(Debug, Clone, Copy)]
struct Route {
    link: LinkParams,
    channel: usize,
    /// What a miss waits in queues between machine and node, picoseconds.
    queued: u64,
    counts: NodeCounts,
}

/// The counts of [`Counters`] that are by node, of one.
#[derive(Debug, Clone, Copy, Default)]
struct NodeCounts {
    read_misses: u64,
    write_misses: u64,
    stream_misses: u64,
    writebacks: u64,
    read_bytes: u64,
    write_bytes: u64,
}

/// Bytes on a node's bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BusBytes {
    /// Read.
    pub read: u64,
    /// Written.
    pub written: u64,
}

/// Bytes of a page that one node serves.
const PAGE: u64 = 4096;

/// What the vCPUs share: the last level, and what lies behind it.
#[derive(Debug, Clone)]
pub struct Uncore {
    params: ModelParams,
    llc: Cache,
    channels: Vec<Channel>,
    /// The tags of each node that caches others; empty but in memory mode.
    memory_mode: Vec<Option<MemoryMode>>,
    /// Pages served by another node than the one they lie on, by page number.
    served: HashMap<u64, usize>,
    translation: Option<TranslationUnit>,
}

/// The whole machine.
#[derive(Debug, Clone)]
pub struct MemorySystem {
    /// The vCPUs.
    pub units: Vec<Vcpu>,
    uncore: Uncore,
    lockstep: Lockstep,
}

impl MemorySystem {
    /// An empty machine at time zero, with quanta of `quantum` picoseconds.
    pub fn new(params: ModelParams, quantum: u64) -> Result<Self, ModelError> {
        let build = |c: CacheParams| {
            Cache::new(c.bytes, c.ways, LINE).map_err(|e| ModelError::Unusable(e.to_string()))
        };
        let vcpus = params.links.len();
        let l1 = build(params.l1)?;
        let l2 = params.l2.map(build).transpose()?;
        let route = |(node, link): (usize, &LinkParams)| Route {
            link: *link,
            channel: params.channel_of(node),
            queued: 0,
            counts: NodeCounts::default(),
        };
        let unit = |(index, links): (usize, &Vec<LinkParams>)| Vcpu {
            core: Core::new(params.instruction, params.window, params.outstanding),
            l1: l1.clone(),
            l2: l2.clone(),
            counters: Counters::new(params.sizes.len()),
            combining: Combining::new(),
            index,
            routes: links.iter().enumerate().map(route).collect(),
        };
        let caches = |node| params.cached_by.iter().any(|(fast, _)| *fast == node);
        let tags = |node: usize| caches(node).then(|| MemoryMode::new(params.sizes[node]));
        let memory_mode = if params.memory_mode {
            (0..params.sizes.len()).map(tags).collect()
        } else {
            Vec::new()
        };
        let channels = params.links[0].iter().zip(&params.loaded).map(|(link, loaded)| {
            Channel::new(vcpus, link.block).map(|c| c.with_loaded_latency(loaded.clone()))
        });
        Ok(Self {
            units: params.links.iter().enumerate().map(unit).collect(),
            lockstep: Lockstep::new(quantum),
            uncore: Uncore {
                llc: build(params.llc)?,
                channels: channels
                    .collect::<Result<_, _>>()
                    .map_err(|e| ModelError::Unusable(e.to_string()))?,
                memory_mode,
                served: HashMap::new(),
                translation: None,
                params,
            },
        })
    }

    /// What it was built from.
    #[must_use]
    pub fn params(&self) -> &ModelParams {
        &self.uncore.params
    }

    /// Counts of a vCPU so far.
    #[must_use]
    pub fn counters(&self, vcpu: usize) -> Counters {
        let unit = &self.units[vcpu];
        let by_node =
            |count: fn(&NodeCounts) -> u64| unit.routes.iter().map(|r| count(&r.counts)).collect();
        Counters {
            instructions: unit.core.instructions,
            read_misses: by_node(|n| n.read_misses),
            write_misses: by_node(|n| n.write_misses),
            stream_misses: by_node(|n| n.stream_misses),
            writebacks: by_node(|n| n.writebacks),
            read_bytes: by_node(|n| n.read_bytes),
            write_bytes: by_node(|n| n.write_bytes),
            ..unit.counters.clone()
        }
    }

    /// What this machine's cores did with a node's bus in the last quantum.
    #[must_use]
    pub fn bus_demand(&self, node: usize) -> BusDemand {
        self.uncore.channels.get(node).map(Channel::demand).unwrap_or_default()
    }

    /// From now on a node's bus is shared with cores of other machines that want this much of it.
    pub fn set_bus_rivals(&mut self, node: usize, rivals: BusDemand) {
        if let Some(channel) = self.uncore.channels.get_mut(node) {
            channel.set_rivals(rivals);
        }
    }

    /// Bytes that all vCPUs read and wrote on a node's bus so far.
    #[must_use]
    pub fn bus_bytes(&self, node: usize) -> BusBytes {
        let counts = self.units.iter().filter_map(|unit| unit.routes.get(node));
        counts.fold(BusBytes::default(), |sum, route| BusBytes {
            read: sum.read + route.counts.read_bytes,
            written: sum.written + route.counts.write_bytes,
        })
    }

    /// From now on this machine takes so many 1024ths of a node's bus at most.
    pub fn set_bus_limit(&mut self, node: usize, parts: u64) {
        if let Some(channel) = self.uncore.channels.get_mut(node) {
            channel.set_limit(parts);
        }
    }

    /// From now on each miss to a node waits so much longer, picoseconds: in queues on the way.
    pub fn set_queue_delay(&mut self, node: usize, delay: u64) {
        for route in self.units.iter_mut().filter_map(|unit| unit.routes.get_mut(node)) {
            route.queued = delay;
        }
    }

    /// From now on nodes behind it are reached through this unit.
    pub fn set_translation_unit(&mut self, unit: TranslationUnit) {
        self.uncore.translation = Some(unit);
    }

    /// What the translation unit did, where there is one.
    #[must_use]
    pub fn translation_count(&self) -> Option<TranslationUnitCount> {
        self.uncore.translation.as_ref().map(TranslationUnit::count)
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
        for channel in &mut self.uncore.channels {
            channel.end_quantum(start, length);
        }
    }

    /// A vCPU and what it shares with the others, for many accesses of it.
    #[must_use]
    pub fn parts(&mut self, vcpu: usize) -> (&mut Vcpu, &mut Uncore) {
        (&mut self.units[vcpu], &mut self.uncore)
    }

    /// From now on the page of this number (of 4 KiB, physical) is served by `node`, wherever it
    /// lies: a placement that no kernel made.
    pub fn serve_from(&mut self, page: u64, node: usize) {
        self.uncore.served.insert(page, node);
    }

    /// An access of `vcpu` that missed its first-level cache. `value` fetches what a load brings,
    /// if known; it is asked only when time depends on it. Says which node served it, `None` for
    /// caches and devices.
    pub fn miss(
        &mut self,
        vcpu: usize,
        a: MemoryAccess,
        value: impl FnOnce() -> Option<u64>,
    ) -> Option<usize> {
        self.uncore.params.layout.node_of(a.physical)?;
        let (unit, uncore) = self.parts(vcpu);
        let left = unit.l1.fill(a.physical / LINE, a.write);
        uncore.missed(unit, a, left.filter(|left| left.dirty).map(|left| left.line), value)
    }

    /// A store of `vcpu` past the caches: a line is written over the bus once, unread, when it is
    /// begun. What caches hold of it is dropped; the core goes on, up to what the bus takes.
    /// Whether memory was written.
    pub fn store_past(&mut self, vcpu: usize, physical: u64) -> bool {
        let line = physical / LINE;
        let (unit, uncore) = self.parts(vcpu);
        if uncore.params.layout.node_of(physical).is_none() || !unit.combining.begins(line) {
            return false;
        }
        unit.l1.forget(line);
        if let Some(l2) = &mut unit.l2 {
            l2.forget(line);
        }
        uncore.llc.forget(line);
        uncore.write_back(unit, line);
        true
    }

    /// `vcpu` writes the line at a physical address back (CLWB): what any cache has changed of it
    /// goes over the bus, and the line stays, clean. Nobody waits for that, up to what the bus
    /// takes. Whether memory was written.
    pub fn write_line_back(&mut self, vcpu: usize, physical: u64) -> bool {
        let line = physical / LINE;
        if self.uncore.params.layout.node_of(physical).is_none() {
            return false;
        }
        let mut dirty = self.uncore.llc.clean(line);
        for unit in &mut self.units {
            dirty |= unit.l1.clean(line);
            dirty |= unit.l2.as_mut().is_some_and(|l2| l2.clean(line));
        }
        let (unit, uncore) = self.parts(vcpu);
        if dirty {
            uncore.write_back(unit, line);
        }
        dirty
    }

    /// The kernel copies `bytes` from one physical address to another on `vcpu`, a load and a store
    /// a line through the caches, as `copy_page` does (arch/x86/lib/copy_page_64.S): a line written
    /// is read first and leaves the last level later. The time that takes, picoseconds, with the
    /// buses as busy as they are; the core's own time is left as it was. Counted as any access is.
    pub fn copy(&mut self, vcpu: usize, from: u64, to: u64, bytes: u64) -> u64 {
        self.aside(vcpu, |engine| {
            for at in (0..bytes).step_by(LINE as usize) {
                engine.touch(vcpu, from + at, false);
                engine.touch(vcpu, to + at, true);
            }
        })
    }

    /// The kernel writes zeros to `bytes` from a physical address on, line by line, as to a page
    /// that it has just allocated. The time that takes, picoseconds, as of [`MemorySystem::copy`].
    pub fn zero(&mut self, vcpu: usize, to: u64, bytes: u64) -> u64 {
        self.aside(vcpu, |engine| {
            (to..to.saturating_add(bytes))
                .step_by(LINE as usize)
                .for_each(|at| engine.touch(vcpu, at, true));
        })
    }

    /// What `work` takes on `vcpu`, picoseconds, with the buses as busy as they are; the core's own
    /// time is left as it was, for whoever shares the work out over time.
    pub fn aside(&mut self, vcpu: usize, work: impl FnOnce(&mut Self)) -> u64 {
        let before = self.units[vcpu].core.time;
        work(self);
        let took = self.units[vcpu].core.time - before;
        self.units[vcpu].core.time = before;
        took
    }

    /// One load or store of `vcpu` to the line at a physical address, that nothing depends on, by
    /// who knows no other address.
    pub fn touch(&mut self, vcpu: usize, physical: u64, write: bool) {
        let counters = &mut self.units[vcpu].counters;
        *(if write { &mut counters.stores } else { &mut counters.loads }) += 1;
        self.miss(vcpu, MemoryAccess { physical, virtual_: physical, write }, || None);
    }

    /// One load of `vcpu` of the line at a physical address, which finds the physical address
    /// `next` there and may `change` the line: whoever loads what is at `next`, or near it, waits
    /// for it.
    pub fn follow(&mut self, vcpu: usize, physical: u64, next: u64, change: bool) {
        if self.uncore.params.layout.node_of(physical).is_none() {
            return;
        }
        let (unit, uncore) = self.parts(vcpu);
        unit.counters.loads += 1;
        unit.counters.stores += u64::from(change);
        let left = unit.l1.fill(physical / LINE, change);
        let access = MemoryAccess { physical, virtual_: physical, write: false };
        uncore.missed(unit, access, left.filter(|left| left.dirty).map(|left| left.line), || {
            Some(next)
        });
    }
}

impl Uncore {
    /// What it was built from.
    #[must_use]
    pub const fn params(&self) -> &ModelParams {
        &self.params
    }

    /// As [`MemorySystem::miss`], of memory (no device), where the first level of `unit` has let
    /// the line in already; `left`: a dirty line that left it.
    #[inline]
    pub fn missed(
        &mut self,
        unit: &mut Vcpu,
        a: MemoryAccess,
        left: Option<u64>,
        value: impl FnOnce() -> Option<u64>,
    ) -> Option<usize> {
        let line = a.physical / LINE;
        unit.counters.l1_misses += 1;
        let stream = unit.core.follows_stream(a.virtual_ / LINE);
        if let Some(line) = left {
            unit.counters.l1_writebacks += 1;
            if !unit.l2.as_mut().is_some_and(|l2| l2.mark_dirty(line)) {
                self.leave_to_last(unit, line);
            }
        }
        if let (Some(l2), Some(params)) = (&mut unit.l2, &self.params.l2) {
            let fetched = l2.fetch(line, false);
            if fetched.hit() {
                unit.counters.l2_hits += 1;
                unit.wait(a, stream, params.hit_ps, value);
                return None;
            }
            // The next to leave this set, if it is dirty: the host fetches what its leaving will
            // look at, while there is time.
            if let Some(next) = l2.dirty_before(line) {
                self.llc.ahead(next);
            }
            if let Some(line) = fetched.left() {
                unit.counters.l2_writebacks += 1;
                self.leave_to_last(unit, line);
            }
        }
        let fetched = self.llc.fetch(line, false);
        if fetched.hit() {
            unit.counters.llc_hits += 1;
            unit.wait(a, stream, self.params.llc.hit_ps, value);
            return None;
        }
        if let Some(line) = fetched.left() {
            self.write_back(unit, line);
        }
        let node = self.home(a.physical)?;
        let value = if a.write || stream { None } else { value().or(Some(0)) };
        self.fetch(unit, node, line, a, stream, value)
    }

    /// The host fetches what a miss of this line in a core's own caches will look at: it takes long
    /// to come, for the last level's tags are larger than the host's own caches.
    #[inline(always)]
    pub fn ahead(&self, line: u64) {
        self.llc.ahead(line);
    }

    /// A dirty line leaves a core's own caches.
    #[inline(never)]
    fn leave_to_last(&mut self, unit: &mut Vcpu, line: u64) {
        if !self.llc.mark_dirty(line) {
            self.write_back(unit, line);
        }
    }

    #[inline]
    fn fetch(
        &mut self,
        unit: &mut Vcpu,
        node: usize,
        line: u64,
        a: MemoryAccess,
        stream: bool,
        value: Option<u64>,
    ) -> Option<usize> {
        let node = match self.found(node, line, false) {
            None => node,
            Some((fast, _, MemoryModeLookup::Hit)) => fast,
            Some((fast, slow, MemoryModeLookup::Miss { dirty })) => {
                self.bus_write(unit, fast, line);
                if let Some(dirty) = dirty {
                    self.write_home(unit, dirty);
                }
                slow
            }
        };
        let translated = self.translate(node, line);
        let (core, index) = (&mut unit.core, unit.index);
        let Route { link, channel, queued, counts } = unit.routes.get_mut(node)?;
        let channel = self.channels.get_mut(*channel)?;
        *(if a.write { &mut counts.write_misses } else { &mut counts.read_misses }) += 1;
        let bus_time = if channel.opens_block(line, false) { link.read_block } else { 0 };
        if bus_time > 0 {
            counts.read_bytes += link.block;
            channel.count_read(link.block);
        }
        if stream {
            counts.stream_misses += 1;
            let ends = channel.transfer(index, core.time, bus_time);
            core.run_behind(ends, link.read_block);
        } else {
            let idle = if a.write { link.write_latency } else { link.read_latency };
            let latency = idle + *queued + channel.added_latency() + translated;
            core.miss(a.virtual_, value, latency, |start| channel.transfer(index, start, bus_time));
        }
        Some(node)
    }

    /// The node that serves a physical address; `None` for devices.
    #[inline]
    fn home(&self, physical: u64) -> Option<usize> {
        let lies = self.params.layout.node_of(physical)?;
        if self.served.is_empty() {
            return Some(lies);
        }
        Some(self.served.get(&(physical / PAGE)).copied().unwrap_or(lies))
    }

    /// What the translation unit takes for a line of `node`, picoseconds.
    #[inline]
    fn translate(&mut self, node: usize, line: u64) -> u64 {
        self.translation.as_mut().map_or(0, |unit| unit.pass_line(node, line * LINE))
    }

    /// A dirty line leaves the last level, or one is written past it.
    fn write_back(&mut self, unit: &mut Vcpu, line: u64) {
        let Some(mut node) = self.home(line * LINE) else { return };
        if let Some((fast, _, found)) = self.found(node, line, true) {
            node = fast;
            if let MemoryModeLookup::Miss { dirty: Some(dirty) } = found {
                self.write_home(unit, dirty);
            }
        }
        unit.routes[node].counts.writebacks += 1;
        self.bus_write(unit, node, line);
    }

    /// In memory mode: the node that caches this one, the one its lines come from, and whether the
    /// line was there.
    #[inline]
    fn found(
        &mut self,
        node: usize,
        line: u64,
        write: bool,
    ) -> Option<(usize, usize, MemoryModeLookup)> {
        if self.memory_mode.is_empty() {
            return None;
        }
        let (fast, slow) = *self.params.cached_by.get(node)?;
        let found = self.memory_mode.get_mut(fast)?.as_mut()?.access(line, write);
        Some((fast, slow, found))
    }

    /// A dirty line leaves the fast node that cached it.
    fn write_home(&mut self, unit: &mut Vcpu, line: u64) {
        let Some(node) = self.params.layout.node_of(line * LINE) else { return };
        let slow = self.params.cached_by[node].1;
        self.bus_write(unit, slow, line);
    }

    fn bus_write(&mut self, unit: &mut Vcpu, node: usize, line: u64) {
        // Nobody waits for a write.
        self.translate(node, line);
        let Route { link, channel, counts, .. } = &mut unit.routes[node];
        let channel = &mut self.channels[*channel];
        if !channel.opens_block(line, true) {
            return;
        }
        counts.write_bytes += link.block;
        channel.count_written(link.block);
        let ends = channel.transfer(unit.index, unit.core.time, link.write_block);
        unit.core.run_behind(ends, link.write_block);
    }
}

impl Vcpu {
    /// A cache below the first level serves an access: nobody waits for that of a stream.
    #[inline(always)]
    fn wait(
        &mut self,
        a: MemoryAccess,
        stream: bool,
        hit: u64,
        value: impl FnOnce() -> Option<u64>,
    ) {
        if !stream {
            let value = if a.write { None } else { value().or(Some(0)) };
            self.core.miss(a.virtual_, value, hit, |_| 0);
        }
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
