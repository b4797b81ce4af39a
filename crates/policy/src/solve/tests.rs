//! The solver against an exact LP, an exact enumeration, and its own rules.

use super::*;
use microlp::{ComparisonOp, OptimizationDirection, Variable};
use proptest::prelude::*;

const KIB4: u64 = 4096;

fn tier(granules: u64, gain: f64) -> SolverTier {
    SolverTier { capacity: Bytes(granules * KIB4), read_gain: gain, write_gain: gain }
}

fn object(priority: f64, granules: u64, wanted: &[usize], fallback: &[usize]) -> Object {
    Object {
        priority,
        reads: 1.0,
        writes: 0.0,
        size: Bytes(granules * KIB4),
        wanted: wanted.to_vec(),
        fallback: fallback.to_vec(),
        split: TierSplit::Free,
        strict: false,
        whole: false,
    }
}

fn problem(tiers: Vec<SolverTier>, objects: Vec<Object>) -> PlacementProblem {
    PlacementProblem { granule: Bytes(KIB4), tiers, objects }
}

/// What a byte counts, written down a second time from the module's text; `None` where it may not
/// lie.
fn counts(p: &PlacementProblem, o: &Object, tier: usize) -> Option<f64> {
    let worth =
        |t: usize| o.priority * (o.reads * p.tiers[t].read_gain + o.writes * p.tiers[t].write_gain);
    let ordered = o.split == TierSplit::Ordered;
    // Of the first so many tiers asked for.
    let least = |upto: usize| {
        let less = |least: f64, t: &usize| {
            worth(*t).min(if ordered { least * (1.0 - 1e-6) } else { least })
        };
        o.wanted[..upto].iter().fold(f64::INFINITY, less)
    };
    match o.wanted.iter().position(|t| *t == tier) {
        Some(at) if ordered => Some(least(at + 1)),
        Some(_) => Some(worth(tier)),
        None if !o.strict && o.fallback.contains(&tier) => {
            Some(worth(tier).min(least(o.wanted.len())) * (1.0 - 1e-6))
        }
        None => None,
    }
}

/// What a placed byte adds besides, as the module's text has it: twice the largest worth, times the
/// tiers and two.
fn pull(p: &PlacementProblem) -> f64 {
    let worth =
        |o: &Object, t: &SolverTier| o.priority * (o.reads * t.read_gain + o.writes * t.write_gain);
    let pairs = p.objects.iter().flat_map(|o| p.tiers.iter().map(move |t| worth(o, t)));
    let most = pairs.fold(0.0, f64::max);
    2.0 * (p.tiers.len() as f64 + 2.0) * if most > 0.0 { most } else { 1.0 }
}

/// The optimum of the linear programme, with the whole objects of `fixed` where they are told to be
/// (`None`: nowhere).
fn linear(p: &PlacementProblem, fixed: &[Option<Option<usize>>]) -> Option<f64> {
    let pull = pull(p);
    let mut lp = microlp::Problem::new(OptimizationDirection::Maximize);
    let mut by_tier: Vec<Vec<(Variable, f64)>> = vec![Vec::new(); p.tiers.len()];
    let mut space: Vec<f64> = p.tiers.iter().map(|t| (t.capacity.get() / KIB4) as f64).collect();
    let mut sure = 0.0;
    for (o, fixed) in p.objects.iter().zip(fixed) {
        let granules = o.size.get().div_ceil(KIB4) as f64;
        if let Some(at) = fixed {
            if let Some(t) = *at {
                space[t] -= granules;
                sure += granules * (counts(p, o, t)? + pull);
            }
            continue;
        }
        let mut of_object = Vec::new();
        for (t, list) in by_tier.iter_mut().enumerate() {
            if let Some(c) = counts(p, o, t) {
                let x = lp.add_var(c + pull, (0.0, granules));
                of_object.push((x, 1.0));
                list.push((x, 1.0));
            }
        }
        lp.add_constraint(of_object, ComparisonOp::Le, granules);
    }
    for (list, space) in by_tier.into_iter().zip(space) {
        if space < 0.0 {
            return None;
        }
        if !list.is_empty() {
            lp.add_constraint(list, ComparisonOp::Le, space);
        }
    }
    Some(sure + lp.solve().ok()?.objective())
}

/// The solver's result in the same measure.
fn measured(p: &PlacementProblem, s: &Solution) -> f64 {
    let pull = pull(p);
    let mut sum = 0.0;
    for (o, placed) in p.objects.iter().zip(&s.placed) {
        for (t, bytes) in placed.parts().flat_map(ObjectPart::got) {
            let counted = counts(p, o, t).expect("lies where it may not");
            sum += (bytes.get() / KIB4) as f64 * (counted + pull);
        }
    }
    sum
}

