//! The plainest cache: least recently used goes first, written lines are remembered as dirty.
//!
//! Used by the lab's timing plugin for every memory access of the guest, and by the simulator for
//! most.

use crate::sets::{Sets, TagFetch, TagUse};
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
pub enum LruOutcome {
    /// The line was there.
    Hit,
    /// It was not, and is now; `victim` left for it.
    Miss {
        /// The line that left, if the set was full.
        victim: Option<Victim>,
    },
}

/// The cache.
#[derive(Debug, Clone)]
pub struct Cache {
    /// Tags, with whether they are dirty.
    ways: Sets,
    sets: u64,
    /// Where the number of sets is a power of two, that many bits tell the set; and which.
    power: Option<u32>,
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
        let power = sets.is_power_of_two().then(|| sets.trailing_zeros());
        Ok(Self { ways: Sets::new(sets as usize, ways as usize), sets, power, mask: sets - 1 })
    }

    /// Set and tag.
    #[inline(always)]
    fn place(&self, line: u64) -> (usize, u64) {
        match self.power {
            Some(power) => ((line & self.mask) as usize, line >> power),
            None => ((line % self.sets) as usize, line / self.sets),
        }
    }

    /// The host fetches what it will need to look `line` up.
    #[inline(always)]
    pub fn ahead(&self, line: u64) {
        self.ways.ahead(self.place(line).0);
    }

    /// The line that goes next where `line` comes in, if that is dirty: for the host to fetch what
    /// its leaving will need.
    #[inline(always)]
    #[must_use]
    pub fn dirty_before(&self, line: u64) -> Option<u64> {
        let set = self.place(line).0;
        let Victim { line, dirty } = self.victim(set, self.ways.oldest(set)?);
        dirty.then_some(line)
    }

    /// Look `line` up without letting it in: `true` is a hit, which makes it the latest used (and
    /// dirty, if `write`).
    #[inline(always)]
    pub fn hit(&mut self, line: u64, write: bool) -> bool {
        let (set, tag) = self.place(line);
        let slot = self.ways.find(set, tag);
        slot.map(|slot| self.ways.mark(slot, write)).is_some()
    }

    /// Sets.
    #[must_use]
    pub fn sets(&self) -> u64 {
        self.sets
    }

    /// Let `line` in, which must not be there.
    #[inline(always)]
    pub fn fill(&mut self, line: u64, write: bool) -> Option<Victim> {
        let (set, tag) = self.place(line);
        let (_, gone) = self.ways.replace(set, tag, write)?;
        gone.map(|gone| self.victim(set, gone))
    }

    /// One access: a hit, or a fill. Gives what [`Self::hit`] and [`Self::fill`] would.
    #[inline(always)]
    pub fn access(&mut self, line: u64, write: bool) -> LruOutcome {
        let (set, tag) = self.place(line);
        match self.ways.access(set, tag, write) {
            TagUse::Again => LruOutcome::Hit,
            TagUse::First(gone) => {
                LruOutcome::Miss { victim: gone.map(|gone| self.victim(set, gone)) }
            }
        }
    }

    /// As [`Self::access`]; of what left, only a line that must be written back is reported.
    #[inline(always)]
    pub fn fetch(&mut self, line: u64, write: bool) -> TagFetch {
        let (set, tag) = self.place(line);
        self.ways.fetch(set, tag, write).named(|tag| self.line(set, tag))
    }

    #[inline(always)]
    fn line(&self, set: usize, tag: u64) -> u64 {
        match self.power {
            Some(power) => tag << power | set as u64,
            None => tag * self.sets + set as u64,
        }
    }

    #[inline(always)]
    fn victim(&self, set: usize, (tag, dirty): (u64, bool)) -> Victim {
        Victim { line: self.line(set, tag), dirty }
    }

    /// `line` leaves, if it is here; what it holds is dropped.
    #[inline]
    pub fn forget(&mut self, line: u64) {
        let (set, tag) = self.place(line);
        self.ways.forget(set, tag);
    }

    /// `line` has been written back and is clean from now on; whether it was dirty. It stays.
    pub fn clean(&mut self, line: u64) -> bool {
        let (set, tag) = self.place(line);
        let Some(slot) = self.ways.peek(set, tag).filter(|slot| self.ways.flag(*slot)) else {
            return false;
        };
        self.ways.put_flag(slot, false);
        true
    }

    /// Mark `line` as written without using it; `false` if it is not here.
    #[inline]
    pub fn mark_dirty(&mut self, line: u64) -> bool {
        let (set, tag) = self.place(line);
        self.ways.mark_tag(set, tag)
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
        assert_eq!(c.access(1, false), LruOutcome::Miss { victim: None });
        assert_eq!(c.access(2, true), LruOutcome::Miss { victim: None });
        assert_eq!(c.access(1, false), LruOutcome::Hit);
        let gone = Victim { line: 2, dirty: true };
        assert_eq!(c.access(3, false), LruOutcome::Miss { victim: Some(gone) });
        assert!(c.hit(1, false) && !c.hit(2, false));
    }

    #[test]
    fn a_written_line_leaves_dirty() {
        let mut c = Cache::new(64, 1, 64).unwrap();
        c.access(0, false);
        assert!(c.mark_dirty(0) && !c.mark_dirty(1));
        assert!(c.clean(0) && !c.clean(0) && !c.clean(1) && c.mark_dirty(0));
        assert_eq!(
            c.access(7, false),
            LruOutcome::Miss { victim: Some(Victim { line: 0, dirty: true }) }
        );
        assert_eq!(
            c.access(8, false),
            LruOutcome::Miss { victim: Some(Victim { line: 7, dirty: false }) }
        );
    }

    /// Against the plainest model there is: a list of lines a set.
    #[test]
    fn agrees_with_a_list_of_lines() {
        for (ways, sets) in [(1u32, 8u64), (4, 4), (3, 5), (11, 4), (20, 3)] {
            let mut cache = Cache::new(u64::from(ways) * sets * 64, ways, 64).unwrap();
            let mut twin = cache.clone();
            let mut lists: Vec<Vec<(u64, bool)>> = vec![Vec::new(); sets as usize];
            let mut x = 88_172_645_463_325_252u64;
            for _ in 0..20_000 {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                let (line, write) = (x % (12 * u64::from(ways) * sets / 8), x >> 40 & 1 == 1);
                let list = &mut lists[(line % sets) as usize];
                let expected = if let Some(at) = list.iter().position(|l| l.0 == line) {
                    let old = list.remove(at);
                    list.insert(0, (line, old.1 | write));
                    LruOutcome::Hit
                } else {
                    list.insert(0, (line, write));
                    let over = if list.len() > ways as usize { list.pop() } else { None };
                    LruOutcome::Miss { victim: over.map(|(line, dirty)| Victim { line, dirty }) }
                };
                let fetched = twin.fetch(line, write);
                let dirty = match expected {
                    LruOutcome::Miss { victim: Some(Victim { line, dirty: true }) } => Some(line),
                    _ => None,
                };
                assert_eq!((fetched.hit(), fetched.left()), (expected == LruOutcome::Hit, dirty));
                assert_eq!(cache.access(line, write), expected);
            }
        }
    }
}
