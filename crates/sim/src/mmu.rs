//! A core's translations, and the lines that it used last.
//!
//! Most accesses go to a line that was the last used of its set in the first-level cache, through a
//! translation that was the last used of its set too. Such an access changes nothing but counts,
//! and [`Mmu::settled`] tells it with two comparisons of virtual addresses. Whatever could make it
//! untrue takes the entry away: see [`Mmu::settle`].

use crate::memory::{ProgramMemory, PART_OF_HUGE, WAITS};
use crate::tlb::{LookupResult, Tlb, TlbLookup, Translation};
use terrace_machine::TlbSpec as Figures;
use terrace_model::PS;
use terrace_types::Nanos;

/// Lines that are remembered: first-level caches with more sets choose the set by more than the
/// page's offset, so that a virtual address does not tell it.
const MAX_LINES: usize = 64;
/// Pages that are remembered; of a core with unlimited translations, those of which it is that they
/// have one.
const MAX_PAGES: usize = 64;
/// Translations that are found without looking for the page first, where they are unlimited.
const NEAR: usize = 1024;

/// What a core remembers of the page tables.
#[derive(Debug, Clone)]
pub struct Mmu {
    /// By set of the first-level cache: the virtual line used last times two, plus one unless it is
    /// dirty there and its page writable here; [`u64::MAX`]: none.
    lines: [u64; MAX_LINES],
    /// All bits where nothing is remembered of lines, else none.
    no_lines: u64,
    /// By set of the first-level translations, or some of those together: what was used last.
    pages: [LastTranslation; MAX_PAGES],
    line_mask: usize,
    page_mask: usize,
    kept: KeptTranslation,
    walk: u64,
    flush_every: u64,
    next_flush: u64,
    /// What those addresses are called by.
    space: u64,
    /// The region of the last access.
    pub hint: usize,
}

#[derive(Debug, Clone)]
enum KeptTranslation {
    /// All translations until they are dropped: an emulator's. An entry, by the page's index, is
    /// `frame << 32 | writable << 16 | epoch`; those of an earlier epoch are stale. `near` holds
    /// some of them by the page's number plus one.
    All { entries: Vec<u64>, epoch: u64, near: Vec<(u64, Translation)> },
    /// As many as there is space for.
    Some(Box<Tlb>),
}

/// The time of a translation that there is not: nothing is mapped and nothing can be.
pub const NOWHERE: u64 = u64::MAX - 1;

/// The translation used last of its set.
#[derive(Debug, Clone, Copy)]
struct LastTranslation {
    /// The page times two, plus one unless it is writable; [`u64::MAX`]: none.
    key: u64,
    page: u32,
    frame: u32,
}

impl LastTranslation {
    const NONE: Self = Self { key: u64::MAX, page: 0, frame: 0 };

    const fn of(vpn: u64, at: Translation) -> Self {
        Self { key: vpn << 1 | !at.writable as u64, page: at.page, frame: at.frame }
    }
}

const WRITABLE: u64 = 1 << 16;
const EPOCHS: u64 = 1 << 16;
/// No page of those that are near.
const NONE: (u64, Translation) = (0, Translation { page: 0, frame: 0, writable: false });

/// Where a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLocation {
    /// Its index.
    pub page: u32,
    /// Its frame.
    pub frame: u32,
}

/// A translation and what it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Translated {
    /// Where the page is.
    pub at: PageLocation,
    /// The core's time when the access can go on, picoseconds; [`WAITS`]: not known yet, and no
    /// translation; [`NOWHERE`]: there is none.
    pub time: u64,
}

impl Mmu {
    /// No translations; all dropped every `flush`, or never where that is zero. `sets`: those of
    /// the core's first-level cache.
    #[must_use]
    pub fn new(flush: Nanos, figures: &Figures, sets: u64) -> Self {
        let flush_every = flush.get().saturating_mul(PS);
        let tlb = Tlb::new(figures);
        let pages = tlb.as_ref().map_or(MAX_PAGES, Tlb::sets);
        let lines =
            if sets.is_power_of_two() && sets <= MAX_LINES as u64 { sets as usize } else { 0 };
        Self {
            lines: [u64::MAX; MAX_LINES],
            no_lines: if lines == 0 { u64::MAX } else { 0 },
            pages: [LastTranslation::NONE; MAX_PAGES],
            line_mask: lines.wrapping_sub(1) & (MAX_LINES - 1),
            page_mask: pages.wrapping_sub(1) & (MAX_PAGES - 1),
            kept: match tlb {
                Some(tlb) => KeptTranslation::Some(Box::new(tlb)),
                None => {
                    KeptTranslation::All { entries: Vec::new(), epoch: 1, near: vec![NONE; NEAR] }
                }
            },
            walk: figures.walk.get().saturating_mul(PS),
            flush_every,
            next_flush: flush_every,
            space: 0,
            hint: 0,
        }
    }

