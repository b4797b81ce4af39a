//! What whoever manages goes over: the kernel's records of the program's pages, and records of its
//! own.
//!
//! Going over pages is work of the processor and waiting for memory, and the second depends on what
//! the program does to the buses meanwhile. The kernel has a line of 64 bytes for each frame
//! (`struct page`) on the frame's own node, and eight bytes of page table for each page, which are
//! taken at the page's first touch where the page is taken, too. What the daemon remembers lies
//! where a first touch of the moment would put it.

use crate::costs::{Touch, Visit};
use crate::memory::ABSENT;
use crate::world::World;
use terrace_model::{MemorySystem, ModelParams, LINE, PS};
use terrace_types::{Nanos, VpnRange};

/// A base page.
const PAGE: u64 = 4096;
/// Bytes of a `struct page` and of an entry of a page table.
const RECORD: u64 = 64;
const ENTRY: u64 = 8;
/// The daemon's records go round in so many bytes.
const OWN: u64 = 1 << 20;
/// Pages gone over before the program goes on: about two microseconds where nothing is waited for,
/// a part of a quantum.
const AT_ONCE: usize = 64;
/// Weights of the daemon, which is scheduled ten nice levels ahead (ADR 0056), and of a thread of
/// the program (`sched_prio_to_weight`, kernel/sched/core.c).
const WEIGHTS: (u64, u64) = (9548, 1024);

impl World {
    /// The daemon goes over `pages` in order. Charges what that takes, and says how much it was.
    pub(crate) fn visit(&mut self, pages: impl IntoIterator<Item = u64>, visit: Visit) -> Nanos {
        let (mut pages, mut hint, mut total) = (pages.into_iter(), 0, Nanos::ZERO);
        loop {
            let frames: Vec<(u64, Option<u64>)> = (&mut pages)
                .take(AT_ONCE)
                .map(|vpn| {
                    let index = self.memory.index(vpn, &mut hint);
                    let frame = index.map(|i| self.memory.pages[i].frame).filter(|f| *f != ABSENT);
                    (vpn, frame.map(u64::from))
                })
                .collect();
            if frames.is_empty() {
                return total;
            }
            let (core, own) = (self.daemon.core, self.own_node());
            // Once the program has ended no time passes on the machine, and nobody is in the way.
            let took = match self.ended() || !self.costs.models_kernel_memory() {
                true => visit.worked(frames.len() as u64),
                false => {
                    let took = self
                        .engine
                        .aside(core, |engine| go_over(engine, core, &frames, visit, own));
                    Nanos(took.div_ceil(PS))
                }
            };
            self.charge(took);
            total += took;
        }
    }

    /// The same of all pages of `ranges`, by a call that has the program's address space to itself:
    /// `clear_refs` takes `mmap_lock` to write and each mapping's own lock on the way, and keeps
    /// them to its end (`clear_refs_write`, fs/proc/task_mmu.c, and `PGWALK_WRLOCK`,
    /// mm/pagewalk.c), so that a page fault waits for that. Its end is foreseen from how long the
    /// last such call took a page. On machines that are scaled down nobody waits, as for records.
    pub(crate) fn visit_alone(&mut self, ranges: &[VpnRange], visit: Visit) -> Nanos {
        let (pages, before) = (ranges.iter().map(|r| r.len()).sum::<u64>(), self.time_ps());
        if self.costs.models_kernel_memory() {
            let each = if self.daemon.alone_ps > 0 { self.daemon.alone_ps } else { visit.work };
            self.memory.locked_until = before + each * pages;
        }
        let took = self.visit(ranges.iter().flat_map(|r| r.start.0..r.end.0), visit);
        self.memory.locked_until = 0;
        self.daemon.alone_ps = (self.time_ps() - before) / pages.max(1);
        took
    }

    /// The node, by its index, that the daemon's next page would be on.
    fn own_node(&self) -> usize {
        self.memory.nearest_with_space(self.cores[0].home)
    }

    /// How long a core that the program wants, too, takes for so much of the daemon's work.
    pub(crate) fn shared(&self, core: usize, span: Nanos) -> Nanos {
        let (daemon, thread) = WEIGHTS;
        span + Nanos(span.get().saturating_mul(thread * self.runnable(core)) / daemon)
    }
}

