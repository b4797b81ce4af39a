//! What must hold of any hierarchy, under random loads, stores and flushes; and a few cases told
//! out.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use terrace_cache::{
    Cache, Hierarchy, HierarchyError, HierarchySpec, Inclusion, LevelSpec, LruOutcome,
    MemoryTraffic, Mesi, Prefetch, Replacement, WritePolicy,
};

const LINE: u64 = 64;

fn level(sets: u64, ways: u32, shared: bool) -> LevelSpec {
    LevelSpec::new(sets * u64::from(ways) * LINE, ways, shared)
}

fn hierarchy(cores: usize, levels: &[LevelSpec]) -> Hierarchy {
    Hierarchy::new(&HierarchySpec { cores, line: LINE, levels: levels.to_vec() }).unwrap()
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// Every mixture of choices that can be built, over two private levels and a shared one.
fn mixtures() -> Vec<Vec<LevelSpec>> {
    let through = WritePolicy { back: false, allocate: false };
    let mut all = Vec::new();
    for outer in [Inclusion::Neither, Inclusion::Inclusive, Inclusion::Exclusive] {
        for middle in [Inclusion::Neither, Inclusion::Inclusive, Inclusion::Exclusive] {
            for write in
                [WritePolicy::default(), through, WritePolicy { back: false, allocate: true }]
            {
                for replacement in
                    [Replacement::Lru, Replacement::TreePlru, Replacement::Random { seed: 3 }]
                {
                    for prefetch in
                        [Prefetch::Nothing, Prefetch::NextLine, Prefetch::Stride { ahead: 2 }]
                    {
                        all.push(vec![
                            LevelSpec { write, replacement, prefetch, ..level(4, 2, false) },
                            LevelSpec { inclusion: middle, replacement, ..level(8, 2, false) },
                            LevelSpec { inclusion: outer, replacement, ..level(8, 8, true) },
                        ]);
                    }
                }
            }
        }
    }
    all
}

#[test]
fn no_change_is_ever_lost_and_no_two_cores_own_a_line() {
    for (number, levels) in mixtures().into_iter().enumerate() {
        let mut h = hierarchy(3, &levels);
        let mut rng = Rng(88_172_645_463_325_252 + number as u64);
        // Lines whose last store has not reached memory.
        let mut stale: BTreeSet<u64> = BTreeSet::new();
        for step in 0..3_000 {
            let (core, line) = (rng.below(3) as usize, rng.below(120));
            let mut reported = Vec::new();
            match rng.below(40) {
                0 => {
                    h.clwb(line, &mut |t| reported.push(t));
                }
                1 => {
                    h.clflush(line, &mut |t| reported.push(t));
                }
                2 if step % 100 == 0 => {
                    h.wbinvd(core, &mut |t| reported.push(t));
                }
                n => {
                    let write = n % 3 == 0;
                    h.access_line(core, line, write, &mut |t| reported.push(t));
                    if write {
                        stale.insert(line);
                        // A write-through store is reported last.
                        assert!(
                            h.is_dirty(line)
                                || reported.last() == Some(&MemoryTraffic::Write(line)),
                            "{levels:?}"
                        );
                    }
                }
            }
            for traffic in reported {
                if let MemoryTraffic::Write(line) = traffic {
                    stale.remove(&line);
                }
            }
            let dirty = h.dirty_lines();
            assert!(
                stale.iter().all(|l| dirty.binary_search(l).is_ok()),
                "step {step} of {levels:?}: {stale:?}"
            );
            let states: Vec<Mesi> = (0..3).map(|c| h.state(c, line)).collect();
            let alone =
                states.iter().filter(|s| matches!(s, Mesi::Modified | Mesi::Exclusive)).count();
            let valid = states.iter().filter(|s| **s != Mesi::Invalid).count();
            assert!(alone == 0 || valid == 1, "step {step} of {levels:?}: {states:?}");
        }
        for line in h.dirty_lines() {
            h.clwb(line, &mut |t| {
                if let MemoryTraffic::Write(line) = t {
                    stale.remove(&line);
                }
            });
        }
        assert_eq!((stale.len(), h.dirty_lines().len()), (0, 0), "{levels:?}");
    }
}

#[test]
fn inclusive_levels_hold_all_and_exclusive_ones_none_of_the_nearer() {
    for inclusion in [Inclusion::Inclusive, Inclusion::Exclusive] {
        let mut h =
            hierarchy(2, &[level(4, 2, false), LevelSpec { inclusion, ..level(4, 6, true) }]);
        let mut rng = Rng(5);
        for _ in 0..20_000 {
            h.access_line(rng.below(2) as usize, rng.below(60), rng.below(4) == 0, &mut |_| {});
            for (core, line) in (0..2).flat_map(|c| (0..60).map(move |l| (c, l))) {
                if h.holds(0, core, line) && inclusion == Inclusion::Inclusive {
                    assert!(h.holds(1, core, line), "line {line}");
                }
            }
        }
        if inclusion == Inclusion::Exclusive {
            // One core alone, so that nobody shares.
            let mut h =
                hierarchy(1, &[level(4, 2, false), LevelSpec { inclusion, ..level(4, 6, true) }]);
            for _ in 0..20_000 {
                h.access_line(0, rng.below(60), rng.below(4) == 0, &mut |_| {});
                assert!((0..60).all(|l| !(h.holds(0, 0, l) && h.holds(1, 0, l))));
            }
            // Together they hold as many lines as both have space for.
            assert_eq!((0..60).filter(|l| h.holds(0, 0, *l) || h.holds(1, 0, *l)).count(), 8 + 24);
        }
    }
}

#[test]
fn two_lru_levels_agree_with_two_plain_caches() {
    let mut h = hierarchy(1, &[level(16, 4, false), level(32, 8, true)]);
    let (mut near, mut far) =
        (Cache::new(64 * LINE, 4, LINE).unwrap(), Cache::new(256 * LINE, 8, LINE).unwrap());
    let (mut near_misses, mut far_misses, mut writes, mut reported) = (0, 0, 0, 0);
    let mut rng = Rng(17);
    for _ in 0..200_000 {
        let (line, write) = (rng.below(600) * rng.below(3), rng.below(3) == 0);
        h.access_line(0, line, write, &mut |t| {
            reported += u64::from(matches!(t, MemoryTraffic::Write(_)))
        });
        if near.hit(line, write) {
            continue;
        }
        near_misses += 1;
        let victim_of_far = match far.access(line, false) {
            LruOutcome::Hit => None,
            LruOutcome::Miss { victim } => {
                far_misses += 1;
                victim.filter(|v| v.dirty)
            }
        };
        writes += u64::from(victim_of_far.is_some());
        if let Some(left) = near.fill(line, write).filter(|v| v.dirty) {
            writes += u64::from(!far.mark_dirty(left.line));
        }
    }
    let counts = h.counts();
    assert_eq!((counts[0].misses, counts[1].misses, reported), (near_misses, far_misses, writes));
}

#[test]
fn mesi_in_its_textbook_steps() {
    let mut h = hierarchy(3, &[level(4, 2, false), level(8, 4, true)]);
    let mut traffic = Vec::new();
    let states = |h: &Hierarchy| [0, 1, 2].map(|c| h.state(c, 7));
    use Mesi::{Exclusive as E, Invalid as I, Modified as M, Shared as S};
    h.access_line(0, 7, false, &mut |t| traffic.push(t));
    assert_eq!(states(&h), [E, I, I]);
    h.access_line(0, 7, true, &mut |t| traffic.push(t));
    assert_eq!(states(&h), [M, I, I]);
    h.access_line(1, 7, false, &mut |t| traffic.push(t));
    assert_eq!(states(&h), [S, S, I]);
    h.access_line(2, 7, false, &mut |t| traffic.push(t));
    assert_eq!(states(&h), [S, S, S]);
    h.access_line(1, 7, true, &mut |t| traffic.push(t));
    assert_eq!(states(&h), [I, M, I]);
    h.access_line(2, 7, true, &mut |t| traffic.push(t));
    assert_eq!(states(&h), [I, I, M]);
    assert!(h.clflush(7, &mut |t| traffic.push(t)));
    assert_eq!(states(&h), [I, I, I]);
    // Changes of one core went to the others by the shared level: memory was read once and written
    // once.
    assert_eq!(traffic, [MemoryTraffic::Read(7), MemoryTraffic::Write(7)]);
}

#[test]
fn stores_go_through_or_around_as_specified() {
    let through = WritePolicy { back: false, allocate: false };
    let mut h = hierarchy(1, &[LevelSpec { write: through, ..level(4, 2, false) }]);
    let mut traffic = Vec::new();
    h.access_line(0, 3, true, &mut |t| traffic.push(t));
    assert_eq!((&traffic[..], h.holds(0, 0, 3)), (&[MemoryTraffic::Write(3)][..], false));
    h.access_line(0, 3, false, &mut |t| traffic.push(t));
    h.access_line(0, 3, true, &mut |t| traffic.push(t));
    assert_eq!(traffic, [MemoryTraffic::Write(3), MemoryTraffic::Read(3), MemoryTraffic::Write(3)]);
    assert_eq!((h.dirty_lines().len(), h.counts()[0].hits, h.counts()[0].misses), (0, 1, 2));
}

#[test]
fn flushes_do_what_they_are_called() {
    let mut h = hierarchy(2, &[level(4, 2, false), level(8, 4, true)]);
    let mut written = Vec::new();
    let mut note = |t: MemoryTraffic| {
        if let MemoryTraffic::Write(line) = t {
            written.push(line);
        }
    };
    for line in [1, 2, 3] {
        h.access_line(0, line, true, &mut note);
    }
    h.access_line(1, 40, true, &mut note);
    assert_eq!(h.dirty_lines(), [1, 2, 3, 40]);
    assert!(h.clwb(2, &mut note) && !h.clwb(2, &mut note));
    assert!(h.holds(0, 0, 2) && !h.is_dirty(2));
    assert!(h.clflush(3, &mut note) && !h.holds(0, 0, 3) && !h.holds(1, 0, 3));
    assert_eq!(h.wbinvd(0, &mut note), 1);
    assert_eq!((h.dirty_lines(), h.holds(1, 0, 40), h.holds(0, 1, 40)), (vec![40], false, true));
    assert_eq!(written, [2, 3, 1]);
}

#[test]
fn prefetched_lines_are_found_and_counted() {
    let with = |prefetch| {
        hierarchy(1, &[LevelSpec { prefetch, ..level(16, 4, false) }, level(64, 8, true)])
    };
    let sweep = |h: &mut Hierarchy, step: u64| {
        for i in 0..500 {
            h.access_line(0, i * step, false, &mut |_| {});
        }
        h.counts()
    };
    let plain = sweep(&mut with(Prefetch::Nothing), 1);
    assert_eq!((plain[0].misses, plain[0].prefetches), (500, 0));
    let next = sweep(&mut with(Prefetch::NextLine), 1);
    assert_eq!((next[0].misses, next[0].prefetches, next[0].useful), (250, 250, 250));
    assert_eq!(next[1].misses, 250, "outer levels count demands only");
    let strided = sweep(&mut with(Prefetch::Stride { ahead: 4 }), 5);
    assert!(strided[0].misses < 350 && strided[0].useful > 100, "{strided:?}");
}

#[test]
fn an_access_across_lines_is_an_access_to_each() {
    let mut h = hierarchy(1, &[level(4, 2, false)]);
    assert_eq!(h.access(0, 60, 8, false, &mut |_| {}), 1);
    assert_eq!((h.counts()[0].misses, h.access(0, 64, 1, false, &mut |_| {})), (2, 0));
}

#[test]
fn what_cannot_be_built_is_named() {
    let build = |cores, line, levels: Vec<LevelSpec>| {
        Hierarchy::new(&HierarchySpec { cores, line, levels }).err()
    };
    let good = level(4, 2, false);
    assert_eq!(build(0, 64, vec![good]), Some(HierarchyError::Size));
    assert_eq!(build(1, 64, vec![]), Some(HierarchyError::Size));
    assert_eq!(build(1, 48, vec![good]), Some(HierarchyError::Line));
    assert_eq!(
        build(1, 64, vec![level(4, 2, true), good]),
        Some(HierarchyError::PrivateBehindShared { level: 1 })
    );
    let first = LevelSpec { inclusion: Inclusion::Inclusive, ..good };
    assert_eq!(build(1, 64, vec![first]), Some(HierarchyError::Mixture { level: 0 }));
    assert!(build(1, 64, vec![LevelSpec { bytes: 100, ..good }])
        .unwrap()
        .to_string()
        .contains("multiple of ways"));
}
