//! Whether to stage, and with how many threads of each kind: a model of bandwidths alone. Pure.

use crate::MoveCosts;
use std::fmt;
use terrace_types::{Bytes, BytesPerSec, Nanos};

/// How threads are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// By the model, adapted while running; the number of all of them.
    Auto(u32),
    /// As said, stage it pays or not.
    Fixed {
        /// Threads that run the kernel.
        workers: u32,
        /// Threads that copy.
        migrators: u32,
    },
    /// All of them run the kernel in place.
    InPlace(u32),
}

/// What the model knows of the machine: figures of a machine file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Read bandwidth of the slow node, all threads together.
    pub slow: BytesPerSec,
    /// The same by one thread.
    pub slow_thread: BytesPerSec,
    /// Read bandwidth of the fast node, all threads together.
    pub fast: BytesPerSec,
    /// The same by one thread.
    pub fast_thread: BytesPerSec,
    /// Bytes a second that one thread copies from slow to fast.
    pub copy_thread: BytesPerSec,
    /// The cache that all threads share.
    pub cache: Bytes,
    /// Bytes a second that one thread reads from it.
    pub cache_thread: BytesPerSec,
    /// Moving pages, where addresses stay.
    pub moves: MoveCosts,
}

/// Figures of a machine file that [`Costs`] follow from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StagingFigures {
    /// Read bandwidth and latency of the slow node, as the threads' CPUs see them.
    pub slow: (BytesPerSec, Nanos),
    /// Those of the fast node.
    pub fast: (BytesPerSec, Nanos),
    /// Misses that a core has in flight.
    pub misses: u32,
    /// Size of the last cache, and the added time of a hit in it where that is known; zero where
    /// there is none.
    pub cache: (Bytes, Nanos),
    /// Moving pages.
    pub moves: MoveCosts,
}

/// Bytes of a line that a miss brings.
const LINE: f64 = 64.0;

/// Lines that a core has in flight of what it goes over in order, as copies and most passes do:
/// prefetchers run so far ahead (20 lines on Intel's cores since Sandy Bridge, optimisation manual,
/// "Data Prefetching"; 16 in the timing model, `terrace_model::core`).
const STREAM: u32 = 16;

impl From<&StagingFigures> for Costs {
    /// A machine file has what all CPUs do together. One thread does what its lines in flight allow
    /// at the node's latency, and never more than all together. It is taken to go over blocks in
    /// order: a kernel that does not is reported by [`StagingWork::compute_ns_per_byte`].
    fn from(figures: &StagingFigures) -> Self {
        let flight = f64::from(figures.misses.max(STREAM)) * LINE;
        let one = |(all, latency): (BytesPerSec, Nanos)| {
            BytesPerSec((flight / latency.get().max(1) as f64 * 1e9) as u64).min(all)
        };
        let (slow_thread, fast_thread) = (one(figures.slow), one(figures.fast));
        // A hit of no stated time is taken as a quarter of the fast node's latency.
        let hit = Some(figures.cache.1.get() as f64).filter(|ns| *ns > 0.0);
        let cached = hit.map_or(fast_thread.get() as f64 * 4.0, |ns| flight / ns * 1e9);
        Self {
            slow: figures.slow.0,
            slow_thread,
            fast: figures.fast.0,
            fast_thread,
            copy_thread: slow_thread,
            cache: figures.cache.0,
            cache_thread: BytesPerSec(cached as u64).max(fast_thread),
            moves: figures.moves,
        }
    }
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StagingWork {
    /// Blocks.
    pub blocks: usize,
    /// The largest of them.
    pub largest: Bytes,
    /// All of them.
    pub total: Bytes,
    /// How often the kernel goes over a block.
    pub passes: f64,
    /// Nanoseconds that a thread computes on a byte in one pass, were memory infinitely fast.
    pub compute_ns_per_byte: f64,
    /// Whether results go back. The kernel is taken to change all of a block then.
    pub back: bool,
    /// Threads in all.
    pub threads: u32,
    /// Fast memory that buffers may take.
    pub room: Bytes,
    /// Whether slow and fast are the same node.
    pub one_tier: bool,
    /// Whether copies store through the caches, which read a line before it is overwritten.
    pub read_first: bool,
    /// Whether addresses stay, so that pages are moved there and back.
    pub stay: bool,
}

/// Copies at once that the slow node can serve without each being slower.
#[must_use]
pub fn copies_at_once(costs: &Costs, stay: bool) -> u32 {
    let most = costs.slow.get() as f64 / carried(costs, stay, 1);
    // A little less than one more copy's worth is not worth one more.
    (most + 0.1).clamp(1.0, 1e6) as u32
}

/// How threads and buffers are divided.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ThreadSplit {
    /// Threads that run the kernel.
    pub workers: u32,
    /// Threads that copy.
    pub migrators: u32,
    /// Buffers, each as large as the largest block.
    pub slots: u32,
    /// What the model expects.
    pub expected: Nanos,
    /// What it expects without staging, by all threads.
    pub in_place: Nanos,
}

