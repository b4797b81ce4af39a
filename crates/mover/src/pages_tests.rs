//! The mover against a kernel made of a map.

use super::*;
use std::collections::BTreeMap;
use terrace_types::MoveCall;

const FAST: NodeId = NodeId(0);
const SLOW: NodeId = NodeId(1);
const ONE: Pid = Pid(7);

/// Pages by process; space by node; what each call costs.
#[derive(Default)]
struct Fake {
    pages: BTreeMap<(Pid, Vpn), NodeId>,
    odd: BTreeMap<Vpn, i32>,
    space: BTreeMap<NodeId, u64>,
    huge: Vec<VpnRange>,
    page_cost: u64,
    /// What the first call takes beside its pages.
    first_call: u64,
    /// What the machine's file says.
    reported: Option<crate::MoveCosts>,
    clock: Tick,
    sizes: Vec<usize>,
    /// Calls made before each turn.
    turns: Vec<usize>,
    dies_at_call: Option<usize>,
    errno: i32,
    /// The kernel stops at an odd page and leaves the statuses of its batch unwritten.
    shy: bool,
    /// Others take so many of what is freed on the fast node in a call, in the hundred.
    taken: u64,
    /// Pages that are gone after the first call.
    vanish: Vec<Vpn>,
}

impl MoveCalls for Fake {
    fn query(&mut self, pid: Pid, pages: &[Vpn]) -> Result<Vec<PageStatus>, CallError> {
        if self.dies_at_call.is_some_and(|at| self.sizes.len() > at) {
            return Err(CallError::Gone);
        }
        let on = |p: &Vpn| self.pages.get(&(pid, *p)).copied();
        Ok(pages.iter().map(|p| on(p).map_or(PageStatus::Error(2), PageStatus::On)).collect())
    }

    fn move_to(&mut self, pid: Pid, pages: &[Vpn], _: u64, to: NodeId) -> MoveCall {
        let beside = if self.sizes.is_empty() { self.first_call } else { 0 };
        self.sizes.push(pages.len());
        self.clock = self.clock.after(Nanos(self.page_cost * pages.len() as u64 + beside));
        let untouched = vec![PageStatus::Untouched; pages.len()];
        if self.dies_at_call == Some(self.sizes.len() - 1) {
            return MoveCall { pages: untouched, not_migrated: 0, errno: 3 };
        }
        if self.errno != 0 {
            return MoveCall { pages: untouched, not_migrated: 0, errno: self.errno };
        }
        let mut status = Vec::new();
        for (at, page) in pages.iter().enumerate() {
            let odd = self.odd.get(page).copied();
            if let Some(errno) = odd {
                if self.shy {
                    let rest = pages.len() - at;
                    return MoveCall { pages: untouched, not_migrated: rest as u64, errno: 0 };
                }
                status.push(PageStatus::Error(errno));
                continue;
            }
            let span = self.huge.iter().find(|r| r.contains(*page)).map_or(1, |_| 512);
            let space = self.space.entry(to).or_insert(u64::MAX);
            if *space < span {
                return MoveCall { pages: untouched, not_migrated: 0, errno: 12 };
            }
            *space = space.saturating_sub(span);
            if let Some(was) = self.pages.insert((pid, *page), to) {
                let freed = self.space.entry(was).or_insert(u64::MAX);
                *freed = freed.saturating_add(span);
            }
            status.push(PageStatus::On(to));
        }
        if to == SLOW && self.taken > 0 {
            let freed = status.len() as u64 * self.taken / 100;
            self.space.entry(FAST).and_modify(|space| *space = space.saturating_sub(freed));
        }
        for page in &self.vanish {
            self.pages.retain(|(_, at), _| at != page);
        }
        MoveCall { pages: status, not_migrated: 0, errno: 0 }
    }

    fn huge(&mut self, _: Pid, _: VpnRange) -> Vec<VpnRange> {
        self.huge.clone()
    }

    fn turn(&mut self) {
        self.turns.push(self.sizes.len());
    }

    fn now(&mut self) -> Tick {
        self.clock
    }

    fn wait(&mut self, span: Nanos) {
        self.clock = self.clock.after(span);
    }

    fn batch(&self, span: Nanos) -> Option<u64> {
        self.reported.map(|costs| costs.batch(span))
    }
}

fn limits() -> MoveLimits {
    MoveLimits { longest_call: Nanos::millis(20), rate: None, batch: 512, total: Nanos::secs(10) }
}

