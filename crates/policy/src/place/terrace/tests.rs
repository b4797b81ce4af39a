//! Tests of whole steps.

use super::*;
use terrace_types::{
    Area, Bytes, Heat, PageFlags, PageStat, Pid, ThroughputSource, TierState, TrackerVisibility,
    Vpn,
};

/// A tier of one node, sizes in base pages.
pub(super) fn tier(node: u16, pages: u64, free: u64) -> TierState {
    TierState {
        nodes: vec![NodeId(node)],
        capacity: Bytes(pages * 4096),
        free: Bytes(free * 4096),
        unused: Bytes(free * 4096),
        write_throughput: None,
        throughput_source: ThroughputSource::Unknown,
    }
}

fn growing(pages: usize, filling: bool) -> Snapshot {
    let flags = PageFlags::PRESENT.with(PageFlags::KNOWN);
    let page = |i| PageStat {
        reads: Heat::from_rate(if i >= 2_000 { 2_000 } else { 10 }),
        node: u8::from(i >= 1_000),
        flags,
        ..PageStat::default()
    };
    Snapshot {
        interval: Nanos::millis(100),
        filling,
        page_size: Bytes(4096),
        tiers: vec![tier(0, 1_000, 5), tier(1, 100_000, 50_000)],
        areas: vec![Area { pid: Pid(1), start: Vpn(0), pages: (0..pages).map(page).collect() }],
        sees: TrackerVisibility { reads: true, pages: true, ..TrackerVisibility::default() },
        ..Snapshot::default()
    }
}

#[test]
fn a_target_that_grows_is_waited_for_but_not_for_ever() {
    let machine = terrace_machine::preset("lab-cxl").unwrap();
    let (params, mut state) = (Params::for_machine(&machine), State::default());
    let mut waited = 0;
    for (at, pages) in (0u64..).zip([2_400, 2_600, 2_800, 3_000, 3_200, 3_400]) {
        let plan =
            step(&params, &mut state, &growing(pages, true), Tick(at * 1_000_000_000), Seed(1));
        let waits = plan.requests.contains(&Request::WarmUp);
        assert_eq!(waits, plan.decisions[0].name == "wait");
        assert!(!waits || plan.moves.is_empty());
        waited += u32::from(waits);
    }
    let most = params.tuning.max_waits;
    assert_eq!(waited, most);
    assert_eq!(state.waits, most + 2, "the first step has nothing to compare with");
}

#[test]
fn samples_are_counted_where_time_says_nothing() {
    let machine = terrace_machine::preset("lab-cxl").unwrap();
    // 1,000 pages at 10 a second and 2,000 at 2,000, of which a millisecond shows 4,010
    // accesses.
    for (interval_us, sampled, moves) in
        [(1_000, true, true), (100, true, false), (1_000, false, false)]
    {
        let (params, mut state) = (Params::for_machine(&machine), State::default());
        let mut snap = growing(4_000, false);
        snap.interval = Nanos::micros(interval_us);
        snap.sees.sampled = sampled;
        let plan = step(&params, &mut state, &snap, Tick(1_000_000_000), Seed(1));
        assert_eq!(
            !plan.moves.is_empty(),
            moves,
            "{interval_us} us, sampled {sampled}: {:?}",
            plan.decisions
        );
    }
}

