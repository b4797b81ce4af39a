//! Managed memory on GPUs of a fake driver.

use super::fake::FakeGpus;
use super::*;
use crate::attributes::{Binding, Mismatch};
use crate::commit::Scope;
use crate::fake::FakeKernel;
use crate::memory::Memory;
use std::collections::BTreeSet;
use terrace_machine::{preset, RankAttribute};
use terrace_types::CpuId;

const MIB: u64 = 1 << 20;
const RANK: usize = 0x4000;

fn with(gpus: FakeGpus, machine: &str) -> (Memory, Arc<FakeGpus>, Arc<FakeKernel>) {
    let machine = preset(machine).unwrap();
    let kernel = Arc::new(FakeKernel::from_machine(&machine));
    let classes =
        Classes::from_machine(machine, RankAttribute::Bandwidth, &kernel.nodes(), None).unwrap();
    let gpus = Arc::new(gpus);
    (Memory::with_gpus(kernel.clone(), classes, gpus.clone()).unwrap(), gpus, kernel)
}

fn two() -> (Memory, Arc<FakeGpus>) {
    let (memory, gpus, _) =
        with(FakeGpus::with_sizes(&[Bytes::mib(64), Bytes::mib(64)]), "lab-cxl");
    (memory, gpus)
}

fn on(index: Index) -> Attributes {
    Attributes {
        places: vec![ClassPlacement { class: ClassId::CUDA_MANAGED, index }],
        ..Attributes::default()
    }
}

fn these(indices: &[u16]) -> Attributes {
    on(Index::These(indices.to_vec()))
}

fn strict(wish: Attributes) -> Attributes {
    Attributes { mismatch: Mismatch::Error, ..wish }
}

fn committed(wish: Attributes, name: &str, priority: u32) -> Attributes {
    Attributes { binding: Binding::OnCommit, name: name.to_owned(), priority, ..wish }
}

fn span(at: usize, mib: u64) -> Range<usize> {
    at..at + (mib * MIB) as usize
}

#[test]
fn the_local_gpu_its_peers_and_the_host_are_reachable() {
    let (memory, gpus) = two();
    let at = memory.allocate(Bytes::mib(8), these(&[1])).unwrap();
    let said = [
        "allocate 2048 on 1",
        "prefer 0..2048 GPU 1",
        "reach 0..2048 from the host true",
        "reach 0..2048 from GPU 0 true",
    ];
    assert_eq!(gpus.calls(), said, "in this order: the local GPU before those that reach it");
    let row = memory.describe(at).unwrap();
    assert_eq!((row.got, row.wanted), (vec![(RANK, Bytes::mib(8))], vec![RANK]));
    assert_eq!(row.why, "8 MiB are at home on GPU 1");
    assert_eq!((memory.lookup(at + 5000), memory.size_of(at)), (Some(at), Some(Bytes::mib(8))));
    assert_eq!(gpus.brought(1), 0, "nothing was touched");
    let used = memory.gpu_use(1).unwrap();
    assert_eq!((used.bound, used.blocks, used.free), (Bytes::mib(8), 1, Bytes::mib(64)));
    assert_eq!(memory.gpu_use(0).unwrap().bound, Bytes::ZERO);
    memory.free(at).unwrap();
    assert!(matches!(memory.free(at), Err(AllocError::NotOurs { .. })));
    assert_eq!((gpus.blocks(), memory.lookup(at)), (0, None));
}

