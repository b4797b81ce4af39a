//! The histogram of page values on both sides of one boundary between tiers, and the cut through
//! it.

use super::blocks::{stretches, BlockMap, BlockSummary, BucketRange, SideSummary, SideSums};
use super::bucket_walk::BucketWalk;
use super::params::Params;
use super::recent::RecentMoves;
use super::shrink::ValueShrinkage;
use super::tuning::TerraceTuning;
use crate::place::runs::{units, MoveUnit};
use crate::place::worth::AccessWorth;
use terrace_types::{buckets, Area, PageFlags, PageStat, Snapshot, Tick, Vpn};

/// Nanoseconds a second that a page saves on the better tier.
pub(super) fn value_of(page: &PageStat, worth: &AccessWorth) -> f64 {
    f64::from(value(page, worth.read_ns as f32, worth.write_ns as f32))
}

fn value(page: &PageStat, read_ns: f32, write_ns: f32) -> f32 {
    page.reads.per_second() * read_ns + page.writes.per_second() * write_ns
}

/// Whether it is part of a huge page.
fn is_huge(page: &PageStat) -> bool {
    page.flags.has(PageFlags::HUGE_HEAD) || page.flags.has(PageFlags::HUGE_TAIL)
}

/// The value a bucket begins with.
fn floor_of(bucket: usize) -> f64 {
    f64::from(buckets::floor(bucket))
}

/// Which side of the boundary a unit is on, and how it is rated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RatedUnit {
    /// On the worse side.
    pub slow: bool,
    pub bucket: usize,
    /// As sampled, nanoseconds a second.
    pub value: f32,
}

/// How units are rated: worth of an access, chance taken out, and damping of those that moved
/// lately.
pub(super) struct UnitRater<'a> {
    pub params: &'a Params,
    recent: &'a RecentMoves,
    scale: Box<RatingScale>,
}

/// How pages are rated, as learned from a hotness histogram; outlives it where a plan is made in
/// parts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RatingScale {
    read_ns: f32,
    write_ns: f32,
    sides: [Side; 256],
    /// Whether anything had moved lately then. Moves of a part do not count for the next, lest
    /// pages that share a place with them in the table stay behind.
    damped: bool,
    /// Expected bucket for each bucket of estimates up to the highest in the histogram, by
    /// class of page ([`class`]): as it is, and for pages that moved lately (empty where none did).
    expected: Vec<Vec<u16>>,
    lately: Vec<Vec<u16>>,
    /// What each block holds.
    pub blocks: BlockMap,
}

/// How many kinds of pages are distinguished by the share of writes in their accesses.
const KINDS: usize = 4;
/// Classes of pages rated one by one; as many more are of those rated by the mean of their block.
const CLASSES: usize = 2 * KINDS;

/// The side of a class: worse or not.
const fn side_of_class(class: usize) -> usize {
    class / KINDS % 2
}

/// Pages alike are drawn together class by class. The sides are distinguished because where a page
/// is says something of it: it was put there for its heat, or was there before. Kinds are
/// distinguished because what is a write and what a read is seen in another way than how often:
/// that a page is written is no chance of how often it was found touched.
fn class(slow: bool, reads: f32, writes: f32) -> usize {
    let all = reads + writes;
    let kind = if all > 0.0 { ((writes / all) * KINDS as f32) as usize } else { 0 };
    usize::from(slow) * KINDS + kind.min(KINDS - 1)
}

/// The expected bucket. An estimate above all that were counted of its class, or of a class of
/// which none was, is taken as it is: the page came to that class by a move since, or it is a huge
/// page's tail, which is counted with its head.
fn expected(table: &[u16], seen: usize) -> usize {
    table.get(seen).map_or(seen, |bucket| usize::from(*bucket))
}

/// Where a node is, seen from the boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Neither,
    Fast,
    Slow,
}