    /// Whether an access changes nothing: its translation is known and the last used of its set,
    /// its line in the first-level cache and the last used of its set there, and, for a store,
    /// dirty and writable already.
    #[inline(always)]
    #[must_use]
    pub fn is_current(&self, address: u64, store: bool) -> bool {
        let line = address >> 6;
        let known = self.lines[self.line_slot(line)];
        let page = self.pages[self.page_slot(address >> 12)].key;
        (known ^ line << 1) <= u64::from(!store) && page >> 1 == address >> 12
    }

    #[inline(always)]
    fn line_slot(&self, line: u64) -> usize {
        (line as usize & self.line_mask) % MAX_LINES
    }

    /// A set of pages, or several that stand together: what was used last of them was so of its
    /// own, too.
    #[inline(always)]
    fn page_slot(&self, vpn: u64) -> usize {
        (vpn as usize & self.page_mask) % MAX_PAGES
    }

    /// The line of `address` is now the last used of its set in the first-level cache (dirty, if by
    /// a store). Its page's translation is the last used too, by the [`Self::translate`] before.
    #[inline(always)]
    pub fn make_current(&mut self, address: u64, store: bool) {
        let line = address >> 6;
        let slot = self.line_slot(line);
        let clean = !store & (self.lines[slot] != line << 1);
        self.lines[slot] = line << 1 | u64::from(clean) | self.no_lines;
    }

    /// Addresses to come are called as in this space: the same names in another mean something
    /// else.
    pub fn turn_to(&mut self, space: u64) {
        if self.space != space {
            self.space = space;
            self.unsettle();
        }
    }

    pub(crate) fn unsettle(&mut self) {
        self.lines.fill(u64::MAX);
        self.pages.fill(LastTranslation::NONE);
    }

    /// The translation of `address` where it is the last used of its set, and may be used for a
    /// store if this is one: to use it again changes nothing.
    #[inline(always)]
    #[must_use]
    pub fn known(&self, address: u64, store: bool) -> Option<PageLocation> {
        let vpn = address >> 12;
        let used = &self.pages[self.page_slot(vpn)];
        (used.key ^ vpn << 1 <= u64::from(!store))
            .then_some(PageLocation { page: used.page, frame: used.frame })
    }

    /// Translates, by a walk if need be; `None` where nothing is mapped and nothing can be.
    #[inline]
    pub fn translate(
        &mut self,
        memory: &mut ProgramMemory,
        address: u64,
        store: bool,
        home: usize,
        time: u64,
    ) -> Option<Translated> {
        let found = match self.known(address, store) {
            Some(at) => Translated { at, time },
            None => self.translate_other(memory, (address, address), store, home, time),
        };
        (found.time != NOWHERE).then_some(found)
    }

    /// As [`Self::translate`], of an address that is not known, by what it is called and where it
    /// is; [`NOWHERE`] is the time where there is nothing.
    #[inline(never)]
    pub fn translate_other(
        &mut self,
        memory: &mut ProgramMemory,
        (name, address): (u64, u64),
        store: bool,
        home: usize,
        time: u64,
    ) -> Translated {
        match self.look_up(memory, address >> 12, store, home, time) {
            Some((at, time)) => {
                if time != WAITS {
                    let slot = self.page_slot(name >> 12);
                    self.pages[slot] = LastTranslation::of(name >> 12, at);
                }
                Translated { at: PageLocation { page: at.page, frame: at.frame }, time }
            }
            None => Translated { at: PageLocation { page: 0, frame: 0 }, time: NOWHERE },
        }
    }

    #[inline(always)]
    fn look_up(
        &mut self,
        memory: &mut ProgramMemory,
        vpn: u64,
        store: bool,
        home: usize,
        time: u64,
    ) -> Option<(Translation, u64)> {
        match &mut self.kept {
            KeptTranslation::Some(tlb) => match tlb.find(vpn, store) {
                LookupResult::Up(TlbLookup { at, took, large_moved }) => {
                    if large_moved {
                        self.pages.fill(LastTranslation::NONE);
                    }
                    Some((at, time + took))
                }
                lookup => self.walk(memory, vpn, store, home, time, lookup),
            },
            KeptTranslation::All { near, .. } => match near[vpn as usize % NEAR] {
                (page, at) if page == vpn + 1 && (at.writable || !store) => Some((at, time)),
                _ => self.look_up_in_all(memory, vpn, store, home, time),
            },
        }
    }