/// No tier overfull, no byte lost, whole objects whole, strict ones complete or refused.
fn check_rules(p: &PlacementProblem, s: &Solution) {
    for (t, tier) in p.tiers.iter().enumerate() {
        let used: Bytes = s.placed.iter().map(|o| o.bytes_in(t)).sum();
        assert!(used <= tier.capacity, "tier {t}: {used} of {}", tier.capacity);
    }
    for (o, placed) in p.objects.iter().zip(&s.placed) {
        let all: u64 = placed.parts().flat_map(ObjectPart::got).map(|g| g.1.get()).sum();
        let nowhere = placed.nowhere().get();
        if !matches!(o.split, TierSplit::Fixed(_)) {
            assert_eq!(all + nowhere, o.size.get().div_ceil(KIB4) * KIB4);
        }
        for part in placed.parts() {
            assert!(
                !o.whole || part.got().count() + usize::from(part.nowhere > Bytes::ZERO) <= 1,
                "split: {part:?}"
            );
        }
        if o.strict {
            assert_eq!(placed.refused, all == 0 && o.size > Bytes::ZERO, "{placed:?}");
            assert!(placed.refused || nowhere == 0);
            assert!(placed.parts().flat_map(ObjectPart::got).all(|(t, _)| o.wanted.contains(&t)));
        }
    }
    assert!(s.value <= s.bound * (1.0 + 1e-9) + 1e-6);
}

prop_compose! {
    fn some_object(tiers: usize)(
        priority in 1_u32..6,
        reads in 0_u32..4,
        writes in 0_u32..3,
        granules in 0_u64..60,
        mask in 1_usize..(1 << tiers),
        falls in any::<bool>(),
        ordered in any::<bool>(),
        turn in 0..tiers,
    ) -> Object {
        let mut wanted: Vec<usize> = (0..tiers).map(|t| (t + turn) % tiers)
            .filter(|t| mask >> t & 1 == 1).collect();
        if !ordered {
            wanted.sort_unstable();
        }
        let fallback =
            if falls { (0..tiers).filter(|t| !wanted.contains(t)).collect() } else { Vec::new() };
        Object {
            reads: f64::from(reads),
            writes: f64::from(writes),
            split: if ordered { TierSplit::Ordered } else { TierSplit::Free },
            ..object(f64::from(priority), granules, &wanted, &fallback)
        }
    }
}

prop_compose! {
    fn some_tiers(tiers: usize)(
        space in prop::collection::vec(0_u64..200, tiers),
        gains in prop::collection::vec((1_u32..100, 1_u32..100), tiers),
    ) -> Vec<SolverTier> {
        space.iter().zip(gains).map(|(space, (read, write))| SolverTier {
            capacity: Bytes(space * KIB4 + space % 7),
            read_gain: f64::from(read) / 100.0,
            write_gain: f64::from(write) / 100.0,
        }).collect()
    }
}

fn some_problem(
    tiers: std::ops::Range<usize>,
    objects: std::ops::Range<usize>,
) -> impl Strategy<Value = PlacementProblem> {
    (tiers, objects).prop_flat_map(|(tiers, objects)| {
        (some_tiers(tiers), prop::collection::vec(some_object(tiers), objects))
            .prop_map(|(tiers, objects)| problem(tiers, objects))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn divisible_objects_reach_the_linear_optimum(p in some_problem(1..6, 1..25)) {
        let s = solve(&p).unwrap();
        check_rules(&p, &s);
        prop_assert!(s.exact);
        let best = linear(&p, &vec![None; p.objects.len()]).expect("the LP has a solution");
        let got = measured(&p, &s);
        prop_assert!((got - best).abs() <= 1e-6 * best.max(1.0), "{got} of {best}");
    }

    #[test]
    fn any_problem_keeps_the_rules(
        mut p in some_problem(1..5, 1..40),
        kinds in prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>()), 40),
    ) {
        for (o, (whole, strict, fixed)) in p.objects.iter_mut().zip(kinds) {
            o.whole = whole;
            o.strict = strict;
            if fixed {
                let n = o.wanted.len() as u64;
                let each = o.size.get() / KIB4 / n * KIB4;
                let mut sizes = vec![Bytes(each); o.wanted.len()];
                sizes[0] = Bytes(o.size.get() - each * (n - 1));
                o.split = TierSplit::Fixed(sizes);
            }
        }
        let s = solve(&p).unwrap();
        check_rules(&p, &s);
        prop_assert_eq!(solve(&p).unwrap(), s);
    }
}