fn run(start: u64, pages: u32, from: NodeId, to: NodeId, reason: MoveReason) -> Move {
    Move { pid: ONE, start: Vpn(start), pages, from, to, reason }
}

fn fake(on_slow: std::ops::Range<u64>, on_fast: std::ops::Range<u64>) -> Fake {
    let mut fake = Fake { page_cost: 1_000, ..Fake::default() };
    fake.pages.extend(on_slow.map(|p| ((ONE, Vpn(p)), SLOW)));
    fake.pages.extend(on_fast.map(|p| ((ONE, Vpn(p)), FAST)));
    fake
}

fn mover(fake: Fake) -> MovePages<Fake> {
    MovePages::new(fake, Bytes(4096))
}

fn adds_up(outcome: &MoveOutcome, moves: &[Move]) {
    let asked: u64 = moves.iter().map(|m| u64::from(m.pages)).sum();
    let reported: u64 = outcome.moved.iter().map(|m| m.1).sum::<u64>()
        + outcome.failed.iter().map(|f| f.1).sum::<u64>();
    assert_eq!(asked, reported);
    let done: u64 = outcome.done.iter().map(|m| u64::from(m.pages)).sum();
    assert_eq!(done, outcome.moved.iter().map(|m| m.1).sum::<u64>());
}

#[test]
fn every_page_is_accounted_for_by_reason() {
    let mut kernel = fake(0..100, 200..210);
    kernel.odd = BTreeMap::from([(Vpn(5), 16), (Vpn(6), 13)]);
    let moves =
        [run(0, 110, SLOW, FAST, MoveReason::Hot), run(200, 10, SLOW, FAST, MoveReason::Hot)];
    let outcome = mover(kernel).apply(&moves, false, &limits());
    adds_up(&outcome, &moves);
    assert_eq!(outcome.moved, [(FAST, 98)]);
    assert_eq!(
        outcome.failed,
        [
            (MoveFailure::NotPresent, 10),
            (MoveFailure::AlreadyThere, 10),
            (MoveFailure::Busy, 1),
            (MoveFailure::Shared, 1)
        ]
    );
    assert_eq!(outcome.done.len(), 2);
}

#[test]
fn a_page_that_was_busy_while_unmapped_counts_as_gone() {
    let mut kernel = fake(0..100, 0..0);
    kernel.odd = BTreeMap::from([(Vpn(5), 16), (Vpn(6), 16), (Vpn(7), 12)]);
    // They are taken down between the call and the look at where they are.
    kernel.vanish = vec![Vpn(6), Vpn(7)];
    let moves = [run(0, 100, SLOW, FAST, MoveReason::Hot)];
    let outcome = mover(kernel).apply(&moves, false, &limits());
    adds_up(&outcome, &moves);
    assert_eq!(outcome.failed, [(MoveFailure::NotPresent, 2), (MoveFailure::Busy, 1)]);
}

#[test]
fn time_wins_over_batch_size() {
    let mut kernel = fake(0..20_000, 0..0);
    kernel.page_cost = 100_000;
    let moves = [run(0, 20_000, SLOW, FAST, MoveReason::Hot)];
    let mut mover = mover(kernel);
    let outcome = mover.apply(&moves, false, &MoveLimits { total: Nanos::secs(1), ..limits() });
    adds_up(&outcome, &moves);
    assert!(mover.calls.sizes[1..].iter().all(|n| *n <= 200), "{:?}", mover.calls.sizes);
    assert!(outcome.failed.iter().any(|f| f.0 == MoveFailure::OutOfTime));
    mover.calls.page_cost = 500;
    let quick = [run(10_000, 10_000, SLOW, FAST, MoveReason::Hot)];
    let _learns = mover.apply(&quick, false, &limits());
    assert!(mover.calls.sizes.iter().any(|n| *n >= 512), "{:?}", mover.calls.sizes);
}

#[test]
fn the_rate_is_kept() {
    let kernel = fake(0..4096, 0..0);
    let rate = Some(terrace_types::BytesPerSec(4096 * 1000));
    let moves = [run(0, 2048, SLOW, FAST, MoveReason::Hot)];
    let mut mover = mover(kernel);
    let outcome = mover.apply(&moves, false, &MoveLimits { rate, ..limits() });
    adds_up(&outcome, &moves);
    // 2048 pages at 1000 a second, the last batch not waited for.
    assert!(mover.calls.clock >= Tick(500_000_000), "{:?}", mover.calls.clock);
}

