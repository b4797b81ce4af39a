//! What to measure on a machine, within what this process may use and the time there is. Pure.

use crate::kernels::ElementKernel;
use crate::reach::{plenty, witnesses};
use crate::task::{Method, PageKind, Task};
use std::collections::BTreeMap;
use terrace_machine::Machine;
use terrace_types::{Bytes, CpuId, Nanos, NodeId};

/// The machine as this process may use it.
#[derive(Debug, Clone, PartialEq)]
pub struct Situation {
    /// As it describes itself.
    pub machine: Machine,
    /// CPUs that may be used, one of each core first.
    pub cpus: Vec<CpuId>,
    /// Nodes whose memory may be used.
    pub nodes: Vec<NodeId>,
    /// Free memory of each node, above the kernel's reserves.
    pub free: BTreeMap<NodeId, Bytes>,
    /// Memory that may be had in all.
    pub memory: Bytes,
    /// What sets that bound.
    pub bound_by: String,
    /// All last-level caches of a node together.
    pub last_cache: Bytes,
}

impl Situation {
    /// CPUs of a node that may be used.
    #[must_use]
    pub fn cpus_of(&self, node: NodeId) -> Vec<CpuId> {
        let own = self.machine.node(node).map_or(&[][..], |n| &n.cpus);
        self.cpus.iter().copied().filter(|cpu| own.contains(cpu)).collect()
    }

    /// Nodes with CPUs that may be used.
    #[must_use]
    pub fn initiators(&self) -> Vec<NodeId> {
        self.machine.nodes.iter().map(|n| n.id).filter(|n| !self.cpus_of(*n).is_empty()).collect()
    }

    /// What one measurement may take of a node: half of what is free there and of what may be had.
    #[must_use]
    pub fn space(&self, node: NodeId) -> Bytes {
        Bytes(self.free.get(&node).copied().unwrap_or(Bytes::ZERO).min(self.memory).get() / 2)
    }
}

/// How much to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// What a machine file needs, nothing else: where instructions are dear, as in the lab, or time
    /// is.
    Brief,
    /// In less than a minute.
    Quick,
    /// All of it.
    Full,
}

/// A task with what is expected of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeStep {
    /// The task.
    pub task: Task,
    /// How long it may take.
    pub expected: Nanos,
    /// 0: the machine file needs it; larger: left out first when time is short.
    pub rank: u8,
}

/// What to measure, in order, and what cannot be, in sentences.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProbePlan {
    /// The tasks.
    pub steps: Vec<ProbeStep>,
    /// What is left out, and why.
    pub notes: Vec<String>,
    /// Last-level caches of a node's CPUs together; zero where they are not reported.
    pub caches: Bytes,
}

/// A measurement of memory needs so much at least.
const LEAST_SPACE: Bytes = Bytes::mib(8);
/// And takes at most.
const MAX_ROOM: Bytes = Bytes::gib(2);
/// Expected of a quick run; the rest of its minute is for the unexpected.
const QUICK: Nanos = Nanos::secs(40);

/// Sizes from `from` to `to`, so many each doubling, whole elements of the chain; `to` is the last.
#[must_use]
pub fn ladder(from: Bytes, to: Bytes, per_octave: u32) -> Vec<Bytes> {
    let element = crate::chase::ELEMENT as u64;
    let octaves = (to.get().max(1) as f64 / from.get().max(1) as f64).log2().max(0.0);
    let steps = (octaves * f64::from(per_octave)).floor() as i32;
    let size = |k: i32| from.get() as f64 * 2f64.powf(f64::from(k) / f64::from(per_octave));
    let mut sizes: Vec<Bytes> =
        (0..=steps).map(|k| Bytes((size(k) / element as f64).round() as u64 * element)).collect();
    let end = Bytes(to.get() / element * element);
    sizes.retain(|s| *s < end);
    sizes.push(end);
    sizes
}

/// Numbers of threads to try, up to `all`.
#[must_use]
pub fn counts(all: u32, depth: Depth) -> Vec<u32> {
    let mut counts = vec![1];
    while let Some(last) = counts.last().copied().filter(|l| *l < all) {
        let next = match depth {
            Depth::Brief | Depth::Quick => last * 2,
            Depth::Full if last < 8 => last + 1,
            Depth::Full => last * 3 / 2,
        };
        counts.push(next.min(all));
    }
    counts
}

