//! What an access does to a page, and where pages go: walks of the page table, first touches,
//! moves.

use super::*;

impl ProgramMemory {
    /// First page of the huge page that `index` is part of, or itself.
    #[must_use]
    pub fn head(&self, index: usize) -> usize {
        index - self.pages[index].part as usize
    }

    /// Base pages that move with `index`.
    #[must_use]
    pub fn span(&self, index: usize) -> usize {
        if self.pages[index].bits & PART_OF_HUGE == 0 {
            1
        } else {
            HUGE as usize
        }
    }

    /// A page walk by a core of `home` at `time`: faults are served, bits set.
    #[inline(always)]
    pub fn walk(
        &mut self,
        index: usize,
        vpn: u64,
        store: bool,
        home: usize,
        time: u64,
    ) -> WalkResult {
        if let Some(page) = self.pages.get_mut(index) {
            // Nothing but bits to set.
            if page.frame != ABSENT
                && page.bits & (MOVING | SOFT_CLEAN | PART_OF_HUGE | PROTECTED) == 0
            {
                page.bits |= if store { ACCESSED | DIRTY } else { ACCESSED };
                return WalkResult { frame: page.frame, time, writable: page.bits & DIRTY != 0 };
            }
        }
        self.walk_slowly(index, vpn, store, home, time)
    }

    #[inline(never)]
    pub(super) fn walk_slowly(
        &mut self,
        index: usize,
        vpn: u64,
        store: bool,
        home: usize,
        time: u64,
    ) -> WalkResult {
        let mut time = time;
        let page = self.pages[index];
        let head = self.head(index);
        if self.pages[head].bits & MOVING != 0
            && self.moving.get(&(head as u32)) == Some(&UNTIL_REPORTED)
        {
            self.waited_for = Some(head as u32);
            return WalkResult { frame: ABSENT, time: WAITS, writable: false };
        }
        if self.paged && (page.frame == ABSENT || store && page.bits & PROTECTED != 0) {
            return WalkResult { frame: ABSENT, time: WAITS, writable: false };
        }
        if page.frame == ABSENT {
            time = time.max(self.locked_until) + self.touch_first(index, vpn, home);
            if page.bits & SWAPPED != 0 {
                time += self.come_back();
            }
        }
        // It may have come as a part of a huge page just now.
        let head = self.head(index);
        if self.pages[head].bits & MOVING != 0 {
            let head_key = head as u32;
            time = time.max(self.moving.get(&head_key).copied().unwrap_or(0));
            self.moving.remove(&head_key);
            self.pages[head].bits &= !MOVING;
        }
        let page = &mut self.pages[head];
        page.bits |= ACCESSED;
        if store {
            if page.bits & SOFT_CLEAN != 0 {
                self.write_protect_faults += 1;
                time = time.max(self.locked_until) + self.kernel.write_fault.0;
            }
            page.bits = page.bits & !SOFT_CLEAN | DIRTY;
        }
        let writable = page.bits & (SOFT_CLEAN | PROTECTED | DIRTY) == DIRTY;
        WalkResult { frame: self.pages[index].frame, time, writable }
    }

    /// Backs a page for the first time; gives the cost, picoseconds. Where no node has space, the
    /// program gets a page of the last node all the same, and the run reports it.
    pub(super) fn touch_first(&mut self, index: usize, vpn: u64, home: usize) -> u64 {
        let FrameChoice { nodes: order, pinned } = self.first_touch_order(vpn, home);
        let whole = self.huge && !pinned && self.is_untouched_huge(index, vpn);
        let start = if whole { index - (vpn % HUGE) as usize } else { index };
        for node in &order {
            if whole {
                if let Some(frame) = self.pools[*node].take_huge() {
                    for (i, page) in self.pages[start..start + HUGE as usize].iter_mut().enumerate()
                    {
                        let frame = frame as u32 + i as u32;
                        *page = BasePage {
                            frame,
                            node: *node as u8,
                            bits: PART_OF_HUGE,
                            part: i as u16,
                        };
                    }
                    self.touched += HUGE;
                    let cost = self.kernel.first_touch.0 + HUGE * self.kernel.zero_page.0;
                    return cost + self.count_taken(*node, HUGE);
                }
            }
            if let Some(frame) = self.pools[*node].take(self.cpu, FrameUse::FirstTouch) {
                let cost = self.back(index, *node, frame);
                self.pages[index].bits |= if pinned { PINNED } else { 0 };
                return cost;
            }
        }
        if let Some((node, frame)) = self.take_last(&order) {
            return self.back(index, node, frame);
        }
        if let Some((node, frame, cost)) = self.reclaim_frame(&order) {
            return cost + self.back(index, node, frame);
        }
        self.refused += 1;
        // Frame 0 of the first node: shared by all that find no free space.
        self.pages[index] = BasePage { frame: 0, node: 0, bits: 0, part: 0 };
        self.kernel.first_touch.0
    }

