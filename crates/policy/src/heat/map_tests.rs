use super::*;

fn range(start: u64, end: u64) -> VpnRange {
    VpnRange::new(Vpn(start), Vpn(end))
}

fn map(mappings: &[(Pid, VpnRange)]) -> HeatMap {
    let mut map = HeatMap::new(HeatParams::default());
    map.expect_access(true);
    map.remap(mappings);
    map
}

fn seen(start: u64, end: u64, hits: u16, writes_only: bool, every_page: bool) -> RangeObservation {
    RangeObservation {
        pid: Pid(1),
        range: range(start, end),
        hits,
        sample_count: 20,
        interval: Nanos::millis(5),
        writes_only,
        every_page,
    }
}

fn at(map: &HeatMap, vpn: u64) -> PageStat {
    let area = map.areas().iter().find(|a| a.range().contains(Vpn(vpn))).unwrap();
    area.pages[(vpn - area.start.0) as usize]
}

#[test]
fn eight_bytes_a_page() {
    assert_eq!(size_of::<PageStat>() + size_of::<SampleEvidence>(), 8);
}

#[test]
fn hot_pages_stand_out_and_are_known_after_one_round() {
    let mut map = map(&[(Pid(1), range(0, 100))]);
    let absorbed = map.absorb(
        &[
            seen(0, 50, 20, false, true),
            seen(50, 100, 11, false, true),
            seen(500, 501, 1, false, true),
        ],
        &[],
        &[],
        Tick(0),
    );
    assert_eq!(absorbed, MergeResult { pages: 100, stray: 1 });
    assert!(at(&map, 10).rate() > 500 && at(&map, 60).rate() < 200);
    assert!(at(&map, 10).flags.has(PageFlags::KNOWN));
    let evidence = map.evidence().as_secs_f64();
    // 100 ms, of which samples that always hit count for less.
    assert!(evidence > 0.015 && evidence < 0.1, "{evidence}");
}

#[test]
fn writes_are_distinguished_and_saturated_writes_bounded_by_accesses() {
    let mut map = map(&[(Pid(1), range(0, 3))]);
    let mut tick = Tick(0);
    for _ in 0..5 {
        map.absorb(
            &[
                seen(0, 3, 20, false, true),
                seen(0, 1, 20, true, true),
                seen(1, 2, 2, true, true),
                seen(2, 3, 0, true, true),
            ],
            &[],
            &[],
            tick,
        );
        tick = tick.after(Nanos::millis(100));
    }
    let (always, seldom, never) = (at(&map, 0), at(&map, 1), at(&map, 2));
    assert!(always.writes.rate() * 2 >= always.rate() - 2 && always.rate() > 500, "{always:?}");
    assert!(seldom.writes.rate() > 5 && seldom.writes.rate() < 60, "{seldom:?}");
    assert_eq!(never.writes, terrace_types::Heat::COLD);
    assert!(never.reads.rate() > 500);
    assert!(
        map.by_node().iter().all(|n| n.pages == 0 && n.writes == 0.0),
        "nothing is present yet"
    );
}

#[test]
fn one_dirty_page_in_a_cold_giant_is_found() {
    let mut map = map(&[(Pid(1), range(0, 262_144))]);
    for i in 0..4 {
        let dirty: Vec<_> =
            (0..16).map(|k| seen(k * 16_000, k * 16_000 + 1, 20, true, true)).collect();
        let mut all = vec![seen(0, 262_144, 0, false, false)];
        all.extend(dirty);
        map.absorb(&all, &[], &[], Tick(i * 100_000_000));
    }
    assert!(at(&map, 16_000).writes.rate() > 100, "{:?}", at(&map, 16_000));
    assert_eq!(at(&map, 16_001).rate(), 0);
}