/// Bytes that stream arrays should have together: each of three four times the caches, as STREAM
/// asks. A brief plan has kernels of one array only.
fn arrays(situation: &Situation, node: NodeId, depth: Depth) -> Bytes {
    let times = if depth == Depth::Brief { 4 } else { 12 };
    let least = if depth == Depth::Brief { 24 << 20 } else { 64 << 20 };
    let wanted = Bytes((situation.last_cache.get() * times).clamp(least, MAX_ROOM.get()));
    wanted.min(situation.space(node))
}

/// Region whose latency is that of memory: few of its lines are in a cache by chance.
fn beyond(situation: &Situation, node: NodeId, depth: Depth) -> Bytes {
    let times = if depth == Depth::Full { 32 } else { 16 };
    let wanted = Bytes((situation.last_cache.get() * times).clamp(64 << 20, MAX_ROOM.get()));
    wanted.min(situation.space(node))
}

/// Makes the plan.
#[must_use]
pub fn plan(situation: &Situation, depth: Depth) -> ProbePlan {
    let mut plan = ProbePlan { caches: situation.last_cache, ..ProbePlan::default() };
    let initiators = situation.initiators();
    let targets = targets(situation, depth, &mut plan.notes);
    if situation.last_cache == Bytes::ZERO {
        plan.notes.push(
            "The sizes of the caches are not reported; they are found by the latency curve alone."
                .to_owned(),
        );
    }
    if targets.len() == 1 {
        plan.notes.push(format!(
            "One node with memory can be used (node {}): it is measured alone, and nothing can be \
                moved.",
            targets[0]
        ));
    }
    let alone: Vec<NodeId> =
        initiators.iter().copied().filter(|i| situation.cpus_of(*i).len() < 2).collect();
    if !alone.is_empty() && depth != Depth::Brief {
        let list: Vec<String> = alone.iter().map(ToString::to_string).collect();
        plan.notes.push(format!(
            "One CPU can be used on node {}: no loaded latency, for one CPU cannot load memory \
                and time it.",
            list.join(", ")
        ));
    }
    for initiator in &initiators {
        for target in &targets {
            pair(&mut plan.steps, situation, depth, *initiator, *target, &initiators);
        }
        interleaved(&mut plan.steps, situation, depth, *initiator, &targets);
        let others = situation.cpus_of(*initiator).len() as u32 - 1;
        let first = initiators.first() == Some(initiator);
        if first || depth == Depth::Full {
            let mut tries = vec![0];
            tries.extend(counts(others, depth).into_iter().filter(|_| others > 0));
            for others in tries {
                let task = Task::Shootdown { initiator: *initiator, others };
                plan.steps.push(ProbeStep { task, expected: Nanos::millis(250), rank: 2 });
            }
        }
    }
    moves(&mut plan.steps, situation, depth, &initiators, &targets);
    fit(&mut plan, depth);
    plan
}

/// Nodes whose memory can be measured; of the others, why not.
fn targets(situation: &Situation, depth: Depth, notes: &mut Vec<String>) -> Vec<NodeId> {
    let mut targets = Vec::new();
    for node in situation.machine.nodes.iter().filter(|n| n.capacity > Bytes::ZERO) {
        let space = situation.space(node.id);
        if !situation.nodes.contains(&node.id) {
            notes.push(format!(
                "Node {} is left out: the cpuset of this process does not allow it.",
                node.id
            ));
        } else if space < LEAST_SPACE {
            let free = situation.free.get(&node.id).copied().unwrap_or(Bytes::ZERO);
            // On one node both are what is available or allowed.
            let why = if free < situation.memory { "free there" } else { "allowed" };
            let have = free.min(situation.memory);
            let bound =
                if why == "allowed" { format!(" ({})", situation.bound_by) } else { String::new() };
            notes.push(format!(
                "Node {} is left out: {have} are {why}{bound}, and a measurement takes {} and \
                    leaves as much.",
                node.id, LEAST_SPACE
            ));
        } else {
            targets.push(node.id);
            notes.extend(small(situation, depth, node.id));
        }
    }
    targets
}

/// What is to be known of a node that has less space than its measurements would take.
fn small(situation: &Situation, depth: Depth, node: NodeId) -> Option<String> {
    let cache = situation.last_cache.get();
    let largest = arrays(situation, node, depth).max(beyond(situation, node, depth));
    (cache > 0 && !plenty(largest, situation.last_cache)).then(|| {
        let limited = situation.free.get(&node).is_some_and(|free| situation.memory <= *free);
        let small = if limited {
            format!("has little to spare ({})", situation.bound_by)
        } else {
            "is \
                small"
                .to_owned()
        };
        format!(
            "Node {node} {small}: no region measured there is larger than {largest}, {:.1} times \
                the caches; hits in \
             them may make its figures better than its memory.",
            largest.get() as f64 / cache as f64
        )
    })
}

