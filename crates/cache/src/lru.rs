//! The plainest cache: least recently used goes first, written lines are remembered as dirty.
//!
//! Used by the lab's timing plugin for every memory access of the guest, so the way used last is tried first.

use crate::GeometryError;

/// A line that had to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    /// Its number.
    pub line: u64,
    /// It was written since it came: it must be written back.
    pub dirty: bool,
}

/// What an access found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The line was there.
    Hit,
    /// It was not, and is now; `victim` left for it.
    Miss {
        /// The line that left, if the set was full.
        victim: Option<Victim>,
    },
}

/// The cache. A tag is `(line + 1) << 1 | dirty`; zero is an empty way. Each set is kept in order of use.
#[derive(Debug, Clone)]
pub struct Cache {
    tags: Vec<u64>,
    ways: usize,
    sets: u64,
    /// `sets - 1` where the number of sets is a power of two, else zero.
    mask: u64,
}

impl Cache {
    /// A cache of `bytes` in sets of `ways` lines of `line_bytes`.
    pub fn new(bytes: u64, ways: u32, line_bytes: u64) -> Result<Self, GeometryError> {
        if bytes == 0 || ways == 0 || line_bytes == 0 {
            return Err(GeometryError::Empty);
        }
        let set_bytes = u64::from(ways).saturating_mul(line_bytes);
        if bytes % set_bytes != 0 {
            return Err(GeometryError::Uneven);
        }
        let sets = bytes / set_bytes;
        let mask = if sets.is_power_of_two() { sets - 1 } else { 0 };
        Ok(Self { tags: vec![0; (sets * u64::from(ways)) as usize], ways: ways as usize, sets, mask })
    }

    #[inline(always)]
    fn first_way(&self, line: u64) -> usize {
        let set = if self.mask != 0 { line & self.mask } else { line % self.sets };
        set as usize * self.ways
    }

    /// Look `line` up without letting it in: `true` is a hit, which makes it the latest used (and dirty, if `write`).
    #[inline(always)]
    pub fn hit(&mut self, line: u64, write: bool) -> bool {
        let first = self.first_way(line);
        let clean = (line + 1) << 1;
        let Some(tag) = self.tags.get_mut(first) else { return false };
        if (*tag ^ clean) <= 1 {
            *tag |= u64::from(write);
            return true;
        }
        self.hit_other_way(first, clean, write)
    }

    #[inline]
    fn hit_other_way(&mut self, first: usize, clean: u64, write: bool) -> bool {
        let Some(set) = self.tags.get_mut(first..first + self.ways) else { return false };
        let Some(way) = set.iter().position(|tag| (*tag ^ clean) <= 1) else { return false };
        // By hand: a set is short, and a call of memmove takes longer than the words do.
        let mut carried = set[way] | u64::from(write);
        for slot in &mut set[..=way] {
            std::mem::swap(slot, &mut carried);
        }
        true
    }

    /// Sets.
    #[must_use]
    pub fn sets(&self) -> u64 {
        self.sets
    }

    /// Let `line` in, which must not be there.
    pub fn fill(&mut self, line: u64, write: bool) -> Option<Victim> {
        let first = self.first_way(line);
        let set = self.tags.get_mut(first..first + self.ways)?;
        let mut last = (line + 1) << 1 | u64::from(write);
        for slot in set {
            std::mem::swap(slot, &mut last);
        }
        (last != 0).then(|| Victim { line: (last >> 1) - 1, dirty: last & 1 == 1 })
    }