/// What one pass over all pages shows, before chance is taken out.
struct RawHistogram {
    counts: Vec<Vec<u32>>,
    slow_value: f64,
    fast_value: f64,
    /// By kind.
    values: [f64; KINDS],
    rates: [f64; KINDS],
    known: u64,
    blocks: BlockMap,
    /// Of how many blocks each class has pages that are rated by their mean.
    alike: [u32; CLASSES],
    /// Ranges of values as sampled, by class, of each block.
    ranges: Vec<[BucketRange; 2 * CLASSES]>,
}

impl<'a> UnitRater<'a> {
    /// For the boundary between tier `rank` and the next, with the histogram it was made from.
    pub fn new(
        params: &'a Params,
        recent: &'a RecentMoves,
        worth: AccessWorth,
        snap: &Snapshot,
        rank: usize,
        now: Tick,
    ) -> (Self, HotnessHistogram) {
        let mut sides = [Side::Neither; 256];
        for (rank, side) in [(rank, Side::Fast), (rank + 1, Side::Slow)] {
            for node in snap.tiers.get(rank).map_or(&[][..], |t| &t.nodes) {
                sides[usize::from(node.0 as u8)] = side;
            }
        }
        let (read_ns, write_ns) = (worth.read_ns as f32, worth.write_ns as f32);
        let damped = recent.any(params.damp, now);
        let scale = Box::new(RatingScale {
            read_ns,
            write_ns,
            sides,
            damped,
            expected: Vec::new(),
            lately: Vec::new(),
            blocks: BlockMap::default(),
        });
        let mut rater = Self { params, recent, scale };
        let evidence = snap.interval.as_secs_f64();
        let touch = snap.sees.pages.then(|| worth.unit() / evidence.max(1e-9));
        let mut raw = rater.sample(snap, touch);
        let (values, rates) = (raw.values.iter().sum::<f64>(), raw.rates.iter().sum::<f64>());
        let unit = if rates > 0.0 { values / rates } else { worth.unit() };
        let noise =
            if snap.sees.pages { 1.0 } else { rater.noise(snap, evidence / unit.max(1e-9)) };
        // Chance is shared by all pages that one sample stands for, which makes them resemble a
        // group.
        let tuning = &params.tuning;
        let shared = if snap.sees.pages { 1.0 } else { tuning.shared_chance };
        let doubt = shared * params.doubt;
        // A page that moved lately must beat the margin once more, in either direction.
        let lately = [params.again, 1.0 / params.again];
        for (class, counts) in raw.counts.iter().enumerate() {
            let Some(top) = counts.iter().rposition(|n| *n > 0) else {
                rater.scale.expected.push(Vec::new());
                rater.scale.lately.push(Vec::new());
                continue;
            };
            let (again, kind) = (lately[side_of_class(class)], class % KINDS);
            // What is known of pages alike was seen of all of their block.
            let pooled = class.checked_sub(CLASSES).map_or(1.0, |class| {
                let pages: u64 = counts.iter().map(|n| u64::from(*n)).sum();
                pages as f64 / f64::from(raw.alike[class].max(1))
            });
            let unit =
                if raw.rates[kind] > 0.0 { raw.values[kind] / raw.rates[kind] } else { unit };
            let seen = counts.iter().enumerate().filter(|(_, n)| **n > 0);
            let seen = seen.map(|(b, n)| (buckets::middle(b), u64::from(*n)));
            let shrink =
                ValueShrinkage::new(tuning, seen, unit, pooled * evidence / (noise * noise), doubt);
            let table = |factor: f64| {
                let expected = |b| {
                    buckets::bucket_of((shrink.value(buckets::middle(b)) * factor) as f32) as u16
                };
                (0..=top).map(expected).collect()
            };
            rater.scale.expected.push(table(1.0));
            rater.scale.lately.push(if damped { table(again) } else { Vec::new() });
        }
        rater.scale.blocks = rater.expected_ranges(&mut raw);
        let hotness = rater.hotness(snap, &raw);
        (rater, hotness)
    }

