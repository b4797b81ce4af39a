//! Carries a cut out: the moves of an exchange, in parts that each fit little memory.
//!
//! Pages that lie scattered need a run each, and a plan of all of them would take more space than
//! their heat. So an exchange is made part by part from one sample ([`super::go_on`]): two walks
//! over all pages, one for those that go up, from the lowest address on, and one for those that
//! make space, from the highest down
//! (docs/adr/0183-choose-adjacent-victims-from-the-highest-address-down.md), each of which goes on
//! where the last part ended. All parts together are the moves that one plan would hold.

use super::blocks::{end_of_block, BlockSummary, BLOCK};
use super::hotness::{ExchangeThreshold, RatedUnit, RatingScale, UnitRater};
use super::recent::RecentMoves;
use super::tuning::TerraceTuning;
use super::{NearestNodes, Params};
use crate::place::runs::{add, units_from};
use crate::place::PartialPlan;
use std::ops::Range;
use terrace_types::{Area, Move, MoveReason, NodeId, PageStat, PolicyWork, Snapshot, Vpn};

/// An exchange that is under way.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MigrationCursor {
    scale: Box<RatingScale>,
    rank: usize,
    up: SideCursor,
    down: SideCursor,
    /// Base pages that may still go up before others must free space.
    space: u64,
    /// Base pages that go down and make no space.
    lacking: u64,
    /// Base pages demoted in a row.
    chunk: u64,
    /// What was moved by earlier parts: a page just demoted may seem hot among those of the worse
    /// side.
    moved: PageBitmap,
}

/// A bit for each page of a snapshot.
#[derive(Debug, Clone, PartialEq)]
struct PageBitmap {
    /// The bit of each area's first page.
    first: Vec<usize>,
    bits: Vec<u64>,
}

impl PageBitmap {
    fn new(snap: &Snapshot) -> Self {
        let mut pages = 0;
        let mut first = Vec::with_capacity(snap.areas.len());
        for area in &snap.areas {
            first.push(pages);
            pages += area.pages.len();
        }
        Self { first, bits: vec![0; pages.div_ceil(64)] }
    }

    /// The words that hold these pages of an area, each with their bits in it.
    fn words(&self, area: usize, pages: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
        let first = self.first.get(area).copied().unwrap_or(0);
        let (mut at, end) = (first + pages.start, first + pages.end);
        std::iter::from_fn(move || {
            let (word, bit) = (at / 64, at % 64);
            let count = (64 - bit).min(end.saturating_sub(at));
            at += count;
            (count > 0).then(|| (word, (u64::MAX >> (64 - count)) << bit))
        })
    }

    fn has_any(&self, area: usize, pages: Range<usize>) -> bool {
        let mut words = self.words(area, pages);
        words.any(|(word, bits)| self.bits.get(word).is_some_and(|word| word & bits != 0))
    }

    fn set(&mut self, area: usize, pages: Range<usize>) {
        for (word, bits) in self.words(area, pages) {
            if let Some(word) = self.bits.get_mut(word) {
                *word |= bits;
            }
        }
    }
}

/// One side's walk over all pages.
#[derive(Debug, Clone, Copy, PartialEq)]
struct SideCursor {
    slow: bool,
    /// Where the next unit is searched for: index of an area, index in it. Areas stay as they are
    /// between parts.
    at: (usize, usize),
    /// The stretch of that area that is walked through now.
    stretch: (usize, usize),
    /// Base pages still to be chosen.
    left: u64,
    /// The bucket of which only `rest` base pages are chosen; those beyond it are all chosen.
    edge: usize,
    rest: u64,
    /// Of what goes down, for now: only from stretches whose pages are worth no more than this in
    /// the mean. Among hot pages those seem cold that chance made seem so, and a few hundred say
    /// more of each other than of each can be seen.
    usual: Option<f64>,
    /// Whether that was asked of this stretch.
    asked: bool,
}

