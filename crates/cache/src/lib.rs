//! Set-associative caches with write-back state. Pure; knows nothing of tiers.
//!
//! Addresses are physical line numbers (address divided by line size). Replacement is true LRU.
#![forbid(unsafe_code)]

/// Why a geometry cannot be a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadGeometry {
    /// What is wrong, in words.
    pub why: String,
}

impl std::fmt::Display for BadGeometry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cache geometry: {}", self.why)
    }
}

impl std::error::Error for BadGeometry {}

/// What an access did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The line was there.
    Hit,
    /// It was not; it is now. `evicted` is the line that had to go and whether it was dirty.
    Miss {
        /// Line that left, if the set was full.
        evicted: Option<(u64, bool)>,
    },
}

/// A physically indexed, physically tagged, set-associative LRU cache that allocates on any miss.
#[derive(Debug, Clone)]
pub struct SetAssoc {
    /// `(line + 1) << 1 | dirty`, most recent first within a set; 0 is empty.
    slots: Vec<u64>,
    sets: u64,
    ways: usize,
}

impl SetAssoc {
    /// A cache of `bytes` in lines of `line` bytes and `ways` ways.
    ///
    /// # Errors
    /// When the sizes do not divide into at least one whole set.
    pub fn new(bytes: u64, line: u64, ways: u32) -> Result<Self, BadGeometry> {
        if line == 0 || ways == 0 || bytes == 0 {
            return Err(BadGeometry { why: "size, line and ways must be above zero".into() });
        }
        let lines = bytes / line;
        let sets = lines / u64::from(ways);
        if sets == 0 || sets * u64::from(ways) * line != bytes {
            return Err(BadGeometry {
                why: format!("{bytes} bytes are not whole sets of {ways} lines of {line} bytes"),
            });
        }
        if sets > 1 << 28 {
            return Err(BadGeometry { why: format!("{sets} sets are more than 2^28") });
        }
        let ways = ways as usize;
        Ok(Self { slots: vec![0; sets as usize * ways], sets, ways })
    }

    /// Accesses a line; a store makes it dirty.
    #[inline]
    pub fn access(&mut self, line: u64, store: bool) -> Outcome {
        let ways = self.ways;
        let base = self.index(line) * ways;
        let set = &mut self.slots[base..base + ways];
        let key = (line + 1) << 1;
        let dirty = u64::from(store);
        if (set[0] ^ key) <= 1 {
            set[0] |= dirty;
            return Outcome::Hit;
        }
        match set.iter().position(|slot| (slot ^ key) <= 1) {
            Some(way) => {
                let entry = set[way] | dirty;
                set.copy_within(0..way, 1);
                set[0] = entry;
                Outcome::Hit
            }
            None => {
                let last = set[ways - 1];
                set.copy_within(0..ways - 1, 1);
                set[0] = key | dirty;
                let evicted = (last != 0).then(|| ((last >> 1) - 1, last & 1 == 1));
                Outcome::Miss { evicted }
            }
        }
    }

    /// Marks a line dirty if it is present, without touching its age; whether it was present.
    pub fn mark_dirty(&mut self, line: u64) -> bool {
        let base = self.index(line) * self.ways;
        let key = (line + 1) << 1;
        for slot in &mut self.slots[base..base + self.ways] {
            if (*slot ^ key) <= 1 {
                *slot |= 1;
                return true;
            }
        }
        false
    }

    /// Whether a line is present.
    #[must_use]
    pub fn contains(&self, line: u64) -> bool {
        let base = self.index(line) * self.ways;
        let key = (line + 1) << 1;
        self.slots[base..base + self.ways].iter().any(|slot| (slot ^ key) <= 1)
    }

    #[inline]
    fn index(&self, line: u64) -> usize {
        (if self.sets.is_power_of_two() { line & (self.sets - 1) } else { line % self.sets }) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lru_evicts_the_oldest_and_says_whether_it_was_dirty() {
        let mut c = SetAssoc::new(2 * 64, 64, 2).expect("one set of two ways");
        assert_eq!(c.access(0, true), Outcome::Miss { evicted: None });
        assert_eq!(c.access(1, false), Outcome::Miss { evicted: None });
        assert_eq!(c.access(0, false), Outcome::Hit);
        assert_eq!(c.access(2, false), Outcome::Miss { evicted: Some((1, false)) });
        assert_eq!(c.access(3, false), Outcome::Miss { evicted: Some((0, true)) });
        assert!(!c.contains(0) && c.contains(3));
    }

    #[test]
    fn direct_mapped_conflicts_only_within_a_set() {
        let mut c = SetAssoc::new(4 * 32, 32, 1).expect("four sets");
        for line in 0..4 {
            assert!(matches!(c.access(line, false), Outcome::Miss { evicted: None }));
        }
        assert_eq!(c.access(4, false), Outcome::Miss { evicted: Some((0, false)) });
        assert_eq!(c.access(1, false), Outcome::Hit);
    }

    #[test]
    fn impossible_geometries_are_refused() {
        for (bytes, line, ways) in [(0, 64, 1), (64, 0, 1), (64, 64, 0), (100, 64, 1), (64, 64, 2)] {
            assert!(SetAssoc::new(bytes, line, ways).is_err());
        }
    }

    #[test]
    fn mark_dirty_reaches_the_write_back() {
        let mut c = SetAssoc::new(64, 64, 1).expect("one line");
        c.access(7, false);
        assert!(c.mark_dirty(7) && !c.mark_dirty(8));
        assert_eq!(c.access(8, false), Outcome::Miss { evicted: Some((7, true)) });
    }
}
