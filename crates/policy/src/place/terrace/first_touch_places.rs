//! Where first touch would have put pages that came after demotions made room for them.
//!
//! First touch puts pages on the best tier until that is full, and later ones there only where
//! others were freed. So the pages that were there before it would have been full are where it put
//! them. Later ones would be on the next tier, all but as many as were freed.

use super::bit_blocks::{blocks_in, BlockId, BLOCK};
use super::hotness::value_of;
use crate::place::runs::page_size;
use crate::place::worth::AccessWorth;
use std::collections::BTreeMap;
use terrace_types::{Area, PageFlags, PageStat, Snapshot, Vpn, VpnRange};

/// What is known of it, from when pages were first to be demoted for newer ones.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct FirstTouchPlaces {
    /// Pages that first touch would have on the best tier, by process and address, a bit each. Of
    /// others on that tier it is not known; others on the next are there under first touch too.
    /// `None`: nothing is known.
    best: Option<BTreeMap<BlockId, u64>>,
    fill: Fill,
    /// Pages that first touch may have on the best tier besides, at most, as of the last
    /// [`Self::update`].
    room: u64,
}

/// How full the best tier would be under first touch, in base pages.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fill {
    /// Not yet: so many more would have had room there when pages were last noted.
    Room(u64),
    /// It was filled, between two times that pages were noted.
    Full {
        /// So many more than fitted there are taken to be there; negative: so many there are others
        /// than those.
        excess: i64,
        /// The most that it had for this target since. What others took of that would be on the
        /// next tier.
        most: i64,
    },
}

impl Default for Fill {
    fn default() -> Self {
        Self::Room(0)
    }
}

/// Pages of a block that moves took up or down, and that are there still, a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct MovedPages {
    pub up: u64,
    pub down: u64,
}

/// Pages of a block where they are, a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct LocatedBlock {
    pub id: BlockId,
    pub on_best: u64,
    pub on_next: u64,
    /// Those that first touch would have on the best tier.
    pub best: u64,
    /// Of those that it is not known of, the ones taken to be on the next tier under first touch.
    pub chosen: u64,
    /// Those that it is not known of.
    unknown: u64,
    /// What they are worth, nanoseconds a second.
    value: f64,
}

impl LocatedBlock {
    /// What the chosen pages are worth in the mean, nanoseconds a second.
    pub fn value_of_chosen(&self) -> f64 {
        self.value * f64::from(self.chosen.count_ones())
            / f64::from(self.unknown.count_ones().max(1))
    }
}

/// All pages where they are.
#[derive(Debug, Default)]
struct Located {
    blocks: Vec<LocatedBlock>,
    unknown: i64,
    /// Pages on the best tier and unused ones there.
    has: i64,
    /// Of these, unused ones under first touch, had the unknown pages not come.
    room: i64,
}

impl FirstTouchPlaces {
    /// Whether anything is known.
    pub fn is_open(&self) -> bool {
        self.best.is_some()
    }

    /// Base pages that first touch would still have had room for on the best tier when pages were
    /// last noted; `None` once it would be full.
    pub fn room(&self) -> Option<u64> {
        match self.fill {
            Fill::Room(room) if self.is_open() => Some(room),
            _ => None,
        }
    }

    /// Pages that first touch may have on the best tier, at most, of those that came since the last
    /// [`Self::update`]: there was room, or pages are not mapped any more. `None`: it would not be
    /// full yet.
    pub fn room_for_newer(&self, areas: &[Area]) -> Option<u64> {
        let Fill::Full { .. } = self.fill else { return None };
        let mapped = |(pid, block): BlockId| {
            let range = VpnRange::new(Vpn(block * BLOCK), Vpn((block + 1) * BLOCK));
            let before = |area: &Area| (area.pid, area.range().end) <= (pid, range.start);
            let of = areas[areas.partition_point(before)..].iter();
            let of = of.take_while(move |area| area.pid == pid);
            let of = of.map_while(move |area| area.range().intersect(range));
            of.flat_map(blocks_in).fold(0, |bits, (_, part)| bits | part)
        };
        let freed = |(id, best): (&BlockId, &u64)| u64::from((best & !mapped(*id)).count_ones());
        Some(self.room + self.best.iter().flatten().map(freed).sum::<u64>())
    }

    pub fn close(&mut self) {
        *self = Self::default();
    }

    /// The pages of a block that first touch would have on the best tier.
    pub fn best(&self, id: BlockId) -> u64 {
        self.best.as_ref().and_then(|best| best.get(&id)).copied().unwrap_or_default()
    }

    /// Notes the pages that are there, if first touch would have had room for them on the best tier
    /// until now; `came` of them since that was last done.
    pub fn note(&mut self, snap: &Snapshot, came: u64, moved: impl Fn(BlockId) -> MovedPages) {
        let mut located = self.locate(snap, None, moved);
        let more = match self.fill {
            Fill::Full { .. } => return,
            Fill::Room(_) if self.is_open() => located.unknown.max(came.min(1 << 62) as i64),
            // All of them are, and some places unused.
            Fill::Room(_) => located.unknown.min(located.room - 1),
        };
        self.fill(&mut located, more);
        self.keep(&located.blocks);
    }