impl MigrationCursor {
    /// Begins to carry out `cut` between tier `rank` and the next, which has space for `below` base
    /// pages; `lacking`: so many more go down first than what goes up takes the places of.
    pub fn new(
        tuning: &TerraceTuning,
        rater: UnitRater<'_>,
        snap: &Snapshot,
        cut: &ExchangeThreshold,
        rank: usize,
        (below, lacking): (u64, u64),
    ) -> Self {
        let demote = cut.demote.min(below);
        let promote = cut.promote - (cut.demote - demote);
        let lacking = if demote > 0 { lacking.min(below - demote) } else { 0 };
        let walk = |slow: bool, left, edge, rest| {
            let usual = (!slow).then_some(cut.usual);
            let mut walk = SideCursor {
                slow,
                at: (0, 0),
                stretch: (0, 0),
                left,
                edge,
                rest,
                usual,
                asked: false,
            };
            walk.begin(snap);
            walk
        };
        Self {
            scale: rater.into_scale(),
            rank,
            up: walk(true, promote, cut.promote_from, cut.promote_rest),
            down: walk(false, demote + lacking, cut.demote_to, cut.demote_rest + lacking),
            space: promote - demote,
            lacking,
            chunk: match snap.spendable {
                Some(_) => (demote / tuning.chunk_part).clamp(tuning.small_chunk, tuning.chunk),
                None => tuning.chunk,
            },
            moved: PageBitmap::new(snap),
        }
    }

    /// Base pages that go up in this part and all after it.
    pub fn promotes(&self) -> u64 {
        self.up.left
    }

    /// Base pages that go down.
    pub fn demotes(&self) -> u64 {
        self.down.left
    }

    /// The next part: space is made just before it is used. Empty when nothing is left to do.
    pub fn part(&mut self, params: &Params, recent: &RecentMoves, snap: &Snapshot) -> PartialPlan {
        let targets = |rank: usize| {
            NearestNodes::new(params, snap.tiers.get(rank).map_or(&[][..], |t| &t.nodes))
        };
        let (better, worse) = (targets(self.rank), targets(self.rank + 1));
        let rater = UnitRater::with_scale(params, recent, self.scale.clone());
        let tuning = &params.tuning;
        let most = (snap.page_count() / tuning.pages_a_run).max(tuning.least_runs) as usize;
        let mut part =
            PlanPart { rater, snap, moved: &mut self.moved, moves: Vec::new(), walked: 0 };
        while self.up.left > 0 {
            let used = self.up.take(&mut part, &better, (self.space, most));
            self.space -= used;
            // Half of the runs left are for what goes up in the space; few make small calls.
            let left = most - part.moves.len();
            if self.up.left == 0 || left < most / tuning.runs_left_part {
                break;
            }
            let runs = part.moves.len() + left / 2;
            let made = self.down.take(&mut part, &worse, (self.chunk + self.lacking, runs));
            let kept = made.min(self.lacking);
            self.lacking -= kept;
            self.space += made - kept;
            if used + made == 0 {
                break;
            }
        }
        let work = PolicyWork { walked_pages: part.walked, ..PolicyWork::default() };
        PartialPlan { moves: part.moves, work }
    }
}

/// A part in the making.
struct PlanPart<'a> {
    rater: UnitRater<'a>,
    snap: &'a Snapshot,
    moved: &'a mut PageBitmap,
    moves: Vec<Move>,
    /// Units rated on the way.
    walked: u64,
}

