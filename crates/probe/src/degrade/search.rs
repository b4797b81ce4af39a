//! Finds the load that leaves a wanted bandwidth. Pure: says what to try, is given the result.

use super::DegradeError;
use terrace_types::{Bytes, BytesPerSec, NodeId};

/// The load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knobs {
    /// Loading threads; 0: none.
    pub threads: u32,
    /// Additions that do nothing, after every 64 lines that the stencil goes over.
    pub adds: u32,
    /// What the loading threads go over together.
    pub region: Bytes,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SearchAction {
    /// Load so, and tell [`LoadSearch::describe`] what is left.
    Try(Knobs),
    /// This load leaves what is wanted; it left the figure when it was tried last.
    Hold(Knobs, BytesPerSec),
}

/// As near as the wanted figure must be met when it is looked for; what is promised is 10%.
const NEAR: f64 = 0.05;
/// And as it is promised.
const PROMISED: f64 = 0.10;
/// Additions at most: a thread that does nothing else takes next to nothing.
pub(super) const MAX_ADDS: u32 = 1 << 17;
/// Tries in all.
const PATIENCE: u32 = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Without load.
    Free,
    /// With all threads, over a region that is twice as large each time, until it is enough: what
    /// stays in caches of a small one takes nothing of the node.
    Full,
    /// The fewest threads that are enough: `low` are too few, `high` enough.
    Threads { low: u32, high: u32 },
    /// Additions: with `low` too much is taken, with `high` too little.
    Adds { low: u32, high: u32 },
}

/// The search. More threads leave less, and so does a larger region; more additions leave more. The
/// region is found first, the smallest that is enough: it is memory that the command cannot have,
/// and space in the caches that it shares.
#[derive(Debug, Clone)]
pub struct LoadSearch {
    node: NodeId,
    wanted: f64,
    most: u32,
    largest: Bytes,
    free: f64,
    /// The least that any load left.
    least: f64,
    stage: Stage,
    now: Knobs,
    tries: u32,
}

impl LoadSearch {
    /// For `wanted` of `node`, with `most` threads at most, over regions of the two sizes and what
    /// lies between. Begins without load.
    #[must_use]
    pub fn new(
        node: NodeId,
        wanted: BytesPerSec,
        most: u32,
        (smallest, largest): (Bytes, Bytes),
    ) -> Self {
        let now = Knobs { threads: 0, adds: 0, region: smallest };
        let (free, least) = (0.0, f64::INFINITY);
        Self {
            node,
            wanted: wanted.get() as f64,
            most,
            largest,
            free,
            least,
            stage: Stage::Free,
            now,
            tries: 0,
        }
    }

    /// What to try first.
    #[must_use]
    pub fn first(&self) -> SearchAction {
        SearchAction::Try(self.now)
    }

    /// Bandwidth without load, once it was reported.
    #[must_use]
    pub fn free(&self) -> BytesPerSec {
        BytesPerSec(self.free as u64)
    }

    /// Takes what the load tried last left.
    ///
    /// # Errors
    /// The wanted figure cannot be had.
    pub fn observe(&mut self, left: BytesPerSec) -> Result<SearchAction, DegradeError> {
        let rate = left.get() as f64;
        self.tries += 1;
        self.least = self.least.min(rate);
        let node = self.node;
        if self.stage == Stage::Free {
            self.free = rate;
            if self.wanted > rate * (1.0 + PROMISED) {
                return Err(DegradeError::AboveFree { node, free: left });
            }
        }
        if (rate / self.wanted - 1.0).abs() <= NEAR {
            return Ok(SearchAction::Hold(self.now, left));
        }
        if self.tries >= PATIENCE {
            return self.give_up(left);
        }
        let enough = rate < self.wanted;
        let next = match self.stage {
            // It has less than wanted, though within what is promised, and no load makes it more.
            Stage::Free if enough => return Ok(SearchAction::Hold(self.now, left)),
            Stage::Free => (Stage::Full, Knobs { threads: self.most, ..self.now }),
            Stage::Full if !enough && self.now.region < self.largest => {
                let region = Bytes(self.now.region.get().saturating_mul(2)).min(self.largest);
                (Stage::Full, Knobs { region, ..self.now })
            }
            Stage::Full if !enough && rate <= self.wanted * (1.0 + PROMISED) => {
                return Ok(SearchAction::Hold(self.now, left))
            }
            Stage::Full if !enough => {
                let (free, cpus, least) = (self.free(), self.most, BytesPerSec(self.least as u64));
                return Err(DegradeError::OutOfReach {
                    node,
                    least,
                    free,
                    cpus,
                    region: self.now.region,
                });
            }
            Stage::Full => self.threads(0, self.most),
            Stage::Threads { low, .. } if enough => self.threads(low, self.now.threads),
            Stage::Threads { high, .. } => self.threads(self.now.threads, high),
            Stage::Adds { high, .. } if enough => self.adds(self.now.adds, high),
            Stage::Adds { low, .. } => self.adds(low, self.now.adds),
        };
        // Nothing lies between: the node is not steady, or its steps are coarse.
        if next.1 == self.now {
            return self.give_up(left);
        }
        (self.stage, self.now) = next;
        Ok(SearchAction::Try(self.now))
    }

