//! How a block gets to fast memory and back: copied to a buffer, or with its pages, so that its
//! addresses stay.

use super::blocks::Block;
use super::copies::Part;
use super::copy::copy;
use super::touch::Touch;
use crate::bulk::Bulk;
use std::ops::Range;
use std::sync::Arc;
use terrace_sys::{page_size, query_pages, AnonymousMapping, MappingPages, PageStatus, SysError};
use terrace_types::{Bytes, NodeId, Pid, Tick, Vpn};

/// Where blocks are worked on.
#[derive(Debug)]
pub(super) enum FastBuffers {
    /// In buffers, each from a whole page on.
    Buffers {
        /// All of them.
        memory: Arc<AnonymousMapping>,
        /// From one to the next.
        stride: usize,
        /// What of it is touched.
        touch: Touch,
    },
    /// Where they are, on pages that are moved.
    Pages(HomeNodes),
}

impl FastBuffers {
    /// Buffers for `slots` blocks of up to `largest` bytes on `node`, for threads to touch
    /// ([`FastBuffers::ready`]).
    pub(super) fn buffers(node: NodeId, slots: usize, largest: usize) -> Result<Self, SysError> {
        // Slots begin at whole pages, so that elements of any alignment can be in them.
        let stride = largest.next_multiple_of(4096);
        let pages = if stride * slots >= 4 << 20 { MappingPages::Huge } else { MappingPages::Base };
        let memory = AnonymousMapping::new(Bytes((stride * slots) as u64), pages)?;
        memory.bind(node)?;
        let touch = Touch::new(memory.len());
        Ok(Self::Buffers { memory: Arc::new(memory), stride, touch })
    }

    /// Whether there is something to touch.
    pub(super) const fn to_touch(&self) -> bool {
        matches!(self, Self::Buffers { .. })
    }

    /// Takes part in touching the buffers, and waits for the others who do. When all was touched;
    /// `failed` hears what could not be before anybody goes on.
    pub(super) fn ready(&self, failed: impl Fn(SysError)) -> Option<Tick> {
        match self {
            Self::Buffers { memory, touch, .. } => {
                Some(touch.help(|part| memory.prefault(part), failed))
            }
            Self::Pages(_) => None,
        }
    }

    /// Whether a block of so many bytes can come. What can not is worked on where it lies.
    pub(super) const fn holds(&self, bytes: usize) -> bool {
        match self {
            Self::Buffers { stride, .. } => bytes <= *stride,
            Self::Pages(_) => true,
        }
    }

    /// Where a block is worked on that has `slot`, and the buffers it lies in.
    pub(super) fn at(
        &self,
        slot: usize,
        block: Block,
    ) -> (*mut u8, Option<&Arc<AnonymousMapping>>) {
        match self {
            Self::Buffers { .. } if !self.holds(block.bytes) => (block.data, None),
            Self::Buffers { memory, stride, .. } => {
                (memory.as_ptr().wrapping_add(slot * stride), Some(memory))
            }
            Self::Pages(_) => (block.data, None),
        }
    }

    /// Brings or returns a part. Bytes that are there now.
    ///
    /// # Safety
    /// `block` is memory that lives as long as the call. With buffers: one holds it, it is not
    /// written meanwhile, and if the part goes back, not read either; nobody else has the slot's
    /// part.
    pub(super) unsafe fn carry(&self, block: Block, part: &Part) -> usize {
        match self {
            Self::Buffers { .. } => {
                let data = block.data.wrapping_add(part.range.start);
                let buffer = self.at(part.slot, block).0.wrapping_add(part.range.start);
                let (from, to) = if part.back { (buffer, data) } else { (data, buffer) };
                // SAFETY: the part lies in its block, and the buffer is as long as the largest
                // block; the rest is the caller's promise.
                unsafe { copy(from.cast_const(), to, part.range.len()) };
                part.range.len()
            }
            // Pages are moved whatever is done with them: their contents and addresses stay.
            Self::Pages(homes) => homes.carry(block, &part.range, part.back),
        }
    }
}

/// Pages that are moved to the fast node and home again.
#[derive(Debug, Clone, Copy)]
pub(super) struct HomeNodes {
    bulk: Bulk,
    home: NodeId,
    fast: NodeId,
    page: usize,
}

impl HomeNodes {
    /// Between `home` and `fast`, by threads that are many already.
    pub(super) fn new(bulk: Bulk, home: NodeId, fast: NodeId) -> Self {
        Self { bulk: bulk.alone(), home, fast, page: page_size().get() as usize }
    }

    /// The node of the first whole page of these blocks that has memory.
    pub(super) fn of_blocks(blocks: impl Iterator<Item = Block>) -> Option<NodeId> {
        let page = page_size().get() as usize;
        let first = blocks.filter_map(|block| whole(block, &(0..block.bytes), page).next());
        first.take(64).find_map(|page| match query_pages(me(), &[Vpn(page)]).ok()?.first()? {
            PageStatus::On(node) => Some(*node),
            _ => None,
        })
    }

    fn carry(&self, block: Block, part: &Range<usize>, back: bool) -> usize {
        let to = if back { self.home } else { self.fast };
        let pages: Vec<Vpn> = whole(block, part, self.page).map(Vpn).collect();
        let call = self.bulk.move_pages(me(), &pages, to);
        let there = |status: &PageStatus| *status == PageStatus::On(to);
        // Of a huge page the first part moves all, and the others find it busy.
        let doubtful: Vec<Vpn> = pages
            .iter()
            .zip(&call.pages)
            .filter(|(_, status)| !there(status))
            .map(|(page, _)| *page)
            .collect();
        let after = if doubtful.is_empty() {
            Vec::new()
        } else {
            query_pages(me(), &doubtful).unwrap_or_default()
        };
        let moved =
            pages.len() - doubtful.len() + after.iter().filter(|status| there(status)).count();
        moved * self.page
    }

    /// All of a block.
    pub(super) fn bring_home(&self, block: Block) {
        // What cannot go home stays: the report says only that the run failed.
        let _best_effort = self.carry(block, &(0..block.bytes), true);
    }
}

fn me() -> Pid {
    Pid(std::process::id() as i32)
}

/// Numbers of the pages that begin in this part of a block and lie in the block as a whole. What it
/// shares with others stays where it is.
fn whole(block: Block, part: &Range<usize>, page: usize) -> Range<u64> {
    let start = block.data as usize;
    let most = (start + block.bytes) / page;
    let end = (start + part.end).div_ceil(page).min(most);
    let first = (start + part.start).div_ceil(page).min(end);
    first as u64..end as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_each_whole_page_of_a_block_once_and_no_other() {
        let page = 4096;
        for (start, bytes) in [
            (0, 8 * page),
            (100, 8 * page),
            (4095, page),
            (page, 0),
            (7, page - 7),
            (5 * page - 1, 3 * page + 2),
        ] {
            let block = Block { data: start as *mut u8, bytes };
            let wanted: Vec<u64> = whole(block, &(0..bytes), page).collect();
            let inside =
                |p: &u64| *p as usize * page >= start && (*p as usize + 1) * page <= start + bytes;
            let all: Vec<u64> = (0..40).filter(inside).collect();
            assert_eq!(wanted, all, "{start} {bytes}");
            for step in [1000, page, page + 1, 3 * page] {
                let parts = (0..bytes).step_by(step).map(|at| at..(at + step).min(bytes));
                let got: Vec<u64> = parts.flat_map(|part| whole(block, &part, page)).collect();
                assert_eq!(got, all, "{start} {bytes} {step}");
            }
        }
    }
}