impl SideCursor {
    /// Adds the moves of the next units, some `pages` base pages, while there are fewer than
    /// `runs`; gives how many pages.
    fn take(
        &mut self,
        part: &mut PlanPart<'_>,
        to: &NearestNodes<'_>,
        (pages, runs): (u64, usize),
    ) -> u64 {
        let mut taken = 0;
        while let Some(area) = part.snap.areas.get(self.at.0) {
            let most = if part.moves.len() < runs { pages.saturating_sub(taken) } else { 0 };
            if let Some(whole) = self.pass_block(part, area, to, most) {
                taken += whole;
                if self.advance(part.snap) {
                    continue;
                }
                break;
            }
            for unit in units_from(area, self.at.1).take_while(|unit| unit.index < self.stretch.1) {
                part.walked += 1;
                let size = u64::from(unit.pages);
                let after = unit.index + unit.pages as usize;
                let block = part.rater.block(part.snap, self.at.0, unit.index);
                let chosen =
                    part.rater.rate(area, &unit, block).filter(|rated| self.chooses(*rated, size));
                // A large page that lies across two blocks is met twice, as its tail alone and
                // whole.
                let chosen = chosen.filter(|_| !part.moved.has_any(self.at.0, unit.index..after));
                let Some((rated, to)) = chosen.zip(to.of(unit.stat.node())) else {
                    self.at.1 = after;
                    continue;
                };
                // A little more space than asked for does no harm; more pages than there is space
                // for do.
                let enough = if self.slow { taken + size > pages } else { taken >= pages };
                if enough || part.moves.len() >= runs {
                    self.at.1 = unit.index;
                    return taken;
                }
                self.at.1 = after;
                self.left -= size;
                self.rest -= if rated.bucket == self.edge { size } else { 0 };
                taken += size;
                part.moved.set(self.at.0, unit.index..after);
                let (start, from) = (Vpn(area.start.0 + unit.index as u64), unit.stat.node());
                let reason = if self.slow { reason(&unit.stat) } else { MoveReason::Cold };
                add(
                    &mut part.moves,
                    Move { pid: area.pid, start, pages: unit.pages, from, to, reason },
                );
            }
            if !self.advance(part.snap) {
                break;
            }
        }
        self.left = 0;
        taken
    }

    /// What goes up is taken from the lowest address on, what goes down from the highest on, in
    /// blocks as large as a huge page.
    fn begin(&mut self, snap: &Snapshot) {
        let area = if self.slow { 0 } else { snap.areas.len().saturating_sub(1) };
        self.enter(snap, area);
    }

    /// Goes to the next stretch; false at the end of the walk.
    fn advance(&mut self, snap: &Snapshot) -> bool {
        let from = self.at.1.max(self.stretch.1);
        if self.slow && snap.areas.get(self.at.0).is_some_and(|a| from < a.pages.len()) {
            self.block_from(snap, self.at.0, from);
        } else if self.slow {
            self.enter(snap, self.at.0 + 1);
        } else if self.stretch.0 > 0 {
            self.block_before(snap, self.at.0, self.stretch.0);
        } else if self.at.0 > 0 {
            self.enter(snap, self.at.0 - 1);
        } else if self.usual.take().is_some() {
            // Once more, through what was passed over.
            self.begin(snap);
        } else {
            return false;
        }
        self.at.0 < snap.areas.len()
    }

    /// Asks a block once whether it is passed over, or taken whole where that is at most `most`
    /// base pages; gives how many were taken. `None`: its pages are rated one by one.
    fn pass_block(
        &mut self,
        part: &mut PlanPart<'_>,
        area: &Area,
        to: &NearestNodes<'_>,
        most: u64,
    ) -> Option<u64> {
        if std::mem::replace(&mut self.asked, true) {
            return None;
        }
        let block = *part.rater.block(part.snap, self.at.0, self.stretch.0)?;
        part.walked += 1;
        let size = u64::from(block.all);
        if size <= most && self.takes_whole(&block) && self.take_whole(part, block, to) {
            return Some(size);
        }
        let hot = block.huge && self.is_hot(part, area);
        (hot || self.is_without(&block)).then_some(0)
    }

    /// Whether a stretch of huge pages is passed over for now.
    fn is_hot(&self, part: &mut PlanPart<'_>, area: &Area) -> bool {
        let Some(usual) = self.usual else { return false };
        let (mut pages, mut value) = (0u64, 0.0);
        for unit in units_from(area, self.stretch.0).take_while(|unit| unit.index < self.stretch.1)
        {
            part.walked += 1;
            let block = part.rater.block(part.snap, self.at.0, unit.index);
            if let Some(rated) = part.rater.rate(area, &unit, block).filter(|rated| !rated.slow) {
                pages += u64::from(unit.pages);
                value += f64::from(rated.value) * f64::from(unit.pages);
            }
        }
        value > usual * pages as f64
    }