/// Why staging cannot pay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NoStagingReason {
    /// No blocks, or empty ones.
    Nothing,
    /// Slow and fast memory are the same.
    OneTier,
    /// A thread cannot copy while it works.
    OneThread,
    /// Nothing is left to copy ahead.
    OneBlock,
    /// The data stays in the cache anyway.
    FitsCache {
        /// All blocks.
        total: Bytes,
        /// The cache.
        cache: Bytes,
    },
    /// Two buffers do not fit.
    NoSpace {
        /// Two of the largest block.
        wanted: Bytes,
        /// What may be had.
        room: Bytes,
    },
    /// The machine's figures are not known.
    NoFigures,
    /// The model expects less than 3% from it.
    NoGain {
        /// With the best split.
        staged: Nanos,
        /// Without.
        in_place: Nanos,
    },
    /// It was asked for.
    Asked,
}

impl fmt::Display for NoStagingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => write!(f, "there is nothing to do"),
            Self::OneTier => write!(f, "the data is on the fast node already"),
            Self::OneThread => write!(f, "one thread cannot copy while it works"),
            Self::OneBlock => write!(f, "with one block there is nothing to copy ahead"),
            Self::FitsCache { total, cache } => write!(f, "{total} stay in a cache of {cache}"),
            Self::NoSpace { wanted, room } => {
                write!(f, "two buffers take {wanted} of fast memory, {room} may be had")
            }
            Self::NoFigures => {
                write!(
                    f,
                    "the bandwidths of the two nodes are not known; measure them with \
                    terrace probe"
                )
            }
            Self::NoGain { staged, in_place } => {
                write!(
                    f,
                    "too few passes over each block: {staged} expected staged, {in_place} in place"
                )
            }
            Self::Asked => write!(f, "it was asked for"),
        }
    }
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StagingDecision {
    /// Stage.
    Staged(ThreadSplit),
    /// Run in place.
    InPlace(NoStagingReason),
}

/// A gain below this share is not worth the buffers.
const WORTH: f64 = 0.97;

/// Splits whose expected times differ by less are taken to be alike.
const ALIKE: f64 = 1.02;

/// Decides. `None` where the figures are not known.
#[must_use]
pub fn decide(costs: Option<&Costs>, work: &StagingWork) -> StagingDecision {
    let largest = work.largest.get().max(1);
    if work.blocks == 0 || work.total == Bytes::ZERO {
        return StagingDecision::InPlace(NoStagingReason::Nothing);
    }
    if work.one_tier {
        return StagingDecision::InPlace(NoStagingReason::OneTier);
    }
    if work.threads < 2 {
        return StagingDecision::InPlace(NoStagingReason::OneThread);
    }
    if work.blocks < 2 {
        return StagingDecision::InPlace(NoStagingReason::OneBlock);
    }
    let slots = work.room.get() / largest;
    if slots < 2 {
        return StagingDecision::InPlace(NoStagingReason::NoSpace {
            wanted: Bytes(largest.saturating_mul(2)),
            room: work.room,
        });
    }
    let Some(costs) = costs else { return StagingDecision::InPlace(NoStagingReason::NoFigures) };
    if work.total <= costs.cache {
        return StagingDecision::InPlace(NoStagingReason::FitsCache {
            total: work.total,
            cache: costs.cache,
        });
    }
    let in_place = in_place(costs, work);
    let splits = (1..work.threads).map(|workers| (workers, work.threads - workers));
    let timed: Vec<_> = splits.map(|(w, m)| (staged(costs, work, w, m), w, m)).collect();
    let least = timed.iter().map(|t| t.0).fold(f64::INFINITY, f64::min);
    // Where a node's bus decides, many splits are as good but for its ends: the one whose threads
    // have most to spare then, for kernels that compute more than told and copies that are slower.
    let alike = timed.into_iter().filter(|t| t.0 <= least * ALIKE);
    let best = alike.min_by(|a, b| {
        let busy = |t: &(f64, u32, u32)| busiest(costs, work, t.1, t.2);
        busy(a).total_cmp(&busy(b)).then(b.1.cmp(&a.1))
    });
    let Some((seconds, workers, migrators)) = best else {
        return StagingDecision::InPlace(NoStagingReason::OneThread);
    };
    let (expected, without) = (nanos(seconds), nanos(in_place));
    if seconds >= in_place * WORTH {
        return StagingDecision::InPlace(NoStagingReason::NoGain {
            staged: expected,
            in_place: without,
        });
    }
    let slots = slots
        .min(u64::from(wanted_slots(workers, migrators, work.back || work.stay)))
        .min(work.blocks as u64) as u32;
    StagingDecision::Staged(ThreadSplit {
        workers,
        migrators,
        slots: slots.max(2),
        expected,
        in_place: without,
    })
}

