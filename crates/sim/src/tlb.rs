//! A core's data translations as hardware keeps them: two levels of sets, least recently used first out.

use terrace_machine::Tlb as Figures;
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

/// One level. A key is the page's number plus one, whether it is huge (bit 1) and writable (bit 0); zero is an empty way.
/// Each set is kept in order of use.
#[derive(Debug, Clone)]
struct Level {
    keys: Vec<u64>,
    /// Index and frame of the (huge) page's first base page.
    places: Vec<(u32, u32)>,
    ways: usize,
    mask: u64,
}

impl Level {
    fn new(entries: u32, ways: u32) -> Self {
        let sets = u64::from(entries / ways.max(1));
        let size = entries as usize;
        Self { keys: vec![0; size], places: vec![(0, 0); size], ways: ways as usize, mask: sets.saturating_sub(1) }
    }

    #[inline(always)]
    fn first(&self, key: u64) -> usize {
        ((key >> 2) & self.mask) as usize * self.ways
    }

    /// The entry of `key` (its lowest bit does not count), which becomes the latest of its set; whether it was not that
    /// before.
    #[inline]
    fn find(&mut self, key: u64) -> Option<(u64, (u32, u32), bool)> {
        let first = self.first(key);
        let keys = self.keys.get_mut(first..first + self.ways)?;
        let way = keys.iter().position(|k| *k | 1 == key | 1)?;
        let places = self.places.get_mut(first..first + self.ways)?;
        let found = (keys[way], places[way], way > 0);
        // By hand, as in `terrace-cache`: a set is short.
        let (mut key, mut place) = (found.0, found.1);
        for (old_key, old_place) in keys[..=way].iter_mut().zip(places) {
            std::mem::swap(old_key, &mut key);
            std::mem::swap(old_place, &mut place);
        }
        Some(found)
    }

    /// Puts an entry first in its set, in place of one of the same page or of the one used longest ago.
    fn insert(&mut self, key: u64, place: (u32, u32)) {
        let first = self.first(key);
        let Some(keys) = self.keys.get_mut(first..first + self.ways) else { return };
        let places = &mut self.places[first..first + self.ways];
        let (new, mut key, mut place) = (key | 1, key, place);
        for (old_key, old_place) in keys.iter_mut().zip(places) {
            std::mem::swap(old_key, &mut key);
            std::mem::swap(old_place, &mut place);
            if key | 1 == new {
                return;
            }
        }
    }

