//! A core's data translations as hardware keeps them: two levels of sets, least recently used first
//! out.

use terrace_cache::{SetSlot, Sets};
use terrace_machine::TlbSpec as Figures;
use terrace_model::PS;

/// Base pages of a huge page, as a shift.
const LARGE: u32 = 9;

/// A translation that was found, for one base page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Translation {
    /// Index of the page.
    pub page: u32,
    /// Its frame.
    pub frame: u32,
    /// A store may use it without a walk.
    pub writable: bool,
}

/// A page, as its entry is looked for.
#[derive(Debug, Clone, Copy)]
struct Key {
    /// Its number, in pages of its size.
    number: u64,
    large: bool,
}

/// One level. A tag is what of the page's number does not tell the set, and whether the page is
/// huge; its flag is whether it may be written.
#[derive(Debug, Clone)]
struct Level {
    sets: Sets,
    /// By set and way, index and frame of the (huge) page's first base page.
    places: Vec<(u32, u32)>,
    mask: u64,
    shift: u32,
}

impl Level {
    fn new(entries: u32, ways: u32) -> Self {
        let sets = entries / ways.max(1);
        let mask = u64::from(sets).saturating_sub(1);
        Self {
            sets: Sets::new(sets as usize, ways as usize),
            places: vec![(0, 0); entries as usize],
            mask,
            shift: mask.count_ones(),
        }
    }

    #[inline(always)]
    fn set(&self, key: Key) -> (usize, u64) {
        ((key.number & self.mask) as usize, key.number >> self.shift << 1 | u64::from(key.large))
    }

    #[inline(always)]
    fn place(&mut self, slot: SetSlot) -> Option<&mut (u32, u32)> {
        self.places.get_mut(slot.set * self.sets.ways() + slot.way)
    }

    /// The entry of a page, whether it may be written and its place, which becomes the latest of
    /// its set.
    #[inline(always)]
    fn find(&mut self, key: Key) -> Option<(bool, (u32, u32))> {
        let (set, tag) = self.set(key);
        let (way, writable) = self.sets.find_flag(set, tag)?;
        Some((writable, *self.place(SetSlot { set, way })?))
    }

    /// Whether the entry of a page is there and not the latest of its set.
    fn is_behind(&self, key: Key) -> bool {
        let (set, tag) = self.set(key);
        self.sets.peek(set, tag).is_some_and(|slot| self.sets.latest(set) != Some(slot))
    }

    /// Puts an entry first in its set, in place of one of the same page or of the one used longest
    /// ago.
    fn insert(&mut self, key: Key, writable: bool, place: (u32, u32)) {
        let (set, tag) = self.set(key);
        match self.sets.find(set, tag) {
            Some(slot) => {
                self.sets.put_flag(slot, writable);
                if let Some(old) = self.place(slot) {
                    *old = place;
                }
            }
            None => self.push(key, writable, place),
        }
    }

    /// As [`Self::insert`], of a page that has none.
    #[inline(always)]
    fn push(&mut self, key: Key, writable: bool, place: (u32, u32)) {
        let (set, tag) = self.set(key);
        let slot = self.sets.replace(set, tag, writable).map(|(slot, _)| slot);
        if let Some(old) = slot.and_then(|slot| self.place(slot)) {
            *old = place;
        }
    }

    /// Empties the way of a page. What is left of the set keeps its order.
    fn forget(&mut self, key: Key) {
        let (set, tag) = self.set(key);
        self.sets.forget(set, tag);
    }
}

/// Both levels.
#[derive(Debug, Clone)]
pub struct Tlb {
    small: Level,
    large: Level,
    second: Level,
    /// Time that a hit in the second level adds, picoseconds.
    second_hit: u64,
    /// Huge pages were seen: until then nobody looks for them.
    any_large: bool,
}

/// What a look-up found and took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TlbLookup {
    /// The translation.
    pub at: Translation,
    /// Time that it added, picoseconds.
    pub took: u64,
    /// A huge page's entry became the latest of its set, so that others no longer are.
    pub large_moved: bool,
}

