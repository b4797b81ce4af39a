//! What placement gains beside that of first touch, by what is seen of the pages that lie elsewhere
//! because of moves.
//!
//! A page that was moved up saves what is accessed of it, one that was moved down costs it; one
//! that came back does neither. Which pages lie elsewhere is known exactly, from moves that were
//! made; what they are worth is found for some of them, others at each time.

use super::hotness::value_of;
use super::repayment::{BlockId, PromotionRepayment};
use super::tuning::TerraceTuning;
use crate::place::worth::AccessWorth;
use std::collections::BTreeMap;
use terrace_types::{Area, Move, Nanos, PageFlags, PageStat, Pid, Snapshot, Tick, Vpn, VpnRange};

/// Pages of a block, a bit each.
const BLOCK: u64 = u64::BITS as u64;

/// The pages that lie where first touch did not put them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MeasuredGain {
    /// By process and address over [`BLOCK`]; none is empty.
    displaced: BTreeMap<BlockId, DisplacedPages>,
    /// Times that some were chosen.
    turn: u64,
    /// What an access was worth at each boundary when that was last known.
    worths: Vec<AccessWorth>,
    /// Whether they save anything, as far as is known.
    saves: bool,
    repayment: PromotionRepayment,
}

/// Pages of one block that were moved up, or down, and have not come back since. Which way is kept,
/// for memory may be given back and come anew at the same address, where first touch puts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct DisplacedPages {
    up: u64,
    down: u64,
}

impl DisplacedPages {
    const fn all(self) -> u64 {
        self.up | self.down
    }

    /// A move of these pages.
    fn moved(&mut self, bits: u64, up: bool) {
        let (there, back) = match up {
            true => (&mut self.up, &mut self.down),
            false => (&mut self.down, &mut self.up),
        };
        let returned = *back & bits;
        *back &= !bits;
        *there |= bits & !returned;
    }

    /// Those of these pages, all alike, that are where moves took them; what the promoted ones of
    /// them save there, and what the demoted ones cost, nanoseconds a second.
    fn savings(self, page: &PageStat, snap: &Snapshot, worths: &[AccessWorth]) -> (Self, f64, f64) {
        let present = page.flags.has(PageFlags::PRESENT);
        let rank = present.then(|| snap.rank_of(page.node())).flatten();
        let value = |rank: Option<usize>| Some(value_of(page, worths.get(rank?)?));
        let sum = |bits: u64, rank| match value(rank) {
            Some(value) => (bits, value * f64::from(bits.count_ones())),
            None => (0, 0.0),
        };
        let (up, saved) = sum(self.up, rank);
        let (down, lost) = sum(self.down, rank.and_then(|rank| rank.checked_sub(1)));
        (Self { up, down }, saved, lost)
    }
}

impl MeasuredGain {
    /// Moves that were made, and how long they took.
    pub fn moved(&mut self, done: &[Move], snap: &Snapshot, cost: Nanos) {
        let mut promoted = BTreeMap::new();
        for m in done {
            let (from, to) = (snap.rank_of(m.from), snap.rank_of(m.to));
            if from == to {
                continue;
            }
            // What it saves is to be found.
            self.saves |= to < from;
            for (block, bits) in blocks_of(m) {
                let of = self.displaced.entry((m.pid, block)).or_default();
                of.moved(bits, to < from);
                if to < from {
                    *promoted.entry((m.pid, block)).or_default() += bits.count_ones();
                }
                if of.all() == 0 {
                    self.displaced.remove(&(m.pid, block));
                }
            }
        }
        self.repayment.record_moves(&promoted, cost);
    }

    /// These pages lie where first touch would have put them.
    pub fn forget(&mut self, moves: &[Move]) {
        for m in moves {
            for (block, bits) in blocks_of(m) {
                let Some(of) = self.displaced.get_mut(&(m.pid, block)) else { continue };
                (of.up, of.down) = (of.up & !bits, of.down & !bits);
                if of.all() == 0 {
                    self.displaced.remove(&(m.pid, block));
                }
            }
        }
    }

