//! A permutation of pages that needs no table: hot pages lie one by one among cold ones, and
//! finding a page costs a dozen instructions and no access to memory.

use crate::random::{high, mix};

const BLOCK: usize = 64;

/// Sends page `i` to `i * step mod span`, then moves it within its block of 64 pages by a hash
/// of the block. The step is near the golden section of the span, so that any run of logical
/// pages is spread evenly over the whole span; the hash takes the regularity out of it.
#[derive(Debug, Clone, Copy)]
pub struct Scatter {
    span: u64,
    step: u64,
    reciprocal: u64,
    salt: u64,
}

impl Scatter {
    /// A permutation of at least `pages` pages, different for each seed.
    #[must_use]
    pub fn new(pages: usize, seed: u64) -> Self {
        let span = (pages.max(1).next_multiple_of(BLOCK)) as u64;
        let golden = high(0x9e37_79b9_7f4a_7c15, span);
        let nudge = high(mix(seed), span / 64 + 1);
        let step = (golden + nudge..).find(|step| gcd(*step, span) == 1).unwrap_or(1);
        Self { span, step, reciprocal: u64::MAX / span, salt: mix(seed ^ 0x5ca7) | 1 }
    }

    /// Pages that the permutation covers; a multiple of 64.
    #[must_use]
    pub const fn span(&self) -> usize {
        self.span as usize
    }

    /// Where page `page`, less than [`Scatter::span`], goes.
    #[inline(always)]
    #[must_use]
    pub const fn page(&self, page: usize) -> usize {
        let product = page as u64 * self.step;
        let rough = product - high(product, self.reciprocal) * self.span;
        let spread = if rough >= self.span { rough - self.span } else { rough };
        let block = spread / BLOCK as u64;
        let turn = block.wrapping_mul(self.salt) >> 58;
        (spread ^ turn) as usize
    }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_permutation(pages in 1usize..20_000, seed: u64) {
            let scatter = Scatter::new(pages, seed);
            let mut seen = vec![false; scatter.span()];
            for page in 0..scatter.span() {
                let place = scatter.page(page);
                prop_assert!(!std::mem::replace(&mut seen[place], true), "{} twice", place);
            }
        }

        #[test]
        fn large_spans_stay_in_range(pages in 1usize..1 << 31, seed: u64, page: u32) {
            let scatter = Scatter::new(pages, seed);
            let page = page as usize % scatter.span();
            prop_assert!(scatter.page(page) < scatter.span());
        }
    }

    #[test]
    fn a_quarter_of_the_pages_is_found_everywhere() {
        for seed in 0..20 {
            let scatter = Scatter::new(45_000, seed);
            let mut hot = vec![false; scatter.span()];
            for page in 0..scatter.span() / 4 {
                hot[scatter.page(page)] = true;
            }
            for (at, block) in hot.chunks(512).enumerate() {
                let share = block.iter().filter(|h| **h).count() * 100 / block.len();
                assert!((18..=32).contains(&share), "seed {seed}: {share}% at block {at}");
            }
        }
    }
}