/// What a look-up came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupResult {
    /// The translation is there.
    Up(TlbLookup),
    /// It is there, but not for stores: a walk must tell whether the page may be written.
    ReadOnly,
    /// It is nowhere: it takes a walk.
    Absent,
}

const fn small_key(vpn: u64) -> Key {
    Key { number: vpn, large: false }
}

const fn large_key(vpn: u64) -> Key {
    Key { number: vpn >> LARGE, large: true }
}

impl Tlb {
    /// Empty. `None` where the figures say that there are as many entries as a program uses.
    #[must_use]
    pub fn new(figures: &Figures) -> Option<Self> {
        (figures.entries > 0).then(|| Self {
            small: Level::new(figures.entries, figures.ways),
            large: Level::new(figures.large_entries, figures.large_ways),
            second: Level::new(figures.l2_entries, figures.l2_ways),
            second_hit: figures.l2_hit.get().saturating_mul(PS),
            any_large: false,
        })
    }

    /// Sets of the first level's base pages.
    #[must_use]
    pub fn sets(&self) -> usize {
        self.small.mask as usize + 1
    }

    /// Looks a page up for a store or a load.
    #[inline(always)]
    pub fn find(&mut self, vpn: u64, store: bool) -> LookupResult {
        if let Some((writable, place)) = self.small.find(small_key(vpn)) {
            let at = Translation { page: place.0, frame: place.1, writable };
            return usable(TlbLookup { at, took: 0, large_moved: false }, store);
        }
        if self.any_large {
            let moved = self.large.is_behind(large_key(vpn));
            if let Some((writable, place)) = self.large.find(large_key(vpn)) {
                return usable(
                    TlbLookup { at: part(vpn, writable, place), took: 0, large_moved: moved },
                    store,
                );
            }
        }
        self.find_in_second(vpn, store)
    }

    #[inline(always)]
    fn find_in_second(&mut self, vpn: u64, store: bool) -> LookupResult {
        let took = self.second_hit;
        if let Some((writable, place)) = self.second.find(small_key(vpn)) {
            self.small.push(small_key(vpn), writable, place);
            let at = Translation { page: place.0, frame: place.1, writable };
            return usable(TlbLookup { at, took, large_moved: false }, store);
        }
        if !self.any_large {
            return LookupResult::Absent;
        }
        let Some((writable, place)) = self.second.find(large_key(vpn)) else {
            return LookupResult::Absent;
        };
        self.large.push(large_key(vpn), writable, place);
        usable(TlbLookup { at: part(vpn, writable, place), took, large_moved: true }, store)
    }

    /// Remembers what a walk found; of a page that is part of a huge one, `part` is which.
    /// `lookup`: what the look-up before it came to.
    #[inline(always)]
    pub fn learn(&mut self, vpn: u64, at: Translation, part: Option<u16>, lookup: LookupResult) {
        if part.is_none() && lookup == LookupResult::Absent {
            self.small.push(small_key(vpn), at.writable, (at.page, at.frame));
            self.second.push(small_key(vpn), at.writable, (at.page, at.frame));
        } else {
            self.learn_anew(vpn, at, part);
        }
    }

    #[inline(never)]
    fn learn_anew(&mut self, vpn: u64, at: Translation, part: Option<u16>) {
        let (level, key, place) = match part {
            None => (&mut self.small, small_key(vpn), (at.page, at.frame)),
            Some(part) => {
                self.any_large = true;
                let part = u32::from(part);
                (&mut self.large, large_key(vpn), (at.page - part, at.frame - part))
            }
        };
        level.insert(key, at.writable, place);
        self.second.insert(key, at.writable, place);
    }

    /// Drops the translation of a page, or of the huge page that it is part of.
    pub fn forget(&mut self, vpn: u64) {
        self.small.forget(small_key(vpn));
        self.second.forget(small_key(vpn));
        self.large.forget(large_key(vpn));
        self.second.forget(large_key(vpn));
    }

    /// Drops all.
    pub fn flush(&mut self) {
        [&mut self.small, &mut self.large, &mut self.second]
            .into_iter()
            .for_each(|level| level.sets.clear());
    }
}

