//! [`Memory`] on fake kernels with several nodes.

use super::*;
use crate::attributes::{ClassId, ClassPlacement, Index};
use crate::fake::FakeKernel;
use terrace_machine::{preset, RankAttribute};

const MIB: u64 = 1 << 20;

fn on(name: &str) -> (Memory, Arc<FakeKernel>) {
    let machine = preset(name).unwrap();
    let kernel = Arc::new(FakeKernel::from_machine(&machine));
    let classes =
        Classes::from_machine(machine, RankAttribute::Bandwidth, &kernel.nodes(), None).unwrap();
    (Memory::with(kernel.clone(), classes), kernel)
}

fn committed(name: &str, priority: u32) -> Attributes {
    Attributes {
        binding: Binding::OnCommit,
        priority,
        name: name.to_owned(),
        ..Attributes::default()
    }
}

fn strict() -> Attributes {
    Attributes { mismatch: Mismatch::Error, ..Attributes::default() }
}

fn got(row: &CommitRow) -> Vec<(usize, u64)> {
    row.got.iter().map(|(c, b)| (*c, b.get() / MIB)).collect()
}

#[test]
fn the_papers_arrays_are_committed_by_priority() {
    let (memory, kernel) = on("lab-cxl");
    kernel.set_free(0, Bytes::mib(128));
    let arrays: Vec<usize> = [("a", 2), ("b", 1), ("c", 1)]
        .iter()
        .map(|(n, p)| memory.allocate(Bytes::mib(64), committed(n, *p)).unwrap())
        .collect();
    let report = memory.commit(Scope::Epoch).unwrap();
    let by_name: BTreeMap<&str, Vec<(usize, u64)>> =
        report.rows.iter().map(|r| (r.name.as_str(), got(r))).collect();
    assert_eq!(by_name["a"], [(0, 64)]);
    assert_eq!(by_name["b"], [(0, 32), (1, 32)]);
    assert_eq!(by_name["c"], [(0, 32), (1, 32)]);
    assert_eq!(report.moved(), Bytes::ZERO);
    assert!((report.value - report.bound).abs() < 1e-6 * report.bound);
    // What the program touches now lies where it was bound, without a call of ours.
    kernel.touch(arrays[1]..arrays[1] + (64 << 20));
    assert_eq!(kernel.on(arrays[1]..arrays[1] + (64 << 20), 0), 32 * MIB);
    // A second epoch knows of nothing; all of them can be weighed again.
    assert!(memory.commit(Scope::Epoch).unwrap().rows.is_empty());
    assert_eq!(memory.commit(Scope::All).unwrap().rows.len(), 3);
}

#[test]
fn touched_data_is_moved_and_counted() {
    let (memory, kernel) = on("lab-cxl");
    kernel.set_free(0, Bytes::mib(64));
    let cold = memory.allocate(Bytes::mib(48), committed("cold", 1)).unwrap();
    kernel.touch(cold..cold + (48 << 20));
    assert_eq!(kernel.on(cold..cold + (48 << 20), 0), 48 * MIB);
    let hot = memory.allocate(Bytes::mib(48), committed("hot", 9)).unwrap();
    let report = memory.commit(Scope::All).unwrap();
    let row = |name: &str| report.rows.iter().find(|r| r.name == name).unwrap();
    assert_eq!(got(row("hot")), [(0, 48)]);
    assert_eq!(got(row("cold")), [(0, 16), (1, 32)]);
    assert_eq!(row("cold").moved, Bytes::mib(32));
    assert!(row("cold").cost.get() > 0 && row("hot").moved == Bytes::ZERO);
    kernel.touch(hot..hot + (48 << 20));
    assert_eq!(kernel.on(hot..hot + (48 << 20), 0), 48 * MIB);
}

#[test]
fn immediate_allocations_are_never_moved() {
    let (memory, kernel) = on("lab-cxl");
    let at = memory.allocate(Bytes::mib(4), Attributes::in_class(ClassId::SLOWEST)).unwrap();
    kernel.touch(at..at + (4 << 20));
    assert!(memory.commit(Scope::All).unwrap().rows.is_empty());
    assert_eq!(kernel.on(at..at + (4 << 20), 1), 4 * MIB);
    assert_eq!(got(&memory.describe(at).unwrap()), [(1, 4)]);
}