/// Blocks of a full fast tier and of a slow one, each as often read as the next or not at all,
/// as a millisecond shows them: a page read 700 times a second is touched once, or not at all.
fn blocks_seen_shortly() -> Snapshot {
    const BLOCK: usize = blocks::BLOCK as usize;
    let mut rng = 39u64;
    let mut unit = move || {
        rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (rng >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut touches = move |mean: f64| {
        let (mut count, mut left) = (0u32, unit());
        while left > (-mean).exp() {
            (count, left) = (count + 1, left * unit());
        }
        f64::from(count)
    };
    // Fast: half of 32 blocks hot; slow: as many blocks, the first 16 of them hot.
    let hot = |block: usize| if block < 32 { block % 2 == 0 } else { block < 48 };
    let interval = Nanos::micros(1_000);
    let page = |i: usize| PageStat {
        reads: Heat::from_rate(if hot(i / BLOCK) {
            touches(0.7) / interval.as_secs_f64()
        } else {
            0.0
        } as u64),
        node: u8::from(i / BLOCK >= 32),
        flags: PageFlags::PRESENT.with(PageFlags::KNOWN),
        ..PageStat::default()
    };
    let pages: Vec<PageStat> = (0..64 * BLOCK).map(page).collect();
    Snapshot {
        interval,
        page_size: Bytes(4096),
        tiers: vec![tier(0, 32 * 512, 0), tier(1, 100_000, 50_000)],
        areas: vec![Area { pid: Pid(1), start: Vpn(blocks::BLOCK), pages }],
        sees: TrackerVisibility { reads: true, pages: true, ..TrackerVisibility::default() },
        ..Snapshot::default()
    }
}

#[test]
fn hot_blocks_are_told_from_cold_ones_in_two_looks_too_short_for_a_page() {
    let machine = terrace_machine::preset("lab-cxl").unwrap();
    let brought_up = |fewest: u32| {
        let (mut params, mut state) = (Params::for_machine(&machine), State::default());
        params.tuning.alike_fewest = fewest;
        let snap = blocks_seen_shortly();
        let first = step(&params, &mut state, &snap, Tick(1_000_000_000), Seed(1));
        assert!(first.moves.is_empty(), "one look: {:?}", first.decisions);
        let second = step(&params, &mut state, &snap, Tick(1_100_000_000), Seed(1));
        let (hot, cold) = (Vpn(33 * blocks::BLOCK), Vpn(49 * blocks::BLOCK));
        let (mut right, mut wrong) = (0, 0);
        for m in second.moves.iter().filter(|m| m.to == NodeId(0)) {
            *if hot <= m.start && m.start < cold { &mut right } else { &mut wrong } += m.pages;
        }
        let cooled = second.moves.iter().filter(|m| m.to == NodeId(1));
        let is_hot = |vpn: u64| (vpn / blocks::BLOCK) % 2 == 1;
        let lost: u32 = cooled.filter(|m| is_hot(m.start.0)).map(|m| m.pages).sum();
        (right, wrong, lost)
    };
    let (right, wrong, lost) = brought_up(TerraceTuning::USUAL.alike_fewest);
    assert!(right > 3_000 && wrong == 0 && lost == 0, "{right} {wrong} {lost}");
    let alone = brought_up(u32::MAX);
    assert!(alone.0 < right / 2 || alone.2 > 0, "pages rated one by one: {alone:?}");
}

#[test]
fn accesses_are_enough_where_a_machine_makes_many_in_a_short_time() {
    let machine = terrace_machine::preset("lab-dcpmm").unwrap();
    // As above by page, but rates thirty-two times as high: 128,320 a millisecond, 32 a page;
    // 8,000 of them are two.
    for (interval_us, fast, moves) in
        [(65, 32, true), (60, 32, false), (1_000, 1, false), (8_000, 1, true)]
    {
        let (params, mut state) = (Params::for_machine(&machine), State::default());
        let mut snap = growing(4_000, false);
        snap.interval = Nanos::micros(interval_us);
        for page in &mut snap.areas[0].pages {
            page.reads = Heat::from_rate(page.reads.per_second() as u64 * fast);
        }
        let plan = step(&params, &mut state, &snap, Tick(1_000_000_000), Seed(1));
        assert_eq!(!plan.moves.is_empty(), moves, "{interval_us} us, {fast}: {:?}", plan.decisions);
    }
}

#[test]
fn an_exchange_must_save_twice_what_moves_were_seen_to_cost() {
    let machine = terrace_machine::preset("lab-cxl").unwrap();
    // 2,000 accesses a second, doubted, are worth 0.30 ms a second a page (see the decision's
    // words). Half of what that is in the 4 s that heat is first taken to stay pays for two
    // moves of 300 us.
    for (cost, moves) in [(0, true), (280, true), (320, false)] {
        let (params, mut state) = (Params::for_machine(&machine), State::default());
        let mut snap = growing(3_000, false);
        snap.move_cost = Nanos::micros(cost);
        let plan = step(&params, &mut state, &snap, Tick(1_000_000_000), Seed(1));
        assert_eq!(!plan.moves.is_empty(), moves, "{cost} us: {:?}", plan.decisions);
        if cost == 280 {
            let pages: u64 = plan.moves.iter().map(|m| u64::from(m.pages)).sum();
            assert_eq!(plan.decisions[0].cost_ns, pages * 280_000, "{:?}", plan.decisions);
        }
    }
}

#[test]
fn room_is_filled_with_what_repays_one_move_whatever_was_learned_of_pairs() {
    let machine = terrace_machine::preset("lab-cxl").unwrap();
    for (rate, fills) in [(60, true), (6, false)] {
        let (params, mut state) = (Params::for_machine(&machine), State::default());
        state.trust.share = 1.0 / 16.0;
        state.trust.lifetime = Some(Nanos::secs(1));
        let mut snap = growing(3_000, false);
        // The program freed what it had on the better tier.
        snap.tiers[0] = tier(0, 2_000, 2_000);
        for page in &mut snap.areas[0].pages {
            (page.node, page.reads) = (1, Heat::from_rate(rate));
        }
        let plan = step(&params, &mut state, &snap, Tick(1_000_000_000), Seed(1));
        let pages: u64 = plan.moves.iter().map(|m| u64::from(m.pages)).sum();
        assert_eq!(pages, if fills { 1_990 } else { 0 }, "{rate}: {:?}", plan.decisions);
    }
}

#[test]
fn what_may_be_spent_is_spent_on_the_hottest_first() {
    let machine = terrace_machine::preset("lab-cxl").unwrap();
    let (params, mut state) = (Params::for_machine(&machine), State::default());
    let mut snap = growing(3_000, false);
    for page in &mut snap.areas[0].pages[2_500..] {
        page.reads = Heat::from_rate(8_000);
    }
    let mut moved = |spendable| {
        snap.spendable = Some(spendable);
        let plan = step(&params, &mut state, &snap, Tick(1_000_000_000), Seed(1));
        let hot = |m: &&terrace_types::Move| m.to == NodeId(0);
        let up: Vec<_> = plan.moves.iter().filter(hot).copied().collect();
        let pages = up.iter().map(|m| u64::from(m.pages)).sum::<u64>();
        (pages, up, plan.decisions, plan.unaffordable)
    };
    let page = params.page_cost_ns(Nanos::ZERO);
    let (pages, up, why, rest) = moved(Nanos((2.0 * page * 300.0) as u64 + 1));
    assert_eq!(pages, 300, "{why:?}");
    assert!(up.iter().all(|m| m.start.0 >= 2_500), "{up:?}");
    let (pages, _, why, all) = moved(Nanos(1_000));
    assert_eq!((pages, why[0].name.as_str()), (0, "hold"), "{why:?}");
    assert!(why[0].why.contains("may be spent"), "{why:?}");
    assert!((all.get() as f64 - rest.get() as f64 - 600.0 * page).abs() <= 2.0, "{all}, {rest}");
    // So few that none is moved: all are left out.
    let (pages, _, _, few) = moved(Nanos((2.0 * page * 100.0) as u64));
    assert_eq!((pages, few), (0, all));
}

#[test]
fn equal_sockets_are_not_sampled() {
    for (machine, best, idles) in
        [("lab-numa", 0, true), ("lab-hbm", 1, false), ("lab-cxl", 0, false)]
    {
        let machine = terrace_machine::preset(machine).unwrap();
        let (params, mut state) = (Params::for_machine(&machine), State::default());
        let mut snap = growing(3_000, false);
        for (tier, node) in snap.tiers.iter_mut().zip([best, 1 - best]) {
            tier.nodes = vec![NodeId(node)];
        }
        let plan = step(&params, &mut state, &snap, Tick(1_000_000_000), Seed(1));
        assert_eq!(
            plan.requests.contains(&Request::Idle),
            idles,
            "{}: {:?}",
            machine.name,
            plan.decisions
        );
        // Where pages are is not asked again and again.
        let waits = plan.requests.contains(&Request::Wait(params.tuning.idle_wait));
        assert_eq!(waits, idles, "{:?}", plan.requests);
    }
}

#[test]
fn a_program_that_stops_growing_is_sampled() {
    let machine = terrace_machine::preset("lab-cxl").unwrap();
    let (params, mut state) = (Params::for_machine(&machine), State::default());
    let mut names = Vec::new();
    for (at, (pages, filling)) in
        (0u64..).zip([(2_400, true), (2_600, true), (3_000, false), (3_000, false)])
    {
        let plan =
            step(&params, &mut state, &growing(pages, filling), Tick(at * 1_000_000_000), Seed(1));
        names.push(plan.decisions[0].name.clone());
    }
    assert_eq!(names[1], "wait");
    assert!(!names[2..].contains(&"wait".to_owned()), "{names:?}");
}

#[test]
fn a_huge_page_that_moved_lately_is_counted_once() {
    let machine = terrace_machine::preset("lab-cxl").unwrap();
    let params = Params::for_machine(&machine);
    let now = Tick(1_000_000_000);
    let mut recent = recent::RecentMoves::default();
    recent.fit(512);
    (0..512).for_each(|vpn| recent.note(Pid(1), Vpn(vpn), now));
    let mut snap = growing(512, false);
    for (at, page) in snap.areas[0].pages.iter_mut().enumerate() {
        let part = if at % 512 == 0 { PageFlags::HUGE_HEAD } else { PageFlags::HUGE_TAIL };
        (page.flags, page.node) = (page.flags.with(part), 1);
        page.reads = Heat::from_rate(20_000);
    }
    let worth = AccessWorth { read_ns: 100.0, write_ns: 100.0 };
    let (rater, hotness) = hotness::UnitRater::new(&params, &recent, worth, &snap, 0, now);
    let terms = hotness::SwapTerms {
        space: 10_000,
        headroom: 0,
        next_growth: 0.0,
        horizon: 1.0,
        lifetime: 1.0,
        page_cost: 1_000.0,
        spendable: f64::INFINITY,
        pairs: false,
        most: 10_000,
        by_page: true,
        repay: 2.0,
    };
    assert!(rater.is_damped());
    assert_eq!(hotness.cut(&rater, &terms).promote, 512);
    // Each saves 2 ms a second: headroom is filled where it stays unused for long enough.
    let promoted = |headroom, next_growth| {
        hotness.cut(&rater, &hotness::SwapTerms { headroom, next_growth, ..terms }).promote
    };
    let of = [(10_000, 1e-4), (9_900, 1e-4), (10_000, 1e-2)].map(|(pages, s)| promoted(pages, s));
    assert_eq!(of, [0, 100, 512]);
}