    fn give_up(&self, left: BytesPerSec) -> Result<SearchAction, DegradeError> {
        if (left.get() as f64 / self.wanted - 1.0).abs() <= PROMISED {
            return Ok(SearchAction::Hold(self.now, left));
        }
        let wanted = BytesPerSec(self.wanted as u64);
        Err(DegradeError::Unsteady { node: self.node, wanted, last: left })
    }

    fn threads(&self, low: u32, high: u32) -> (Stage, Knobs) {
        if high - low <= 1 {
            let (stage, knobs) = self.adds(0, MAX_ADDS);
            return (stage, Knobs { threads: high, ..knobs });
        }
        (
            Stage::Threads { low, high },
            Knobs { threads: low + (high - low) / 2, adds: 0, ..self.now },
        )
    }

    /// Between, by ratio: twice the additions are about half the load.
    fn adds(&self, low: u32, high: u32) -> (Stage, Knobs) {
        let middle = (f64::from(low + 1) * f64::from(high + 1)).sqrt() as u32 - 1;
        (Stage::Adds { low, high }, Knobs { adds: middle.clamp(low, high), ..self.now })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::Seed;

    /// Regions that no cache holds any of.
    const LARGE: (Bytes, Bytes) = (Bytes::gib(1), Bytes::gib(1));

    /// A node of `capacity` that a command can use `own` of; each loading thread takes `each`, less
    /// with additions, and nothing for what stays in `cache`.
    struct Node {
        cache: Bytes,
        capacity: f64,
        own: f64,
        each: f64,
        noise: f64,
        seed: Seed,
    }

    impl Node {
        fn left(&mut self, knobs: Knobs) -> BytesPerSec {
            let missed = (1.0 - self.cache.get() as f64 / knobs.region.get() as f64).max(0.0);
            let load = f64::from(knobs.threads) * self.each * missed
                / (1.0 + f64::from(knobs.adds) / 200.0);
            let (random, seed) = self.seed.next();
            self.seed = seed;
            let noise = 1.0 + self.noise * (random as f64 / u64::MAX as f64 - 0.5);
            // What both want beyond the capacity is shared in proportion.
            let over = ((load + self.own) / self.capacity).max(1.0);
            BytesPerSec((self.own / over * noise * 1e9) as u64)
        }

        fn search(&mut self, wanted: f64, most: u32) -> Result<(Knobs, BytesPerSec), DegradeError> {
            self.search_over(wanted, most, LARGE)
        }

        fn search_over(
            &mut self,
            wanted: f64,
            most: u32,
            regions: (Bytes, Bytes),
        ) -> Result<(Knobs, BytesPerSec), DegradeError> {
            let mut search =
                LoadSearch::new(NodeId(1), BytesPerSec((wanted * 1e9) as u64), most, regions);
            let mut action = search.first();
            loop {
                match action {
                    SearchAction::Try(knobs) => action = search.observe(self.left(knobs))?,
                    SearchAction::Hold(knobs, rate) => return Ok((knobs, rate)),
                }
            }
        }
    }

    #[test]
    fn every_figure_within_reach_is_met_within_a_tenth() {
        for seed in 0..40 {
            let mut node = Node {
                cache: Bytes::ZERO,
                capacity: 60.0,
                own: 50.0,
                each: 12.0,
                noise: 0.04,
                seed: Seed(seed),
            };
            for wanted in [20.0, 25.0, 33.0, 40.0, 48.0] {
                let (knobs, _) = node
                    .search(wanted, 24)
                    .unwrap_or_else(|e| panic!("seed {seed}, {wanted}: {e}"));
                node.noise = 0.0;
                let truth = node.left(knobs).get() as f64 / 1e9;
                node.noise = 0.04;
                assert!(
                    (truth / wanted - 1.0).abs() < 0.10,
                    "seed {seed}: {wanted} wanted, {truth} with {knobs:?}"
                );
            }
        }
    }

    #[test]
    fn the_region_is_the_smallest_that_is_enough() {
        let (mib, regions) = (Bytes::mib, (Bytes::mib(64), Bytes::mib(600)));
        // Four threads take 48 of memory: 24 while half of a region of 64 MiB stays in the cache,
        // 36 of 128 MiB, and so on.
        for (wanted, region) in
            [(42.0, mib(64)), (38.0, mib(128)), (34.3, mib(256)), (32.3, mib(512))]
        {
            let mut node = Node {
                cache: mib(32),
                capacity: 60.0,
                own: 55.0,
                each: 12.0,
                noise: 0.0,
                seed: Seed(0),
            };
            let (knobs, rate) = node.search_over(wanted, 4, regions).unwrap();
            assert_eq!(knobs.region, region, "{wanted}: {knobs:?}");
            assert!((rate.get() as f64 / 1e9 / wanted - 1.0).abs() < 0.1, "{wanted}: {rate}");
        }
        let mut node = Node {
            cache: mib(32),
            capacity: 60.0,
            own: 55.0,
            each: 12.0,
            noise: 0.0,
            seed: Seed(0),
        };
        let below = node.search_over(20.0, 4, regions).unwrap_err();
        let least = 55.0 / ((48.0 * (1.0 - 32.0 / 600.0) + 55.0) / 60.0);
        match below {
            DegradeError::OutOfReach { least: describe, region, .. } => {
                assert_eq!(region, mib(600), "no more may be had");
                assert!((describe.get() as f64 / 1e9 - least).abs() < 0.01, "{describe} {least}");
            }
            other => panic!("{other}"),
        }
        // Where the caches decide nothing, the smallest.
        let mut plain = Node { cache: mib(0), ..node };
        assert_eq!(plain.search_over(40.0, 4, regions).unwrap().0.region, mib(64));
    }

    #[test]
    fn one_loading_thread_is_enough_where_additions_do_the_rest() {
        let mut node = Node {
            cache: Bytes::ZERO,
            capacity: 30.0,
            own: 25.0,
            each: 25.0,
            noise: 0.0,
            seed: Seed(0),
        };
        let (knobs, _) = node.search(20.0, 1).unwrap();
        assert!(knobs.threads == 1 && knobs.adds > 0, "{knobs:?}");
    }

    #[test]
    fn what_cannot_be_is_said_with_what_can() {
        let mut node = Node {
            cache: Bytes::ZERO,
            capacity: 60.0,
            own: 50.0,
            each: 12.0,
            noise: 0.0,
            seed: Seed(0),
        };
        let above = node.search(80.0, 24).unwrap_err();
        assert!(
            matches!(above, DegradeError::AboveFree { free: BytesPerSec(50_000_000_000), .. }),
            "{above}"
        );
        let below = node.search(3.0, 4).unwrap_err();
        assert!(matches!(below, DegradeError::OutOfReach { cpus: 4, .. }), "{below}");
        // As it is: no load is needed.
        assert_eq!(node.search(51.0, 4).unwrap().0.threads, 0);
    }

    #[test]
    fn a_node_that_does_as_it_likes_ends_the_search() {
        let mut search = LoadSearch::new(NodeId(0), BytesPerSec::gb(10), 8, LARGE);
        let mut result = Ok(search.first());
        let mut tries = 0;
        for rate in [50, 2, 50, 2].into_iter().cycle() {
            tries += 1;
            result = search.observe(BytesPerSec::gb(rate));
            if !matches!(result, Ok(SearchAction::Try(_))) {
                break;
            }
        }
        assert!(matches!(result, Err(DegradeError::Unsteady { .. })), "{result:?}");
        assert!(tries <= 40);
    }
}
