//! Plans for machines large, small and odd.

use super::*;
use terrace_machine::{
    preset, CoreModel, DaemonCosts, Energy, KernelCosts, MemoryKind, MigrationCost, Node, TlbSpec,
};

/// A machine of nodes given as (CPUs, capacity in MiB, free in MiB).
pub(crate) fn situation(nodes: &[(u32, u64, u64)]) -> Situation {
    let mut next = 0;
    let node = |(id, (cpus, capacity, _)): (usize, &(u32, u64, u64))| {
        let own = (next..next + cpus).map(CpuId).collect();
        next += cpus;
        Node {
            id: NodeId(id as u16),
            kind: MemoryKind::Dram,
            cpus: own,
            capacity: Bytes::mib(*capacity),
            reserved: Bytes::ZERO,
            in_use: Bytes::ZERO,
            block: Bytes(64),
            package: None,
            energy: Energy::default(),
        }
    };
    let machine = Machine {
        name: "fake".to_owned(),
        page_size: Bytes(4096),
        core: CoreModel::default(),
        tlb: TlbSpec::default(),
        caches: Vec::new(),
        nodes: nodes.iter().enumerate().map(node).collect(),
        links: Vec::new(),
        migration: MigrationCost::default(),
        kernel: KernelCosts::default(),
        daemon: DaemonCosts::default(),
        loaded: Vec::new(),
        far: Vec::new(),
        notes: Vec::new(),
    };
    Situation {
        cpus: machine.nodes.iter().flat_map(|n| n.cpus.clone()).collect(),
        nodes: machine.nodes.iter().filter(|n| n.capacity > Bytes::ZERO).map(|n| n.id).collect(),
        free: nodes.iter().enumerate().map(|(i, n)| (NodeId(i as u16), Bytes::mib(n.2))).collect(),
        memory: Bytes::gib(64),
        bound_by: "memory available".to_owned(),
        last_cache: Bytes::mib(32),
        machine,
    }
}

fn bytes_of(task: &Task) -> Bytes {
    match task {
        Task::Chase { bytes, .. }
        | Task::Misses { bytes, .. }
        | Task::Stream { bytes, .. }
        | Task::Loaded { bytes, .. }
        | Task::Interleave { bytes, .. }
        | Task::Move { bytes, .. } => *bytes,
        Task::Shootdown { .. } => Bytes::ZERO,
    }
}

fn check(situation: &Situation, plan: &ProbePlan) {
    for step in &plan.steps {
        let (initiator, target) = step.task.pair();
        let cpus = situation.cpus_of(initiator).len() as u32;
        assert!(cpus > 0, "{}", step.task);
        if let Some(target) = target {
            assert!(bytes_of(&step.task) <= situation.space(target), "{}", step.task);
        }
        let wanted = match step.task {
            Task::Stream { threads, .. } | Task::Move { threads, .. } => threads,
            Task::Loaded { threads, .. } => threads + 1,
            Task::Shootdown { others, .. } => others + 1,
            _ => 1,
        };
        assert!(wanted <= cpus && wanted > 0, "{}", step.task);
    }
}

#[test]
fn one_node_is_measured_alone_and_says_so() {
    let situation = situation(&[(2, 24_000, 18_000)]);
    for depth in [Depth::Quick, Depth::Full] {
        let plan = plan(&situation, depth);
        check(&situation, &plan);
        assert!(
            plan.notes.iter().any(|n| n.contains("node 0") && n.contains("alone")),
            "{:?}",
            plan.notes
        );
        assert!(!plan.steps.iter().any(|s| matches!(s.task, Task::Interleave { .. })));
        assert!(!plan
            .steps
            .iter()
            .any(|s| matches!(&s.task, Task::Move { method, .. } if method.moves_pages())));
        assert!(plan.steps.iter().any(|s| matches!(s.task, Task::Loaded { .. })));
    }
}

#[test]
fn one_cpu_has_no_loaded_latency() {
    let situation = situation(&[(1, 4_000, 2_000)]);
    let plan = plan(&situation, Depth::Full);
    check(&situation, &plan);
    assert!(!plan.steps.iter().any(|s| matches!(s.task, Task::Loaded { .. })));
    assert!(plan.notes.iter().any(|n| n.contains("One CPU")));
}

#[test]
fn what_cannot_be_measured_is_left_out_with_its_reason() {
    // Node 1 is full, node 2 has no memory, node 3 no CPUs, node 4 is outside the cpuset.
    let mut situation = situation(&[
        (4, 8_000, 4_000),
        (4, 8_000, 12),
        (2, 0, 0),
        (0, 8_000, 4_000),
        (4, 8_000, 8_000),
    ]);
    situation.nodes.retain(|n| *n != NodeId(4));
    situation.cpus.retain(|c| c.0 < 10);
    let plan = plan(&situation, Depth::Full);
    check(&situation, &plan);
    let with = |node: u16| {
        plan.steps.iter().any(|s| {
            s.task.pair().1 == Some(NodeId(node))
                || matches!(&s.task, Task::Move { to, .. } if to.0 == node)
        })
    };
    assert_eq!([0, 1, 2, 3, 4].map(with), [true, false, false, true, false]);
    assert!(
        plan.notes.iter().any(|n| n.contains("Node 1") && n.contains("12 MiB are free there")),
        "{:?}",
        plan.notes
    );
    assert!(plan.notes.iter().any(|n| n.contains("Node 4") && n.contains("cpuset")));
    assert_eq!(situation.initiators(), [NodeId(0), NodeId(1), NodeId(2)]);
}

