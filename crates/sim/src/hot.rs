//! The innermost loop: accesses of one thread on one core.
//!
//! An access whose line and translation were the last used of their sets changes nothing but counts
//! (see [`crate::mmu`]), so the core's time and instructions are kept in registers and written back
//! only before something else must be looked at. The results are those of taking each access by
//! itself.

use crate::batch::{Accesses, Batch};
use crate::event::WordAccess;
use crate::kernel::{entry, record};
use crate::memory::{Misses, ProgramMemory, WAITS};
use crate::mmu::{Mmu, NOWHERE};
use crate::sampler::AccessSampler;
use crate::world::{SimCore, SimThread, World};
use terrace_cache::ahead;
use terrace_model::{MemoryAccess, Uncore, Vcpu, LINE};

/// Accesses before an access at which the host is told to fetch what it will look at; at twice as
/// many, its page.
const AHEAD: usize = 8;
impl World {
    /// Runs what is at hand of a thread until its core's time is `end`.
    pub(crate) fn run_events(&mut self, core: usize, thread: usize, end: u64) {
        self.memory.cpu = core;
        self.cores[core].outlook.update(&self.engine.units[core].counters);
        if let Some(sampler) = &mut self.sampler {
            sampler.turn_to(core, thread);
        }
        match (self.sampler.is_some(), self.cores[core].outlook.far) {
            (false, false) => self.run_events_as::<false, false>(core, thread, end),
            (false, true) => self.run_events_as::<false, true>(core, thread, end),
            (true, false) => self.run_events_as::<true, false>(core, thread, end),
            (true, true) => self.run_events_as::<true, true>(core, thread, end),
        }
    }

    /// `SAMPLED`: somebody samples accesses. `FAR`: so many accesses leave a core's own caches that
    /// the host prefetches what will be read.
    fn run_events_as<const SAMPLED: bool, const FAR: bool>(
        &mut self,
        core: usize,
        thread: usize,
        end: u64,
    ) {
        let SimThread { events, at, again, .. } = &mut self.program.threads[thread];
        let (unit, uncore) = self.engine.parts(core);
        let SimCore { mmu, home, .. } = &mut self.cores[core];
        let (time, instructions, clear) =
            (unit.core.time, unit.core.instructions, unit.core.clear_until());
        let mut lane = CoreLane {
            pace: unit.core.pace(),
            unit,
            uncore,
            memory: &mut self.memory,
            mmu,
            sampler: self.sampler.as_mut(),
            home: *home,
            end,
            time,
            instructions,
            clear,
            stores: 0,
            unmapped: (0, 0),
            waits: false,
        };
        let begun = *at;
        match events {
            Batch::Own { words, values } => {
                lane.run::<SAMPLED, FAR>(&(&words[..], &values[..]), at, again)
            }
            Batch::Part(part) => lane.run::<SAMPLED, FAR>(part, at, again),
        }
        let made = (*at - begun) as u64;
        let CoreLane { unit, time, instructions, stores, unmapped, waits, .. } = lane;
        (unit.core.time, unit.core.instructions) = (time, instructions);
        unit.counters.stores += stores - unmapped.1;
        unit.counters.loads += made - stores - unmapped.0;
        self.program.accesses += made;
        if waits {
            *again = true;
            if let Some(event) = events.at(*at) {
                self.page_in(thread, event.address() >> 12, event.store(), time);
            }
        }
    }
}

/// What an access came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AccessOutcome {
    /// It was made.
    On,
    /// Nothing is mapped there and nothing can be.
    Nowhere,
    /// Its thread has to wait for the page.
    ToWait,
}

/// A core that makes accesses of a thread.
struct CoreLane<'a> {
    unit: &'a mut Vcpu,
    uncore: &'a mut Uncore,
    memory: &'a mut ProgramMemory,
    mmu: &'a mut Mmu,
    sampler: Option<&'a mut AccessSampler>,
    home: usize,
    /// The core's time at which it stops.
    end: u64,
    pace: u64,
    /// The core's time and instructions; the core itself is updated before anything else needs
    /// them.
    time: u64,
    instructions: u64,
    /// Up to this count of instructions to execute is only to add.
    clear: u64,
    /// Stores made, loads and stores that came nowhere, and whether the thread has to wait.
    stores: u64,
    unmapped: (u64, u64),
    waits: bool,
}

