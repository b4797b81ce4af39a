//! What must hold for every policy on every input. proptest prints the seed and the smallest
//! failing input.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use terrace_policy::place::Placement;
use terrace_testkit::{cxl, dcpmm, numa, tier};
use terrace_types::{
    Area, BitSource, Bytes, BytesPerSec, CellCount, Heat, Nanos, NodeId, PageFlags, PageStat, Pid,
    Plan, PolicyId, Seed, Snapshot, ThroughputSource, Tick, TrackerVisibility, Vpn,
};

fn page() -> impl Strategy<Value = PageStat> {
    let rate = prop_oneof![Just(0u64), 0u64..50, 100u64..3_000];
    // Mostly present and known; nodes beyond the machine's now and then.
    let flags = prop_oneof![
        6 => Just(PageFlags::PRESENT.with(PageFlags::KNOWN)),
        1 => Just(PageFlags::PRESENT),
        4 => any::<u8>().prop_map(PageFlags),
    ];
    let node = prop_oneof![10 => 0u8..2, 1 => any::<u8>()];
    (rate.clone(), rate, node, flags).prop_map(|(reads, writes, node, flags)| PageStat {
        reads: Heat::from_rate(reads),
        writes: Heat::from_rate(writes),
        node,
        flags,
    })
}

prop_compose! {
    fn snapshot()(
        areas in prop::collection::vec((1i32..3, prop::collection::vec((page(), 1usize..40), 0..12)), 0..6),
        free in (0u64..200, 0u64..400),
        written in prop::option::of(0u64..100),
        (exact, cells) in (any::<bool>(), any::<bool>()),
        counts in prop::collection::vec((0u64..400, 0u16..4, 0u32..9, 0u32..9), 0..60),
        interval_ms in 0u64..2_000,
    ) -> Snapshot {
        let mut areas: Vec<Area> = areas.into_iter().map(|(pid, runs)| Area {
            pid: Pid(pid),
            start: Vpn(0),
            pages: runs.into_iter().flat_map(|(page, n)| std::iter::repeat_n(page, n)).collect(),
        }).collect();
        areas.sort_by_key(|a| a.pid);
        let mut at = 100;
        for area in &mut areas {
            area.start = Vpn(at);
            at += area.pages.len() as u64 + 7;
        }
        let used = |node: u8| areas.iter().flat_map(|a| &a.pages)
            .filter(|p| p.node == node && p.flags.has(PageFlags::PRESENT)).count() as u64;
        let mut tiers = vec![tier(&[0], used(0) + free.0, free.0), tier(&[1], used(1) + free.1, free.1)];
        tiers[1].write_throughput = written.map(BytesPerSec::mb);
        tiers[1].throughput_source = ThroughputSource::Hardware;
        let by_cell = counts.into_iter().map(|(vpn, cell, reads, writes)| CellCount {
            pid: Pid(1), vpn: Vpn(vpn), cell: NodeId(cell), thread: None, reads, writes,
        }).collect();
        Snapshot {
            interval: Nanos::millis(interval_ms),
            page_size: Bytes(4096),
            tiers,
            areas,
            by_cell,
            shifted: exact,
            filling: exact,
            waited: false,
            swept: (interval_ms % 5) as f32 / 4.0,
            at_least: exact && interval_ms % 3 == 1,
            move_cost: Nanos(interval_ms % 7 * 1000),
            saturated: exact && interval_ms % 5 == 2,
            spendable: (interval_ms % 3 == 0).then_some(Nanos::micros(interval_ms * 40)),
            headroom: Bytes(interval_ms % 5 * 4096 * 8),
            next_growth: Nanos::millis(interval_ms % 7 * 10),
            gets_huge_pages: interval_ms % 2 == 0,
            sees: TrackerVisibility {
                reads: true,
                writes: true,
                cells,
                bits: if exact { BitSource::Exact } else { BitSource::Approximate },
                pages: exact,
                sampled: exact && interval_ms % 2 == 1,
            },
        }
    }
}

fn policies() -> Vec<Placement> {
    let machines =
        [cxl(Bytes::mib(8), Bytes::mib(64)), dcpmm(Bytes::mib(8), Bytes::mib(64)), numa(2, false)];
    machines.iter().flat_map(|m| PolicyId::ALL.iter().map(|id| Placement::new(*id, m))).collect()
}

fn page_at(snap: &Snapshot, pid: Pid, vpn: u64) -> Option<&PageStat> {
    let area = snap.areas.iter().find(|a| a.pid == pid && a.range().contains(Vpn(vpn)))?;
    area.pages.get((vpn - area.start.0) as usize)
}

