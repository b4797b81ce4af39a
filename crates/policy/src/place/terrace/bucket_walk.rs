//! Walking a histogram of values from either end, page by page.

/// A walk from the most valuable bucket down, or from the least valuable up.
pub(super) struct BucketWalk<'a> {
    counts: &'a [u32],
    down: bool,
    /// The bucket reached.
    pub at: usize,
    /// Pages taken of it.
    pub used_here: u64,
}

impl<'a> BucketWalk<'a> {
    pub fn hottest_first(counts: &'a [u32]) -> Self {
        Self { counts, down: true, at: counts.len() - 1, used_here: 0 }
    }

    pub fn coldest_first(counts: &'a [u32]) -> Self {
        Self { counts, down: false, at: 0, used_here: 0 }
    }

    /// The next bucket with pages left.
    pub fn peek(&mut self) -> Option<usize> {
        while self.left() == 0 {
            let next = if self.down { self.at.checked_sub(1) } else { Some(self.at + 1) };
            self.at = next.filter(|at| *at < self.counts.len())?;
            self.used_here = 0;
        }
        Some(self.at)
    }

    /// Pages left of the bucket reached.
    pub fn left(&self) -> u64 {
        u64::from(self.counts[self.at]) - self.used_here
    }

    /// Takes `n` of them at most; gives how many.
    pub fn take(&mut self, n: u64) -> u64 {
        let n = n.min(self.left());
        self.used_here += n;
        n
    }
}