    /// With the scale of an earlier histogram, from which a plan is made in parts.
    pub fn with_scale(
        params: &'a Params,
        recent: &'a RecentMoves,
        scale: Box<RatingScale>,
    ) -> Self {
        Self { params, recent, scale }
    }

    /// The block that holds the page at `at` of an area.
    pub fn block(&self, snap: &Snapshot, area: usize, at: usize) -> Option<&BlockSummary> {
        self.scale.blocks.at(snap, area, at)
    }

    /// Whether pages that moved lately were sampled once more.
    pub fn is_damped(&self) -> bool {
        self.scale.damped
    }

    /// What it was taught.
    pub fn into_scale(self) -> Box<RatingScale> {
        self.scale
    }

    fn sample(&self, snap: &Snapshot, touch: Option<f64>) -> RawHistogram {
        let counts = vec![vec![0u32; buckets::COUNT]; 2 * CLASSES];
        let mut raw = RawHistogram {
            counts,
            slow_value: 0.0,
            fast_value: 0.0,
            values: [0.0; KINDS],
            rates: [0.0; KINDS],
            known: 0,
            blocks: BlockMap::new(snap),
            alike: [0; CLASSES],
            ranges: Vec::new(),
        };
        for area in &snap.areas {
            let mut heads = 0;
            for (from, to) in stretches(area) {
                heads += self.sum_block(&mut raw, &area.pages[from..to], touch);
            }
            if heads > 0 {
                units(area).filter(|u| u.pages > 1).for_each(|u| {
                    self.count(&mut raw, &u.stat, u.pages, 1);
                });
            }
        }
        raw
    }

    /// Counts a block's base pages and sums them up; gives the huge pages that begin in it.
    /// `touch`: what one touch of a page comes to, where pages may be rated by their block's mean.
    fn sum_block(&self, raw: &mut RawHistogram, pages: &[PageStat], touch: Option<f64>) -> usize {
        let side = SideSummary { pages: 0, value: 0.0, alike: None, expected: BucketRange::NONE };
        let mut block = BlockSummary {
            all: pages.len() as u32,
            sides: [side; 2],
            node: pages.first().map(|page| page.node),
            huge: false,
        };
        let (mut sums, mut heads) = ([SideSums::default(); 2], 0);
        for (page, count) in PageStat::runs(pages) {
            heads += usize::from(page.flags.has(PageFlags::HUGE_HEAD));
            if is_huge(page) {
                block.huge = true;
                continue;
            }
            let Some(slow) = self.side_of(page) else { continue };
            let (reads, writes) = (page.reads.per_second(), page.writes.per_second());
            let value = reads * self.scale.read_ns + writes * self.scale.write_ns;
            let (sum, n) = (&mut sums[usize::from(slow)], count as f32);
            (sum.pages, sum.value) = (sum.pages + count as u32, sum.value + value * n);
            sum.squares += value * value * n;
            (sum.reads, sum.writes) = (sum.reads + reads * n, sum.writes + writes * n);
            block.node = block.node.filter(|node| *node == page.node);
        }
        let mut ranges = [BucketRange::NONE; 2 * CLASSES];
        for (slow, (sum, side)) in sums.iter().zip(&mut block.sides).enumerate() {
            (side.pages, side.value) = (sum.pages, sum.value);
            if touch.is_some_and(|touch| sum.is_alike(&self.params.tuning, touch)) {
                let class = class(slow == 1, sum.reads, sum.writes);
                side.alike = Some(class as u8);
                raw.alike[class] += 1;
                let bucket = buckets::bucket_of(side.value / side.pages as f32);
                ranges[CLASSES + class].include(bucket);
                let count = &mut raw.counts[CLASSES + class][bucket];
                *count = count.saturating_add(side.pages);
                *if slow == 1 { &mut raw.slow_value } else { &mut raw.fast_value } +=
                    f64::from(sum.value);
                raw.values[class % KINDS] += f64::from(sum.value);
                raw.rates[class % KINDS] += f64::from(sum.reads + sum.writes);
                raw.known += u64::from(sum.pages);
            }
        }
        let rest = |(page, _): &(&PageStat, u64)| {
            let side = self.side_of(page).map(usize::from);
            !is_huge(page) && side.is_some_and(|side| block.sides[side].alike.is_none())
        };
        if block.sides.iter().any(|side| side.pages > 0 && side.alike.is_none()) {
            for (page, count) in PageStat::runs(pages).filter(rest) {
                if let Some((class, bucket)) = self.count(raw, page, 1, count) {
                    ranges[class].include(bucket);
                }
            }
        }
        raw.blocks.blocks.push(block);
        raw.ranges.push(ranges);
        heads
    }

