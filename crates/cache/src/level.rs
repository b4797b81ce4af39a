//! One cache with a choice of replacement, and what is known of each line in it.

use crate::GeometryError;

/// Which line of a full set leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replacement {
    /// The one used longest ago.
    #[default]
    Lru,
    /// The one that a binary tree of bits points to, each bit pointing away from the half used
    /// last; for ways that are a power of two.
    TreePlru,
    /// Any, by a sequence that the seed sets.
    Random {
        /// Seed of the sequence.
        seed: u64,
    },
}

/// What is known of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LineFlags(u8);

impl LineFlags {
    /// Written since it came: it must be written back.
    pub const DIRTY: Self = Self(1);
    /// No other core has it.
    pub const EXCLUSIVE: Self = Self(1 << 1);
    /// Brought by a prefetcher and not used yet.
    pub const PREFETCHED: Self = Self(1 << 2);

    /// Both together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This without the other.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of `other` is set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

const FLAG_BITS: u32 = 3;
const FLAG_MASK: u64 = (1 << FLAG_BITS) - 1;

/// A line that is in a cache, or was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedLine {
    /// Its number.
    pub line: u64,
    /// What is known of it.
    pub flags: LineFlags,
}

/// One cache. An entry is `(line + 1) << 3 | flags`; zero is an empty way. With LRU each set is
/// kept in order of use.
#[derive(Debug, Clone)]
pub struct SetAssociativeCache {
    entries: Vec<u64>,
    ways: usize,
    sets: u64,
    /// `sets - 1` where that is a mask, else zero.
    mask: u64,
    order: ReplacementOrder,
}

#[derive(Debug, Clone)]
enum ReplacementOrder {
    Lru,
    /// Bits of each set's tree, node 1 the root.
    Tree(Vec<u64>),
    Random(u64),
}

impl SetAssociativeCache {
    /// A cache of `bytes` in sets of `ways` lines of `line_bytes`.
    ///
    /// # Errors
    /// [`GeometryError`].
    pub fn new(
        bytes: u64,
        ways: u32,
        line_bytes: u64,
        replacement: Replacement,
    ) -> Result<Self, GeometryError> {
        if bytes == 0 || ways == 0 || line_bytes == 0 {
            return Err(GeometryError::Empty);
        }
        let set_bytes = u64::from(ways).saturating_mul(line_bytes);
        if bytes % set_bytes != 0 {
            return Err(GeometryError::Uneven);
        }
        let sets = bytes / set_bytes;
        let order = match replacement {
            Replacement::Lru => ReplacementOrder::Lru,
            Replacement::TreePlru if ways.is_power_of_two() && ways <= 64 => {
                ReplacementOrder::Tree(vec![0; sets as usize])
            }
            Replacement::TreePlru => return Err(GeometryError::NoTree),
            // An even state would stay even in its low bits for long; any odd one will do.
            Replacement::Random { seed } => {
                ReplacementOrder::Random(seed.wrapping_mul(2).wrapping_add(1))
            }
        };
        let mask = if sets.is_power_of_two() { sets - 1 } else { 0 };
        Ok(Self {
            entries: vec![0; (sets * u64::from(ways)) as usize],
            ways: ways as usize,
            sets,
            mask,
            order,
        })
    }

    #[inline(always)]
    fn set_of(&self, line: u64) -> usize {
        (if self.mask != 0 { line & self.mask } else { line % self.sets }) as usize
    }

    #[inline(always)]
    const fn matches(entry: u64, line: u64) -> bool {
        entry >> FLAG_BITS == line + 1
    }

    #[inline(always)]
    fn slot_of(&self, line: u64) -> Option<usize> {
        let first = self.set_of(line) * self.ways;
        self.way_of(first, line).map(|way| first + way)
    }

    #[inline(always)]
    fn way_of(&self, first: usize, line: u64) -> Option<usize> {
        let set = self.entries.get(first..first + self.ways)?;
        if Self::matches(*set.first()?, line) {
            return Some(0);
        }
        set.iter().position(|e| Self::matches(*e, line))
    }