    /// Empties the way of a page. What is left of the set keeps its order.
    fn forget(&mut self, key: u64) {
        let first = self.first(key);
        let Some(keys) = self.keys.get_mut(first..first + self.ways) else { return };
        if let Some(way) = keys.iter().position(|k| *k | 1 == key | 1) {
            keys[way..].rotate_left(1);
            self.places[first + way..first + self.ways].rotate_left(1);
            if let Some(last) = keys.last_mut() {
                *last = 0;
            }
        }
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
pub struct Found {
    /// The translation.
    pub at: Translation,
    /// Time that it added, picoseconds.
    pub took: u64,
    /// A huge page's entry became the latest of its set, so that others no longer are.
    pub large_moved: bool,
}

const fn small_key(vpn: u64) -> u64 {
    (vpn + 1) << 2
}

const fn large_key(vpn: u64) -> u64 {
    ((vpn >> LARGE) + 1) << 2 | 2
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

    /// Looks a page up for a store or a load; `None`: it takes a walk.
    #[inline]
    pub fn find(&mut self, vpn: u64, store: bool) -> Option<Found> {
        let usable = |key: u64| !store || key & 1 == 1;
        if let Some((key, place, _)) = self.small.find(small_key(vpn)) {
            let at = Translation { page: place.0, frame: place.1, writable: key & 1 == 1 };
            return usable(key).then_some(Found { at, took: 0, large_moved: false });
        }
        if self.any_large {
            if let Some((key, place, moved)) = self.large.find(large_key(vpn)) {
                return usable(key).then_some(Found { at: part(vpn, key, place), took: 0, large_moved: moved });
            }
        }
        self.find_in_second(vpn).filter(|f| !store || f.at.writable)
    }

    fn find_in_second(&mut self, vpn: u64) -> Option<Found> {
        let took = self.second_hit;
        if let Some((key, place, _)) = self.second.find(small_key(vpn)) {
            self.small.insert(key, place);
            let at = Translation { page: place.0, frame: place.1, writable: key & 1 == 1 };
            return Some(Found { at, took, large_moved: false });
        }
        if !self.any_large {
            return None;
        }
        let (key, place, _) = self.second.find(large_key(vpn))?;
        self.large.insert(key, place);
        Some(Found { at: part(vpn, key, place), took, large_moved: true })
    }

    /// Remembers what a walk found; of a page that is part of a huge one, `part` is which.
    pub fn learn(&mut self, vpn: u64, at: Translation, part: Option<u16>) {
        let writable = u64::from(at.writable);
        let (level, key, place) = match part {
            None => (&mut self.small, small_key(vpn) | writable, (at.page, at.frame)),
            Some(part) => {
                self.any_large = true;
                let part = u32::from(part);
                (&mut self.large, large_key(vpn) | writable, (at.page - part, at.frame - part))
            }
        };
        level.insert(key, place);
        self.second.insert(key, place);
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
        for level in [&mut self.small, &mut self.large, &mut self.second] {
            level.keys.fill(0);
        }
    }
}

/// One base page of a huge page's entry. Whether the page may be written is the whole page's.
fn part(vpn: u64, key: u64, place: (u32, u32)) -> Translation {
    let part = (vpn & ((1 << LARGE) - 1)) as u32;
    Translation { page: place.0 + part, frame: place.1 + part, writable: key & 1 == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::Nanos;

    fn tlb(entries: u32, l2: u32) -> Tlb {
        let figures = Figures { entries, ways: 4, l2_entries: l2, l2_ways: 4, l2_hit: Nanos(2), ..Figures::default() };
        Tlb::new(&figures).unwrap()
    }

    fn learn(t: &mut Tlb, vpn: u64, writable: bool) {
        t.learn(vpn, Translation { page: vpn as u32, frame: 1000 + vpn as u32, writable }, None);
    }

    #[test]
    fn the_first_level_holds_as_many_as_it_has_and_the_second_catches_the_rest() {
        let mut t = tlb(16, 64);
        (0..32).for_each(|vpn| learn(&mut t, vpn, true));
        let took: Vec<u64> = (0..32).rev().filter_map(|vpn| t.find(vpn, true).map(|f| f.took)).collect();
        // The last 16 without delay; looking at the others pushes nobody out that was not looked at.
        assert_eq!((took.iter().filter(|t| **t == 0).count(), took.len()), (16, 32));
        (0..128).for_each(|vpn| learn(&mut t, vpn, true));
        assert!((0..64).all(|vpn| t.find(vpn, false).is_none()) && (64..128).all(|vpn| t.find(vpn, false).is_some()));
    }

    #[test]
    fn a_store_needs_leave() {
        let mut t = tlb(16, 64);
        learn(&mut t, 3, false);
        assert!(t.find(3, false).is_some() && t.find(3, true).is_none());
        learn(&mut t, 3, true);
        assert_eq!(t.find(3, true).map(|f| f.at.frame), Some(1003));
        t.forget(3);
        assert_eq!(t.find(3, false), None);
    }

    #[test]
    fn one_entry_serves_a_huge_page() {
        let mut t = tlb(16, 64);
        t.learn(512 + 7, Translation { page: 107, frame: 2007, writable: true }, Some(7));
        let found = t.find(512 + 500, true).unwrap();
        assert_eq!((found.at.page, found.at.frame), (600, 2500));
        assert_eq!(t.find(1024, false), None);
        t.forget(600);
        assert_eq!(t.find(512 + 7, false), None);
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
            // Sets are chosen by the page's number plus one.
            let list = &mut lists[((vpn + 1) % 4) as usize];
            let known = list.iter().position(|p| *p == vpn);
            assert_eq!(t.find(vpn, false).is_some(), known.is_some());
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
