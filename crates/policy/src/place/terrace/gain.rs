//! What placement gains beside that of first touch, by what is seen of the pages that lie elsewhere
//! because of moves.
//!
//! A page that was moved up saves what is accessed of it, one that was moved down costs it; one
//! that came back does neither. Which pages were moved is known exactly; what they are worth is
//! found for some of them, others at each time.
//!
//! Demotions for growth leave places on the best tier that newer pages fill. First touch would have
//! put as many newer pages on the next tier. Which of them is not known, so that the coldest of the
//! newer pages on the best tier stand in for them.

use super::bit_blocks::{blocks_in, BlockId, BLOCK};
use super::hotness::value_of;
use super::newer::NewerPages;
use super::repayment::PromotionRepayment;
use super::tuning::TerraceTuning;
use crate::place::runs::page_size;
use crate::place::worth::AccessWorth;
use std::collections::BTreeMap;
use terrace_types::{Area, Move, Nanos, PageFlags, PageStat, Pid, Snapshot, Tick, Vpn, VpnRange};

/// The pages that lie where first touch did not put them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MeasuredGain {
    /// By process and address over [`BLOCK`]; none is empty.
    displaced: BTreeMap<BlockId, DisplacedPages>,
    newer: NewerPages,
    /// Demoted pages that are older than `newer`, less promoted ones.
    places_left: i64,
    /// Of these, places that no stand-in was found for when stand-ins were chosen.
    unfilled: i64,
    /// Stand-ins among `displaced`.
    stand_in_count: u64,
    /// Times that some were chosen.
    turn: u64,
    /// What an access was worth at each boundary when that was last known.
    worths: Vec<AccessWorth>,
    /// Whether they save anything, as far as is known.
    saves: bool,
    repayment: PromotionRepayment,
}

/// Pages of one block that were moved up, or down, and have not come back since. Which way is kept,
/// for memory may be given back and come anew at the same address, where first touch puts it. And
/// pages that were not moved, and stand in for those that fill the places of demoted ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct DisplacedPages {
    up: u64,
    down: u64,
    stand_ins: u64,
}

/// What displaced pages save by where they are, nanoseconds a second.
#[derive(Debug, Clone, Copy, Default)]
struct Savings {
    promoted: f64,
    stand_ins: f64,
    /// What demoted pages cost.
    lost: f64,
}

impl DisplacedPages {
    const fn all(self) -> u64 {
        self.up | self.down | self.stand_ins
    }

    /// Places that moves of these left on the best tier. First touch has demoted pages there if
    /// they are older.
    fn places_left(self, older: u64) -> i64 {
        i64::from((self.down & older).count_ones()) - i64::from(self.up.count_ones())
    }

    /// A move of these pages.
    fn moved(&mut self, bits: u64, up: bool) {
        let returned = bits & if up { self.down } else { self.up };
        *self = self.without(bits);
        *if up { &mut self.up } else { &mut self.down } |= bits & !returned;
    }

    const fn without(self, bits: u64) -> Self {
        Self { up: self.up & !bits, down: self.down & !bits, stand_ins: self.stand_ins & !bits }
    }