#[test]
fn several_gpus_share_by_touch_or_by_the_split() {
    let (memory, gpus) = two();
    let at = memory.allocate(Bytes::mib(8), on(Index::All)).unwrap();
    assert_eq!(gpus.advised(at).home, None);
    assert_eq!(
        memory.describe(at).unwrap().why,
        "8 MiB lie with whichever of GPUs 0-1 touches them"
    );
    let equal = Attributes { split: NodeSplit::Equal, ..on(Index::All) };
    let at = memory.allocate(Bytes::mib(8), equal).unwrap();
    assert_eq!(gpus.at_home(span(at, 4), Some(Home::Gpu(0))), 4 * MIB);
    assert_eq!(gpus.at_home(span(at + (4 << 20), 4), Some(Home::Gpu(1))), 4 * MIB);
    let places = vec![these(&[1]).places.remove(0), these(&[0]).places.remove(0)];
    let weighted =
        Attributes { places, split: NodeSplit::Weighted(vec![3, 1]), ..Attributes::default() };
    let at = memory.allocate(Bytes::mib(8), weighted).unwrap();
    assert_eq!(gpus.at_home(span(at, 6), Some(Home::Gpu(1))), 6 * MIB);
    let spill = Attributes { split: NodeSplit::SpillOver, ..on(Index::All) };
    // Promised: 4 and 4 by touch, 4 and 2, 4 and 6.
    let at = memory.allocate(Bytes::mib(60), spill).unwrap();
    assert_eq!(gpus.at_home(span(at, 60), Some(Home::Gpu(0))), 54 * MIB);
    assert_eq!(gpus.at_home(span(at, 60), Some(Home::Gpu(1))), 6 * MIB);
}

#[test]
fn what_strict_accepts_was_brought_and_what_does_not_fit_is_refused() {
    let (memory, gpus) = two();
    gpus.take(0, Bytes::mib(24));
    let at = memory.allocate(Bytes::mib(32), strict(these(&[0]))).unwrap();
    assert_eq!(gpus.brought(0), 32 * MIB);
    let refused = memory.allocate(Bytes::mib(16), strict(these(&[0]))).unwrap_err();
    assert!(
        matches!(refused, AllocError::NoSpaceOnGpus { free, .. } if free == Bytes::mib(8)),
        "{refused}"
    );
    assert_eq!(gpus.blocks(), 1, "the refused block was kept");
    // Over both it fits: one after the other.
    let both = memory.allocate(Bytes::mib(16), strict(on(Index::All))).unwrap();
    assert_eq!((gpus.brought(0), gpus.brought(1)), (40 * MIB, 8 * MIB));
    memory.free(both).unwrap();
    memory.free(at).unwrap();
    assert_eq!((gpus.brought(0), gpus.brought(1)), (0, 0));
    // Bound and not brought: promised.
    memory.allocate(Bytes::mib(36), these(&[1])).unwrap();
    assert!(memory.allocate(Bytes::mib(36), strict(these(&[1]))).is_err());
}

#[test]
fn fallback_stays_managed_and_overflow_goes_to_the_host() {
    let (memory, gpus) = two();
    let at = memory.allocate(Bytes::mib(80), these(&[0])).unwrap();
    assert_eq!(gpus.at_home(span(at, 80), Some(Home::Gpu(0))), 64 * MIB);
    assert_eq!(gpus.at_home(span(at, 80), Some(Home::Host)), 16 * MIB);
    let last = gpus.advised(at + (79 << 20));
    assert_eq!(last.reach, BTreeSet::from([Home::Gpu(0)]), "the GPU that asked reaches it");
    let row = memory.describe(at).unwrap();
    assert_eq!(row.got, [(RANK, Bytes::mib(64))]);
    assert!(
        row.why.contains("16 MiB found no free space there and lie with the host"),
        "{}",
        row.why
    );
}

