//! The innermost loop: accesses of one thread on one core.
//!
//! An access whose line and translation were the last used of their sets changes nothing but counts (see
//! [`crate::mmu`]), so the core's time and instructions are kept in registers and written back only before something
//! else must be looked at. The results are those of taking each access by itself.

use crate::event::Event;
use crate::memory::{Misses, WAITS};
use crate::world::{Thread, World};
use terrace_cache::{ahead, Outcome};
use terrace_model::{Access, Counters, LINE};

/// Accesses before an access at which the host is told to fetch what it will look at; at twice as many, its page.
const AHEAD: usize = 8;
/// Accesses after which it is told anew whether that is worth it.
const OUTLOOK: u64 = 4096;
/// It is where one access in so many is not served by a core's own caches.
const OFTEN: u64 = 8;

/// How many accesses a core's own caches do not serve.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outlook {
    /// Accesses, and those among them, until it was last told.
    seen: (u64, u64),
    far: bool,
}

impl Outlook {
    #[inline(always)]
    fn look(&mut self, counters: &Counters) {
        let accesses = counters.loads + counters.stores;
        if accesses >= self.seen.0 + OUTLOOK {
            let left = counters.l1_misses - counters.l2_hits;
            self.far = (left - self.seen.1) * OFTEN >= accesses - self.seen.0;
            self.seen = (accesses, left);
        }
    }
}

impl World {
    /// Runs what is at hand of a thread until its core's time is `end`.
    pub(crate) fn run_events(&mut self, core: usize, thread: usize, end: u64) {
        self.outlooks[core].look(&self.engine.units[core].counters);
        match (self.sampler.is_some(), self.outlooks[core].far) {
            (false, false) => self.run_events_as::<false, false>(core, thread, end),
            (false, true) => self.run_events_as::<false, true>(core, thread, end),
            (true, false) => self.run_events_as::<true, false>(core, thread, end),
            (true, true) => self.run_events_as::<true, true>(core, thread, end),
        }
    }

    /// `SAMPLED`: somebody samples accesses. `FAR`: so many accesses leave a core's own caches that the host is told ahead
    /// what will be looked at.
    fn run_events_as<const SAMPLED: bool, const FAR: bool>(&mut self, core: usize, thread: usize, end: u64) {
        let Thread { events, at, .. } = &mut self.threads[thread];
        let (engine, memory, mmu) = (&mut self.engine, &mut self.memory, &mut self.mmus[core]);
        let home = self.homes[core];
        let words = &events.words[*at..];
        let mut made = 0;
        let mut unmapped = (0, 0);
        let mut stores = 0;
        let mut waits = false;
        let (unit, uncore) = engine.parts(core);
        let pace = unit.core.pace();
        let (mut time, mut instructions, mut clear) = (unit.core.time, unit.core.instructions, unit.core.clear_until());
        for (number, word) in words.iter().enumerate() {
            if time >= end {
                break;
            }
            made += 1;
            if FAR {
                let page = |word: &u64| memory.index_nearby(Event::from_words([*word, 0]).address() >> 12, mmu.hint);
                if let Some(index) = words.get(number + 2 * AHEAD).and_then(page) {
                    ahead(&memory.pages, index);
                }
                let next = words.get(number + AHEAD).and_then(|word| Some((word, memory.pages.get(page(word)?)?)));
                if let Some((word, page)) = next {
                    let address = Event::from_words([*word, 0]).address();
                    uncore.ahead(unit, (u64::from(page.frame) << 12 | address & 4095) / LINE);
                }
            }
            let event = Event::from_words([*word, 0]);
            let (address, store) = (event.address(), event.store());
            instructions += event.instructions();
            time += event.instructions() * pace;
            stores += u64::from(store);
            if SAMPLED && store {
                if let Some(sampler) = &mut self.sampler {
                    time += sampler.store(address >> 12);
                }
            }
            if instructions <= clear && mmu.settled(address, store) {
                continue;
            }
            (unit.core.time, unit.core.instructions) = (time, instructions);
            unit.core.execute(0);
            match mmu.translate(memory, address, store, home, unit.core.time) {
                None if store => unmapped.1 += 1,
                None => unmapped.0 += 1,
                Some(found) if found.time == WAITS => {
                    waits = true;
                    stores -= u64::from(store);
                    made -= 1;
                    time = unit.core.time;
                    break;
                }
                Some(found) => {
                    unit.core.time = found.time;
                    let physical = u64::from(found.at.frame) << 12 | address & 4095;
                    let outcome = unit.l1.access(physical / LINE, store);
                    mmu.settle(address, store);
                    if let Outcome::Miss { victim } = outcome {
                        let access = Access { physical, virtual_: address, write: store };
                        let value = || Some(events.values.get(*at + made - 1).copied().unwrap_or(0));
                        if uncore.missed(unit, access, victim, value).is_some() {
                            if let Some(misses) = &mut memory.misses {
                                count(&mut misses[found.at.page as usize], store);
                            }
                            if SAMPLED && !store {
                                if let Some(sampler) = &mut self.sampler {
                                    unit.core.time += sampler.missed_load(address >> 12);
                                }
                            }
                        }
                    }
                }
            }
            (time, clear) = (unit.core.time, unit.core.clear_until());
        }
        (unit.core.time, unit.core.instructions) = (time, instructions);
        unit.counters.stores += stores - unmapped.1;
        unit.counters.loads += made as u64 - stores - unmapped.0;
        *at += made;
        self.accesses += made as u64;
        if waits {
            let word = &mut events.words[*at];
            let event = Event::from_words([*word, 0]);
            *word = event.again().words()[0];
            self.page_in(thread, event.address() >> 12, event.store(), time);
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
    use crate::build::{Births, Mode, Plan};
    use crate::mmu::Mmu;
    use terrace_machine::preset;
    use terrace_types::{Bytes, Nanos};

    /// Each access by itself, as far as the translations go: a first level that is said to have many sets settles none.
    fn plainly(plan: &Plan) -> (Nanos, terrace_model::Counters) {
        let mut world = plan.world(Mode::Plain, Births::Nearest).unwrap();
        for mmu in &mut world.mmus {
            *mmu = Mmu::new(plan.machine.core.tlb_flush, &plan.machine.tlb, 1 << 20);
        }
        world.pass(Nanos(u64::MAX / 2000));
        world.measured.result().unwrap()
    }

    #[test]
    fn the_short_cut_changes_nothing() {
        for (machine, workload) in [
            ("lab-cxl", "skew,accesses=60k,size=2MiB,hot_size=1MiB,threads=3"),
            ("dram-dcpmm", "graph-bfs,fast=2MiB,accesses=30k"),
            ("ddr-cxl", "shift,fast=2MiB,accesses=50k,phase_seconds=0.0001,pages=thp"),
            ("lab-hbm", "stream,fast=1MiB,accesses=40k"),
        ] {
            let mut machine = preset(machine).unwrap();
            machine.nodes.iter_mut().for_each(|n| n.capacity = n.capacity.min(Bytes::mib(512)));
            let plan = Plan::new(&machine, workload).unwrap();
            let mut world = plan.world(Mode::Plain, Births::Nearest).unwrap();
            world.pass(Nanos(u64::MAX / 2000));
            assert_eq!(world.measured.result().unwrap(), plainly(&plan), "{workload}");
        }
    }
}