#[inline(always)]
fn usable(found: TlbLookup, store: bool) -> LookupResult {
    if store && !found.at.writable {
        LookupResult::ReadOnly
    } else {
        LookupResult::Up(found)
    }
}

/// One base page of a huge page's entry. Whether the page may be written is the whole page's.
fn part(vpn: u64, writable: bool, place: (u32, u32)) -> Translation {
    let part = (vpn & ((1 << LARGE) - 1)) as u32;
    Translation { page: place.0 + part, frame: place.1 + part, writable }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::Nanos;

    fn tlb(entries: u32, l2: u32) -> Tlb {
        let figures = Figures {
            entries,
            ways: 4,
            l2_entries: l2,
            l2_ways: 4,
            l2_hit: Nanos(2),
            ..Figures::default()
        };
        Tlb::new(&figures).unwrap()
    }

    fn find(t: &mut Tlb, vpn: u64, store: bool) -> Option<TlbLookup> {
        match t.find(vpn, store) {
            LookupResult::Up(found) => Some(found),
            LookupResult::ReadOnly | LookupResult::Absent => None,
        }
    }

    fn learn(t: &mut Tlb, vpn: u64, writable: bool) {
        let lookup = t.clone().find(vpn, true);
        t.learn(
            vpn,
            Translation { page: vpn as u32, frame: 1000 + vpn as u32, writable },
            None,
            lookup,
        );
    }

    #[test]
    fn the_first_level_holds_as_many_as_it_has_and_the_second_catches_the_rest() {
        let mut t = tlb(16, 64);
        (0..32).for_each(|vpn| learn(&mut t, vpn, true));
        let took: Vec<u64> =
            (0..32).rev().filter_map(|vpn| find(&mut t, vpn, true).map(|f| f.took)).collect();
        // The last 16 without delay; looking at the others pushes nobody out that was not looked
        // at.
        assert_eq!((took.iter().filter(|t| **t == 0).count(), took.len()), (16, 32));
        (0..128).for_each(|vpn| learn(&mut t, vpn, true));
        assert!(
            (0..64).all(|vpn| find(&mut t, vpn, false).is_none())
                && (64..128).all(|vpn| find(&mut t, vpn, false).is_some())
        );
    }

    #[test]
    fn a_store_needs_leave() {
        let mut t = tlb(16, 64);
        learn(&mut t, 3, false);
        assert!(find(&mut t, 3, false).is_some() && find(&mut t, 3, true).is_none());
        learn(&mut t, 3, true);
        assert_eq!(find(&mut t, 3, true).map(|f| f.at.frame), Some(1003));
        t.forget(3);
        assert_eq!(find(&mut t, 3, false), None);
    }

    #[test]
    fn one_entry_serves_a_huge_page() {
        let mut t = tlb(16, 64);
        t.learn(
            512 + 7,
            Translation { page: 107, frame: 2007, writable: true },
            Some(7),
            LookupResult::Absent,
        );
        let found = find(&mut t, 512 + 500, true).unwrap();
        assert_eq!((found.at.page, found.at.frame), (600, 2500));
        assert_eq!(find(&mut t, 1024, false), None);
        t.forget(600);
        assert_eq!(find(&mut t, 512 + 7, false), None);
        assert!(Tlb::new(&Figures::UNLIMITED).is_none());
    }

    /// Against lists of pages in order of use.
    #[test]
    fn agrees_with_lists() {
        let mut t = tlb(16, 0);
        let mut lists: Vec<Vec<u64>> = vec![Vec::new(); 4];
        let mut x = 88_172_645_463_325_252u64;
        for _ in 0..20_000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let vpn = x % 40;
            let list = &mut lists[(vpn % 4) as usize];
            let known = list.iter().position(|p| *p == vpn);
            assert_eq!(find(&mut t, vpn, false).is_some(), known.is_some());
            known.map(|at| list.remove(at));
            if known.is_none() {
                learn(&mut t, vpn, false);
            }
            list.insert(0, vpn);
            list.truncate(4);
            if x >> 50 & 7 == 0 {
                t.forget(vpn);
                list.remove(0);
            }
        }
    }
}