    /// The blocks, with the ranges of expected values.
    fn expected_ranges(&self, raw: &mut RawHistogram) -> BlockMap {
        let mut blocks = std::mem::take(&mut raw.blocks);
        for (block, ranges) in blocks.blocks.iter_mut().zip(&raw.ranges) {
            for (class, range) in ranges.iter().enumerate().filter(|(_, range)| !range.is_none()) {
                let tables = [&self.scale.expected, &self.scale.lately];
                let tables = &tables[..1 + usize::from(self.scale.damped)];
                for (table, seen) in tables.iter().flat_map(|t| {
                    [range.lowest, range.highest].map(|seen| (&t[class], usize::from(seen)))
                }) {
                    block.sides[side_of_class(class)].expected.include(expected(table, seen));
                }
            }
        }
        blocks
    }

    /// Adds units that are alike, of so many base pages each, to the histogram; gives their class
    /// and bucket.
    fn count(
        &self,
        raw: &mut RawHistogram,
        page: &PageStat,
        pages: u32,
        units: u64,
    ) -> Option<(usize, usize)> {
        let slow = self.side_of(page)?;
        let (reads, writes) = (page.reads.per_second(), page.writes.per_second());
        let value = reads * self.scale.read_ns + writes * self.scale.write_ns;
        let (class, bucket) = (class(slow, reads, writes), buckets::bucket_of(value));
        let count = &mut raw.counts[class][bucket];
        *count = count.saturating_add(pages * units as u32);
        let n = units as f64;
        *if slow { &mut raw.slow_value } else { &mut raw.fast_value } +=
            f64::from(value) * f64::from(pages) * n;
        raw.values[class % KINDS] += f64::from(value) * n;
        raw.rates[class % KINDS] += f64::from(reads + writes) * n;
        raw.known += units;
        Some((class, bucket))
    }

    /// How widely estimates scatter by chance, as a share of what counting would make them: from
    /// the median difference of neighbours, most of which are alike. Never more than counting
    /// explains, and not much less, for samples that saturate hide chance.
    fn noise(&self, snap: &Snapshot, scale: f64) -> f64 {
        const PER_UNIT: f32 = 20.0;
        let tuning = &self.params.tuning;
        let mut differences = vec![0u32; 80];
        let all = snap.page_count() as usize;
        let stride = tuning.noise_block * (all / tuning.noise_pages).max(1);
        let blocks = snap
            .areas
            .iter()
            .flat_map(|a| (0..a.pages.len()).step_by(stride).map(move |at| (a, at)));
        for (area, at) in blocks {
            let mut last: Option<f32> = None;
            let end = (at + tuning.noise_block).min(area.pages.len());
            for page in &area.pages[at..end] {
                if is_huge(page) || self.side_of(page).is_none() {
                    continue;
                }
                let y = 2.0
                    * (value(page, self.scale.read_ns, self.scale.write_ns) * scale as f32).sqrt();
                if last == Some(y) {
                    continue;
                }
                if let Some(last) = last {
                    let bin = ((y - last).abs() * PER_UNIT) as usize;
                    differences[bin.min(79)] += 1;
                }
                last = Some(y);
            }
        }
        let all: u32 = differences.iter().sum();
        if (all as usize) < tuning.few_compared {
            return 1.0;
        }
        let mut below = 0;
        let median = differences.iter().position(|n| {
            below += n;
            below * 2 >= all
        });
        // The median of |N(0, 2)| is 0.954.
        let median = (median.unwrap_or(79) + 1) as f64 / f64::from(PER_UNIT);
        (median / 0.954).clamp(tuning.noise_least, 1.0)
    }