/// One record's miss at a time: a record has pointers to those that were taken before and after it
/// (its list of pages), and what the kernel changes there it changes with locked instructions, so
/// that no load of the next begins before. In the lab clearing 20,000 pages whose records lie two
/// apart, in no cache, takes 81.5 ns a page (80 ns is the node's latency), looking them up in
/// `pagemap` 81.8; in order 21.2 and 31.1, in the last level 20.9 and 30.9.
fn go_over(
    engine: &mut MemorySystem,
    core: usize,
    frames: &[(u64, Option<u64>)],
    visit: Visit,
    own: usize,
) {
    let pace = engine.units[core].core.pace().max(1);
    let (mut due, mut last) = (0, [None; 3]);
    for (n, (vpn, frame)) in frames.iter().enumerate() {
        due += visit.work;
        engine.units[core].core.execute(due / pace);
        due %= pace;
        let params = engine.params();
        let lines = [
            frame.and_then(|f| entry(params, f)).filter(|_| visit.entry != Touch::No),
            frame.and_then(|f| record(params, f)).filter(|_| visit.record != Touch::No),
            own_record(params, own, *vpn, visit.own),
        ]
        .map(|address| address.map(|a| a / LINE));
        let next = frames.get(n + 1).and_then(|(_, frame)| record(params, (*frame)?));
        let [entry, record, own] = lines;
        // What is on the line touched before has come with it.
        let mut is_new =
            |line: Option<u64>, which: usize| line.filter(|l| last[which].replace(*l) != Some(*l));
        if let Some(line) = is_new(entry, 0) {
            engine.touch(core, line * LINE, visit.entry == Touch::Write);
        }
        if let Some(line) = is_new(record, 1) {
            engine.follow(
                core,
                line * LINE,
                next.unwrap_or(line * LINE),
                visit.record == Touch::Write,
            );
        }
        if let Some(line) = is_new(own, 2) {
            engine.touch(core, line * LINE, true);
        }
    }
}

/// Where the `struct page` of a frame is: in what the kernel keeps of the frame's node (`reserved`
/// in the machine file), of which it is the last part here. Where nothing is kept the program's
/// last frames are there, too, and share the lines' places in caches.
pub(crate) fn record(params: &ModelParams, frame: u64) -> Option<u64> {
    let (node, number) = place(params, frame)?;
    params
        .layout
        .address(node, params.sizes[node] - params.sizes[node] / PAGE * RECORD + number * RECORD)
}

/// Where the entry for a frame is in the page table, before the records of the node.
pub(crate) fn entry(params: &ModelParams, frame: u64) -> Option<u64> {
    let (node, number) = place(params, frame)?;
    let pages = params.sizes[node] / PAGE;
    params.layout.address(node, params.sizes[node] - pages * (RECORD + ENTRY) + number * ENTRY)
}

/// Where the daemon remembers a page, before those.
fn own_record(params: &ModelParams, node: usize, vpn: u64, bytes: u64) -> Option<u64> {
    let pages = params.sizes[node] / PAGE;
    let first = (params.sizes[node] - pages * (RECORD + ENTRY)).checked_sub(OWN)?;
    (bytes > 0).then(|| params.layout.address(node, first + vpn * bytes % OWN))?
}