    /// What they save at `now`, nanoseconds a second; negative: cost. Pages that are no more, or
    /// came anew elsewhere, are forgotten.
    pub fn measure(&mut self, snap: &Snapshot, worths: &[AccessWorth], now: Tick) -> f64 {
        self.worths = worths.to_vec();
        let (mut kept, mut sum, mut savings) = (BTreeMap::new(), 0.0, BTreeMap::new());
        for area in &snap.areas {
            for (block, displaced) in self.in_area(area) {
                let (mut here, mut saving) = (DisplacedPages::default(), 0.0);
                for (of, page) in displaced_runs(area, block, displaced) {
                    let (of, saved, lost) = of.savings(page, snap, worths);
                    sum += saved - lost;
                    saving += saved;
                    here = DisplacedPages { up: here.up | of.up, down: here.down | of.down };
                }
                if here.all() != 0 {
                    let of: &mut DisplacedPages = kept.entry((area.pid, block)).or_default();
                    (of.up, of.down) = (of.up | here.up, of.down | here.down);
                }
                if here.up != 0 {
                    *savings.entry((area.pid, block)).or_default() += saving;
                }
            }
        }
        self.repayment.record_sample(&savings, now);
        self.displaced = kept;
        self.saves = sum > 0.0;
        sum
    }

    /// Sets the saving that the next plan predicts for each page that it promotes, nanoseconds a
    /// second.
    pub(super) fn predict_saving(&mut self, ns_per_s: f64) {
        self.repayment.predict_saving(ns_per_s);
    }

    /// Returns the number of promoted base pages that have saved what their moves cost by `now`.
    pub(crate) fn repaid_pages(&self, now: Tick) -> u64 {
        self.repayment.repaid_pages(now)
    }

    /// Whether they save anything, as far as is known.
    #[must_use]
    pub fn saves(&self) -> bool {
        self.saves
    }

    /// Blocks that have pages in an area.
    fn in_area(&self, area: &Area) -> impl Iterator<Item = (u64, DisplacedPages)> + '_ {
        let [first, last] =
            [area.start.0, area.range().end.0.max(1) - 1].map(|page| (area.pid, page / BLOCK));
        let some = (first <= last).then(|| self.displaced.range(first..=last));
        some.into_iter().flatten().map(|((_, block), of)| (*block, *of))
    }

    /// What one access saves on the best tier, nanoseconds, as far as that is known.
    #[must_use]
    pub fn each_access(&self) -> Option<f64> {
        self.worths.first().map(AccessWorth::unit)
    }

    /// How many there are.
    fn pages(&self) -> u64 {
        self.displaced.values().map(|of| u64::from(of.all().count_ones())).sum()
    }

    /// Some of the blocks that hold them, others at each time.
    pub fn some_blocks(&mut self, tuning: &TerraceTuning) -> Vec<(Pid, VpnRange)> {
        self.turn = self.turn.wrapping_add(1);
        let stride = self.displaced.len().div_ceil(tuning.gain_blocks).max(1);
        let first = self.turn as usize % stride;
        let range = |block: u64| VpnRange::new(Vpn(block * BLOCK), Vpn((block + 1) * BLOCK));
        let blocks = self.displaced.keys().skip(first).step_by(stride);
        blocks.map(|(pid, block)| (*pid, range(*block))).collect()
    }

    /// What all promoted ones save now and all demoted ones cost, nanoseconds a second, by those of
    /// them that `snap` holds, an area for each block; `None` where it holds none.
    #[must_use]
    pub fn by_some(&self, snap: &Snapshot) -> Option<(f64, f64)> {
        let (mut sum, mut found) = ((0.0, 0.0), 0u64);
        for area in &snap.areas {
            for (block, displaced) in self.in_area(area) {
                for (of, page) in displaced_runs(area, block, displaced) {
                    let (_, saved, lost) = of.savings(page, snap, &self.worths);
                    sum = (sum.0 + saved, sum.1 + lost);
                    found += u64::from(of.all().count_ones());
                }
            }
        }
        let times = self.pages() as f64 / found.max(1) as f64;
        (found > 0).then_some((sum.0 * times, sum.1 * times))
    }
}

/// The blocks that a move has pages of, and which of their pages.
fn blocks_of(m: &Move) -> impl Iterator<Item = (u64, u64)> {
    let (mut at, end) = (m.start.0, m.range().end.0);
    std::iter::from_fn(move || {
        let block = at / BLOCK;
        let next = ((block + 1) * BLOCK).min(end);
        let some = (at < end).then(|| (u64::MAX >> (BLOCK - (next - at))) << (at % BLOCK));
        at = next;
        some.map(|bits| (block, bits))
    })
}

