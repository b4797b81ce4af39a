//! Memory mode: a fast node as a direct-mapped cache of lines in front of slower ones.

/// Tags of a chunk, 256 KiB of the fast node; chunks of a group, 256 MiB of it.
const CHUNK: usize = 1 << 12;
const GROUP: usize = 1 << 10;

/// Chunks whose lines were accessed.
type Group = Vec<Option<Box<[u64; CHUNK]>>>;

/// The cache's tags. A tag is `(line + 1) << 1 | dirty`; zero is empty. Only those parts of the
/// fast node have tags that lines fall into: a modelled node may be larger than the host.
#[derive(Debug, Clone)]
pub struct MemoryMode {
    groups: Vec<Option<Group>>,
    slots: u64,
}

/// What an access found in the fast node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryModeLookup {
    /// The line.
    Hit,
    /// Another line, or nothing; the dirty line that had to go back to the slow node, if there was
    /// one.
    Miss {
        /// Line to write back.
        dirty: Option<u64>,
    },
}

impl MemoryMode {
    /// An empty cache of this many bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { groups: Vec::new(), slots: (bytes / crate::LINE).max(1) }
    }

    /// The tag that lines of this slot share.
    #[inline]
    fn tag(&mut self, slot: u64) -> &mut u64 {
        let (chunk, within) = (slot as usize / CHUNK, slot as usize % CHUNK);
        let group = chunk / GROUP;
        if group >= self.groups.len() {
            self.groups.resize_with(group + 1, || None);
        }
        let group = self.groups[group].get_or_insert_with(|| vec![None; GROUP]);
        &mut group[chunk % GROUP].get_or_insert_with(|| Box::new([0; CHUNK]))[within]
    }

    /// One access to a line; a miss fills.
    pub fn access(&mut self, line: u64, write: bool) -> MemoryModeLookup {
        let tag = self.tag(line % self.slots);
        let clean = (line + 1) << 1;
        let old = *tag;
        if (old ^ clean) <= 1 {
            *tag |= u64::from(write);
            return MemoryModeLookup::Hit;
        }
        *tag = clean | u64::from(write);
        MemoryModeLookup::Miss { dirty: (old & 1 == 1).then(|| (old >> 1) - 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_larger_than_any_host_takes_memory_by_what_is_accessed() {
        let slots = (1u64 << 44) / 64;
        let mut m = MemoryMode::new(1 << 44);
        for line in [0, slots - 1, slots / 3] {
            assert_eq!(m.access(line, true), MemoryModeLookup::Miss { dirty: None });
            assert_eq!(m.access(line + slots, false), MemoryModeLookup::Miss { dirty: Some(line) });
        }
        let chunks = m.groups.iter().flatten().flatten().flatten().count();
        assert_eq!((chunks, m.groups.iter().flatten().count()), (3, 3));
    }

    #[test]
    fn lines_of_one_slot_push_each_other_out() {
        let mut m = MemoryMode::new(4 * 64);
        assert_eq!(m.access(1, true), MemoryModeLookup::Miss { dirty: None });
        assert_eq!(m.access(1, false), MemoryModeLookup::Hit);
        assert_eq!(m.access(5, false), MemoryModeLookup::Miss { dirty: Some(1) });
        assert_eq!(m.access(1, false), MemoryModeLookup::Miss { dirty: None });
    }
}