#[test]
fn scattered_written_pages_get_their_regions_accesses() {
    let mut map = map(&[(Pid(1), range(0, 1000))]);
    for i in 0..4 {
        let mut all: Vec<_> = (0..1000)
            .map(|v| seen(v, v + 1, if v % 4 == 0 { 20 } else { 0 }, true, true))
            .collect();
        all.push(seen(0, 1000, 13, false, false));
        map.absorb(&all, &[], &[], Tick(i * 100_000_000));
    }
    assert!(
        at(&map, 400).rate() > 10 * at(&map, 401).rate(),
        "{:?} {:?}",
        at(&map, 400),
        at(&map, 401)
    );
}

#[test]
fn heat_survives_growth_shrinking_and_a_hole() {
    let mut map = map(&[(Pid(1), range(100, 200)), (Pid(2), range(100, 200))]);
    map.absorb(&[seen(100, 200, 20, false, true)], &[], &[], Tick(0));
    let hot = at(&map, 150).rate();
    map.remap(&[(Pid(1), range(100, 300)), (Pid(2), range(100, 200))]);
    assert_eq!((at(&map, 150).rate(), at(&map, 250).rate()), (hot, 0));
    map.remap(&[(Pid(1), range(50, 120)), (Pid(1), range(140, 160))]);
    assert_eq!((at(&map, 60).rate(), at(&map, 110).rate(), at(&map, 150).rate()), (0, hot, hot));
    assert_eq!(map.areas().len(), 2);
    map.remap(&[(Pid(1), range(110, 115)), (Pid(1), range(112, 145))]);
    assert_eq!((at(&map, 112).rate(), at(&map, 141).rate(), at(&map, 130).rate()), (hot, hot, 0));
}

#[test]
fn silence_makes_pages_unknown() {
    let mut map = map(&[(Pid(1), range(0, 2))]);
    map.absorb(&[seen(0, 2, 20, false, true)], &[], &[], Tick(0));
    for s in 1..30 {
        map.absorb(&[seen(0, 1, 20, false, true)], &[], &[], Tick(s * 1_000_000_000));
    }
    assert!(at(&map, 0).flags.has(PageFlags::KNOWN));
    assert!(!at(&map, 1).flags.has(PageFlags::KNOWN));
}

#[test]
fn an_address_space_larger_than_memory_is_left_out() {
    let mut map = map(&[(Pid(1), range(0, 100)), (Pid(1), range(1 << 20, 1 << 50))]);
    assert_eq!(map.areas().len(), 1);
    assert!(map.left_out() > 1 << 40);
    map.absorb(&[seen(0, u64::MAX, 20, false, false)], &[], &[], Tick(0));
    assert!(at(&map, 5).rate() > 100);
}

#[test]
fn a_big_map_is_merged_quickly() {
    let mut map = map(&[(Pid(1), range(0, 83_000))]);
    let round: Vec<_> = (0..83_000).map(|v| seen(v, v + 1, (v % 21) as u16, false, true)).collect();
    map.absorb(&round, &[], &[], Tick(0));
    let start = std::time::Instant::now();
    map.absorb(&round, &[], &[], Tick(100_000_000));
    let each = start.elapsed().as_nanos() / 83_000;
    // Wide, for unoptimised builds on busy machines; optimised it is under 100.
    assert!(each < 5_000, "{each} ns a page");
    println!("{each} ns a page");
    assert!(map.memory().get() <= 83_000 * 8 + 1_000);
}

#[test]
fn samples_by_page_agree_with_single_observations() {
    let (mut one, mut other) = (map(&[(Pid(1), range(0, 700))]), map(&[(Pid(1), range(0, 700))]));
    let hits: Vec<u8> = (0..200u64)
        .map(|i| if i == 7 { PageSamples::NOT_SAMPLED } else { (i % 21) as u8 })
        .collect();
    for round in 0..3 {
        let tick = Tick(round * 100_000_000);
        let singly: Vec<RangeObservation> = (0..200u64)
            .filter(|i| *i != 7)
            .map(|i| seen(450 + i, 451 + i, u16::from(hits[i as usize]), false, true))
            .collect();
        let samples = PageSamples {
            pid: Pid(1),
            start: Vpn(450),
            sample_count: 20,
            interval: Nanos::millis(5),
            each: 1,
            at_random: false,
            hits: hits.clone(),
        };
        one.absorb(&singly, &[], &[], tick);
        other.absorb(&[], &[samples], &[], tick);
    }
    assert_eq!(one.areas(), other.areas());
    assert!(
        at(&one, 460).flags.has(PageFlags::KNOWN) && !at(&one, 457).flags.has(PageFlags::KNOWN)
    );
    assert_eq!(one.evidence(), other.evidence());
}

