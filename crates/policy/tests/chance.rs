//! Where chance would mislead `terrace`: pages that are alike but for what was seen of them by
//! chance.
#![allow(clippy::unwrap_used)]

use terrace_policy::place::Placement;
use terrace_testkit::{dcpmm, tier};
use terrace_types::{
    Area, BitSource, Bytes, Heat, Nanos, NodeId, PageFlags, PageStat, Pid, PolicyId, Seed,
    Snapshot, Tick, TrackerVisibility, Vpn,
};

/// Mean of accesses seen of each page, and how long was sampled.
const SEEN: f64 = 11.0;
const SAMPLED_FOR: Nanos = Nanos::millis(11);

const FAST: Bytes = Bytes::mib(64);
const SLOW: Bytes = Bytes::gib(1);

/// A count with this mean, from uniform numbers in turn (Knuth's method).
fn poisson(mean: f64, state: &mut u64) -> u64 {
    let (mut left, mut n) = ((-mean).exp(), 0);
    loop {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        left /= ((*state >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
        if left >= 1.0 {
            return n;
        }
        n += 1;
    }
}

/// All pages are touched equally often, and seen so often by chance; `written` of them are written
/// and the rest read. The first `fast` pages are on the better tier.
fn alike(read: usize, written: usize, fast: usize, seed: u64) -> Snapshot {
    let mut state = seed;
    let mut page = |at: usize| {
        let rate = Heat::from_rate(
            poisson(SEEN, &mut state) * 1000 / SAMPLED_FOR.get().div_ceil(1_000_000),
        );
        let (reads, writes) = if at < read { (rate, Heat::COLD) } else { (Heat::COLD, rate) };
        let flags = PageFlags::PRESENT.with(PageFlags::KNOWN);
        PageStat { reads, writes, node: u8::from(at >= fast), flags }
    };
    let all = read + written;
    Snapshot {
        interval: SAMPLED_FOR,
        page_size: Bytes(4096),
        tiers: vec![tier(&[0], fast as u64, 0), tier(&[1], 2 * all as u64, all as u64)],
        areas: vec![Area { pid: Pid(1), start: Vpn(0), pages: (0..all).map(&mut page).collect() }],
        sees: TrackerVisibility {
            reads: true,
            writes: true,
            pages: true,
            bits: BitSource::Approximate,
            ..TrackerVisibility::default()
        },
        ..Snapshot::default()
    }
}

/// The layout of `rwsplit` on `lab-dcpmm`: all that is read and half of what is written fill the
/// better tier. That a page is written is no chance, however often it was seen to be touched.
#[test]
fn read_pages_are_demoted_before_written_pages() {
    for seed in 1..4 {
        let (read, fast) = (10_500, 15_000);
        let snap = alike(read, 10_500, fast, seed);
        let mut placement = Placement::new(PolicyId::Terrace, &dcpmm(FAST, SLOW));
        let plan = placement.step(&snap, Tick(1_000_000_000), Seed(seed));
        let (mut right, mut wrong) = (0, 0);
        for m in plan.moves.iter().filter(|m| m.to == NodeId(1)) {
            let of_read =
                (m.start.0..m.range().end.0).filter(|at| *at < read as u64).count() as u64;
            right += of_read;
            wrong += u64::from(m.pages) - of_read;
        }
        let up: u64 =
            plan.moves.iter().filter(|m| m.to == NodeId(0)).map(|m| u64::from(m.pages)).sum();
        assert!(
            right > 0 && wrong * 50 < right,
            "seed {seed}: {right} read pages and {wrong} written ones down"
        );
        assert!(up > 0, "seed {seed}: {:?}", plan.decisions);
    }
}

/// Where all are read, none is worth more than another.
#[test]
fn chance_alone_moves_nothing() {
    for seed in 1..4 {
        let plan = Placement::new(PolicyId::Terrace, &dcpmm(FAST, SLOW)).step(
            &alike(21_000, 0, 15_000, seed),
            Tick(1_000_000_000),
            Seed(seed),
        );
        assert!(plan.moves.is_empty(), "seed {seed}: {:?}", plan.decisions);
    }
}