#[test]
fn a_memory_limit_bounds_sizes_or_ends_it() {
    let mut situation = situation(&[(2, 24_000, 18_000)]);
    situation.memory = Bytes::mib(100);
    situation.bound_by = "limit of control group /x".to_owned();
    let bounded = plan(&situation, Depth::Full);
    check(&situation, &bounded);
    assert!(bounded.steps.iter().all(|s| bytes_of(&s.task) <= Bytes::mib(50)));
    situation.memory = Bytes::mib(10);
    let none = plan(&situation, Depth::Full);
    assert!(none.steps.iter().all(|s| matches!(s.task, Task::Shootdown { .. })));
    assert!(none.notes.iter().any(|n| n.contains("control group")), "{:?}", none.notes);
}

#[test]
fn a_quick_plan_keeps_its_time_on_24_nodes_and_the_essential_comes_first() {
    let nodes: Vec<(u32, u64, u64)> =
        (0..24).map(|i| (if i < 12 { 16 } else { 0 }, 64_000, 60_000)).collect();
    let situation = situation(&nodes);
    let quick = plan(&situation, Depth::Quick);
    check(&situation, &quick);
    let expected: Nanos = quick.steps.iter().map(|s| s.expected).sum();
    assert!(expected <= Nanos::secs(40), "{expected}");
    assert!(quick.notes.iter().any(|n| n.contains("want of time")));
    assert!(quick.steps.windows(2).all(|w| w[0].rank <= w[1].rank));
    let full = plan(&situation, Depth::Full);
    let essential = full.steps.iter().filter(|s| s.rank == 0).count();
    assert_eq!(essential, 12 * 24 * 3);
}

#[test]
fn a_small_machine_fits_a_quick_plan_whole() {
    let quick = plan(&situation(&[(2, 24_000, 18_000)]), Depth::Quick);
    assert!(!quick.notes.iter().any(|n| n.contains("want of time")), "{:?}", quick.notes);
}

#[test]
fn a_brief_plan_has_what_a_machine_file_needs_and_a_small_node_is_in_it() {
    // Space of 26 MiB on node 1 and of 3 on node 2, caches of 16.
    let mut situation = situation(&[(2, 1_000, 800), (0, 64, 52), (0, 32, 6)]);
    situation.last_cache = Bytes::mib(16);
    situation.machine.caches = preset("lab-cxl").unwrap().caches;
    let brief = plan(&situation, Depth::Brief);
    check(&situation, &brief);
    let kinds = |target: u16| {
        let here = brief.steps.iter().filter(|s| s.task.pair().1 == Some(NodeId(target)));
        here.map(|s| matches!(s.task, Task::Chase { .. })).collect::<Vec<bool>>()
    };
    // Whether the small node's figures are memory's two more regions show, with pages of both
    // kinds.
    let witnessed = vec![true, true, true, true, true, true, false, false];
    assert_eq!((kinds(0), kinds(1)), (vec![true, true, false, false], witnessed));
    assert!(kinds(2).is_empty() && brief.steps.len() == 12);
    assert!(
        brief.notes.iter().any(|n| n.contains("Node 1 is small") && n.contains("1.6 times")),
        "{:?}",
        brief.notes
    );
    assert!(
        brief.notes.iter().any(|n| n.contains("Node 2 is left out: 6 MiB")),
        "{:?}",
        brief.notes
    );
    assert!(!brief.notes.iter().any(|n| n.contains("Node 0")));
}

#[test]
fn presets_can_be_planned_for() {
    for name in ["lab-cxl", "lab-hbm", "lab-snc4", "dual-socket"] {
        let machine = preset(name).expect("a preset");
        let situation = Situation {
            cpus: machine.nodes.iter().flat_map(|n| n.cpus.clone()).collect(),
            nodes: machine.nodes.iter().map(|n| n.id).collect(),
            free: machine.nodes.iter().map(|n| (n.id, Bytes(n.capacity.get() / 10 * 7))).collect(),
            memory: Bytes::gib(64),
            bound_by: String::new(),
            last_cache: machine.caches.last().map_or(Bytes::ZERO, |c| c.size),
            machine,
        };
        let plan = plan(&situation, Depth::Quick);
        check(&situation, &plan);
        assert!(!plan.steps.is_empty(), "{name}");
        if ["lab-cxl", "lab-hbm"].contains(&name) {
            assert!(
                plan.steps
                    .iter()
                    .any(|s| matches!(&s.task, Task::Move { method: Method::MovePages, .. })),
                "{name}"
            );
            assert!(plan.steps.iter().any(|s| matches!(s.task, Task::Interleave { .. })), "{name}");
        }
    }
}

#[test]
fn ladders_and_counts() {
    let sizes = ladder(Bytes(4096), Bytes(32 << 10), 2);
    assert_eq!((sizes.len(), sizes[1], sizes[6]), (7, Bytes(5760), Bytes(32 << 10)));
    assert_eq!(ladder(Bytes(4096), Bytes(1000), 4), [Bytes(896)]);
    assert_eq!(counts(1, Depth::Full), [1]);
    assert_eq!(counts(12, Depth::Quick), [1, 2, 4, 8, 12]);
    assert_eq!(counts(12, Depth::Full), [1, 2, 3, 4, 5, 6, 7, 8, 12]);
}
