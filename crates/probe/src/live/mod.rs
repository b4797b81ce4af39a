//! The machine itself as an instrument.

mod chasing;
mod memory;
mod moving;
mod streaming;

use crate::plan::{Depth, Situation};
use crate::stats::StoppingRule;
use crate::task::{Instrument, Task, TaskOutcome, Trouble};
use memory::ProbeMapping;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_machine::{parse_list, Machine};
use terrace_sys::{busy_time, now, own_cpu, zones, Allowance, CpuMeter, Root};
use terrace_types::{Bytes, CpuId, Nanos, NodeId, Tick};

/// What this process may use of `machine`, which must be the live one.
#[must_use]
pub fn situation(machine: Machine, root: &Root) -> Situation {
    let allowed = Allowance::current(root);
    let zones = zones::zones(root).unwrap_or_default();
    let free: BTreeMap<NodeId, Bytes> = machine
        .nodes
        .iter()
        .map(|n| (n.id, zones::free_memory(&zones, n.id, machine.page_size).free))
        .collect();
    // Free memory of one node alone leaves out page cache, which gives way; where there is one
    // node, what is available is the truth.
    let single = machine.nodes.iter().filter(|n| n.capacity > Bytes::ZERO).count() == 1;
    let free =
        if single { free.into_keys().map(|node| (node, allowed.memory)).collect() } else { free };
    let nodes = if allowed.nodes.is_empty() {
        machine.nodes.iter().map(|n| n.id).collect()
    } else {
        allowed.nodes
    };
    let siblings = |cpu: CpuId| {
        let text =
            root.text(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
        text.ok()
            .and_then(|t| parse_list(t.trim(), 8191).ok())
            .and_then(|l| l.first().copied())
            .unwrap_or(cpu.0)
    };
    let cpus = cores_first(&allowed.cpus, siblings);
    let last_cache = last_caches(&machine, root);
    Situation {
        machine,
        cpus,
        nodes,
        free,
        memory: allowed.memory,
        bound_by: allowed.bound_by,
        last_cache,
    }
}

/// One CPU of each core, then the second ones, and so on; `core` names a CPU's core.
fn cores_first(cpus: &[CpuId], core: impl Fn(CpuId) -> u32) -> Vec<CpuId> {
    let mut seen: BTreeMap<u32, u32> = BTreeMap::new();
    let mut ranked: Vec<(u32, CpuId)> = cpus
        .iter()
        .map(|cpu| {
            let turn = seen.entry(core(*cpu)).or_insert(0);
            *turn += 1;
            (*turn, *cpu)
        })
        .collect();
    ranked.sort();
    ranked.into_iter().map(|r| r.1).collect()
}

/// The last-level caches of the node that has most, together.
fn last_caches(machine: &Machine, root: &Root) -> Bytes {
    let Some(last) = machine.caches.last() else { return Bytes::ZERO };
    let of = |cpu: &CpuId| {
        (0..8).find_map(|index| {
            let folder = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
            let level = root.number(&format!("{folder}/level")).ok()?;
            (level == u64::from(last.level))
                .then(|| root.text(&format!("{folder}/shared_cpu_list")).ok())?
        })
    };
    let caches = machine
        .nodes
        .iter()
        .map(|n| n.cpus.iter().filter_map(of).collect::<BTreeSet<String>>().len());
    Bytes(last.size.get().saturating_mul(caches.max().unwrap_or(1).max(1) as u64))
}

/// The machine this runs on. Threads are kept on the CPUs of the situation; memory is held between
/// measurements and given back when this is dropped.
#[derive(Debug)]
pub struct LiveMachine<'a> {
    situation: &'a Situation,
    depth: Depth,
    stop: &'a AtomicBool,
    held: Option<ProbeMapping>,
    /// Whether CPU time is reported finely enough to measure by.
    fine: bool,
}

impl<'a> LiveMachine<'a> {
    /// An instrument that stops when `stop` is set.
    #[must_use]
    pub fn new(situation: &'a Situation, depth: Depth, stop: &'a AtomicBool) -> Self {
        Self { situation, depth, stop, held: None, fine: !CpuMeter::new().coarse() }
    }