#[test]
fn neighbours_found_alike_stay_alike() {
    let mut map = map(&[(Pid(1), range(100, 1_300))]);
    let hits = |round: u64| (0..1_200).map(|page| ((page / 50 + round) % 3) as u8).collect();
    for round in 0..20 {
        let samples = PageSamples {
            pid: Pid(1),
            start: Vpn(100),
            sample_count: 4,
            interval: Nanos::micros(700),
            each: 1,
            at_random: false,
            hits: hits(round),
        };
        map.absorb(&[], &[samples], &[], Tick(round * 10_000_000));
        let runs = PageStat::runs(&map.areas()[0].pages).count();
        // A run for each stretch of 50 pages, and one more where a block of 512 ends in it.
        assert!((24..=26).contains(&runs), "{runs} after round {round}");
    }
}

#[test]
fn samples_outside_mappings_are_stray() {
    let mut map = map(&[(Pid(1), range(100, 110))]);
    let samples = |start| PageSamples {
        pid: Pid(1),
        start: Vpn(start),
        sample_count: 8,
        interval: Nanos::millis(1),
        each: 1,
        at_random: false,
        hits: vec![8; 20],
    };
    assert_eq!(
        map.absorb(&[], &[samples(95), samples(105), samples(200)], &[], Tick(0)),
        MergeResult { pages: 15, stray: 1 }
    );
    assert_eq!(
        map.absorb(&[], &[samples(u64::MAX - 3)], &[], Tick(1)),
        MergeResult { pages: 0, stray: 1 }
    );
    let nonsense = PageSamples { sample_count: 0, ..samples(100) };
    assert_eq!(map.absorb(&[], &[nonsense], &[], Tick(2)), MergeResult { pages: 0, stray: 1 });
}

#[test]
fn a_short_sample_tells_what_is_accessed_below_and_whether_it_is_as_foreseen() {
    let mut map = map(&[(Pid(1), range(0, 400))]);
    let samples = |sample_count: u8, each: u16, hits: &dyn Fn(u64) -> u8| PageSamples {
        pid: Pid(1),
        start: Vpn(0),
        sample_count,
        interval: Nanos::millis(1),
        each,
        at_random: false,
        hits: (0..400).map(hits).collect(),
    };
    for (at, page) in map.areas_mut()[0].pages.iter_mut().enumerate() {
        page.node = u8::from(at >= 100);
        page.flags = PageFlags::PRESENT;
    }
    // Half of the slow pages are read 693 times a second: half of them are touched in a sample.
    map.absorb(&[], &[samples(8, 1, &|at| if at >= 250 { 4 } else { 0 })], &[], Tick(0));
    let below = |found: &PageSamples| map.accesses_on(std::slice::from_ref(found), &[NodeId(1)]);
    let once = samples(1, 1, &|at| u8::from(at >= 250 && at % 2 == 0));
    let sampled = below(&once);
    assert!((sampled / (150.0 * 693.0) - 1.0).abs() < 0.05, "{sampled}");
    let sides = |found| map.touched_by_side(&[found], &[NodeId(1)]);
    let [best, worse] = sides(once);
    assert!(best.found == 0.0 && best.expected < 1.0, "{best:?}");
    assert!((worse.found - 75.0).abs() < 0.1 && (worse.expected - 75.0).abs() < 3.0, "{worse:?}");
    let cooled = sides(samples(1, 1, &|_| 0));
    assert_eq!((cooled[1].found, cooled[1].expected), (0.0, worse.expected));
    assert!((worse.pace() - 1.0).abs() < 0.05 && cooled[1].pace() < 0.01, "{cooled:?}");
    let all = sides(samples(1, 1, &|_| 1))[1];
    assert!(all.pace() > 10.0 && all.pace() < 30.0, "as often as the sample can tell: {all:?}");
    assert_eq!(TouchedPages::default().pace(), 1.0, "nothing was sampled");
    // That one of many pages was touched tells nothing beyond what is known of them.
    let shared = [1, PageSamples::NOT_SAMPLED].map(|hits| below(&samples(1, 400, &|_| hits)));
    assert!(
        shared[0] == shared[1] && (shared[0] / (150.0 * 693.0) - 1.0).abs() < 0.1,
        "{shared:?}"
    );
}

