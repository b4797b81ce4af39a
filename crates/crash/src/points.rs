//! Where crashes happen.

/// Which moments of the region are crashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CrashSchedule {
    /// So many, uniform over the region's instructions, by a seed.
    Uniform {
        /// How many.
        count: u32,
        /// Any number.
        seed: u64,
    },
    /// As many in each phase, uniform over its instructions, by a seed.
    EachPhase {
        /// How many in each phase.
        count: u32,
        /// Any number.
        seed: u64,
        /// Equal parts of the iterations, or of the instructions where there are fewer iterations;
        /// of no use where the program marks its phases.
        phases: u32,
    },
    /// One whenever the iteration has changed.
    EachIteration,
    /// One before each fence.
    EachFence,
    /// One after each n-th store.
    EachStore {
        /// n, at least 1.
        period: u64,
    },
}

/// The next number of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, figure 17).
pub(crate) fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `count` numbers of 1 to `instructions`, ascending, with repetition: after so many instructions
/// a crash happens (section 3 of the paper).
#[must_use]
pub fn uniform_points(count: u32, seed: u64, instructions: u64) -> Vec<u64> {
    let mut state = seed;
    let scaled = |number: u64| ((u128::from(number) * u128::from(instructions)) >> 64) as u64 + 1;
    let mut points: Vec<u64> = (0..count).map(|_| scaled(draw(&mut state))).collect();
    points.sort_unstable();
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_uniform_and_follow_the_seed() {
        assert_eq!(uniform_points(3, 7, 1), [1, 1, 1]);
        let points = uniform_points(10_000, 1, 1000);
        assert_eq!(points, uniform_points(10_000, 1, 1000));
        assert_ne!(points, uniform_points(10_000, 2, 1000));
        assert!(points.iter().all(|p| (1..=1000).contains(p)));
        // A tenth of them in each tenth: within five standard deviations of 30.
        for tenth in 0..10 {
            let count = points.iter().filter(|p| (**p - 1) / 100 == tenth).count();
            assert!((850..=1150).contains(&count), "{tenth}: {count}");
        }
    }
}
