//! Walking a histogram of values from either end, page by page.

/// Walks a histogram from its most valuable bucket down.
pub(super) struct HottestFirst<'a> {
    counts: &'a [u32],
    pub at: usize,
    pub used_here: u64,
}

impl<'a> HottestFirst<'a> {
    pub fn new(counts: &'a [u32]) -> Self {
        Self { counts, at: counts.len() - 1, used_here: 0 }
    }

    pub fn peek(&mut self) -> Option<usize> {
        while self.left() == 0 {
            self.at = self.at.checked_sub(1)?;
            self.used_here = 0;
        }
        Some(self.at)
    }

    pub fn left(&self) -> u64 {
        u64::from(self.counts[self.at]) - self.used_here
    }

    pub fn take(&mut self, n: u64) -> u64 {
        let n = n.min(self.left());
        self.used_here += n;
        n
    }
}

/// Walks a histogram from its least valuable bucket up.
pub(super) struct ColdestFirst<'a> {
    counts: &'a [u32],
    pub at: usize,
    pub used_here: u64,
}

impl<'a> ColdestFirst<'a> {
    pub fn new(counts: &'a [u32]) -> Self {
        Self { counts, at: 0, used_here: 0 }
    }

    pub fn peek(&mut self) -> Option<usize> {
        while self.left() == 0 {
            if self.at + 1 >= self.counts.len() {
                return None;
            }
            self.at += 1;
            self.used_here = 0;
        }
        Some(self.at)
    }

    pub fn left(&self) -> u64 {
        u64::from(self.counts[self.at]) - self.used_here
    }

    pub fn take(&mut self, n: u64) -> u64 {
        let n = n.min(self.left());
        self.used_here += n;
        n
    }
}