/// A frame's node, and its number there.
fn place(params: &ModelParams, frame: u64) -> Option<(usize, u64)> {
    let node = params.layout.node_of(frame * PAGE)?;
    Some((node, params.layout.offset(node, frame * PAGE)? / PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::{FirstTouchPlacement, MachineMode, SimSetup};
    use crate::memory::UNTIL_REPORTED;
    use terrace_machine::KernelMemoryModel;

    /// A machine whose program of so many threads is under way in its phase, and the pages of its
    /// data.
    fn under_way(first_touch_placement: FirstTouchPlacement, threads: u32) -> (World, Vec<u64>) {
        let workload =
            format!("skew,accesses=64M,size=64MiB,hot_size=32MiB,fast=64MiB,threads={threads}");
        let plan =
            SimSetup::new(&terrace_machine::preset("lab-dcpmm").unwrap(), &workload).unwrap();
        let mut world = plan.world(MachineMode::Plain, first_touch_placement).unwrap();
        while world.measured.begin.is_none() {
            world.pass(Nanos::millis(5));
        }
        world.pass(Nanos::millis(2));
        let pages = world.memory.mappings().flat_map(|r| r.start.0..r.end.0).take(4096).collect();
        (world, pages)
    }

    fn each(world: &mut World, pages: &[u64], visit: Visit) -> f64 {
        world.visit(pages.iter().copied(), visit).get() as f64 / pages.len() as f64
    }

    #[test]
    fn records_on_a_bus_that_the_program_fills_take_longer() {
        let (mut fast, pages) = under_way(FirstTouchPlacement::Nearest, 1);
        let (mut slow, same) = under_way(FirstTouchPlacement::Slow, 2);
        assert_eq!(pages, same);
        let clearing = fast.costs.clear_accessed();
        let (quick, late) = (each(&mut fast, &pages, clearing), each(&mut slow, &pages, clearing));
        // 21 ns a page in the lab where nothing is waited for, and 267 more for each page on the
        // slow node beside two threads that write.
        assert!((20.0..40.0).contains(&quick), "{quick}");
        assert!((100.0..600.0).contains(&late), "{late}");
    }

    #[test]
    fn records_out_of_order_are_waited_for_one_by_one() {
        let plan = SimSetup::new(
            &terrace_machine::preset("lab-cxl").unwrap(),
            "skew,accesses=50k,size=2MiB",
        )
        .unwrap();
        // ns a page, records in no cache: frames of neighbours two apart, or in order.
        let each = |visit: Visit, apart: u64| {
            let mut world = plan.world(MachineMode::Plain, FirstTouchPlacement::Nearest).unwrap();
            let half = 10_000;
            let frame = |n: u64| if apart == 2 { n % half * 2 + n / half } else { n };
            let frames: Vec<(u64, Option<u64>)> =
                (0..2 * half).map(|n| (n, Some(frame(n)))).collect();
            let took: u64 = frames
                .chunks(AT_ONCE)
                .map(|some| {
                    let took = world.engine.aside(0, |engine| go_over(engine, 0, some, visit, 0));
                    world.engine.units[0].core.time += took;
                    took
                })
                .sum();
            took as f64 / PS as f64 / (2 * half) as f64
        };
        // ns in the lab: docs/adr/0256.
        let costs = plan.world(MachineMode::Plain, FirstTouchPlacement::Nearest).unwrap().costs;
        for (visit, in_order, apart) in
            [(costs.clear_accessed(), 21.2, 81.5), (costs.look_up_frames(), 31.1, 81.8)]
        {
            let (near, far) = (each(visit, 1), each(visit, 2));
            assert!(
                (near / in_order - 1.0).abs() < 0.1,
                "{visit:?}: {near} where it is {in_order}"
            );
            assert!((far / apart - 1.0).abs() < 0.1, "{visit:?}: {far} where it is {apart}");
        }
    }

    #[test]
    fn a_fault_waits_while_another_has_the_address_space() {
        let plan = SimSetup::new(
            &terrace_machine::preset("lab-dcpmm").unwrap(),
            "skew,accesses=50k,size=64MiB,fast=64MiB",
        )
        .unwrap();
        // Pages that are born while 16,384 are gone over.
        let born = |alone: bool| {
            let mut world = plan.world(MachineMode::Plain, FirstTouchPlacement::Nearest).unwrap();
            world.daemon.core = 1;
            world.pass(Nanos::millis(5));
            let ranges: Vec<VpnRange> = world.memory.mappings().collect();
            let before = world.memory.present().count();
            let clearing = world.costs.clear_accessed();
            let took = match alone {
                true => world.visit_alone(&ranges, clearing),
                false => world.visit(ranges.iter().flat_map(|r| r.start.0..r.end.0), clearing),
            };
            assert!((300_000..900_000).contains(&took.get()), "{took:?}");
            let meanwhile = world.memory.present().count() - before;
            world.pass(Nanos::millis(1));
            assert!(world.memory.present().count() > before + meanwhile + 300, "it goes on");
            meanwhile
        };
        let (beside, waiting) = (born(false), born(true));
        // Two microseconds a page; one birth may have begun before.
        assert!(beside > 100 && waiting <= 3, "{beside} and {waiting}");
    }

    #[test]
    fn what_is_next_to_each_other_comes_with_one_line() {
        let (mut world, pages) = under_way(FirstTouchPlacement::Slow, 2);
        let loads =
            |world: &World| world.engine().counters(0).loads + world.engine().counters(1).loads;
        let before = loads(&world);
        let mut touched = 0;
        let next = world.daemon.core;
        let frames: Vec<(u64, Option<u64>)> = pages
            .iter()
            .map(|vpn| {
                (
                    *vpn,
                    world
                        .memory
                        .index(*vpn, &mut 0)
                        .map(|i| u64::from(world.memory.pages[i].frame)),
                )
            })
            .collect();
        let counting = world.costs.count_accessed();
        world.engine.aside(next, |engine| {
            go_over(engine, next, &frames, counting, 0);
            touched = engine.counters(0).loads + engine.counters(1).loads - before;
        });
        // Eight entries of a page table in a line.
        assert_eq!(touched, 4096 / 8);
    }

    #[test]
    fn a_first_touch_takes_longer_on_a_slow_node() {
        let filled = |first_touch_placement| {
            let (world, _) = under_way(first_touch_placement, 1);
            let pages = world.memory.present().count() as f64;
            let begin = world.measured.begin.as_ref().unwrap().0;
            (begin as f64 / PS as f64 - 2_450_000.0) / pages
        };
        // 2.17 and 3.13 us a page in the lab, the program's own filling in it (ADR 0249).
        let (fast, slow) =
            (filled(FirstTouchPlacement::Nearest), filled(FirstTouchPlacement::Slow));
        assert!((2_050.0..2_300.0).contains(&fast), "{fast}");
        assert!((2_950.0..3_300.0).contains(&slow), "{slow}");
    }

    #[test]
    fn the_program_has_its_share_of_the_daemons_core() {
        let (mut world, _) = under_way(FirstTouchPlacement::Nearest, 2);
        let (begun, used) = (world.now(), world.daemon_cpu());
        world.charge(Nanos::millis(10));
        assert_eq!(world.daemon_cpu().saturating_sub(used), Nanos::millis(10));
        // 10 ms of 9548 parts in 10,572.
        assert_eq!(world.now().since(begun), Nanos(11_072_475));
    }

    #[test]
    fn the_daemon_changes_cores_at_its_turns_and_takes_of_all_alike() {
        let (mut world, _) = under_way(FirstTouchPlacement::Nearest, 2);
        let mut cores = Vec::new();
        for _ in 0..4 {
            world.take_turn();
            cores.push(world.daemon.core);
            for _ in 0..300 {
                world.charge(Nanos::micros(5));
                assert_eq!(world.daemon.core, cores[cores.len() - 1], "it goes on where it is");
            }
        }
        // A millisecond and a half each time; it changes where that makes it a millisecond ahead.
        assert_eq!(cores, [0, 1, 1, 0]);
    }

    #[test]
    fn a_page_that_moves_is_waited_for_until_it_is_there() {
        let (mut world, pages) = under_way(FirstTouchPlacement::Nearest, 2);
        let heads: Vec<usize> =
            pages.iter().filter_map(|vpn| world.memory.index(*vpn, &mut 0)).collect();
        assert_eq!(heads.len(), pages.len());
        for head in &heads {
            assert!(world.memory.relocate(*head, 1, UNTIL_REPORTED));
        }
        world.flush_translations();
        let made = |world: &mut World| {
            let before = world.accesses();
            world.charge(Nanos::millis(1));
            world.accesses() - before
        };
        // A quarter of all pages are among them, so that either thread soon comes to one.
        let on_the_way = made(&mut world);
        assert_eq!(made(&mut world), 0, "{on_the_way} before");
        heads.iter().for_each(|head| world.has_moved(*head));
        assert!(made(&mut world) > 10 * on_the_way.max(100));
    }

    #[test]
    fn an_idle_core_takes_the_thread_that_waits_for_the_daemon() {
        let (mut world, _) = under_way(FirstTouchPlacement::Nearest, 1);
        world.charge(Nanos::millis(1));
        let (begun, before) = (world.now(), world.accesses());
        world.charge(Nanos::millis(10));
        assert_eq!(world.now().since(begun), Nanos::millis(10), "nobody shares its core any more");
        assert!(world.accesses() - before > 10_000);
    }

    #[test]
    fn a_core_that_nobody_wants_is_the_daemons_alone() {
        let (mut world, pages) = under_way(FirstTouchPlacement::Nearest, 1);
        world.costs.kernel.memory = KernelMemoryModel::Fixed;
        let clearing = world.costs.clear_accessed();
        assert_eq!(world.visit(pages, clearing), clearing.worked(4096));
        // It finds that core when it wakes.
        world.sleep(Nanos::micros(1));
        let begun = world.now();
        world.charge(Nanos::millis(10));
        assert_eq!(world.now().since(begun), Nanos::millis(10));
    }
}