#[test]
fn a_full_node_is_left_alone_for_a_while() {
    let mut kernel = fake(0..1000, 0..0);
    kernel.space.insert(FAST, 100);
    let mut mover = mover(kernel);
    let moves = [run(0, 1000, SLOW, FAST, MoveReason::Hot)];
    let first = mover.apply(&moves, false, &limits());
    adds_up(&first, &moves);
    assert_eq!(first.moved, [(FAST, 100)]);
    let calls = mover.calls.sizes.len();
    let again = mover.apply(&moves, false, &limits());
    assert_eq!(mover.calls.sizes.len(), calls, "backs off");
    assert!(again.failed.contains(&(MoveFailure::NodeFull, 900)));
    mover.calls.wait(Nanos::secs(3));
    mover.calls.space.insert(FAST, 900);
    assert_eq!(mover.apply(&moves, false, &limits()).moved, [(FAST, 900)]);
}

#[test]
fn space_that_is_made_on_a_full_node_is_used_at_once() {
    let mut kernel = fake(0..1000, 10_000..11_000);
    kernel.space.insert(FAST, 0);
    let moves = [
        run(0, 100, SLOW, FAST, MoveReason::Hot),
        run(10_000, 400, FAST, SLOW, MoveReason::Cold),
        run(100, 400, SLOW, FAST, MoveReason::Hot),
    ];
    let outcome = mover(kernel).apply(&moves, false, &limits());
    adds_up(&outcome, &moves);
    assert_eq!(outcome.moved, [(FAST, 400), (SLOW, 400)]);
    assert_eq!(outcome.failed, [(MoveFailure::NodeFull, 100)]);
}

#[test]
fn no_more_goes_down_once_others_take_most_of_what_is_freed() {
    let down = |taken| {
        let mut kernel = Fake { taken, ..fake(0..4_000, 10_000..14_000) };
        kernel.space.insert(FAST, 0);
        let cold = |at| run(at, 1_000, FAST, SLOW, MoveReason::Cold);
        let hot = |at| run(at, 1_000, SLOW, FAST, MoveReason::Hot);
        let pairs = (0..4).flat_map(|n| [cold(10_000 + 1_000 * n), hot(1_000 * n)]);
        let moves: Vec<Move> = pairs.collect();
        let outcome = mover(kernel).apply(&moves, false, &limits());
        adds_up(&outcome, &moves);
        outcome.moved.iter().find(|m| m.0 == SLOW).map_or(0, |m| m.1)
    };
    assert_eq!([0, 30, 70].map(down), [4_000, 4_000, 1_000]);
}

#[test]
fn more_goes_down_where_less_was_to_go_up_than_there_was_space_for() {
    let mut kernel = fake(0..4_000, 10_000..14_000);
    kernel.space.insert(FAST, 0);
    let moves = [
        run(10_000, 1_000, FAST, SLOW, MoveReason::Cold),
        run(0, 400, SLOW, FAST, MoveReason::Hot),
        run(11_000, 1_000, FAST, SLOW, MoveReason::Cold),
        run(400, 1_600, SLOW, FAST, MoveReason::Hot),
    ];
    let outcome = mover(kernel).apply(&moves, false, &limits());
    adds_up(&outcome, &moves);
    assert_eq!(outcome.moved, [(FAST, 2_000), (SLOW, 2_000)]);
}

#[test]
fn exchange_keeps_occupancy_when_promotion_finds_no_space_or_no_pages() {
    // The fast node is full: each promotion needs the space of a demotion.
    let mut kernel = fake(0..2000, 10_000..12_000);
    kernel.space.insert(FAST, 0);
    kernel.odd = (0..50).map(|p| (Vpn(p), 16)).collect();
    let moves = [
        run(10_000, 2000, FAST, SLOW, MoveReason::Cold),
        run(0, 2000, SLOW, FAST, MoveReason::Hot),
    ];
    let mut mover = mover(kernel);
    let outcome = mover.apply(&moves, true, &limits());
    adds_up(&outcome, &moves);
    let moved = |node| outcome.moved.iter().find(|m| m.0 == node).map_or(0, |m| m.1);
    assert_eq!(moved(FAST), moved(SLOW));
    assert_eq!(moved(FAST), 1950);
    assert_eq!(mover.calls.pages.values().filter(|n| **n == FAST).count(), 2000);
}