    fn look_up_in_all(
        &mut self,
        memory: &mut ProgramMemory,
        vpn: u64,
        store: bool,
        home: usize,
        time: u64,
    ) -> Option<(Translation, u64)> {
        let page = memory.index_or_map(vpn, &mut self.hint)?;
        if let KeptTranslation::All { entries, epoch, near } = &mut self.kept {
            let entry = entries.get(page).copied().unwrap_or(0);
            let writable = entry & WRITABLE != 0;
            if entry & (EPOCHS - 1) == *epoch && (!store || writable) {
                let at = Translation { page: page as u32, frame: (entry >> 32) as u32, writable };
                near[vpn as usize % NEAR] = (vpn + 1, at);
                return Some((at, time));
            }
        }
        self.walk(memory, vpn, store, home, time, LookupResult::Absent)
    }

    #[inline(always)]
    fn walk(
        &mut self,
        memory: &mut ProgramMemory,
        vpn: u64,
        store: bool,
        home: usize,
        time: u64,
        lookup: LookupResult,
    ) -> Option<(Translation, u64)> {
        let page = memory.index_or_map(vpn, &mut self.hint)?;
        let walked = memory.walk(page, vpn, store, home, time + self.walk);
        let at = Translation { page: page as u32, frame: walked.frame, writable: walked.writable };
        if walked.time == WAITS {
            return Some((at, WAITS));
        }
        match &mut self.kept {
            KeptTranslation::All { entries, epoch, near } => {
                if page >= entries.len() {
                    entries.resize(page + 1, 0);
                }
                let writable = if at.writable { WRITABLE } else { 0 };
                entries[page] = u64::from(at.frame) << 32 | writable | *epoch;
                near[vpn as usize % NEAR] = (vpn + 1, at);
            }
            KeptTranslation::Some(tlb) => {
                let page = memory.pages[page];
                let part = (page.bits & PART_OF_HUGE != 0).then_some(page.part);
                tlb.learn(vpn, at, part, lookup);
                if part.is_some() {
                    self.pages.fill(LastTranslation::NONE);
                }
            }
        }
        Some((at, walked.time))
    }

    /// Drops the translations of `span` pages from page `vpn` on, which has the index `page`.
    pub fn forget(&mut self, vpn: u64, page: usize, span: usize) {
        self.unsettle();
        match &mut self.kept {
            KeptTranslation::All { entries, near, .. } => {
                let end = (page + span).min(entries.len());
                if let Some(entries) = entries.get_mut(page..end) {
                    entries.fill(0);
                }
                for vpn in vpn..vpn + span as u64 {
                    near[vpn as usize % NEAR] = NONE;
                }
            }
            KeptTranslation::Some(tlb) if span == 1 => tlb.forget(vpn),
            // One entry serves a huge page; single pages of it from before it was huge may be there
            // too.
            KeptTranslation::Some(tlb) => (vpn..vpn + span as u64).for_each(|vpn| tlb.forget(vpn)),
        }
    }

    /// Drops all.
    pub fn flush(&mut self) {
        self.unsettle();
        match &mut self.kept {
            KeptTranslation::All { entries, epoch, near } => {
                near.fill(NONE);
                *epoch += 1;
                if *epoch == EPOCHS {
                    entries.fill(0);
                    *epoch = 1;
                }
            }
            KeptTranslation::Some(tlb) => tlb.flush(),
        }
    }