fn pair(
    steps: &mut Vec<ProbeStep>,
    situation: &Situation,
    depth: Depth,
    initiator: NodeId,
    target: NodeId,
    initiators: &[NodeId],
) {
    let all = situation.cpus_of(initiator).len() as u32;
    let bytes = arrays(situation, target, depth);
    let memory = beyond(situation, target, depth);
    // Curves of every pair take long and differ little between like nodes: quick runs have them
    // from the first initiator.
    let first = initiators.first() == Some(&initiator);
    let more = if first { 1 } else { 3 };
    let setup = |bytes: Bytes| Nanos(bytes.get() * 2 + 120_000_000);
    let chase = |pages, bytes| Task::Chase { initiator, target, pages, bytes };
    let each = if depth == Depth::Full { 1_500 } else { 300 };
    let stream =
        |kernel: ElementKernel, threads| Task::Stream { initiator, target, kernel, threads, bytes };
    let mut push = |task, expected, rank| steps.push(ProbeStep { task, expected, rank });
    push(chase(PageKind::Huge, memory), setup(memory), 0);
    if depth == Depth::Brief {
        // Nothing else would say what the latency is where huge pages are not to be had.
        push(chase(PageKind::Base, memory), setup(memory), 0);
    }
    if !plenty(memory.min(bytes), situation.last_cache) {
        let last = situation.machine.caches.last().map_or(Bytes::ZERO, |cache| cache.size);
        for size in witnesses(memory, last).into_iter().filter(|s| *s > Bytes::ZERO) {
            push(chase(PageKind::Huge, size), setup(size), 0);
            push(chase(PageKind::Base, size), setup(size), 0);
        }
    }
    for kernel in [ElementKernel::Read, ElementKernel::Write] {
        push(stream(kernel, all), Nanos::millis(each), 0);
    }
    let per_octave = if depth == Depth::Full { 4 } else { 2 };
    // Far curves show the same caches as near ones.
    let curve = if depth != Depth::Full && initiator != target { more + 1 } else { more };
    for (pages, rank) in [(PageKind::Huge, curve), (PageKind::Base, curve + 1)] {
        for size in ladder(Bytes(4096), memory, per_octave) {
            if size != memory || (pages == PageKind::Base && depth != Depth::Brief) {
                push(chase(pages, size), setup(size), rank);
            }
        }
    }
    for chains in
        crate::chase::CHAINS.into_iter().filter(|c| depth == Depth::Full || c % 4 == 0 || *c == 1)
    {
        push(
            Task::Misses { initiator, target, bytes: memory, chains: chains as u32 },
            Nanos::millis(150),
            more,
        );
    }
    let tries = counts(all, depth);
    for kernel in
        ElementKernel::STREAM.into_iter().chain(ElementKernel::MIXES).chain([ElementKernel::Write])
    {
        for threads in tries.iter().copied() {
            if threads == all && matches!(kernel, ElementKernel::Read | ElementKernel::Write) {
                continue;
            }
            let rank = if threads == all { more } else { more + 1 };
            push(stream(kernel, threads), Nanos::millis(each), rank);
        }
    }
    if all >= 2 {
        let delays: &[u32] = match depth {
            Depth::Brief | Depth::Quick => &[0, 32, 128, 512],
            Depth::Full => &[0, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 4096],
        };
        let mixes: &[ElementKernel] = match depth {
            Depth::Brief | Depth::Quick => &[ElementKernel::Read, ElementKernel::Mix2],
            Depth::Full => &ElementKernel::MIXES,
        };
        for kernel in mixes {
            for delay in delays {
                let task = Task::Loaded {
                    initiator,
                    target,
                    kernel: *kernel,
                    delay: *delay,
                    threads: all - 1,
                    bytes,
                };
                push(task, Nanos::millis(each), more);
            }
        }
    }
}