/// A buffer each for what is worked on, one ahead of each worker, and one for each copy under way,
/// back as well.
#[must_use]
pub const fn wanted_slots(workers: u32, migrators: u32, back: bool) -> u32 {
    let copies = if back { migrators * 2 } else { migrators };
    let ahead = if copies > workers { copies } else { workers };
    workers + ahead
}

fn nanos(seconds: f64) -> Nanos {
    Nanos((seconds * 1e9).min(9e18) as u64)
}

fn rate(thread: BytesPerSec, threads: u32, all: BytesPerSec) -> f64 {
    (thread.get() as f64 * f64::from(threads)).min(all.get() as f64).max(1.0)
}

/// Bytes of a base page, which moves are counted in.
const PAGE: f64 = 4096.0;

/// Bytes a second that so many threads carry from slow to fast memory or back.
fn carried(costs: &Costs, stay: bool, threads: u32) -> f64 {
    if !stay {
        return rate(costs.copy_thread, threads, costs.slow);
    }
    let page = costs.moves.page.get().max(1) as f64 / 1e9 * costs.moves.share(threads);
    (PAGE / page).min(costs.slow.get() as f64).max(1.0)
}

/// How often a block is carried: pages go home in any case.
fn ways(work: &StagingWork) -> f64 {
    if work.back || work.stay {
        2.0
    } else {
        1.0
    }
}

/// How passes are served.
struct Passes {
    /// From memory: all of them, or the first where the workers' blocks stay in the cache.
    memory: f64,
    /// Seconds for the others.
    cached: f64,
}

fn passes(costs: &Costs, work: &StagingWork, workers: u32, migrators: u32) -> Passes {
    // Copies go through the cache as well: a block that is read and one that is written by each of
    // those who copy.
    let blocks = u64::from(workers) + 2 * u64::from(migrators);
    if work.largest.get().saturating_mul(blocks) > costs.cache.get() {
        return Passes { memory: work.passes, cached: 0.0 };
    }
    let memory = work.passes.min(1.0);
    let rate = (costs.cache_thread.get() as f64 * f64::from(workers)).max(1.0);
    Passes { memory, cached: (work.passes - memory) * work.total.get() as f64 / rate }
}

/// What the model expects of `threads`, of a division that somebody else chose as well.
#[must_use]
pub fn expected(costs: &Costs, work: &StagingWork, threads: Threads) -> Nanos {
    let divided = |workers, migrators| {
        let work = StagingWork { threads: workers + migrators, ..*work };
        nanos(staged(costs, &work, workers, migrators))
    };
    match threads {
        Threads::InPlace(threads) => nanos(in_place(costs, &StagingWork { threads, ..*work })),
        Threads::Fixed { workers, migrators } => divided(workers, migrators),
        Threads::Auto(threads) => match decide(Some(costs), &StagingWork { threads, ..*work }) {
            StagingDecision::Staged(split) => split.expected,
            StagingDecision::InPlace(_) => {
                nanos(in_place(costs, &StagingWork { threads, ..*work }))
            }
        },
    }
}

/// Seconds in place, all threads working.
fn in_place(costs: &Costs, work: &StagingWork) -> f64 {
    let workers = work.threads.min(work.blocks as u32).max(1);
    let passes = passes(costs, work, workers, 0);
    let memory = passes.memory * written(work) * work.total.get() as f64
        / rate(costs.slow_thread, workers, costs.slow);
    (memory + passes.cached).max(compute(work, workers))
}