    /// Whether nothing of this block is chosen, or not for now.
    fn is_without(&self, block: &BlockSummary) -> bool {
        let side = &block.sides[usize::from(self.slow)];
        let expected = side.expected;
        let beyond = match self.slow {
            true => usize::from(expected.highest) < self.edge,
            false => usize::from(expected.lowest) > self.edge,
        };
        let hot =
            self.usual.is_some_and(|usual| f64::from(side.value) > usual * f64::from(side.pages));
        !block.huge && (side.pages == 0 || beyond || hot)
    }

    /// Whether all of this block is chosen.
    fn takes_whole(&self, block: &BlockSummary) -> bool {
        let side = &block.sides[usize::from(self.slow)];
        let beyond = match self.slow {
            true => usize::from(side.expected.lowest) > self.edge,
            false => usize::from(side.expected.highest) < self.edge,
        };
        side.pages == block.all
            && beyond
            && self.left >= u64::from(block.all)
            && !self.is_without(block)
    }

    /// Takes the block that the walk has come to, unless pages of it moved before.
    fn take_whole(
        &mut self,
        part: &mut PlanPart<'_>,
        block: BlockSummary,
        to: &NearestNodes<'_>,
    ) -> bool {
        let (at, (from, end)) = (self.at.0, self.stretch);
        let area = &part.snap.areas[at];
        let Some(node) = block.node.map(|node| NodeId(u16::from(node))) else { return false };
        let Some(to) = to.of(node) else { return false };
        if part.moved.has_any(at, from..end) {
            return false;
        }
        part.moved.set(at, from..end);
        self.left -= u64::from(block.all);
        let reason = if self.slow { reason(&area.pages[from]) } else { MoveReason::Cold };
        let start = Vpn(area.start.0 + from as u64);
        let pages = block.all;
        add(&mut part.moves, Move { pid: area.pid, start, pages, from: node, to, reason });
        true
    }

    fn enter(&mut self, snap: &Snapshot, area: usize) {
        match snap.areas.get(area) {
            Some(pages) if !self.slow => self.block_before(snap, area, pages.pages.len()),
            _ => self.block_from(snap, area, 0),
        }
    }

    /// The block that begins with, or holds, the page at `from`.
    fn block_from(&mut self, snap: &Snapshot, area: usize, from: usize) {
        self.asked = false;
        let end = snap.areas.get(area).map_or(0, |a| end_of_block(a, from));
        (self.at, self.stretch) = ((area, from), (from, end));
    }

    /// The block that ends before the page at `end`.
    fn block_before(&mut self, snap: &Snapshot, area: usize, end: usize) {
        self.asked = false;
        let start = snap.areas.get(area).map_or(0, |a| a.start.0);
        let last = (start + end as u64).saturating_sub(1);
        let first = (last / BLOCK * BLOCK).saturating_sub(start) as usize;
        (self.at, self.stretch) = ((area, first), (first.min(end), end));
    }

    fn chooses(&self, rated: RatedUnit, pages: u64) -> bool {
        if rated.slow != self.slow || self.left < pages {
            return false;
        }
        let beyond = if self.slow { rated.bucket > self.edge } else { rated.bucket < self.edge };
        beyond || rated.bucket == self.edge && self.rest >= pages
    }
}

