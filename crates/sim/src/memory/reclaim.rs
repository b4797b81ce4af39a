//! Reclaim: where no node has a frame for a page that is touched, the kernel writes another page to
//! a swap device and gives its frame away. Without a device a program that asks for more is ended.
//!
//! The kernel takes pages in turn and spares those that were accessed since it last came by
//! (a clock, which is what the inactive list with its references comes to for one program).

use super::{
    ProgramMemory, ABSENT, ACCESSED, DIRTY, MOVING, PART_OF_HUGE, PINNED, PROTECTED, SWAPPED,
};
use crate::pool::FrameUse;

/// What a swap device takes for a page, picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapCosts {
    /// Until it is read.
    pub read: u64,
    /// Until it is written.
    pub write: u64,
}

/// Pages that went to a swap device and came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SwapCount {
    /// Written there.
    pub written: u64,
    /// Read from there.
    pub read: u64,
}

/// The clock and what it did.
#[derive(Debug)]
pub(crate) struct Reclaim {
    costs: SwapCosts,
    hand: usize,
    count: SwapCount,
    /// Pages that cores may still have translations of.
    stale: Vec<u64>,
}

impl ProgramMemory {
    /// Where no node has a frame left, pages go to a swap device from now on.
    pub fn swap_to(&mut self, costs: SwapCosts) {
        let count = SwapCount::default();
        self.reclaim = Some(Reclaim { costs, hand: 0, count, stale: Vec::new() });
    }

    /// Pages swapped so far.
    #[must_use]
    pub fn swapped(&self) -> SwapCount {
        self.reclaim.as_ref().map_or(SwapCount::default(), |reclaim| reclaim.count)
    }

    /// A frame of one of `nodes` that another page had, its node, and what that took, picoseconds.
    pub(crate) fn reclaim_frame(&mut self, nodes: &[usize]) -> Option<(usize, u64, u64)> {
        let mut reclaim = self.reclaim.take()?;
        let found = self.evict_page(&mut reclaim, nodes);
        self.reclaim = Some(reclaim);
        found
    }

    fn evict_page(&mut self, reclaim: &mut Reclaim, nodes: &[usize]) -> Option<(usize, u64, u64)> {
        const KEPT: u8 = MOVING | PART_OF_HUGE | PINNED | PROTECTED;
        let mut took = 0;
        // Once around to take the accessed bits, once more to find one without.
        for _ in 0..2 * self.pages.len() {
            let index = reclaim.hand;
            reclaim.hand = (index + 1) % self.pages.len();
            let page = &mut self.pages[index];
            let node = usize::from(page.node);
            if page.frame == ABSENT || page.bits & KEPT != 0 || !nodes.contains(&node) {
                continue;
            }
            if page.bits & ACCESSED != 0 {
                page.bits &= !ACCESSED;
                continue;
            }
            let (frame, dirty) = (u64::from(page.frame), page.bits & DIRTY != 0);
            (page.frame, page.bits) = (ABSENT, SWAPPED);
            self.pools[node].give_back(self.cpu, frame, false);
            self.count_given_back(node, 1);
            reclaim.stale.extend(self.vpn_of(index));
            // A page that was read back and not changed since is there already.
            reclaim.count.written += u64::from(dirty);
            took += if dirty { reclaim.costs.write } else { 0 };
            // Page tables that grew may have taken the frame.
            if let Some(frame) = self.pools[node].take(self.cpu, FrameUse::Move) {
                return Some((node, frame, took));
            }
        }
        None
    }

    /// A page that was on the swap device has a frame again: what reading it took, picoseconds.
    pub(crate) fn come_back(&mut self) -> u64 {
        // It was touched before, and its frame is filled by the device.
        self.touched = self.touched.saturating_sub(1);
        self.born = None;
        let Some(reclaim) = &mut self.reclaim else { return 0 };
        reclaim.count.read += 1;
        reclaim.costs.read
    }

    /// Pages that went to the swap device since this was last asked: cores may have translations.
    pub(crate) fn take_reclaimed(&mut self) -> Vec<u64> {
        self.reclaim.as_mut().map_or(Vec::new(), |reclaim| std::mem::take(&mut reclaim.stale))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::FirstTouch;
    use crate::pool::FramePool;
    use terrace_model::layout::AddressLayout;
    use terrace_types::{Vpn, VpnRange};

    /// Touches page after page of `pages` over and over, of which four have a frame at a time.
    fn touch(pages: u64, rounds: u64, swap: bool) -> ProgramMemory {
        let pool = FramePool::new(0, 4, AddressLayout::q35(&[1 << 30]));
        let mut m = ProgramMemory::new(vec![pool], FirstTouch::Nearest(vec![vec![0]]));
        m.map(VpnRange::new(Vpn(0), Vpn(pages)));
        if swap {
            m.swap_to(SwapCosts { read: 1_000_000_000, write: 2_000_000_000 });
        }
        for vpn in (0..rounds).flat_map(|_| 0..pages) {
            let index = m.index(vpn, &mut 0).unwrap();
            m.walk(index, vpn, true, 0, 0);
        }
        m
    }

    #[test]
    fn pages_go_out_and_come_back_and_none_is_lost() {
        let m = touch(6, 1, true);
        assert_eq!((m.refused, m.touched), (0, 6));
        assert_eq!(m.swapped(), SwapCount { written: 2, read: 0 });
        assert_eq!(m.on_nodes(), [4]);
        let mut m = touch(6, 3, true);
        // A clock on a loop that is longer than memory: every touch of the later rounds misses.
        assert_eq!(m.swapped().read, 12);
        assert_eq!((m.touched, m.on_nodes()), (6, vec![4]));
        assert_eq!(m.take_reclaimed().len() as u64, m.swapped().written);
        // What is there costs nothing; what is not costs the device's time.
        let present: Vec<u64> = m.present().map(|(vpn, _)| vpn).collect();
        let gone = (0..6).find(|vpn| !present.contains(vpn)).unwrap();
        let walk = |m: &mut ProgramMemory, vpn: u64| {
            let index = m.index(vpn, &mut 0).unwrap();
            m.walk(index, vpn, false, 0, 0).time
        };
        assert_eq!(walk(&mut m, present[0]), 0);
        assert!(walk(&mut m, gone) >= 3_000_000_000);
    }

    #[test]
    fn without_a_device_the_program_is_refused() {
        let m = touch(6, 1, false);
        assert_eq!((m.refused, m.swapped()), (2, SwapCount::default()));
        assert_eq!(touch(4, 3, true).swapped(), SwapCount::default());
    }
}
