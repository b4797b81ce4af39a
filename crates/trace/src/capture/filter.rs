//! Which accesses to keep.

use std::ops::Range;

/// All conditions must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// One access in so many of each thread; 1 keeps all.
    pub period: u64,
    /// Where an access must begin.
    pub addresses: Range<u64>,
    /// How many bytes it must have.
    pub sizes: Range<u32>,
    /// When, in instructions that its thread has executed.
    pub times: Range<u64>,
    /// Nothing is kept until the function is entered at which recording begins.
    pub begins_later: bool,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            period: 1,
            addresses: 0..u64::MAX,
            sizes: 0..u32::MAX,
            times: 0..u64::MAX,
            begins_later: false,
        }
    }
}

impl Filter {
    /// Whether to keep an access; `seen` counts those of its thread that meet all other conditions.
    #[inline]
    pub fn keeps(&self, seen: &mut u64, address: u64, size: u32, time: u64) -> bool {
        if !(self.addresses.contains(&address)
            && self.sizes.contains(&size)
            && self.times.contains(&time))
        {
            return false;
        }
        *seen += 1;
        self.period <= 1 || (*seen - 1) % self.period == 0
    }

    /// What was left out, in words; empty when all is kept.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let whole = Self::default();
        let mut notes = Vec::new();
        if self.period > 1 {
            notes.push(format!("one access in {} was kept", self.period));
        }
        if self.addresses != whole.addresses {
            notes.push(format!(
                "only addresses from {:#x} to {:#x}",
                self.addresses.start, self.addresses.end
            ));
        }
        if self.sizes != whole.sizes {
            notes.push(format!(
                "only accesses of {} to {} bytes",
                self.sizes.start,
                self.sizes.end.saturating_sub(1)
            ));
        }
        if self.times != whole.times {
            notes.push(format!(
                "only instructions {} to {} of each thread",
                self.times.start, self.times.end
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_three_of_those_that_fit() {
        let filter = Filter { period: 3, addresses: 100..200, sizes: 8..9, ..Filter::default() };
        let mut seen = 0;
        let kept: Vec<u64> = (90..120).filter(|a| filter.keeps(&mut seen, *a, 8, 1)).collect();
        assert_eq!(kept, [100, 103, 106, 109, 112, 115, 118]);
        assert!(!filter.keeps(&mut seen, 150, 4, 1));
        assert_eq!(filter.notes().len(), 3);
        assert!(Filter::default().notes().is_empty());
    }
}