#[test]
fn huge_pages_that_were_not_touched_count_for_little_and_new_ones_where_they_are() {
    let mut map = HeatMap::new(HeatParams::default());
    map.remap(&[(Pid(1), VpnRange::new(Vpn(0), Vpn(1024)))]);
    let samples = |sample_count, start: u64, length: usize, hits: u8| PageSamples {
        pid: Pid(1),
        start: Vpn(start),
        sample_count,
        interval: Nanos::millis(1),
        each: 512,
        at_random: false,
        hits: vec![hits; length],
    };
    for page in &mut map.areas_mut()[0].pages[..512] {
        (page.node, page.flags) = (1, PageFlags::PRESENT);
    }
    map.absorb(&[], &[samples(8, 0, 512, 4)], &[], Tick(0));
    let slow = [NodeId(1)];
    let below = |hits: u8| map.accesses_on(&[samples(1, 0, 512, hits)], &slow);
    assert!(below(1) > 512.0 * 500.0, "{}", below(1));
    assert!(below(0) < below(1) / 1e6, "{}", below(0));
    // Of the second huge page it is not known where it is.
    let found = [samples(1, 500, 100, 1)];
    let new = map.samples_of_new(&found);
    assert_eq!((new.len(), new[0].start, new[0].hits.len()), (1, Vpn(512), 88));
    assert!(map.samples_of_new(&[samples(1, 500, 100, 0)]).is_empty(), "it was not touched");
    let page = |node| PageStat { node, flags: PageFlags::PRESENT, ..PageStat::default() };
    let located = |node| [Area { pid: Pid(1), start: Vpn(512), pages: vec![page(node); 88] }];
    // One touch in 1 ms of each.
    assert!((map.accesses_on_new(&new, &located(1), &slow) - 88_000.0).abs() < 1.0);
    assert_eq!(map.accesses_on_new(&new, &located(0), &slow), 0.0);
}

#[test]
fn writes_by_page_are_used_as_reported() {
    let reported = |per_second, dirty| PageEvidence { per_second, over: Nanos::millis(30), dirty };
    let writes = |start: u64, found: &[u8]| PageWrites {
        pid: Pid(1),
        start: Vpn(start),
        interval: Nanos::millis(2),
        reported: vec![reported(4.0, false), reported(800.0, true), reported(20.0, true)],
        found: found.to_vec(),
    };
    let mut map = map(&[(Pid(1), range(0, 100))]);
    let one = writes(20, &[0, 0, 1, 2, 2, 9, 1]);
    let runs: Vec<_> = one.runs().map(|(r, t)| (r.start.0, r.len(), t.per_second as u64)).collect();
    assert_eq!(
        runs,
        [(20, 2, 4), (22, 1, 800), (23, 2, 20), (26, 1, 800)],
        "what 9 means is not reported"
    );
    let absorbed = map.absorb(&[], &[], std::slice::from_ref(&one), Tick(0));
    assert_eq!(absorbed, MergeResult { pages: 6, stray: 0 });
    let page = |at: usize| map.areas()[0].pages[at];
    for (at, rate, dirty) in
        [(20, 4.0, false), (22, 800.0, true), (24, 20.0, true), (25, 0.0, false)]
    {
        let got = page(at).writes.per_second();
        assert!((got - rate).abs() <= 0.1 * rate.max(10.0), "{at}: {got}");
        assert_eq!(page(at).flags.has(PageFlags::DIRTY), dirty, "{at}");
    }
    assert!(
        map.watches(Pid(1), Vpn(99))
            && !map.watches(Pid(1), Vpn(100))
            && !map.watches(Pid(2), Vpn(5))
    );
    // Pages that are not mapped, and those that no address space has.
    assert_eq!(
        map.absorb(&[], &[], &[writes(99, &[1, 1])], Tick(9_000_000)),
        MergeResult { pages: 1, stray: 0 }
    );
    assert_eq!(map.absorb(&[], &[], &[writes(u64::MAX - 1, &[1; 4])], Tick(9_000_001)).pages, 0);
}