#[test]
fn a_commit_weighs_gpus_and_nodes_apart_and_reports_both() {
    let (memory, gpus, kernel) = with(FakeGpus::with_sizes(&[Bytes::mib(64)]), "lab-cxl");
    let low = memory.allocate(Bytes::mib(40), committed(these(&[0]), "low", 1)).unwrap();
    let high = memory.allocate(Bytes::mib(40), committed(these(&[0]), "high", 5)).unwrap();
    let host = memory.allocate(Bytes::mib(4), committed(Attributes::default(), "host", 1)).unwrap();
    assert_eq!(memory.describe(low).unwrap().why, "not committed yet");
    assert_eq!(gpus.advised(low).home, None, "nothing is bound before the commit");
    let report = memory.commit(Scope::Epoch).unwrap();
    assert!(report.rows.windows(2).all(|w| w[0].address < w[1].address));
    let row = |name: &str| report.rows.iter().find(|r| r.name == name).unwrap();
    assert_eq!(row("high").got, [(RANK, Bytes::mib(40))]);
    assert_eq!(row("low").got, [(RANK, Bytes::mib(24))]);
    assert_eq!(row("host").got, [(0, Bytes::mib(4))]);
    kernel.touch(span(host, 4));
    assert_eq!(kernel.on(span(host, 4), 0), 4 * MIB);
    assert!(memory.commit(Scope::Epoch).unwrap().rows.is_empty());
    // With the first gone the second has all it asked for, and the advice of before is gone with
    // it.
    memory.free(high).unwrap();
    gpus.calls();
    let report = memory.commit(Scope::All).unwrap();
    assert_eq!(report.rows.iter().find(|r| r.name == "low").unwrap().got, [(RANK, Bytes::mib(40))]);
    assert_eq!(gpus.at_home(span(low, 40), Some(Home::Gpu(0))), 40 * MIB);
    assert_eq!(gpus.advised(low + (39 << 20)).reach, BTreeSet::from([Home::Host]));
    // Nothing to say: nothing is said.
    gpus.calls();
    memory.commit(Scope::All).unwrap();
    assert_eq!(gpus.calls(), Vec::<String>::new());
}

#[test]
fn a_commit_retries_refused_objects() {
    let (memory, gpus, _) = with(FakeGpus::with_sizes(&[Bytes::mib(64)]), "lab-cxl");
    memory
        .allocate(
            Bytes::mib(16),
            committed(Attributes { prefetch: true, ..these(&[0]) }, "ahead", 9),
        )
        .unwrap();
    let big = memory.allocate(Bytes::mib(40), committed(strict(these(&[0])), "big", 5)).unwrap();
    memory.allocate(Bytes::mib(40), committed(strict(these(&[0])), "late", 1)).unwrap();
    let report = memory.commit(Scope::Epoch).unwrap();
    assert_eq!((report.refused(), gpus.brought(0)), (1, 56 * MIB));
    let late = report.rows.iter().find(|r| r.name == "late").unwrap();
    assert!(late.refused && late.got.is_empty() && late.why.contains("refused"), "{late:?}");
    assert_eq!(report.rows.iter().find(|r| r.name == "big").unwrap().populated, Bytes::mib(40));
    memory.free(big).unwrap();
    assert_eq!(memory.commit(Scope::Epoch).unwrap().refused(), 0);
    assert_eq!(gpus.brought(0), 56 * MIB);
}

#[test]
fn nothing_is_pushed_out_for_what_is_brought() {
    let (memory, gpus, _) = with(FakeGpus::with_sizes(&[Bytes::mib(64)]), "lab-cxl");
    memory.allocate(Bytes::mib(40), committed(these(&[0]), "promised", 1)).unwrap();
    memory.commit(Scope::Epoch).unwrap();
    // Nobody can tell whether what was promised is in what another takes now.
    gpus.take(0, Bytes::mib(50));
    memory.allocate(Bytes::mib(20), committed(strict(these(&[0])), "sure", 9)).unwrap();
    memory
        .allocate(
            Bytes::mib(20),
            committed(Attributes { prefetch: true, ..these(&[0]) }, "ahead", 5),
        )
        .unwrap();
    let report = memory.commit(Scope::All).unwrap();
    let row = |name: &str| report.rows.iter().find(|r| r.name == name).unwrap();
    assert!(
        row("sure").refused
            && row("sure").why.contains("GPU 0 has 14 MiB free and 20 MiB are missing")
    );
    assert!(
        !row("ahead").refused
            && row("ahead").why.contains("not brought ahead, for GPU 0 has 14 MiB free")
    );
    assert_eq!((gpus.brought(0), row("ahead").populated), (0, Bytes::ZERO));
}