    /// Use a line: its flags as they were, `add` set and `clear` taken off. `None` if it is not
    /// here.
    #[inline(always)]
    pub fn touch(&mut self, line: u64, add: LineFlags, clear: LineFlags) -> Option<LineFlags> {
        let set = self.set_of(line);
        let first = set * self.ways;
        let way = self.way_of(first, line)?;
        let entries = self.entries.get_mut(first..first + self.ways)?;
        let old = entries[way];
        let new = (old | u64::from(add.0)) & !u64::from(clear.0);
        match &mut self.order {
            ReplacementOrder::Lru => {
                if way > 0 {
                    shift(entries, way);
                }
                entries[0] = new;
            }
            ReplacementOrder::Tree(trees) => {
                entries[way] = new;
                point_away(&mut trees[set], self.ways, way);
            }
            ReplacementOrder::Random(_) => entries[way] = new,
        }
        Some(LineFlags((old & FLAG_MASK) as u8))
    }

    /// What is known of a line, if it is here; uses nothing.
    #[must_use]
    pub fn peek(&self, line: u64) -> Option<LineFlags> {
        self.slot_of(line).map(|slot| LineFlags((self.entries[slot] & FLAG_MASK) as u8))
    }

    /// Changes what is known of a line without using it; `false` if it is not here.
    pub fn mark(&mut self, line: u64, add: LineFlags, clear: LineFlags) -> bool {
        let slot = self.slot_of(line);
        if let Some(slot) = slot {
            self.entries[slot] = (self.entries[slot] | u64::from(add.0)) & !u64::from(clear.0);
        }
        slot.is_some()
    }

    /// Lets a line in, which must not be here; gives the one that left for it.
    pub fn insert(&mut self, line: u64, flags: LineFlags) -> Option<CachedLine> {
        let number = self.set_of(line);
        let first = number * self.ways;
        let set = self.entries.get_mut(first..first + self.ways)?;
        let entry = (line + 1) << FLAG_BITS | u64::from(flags.0);
        let empty = |set: &[u64]| set.iter().position(|e| *e == 0);
        let left = match &mut self.order {
            ReplacementOrder::Lru => {
                // Empty ways come last.
                let left = set[self.ways - 1];
                shift(set, self.ways - 1);
                set[0] = entry;
                left
            }
            ReplacementOrder::Tree(trees) => {
                let tree = &mut trees[number];
                let way = empty(set).unwrap_or_else(|| pointed_at(*tree, self.ways));
                point_away(tree, self.ways, way);
                std::mem::replace(&mut set[way], entry)
            }
            ReplacementOrder::Random(state) => {
                let way = empty(set).unwrap_or_else(|| (next(state) % self.ways as u64) as usize);
                std::mem::replace(&mut set[way], entry)
            }
        };
        held(left)
    }

    /// Takes a line out.
    pub fn remove(&mut self, line: u64) -> Option<LineFlags> {
        let slot = self.slot_of(line)?;
        let flags = LineFlags((self.entries[slot] & FLAG_MASK) as u8);
        let end = slot - slot % self.ways + self.ways;
        match self.order {
            ReplacementOrder::Lru => {
                self.entries.copy_within(slot + 1..end, slot);
                self.entries[end - 1] = 0;
            }
            _ => self.entries[slot] = 0,
        }
        Some(flags)
    }

    /// All lines that are here, set by set.
    pub fn lines(&self) -> impl Iterator<Item = CachedLine> + '_ {
        self.entries.iter().filter_map(|e| held(*e))
    }

    /// Takes all lines out.
    pub fn clear(&mut self) {
        self.entries.fill(0);
    }
}

fn held(entry: u64) -> Option<CachedLine> {
    let line = (entry >> FLAG_BITS).checked_sub(1)?;
    Some(CachedLine { line, flags: LineFlags((entry & FLAG_MASK) as u8) })
}