impl CoreLane<'_> {
    /// One access after the other, from that of index `at` on.
    #[inline(always)]
    fn run<const SAMPLED: bool, const FAR: bool>(
        &mut self,
        source: &impl Accesses,
        at: &mut usize,
        again: &mut bool,
    ) {
        self.mmu.turn_to(source.space());
        let (mut time, mut instructions, mut clear, mut stores) =
            (self.time, self.instructions, self.clear, 0);
        let words = source.words();
        if let Some(word) = words.get(*at).filter(|_| *again) {
            // It is made anew: its instructions, which are added below, have been executed.
            let event = WordAccess::from_words([*word, 0]);
            time -= event.instructions() * self.pace;
            instructions -= event.instructions();
            *again = false;
        }
        let mut number = *at;
        while time < self.end {
            let Some(word) = words.get(number) else { break };
            if FAR {
                self.prefetch_translations(source, number);
            }
            let event = WordAccess::from_words([*word, 0]);
            instructions += event.instructions();
            time += event.instructions() * self.pace;
            if SAMPLED {
                time += self.sampled(source, event, time);
            }
            if !(instructions <= clear && self.mmu.is_current(event.address(), event.store())) {
                let came;
                (came, time, clear) =
                    self.access::<SAMPLED>(event, time, instructions, clear, (source, number));
                self.waits = came == AccessOutcome::ToWait;
                if self.waits {
                    break;
                }
            }
            stores += u64::from(event.store());
            number += 1;
        }
        *at = number;
        (self.time, self.instructions, self.clear) = (time, instructions, clear);
        self.stores += stores;
    }

    /// The host fetches what accesses to come will look at: the page of the further one, lines of
    /// caches of the nearer one.
    #[inline(always)]
    fn prefetch_translations(&self, source: &impl Accesses, at: usize) {
        let words = source.words();
        let address = |ahead: usize| {
            words.get(at + ahead).map(|word| WordAccess::from_words([*word, 0]).address())
        };
        let page =
            |address: u64| self.memory.index_near(source.placed(address) >> 12, self.mmu.hint);
        if let Some(index) = address(2 * AHEAD).and_then(page) {
            ahead(&self.memory.pages, index);
        }
        let next = address(AHEAD)
            .and_then(|address| Some((address, self.memory.pages.get(page(address)?)?)));
        if let Some((address, page)) = next {
            self.uncore.ahead((u64::from(page.frame) << 12 | address & 4095) / LINE);
        }
    }

    /// The time that it takes to sample a store, if it is one.
    #[inline(always)]
    fn sampled(&mut self, source: &impl Accesses, event: WordAccess, now: u64) -> u64 {
        match &mut self.sampler {
            Some(sampler) if event.store() => {
                sampler.store(source.placed(event.address()) >> 12, now)
            }
            _ => 0,
        }
    }

    /// An access that may change something, by a core that has come to `time` and `instructions`
    /// and is `clear` of waits; `source`: whose access it is. What it came to, and what time and
    /// `clear` are then.
    #[inline(always)]
    fn access<const SAMPLED: bool>(
        &mut self,
        event: WordAccess,
        time: u64,
        instructions: u64,
        clear: u64,
        source: (&impl Accesses, usize),
    ) -> (AccessOutcome, u64, u64) {
        let (address, store) = (event.address(), event.store());
        let (mut time, mut clear) = (time, clear);
        if instructions > clear {
            let core = &mut self.unit.core;
            (core.time, core.instructions) = (time, instructions);
            core.execute(0);
            (time, clear) = (core.time, core.clear_until());
        }
        let at = match self.mmu.known(address, store) {
            Some(at) => at,
            None => {
                let place = source.0.placed(address);
                let found =
                    self.mmu.translate_other(self.memory, (address, place), store, self.home, time);
                // What is no time is more than any.
                if found.time >= NOWHERE {
                    if found.time == WAITS {
                        return (AccessOutcome::ToWait, time, clear);
                    }
                    *(if store { &mut self.unmapped.1 } else { &mut self.unmapped.0 }) += 1;
                    return (AccessOutcome::Nowhere, time, clear);
                }
                time = found.time;
                if let Some(frame) = self.memory.born.take() {
                    (time, clear) = self.born(u64::from(frame), time, instructions);
                }
                found.at
            }
        };
        let physical = u64::from(at.frame) << 12 | address & 4095;
        let fetched = self.unit.l1.fetch(physical / LINE, store);
        self.mmu.make_current(address, store);
        if !fetched.hit() {
            let core = &mut self.unit.core;
            (core.time, core.instructions) = (time, instructions);
            let access =
                MemoryAccess { physical, virtual_: source.0.placed(address), write: store };
            self.missed::<SAMPLED>(access, at.page, fetched.left(), source);
            (time, clear) = (self.unit.core.time, self.unit.core.clear_until());
        }
        (AccessOutcome::On, time, clear)
    }

    /// A page was touched first: the kernel looks up and writes its records of the frame and of the
    /// page, and writes zeros to all of it.
    #[inline(never)]
    fn born(&mut self, frame: u64, time: u64, instructions: u64) -> (u64, u64) {
        let core = &mut self.unit.core;
        (core.time, core.instructions) = (time, instructions);
        let params = self.uncore.params();
        let records = [record(params, frame), entry(params, frame)];
        let from = params.homes.iter().position(|home| *home == self.home).unwrap_or(0);
        for physical in records.into_iter().flatten() {
            if let Some(node) = self.written(physical) {
                // What it says is where the kernel goes on.
                self.unit.core.time += self.uncore.params().links[from][node].read_latency;
            }
        }
        for physical in (frame << 12..(frame + 1) << 12).step_by(LINE as usize) {
            // Eight words a line; they are no instructions of the program's.
            self.unit.core.time += 8 * self.pace;
            self.written(physical);
        }
        self.mmu.unsettle();
        (self.unit.core.time, self.unit.core.clear_until())
    }

    /// The kernel writes to the line at `physical`; the node that it comes from, if no cache has
    /// it.
    fn written(&mut self, physical: u64) -> Option<usize> {
        self.unit.counters.stores += 1;
        let fetched = self.unit.l1.fetch(physical / LINE, true);
        let access = MemoryAccess { physical, virtual_: physical, write: true };
        if fetched.hit() {
            return None;
        }
        self.uncore.missed(self.unit, access, fetched.left(), || None)
    }

    /// An access that missed the first level, which has let its line in: `left`, if anything, left
    /// it dirty.
    #[inline(never)]
    fn missed<const SAMPLED: bool>(
        &mut self,
        access: MemoryAccess,
        page: u32,
        left: Option<u64>,
        (source, number): (&impl Accesses, usize),
    ) {
        let store = access.write;
        if self.uncore.missed(self.unit, access, left, || Some(source.value(number))).is_some() {
            if let Some(misses) = &mut self.memory.misses {
                count(&mut misses[page as usize], store);
            }
            if SAMPLED && !store {
                if let Some(sampler) = &mut self.sampler {
                    let now = self.unit.core.time;
                    self.unit.core.time += sampler.missed_load(access.virtual_ >> 12, now);
                }
            }
        }
    }
}