#[test]
fn local_gpus_are_those_of_the_threads_node_and_none_of_another_socket() {
    let gpus = FakeGpus::with_sizes(&[Bytes::mib(64); 3]).at_node(2, None);
    let (memory, gpus, kernel) = with(gpus, "dual-socket");
    let machine = preset("dual-socket").unwrap();
    let cpus = |node: u16| -> Vec<CpuId> { machine.node(NodeId(node)).unwrap().cpus.clone() };
    kernel.run_on(cpus(1));
    let at = memory.allocate(Bytes::mib(2), strict(on(Index::Local))).unwrap();
    assert_eq!(gpus.advised(at).home, Some(Home::Gpu(1)));
    kernel.run_on([cpus(0), cpus(1)].concat());
    assert!(matches!(
        memory.allocate(Bytes(1), strict(on(Index::Local))),
        Err(AllocError::NotBound { .. })
    ));
    let at = memory.allocate(Bytes::mib(2), on(Index::Local)).unwrap();
    assert!(memory.describe(at).unwrap().why.contains("guessed"));
    let (memory, _, kernel) = with(FakeGpus::with_sizes(&[Bytes::mib(64)]), "dual-socket");
    kernel.run_on(cpus(1));
    assert!(matches!(
        memory.allocate(Bytes(1), strict(on(Index::Local))),
        Err(AllocError::NoGpuNear { initiator: 1 })
    ));
    let at = memory.allocate(Bytes(1), on(Index::Local)).unwrap();
    assert!(memory
        .describe(at)
        .unwrap()
        .why
        .contains("no GPU is known to be near node 1: all are used"));
}

#[test]
fn without_cuda_it_is_an_error_that_says_why_or_other_memory_that_says_so() {
    let machine = preset("lab-cxl").unwrap();
    let kernel = Arc::new(FakeKernel::from_machine(&machine));
    let classes = || {
        Classes::from_machine(machine.clone(), RankAttribute::Bandwidth, &kernel.nodes(), None)
            .unwrap()
    };
    let memory = Memory::without_gpus(kernel.clone(), classes(), CudaError::NoDevice);
    for wish in [
        strict(on(Index::All)),
        strict(Attributes {
            places: [on(Index::All).places, vec![ClassPlacement::default()]].concat(),
            ..on(Index::All)
        }),
    ] {
        let error = memory.allocate(Bytes(1), wish).unwrap_err();
        assert!(matches!(error, AllocError::NoCuda(CudaError::NoDevice)), "{error}");
        assert!(
            error.to_string().contains("no CUDA managed memory here: the driver shows no GPU"),
            "{error}"
        );
    }
    let at = memory.allocate(Bytes::mib(1), these(&[3])).unwrap();
    let row = memory.describe(at).unwrap();
    assert_eq!(row.got, [(0, Bytes::mib(1))]);
    assert!(row.why.contains("other memory is used") && row.why.contains("no GPU"), "{}", row.why);
    // The next class named is the next best; what was said of GPUs only is not said of nodes.
    let places = vec![
        on(Index::All).places.remove(0),
        ClassPlacement { class: ClassId(1), index: Index::All },
    ];
    let at =
        memory.allocate(Bytes::mib(1), Attributes { places, ..Attributes::default() }).unwrap();
    assert_eq!(memory.describe(at).unwrap().got, [(1, Bytes::mib(1))]);
    let weighted = Attributes { split: NodeSplit::Weighted(vec![2]), ..on(Index::All) };
    memory.allocate(Bytes::mib(1), weighted).unwrap();
    assert!(matches!(memory.gpus(), Err(AllocError::NoCuda(_))));
    assert!(matches!(memory.gpu_use(0), Err(AllocError::NoCuda(_))));
}

#[test]
fn full_gpus_fall_back_to_the_next_class() {
    let (memory, _, kernel) = with(FakeGpus::with_sizes(&[Bytes::mib(8)]), "lab-cxl");
    let places = vec![
        on(Index::All).places.remove(0),
        ClassPlacement { class: ClassId(1), index: Index::All },
    ];
    let wish = Attributes { places, mismatch: Mismatch::Error, ..Attributes::default() };
    let at = memory.allocate(Bytes::mib(16), wish).unwrap();
    assert_eq!(kernel.on(span(at, 16), 1), 16 * MIB, "strict there too");
    assert!(memory.describe(at).unwrap().why.contains("have 8 MiB free"));
}

