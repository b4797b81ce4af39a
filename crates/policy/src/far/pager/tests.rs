//! The pager in a simulated world: memory, frames and a store that is slow, out of order and
//! sometimes fails. Every action is checked against what it may assume, and every read against what
//! was last written. Failures print their seed.

mod world;

use super::*;
use terrace_types::Seed;
use world::World;

#[test]
fn whatever_happens_each_read_finds_what_was_written_last() {
    // TERRACE_FAR_SEEDS=N runs more of them.
    let seeds = std::env::var("TERRACE_FAR_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(24);
    let first = std::env::var("TERRACE_FAR_FIRST").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    for seed in first..first + seeds {
        println!("seed {seed}");
        let chunks = 64;
        let mut w = World::new(chunks, 4 + seed % 20, seed);
        (w.fail_reads, w.fail_writes, w.hold_back) = match seed % 4 {
            0 => (0, 0, 0),
            1 => (0, 100, 0),
            2 => (20, 50, 50),
            _ => (0, 0, 100),
        };
        let pages = w.geometry.pages();
        let mut base = 0;
        let mut command = 0;
        let (mut pinned, mut on): (Option<std::ops::Range<u64>>, bool) = (None, false);
        for step in 1..3000_u64 {
            let kind = w.chance(100);
            let tid = w.chance(3) as i32;
            let page = if kind < 50 { w.chance(pages) } else { (base + w.chance(8)) % pages };
            match kind {
                0..=89 => {
                    let write = (w.chance(2) == 0).then_some(if step % 11 == 0 { 0 } else { step });
                    w.access(tid, page, write);
                    base += 1;
                }
                90 => base = w.chance(pages),
                91 => {
                    let budget = 3 + w.chance(30);
                    let now = w.now;
                    w.pager.set_budget(Bytes(budget << 16), now);
                    w.act();
                }
                92 => {
                    command += 1;
                    let now = w.now;
                    w.pager.flush(command, now);
                    w.act();
                    w.record_mapped();
                    let answer = w.answers.pop().expect("a flush is answered");
                    assert_eq!(answer.0, command);
                    if w.fail_writes == 0 {
                        // What is not mapped may be on trial: that is flushed too.
                        let missing = w.truth.iter().find(|(g, value)| {
                            let ours = **value != 0 && !w.detached.contains_key(g);
                            ours && w.store.get(g) != Some(value)
                        });
                        assert_eq!(missing, None, "flushed, and not in the store");
                    }
                    if answer.1 {
                        for (g, (value, _)) in &w.mapped {
                            // What an access stream mapped for writing after the flush began is
                            // dirty again.
                            let (chunk, bit) = w.geometry.split(*g);
                            let again = w.pager.chunks[chunk as usize].dirty & bit != 0;
                            assert!(
                                *value == 0 || again || w.store.get(g) == Some(value),
                                "flushed, and not in the store"
                            );
                        }
                    }
                }
                93..=95 => {
                    command += 1;
                    let advice =
                        [Advice::WillNeed, Advice::Cold, Advice::Discard][(kind - 93) as usize];
                    let from = w.chance(chunks << 16);
                    let range = from..from + w.chance(300_000);
                    let now = w.now;
                    if advice == Advice::Discard {
                        // Gone from here on: an access stream's pages may come again before the
                        // answer does.
                        let cover: Vec<_> = w.geometry.cover(range.clone(), true).collect();
                        for (chunk, mask) in cover {
                            for g in w.pages(chunk, mask) {
                                // What was detached is nothing of the pager's to discard.
                                if !w.detached.contains_key(&g) {
                                    w.truth.remove(&g);
                                }
                            }
                        }
                    }
                    w.pager.advise(command, range.clone(), advice, now);
                    w.act();
                    w.record_mapped();
                    let answer =
                        w.answers.pop().unwrap_or_else(|| panic!("no answer to {advice:?}"));
                    assert!(
                        answer.0 == command && (answer.1 || w.fail_writes > 0),
                        "{advice:?}: {answer:?}"
                    );
                }
                96 => {
                    command += 1;
                    let from = w.chance(chunks << 16);
                    let range =
                        pinned.take().unwrap_or(from..(from + w.chance(400_000)).min(chunks << 16));
                    let now = w.now;
                    on = !on;
                    if w.pager.pin(command, range.clone(), on, now) {
                        pinned = on.then_some(range);
                    } else {
                        assert!(on, "unpinning is always possible");
                        on = false;
                    }
                    w.act();
                    w.record_mapped();
                    w.answers.clear();
                }
                97 => {
                    command += 1;
                    let from = w.chance(chunks << 16);
                    let range = from..(from + w.chance(300_000)).min(chunks << 16);
                    let contents =
                        [DiscardedContents::Keep, DiscardedContents::Drop][w.chance(2) as usize];
                    w.detach(command, range, contents);
                }
                98 => {
                    let from = w.chance(chunks << 16);
                    let end = (from + w.chance(2 << 20)).min(chunks << 16);
                    w.attach(from..end);
                }
                _ => {
                    w.complete();
                }
            }
            assert!(w.max_frames <= 24 + 3, "frames are bounded");
        }
        w.fail_reads = 0;
        w.fail_writes = 0;
        for page in 0..pages {
            let got = w.access(9, page, None);
            assert!(got.is_some() || (seed % 4 == 2), "lost without a failed read");
        }
        assert!(!w.pager.waiting());
    }
}

fn sweep(w: &mut World, chunks: std::ops::Range<u64>, write: bool) {
    for g in chunks.start * 16..chunks.end * 16 {
        w.access(1, g, write.then_some(g + 1));
    }
}

#[test]
fn a_sweep_over_twice_the_memory_keeps_part_of_it_and_reads_ahead() {
    let mut w = World::new(512, 256, 1);
    sweep(&mut w, 0..512, true);
    w.record_mapped();
    let before = w.pager.counts();
    sweep(&mut w, 0..512, false);
    sweep(&mut w, 0..512, false);
    let c = w.pager.counts();
    println!("{before:?}\n{c:?}");
    let read = (c.read_bytes - before.read_bytes) as f64 / f64::from((2 * 512) << 16);
    let faults = c.faults - before.faults;
    assert!(read < 0.65, "read {read} of the bytes swept");
    assert!(faults < 400, "{faults} faults for 1024 chunks");
    assert!(c.wasted_bytes < c.read_bytes / 20, "{c:?}");
    assert!(w.max_mapped <= 256 * 16, "{} pages mapped", w.max_mapped);
}

#[test]
fn a_strided_stream_finds_its_prefetched_pages_present() {
    for stride in [1, 2, 3, 5, 15, 16, 40] {
        let mut w = World::new(2048, 1024, 1);
        w.pager.settings.frames = 128;
        w.pager.settings.window = Bytes::mib(16);
        w.pager.set_budget(Bytes::mib(64), w.now);
        sweep(&mut w, 0..2048, true);
        w.record_mapped();
        let before = w.pager.counts();
        for first in 0..stride {
            for page in (first..2048 * 16).step_by(stride as usize) {
                w.access(1, page, None);
                // The program goes on when all is there that was to be fetched.
                w.record_mapped();
            }
        }
        let c = w.pager.counts();
        let read = (c.read_bytes - before.read_bytes) as f64 / f64::from(2048 << 16);
        println!(
            "stride {stride}: {read:.2} of the bytes touched, {} misses",
            c.misses - before.misses
        );
        assert!(read < 1.6, "stride {stride}: read {read} times the bytes touched");
    }
}

#[test]
fn a_sweep_that_writes_what_it_reads_is_followed_and_mapped_for_writing() {
    let mut w = World::new(512, 256, 3);
    sweep(&mut w, 0..512, true);
    let before = w.pager.counts();
    for page in 0..512 * 16 {
        w.access(1, page, None);
        w.access(1, page, Some(page + 1));
    }
    let c = w.pager.counts();
    let chunks = (c.read_bytes - before.read_bytes) >> 16;
    let (misses, first_writes) = (c.misses - before.misses, c.first_writes - before.first_writes);
    println!(
        "{chunks} chunks read, {misses} misses, {first_writes} first writes, {} faults",
        c.faults - before.faults
    );
    assert!(chunks > 200 && first_writes * 4 < chunks && misses * 4 < chunks);
}

#[test]
fn reused_pages_survive_a_scan() {
    let mut w = World::new(1024, 128, 2);
    let mut seed = Seed(9);
    let mut hot = |w: &mut World, n: u64| {
        for _ in 0..n {
            let (r, next) = seed.next();
            seed = next;
            w.access(1, 16 * 64 + r % (64 * 16), Some(r));
        }
    };
    sweep(&mut w, 0..512, true);
    hot(&mut w, 6000);
    let before = w.pager.counts();
    for part in 0..32 {
        sweep(&mut w, 512 + part * 16..528 + part * 16, true);
        hot(&mut w, 500);
    }
    let c = w.pager.counts();
    // 16,000 touches of the hot quarter, 512 chunks scanned: what was read again is what was hot.
    let again = (c.read_bytes - before.read_bytes) >> 16;
    assert!(again < 64, "{again} chunks read again");
}

/// Pages of `chunks` in any order, as often as they are many. Pages of which few are touched much
/// and most seldom, in no order: a share of any page's neighbours is missed within a while, and no
/// sooner than what goes for them.
#[test]
fn where_some_pages_are_touched_more_and_in_no_order_they_come_page_by_page() {
    let mut w = World::new(512, 320, 11);
    let mut seed = Seed(6);
    sweep(&mut w, 0..512, true);
    let mut touch = |times: u64| {
        for n in 0..times {
            let (r, next) = seed.next();
            seed = next;
            let u = (r >> 11) as f64 / (1_u64 << 53) as f64;
            let rank = (u * u * 8192.0) as u64;
            w.access(2, rank * 2_654_435_761 % 8192, Some(n));
        }
        w.pager.counts()
    };
    let before = touch(40_000);
    let c = touch(40_000);
    let (misses, read) = (c.misses - before.misses, (c.read_bytes - before.read_bytes) >> 12);
    assert!(misses > 5_000 && read < misses * 5 / 4, "{misses} misses, {read} pages read");
}

fn at_random(w: &mut World, seed: &mut Seed, chunks: std::ops::Range<u64>, times: u64) {
    for _ in 0..times {
        let (r, next) = seed.next();
        *seed = next;
        w.access(2, chunks.start * 16 + r % ((chunks.end - chunks.start) * 16), None);
    }
}

/// Misses among pages that are only read, at random, beside a loop that does not fit.
fn misses_beside_a_loop(standby: usize, chunks: u64, chance: u64) -> u64 {
    let mut w = World::new(1024, 256, chance);
    w.pager.settings.standby = standby;
    w.pager.set_marks(w.pager.settings.budget);
    let mut seed = Seed(3 + chance);
    sweep(&mut w, 0..128, true);
    sweep(&mut w, 200..200 + chunks, true);
    let mut misses = 0;
    for round in 0..8 {
        for part in 0..chunks / 10 {
            sweep(&mut w, 200 + part * 10..210 + part * 10, true);
            let before = w.pager.counts().misses;
            at_random(&mut w, &mut seed, 0..128, 500);
            // The first rounds say what is used.
            misses += if round < 2 { 0 } else { w.pager.counts().misses - before };
        }
    }
    misses
}

#[test]
fn what_is_only_read_and_used_much_survives_a_loop() {
    // One run says little: misses differ twofold from seed to seed.
    for chunks in [160, 200, 300] {
        let sum = |standby| {
            (0..10).map(|chance| misses_beside_a_loop(standby, chunks, chance)).sum::<u64>()
        };
        let (without, with) = (sum(0), sum(32));
        println!("loops of {chunks} chunks: {without} misses without trials, {with} with them");
        assert!(
            with * 2 < without,
            "loops of {chunks} chunks: {without} misses without trials, {with} with them"
        );
    }
}

#[test]
fn neighbours_that_went_together_come_together() {
    let mut w = World::new(512, 128, 9);
    let mut seed = Seed(4);
    sweep(&mut w, 0..64, true);
    at_random(&mut w, &mut seed, 0..64, 4000);
    sweep(&mut w, 100..400, true);
    w.record_mapped();
    let before = w.pager.counts();
    at_random(&mut w, &mut seed, 0..64, 4000);
    let c = w.pager.counts();
    let misses = c.misses - before.misses;
    // 64 chunks, nearly all of which went: not 16 misses each.
    assert!(misses < 3 * 64, "{misses} misses for 64 chunks");
}

#[test]
fn what_is_touched_evenly_comes_page_by_page() {
    let mut w = World::new(512, 256, 10);
    let mut seed = Seed(5);
    sweep(&mut w, 0..512, true);
    at_random(&mut w, &mut seed, 0..512, 20_000);
    let before = w.pager.counts();
    at_random(&mut w, &mut seed, 0..512, 20_000);
    let c = w.pager.counts();
    let (misses, read) = (c.misses - before.misses, (c.read_bytes - before.read_bytes) >> 12);
    println!("{misses} misses, {read} pages read");
    assert!(misses > 5_000 && read < misses * 5 / 4, "{misses} misses, {read} pages read");
}

#[test]
fn a_new_loop_that_fits_takes_over() {
    let mut w = World::new(512, 128, 3);
    sweep(&mut w, 0..256, true);
    let mut last = 0;
    for _ in 0..30 {
        let before = w.pager.counts().read_bytes;
        sweep(&mut w, 300..396, true);
        last = w.pager.counts().read_bytes - before;
    }
    assert!(last >> 16 < 30, "{} of 96 chunks still read each time", last >> 16);
}

#[test]
fn clean_pages_go_without_io_and_zeros_are_not_stored() {
    let mut w = World::new(256, 32, 4);
    sweep(&mut w, 0..256, false);
    w.record_mapped();
    assert_eq!(
        (w.pager.counts().written_bytes, w.pager.counts().read_bytes),
        (0, 0),
        "never written"
    );
    for g in 0..256 * 16 {
        w.access(1, g, Some(0));
    }
    w.record_mapped();
    assert_eq!(w.pager.counts().written_bytes, 0, "zeros are not stored");
    sweep(&mut w, 0..256, true);
    w.record_mapped();
    let before = w.pager.counts();
    sweep(&mut w, 0..256, false);
    sweep(&mut w, 0..256, false);
    w.record_mapped();
    let c = w.pager.counts();
    assert!(
        c.written_bytes - before.written_bytes <= 32 << 16,
        "{} written for reading",
        c.written_bytes
    );
}

#[test]
fn a_store_that_fails_for_ever_loses_nothing_and_stops_nobody() {
    let mut w = World::new(128, 16, 5);
    w.fail_writes = 1000;
    sweep(&mut w, 0..128, true);
    for g in 0..128 * 16 {
        assert_eq!(w.access(1, g, None), Some(g + 1));
    }
    assert!(w.pager.counts().write_failures >= 8);
}

#[test]
fn a_page_that_cannot_be_read_is_lost_alone_and_can_be_given_up() {
    let mut w = World::new(128, 16, 6);
    sweep(&mut w, 0..128, true);
    w.record_mapped();
    w.fail_reads = 1000;
    let far =
        (1..2048).find(|g| !w.mapped.contains_key(g) && !w.mapped.contains_key(&(g + 1))).unwrap();
    assert_eq!(w.access(1, far, None), None);
    w.fail_reads = 0;
    assert!(w.pager.is_lost(far) && w.pager.counts().lost_bytes == 4096, "{:?}", w.pager.counts());
    assert_eq!(w.access(1, far + 1, None), Some(far + 2));
    assert_eq!(w.access(1, far, None), None, "still lost, not old data");
    let now = w.now;
    w.pager.advise(1, far * 4096..(far + 1) * 4096, Advice::Discard, now);
    w.act();
    w.truth.remove(&far);
    assert_eq!(w.access(1, far, None), Some(0));
}

#[test]
fn pinned_chunks_stay_and_pins_are_bounded() {
    let mut w = World::new(256, 32, 7);
    sweep(&mut w, 0..256, true);
    w.record_mapped();
    let now = w.now;
    assert!(!w.pager.pin(1, 0..64 << 16, true, now), "more than half of the budget");
    assert!(w.pager.pin(2, 0..4 << 16, true, now));
    w.act();
    w.record_mapped();
    sweep(&mut w, 100..256, true);
    w.record_mapped();
    assert!((0..64).all(|g| w.mapped.contains_key(&g)));
    // A budget below what is pinned stops nobody.
    let now = w.now;
    w.pager.set_budget(Bytes(1 << 16), now);
    w.act();
    sweep(&mut w, 100..128, true);
    assert!((0..64).all(|g| w.mapped.contains_key(&g)));
    let now = w.now;
    assert!(w.pager.pin(3, 0..4 << 16, false, now));
    assert!(w.pager.counts().budget_bytes == 1 << 16);
}

/// Twice the memory is read block by block by one thread, and of each block every third page, in no
/// order, is then written by another (or none is).
#[test]
fn what_is_written_each_time_comes_back_for_writing_and_what_is_not_does_not() {
    let go = |writes: bool| {
        let mut w = World::new(512, 256, 5);
        sweep(&mut w, 0..512, true);
        w.record_mapped();
        let mut rounds = Vec::new();
        for round in 0..6 {
            let before = w.pager.counts();
            for block in (0..512 * 16).step_by(64) {
                (block..block + 64).for_each(|g| _ = w.access(1, g, None));
                for g in (0..21).map(|i| block + 3 * (i * 8 % 21) + 1).filter(|_| writes) {
                    w.access(2, g, Some(round + g));
                }
            }
            w.record_mapped();
            let c = w.pager.counts();
            rounds.push((
                c.first_writes - before.first_writes,
                c.written_bytes - before.written_bytes,
            ));
        }
        rounds
    };
    let (written, read) = (go(true), go(false));
    println!("{written:?} {read:?}");
    // Without expecting it, 1507 faults and 6.2 MB written each round. One page in sixteen is
    // observed.
    assert!(written[0].0 > 600 && written[2..].iter().all(|r| r.0 < 150), "{written:?}");
    assert!(written[5].1 < 8_000_000, "{written:?}");
    // Who only reads has nothing stored that was stored before: at most what was left dirty of the
    // first sweep.
    let left: u64 = read.iter().map(|r| r.1).sum();
    assert!(left <= 256 << 16, "{read:?}");
}

#[test]
fn vanished_pages_are_fetched_again_or_lost() {
    let mut w = World::new(64, 16, 1);
    w.access(1, 3, Some(77));
    w.pager.flush(1, w.now);
    w.act();
    w.record_mapped();
    w.access(1, 5, Some(78));
    for (page, lost) in [(3, false), (5, true)] {
        let (chunk, bit) = w.geometry.split(page);
        w.mapped.remove(&page);
        assert_eq!(w.pager.vanished(chunk, bit, Tid(1)), lost);
        w.act();
        assert_eq!((w.pager.is_lost(page), w.poisoned.contains(&page)), (lost, lost));
    }
    assert_eq!(w.access(1, 3, None), Some(77));
}