/// One interval's samples pages 0 to 10, `hits` of eight samples of 1 ms each.
fn samples_at_ten(hits: u8) -> PageSamples {
    PageSamples {
        pid: Pid(1),
        start: Vpn(0),
        sample_count: 8,
        interval: Nanos::millis(1),
        each: 1,
        at_random: false,
        hits: vec![hits; 10],
    }
}

fn written_at_ten(per_second: f32) -> PageWrites {
    let reported = vec![PageEvidence { per_second, over: Nanos::millis(30), dirty: true }];
    PageWrites {
        pid: Pid(1),
        start: Vpn(0),
        interval: Nanos::micros(300),
        reported,
        found: vec![0; 10],
    }
}

#[test]
fn pages_are_not_written_more_often_than_they_are_touched() {
    let mut map = map(&[(Pid(1), range(0, 20))]);
    map.absorb(&[], &[samples_at_ten(4)], &[written_at_ten(6_000.0)], Tick(0));
    let page = map.areas()[0].pages[3];
    let (reads, writes) = (page.reads.per_second(), page.writes.per_second());
    // Half of the samples of 1 ms: 690 a second, and space for three more in the 8 ms.
    assert!(reads < 1.0 && (500.0..1_150.0).contains(&writes), "{reads} {writes}");
    // Seldom written and never seen touched: the samples may have missed it.
    let mut map = self::map(&[(Pid(1), range(0, 20))]);
    map.absorb(&[], &[samples_at_ten(0)], &[written_at_ten(40.0)], Tick(0));
    assert!(map.areas()[0].pages[3].writes.per_second() > 30.0);
    // Pages not sampled one by one have no such bound.
    let mut map = self::map(&[(Pid(1), range(0, 20))]);
    map.absorb(&[], &[], &[written_at_ten(6_000.0)], Tick(0));
    assert!(map.areas()[0].pages[3].writes.per_second() > 5_000.0);
}

#[test]
fn a_page_touched_less_is_written_less() {
    let mut map = map(&[(Pid(1), range(0, 20))]);
    map.absorb(&[], &[samples_at_ten(5)], &[written_at_ten(400.0)], Tick(0));
    let of = |map: &HeatMap| {
        let page = map.areas()[0].pages[3];
        (page.reads.per_second(), page.writes.per_second())
    };
    let (reads, writes) = of(&map);
    for ms in 1..40 {
        map.absorb(&[], &[samples_at_ten(0)], &[], Tick(ms * 50_000_000));
    }
    let (less_reads, less_writes) = of(&map);
    assert!(writes > 300.0 && less_writes < 0.1 * writes, "{writes} {less_writes}");
    assert!(less_reads < 0.1 * reads, "{reads} {less_reads}");
}