#[test]
fn a_refusing_driver_is_reported_and_leaves_nothing_behind() {
    let (memory, gpus) = two();
    gpus.break_call("prefer");
    let at = memory.allocate(Bytes::mib(2), these(&[0])).unwrap();
    assert_eq!(gpus.blocks(), 1, "managed memory all the same");
    let row = memory.describe(at).unwrap();
    assert!(
        row.why.contains(
            "the driver did not take that: prefer on 0..512 GPU 0 failed (CUDA_ERROR_UNKNOWN, 999)"
        ),
        "{}",
        row.why
    );
    memory.free(at).unwrap();
    for call in ["prefer", "reach", "bring"] {
        gpus.break_call(call);
        let error = memory.allocate(Bytes::mib(2), strict(these(&[0]))).unwrap_err();
        assert_eq!(gpus.blocks(), 0, "{call}: {error}");
    }
    gpus.break_call("allocate");
    assert!(matches!(
        memory.allocate(Bytes(1), strict(these(&[0]))),
        Err(AllocError::Cuda(CudaError::Failed { code: 999, .. }))
    ));
    gpus.break_call("free");
    let at = memory.allocate(Bytes::mib(2), these(&[0])).unwrap();
    assert!(memory.describe(at).unwrap().why.contains("was forked"), "a child has other memory");
    assert_eq!(gpus.blocks(), 0);
}

#[test]
fn nonsense_is_named() {
    let (memory, _) = two();
    let fail = |wish: Attributes| memory.allocate(Bytes::mib(1), wish).unwrap_err();
    assert!(matches!(fail(strict(these(&[2]))), AllocError::NoSuchGpu { index: 2, gpus: 2 }));
    let mixed = |split, places: [ClassPlacement; 2]| {
        fail(Attributes { split, places: places.to_vec(), ..Attributes::default() })
    };
    let gpu = || these(&[0]).places.remove(0);
    assert!(matches!(
        mixed(NodeSplit::Os, [ClassPlacement::default(), gpu()]),
        AllocError::BadSplit { .. }
    ));
    assert!(matches!(
        mixed(NodeSplit::Equal, [gpu(), ClassPlacement::default()]),
        AllocError::BadSplit { .. }
    ));
    assert!(matches!(
        fail(Attributes { reads: f64::NAN, ..these(&[0]) }),
        AllocError::BadIntensity
    ));
    assert!(matches!(
        fail(Attributes { split: NodeSplit::Chunk(0), ..these(&[0]) }),
        AllocError::BadSplit { .. }
    ));
    let at = memory.allocate(Bytes::mib(1), these(&[0, 7])).unwrap();
    assert!(memory.describe(at).unwrap().why.contains("no index 7: left out"));
}