#[test]
fn what_strict_accepts_is_there() {
    let (memory, kernel) = on("lab-cxl");
    kernel.set_free(0, Bytes::mib(64));
    let at = memory.allocate(Bytes::mib(48), strict()).unwrap();
    assert_eq!(kernel.on(at..at + (48 << 20), 0), 48 * MIB);
    let refused = memory.allocate(Bytes::mib(48), strict()).unwrap_err();
    assert!(matches!(refused, AllocError::NoSpace { .. }), "{refused}");
    // Refused memory leaves nothing behind; freed memory is space again.
    memory.free(at).unwrap();
    memory.allocate(Bytes::mib(48), strict()).unwrap();
}

#[test]
fn a_race_for_memory_is_an_error_not_a_kill() {
    let (memory, kernel) = on("lab-cxl");
    kernel.set_free(0, Bytes::mib(64));
    kernel.steal(0, Bytes::mib(40));
    let refused = memory.allocate(Bytes::mib(48), strict()).unwrap_err();
    assert!(matches!(refused, AllocError::NoSpace { .. }), "{refused}");
    assert_eq!(
        memory.kernel.free_memory()[0].1,
        Bytes::mib(24),
        "pages of the refused object were kept"
    );
}

#[test]
fn the_groups_limit_and_earlier_promises_count() {
    let (memory, kernel) = on("lab-cxl");
    kernel.set_headroom(Bytes::mib(10));
    assert!(matches!(memory.allocate(Bytes::mib(16), strict()),
            Err(AllocError::NoSpace { limit, .. }) if limit.contains("limit")));
    kernel.set_headroom(Bytes::gib(10));
    kernel.set_free(0, Bytes::mib(64));
    // Bound and not touched: promised.
    memory.allocate(Bytes::mib(40), Attributes::in_class(ClassId::FASTEST)).unwrap();
    assert!(memory.allocate(Bytes::mib(40), strict()).is_err());
    memory.allocate(Bytes::mib(20), strict()).unwrap();
}

#[test]
fn a_commit_refuses_the_least_valuable_and_retries_it() {
    let (memory, kernel) = on("lab-cxl");
    kernel.set_free(0, Bytes::mib(64));
    let wish = |n: &str, p| Attributes { mismatch: Mismatch::Error, ..committed(n, p) };
    let big = memory.allocate(Bytes::mib(40), wish("big", 5)).unwrap();
    memory.allocate(Bytes::mib(40), wish("late", 1)).unwrap();
    let report = memory.commit(Scope::Epoch).unwrap();
    assert_eq!(report.refused(), 1);
    let late = report.rows.iter().find(|r| r.name == "late").unwrap();
    assert!(late.refused && late.why.contains("worth more"), "{}", late.why);
    assert_eq!(kernel.on(big..big + (40 << 20), 0), 40 * MIB);
    memory.free(big).unwrap();
    assert_eq!(memory.commit(Scope::Epoch).unwrap().refused(), 0);
}

#[test]
fn a_huge_page_is_asked_for_where_it_is_not_the_share_of_several_nodes() {
    let (memory, kernel) = on("knl-snc4");
    let huge = |size, split, index, page_size| {
        let places = vec![ClassPlacement { class: ClassId(0), index }];
        let at = memory
            .allocate(size, Attributes { places, split, page_size, ..Attributes::default() })
            .unwrap();
        let welcome = kernel.welcomes_huge(at);
        memory.free(at).unwrap();
        welcome
    };
    let few = Bytes::mib(3);
    assert!(
        !huge(few, NodeSplit::Os, Index::All, PageSize::Auto),
        "one of four nodes would have most of it"
    );
    assert!(huge(Bytes::mib(32), NodeSplit::Os, Index::All, PageSize::Auto));
    assert!(huge(few, NodeSplit::Os, Index::All, PageSize::Huge));
    assert!(huge(few, NodeSplit::Os, Index::These(vec![1]), PageSize::Auto));
    assert!(
        huge(few, NodeSplit::Equal, Index::All, PageSize::Auto),
        "it is said where each part lies"
    );
    assert!(!huge(Bytes::mib(1), NodeSplit::Os, Index::These(vec![1]), PageSize::Auto));
}