#[inline]
fn count(misses: &mut Misses, store: bool) {
    if store {
        misses.writes = misses.writes.saturating_add(1);
    } else {
        misses.reads = misses.reads.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use crate::build::{FirstTouchPlacement, MachineMode, SimInput, SimSetup};
    use crate::event::KEPT;
    use crate::memory::{ACCESSED, SOFT_CLEAN};
    use crate::mmu::Mmu;
    use crate::recording::{Recording, RecordingSource};
    use crate::world::World;
    use std::io::Cursor;
    use std::sync::Arc;
    use terrace_machine::{preset, Machine};
    use terrace_trace::{Access, TraceHeader, TraceWriter};
    use terrace_types::{Bytes, Nanos};

    /// Each access by itself, as far as the lines go: of a first level that is said to have many
    /// sets none is remembered.
    fn plain(plan: &SimSetup) -> World {
        let mut world = plan.world(MachineMode::Plain, FirstTouchPlacement::Nearest).unwrap();
        for core in &mut world.cores {
            core.mmu = Mmu::new(plan.machine.core.tlb_flush, &plan.machine.tlb, 1 << 20);
        }
        world
    }

    fn machine(name: &str) -> Machine {
        let mut machine = preset(name).unwrap();
        machine.nodes.iter_mut().for_each(|n| n.capacity = n.capacity.min(Bytes::mib(512)));
        machine
    }

    #[test]
    fn the_short_cut_changes_nothing() {
        for (name, workload) in [
            ("lab-cxl", "skew,accesses=60k,size=2MiB,hot_size=1MiB,threads=3"),
            ("dram-dcpmm", "graph-bfs,fast=2MiB,accesses=30k"),
            ("ddr-cxl", "shift,fast=2MiB,accesses=50k,phase_seconds=0.0001,pages=thp"),
            ("lab-hbm", "stream,fast=1MiB,accesses=40k"),
        ] {
            let plan = SimSetup::new(&machine(name), workload).unwrap();
            let (mut short, mut plain) = (
                plan.world(MachineMode::Plain, FirstTouchPlacement::Nearest).unwrap(),
                plain(&plan),
            );
            [&mut short, &mut plain]
                .into_iter()
                .for_each(|world| world.pass(Nanos(u64::MAX / 2000)));
            assert_eq!(
                short.measured.result().unwrap(),
                plain.measured.result().unwrap(),
                "{workload}"
            );
        }
    }

    /// Threads of two processes that share cores, each going through a few streams and among many
    /// pages, some of which others write too.
    fn mixed(seed: u64) -> Recording {
        let mut x = seed;
        let mut random = move |below: u64| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 8) % below
        };
        let mut writer = TraceWriter::new(
            Vec::new(),
            &TraceHeader { dependence: true, ..TraceHeader::default() },
        )
        .unwrap();
        for step in 0..90_000u64 {
            let thread = random(6) as u32;
            let stream = random(4);
            let (page, offset) = match stream {
                0 => (1 + random(3), random(4096)),
                1 => (100 + step / 4096, step % 4096),
                2 => (300 + random(1500), random(64) * 64),
                _ => (2000 + 16 * random(8), random(512) * 8),
            };
            let address = 0x7f00_0000_0000 + (stream << KEPT) + page * 4096 + offset / 8 * 8;
            let (store, depends) = (random(3) == 0, random(8).saturating_sub(5) as u8);
            let access =
                Access { address, size: 8, store, depends, gap: 1 + random(9) as u32, pc: 0 };
            writer.access(thread % 2, thread, &access).unwrap();
            if random(5000) == 0 {
                writer.advance(thread % 2, thread, 4000).unwrap();
            }
        }
        let bytes = writer.finish().unwrap();
        Recording::new(Arc::new(move || {
            Ok(Box::new(Cursor::new(bytes.clone())) as Box<dyn RecordingSource>)
        }))
        .unwrap()
    }

    /// What happens to pages between accesses: they move, their translations are dropped, they are
    /// copied, watched.
    fn disturb(world: &mut World, step: u64) {
        let pages: Vec<(u64, usize)> = world.memory.present().collect();
        for pick in 0..step % 7 {
            let (vpn, index) = pages[(step * 7919 + pick * 104_729) as usize % pages.len()];
            let node = usize::from(world.memory.pages[index].node == 0);
            let ready = world.engine.units[0].core.time + 5_000_000 * (step % 3);
            match (step + pick) % 5 {
                0 => world.memory.pages[index].bits |= SOFT_CLEAN,
                1 => {
                    let frame = u64::from(world.memory.pages[index].frame);
                    let _took = world.copy(frame, frame ^ 1, 4096);
                }
                2 => world.memory.pages[index].bits &= !ACCESSED,
                _ => drop(world.memory.relocate(index, node, ready)),
            }
            world.shoot_down(vpn);
        }
        if step % 11 == 0 {
            world.flush_translations();
        }
        world.charge(Nanos(step % 4 * 500));
    }

    #[test]
    fn the_short_cut_changes_nothing_while_pages_move() {
        for (name, seed) in [("dram-dcpmm", 1), ("lab-cxl", 2), ("ddr-cxl", 3), ("lab-hbm", 4)] {
            let input = SimInput::Recording { name: "mixed".to_owned(), recording: mixed(seed) };
            let plan = SimSetup::from_machine(&machine(name), input).unwrap();
            let (mut short, mut plain) = (
                plan.world(MachineMode::Plain, FirstTouchPlacement::Nearest).unwrap(),
                plain(&plan),
            );
            for world in [&mut short, &mut plain] {
                let mut step = 0;
                while !world.ended() {
                    step += 1;
                    world.pass(Nanos::micros(20));
                    disturb(world, step);
                }
                assert!(step > 20, "{name}: {step}");
            }
            assert_eq!(short.counters(), plain.counters(), "{name}");
            assert_eq!(short.memory.pages, plain.memory.pages, "{name}");
            let times =
                |world: &World| world.engine.units.iter().map(|u| u.core.time).collect::<Vec<_>>();
            assert_eq!(times(&short), times(&plain), "{name}");
        }
    }
}