    /// Finds all pages where they are, and where first touch would have them. Where it is not known
    /// of which of several, because pages were freed since, the hottest are taken to be on the best
    /// tier, anew each time. Pages of a block are rated together, because single ones may seem cold
    /// by chance.
    pub fn update(
        &mut self,
        snap: &Snapshot,
        worth: &AccessWorth,
        moved: impl Fn(BlockId) -> MovedPages,
    ) -> Vec<LocatedBlock> {
        let mut located = self.locate(snap, Some(worth), moved);
        let unknown = located.unknown;
        match &mut self.fill {
            Fill::Room(_) => self.fill(&mut located, unknown),
            Fill::Full { most, .. } => {
                *most = located.has;
                let room = located.room.max(0);
                if unknown <= room {
                    located.all_on_best();
                } else {
                    choose_coldest(&mut located.blocks, (unknown - room) as u64);
                }
                self.room = if unknown <= room { room - unknown } else { room } as u64;
            }
        }
        self.keep(&located.blocks);
        located.blocks
    }

    /// Takes the unknown pages to be on the best tier, `more` or fewer than so many that came while
    /// it was filled. Which of them do not fit there is not known.
    fn fill(&mut self, located: &mut Located, more: i64) {
        located.all_on_best();
        let left = located.room - more;
        self.fill = match u64::try_from(left) {
            Ok(left @ 1..) => Fill::Room(left),
            _ => Fill::Full { excess: located.unknown - located.room, most: located.has },
        };
    }

    fn keep(&mut self, located: &[LocatedBlock]) {
        let best = located.iter().filter(|block| block.best != 0);
        self.best = Some(best.map(|block| (block.id, block.best)).collect());
    }

    fn locate(
        &self,
        snap: &Snapshot,
        worth: Option<&AccessWorth>,
        moved: impl Fn(BlockId) -> MovedPages,
    ) -> Located {
        let mut blocks: Vec<LocatedBlock> = Vec::new();
        let (mut best, mut of) = (0, MovedPages::default());
        for_each_block(&snap.areas, |id, bits, page| {
            if blocks.last().is_none_or(|block| block.id != id) {
                (best, of) = (self.best(id), moved(id));
                blocks.push(LocatedBlock { id, ..LocatedBlock::default() });
            }
            let Some(block) = blocks.last_mut() else { return };
            let rank = snap.rank_of(page.node());
            let on_best = if rank == Some(0) { bits } else { 0 };
            let on_next = if rank > Some(0) { bits } else { 0 };
            // Until the tier would be full, demoted pages would be there as well.
            let down = if matches!(self.fill, Fill::Room(_)) { of.down } else { 0 };
            let here = if page.movable() { on_best & !of.up | on_next & down } else { 0 };
            let unknown = here & !best;
            (block.on_best, block.on_next) = (block.on_best | on_best, block.on_next | on_next);
            block.best |= best & bits;
            block.unknown |= unknown;
            block.value +=
                worth.map_or(0.0, |worth| value_of(page, worth)) * f64::from(unknown.count_ones());
        });
        let sum = |of: fn(&LocatedBlock) -> u64| -> i64 {
            blocks.iter().map(|block| i64::from(of(block).count_ones())).sum()
        };
        let unused = snap.tiers.first().map_or(0, |tier| tier.unused.pages(page_size(snap)));
        let (here, best) = (sum(|block| block.on_best), sum(|block| block.best));
        let unknown = sum(|block| block.unknown);
        let mut has = unused as i64 + here;
        let mut taken = best;
        if let Fill::Full { excess, most } = self.fill {
            has = has.max(most);
            taken -= excess.min(best);
        }
        Located { blocks, unknown, has, room: has - taken }
    }
}

impl Located {
    fn all_on_best(&mut self) {
        self.blocks.iter_mut().for_each(|block| block.best |= block.unknown);
    }
}

/// Chooses so many of the unknown pages, those of the coldest blocks.
fn choose_coldest(blocks: &mut [LocatedBlock], pages: u64) {
    let mut order: Vec<usize> = (0..blocks.len()).filter(|at| blocks[*at].unknown != 0).collect();
    let mean = |block: &LocatedBlock| block.value / f64::from(block.unknown.count_ones());
    order.sort_by(|a, b| mean(&blocks[*a]).total_cmp(&mean(&blocks[*b])));
    let mut left = pages;
    for at in order {
        let block = &mut blocks[at];
        block.chosen = block.unknown;
        while u64::from(block.chosen.count_ones()) > left {
            block.chosen &= block.chosen - 1;
        }
        left -= u64::from(block.chosen.count_ones());
        if left == 0 {
            break;
        }
    }
}

/// The blocks of pages that are there, in order, with the bits of pages that are alike.
fn for_each_block(areas: &[Area], mut each: impl FnMut(BlockId, u64, &PageStat)) {
    for area in areas {
        let mut at = area.start.0;
        for (page, count) in PageStat::runs(&area.pages) {
            let run = VpnRange::new(Vpn(at), Vpn(at + count));
            at += count;
            if page.flags.has(PageFlags::PRESENT) {
                blocks_in(run).for_each(|(block, bits)| each((area.pid, block), bits, page));
            }
        }
    }
}