#[test]
fn turns_are_taken_before_space_is_freed_and_not_before_it_is_used() {
    let mut mover = mover(fake(0..2_000, 10_000..12_000));
    let cold = |at| run(at, 1_000, FAST, SLOW, MoveReason::Cold);
    let hot = |at| run(at, 1_000, SLOW, FAST, MoveReason::Hot);
    let moves = [cold(10_000), hot(0), cold(11_000), hot(1_000)];
    mover.calls.space.insert(FAST, 0);
    let outcome = mover.apply(&moves, false, &limits());
    assert_eq!(outcome.done.iter().map(|m| m.pages).sum::<u32>(), 4_000, "{outcome:?}");
    assert_eq!(
        mover.calls.sizes,
        [512, 488, 1_000, 1_000, 1_000],
        "down in two calls, as the time of a page is not known yet"
    );
    assert_eq!(mover.calls.turns, [0, 3]);
}

#[test]
fn where_time_ends_space_that_was_made_is_filled_and_no_more_is_made() {
    // Pairs that the time pays for at 2.3 us a page; a page takes longer, which the first call
    // shows.
    for (page_cost, least) in [(2_300, 1_900), (3_200, 1_400), (9_600, 1_000)] {
        let mut mover = mover(Fake { page_cost, ..fake(0..1_024, 10_000..11_024) });
        mover.calls.space.insert(FAST, 0);
        let cold = |at| run(at, 512, FAST, SLOW, MoveReason::Cold);
        let hot = |at| run(at, 512, SLOW, FAST, MoveReason::Hot);
        let moves = [cold(10_000), hot(0), cold(10_512), hot(512)];
        let total = Nanos(2 * 1_024 * 2_300);
        let outcome = mover.apply(&moves, false, &MoveLimits { total, ..limits() });
        adds_up(&outcome, &moves);
        let up: u64 = outcome.moved.iter().filter(|m| m.0 == FAST).map(|m| m.1).sum();
        let down: u64 = outcome.moved.iter().filter(|m| m.0 == SLOW).map(|m| m.1).sum();
        assert_eq!(up, down, "{page_cost}: {outcome:?}");
        assert!(up + down >= least, "{page_cost}: {outcome:?}");
        // The first call is made before a cost is known.
        assert!(outcome.cost <= total.max(Nanos(1_024 * page_cost)), "{page_cost}: {outcome:?}");
    }
}

#[test]
fn a_call_that_took_long_does_not_keep_later_ones_from_being_made() {
    let pair = |at| {
        let cold = run(10_000 + at, 512, FAST, SLOW, MoveReason::Cold);
        [cold, run(at, 512, SLOW, FAST, MoveReason::Hot)]
    };
    for first in [3, 512] {
        let mut mover = mover(Fake { page_cost: 900_000, ..fake(0..4_096, 10_000..13_000) });
        let limits = MoveLimits { total: Nanos::millis(8), ..limits() };
        let alone = [run(3_000, first, SLOW, FAST, MoveReason::Hot)];
        adds_up(&mover.apply(&alone, false, &limits), &alone);
        mover.calls.page_cost = 2_300;
        let up: u64 = (0..4)
            .map(|at| mover.apply(&pair(512 * at), false, &limits))
            .flat_map(|outcome| outcome.moved)
            .filter(|m| m.0 == FAST)
            .map(|m| m.1)
            .sum();
        // What a small call took is forgotten at once.
        assert!(up >= if first < 64 { 2_048 } else { 1_024 }, "{first}: {up}");
    }
}

#[test]
fn a_small_first_call_that_waited_says_nothing_of_what_pages_cost() {
    // Two pages in 5 ms, as a call took in the lab that waited for a processor; then huge ones.
    let huge = [512..4_096, 10_752..14_336];
    let huge = huge.iter().flat_map(|all| all.clone().step_by(512));
    let mut mover = mover(Fake {
        page_cost: 2_300,
        first_call: 5_100_000,
        huge: huge.map(|at| VpnRange::new(Vpn(at), Vpn(at + 512))).collect(),
        ..fake(0..4_096, 10_240..14_336)
    });
    mover.calls.space.insert(FAST, 0);
    let cold = |at, pages| run(10_240 + at, pages, FAST, SLOW, MoveReason::Cold);
    let hot = |at, pages| run(at, pages, SLOW, FAST, MoveReason::Hot);
    let mut moves = vec![cold(0, 2), cold(512, 512), hot(0, 2), hot(512, 512)];
    for at in (1_024..4_096).step_by(512) {
        moves.extend([cold(at, 512), hot(at, 512)]);
    }
    let total = Nanos::millis(84);
    let outcome = mover.apply(&moves, false, &MoveLimits { total, ..limits() });
    adds_up(&outcome, &moves);
    let up: u64 = outcome.moved.iter().filter(|m| m.0 == FAST).map(|m| m.1).sum();
    assert_eq!(up, 2 + 7 * 512, "{outcome:?}");
    assert!(outcome.cost < total);
}