#[test]
fn splits_lie_as_they_say() {
    let (memory, kernel) = on("knl-snc4");
    let places = vec![
        ClassPlacement { class: ClassId(0), index: Index::These(vec![0, 1]) },
        ClassPlacement::default(),
    ];
    let wish = |split| Attributes { places: places.clone(), split, ..Attributes::default() };
    let at = memory.allocate(Bytes::mib(16), wish(NodeSplit::Equal)).unwrap();
    kernel.touch(at..at + (16 << 20));
    for (n, node) in [4, 5, 6, 7].into_iter().enumerate() {
        let part = at + n * (4 << 20)..at + (n + 1) * (4 << 20);
        assert_eq!(kernel.on(part, node), 4 * MIB, "part {n}");
    }
    let at = memory.allocate(Bytes::mib(16), wish(NodeSplit::Weighted(vec![3, 1]))).unwrap();
    kernel.touch(at..at + (16 << 20));
    assert_eq!(kernel.on(at..at + (16 << 20), 4), 6 * MIB);
    assert_eq!(kernel.on(at..at + (16 << 20), 7), 2 * MIB);
    let at = memory.allocate(Bytes::mib(1), wish(NodeSplit::Chunk(16))).unwrap();
    kernel.touch(at..at + (1 << 20));
    assert_eq!(kernel.on(at + 65536..at + 2 * 65536, 5), 65536);
    assert_eq!(memory.describe(at).unwrap().why, "all is where it was asked for");
}

#[test]
fn spill_goes_to_the_next_class_and_fallback_is_reported() {
    let (memory, kernel) = on("lab-cxl");
    kernel.set_free(0, Bytes::mib(8));
    let places =
        vec![ClassPlacement::default(), ClassPlacement { class: ClassId(1), index: Index::All }];
    let wish = Attributes { places, split: NodeSplit::SpillOver, ..Attributes::default() };
    let at = memory.allocate(Bytes::mib(20), wish).unwrap();
    kernel.touch(at..at + (20 << 20));
    assert_eq!(kernel.on(at..at + (8 << 20), 0), 8 * MIB);
    assert_eq!(kernel.on(at + (8 << 20)..at + (20 << 20), 1), 12 * MIB);
    let at = memory.allocate(Bytes::mib(4), committed("x", 1)).unwrap();
    let report = memory.commit(Scope::Epoch).unwrap();
    assert!(report.rows[0].why.contains("is full"), "{}", report.rows[0].why);
    assert_eq!(report.rows[0].address, at);
}

#[test]
fn a_hundred_thousand_chunks_cost_few_mappings() {
    let (memory, kernel) = on("lab-cxl");
    kernel.set_free(0, Bytes::mib(600));
    let places =
        vec![ClassPlacement::default(), ClassPlacement { class: ClassId(1), index: Index::All }];
    let wish = Attributes { places, split: NodeSplit::Chunk(1), ..Attributes::default() };
    // One object of 60,000 pieces, and 20,000 of two.
    let at = memory.allocate(Bytes(60_000 * 4096), wish.clone()).unwrap();
    for _ in 0..20_000 {
        memory.allocate(Bytes(2 * 4096), wish.clone()).unwrap();
    }
    assert!(kernel.mappings() < 1000, "{} mappings", kernel.mappings());
    kernel.touch(at..at + 60_000 * 4096);
    assert_eq!(kernel.on(at..at + 60_000 * 4096, 0), 30_000 * 4096);
    let mut wide = wish;
    wide.split = NodeSplit::Os;
    for _ in 0..2_000 {
        memory.allocate(Bytes(4096), wide.clone()).unwrap();
    }
    assert!(kernel.mappings() < 1000, "{} mappings", kernel.mappings());
}