#[test]
fn writes_are_known_once_reported_for_nearly_all_pages() {
    let mut map = map(&[(Pid(1), range(0, 30))]);
    map.areas_mut()[0].pages.iter_mut().take(10).for_each(|p| p.flags = PageFlags::PRESENT);
    assert!(!map.knows_writes());
    map.absorb(&[], &[], &[PageWrites { found: vec![0; 5], ..written_at_ten(40.0) }], Tick(0));
    assert!(!map.knows_writes(), "5 of 10");
    map.absorb(&[], &[], &[written_at_ten(0.0)], Tick(1_000_000));
    assert!(map.knows_writes(), "10 of 10, never written");
    map.areas_mut()[0].pages[10..30]
        .iter_mut()
        .for_each(|p| p.flags = PageFlags::PRESENT.with(PageFlags::PINNED));
    assert!(map.knows_writes(), "of pages that stay where they are nothing need be known");
}

#[test]
fn pages_that_share_a_bit_share_its_accesses() {
    let mut map = map(&[(Pid(1), range(0, 1124))]);
    let samples = |each, start, pages| PageSamples {
        pid: Pid(1),
        start: Vpn(start),
        sample_count: 12,
        interval: Nanos::micros(20),
        each,
        at_random: each > 1,
        hits: vec![6; pages],
    };
    let huge = samples(512, 0, 1024);
    map.absorb(&[], &[huge.clone(), samples(1, 1024, 100)], &[], Tick(0));
    let (of_huge, alone) = (at(&map, 700).reads.per_second(), at(&map, 1100).reads.per_second());
    // Half of samples of 20 us find one of its accesses: some 35,000 a second.
    assert!((25_000.0..50_000.0).contains(&alone), "{alone}");
    assert!((0.9..1.1).contains(&(of_huge * 512.0 / alone)), "{of_huge} {alone}");
    // They are found by one event, not by 512.
    let quick_scan = PageSamples { sample_count: 1, hits: vec![1; 1024], ..huge };
    map.areas_mut()[0].pages.iter_mut().for_each(|p| p.flags = p.flags.with(PageFlags::PRESENT));
    let foreseen = map.foreseen(&[quick_scan], &[]);
    assert_eq!(foreseen.all.found, 2.0);
    assert!((0.8..1.2).contains(&foreseen.all.expected), "{foreseen:?}");
}

#[test]
fn samples_that_always_hit_are_saturated_unless_shorter_ones_differ() {
    let mut map = map(&[(Pid(1), range(0, 100))]);
    let looked = |interval: u64, always: u8| {
        let hits = (0..100).map(|page| if page < always { 4 } else { page % 2 }).collect();
        PageSamples {
            pid: Pid(1),
            start: Vpn(0),
            sample_count: 4,
            interval: Nanos::micros(interval),
            each: 1,
            at_random: false,
            hits,
        }
    };
    for (samples, saturated) in [
        (vec![looked(400, 10)], false),
        (vec![looked(400, 90)], true),
        (vec![], true),
        (vec![looked(400, 90), looked(50, 10)], false),
        (vec![looked(400, 90), looked(50, 90)], true),
    ] {
        map.absorb(&[], &samples, &[], Tick(0));
        assert_eq!(map.saturated(), saturated, "{} samples", samples.len());
    }
}

#[test]
fn memory_that_is_gone_is_forgotten_and_is_no_evidence() {
    let mut map = map(&[(Pid(1), range(0, 100))]);
    map.absorb(&[seen(0, 100, 11, false, true)], &[], &[], Tick(0));
    for page in &mut map.areas_mut()[0].pages[..60] {
        page.flags = page.flags.with(PageFlags::PRESENT);
    }
    // Heat shifts again and again, and only what is there is sampled.
    for round in 1..4 {
        map.doubt();
        let there = seen(0, 60, 11, false, true);
        map.absorb(&[there], &[], &[], Tick(round * 100_000_000));
    }
    let before = map.evidence();
    map.forget_absent();
    assert!(map.evidence() > Nanos(4 * before.get()), "{before} {}", map.evidence());
    assert_eq!(at(&map, 60), PageStat::default());
    assert!(at(&map, 59).rate() > 50 && at(&map, 59).flags.has(PageFlags::KNOWN));
}
