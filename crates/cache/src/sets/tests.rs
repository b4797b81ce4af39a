use super::*;

/// Against a list of tags a set, the one used last first.
#[test]
fn agrees_with_lists() {
    for (ways, count) in [
        (1, 5),
        (2, 5),
        (3, 5),
        (7, 5),
        (8, 700),
        (9, 5),
        (11, 600),
        (12, 5),
        (16, 513),
        (17, 5),
        (33, 5),
    ] {
        let mut sets = Sets::new(count, ways);
        let mut lists: Vec<Vec<(u64, bool)>> = vec![Vec::new(); count];
        let mut x = 88_172_645_463_325_252u64 + ways as u64;
        for step in 0..60_000u64 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            // Tags whose bytes are often the same although they are not; towards the end, wider
            // and wider ones.
            let (set, number, flag) =
                (x as usize % count % 7, (x >> 20) % (ways as u64 * 2), x >> 63 == 1);
            let wide =
                if step < 30_000 || number % 5 > 0 { 8 } else { (step / 1000).min(55) as u32 };
            let tag = if number % 3 == 0 { number << wide } else { number };
            let list = &mut lists[set];
            let known = list.iter().position(|held| held.0 == tag);
            match x >> 40 & 15 {
                0 => {
                    sets.forget(set, tag);
                    known.map(|at| list.remove(at));
                }
                1 => assert_eq!(
                    sets.peek(set, tag).map(|s| sets.flag(s)),
                    known.map(|at| list[at].1)
                ),
                3 => {
                    assert_eq!(sets.mark_tag(set, tag), known.is_some());
                    known.into_iter().for_each(|at| list[at].1 = true);
                }
                4 => {
                    let found = sets.find_flag(set, tag);
                    assert_eq!(found.map(|f| f.1), known.map(|at| list[at].1));
                    assert_eq!(found.map(|f| f.0), sets.peek(set, tag).map(|s| s.way));
                    known.into_iter().for_each(|at| list[..=at].rotate_right(1));
                }
                2 if step % 1000 == 0 => {
                    sets.clear();
                    lists.iter_mut().for_each(Vec::clear);
                }
                _ => match sets.find(set, tag) {
                    Some(slot) => {
                        let old = list.remove(known.expect("found but not in the list"));
                        assert_eq!((sets.flag(slot), sets.latest(set)), (old.1, Some(slot)));
                        sets.put_flag(slot, flag);
                        list.insert(0, (tag, flag));
                    }
                    None => {
                        assert_eq!(known, None, "{ways} ways, step {step}");
                        let before = sets.oldest(set);
                        let (slot, old) = sets.replace(set, tag, flag).unwrap();
                        assert_eq!(
                            before,
                            if list.len() == ways { list.last().copied() } else { None }
                        );
                        let gone = if list.len() == ways { list.pop() } else { None };
                        assert_eq!((old, slot.set, sets.flag(slot)), (gone, set, flag));
                        list.insert(0, (tag, flag));
                    }
                },
            }
        }
    }
}

#[test]
fn to_use_is_to_find_or_to_replace() {
    for (ways, count) in [(4, 3), (11, 600), (16, 2), (20, 3)] {
        let (mut one, mut two) = (Sets::new(count, ways), Sets::new(count, ways));
        let mut three = one.clone();
        let mut x = 7_046_029_254_386_353_131u64;
        for step in 0..40_000u64 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let (set, flag) = (x as usize % 2, x >> 63 == 1);
            let tag = ((x >> 20) % (ways as u64 * 2)) << if x & 64 == 0 { 0 } else { step / 1000 };
            let used = match two.find(set, tag) {
                Some(slot) => {
                    two.mark(slot, flag);
                    TagUse::Again
                }
                None => TagUse::First(two.replace(set, tag, flag).unwrap().1),
            };
            assert_eq!(one.access(set, tag, flag), used);
            assert_eq!(three.fetch(set, tag, flag), TagFetch::from_use(used));
            if step % 97 == 0 {
                [&mut one, &mut two, &mut three].into_iter().for_each(|sets| sets.forget(set, tag));
            }
        }
    }
}

#[test]
fn without_ways_or_sets_there_is_nothing() {
    for mut sets in [Sets::new(1, 0), Sets::new(0, 4)] {
        assert_eq!(
            (sets.find(0, 8), sets.replace(0, 8, true), sets.peek(7, 8)),
            (None, None, None)
        );
        sets.forget(0, 8);
        sets.ahead(0);
        sets.ahead(100);
    }
}

#[test]
fn a_set_of_a_large_cache_is_a_line_of_the_host() {
    assert_eq!((size_of::<Line>(), align_of::<Line>()), (64, 64));
}
