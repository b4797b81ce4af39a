//! Hardware memory mode: the fast tier as a direct-mapped, write-back cache of 64-byte lines in
//! front of the slow one, invisible to software (as DCPMM's Memory Mode).

/// What the fast tier did with a line of the slow one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// It held the line.
    Hit,
    /// It did not; a dirty line had to be written back first when `dirty`.
    Miss {
        /// Whether the line that left was dirty.
        dirty: bool,
    },
}

/// Tags of the fast tier.
#[derive(Debug, Clone)]
pub struct DirectMapped {
    /// `(line + 1) << 1 | dirty`; 0 is empty.
    tags: Vec<u64>,
}

impl DirectMapped {
    /// A fast tier of so many bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { tags: vec![0; (bytes / 64).max(1) as usize] }
    }

    /// Accesses line number `line` of the slow tier.
    pub fn access(&mut self, line: u64, store: bool) -> Served {
        let slot = (line % self.tags.len() as u64) as usize;
        let tag = &mut self.tags[slot];
        let key = (line + 1) << 1;
        if (*tag ^ key) <= 1 {
            *tag |= u64::from(store);
            return Served::Hit;
        }
        let dirty = *tag & 1 == 1;
        *tag = key | u64::from(store);
        Served::Miss { dirty }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_a_cache_size_apart_evict_each_other() {
        let mut fast = DirectMapped::new(4 * 64);
        assert_eq!(fast.access(1, true), Served::Miss { dirty: false });
        assert_eq!(fast.access(1, false), Served::Hit);
        assert_eq!(fast.access(5, false), Served::Miss { dirty: true });
        assert_eq!(fast.access(2, false), Served::Miss { dirty: false });
    }
}