#[test]
fn demoted_pages_come_back_when_nothing_can_rise() {
    let mut kernel = fake(0..600, 1000..1600);
    kernel.odd = (0..600).map(|p| (Vpn(p), 13)).collect();
    let moves =
        [run(1000, 600, FAST, SLOW, MoveReason::Cold), run(0, 600, SLOW, FAST, MoveReason::Hot)];
    let mut mover = mover(kernel);
    let outcome = mover.apply(&moves, true, &limits());
    adds_up(&outcome, &moves);
    assert!(outcome.moved.is_empty(), "{:?}", outcome.moved);
    assert_eq!(mover.calls.pages.values().filter(|n| **n == FAST).count(), 600);
}

#[test]
fn a_process_that_ends_midway_is_a_value() {
    let mut kernel = fake(0..5000, 0..0);
    kernel.dies_at_call = Some(2);
    let moves = [run(0, 5000, SLOW, FAST, MoveReason::Hot)];
    let mut mover = mover(kernel);
    let outcome =
        mover.apply(&moves, false, &MoveLimits { longest_call: Nanos::micros(1), ..limits() });
    adds_up(&outcome, &moves);
    assert!(outcome.failed.iter().any(|f| f.0 == MoveFailure::Gone && f.1 > 4000));
    assert_eq!(mover.calls.sizes.len(), 3, "no call after the end");
}

#[test]
fn the_first_call_is_as_long_as_the_machines_file_allows() {
    let first = |reported: Option<u64>| {
        let page_cost = reported.unwrap_or(1_000);
        let reported = reported
            .map(|page| crate::MoveCosts { page: Nanos(page), ..crate::MoveCosts::default() });
        let mut mover = mover(Fake { page_cost, reported, ..fake(0..3000, 0..0) });
        let outcome = mover.apply(&[run(0, 3000, SLOW, FAST, MoveReason::Hot)], false, &limits());
        assert_eq!(outcome.moved, [(FAST, 3000)]);
        assert!(
            outcome.longest_call <= Nanos::millis(20),
            "{reported:?}: {}",
            outcome.longest_call
        );
        mover.calls.sizes[0]
    };
    assert_eq!(first(None), 512);
    assert_eq!(first(Some(2_300)), 512, "more once it is measured");
    assert_eq!(first(Some(200_000)), 74, "15 ms, where 512 would take 102");
}

#[test]
fn refusal_is_reported_as_such() {
    let mut kernel = fake(0..100, 0..0);
    kernel.errno = 13;
    let moves = [run(0, 100, SLOW, FAST, MoveReason::Hot)];
    let outcome = mover(kernel).apply(&moves, false, &limits());
    adds_up(&outcome, &moves);
    assert_eq!(outcome.failed, [(MoveFailure::NotAllowed, 100)]);
}

#[test]
fn a_huge_page_is_asked_for_once() {
    let mut kernel = fake(1024..1536, 0..0);
    kernel.huge = vec![VpnRange::new(Vpn(1024), Vpn(1536))];
    let moves = [run(1024, 512, SLOW, FAST, MoveReason::Hot)];
    let mut mover = mover(kernel);
    let outcome = mover.apply(&moves, false, &limits());
    assert_eq!(mover.calls.sizes, [1]);
    assert_eq!(outcome.moved, [(FAST, 512)]);
    assert_eq!(outcome.done, moves);
}

#[test]
fn unwritten_statuses_are_looked_up() {
    let mut kernel = fake(0..300, 0..0);
    kernel.shy = true;
    kernel.odd.insert(Vpn(299), 16);
    let moves = [run(0, 300, SLOW, FAST, MoveReason::Hot)];
    let outcome = mover(kernel).apply(&moves, false, &limits());
    adds_up(&outcome, &moves);
    assert_eq!(outcome.moved, [(FAST, 299)]);
    assert_eq!(outcome.failed, [(MoveFailure::Busy, 1)]);
}