fn reason(stat: &PageStat) -> MoveReason {
    let (reads, writes) = (stat.reads.rate(), stat.writes.rate());
    if writes > reads {
        MoveReason::WriteIntensive
    } else if reads > 2 * writes {
        MoveReason::ReadIntensive
    } else {
        MoveReason::Hot
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::tier;
    use super::super::{go_on, step, State};
    use super::*;
    use std::collections::BTreeSet;
    use terrace_types::{
        Area, Bytes, Heat, Nanos, PageFlags, PageStat, Pid, Seed, Snapshot, Tick,
        TrackerVisibility, Vpn,
    };

    const FAST: u64 = 8_000;
    const PAGES: u64 = 24_000;

    #[test]
    fn ranges_of_a_bitmap_end_where_they_should() {
        let area = |pages: usize| Area {
            pid: Pid(1),
            start: Vpn(0),
            pages: vec![PageStat::default(); pages],
        };
        let snap = Snapshot { areas: vec![area(70), area(200)], ..Snapshot::default() };
        for range in [0..1, 57..58, 58..122, 57..123, 0..200, 60..60] {
            let mut bitmap = PageBitmap::new(&snap);
            bitmap.set(1, range.clone());
            for page in 0..200 {
                assert_eq!(bitmap.has_any(1, page..page + 1), range.contains(&page), "{range:?}");
            }
            assert!(!bitmap.has_any(0, 0..70), "{range:?}: another area's");
            assert_eq!(bitmap.has_any(1, 0..200), !range.is_empty());
        }
    }

    /// Every fourth page is hot; the first third of all is on the fast tier, which is full.
    fn scattered() -> Snapshot {
        let page = |i: u64| PageStat {
            reads: Heat::from_rate(if i % 4 == 0 { 20_000 } else { 10 }),
            node: u8::from(i >= FAST),
            flags: PageFlags::PRESENT.with(PageFlags::KNOWN),
            ..PageStat::default()
        };
        Snapshot {
            interval: Nanos::millis(100),
            page_size: Bytes(4096),
            tiers: vec![tier(0, FAST, FAST / 200), tier(1, 100_000, 50_000)],
            areas: vec![
                Area { pid: Pid(1), start: Vpn(0x1000), pages: (0..10_000).map(page).collect() },
                Area {
                    pid: Pid(2),
                    start: Vpn(0x1000),
                    pages: (10_000..PAGES).map(page).collect(),
                },
            ],
            sees: TrackerVisibility { reads: true, pages: true, ..TrackerVisibility::default() },
            ..Snapshot::default()
        }
    }

    /// What a page of this move adds to what is free on the fast tier.
    fn sign(m: &Move) -> i64 {
        i64::from(m.from.0 == 0) - i64::from(m.to.0 == 0)
    }

    /// Makes the moves in the snapshot; the most pages that were on the fast node at any time.
    fn make(snap: &mut Snapshot, moves: &[Move]) -> u64 {
        let mut most = 0;
        for m in moves {
            let area = snap.areas.iter_mut().find(|a| a.pid == m.pid).unwrap();
            for vpn in m.start.0..m.range().end.0 {
                let page = &mut area.pages[(vpn - area.start.0) as usize];
                assert_eq!(page.node(), m.from);
                page.node = m.to.0 as u8;
            }
            let fast = snap.areas.iter().flat_map(|a| &a.pages).filter(|p| p.node == 0).count();
            most = most.max(fast as u64);
        }
        most
    }

    #[test]
    fn an_exchange_in_parts_is_whole_and_each_part_small() {
        let machine = terrace_machine::preset("lab-cxl").unwrap();
        let (params, mut state, mut snap) =
            (Params::for_machine(&machine), State::default(), scattered());
        let now = Tick(1_000_000_000);
        let plan = step(&params, &mut state, &snap, now, Seed(1));
        assert_eq!(plan.decisions[0].name, "exchange");
        assert!(
            plan.decisions[0].why.starts_with("4000 pages up, 4000 down"),
            "{}",
            plan.decisions[0].why
        );
        let (mut parts, mut seen, mut moves) = (0, BTreeSet::new(), plan.moves);
        while !moves.is_empty() {
            assert!(
                moves.len() as u64 <= PAGES / params.tuning.pages_a_run,
                "{} runs",
                moves.len()
            );
            assert!(make(&mut snap, &moves) <= FAST);
            for m in &moves {
                assert!(
                    (m.start.0..m.range().end.0).all(|vpn| seen.insert((m.pid, vpn))),
                    "moved twice: {m:?}"
                );
            }
            parts += 1;
            moves = go_on(&params, &mut state, &snap, now).moves;
        }
        assert!(parts >= 4, "{parts} parts");
        let hot = |p: &&PageStat| p.reads.rate() > 100;
        let left =
            snap.areas.iter().flat_map(|a| &a.pages).filter(hot).filter(|p| p.node != 0).count();
        assert_eq!((left, seen.len()), (0, 8_000));
        assert!(go_on(&params, &mut state, &snap, now).moves.is_empty());
    }

    #[test]
    fn what_the_reserve_lacks_goes_down_first() {
        let machine = terrace_machine::preset("lab-cxl").unwrap();
        let (params, mut state, mut snap) =
            (Params::for_machine(&machine), State::default(), scattered());
        snap.tiers[0] = tier(0, FAST, 3);
        let now = Tick(1_000_000_000);
        let plan = step(&params, &mut state, &snap, now, Seed(1));
        assert!(
            plan.decisions[0].why.starts_with("4000 pages up, 4037 down"),
            "{}",
            plan.decisions[0].why
        );
        let (mut moves, mut free) = (plan.moves, 3);
        while !moves.is_empty() {
            for m in &moves {
                free += i64::from(m.pages) * sign(m);
                assert!(free >= if sign(m) < 0 { FAST as i64 / 200 } else { 0 }, "{free}: {m:?}");
            }
            make(&mut snap, &moves);
            moves = go_on(&params, &mut state, &snap, now).moves;
        }
        assert_eq!(free, FAST as i64 / 200);
    }

    #[test]
    fn victims_worth_much_the_same_lie_together() {
        let machine = terrace_machine::preset("lab-cxl").unwrap();
        let (params, mut state, mut snap) =
            (Params::for_machine(&machine), State::default(), scattered());
        // On the fast tier nothing is hot, and every other page is a little warmer; on the slow one
        // 1,000 pages are hot.
        for (at, page) in snap.areas.iter_mut().flat_map(|a| &mut a.pages).enumerate() {
            let rate =
                if (20_000..21_000).contains(&at) { 20_000 } else { 100 + 100 * (at as u64 % 2) };
            page.reads = Heat::from_rate(rate);
        }
        let plan = step(&params, &mut state, &snap, Tick(1_000_000_000), Seed(1));
        let down: Vec<&Move> = plan.moves.iter().filter(|m| m.reason == MoveReason::Cold).collect();
        assert_eq!(down.iter().map(|m| m.pages).sum::<u32>(), 1_000);
        assert!(down.len() <= 3, "{} runs", down.len());
        assert!(
            down.iter().all(|m| m.start.0 >= 0x1000 + FAST - 1_536),
            "from the highest address down"
        );
    }

    #[test]
    fn few_cold_pages_among_hot_ones_stay() {
        let machine = terrace_machine::preset("lab-cxl").unwrap();
        let (params, mut state, mut snap) =
            (Params::for_machine(&machine), State::default(), scattered());
        // The upper half of the fast tier is hot, but for what chance made seem cold; 3,000 pages
        // of the slow one are hot.
        for (at, page) in snap.areas.iter_mut().flat_map(|a| &mut a.pages).enumerate() {
            let hot =
                (4_000..8_000).contains(&at) && at % 30 != 0 || (20_000..23_000).contains(&at);
            page.reads = Heat::from_rate(if hot { 20_000 } else { 100 });
        }
        let plan = step(&params, &mut state, &snap, Tick(1_000_000_000), Seed(1));
        let (mut moves, mut down) = (plan.moves, 0);
        while !moves.is_empty() {
            for m in moves.iter().filter(|m| m.reason == MoveReason::Cold) {
                // Blocks are those of the address space: the one in which both meet is taken whole.
                assert!(m.start.0 < 0x1000 + 4_096, "{m:?}");
                down += m.pages;
            }
            make(&mut snap, &moves);
            moves = go_on(&params, &mut state, &snap, Tick(1_000_000_000)).moves;
        }
        assert_eq!(down, 3_000);
    }

    #[test]
    fn what_was_left_of_an_exchange_is_forgotten_at_the_next_step() {
        let machine = terrace_machine::preset("lab-cxl").unwrap();
        let (params, mut state, snap) =
            (Params::for_machine(&machine), State::default(), scattered());
        assert!(!step(&params, &mut state, &snap, Tick(1_000_000_000), Seed(1)).moves.is_empty());
        let one_tier = Snapshot { tiers: snap.tiers[..1].to_vec(), ..snap.clone() };
        step(&params, &mut state, &one_tier, Tick(2_000_000_000), Seed(1));
        assert!(go_on(&params, &mut state, &snap, Tick(2_000_000_000)).moves.is_empty());
    }
}