/// Two nodes that see different figures, dealt out in several shares.
fn interleaved(
    steps: &mut Vec<ProbeStep>,
    situation: &Situation,
    depth: Depth,
    initiator: NodeId,
    targets: &[NodeId],
) {
    let all = situation.cpus_of(initiator).len() as u32;
    let near = targets.iter().copied().find(|t| *t == initiator).or(targets.first().copied());
    let weights: &[(u32, u32)] = match depth {
        Depth::Brief | Depth::Quick => &[(1, 1), (3, 1)],
        Depth::Full => &[(1, 3), (1, 1), (2, 1), (3, 1), (4, 1), (9, 1), (19, 1)],
    };
    for far in targets.iter().copied().filter(|t| Some(*t) != near) {
        let Some(near) = near else { return };
        let bytes = arrays(situation, near, depth).min(arrays(situation, far, depth));
        let tries = if depth == Depth::Full { counts(all, Depth::Quick) } else { vec![all] };
        for threads in tries {
            for (of_near, of_far) in weights {
                let parts = vec![(near, *of_near), (far, *of_far)];
                let task = Task::Interleave { initiator, parts, threads, bytes };
                steps.push(ProbeStep { task, expected: Nanos::millis(700), rank: 1 });
            }
        }
    }
}

fn moves(
    steps: &mut Vec<ProbeStep>,
    situation: &Situation,
    depth: Depth,
    initiators: &[NodeId],
    targets: &[NodeId],
) {
    let Some(first) = initiators.first().copied() else { return };
    let mut push = |task: Task, rank| {
        let bytes = if let Task::Move { bytes, .. } = &task { bytes.get() } else { 0 };
        steps.push(ProbeStep { task, expected: Nanos(bytes * 8 + 100_000_000), rank });
    };
    let mut pairs: Vec<(NodeId, NodeId)> = Vec::new();
    for from in targets {
        pairs.extend(targets.iter().filter(|to| *to != from).map(|to| (*from, *to)));
    }
    let lonely = pairs.is_empty();
    if lonely {
        pairs.extend(targets.iter().map(|t| (*t, *t)));
    }
    for (index, (from, to)) in pairs.into_iter().enumerate() {
        let space = situation.space(from).min(situation.space(to)).get();
        let rank = if index < 2 { 1 } else { 3 };
        let (most, octaves) = if depth == Depth::Full { (1 << 30, 2) } else { (16 << 20, 4) };
        let sizes: Vec<u64> = (0..)
            .map(|k| 4096_u64 << (octaves * k))
            .take_while(|s| *s <= most.min(space))
            .collect();
        let usual = Bytes((16 << 20).min(space));
        let of = |method, caller, bytes: Bytes, batch, pages, threads| Task::Move {
            method,
            from,
            to,
            caller,
            bytes,
            batch,
            pages,
            threads,
        };
        for method in Method::ALL.into_iter().filter(|m| !(lonely && m.moves_pages())) {
            for bytes in &sizes {
                push(of(method, first, Bytes(*bytes), u32::MAX, PageKind::Base, 1), rank);
            }
            push(of(method, first, usual, u32::MAX, PageKind::Huge, 1), rank + 1);
            for threads in
                counts(situation.cpus_of(first).len() as u32, Depth::Quick).into_iter().skip(1)
            {
                push(of(method, first, usual, u32::MAX, PageKind::Base, threads), rank + 1);
            }
            if method.moves_pages() {
                for batch in [1, 8, 64, 512] {
                    push(
                        of(method, first, Bytes(4 << 20).min(usual), batch, PageKind::Base, 1),
                        rank,
                    );
                }
                for caller in initiators.iter().copied().skip(1).filter(|c| *c == from || *c == to)
                {
                    push(of(method, caller, usual, u32::MAX, PageKind::Base, 1), rank + 1);
                }
            }
        }
    }
}

/// Orders by rank; a quick plan loses what does not fit its time, a brief one what a machine file
/// does not need, and both say so.
fn fit(plan: &mut ProbePlan, depth: Depth) {
    plan.steps.sort_by_key(|s| s.rank);
    if depth == Depth::Full {
        return;
    }
    if depth == Depth::Brief {
        plan.steps.retain(|s| s.rank == 0);
        plan.notes.push(
            "Latency and bandwidth of each pair of nodes alone are measured: run without --brief \
                for more."
                .to_owned(),
        );
        return;
    }
    let mut spent = Nanos::ZERO;
    let all = plan.steps.len();
    let mut space = true;
    plan.steps.retain(|step| {
        spent += step.expected;
        space &= spent <= QUICK;
        space
    });
    let left = all - plan.steps.len();
    if left > 0 {
        plan.notes.push(format!(
            "{left} of {all} measurements are left out for want of time: run without --quick."
        ));
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
pub(crate) mod tests;