    fn value(&self, unit: &MoveUnit) -> f32 {
        value(&unit.stat, self.scale.read_ns, self.scale.write_ns)
    }

    fn class(&self, unit: &MoveUnit, slow: bool) -> usize {
        class(slow, unit.stat.reads.per_second(), unit.stat.writes.per_second())
    }

    fn side(&self, unit: &MoveUnit) -> Option<bool> {
        self.side_of(&unit.stat)
    }

    /// Whether it is on the worse side; `None`: it must not move, or nothing is known of it.
    fn side_of(&self, page: &PageStat) -> Option<bool> {
        const MUST: PageFlags = PageFlags::PRESENT.with(PageFlags::KNOWN);
        const CARE: PageFlags = MUST.with(PageFlags::PINNED);
        let side = self.scale.sides[usize::from(page.node)];
        (page.flags.0 & CARE.0 == MUST.0 && side != Side::Neither).then_some(side == Side::Slow)
    }

    /// Its side and its expected value, in this block.
    pub fn rate(
        &self,
        area: &Area,
        unit: &MoveUnit,
        block: Option<&BlockSummary>,
    ) -> Option<RatedUnit> {
        let slow = self.side(unit)?;
        let tables =
            if self.moved_lately(area, unit) { &self.scale.lately } else { &self.scale.expected };
        let (class, seen) = self.seen(unit, slow, block);
        Some(RatedUnit { slow, bucket: expected(&tables[class], seen), value: self.value(unit) })
    }

    /// The class of a unit, and the bucket of what was seen of it: of its block where pages are
    /// alike.
    fn seen(&self, unit: &MoveUnit, slow: bool, block: Option<&BlockSummary>) -> (usize, usize) {
        let side = block.filter(|_| unit.pages == 1).map(|block| &block.sides[usize::from(slow)]);
        match side.and_then(|side| side.alike.map(|class| (side, class))) {
            Some((side, class)) => (
                CLASSES + usize::from(class),
                buckets::bucket_of(side.value / side.pages.max(1) as f32),
            ),
            None => (self.class(unit, slow), buckets::bucket_of(self.value(unit))),
        }
    }

    fn moved_lately(&self, area: &Area, unit: &MoveUnit) -> bool {
        self.scale.damped && self.moved(area, unit.index)
    }

    fn moved(&self, area: &Area, index: usize) -> bool {
        let vpn = Vpn(area.start.0 + index as u64);
        self.recent.moved(area.pid, vpn)
    }

    /// All pages by expected value: chance is taken out of the counts, not of each page; only
    /// where something moved lately are pages sampled once more.
    fn hotness(&self, snap: &Snapshot, raw: &RawHistogram) -> HotnessHistogram {
        let [fast, slow] = [0, 1].map(|side| {
            let mut out = vec![0u32; buckets::COUNT];
            for class in (0..2 * CLASSES).filter(|class| side_of_class(*class) == side) {
                for (seen, n) in raw.counts[class].iter().enumerate().filter(|(_, n)| **n > 0) {
                    let count = &mut out[usize::from(self.scale.expected[class][seen])];
                    *count = count.saturating_add(*n);
                }
            }
            out
        });
        let pages: f64 = fast.iter().map(|n| f64::from(*n)).sum();
        let fast_mean = raw.fast_value / pages.max(1.0);
        let mut hotness = HotnessHistogram {
            fast,
            slow,
            slow_value: raw.slow_value,
            fast_mean,
            known: raw.known,
        };
        if self.scale.damped {
            for (at, area) in snap.areas.iter().enumerate() {
                let (mut from, mut heads) = (0, false);
                for (page, count) in PageStat::runs(&area.pages) {
                    let pages = from..from + count as usize;
                    from = pages.end;
                    heads |= page.flags.has(PageFlags::HUGE_HEAD);
                    if is_huge(page) || self.side_of(page).is_none() {
                        continue;
                    }
                    for index in pages.filter(|index| self.moved(area, *index)) {
                        let unit = MoveUnit { index, pages: 1, stat: *page };
                        self.damp(&mut hotness, area, &unit, self.scale.blocks.at(snap, at, index));
                    }
                }
                if heads {
                    units(area)
                        .filter(|u| u.pages > 1)
                        .for_each(|u| self.damp(&mut hotness, area, &u, None));
                }
            }
        }
        hotness
    }