/// Those pages of a block that are in an area, neighbours that are alike together.
fn displaced_runs(
    area: &Area,
    block: u64,
    displaced: DisplacedPages,
) -> impl Iterator<Item = (DisplacedPages, &PageStat)> {
    let first = (block * BLOCK).max(area.start.0);
    let end = ((block + 1) * BLOCK).min(area.range().end.0).max(first);
    let pages = &area.pages[(first - area.start.0) as usize..(end - area.start.0) as usize];
    let mut at = first % BLOCK;
    PageStat::runs(pages).filter_map(move |(page, count)| {
        let bits = (u64::MAX >> (BLOCK - count)) << at;
        at += count;
        let of = DisplacedPages { up: displaced.up & bits, down: displaced.down & bits };
        (of.all() != 0).then_some((of, page))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::tier;
    use super::*;
    use terrace_types::{Bytes, Heat, MoveReason, NodeId};

    const WORTHS: [AccessWorth; 1] = [AccessWorth { read_ns: 2.0, write_ns: 2.0 }];

    /// Pages of which the upper half is on the slow tier and read 100 times a second, and the
    /// others 10 times.
    fn snapshot(pages: usize) -> Snapshot {
        let page = |i| PageStat {
            reads: Heat::from_rate(if i >= pages / 2 { 100 } else { 10 }),
            node: u8::from(i >= pages / 2),
            flags: PageFlags::PRESENT,
            ..PageStat::default()
        };
        Snapshot {
            page_size: Bytes(4096),
            tiers: vec![tier(0, 10_000, 0), tier(1, 100_000, 50_000)],
            areas: vec![Area { pid: Pid(1), start: Vpn(7), pages: (0..pages).map(page).collect() }],
            ..Snapshot::default()
        }
    }

    fn moved(gain: &mut MeasuredGain, snap: &mut Snapshot, first: usize, pages: u32, to: u16) {
        let all = &mut snap.areas[0].pages[first..][..pages as usize];
        all.iter_mut().for_each(|page| page.node = to as u8);
        let (from, to, reason) = (NodeId(1 - to), NodeId(to), MoveReason::Hot);
        let start = Vpn(7 + first as u64);
        let done = [Move { pid: Pid(1), start, pages, from, to, reason }];
        gain.moved(&done, snap, Nanos::ZERO);
    }

    #[test]
    fn an_exchange_gains_the_difference_and_back_again_nothing() {
        let (mut snap, mut gain) = (snapshot(20_000), MeasuredGain::default());
        assert_eq!(gain.measure(&snap, &WORTHS, Tick(0)), 0.0);
        let rate = |snap: &Snapshot, i: usize| f64::from(snap.areas[0].pages[i].reads.per_second());
        for (pages, within) in [(300, 1e-6), (4_000, 0.01)] {
            moved(&mut gain, &mut snap, 12_000, pages, 0);
            moved(&mut gain, &mut snap, 1_000, pages, 1);
            let each = 2.0 * (rate(&snap, 15_000) - rate(&snap, 0));
            for _ in 0..5 {
                let now = gain.measure(&snap, &WORTHS, Tick(0));
                assert!((now / (f64::from(pages) * each) - 1.0).abs() < within, "{pages}: {now}");
            }
            moved(&mut gain, &mut snap, 12_000, pages, 1);
            moved(&mut gain, &mut snap, 1_000, pages, 0);
            assert!(gain.measure(&snap, &WORTHS, Tick(0)) == 0.0 && gain.displaced.is_empty());
        }
    }

    #[test]
    fn promotions_may_save_something_until_it_is_found_otherwise() {
        let (mut snap, mut gain) = (snapshot(2_000), MeasuredGain::default());
        moved(&mut gain, &mut snap, 0, 50, 1);
        assert!(!gain.saves(), "nothing was promoted");
        moved(&mut gain, &mut snap, 1_500, 60, 0);
        assert!(gain.saves(), "not known yet");
        assert!(gain.measure(&snap, &WORTHS, Tick(0)) > 0.0 && gain.saves());
        // What was promoted is read no more.
        snap.areas[0].pages[1_500..1_560].iter_mut().for_each(|page| page.reads = Heat::COLD);
        assert!(gain.measure(&snap, &WORTHS, Tick(0)) < 0.0 && !gain.saves());
    }

    #[test]
    fn promoted_pages_are_repaid_once_they_saved_what_all_moves_cost() {
        let (mut snap, mut gain) = (snapshot(2_000), MeasuredGain::default());
        moved(&mut gain, &mut snap, 0, 50, 1);
        moved(&mut gain, &mut snap, 1_500, 60, 0);
        assert_eq!(gain.repaid_pages(Tick(0)), 60, "they cost nothing");
        // 200 ns a second each, for 100 ns of the moves up and 50 of those down.
        let cost = |pages: u64| Nanos(pages * 100);
        for (first, to, pages) in [(100, 1, 30), (1_700, 0, 60)] {
            let start = Vpn(7 + first);
            let (from, to, reason) = (NodeId(1 - to), NodeId(to), MoveReason::Hot);
            let all = &mut snap.areas[0].pages[first as usize..][..pages as usize];
            all.iter_mut().for_each(|page| page.node = to.0 as u8);
            let done = Move { pid: Pid(1), start, pages: pages as u32, from, to, reason };
            gain.moved(&[done], &snap, cost(pages));
        }
        gain.measure(&snap, &WORTHS, Tick(0));
        assert_eq!(gain.repaid_pages(Tick(700_000_000)), 60);
        assert_eq!(gain.repaid_pages(Tick(800_000_000)), 120);
    }

    #[test]
    fn some_blocks_tell_what_all_displaced_pages_save() {
        let (mut snap, mut gain) = (snapshot(20_000), MeasuredGain::default());
        moved(&mut gain, &mut snap, 12_000, 5_003, 0);
        moved(&mut gain, &mut snap, 1_000, 5_003, 1);
        let all = gain.measure(&snap, &WORTHS, Tick(0));
        assert_eq!(gain.by_some(&Snapshot::default()), None);
        for _ in 0..5 {
            let ranges = gain.some_blocks(&TerraceTuning::USUAL);
            assert!(ranges.len() <= TerraceTuning::USUAL.gain_blocks, "{}", ranges.len());
            let part = |(pid, range): &(Pid, VpnRange)| {
                let from = (range.start.0 - 7) as usize;
                let pages = snap.areas[0].pages[from..from + range.len() as usize].to_vec();
                Area { pid: *pid, start: range.start, pages }
            };
            let some = Snapshot { areas: ranges.iter().map(part).collect(), ..snap.clone() };
            let (saved, lost) = gain.by_some(&some).unwrap();
            let part = saved - lost;
            assert!((part / all - 1.0).abs() < 0.1, "{part} of {all}");
        }
    }

    #[test]
    fn memory_that_came_anew_at_the_same_address_is_displaced_by_its_own_moves() {
        let (mut snap, mut gain) = (snapshot(2_000), MeasuredGain::default());
        moved(&mut gain, &mut snap, 1_500, 400, 0);
        let first = gain.measure(&snap, &WORTHS, Tick(0));
        // Freed and filled again on the slow tier, then moved up like what was there before.
        snap.areas[0].pages[1_500..1_900].iter_mut().for_each(|page| page.node = 1);
        moved(&mut gain, &mut snap, 1_500, 400, 0);
        assert!(first > 0.0);
        assert_eq!(gain.measure(&snap, &WORTHS, Tick(0)), first);
        snap.areas[0].pages[1_500..1_900].iter_mut().for_each(|page| page.node = 1);
        assert_eq!(gain.by_some(&snap), Some((0.0, 0.0)), "it lies where first touch put it");
        assert_eq!((gain.measure(&snap, &WORTHS, Tick(0)), gain.displaced.len()), (0.0, 0));
    }

    #[test]
    fn pages_that_are_where_first_touch_would_have_put_them_are_forgotten() {
        let (mut snap, mut gain) = (snapshot(2_000), MeasuredGain::default());
        moved(&mut gain, &mut snap, 0, 300, 1);
        let before = gain.measure(&snap, &WORTHS, Tick(0));
        // The kernel put it on the best tier because the others had left.
        moved(&mut gain, &mut snap, 400, 300, 1);
        assert!(gain.measure(&snap, &WORTHS, Tick(0)) < 1.9 * before);
        let (from, to, reason) = (NodeId(0), NodeId(1), MoveReason::Cold);
        gain.forget(&[Move { pid: Pid(1), start: Vpn(407), pages: 300, from, to, reason }]);
        assert_eq!(gain.measure(&snap, &WORTHS, Tick(0)), before);
    }

    #[test]
    fn what_turned_hot_after_it_went_down_is_a_loss_and_what_went_away_is_forgotten() {
        let (mut snap, mut gain) = (snapshot(2_000), MeasuredGain::default());
        moved(&mut gain, &mut snap, 0, 500, 1);
        let before = gain.measure(&snap, &WORTHS, Tick(0));
        snap.areas[0].pages[..500].iter_mut().for_each(|p| p.reads = Heat::from_rate(100));
        assert!(before < 0.0 && gain.measure(&snap, &WORTHS, Tick(0)) < 8.0 * before);
        snap.areas[0].pages[..500].iter_mut().for_each(|p| p.flags = PageFlags::default());
        assert_eq!((gain.measure(&snap, &WORTHS, Tick(0)), gain.displaced.len()), (0.0, 0));
    }
}