    /// The core's time is `now`, picoseconds: drops all where that is due.
    pub fn pass(&mut self, now: u64) {
        if self.flush_every > 0 && now >= self.next_flush {
            self.next_flush = now + self.flush_every;
            self.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{FirstTouch, ACCESSED, SOFT_CLEAN};
    use crate::pool::FramePool;
    use terrace_model::layout::AddressLayout;
    use terrace_types::{Vpn, VpnRange};

    fn memory() -> ProgramMemory {
        let mut m = ProgramMemory::new(
            vec![FramePool::new(0, 4096, AddressLayout::q35(&[1 << 30]))],
            FirstTouch::Nearest(vec![vec![0]]),
        );
        m.map(VpnRange::new(Vpn(0), Vpn(4096)));
        m
    }

    /// Whether an access walks, which sets the accessed bit.
    fn walks(mmu: &mut Mmu, m: &mut ProgramMemory, vpn: u64, store: bool) -> bool {
        m.pages[vpn as usize].bits &= !ACCESSED;
        mmu.translate(m, vpn << 12, store, 0, 0).unwrap();
        m.pages[vpn as usize].bits & ACCESSED != 0
    }

    #[test]
    fn unlimited_translations_are_kept_until_dropped() {
        let (mut mmu, mut m) = (Mmu::new(Nanos::micros(500), &Figures::UNLIMITED, 64), memory());
        assert!(walks(&mut mmu, &mut m, 3, false) && !walks(&mut mmu, &mut m, 3, false));
        assert!(walks(&mut mmu, &mut m, 3, true) && !walks(&mut mmu, &mut m, 3, true));
        for vpn in 0..4096 {
            walks(&mut mmu, &mut m, vpn, true);
        }
        assert!(!walks(&mut mmu, &mut m, 3, true));
        mmu.pass(499_999_999);
        assert!(!walks(&mut mmu, &mut m, 3, true));
        mmu.pass(500_000_000);
        assert!(walks(&mut mmu, &mut m, 3, true));
        mmu.forget(3, 3, 1);
        assert!(walks(&mut mmu, &mut m, 3, false));
    }

    #[test]
    fn epochs_wrap_without_reviving_stale_entries() {
        let (mut mmu, mut m) = (Mmu::new(Nanos::ZERO, &Figures::UNLIMITED, 64), memory());
        walks(&mut mmu, &mut m, 0, true);
        (0..2 * EPOCHS).for_each(|_| mmu.flush());
        assert!(walks(&mut mmu, &mut m, 0, false));
    }

    #[test]
    fn a_few_translations_expire_as_others_come_without_any_flush() {
        let (mut mmu, mut m) = (Mmu::new(Nanos::ZERO, &Figures::default(), 64), memory());
        walks(&mut mmu, &mut m, 0, true);
        for vpn in 1..1000 {
            walks(&mut mmu, &mut m, vpn, true);
        }
        assert!(!walks(&mut mmu, &mut m, 0, true));
        for vpn in 1..4096 {
            walks(&mut mmu, &mut m, vpn, true);
        }
        assert!(walks(&mut mmu, &mut m, 0, true));
        // A walk takes its time, a hit in the second level less, in the first none.
        let took = |mmu: &mut Mmu, m: &mut ProgramMemory, vpn: u64| {
            mmu.translate(m, vpn << 12, false, 0, 0).unwrap().time
        };
        assert_eq!((took(&mut mmu, &mut m, 1), took(&mut mmu, &mut m, 1)), (10_000, 0));
        for vpn in 2..600 {
            took(&mut mmu, &mut m, vpn);
        }
        assert_eq!(took(&mut mmu, &mut m, 1), 2_000);
    }

    #[test]
    fn equal_numbers_of_another_space_are_not_confused() {
        let (mut mmu, mut m) = (Mmu::new(Nanos::ZERO, &Figures::default(), 64), memory());
        let first = mmu.translate_other(&mut m, (0x7000_5040, 0x5040), true, 0, 0).at;
        mmu.make_current(0x7000_5040, true);
        assert!(mmu.is_current(0x7000_5040, true) && mmu.known(0x7000_5fff, true) == Some(first));
        assert!(!mmu.is_current(0x5040, false) && mmu.known(0x5040, false).is_none());
        mmu.turn_to(0);
        assert!(mmu.is_current(0x7000_5040, true));
        mmu.turn_to(1);
        assert!(!mmu.is_current(0x7000_5040, false) && mmu.known(0x7000_5040, false).is_none());
        let second = mmu.translate_other(&mut m, (0x7000_5040, 0x9040), true, 0, 0).at;
        assert_ne!(first, second);
        assert_eq!(mmu.translate_other(&mut m, (0, 4096 << 12), true, 0, 0).time, NOWHERE);
    }

    #[test]
    fn a_repeated_translation_is_dropped_when_it_changes() {
        let (mut mmu, mut m) = (Mmu::new(Nanos::ZERO, &Figures::default(), 64), memory());
        let mut access = |mmu: &mut Mmu, address: u64, store: bool| {
            mmu.translate(&mut m, address, store, 0, 0).unwrap();
            mmu.make_current(address, store);
        };
        access(&mut mmu, 0x5040, false);
        assert!(
            mmu.is_current(0x5040, false)
                && mmu.is_current(0x507f, false)
                && !mmu.is_current(0x5040, true)
        );
        access(&mut mmu, 0x5040, true);
        assert!(mmu.is_current(0x5040, true));
        // Another line of the same set; another page of the same set (there are 16); a flush.
        access(&mut mmu, 0x6040, false);
        assert!(!mmu.is_current(0x5040, false));
        access(&mut mmu, 0x5040, false);
        access(&mut mmu, 0x15080, false);
        assert!(!mmu.is_current(0x5040, false));
        access(&mut mmu, 0x5040, false);
        assert!(mmu.is_current(0x5040, false));
        mmu.flush();
        assert!(!mmu.is_current(0x5040, false));
        m.pages[5].bits |= SOFT_CLEAN;
        let many_sets = Mmu::new(Nanos::ZERO, &Figures::default(), 128);
        assert!((0..1000).all(|a| !many_sets.is_current(a * 64, false)));
    }
}
