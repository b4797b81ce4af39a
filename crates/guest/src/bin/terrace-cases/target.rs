//! Targets that do to their own memory what makes moving pages hard. Each prints only values
//! that depend on its data, so that two runs print the same whatever was done to the pages.

use crate::events;
use crate::kinds;
use crate::memory::{give_up, PageMapping, TargetFiles, ENOUGH, LINE_WORDS, NOT_AS_MEANT};
use std::time::Duration;
use terrace_guest::kernel;

/// Runs the target `mode`; returns its exit status.
pub fn run(mode: &str, args: &[&str]) -> i32 {
    let reported = TargetFiles::from_env();
    match mode {
        "steady" => report("steady", steady(&reported)),
        "brief" => report("brief", PageMapping::slow(8 << 20).fill(1).sum(false)),
        "exit" => events::exits(&reported),
        "exec" => events::execs(&reported, args),
        "fork" => events::forks(&reported),
        "unmap" => events::unmaps(&reported),
        "huge" => report("huge", huge(&reported)),
        "kinds" => report("kinds", kinds::run(&reported)),
        "held" => report("held", held(&reported)),
        "crowded" => report("crowded", crowded(&reported)),
        "hog" => hog(&reported),
        "status" => {
            report("status", churn(PageMapping::slow(8 << 20).fill(1).words(), 10));
            return 37;
        }
        _ => {
            eprintln!("unknown target {mode}");
            return 2;
        }
    }
    0
}

pub fn report(name: &str, sum: u64) {
    println!("{name} {sum:016x}");
}

/// Rounds of random writes, a pause after each, so that guest time passes without much work; then a
/// checksum.
pub fn churn(words: &mut [u64], rounds: u64) -> u64 {
    let mut x = 88_172_645_463_325_252_u64;
    for _ in 0..rounds {
        for _ in 0..20_000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let slot = (x as usize) % words.len() / LINE_WORDS * LINE_WORDS;
            words[slot] = words[slot].rotate_left(1) ^ x;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    words.iter().step_by(LINE_WORDS).fold(0, |sum, w| sum.rotate_left(5) ^ w)
}

/// Cold memory first, which takes the fast node, then hot memory, which finds no free space there:
/// the ordinary case.
fn steady(reported: &TargetFiles) -> u64 {
    let mut map = PageMapping::new(144 << 20, libc::MAP_PRIVATE);
    crate::memory::fill(map.words(), 1);
    let (all, words) = (map.pages(), map.words().len());
    reported.stir_until_moving(&mut map, all - all / 8..all);
    let hot = churn(&mut map.words()[words - words / 8..], 20);
    hot ^ map.sum(false)
}

/// Hot memory in huge pages.
fn huge(reported: &TargetFiles) -> u64 {
    let _filler = PageMapping::filler();
    let mut map = PageMapping::new(24 << 20, libc::MAP_PRIVATE)
        .advised(libc::MADV_HUGEPAGE)
        .placed_slow()
        .fill(4);
    let held = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let huge_kib = held.lines().find_map(|l| {
        l.strip_prefix("AnonHugePages:")?.trim().strip_suffix(" kB")?.trim().parse().ok()
    });
    if huge_kib.unwrap_or(0) < 16 << 10 {
        give_up(NOT_AS_MEANT, &format!("no huge pages: {huge_kib:?} KiB"));
    }
    let all = map.pages();
    reported.stir_until_moving(&mut map, 0..all);
    churn(map.words(), 10)
}

/// Hot memory until the driver has had enough: what it holds does not depend on when that is.
fn held(reported: &TargetFiles) -> u64 {
    let mut map = PageMapping::slow(48 << 20).fill(6);
    let all = map.pages();
    reported.stir_until_moving(&mut map, 0..all);
    while reported.managed() && !reported.heard(ENOUGH) {
        map.stir(0..all);
        std::thread::sleep(Duration::from_millis(5));
    }
    let fast = map.fast(0..all);
    // On standard error: where pages lie is no part of what must be alike.
    eprintln!("fast {} of {}", fast.pages, fast.of);
    map.sum(false)
}

/// As long as pages of `crowded` are to be moved after somebody else took the fast node.
const CROWDED: Duration = Duration::from_millis(400);
/// The hog has all of the fast node.
const FULL: &str = "full";

/// Hot memory, most of which would fit the fast node if the hog did not take that as soon as pages
/// move.
fn crowded(reported: &TargetFiles) -> u64 {
    let mut map = PageMapping::slow(80 << 20).fill(7);
    let all = map.pages();
    reported.stir_until_moving(&mut map, 0..all);
    reported.wait_for(FULL);
    let until = kernel::now() + CROWDED.as_nanos() as u64;
    while reported.managed() && kernel::now() < until {
        map.stir(0..all);
        std::thread::sleep(Duration::from_millis(5));
    }
    map.sum(false)
}

/// Takes the fast node when pages of another have begun to move, and keeps it until it is killed.
fn hog(reported: &TargetFiles) {
    reported.wait_for(crate::memory::MOVING);
    let filler = PageMapping::filler();
    reported.say(FULL);
    loop {
        std::thread::sleep(Duration::from_millis(50));
        filler.touch_once(0..1);
    }
}