/// The best over all ways of placing the whole objects.
fn enumerated(p: &PlacementProblem) -> f64 {
    let wholes: Vec<usize> = (0..p.objects.len())
        .filter(|i| p.objects[*i].whole && p.objects[*i].size.get() > 0)
        .collect();
    let ways = p.tiers.len() + 1;
    let mut best = f64::NEG_INFINITY;
    for code in 0..ways.pow(wholes.len() as u32) {
        let mut fixed = vec![None; p.objects.len()];
        let mut rest = code;
        for item in &wholes {
            let at = rest % ways;
            rest /= ways;
            fixed[*item] = Some((at < p.tiers.len()).then_some(at));
        }
        if let Some(value) = linear(p, &fixed) {
            best = best.max(value);
        }
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn few_whole_objects_reach_the_integer_optimum(
        mut p in some_problem(1..4, 1..6),
        wholes in prop::collection::vec(prop::bool::weighted(0.8), 6),
    ) {
        for (o, whole) in p.objects.iter_mut().zip(wholes) {
            o.whole = whole;
        }
        let s = solve(&p).unwrap();
        check_rules(&p, &s);
        let best = enumerated(&p);
        let got = measured(&p, &s);
        prop_assert!(s.exact, "not certain");
        prop_assert!((got - best).abs() <= 1e-6 * best.max(1.0), "{got} of {best}");
    }
}

/// Many objects of all sizes: small whole ones and large divisible ones, mixed wishes.
fn many(seed: u64, share: f64) -> PlacementProblem {
    let mut seed = terrace_types::Seed(seed);
    let mut draw = move |below: u64| {
        let (x, next) = seed.next();
        seed = next;
        x % below
    };
    let mut all = 0;
    let objects: Vec<Object> = (0..10_000)
        .map(|_| {
            let granules = if draw(4) == 0 { 512 + draw(4096) } else { 1 + draw(512) };
            all += granules;
            let mut o = object(1.0 + draw(4) as f64, granules, &[0], &[1, 2]);
            o.reads = 1.0 + draw(1000) as f64 / 100.0;
            o.writes = draw(1000) as f64 / 100.0;
            o.whole = granules < 512;
            match draw(10) {
                0 => (o.wanted, o.fallback) = (vec![1], vec![0, 2]),
                1 => (o.wanted, o.fallback) = (vec![0, 1], vec![2]),
                _ => {}
            }
            o
        })
        .collect();
    let part = |x: f64| (all as f64 * x) as u64;
    problem(vec![tier(part(share), 1.0), tier(part(share), 0.4), tier(all, 0.15)], objects)
}

#[test]
fn ten_thousand_objects_come_within_a_thousandth_of_the_bound() {
    for (seed, share) in [(1, 0.1), (2, 0.33), (3, 0.66), (4, 0.01)] {
        let p = many(seed, share);
        let s = solve(&p).unwrap();
        check_rules(&p, &s);
        assert!(s.value >= 0.999 * s.bound, "seed {seed}: {} of {}", s.value, s.bound);
    }
}

#[test]
fn the_papers_stream_arrays_lie_as_its_table_has_them() {
    // "hexe", table I: 16 GB of fast memory, arrays a (priority 2), b and c (1).
    let gib = (1 << 30) / KIB4;
    let run = |each: u64| {
        let tiers = vec![tier(16 * gib, 1.0), tier(192 * gib, 0.2)];
        let array = |priority| object(priority, each * gib, &[0], &[1]);
        let s = solve(&problem(tiers, vec![array(2.0), array(1.0), array(1.0)])).unwrap();
        s.placed.iter().map(|o| o.bytes_in(0).get() / (1 << 30)).collect::<Vec<_>>()
    };
    assert_eq!(run(2), [2, 2, 2]);
    assert_eq!(run(8), [8, 4, 4]);
    // The table has a interleaved as well; by the objective all that is fast is worth most under a.
    assert_eq!(run(16), [16, 0, 0]);
}

#[test]
fn equals_share_to_the_page() {
    let tiers = vec![tier(10, 1.0), tier(100, 0.5)];
    let s = solve(&problem(tiers, vec![object(1.0, 7, &[0], &[1]), object(1.0, 14, &[0], &[1])]))
        .unwrap();
    let fast: Vec<u64> = s.placed.iter().map(|o| o.bytes_in(0).get() / KIB4).collect();
    // A third and two thirds of ten pages, rounded.
    assert_eq!(fast.iter().sum::<u64>(), 10);
    assert!(fast[0].abs_diff(3) <= 1, "{fast:?}");
}

#[test]
fn the_strict_come_first_and_the_least_worthy_is_refused() {
    let strict =
        |priority, granules| Object { strict: true, ..object(priority, granules, &[0], &[]) };
    let tiers = || vec![tier(10, 1.0), tier(100, 0.5)];
    let objects = vec![object(9.0, 10, &[0], &[1]), strict(1.0, 6), strict(2.0, 6)];
    let s = solve(&problem(tiers(), objects)).unwrap();
    assert!(s.placed[1].refused && !s.placed[2].refused, "{:?}", s.placed);
    assert_eq!(s.placed[2].bytes_in(0).get() / KIB4, 6);
    assert_eq!(s.placed[0].bytes_in(0).get() / KIB4, 4);
    // What is refused for its size does not keep a smaller one out.
    let s = solve(&problem(tiers(), vec![strict(5.0, 11), strict(1.0, 10)])).unwrap();
    assert!(s.placed[0].refused && !s.placed[1].refused, "{:?}", s.placed);
}

#[test]
fn fixed_parts_lie_where_they_were_asked_for() {
    let mut o = object(1.0, 9, &[0, 1], &[]);
    o.split = TierSplit::Fixed(vec![Bytes(4 * KIB4), Bytes(5 * KIB4)]);
    let s = solve(&problem(vec![tier(100, 1.0), tier(100, 0.5)], vec![o.clone()])).unwrap();
    assert_eq!(
        (s.placed[0].bytes_in(0).get() / KIB4, s.placed[0].bytes_in(1).get() / KIB4),
        (4, 5)
    );
    o.strict = true;
    let s = solve(&problem(vec![tier(100, 1.0), tier(4, 0.5)], vec![o])).unwrap();
    assert!(s.placed[0].refused && s.placed[0].bytes_in(0) == Bytes::ZERO);
}

#[test]
fn slow_memory_asked_for_is_slow_memory_got() {
    let s =
        solve(&problem(vec![tier(100, 1.0), tier(100, 0.5)], vec![object(9.0, 50, &[1], &[0])]))
            .unwrap();
    assert_eq!(s.placed[0].bytes_in(1).get() / KIB4, 50);
    let mut spill = object(9.0, 150, &[1, 0], &[]);
    spill.split = TierSplit::Ordered;
    let s = solve(&problem(vec![tier(100, 1.0), tier(100, 0.5)], vec![spill])).unwrap();
    assert_eq!(s.placed[0].nowhere(), Bytes::ZERO);
    assert_eq!([0, 1].map(|tier| s.placed[0].bytes_in(tier).get() / KIB4), [50, 100]);
}

#[test]
fn the_requested_order_is_kept_between_equal_tiers() {
    for (wanted, got) in
        [([1, 0, 2], [50, 100, 0]), ([2, 1, 0], [0, 50, 100]), ([0, 2, 1], [100, 0, 50])]
    {
        let mut spill = object(9.0, 150, &wanted, &[]);
        spill.split = TierSplit::Ordered;
        let s = solve(&problem(vec![tier(100, 0.5), tier(100, 0.5), tier(100, 0.5)], vec![spill]))
            .unwrap();
        assert_eq!(
            [0, 1, 2].map(|tier| s.placed[0].bytes_in(tier).get() / KIB4),
            got,
            "{wanted:?}"
        );
    }
}

#[test]
fn what_cannot_be_posed_is_named() {
    let fine = problem(vec![tier(1, 1.0)], vec![object(1.0, 1, &[0], &[])]);
    let with = |change: &dyn Fn(&mut PlacementProblem)| {
        let mut p = fine.clone();
        change(&mut p);
        solve(&p).unwrap_err()
    };
    assert_eq!(with(&|p| p.granule = Bytes::ZERO), SolveError::NoGranule);
    assert_eq!(with(&|p| p.tiers[0].read_gain = f64::NAN), SolveError::BadGain { tier: 0 });
    assert_eq!(with(&|p| p.objects[0].reads = f64::INFINITY), SolveError::BadWeight { object: 0 });
    assert_eq!(
        with(&|p| p.objects[0].wanted = vec![3]),
        SolveError::NoSuchTier { object: 0, tier: 3, tiers: 1 }
    );
    assert_eq!(with(&|p| p.objects[0].wanted.clear()), SolveError::NothingWanted { object: 0 });
    assert_eq!(
        with(&|p| p.objects[0].split = TierSplit::Fixed(vec![])),
        SolveError::BadSplit { object: 0 }
    );
    assert_eq!(solve(&problem(vec![], vec![])).unwrap().value, 0.0);
}
