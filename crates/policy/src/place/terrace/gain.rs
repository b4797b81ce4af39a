//! What placement gains beside that of first touch, by what is seen of the pages that lie elsewhere
//! because of moves.
//!
//! A page that was moved up saves what is accessed of it, one that was moved down costs it; one
//! that came back does neither. Which pages were moved is known exactly, and what each is worth as
//! of the last sample of all pages; whether they still are is found by samples of some of them.
//!
//! Newer pages that fill the places of pages demoted for growth save what they are worth, where
//! first touch would have put them on the next tier ([`super::first_touch_places`]).

use super::bit_blocks::{blocks_in, BlockId, BLOCK};
use super::first_touch_places::{FirstTouchPlaces, MovedPages};
use super::hotness::value_of;
use super::repayment::PromotionRepayment;
use super::tuning::TerraceTuning;
use crate::place::runs::page_size;
use crate::place::worth::AccessWorth;
use std::collections::BTreeMap;
use terrace_types::{
    Area, MeasuredSaving, Move, Nanos, PageFlags, PageStat, Pid, PolicyWork, Snapshot, Tick, Vpn,
    VpnRange,
};

/// The pages that lie where first touch did not put them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MeasuredGain {
    /// By process and address over [`BLOCK`]; none is empty.
    displaced: BTreeMap<BlockId, DisplacedPages>,
    first_touch: FirstTouchPlaces,
    /// Times that some blocks were chosen.
    turn: u32,
    /// What an access was worth at each boundary when that was last known.
    worths: Vec<AccessWorth>,
    /// Whether they save anything, as far as is known.
    saves: bool,
    repayment: PromotionRepayment,
}

/// Pages of one block that were moved up, or down, and have not come back since. Which way is kept,
/// for memory may be given back and come anew at the same address, where first touch puts it. And
/// pages that are on the best tier without a move, and are taken to be on the next under first
/// touch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct DisplacedPages {
    moved: MovedPages,
    newer: u64,
    /// What they save by what is known of each, if that was found since they last changed: to find
    /// it for all takes as long as half a spot check.
    known: Option<KnownSavings>,
}

/// What the displaced pages of a block save by what is known of them, nanoseconds a second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct KnownSavings {
    saved: f64,
    lost: f64,
    /// Places on the best tier that they have, and that they left.
    has: u32,
    left: u32,
}

/// What displaced pages save by where they are, nanoseconds a second.
#[derive(Debug, Clone, Copy, Default)]
struct Savings {
    promoted: f64,
    newer: f64,
    /// What demoted pages cost.
    lost: f64,
}

/// What displaced pages save, by what is known of them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DisplacedSavings {
    /// What promoted and newer ones save, nanoseconds a second.
    pub saved: f64,
    /// What demoted ones cost, nanoseconds a second.
    pub lost: f64,
    /// What these would cost if each were worth what one of the others saves in the mean.
    pub lost_if_hot: f64,
    /// Some blocks of either, to be sampled.
    pub some: Vec<(Pid, VpnRange)>,
    /// How many pages can save something that came to the best tier since the last sample of all
    /// pages, and how many of those that came may save nothing.
    pub unsampled: Option<UnsampledNewer>,
    /// What finding this took.
    pub work: PolicyWork,
}

/// Bounds of what pages save that came to the best tier since the last sample of all pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsampledNewer {
    /// Places there that demoted pages left, and that are neither unused nor have promoted pages or
    /// other newer ones: no more of them save anything.
    pub places: u64,
    /// So many of them may be there under first touch too.
    pub room: u64,
}

impl UnsampledNewer {
    /// The share of what those found touched save, at least, if `pages` came of which `touched`
    /// were found touched: any of those that save nothing may be among these.
    #[must_use]
    pub fn share(self, touched: f64, pages: f64) -> f64 {
        let nothing = (pages - self.places as f64).max(self.room as f64);
        if touched > 0.0 {
            (1.0 - nothing / touched).max(0.0)
        } else {
            0.0
        }
    }
}

impl DisplacedPages {
    const fn all(self) -> u64 {
        self.moved.up | self.moved.down | self.newer
    }

