//! Page frames of one node: which are free, singly and by the huge page, and which of them the CPUs
//! have on lists of their own.

use crate::percpu::{PerCpuPages, SmallZone, ZoneLimits};
use terrace_model::layout::AddressLayout;

/// Base pages of a huge page.
pub const HUGE: u64 = 512;

/// The frames of a node that programs can have.
#[derive(Debug, Clone)]
pub struct FramePool {
    node: usize,
    layout: AddressLayout,
    /// Frames never given out begin here, counted from the node's first; those of the small zone
    /// come before.
    next: u64,
    /// Frames that programs can have.
    frames: u64,
    /// Where those and what is below the kernel's watermarks end.
    all: u64,
    single: Vec<u64>,
    huge: Vec<u64>,
    /// Free and on no CPU's list.
    free: u64,
    used: u64,
    /// Frames beside these that others have.
    others: u64,
    /// Frames that programs may have at a time, where others have the rest for now.
    limit: u64,
    /// The kernel's lists for each CPU, where they are modelled.
    lists: Option<Lists>,
}

#[derive(Debug, Clone)]
struct Lists {
    zone: ZoneLimits,
    of: Vec<PerCpuPages>,
    /// Frames on lists for memory that cannot be moved or is given back on demand, which no
    /// program's page gets.
    other_kinds: u64,
    /// `ZONE_BELOW_HIGH`: somebody found less free than the high watermark.
    below_high: bool,
    /// Free frames of the small zone, the next one last.
    small: Vec<u64>,
}

impl Lists {
    /// A frame of the small zone, where it has so many.
    fn take_small(&mut self, mark: impl Fn(&SmallZone) -> u64) -> Option<u64> {
        let keeps = mark(self.zone.small.as_ref()?);
        if self.small.len() as u64 > keeps {
            self.small.pop()
        } else {
            None
        }
    }

    /// Free frames of the small zone above a watermark.
    fn small_above(&self, mark: impl Fn(&SmallZone) -> u64) -> u64 {
        self.zone
            .small
            .as_ref()
            .map_or(0, |small| (self.small.len() as u64).saturating_sub(mark(small)))
    }
}

/// For what a page is taken, which tells how far down that goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameUse {
    /// A first touch, which goes to another node where this one is down to the low watermark.
    FirstTouch,
    /// A page is moved here, or has nowhere else to go: down to the low watermark, then slowly to
    /// the lowest (`__alloc_pages_slowpath`).
    Move,
}

impl FramePool {
    /// All frames of `node` free: `frames` of them, those that the kernel keeps taken off.
    #[must_use]
    pub fn new(node: usize, frames: u64, layout: AddressLayout) -> Self {
        Self {
            node,
            layout,
            next: 0,
            frames,
            all: frames,
            single: Vec::new(),
            huge: Vec::new(),
            free: frames,
            used: 0,
            others: 0,
            limit: u64::MAX,
            lists: None,
        }
    }

    /// The node has so many frames more, which others use and keep.
    #[must_use]
    pub fn beside(self, others: u64) -> Self {
        Self { others, ..self }
    }

    /// With the kernel's lists for so many CPUs, before anything is taken. Its frames are what one
    /// CPU can have for first touches; what stays on that CPU's list then, and what is below the
    /// low watermark, is there besides.
    #[must_use]
    pub fn with_lists(mut self, zone: ZoneLimits, cpus: usize) -> Self {
        let mut of = vec![PerCpuPages::default(); cpus.max(1)];
        let small = zone.small.unwrap_or_default();
        let frames = self.frames.saturating_sub(small.pages.saturating_sub(small.low));
        let left_over = zone.left_over(frames);
        self.next = small.pages + left_over;
        self.all = self.next + frames + zone.low;
        self.free = frames + zone.low;
        of[0].fill(small.pages..self.next);
        self.lists = Some(Lists {
            zone,
            of,
            other_kinds: 0,
            below_high: false,
            small: (0..small.pages).rev().collect(),
        });
        self
    }