/// Crossings of the bus by a line in one pass: what a kernel changes leaves the cache again.
fn written(work: &StagingWork) -> f64 {
    if work.back {
        2.0
    } else {
        1.0
    }
}

fn compute(work: &StagingWork, workers: u32) -> f64 {
    work.total.get() as f64 * work.passes * work.compute_ns_per_byte / 1e9 / f64::from(workers)
}

/// Seconds that the busier kind of thread takes were no bus shared.
fn busiest(costs: &Costs, work: &StagingWork, workers: u32, migrators: u32) -> f64 {
    let total = work.total.get() as f64;
    let alone = |rate: BytesPerSec| total / rate.get().max(1) as f64;
    let each_byte = compute(work, 1).max(work.passes * alone(costs.fast_thread));
    (each_byte / f64::from(workers))
        .max(ways(work) * total / carried(costs, work.stay, 1) / f64::from(migrators))
}

/// Seconds staged: the slowest of working, copying and the fast node's bus, and what cannot overlap
/// at both ends.
fn staged(costs: &Costs, work: &StagingWork, workers: u32, migrators: u32) -> f64 {
    let total = work.total.get() as f64;
    let each = total / work.blocks as f64;
    let copies = ways(work);
    let busy = workers.min(work.blocks as u32).max(1);
    let passes = passes(costs, work, busy, migrators);
    let memory = passes.memory * written(work) * total / rate(costs.fast_thread, busy, costs.fast);
    let working = (memory + passes.cached).max(compute(work, busy));
    // The kernel's own copies go through the caches.
    let first = if work.read_first || work.stay { 1.0 } else { 0.0 };
    // What goes back is read first on the slow node, what comes on the fast one.
    let back = if copies > 1.0 { 1.0 + first } else { 0.0 };
    let slow_bus = (1.0 + back) * total / costs.slow.get().max(1) as f64;
    let copying = if work.stay {
        slow_bus.max(copies * total / carried(costs, true, migrators))
    } else {
        (1.0 + back) * total / carried(costs, false, migrators)
    };
    let bus =
        (passes.memory * written(work) + copies + first) * total / costs.fast.get().max(1) as f64;
    let fill = each * copies / carried(costs, work.stay, 1);
    // One worker alone, which has the bus to itself.
    let pass = (1.0 / rate(costs.fast_thread, 1, costs.fast)).max(work.compute_ns_per_byte / 1e9);
    let drain = (each * work.passes * pass).min(working * f64::from(busy) / work.blocks as f64);
    // Where copying takes longest, the last block's work remains at the end; else the first block's
    // copy at the start.
    working.max(copying).max(bus) + if copying >= working { drain } else { fill }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gb(n: u64) -> BytesPerSec {
        BytesPerSec::gb(n)
    }

    /// The paper's degraded form: a gap of about 5.6, twelve threads.
    fn degraded() -> Costs {
        Costs {
            slow: gb(10),
            slow_thread: gb(5),
            fast: gb(56),
            fast_thread: gb(8),
            copy_thread: gb(4),
            cache: Bytes::mib(30),
            cache_thread: gb(20),
            moves: MoveCosts::default(),
        }
    }

    fn work(passes: f64) -> StagingWork {
        StagingWork {
            blocks: 200,
            largest: Bytes::mib(16),
            total: Bytes::mib(3200),
            passes,
            compute_ns_per_byte: 0.0,
            back: false,
            threads: 12,
            room: Bytes::gib(1),
            one_tier: false,
            read_first: false,
            stay: false,
        }
    }

    fn split(decision: StagingDecision) -> ThreadSplit {
        match decision {
            StagingDecision::Staged(split) => split,
            StagingDecision::InPlace(why) => panic!("in place: {why}"),
        }
    }

    #[test]
    fn gain_approaches_the_gap_with_passes() {
        let mut last = 0.0;
        for passes in [2.0, 4.0, 8.0, 20.0, 100.0] {
            let s = split(decide(Some(&degraded()), &work(passes)));
            let gain = s.in_place.get() as f64 / s.expected.get() as f64;
            assert!(gain > last, "{passes}: {gain} after {last}");
            assert!(gain < 5.6 && s.workers + s.migrators == 12, "{passes}: {gain} {s:?}");
            last = gain;
        }
        assert!(last > 5.0, "{last}");
    }

    #[test]
    fn few_passes_take_migrators_and_many_take_workers() {
        let few = split(decide(Some(&degraded()), &work(3.0)));
        let many = split(decide(Some(&degraded()), &work(40.0)));
        assert!(many.workers > few.workers || few.migrators >= 3, "{few:?} {many:?}");
        assert!(many.workers >= 7, "enough to saturate the fast node: {many:?}");
        assert!(many.slots > many.workers && few.slots >= 2);
    }

    #[test]
    fn addresses_that_stay_cost_more_and_pay_later() {
        let costs = degraded();
        let copied = |passes| split(decide(Some(&costs), &work(passes)));
        let moved = |passes| decide(Some(&costs), &StagingWork { stay: true, ..work(passes) });
        assert!(
            matches!(moved(3.0), StagingDecision::InPlace(NoStagingReason::NoGain { .. })),
            "two moves of 2.3 us a page are not paid back"
        );
        assert!(copied(3.0).expected < copied(3.0).in_place);
        let many = split(moved(40.0));
        assert!(many.expected > copied(40.0).expected, "moves cost more than copies");
        assert!(many.migrators >= copied(40.0).migrators, "and take more threads");
        // 3200 MiB there and home: 819,200 pages of 2.3 us each way by these threads.
        let alone = 2.0 * 819_200.0 * 2.3e-6 * costs.moves.share(many.migrators);
        assert!(many.expected.as_secs_f64() >= alone, "{many:?}");
        let dear = Costs { moves: MoveCosts { page: Nanos::millis(1), ..costs.moves }, ..costs };
        assert!(matches!(
            decide(Some(&dear), &StagingWork { stay: true, ..work(40.0) }),
            StagingDecision::InPlace(_)
        ));
    }

    #[test]
    fn what_cannot_pay_runs_in_place_and_says_why() {
        let costs = degraded();
        let why = |costs: Option<&Costs>, work: StagingWork| match decide(costs, &work) {
            StagingDecision::InPlace(why) => why.to_string(),
            StagingDecision::Staged(split) => panic!("staged: {split:?}"),
        };
        let c = Some(&costs);
        assert!(why(c, work(1.0)).contains("too few passes"));
        assert!(why(c, StagingWork { one_tier: true, ..work(9.0) }).contains("fast node already"));
        assert!(why(c, StagingWork { threads: 1, ..work(9.0) }).contains("one thread"));
        assert!(why(c, StagingWork { blocks: 1, ..work(9.0) }).contains("one block"));
        assert!(why(c, StagingWork { blocks: 0, ..work(9.0) }).contains("nothing"));
        assert!(why(c, StagingWork { room: Bytes::mib(20), ..work(9.0) }).contains("32 MiB"));
        assert!(why(c, StagingWork { total: Bytes::mib(20), largest: Bytes::mib(1), ..work(9.0) })
            .contains("cache"));
        assert!(why(None, work(9.0)).contains("terrace probe"));
        let heavy = StagingWork { compute_ns_per_byte: 50.0, ..work(9.0) };
        assert!(why(c, heavy).contains("expected staged"), "computing bounds it");
        let cached = StagingWork { largest: Bytes::mib(1), ..work(1.5) };
        assert!(why(c, cached).contains("in place"), "later passes come from the cache");
    }

    /// `bench/machines/stage-degraded.toml`, as `stage_bench` sees it: two workers fill the fast
    /// node, one copy the slow one.
    fn wide() -> (Costs, StagingWork) {
        let (slow, fast) = (BytesPerSec(7_143_000_000), gb(40));
        let costs = Costs {
            slow,
            slow_thread: slow,
            fast,
            fast_thread: fast,
            copy_thread: slow,
            cache: Bytes::mib(4),
            cache_thread: fast,
            moves: MoveCosts::default(),
        };
        let (largest, total) = (Bytes::mib(2), Bytes::mib(128));
        (
            costs,
            StagingWork {
                blocks: 64,
                largest,
                total,
                compute_ns_per_byte: 0.045,
                read_first: true,
                ..work(2.0)
            },
        )
    }

    #[test]
    fn of_splits_that_a_bus_makes_alike_the_one_with_most_to_spare() {
        let (costs, work) = wide();
        let s = split(decide(Some(&costs), &work));
        // One worker would do by the bandwidths, and be late at the first delay.
        assert!((4..=7).contains(&s.workers), "{s:?}");
        let all = (1..12)
            .map(|w| expected(&costs, &work, Threads::Fixed { workers: w, migrators: 12 - w }));
        let least = all.min().unwrap();
        assert!(s.expected.get() as f64 <= least.get() as f64 * ALIKE, "{s:?}, {least}");
    }

    #[test]
    fn the_last_block_is_worked_on_by_one_thread_at_its_own_pace() {
        let (costs, work) = wide();
        let of =
            |workers, migrators| expected(&costs, &work, Threads::Fixed { workers, migrators });
        // Copies decide; 2 MiB twice by one thread, at 22 GB/s, come after them.
        let copies = work.total.get() as f64 / 7.143;
        let last = of(8, 4).get() as f64 - copies;
        let alone = work.largest.get() as f64 * 2.0 * 0.045;
        assert!((last / alone - 1.0).abs() < 0.01, "{last} ns, {alone} ns");
    }

    #[test]
    fn what_is_copied_takes_the_cache_too() {
        // Four workers with 1 MiB each fill 4 MiB; with copies beside them nothing stays there from
        // pass to pass.
        let costs = Costs { cache: Bytes::mib(4), ..degraded() };
        let small = StagingWork {
            largest: Bytes::mib(1),
            total: Bytes::mib(128),
            blocks: 128,
            ..work(5.0)
        };
        let alone = passes(&costs, &small, 4, 0);
        let beside = passes(&costs, &small, 4, 8);
        assert_eq!((alone.memory, beside.memory), (1.0, 5.0));
        let tiny = StagingWork { largest: Bytes(200 << 10), ..small };
        assert_eq!(passes(&costs, &tiny, 4, 8).memory, 1.0);
    }

    #[test]
    fn results_that_go_back_cost_twice_the_copies() {
        let there = split(decide(Some(&degraded()), &work(4.0)));
        let back = split(decide(Some(&degraded()), &StagingWork { back: true, ..work(4.0) }));
        assert!(back.expected > there.expected && back.migrators >= there.migrators);
    }

    #[test]
    fn stores_that_read_first_cost_the_bus_and_copies_stop_where_it_is_busy() {
        let seconds = |w: StagingWork| split(decide(Some(&degraded()), &w)).expected.as_secs_f64();
        let (past, through) =
            (seconds(work(8.0)), seconds(StagingWork { read_first: true, ..work(8.0) }));
        assert!(through > past && through < past * 1.2, "{past} {through}");
        let (past, through) = (
            StagingWork { back: true, ..work(9.0) },
            StagingWork { back: true, read_first: true, ..work(9.0) },
        );
        assert!(seconds(through) > seconds(past));
        assert_eq!(copies_at_once(&degraded(), false), 2, "10 GB/s by 4 a thread");
        assert_eq!(copies_at_once(&Costs { copy_thread: gb(10), ..degraded() }, false), 1);
        assert_eq!(copies_at_once(&Costs { copy_thread: gb(100), ..degraded() }, false), 1);
    }

    #[test]
    fn what_kernels_change_leaves_the_cache_in_each_pass() {
        let changed = StagingWork { back: true, ..work(8.0) };
        let (read, both) = (in_place(&degraded(), &work(8.0)), in_place(&degraded(), &changed));
        assert!((both / read - 2.0).abs() < 1e-9, "{read} {both}");
        // Copies there and back are as much as one pass in place: from two on it pays.
        assert!(matches!(
            decide(Some(&degraded()), &StagingWork { back: true, ..work(1.0) }),
            StagingDecision::InPlace(_)
        ));
        let s = split(decide(Some(&degraded()), &StagingWork { back: true, ..work(3.0) }));
        assert!(s.in_place.get() as f64 > 1.5 * s.expected.get() as f64, "{s:?}");
    }

    #[test]
    fn a_division_of_ones_own_gets_its_time() {
        let (costs, work) = (degraded(), work(8.0));
        let s = split(decide(Some(&costs), &work));
        assert_eq!(expected(&costs, &work, Threads::Auto(12)), s.expected);
        assert_eq!(expected(&costs, &work, Threads::InPlace(12)), s.in_place);
        let of =
            |workers, migrators| expected(&costs, &work, Threads::Fixed { workers, migrators });
        assert_eq!(of(s.workers, s.migrators), s.expected);
        assert!((1..12).all(|w| of(w, 12 - w) >= s.expected));
    }

    #[test]
    fn buffers_keep_to_the_space() {
        let s =
            split(decide(Some(&degraded()), &StagingWork { room: Bytes::mib(50), ..work(20.0) }));
        assert_eq!(s.slots, 3);
    }
}