#[test]
fn freed_twice_or_foreign_is_named_and_policies_go_with_their_memory() {
    let (memory, kernel) = on("lab-cxl");
    let before = kernel.mappings();
    let at = memory.allocate(Bytes::mib(1), committed("x", 1)).unwrap();
    memory.commit(Scope::Epoch).unwrap();
    assert_eq!((memory.lookup(at + 5), memory.size_of(at)), (Some(at), Some(Bytes::mib(1))));
    memory.free(at).unwrap();
    assert!(matches!(memory.free(at), Err(AllocError::NotOurs { address }) if address == at));
    assert!(matches!(memory.free(12), Err(AllocError::NotOurs { .. })));
    assert_eq!(memory.lookup(at + 5), None);
    assert!(kernel.mappings() <= before + 1, "{} mappings", kernel.mappings());
    assert!(memory.state().unwrap().own.is_empty());
}

#[test]
fn nonsense_is_named() {
    let (memory, _) = on("lab-cxl");
    let fail = |size: u64, wish: Attributes| memory.allocate(Bytes(size), wish).unwrap_err();
    assert!(matches!(fail(u64::MAX, Attributes::default()), AllocError::TooLarge { .. }));
    let with = |split| Attributes { split, ..Attributes::default() };
    assert!(matches!(fail(1, with(NodeSplit::Chunk(0))), AllocError::BadSplit { .. }));
    assert!(matches!(fail(1, with(NodeSplit::Weighted(vec![1, 2]))), AllocError::BadSplit { .. }));
    assert!(matches!(fail(1, with(NodeSplit::Weighted(vec![0]))), AllocError::BadSplit { .. }));
    assert!(matches!(
        fail(1, Attributes { reads: f64::NAN, ..Attributes::default() }),
        AllocError::BadIntensity
    ));
    // No bytes are one page, at an address of their own.
    let (a, b) = (
        memory.allocate(Bytes(0), Attributes::default()),
        memory.allocate(Bytes(0), Attributes::default()),
    );
    assert_ne!(a.unwrap(), b.unwrap());
}

#[test]
fn own_policies_join_and_are_cut() {
    let mut state = State::default();
    let p = |n| Some(Nodes::from([NodeId(n)]));
    state.set_own(&(10..20), p(0));
    state.set_own(&(20..30), p(0));
    assert_eq!(state.own.len(), 1);
    state.set_own(&(14..16), p(1));
    assert_eq!(state.own.keys().copied().collect::<Vec<_>>(), [10, 14, 16]);
    state.set_own(&(12..40), None);
    assert_eq!(state.own.iter().map(|(s, (e, _))| (*s, *e)).collect::<Vec<_>>(), [(10, 12)]);
    assert!(state.overlaps(&(11..13)) && !state.overlaps(&(12..13)));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    /// Any sequence of calls: nothing overlaps, all that is placed is accounted for, and in the end
    /// nothing is left.
    #[test]
    fn any_sequence_of_calls_keeps_order(
        calls in proptest::collection::vec((0_u8..8, 0_u64..6_000_000, 0_u8..6,
            proptest::bool::ANY), 1..60),
    ) {
        let (memory, kernel) = on("lab-cxl");
        kernel.set_free(0, Bytes::mib(24));
        kernel.set_free(1, Bytes::mib(64));
        let free: u64 = kernel.free_memory().iter().map(|r| r.1.get()).sum();
        let places =
            vec![ClassPlacement::default(),
                ClassPlacement { class: ClassId(-1), index: Index::All }];
        let mut live: Vec<(usize, usize)> = Vec::new();
        for (call, size, kind, strict) in calls {
            match call {
                0..=3 => {
                    let split = match kind {
                        0 => NodeSplit::Os,
                        1 => NodeSplit::SpillOver,
                        2 => NodeSplit::Equal,
                        3 => NodeSplit::Chunk(1 + size % 40),
                        4 => NodeSplit::Weighted(vec![1, 3]),
                        _ => NodeSplit::Os,
                    };
                    let wish = Attributes {
                        places: places.clone(),
                        split,
                        priority: u32::from(kind),
                        binding: if call < 2 { Binding::OnCommit } else { Binding::Immediate },
                        mismatch: if strict { Mismatch::Error } else { Mismatch::Fallback },
                        ..Attributes::default()
                    };
                    match memory.allocate(Bytes(size), wish) {
                        Ok(at) => {
                            let len = memory.size_of(at).unwrap().get() as usize;
                            proptest::prop_assert!(live.iter()
                                .all(|(a, l)| at + len <= *a || *a + l <= at));
                            live.push((at, len));
                        }
                        Err(error) => proptest::prop_assert!(strict, "{}", error),
                    }
                }
                4 | 5 if !live.is_empty() => {
                    let (at, len) = live.swap_remove(size as usize % live.len());
                    memory.free(at).unwrap();
                    proptest::prop_assert_eq!(kernel.on(at..at + len, 0) + kernel.on(at..at + len,
                        1), 0);
                }
                6 if !live.is_empty() => {
                    let (at, len) = live[size as usize % live.len()];
                    kernel.touch(at..at + len);
                }
                _ => {
                    let scope = if strict { Scope::All } else { Scope::Epoch };
                    for row in memory.commit(scope).unwrap().rows {
                        let got: u64 = row.got.iter().map(|g| g.1.get()).sum();
                        proptest::prop_assert!(got <= row.size.get() && (!row.refused || got == 0),
                            "{:?}", row);
                    }
                }
            }
        }
        for (at, _) in live {
            memory.free(at).unwrap();
        }
        proptest::prop_assert_eq!(kernel.free_memory().iter().map(|r| r.1.get()).sum::<u64>(),
            free);
        proptest::prop_assert!(memory.state().unwrap().own.is_empty());
    }
}

