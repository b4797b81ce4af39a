//! Pages of the best tier that are newer than demotions which made room for them.

use super::bit_blocks::{blocks_in, BlockId};
use super::hotness::value_of;
use crate::place::worth::AccessWorth;
use std::collections::BTreeMap;
use terrace_types::{Area, PageFlags, PageStat, Pid, Snapshot, Vpn, VpnRange};

/// Tells newer pages from older ones while demoted pages have left places on the best tier.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct NewerPages {
    /// Pages known to be there when such demotions were first planned, by block, a bit each;
    /// `None`: none were planned.
    older: Option<BTreeMap<BlockId, u64>>,
    /// Places that lacked newer pages once: others have them, or had them then.
    taken: u64,
}

/// Newer pages of one block on the best tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct NewerBlock {
    pub id: BlockId,
    /// A bit each.
    pub pages: u64,
    /// What they save there, nanoseconds a second.
    pub value: f64,
}

impl NewerBlock {
    pub fn count(&self) -> u64 {
        u64::from(self.pages.count_ones())
    }

    /// Leaves so many pages at most.
    fn truncate(&mut self, most: u64) {
        let all = self.count();
        while self.count() > most {
            self.pages &= self.pages - 1;
        }
        self.value *= self.count() as f64 / all.max(1) as f64;
    }
}

impl NewerPages {
    /// Pages that are not among these are newer from now on.
    pub fn begin(&mut self, areas: &[Area]) {
        let mut older: BTreeMap<BlockId, u64> = BTreeMap::new();
        for_each_block(
            areas,
            |page| page.flags.has(PageFlags::PRESENT),
            |id, bits, _| {
                *older.entry(id).or_default() |= bits;
            },
        );
        (self.older, self.taken) = (Some(older), 0);
    }

    pub fn end(&mut self) {
        *self = Self::default();
    }

    /// Whether newer pages are told from older ones.
    pub fn is_open(&self) -> bool {
        self.older.is_some()
    }

    /// The older pages of a block.
    pub fn older(&self, id: BlockId) -> u64 {
        self.older.as_ref().and_then(|older| older.get(&id)).copied().unwrap_or(0)
    }

    /// Newer pages on the best tier, as many as fill so many places, less those that others took:
    /// the coldest blocks of them. Pages of a block are rated together, because single ones may
    /// seem cold by chance. `promoted`: pages of a block that moves brought there.
    pub fn coldest(
        &mut self,
        snap: &Snapshot,
        places: u64,
        worth: &AccessWorth,
        promoted: impl Fn(BlockId) -> u64,
    ) -> Vec<NewerBlock> {
        let mut left = places.saturating_sub(self.taken);
        if left == 0 || !self.is_open() {
            return Vec::new();
        }
        let there = |page: &PageStat| page.movable() && snap.rank_of(page.node()) == Some(0);
        let mut blocks: Vec<NewerBlock> = Vec::new();
        let mut last = ((Pid(0), u64::MAX), 0);
        for_each_block(&snap.areas, there, |id, bits, page| {
            if last.0 != id {
                last = (id, !self.older(id) & !promoted(id));
            }
            let pages = bits & last.1;
            if pages == 0 {
                return;
            }
            let value = value_of(page, worth) * f64::from(pages.count_ones());
            match blocks.last_mut().filter(|block| block.id == id) {
                Some(block) => {
                    (block.pages, block.value) = (block.pages | pages, block.value + value);
                }
                None => blocks.push(NewerBlock { id, pages, value }),
            }
        });
        let found: u64 = blocks.iter().map(NewerBlock::count).sum();
        self.taken += left.saturating_sub(found);
        let mean = |block: &NewerBlock| block.value / block.count().max(1) as f64;
        blocks.sort_by(|a, b| mean(a).total_cmp(&mean(b)));
        blocks.retain_mut(|block| {
            block.truncate(left);
            left -= block.count();
            block.pages != 0
        });
        blocks
    }
}

/// The blocks of those pages, in order, with the bits of pages that are alike.
fn for_each_block(
    areas: &[Area],
    wanted: impl Fn(&PageStat) -> bool,
    mut each: impl FnMut(BlockId, u64, &PageStat),
) {
    for area in areas {
        let mut at = area.start.0;
        for (page, count) in PageStat::runs(&area.pages) {
            let run = VpnRange::new(Vpn(at), Vpn(at + count));
            at += count;
            if wanted(page) {
                blocks_in(run).for_each(|(block, bits)| each((area.pid, block), bits, page));
            }
        }
    }
}
