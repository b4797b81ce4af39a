//! Random numbers in two instructions each, and choices from them without division.

use terrace_types::Seed;

/// A linear congruential sequence: one multiplication, one addition. Only its high bits are
/// used. One for each thread, so that results do not depend on how threads interleave.
#[derive(Debug, Clone, Copy)]
pub struct Lcg(u64);

impl Lcg {
    /// The sequence of `stream` (a thread, say) for `seed`.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let (mixed, next) = Seed(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95)).next();
        Self(mixed ^ next.next().0)
    }

    /// The next number; compare and scale it, never mask its low bits.
    #[inline(always)]
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.0
    }

    /// Uniform in `[0, n)`.
    #[inline(always)]
    pub fn below(&mut self, n: u64) -> u64 {
        high(self.next(), n)
    }
}

/// High half of the product: scales `x`, a fraction of 2^64, to `[0, n)`.
#[inline(always)]
#[must_use]
pub const fn high(x: u64, n: u64) -> u64 {
    ((x as u128 * n as u128) >> 64) as u64
}

/// Mixes all bits of a word; the finaliser of splitmix64.
#[inline(always)]
#[must_use]
pub const fn mix(x: u64) -> u64 {
    Seed(x).next().0
}

/// Chooses between a hot and a cold set, and an item of it, from a single random number.
#[derive(Debug, Clone, Copy)]
pub struct HotColdChooser {
    threshold: u64,
    hot_scale: u64,
    cold_scale: u64,
}

impl HotColdChooser {
    /// `hot_ppm` of a million draws go to one of `hot` items, the rest to one of `cold` items.
    #[must_use]
    pub fn new(hot: u64, cold: u64, hot_ppm: u32) -> Self {
        let hot_ppm = match (hot, cold) {
            (0, _) => 0,
            (_, 0) => 1_000_000,
            _ => u128::from(hot_ppm.min(1_000_000)),
        };
        let whole = 1u128 << 64;
        let threshold = (whole * hot_ppm / 1_000_000).min(whole - 1);
        let scale = |n: u64, part: u128| {
            u64::try_from(u128::from(n) * whole / part.max(1)).unwrap_or(u64::MAX)
        };
        Self {
            threshold: threshold as u64,
            hot_scale: scale(hot, threshold),
            cold_scale: if threshold == whole - 1 { 0 } else { scale(cold, whole - threshold) },
        }
    }

    /// Whether `x` chooses the hot set, and which item.
    #[inline(always)]
    #[must_use]
    pub const fn pick(&self, x: u64) -> (bool, u64) {
        if x < self.threshold {
            (true, high(x, self.hot_scale))
        } else {
            (false, high(x - self.threshold, self.cold_scale))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_choice_stays_inside_its_set(
            hot in 1u64..1 << 40, cold in 1u64..1 << 40, ppm in 0u32..=1_000_000, x: u64,
        ) {
            let choice = HotColdChooser::new(hot, cold, ppm);
            for x in [x, 0, u64::MAX, choice.threshold, choice.threshold.saturating_sub(1)] {
                let (is_hot, item) = choice.pick(x);
                let items = if is_hot { hot } else { cold };
                prop_assert!(item < items, "item {item} of {items}");
            }
        }
    }

    #[test]
    fn four_fifths_of_draws_are_hot_and_items_are_even() {
        let choice = HotColdChooser::new(100, 1000, 800_000);
        let mut random = Lcg::new(1, 0);
        let (mut hot, mut cold) = (vec![0u32; 100], vec![0u32; 1000]);
        for _ in 0..1_000_000 {
            let (is_hot, item) = choice.pick(random.next());
            let set = if is_hot { &mut hot } else { &mut cold };
            set[item as usize] += 1;
        }
        let share = hot.iter().sum::<u32>();
        assert!((799_000..801_000).contains(&share), "{share}");
        assert!(hot.iter().all(|n| (7_400..8_600).contains(n)), "{hot:?}");
        assert!(cold.iter().all(|n| (120..290).contains(n)), "{cold:?}");
    }

    #[test]
    fn threads_draw_different_sequences() {
        let draws = |stream| {
            let mut random = Lcg::new(7, stream);
            (0..8).map(|_| random.next()).collect::<Vec<_>>()
        };
        assert_ne!(draws(0), draws(1));
        assert_eq!(draws(1), draws(1));
    }
}