/// No page twice, none pinned or absent, each from where it was seen to another node of a tier.
fn moves_are_sound(snap: &Snapshot, plan: &Plan) -> Result<(), TestCaseError> {
    let mut moved = BTreeSet::new();
    for m in &plan.moves {
        prop_assert!(m.pages > 0 && m.from != m.to && snap.rank_of(m.to).is_some(), "{m:?}");
        for vpn in m.start.0..m.range().end.0 {
            let page = page_at(snap, m.pid, vpn);
            prop_assert!(page.is_some(), "{m:?} is not mapped");
            let page = page.unwrap();
            let huge = PageFlags::HUGE_HEAD.0 | PageFlags::HUGE_TAIL.0;
            prop_assert!(page.movable() || page.flags.0 & huge != 0, "{m:?} {page:?}");
            prop_assert!(page.node() == m.from || page.flags.0 & huge != 0, "{m:?} {page:?}");
            prop_assert!(moved.insert((m.pid, vpn)), "{vpn} twice in {:?}", plan.moves);
        }
    }
    Ok(())
}

/// At no point in the order of the plan is a tier fuller than it can be.
fn capacity_holds(snap: &Snapshot, plan: &Plan) -> Result<(), TestCaseError> {
    let mut free: BTreeMap<usize, i64> = BTreeMap::new();
    for (rank, tier) in snap.tiers.iter().enumerate() {
        free.insert(rank, tier.free.pages(snap.page_size) as i64);
    }
    // An exchange alternates within a chunk.
    let slack = if plan.exchange { 512 } else { 0 };
    for m in &plan.moves {
        let (from, to) = (snap.rank_of(m.from), snap.rank_of(m.to));
        if from == to {
            continue;
        }
        if let Some(space) = from.and_then(|r| free.get_mut(&r)) {
            *space += i64::from(m.pages);
        }
        if let Some(space) = to.and_then(|r| free.get_mut(&r)) {
            *space -= i64::from(m.pages);
            prop_assert!(*space >= -slack, "tier {to:?} overfull by {space}: {:?}", plan.moves);
        }
    }
    prop_assert!(free.values().all(|space| *space >= 0 || plan.exchange), "{:?}", plan.moves);
    Ok(())
}

fn exchange_is_even(snap: &Snapshot, plan: &Plan) -> Result<(), TestCaseError> {
    let pages = |rank: usize| -> u64 {
        let to = plan.moves.iter().filter(|m| snap.rank_of(m.to) == Some(rank));
        to.map(|m| u64::from(m.pages)).sum()
    };
    prop_assert!(!plan.exchange || pages(0) == pages(1), "{:?}", plan.moves);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn plans_are_sound(first in snapshot(), second in snapshot(), seed in any::<u64>()) {
        for mut policy in policies() {
            for (i, snap) in [&first, &second, &second, &first].into_iter().enumerate() {
                let plan = policy.step(snap, Tick(i as u64 * 60_000_000), Seed(seed));
                moves_are_sound(snap, &plan)?;
                capacity_holds(snap, &plan)?;
                exchange_is_even(snap, &plan)?;
            }
        }
    }

    #[test]
    fn the_same_inputs_give_the_same_plan(snap in snapshot(), seed in any::<u64>()) {
        for mut policy in policies() {
            let mut twin = policy.clone();
            for i in 0..3 {
                let now = Tick(i * 100_000_000);
                prop_assert_eq!(policy.step(&snap, now, Seed(seed)), twin.step(&snap, now, Seed(seed)));
            }
            prop_assert_eq!(&policy, &twin);
        }
    }
}

#[test]
fn names_and_parameters() {
    let machine = cxl(Bytes::mib(8), Bytes::mib(64));
    for id in PolicyId::ALL {
        let mut policy = Placement::new(*id, &machine);
        assert_eq!(policy.id(), Some(*id));
        let name = policy.name();
        for (key, value) in policy.params() {
            policy.set(&key, &value).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        let error = policy.set("no_such", "1").unwrap_err().to_string();
        assert!(error.contains("no_such") && error.contains(name), "{error}");
    }
    let mut policy = Placement::new(PolicyId::HyPlacer, &machine);
    assert!(policy.set("fast_limit", "NaN").is_err() && policy.set("delay_ms", "-1").is_err());
    policy.set("delay_ms", "20").unwrap();
    assert_eq!(policy.params()["delay_ms"], "20");
}

#[test]
fn access_count_cannot_do_without_cells() {
    let policy = Placement::new(PolicyId::AccessCount, &numa(2, false));
    assert!(policy.needs().missing(&TrackerVisibility::default()).is_some());
    assert!(policy
        .needs()
        .missing(&TrackerVisibility { cells: true, ..TrackerVisibility::default() })
        .is_none());
}