#[test]
fn an_object_too_large_for_all_classes_gets_that_reason() {
    let (memory, kernel) = on("lab-cxl");
    for split in [NodeSplit::Os, NodeSplit::Equal] {
        let wish = Attributes { mismatch: Mismatch::Error, split, ..committed("large", 1) };
        memory.allocate(Bytes::mib(100), wish).unwrap();
    }
    kernel.set_free(0, Bytes::mib(64));
    for row in memory.commit(Scope::Epoch).unwrap().rows {
        assert!(row.refused && row.why.contains("even were they its own"), "{}", row.why);
    }
}

#[test]
fn a_node_that_goes_away_takes_no_data_and_no_program_with_it() {
    let (memory, kernel) = on("lab-cxl");
    let before = memory.allocate(Bytes::mib(4), committed("before", 1)).unwrap();
    memory.commit(Scope::Epoch).unwrap();
    kernel.touch(before..before + (4 << 20));
    assert_eq!(kernel.on(before..before + (4 << 20), 0), 4 * MIB);
    let waiting = memory.allocate(Bytes::mib(2), committed("waiting", 1)).unwrap();
    let equal = Attributes { split: NodeSplit::Equal, ..committed("equal", 1) };
    memory.allocate(Bytes::mib(2), equal).unwrap();
    kernel.take_offline(0);

    let row = memory.describe(before).unwrap();
    assert_eq!(got(&row), [(1, 4)], "the kernel brought its pages elsewhere");
    let given = memory.allocate(Bytes::mib(1), Attributes::default()).unwrap();
    let row = memory.describe(given).unwrap();
    assert!(row.why.contains("where the kernel puts it"), "{}", row.why);
    let refused = memory.allocate(Bytes::mib(1), strict()).unwrap_err();
    assert!(matches!(refused, AllocError::NoSpace { free: Bytes(0), .. }), "{refused}");

    let report = memory.commit(Scope::All).unwrap();
    assert_eq!(report.rows.len(), 3);
    for row in &report.rows {
        assert!(!row.refused && row.why.contains("in other classes"), "{row:?}");
        assert_eq!(got(row), [(1, row.size.get() / MIB)]);
    }
    let runs = Attributes { split: NodeSplit::Chunk(1), ..Attributes::default() };
    let runs = memory.allocate(Bytes(64 << 10), runs).unwrap();
    kernel.touch(runs..runs + (64 << 10));
    assert_eq!(kernel.on(runs..runs + (64 << 10), 1), 64 << 10);
    kernel.touch(waiting..waiting + (2 << 20));
    assert_eq!(kernel.on(waiting..waiting + (2 << 20), 1), 2 * MIB);
    memory.free(before).unwrap();
    memory.free(waiting).unwrap();
}
