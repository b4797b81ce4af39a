//! Allocation policies: which pool the next frame comes from. Pool 0 is the host's local memory,
//! pools 1 to N are shared, as in Opal ("Exploring Allocation Policies in Disaggregated
//! Non-Volatile Memories", MCHPC 2018, section 3.3).

use crate::PoolError;
use terrace_types::{Bytes, Seed};

/// An allocation policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocationPolicy {
    /// Local memory until it is full, then shared pools at random (section 3.3.1).
    LocalFirst,
    /// Local memory and the next shared pool in turn (section 3.3.2).
    Alternate,
    /// All pools, local memory among them, in turn (section 3.3.3).
    RoundRobin,
    /// As many frames of shared pools for one of local memory as shared memory is larger
    /// (section 3.3.4), pools in turn.
    Proportional,
    /// Any pool, local memory among them, with equal chance (Opal's code, policy 4).
    Random,
    /// Each place as often as its bandwidth is of all (ours: streams then use all places at once).
    Bandwidth,
    /// Local memory until it is full, then the shared pool whose requests wait least (ours).
    LeastLoaded,
    /// Each place in inverse proportion to its latency now, waits included (ours).
    Latency,
    /// Pages that miss the caches most in a profile to local memory, the others to the shared pools
    /// in turn (the paper's future work, footnote 2).
    ApplicationAware,
    /// So many frames of shared pools for one of local memory (Opal's code, policies 5 to 8: 2, 4,
    /// 8, 16), pools in turn.
    OneTo(u32),
}

impl AllocationPolicy {
    /// All, by the names that system files and `--policy` take.
    pub const NAMED: [(&'static str, Self); 13] = [
        ("local-first", Self::LocalFirst),
        ("alternate", Self::Alternate),
        ("round-robin", Self::RoundRobin),
        ("proportional", Self::Proportional),
        ("random", Self::Random),
        ("1:2", Self::OneTo(2)),
        ("1:4", Self::OneTo(4)),
        ("1:8", Self::OneTo(8)),
        ("1:16", Self::OneTo(16)),
        ("bandwidth", Self::Bandwidth),
        ("least-loaded", Self::LeastLoaded),
        ("latency", Self::Latency),
        ("application-aware", Self::ApplicationAware),
    ];

    /// The policy of this name.
    ///
    /// # Errors
    /// [`PoolError::Policy`], with the names there are.
    pub fn from_name(name: &str) -> Result<Self, PoolError> {
        let found = Self::NAMED.iter().find(|(known, _)| *known == name);
        found.map(|(_, policy)| *policy).ok_or_else(|| PoolError::Policy {
            name: name.to_owned(),
            known: Self::NAMED.map(|(known, _)| known).join(", "),
        })
    }
}

/// What a profile says of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileRank {
    /// It is among those that miss the caches most, as many as local memory has frames.
    Hot,
    /// It is not.
    Cold,
}

/// What a policy is told of local memory, or of a shared pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaceFigures {
    /// Bytes a second, reading.
    pub bandwidth: u64,
    /// Of a read without waits, picoseconds.
    pub latency_ps: u64,
}

/// A policy at work for one host: where its frames come from, request by request.
#[derive(Debug, Clone)]
pub struct AllocationSequence {
    policy: AllocationPolicy,
    shared_pools: usize,
    /// Frames of shared pools for one of local memory, where the policy has such a ratio.
    shared_for_one: u64,
    requests: u64,
    shared_requests: u64,
    /// Requests for which local memory came first.
    local_requests: u64,
    chance: u64,
    /// Local memory, then shared pools.
    places: Vec<PlaceFigures>,
    /// What a request waits now, by shared pool, picoseconds.
    waits_ps: Vec<u64>,
    /// By place: how far it is behind its weight.
    credits: Vec<i128>,
}

impl AllocationSequence {
    /// Before the first request. `places` are local memory and the shared pools; `local` and
    /// `shared` the capacities of local memory and of all shared pools together.
    #[must_use]
    pub fn new(
        policy: AllocationPolicy,
        places: Vec<PlaceFigures>,
        local: Bytes,
        shared: Bytes,
        seed: Seed,
    ) -> Self {
        let shared_pools = places.len().saturating_sub(1);
        let shared_for_one = match policy {
            AllocationPolicy::Proportional => shared.get() / local.get().max(1),
            AllocationPolicy::OneTo(count) => u64::from(count),
            _ => 1,
        };
        Self {
            policy,
            shared_pools,
            shared_for_one,
            requests: 0,
            shared_requests: 0,
            local_requests: 0,
            chance: seed.0,
            waits_ps: vec![0; shared_pools],
            credits: vec![0; places.len()],
            places,
        }
    }

    /// Shared pools.
    #[must_use]
    pub fn shared_pools(&self) -> usize {
        self.shared_pools
    }

    /// What requests wait from now on, by shared pool, picoseconds.
    pub fn set_waits(&mut self, waits_ps: &[u64]) {
        self.waits_ps.clear();
        self.waits_ps.extend_from_slice(waits_ps);
        self.waits_ps.resize(self.shared_pools, 0);
    }