    /// A page where every node is down to its low watermark.
    pub(super) fn take_last(&mut self, order: &[usize]) -> Option<(usize, u64)> {
        let cpu = self.cpu;
        let take = |pools: &mut [FramePool]| {
            order.iter().find_map(|n| Some((*n, pools[*n].take(cpu, FrameUse::Move)?)))
        };
        take(&mut self.pools).or_else(|| {
            self.pools.iter_mut().for_each(FramePool::drain);
            take(&mut self.pools)
        })
    }

    /// The page has this frame from now on; gives what its first touch costs.
    pub(super) fn back(&mut self, index: usize, node: usize, frame: u64) -> u64 {
        self.pages[index] = BasePage { frame: frame as u32, node: node as u8, bits: 0, part: 0 };
        self.touched += 1;
        let zeroing = match self.kernel.memory {
            KernelMemoryModel::Modelled => {
                self.born = Some(frame as u32);
                0
            }
            KernelMemoryModel::Fixed => self.kernel.zero_page.0,
        };
        self.kernel.first_touch.0 + zeroing + self.count_taken(node, 1)
    }

    /// Whether the aligned huge page around `index` lies in one mapping and nothing of it is
    /// backed.
    pub(super) fn is_untouched_huge(&self, index: usize, vpn: u64) -> bool {
        let (low, high) = (vpn - vpn % HUGE, vpn - vpn % HUGE + HUGE);
        let within = self.regions.iter().any(|r| r.start <= low && high <= r.end);
        within && {
            let start = index - (vpn - low) as usize;
            self.pages[start..start + HUGE as usize].iter().all(|p| p.frame == ABSENT)
        }
    }

    /// Puts the page at `head` (a huge page whole) on `node`; who touches it before `ready` waits.
    /// `false`: no free space, or nothing to move.
    pub fn relocate(&mut self, head: usize, node: usize, ready: u64) -> bool {
        let old = self.pages[head];
        let huge = old.bits & PART_OF_HUGE != 0;
        if old.frame == ABSENT || old.node as usize == node || old.bits & PINNED != 0 {
            return false;
        }
        if self.chooser.as_ref().is_some_and(|chooser| !chooser.may_move_to(node)) {
            return false;
        }
        let pool = &mut self.pools[node];
        let taken = if huge { pool.take_huge() } else { pool.take(self.cpu, FrameUse::Move) };
        let Some(frame) = taken else { return false };
        self.pools[old.node as usize].give_back(self.cpu, u64::from(old.frame), huge);
        if let Some(chooser) = &mut self.chooser {
            let frames = if huge { HUGE } else { 1 };
            chooser.count_given_back(usize::from(old.node), frames);
            chooser.count_taken(node, frames);
        }
        for (i, page) in
            self.pages[head..head + if huge { HUGE as usize } else { 1 }].iter_mut().enumerate()
        {
            page.frame = frame as u32 + i as u32;
            page.node = node as u8;
        }
        if ready > 0 {
            self.pages[head].bits |= MOVING;
            self.moving.insert(head as u32, ready);
        }
        true
    }

    /// Puts a pinned page on `node`, where whoever has it mapped agrees; who touches it before
    /// `ready` waits. Its frames before and after; `None`: it is not there, or not pinned.
    pub fn move_pinned(&mut self, vpn: u64, node: usize, ready: u64) -> Option<(u64, u64)> {
        let index = self.index(vpn, &mut 0)?;
        let old = self.pages[index];
        if old.frame == ABSENT || old.bits & PINNED == 0 || usize::from(old.node) == node {
            return None;
        }
        let frame = self.pools[node].take(self.cpu, FrameUse::Move)?;
        self.pools[usize::from(old.node)].give_back(self.cpu, u64::from(old.frame), false);
        let page = &mut self.pages[index];
        (page.frame, page.node) = (frame as u32, node as u8);
        if ready > 0 {
            page.bits |= MOVING;
            self.moving.insert(index as u32, ready);
        }
        Some((u64::from(old.frame), frame))
    }

    /// The page at `head`, which was to move until told, is there from `time` on.
    pub fn has_moved(&mut self, head: usize, time: u64) {
        if let Some(ready) = self.moving.get_mut(&(head as u32)) {
            *ready = time;
        }
    }

    /// Present base pages on each node.
    #[must_use]
    pub fn on_nodes(&self) -> Vec<u64> {
        let mut on = vec![0; self.pools.len()];
        for page in self.pages.iter().filter(|p| p.frame != ABSENT) {
            on[page.node as usize] += 1;
        }
        on
    }
}