    /// The daemon that manages the program works on `cpu`, another than the program's first, and
    /// takes from here what cannot lie elsewhere: `own` pages, and what lies on that CPU's lists
    /// once pages of all kinds were taken there; of that, `spare` pages are not the program's. The
    /// kernel has a list for each of three kinds (`MIGRATE_PCPTYPES`), filled by up to
    /// [`ZoneLimits::max_at_once`] at a time: half of that is on each, by expectation. Where lists
    /// are not modelled nothing happens.
    pub fn start_daemon(&mut self, cpu: usize, own: u64, spare: u64) {
        let Some(lists) = &mut self.lists else { return };
        let half = lists.zone.max_at_once() / 2;
        let takes = (own + 3 * half).saturating_sub(spare);
        let takes = takes.min(self.free.saturating_sub(lists.zone.low));
        let Some(list) = lists.of.get_mut(cpu).filter(|_| takes > half) else { return };
        list.fill(self.next..self.next + half);
        // On the program's CPU, too, are lists of the two other kinds; they were there when its
        // space was measured.
        lists.other_kinds += 4 * half;
        self.next += takes;
        self.free -= takes;
        self.all -= takes - half;
    }

    /// Frames that are in use or can be, by whomever.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.frames + self.others
    }

    /// Frames that programs can have.
    #[must_use]
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// Programs may have so many frames of it at a time from now on: others have the rest. What is
    /// in use beyond stays so.
    pub fn set_limit(&mut self, frames: u64) {
        self.limit = frames;
    }

    /// Frames in programs' use.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Frames that programs may have beside those that they have.
    const fn allowance(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// Whether any frame is in use.
    #[must_use]
    pub const fn is_used(&self) -> bool {
        self.used > 0
    }

    /// Frames free for first touches.
    #[must_use]
    pub fn free(&self) -> u64 {
        let (low, small) =
            self.lists.as_ref().map_or((0, 0), |l| (l.zone.low, l.small_above(|zone| zone.low)));
        (self.free.saturating_sub(low) + small).min(self.allowance())
    }

    /// Free frames as policies find them: above the high watermark, on no list
    /// (`NodeFreeMemory::free` in `crates/sys/src/zones.rs`).
    #[must_use]
    pub fn spare(&self) -> u64 {
        let (high, small) =
            self.lists.as_ref().map_or((0, 0), |l| (l.zone.high, l.small_above(|zone| zone.high)));
        (self.free.saturating_sub(high) + small).min(self.allowance())
    }

    /// Frames in nobody's use: those, and what lies on lists (`NodeFreeMemory::unused` there).
    #[must_use]
    pub fn unused(&self) -> u64 {
        let Some(lists) = &self.lists else { return self.free.min(self.allowance()) };
        let listed: u64 = lists.of.iter().map(PerCpuPages::count).sum();
        let above = (self.free + listed + lists.other_kinds).saturating_sub(lists.zone.high);
        (above + lists.small_above(|zone| zone.high)).min(self.allowance())
    }

    /// Frames on the CPUs' lists.
    #[must_use]
    pub fn listed(&self) -> Vec<u64> {
        self.lists.iter().flat_map(|l| l.of.iter().map(PerCpuPages::count)).collect()
    }

    /// A free frame for who runs on `cpu` (`get_page_from_freelist`).
    pub fn take(&mut self, cpu: usize, what: FrameUse) -> Option<u64> {
        if self.allowance() == 0 {
            return None;
        }
        let index = match self.lists.take() {
            None => self.take_free()?,
            Some(mut lists) => {
                let index = self.take_listed(&mut lists, cpu, what);
                self.lists = Some(lists);
                index?
            }
        };
        self.used += 1;
        self.frame(index)
    }

    fn take_listed(&mut self, lists: &mut Lists, cpu: usize, what: FrameUse) -> Option<u64> {
        let zone = lists.zone;
        lists.below_high |= self.free <= zone.high;
        if self.free <= zone.low {
            // Zone after zone down to the low watermarks, then, for a move, down to the lowest.
            if let Some(index) = lists.take_small(|small| small.low) {
                return Some(index);
            }
            if what == FrameUse::FirstTouch {
                return None;
            }
            if self.free <= zone.min {
                return lists.take_small(|small| small.min);
            }
        }
        let list = lists.of.get_mut(cpu)?;
        if let Some(index) = list.take() {
            return Some(index);
        }
        let count = list.refill(&zone, lists.below_high);
        list.fill((0..count).map_while(|_| self.take_free()));
        list.take_refilled()
    }

    /// A frame of those that are on no list.
    fn take_free(&mut self) -> Option<u64> {
        let index = match self.single.pop() {
            Some(index) => index,
            None if self.next < self.all => {
                self.next += 1;
                self.next - 1
            }
            None => {
                let first = self.huge.pop()?;
                self.single.extend((first + 1..first + HUGE).rev());
                first
            }
        };
        self.free -= 1;
        Some(index)
    }

    /// [`HUGE`] consecutive free frames: the first. They come past the lists.
    pub fn take_huge(&mut self) -> Option<u64> {
        if self.free() < HUGE {
            return None;
        }
        let index = match self.huge.pop() {
            Some(index) => index,
            None => {
                let first = self.next.next_multiple_of(HUGE);
                if first + HUGE > self.all {
                    return None;
                }
                self.single.extend((self.next..first).rev());
                self.next = first + HUGE;
                first
            }
        };
        self.free -= HUGE;
        self.used += HUGE;
        self.frame(index)
    }

    /// Who runs on `cpu` gives back a frame, or [`HUGE`] of them from `frame` on.
    pub fn give_back(&mut self, cpu: usize, frame: u64, huge: bool) {
        let Some(index) = self.index(frame) else { return };
        if huge {
            self.huge.push(index);
            self.free += HUGE;
            self.used -= HUGE;
            return;
        }
        self.used -= 1;
        let Some(lists) = &mut self.lists else { return self.free_one(index) };
        if lists.zone.small.is_some_and(|small| index < small.pages) {
            return lists.small.push(index);
        }
        let Some(list) = lists.of.get_mut(cpu) else { return self.free_one(index) };
        let count = list.free(index, &lists.zone, lists.below_high);
        self.shorten(cpu, count);
        if let Some(lists) = self.lists.as_mut().filter(|_| count > 0) {
            lists.below_high &= self.free <= lists.zone.high;
        }
    }

    fn free_one(&mut self, index: u64) {
        self.single.push(index);
        self.free += 1;
    }

    /// So many frames of a CPU's list are on no list any more.
    fn shorten(&mut self, cpu: usize, count: u64) {
        for _ in 0..count {
            let list = self.lists.as_mut().and_then(|l| l.of.get_mut(cpu));
            let Some(index) = list.and_then(PerCpuPages::give) else { return };
            self.free_one(index);
        }
    }

    /// A second has passed: lists that have become long get shorter (`refresh_cpu_vm_stats`,
    /// `mm/vmstat.c`).
    pub fn refresh(&mut self) {
        let Some(lists) = &mut self.lists else { return };
        let zone = lists.zone;
        let due: Vec<u64> = lists.of.iter_mut().map(|list| list.decay(&zone)).collect();
        due.into_iter().enumerate().for_each(|(cpu, count)| self.shorten(cpu, count));
    }

    /// Who finds nothing anywhere has all lists given back (`drain_all_pages`).
    pub fn drain(&mut self) {
        self.listed().into_iter().enumerate().for_each(|(cpu, count)| self.shorten(cpu, count));
    }

    fn frame(&self, index: u64) -> Option<u64> {
        self.layout.address(self.node, index << 12).map(|a| a >> 12)
    }

    fn index(&self, frame: u64) -> Option<u64> {
        self.layout.offset(self.node, frame << 12).map(|o| o >> 12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(frames: u64) -> FramePool {
        FramePool::new(1, frames, AddressLayout::q35(&[1 << 30, 3 << 30]))
    }

    #[test]
    fn every_frame_is_allocated_once_and_reused_after_free() {
        let mut p = pool(1000);
        let mut all: Vec<u64> = std::iter::from_fn(|| p.take(0, FrameUse::FirstTouch)).collect();
        assert_eq!((all.len(), p.free()), (1000, 0));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 1000);
        p.give_back(0, all[500], false);
        assert_eq!(
            (p.take(0, FrameUse::FirstTouch), p.take(0, FrameUse::FirstTouch)),
            (Some(all[500]), None)
        );
    }

    #[test]
    fn huge_pages_are_aligned_and_broken_up_when_nothing_else_is_left() {
        let mut p = pool(3 * HUGE);
        p.take(0, FrameUse::FirstTouch);
        let huge = p.take_huge().unwrap();
        assert_eq!((huge % HUGE, p.take_huge().is_some(), p.take_huge()), (0, true, None));
        assert_eq!(p.free(), HUGE - 1);
        p.set_limit(HUGE + 1);
        assert_eq!((p.free(), p.take(0, FrameUse::Move), p.take_huge()), (0, None, None));
        p.set_limit(u64::MAX);
        p.give_back(0, huge, true);
        assert_eq!(
            std::iter::from_fn(|| p.take(0, FrameUse::FirstTouch)).count() as u64,
            2 * HUGE - 1
        );
    }

    #[test]
    fn frames_beyond_the_hole_of_a_large_machine_are_used() {
        let mut p = pool((3 << 30) >> 12);
        let last = std::iter::from_fn(|| p.take(0, FrameUse::FirstTouch)).last().unwrap();
        assert_eq!(last, ((6u64 << 30) >> 12) - 1);
        p.give_back(0, last, false);
        assert_eq!(p.take(0, FrameUse::FirstTouch), Some(last));
    }

    fn listed(frames: u64) -> (FramePool, ZoneLimits) {
        let zone = ZoneLimits::of_nodes(&[(frames + 4_000, 2), (1 << 18, 0)])[0];
        (
            FramePool::new(0, frames, AddressLayout::q35(&[192 << 20, 1 << 30]))
                .with_lists(zone, 2),
            zone,
        )
    }

    impl FramePool {
        fn small_free(&self) -> u64 {
            self.lists.as_ref().map_or(0, |l| l.small.len() as u64)
        }
    }

    #[test]
    fn the_small_zone_is_used_last_and_has_what_it_gets_back_at_once() {
        let (mut p, zone) = listed(31_488);
        let small = zone.small.unwrap();
        let all = taken(&mut p, 0, FrameUse::FirstTouch);
        let (large, last) = all.split_at(all.len() - (small.pages - small.low) as usize);
        assert!(
            last.iter().all(|frame| *frame < small.pages)
                && large.iter().all(|frame| *frame >= small.pages)
        );
        assert_eq!((p.small_free(), p.spare()), (small.low, 0));
        for frame in &last[..600] {
            p.give_back(1, *frame, false);
        }
        // No list keeps them: they are seen, and anybody's.
        assert_eq!((p.listed()[1], p.spare()), (0, 600 - (small.high - small.low)));
        assert_eq!(taken(&mut p, 0, FrameUse::FirstTouch).len(), 600);
        // Who moves a page here gets some of what is left of either.
        let moved = taken(&mut p, 0, FrameUse::Move);
        assert!(
            p.small_free() == small.min && p.free <= zone.min,
            "{} and {}",
            p.small_free(),
            p.free
        );
        assert!(moved.len() as u64 >= zone.low - zone.min + small.low - small.min);
    }

    fn taken(p: &mut FramePool, cpu: usize, what: FrameUse) -> Vec<u64> {
        std::iter::from_fn(|| p.take(cpu, what)).collect()
    }

    #[test]
    fn one_cpu_gets_all_frames_for_first_touches() {
        for frames in [31_000, 31_111, 31_488, 31_518] {
            let (mut p, zone) = listed(frames);
            let mut all = taken(&mut p, 0, FrameUse::FirstTouch);
            assert_eq!((all.len() as u64, p.free(), p.spare()), (frames, 0, 0));
            // Its list is not empty, but what counts as free is down to the watermark.
            assert!((1..zone.max_at_once()).contains(&p.listed()[0]), "{:?}", p.listed());
            all.extend(taken(&mut p, 0, FrameUse::Move));
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len() as u64, p.used);
            assert!((frames..=frames + zone.low - zone.min + 224).contains(&p.used), "{}", p.used);
        }
    }

    #[test]
    fn freed_pages_stay_on_the_cpus_list_until_it_is_full() {
        let (mut p, zone) = listed(31_488);
        let all = taken(&mut p, 0, FrameUse::FirstTouch);
        for frame in &all[..900] {
            p.give_back(1, *frame, false);
        }
        assert_eq!((p.listed()[1], p.free(), p.take(0, FrameUse::FirstTouch)), (900, 0, None));
        assert_eq!(p.take(1, FrameUse::FirstTouch), None, "the watermark comes before the list");
        assert_eq!(p.take(1, FrameUse::Move), Some(all[899]), "the last freed");
        for frame in &all[900..6000] {
            p.give_back(1, *frame, false);
        }
        assert!(p.spare() > 0 && p.listed()[1] <= zone.high_min, "{:?}", p.listed());
        // Whatever lies on lists, so many were given back.
        assert_eq!(p.unused(), p.all - p.used - zone.high - zone.small.unwrap().low);
        assert!(p.take(0, FrameUse::FirstTouch).is_some());
        p.drain();
        assert_eq!(p.listed(), [0, 0]);
        assert_eq!(p.free + p.used + p.small_free(), p.all);
    }

    #[test]
    fn a_daemon_uses_memory_of_the_programs_node() {
        const OWN: u64 = 102;
        let (mut alone, zone) = listed(31_488);
        let (mut beside, _) = listed(31_488);
        let unused = beside.unused();
        beside.start_daemon(1, OWN, 0);
        // The lists of the two other kinds on the program's CPU count as well, and were there
        // before.
        assert_eq!(beside.unused(), unused - OWN + zone.max_at_once());
        let got = |p: &mut FramePool| taken(p, 0, FrameUse::FirstTouch).len() as u64;
        let less = got(&mut alone) - got(&mut beside);
        assert!(less.abs_diff(OWN + 3 * zone.max_at_once() / 2) <= zone.max_at_once(), "{less}");
        assert_eq!(
            beside.free + beside.used + beside.small_free() + beside.listed().iter().sum::<u64>(),
            beside.all
        );
        // Its own CPU has a third of what it left on lists.
        let (free, half) = (beside.free, zone.max_at_once() / 2);
        assert!((0..half).all(|_| beside.take(1, FrameUse::Move).is_some()));
        assert_eq!((beside.free, beside.listed()[1]), (free, 0));
        let mut other = pool(1000);
        other.start_daemon(1, OWN, 0);
        assert_eq!(other.unused(), 1000);
    }

    #[test]
    fn what_is_free_is_counted_from_the_high_watermark_for_policies() {
        let (p, zone) = listed(31_488);
        let small = zone.small.unwrap();
        assert_eq!(
            (p.free(), p.free() - p.spare()),
            (31_488, zone.high - zone.low + small.high - small.low)
        );
        assert_eq!(pool(1000).spare(), 1000);
    }
}