    /// Whether the first of them is there still: memory that came anew at the same address is not
    /// known to be.
    fn any_there(self, area: &Area, block: u64) -> bool {
        let first = block * BLOCK + u64::from(self.all().trailing_zeros());
        let page = first.checked_sub(area.start.0).and_then(|at| area.pages.get(at as usize));
        page.is_some_and(|page| page.flags.has(PageFlags::PRESENT))
    }

    /// A move of these pages.
    fn moved(&mut self, bits: u64, up: bool, best: u64) {
        let returned = bits & if up { self.moved.down | best } else { self.moved.up };
        *self = self.without(bits);
        *if up { &mut self.moved.up } else { &mut self.moved.down } |= bits & !returned;
    }

    fn add(&mut self, other: Self) {
        self.moved.up |= other.moved.up;
        self.moved.down |= other.moved.down;
        self.newer |= other.newer;
    }

    const fn without(self, bits: u64) -> Self {
        let moved = MovedPages { up: self.moved.up & !bits, down: self.moved.down & !bits };
        Self { moved, newer: self.newer & !bits, known: None }
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
        let (up, promoted) = sum(self.moved.up, rank);
        let (newer, by_newer) = sum(self.newer, rank.filter(|rank| *rank == 0));
        let (down, lost) = sum(self.moved.down, rank.and_then(|rank| rank.checked_sub(1)));
        let kept = Self { moved: MovedPages { up, down }, newer, known: None };
        (kept, Savings { promoted, newer: by_newer, lost })
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
                let best = self.first_touch.best((m.pid, block));
                self.change((m.pid, block), |of| of.moved(bits, to < from, best));
                if to < from {
                    *promoted.entry((m.pid, block)).or_default() += bits.count_ones();
                }
            }
        }
        self.repayment.record_moves(&promoted, cost);
    }

    /// These pages lie where first touch would have put them, as far as it is not known better.
    pub fn forget(&mut self, moves: &[Move]) {
        for m in moves {
            for (block, bits) in blocks_of(m) {
                let best = self.first_touch.best((m.pid, block));
                self.change((m.pid, block), |of| *of = of.without(bits & !best));
            }
        }
    }

    fn change(&mut self, id: BlockId, change: impl FnOnce(&mut DisplacedPages)) {
        let mut of = self.displaced.get(&id).copied().unwrap_or_default();
        change(&mut of);
        match of.all() {
            0 => self.displaced.remove(&id),
            _ => self.displaced.insert(id, of),
        };
    }

    /// Notes which pages are there, `came` of them since the last time: others are newer. Returns
    /// the number of pages gone through for that.
    pub fn note_older(&mut self, snap: &Snapshot, came: u64) -> u64 {
        if !self.notes_older(snap) {
            return 0;
        }
        let moved = |id| self.displaced.get(&id).map_or(MovedPages::default(), |of| of.moved);
        self.first_touch.note(snap, came, moved);
        snap.page_count()
    }

    /// Whether [`Self::note_older`] would. With more than two tiers a demoted page may have come
    /// from another than the best.
    pub fn notes_older(&self, snap: &Snapshot) -> bool {
        snap.tiers.len() == 2 && (!self.first_touch.is_open() || self.first_touch.room().is_some())
    }

    /// Base pages that may come before first touch would have no room for more on the best tier,
    /// from when pages were last noted; `None`: nothing is to be noted before pages are demoted.
    pub fn room_for_older(&self) -> Option<u64> {
        self.first_touch.room()
    }

    /// Whether first touch would have no room on the best tier for pages that come.
    pub fn newer_save(&self) -> bool {
        self.first_touch.is_open() && self.first_touch.room().is_none()
    }

    /// Whether [`Self::measure`] goes through all pages for newer ones.
    pub fn expects_newer(&self) -> bool {
        self.first_touch.is_open()
    }

    /// What they save at `now`. Pages that are no more, or came anew elsewhere, are forgotten.
    pub fn measure(
        &mut self,
        snap: &Snapshot,
        worths: &[AccessWorth],
        now: Tick,
    ) -> MeasuredSaving {
        self.worths = worths.to_vec();
        let newer = self.forget_newer();
        let (kept, promoted, lately) = self.find(snap);
        self.repayment.record_sample(&promoted, now);
        self.displaced = kept;
        let mut saving = MeasuredSaving { lately, now: lately };
        if self.first_touch.is_open() {
            saving.lately += self.find_newer(snap, newer);
            saving.now = self.find(snap).2;
            if self.displaced.is_empty() && self.first_touch.room().is_none() {
                self.first_touch.close();
            }
        }
        self.saves = saving.now > 0.0;
        saving
    }

    /// Returns the number of newer pages, and forgets which they are.
    fn forget_newer(&mut self) -> u64 {
        let count = |of: &mut DisplacedPages| std::mem::take(&mut of.newer).count_ones();
        self.displaced.values_mut().map(|of| u64::from(count(of))).sum()
    }

    /// Those that are where they were left; what promoted pages of each block save, and all of them
    /// together, nanoseconds a second.
    fn find(
        &self,
        snap: &Snapshot,
    ) -> (BTreeMap<BlockId, DisplacedPages>, BTreeMap<BlockId, f64>, f64) {
        let (mut kept, mut promoted, mut sum) = (BTreeMap::new(), BTreeMap::new(), 0.0);
        for area in &snap.areas {
            for (block, displaced) in self.in_area(area) {
                let id = (area.pid, block);
                for (of, page) in displaced_runs(area, block, displaced) {
                    let (of, saved) = of.savings(page, snap, &self.worths);
                    sum += saved.promoted + saved.newer - saved.lost;
                    if of.all() != 0 {
                        kept.entry(id).or_insert_with(DisplacedPages::default).add(of);
                    }
                    if of.moved.up != 0 {
                        *promoted.entry(id).or_default() += saved.promoted;
                    }
                }
            }
        }
        (kept, promoted, sum)
    }

    /// Finds newer pages that first touch would have on the next tier. What they save, nanoseconds
    /// a second, of `before` at most: others may just have come.
    fn find_newer(&mut self, snap: &Snapshot, before: u64) -> f64 {
        let Some(worth) = self.worths.first() else { return 0.0 };
        let moved = |id| self.displaced.get(&id).map_or(MovedPages::default(), |of| of.moved);
        let (mut displaced, mut chosen, mut saved) = (BTreeMap::new(), 0, 0.0);
        for block in self.first_touch.update(snap, worth, moved) {
            let MovedPages { up, down } = moved(block.id);
            chosen += u64::from(block.chosen.count_ones());
            saved += block.value_of_chosen();
            let of = DisplacedPages {
                // Memory that was given back may have come anew on the other tier.
                moved: MovedPages { up: up & !block.best, down: down | block.best & block.on_next },
                newer: block.chosen,
                known: None,
            };
            if of.all() != 0 {
                displaced.insert(block.id, of);
            }
        }
        self.displaced = displaced;
        saved * (before as f64 / chosen.max(1) as f64).min(1.0)
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

    /// What they save now by what is known of each, and some blocks of them, others at each time.
    pub fn known(&mut self, snap: &Snapshot, tuning: &TerraceTuning) -> DisplacedSavings {
        let mut out = DisplacedSavings::default();
        let (mut saving, mut demoted, mut places) = (Vec::new(), Vec::new(), (0, 0));
        let mut found = Vec::new();
        for area in &snap.areas {
            for (block, displaced) in self.in_area(area) {
                let id = (area.pid, block);
                let known = displaced.known.filter(|_| displaced.any_there(area, block));
                let known = known.unwrap_or_else(|| {
                    let known = self.known_of((area, block), displaced, snap);
                    out.work.scanned_pages += u64::from(displaced.all().count_ones());
                    // Neighbouring areas may have others of them.
                    if area.range().contains(Vpn((block + 1) * BLOCK - 1))
                        && area.range().contains(Vpn(block * BLOCK))
                    {
                        found.push((id, known));
                    }
                    known
                });
                places = (places.0 + u64::from(known.has), places.1 + u64::from(known.left));
                (out.saved, out.lost) = (out.saved + known.saved, out.lost + known.lost);
                if known.saved > 0.0 {
                    saving.push((id, known.saved));
                }
                if displaced.moved.down != 0 {
                    demoted.push((id, 1.0));
                }
            }
        }
        for (id, known) in found {
            if let Some(of) = self.displaced.get_mut(&id) {
                of.known = Some(known);
            }
        }
        out.lost_if_hot = out.saved * places.1 as f64 / places.0.max(1) as f64;
        self.turn = self.turn.wrapping_add(1);
        let of = |blocks: &[(BlockId, f64)]| in_proportion(blocks, tuning.gain_blocks, self.turn);
        let mut some = [of(&saving), of(&demoted)].concat();
        some.sort_unstable();
        some.dedup();
        let range = |block: u64| VpnRange::new(Vpn(block * BLOCK), Vpn((block + 1) * BLOCK));
        let unused = snap.tiers.first().map_or(0, |tier| tier.unused.pages(page_size(snap)));
        out.unsampled = self.first_touch.room_for_newer(&snap.areas).map(|room| UnsampledNewer {
            places: places.1.saturating_sub(places.0 + unused),
            room,
        });
        out.some = some.into_iter().map(|(pid, block)| (pid, range(block))).collect();
        out
    }

    fn known_of(
        &self,
        (area, block): (&Area, u64),
        displaced: DisplacedPages,
        snap: &Snapshot,
    ) -> KnownSavings {
        let mut known = KnownSavings::default();
        for (of, page) in displaced_runs(area, block, displaced) {
            let (here, by) = of.savings(page, snap, &self.worths);
            known.saved += by.promoted + by.newer;
            known.lost += by.lost;
            known.has += (here.moved.up | here.newer).count_ones();
            known.left += here.moved.down.count_ones();
        }
        known
    }
}

