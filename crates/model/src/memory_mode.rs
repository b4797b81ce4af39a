//! Memory mode: a fast node as a direct-mapped cache of lines in front of slower ones.

/// The cache's tags. A tag is `(line + 1) << 1 | dirty`; zero is empty.
#[derive(Debug, Clone)]
pub struct MemoryMode {
    tags: Vec<u64>,
}

/// What an access found in the fast node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
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
        Self { tags: vec![0; (bytes / crate::LINE).max(1) as usize] }
    }

    /// One access to a line; a miss fills.
    pub fn access(&mut self, line: u64, write: bool) -> Found {
        let slot = (line % self.tags.len() as u64) as usize;
        let clean = (line + 1) << 1;
        let old = self.tags[slot];
        if (old ^ clean) <= 1 {
            self.tags[slot] |= u64::from(write);
            return Found::Hit;
        }
        self.tags[slot] = clean | u64::from(write);
        Found::Miss { dirty: (old & 1 == 1).then(|| (old >> 1) - 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_slot_push_each_other_out() {
        let mut m = MemoryMode::new(4 * 64);
        assert_eq!(m.access(1, true), Found::Miss { dirty: None });
        assert_eq!(m.access(1, false), Found::Hit);
        assert_eq!(m.access(5, false), Found::Miss { dirty: Some(1) });
        assert_eq!(m.access(1, false), Found::Miss { dirty: None });
    }
}