    /// All pools in the order in which they are tried for the next frame.
    pub fn next_order(&mut self) -> Vec<usize> {
        self.next_order_of(ProfileRank::Hot)
    }

    /// The same for a page of which a profile says this; only
    /// [`AllocationPolicy::ApplicationAware`] asks.
    pub fn next_order_of(&mut self, rank: ProfileRank) -> Vec<usize> {
        let first = match (self.shared_pools, self.policy, rank) {
            (0, ..) | (_, AllocationPolicy::ApplicationAware, ProfileRank::Hot) => 0,
            (_, AllocationPolicy::ApplicationAware, ProfileRank::Cold) => self.next_shared(),
            _ => self.choose_first(),
        };
        self.requests += 1;
        let mut order = vec![first];
        // The rest is tried where that one is full: local memory, then shared pools.
        order.extend((0..=self.shared_pools).filter(|pool| *pool != first));
        match self.policy {
            AllocationPolicy::LocalFirst => self.shuffle(1, &mut order),
            // Local memory is for others.
            AllocationPolicy::ApplicationAware if first > 0 => order[1..].rotate_left(1),
            // Where local memory is full, pools take turns.
            _ if first == 0 => {
                self.local_requests += 1;
                let turn = (self.local_requests % self.shared_pools.max(1) as u64) as usize;
                order[1..].rotate_left(turn);
                if self.policy == AllocationPolicy::LeastLoaded {
                    order[1..].sort_by_key(|pool| self.waits_ps[*pool - 1]);
                }
            }
            _ => {}
        }
        order
    }

    fn choose_first(&mut self) -> usize {
        let pools = self.shared_pools as u64 + 1;
        match self.policy {
            AllocationPolicy::LocalFirst
            | AllocationPolicy::LeastLoaded
            | AllocationPolicy::ApplicationAware => 0,
            AllocationPolicy::Bandwidth => {
                self.choose_by_weight(|place, _| i128::from(place.bandwidth))
            }
            AllocationPolicy::Latency => self.choose_by_weight(|place, wait_ps| {
                // A second over the latency.
                1_000_000_000_000 / i128::from(place.latency_ps + wait_ps).max(1)
            }),
            AllocationPolicy::RoundRobin => (self.requests % pools) as usize,
            AllocationPolicy::Random => (self.draw() % pools) as usize,
            AllocationPolicy::Alternate
            | AllocationPolicy::Proportional
            | AllocationPolicy::OneTo(_) => {
                if self.requests % (self.shared_for_one + 1) == 0 {
                    return 0;
                }
                self.next_shared()
            }
        }
    }

    /// The next shared pool in turn.
    fn next_shared(&mut self) -> usize {
        self.shared_requests += 1;
        1 + ((self.shared_requests - 1) % self.shared_pools as u64) as usize
    }

    /// The place that is furthest behind its weight; over time each is chosen in proportion to it
    /// (smooth weighted round robin).
    fn choose_by_weight(&mut self, weight: impl Fn(&PlaceFigures, u64) -> i128) -> usize {
        let (mut all, mut best) = (0, 0);
        for (index, place) in self.places.iter().enumerate() {
            let wait_ps = index.checked_sub(1).map_or(0, |pool| self.waits_ps[pool]);
            let weight = weight(place, wait_ps);
            all += weight;
            self.credits[index] += weight;
            if self.credits[index] > self.credits[best] {
                best = index;
            }
        }
        self.credits[best] -= all;
        best
    }

    /// Shuffles `order` from index `from` on (Fisher and Yates).
    fn shuffle(&mut self, from: usize, order: &mut [usize]) {
        for last in (from + 1..order.len()).rev() {
            let other = from + (self.draw() % (last - from + 1) as u64) as usize;
            order.swap(last, other);
        }
    }

    /// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    fn draw(&mut self) -> u64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.chance ^ (self.chance >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Local memory six times as fast as a pool, at a quarter of its latency.
    fn places(pools: usize) -> Vec<PlaceFigures> {
        let local = PlaceFigures { bandwidth: 6_000, latency_ps: 100_000 };
        let pool = PlaceFigures { bandwidth: 1_000, latency_ps: 400_000 };
        std::iter::once(local).chain(std::iter::repeat_n(pool, pools)).collect()
    }

    fn firsts(policy: &str, pools: usize, count: usize) -> Vec<usize> {
        let policy = AllocationPolicy::from_name(policy).unwrap();
        let (local, shared) = (Bytes(2 * GIB), Bytes(16 * GIB));
        let mut sequence = AllocationSequence::new(policy, places(pools), local, shared, Seed(1));
        (0..count).map(|_| sequence.next_order()[0]).collect()
    }