    fn damp(
        &self,
        hotness: &mut HotnessHistogram,
        area: &Area,
        unit: &MoveUnit,
        block: Option<&BlockSummary>,
    ) {
        let Some(slow) = self.side(unit).filter(|_| self.moved_lately(area, unit)) else {
            return;
        };
        let (class, seen) = self.seen(unit, slow, block);
        let side = if slow { &mut hotness.slow } else { &mut hotness.fast };
        let [from, to] =
            [&self.scale.expected, &self.scale.lately].map(|tables| expected(&tables[class], seen));
        side[from] = side[from].saturating_sub(unit.pages);
        side[to] = side[to].saturating_add(unit.pages);
    }
}

/// Counts of base pages by value on both sides.
pub(super) struct HotnessHistogram {
    fast: Vec<u32>,
    slow: Vec<u32>,
    /// Value of all accesses that the worse side serves, nanoseconds a second.
    pub slow_value: f64,
    /// What a page of the better side is worth in the mean.
    fast_mean: f64,
    /// Units rated.
    pub known: u64,
}

/// Which pages change sides: those at or above `promote_from` go up (of that bucket itself only
/// `promote_rest`), those at or below `demote_to` go down (of it only `demote_rest`).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct ExchangeThreshold {
    pub promote: u64,
    pub demote: u64,
    pub promote_from: usize,
    pub promote_rest: u64,
    pub demote_to: usize,
    pub demote_rest: u64,
    /// What a page of the better side is worth in the mean, as sampled, nanoseconds a second.
    pub usual: f64,
    /// Predicted, nanoseconds a second.
    pub gain: f64,
    /// Once, nanoseconds.
    pub cost: f64,
}

impl ExchangeThreshold {
    /// Value from which a page counts as hot, nanoseconds a second.
    pub fn hot_from(&self) -> f64 {
        floor_of(self.promote_from)
    }
}

/// What a swap must pay.
#[derive(Debug, Clone, Copy)]
pub(super) struct SwapTerms {
    /// Base pages free on the better side.
    pub space: u64,
    /// Those of them that were freed for pages that the target has not faulted in yet.
    pub headroom: u64,
    /// Seconds after which the target is expected to fault in such pages.
    pub next_growth: f64,
    /// Seconds that a gain is counted on for.
    pub horizon: f64,
    /// Seconds that heat is taken to stay where it is.
    pub lifetime: f64,
    /// What moving a base page costs, nanoseconds.
    pub page_cost: f64,
    /// What all moves may cost, nanoseconds.
    pub spendable: f64,
    /// Pages may change places; else they only fill space.
    pub pairs: bool,
    /// Base pages to promote at most.
    pub most: u64,
    /// Every page was sampled by itself: what regions tell is alike for all pages of one, and
    /// chance does not pick among them.
    pub by_page: bool,
    /// How many times its cost a pair must save ([`Params::repay`](super::Params)).
    pub repay: f64,
}

impl HotnessHistogram {
    /// What the hottest page of the worse side and the coldest of the better are expected to save,
    /// nanoseconds a second.
    pub fn extremes(&self) -> Option<(f64, f64)> {
        let (mut up, mut down) =
            (BucketWalk::hottest_first(&self.slow), BucketWalk::coldest_first(&self.fast));
        Some((floor_of(up.peek()?), floor_of(down.peek()? + 1)))
    }

