//! The object look-aside buffer: which memory an object id names, a processing element's, a part of
//! it or a file, and what may be done there. A cache of a table, set-associative, least recently
//! used out first. Pure.
//!
//! Source: "xBGAS", section 3.3.

use std::collections::BTreeMap;
use terrace_riscv::memory::{READ, WRITE};

/// The memory that an object lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectMemory {
    /// A processing element's, from 0.
    Element(u32),
    /// A file's, from 0; whoever runs the elements numbers files.
    File(u32),
}

/// Where an object lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectPlace {
    /// In which memory.
    pub memory: ObjectMemory,
    /// What address 0 of the object is there.
    pub base: u64,
    /// Bytes of the object; `u64::MAX` for all that there is.
    pub length: u64,
    /// `READ` and `WRITE` bits of [`terrace_riscv::memory`].
    pub permissions: u8,
}

impl ObjectPlace {
    /// The whole memory of an element, to be read and written.
    #[must_use]
    pub const fn element(element: u32) -> Self {
        let memory = ObjectMemory::Element(element);
        Self { memory, base: 0, length: u64::MAX, permissions: READ | WRITE }
    }
}

/// All objects; the buffer caches it. Object 0 is not in it: it is the local memory.
#[derive(Debug, Clone, Default)]
pub struct ObjectTable(BTreeMap<u64, ObjectPlace>);

impl ObjectTable {
    /// Object n + 1 is the memory of element n, to be read and written.
    #[must_use]
    pub fn of_elements(elements: u32) -> Self {
        let object = |element| (u64::from(element) + 1, ObjectPlace::element(element));
        Self((0..elements).map(object).collect())
    }

    /// Maps an object, in place of where it was; object 0 stays local.
    pub fn set(&mut self, object: u64, place: ObjectPlace) {
        if object != 0 {
            self.0.insert(object, place);
        }
    }
}

/// The size of a look-aside buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookasideSize {
    /// Entries altogether; 0 makes every translation a miss.
    pub entries: usize,
    /// Entries that an object can be in; at least 1.
    pub ways: usize,
}

impl Default for LookasideSize {
    /// 64 entries in 4 ways: no text gives a size; a program on at most 64 elements fits.
    fn default() -> Self {
        Self { entries: 64, ways: 4 }
    }
}

/// The look-aside buffer of one processing element.
#[derive(Debug, Clone)]
pub struct ObjectLookasideBuffer {
    ways: usize,
    /// Most recently used first.
    sets: Vec<Vec<(u64, ObjectPlace)>>,
    /// Translations answered from the buffer.
    pub hits: u64,
    /// Translations that went to the table.
    pub misses: u64,
}

impl ObjectLookasideBuffer {
    /// Empty.
    #[must_use]
    pub fn new(size: LookasideSize) -> Self {
        let ways = size.ways.clamp(1, size.entries.max(1));
        Self { ways, sets: vec![Vec::new(); size.entries / ways], hits: 0, misses: 0 }
    }

    /// Where an object lies; `None` where the table does not have it.
    pub fn translate(&mut self, table: &ObjectTable, object: u64) -> Option<ObjectPlace> {
        let sets = self.sets.len() as u64;
        let set = object.checked_rem(sets).and_then(|set| self.sets.get_mut(set as usize));
        if let Some(set) = set {
            if let Some(way) = set.iter().position(|(id, _)| *id == object) {
                set[..=way].rotate_right(1);
                self.hits += 1;
                return Some(set[0].1);
            }
            self.misses += 1;
            let place = *table.0.get(&object)?;
            set.truncate(self.ways - 1);
            set.insert(0, (object, place));
            return Some(place);
        }
        self.misses += 1;
        table.0.get(&object).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recency as a list of times, the slow way.
    struct PlainBuffer {
        ways: usize,
        sets: u64,
        used: Vec<(u64, u64)>,
    }

    impl PlainBuffer {
        fn hit(&mut self, object: u64, now: u64) -> bool {
            if let Some(entry) = self.used.iter_mut().find(|(id, _)| *id == object) {
                entry.1 = now;
                return true;
            }
            let same_set = |id: u64| id % self.sets == object % self.sets;
            let in_set: Vec<_> = self.used.iter().filter(|(id, _)| same_set(*id)).collect();
            if in_set.len() == self.ways {
                let oldest = in_set.iter().map(|(_, at)| *at).min().unwrap();
                self.used.retain(|(_, at)| *at != oldest);
            }
            self.used.push((object, now));
            false
        }
    }

    #[test]
    fn hits_are_those_of_least_recently_used_sets() {
        let table = ObjectTable::of_elements(40);
        for (entries, ways) in [(1, 1), (8, 2), (16, 4), (16, 16), (64, 4)] {
            let mut buffer = ObjectLookasideBuffer::new(LookasideSize { entries, ways });
            let sets = (entries / ways) as u64;
            let mut plain = PlainBuffer { ways, sets, used: Vec::new() };
            let mut random = 0x1234_5678_9abc_def1_u64;
            for now in 0..2000 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let object = 1 + (random >> 20) % 40;
                let hits = buffer.hits;
                let place = buffer.translate(&table, object).unwrap();
                assert_eq!(place, ObjectPlace::element(object as u32 - 1));
                assert_eq!(buffer.hits > hits, plain.hit(object, now), "{entries} {ways} {now}");
            }
            assert_eq!(buffer.hits + buffer.misses, 2000);
        }
    }

    #[test]
    fn object_zero_and_unknown_objects_are_not_translated() {
        let mut table = ObjectTable::of_elements(2);
        let readable = ObjectPlace { permissions: READ, ..ObjectPlace::element(1) };
        table.set(0, readable);
        table.set(9, readable);
        let mut buffer = ObjectLookasideBuffer::new(LookasideSize { entries: 0, ways: 0 });
        assert_eq!(buffer.translate(&table, 0), None);
        assert_eq!(buffer.translate(&table, 3), None);
        assert_eq!(buffer.translate(&table, 9).map(|place| place.permissions), Some(READ));
        assert_eq!((buffer.hits, buffer.misses), (0, 3));
    }
}