    #[test]
    fn sequences_are_those_of_the_paper() {
        assert_eq!(firsts("local-first", 2, 5), [0; 5]);
        // Section 3.3.2, two pools.
        assert_eq!(firsts("alternate", 2, 8), [0, 1, 0, 2, 0, 1, 0, 2]);
        // Section 3.3.3.
        assert_eq!(firsts("round-robin", 2, 7), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(firsts("round-robin", 1, 4), firsts("alternate", 1, 4));
        // Section 3.3.4, 2 and 16 GiB: eight of shared memory, the tenth is local again.
        let expected = [0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1];
        assert_eq!(firsts("proportional", 1, 11), expected);
        let expected = [0, 1, 2, 3, 1, 2, 3, 1, 2, 0, 3, 1];
        assert_eq!(firsts("proportional", 3, 12), expected);
        assert_eq!(firsts("1:2", 2, 7), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(firsts("1:4", 3, 7), [0, 1, 2, 3, 1, 0, 2]);
    }

    #[test]
    fn without_shared_pools_everything_is_local() {
        for (name, _) in AllocationPolicy::NAMED {
            assert_eq!(firsts(name, 0, 20), [0; 20], "{name}");
        }
    }

    #[test]
    fn every_order_has_every_pool_once_and_chance_is_even() {
        for (name, policy) in AllocationPolicy::NAMED {
            let mut sequence =
                AllocationSequence::new(policy, places(3), Bytes(GIB), Bytes(4 * GIB), Seed(7));
            let mut seconds = [0; 4];
            for _ in 0..3000 {
                let mut order = sequence.next_order();
                seconds[order[1]] += 1;
                order.sort_unstable();
                assert_eq!(order, [0, 1, 2, 3], "{name}");
            }
            if policy == AllocationPolicy::LocalFirst {
                assert!(seconds[1..].iter().all(|n| (900..1100).contains(n)), "{seconds:?}");
            }
        }
        let random = firsts("random", 3, 8000);
        for pool in 0..4 {
            let count = random.iter().filter(|p| **p == pool).count();
            assert!((1900..2100).contains(&count), "seed 1, pool {pool}: {count}");
        }
    }

    /// With local memory full, no pool gets more frames than another.
    #[test]
    fn pools_take_turns_for_local_memory() {
        for name in ["alternate", "round-robin", "proportional", "1:2", "least-loaded"] {
            let policy = AllocationPolicy::from_name(name).unwrap();
            let (local, shared) = (Bytes(2 * GIB), Bytes(8 * GIB));
            let mut sequence = AllocationSequence::new(policy, places(4), local, shared, Seed(1));
            let mut counts = [0; 5];
            for _ in 0..4000 {
                let order = sequence.next_order();
                counts[order[usize::from(order[0] == 0)]] += 1;
            }
            assert!(counts[1..].iter().all(|n| (990..=1010).contains(n)), "{name}: {counts:?}");
        }
    }

    #[test]
    fn weights_are_kept_at_every_moment() {
        let count = |policy, pool| firsts(policy, 2, 800).iter().filter(|p| **p == pool).count();
        assert_eq!([0, 1, 2].map(|pool| count("bandwidth", pool)), [600, 100, 100]);
        // One over the latency: 4 to 1 to 1.
        assert!((530..537).contains(&count("latency", 0)), "{}", count("latency", 0));
        let early = firsts("bandwidth", 2, 8);
        assert_eq!(early.iter().filter(|p| **p == 0).count(), 6, "{early:?}");
    }

    #[test]
    fn waits_turn_frames_away() {
        let new = |policy| {
            let (local, shared) = (Bytes(2 * GIB), Bytes(16 * GIB));
            AllocationSequence::new(policy, places(2), local, shared, Seed(1))
        };
        let mut sequence = new(AllocationPolicy::LeastLoaded);
        let seconds = |s: &mut AllocationSequence| [(); 4].map(|()| s.next_order()[1]);
        assert_eq!(seconds(&mut sequence), [2, 1, 2, 1], "in turn");
        sequence.set_waits(&[500_000, 100_000]);
        assert_eq!(seconds(&mut sequence), [2; 4]);
        let mut sequence = new(AllocationPolicy::Latency);
        sequence.set_waits(&[3_600_000, 0]);
        let taken: Vec<usize> = (0..510).map(|_| sequence.next_order()[0]).collect();
        let count = |pool| taken.iter().filter(|p| **p == pool).count();
        assert!(count(1) < 15 && count(2) > 90, "{} and {}", count(1), count(2));
    }

    #[test]
    fn a_profile_keeps_cold_pages_out_of_local_memory() {
        let policy = AllocationPolicy::ApplicationAware;
        let (local, shared) = (Bytes(2 * GIB), Bytes(16 * GIB));
        let mut sequence = AllocationSequence::new(policy, places(2), local, shared, Seed(1));
        let mut next = |rank| sequence.next_order_of(rank);
        assert_eq!(next(ProfileRank::Cold), [1, 2, 0]);
        assert_eq!(next(ProfileRank::Hot)[0], 0);
        assert_eq!(next(ProfileRank::Cold), [2, 1, 0]);
    }

    #[test]
    fn unknown_policies_are_refused_with_those_that_are_known() {
        let error = AllocationPolicy::from_name("best").unwrap_err().to_string();
        assert!(error.contains("\"best\"") && error.contains("round-robin"), "{error}");
    }
}