#[test]
fn gpus_that_cannot_be_placed_on_are_no_indices() {
    let gpus = FakeGpus::with_sizes(&[Bytes::mib(64); 3]).without_placing(1);
    let (memory, gpus, _) = with(gpus, "lab-cxl");
    let class = memory.gpus().unwrap();
    assert_eq!(class.members().collect::<Vec<_>>(), [0, 2]);
    assert!(
        class
            .to_string()
            .contains("index 1: Fake 2, 64 MiB, at node 2; GPU 1 (Fake 1) is left out"),
        "{class}"
    );
    let at = memory.allocate(Bytes::mib(1), these(&[1])).unwrap();
    assert_eq!(gpus.advised(at).home, Some(Home::Gpu(2)));
    let at = memory.allocate(Bytes::mib(1), these(&[0])).unwrap();
    assert_eq!(
        gpus.advised(at).reach,
        BTreeSet::from([Home::Host]),
        "a peer that is no index has no way"
    );
    let none =
        GpuClass::from_gpus(Arc::new(FakeGpus::with_sizes(&[Bytes::mib(64)]).without_placing(0)))
            .unwrap_err();
    assert_eq!(none, CudaError::CannotPlace { gpus: 1 });
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    /// Any sequence of calls, also with a driver that fails: what is strict was brought, no GPU is
    /// asked for more than it has, what a report says is what was advised, and in the end nothing
    /// is left.
    #[test]
    fn any_sequence_of_calls_keeps_order(
        calls in proptest::collection::vec((0_u8..8, 1_u64..6_000_000, 0_u8..6, proptest::bool::ANY,
            0_u8..20), 1..60),
    ) {
        let (memory, gpus, kernel) =
            with(FakeGpus::with_sizes(&[Bytes::mib(12), Bytes::mib(20)]), "lab-cxl");
        let free: u64 = kernel.free_memory().iter().map(|r| r.1.get()).sum();
        let mut live: Vec<(usize, usize)> = Vec::new();
        for (call, size, split, strict, fault) in calls {
            if let Some(name) =
                ["allocate", "prefer", "reach", "bring", "free"].get(usize::from(fault)) {
                gpus.break_call(name);
            }
            match call {
                0..=3 => {
                    let split = match split {
                        0 => NodeSplit::Equal,
                        1 => NodeSplit::Chunk(7),
                        2 => NodeSplit::Weighted(vec![2]),
                        3 => NodeSplit::SpillOver,
                        _ => NodeSplit::Os,
                    };
                    let index = match size % 3 {
                        0 => Index::All,
                        n => Index::These(vec![n as u16 - 1]),
                    };
                    let wish = Attributes {
                        split,
                        binding: if call % 2 == 0 { Binding::OnCommit } else { Binding::Immediate },
                        mismatch: if strict { Mismatch::Error } else { Mismatch::Fallback },
                        prefetch: size % 2 == 0,
                        priority: (size % 4) as u32,
                        ..on(index)
                    };
                    if let Ok(at) = memory.allocate(Bytes(size), wish) {
                        let len = memory.size_of(at).unwrap().get() as usize;
                        proptest::prop_assert!(live.iter()
                            .all(|(a, l)| at + len <= *a || a + l <= at));
                        live.push((at, len));
                    } else {
                        proptest::prop_assert!(strict, "fallback always has memory");
                    }
                }
                4 | 5 if !live.is_empty() => {
                    let (at, _) = live.swap_remove(size as usize % live.len());
                    memory.free(at).unwrap();
                }
                6 if !live.is_empty() => {
                    let (at, len) = live[size as usize % live.len()];
                    proptest::prop_assert_eq!(memory.lookup(at + len - 1), Some(at));
                }
                _ => {
                    let scope = if strict { Scope::All } else { Scope::Epoch };
                    // A driver that does not even say what is free fails the commit as a whole.
                    let Ok(report) = memory.commit(scope) else { continue };
                    for row in report.rows {
                        let got: u64 = row.got.iter().map(|g| g.1.get()).sum();
                        proptest::prop_assert!(got <= row.size.get() && (!row.refused || got == 0),
                            "{:?}", row);
                        let part = row.address..row.address + row.size.get() as usize;
                        if row.refused || row.why.contains("did not take that") {
                            continue;
                        }
                        let host = gpus.at_home(part, Some(Home::Host));
                        proptest::prop_assert_eq!(host, row.size.get() - got, "{:?}", row);
                    }
                }
            }
            for (index, total) in [(0, 12 * MIB), (1, 20 * MIB)] {
                proptest::prop_assert!(gpus.brought(index) <= total);
            }
        }
        for (at, _) in live {
            memory.free(at).unwrap();
        }
        proptest::prop_assert_eq!((gpus.blocks(), gpus.brought(0), gpus.brought(1)), (0, 0, 0));
        proptest::prop_assert_eq!(kernel.free_memory().iter().map(|r| r.1.get()).sum::<u64>(),
            free);
    }
}
