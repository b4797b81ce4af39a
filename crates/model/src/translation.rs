//! A translation unit between a machine and memory that several machines share: what the machine
//! takes for a physical address is translated once more, page by page ("Exploring Allocation
//! Policies in Disaggregated Non-Volatile Memories", MCHPC 2018, section 3.1.2).

use terrace_cache::{Cache, GeometryError};

/// Bytes of a page.
const PAGE: u64 = 4096;

/// The unit of one machine: its translations, and what finding them takes.
#[derive(Debug, Clone)]
pub struct TranslationUnit {
    translations: Cache,
    first_node: usize,
    hit_ps: u64,
    walk_ps: u64,
    count: TranslationUnitCount,
}

/// What a translation unit did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TranslationUnitCount {
    /// Lines that passed.
    pub lookups: u64,
    /// Of those, lines whose page it had to find in the system's page table.
    pub walks: u64,
}

impl TranslationUnit {
    /// For the nodes from `first_node` on: so many translations in sets of `ways`, a hit and a walk
    /// in picoseconds.
    ///
    /// # Errors
    /// [`GeometryError`].
    pub fn new(
        first_node: usize,
        (entries, ways): (u32, u32),
        hit_ps: u64,
        walk_ps: u64,
    ) -> Result<Self, GeometryError> {
        let translations = Cache::new(u64::from(entries), ways, 1)?;
        let count = TranslationUnitCount::default();
        Ok(Self { translations, first_node, hit_ps, walk_ps, count })
    }

    /// What it did so far.
    #[must_use]
    pub const fn count(&self) -> TranslationUnitCount {
        self.count
    }

    /// A line at a physical address of `node` passes: what that takes, picoseconds.
    pub(crate) fn pass_line(&mut self, node: usize, physical: u64) -> u64 {
        if node < self.first_node {
            return 0;
        }
        self.count.lookups += 1;
        if self.translations.fetch(physical / PAGE, false).hit() {
            return self.hit_ps;
        }
        self.count.walks += 1;
        self.hit_ps + self.walk_ps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_walked_for_once_while_they_fit_and_nearer_nodes_never() {
        let mut unit = TranslationUnit::new(1, (4, 4), 2_000, 100_000).unwrap();
        assert_eq!(unit.pass_line(0, 0), 0);
        let took: Vec<u64> = [0, 64, 4096, 8192, 12_288, 0, 16_384, 4096]
            .map(|address| unit.pass_line(1, address))
            .to_vec();
        let (hit, walk) = (2_000, 102_000);
        assert_eq!(took, [walk, hit, walk, walk, walk, hit, walk, walk]);
        assert_eq!(unit.count(), TranslationUnitCount { lookups: 8, walks: 6 });
        assert!(TranslationUnit::new(1, (5, 4), 0, 0).is_err());
    }
}