/// Moves the first `ways` entries back by one, over the one after them. A loop: sets are short.
#[inline(always)]
fn shift(entries: &mut [u64], ways: usize) {
    for at in (0..ways).rev() {
        entries[at + 1] = entries[at];
    }
}

/// The way that a tree's bits lead to.
fn pointed_at(tree: u64, ways: usize) -> usize {
    let mut node = 1;
    while node < ways {
        node = 2 * node + (tree >> node & 1) as usize;
    }
    node - ways
}

/// Turns the bits on the way to `way` away from it.
fn point_away(tree: &mut u64, ways: usize, way: usize) {
    let mut node = ways + way;
    while node > 1 {
        let right = node & 1;
        node /= 2;
        *tree = *tree & !(1 << node) | ((right as u64) ^ 1) << node;
    }
}

/// The next number of an xorshift sequence.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: LineFlags = LineFlags(0);

    fn level(ways: u32, replacement: Replacement) -> SetAssociativeCache {
        SetAssociativeCache::new(u64::from(ways) * 64, ways, 64, replacement).unwrap()
    }

    #[test]
    fn lru_evicts_the_oldest_and_a_removed_line_frees_its_way() {
        let mut l = level(2, Replacement::Lru);
        assert_eq!(l.insert(1, NONE), None);
        assert_eq!(l.insert(2, LineFlags::DIRTY), None);
        assert_eq!(l.touch(1, NONE, NONE), Some(NONE));
        assert_eq!(l.insert(3, NONE), Some(CachedLine { line: 2, flags: LineFlags::DIRTY }));
        assert_eq!(l.remove(1), Some(NONE));
        assert_eq!((l.insert(4, NONE), l.touch(1, NONE, NONE)), (None, None));
    }

    #[test]
    fn the_tree_never_picks_the_line_used_last() {
        for ways in [1, 2, 4, 8, 16] {
            let mut l = level(ways, Replacement::TreePlru);
            for line in 0..1000 {
                let left = l.insert(line, NONE);
                assert!(left.is_none_or(|h| ways == 1 || h.line + 1 != line), "{ways} ways");
            }
            assert_eq!(l.lines().count(), ways as usize);
        }
        assert_eq!(
            SetAssociativeCache::new(3 * 64, 3, 64, Replacement::TreePlru).err(),
            Some(GeometryError::NoTree)
        );
    }

    #[test]
    fn the_tree_of_four_ways_goes_by_its_bits() {
        let mut l = level(4, Replacement::TreePlru);
        for line in 0..4 {
            l.insert(line, NONE);
        }
        // Used last: 3, so the root points left; in the left half 1 was last, so 0 leaves.
        assert_eq!(l.insert(4, NONE).map(|h| h.line), Some(0));
        // Now the root points right, and there 3 was last.
        assert_eq!(l.insert(5, NONE).map(|h| h.line), Some(2));
        l.touch(1, NONE, NONE);
        assert_eq!(l.insert(6, NONE).map(|h| h.line), Some(3));
    }

    #[test]
    fn chance_repeats_by_its_seed() {
        let evicted = |seed| {
            let mut l = level(8, Replacement::Random { seed });
            (0..500).filter_map(|line| l.insert(line, NONE)).map(|h| h.line).collect::<Vec<_>>()
        };
        assert_eq!(evicted(7), evicted(7));
        assert_ne!(evicted(7), evicted(8));
        assert_eq!(evicted(7).len(), 492);
    }

    #[test]
    fn flags_are_kept_and_changed() {
        let mut l = level(4, Replacement::Lru);
        l.insert(9, LineFlags::EXCLUSIVE);
        assert_eq!(l.touch(9, LineFlags::DIRTY, LineFlags::EXCLUSIVE), Some(LineFlags::EXCLUSIVE));
        assert!(l.mark(9, LineFlags::PREFETCHED, NONE) && !l.mark(8, LineFlags::DIRTY, NONE));
        assert_eq!(l.peek(9), Some(LineFlags::DIRTY.with(LineFlags::PREFETCHED)));
        l.clear();
        assert_eq!((l.peek(9), l.lines().count()), (None, 0));
    }
}