/// At most so many blocks, chosen in proportion to their shares: at equal distances along the sum
/// of these, from another place at each turn. So what a few pages save, which is most, is told by
/// most of the samples.
fn in_proportion(blocks: &[(BlockId, f64)], most: usize, turn: u32) -> Vec<BlockId> {
    let distance = blocks.iter().map(|(_, share)| share).sum::<f64>() / most.max(1) as f64;
    // Multiples of the golden ratio are spread evenly, however many there are.
    let mut next = distance * (f64::from(turn) * 0.618_033_988_749_895).fract();
    let (mut sum, mut out) = (0.0, Vec::new());
    for (id, share) in blocks {
        sum += share;
        if sum > next {
            out.push(*id);
            next += ((sum - next) / distance).ceil() * distance;
        }
    }
    out
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

    fn measure(gain: &mut MeasuredGain, snap: &Snapshot) -> f64 {
        gain.measure(snap, &WORTHS, Tick(0)).now
    }

    #[test]
    fn an_exchange_gains_the_difference_and_back_again_nothing() {
        let (mut snap, mut gain) = (snapshot(20_000), MeasuredGain::default());
        assert_eq!(measure(&mut gain, &snap), 0.0);
        let rate = |snap: &Snapshot, i: usize| f64::from(snap.areas[0].pages[i].reads.per_second());
        for (pages, within) in [(300, 1e-6), (4_000, 0.01)] {
            moved(&mut gain, &mut snap, 12_000, pages, 0);
            moved(&mut gain, &mut snap, 1_000, pages, 1);
            let each = 2.0 * (rate(&snap, 15_000) - rate(&snap, 0));
            for _ in 0..5 {
                let now = measure(&mut gain, &snap);
                assert!((now / (f64::from(pages) * each) - 1.0).abs() < within, "{pages}: {now}");
            }
            moved(&mut gain, &mut snap, 12_000, pages, 1);
            moved(&mut gain, &mut snap, 1_000, pages, 0);
            assert!(measure(&mut gain, &snap) == 0.0 && gain.displaced.is_empty());
        }
    }

    #[test]
    fn promotions_may_save_something_until_it_is_found_otherwise() {
        let (mut snap, mut gain) = (snapshot(2_000), MeasuredGain::default());
        moved(&mut gain, &mut snap, 0, 50, 1);
        assert!(!gain.saves(), "nothing was promoted");
        moved(&mut gain, &mut snap, 1_500, 60, 0);
        assert!(gain.saves(), "not known yet");
        assert!(measure(&mut gain, &snap) > 0.0 && gain.saves());
        // What was promoted is read no more.
        snap.areas[0].pages[1_500..1_560].iter_mut().for_each(|page| page.reads = Heat::COLD);
        assert!(measure(&mut gain, &snap) < 0.0 && !gain.saves());
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
        measure(&mut gain, &snap);
        assert_eq!(gain.repaid_pages(Tick(700_000_000)), 60);
        assert_eq!(gain.repaid_pages(Tick(800_000_000)), 120);
    }

    #[test]
    fn what_is_known_of_all_displaced_pages_is_what_is_measured() {
        let (mut snap, mut gain) = (snapshot(20_000), MeasuredGain::default());
        moved(&mut gain, &mut snap, 12_000, 5_003, 0);
        moved(&mut gain, &mut snap, 1_000, 5_003, 1);
        let all = measure(&mut gain, &snap);
        let known = gain.known(&snap, &TerraceTuning::USUAL);
        assert!(((known.saved - known.lost) / all - 1.0).abs() < 1e-6, "{known:?} of {all}");
        assert_eq!(gain.known(&Snapshot::default(), &TerraceTuning::USUAL).some, []);
    }

    #[test]
    fn blocks_are_chosen_as_often_as_they_save_and_each_demoted_one_alike() {
        let (mut snap, mut gain) = (snapshot(20_000), MeasuredGain::default());
        moved(&mut gain, &mut snap, 12_000, 5_120, 0);
        moved(&mut gain, &mut snap, 1_000, 5_120, 1);
        // A tenth of what was promoted saves nine tenths.
        for page in &mut snap.areas[0].pages[12_000..12_512] {
            page.reads = Heat::from_rate(8_100);
        }
        measure(&mut gain, &snap);
        let tuning = TerraceTuning::USUAL;
        let (mut hot, mut promoted, mut all) = (0, 0, std::collections::BTreeSet::new());
        for _ in 0..100 {
            let some = gain.known(&snap, &tuning).some;
            assert!(some.len() <= 2 * tuning.gain_blocks, "{}", some.len());
            for (_, range) in some {
                let at = range.start.0.max(7) as usize - 7;
                hot += usize::from((11_950..12_512).contains(&at));
                promoted += usize::from(at > 10_000);
                all.extend((at < 10_000).then_some(at));
            }
        }
        // Eight or nine blocks are all that there are.
        assert!(hot as f64 > 0.8 * promoted.min(900) as f64, "{hot} of {promoted}");
        assert_eq!(all.len(), 81, "each block that has demoted pages gets its turn");
    }

    #[test]
    fn memory_that_came_anew_at_the_same_address_is_displaced_by_its_own_moves() {
        let (mut snap, mut gain) = (snapshot(2_000), MeasuredGain::default());
        moved(&mut gain, &mut snap, 1_500, 400, 0);
        let first = measure(&mut gain, &snap);
        // Freed and filled again on the slow tier, then moved up like what was there before.
        snap.areas[0].pages[1_500..1_900].iter_mut().for_each(|page| page.node = 1);
        moved(&mut gain, &mut snap, 1_500, 400, 0);
        assert!(first > 0.0);
        assert_eq!(measure(&mut gain, &snap), first);
        snap.areas[0].pages[1_500..1_900].iter_mut().for_each(|page| page.node = 1);
        let known = gain.known(&snap, &TerraceTuning::USUAL);
        assert_eq!((known.saved, known.lost), (0.0, 0.0), "it lies where first touch put it");
        assert_eq!((measure(&mut gain, &snap), gain.displaced.len()), (0.0, 0));
    }

    #[test]
    fn pages_that_are_where_first_touch_would_have_put_them_are_forgotten() {
        let (mut snap, mut gain) = (snapshot(2_000), MeasuredGain::default());
        moved(&mut gain, &mut snap, 0, 300, 1);
        let before = measure(&mut gain, &snap);
        // The kernel put it on the best tier because the others had left.
        moved(&mut gain, &mut snap, 400, 300, 1);
        assert!(measure(&mut gain, &snap) < 1.9 * before);
        let (from, to, reason) = (NodeId(0), NodeId(1), MoveReason::Cold);
        gain.forget(&[Move { pid: Pid(1), start: Vpn(407), pages: 300, from, to, reason }]);
        assert_eq!(measure(&mut gain, &snap), before);
    }

    #[test]
    fn what_turned_hot_after_it_went_down_is_a_loss_and_what_went_away_is_forgotten() {
        let (mut snap, mut gain) = (snapshot(2_000), MeasuredGain::default());
        moved(&mut gain, &mut snap, 0, 500, 1);
        let before = measure(&mut gain, &snap);
        snap.areas[0].pages[..500].iter_mut().for_each(|p| p.reads = Heat::from_rate(100));
        assert!(before < 0.0 && measure(&mut gain, &snap) < 8.0 * before);
        snap.areas[0].pages[..500].iter_mut().for_each(|p| p.flags = PageFlags::default());
        assert_eq!((measure(&mut gain, &snap), gain.displaced.len()), (0.0, 0));
    }

    /// Pages that come one after the other to a best tier of 1,000 pages.
    struct Filling {
        snap: Snapshot,
        gain: MeasuredGain,
        /// Pages there that others have.
        others: usize,
    }

    impl Filling {
        /// So many pages came before room was made for newer ones.
        fn new(older: usize) -> Self {
            let snap = Snapshot {
                page_size: Bytes(4096),
                tiers: vec![tier(0, 1_000, 1_000), tier(1, 100_000, 50_000)],
                areas: vec![Area { pid: Pid(1), start: Vpn(64), pages: Vec::new() }],
                ..Snapshot::default()
            };
            let mut all = Self { snap, gain: MeasuredGain::default(), others: 0 };
            all.come(older, 10);
            all.gain.note_older(&all.snap, 0);
            all
        }

        fn unused(&self) -> usize {
            let there = |page: &&PageStat| page.flags.has(PageFlags::PRESENT) && page.node == 0;
            1_000 - self.others - self.snap.areas[0].pages.iter().filter(there).count()
        }

        fn update(&mut self) {
            self.snap.tiers[0].unused = Bytes(self.unused() as u64 * 4096);
        }

        /// First touch puts so many pages, which are read so often, where space is.
        fn come(&mut self, pages: usize, rate: u64) {
            let best = self.unused();
            let page = |i| PageStat {
                reads: Heat::from_rate(rate),
                node: u8::from(i >= best),
                flags: PageFlags::PRESENT,
                ..PageStat::default()
            };
            self.snap.areas[0].pages.extend((0..pages).map(page));
            self.update();
        }

        fn free(&mut self, pages: std::ops::Range<usize>) {
            self.snap.areas[0].pages[pages].fill(PageStat::default());
            self.update();
        }

        fn heat(&mut self, pages: std::ops::Range<usize>, rate: u64) {
            let all = &mut self.snap.areas[0].pages[pages];
            all.iter_mut().for_each(|page| page.reads = Heat::from_rate(rate));
        }

        fn demote(&mut self, pages: std::ops::Range<usize>) {
            self.move_to(1, pages);
        }

        fn move_to(&mut self, to: u16, pages: std::ops::Range<usize>) {
            let all = &mut self.snap.areas[0].pages[pages.clone()];
            all.iter_mut().for_each(|page| page.node = to as u8);
            let (from, to, reason) = (NodeId(1 - to), NodeId(to), MoveReason::Cold);
            let (start, pages) = (Vpn(64 + pages.start as u64), pages.len() as u32);
            let done = [Move { pid: Pid(1), start, pages, from, to, reason }];
            self.gain.moved(&done, &self.snap, Nanos::ZERO);
            self.update();
        }

        /// What is booked, and what is found to be saved now, in reads of one page a second.
        fn measure(&mut self) -> (f64, f64) {
            let saving = self.gain.measure(&self.snap, &WORTHS, Tick(0));
            (saving.lately / 2.0, saving.now / 2.0)
        }
    }

    /// What so many pages that are read so often are worth, in reads of one page a second.
    fn worth(pages: u64, rate: u64) -> f64 {
        pages as f64 * f64::from(Heat::from_rate(rate).per_second())
    }

    fn is_near(value: f64, wanted: f64) -> bool {
        (value - wanted).abs() <= 0.01 * wanted.abs()
    }

    /// 1,000 pages came, of which 640 were demoted when 600 were there.
    fn filled() -> Filling {
        let mut all = Filling::new(640);
        all.demote(0..640);
        all.come(360, 10);
        all.measure();
        all
    }

    #[test]
    fn newer_pages_that_first_touch_would_have_no_room_for_save_what_they_are_worth() {
        let mut all = filled();
        let lost = -worth(640, 10);
        assert!(is_near(all.measure().1, lost), "room for 1,000");
        all.come(640, 100);
        let first = all.measure();
        assert!(is_near(first.0, lost), "they may just have come: {first:?}");
        let now = worth(640, 100) + lost;
        assert!(is_near(first.1, now) && all.gain.saves(), "{first:?} of {now}");
        assert!(is_near(all.measure().0, now));
        let known = all.gain.known(&all.snap, &TerraceTuning::USUAL);
        assert!(is_near(known.saved, 2.0 * worth(640, 100)), "{known:?}");
        assert!(is_near(known.lost, 2.0 * worth(640, 10)), "{known:?}");
        assert_eq!(all.gain.repaid_pages(Tick(0)), 0, "none was promoted");
        // What turned hot since is worth more, and what turned cold less.
        all.heat(1_000..1_640, 5);
        assert!(is_near(all.measure().0, worth(640, 5) - worth(640, 10)) && !all.gain.saves());
    }

    #[test]
    fn of_pages_among_which_the_tier_was_filled_none_are_taken_to_save_anything() {
        let mut all = Filling::new(640);
        all.demote(0..640);
        all.come(1_000, 100);
        assert!(
            is_near(all.measure().1, -worth(640, 10)),
            "360 would be there, which is not known"
        );
        all.free(640..960);
        all.come(320, 100);
        assert!(
            is_near(all.measure().1, -worth(640, 10)),
            "they may have the places of those that were freed"
        );
    }

    #[test]
    fn pages_are_noted_while_there_would_be_room_for_them() {
        let mut all = Filling::new(640);
        all.demote(0..640);
        assert_eq!(all.gain.room_for_older(), Some(360));
        all.come(300, 100);
        all.gain.note_older(&all.snap, 0);
        assert_eq!(all.gain.room_for_older(), Some(60));
        all.come(64, 100);
        assert!(all.measure().1 < 0.0);
        assert_eq!(all.gain.room_for_older(), None);
        // Four pages too many are taken to be there: they leave no room where they were.
        all.come(276, 50);
        let (_, now) = all.measure();
        assert!(is_near(now, worth(276, 50) - worth(640, 10)), "{now}");
        all.free(640..704);
        all.come(64, 50);
        let (_, now) = all.measure();
        assert!(is_near(now, worth(276, 50) - worth(640, 10)), "64 came to their places: {now}");
    }

    #[test]
    fn of_newer_pages_that_may_have_places_of_freed_ones_the_coldest_count() {
        let mut all = filled();
        // 320 older pages are freed, and 960 come to their places and those of demoted ones.
        all.free(640..960);
        all.come(320, 100);
        all.come(640, 1);
        let lost = worth(640, 10);
        let first = all.measure();
        assert!(is_near(first.1, worth(640, 1) - lost), "{first:?}");
        // They change: still the coldest count, but for those that a block has with others.
        all.heat(1_000..1_320, 1);
        all.heat(1_320..1_960, 100);
        let (lately, now) = all.measure();
        let most = worth(320, 1) + worth(320, 100) - lost;
        assert!(now <= 1.01 * most && now > 0.8 * most && lately <= now, "{now} of {most}");
    }

    #[test]
    fn a_newer_page_that_is_demoted_may_be_one_that_first_touch_has_on_the_best_tier() {
        let mut all = filled();
        all.come(640, 100);
        all.measure();
        all.demote(1_000..1_640);
        assert!(is_near(all.measure().1, -worth(640, 10) - worth(640, 100)));
        all.move_to(0, 1_000..1_640);
        assert!(is_near(all.measure().1, worth(640, 100) - worth(640, 10)));
    }

    #[test]
    fn all_is_forgotten_once_older_pages_are_where_they_were() {
        let mut all = filled();
        all.move_to(0, 0..640);
        assert_eq!(all.measure(), (0.0, 0.0));
        assert!(!all.gain.expects_newer());
    }

    #[test]
    fn what_is_known_outlasts_a_time_in_which_no_page_can_move() {
        let mut all = filled();
        all.come(640, 100);
        let before = all.measure().1;
        // As while a child shares them.
        let pin = |all: &mut Filling, pinned: bool| {
            for page in &mut all.snap.areas[0].pages {
                page.flags = match pinned {
                    true => page.flags.with(PageFlags::PINNED),
                    false => page.flags.without(PageFlags::PINNED),
                };
            }
        };
        pin(&mut all, true);
        assert!(all.measure().1 <= -0.99 * worth(640, 10), "none can be told to be newer");
        pin(&mut all, false);
        assert_eq!(all.measure().1, before);
        all.demote(1_000..1_320);
        all.move_to(0, 0..320);
        assert!(is_near(all.measure().1, -worth(320, 10)), "who came back saves nothing");
    }

    #[test]
    fn memory_given_back_that_comes_anew_on_the_other_tier_is_displaced_without_a_move() {
        let mut all = filled();
        all.come(640, 100);
        all.measure();
        // An older page of the best tier.
        all.snap.areas[0].pages[700].node = 1;
        all.update();
        assert!(is_near(all.measure().1, worth(640, 100) - worth(641, 10)));
        all.snap.areas[0].pages[700].node = 0;
        all.update();
        assert!(is_near(all.measure().1, worth(640, 100) - worth(640, 10)));
    }

    #[test]
    fn places_that_others_took_are_no_room_and_yet_freed_ones_are() {
        let mut all = filled();
        // A file is read, to 320 places of demoted pages; first touch would have had it on the next
        // tier.
        all.others = 320;
        all.update();
        all.measure();
        all.free(640..960);
        all.measure();
        all.come(640, 100);
        let (_, now) = all.measure();
        let most = worth(320, 100) - worth(640, 10);
        assert!(is_near(now, most), "320 of them would have places of freed ones: {now} of {most}");
    }

    #[test]
    fn of_pages_that_no_sample_of_all_pages_found_those_beyond_the_room_save_something() {
        let mut all = filled();
        let unsampled = |all: &mut Filling| {
            let (saved, pages) = (all.gain.known(&all.snap, &TerraceTuning::USUAL), 1_000.0);
            saved.unsampled.map(|of| (of.places, of.room, of.share(500.0, pages)))
        };
        assert_eq!(unsampled(&mut all), Some((0, 0, 0.0)), "the places are unused");
        all.come(640, 100);
        assert_eq!(unsampled(&mut all), Some((640, 0, 0.28)), "360 of 1,000 have others' places");
        all.measure();
        assert_eq!(unsampled(&mut all), Some((0, 0, 0.0)), "those are known now");
        all.free(1_000..1_640);
        all.snap.areas[0].pages.truncate(800);
        all.update();
        all.snap.tiers[0].unused = Bytes::ZERO;
        let freed = Some((640, 200, 0.28));
        assert_eq!(unsampled(&mut all), freed, "200 older pages are not mapped any more");
        let few = UnsampledNewer { places: 640, room: 125 };
        assert_eq!([few.share(250.0, 300.0), few.share(100.0, 300.0)], [0.5, 0.0]);
        assert_eq!(few.share(0.0, 0.0), 0.0);
    }

    #[test]
    fn neither_pages_without_a_place_of_their_own_nor_a_third_tier_count() {
        let mut all = filled();
        all.come(640, 100);
        for page in &mut all.snap.areas[0].pages[1_000..1_640] {
            page.flags = page.flags.with(PageFlags::PINNED);
        }
        assert!(is_near(all.measure().1, -worth(640, 10)));
        let mut gain = MeasuredGain::default();
        all.snap.tiers.push(tier(2, 100_000, 50_000));
        gain.note_older(&all.snap, 0);
        assert!(!gain.expects_newer());
    }
}