    /// One access: a hit, or a fill; each way is passed once. Gives what [`Self::hit`] and [`Self::fill`] would.
    #[inline]
    pub fn access(&mut self, line: u64, write: bool) -> Outcome {
        let first = self.first_way(line);
        let clean = (line + 1) << 1;
        let Some(set) = self.tags.get_mut(first..first + self.ways) else { return Outcome::Miss { victim: None } };
        let mut carried = clean | u64::from(write);
        for slot in set.iter_mut() {
            std::mem::swap(slot, &mut carried);
            if (carried ^ clean) <= 1 {
                set[0] |= carried & 1;
                return Outcome::Hit;
            }
        }
        let victim = (carried != 0).then(|| Victim { line: (carried >> 1) - 1, dirty: carried & 1 == 1 });
        Outcome::Miss { victim }
    }

    /// Mark `line` as written without using it; `false` if it is not here.
    pub fn mark_dirty(&mut self, line: u64) -> bool {
        let first = self.first_way(line);
        let clean = (line + 1) << 1;
        let found = self.tags[first..first + self.ways].iter_mut().find(|tag| (**tag ^ clean) <= 1);
        found.map(|tag| *tag |= 1).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_geometries_are_named() {
        assert_eq!(Cache::new(0, 8, 64).err(), Some(GeometryError::Empty));
        assert_eq!(Cache::new(100, 8, 64).err(), Some(GeometryError::Uneven));
        assert!(Cache::new(3 * 8 * 64, 8, 64).is_ok());
    }

    #[test]
    fn least_recently_used_leaves_first() {
        let mut c = Cache::new(2 * 64, 2, 64).unwrap();
        assert_eq!(c.access(1, false), Outcome::Miss { victim: None });
        assert_eq!(c.access(2, true), Outcome::Miss { victim: None });
        assert_eq!(c.access(1, false), Outcome::Hit);
        let gone = Victim { line: 2, dirty: true };
        assert_eq!(c.access(3, false), Outcome::Miss { victim: Some(gone) });
        assert!(c.hit(1, false) && !c.hit(2, false));
    }

    #[test]
    fn a_written_line_leaves_dirty() {
        let mut c = Cache::new(64, 1, 64).unwrap();
        c.access(0, false);
        assert!(c.mark_dirty(0) && !c.mark_dirty(1));
        assert_eq!(c.access(7, false), Outcome::Miss { victim: Some(Victim { line: 0, dirty: true }) });
        assert_eq!(c.access(8, false), Outcome::Miss { victim: Some(Victim { line: 7, dirty: false }) });
    }

    #[test]
    fn one_pass_is_hit_and_fill() {
        let mut one = Cache::new(5 * 7 * 64, 7, 64).unwrap();
        let mut two = one.clone();
        let mut x = 7_046_029_254_386_353_131u64;
        for _ in 0..20_000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let (line, write) = (x % 70, x >> 40 & 3 == 1);
            let outcome = one.access(line, write);
            let expected =
                if two.hit(line, write) { Outcome::Hit } else { Outcome::Miss { victim: two.fill(line, write) } };
            assert_eq!((outcome, &one.tags), (expected, &two.tags));
        }
    }

    /// Against the plainest model there is: a list of lines a set.
    #[test]
    fn agrees_with_a_list_of_lines() {
        for (ways, sets) in [(1u32, 8u64), (4, 4), (3, 5)] {
            let mut cache = Cache::new(u64::from(ways) * sets * 64, ways, 64).unwrap();
            let mut lists: Vec<Vec<(u64, bool)>> = vec![Vec::new(); sets as usize];
            let mut x = 88_172_645_463_325_252u64;
            for _ in 0..20_000 {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                let (line, write) = (x % 60, x >> 40 & 1 == 1);
                let list = &mut lists[(line % sets) as usize];
                let expected = if let Some(at) = list.iter().position(|l| l.0 == line) {
                    let old = list.remove(at);
                    list.insert(0, (line, old.1 | write));
                    Outcome::Hit
                } else {
                    list.insert(0, (line, write));
                    let over = if list.len() > ways as usize { list.pop() } else { None };
                    Outcome::Miss { victim: over.map(|(line, dirty)| Victim { line, dirty }) }
                };
                assert_eq!(cache.access(line, write), expected);
            }
        }
    }
}