    /// Pairs the most valuable pages of the worse side with space, then with the least valuable
    /// pages of the better side, while each pair pays and cannot be chance.
    pub fn cut(&self, rater: &UnitRater<'_>, terms: &SwapTerms) -> ExchangeThreshold {
        let mut cut = ExchangeThreshold::default();
        let (mut up, mut down) =
            (BucketWalk::hottest_first(&self.slow), BucketWalk::coldest_first(&self.fast));
        let page = terms.page_cost;
        let mut space = terms.space;
        while let Some(hot) = up.peek() {
            if cut.promote >= terms.most {
                break;
            }
            let most = terms.most - cut.promote;
            let victim = if space > 0 { None } else { down.peek() };
            let cold = match (space > 0, victim) {
                (true, _) => 0.0,
                (false, Some(bucket)) if terms.pairs => floor_of(bucket + 1),
                (false, _) => break,
            };
            let (hot_value, cost) = (floor_of(hot), if space > 0 { page } else { 2.0 * page });
            let gain = hot_value - cold;
            let beats = hot_value > cold * rater.params.margin && hot_value > 0.0;
            // What takes no place can only be lost once.
            let (needed, counted) = match space > 0 && terms.by_page {
                true if space > terms.headroom => (rater.params.margin * cost, terms.lifetime),
                true => (rater.params.margin * cost, terms.lifetime.min(terms.next_growth)),
                false => (terms.repay * cost, terms.horizon),
            };
            if !beats || gain * counted < needed {
                if space > 0 && space <= terms.headroom {
                    space = 0;
                    continue;
                }
                break;
            }
            let most = most.min(((terms.spendable - cut.cost) / cost) as u64);
            if most == 0 {
                break;
            }
            let n = if space > 0 {
                // Headroom is filled last, on terms of its own.
                let other = space.saturating_sub(terms.headroom);
                let n = up.take(if other > 0 { other } else { space }.min(most));
                space -= n;
                n
            } else {
                let n = up.left().min(down.left()).min(most);
                up.take(n);
                down.take(n);
                cut.demote += n;
                cut.demote_to = down.at;
                cut.demote_rest = down.used_here;
                n
            };
            cut.promote += n;
            cut.promote_from = up.at;
            cut.promote_rest = up.used_here;
            cut.gain += gain * n as f64;
            cut.cost += cost * n as f64;
        }
        if terms.by_page {
            self.widen(&mut cut, rater.params.margin, &rater.params.tuning);
        }
        cut.usual = self.fast_mean;
        cut
    }

    /// Lets more pages be victims than are needed, while any choice among them costs at most
    /// [`TerraceTuning::victims_alike`] of the gain and all of them are worth clearly less than
    /// what takes their places. [`super::migration_cursor`] then takes those that lie together:
    /// they were used together and will be again, while the very coldest of many alike are those
    /// that chance made seem so.
    fn widen(&self, cut: &mut ExchangeThreshold, margin: f64, tuning: &TerraceTuning) {
        if cut.demote == 0 {
            return;
        }
        let worth = |bucket: usize| floor_of(bucket + 1);
        let (mut pages, mut value) = (0.0, 0.0);
        let mut chosen = None;
        for (bucket, n) in self.fast.iter().enumerate().filter(|(_, n)| **n > 0) {
            let (least, needed) = (value, cut.demote as f64 - pages);
            pages += f64::from(*n);
            value += f64::from(*n) * worth(bucket);
            if bucket < cut.demote_to {
                continue;
            }
            // The least that the victims needed are worth, once the bucket is reached that holds
            // the last of them.
            let best = *chosen.get_or_insert(least + needed.max(0.0) * worth(bucket));
            let lost = cut.demote as f64 * value / pages - best;
            if bucket > cut.demote_to {
                let clearly_less = worth(bucket) * margin < cut.hot_from();
                if !clearly_less || lost > tuning.victims_alike * cut.gain {
                    break;
                }
                (cut.demote_to, cut.demote_rest) = (bucket, cut.demote);
            }
        }
    }
}