    /// Those of these pages, all alike, that are where they were left, and what they save there.
    fn savings(self, page: &PageStat, snap: &Snapshot, worths: &[AccessWorth]) -> (Self, Savings) {
        let present = page.flags.has(PageFlags::PRESENT);
        let rank = present.then(|| snap.rank_of(page.node())).flatten();
        let value = |rank: Option<usize>| Some(value_of(page, worths.get(rank?)?));
        let sum = |bits: u64, rank| match value(rank) {
            Some(value) => (bits, value * f64::from(bits.count_ones())),
            None => (0, 0.0),
        };
        let (up, promoted) = sum(self.up, rank);
        let (stand_ins, by_them) = sum(self.stand_ins, rank.filter(|rank| *rank == 0));
        let (down, lost) = sum(self.down, rank.and_then(|rank| rank.checked_sub(1)));
        (Self { up, down, stand_ins }, Savings { promoted, stand_ins: by_them, lost })
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
                self.change((m.pid, block), |of| of.moved(bits, to < from));
                if to < from {
                    *promoted.entry((m.pid, block)).or_default() += bits.count_ones();
                }
            }
        }
        self.repayment.record_moves(&promoted, cost);
    }

    /// These pages lie where first touch would have put them.
    pub fn forget(&mut self, moves: &[Move]) {
        for m in moves {
            for (block, bits) in blocks_of(m) {
                self.change((m.pid, block), |of| *of = of.without(bits));
            }
        }
    }

    fn change(&mut self, id: BlockId, change: impl FnOnce(&mut DisplacedPages)) {
        let before = self.displaced.get(&id).copied().unwrap_or_default();
        let (mut after, older) = (before, self.newer.older(id));
        change(&mut after);
        self.places_left += after.places_left(older) - before.places_left(older);
        let gone = before.stand_ins & !after.stand_ins;
        self.stand_in_count -= u64::from(gone.count_ones());
        match after.all() {
            0 => self.displaced.remove(&id),
            _ => self.displaced.insert(id, after),
        };
    }

    /// Pages will be demoted for newer ones. Returns the number of pages gone through for that.
    pub fn expect_newer(&mut self, snap: &Snapshot) -> u64 {
        if !self.notes_older(snap) {
            return 0;
        }
        self.newer.begin(&snap.areas);
        snap.page_count()
    }

    /// Whether [`Self::expect_newer`] would note which pages are there. With more than two tiers a
    /// demoted page may have come from another than the best.
    pub fn notes_older(&self, snap: &Snapshot) -> bool {
        snap.tiers.len() == 2 && !self.newer.is_open()
    }

    /// Whether [`Self::measure`] goes through all pages for newer ones.
    pub fn expects_newer(&self) -> bool {
        self.newer.is_open()
    }

    /// What they save at `now`, nanoseconds a second; negative: cost. Pages that are no more, or
    /// came anew elsewhere, are forgotten.
    pub fn measure(&mut self, snap: &Snapshot, worths: &[AccessWorth], now: Tick) -> f64 {
        self.worths = worths.to_vec();
        let (mut kept, mut sum, mut savings) = (BTreeMap::new(), 0.0, BTreeMap::new());
        let mut places = 0;
        for area in &snap.areas {
            for (block, displaced) in self.in_area(area) {
                let (mut here, mut saving) = (DisplacedPages::default(), 0.0);
                for (of, page) in displaced_runs(area, block, displaced) {
                    let (of, saved) = of.savings(page, snap, worths);
                    sum += saved.promoted - saved.lost;
                    saving += saved.promoted;
                    (here.up, here.down) = (here.up | of.up, here.down | of.down);
                }
                places += here.places_left(self.newer.older((area.pid, block)));
                if here.up | here.down != 0 {
                    let of: &mut DisplacedPages = kept.entry((area.pid, block)).or_default();
                    (of.up, of.down) = (of.up | here.up, of.down | here.down);
                }
                if here.up != 0 {
                    *savings.entry((area.pid, block)).or_default() += saving;
                }
            }
        }
        self.repayment.record_sample(&savings, now);
        (self.displaced, self.places_left) = (kept, places);
        sum += self.choose_stand_ins(snap);
        self.saves = sum > 0.0;
        sum
    }

    /// Chooses stand-ins for the newer pages that fill places of demoted ones; what they save,
    /// nanoseconds a second, of as many as there were before: the others may just have come.
    fn choose_stand_ins(&mut self, snap: &Snapshot) -> f64 {
        let before = std::mem::take(&mut self.stand_in_count);
        if self.places_left <= 0 || snap.tiers.len() != 2 {
            self.newer.end();
            return 0.0;
        }
        let unused = snap.tiers.first().map_or(0, |best| best.unused.pages(page_size(snap)));
        let filled = (self.places_left as u64).saturating_sub(unused);
        let Some(worth) = self.worths.first() else { return 0.0 };
        let promoted = |id| self.displaced.get(&id).map_or(0, |of| of.up);
        let mut saved = 0.0;
        for block in self.newer.coldest(snap, filled, worth, promoted) {
            self.displaced.entry(block.id).or_default().stand_ins |= block.pages;
            self.stand_in_count += block.count();
            saved += block.value;
        }
        self.unfilled = self.places_left - self.stand_in_count as i64;
        saved * (before as f64 / self.stand_in_count.max(1) as f64).min(1.0)
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

    /// What all promoted ones and stand-ins save now and all demoted ones cost, nanoseconds a
    /// second, by those of them that `snap` holds, an area for each block; `None` where it holds
    /// none.
    #[must_use]
    pub fn by_some(&self, snap: &Snapshot) -> Option<(f64, f64)> {
        let (mut sum, mut found) = ((0.0, 0.0), 0u64);
        // Moves since may have taken places back.
        let places = (self.places_left - self.unfilled).max(0) as f64;
        let filling = (places / self.stand_in_count.max(1) as f64).min(1.0);
        for area in &snap.areas {
            for (block, displaced) in self.in_area(area) {
                for (of, page) in displaced_runs(area, block, displaced) {
                    let (_, saved) = of.savings(page, snap, &self.worths);
                    sum = (sum.0 + saved.promoted + filling * saved.stand_ins, sum.1 + saved.lost);
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
    blocks_in(m.range())
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
        let of = displaced.without(!bits);
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

    /// The pages from 2,000 on are there no more, or were faulted in on the best tier and are read
    /// so many times a second.
    fn newer(snap: &mut Snapshot, pages: std::ops::Range<usize>, rate: Option<u64>) {
        let page = |rate| PageStat {
            reads: Heat::from_rate(rate),
            flags: PageFlags::PRESENT,
            ..PageStat::default()
        };
        snap.areas[0].pages.resize(4_000, PageStat::default());
        snap.areas[0].pages[pages].fill(rate.map_or(PageStat::default(), page));
    }

    /// 640 pages of 10 reads a second were moved down for newer ones.
    fn room_for_newer() -> (Snapshot, MeasuredGain, impl Fn(u64) -> f64) {
        let (mut snap, mut gain) = (snapshot(2_000), MeasuredGain::default());
        newer(&mut snap, 2_000..4_000, None);
        gain.expect_newer(&snap);
        moved(&mut gain, &mut snap, 0, 640, 1);
        let each = |rate| 640.0 * 2.0 * f64::from(Heat::from_rate(rate).per_second());
        (snap, gain, each)
    }

    fn is_near(value: f64, wanted: f64) -> bool {
        (value - wanted).abs() <= 0.01 * wanted.abs()
    }

    #[test]
    fn newer_pages_in_the_places_of_demoted_ones_save_what_they_are_worth() {
        let (mut snap, mut gain, each) = room_for_newer();
        newer(&mut snap, 2_000..2_640, Some(100));
        let now = |gain: &mut MeasuredGain, snap: &Snapshot| gain.measure(snap, &WORTHS, Tick(0));
        assert!(is_near(now(&mut gain, &snap), -each(10)), "they may just have come");
        assert!(is_near(now(&mut gain, &snap), each(100) - each(10)) && gain.saves());
        let (saved, lost) = gain.by_some(&snap).unwrap();
        assert!(is_near(saved, each(100)) && is_near(lost, each(10)), "{saved} less {lost}");
        assert_eq!(gain.repaid_pages(Tick(0)), 0, "none was promoted");
        // What is free first touch would have used.
        snap.tiers[0].unused = Bytes(640 * 4096);
        now(&mut gain, &snap);
        assert!(is_near(now(&mut gain, &snap), -each(10)) && !gain.saves());
    }

    #[test]
    fn of_newer_pages_the_coldest_count() {
        let (mut snap, mut gain, each) = room_for_newer();
        newer(&mut snap, 2_000..2_640, Some(100));
        newer(&mut snap, 2_640..3_280, Some(1));
        let all = [(); 2].map(|()| gain.measure(&snap, &WORTHS, Tick(0)));
        // Blocks of 64 pages do not end where the colder ones begin.
        let some = 0.1 * each(100);
        assert!(all[1] < each(1) + some - each(10) && all[1] > each(1) - each(10), "{all:?}");
    }

    #[test]
    fn pages_that_came_back_leave_no_place_to_newer_ones() {
        let (mut snap, mut gain, each) = room_for_newer();
        newer(&mut snap, 2_000..3_280, Some(100));
        let all = [(); 2].map(|()| gain.measure(&snap, &WORTHS, Tick(0)));
        assert!(all[1] > 0.8 * each(100), "{all:?}");
        for (first, back, rest) in [(0, 320, 0.5), (320, 320, 0.0)] {
            moved(&mut gain, &mut snap, first, back, 0);
            let saved = gain.by_some(&snap).map_or(0.0, |(saved, _)| saved);
            assert!((saved - rest * each(100)).abs() < 0.05 * each(100), "{saved} of {rest}");
        }
    }

    #[test]
    fn a_newer_page_that_is_demoted_in_its_turn_costs_what_it_is_worth() {
        let (mut snap, mut gain, each) = room_for_newer();
        newer(&mut snap, 2_000..2_640, Some(100));
        let all = [(); 2].map(|()| gain.measure(&snap, &WORTHS, Tick(0)));
        assert!(all[1] > 0.0, "{all:?}");
        moved(&mut gain, &mut snap, 2_000, 640, 1);
        newer(&mut snap, 2_640..3_280, Some(10));
        let all = [(); 3].map(|()| gain.measure(&snap, &WORTHS, Tick(0)));
        assert!(
            is_near(all[2], -each(100)),
            "640 of 10 reads save what 640 older ones cost: {all:?}"
        );
    }

    #[test]
    fn places_that_others_took_count_no_more() {
        let (mut snap, mut gain, each) = room_for_newer();
        gain.measure(&snap, &WORTHS, Tick(0));
        newer(&mut snap, 2_000..2_640, Some(100));
        let all = [(); 2].map(|()| gain.measure(&snap, &WORTHS, Tick(0)));
        assert!(is_near(all[1], -each(10)), "{all:?}");
    }

    #[test]
    fn neither_pages_without_a_place_of_their_own_nor_a_third_tier_count() {
        let (mut snap, mut gain, each) = room_for_newer();
        newer(&mut snap, 2_000..2_640, Some(100));
        for page in &mut snap.areas[0].pages[2_000..2_640] {
            page.flags = page.flags.with(PageFlags::PINNED);
        }
        let all = [(); 2].map(|()| gain.measure(&snap, &WORTHS, Tick(0)));
        assert!(is_near(all[1], -each(10)), "{all:?}");
        let mut gain = MeasuredGain::default();
        snap.tiers.push(tier(2, 100_000, 50_000));
        gain.expect_newer(&snap);
        assert!(!gain.expects_newer());
    }
}