    /// How often the short things are repeated.
    fn rule(&self) -> StoppingRule {
        match self.depth {
            Depth::Brief | Depth::Quick => {
                StoppingRule { least: 3, most: 9, enough: 0.01, limit: Nanos::millis(150) }
            }
            Depth::Full => {
                StoppingRule { least: 7, most: 31, enough: 0.005, limit: Nanos::millis(1_000) }
            }
        }
    }

    fn cpus(&self, node: NodeId, wanted: u32) -> Result<Vec<CpuId>, Trouble> {
        let mut cpus = self.situation.cpus_of(node);
        if (cpus.len() as u32) < wanted.max(1) {
            return Err(Trouble::FewCpus { node, wanted: wanted.max(1), there: cpus.len() as u32 });
        }
        if wanted <= 1 {
            // Where other work runs, a single thread finds the CPU with least of it.
            return Ok(
                crate::team::quietest(&cpus).map_or_else(|| cpus[..1].to_vec(), |cpu| vec![cpu])
            );
        }
        cpus.truncate(wanted as usize);
        Ok(cpus)
    }

    fn stopped(&self) -> Result<(), Trouble> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Trouble::Interrupted);
        }
        Ok(())
    }
}

impl Instrument for LiveMachine<'_> {
    fn measure(&mut self, task: &Task) -> Result<TaskOutcome, Trouble> {
        self.stopped()?;
        let outcome = match task {
            Task::Chase { initiator, target, pages, bytes } => {
                self.chase(*initiator, *target, *pages, *bytes)
            }
            Task::Misses { initiator, target, bytes, chains } => {
                self.misses(*initiator, *target, *bytes, *chains)
            }
            Task::Stream { initiator, target, kernel, threads, bytes } => {
                self.stream(*initiator, *target, *kernel, *threads, *bytes)
            }
            Task::Loaded { initiator, target, kernel, delay, threads, bytes } => {
                self.loaded(*initiator, *target, *kernel, *delay, *threads, *bytes)
            }
            Task::Interleave { initiator, parts, threads, bytes } => {
                self.interleave(*initiator, parts, *threads, *bytes)
            }
            Task::Move { method, from, to, caller, bytes, batch, pages, threads } => {
                let order = moving::Order {
                    method: *method,
                    from: *from,
                    to: *to,
                    bytes: *bytes,
                    batch: *batch,
                    pages: *pages,
                };
                self.moved(&order, *caller, *threads)
            }
            Task::Shootdown { initiator, others } => self.shootdown(*initiator, *others),
        }?;
        // What was under way when the user asked to stop is not whole.
        self.stopped()?;
        Ok(outcome)
    }

    fn now(&mut self) -> Tick {
        now()
    }

    fn cpu_time_of_others(&mut self) -> Option<Nanos> {
        let cpus = &self.situation.cpus;
        let own = own_cpu().get() / cpus.len().max(1) as u64;
        busy_time(&Root::live(), cpus).map(|busy| Nanos(busy.get().saturating_sub(own)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::ElementKernel;
    use crate::task::{Method, PageKind};

    #[test]
    fn one_cpu_of_each_core_comes_first() {
        let cpus: Vec<CpuId> = (0..8).map(CpuId).collect();
        let order = cores_first(&cpus, |c| c.0 % 4);
        assert_eq!(order, cpus);
        let order = cores_first(&cpus, |c| c.0 / 2);
        let numbers: Vec<u32> = order.iter().map(|c| c.0).collect();
        assert_eq!(numbers, [0, 2, 4, 6, 1, 3, 5, 7]);
    }

    fn here() -> Situation {
        let cpus = terrace_sys::own_cpus().unwrap();
        let mut here = crate::plan::tests::situation(&[(1, 24_000, 18_000)]);
        let nodes = zones::nodes_with_memory(&Root::live());
        here.machine.nodes[0].id = nodes[0];
        here.machine.nodes[0].cpus = cpus;
        situation(here.machine, &Root::live())
    }

    /// Each kind of task, small: figures are sane, not exact, for other work runs too.
    #[test]
    fn every_kind_of_task_works_on_one_node() {
        let here = here();
        let node = here.machine.nodes[0].id;
        if here.cpus_of(node).is_empty() {
            return println!("skipped: no CPU of the first node may be used");
        }
        let stop = AtomicBool::new(false);
        let mut live = LiveMachine::new(&here, Depth::Quick, &stop);
        let cpus = here.cpus_of(node).len() as u32;
        let (initiator, target, bytes) = (node, node, Bytes::mib(24));
        let chase = |pages, bytes| Task::Chase { initiator, target, pages, bytes };
        let near = live.measure(&chase(PageKind::Base, Bytes(8 << 10))).unwrap().figure.value;
        let far = live.measure(&chase(PageKind::Base, bytes)).unwrap().figure.value;
        assert!(
            near > 0.1 && near < 50.0 && far > near && far < 10_000.0,
            "{near} ns and {far} ns a load"
        );
        match live.measure(&chase(PageKind::Huge, bytes)) {
            Ok(huge) => assert!(huge.figure.value > near * 0.5),
            Err(e) => println!("skipped: {e}"),
        }
        let many = live.measure(&Task::Misses { initiator, target, bytes, chains: 8 }).unwrap();
        assert!(many.figure.value > 0.0);
        for kernel in
            [ElementKernel::Copy, ElementKernel::Triad, ElementKernel::Read, ElementKernel::Mix4]
        {
            let task = Task::Stream { initiator, target, kernel, threads: cpus.min(2), bytes };
            let got = live.measure(&task).unwrap();
            assert!(
                got.figure.value > 1e8 && got.figure.value < 1e13,
                "{task}: {}",
                got.figure.value
            );
        }
        if cpus > 1 {
            let task = Task::Loaded {
                initiator,
                target,
                kernel: ElementKernel::Mix2,
                delay: 64,
                threads: 1,
                bytes,
            };
            match live.measure(&task) {
                Ok(got) => {
                    assert!(got.figure.value > 0.5 && got.second.unwrap().value > 1e7, "{got:?}")
                }
                Err(Trouble::NoLoad { threads: 1 }) => {
                    println!("skipped: the machine is too busy to make a load")
                }
                Err(e) => panic!("{e}"),
            }
        }
        let parts = vec![(node, 3), (node, 1)];
        match live.measure(&Task::Interleave { initiator, parts, threads: 1, bytes }) {
            Ok(got) => assert!(got.figure.value > 1e8),
            Err(e) => println!("skipped: {e}"),
        }
        let moving = |method, threads| Task::Move {
            method,
            from: node,
            to: node,
            caller: node,
            bytes: Bytes::mib(2),
            batch: 64,
            pages: PageKind::Base,
            threads,
        };
        for method in Method::ALL {
            match live.measure(&moving(method, 1)) {
                Ok(got) => assert!(got.figure.value > 1e6, "{method:?}: {got:?}"),
                Err(e) => println!("skipped: {method:?}: {e}"),
            }
        }
        let alone = live.measure(&Task::Shootdown { initiator, others: 0 }).unwrap();
        assert!(alone.figure.value > 10.0 && alone.figure.value < 1e8, "{alone:?}");
        let too_many = live.measure(&Task::Shootdown { initiator, others: 9000 });
        assert!(matches!(too_many, Err(Trouble::FewCpus { .. })));
    }

    #[test]
    fn a_stop_is_heard_before_and_during_a_task() {
        let here = here();
        let node = here.machine.nodes[0].id;
        let stop = AtomicBool::new(true);
        let mut live = LiveMachine::new(&here, Depth::Full, &stop);
        assert_eq!(
            live.measure(&Task::Shootdown { initiator: node, others: 0 }),
            Err(Trouble::Interrupted)
        );
    }
}
